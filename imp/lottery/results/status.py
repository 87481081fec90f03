"""Which networks of a run are done, under way, failed or missing, and how long the rest will take."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from data_prep.errors import InputError
from lottery.experiment.graph import Ticket
from lottery.experiment.plan import Plan
from lottery.results import following
from lottery.rundir import locks
from lottery.rundir.names import NetworkFiles
from lottery.rundir.run import Run

NAMED = 6  # masks that are missing, in one line

State = Literal["done", "running", "failed", "diverged", "waiting"]


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
    records = Line("records")
    try:
        run.manifest()
        records.done = 1
    except InputError as error:
        records.missing = 1
        records.details.append(str(error))
        if not run.trained_plan():
            return [records]
    planned = run.plan()
    found = standings(run, planned)
    lines = {stage: _line(stage, networks, speed(found)) for stage, networks in found.items()}
    masks = {"thresholds": _masks(run, planned)} if any(one.quantiles for one in run.recipe.families.values()) else {}
    return [records, lines.pop("train"), *masks.values(), *lines.values()]


def standings(run: Run, planned: Plan) -> dict[str, list[Standing]]:
    """Every network by stage: `train`, and each family of the recipe by its name."""
    replicates = [run.replicate(number) for number in run.known_numbers()]
    whole = planned.total_steps / planned.steps_per_epoch
    found = {"train": [_standing(replicate.dense, f"{replicate.folder.name} dense", whole) for replicate in replicates]}
    tickets = [*run.tickets(planned), *following.controls(run, planned, run.families())]
    for name in run.recipe.families:
        found[name] = _of_family(run, planned, name, [ticket for ticket in tickets if ticket.family == name])
    return found


def _of_family(run: Run, planned: Plan, name: str, tickets: Sequence[Ticket]) -> list[Standing]:
    """The networks that the recipe asks for, and others of the family that were begun: of added replicates, or of grids that
    were given."""
    asked = {run.network(ticket): ticket for ticket in tickets}
    found = [_standing(network, str(ticket), planned.epochs(ticket)) for network, ticket in asked.items()]
    for replicate in map(run.replicate, run.known_numbers()):
        for network in replicate.networks():
            if network not in asked and replicate.family_of(network) == name:
                found.append(_standing(network, str(network.folder.relative_to(run.folder)), 0.0))
    return found


def _standing(network: NetworkFiles, title: str, epochs: float) -> Standing:
    result = network.read_result()
    if result and result.status == "done":
        return Standing(title, "done", pace=result.timing.seconds / result.epochs)
    if result:
        again = result.status == "failed"  # and will be tried again
        return Standing(title, "failed" if again else "diverged", result.last_reason, epochs if again else 0.0)
    if holder := locks.holder(network.folder):
        return Standing(title, "running", f"{holder.note or 'beginning'}, {holder.who}", epochs)
    return Standing(title, "waiting", "", epochs)


def _line(stage: str, found: Sequence[Standing], speed: float | None) -> Line:
    def count(*states: State) -> int:
        return sum(standing.state in states for standing in found)

    left = sum(standing.epochs for standing in found)
    return Line(
        stage,
        done=count("done"),
        under_way=count("running"),
        failed=count("failed", "diverged"),
        missing=count("waiting"),
        seconds_left=left * speed if left and speed is not None else None,
        details=[
            f"{one.title}: {one.told}" if one.state == "running" else f"{one.title}: {one.state}, {one.told}"
            for one in found
            if one.told
        ],
    )


def _masks(run: Run, planned: Plan) -> Line:
    """Every replicate of the recipe should have the masks that any has; one that was added has what it was given."""
    done = {number: _cut(run, number) for number in run.known_numbers()}
    families = {name: family for name, family in run.recipe.families.items() if family.quantiles}
    asked = {(mask.family, mask.name) for mask in planned.masks([1], families)}.union(*(done[one] for one in run.numbers()))
    lacking = {number: sorted(asked - done[number]) for number in run.numbers()}
    details = [
        f"{run.replicate(number).folder.name} has no mask {', '.join(f'{family} {name}' for family, name in missing[:NAMED])}"
        f"{f' and {len(missing) - NAMED} more' if len(missing) > NAMED else ''} yet"
        for number, missing in lacking.items()
        if missing and done[number]
    ]
    return Line("thresholds", done=sum(map(len, done.values())), missing=sum(map(len, lacking.values())), details=details)


def _cut(run: Run, number: int) -> set[tuple[str, str]]:
    """The masks of one shot that a replicate has, by family and name."""
    families = [name for name, family in run.recipe.families.items() if family.quantiles]
    return {(name, files.name) for name in families for files in run.replicate(number).masks(name) if files.is_cut}


def speed(found: Mapping[str, Sequence[Standing]]) -> float | None:
    """Seconds an epoch, a mean of the networks that are done; None before there is one."""
    paces = [one.pace for networks in found.values() for one in networks if one.pace is not None]
    return sum(paces) / len(paces) if paces else None
