"""Training as a stream of events: what has happened and what is due. Who listens writes files, draws a curve, or measures."""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import numpy as np

from lottery import preemption
from lottery.engine.loop import Diverged, Evaluation, Trainer
from lottery.engine.step import TOP
from lottery.experiment.grids import parse_point
from lottery.experiment.recipe import Train
from lottery.rundir import store

SLOW_DISK = 100e6  # bytes a second, from which the first checkpoint's time is guessed
NOTHING = np.empty((0, 3))  # the figures of no steps


class Progress(NamedTuple):
    """How far a training has come: its state, and of its steps since the last evaluation the figures (float64, [steps, 3], see
    `Step`) and the seconds that they took."""

    state: store.State
    figures: np.ndarray = NOTHING
    seconds: float = 0.0


class Stepped(NamedTuple):
    """A compiled call has taken so many steps, to `step`."""

    step: int
    taken: int


class SnapshotDue(NamedTuple):
    """This step's state was asked for; all of it is finite."""

    state: store.State


class Evaluated(NamedTuple):
    """Validation and test splits were evaluated: `train_...` are means over the steps since the last time, the other figures
    over whole splits. `timing` says how fast it went."""

    step: int
    figures: dict[str, float]
    timing: dict[str, float]


class CheckpointDue(NamedTuple):
    """The recipe's clock, or a request to end, wants this saved; all of its state is finite."""

    progress: Progress


Event = Stepped | SnapshotDue | Evaluated | CheckpointDue | Diverged


class Clock:
    """Says when a checkpoint is due: when the recipe's steps or seconds have passed since the last one, unless saving would
    then have taken more than its share of the time since the training began. `size` is what is saved, in bytes."""

    def __init__(self, train: Train, step: int, size: int, now: Callable[[], float] = time.monotonic):
        self._train, self._now = train, now
        self._began = self._saved = now()
        self._step = step
        self._spent, self._cost = 0.0, size / SLOW_DISK

    def is_due(self, step: int) -> bool:
        now, steps = self._now(), self._train.checkpoint_steps
        asked = now - self._saved >= self._train.checkpoint_seconds or (steps and step - self._step >= steps)
        return bool(asked) and self._spent + self._cost <= self._train.checkpoint_share * (now - self._began)

    @contextlib.contextmanager
    def saving(self, step: int) -> Iterator[None]:
        """Around the saving of `step`, which counts from here."""
        began = self._now()
        yield
        self._step, self._saved = step, self._now()
        self._cost = self._saved - began
        self._spent += self._cost


def run(
    trainer: Trainer,
    begun: Progress,
    last_step: int,
    order_seed: int,
    snapshots: Collection[int] = (),
    learning_rate: float | None = None,
) -> Iterator[Event]:
    """Train on from `begun`, which `trainer` has loaded, to `last_step`, at the schedule's learning rates or a constant one.

    `snapshots` are the steps whose state is wanted. The splits are evaluated as often as the recipe says, and at the end.
    A training that diverges ends with that event, which takes the place of a snapshot, a checkpoint or an evaluation that would
    hold a number that is not finite.
    """
    step, since = begun.state.step, [begun.figures]
    every = max(1, parse_point(trainer.train.evaluate).step(trainer.steps_per_epoch))
    stops = {last_step, *range(0, last_step, trainer.steps_per_epoch), *range(0, last_step, every), *snapshots}
    clock = Clock(trainer.train, step, sum(array.nbytes for array in trainer.state(step).arrays()))
    began, trainer.waited = time.perf_counter() - begun.seconds, 0.0
    try:
        for stop in sorted(stop for stop in stops if step < stop <= last_step):
            for figures in trainer.steps(step, stop, order_seed, learning_rate):
                step += len(figures)
                since.append(figures)
                yield Stepped(step, len(figures))
                if step in snapshots:
                    yield SnapshotDue(_finite(trainer.state(step)))
                if step % every == 0 or step == last_step:
                    yield _evaluated(trainer, step, np.concatenate(since), began)
                    since, began, trainer.waited = [NOTHING], time.perf_counter(), 0.0
                if step < last_step and (preemption.asked() or clock.is_due(step)):
                    with clock.saving(step):
                        state, seconds = _finite(trainer.state(step)), time.perf_counter() - began
                        yield CheckpointDue(Progress(state, np.concatenate(since), seconds))
    except Diverged as divergence:
        yield divergence


def _evaluated(trainer: Trainer, step: int, figures: np.ndarray, began: float) -> Evaluated:
    trained = time.perf_counter() - began
    images = len(figures) * trainer.train.batch
    losses, right, overflows = figures.T
    row = {"train_loss": float(losses.mean()), "train_accuracy": float(right.sum() / images)}
    if trainer.train.precision == "mixed_float16":
        row["overflows"] = round(overflows.sum())
    for split in ("validation", "test"):
        row |= _named(split, trainer.evaluate(split), trainer.feed.classes)
    if not np.isfinite([row["validation_loss"], row["test_loss"]]).all():
        raise Diverged(step)
    seconds = time.perf_counter() - began
    timing = {"seconds": seconds, "images_per_second": images / trained, "input_share": trainer.waited / trained}
    return Evaluated(step, row, timing)


def _named(split: str, evaluation: Evaluation, classes: int) -> dict[str, float]:
    """The figures of a split by the names they have in a row; with five classes every answer is among the first five."""
    top5 = {f"{split}_top5_accuracy": evaluation.top5} if classes > TOP else {}
    return {f"{split}_loss": evaluation.loss, f"{split}_accuracy": evaluation.accuracy, **top5}


def _finite(state: store.State) -> store.State:
    """`state`, which holds neither NaN nor infinity. Raises Diverged."""
    if not all(np.isfinite(array).all() for array in state.arrays()):
        raise Diverged(state.step)
    return state
