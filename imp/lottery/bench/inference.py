"""`imp bench inference`: exported tickets beside the dense network, in each engine that is installed."""

import contextlib
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lottery.base import extras
from lottery.base.errors import InputError
from lottery.base.progress import count_of
from lottery.bench import timing
from lottery.bench.harness import Bench
from lottery.bench.process import Process
from lottery.bench.sheet import Column, Rows, bars

if TYPE_CHECKING:
    import numpy as np

    from lottery.bench.engines import Engine
    from lottery.rundir.run import Run

DENSE = "dense"  # as experiment.graph calls it, which --help need not load
ROUND_SECONDS = 0.1
TEST, TRAINING = "test.npy", "training.npy"  # images
COLUMNS = (
    Column("name", ""),
    Column("us", "µs an image", ",.0f"),
    Column("speedup", "speed-up", ".2f"),
    Column("at_least", "from", ".2f"),
    Column("at_most", "to", ".2f"),
    Column("file_kb", "file, kB", ",.1f"),
    Column("accuracy", "test accuracy", ".2%"),
    Column("agreement", "as Keras", ".2%"),
)


class Contender(NamedTuple):
    """A network, whole or compact, in an engine: its file, and the size of that (`file_kb`, `gzip_kb`)."""

    network: str
    compact: bool
    engine: "Engine"
    path: Path
    sizes: dict[str, float]

    @property
    def title(self) -> str:
        return f"{self.network}, {'compact, ' if self.compact else ''}{self.engine.name}"


def compare(bench: Bench, target: "Run", tickets: Sequence[str], replicate: int, threads: Sequence[int]) -> None:
    """Exported `tickets` (empty: the first and the last) beside the dense network, in each engine, with so many `threads`
    (empty: 1, 2 and 4, as there are cores)."""
    from lottery.bench.engines import ENGINES
    from lottery.engine.signature import Signature
    from lottery.results import lookup

    if target.recipe.task != "classification":
        raise InputError(f"engines run networks that tell images apart, not those of {target.folder}: name another run")
    place, manifest = target.replicate(replicate), target.manifest()
    if not tickets:
        trained = [name for name in lookup.finished(place) if " " not in name and name != DENSE]
        if not trained:
            raise InputError(f"{place.folder} has no finished ticket: train one with `imp run` or `imp retrain`")
        tickets = list(dict.fromkeys([trained[0], trained[-1]]))
    states = {name: lookup.trained(target, place, name)[1] for name in (DENSE, *tickets)}
    signature = Signature(manifest.shape, len(manifest.classes))
    network = {"model": target.recipe.model, "signature": signature}
    notes = [
        f"skipped: {engine.name} is not installed: {extras.install(engine.package)}"
        for engine in {engine.package: engine for engine in ENGINES[::-1]}.values()
        if not engine.installed
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        labels = bench.shared.call(draw_images, run=target, folder=folder, count=100 if bench.quick else 1000)
        contenders = _exported(bench, states, network, folder)
        for count in threads or ([1] if bench.quick else [number for number in (1, 2, 4) if number <= timing.cores()]):
            rows = _measured(bench, contenders, folder / TEST, labels, count)
            bench.rows += rows
            notes += summary(rows)
    height, width, _ = manifest.shape
    bench.sheet(
        f"Inference: {target.recipe.model.name}, {height}x{width}, an image at a time",
        COLUMNS,
        bars(bench.rows, "name", "speedup", "times as fast as the fastest dense engine"),
        *notes,
        "speed-up: compared with the fastest dense engine in float32, turn by turn, with the 95 % interval of the median",
        "compact: without the channels that do nothing, as `imp export --compact` writes it",
        f"test accuracy: on {len(labels):,} of {manifest.count('test'):,} test images, always the same ones",
        "as Keras: the share of these to which the answer is the one that Keras gives in float32 for the same network",
        "engines: " + ", ".join(f"{engine.name} {engine.version} ({engine.flags})" for engine in ENGINES if engine.installed),
        f"medians of {count_of(bench.repeats, 'turn')}, of the fastest call in {ROUND_SECONDS:g} s of each, "
        + ("all in one process" if bench.quick else "each row in a process of its own"),
    )


def _exported(bench: Bench, states: Mapping[str, Any], network: Mapping[str, Any], folder: Path) -> list[Contender]:
    """Each network of `states` in a file for each engine that is installed, tickets without their dead channels too."""
    from lottery.bench.engines import ENGINES
    from lottery.share import export

    contenders: list[Contender] = []
    variants = [(name, compact) for name in states for compact in (False, True) if name != DENSE or not compact]
    for name, compact in variants:
        for engine in ENGINES:
            if not engine.installed:
                continue
            path = folder / f"{len(contenders)}.{engine.format.partition('_')[0]}"
            contender = Contender(name, compact, engine, path, {})
            with bench.row(contender.title):
                made = {**network, "state": states[name], "compact": compact}
                content = bench.shared.call(file_of, to=engine.format, images=folder / TRAINING, **made)
                path.write_bytes(content)
                contender.sizes.update(file_kb=len(content) / 1e3, gzip_kb=export.gzipped(content) / 1e3)
                contenders.append(contender)
    return contenders


def _measured(bench: Bench, contenders: Sequence[Contender], images: Path, labels: "np.ndarray", threads: int) -> Rows:
    """A row for each contender that answers to test images, with so many threads: they take turns there and back."""
    from lottery.bench import engines

    rows: Rows = []
    processes: dict[str, Process] = {}
    outputs: dict[str, np.ndarray] = {}  # Keras's, by network; whole ones come first
    with contextlib.ExitStack() as stack:
        common = stack.enter_context(Process())
        for contender in contenders:
            network, compact, engine, path, sizes = contender
            title = f"{contender.title}, {count_of(threads, 'thread')}"
            with bench.row(title):
                process = common if bench.quick else stack.enter_context(Process(engine.tensorflow))
                logits, memory = process.call(
                    engines.load, title=title, engine=engine, path=path, threads=threads, images=images
                )
                if engine.name == "Keras":
                    outputs.setdefault(network, logits)
                row = {"name": title, "network": network, "compact": compact, "threads": threads}
                row |= {"engine": engine.name, "exact": engine.exact}
                row |= {"version": engine.version, "flags": engine.flags, "memory_mb": memory / 1e6, **sizes}
                rows.append(row | engines.compared(logits, labels, outputs.get(network)))
                processes[title] = process
        return compared(rows, _in_turn(bench, processes))


def compared(rows: Rows, walls: Mapping[str, Sequence[float]]) -> Rows:
    """`rows` with their latencies (`walls`: seconds in each turn, by name) and their speed-ups: the latency of the dense
    network in its fastest engine with the trained weights, over their own, turn by turn."""
    timed = [row | timing.spread("us", [1e6 * wall for wall in walls[row["name"]]]) for row in rows]
    dense = [row for row in timed if row["network"] == DENSE and row["exact"]]
    if not dense:
        return [row | dict.fromkeys(("fastest", "speedup", "at_least", "at_most")) for row in timed]
    fastest = min(dense, key=lambda row: row["us"])
    for row in timed:
        pairs = zip(walls[fastest["name"]], walls[row["name"]], strict=True)
        ratios = [dense_wall / wall for dense_wall, wall in pairs]
        low, high = interval(ratios)
        row |= {"fastest": fastest["engine"], "speedup": statistics.median(ratios), "at_least": low, "at_most": high}
    return timed


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Two of the values that the median of their distribution, whatever that is, lies between with 95 % confidence; of fewer
    than six values, the least and the largest."""
    from scipy.stats import binom

    ordered, beyond = sorted(values), max(int(binom.ppf(0.025, len(values), 0.5)), 1)
    return ordered[beyond - 1], ordered[-beyond]


def _in_turn(bench: Bench, processes: Mapping[str, Process]) -> dict[str, list[float]]:
    """Seconds of a call in each turn, by title; every other turn goes from the last to the first."""
    from lottery.bench.engines import latency

    walls: dict[str, list[float]] = {title: [] for title in processes}
    with bench.reporter.counting("measuring", bench.repeats * len(processes), "rounds") as progress:
        for turn in range(bench.repeats):
            for title in list(processes)[:: -1 if turn % 2 else 1]:
                walls[title].append(processes[title].call(latency, title=title, seconds=ROUND_SECONDS))
                progress(1)
    return walls


def summary(rows: Rows) -> list[str]:
    """A line for each network, in float32 and in int8: how much faster its fastest engine is than the fastest dense one."""
    lines, groups = [], dict.fromkeys((row["network"], row["exact"]) for row in rows)
    for network, exact in groups:
        timed = [row for row in rows if (row["network"], row["exact"]) == (network, exact) and row["speedup"]]
        if timed and (network, exact) != (DENSE, True):
            best = min(timed, key=lambda row: row["us"])
            name = f"{network}, compact" if best["compact"] else network
            lines.append(
                f"{name}, {count_of(best['threads'], 'thread')}: {best['engine']} is "
                f"{best['speedup']:.2f} times as fast ({best['at_least']:.2f} to {best['at_most']:.2f}) as the fastest dense "
                f"engine in float32, {best['fastest']}"
            )
    return lines


def draw_images(run: "Run", folder: Path, count: int) -> "np.ndarray":
    """Write images of `run` to `folder`: `count` of its test split, and training images for int8. Returns the test labels."""
    import numpy as np

    from lottery.engine import formats
    from lottery.engine.examples import Examples

    with formats.quietly_on_cpu():
        examples = Examples(run)
        np.save(folder / TRAINING, examples.drawn("train", formats.CALIBRATED_ON)[0])
        images, labels = examples.drawn("test", count)
    np.save(folder / TEST, images)
    return labels


def file_of(to: str, images: Path, **network: Any) -> bytes:
    """A network as a file in the format `to`: see `formats.make`."""
    import numpy as np

    from lottery.engine import formats

    return formats.make(to, **network, images=np.load(images) if to == formats.INT8 else None).content
