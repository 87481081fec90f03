"""The parts of a training step: each operation is named after the one that it belongs to, so that a trace can tell."""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

PARTS = ("input", "forward", "backward", "update", "mask")

_SCOPE = re.compile(rf"\bstep\.({'|'.join(PARTS)})(?![a-z])")
_GRADIENT = "gradient_tape/"  # where TensorFlow puts what it derives, whichever scope that is asked for in


@contextlib.contextmanager
def part(name: str) -> Iterator[None]:
    """Operations made within, or in a function that this decorates, belong to `name`, one of `PARTS`, if not to an inner one.
    A function compiled by XLA needs its own: it does not know where it is called."""
    with tf.name_scope(f"step.{name}"):
        yield


def part_of(operation: str) -> str | None:
    """Which of `PARTS` the operation of this full name belongs to, if any."""
    if _GRADIENT in operation:
        return "backward"
    parts = _SCOPE.findall(operation)
    return parts[-1] if parts else None
