"""The parts of a training step: each operation is named after the one that it belongs to, so that a trace can tell."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

PARTS = ("input", "forward", "backward", "update", "mask")


@contextlib.contextmanager
def part(name: str) -> Iterator[None]:
    """Operations made within, or in a function that this decorates, belong to `name`, one of `PARTS`, if not to an inner one.
    A function compiled by XLA needs its own: it does not know where it is called."""
    with tf.name_scope(f"step.{name}"):
        yield
