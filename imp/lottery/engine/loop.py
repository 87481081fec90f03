"""The trainer: one compiled network, driven step by step from the host."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from data_prep.errors import InputError
from lottery.engine import devices, models, precision, whitening
from lottery.engine.augment import normalise
from lottery.engine.feed import Feed
from lottery.engine.models.fingerprint import fingerprint
from lottery.engine.optimizers import Optimizer, entry, weight_of
from lottery.engine.step import Step, moving_statistics
from lottery.experiment import schedules
from lottery.experiment.recipe import Recipe
from lottery.machine import environment
from lottery.pruning import masks
from lottery.rundir import store

CALL_SECONDS = 0.5
PROBED = 64  # training images, by whose answers a network is found to be constant
ROUNDING = 1e-5  # of the largest logit: what rounding may make of equal answers

Maskable = Callable[[str, tuple[int, ...]], bool]


class Diverged(Exception):
    """The loss or a weight is no longer finite, or float16 no longer holds the gradient; `step` is where that was seen."""

    def __init__(self, step: int):
        super().__init__(
            f"the loss was not finite at step {step}: lower train.learning_rate, lengthen train.warmup, or set "
            "train.clip_norm (to 1.0, say)"
        )
        self.step = step


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Mean cross-entropy, top-1 and top-5 accuracy over every image of a split."""

    loss: float
    accuracy: float
    top5: float
    count: int


class Trainer:
    """One compiled network that any state and any mask can be put into.

    `make_feed` is told the strategy that the network is trained under. The step selects the gradients of the trainable
    variables that `maskable` (path, shape) accepts by the current mask; of the others it knows no mask at all.
    `waited` counts the seconds that the device has stood still for want of images. `marking` makes a context, of its name, for
    each compiled call ("steps") and each "evaluation", where a profiler is to see them.
    """

    def __init__(
        self,
        recipe: Recipe,
        names: Sequence[str],
        make_feed: Callable[[tf.distribute.Strategy], Feed],
        maskable: Maskable = lambda path, shape: False,
    ):
        self.train, self._network, self._names = recipe.train, recipe.model, names
        if self.train.batch % len(names):
            raise InputError(f"train.batch {self.train.batch} does not divide among {len(names)} devices: change it")
        self.strategy = devices.strategy(names)
        self.feed = make_feed(self.strategy)
        with self.strategy.scope(), precision.policy(self.train.precision):
            self.model = models.build(recipe.model, self.feed.size, self.feed.classes, self.feed.channels)
            self.xla = devices.uses_xla(recipe, names, self.model)
            optimizer = Optimizer(self.train, self.model.trainable_variables, moving_statistics(self.model))
            scale = precision.LossScale() if self.train.precision == "mixed_float16" else None
            self._weights = {variable.path: variable for variable in self.model.trainable_variables}
            self._statistics = {variable.path: variable for variable in self.model.non_trainable_variables}
            self.masks = {
                path: tf.Variable(tf.ones(variable.shape, tf.bool), trainable=False)
                for path, variable in self._weights.items()
                if maskable(path, tuple(variable.shape))
            }
            self._step = Step(recipe, self.strategy, self.feed, self.model, optimizer, self.masks, scale, self.xla)
        self._optimizer = optimizer.state | (scale.state if scale else {})
        self._fresh_optimizer = models.arrays(self._optimizer)
        self._steps_per_call = 1
        self.waited = 0.0
        self.marking: Callable[[str], contextlib.AbstractContextManager[object]] = contextlib.nullcontext

    @property
    def gpus(self) -> int:
        return 0 if devices.on_cpu(self._names) else len(self._names)

    @cached_property
    def maker(self) -> dict[str, str]:
        """Versions and the kind of device."""
        return environment.maker(devices.kind(self._names))

    @cached_property
    def origins(self) -> dict[str, str]:
        """What tells its images (`records`) and its network (`network`) from any others."""
        return {"records": self.feed.manifest.digest, "network": fingerprint(self.model, self.feed.manifest.shape)}

    @property
    def replicas(self) -> int:
        return int(self.strategy.num_replicas_in_sync)

    @property
    def steps_per_epoch(self) -> int:
        return self.feed.counts["train"] // self.train.batch

    def state(self, step: int) -> store.State:
        """A copy of everything that training on from `step` needs."""
        return store.State(step, *map(models.arrays, (self._weights, self._statistics, self._optimizer)))

    def drawn(self, seed: int) -> store.State:
        """A freshly drawn network at step 0, a function of the recipe, `seed` and, where it whitens its images, of those. Its
        optimizer state is left empty."""
        feed = self.feed
        state = models.initial_weights(self._network, feed.size, feed.classes, seed, feed.channels)
        if whitening.PATH in state.statistics:
            state.statistics[whitening.PATH] = self._whitening
        return state

    @cached_property
    def _whitening(self) -> np.ndarray:
        return whitening.kernel(normalise(self.feed.first_images(whitening.IMAGES), self.feed.data).numpy())

    def load(self, state: store.State, mask: masks.Mask | None = None) -> None:
        """Put `state` and `mask` into the live variables, zeroing what the mask prunes in weights and optimizer state.

        An empty optimizer state means a fresh one; averages then begin at the weights and statistics. Raises InputError when a
        variable is missing, unknown or of another shape, and when the mask covers one that is not maskable.
        """
        mask = mask or {}
        if unknown := mask.keys() - self.masks.keys():
            raise InputError(f"the mask covers {min(unknown)}, which this network does not prune: take thresholds again")
        models.assign(self._weights, masks.apply(mask, state.weights))
        models.assign(self._statistics, state.statistics)
        optimizer = state.optimizer
        if not optimizer:
            averaged = self._averages(state.weights | state.statistics)
            optimizer = self._fresh_optimizer | {entry("ema", path): array for path, array in averaged.items()}
        owners = {name: mask[weight_of(name)] for name in optimizer if weight_of(name) in mask}
        models.assign(self._optimizer, masks.apply(owners, optimizer))
        for path, variable in self.masks.items():
            variable.assign(mask.get(path, np.ones(variable.shape, bool)))

    def steps(self, first: int, last: int, order_seed: int, learning_rate: float | None = None) -> Iterator[np.ndarray]:
        """Take optimizer steps `first` .. `last` - 1, all within one epoch, some at a time, until nobody asks for more; at the
        schedule's learning rates, or at `learning_rate`.

        Yields after each call (half a second at most) the figures of the steps taken (float64, [steps, 3], see `Step`).
        Raises Diverged.
        """
        epoch, offset = divmod(first, self.steps_per_epoch)
        began = time.perf_counter()
        batches = self.feed.epoch(order_seed, epoch, self.train.batch, offset)
        while first < last:
            rows, draws = batches.take(min(self._steps_per_call, last - first))
            fed = time.perf_counter()
            learning_rates = schedules.rates(self.train, self.steps_per_epoch, first, len(rows[0]))
            if learning_rate is not None:
                learning_rates = np.full_like(learning_rates, learning_rate)
            with self.marking("steps"):
                figures = self._step.steps(rows, draws, learning_rates).numpy().astype(np.float64)
            self._adapt(len(figures), time.perf_counter() - fed)
            self.waited += fed - began
            finite = np.isfinite(figures).all(axis=1)
            if not finite.all():
                raise Diverged(first + int(np.argmin(finite)))
            first += len(figures)
            yield figures
            began = time.perf_counter()

    def advance(self, first: int, last: int, order_seed: int) -> np.ndarray:
        """All that `steps` yields from `first` to `last`, of one epoch or several, in one array."""
        ends = [*range((first // self.steps_per_epoch + 1) * self.steps_per_epoch, last, self.steps_per_epoch), last]
        stretches = zip([first, *ends], ends, strict=False)
        return np.concatenate([figures for begin, end in stretches for figures in self.steps(begin, end, order_seed)])

    def evaluate(self, split: str, averaged: bool = True) -> Evaluation:
        """Loss and accuracies over all of `split`; the last batch is padded, and padding weighs nothing. With `train.ema`,
        those of the averaged weights and statistics, unless told otherwise."""
        count, batch = self.feed.counts[split], self._step.evaluated
        sweep = self.feed.sweep(split, batch)
        figures = []
        with self.marking("evaluation"), self._averaged() if averaged else contextlib.nullcontext():
            while sweep.position * batch < count:
                rows, extras = sweep.take(min(self._steps_per_call, -(-count // batch) - sweep.position))
                figures.append(self._step.evaluations(rows, extras["weights"]).numpy().astype(np.float64))
        loss, right, right_in_top = (np.concatenate(figures).sum(axis=0) / count).tolist()
        return Evaluation(loss, right, right_in_top, count)

    def is_constant(self) -> bool:
        """Whether the network, by its raw weights, gives every image the same answer: nothing gets through any more."""
        logits = tf.cast(self.model(self._probe, training=False), tf.float32).numpy()
        return bool(np.ptp(logits, axis=0).max() <= ROUNDING * np.abs(logits).max())

    @cached_property
    def _probe(self) -> tf.Tensor:
        return normalise(self.feed.first_images(PROBED), self.feed.data)

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        """The averaged weights and statistics, where there are any, in place of the raw ones."""
        averages = self._averages(self._weights | self._statistics)
        raw = models.arrays(averages)
        models.assign(averages, {path: np.asarray(self._optimizer[entry("ema", path)]) for path in raw})
        try:
            yield
        finally:
            models.assign(averages, raw)

    def _averages(self, by_path: Mapping[str, Any]) -> dict[str, Any]:
        """Of `by_path`, what is averaged."""
        return {path: value for path, value in by_path.items() if entry("ema", path) in self._optimizer}

    def _adapt(self, count: int, seconds: float) -> None:
        """Let a call last about `CALL_SECONDS`, growing no more than eightfold at once (the first call also compiles)."""
        fitting = int(count * CALL_SECONDS / max(seconds, 1e-6))
        self._steps_per_call = max(1, min(fitting, 8 * count))
