"""Checkpoints: a network under way, saved in the middle of an epoch too, and when that is due."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from data_prep.errors import InputError
from lottery import store
from lottery.recipe import Train

SLOW_DISK = 100e6  # bytes a second, of which the first checkpoint's time is guessed


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A network at a step, and of the epoch that it is in: what its steps found (float64, [steps, 3], see `Step`), and the
    seconds that they took. `replicas` of it were trained, compiled by `xla` or not: on others the bits would change. `journal`
    is the seal of the last row that was written before."""

    state: store.State
    found: np.ndarray
    seconds: float
    replicas: int
    xla: bool
    journal: str


def save(path: Path, checkpoint: Checkpoint) -> None:
    groups = {**store.groups(checkpoint.state), "epoch": {"found": checkpoint.found}}
    attributes = {name: getattr(checkpoint, name) for name in ("seconds", "replicas", "xla", "journal")}
    store.save(path, groups, {"step": checkpoint.state.step, **attributes})


def load(path: Path) -> Checkpoint:
    """Raises InputError as `store.load` does, and when the file is something else, such as a snapshot."""
    groups, attributes = store.load(path)
    if "epoch" not in groups or "journal" not in attributes:
        raise InputError(f"{path} is no checkpoint: remove it and run its stage again")
    state, found = store.as_state(groups, attributes), groups["epoch"]["found"]
    seconds, replicas, xla = float(attributes["seconds"]), int(attributes["replicas"]), bool(attributes["xla"])
    return Checkpoint(state, found, seconds, replicas, xla, str(attributes["journal"]))


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
