"""The training loop: K steps in one compiled call, masks inside the step, on one device or several.

The host plans each step (which images, how augmented, at which learning rate) as small arrays; the compiled function only
carries the plan out. What it does is therefore a function of the step, not of how steps are divided into calls.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from data_prep.errors import InputError
from lottery import masks, models, schedules, store
from lottery.augment import augment, cut_out, normalise
from lottery.feed import Feed, Rows
from lottery.order import Draws
from lottery.recipe import Recipe, Train

CALL_SECONDS = 0.5

Maskable = Callable[[str, tuple[int, ...]], bool]


class Diverged(Exception):
    """The loss on training or validation images is no longer finite; `step` is where that was seen."""

    def __init__(self, step: int):
        super().__init__(f"the loss was not finite at step {step}: lower train.learning_rate or lengthen train.warmup")
        self.step = step


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Mean cross-entropy and top-1 accuracy over every image of a split."""

    loss: float
    accuracy: float
    count: int


def set_up_tensorflow(train: Train) -> list[str]:
    """Threads, determinism and devices, which must be settled before TensorFlow starts. Returns the devices to train on.

    The GPUs this process sees; with `train.devices` = n, the first n of them, or n logical devices where there is none.
    """
    tf.config.threading.set_intra_op_parallelism_threads(train.threads)
    tf.config.threading.set_inter_op_parallelism_threads(len(os.sched_getaffinity(0)))
    tf.config.experimental.enable_op_determinism()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if train.devices > len(gpus):
            raise InputError(f"train.devices is {train.devices}, but this process sees {len(gpus)} GPUs: lower it")
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
        return [f"GPU:{index}" for index in range(train.devices or len(gpus))]
    count = train.devices or 1
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    return [f"CPU:{index}" for index in range(count)]


class Trainer:
    """One compiled network that any state and any mask can be put into.

    `make_feed` is told the strategy that the network is trained under. The step selects the gradients of the trainable
    variables that `maskable` (path, shape) accepts by the current mask; of the others it knows no mask at all.
    """

    def __init__(
        self,
        recipe: Recipe,
        devices: Sequence[str],
        make_feed: Callable[[tf.distribute.Strategy], Feed],
        maskable: Maskable = lambda path, shape: False,
    ):
        self.train, self.data = recipe.train, recipe.data
        if self.train.batch % len(devices):
            raise InputError(f"train.batch {self.train.batch} does not divide among {len(devices)} devices: change it")
        self.strategy = _strategy(devices)
        self.feed = make_feed(self.strategy)
        with self.strategy.scope():
            self.model = models.build(recipe.model, self.feed.size, self.feed.classes)
            self.optimizer = _optimizer(self.train, self.model)
            self.masks = {
                variable.path: tf.Variable(tf.ones(variable.shape, tf.bool), trainable=False)
                for variable in self.model.trainable_variables
                if maskable(variable.path, tuple(variable.shape))
            }
        self._fresh_slots = models.arrays(self._slots())
        batch = self.train.batch
        rows = self.feed.rows_spec(batch)
        self._steps = tf.function(
            self._run_steps, input_signature=[rows, self.feed.draws_spec(batch), tf.TensorSpec([None], tf.float32)]
        )
        self._evaluations = tf.function(self._run_evaluations, input_signature=[rows, tf.TensorSpec([None, batch], tf.float32)])
        self._steps_per_call = 1

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
            models.arrays(self._slots()),
        )

    def load(self, state: store.State, mask: masks.Mask | None = None) -> None:
        """Put `state` and `mask` into the live variables, zeroing what the mask prunes in weights and slots.

        Empty slots mean fresh ones. Raises InputError when a variable is missing, unknown or of another shape, and when
        the mask covers one that is not maskable.
        """
        slots = state.slots or self._fresh_slots
        mask = mask or {}
        if unknown := mask.keys() - self.masks.keys():
            raise InputError(f"the mask covers {min(unknown)}, which this network does not prune: take thresholds again")
        _assign(self.model.trainable_variables, masks.apply(mask, state.weights))
        _assign(self.model.non_trainable_variables, state.statistics)
        _assign(self._slots(), self._masked_slots(mask, slots))
        for path, variable in self.masks.items():
            variable.assign(mask.get(path, np.ones(variable.shape, bool)))

    def advance(
        self, first: int, last: int, order_seed: int, progress: Callable[[int], None] = lambda steps: None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Take optimizer steps `first` .. `last` - 1, all within one epoch.

        Returns the mean loss (float64) and the number of right answers (float64) of each step. Raises Diverged.
        """
        epoch, offset = divmod(first, self.steps_per_epoch)
        batches = self.feed.epoch(order_seed, epoch, self.train.batch, offset)
        found = []
        while first < last:
            began = time.perf_counter()
            rows, draws = batches.take(min(self._steps_per_call, last - first))
            count = len(rows[0])
            rates = schedules.rates(self.train, self.steps_per_epoch, first, count)
            sums = self._steps(rows, draws, rates).numpy().astype(np.float64)
            self._adapt(count, time.perf_counter() - began)
            finite = np.isfinite(sums[:, 0])
            if not finite.all():
                raise Diverged(first + int(np.argmin(finite)))
            found.append(sums)
            first += count
            progress(count)
        whole = np.concatenate(found)
        return whole[:, 0], whole[:, 1]

    def evaluate(self, split: str) -> Evaluation:
        """Loss and accuracy over all of `split`; the last batch is padded, and padding weighs nothing."""
        count, batch = self.feed.counts[split], self.train.batch
        sweep = self.feed.sweep(split, batch)
        found = []
        while sweep.position * batch < count:
            rows, extras = sweep.take(-(-count // batch) - sweep.position)
            found.append(self._evaluations(rows, extras["weights"]).numpy().astype(np.float64))
        sums = np.concatenate(found).sum(axis=0)
        return Evaluation(float(sums[0] / count), float(sums[1] / count), count)

    def _adapt(self, count: int, seconds: float) -> None:
        """Let a call last about `CALL_SECONDS`, growing no more than eightfold at once (the first call also compiles)."""
        wanted = int(count * CALL_SECONDS / max(seconds, 1e-6))
        self._steps_per_call = max(1, min(wanted, 8 * count))

    def _run_steps(self, rows: Rows, draws: Draws, rates: tf.Tensor) -> tf.Tensor:
        def step(index: tf.Tensor) -> tf.Tensor:
            self.optimizer.learning_rate.assign(rates[index])
            return self.strategy.run(self._step, args=_at(index, (rows, draws)))

        return self._sums(step, tf.shape(rates)[0])

    def _step(self, rows: Sequence[tf.Tensor], draws: dict[str, tf.Tensor]) -> tf.Tensor:
        images, labels = self.feed.images(self._own(rows))
        draws = self._own(draws)
        images = normalise(augment(images, draws, self.data))
        if self.data.cutout:
            images = cut_out(images, draws["hole"], self.data.cutout)
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            loss = tf.reduce_sum(self._cross_entropy(labels, logits, self.train.label_smoothing)) / self.train.batch
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        self.optimizer.apply(
            [
                self._select(variable, self._decayed(variable, gradient))
                for variable, gradient in zip(variables, gradients, strict=True)
            ],
            variables,
        )
        return tf.stack([loss, _right(labels, logits)])

    def _run_evaluations(self, rows: Rows, weights: tf.Tensor) -> tf.Tensor:
        def evaluation(index: tf.Tensor) -> tf.Tensor:
            return self.strategy.run(self._evaluate, args=_at(index, (rows, weights)))

        return self._sums(evaluation, tf.shape(weights)[0])

    def _evaluate(self, rows: Sequence[tf.Tensor], weights: tf.Tensor) -> tf.Tensor:
        images, labels = self.feed.images(self._own(rows))
        weights = self._own(weights)
        logits = self.model(normalise(images), training=False)
        losses = self._cross_entropy(labels, logits, 0.0)
        return tf.stack([tf.reduce_sum(losses * weights), _right(labels, logits, weights)])

    def _sums(self, run: Callable[[tf.Tensor], tf.Tensor], count: tf.Tensor) -> tf.Tensor:
        """What `run` finds at 0 .. `count` - 1, summed over the replicas ([count, 2])."""
        sums = tf.TensorArray(tf.float32, size=count, element_shape=[2])
        for index in tf.range(count):
            sums = sums.write(index, self.strategy.reduce("SUM", run(index), axis=None))
        return sums.stack()

    def _own(self, batch: Any) -> Any:
        """This replica's part of the tensors of a global batch."""
        context = tf.distribute.get_replica_context()
        share = self.train.batch // context.num_replicas_in_sync
        first = context.replica_id_in_sync_group * share
        return tf.nest.map_structure(lambda tensor: tensor[first : first + share], batch)

    def _cross_entropy(self, labels: tf.Tensor, logits: tf.Tensor, smoothing: float) -> tf.Tensor:
        if not smoothing:
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        wanted = tf.one_hot(
            labels, self.feed.classes, 1 - smoothing + smoothing / self.feed.classes, smoothing / self.feed.classes
        )
        return tf.nn.softmax_cross_entropy_with_logits(wanted, logits)

    def _decayed(self, variable: keras.Variable, gradient: tf.Tensor) -> tf.Tensor:
        """Add this replica's part of the L2 term's gradient; Keras sums gradients over replicas when it applies them."""
        if self.train.decay != "l2" or (self.train.decays == "kernels" and not _is_kernel(variable)):
            return gradient
        return gradient + variable.value * (self.train.weight_decay / self.replicas)

    def _select(self, variable: keras.Variable, gradient: tf.Tensor) -> tf.Tensor:
        """A select, not a product, so that not even a NaN reaches a pruned weight."""
        if variable.path not in self.masks:
            return gradient
        return tf.where(self.masks[variable.path], gradient, tf.zeros_like(gradient))

    def _slots(self) -> list[keras.Variable]:
        return [variable for variable in self.optimizer.variables if variable is not self.optimizer.learning_rate]

    def _masked_slots(self, mask: masks.Mask, slots: store.Arrays) -> store.Arrays:
        """`slots` under `mask`. Keras calls a slot of `fc1/kernel` `optimizer/fc1_kernel_momentum`."""
        kept = {path.replace("/", "_"): kept for path, kept in mask.items()}
        owners = {slot: slot.rsplit("/", 1)[-1].rsplit("_", 1)[0] for slot in slots}
        return masks.apply({slot: kept[owner] for slot, owner in owners.items() if owner in kept}, slots)


def _strategy(devices: Sequence[str]) -> tf.distribute.Strategy:
    """MirroredStrategy over two or more devices. On CPU devices its default collectives mix up gradients of different
    layers (TensorFlow 2.21 stops with a shape mismatch), so there they are summed on the first one."""
    if len(devices) == 1:
        return tf.distribute.get_strategy()
    on_cpu = devices[0].startswith("CPU")
    return tf.distribute.MirroredStrategy(
        list(devices), tf.distribute.ReductionToOneDevice() if on_cpu else tf.distribute.NcclAllReduce()
    )


def _optimizer(train: Train, model: keras.Model) -> keras.optimizers.Optimizer:
    """The recipe's optimizer, built for `model`: its slots are there, so that loading them can be checked."""
    decay = train.weight_decay if train.decay == "decoupled" else None
    if train.optimizer == "sgd":
        optimizer = keras.optimizers.SGD(
            train.learning_rate, train.momentum, train.nesterov, weight_decay=decay, name="optimizer"
        )
    else:
        optimizer = keras.optimizers.Adam(train.learning_rate, weight_decay=decay, name="optimizer")
    if decay and train.decays == "kernels":
        optimizer.exclude_from_weight_decay([variable for variable in model.trainable_variables if not _is_kernel(variable)])
    optimizer.build(model.trainable_variables)
    return optimizer


def _at(index: tf.Tensor, steps: Any) -> Any:
    """What `steps` ([steps, ...], nested) hold for one step."""
    return tf.nest.map_structure(lambda tensor: tensor[index], steps)


def _is_kernel(variable: keras.Variable) -> bool:
    return variable.name.endswith("kernel")


def _right(labels: tf.Tensor, logits: tf.Tensor, weights: tf.Tensor | float = 1.0) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels), tf.float32) * weights)


def _assign(variables: list[keras.Variable], values: store.Arrays) -> None:
    paths = {variable.path for variable in variables}
    if paths != set(values):
        raise InputError(f"the saved network is not this one: {sorted(paths ^ set(values))[0]} is in only one of them")
    for variable in variables:
        if tuple(variable.shape) != values[variable.path].shape:
            raise InputError(f"the saved {variable.path} has shape {values[variable.path].shape}, not {tuple(variable.shape)}")
        variable.assign(values[variable.path])
