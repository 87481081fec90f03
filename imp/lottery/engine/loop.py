"""The training loop: one compiled network, driven step by step from the host."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import keras
import numpy as np
import tensorflow as tf

from data_prep.errors import InputError
from lottery import environment, masks, schedules, store
from lottery.engine import devices, models, precision, whitening
from lottery.engine.augment import normalise
from lottery.engine.feed import Feed
from lottery.engine.models.fingerprint import fingerprint
from lottery.engine.optimizers import Optimizer, slot, weight_of
from lottery.engine.step import Step, moving_statistics
from lottery.recipe import Recipe

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
            self.optimizer = Optimizer(self.train, self.model.trainable_variables, moving_statistics(self.model))
            scale = precision.LossScale() if self.train.precision == "mixed_float16" else None
            self.masks = {
                variable.path: tf.Variable(tf.ones(variable.shape, tf.bool), trainable=False)
                for variable in self.model.trainable_variables
                if maskable(variable.path, tuple(variable.shape))
            }
            self._step = Step(recipe, self.strategy, self.feed, self.model, self.optimizer, self.masks, scale, self.xla)
        self._slots = {**self.optimizer.slots, **(scale.slots if scale else {})}
        self._fresh_slots = _arrays(self._slots)
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
        return store.State(
            step,
            models.arrays(self.model.trainable_variables),
            models.arrays(self.model.non_trainable_variables),
            _arrays(self._slots),
        )

    def drawn(self, seed: int) -> store.State:
        """A freshly drawn network at step 0, a function of the recipe, `seed` and, where it whitens its images, of those. Slots
        are left empty."""
        feed = self.feed
        state = models.initial_weights(self._network, feed.size, feed.classes, seed, feed.channels)
        if whitening.PATH in state.statistics:
            state.statistics[whitening.PATH] = self._whitening
        return state

    @cached_property
    def _whitening(self) -> np.ndarray:
        return whitening.kernel(normalise(self.feed.first_images(whitening.IMAGES), self.feed.data).numpy())

    def load(self, state: store.State, mask: masks.Mask | None = None) -> None:
        """Put `state` and `mask` into the live variables, zeroing what the mask prunes in weights and slots.

        Empty slots mean fresh ones; an average then begins at the weights and statistics. Raises InputError when a variable is
        missing, unknown or of another shape, and when the mask covers one that is not maskable.
        """
        mask = mask or {}
        if unknown := mask.keys() - self.masks.keys():
            raise InputError(f"the mask covers {min(unknown)}, which this network does not prune: take thresholds again")
        _assign(_by_path(self.model.trainable_variables), masks.apply(mask, state.weights))
        _assign(_by_path(self.model.non_trainable_variables), state.statistics)
        slots = state.slots or self._begun_slots(state)
        owners = {name: mask[weight_of(name)] for name in slots if weight_of(name) in mask}
        _assign(self._slots, masks.apply(owners, slots))
        for path, variable in self.masks.items():
            variable.assign(mask.get(path, np.ones(variable.shape, bool)))

    def steps(self, first: int, last: int, order_seed: int, rate: float | None = None) -> Iterator[np.ndarray]:
        """Take optimizer steps `first` .. `last` - 1, all within one epoch, some at a time, until nobody asks for more; at the
        schedule's learning rates, or at `rate`.

        Yields after each call (half a second at most), what `Step` finds, by step taken (float64, [steps, 3]).
        Raises Diverged.
        """
        epoch, offset = divmod(first, self.steps_per_epoch)
        began = time.perf_counter()
        batches = self.feed.epoch(order_seed, epoch, self.train.batch, offset)
        while first < last:
            rows, draws = batches.take(min(self._steps_per_call, last - first))
            fed = time.perf_counter()
            rates = schedules.rates(self.train, self.steps_per_epoch, first, len(rows[0]))
            if rate is not None:
                rates = np.full_like(rates, rate)
            with self.marking("steps"):
                sums = self._step.steps(rows, draws, rates).numpy().astype(np.float64)
            self._adapt(len(sums), time.perf_counter() - fed)
            self.waited += fed - began
            _check(sums, first)
            first += len(sums)
            yield sums
            began = time.perf_counter()

    def advance(self, first: int, last: int, order_seed: int) -> np.ndarray:
        """All that `steps` yields from `first` to `last`, of one epoch or several, in one array."""
        stretches = self.by_epoch(first, last)
        return np.concatenate([found for begin, end in stretches for found in self.steps(begin, end, order_seed)])

    def by_epoch(self, step: int, last: int) -> Iterator[tuple[int, int]]:
        """The stretches from `step` to `last`, cut where epochs end."""
        while step < last:
            end = min((step // self.steps_per_epoch + 1) * self.steps_per_epoch, last)
            yield step, end
            step = end

    def evaluate(self, split: str, averaged: bool = True) -> Evaluation:
        """Loss and accuracies over all of `split`; the last batch is padded, and padding weighs nothing. With `train.ema`,
        those of the averaged weights and statistics, unless told otherwise."""
        count, batch = self.feed.counts[split], self._step.evaluated
        sweep = self.feed.sweep(split, batch)
        found = []
        weights = self._averaged() if averaged and self.train.ema else contextlib.nullcontext()
        with self.marking("evaluation"), weights:
            while sweep.position * batch < count:
                rows, extras = sweep.take(min(self._steps_per_call, -(-count // batch) - sweep.position))
                found.append(self._step.evaluations(rows, extras["weights"]).numpy().astype(np.float64))
        loss, right, right_in_top = (np.concatenate(found).sum(axis=0) / count).tolist()
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
        """The averaged weights and statistics in place of the raw ones."""
        there = {**_by_path(self.model.trainable_variables), **_by_path(self.model.non_trainable_variables)}
        variables = {path: variable for path, variable in there.items() if slot("ema", path) in self._slots}
        raw = models.arrays(list(variables.values()))
        _assign(variables, {path: np.asarray(self._slots[slot("ema", path)]) for path in raw})
        try:
            yield
        finally:
            _assign(variables, raw)

    def _begun_slots(self, state: store.State) -> store.Arrays:
        """Fresh slots, in which averages begin at `state`."""
        arrays = state.weights | state.statistics
        averages = {name: arrays[weight_of(name)] for name in self._slots if name.startswith(slot("ema", ""))}
        return self._fresh_slots | averages

    def _adapt(self, count: int, seconds: float) -> None:
        """Let a call last about `CALL_SECONDS`, growing no more than eightfold at once (the first call also compiles)."""
        wanted = int(count * CALL_SECONDS / max(seconds, 1e-6))
        self._steps_per_call = max(1, min(wanted, 8 * count))


def _check(sums: np.ndarray, first: int) -> None:
    """Raise Diverged at the first step that did not go well; `first` is the number of the first of these steps."""
    finite = np.isfinite(sums).all(axis=1)
    if not finite.all():
        raise Diverged(first + int(np.argmin(finite)))


def _arrays(variables: dict[str, tf.Variable]) -> store.Arrays:
    return {name: np.asarray(variable) for name, variable in variables.items()}


def _by_path(variables: list[keras.Variable]) -> dict[str, keras.Variable]:
    return {variable.path: variable for variable in variables}


def _assign(variables: dict, values: store.Arrays) -> None:
    if variables.keys() != values.keys():
        name = min(variables.keys() ^ values.keys())
        raise InputError(f"the saved network is not this one: {name} is in only one of them")
    for name, variable in variables.items():
        if tuple(variable.shape) != values[name].shape:
            raise InputError(f"the saved {name} has shape {values[name].shape}, not {tuple(variable.shape)}")
        variable.assign(values[name])
