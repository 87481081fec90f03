"""Training as a stream of events: what has happened, and what is due. Who listens saves files, draws a curve, or measures."""

import time
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from lottery.base import preemption
from lottery.engine.answers import Answers
from lottery.engine.checkpoints import NOTHING, Clock
from lottery.engine.loop import Diverged, Trainer
from lottery.engine.updates import MaskUpdates
from lottery.experiment.schedules import Rates
from lottery.rundir.store import State


class Stepped(NamedTuple):
    """A compiled call has taken steps, to `step`; what it found (float64, [steps, 3], see `Step`)."""

    step: int
    figures: np.ndarray


class SnapshotDue(NamedTuple):
    """This step's state was asked for; all of it is finite."""

    state: State


class Evaluated(NamedTuple):
    """The splits were evaluated: `row` is that of metrics.jsonl (docs/run-directory.md), `answers` are those of each split."""

    row: dict[str, Any]
    answers: dict[str, Answers]


class CheckpointDue(NamedTuple):
    """The recipe's clock, or a request to end, wants this saved: the state, which is finite, and of the steps since the last
    evaluation the figures (float64, [steps, 3], see `Step`) and the seconds."""

    state: State
    figures: np.ndarray
    seconds: float


Event = Stepped | SnapshotDue | Evaluated | CheckpointDue | Diverged


def run(
    trainer: Trainer,
    first_step: int,
    last_step: int,
    order_seed: int,
    snapshots: Collection[int] = (),
    rates: Rates | None = None,
    updates: MaskUpdates | None = None,
    figures: np.ndarray = NOTHING,
    seconds: float = 0.0,
) -> Iterator[Event]:
    """Train what `trainer` has loaded from `first_step` to `last_step`, at the schedule's learning rates or at `rates`.

    The splits are evaluated as often as the recipe says, and at the end; `figures` and `seconds` are those of earlier steps, as
    in `CheckpointDue`. `snapshots` are the steps whose state is wanted: as it is before `updates` change the mask there. A
    training that diverges ends with that event, in place of one that would hold a number that is not finite. One of no steps,
    which begins with the mean of networks, gives this statistics of its own, and is evaluated."""
    step, since = first_step, [figures]
    every = max(1, trainer.train.evaluate.step(trainer.steps_per_epoch))
    stops = {last_step, *range(0, last_step, trainer.steps_per_epoch), *range(0, last_step, every), *snapshots}
    stops |= set(updates.steps) if updates else set()
    clock = Clock(trainer.train, step, sum(array.nbytes for array in trainer.state(step).arrays()))
    began, trainer.waited = time.perf_counter() - seconds, 0.0
    try:
        if first_step == last_step:
            for taken in trainer.settle(order_seed):
                since.append(taken)
                yield Stepped(step, taken)
            yield _evaluated(trainer, step, np.concatenate(since), began)
        for stop in sorted(stop for stop in stops if step < stop <= last_step):
            for taken in _steps(trainer, step, stop, order_seed, rates, updates):
                step += len(taken)
                since.append(taken)
                yield Stepped(step, taken)
                if step in snapshots:
                    yield SnapshotDue(finite(trainer.state(step)))
                if step % every == 0 or step == last_step:
                    yield _evaluated(trainer, step, np.concatenate(since), began)
                    since, began, trainer.waited = [NOTHING], time.perf_counter(), 0.0
                if step < last_step and (preemption.asked() or clock.is_due(step)):
                    with clock.saving(step):
                        state, spent = finite(trainer.state(step)), time.perf_counter() - began
                        yield CheckpointDue(state, np.concatenate(since), spent)
    except Diverged as divergence:
        yield divergence


def _steps(
    trainer: Trainer, first: int, last: int, order_seed: int, rates: Rates | None, updates: MaskUpdates | None
) -> Iterator[np.ndarray]:
    """What `Trainer.steps` yields, after the change of the mask that is due at step `first`, which may take that step."""
    if updates and first in updates.steps:
        figures = updates.change(trainer, first, order_seed)
        first += len(figures)
        if len(figures):
            yield figures
    yield from trainer.steps(first, last, order_seed, rates)


def _evaluated(trainer: Trainer, step: int, figures: np.ndarray, began: float) -> Evaluated:
    """The `train_...` figures are means over the `figures` of the steps since `began`, the others over whole splits."""
    trained = time.perf_counter() - began
    examples = len(figures) * trainer.train.batch
    losses, reached, overflows = figures.T
    row: dict[str, Any] = {"step": step, "epoch": step / trainer.steps_per_epoch}
    row |= {"train_loss": float(losses.mean()), f"train_{trainer.task.metrics[0]}": float(reached.sum() / examples)}
    if trainer.train.precision == "mixed_float16":
        row["overflows"] = round(overflows.sum())
    answers = {split: trainer.answers(split) for split in ("validation", "test")}
    for split, found in ((split, one.evaluation()) for split, one in answers.items()):
        row |= {f"{split}_loss": found.loss, **{f"{split}_{name}": value for name, value in found.metrics.items()}}
    if not np.isfinite([row["validation_loss"], row["test_loss"]]).all():
        raise Diverged(step)
    speed = {"images_per_second": examples / trained, "input_share": trainer.waited / trained}
    return Evaluated({**row, "timing": {"seconds": time.perf_counter() - began, **speed}}, answers)


def finite(state: State) -> State:
    """`state`, which holds neither NaN nor infinity. Raises Diverged."""
    if not all(np.isfinite(array).all() for array in state.arrays()):
        raise Diverged(state.step)
    return state
