"""Tasks: what a network learns from examples, by name from a recipe: ours, and a user's own. All that the engine knows of a
task is here; everything else is the same for all of them."""

import abc
import contextlib
from collections.abc import Iterator
from typing import ClassVar

import tensorflow as tf

from data_prep.records import Manifest
from lottery.base.errors import InputError, first_line
from lottery.engine.signature import Signature
from lottery.experiment.recipe import Recipe

Batch = dict[str, tf.Tensor]
"""Examples by what their records hold, [n, ...]: of images `image` (float32, [n, height, width, channels], varied and scaled),
of others each field of the manifest (whole numbers as int32); and `label` (int32, [n])."""


class Task(abc.ABC):
    """What a network learns. `metrics` names what is measured of an example, each a share of 0 .. 1 of which more is better; of
    a split it is the mean over examples. Verdicts, reports and sweeps go by the first one. `predictions.h5` keeps `answers`."""

    metrics: tuple[str, ...]
    outputs: int
    answers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, recipe: Recipe, manifest: Manifest):
        self.recipe, self.manifest = recipe, manifest

    @property
    def signature(self) -> Signature:
        """What the network takes and returns: here images, and `outputs` numbers."""
        return Signature(self.manifest.shape, self.outputs)

    def inputs(self, batch: Batch) -> tf.Tensor:
        """What the network is given of a batch: here the images."""
        return batch["image"]

    @abc.abstractmethod
    def loss(self, batch: Batch, outputs: tf.Tensor) -> tf.Tensor:
        """The loss of each example ([n]) at the network's `outputs` ([n, ...]). That of an example depends on no other one: a
        batch is divided among devices, and those of all tickets of a bundle come at once."""

    def training_loss(self, batch: Batch, outputs: tf.Tensor) -> tf.Tensor:
        """The loss that training minimises, where it is another one."""
        return self.loss(batch, outputs)

    @abc.abstractmethod
    def measures(self, batch: Batch, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Each of `metrics`, and of `answers`, of each example ([n], any dtype)."""

    def deciding(self, batch: Batch, outputs: tf.Tensor) -> tf.Tensor:
        """The first of `metrics`, of each example (float32, [n]), at `outputs` of any dtype."""
        return tf.cast(self.measures(batch, tf.cast(outputs, tf.float32))[self.metrics[0]], tf.float32)


@contextlib.contextmanager
def users_own(name: str) -> Iterator[None]:
    """Code of a user's own task, whose failures are a line for the user (InputError) and not a traceback."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"task: {name} fails: {type(error).__name__}: {first_line(error)}") from error
