"""What of a run is done, under way, failed or missing, and how long the rest will take."""

import dataclasses
from collections.abc import Sequence

from data_prep import files
from data_prep.errors import InputError
from lottery import journal, locks
from lottery.jobs import Job, Round
from lottery.plan import Plan
from lottery.run import Network, Run


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
        planned = run.plan()
        records.done = 1
    except InputError as error:
        records.missing = 1
        records.details.append(str(error))
        return [records]
    lines = [records, _dense(run, planned)]
    replicates = [run.replicate(number) for number in run.known_numbers()]
    if "oneshot" in run.recipe.pruning or any(replicate.thresholds.exists() for replicate in replicates):
        lines += [_masks(run), _networks("retrain", run, planned, run.jobs(planned))]
    if "rounds" in run.recipe.pruning:
        lines.append(_networks("rounds", run, planned, planned.rounds(run.numbers(), run.recipe.rounds.levels)))
    elif any((replicate.folder / "rounds").exists() for replicate in replicates):
        lines.append(_networks("rounds", run, planned, []))
    return lines


def _dense(run: Run, planned: Plan) -> Line:
    line = Line("train")
    for replicate in map(run.replicate, run.known_numbers()):
        _count(line, replicate.dense, f"{replicate.folder.name} dense", planned)
    _estimate(run, line, line.missing * planned.total_steps / planned.steps_per_epoch)
    return line


def _masks(run: Run) -> Line:
    """Every replicate of the recipe should have the masks that any has; one that was added has what it was given."""
    line = Line("thresholds")
    made = {number: set(run.replicate(number).quantiles()) for number in run.known_numbers()}
    wanted = set(run.recipe.quantiles()).union(*(made[number] for number in run.numbers()))
    line.done = sum(map(len, made.values()))
    line.missing = sum(len(wanted - made[number]) for number in run.numbers())
    return line


def _networks(stage: str, run: Run, planned: Plan, jobs: Sequence[Job | Round]) -> Line:
    """The networks of `jobs`, and others of `stage` that were begun: of added replicates, or of grids that were given."""
    line = Line(stage)
    left = sum(planned.epochs(job) for job in jobs if _count(line, run.network(job), str(job), planned))
    counted = {run.network(job) for job in jobs}
    for replicate in map(run.replicate, run.known_numbers()):
        for network in replicate.networks():
            if network not in counted and network.folder.is_relative_to(replicate.folder / stage):
                _count(line, network, str(network.folder.relative_to(run.folder)), planned)
    _estimate(run, line, left)
    return line


def _count(line: Line, network: Network, title: str, planned: Plan) -> bool:
    """Count `network` in `line`; whether it has still to be trained."""
    result = network.read_result()
    if result and result["status"] == "done":
        line.done += 1
        return False
    if result:
        line.failed += 1
        line.details.append(f"{title}: {result['status']}, {str(result.get('reason')).strip().splitlines()[-1]}")
        return bool(result["status"] == "failed")
    who = locks.holder(network.folder)
    if who:
        line.under_way += 1
        rows = journal.read(network.metrics)
        line.details.append(f"{title}: step {rows[-1]['step'] if rows else 0} of {planned.total_steps}, {who}")
    else:
        line.missing += 1
    return True


def _estimate(run: Run, line: Line, epochs: float) -> None:
    """Time left at the speed of this run's finished networks, one at a time."""
    if epochs:
        results = [files.read_json(path) for path in run.folder.glob("replicate-*/**/result.json")]
        speeds = [result["timing"]["seconds"] / result["epochs"] for result in results if result["status"] == "done"]
        line.seconds_left = epochs * sum(speeds) / len(speeds) if speeds else None
