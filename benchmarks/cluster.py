"""What a run costs on 1, 20 and 1,000 nodes beside its trainings, of which there are none here: `python benchmarks/cluster.py`.

Networks are handed out as by rank 0 of an MPI job, and begun as by the tasks of an array, in a run directory that is written by
hand. From what that takes, a simulation says how much of the nodes' time is lost.
"""

import heapq
import itertools
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import typer
from harness import Bench, duration, measurement
from noise import make_noise

from lottery import cli
from lottery.base.progress import Reporter, count_of
from lottery.bench import timing
from lottery.bench.sheet import Column, bars
from lottery.campaign import train_tickets
from lottery.executors import coordinator
from lottery.executors.slurm import TASK
from lottery.executors.workload import WHOLE, Execution, Executor, Part, Result, Workload
from lottery.experiment import reading
from lottery.experiment.graph import Ticket
from lottery.experiment.plan import Plan
from lottery.pruning.costs import Costs
from lottery.pruning.densities import Density, Kept
from lottery.results.status import status
from lottery.rundir import identity, records
from lottery.rundir.names import NetworkFiles
from lottery.rundir.records import Scores
from lottery.rundir.run import EVERYTHING, Run, open_run
from lottery.stages import chain, retrain

LOSSES = ("tail", "starts", "time_limits", "a_death")
COLUMNS = (
    Column("title", ""),
    *duration("hand_out_ms", "hand-out, ms", ",.2f"),
    Column("per_second", "networks/s"),
    Column("hand_out_operations", "its file operations", ",.1f"),
    Column("start_seconds", "a task's start, s", ",.2f"),
    Column("start_operations", "file operations of a start"),
    Column("status_operations", "of imp status"),
    Column("hours", "hours", ",.1f"),
    *(Column(name, name.replace("_", " "), ".2%") for name in LOSSES),
)
POINTS, DEPTH = "1ep,2ep,4ep,6ep,8ep", 4  # rewind points, each with so many quantiles or rounds
OF_REPLICATE = 5 * DEPTH
FAMILIES: dict[str, dict[str, Any]] = {"oneshot": {"quantiles": "60..90:10"}, "rounds": {"rounds": DEPTH}}
DONE = {"status": "done", "metric": "accuracy", "validation": 0.9, "seconds": 1.0}
CUT: dict[str, Any] = {
    "rewind_step": None,
    "scores": Scores(count=1, min=0, max=1, mean=0.5),
    "threshold": None,
    "pruned": 1,
    "remaining": 1,
    "layers": {},
    "kept": Kept(Density(0.5, 0.5, 0.5, None), {}, None),
    "costs": Costs(2, 1, 8, 4),
}
AUDITED = {"open", "os.listdir", "os.scandir", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}  # and stat
SHARED = 1e-3  # seconds that a shared file system takes for an operation
STARTED = 15.0  # seconds until Python and TensorFlow have started, and a step is compiled
CHECKPOINT = 600.0  # seconds of training that a node loses which dies, at most
QUIET = Reporter(quiet=True)


@measurement(repeats=3)
def cluster(
    bench: Bench,
    nodes: Annotated[
        list[int] | None, typer.Option(min=1, help="How many; repeatable.", show_default="1, 20, 1000; 1, 3 with --quick")
    ] = None,
    networks: Annotated[int | None, typer.Option(min=OF_REPLICATE, help="Under masks.", show_default="2020")] = None,
    hours: Annotated[float, typer.Option(min=0.1, max=1000, help="That a training takes.")] = 18,
    limit: Annotated[float, typer.Option(min=1, max=1000, help="Hours after which a job is queued again.")] = 24,
) -> None:
    """What it takes to hand networks out and to begin them, and what time nodes lose."""
    replicates = bench.pick(networks, 2020, 2 * OF_REPLICATE) // OF_REPLICATE
    for kind, family in FAMILIES.items():
        with tempfile.TemporaryDirectory() as place, mock.patch("os.fsync"), bench.row(kind):
            folder = Path(place).resolve()
            run, rows = make_run(folder, kind, family, replicates), list[dict[str, Any]]()
            for count in nodes or ([1, 3] if bench.quick else [1, 20, 1000]):
                title = f"{kind}, {count_of(count, 'node')}"
                rows.append({"title": title, "nodes": count, **handed_out(run, count, bench.repeats)})
            planned = run.plan()
            for ticket in run.tickets(planned)[: replicates * OF_REPLICATE // 2]:
                finish(run, planned, ticket)
            _, asked = operations.of(partial(status, run), run.folder)
            for row in rows:
                row |= {"status_operations": asked, **started(run, row["nodes"])}
                row |= lost(row, replicates * OF_REPLICATE, family.get("rounds", 1), 3600 * hours, 3600 * limit)
            bench.rows += rows
    bench.sheet(
        f"{replicates * OF_REPLICATE:,} networks of {hours:g} h each",
        COLUMNS,
        bars(bench.rows, "title", "hand_out_ms", "ms to hand a network out", spread=True),
        f"hand-out: by rank 0, medians of {count_of(bench.repeats, 'run')} of all networks; its file operations, those of one",
        "a task's start: what `imp retrain --part` does before it trains, with half of the networks finished",
        "file operations: opened, listed, looked up, renamed, ... below the run directory",
        "simulated, with the times measured here, a file system that takes 1 ms for each operation, and "
        f"{STARTED:g} s more for each start: the share of all hours that nodes idle at the end (tail), and that starts and "
        f"hand-outs, a limit of {limit:g} h, and a node that dies in the midst of a training add",
    )


def make_run(folder: Path, kind: str, family: dict[str, Any], replicates: int) -> Run:
    """A run whose dense networks are trained and whose masks are cut, as far as names and records tell."""
    made = {"path": str(folder / "records"), "size": 8, "validation": 0.0}
    train = {"epochs": 90, "batch": 100, "snapshots": POINTS, "schedule": "constant", "warmup": "0"}
    families = {kind: {**family, "rewind": POINTS, "controls": []}}
    recipe = reading.resolve({"replicates": replicates, "data": made, "train": train, "families": families})
    run, origins = Run(folder / "run", recipe), {"network": "f" * 64}
    origins["records"] = make_noise(folder / "records", 1000, recipe.records()).digest
    run.adopt()
    planned = run.plan()
    for replicate in run.replicates():
        claim(run, replicate.dense.folder, "dense", origins)
        snapshots = list(map(replicate.snapshot, planned.snapshot_steps()))
        known = {"replicate": int(replicate.folder.name.removeprefix("replicate-")), "step": planned.total_steps, "epochs": 90}
        known |= {"outputs": dict.fromkeys(map(replicate.name_of, snapshots), "0" * 64), "made_from": origins}
        write(replicate.dense, planned, **known)
        snapshots[0].parent.mkdir()
        for path in snapshots:
            path.touch()
    for mask in planned.masks(run.numbers(), recipe.families):
        files, place = run.mask(mask), {"replicate": mask.replicate, "family": mask.family, "mask": mask.label, "round": 1}
        records.write(files.table, records.MaskRecord(rate=float(mask.rate), step=planned.total_steps, **place, **CUT))
        files.mask.touch()
    return run


def finish(run: Run, planned: Plan, ticket: Ticket) -> None:
    """Write the result of a network that was not trained."""
    network, origins = run.network(ticket), run.replicate(ticket.replicate).origins()
    claim(run, network.folder, "ticket", origins, ticket.family)
    known = {"replicate": ticket.replicate, "variant": ticket.variant, "family": ticket.family, "mask": ticket.mask.label}
    known |= {"round": ticket.mask.round, "rewind_step": ticket.rewind, "made_from": origins}
    write(network, planned, epochs=planned.epochs(ticket), **known)


def claim(run: Run, folder: Path, output: Any, origins: dict[str, str], family: str = "") -> None:
    with identity.claimed(folder, run.recipe, output, origins, family):
        pass


def write(network: NetworkFiles, planned: Plan, **known: Any) -> None:
    records.write(network.result, records.Result(status="done", steps_per_epoch=planned.steps_per_epoch, **known))


def handed_out(run: Run, count: int, repeats: int) -> dict[str, float]:
    """What rank 0 takes to hand all networks out to so many nodes, each of which is done at once."""
    rank, size = Rank0(count, run.folder), len(run.tickets(run.plan()))
    for _ in range(repeats):
        train(run, rank)
    found = timing.spread("hand_out_ms", [1000 * seconds / size for seconds, _ in rank.costs])
    return {**found, "per_second": 1000 / found["hand_out_ms"], "hand_out_operations": rank.costs[-1][1] / size}


def started(run: Run, count: int) -> dict[str, float]:
    """What a task does before it trains, of the array that `imp slurm run` makes of the networks for so many nodes."""
    job = next(job for job in chain.jobs(run, count) if job.name not in ("prepare", "train", "thresholds"))
    part = Part.parse(job.arguments[job.arguments.index("--part") + 1].replace(TASK, "1"))
    seconds, asked = operations.of(lambda: train(open_run(run.folder, must_exist=True), Task(), part), run.folder)
    return {"start_seconds": seconds, "start_operations": asked, "tasks": part.count}


def train(run: Run, executor: Executor, part: Part = WHOLE) -> None:
    with mock.patch.object(retrain, "executor", return_value=executor):
        train_tickets(run, EVERYTHING, Execution(part=part, bundle=1), QUIET)


class Task:
    """One that is killed before it trains."""

    def run(self, workload: Workload) -> bool:
        workload.list_tasks()
        return False


class Rank0:
    """Hands out over channels to so many `nodes`; `costs` are the seconds and the file operations of each time."""

    def __init__(self, nodes: int, folder: Path):
        self.nodes, self.folder, self.costs = nodes, folder, list[tuple[float, int]]()

    def run(self, workload: Workload) -> bool:
        tasks, channels = workload.list_tasks(), {rank: Node() for rank in range(1, self.nodes + 1)}
        hand_out = coordinator.Coordinator(channels, workload)
        with mock.patch.object(coordinator, "POLL_SECONDS", 0):
            self.costs.append(operations.of(lambda: hand_out.run(tasks), self.folder))
        return True


class Node:
    """A channel to a node that is done as soon as it has something to do."""

    def __init__(self) -> None:
        self.says: list[Result | None] = [None]

    def send(self, message: Any) -> None:
        self.says += [DONE] if message else []

    def poll(self) -> bool:
        return bool(self.says)

    def recv(self) -> Any:
        return self.says.pop()


class Operations:
    """Counts what is asked of the file system below a `folder`."""

    def __init__(self) -> None:
        self.folder, self.count = "", 0
        sys.addaudithook(lambda event, values: self.note(values[0]) if event in AUDITED else None)

    def note(self, path: Any) -> None:
        self.count += bool(self.folder) and isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.folder)

    def of(self, work: Callable[[], object], folder: Path) -> tuple[float, int]:
        """The seconds that `work` takes, and how much it asks."""

        def look(path: Any, **how: Any) -> os.stat_result:
            self.note(path)
            return stat(path, **how)

        stat, self.folder, self.count = os.stat, str(folder), 0
        with mock.patch("os.stat", look):
            began = time.perf_counter()
            work()
        self.folder = ""
        return time.perf_counter() - began, self.count


operations = Operations()


def lost(row: dict[str, Any], networks: int, rounds: int, training: float, limit: float) -> dict[str, float]:
    """The hours until all are trained, and the shares of the nodes' time that are lost."""
    hand_out = row["hand_out_ms"] / 1000 + SHARED * row["hand_out_operations"]
    start = STARTED + row["start_seconds"] + SHARED * row["start_operations"]
    ended, more = [training * networks / row["nodes"]], dict[str, float]()
    for how in ({}, {"hand_out": hand_out, "start": start}, {"limit": limit}, {"dies": ended[0] / 2}):
        more |= how
        ended.append(simulated(row["nodes"], networks // rounds, rounds, training, **more))
    shares = [(after - before) / ended[-1] for before, after in itertools.pairwise(ended)]
    return {"hours": ended[-1] / 3600, **dict(zip(LOSSES, shares, strict=True))}


def simulated(
    nodes: int,
    chains: int,
    rounds: int,
    training: float,
    hand_out: float = 0.0,
    start: float = 0.0,
    limit: float = math.inf,
    dies: float = math.inf,
) -> float:
    """Seconds until all `chains` of trainings are through. Rank 0 serves one node at a time. Nodes start at first, and again
    after each `limit`; one of them also after it `dies` in the midst of a training."""
    free, ready = [start] * nodes, [(0.0, rounds)] * chains
    served = ended = 0.0
    while ready:
        at, left = heapq.heappop(ready)
        served = max(at, heapq.heappop(free), served) + hand_out
        ends = served + training
        ends += start * (ends // limit - served // limit)
        if served < dies < ends:
            ends, dies = ends + min(CHECKPOINT, dies - served) + start, math.inf
        heapq.heappush(free, ends)
        ended = max(ended, ends)
        if left > 1:
            heapq.heappush(ready, (ends, left - 1))
    return ended


if __name__ == "__main__":
    cli.main(cluster)
