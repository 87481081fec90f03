"""What of a run is done, under way, failed or missing, and how long the rest will take."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from data_prep.errors import InputError
from lottery import locks
from lottery.grids import quantile_name
from lottery.jobs import AnyJob
from lottery.plan import Plan
from lottery.results import following
from lottery.run import Network, Run

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
    """A line each for the records, the dense trainings, and, of what the recipe asks for or there is, the one-shot masks, the
    networks under them, and those of the rounds."""
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
    masks = {"thresholds": _masks(run)} if "retrain" in lines else {}
    order = ("train", "thresholds", "retrain", "rounds")
    return [records, *((lines | masks)[stage] for stage in order if stage in lines | masks)]


def standings(run: Run, planned: Plan) -> dict[str, list[Standing]]:
    """Every network by stage: `train`, and `retrain` and `rounds` where the recipe asks for them or some were begun."""
    replicates = [run.replicate(number) for number in run.known_numbers()]
    whole = planned.total_steps / planned.steps_per_epoch
    found = {"train": [_standing(replicate.dense, f"{replicate.folder.name} dense", whole) for replicate in replicates]}
    if "oneshot" in run.recipe.pruning or any(replicate.thresholds.exists() for replicate in replicates):
        found["retrain"] = _of_jobs("retrain", run, planned, run.jobs(planned))
    rounds = []
    if "rounds" in run.recipe.pruning:
        levels = run.recipe.rounds.levels
        rounds = [*planned.rounds(run.numbers(), levels), *following.controls(run, planned, levels)]
    if rounds or any((replicate.folder / "rounds").exists() for replicate in replicates):
        found["rounds"] = _of_jobs("rounds", run, planned, rounds)
    return found


def _of_jobs(stage: str, run: Run, planned: Plan, jobs: Sequence[AnyJob]) -> list[Standing]:
    """The networks of `jobs`, and others of `stage` that were begun: of added replicates, or of grids that were given."""
    found = [_standing(run.network(job), str(job), planned.epochs(job)) for job in jobs]
    counted = {run.network(job) for job in jobs}
    for replicate in map(run.replicate, run.known_numbers()):
        for network in replicate.networks():
            if network not in counted and network.folder.is_relative_to(replicate.folder / stage):
                found.append(_standing(network, str(network.folder.relative_to(run.folder)), 0.0))
    return found


def _standing(network: Network, title: str, epochs: float) -> Standing:
    result = network.read_result()
    if result and result["status"] == "done":
        return Standing(title, "done", pace=result["timing"]["seconds"] / result["epochs"])
    if result:
        reason = str(result.get("reason")).strip().splitlines()[-1]
        again = result["status"] == "failed"  # and will be tried again
        return Standing(title, "failed" if again else "diverged", reason, epochs if again else 0.0)
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


def _masks(run: Run) -> Line:
    """Every replicate of the recipe should have the masks that any has; one that was added has what it was given."""
    made = {number: set(run.replicate(number).quantiles()) for number in run.known_numbers()}
    wanted = set(run.recipe.quantiles()).union(*(made[number] for number in run.numbers()))
    lacking = {number: sorted(wanted - made[number]) for number in run.numbers()}
    details = [
        f"{run.replicate(number).folder.name} has no mask {', '.join(f'q{quantile_name(one)}' for one in quantiles[:NAMED])}"
        f"{f' and {len(quantiles) - NAMED} more' if len(quantiles) > NAMED else ''} yet"
        for number, quantiles in lacking.items()
        if quantiles and made[number]
    ]
    return Line("thresholds", done=sum(map(len, made.values())), missing=sum(map(len, lacking.values())), details=details)


def speed(found: Mapping[str, Sequence[Standing]]) -> float | None:
    """Seconds an epoch, a mean of the networks that are done; None before there is one."""
    paces = [one.pace for networks in found.values() for one in networks if one.pace is not None]
    return sum(paces) / len(paces) if paces else None
