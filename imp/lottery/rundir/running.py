"""How a training is doing while it runs: its process keeps this in the lock of the network's folder, as a line of JSON."""

import pydantic

from lottery.rundir.records import Values


class Running(Values):
    """How far a training has come: `step` of `last`. Loss and deciding metric (0 .. 1) are means over the training examples of
    about a second. The speed is a mean since the process began, evaluations included; None at first."""

    step: int
    last: int
    train_loss: float | None
    train_metric: float | None
    steps_per_second: float | None

    @property
    def seconds_left(self) -> float | None:
        return (self.last - self.step) / self.steps_per_second if self.steps_per_second else None


def read(note: str) -> Running | None:
    """What the note of a lock says; None where it says something else."""
    try:
        return Running.model_validate_json(note)
    except pydantic.ValidationError:
        return None
