"""Train one network in its folder: from a given state to the end of the schedule, resumable, ending in result.json. `events`
says what was reached; here that becomes files, rows, and news for trackers and the terminal."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lottery.base import files, gpus, locks, preemption
from lottery.base.errors import InputError
from lottery.base.progress import Reporter, count_of
from lottery.engine import checkpoints, events, profiling
from lottery.engine.answers import Answers
from lottery.engine.checkpoints import Checkpoint, Clock
from lottery.engine.events import Reached
from lottery.engine.loop import Diverged, Trainer
from lottery.engine.updates import MaskUpdates
from lottery.experiment.schedules import Rates
from lottery.pruning import densities, masks
from lottery.pruning.connectivity import Topology
from lottery.pruning.costs import STEP, costs
from lottery.rundir import journal, lineage, predictions, records, store
from lottery.rundir.names import NetworkFiles
from lottery.rundir.records import Result
from lottery.rundir.running import Running
from lottery.trackers.mirror import Mirror

NOTE_SECONDS = 1.0  # between two notes of how far a training has come

# From a training's record and the rows that an earlier process wrote.
Track = Callable[[Mapping[str, Any], Sequence[journal.Row]], Mirror]


@dataclasses.dataclass(frozen=True)
class Training:
    """What to train: `start()` gives the state to begin from (with no optimizer state, a fresh one), `mask` what it may use;
    `topology` is that of the network, where it is known.

    `order_seed` seeds data order and augmentation; `snapshots` (step -> file) are saved on the way, the last step's among them
    or else in the folder's `final`; `beside` are other files of the network's, if they are there in the end; `record` goes into
    the result, with the seals of all these files by name inside `root`; `rates` take the place of the schedule; `updates`
    change the mask on the way, the folder then gets the last one, and `kept` says what that keeps; `profile` takes a trace.

    A start at the last step, as that of an average of networks, is not trained: its BatchNorm gets new statistics."""

    title: str
    start: Callable[[], store.State]
    last_step: int
    order_seed: int
    record: Mapping[str, Any]
    root: Path
    mask: masks.Bits = dataclasses.field(default_factory=dict)
    topology: Topology | None = None
    snapshots: Mapping[int, Path] = dataclasses.field(default_factory=dict)
    beside: Sequence[Path] = ()
    rates: Rates | None = None
    updates: MaskUpdates | None = None
    kept: Callable[[masks.Bits], densities.Kept] | None = None
    profile: Path | None = None


def train(trainer: Trainer, training: Training, network: NetworkFiles, reporter: Reporter, track: Track) -> Result:
    """Train what `training` says and return the result, which is also written; the caller holds the folder's lock. Goes on
    from the checkpoint that a killed process left; the files come out the same. A network whose loss is not finite gets the
    status `diverged` and its step, and keeps its last checkpoint. Raises Preempted, once what is under way is saved."""
    for folder in {path.parent for path in training.snapshots.values()}:
        files.remove_stale(folder)
    with preemption.deferred():
        preemption.check()
        begun = _start(trainer, training, network)
        rows, _ = journal.rewind(network.metrics, begun.state.step, begun.journal)
        mirror = track(training.record, rows)
        result: Result | None = None
        try:
            try:
                answers = _follow(trainer, training, network, begun, rows, mirror, reporter)
                if training.last_step not in training.snapshots:
                    store.save_state(network.final, _finite(trainer.state(training.last_step)))
                predicted = {split: found for split, one in answers.items() if (found := one.predictions())}
                if predicted:
                    predictions.save(network.predictions, predicted, training.last_step)
                if training.updates:
                    store.save_mask(network.mask, trainer.mask(), {"step": training.last_step})
                outcome = _outcome(trainer, training, network, rows)
            except Diverged as error:
                outcome = {"status": "diverged", "reason": str(error), "step": error.step}
            seconds, seal = sum(row["timing"]["seconds"] for row in rows), journal.read_sealed(network.metrics)[1]
            made_on: dict[str, Any] = {"metric": trainer.task.metrics[0], "replicas": trainer.replicas, "xla": trainer.xla}
            made_on |= {"bundle": trainer.bundle, "place": trainer.place}
            made_on["timing"] = {"seconds": seconds, "journal": seal}
            kept = {"kept": training.kept(trainer.mask())} if training.kept else {}
            result = Result.model_validate({**outcome, **kept, **training.record, **made_on})
        finally:
            mirror.finish(result)
        result = records.write(network.result, result)
        if result.status == "done":
            network.checkpoint.unlink(missing_ok=True)
    preemption.check()
    return result


def fill_in(trainer: Trainer, training: Training, network: NetworkFiles, result: Result, reporter: Reporter) -> None:
    """Make the snapshots that a finished training lacks, training on from the nearest earlier one (or from the start), and list
    them in its result. The caller holds the folder's lock. Raises InputError where it was trained on other devices, or in other
    steps, and where a file that it lists was made again and is another."""
    missing = sorted(step for step, path in training.snapshots.items() if not path.exists())
    if missing and (result.replicas, result.xla, result.step) != (trainer.replicas, trainer.xla, training.last_step):
        trained, here = _devices(result.replicas, result.xla), _devices(trainer.replicas, trainer.xla)
        raise InputError(
            f"{training.title} was trained for {result.step} steps on {trained}, this process would add snapshots of "
            f"{training.last_step} steps on {here}: add them where it was trained"
        )
    for step in missing:
        reporter.say(f"{training.title}: adding the snapshot of step {step}")
        saved = [earlier for earlier, path in training.snapshots.items() if earlier < step and path.exists()]
        trainer.load(store.load_state(training.snapshots[max(saved)]) if saved else training.start(), training.mask)
        trainer.advance(max(saved, default=0), step, training.order_seed)
        store.save_state(training.snapshots[step], trainer.state(step))
    outputs = _outputs(training, network)
    for name, seal in outputs.items():
        if result.outputs.get(name, seal) != seal:
            raise InputError(f"{training.root / name}, made again, differs: remove {network.folder} and train it again")
    if not outputs.keys() <= result.outputs.keys():
        update = {"outputs": result.outputs | outputs, "made_by": training.record.get("made_by", [])}
        records.write(network.result, result.model_copy(update=update))


def _start(trainer: Trainer, training: Training, network: NetworkFiles) -> Checkpoint:
    """Load what is to be trained into `trainer`: its start, or what a process that ended early saved."""
    if not network.checkpoint.exists():
        network.metrics.unlink(missing_ok=True)
        state = training.start()
        trainer.load(state, training.mask)
        if state.step in training.snapshots:
            store.save_state(training.snapshots[state.step], trainer.state(state.step))
        return Checkpoint(state, trainer.replicas, trainer.xla, bundle=trainer.bundle)
    begun = checkpoints.load(network.checkpoint)
    if begun.bundle != trainer.bundle:
        raise InputError(
            f"{network.checkpoint} was saved in a bundle of {begun.bundle}, this process trains {trainer.bundle} together: "
            f"continue with --bundle {begun.bundle}, or remove {network.folder}"
        )
    if (begun.replicas, begun.xla) != (trainer.replicas, trainer.xla):
        raise InputError(
            f"{network.checkpoint} was saved on {_devices(begun.replicas, begun.xla)}, this process has "
            f"{_devices(trainer.replicas, trainer.xla)}: go on where it was begun, or remove {network.folder}"
        )
    mask = training.updates.resume(begun.updates) if training.updates and begun.updates else training.mask
    trainer.load(begun.state, mask)
    return begun


def _follow(
    trainer: Trainer,
    training: Training,
    network: NetworkFiles,
    begun: Checkpoint,
    rows: list[journal.Row],
    mirror: Mirror,
    reporter: Reporter,
) -> dict[str, Answers]:
    """Train to the end and save what is due; evaluations add to `rows`. Returns the last one's answers. Raises Diverged."""
    first, last, seal = begun.state.step, training.last_step, begun.journal
    notes = _Notes(trainer, network, last)
    clock = Clock(trainer.train, first, sum(array.nbytes for array in trainer.state(first).arrays()))
    answers: dict[str, Answers] = {}
    how = tuple(training.snapshots), training.rates, training.updates, begun.figures, begun.seconds
    with (
        reporter.counting(training.title, last - first or trainer.steps_per_epoch) as progress,
        profiling.Trace(training.profile, reporter.say) as trace,
        contextlib.closing(gpus.Gauges(trainer.gpus)) as gauges,
    ):
        for reached in events.run(trainer, first, last, training.order_seed, *how):
            if len(reached.figures):
                progress(len(reached.figures))
                trace.advance()
                notes.stepped(reached.step, reached.figures)
            if reached.step in training.snapshots:
                store.save_state(training.snapshots[reached.step], _finite(trainer.state(reached.step)))
            if reached.evaluated:
                row, answers = reached.evaluated
                row["timing"].update(gauges.read())
                rows.append(row)
                seal = journal.append(network.metrics, row, seal)
                mirror.log(row)
            elif first == last:  # there is nothing to save
                preemption.check()
            if reached.step < last and (preemption.asked() or clock.is_due(reached.step)):
                with clock.saving(reached.step):
                    _save(trainer, training, network, reached, seal)
                reporter.saved()
                preemption.check()
    return answers


def _save(trainer: Trainer, training: Training, network: NetworkFiles, reached: Reached, seal: str) -> None:
    """Save a checkpoint of what was reached; `seal` is that of the last row. Raises Diverged."""
    state = _finite(trainer.state(reached.step))
    changes = training.updates.saved(trainer.mask()) if training.updates else None
    made = trainer.replicas, trainer.xla, seal
    saved = Checkpoint(state, *made, reached.since, reached.seconds, changes, trainer.bundle)
    checkpoints.save(network.checkpoint, saved)


def _finite(state: store.State) -> store.State:
    """`state`, which holds neither NaN nor infinity. Raises Diverged."""
    if not all(np.isfinite(array).all() for array in state.arrays()):
        raise Diverged(state.step)
    return state


class _Notes:
    """Let others know, about once a second, how a training is doing."""

    def __init__(self, trainer: Trainer, network: NetworkFiles, last: int):
        self.folder, self.last, self.batch = network.folder, last, trainer.train.batch
        self.first: tuple[int, float] | None = None  # the step and time of the first call, which compiles
        self.noted, self.since = 0.0, list[np.ndarray]()

    def stepped(self, step: int, figures: np.ndarray) -> None:
        now = time.monotonic()
        self.since.append(figures)
        self.first = self.first or (step, now)
        if now - self.noted <= NOTE_SECONDS:
            return
        losses, reached, _ = np.concatenate(self.since).mean(axis=0)
        rate = (step - self.first[0]) / (now - self.first[1]) if step > self.first[0] else None
        running = Running(
            step=step,
            last=self.last,
            train_loss=losses,
            train_metric=reached / self.batch,
            steps_per_second=rate,
        )
        locks.note(self.folder, running.model_dump_json())
        self.noted, self.since = now, []


def _outcome(trainer: Trainer, training: Training, network: NetworkFiles, rows: list[journal.Row]) -> dict[str, Any]:
    """What result.json says of the end of a training, whose files are all written."""
    state, mask = trainer.state(training.last_step), trainer.mask() if training.updates else training.mask
    weights = state.weights.values()
    spent, steps = costs(mask, state, training.topology), training.last_step - int(training.record.get("first_step", 0))
    passes = STEP * steps if steps else trainer.steps_per_epoch  # of each example of a batch; forward, for new statistics
    trained = spent.macs and spent.macs * passes
    if training.updates:
        trained = training.updates.trained_macs(mask, training.last_step)
    figures = [name for name in rows[-1] if name.startswith(("validation_", "test_"))] + ["train_loss"]
    as_sparse = [row for row in rows if not training.updates or row["step"] > training.updates.held_from]
    least = min(as_sparse, key=lambda row: row["validation_loss"])
    return {
        "outputs": _outputs(training, network),
        "status": "done",
        "step": training.last_step,
        "costs": dataclasses.asdict(spent),
        "training_macs": None if trained is None else trained * trainer.train.batch,
        "final": {name: rows[-1][name] for name in ("step", *figures)},
        "least_validation_loss": {name: least[name] for name in ("step", *figures)},
        "exact_zeros": sum(int(array.size - np.count_nonzero(array)) for array in weights),
        "trainable_weights": sum(array.size for array in weights),
        "constant": trainer.is_constant(),
    }


def _outputs(training: Training, network: NetworkFiles) -> dict[str, str]:
    """The seals of what a training has left so far: a snapshot that was asked for too late is added afterwards."""
    left = [*training.snapshots.values(), network.final, network.predictions, *training.beside]
    return lineage.seals(training.root, [path for path in left if path.exists()])


def _devices(replicas: int | None, xla: bool | None) -> str:
    return f"{count_of(replicas or 0, 'device')} {'with' if xla else 'without'} XLA"
