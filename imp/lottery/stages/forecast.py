"""What a run still takes, before it runs: trainings, time, disk. Its network is built, and the recipe's patterns are tried."""

import dataclasses
import heapq
import shutil
import statistics
from collections.abc import Sequence

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
    `processes` of `nodes` (None: of this machine), and `node_seconds` of one node, at `epoch_seconds` for an epoch of each:
    this is `given`, or known from the `timed` trainings of this run, or where there are none from a trial. None while the
    number of examples must be known first. `disk` are the bytes that records, snapshots and results will take, where `free` are
    free."""

    networks: list[Cost]
    finished: int
    nodes: int | None
    processes: int
    seconds: float | None
    node_seconds: float | None
    epoch_seconds: float | None
    given: bool
    timed: int
    device: str
    disk: dict[str, int]
    free: int


def forecast(
    run: Run, execution: Execution, reporter: Reporter, nodes: int | None = None, epoch_seconds: float | None = None
) -> Forecast:
    """What is missing in the run directory: how long it takes on this machine, or on so many `nodes`, each with
    `execution.ranks` processes (None: one), where an epoch of a network takes `epoch_seconds` (None: as long as here). Raises
    InputError for what a run of all stages would refuse, as far as it is known before anything is trained: so also for a
    pattern that matches no variable."""
    agreement.check(run.recipe)
    run.check()
    manifest = expected(run)
    recipe = run.widened().recipe
    planned = plan.estimated(recipe, manifest.count("train") or None, run.share, len(manifest.classes))
    networks, finished = _networks(run, planned)
    dense, masked = ([one for one in networks if isinstance(one.network, kind)] for kind in (int, Ticket))
    width = max(len(dense), side_by_side(one.network for one in masked if isinstance(one.network, Ticket)), 1)
    here = ranks_to_start(execution.ranks, lambda: width, recipe.train.threads)
    processes = nodes * (execution.ranks or 1) if nodes else here

    start_tensorflow()
    from lottery.engine import trial

    trainer = trial.make_trainer(recipe, manifest, max(1, len(resources_here().cores) // here))
    state = trainer.state(0)
    check_families(run, [*state.weights, *state.statistics])
    for line in trainer.given.notes:
        reporter.once(line)
    recipe.pruning.prunable(state)

    given, paces = epoch_seconds is not None, _paces(run)
    if not given and paces:
        epoch_seconds = statistics.mean(paces)
    elif not given and networks and manifest.shards:
        reporter.say("measuring how long an epoch takes, on made-up examples")
        evaluations = planned.steps_per_epoch / max(1, recipe.train.evaluate.step(planned.steps_per_epoch))
        epoch_seconds = trial.seconds_of_epoch(trainer, manifest, evaluations)
    pace = None if any(one.epochs is None for one in networks) else epoch_seconds
    folder = run.folder.absolute()
    return Forecast(
        networks,
        finished,
        nodes,
        processes,
        None if pace is None else pace * _epochs_until_done(networks, processes),
        None if pace is None else pace * sum(one.epochs or 0.0 for one in networks) * (nodes or 1) / processes,
        epoch_seconds,
        given,
        0 if given else len(paces),
        trainer.maker["device"],
        _disk(run, manifest, state, len(dense) * len(planned.snapshot_steps()), len(masked)),
        shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free,
    )


def _epochs_until_done(networks: Sequence[Cost], places: int) -> float:
    """How many epochs pass, at most, until all are trained, so many at a time: dense ones first, then each under a mask after
    those that it needs, and last the controls that only headlines have."""
    free, ended = [0.0] * max(1, min(places, len(networks))), dict[Ticket, float]()
    phase, began = None, 0.0
    for one in networks:
        if (now := (isinstance(one.network, int), one.certain)) != phase:
            phase, began = now, max(free)
        needs = one.network.needs if isinstance(one.network, Ticket) else []
        begun = max(began, heapq.heappop(free), *(ended.get(need, 0.0) for need in needs))
        heapq.heappush(free, begun + (one.epochs or 0.0))
        if isinstance(one.network, Ticket):
            ended[one.network] = begun + (one.epochs or 0.0)
    return max(free)


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
