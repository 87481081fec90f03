"""`imp bench inference`: exported tickets beside the dense network, in TensorFlow Lite."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lottery.bench import timing
from lottery.bench.harness import Bench, measurement
from lottery.bench.process import Process
from lottery.bench.sheet import Bars, Column, Sheet, duration
from lottery.commands.options import RunOption, opened
from lottery.progress import count_of

if TYPE_CHECKING:
    from lottery.rundir.run import Run

KINDS = {"tflite": "float32", "tflite_dynamic": "8-bit kernels"}
COLUMNS = (
    Column("name", ""),
    *duration("us", "µs an image", ",.1f"),
    Column("memory_mb", "memory, MB", ",.1f"),
    Column("file_kb", "file, kB", ",.1f"),
    Column("gzip_kb", "after gzip, kB", ",.1f"),
)


@measurement(repeats=7)
def inference(
    bench: Bench,
    run: RunOption = None,
    ticket: Annotated[
        list[str] | None, typer.Option(help="Such as q90-step-000034; repeatable.", show_default="the first and the last")
    ] = None,
    replicate: Annotated[int, typer.Option(min=1, help="Of which replicate.")] = 1,
    threads: Annotated[list[int] | None, typer.Option(min=1, help="Repeatable.", show_default="1, 2, 4")] = None,
) -> Sheet:
    """Exported tickets beside the dense network: microseconds, memory, size."""
    from lottery.results import lookup
    from lottery.stages import export

    target = opened(run, must_exist=True)
    if not ticket:
        trained = [name for name in lookup.finished(target.replicate(replicate)) if " " not in name and name != lookup.DENSE]
        ticket = [*trained[:1], *trained[-1:]]
    names = list(dict.fromkeys([lookup.DENSE, *ticket]))
    for name in names:
        lookup.trained(target, target.replicate(replicate), name)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place, Process() as exporting:
        for title, name, to in [(f"{name}, {kind}", name, to) for name in names for to, kind in KINDS.items()]:
            with bench.row(title):
                path = Path(place, f"{len(rows)}.tflite")
                exporting.call(make_file, run=target, ticket=name, replicate=replicate, to=to, path=path)
                content = path.read_bytes()
                sizes = {"file_kb": len(content) / 1e3, "gzip_kb": export.gzipped(content) / 1e3}
                for count in threads or ([1] if bench.quick else [1, 2, 4]):
                    row = bench.call(measure_file, path=path, threads=count, repeats=bench.repeats)
                    rows.append({"name": f"{title}, {count_of(count, 'thread')}", "threads": count, **row, **sizes})
    model, (height, width, _) = target.recipe.model.name, target.manifest().shape
    return bench.sheet(
        f"Inference by TensorFlow Lite: {model}, {height}x{width}, an image at a time",
        COLUMNS,
        rows,
        Bars("name", "us", "µs an image", "low", "high"),
        "zeros are computed with like any other weight: a ticket is smaller after gzip, not faster",
        f"{bench.apart}; memory: by how much it grew",
    )


def make_file(run: "Run", ticket: str, replicate: int, to: str, path: Path) -> None:
    """Write the network `ticket` of a run to `path`, in a format of `formats`."""
    from lottery.engine import formats
    from lottery.results import lookup

    manifest = run.manifest()
    _, state = lookup.trained(run, run.replicate(replicate), ticket)
    path.write_bytes(formats.make(to, run.recipe.model, manifest.shape, len(manifest.classes), state).content)


def measure_file(path: Path, threads: int, repeats: int) -> dict[str, float]:
    """Microseconds an image, one at a time, and by how many MB the process grew at most."""
    import warnings

    import numpy as np
    import tensorflow as tf

    with timing.peak_memory() as peak:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is to move to a package of its own
            interpreter = tf.lite.Interpreter(model_path=str(path), num_threads=threads)
        interpreter.allocate_tensors()
        inputs = interpreter.get_input_details()[0]
        image = np.random.default_rng(0).uniform(-1, 1, inputs["shape"]).astype(np.float32)

        def answer() -> None:
            interpreter.set_tensor(inputs["index"], image)
            interpreter.invoke()

        walls = timing.runs(answer, repeats)
        return {**timing.spread("us", [1e6 * wall for wall in walls]), "memory_mb": peak() / 1e6}
