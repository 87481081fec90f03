"""Train one network in its folder: from a given state to the end of the schedule, resumable, ending in result.json."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from data_prep import files, records
from lottery import capacity, journal, masks, store
from lottery.feed import Feed
from lottery.loop import Diverged, Maskable, Trainer, set_up_tensorflow
from lottery.memory import MemoryFeed
from lottery.progress import Reporter
from lottery.recipe import Data
from lottery.run import Network, Run
from lottery.stream import StreamFeed
from lottery.tracking import Tracker


@dataclasses.dataclass(frozen=True)
class Task:
    """What to train: `start()` gives the state to begin from (its slots empty for fresh ones), `mask` what it may use.

    `order_seed` seeds data order and augmentation; `snapshots` (step -> file) are saved on the way, the last step's
    among them or else in the folder's `final`; `record` goes into the result as it is.
    """

    title: str
    start: Callable[[], store.State]
    last_step: int
    order_seed: int
    record: Mapping[str, Any]
    mask: masks.Mask = dataclasses.field(default_factory=dict)
    snapshots: Mapping[int, Path] = dataclasses.field(default_factory=dict)


def train(trainer: Trainer, task: Task, network: Network, reporter: Reporter, track: Callable[[], Tracker]) -> dict[str, Any]:
    """Train `task` and return the result, which is also written; the caller holds the folder's lock.

    Goes on from the checkpoint that a killed process left; the files come out the same. A network whose loss is not finite
    gets the status `diverged` and its step.
    """
    for folder in {path.parent for path in task.snapshots.values()}:
        files.remove_stale(folder)
    state = _start(trainer, task, network)
    rows = journal.rewind(network.metrics, state.step)
    tracker = track()
    outcome: dict[str, Any] = {"status": "stopped"}
    try:
        with reporter.counting(task.title, task.last_step - state.step) as progress:
            _epochs(trainer, task, network, rows, state.step, progress, tracker)
        state = trainer.state(task.last_step)
        if task.last_step not in task.snapshots:
            store.save_state(network.final, state)
        outcome = {"status": "done", **_summary(rows, state)}
    except Diverged as error:
        outcome = {"status": "diverged", "reason": str(error), "step": error.step}
    finally:
        tracker.finish(outcome)
    timing = {"seconds": sum(row["timing"]["seconds"] for row in rows)}
    result = {**outcome, "replicas": trainer.replicas, **task.record, "timing": timing}
    network.checkpoint.unlink(missing_ok=True)
    files.write_json(network.result, result)
    return result


def fill_in(trainer: Trainer, task: Task, reporter: Reporter) -> None:
    """Make the snapshots that a finished training lacks, training on from the nearest earlier one (or from the start):
    the same steps give the same bits. The caller holds the folder's lock."""
    for step in sorted(step for step, path in task.snapshots.items() if not path.exists()):
        reporter.say(f"{task.title}: adding the snapshot of step {step}")
        saved = [earlier for earlier, path in task.snapshots.items() if earlier < step and path.exists()]
        trainer.load(store.load_state(task.snapshots[max(saved)]) if saved else task.start(), task.mask)
        for first, last in _by_epoch(trainer, max(saved, default=0), step):
            trainer.advance(first, last, task.order_seed)
        store.save_state(task.snapshots[step], trainer.state(step))


def _by_epoch(trainer: Trainer, step: int, last: int) -> Iterator[tuple[int, int]]:
    """The stretches from `step` to `last`, cut where epochs end."""
    while step < last:
        end = min((step // trainer.steps_per_epoch + 1) * trainer.steps_per_epoch, last)
        yield step, end
        step = end


def make_feed(
    folder: Path, manifest: records.Manifest, data: Data, strategy: tf.distribute.Strategy, devices: Sequence[str]
) -> Feed:
    """The feed that `data.feed` names; `auto` is in memory where the images fit the budget: on the devices, or else on the
    host. Raises InputError when a record is damaged, and when even streaming needs more than there is."""
    records.check_lengths(folder, manifest)
    on_device = manifest.bytes <= capacity.device_budget(data.budget, devices)
    fits = on_device or manifest.bytes <= capacity.host_budget(data.budget)
    if data.feed == "memory" or (data.feed == "auto" and fits):
        return MemoryFeed(folder, manifest, data, strategy, on_host=devices[0].startswith("CPU") or not on_device)
    return StreamFeed(folder, manifest, data, devices)


def make_trainer(run: Run, maskable: Maskable = lambda path, shape: False) -> Trainer:
    """The compiled network of `run`, with its data set resident; `maskable` as for `Trainer`."""
    devices = set_up_tensorflow(run.recipe.train)
    folder, manifest = run.records(), run.manifest()
    return Trainer(
        run.recipe, devices, lambda strategy: make_feed(folder, manifest, run.recipe.data, strategy, devices), maskable
    )


def _start(trainer: Trainer, task: Task, network: Network) -> store.State:
    resumed = network.checkpoint.exists()
    state = store.load_state(network.checkpoint) if resumed else task.start()
    trainer.load(state, task.mask)
    if not resumed and state.step in task.snapshots:
        store.save_state(task.snapshots[state.step], trainer.state(state.step))
    return state


def _epochs(
    trainer: Trainer,
    task: Task,
    network: Network,
    rows: list[journal.Row],
    step: int,
    progress: Callable[[int], None],
    tracker: Tracker,
) -> None:
    """Train from `step` to the end, adding a row per epoch to `rows`, the journal and the tracker."""
    saved = time.monotonic()
    for first, end in _by_epoch(trainer, step, task.last_step):
        began = time.perf_counter()
        losses, right = _epoch(trainer, task, first, end, progress)
        row = _row(trainer, end, losses, right, time.perf_counter() - began)
        journal.append(network.metrics, row)
        tracker.log(row)
        rows.append(row)
        if end < task.last_step and time.monotonic() - saved >= trainer.train.checkpoint_seconds:
            store.save_state(network.checkpoint, trainer.state(end))
            saved = time.monotonic()


def _epoch(trainer: Trainer, task: Task, step: int, end: int, progress: Callable[[int], None]) -> tuple[np.ndarray, np.ndarray]:
    """Train from `step` to `end`, the end of its epoch, saving the snapshots between."""
    losses, right = [], []
    for stop in [*sorted(point for point in task.snapshots if step < point < end), end]:
        part = trainer.advance(step, stop, task.order_seed, progress)
        losses.append(part[0])
        right.append(part[1])
        step = stop
        if step in task.snapshots:
            store.save_state(task.snapshots[step], trainer.state(step))
    return np.concatenate(losses), np.concatenate(right)


def _row(trainer: Trainer, step: int, losses: np.ndarray, right: np.ndarray, seconds: float) -> journal.Row:
    """A line of metrics.jsonl: training figures are means over the epoch's steps, the others over whole splits."""
    row: journal.Row = {
        "step": step,
        "epoch": step / trainer.steps_per_epoch,
        "train_loss": float(losses.mean()),
        "train_accuracy": float(right.sum() / (len(right) * trainer.train.batch)),
    }
    for split in ("validation", "test"):
        found = trainer.evaluate(split)
        row |= {f"{split}_loss": found.loss, f"{split}_accuracy": found.accuracy}
    if not np.isfinite([row["validation_loss"], row["test_loss"]]).all():
        raise Diverged(step)
    return row | {"timing": {"seconds": seconds, "images_per_second": len(losses) * trainer.train.batch / seconds}}


def _summary(rows: list[journal.Row], state: store.State) -> dict[str, Any]:
    figures = ("validation_accuracy", "validation_loss", "test_accuracy", "test_loss", "train_loss")
    least = min(rows, key=lambda row: row["validation_loss"])
    zeros = sum(int(array.size - np.count_nonzero(array)) for array in state.weights.values())
    return {
        "step": state.step,
        "final": {name: rows[-1][name] for name in figures},
        "least_validation_loss": {name: least[name] for name in ("step", *figures)},
        "exact_zeros": zeros,
        "trainable_weights": sum(array.size for array in state.weights.values()),
    }
