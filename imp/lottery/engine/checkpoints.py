"""Checkpoints: a network under way, saved in the middle of an epoch too."""

from pathlib import Path
from typing import NamedTuple

from data_prep.errors import InputError
from lottery.engine.events import Progress
from lottery.rundir import store


class Checkpoint(NamedTuple):
    """How far a training has come. `replicas` of the network were trained, compiled by `xla` or not: on others the bits would
    change. `journal` is the seal of the last row that was written before."""

    progress: Progress
    replicas: int
    xla: bool
    journal: str


def save(path: Path, checkpoint: Checkpoint) -> None:
    progress = checkpoint.progress
    groups = {**store.groups(progress.state), "since_evaluation": {"figures": progress.figures}}
    attributes = {name: getattr(checkpoint, name) for name in ("replicas", "xla", "journal")}
    store.save(path, groups, {"step": progress.state.step, "seconds": progress.seconds, **attributes})


def load(path: Path) -> Checkpoint:
    """Raises InputError as `store.load` does, and when the file is something else, such as a snapshot."""
    groups, attributes = store.load(path)
    if "since_evaluation" not in groups or "journal" not in attributes:
        raise InputError(f"{path} is no checkpoint: remove it and run its stage again")
    figures, seconds = groups["since_evaluation"]["figures"], float(attributes["seconds"])
    progress = Progress(store.as_state(groups, attributes), figures, seconds)
    return Checkpoint(progress, int(attributes["replicas"]), bool(attributes["xla"]), str(attributes["journal"]))
