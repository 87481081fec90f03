"""What of a run is done, under way, failed or missing, and how long the rest will take."""

import dataclasses

from data_prep import files
from data_prep.errors import InputError
from lottery import journal, locks
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
    """A line each for the records, the dense trainings, the masks, and the networks under masks."""
    records = Line("records")
    try:
        planned = run.plan()
        records.done = 1
    except InputError as error:
        records.missing = 1
        records.details.append(str(error))
        return [records]
    return [records, _dense(run, planned), _masks(run), _networks(run, planned)]


def _dense(run: Run, planned: Plan) -> Line:
    line = Line("train")
    for replicate in run.replicates():
        _count(line, replicate.dense, f"{replicate.folder.name} dense", planned)
    _estimate(run, line, line.missing * run.recipe.train.epochs)
    return line


def _masks(run: Run) -> Line:
    line = Line("thresholds")
    wanted = set(run.recipe.quantiles()).union(*(replicate.quantiles() for replicate in run.replicates()))
    for replicate in run.replicates():
        made = len(replicate.quantiles())
        line.done += made
        line.missing += len(wanted) - made
    return line


def _networks(run: Run, planned: Plan) -> Line:
    line = Line("retrain")
    left = sum(planned.epochs(job) for job in run.jobs(planned) if _count(line, run.network(job), str(job), planned))
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
