"""How large a bundle can be: what trains alone, what fits into memory, and how long a step takes."""

import math
import time
from collections.abc import Callable

import tensorflow as tf

from lottery.base import capacity
from lottery.base.capacity import Allocation
from lottery.engine.bundle import network
from lottery.engine.bundle.members import BundledTrainer
from lottery.engine.devices import memory_of
from lottery.engine.feed import MemoryFeed
from lottery.engine.loop import Trainer
from lottery.experiment.recipe import Recipe

# What training takes, in activations and in variables of a network: no less than was measured (docs/performance.md).
ACTIVATIONS, VARIABLES = 1.5, 18
SIZES = (2, 4, 8, 16, 32, 64)
GAIN = 1.1  # in speed, for which a bundle is made twice as large
CALL_SECONDS = 1.0

Take = Callable[[int], object]  # takes so many steps


def still(recipe: Recipe) -> Recipe:
    """`recipe` at a learning rate at which nothing diverges."""
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"learning_rate": 1e-6})})


def obstacle(trainer: Trainer) -> str | None:
    """Why networks like that of `trainer` cannot train in a bundle, or None."""
    if trainer.replicas > 1:
        return f"each is trained on {trainer.replicas} devices"
    if not isinstance(trainer.feed, MemoryFeed):
        return "their examples are not in memory"
    return network.obstacle(trainer.model)


def bytes_of_each(trainer: Trainer) -> int:
    """About how much memory each network of a bundle takes in training."""
    nodes = [node for of_depth in trainer.model._nodes_by_depth.values() for node in of_depth]
    outputs = [(math.prod(one.shape[1:]), one.dtype) for node in nodes for one in node.outputs]
    activations = trainer.train.batch * sum(count * tf.as_dtype(dtype).size for count, dtype in outputs)
    variables = sum(math.prod(one.shape) * tf.as_dtype(one.dtype).size for one in trainer.model.variables)
    return int(ACTIVATIONS * activations + VARIABLES * variables)


def free_bytes(trainer: Trainer, allocation: Allocation) -> int:
    """How much memory is left for a bundle, beside the ranks that share the device."""
    if not trainer.gpus:
        return capacity.free_memory() // allocation.on_host
    taken = max(tf.config.experimental.get_memory_info(name)["current"] for name in trainer.names)
    return memory_of(trainer.names) // allocation.on_gpu - taken


def stepping(trainer: Trainer, size: int) -> Take:
    """A function that takes so many steps of a bundle, whose networks begin as `trainer` is."""
    bundle, state, mask = BundledTrainer(trainer, size), trainer.state(0), trainer.mask()
    bundle.run(dict.fromkeys(range(size), lambda member: member.load(state, mask)))

    def take(count: int) -> None:
        bundle.run(dict.fromkeys(range(size), lambda member: member.advance(0, count, order_seed=0)))

    return take


def measure(trainer: Trainer, allocation: Allocation) -> dict[int, float]:
    """Seconds that a step of each network takes, by the size of the bundle (1: alone). Sizes double until one does not fit, or
    gains too little."""
    seconds = {1: seconds_of_step(lambda count: trainer.advance(0, count, order_seed=0))}
    for size in () if obstacle(trainer) else SIZES:
        if size * bytes_of_each(trainer) > free_bytes(trainer, allocation):
            break
        seconds[size] = seconds_of_step(stepping(trainer, size)) / size
        if seconds[size] * GAIN > seconds[size // 2]:
            break
    return seconds


def seconds_of_step(take: Take) -> float:
    """By calls of ever more steps, until one takes a second. The first, which may compile, is not counted."""
    take(1)
    count = 1
    while True:
        began = time.perf_counter()
        take(count)
        took = time.perf_counter() - began
        if took > CALL_SECONDS:
            return took / count
        count *= 2
