"""What a run still takes, before it runs: trainings, time, disk. Its network is built, and the recipe's patterns are tried."""

import dataclasses
import shutil
import statistics

from data_prep.records import MANIFEST, SPLITS, Manifest
from lottery.base import environment
from lottery.base.progress import Reporter
from lottery.engine.start import start_tensorflow
from lottery.executors.allocation import ranks_to_start, resources_here
from lottery.executors.workload import Execution
from lottery.experiment import agreement, plan
from lottery.experiment.graph import Ticket, side_by_side
from lottery.experiment.plan import Cost, Plan
from lottery.pruning.state import State
from lottery.results import grouping
from lottery.rundir import journal, store
from lottery.rundir.names import NetworkFiles
from lottery.rundir.run import Run
from lottery.stages.cut import check_families
from lottery.stages.prepare import expected

MACHINE = ("processor", "cores", "gpus")  # in environment.json
ANSWER_BYTES = 8  # that the predictions of a network have for an example


@dataclasses.dataclass(frozen=True)
class Forecast:
    """The `networks` that are still to be trained, and how many are `finished`. They take so many `seconds` in so many
    `processes`, at `epoch_seconds` for an epoch of each, which is known from the `timed` trainings of this run or, where there
    are none, from a trial; None while the number of examples is not known. `disk` are the bytes that records, snapshots and
    results will take, where `free` are free."""

    networks: list[Cost]
    finished: int
    processes: int
    seconds: float | None
    epoch_seconds: float | None
    timed: int
    device: str
    disk: dict[str, int]
    free: int


def forecast(run: Run, execution: Execution, reporter: Reporter) -> Forecast:
    """What is missing in the run directory. Raises InputError for what a run of all stages would refuse, as far as it is known
    before anything is trained: so also for a pattern that matches no variable."""
    agreement.check(run.recipe)
    run.check()
    manifest = expected(run)
    recipe = run.widened().recipe
    planned = plan.estimated(recipe, manifest.count("train") or None, run.share, len(manifest.classes))
    networks, finished = _networks(run, planned)
    dense, masked = ([one for one in networks if isinstance(one.network, kind)] for kind in (int, Ticket))
    width = side_by_side(one.network for one in masked if isinstance(one.network, Ticket))
    processes = ranks_to_start(execution.ranks, lambda: max(width, len(dense), 1), recipe.train.threads)

    start_tensorflow()
    from lottery.engine import trial

    trainer = trial.make_trainer(recipe, manifest, max(1, len(resources_here().cores) // processes))
    state = trainer.state(0)
    check_families(run, [*state.weights, *state.statistics])
    for line in trainer.given.notes:
        reporter.once(line)
    recipe.pruning.prunable(state)

    paces = _paces(run)
    epoch_seconds = statistics.mean(paces) if paces else None
    if not paces and networks and manifest.shards:
        reporter.say("measuring how long an epoch takes, on made-up examples")
        evaluations = planned.steps_per_epoch / max(1, recipe.train.evaluate.step(planned.steps_per_epoch))
        epoch_seconds = trial.seconds_of_epoch(trainer, manifest, evaluations)
    shares = [
        sum(one.epochs or 0.0 for one in some) / max(1, min(processes, most))
        for some, most in ((dense, len(dense)), (masked, width))
    ]
    folder = run.folder.absolute()
    return Forecast(
        networks,
        finished,
        processes,
        None if epoch_seconds is None else epoch_seconds * sum(shares),
        epoch_seconds,
        len(paces),
        trainer.maker["device"],
        _disk(run, manifest, state, len(dense) * len(planned.snapshot_steps()), len(masked)),
        shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free,
    )


def _networks(run: Run, planned: Plan) -> tuple[list[Cost], int]:
    """The networks that are not finished, and the number of the others. Which controls follow from tickets is known once all
    tickets are trained."""

    def files(cost: Cost) -> NetworkFiles:
        return run.replicate(cost.network).dense if isinstance(cost.network, int) else run.network(cost.network)

    networks = plan.dry_run(planned)
    if all(files(one).is_finished for one in networks if one.certain):
        networks = plan.dry_run(planned, grouping.controls(run, planned, planned.recipe.families))
    missing = [_rest(one, files(one), planned) for one in networks if not files(one).is_finished]
    return missing, len(networks) - len(missing)


def _rest(cost: Cost, files: NetworkFiles, planned: Plan) -> Cost:
    """`cost` without the epochs that are behind a training which was interrupted."""
    rows = journal.read(files.metrics) if files.checkpoint.exists() else []
    if not rows or cost.epochs is None:
        return cost
    first = 0 if isinstance(cost.network, int) else planned.first_step(cost.network)
    return dataclasses.replace(cost, epochs=round(cost.epochs - (rows[-1]["step"] - first) / planned.steps_per_epoch, 3))


def _paces(run: Run) -> list[float]:
    """Seconds an epoch of each training of this run, if it was started on a machine like this one."""
    replicates = map(run.replicate, run.known_numbers())
    results = [one.read_result() for replicate in replicates for one in (replicate.dense, *replicate.networks())]
    paces = [one.pace / one.bundle for one in results if one and one.status == "done" and one.pace]
    if not paces:
        return []
    here, before = environment.describe(), run.environment()
    return paces if all(before.get(what) == here[what] for what in MACHINE) else []


def _disk(run: Run, manifest: Manifest, state: State, snapshots: int, results: int) -> dict[str, int]:
    """The bytes of what is to be written: records where there are none, so many snapshots, and so many networks under masks,
    each with its answers."""
    network = sum(array.nbytes for arrays in store.groups(state).values() for array in arrays.values())
    answers = ANSWER_BYTES * sum(manifest.count(split) for split in SPLITS[1:])
    is_prepared = (run.records() / MANIFEST).exists()
    return {
        "records": 0 if is_prepared else manifest.bytes,
        "snapshots": snapshots * network,
        "results": results * (network + answers),
    }
