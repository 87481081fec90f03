"""Training as a stream of what was reached. Who listens saves files, draws a curve, or measures."""

import time
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from lottery.engine.answers import Answers
from lottery.engine.checkpoints import NOTHING
from lottery.engine.loop import Diverged, Trainer
from lottery.engine.updates import MaskUpdates
from lottery.experiment.schedules import Rates


class Reached(NamedTuple):
    """A compiled call has taken steps, to `step`: their figures (float64, [steps, 3], see `Step`), and of all steps since the
    last evaluation the figures and the seconds. Where the splits were `evaluated`: the row of metrics.jsonl
    (docs/run-directory.md), and the answers of each split."""

    step: int
    figures: np.ndarray
    since: np.ndarray
    seconds: float
    evaluated: tuple[dict[str, Any], dict[str, Answers]] | None = None


def run(
    trainer: Trainer,
    first_step: int,
    last_step: int,
    order_seed: int,
    stops: Collection[int] = (),
    rates: Rates | None = None,
    updates: MaskUpdates | None = None,
    figures: np.ndarray = NOTHING,
    seconds: float = 0.0,
) -> Iterator[Reached]:
    """Train what `trainer` has loaded from `first_step` to `last_step`, at the schedule's learning rates or at `rates`.

    The splits are evaluated as often as the recipe says, and at the end; `figures` and `seconds` are those of earlier steps,
    since the last evaluation. A call ends at each of `stops`, and the state there is that before `updates` change the mask. A
    training of no steps, which begins with the mean of networks, gives this statistics of its own; its evaluation comes
    alone, without figures. Raises Diverged."""
    step, since = first_step, figures
    every = max(1, trainer.train.evaluate.step(trainer.steps_per_epoch))
    ends = {last_step, *range(0, last_step, trainer.steps_per_epoch), *range(0, last_step, every), *stops}
    ends |= set(updates.steps) if updates else set()
    began, trainer.waited = time.perf_counter() - seconds, 0.0
    if first_step == last_step:
        for taken in trainer.settle(order_seed):
            since = np.concatenate([since, taken])
            yield Reached(step, taken, since, time.perf_counter() - began)
        yield _evaluated(trainer, step, NOTHING, since, began)
    for end in sorted(end for end in ends if step < end <= last_step):
        for taken in _steps(trainer, step, end, order_seed, rates, updates):
            step += len(taken)
            since = np.concatenate([since, taken])
            if step % every and step < last_step:
                yield Reached(step, taken, since, time.perf_counter() - began)
            else:
                yield _evaluated(trainer, step, taken, since, began)
                since, began, trainer.waited = NOTHING, time.perf_counter(), 0.0


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


def _evaluated(trainer: Trainer, step: int, taken: np.ndarray, since: np.ndarray, began: float) -> Reached:
    """The `train_...` figures are means over the figures of the steps `since` `began`, the others over whole splits."""
    trained = time.perf_counter() - began
    examples = len(since) * trainer.train.batch
    losses, reached, overflows = since.T
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
    row["timing"] = {"seconds": time.perf_counter() - began, **speed}
    return Reached(step, taken, NOTHING, 0.0, (row, answers))
