"""Checkpoints: a network under way, saved in the middle of an epoch too, and when that is due."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lottery.base.errors import InputError
from lottery.experiment.recipe import Train
from lottery.pruning.state import Arrays
from lottery.rundir import store

SLOW_DISK = 100e6  # bytes a second, from which the first checkpoint's time is guessed
NOTHING = np.empty((0, 3))  # the figures of no steps


class Checkpoint(NamedTuple):
    """How far a training has come: its state; how many `replicas` were trained, by `xla` or not, in a `bundle` of so many; the
    seal of the last row in its `journal`; and of the steps since then the figures (float64, [steps, 3], see `Step`) and the
    seconds. Where the mask changes in training: what its `updates` need to go on."""

    state: store.State
    replicas: int
    xla: bool
    journal: str = ""
    figures: np.ndarray = NOTHING
    seconds: float = 0.0
    updates: Arrays | None = None
    bundle: int = 1


def save(path: Path, saved: Checkpoint) -> None:
    groups = {**store.groups(saved.state), "since_evaluation": {"figures": saved.figures}}
    groups |= {"updates": saved.updates} if saved.updates else {}
    attributes = {name: getattr(saved, name) for name in ("seconds", "replicas", "xla", "journal", "bundle")}
    store.save(path, groups, {"step": saved.state.step, **attributes})


def load(path: Path) -> Checkpoint:
    """Raises InputError as `store.load` does, and when the file is something else, such as a snapshot."""
    groups, found = store.load(path)
    if "since_evaluation" not in groups or "journal" not in found:
        raise InputError(f"{path} is no checkpoint: remove it and run its stage again")
    state, figures = store.as_state(groups, found), groups["since_evaluation"]["figures"]
    made = int(found["replicas"]), bool(found["xla"]), str(found["journal"])
    return Checkpoint(state, *made, figures, float(found["seconds"]), groups.get("updates"), int(found["bundle"]))


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
