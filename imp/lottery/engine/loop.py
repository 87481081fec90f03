"""The trainer: one compiled network, driven step by step from the host."""

import contextlib
import copy
import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial

import keras
import numpy as np
import tensorflow as tf

from lottery.base import environment, plugins
from lottery.base.errors import InputError
from lottery.engine import answers, devices, foreign, models, whitening
from lottery.engine.answers import Answers, Evaluation
from lottery.engine.feed import Feed
from lottery.engine.models.fingerprint import fingerprint
from lottery.engine.optimizers import masked, weight_of
from lottery.engine.step import Step
from lottery.engine.tasks import choice
from lottery.engine.tasks.classification import check_logits
from lottery.experiment import schedules
from lottery.experiment.recipe import Recipe
from lottery.experiment.schedules import Rates
from lottery.networks.shrinking import shrunk, slices
from lottery.pruning import masks
from lottery.pruning.channels import Channels
from lottery.pruning.slices import Slices, expanded, sliced
from lottery.pruning.state import Arrays
from lottery.rundir import store

CALL_SECONDS = 0.5
PROBED = 64  # training examples, by whose answers a network is found to be constant
ROUNDING = 1e-5  # of the largest output: what rounding may make of equal answers

Maskable = Callable[[str, tuple[int, ...]], bool]


class Diverged(Exception):
    """The loss or a weight is no longer finite, or float16 no longer holds the gradient; `step` is where that was seen."""

    def __init__(self, step: int):
        super().__init__(
            f"the loss was not finite at step {step}: lower train.learning_rate, lengthen train.warmup, or set "
            "train.clip_norm (to 1.0, say)"
        )
        self.step = step


class Trainer:
    """One compiled network that any state and any mask can be put into.

    `make_feed` is told the strategy that the network is trained under. The step selects the gradients of the trainable
    variables that `maskable` (path, shape) accepts by the current mask; of the others it knows no mask at all. `maker` says
    versions and the kind of device. A step trains a `bundle` of so many, this one at its `place`. `waited` counts the seconds
    that the device has stood still for want of examples."""

    def __init__(
        self,
        recipe: Recipe,
        names: Sequence[str],
        make_feed: Callable[[tf.distribute.Strategy], Feed],
        maskable: Maskable = lambda path, shape: False,
    ):
        self.recipe, self.train, self.names = recipe, recipe.train, names
        self.bundle, self.place = 1, 0
        if self.train.batch % len(names):
            raise InputError(f"train.batch {self.train.batch} does not divide among {len(names)} devices: change it")
        self.maker, self.gpus = environment.maker(devices.kind(names)), 0 if devices.on_cpu(names) else len(names)
        self.strategy = devices.strategy(names)
        self.replicas = int(self.strategy.num_replicas_in_sync)
        self.feed = make_feed(self.strategy)
        self.steps_per_epoch = self.feed.counts["train"] // self.train.batch
        self.task = choice.make(recipe, self.feed.manifest)
        with self.strategy.scope(), models.policy(self.train.precision):
            network = models.build(recipe.model, self.task.signature)
            self.xla = devices.uses_xla(recipe, names, network)
        self._compile(network, maskable, {})
        if plugins.is_own(recipe.model.name) and recipe.task == "classification":
            check_logits(recipe.model.name, self.model, self._outputs(self.task.inputs(self.feed.first_batch(PROBED))))
        if plugins.is_own(recipe.task):
            choice.check(self.task, self.feed.first_batch(PROBED), self._outputs, self.model.variable_dtype)

    def _compile(self, network: keras.Model, maskable: Maskable, parts: Slices) -> None:
        """From here on train `network`, whose variables are `parts` of those that states and masks have."""
        self.model, self._parts = network, parts
        self._weights = {variable.path: variable for variable in network.trainable_variables}
        self._statistics = {variable.path: variable for variable in network.non_trainable_variables}
        with self.strategy.scope(), models.policy(self.train.precision):
            self.masks = {
                path: tf.Variable(tf.ones(variable.shape, tf.bool), trainable=False)
                for path, variable in self._weights.items()
                if maskable(path, tuple(variable.shape))
            }
            self._step = Step(self.recipe, self.strategy, self.feed, self.task, network, self.masks, self.xla)
        self._optimizer = self._step.optimizer.state | (self._step.scale.state if self._step.scale else {})
        self._covered = list(self.masks)  # those that the mask which was loaded covers
        self._fresh_optimizer, variables = models.arrays(self._optimizer), self._weights | self._statistics
        self._averaged = {path: variable for path, variable in variables.items() if f"ema/{path}" in self._optimizer}
        self._steps_per_call = 1
        self.waited = 0.0

    def without(self, channels: Channels, kept: np.ndarray) -> "Trainer":
        """A trainer of this network with only the channels that are `kept`, as for `shrunk`. States and masks have the full
        shapes all the same: 0 and pruned where channels went. It cannot change its mask. Raises InputError as `shrunk` does."""
        trainer = copy.copy(self)
        trainer.origins = self.origins
        with self.strategy.scope(), models.policy(self.train.precision):
            network = shrunk(self.model, channels, kept)
        trainer._compile(network, lambda path, shape: path in self.masks, slices(self.model, channels, kept))
        return trainer

    @cached_property
    def origins(self) -> dict[str, str]:
        """What tells its examples (`records`) and its network (`network`) from any others."""
        return {"records": self.feed.manifest.digest, "network": fingerprint(self.model, self.task.signature)}

    def state(self, step: int) -> store.State:
        """A copy of everything that training on from `step` needs."""
        weights, statistics, optimizer = map(models.arrays, (self._weights, self._statistics, self._optimizer))
        whole = expanded(weights, self._parts), expanded(statistics, self._parts), expanded(optimizer, self._parts, weight_of)
        return store.State(step, *whole)

    def drawn(self, seed: int) -> store.State:
        """A freshly drawn network at step 0, a function of the recipe, `seed` and, where it whitens its images, of those. Its
        optimizer state is left empty."""
        state = models.initial_weights(self.recipe.model, self.task.signature, seed)
        if whitening.PATH in state.statistics:
            state.statistics[whitening.PATH] = self._whitening
        return state

    def begun(self, seed: int) -> store.State:
        """What a dense training begins with: a freshly drawn network, but for what is `given`. Raises InputError as that."""
        state, given = self.drawn(seed), self.given
        known = {path: np.where(np.isnan(array), state.weights[path], array) for path, array in given.weights.items()}
        return dataclasses.replace(state, weights=state.weights | known, statistics=state.statistics | given.statistics)

    @cached_property
    def given(self) -> foreign.Loaded:
        """What the file of `model.weights` holds, if one is named. Raises InputError where it is not of this network."""
        model = self.recipe.model
        if not model.weights:
            return foreign.Loaded({}, {}, [])
        return foreign.load(model.weights_file, model, self.feed.manifest.shape, self.state(0))

    @cached_property
    def _whitening(self) -> np.ndarray:
        return whitening.kernel(self.feed.first_batch(whitening.IMAGES)["image"].numpy())

    def mask(self) -> masks.Bits:
        """A copy of the current mask, of the variables that the one loaded covers."""
        return expanded({path: self.masks[path].numpy() for path in self._covered}, self._parts)

    def load(self, state: store.State, mask: masks.Bits | None = None) -> None:
        """Put `state` and `mask` into the live variables, zeroing what the mask prunes in weights and optimizer state. An
        empty optimizer state means a fresh one; averages then begin at the weights and statistics. Raises InputError when a
        variable is missing, unknown or of another shape, and when the mask covers one that is not maskable."""
        mask = sliced(mask or {}, self._parts)
        if unknown := mask.keys() - self.masks.keys():
            raise InputError(f"the mask covers {min(unknown)}, which this network does not prune: take thresholds again")
        weights, statistics = sliced(state.weights, self._parts), sliced(state.statistics, self._parts)
        models.assign(self._weights, masks.apply(mask, weights))
        models.assign(self._statistics, statistics)
        optimizer, raw = sliced(state.optimizer, self._parts, weight_of), weights | statistics
        if not optimizer:
            optimizer = self._fresh_optimizer | {f"ema/{path}": raw[path] for path in self._averaged}
        owners = {name: mask[weight_of(name)] for name in optimizer if weight_of(name) in mask}
        models.assign(self._optimizer, masks.apply(owners, optimizer))
        for path, variable in self.masks.items():
            variable.assign(mask.get(path, np.ones(variable.shape, bool)))
        self._covered = [path for path in self.masks if path in mask]

    def prunable(self) -> Arrays:
        """A copy of the weights that the mask covers."""
        return {path: self._weights[path].numpy() for path in self._covered}

    def change_mask(self, mask: masks.Bits, weights: Arrays) -> None:
        """Put `mask` in place of the current one, and `weights` (both of the variables that it covers) in place of the current
        ones. What it prunes becomes zero there, in the optimizer's state and in averages."""
        self._change({path: (mask[path], weights[path]) for path in self._covered})

    @cached_property
    def _change(self) -> Callable[[dict[str, tuple[np.ndarray, np.ndarray]]], None]:
        owned = {path: [one for name, one in self._optimizer.items() if weight_of(name) == path] for path in self.masks}

        def change(given: dict[str, tuple[tf.Tensor, tf.Tensor]]) -> None:
            for path, (mask, weights) in given.items():
                self.masks[path].assign(mask)
                self._weights[path].assign(masked(weights, mask))
                for variable in owned[path]:
                    variable.assign(masked(variable.value(), mask))

        return tf.function(change, autograph=False)

    def steps(self, first: int, last: int, order_seed: int, rates: Rates | None = None) -> Iterator[np.ndarray]:
        """Take optimizer steps `first` .. `last` - 1, all within one epoch, at the schedule's learning rates, or at `rates`.
        Yields after each call the figures of the steps taken (float64, [steps, 3], see `Step`). Raises Diverged."""
        rates = rates or partial(schedules.rates, self.train, self.steps_per_epoch)
        epoch, offset = divmod(first, self.steps_per_epoch)
        began = time.perf_counter()
        batches = self.feed.epoch(order_seed, epoch, self.train.batch, offset)
        while first < last:
            rows, draws = batches.take(min(self._steps_per_call, last - first))
            fed = time.perf_counter()
            figures = self._step.steps(rows, draws, rates(first, len(rows[0]))).numpy().astype(np.float64)
            self._adapt(len(figures), time.perf_counter() - fed)
            self.waited += fed - began
            finite = np.isfinite(figures).all(axis=1)
            if not finite.all():
                raise Diverged(first + int(np.argmin(finite)))
            first += len(figures)
            yield figures
            began = time.perf_counter()

    def dense_gradients(self, step: int, order_seed: int) -> tuple[np.ndarray, Arrays]:
        """Spend optimizer step `step` on looking: its examples go forward and backward, BatchNorm's statistics move, no weight
        does. Returns the step's figures (float64, [1, 3], see `Step`) and the gradient of the mean loss by every weight that a
        mask may cover, kept or not (path -> array), before clipping and decay. Raises Diverged."""
        epoch, offset = divmod(step, self.steps_per_epoch)
        rows, draws = self.feed.epoch(order_seed, epoch, self.train.batch, offset).take(1)
        figures, gradients = self._step.dense_gradients(rows, draws)
        if not np.isfinite(figures).all():
            raise Diverged(step)
        return figures.numpy().astype(np.float64), {path: one.numpy() for path, one in gradients.items()}

    def settle(self, order_seed: int, most: int | None = None) -> Iterator[np.ndarray]:
        """Replace BatchNorm's moving statistics by the means of those of all batches of an epoch, or of the first ones with at
        least `most` examples, in training mode. Averages and the optimizer's state begin anew. Yields what `steps` does; no
        weight moves."""
        batches, done = self.feed.epoch(order_seed, 0, self.train.batch), 0
        count = min(self.steps_per_epoch, math.ceil((most or sys.maxsize) / self.train.batch))
        while done < count:
            rows, draws = batches.take(min(self._steps_per_call, count - done))
            numbers = np.arange(done + 1, done + 1 + len(rows[0]), dtype=np.float32)
            began = time.perf_counter()
            figures = self._step.settlings(rows, draws, numbers).numpy().astype(np.float64)
            self._adapt(len(figures), time.perf_counter() - began)
            done += len(figures)
            yield figures
        self.load(dataclasses.replace(self.state(0), optimizer={}), self.mask())

    def advance(self, first: int, last: int, order_seed: int) -> np.ndarray:
        """All that `steps` yields from `first` to `last`, of one epoch or several, in one array."""
        ends = [*range((first // self.steps_per_epoch + 1) * self.steps_per_epoch, last, self.steps_per_epoch), last]
        stretches = zip([first, *ends], ends, strict=False)
        return np.concatenate([figures for begin, end in stretches for figures in self.steps(begin, end, order_seed)])

    def evaluate(self, split: str, averaged: bool = True, most: int | None = None) -> Evaluation:
        """Loss and metrics over all of `split`, or its first `most` examples; with `train.ema`, of the averaged weights unless
        told otherwise."""
        return self.answers(split, averaged, most).evaluation()

    def answers(self, split: str, averaged: bool = True, most: int | None = None) -> Answers:
        """What the network answers to each example of `split`, or its first `most`. What pads the last batch is left out."""
        count, batch = min(self.feed.counts[split], most or sys.maxsize), self._step.evaluated
        sweep = self.feed.sweep(split, batch)
        figures = []
        with self._averages() if averaged else contextlib.nullcontext():
            while sweep.position * batch < count:
                rows, _ = sweep.take(min(self._steps_per_call, -(-count // batch) - sweep.position))
                figures.append(self._step.evaluations(rows).numpy())
        return answers.of_figures(self.task, np.concatenate(figures).reshape(-1, answers.width(self.task))[:count])

    def is_constant(self) -> bool:
        """Whether the network, by its raw weights, gives every example the same answer: nothing gets through any more."""
        inputs = self.task.inputs(self.feed.first_batch(PROBED))
        outputs = tf.cast(self._outputs(inputs), tf.float32).numpy()
        return bool(np.ptp(outputs, axis=0).max() <= ROUNDING * np.abs(outputs).max())

    def _outputs(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.model(inputs, training=False)

    @contextlib.contextmanager
    def _averages(self) -> Iterator[None]:
        """The averaged weights and statistics, where there are any, in place of the raw ones."""
        raw = models.arrays(self._averaged)
        models.assign(self._averaged, {path: np.asarray(self._optimizer[f"ema/{path}"]) for path in raw})
        try:
            yield
        finally:
            models.assign(self._averaged, raw)

    def _adapt(self, count: int, seconds: float) -> None:
        """Let a call last about `CALL_SECONDS`, growing no more than eightfold at once (the first call also compiles)."""
        fitting = int(count * CALL_SECONDS / max(seconds, 1e-6))
        self._steps_per_call = max(1, min(fitting, 8 * count))
