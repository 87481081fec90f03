"""Damage every kind of file of a finished run in every way, and count what the readers of a run make of it.

    python benchmarks/damage.py [--every N]      (as anybody but root, who can read what is unreadable)

A run of LeNet on digits is made (half a minute), one-shot and in rounds. For each file and each way of damaging it, a copy then
is damaged, and read by all that reads runs, in a process of its own: `imp verify`, the tables behind the report and its charts,
`imp compare`, `imp explore`, `imp status`, the Python reader, and the checks that come before a training. An outcome is

    refused     a reader names the damage in one line; none gives another answer than from the whole run without a word
    told        readers go on without the network, and say so or leave it to the report, which does
    unread      all answers are those of the whole run, and `imp verify` names the damage
    silent      another answer without a word, or damage that `imp verify` does not see
    traceback   an error that is not one line
    hang        no answer within a minute

The last three are faults: the exit code is 1 where there is one. `--every N` tries only every N-th damage.
"""

import argparse
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lottery.base.errors import InputError, one_line
from lottery.base.progress import Reporter
from lottery.executors.workload import WHOLE
from lottery.results import grouping
from lottery.results.compare import compare
from lottery.results.explore import course
from lottery.results.findings import Findings
from lottery.results.reader import open_results
from lottery.results.status import status
from lottery.results.verify import verify
from lottery.rundir.run import EVERYTHING, open_run
from lottery.stages.alignment import Alignments
from lottery.stages.retrain import HandOut
from lottery.stages.thresholds import thresholds

SECONDS = 60
FAULTS = ("silent", "traceback", "hang")
QUIET = Reporter(quiet=True)
RECIPE = """
name = "run"
[data]
size = 8
crop = 0
[model]
name = "lenet_300_100"
[train]
epochs = 3
snapshots = "0,10it,1ep"
[families.oneshot]
quantiles = "36,90"
rewind = "0,1ep"
controls = ["reinit", "shuffle"]
controls_at = "90"
[families.rounds]
rounds = 2
controls = []
"""

Way = Callable[[bytes], bytes]
Damage = tuple[Path, str, Callable[[Path], None]]


def make_run(folder: Path) -> None:
    """Records and a finished run in `folder`."""
    (folder / "recipe.toml").write_text(RECIPE)
    command = [sys.executable, "-m", "lottery", "run", "recipe.toml", "--ranks", "1"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kinds(folder: Path) -> list[Path]:
    """A file of each kind, and a second one of those that there are several of, by name inside `folder`."""
    run, one = Path("runs/run"), Path("runs/run/replicate-1")
    dense, shot, chain = one / "train", one / "oneshot", one / "rounds"
    networks = [dense, *(shot / f"q90-step-000017/{variant}" for variant in ("ticket", "shuffle"))]
    networks += [chain / f"round-{number:02d}-step-000000/ticket" for number in (1, 2)]
    found = [Path("data/digits-8/manifest.json"), Path("data/digits-8/train-00000.tfrecord")]
    found += [run / "recipe.toml", run / "environment.json", dense / "topology.json", networks[2] / "mask.h5"]
    found += [network / name for network in networks for name in ("result.json", "metrics.jsonl", "made_with.json")]
    found += [network / "final.h5" for network in networks[1:]]
    found += [dense / f"snapshots/step-{step:06d}.h5" for step in (0, 17, 51)]
    masks = [shot / "masks/q36", shot / "masks/q90", *(chain / f"masks/round-{number:02d}-step-000000" for number in (1, 2))]
    found += [mask.with_suffix(suffix) for mask in masks for suffix in (".h5", ".json")]
    found += [family / "masks/made_with.json" for family in (shot, chain)]
    assert all((folder / name).is_file() for name in found), [name for name in found if not (folder / name).is_file()]
    return found


def spread(length: int, count: int) -> list[int]:
    """`count` places in `length`, from the first to the last."""
    return sorted({round(index * (length - 1) / (count - 1)) for index in range(count)})


def ways(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Every other content that a file may have got instead of `content`."""
    size = len(content)
    for number, place in enumerate(spread(size, 8)):
        bit = 1 << number
        yield f"bit {number} flipped at {place}", content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]
    for place in spread(size, 4):
        yield f"cut at {place}", content[:place]
    for place in spread(size, 3):
        yield f"zeros at {place}", (content[:place] + bytes(16) + content[place + 16 :])[: max(size, place + 16)]
    yield "null", b"null\n"
    yield "an empty object", b"{}\n"
    if content[:1] in b"{#":
        yield from _ways_of_text(content)


def _ways_of_text(content: bytes) -> Iterator[tuple[str, bytes]]:
    digits = [place for place, byte in enumerate(content) if 48 <= byte < 58]
    for place in (digits[index] for index in spread(len(digits), 8)):
        other = b"%d" % ((content[place] - 48 + 3) % 10)
        yield f"digit changed at {place}", content[:place] + other + content[place + 1 :]
    lines = content.splitlines(keepends=True)
    for number in spread(len(lines), 4):
        yield f"line {number} lost", b"".join(lines[:number] + lines[number + 1 :])
        yield f"line {number} twice", b"".join(lines[: number + 1] + lines[number:])
    if b": [" in content:
        yield "null in place of a list", content.replace(b": [", b": null, [", 1)
    yield "null in place of a value", content.replace(b': "', b': null, "', 1)


def damages(folder: Path) -> Iterator[Damage]:
    """Every file with every way of damaging it."""
    found = kinds(folder)
    for name in found:
        content = (folder / name).read_bytes()
        for title, other in ways(content):
            if other != content:
                yield name, title, lambda path, other=other: _put(path, other)
        for sibling in (one for one in found if one.suffix == name.suffix and one != name):
            if (folder / sibling).read_bytes() != content:
                yield name, f"{sibling} in its place", lambda path, sibling=sibling: _put(path, (folder / sibling).read_bytes())
        yield name, "gone", Path.unlink
        yield name, "a folder", lambda path: (path.unlink(), path.mkdir())
        yield name, "a dangling link", lambda path: (path.unlink(), path.symlink_to("nowhere"))
        if name.parts[0] == "runs":  # records may well lie elsewhere
            yield name, "a link elsewhere", lambda path, name=name: (path.unlink(), path.symlink_to(folder / name))
        if os.geteuid():
            yield name, "unreadable", lambda path: _put(path, path.read_bytes(), 0o000)


def _put(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Other content in the place of a file, which is linked to the whole run's."""
    path.unlink()
    path.write_bytes(content)
    path.chmod(mode)


def readers() -> dict[str, Callable[[], Any]]:
    """All that reads a run; each is called in the folder that holds `data` and `runs`."""

    def run() -> Any:
        return open_run(Path("runs/run"), must_exist=True)

    def report() -> Any:
        rows = grouping.rows(run())
        groups = grouping.groups(run(), rows)
        drawn = Findings(run())
        charts = drawn.figures, drawn.layers, drawn.courses, drawn.training
        tables = [table.to_csv() for table in (rows, groups, grouping.contrasts(run(), rows), *charts)]
        return tables, drawn.headline.sentences, run().environment()

    def program() -> Any:
        results = open_results("runs/run")
        weights = [(one.name, float(sum(array.sum() for array in one.weights().values()))) for one in results.networks()]
        status = results.frame()["status"].tolist()
        return status, weights, results.metrics().to_csv(), results.thresholds().to_csv(), results.mask(90)["fc1/kernel"].sum()

    def before_training() -> Any:
        return HandOut(run(), run().plan(), QUIET, EVERYTHING, WHOLE).begin(), thresholds(run(), QUIET, EVERYTHING)

    return {
        "report": report,
        "compare": lambda: compare(run(), QUIET, Alignments(run()).of),
        "explore": lambda: course(run()),
        "status": lambda: status(run()),
        "program": program,
        "images": lambda: [part.sum() for part in open_results("runs/run").images("train")],
        "before training": before_training,
    }


def answers(folder: Path) -> dict[str, tuple[str, str]]:
    """What each reader makes of the run in `folder`: `answer`, `refused` or `traceback`, and what it says."""
    os.chdir(folder)
    return {name: _answer(reader) for name, reader in readers().items()}


def _answer(reader: Callable[[], Any]) -> tuple[str, str]:
    try:
        return "answer", repr(reader())
    except Exception as error:
        line = one_line(error)
        return ("refused", line) if line and "\n" not in line else ("traceback", f"{type(error).__name__}: {error}")


def outcome(folder: Path, whole: dict[str, tuple[str, str]]) -> tuple[str, str]:
    """How the damaged run in `folder` was taken, and the reader that decided it."""
    os.chdir(folder)
    seen = [said for place in ("runs/run", "data/digits-8") for said in _verified(Path(place)).values() if said]
    found = answers(folder)
    for name, (kind, said) in found.items():
        if kind == "traceback":
            return "traceback", f"{name}: {said}"
    others = {name: said for name, (kind, said) in found.items() if kind == "answer" and said != whole[name][1]}
    told = {name for name, said in others.items() if _left_out(said) > _left_out(whole[name][1])}
    if silent := set(others) - (set(found) if "report" in told else told):
        return "silent", f"{', '.join(sorted(silent))} gave another answer"
    if any(kind == "refused" for kind, _ in found.values()):
        return "refused", ""
    if told:
        return "told", ""
    return ("unread", "") if seen else ("silent", "imp verify sees nothing")


def _left_out(said: str) -> int:
    """How many networks an answer says that it goes without."""
    return len(re.findall("[,'](?:missing|stale)[,']", said)) + sum(map(int, re.findall(r"missing=(\d+)", said)))


def _verified(place: Path) -> dict[str, str | None]:
    try:
        return verify(place, QUIET)
    except (InputError, OSError) as error:
        return {str(place): str(error)}


def tried(folder: Path, damage: Damage, whole: dict[str, tuple[str, str]]) -> tuple[str, str]:
    """The outcome of one damage to a copy of the run in `folder`."""
    name, _, break_it = damage
    with tempfile.TemporaryDirectory(dir=folder.parent) as copy:
        work = shutil.copytree(folder, Path(copy) / "work", symlinks=True, copy_function=os.link)
        break_it(work / name)
        reply, answer = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.Process(target=lambda: answer.send(outcome(work, whole)))
        process.start()
        answer.close()
        try:
            found = reply.recv() if reply.poll(SECONDS) else ("hang", "")
        except EOFError:
            found = ("traceback", "the process died")
        process.kill()
        process.join()
        if (work / name).is_file() and not (work / name).is_symlink():
            (work / name).chmod(0o644)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, metavar="N")
    every = parser.parse_args().every
    multiprocessing.set_start_method("fork")
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top) / "whole"
        folder.mkdir()
        make_run(folder)
        whole = answers(folder)
        assert all(kind == "answer" for kind, _ in whole.values()), {
            one: said for one, said in whole.items() if said[0] != "answer"
        }
        counts: dict[str, Counter[str]] = {}
        faults = []
        for damage in list(damages(folder))[::every]:
            kind, why = tried(folder, damage, whole)
            counts.setdefault(damage[0].name, Counter())[kind] += 1
            if kind in FAULTS:
                faults.append(f"{kind}: {damage[0]}, {damage[1]}: {why}")
                print(faults[-1], flush=True)
        os.chdir("/")
    print(_table(counts))
    return 1 if faults else 0


def _table(counts: dict[str, Counter[str]]) -> str:
    columns = ("refused", "told", "unread", *FAULTS)
    lines = [f"| file | damages | {' | '.join(columns)} |", f"| {' | '.join(['---'] * (len(columns) + 2))} |"]
    for name, found in [*sorted(counts.items()), ("in all", sum(counts.values(), Counter()))]:
        lines.append(f"| {name} | {found.total()} | {' | '.join(str(found[column]) for column in columns)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
