"""Train one network in its folder: from a given state to the end of the schedule, resumable, ending in result.json."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from data_prep import files
from data_prep.errors import InputError
from lottery import identity, journal, lineage, locks, masks, preemption, store
from lottery.engine import checkpoints, gpus, profiling
from lottery.engine.checkpoints import Checkpoint, Clock
from lottery.engine.loop import Diverged, Evaluation, Trainer
from lottery.engine.step import TOP
from lottery.grids import parse_point
from lottery.progress import Reporter
from lottery.run import Network
from lottery.tables import count_of
from lottery.tracking import Tracker

NOTE_SECONDS = 1.0  # between two notes of how far a training has come
NOTHING = np.empty((0, 3))  # has been found in an epoch that has not begun

# From a task's record and the rows that an earlier process wrote.
Track = Callable[[Mapping[str, Any], Sequence[journal.Row]], Tracker]


@dataclasses.dataclass(frozen=True)
class Task:
    """What to train: `start()` gives the state to begin from (its slots empty for fresh ones), `mask` what it may use.

    `order_seed` seeds data order and augmentation; `snapshots` (step -> file) are saved on the way, the last step's
    among them or else in the folder's `final`; `beside` are files that belong to the network and are there already; `record`
    goes into the result as it is, with the seals of all these files by their names inside `root`; `rate` is a learning rate to
    hold in place of the schedule's; `profile` is where to put a trace.
    """

    title: str
    start: Callable[[], store.State]
    last_step: int
    order_seed: int
    record: Mapping[str, Any]
    root: Path
    mask: masks.Mask = dataclasses.field(default_factory=dict)
    snapshots: Mapping[int, Path] = dataclasses.field(default_factory=dict)
    beside: Sequence[Path] = ()
    rate: float | None = None
    profile: Path | None = None


def train(trainer: Trainer, task: Task, network: Network, reporter: Reporter, track: Track) -> dict[str, Any]:
    """Train `task` and return the result, which is also written; the caller holds the folder's lock.

    Goes on from the checkpoint that a killed process left; the files come out the same. A network whose loss is not finite
    gets the status `diverged` and its step, and keeps its last checkpoint. Raises Preempted, once what is under way is
    saved.
    """
    for folder in {path.parent for path in task.snapshots.values()}:
        files.remove_stale(folder)
    with preemption.deferred():
        preemption.check()
        begun = _start(trainer, task, network)
        rows, seal = journal.rewind(network.metrics, begun.state.step, begun.journal)
        tracker = track(task.record, rows)
        outcome: dict[str, Any] = {"status": "stopped"}
        try:
            with (
                reporter.counting(task.title, task.last_step - begun.state.step) as counted,
                _traced(task, counted, reporter) as progress,
                contextlib.closing(gpus.Gauges(trainer.gpus)) as gauges,
            ):
                _Training(trainer, task, network, rows, seal, tracker, gauges, progress).run(begun)
            state = trainer.state(task.last_step)
            if task.last_step not in task.snapshots:
                store.save_state(network.final, state)
            made = {**_summary(rows, state), "constant": trainer.is_constant()}
            outcome = {"status": "done", **made, "outputs": _outputs(task, network)}
        except Diverged as error:
            outcome = {"status": "diverged", "reason": str(error), "step": error.step}
        finally:
            tracker.finish(outcome)
        timing = {"seconds": sum(row["timing"]["seconds"] for row in rows), "journal": journal.last_seal(network.metrics)}
        result = {
            "folder": identity.place(network.folder),
            "outputs": {},
            **outcome,
            "replicas": trainer.replicas,
            "xla": trainer.xla,
            **task.record,
            "timing": timing,
        }
        files.write_json(network.result, result)
        if outcome["status"] == "done":
            network.checkpoint.unlink(missing_ok=True)
    preemption.check()
    return result


def fill_in(trainer: Trainer, task: Task, network: Network, result: Mapping[str, Any], reporter: Reporter) -> None:
    """Make the snapshots that a finished training lacks, training on from the nearest earlier one (or from the start):
    the same steps give the same bits. Its result lists them then. The caller holds the folder's lock.

    Raises InputError where `result` says that it was trained on other devices, or in other steps, and where a file that it
    lists was made again and is another.
    """
    missing = sorted(step for step, path in task.snapshots.items() if not path.exists())
    if missing and (result["replicas"], result["xla"], result["step"]) != (trainer.replicas, trainer.xla, task.last_step):
        trained, here = _devices(result["replicas"], result["xla"]), _devices(trainer.replicas, trainer.xla)
        raise InputError(
            f"{task.title} was trained for {result['step']} steps on {trained}, this process would add snapshots of "
            f"{task.last_step} steps on {here}: add them where it was trained"
        )
    for step in missing:
        reporter.say(f"{task.title}: adding the snapshot of step {step}")
        saved = [earlier for earlier, path in task.snapshots.items() if earlier < step and path.exists()]
        trainer.load(store.load_state(task.snapshots[max(saved)]) if saved else task.start(), task.mask)
        trainer.advance(max(saved, default=0), step, task.order_seed)
        store.save_state(task.snapshots[step], trainer.state(step))
    outputs = _outputs(task, network)
    for name, seal in outputs.items():
        if result["outputs"].get(name, seal) != seal:
            raise InputError(f"{task.root / name}, made again, differs from before: remove {network.folder} and train it again")
    if not outputs.keys() <= result["outputs"].keys():
        made_by = task.record.get("made_by", [])
        files.write_json(network.result, {**result, "outputs": result["outputs"] | outputs, "made_by": made_by})


def _outputs(task: Task, network: Network) -> dict[str, str]:
    """The seals of what a training has left so far: a snapshot that was asked for too late is added afterwards."""
    left = [*task.snapshots.values(), network.final, *task.beside]
    return lineage.seals(task.root, [path for path in left if path.exists()])


class _Training:
    """A network under way: what its steps have found since the last evaluation is in `found`."""

    def __init__(
        self,
        trainer: Trainer,
        task: Task,
        network: Network,
        rows: list[journal.Row],
        seal: str,
        tracker: Tracker,
        gauges: gpus.Gauges,
        progress: Callable[[int], None],
    ):
        self.trainer, self.task, self.network = trainer, task, network
        self.rows, self.seal, self.tracker, self.gauges, self.progress = rows, seal, tracker, gauges, progress
        self.noted = 0.0

    def run(self, begun: Checkpoint) -> None:
        """Train on from `begun` to the end, adding a row per evaluation to `rows`, the journal and the tracker."""
        size = sum(array.nbytes for arrays in store.groups(self.trainer.state(0)).values() for array in arrays.values())
        self.every = max(1, parse_point(self.trainer.train.evaluate).step(self.trainer.steps_per_epoch))
        self.clock = Clock(self.trainer.train, begun.state.step, size)
        self.found, self.began = [begun.found], time.perf_counter() - begun.seconds
        self.trainer.waited = 0.0
        for first, end in self.trainer.by_epoch(begun.state.step, self.task.last_step):
            self._epoch(first, end)

    def _epoch(self, step: int, end: int) -> None:
        """Train from `step` to `end`, within one epoch, saving the snapshots between, and evaluate where that is asked for."""
        for stop in self._stops(step, end):
            for found in self.trainer.steps(step, stop, self.task.order_seed, self.task.rate):
                self.found.append(found)
                self.progress(len(found))
                step += len(found)
                self._note(step)
                if step < stop:
                    self._pause(step)
            if step in self.task.snapshots:
                store.save_state(self.task.snapshots[step], _finite(self.trainer.state(step)))
            if self._is_evaluated(step):
                self._evaluate(step)
            if step < self.task.last_step:
                self._pause(step)

    def _note(self, step: int) -> None:
        if time.monotonic() - self.noted > NOTE_SECONDS:
            locks.note(self.network.folder, f"step {step} of {self.task.last_step}")
            self.noted = time.monotonic()

    def _stops(self, step: int, end: int) -> list[int]:
        """Where to stop between `step` and `end`: at snapshots, at evaluations, and at `end`."""
        evaluated = range(step - step % self.every + self.every, end, self.every)
        return sorted({*(point for point in self.task.snapshots if step < point < end), *evaluated, end})

    def _is_evaluated(self, step: int) -> bool:
        return step % self.every == 0 or step == self.task.last_step

    def _evaluate(self, step: int) -> None:
        row = self._row(step, np.concatenate(self.found))
        self.seal = journal.append(self.network.metrics, row, self.seal)
        self.tracker.log(row)
        self.rows.append(row)
        self.found, self.began, self.trainer.waited = [], time.perf_counter(), 0.0

    def _pause(self, step: int) -> None:
        """Save the network at `step`, up to which all else is saved, if that is due. Raises Preempted after it."""
        if not (preemption.asked() or self.clock.is_due(step)):
            return
        with self.clock.saving(step):
            state = _finite(self.trainer.state(step))
            found = np.concatenate(self.found) if self.found else NOTHING
            seconds = time.perf_counter() - self.began
            checkpoint = Checkpoint(state, found, seconds, self.trainer.replicas, self.trainer.xla, self.seal)
            checkpoints.save(self.network.checkpoint, checkpoint)
        preemption.check()

    def _row(self, step: int, found: np.ndarray) -> journal.Row:
        """A line of metrics.jsonl: training figures are means over the steps since the last line, others over whole splits."""
        trained = time.perf_counter() - self.began
        images = len(found) * self.trainer.train.batch
        losses, right, overflows = found.T
        row: journal.Row = {
            "step": step,
            "epoch": step / self.trainer.steps_per_epoch,
            "train_loss": float(losses.mean()),
            "train_accuracy": float(right.sum() / images),
        }
        if self.trainer.train.precision == "mixed_float16":
            row["overflows"] = round(overflows.sum())
        for split in ("validation", "test"):
            row |= _named(split, self.trainer.evaluate(split), self.trainer.feed.classes)
        if not np.isfinite([row["validation_loss"], row["test_loss"]]).all():
            raise Diverged(step)
        timing = {
            "seconds": time.perf_counter() - self.began,
            "images_per_second": images / trained,
            "input_share": self.trainer.waited / trained,
            **self.gauges.read(),
        }
        return row | {"timing": timing}


def _named(split: str, found: Evaluation, classes: int) -> dict[str, float]:
    """The figures of a split by the names they have in a row; with five classes every answer is among the first five."""
    top5 = {f"{split}_top5_accuracy": found.top5} if classes > TOP else {}
    return {f"{split}_loss": found.loss, f"{split}_accuracy": found.accuracy, **top5}


def _traced(task: Task, progress: Callable[[int], None], reporter: Reporter) -> AbstractContextManager[Callable[[int], None]]:
    if task.profile is None:
        return contextlib.nullcontext(progress)
    return profiling.traced(task.profile, progress, reporter.say)


def _start(trainer: Trainer, task: Task, network: Network) -> Checkpoint:
    if not network.checkpoint.exists():
        network.metrics.unlink(missing_ok=True)
        state = task.start()
        trainer.load(state, task.mask)
        if state.step in task.snapshots:
            store.save_state(task.snapshots[state.step], trainer.state(state.step))
        return Checkpoint(state, NOTHING, 0.0, trainer.replicas, trainer.xla, "")
    begun = checkpoints.load(network.checkpoint)
    if (begun.replicas, begun.xla) != (trainer.replicas, trainer.xla):
        raise InputError(
            f"{network.checkpoint} was saved on {_devices(begun.replicas, begun.xla)}, this process has "
            f"{_devices(trainer.replicas, trainer.xla)}: go on where it was begun, or remove {network.folder}"
        )
    trainer.load(begun.state, task.mask)
    return begun


def _devices(replicas: int, xla: bool) -> str:
    return f"{count_of(replicas, 'device')} {'with' if xla else 'without'} XLA"


def _finite(state: store.State) -> store.State:
    """`state`, which holds neither NaN nor infinity. Raises Diverged."""
    if not all(np.isfinite(array).all() for arrays in store.groups(state).values() for array in arrays.values()):
        raise Diverged(state.step)
    return state


def _summary(rows: list[journal.Row], state: store.State) -> dict[str, Any]:
    figures = [name for name in rows[-1] if name.startswith(("validation_", "test_"))] + ["train_loss"]
    least = min(rows, key=lambda row: row["validation_loss"])
    zeros = sum(int(array.size - np.count_nonzero(array)) for array in state.weights.values())
    return {
        "step": state.step,
        "final": {name: rows[-1][name] for name in figures},
        "least_validation_loss": {name: least[name] for name in ("step", *figures)},
        "exact_zeros": zeros,
        "trainable_weights": sum(array.size for array in state.weights.values()),
    }
