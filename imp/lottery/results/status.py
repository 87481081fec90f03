"""Which networks of a run are done, under way, failed or missing, and how long the rest will take."""

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lottery.base import locks
from lottery.base.errors import InputError
from lottery.base.progress import duration
from lottery.experiment.plan import Plan
from lottery.results import grouping
from lottery.rundir.names import NetworkFiles
from lottery.rundir.run import Run

NAMED = 6  # masks that are missing, in one line
WAITING_SHOWN = 10
State = Literal["done", "running", "failed", "diverged", "waiting"]
STATES: tuple[State, ...] = ("done", "running", "failed", "diverged", "waiting")


@dataclasses.dataclass(frozen=True)
class Standing:
    """Where one network stands: `told` is how far and where it is running, or why it failed; `epochs` what is left of it,
    `pace` the seconds an epoch that it took, where it is done."""

    title: str
    state: State
    told: str = ""
    epochs: float = 0.0
    pace: float | None = None


@dataclasses.dataclass
class Line:
    """One stage's networks or files, counted; `details` names those that failed or are under way."""

    stage: str
    done: int = 0
    under_way: int = 0
    failed: int = 0
    missing: int = 0
    seconds_left: float | None = None
    details: list[str] = dataclasses.field(default_factory=list)


def status(run: Run) -> list[Line]:
    """A line each for the records, the dense trainings, the masks of one shot, and the networks of each family."""
    records = Line("records", done=1)
    try:
        run.manifest()
    except InputError as error:
        records = Line("records", missing=1, details=[str(error)])
        if not run.trained_plan():
            return [records]
    planned = run.plan()
    found = standings(run, planned)
    train, *families = (_line(stage, networks, speed(found)) for stage, networks in found.items())
    return [records, train, *_masks(run, planned), *families]


def standings(run: Run, planned: Plan) -> dict[str, list[Standing]]:
    """Every network by stage: `train`, and each family of the recipe by its name. These have the networks that the recipe asks
    for, and others that were begun: of added replicates, or of grids that were given."""
    replicates = [run.replicate(number) for number in run.known_numbers()]
    whole = planned.total_steps / planned.steps_per_epoch
    found: dict[str, list[Standing]] = {"train": [], **{name: [] for name in run.recipe.families}}
    found["train"] = [_standing(replicate.dense, f"{replicate.folder.name} dense", whole) for replicate in replicates]
    tickets = [*run.tickets(planned), *grouping.controls(run, planned, run.families())]
    asked = {run.network(ticket): ticket for ticket in tickets}
    for network, ticket in asked.items():
        found[ticket.family].append(_standing(network, str(ticket), planned.epochs(ticket)))
    for replicate in replicates:
        for network in replicate.networks():
            family = replicate.family_of(network)
            if network not in asked and family in run.recipe.families:
                found[family].append(_standing(network, str(network.folder.relative_to(run.folder)), 0.0))
    return found


def _standing(network: NetworkFiles, title: str, epochs: float) -> Standing:
    result = network.read_result()
    if result and result.status == "done":
        return Standing(title, "done", pace=result.timing.seconds / result.epochs)
    if result:  # what failed will be tried again
        return Standing(title, result.status, result.last_reason, epochs if result.status == "failed" else 0.0)
    if holder := locks.holder(network.folder):
        return Standing(title, "running", f"{holder.note or 'beginning'}, {holder.who}", epochs)
    return Standing(title, "waiting", "", epochs)


def _line(stage: str, found: Sequence[Standing], pace: float | None) -> Line:
    states, left = Counter(one.state for one in found), sum(one.epochs for one in found)
    return Line(
        stage,
        done=states["done"],
        under_way=states["running"],
        failed=states["failed"] + states["diverged"],
        missing=states["waiting"],
        seconds_left=left * pace if left and pace is not None else None,
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


def speed(found: Mapping[str, Sequence[Standing]]) -> float | None:
    """Seconds an epoch, a mean of the networks that are done; None before there is one."""
    paces = [one.pace for networks in found.values() for one in networks if one.pace is not None]
    return sum(paces) / len(paces) if paces else None


def watch(run: Run, seconds: float) -> None:
    """Show the state of all networks of `run` in a terminal, every `seconds`, until none is left to train."""
    from rich.console import Console, Group
    from rich.live import Live

    planned = run.plan()
    with Live(console=Console(highlight=False, markup=False, emoji=False), auto_refresh=False) as live:
        while True:
            found = standings(run, planned)
            live.update(Group(*shown(found, speed(found))), refresh=True)
            if all(one.state in ("done", "diverged") for stage in found.values() for one in stage):
                return
            time.sleep(seconds)


def shown(found: Mapping[str, Sequence[Standing]], pace: float | None) -> list[Any]:
    """A line of counts for each stage, with the rate and the time left at `pace` seconds an epoch; and a table of what is not
    done: what runs, what failed and why, and the first of what waits."""
    from rich.table import Table

    counts = [f"{stage}: {_counts(networks, pace)}" for stage, networks in found.items()]
    networks = [one for stage in found.values() for one in stage]
    left = [one for state in STATES[1:] for one in networks if one.state == state]
    more = sum(one.state == "waiting" for one in left) - WAITING_SHOWN
    table = Table("network", "state", "how far and where, or why", box=None, pad_edge=False)
    for one in left[: -more or None] if more > 0 else left:
        table.add_row(one.title, one.state, one.told)
    return [*counts, *([table] if left else []), *([f"and {more} more waiting"] if more > 0 else [])]


def _counts(networks: Sequence[Standing], pace: float | None) -> str:
    counts = Counter(one.state for one in networks)
    told = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    running = [one.epochs for one in networks if one.state == "running"]
    if not running or pace is None:
        return told
    hourly = 3600 / (pace * sum(running) / len(running)) * len(running)
    return f"{told}; {hourly:.3g} an hour, {duration(sum(one.epochs for one in networks) * pace / len(running))} left"
