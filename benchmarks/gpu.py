"""What this package does on a GPU, tried in minutes: `python benchmarks/gpu.py [--minutes 8] [--out gpu-checks]`.

What matters most comes first. Each check has a share of the time; what it leaves undone is done at the end, if there is time.
Whatever was seen is written to the folder at once, so that nothing is lost when the machine goes: the same command continues
with what is missing. The page to read is gpu/summary.md there. Without a GPU everything runs on the CPU, on networks and images
so small that the figures mean nothing: to try the script before a GPU is at hand. The page is cpu/summary.md then.
"""

import argparse
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Optional
from unittest import mock

import gpu_cases as cases
import gpu_commands as commands
from gpu_cases import Seen

from lottery.base import files, gpus
from lottery.base.errors import Failed, InputError
from lottery.bench.process import Process

MINUTES = 8.0  # of which the seconds of checks are shares
LIMIT = 90.0  # seconds of one case
ENOUGH = 5.0  # how many times as fast as one at a time tickets must train in a bundle
MARKS = {True: "holds", False: "FAILS", None: "figure"}

Record = dict[str, Any]  # a `Seen` with its seconds
Place = Literal["shared", "alone", "cpu", "commands"]


class Case(NamedTuple):
    """A function to call. It runs in the process that many cases have in common (`shared`), in one of its own (`alone`), in one
    that sees no GPU (`cpu`), or in one that starts no TensorFlow but `commands`. What it `makes` is there for others, which are
    tried `after` it."""

    name: str
    function: Callable[..., Seen]
    given: Mapping[str, Any]
    place: Place = "shared"
    limit: float = LIMIT
    makes: Path | None = None
    after: Optional["Case"] = None


class Check(NamedTuple):
    """Cases that belong together, and their seconds in `MINUTES`."""

    name: str
    seconds: float
    cases: Sequence[Case]


def checks(small: bool, folder: Path, cifar10: Path | None) -> list[Check]:
    """All of them, in the order of their worth."""
    names = list(cases.SMALL if small else cases.NETWORKS)
    main, others = (names[:2], names[2:]) if small else (names[:3], names[3:])
    size, both = {"small": small}, {"small": small, "folder": folder}
    sizes, cheapest = (1, 2) if small else (1, 20, 4, 16, 64), main[:1] if small else main
    precisions = ("float32", "mixed_bfloat16", *([] if small else ["tf32"]), "mixed_float16")  # tf32 is float32 on CPUs

    def steps(networks: Sequence[str], precision: str, xla: str = "auto") -> Iterator[Case]:
        for name in networks:
            given = {**both, "network": name}
            reference = Case(f"{name} on the CPU", cases.reference, given, "cpu", makes=folder / f"{name}.npz")
            title = f"{name} {precision}{'' if xla == 'auto' else f', XLA {xla}'}"
            yield Case(title, cases.step, {**given, "precision": precision, "xla": xla}, after=reference)

    def each(title: str, function: Callable[..., Seen], networks: Sequence[str], **given: Any) -> list[Case]:
        return [Case(title.format(name), function, {**size, "network": name, **given}) for name in networks]

    def bundles(networks: Sequence[str], *of: int) -> list[Case]:
        return [case for tickets in of for case in each(f"{{}} x {tickets}", cases.bundle, networks, tickets=tickets)]

    run = Case("imp run", commands.whole_run, both, "commands", 2 * LIMIT, folder / "run/recipe.toml")
    export = Case("imp export", commands.export, {"folder": folder}, "commands", makes=folder / "ticket.keras", after=run)
    exported = Case("the ticket on the CPU", commands.exported, {"folder": folder}, "cpu", after=export)
    first = Case("a training", cases.training, {**both, "again": False}, "alone", makes=folder / "training.npz")
    second = Case("in another process", cases.training, {**both, "again": True}, "alone", after=first)
    replicas = [
        Case("one under MirroredStrategy", cases.one_replica, size),
        Case("two logical devices", cases.two_devices, size, "alone"),
        Case("NCCL", cases.nccl, {}),
    ]
    products = Case("products of matrices", cases.products, size)
    resnet9 = [Case("an epoch", cases.epoch_of_resnet9, size)]
    if cifar10:
        resnet9 += [Case("to 94 %", commands.race, {"folder": folder, "arrays": cifar10}, "commands", 2 * LIMIT)]
    two_ranks = {**size, "network": main[0] if small else main[1], "count": 2}
    return [
        Check("Machine", 20, [Case("versions", cases.machine, {})]),
        Check("A step", 110, [case for precision in precisions for case in steps(main, precision)]),
        Check("Twenty tickets in a bundle", 70, bundles(main[1:], *sizes[:2])),
        Check("The digits from end to end", 100, [run, export, exported]),
        Check("XLA", 30, list(steps(cheapest, "float32", "on" if small else "off"))),
        Check("Replicas", 40, replicas),
        Check("The same again", 30, [first, second]),
        Check("Killed and resumed", 50, [Case("imp train", commands.resumed, both, "commands")]),
        Check("Images", 25, [Case(kind, cases.feeding, {**size, "kind": kind}) for kind in ("memory", "stream")]),
        Check("Speed", 50, [*each("{} beside Keras", cases.beside_keras, cheapest[::-1]), products]),
        Check("Bundles", 90, [*bundles(cheapest, *sizes), *each("{}, --bundle auto", cases.automatic, cheapest)]),
        Check("ResNet-9", 30, resnet9),
        Check("Ranks on one device", 60, [Case("two, and bundles", commands.ranks, two_ranks, "commands")]),
        Check("A step of others", 60, [*steps(others, "float32"), *([] if small else steps(others, "mixed_bfloat16"))]),
    ]


class Checking:
    """Tries cases until `end` (of `time.monotonic`), each in its process, and writes down what was `seen`, by the name of the
    case."""

    def __init__(self, folder: Path, end: float):
        self.end, self._path = end, folder / "seen.json"
        self.seen: dict[str, Record] = files.read_json(self._path) if self._path.exists() else {}
        self._processes: dict[Place, Process] = {}

    def go_through(self, check: Check, seconds: float) -> None:
        """Try the cases that are missing, as many as begin within so many seconds."""
        last = min(self.end, time.monotonic() + seconds)
        for case in check.cases:
            if case.name not in self.seen and time.monotonic() < last:
                self._attempt(case)

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()

    def _attempt(self, case: Case) -> None:
        """Write down what a case has seen, or why it has seen nothing. One that the end cuts off is as if it had not begun."""
        if case.after and case.after.makes and not case.after.makes.exists():
            self._attempt(case.after)
        process, began = self._process(case.place), time.monotonic()
        limit = min(case.limit, self.end - began)
        watch = threading.Timer(limit, process.kill)
        watch.start()
        try:
            with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""} if case.place == "cpu" else {}):
                seen = process.call(case.function, **case.given)
        except (Failed, InputError) as error:
            if time.monotonic() >= self.end:
                return
            seen = Seen(False, f"took longer than {limit:.0f} s" if time.monotonic() - began >= limit else str(error))
        finally:
            watch.cancel()
            if case.place == "alone":
                process.kill()
        seconds = round(time.monotonic() - began, 1)
        figures = {name: float(figure) for name, figure in (seen.figures or {}).items() if math.isfinite(figure)}
        holds = None if seen.holds is None else bool(seen.holds)  # and not NumPy's
        self.seen[case.name] = {"holds": holds, "saw": seen.saw, "figures": figures, "seconds": seconds}
        files.write_json(self._path, self.seen)
        print(f"{MARKS[holds]:6} {case.name} [{seconds:g} s]: {seen.saw}", flush=True)

    def _process(self, place: Place) -> Process:
        if place == "alone" or place not in self._processes:
            self._processes[place] = Process(tensorflow=place != "commands")
        return self._processes[place]


def summary(every: Sequence[Check], seen: Mapping[str, Record], small: bool) -> str:
    """One page in Markdown: what holds, what fails, what was not tried, and all figures."""
    wanted = [case.name for check in every for case in check.cases]
    tried = {name: seen[name] for name in wanted if name in seen}
    counts = {kind: sum(one["holds"] is kind for one in tried.values()) for kind in MARKS}
    lines = [
        f"# What holds on {'a CPU: so small that figures mean nothing' if small else 'a GPU'}",
        "",
        f"{counts[True]} hold, {counts[False]} fail, {counts[None]} are figures, {len(wanted) - len(tried)} were not tried.",
    ]
    for network, told in gains(seen).items():
        lines += ["", f"Bundles of {network}, times as fast as one at a time (needed: {ENOUGH:g}): {told}."]
    if failed := [f"- {name}: {one['saw']}" for name, one in tried.items() if one["holds"] is False]:
        lines += ["", "## What fails", "", *failed]
    for check in every:
        lines += ["", f"## {check.name}", ""]
        for name in (case.name for case in check.cases):
            one = tried.get(name)
            lines.append(
                f"- {name}: {one['saw']} ({MARKS[one['holds']]}, {one['seconds']:g} s)" if one else f"- {name}: not tried"
            )
    return "\n".join([*lines, ""])


def gains(seen: Mapping[str, Record]) -> dict[str, str]:
    """How many times as fast tickets train in bundles, by network: `4: 1.85, 20: 5.31`."""
    steps: dict[str, dict[int, float]] = {}
    for name, one in seen.items():
        network, _, tickets = name.partition(" x ")
        if tickets and one["figures"]:
            steps.setdefault(network, {})[int(tickets)] = one["figures"]["ms"]
    compared = {name: sorted(of.items()) for name, of in steps.items() if 1 in of and len(of) > 1}
    return {name: ", ".join(f"{size}: {of[0][1] / ms:.2f}" for size, ms in of[1:]) for name, of in compared.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="end after so many (default: %(default)g)")
    parser.add_argument("--out", type=Path, default=Path("gpu-checks"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--only", metavar="WORDS", default="", help="only checks with these words in their name")
    parser.add_argument(
        "--cifar10", type=Path, metavar="NPZ", help="CIFAR-10 (arrays:FILE of docs/images.md), to race to 94 %%"
    )
    asked = parser.parse_args()
    end, small = time.monotonic() + 60 * asked.minutes, not gpus.listed()
    folder = asked.out.absolute() / ("cpu" if small else "gpu")  # a rehearsal is not taken for the thing itself
    every = [check for check in checks(small, folder, asked.cifar10 and asked.cifar10.absolute()) if asked.only in check.name]
    if not every:
        parser.error(f"no check has {asked.only!r} in its name")
    folder.mkdir(parents=True, exist_ok=True)
    checking = Checking(folder, end)
    try:
        for share in (asked.minutes / MINUTES, float("inf")):
            for check in every:
                checking.go_through(check, check.seconds * share)
                if checking.seen.get("versions", {}).get("holds") is False:  # TensorFlow sees no GPU: nothing would be of one
                    return 1
    finally:
        checking.close()
        page = summary(every, checking.seen, small)
        files.write_text(folder / "summary.md", page)
        print(f"\n{page}")
    return int(any(one["holds"] is False for one in checking.seen.values()))


if __name__ == "__main__":
    sys.exit(main())
