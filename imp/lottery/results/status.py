"""Which networks of a run are done, under way, failed or missing, and how long the rest will take."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from lottery.base import locks
from lottery.base.errors import InputError
from lottery.base.progress import duration
from lottery.executors import slurm
from lottery.experiment.plan import Plan
from lottery.results import grouping
from lottery.results.tables import points
from lottery.rundir import journal, running, wording
from lottery.rundir.names import NetworkFiles
from lottery.rundir.run import Run
from lottery.rundir.running import Running

NAMED = 6  # masks that are missing, in one line
State = Literal["done", "running", "failed", "diverged", "waiting"]
STATES: tuple[State, ...] = ("done", "running", "failed", "diverged", "waiting")


@dataclasses.dataclass(frozen=True)
class Standing:
    """Where one network stands: `told` is how far and where it is running, or why it failed; `epochs` what is left of it,
    `pace` the seconds an epoch that it took, or takes."""

    title: str
    state: State
    told: str = ""
    epochs: float = 0.0
    pace: float | None = None


@dataclasses.dataclass
class Line:
    """One stage's networks, files or jobs, counted; `details` names those that failed or are under way."""

    stage: str
    done: int = 0
    under_way: int = 0
    failed: int = 0
    missing: int = 0
    seconds_left: float | None = None
    details: list[str] = dataclasses.field(default_factory=list)


class Networks(Line):
    """A line that counts networks."""


def is_over(lines: Iterable[Line]) -> bool:
    """Whether no network is trained now or still missing. Without records it is not known which there will be."""
    networks = [line for line in lines if isinstance(line, Networks)]
    return bool(networks) and not any(line.under_way or line.missing for line in networks)


def status(run: Run) -> list[Line]:
    """A line each for the records, the dense trainings, the masks of one shot, the networks of each family, Slurm's jobs."""
    records = Line("records", done=1)
    try:
        run.manifest()
    except InputError as error:
        records = Line("records", missing=1, details=[str(error)])
        if not run.trained_plan():
            return [records, *_jobs(run)]
    planned = run.plan()
    found = standings(run, planned)
    left = seconds_left(found)
    train, *families = (_line(stage, networks, left[stage]) for stage, networks in found.items())
    return [records, train, *_masks(run, planned), *families, *_jobs(run)]


def standings(run: Run, planned: Plan) -> dict[str, list[Standing]]:
    """Every network by stage: `train`, and each family of the recipe by its name. These have the networks that the recipe asks
    for, and others that were begun: of added replicates, or of grids that were given."""
    replicates = [run.replicate(number) for number in run.known_numbers()]
    whole, standing = planned.total_steps / planned.steps_per_epoch, partial(_standing, planned, run.metric)
    found: dict[str, list[Standing]] = {"train": [], **{name: [] for name in run.recipe.families}}
    found["train"] = [standing(replicate.dense, f"{replicate.folder.name} dense", whole) for replicate in replicates]
    tickets = [*run.tickets(planned), *grouping.controls(run, planned, run.families())]
    asked = {run.network(ticket): ticket for ticket in tickets}
    diverged = run.diverged()
    lost = {one for one in tickets if not one.replicates.isdisjoint(diverged)}
    for network, ticket in asked.items():
        one = standing(network, str(ticket), planned.epochs(ticket))
        if one.state == "waiting" and (ticket in lost or lost.intersection(ticket.needs)):
            one = Standing(one.title, "diverged", "what it needs has diverged")
        if one.state == "diverged":
            lost.add(ticket)
        found[ticket.family].append(one)
    for replicate in replicates:
        for network in replicate.networks():
            family = replicate.family_of(network)
            if network not in asked and family in run.recipe.families:
                found[family].append(standing(network, str(network.folder.relative_to(run.folder)), 0.0))
    return found


def _standing(planned: Plan, metric: str, network: NetworkFiles, title: str, epochs: float) -> Standing:
    result = network.read_result()
    if result and result.status == "done":
        return Standing(title, "done", pace=result.pace)
    if holder := locks.holder(network.folder):
        now, rows = running.read(holder.note), journal.read(network.metrics)
        if now is None:
            return Standing(title, "running", f"{holder.note or 'beginning'}, {holder.who}", epochs)
        figures = _figures(now, rows[-1] if rows else {}, metric, planned.recipe.train.batch)
        pace = planned.steps_per_epoch / now.steps_per_second if now.steps_per_second else None
        left = (now.last - now.step) / planned.steps_per_epoch
        return Standing(title, "running", ", ".join([*figures, holder.who]), left, pace)
    if result:  # what failed will be tried again
        return Standing(title, result.status, result.last_reason, epochs if result.status == "failed" else 0.0)
    return Standing(title, "waiting", "", epochs)


def _figures(now: Running, last: Mapping[str, Any], metric: str, batch: int) -> list[str]:
    """What is told of a training that runs, as far as it is known; `last` is the last row of its journal."""
    shown = [
        f"step {now.step:,} of {now.last:,}",
        points(now.train_loss, "loss {:.4f}", 1),
        points(now.train_metric, f"{wording.title(metric)} {{:.2f}}%"),
        points(last.get(f"validation_{metric}"), "validation {:.2f}%"),
        points(now.steps_per_second, f"{{:,.0f}} {wording.example(metric)}s/s", batch),
        "" if now.seconds_left is None else f"{duration(now.seconds_left)} left",
    ]
    return [*filter(None, shown)]


def _line(stage: str, found: Sequence[Standing], seconds_left: float | None) -> Networks:
    states = Counter(one.state for one in found)
    return Networks(
        stage,
        done=states["done"],
        under_way=states["running"],
        failed=states["failed"] + states["diverged"],
        missing=states["waiting"],
        seconds_left=seconds_left,
        details=[f"{one.title}: {'' if one.state == 'running' else f'{one.state}, '}{one.told}" for one in found if one.told],
    )


def _masks(run: Run, planned: Plan) -> list[Line]:
    """Every replicate of the recipe should have the one-shot masks that any has; one that was added has what it was given."""
    families = {name: family for name, family in run.recipe.families.items() if family.is_cut_at_once}
    done = {
        number: {(name, files.name) for name in families for files in run.replicate(number).masks(name) if files.is_cut}
        for number in run.known_numbers()
    }
    asked = {(mask.family, mask.name) for mask in planned.masks([1], families)}.union(*(done[one] for one in run.numbers()))
    lacking = {number: sorted(asked - done[number]) for number in run.numbers()}
    details = [
        f"{run.replicate(number).folder.name} has no mask {', '.join(f'{family} {name}' for family, name in missing[:NAMED])}"
        f"{f' and {len(missing) - NAMED} more' if len(missing) > NAMED else ''} yet"
        for number, missing in lacking.items()
        if missing and done[number]
    ]
    line = Line("thresholds", sum(map(len, done.values())), missing=sum(map(len, lacking.values())), details=details)
    return [line] if families else []


def _jobs(run: Run) -> list[Line]:
    """The tasks of the run's chain of jobs that are in Slurm's queue."""
    queued = slurm.queued(run.slurm / "run")
    if queued is None:
        return []
    details = [f"{job}: {', '.join(f'{count} {state}' for state, count in states.items())}" for job, states in queued.items()]
    running = sum(states["running"] for states in queued.values())
    waiting = sum(states.total() for states in queued.values()) - running
    return [
        Line("Slurm's queue", under_way=running, missing=waiting, details=details or ["no job of this run is in Slurm's queue"])
    ]


def seconds_left(found: Mapping[str, Sequence[Standing]]) -> dict[str, float | None]:
    """Of each stage, if as many networks are trained at a time as now, at the mean pace of those that are done, or else of
    those that run; None where nothing is left, or no pace is known yet."""
    networks = [one for stage in found.values() for one in stage]
    paces = {state: [one.pace for one in networks if one.state == state and one.pace is not None] for state in STATES}
    known = paces["done"] or paces["running"]
    pace = sum(known) / len(known) / max(1, sum(one.state == "running" for one in networks)) if known else None
    left = {stage: sum(one.epochs for one in those) for stage, those in found.items()}
    return {stage: epochs * pace if epochs and pace is not None else None for stage, epochs in left.items()}
