"""Rematerialisation: a network run block by block, each block's activations computed again when its gradient is wanted. Chen et
al. 2016 ("Training deep nets with sublinear memory cost"). Blocks are found in any graph of layers. `tf.recompute_grad` and
`keras.remat` update moving averages twice a step: here a block hands back its new statistics, which are assigned once."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from lottery.base.errors import InputError

_BLOCK_ENDS = (keras.layers.Add, keras.layers.Concatenate, keras.layers.MaxPooling2D, keras.layers.AveragePooling2D)


def chained(network: keras.Model) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function that runs `network` on its input in training, block by block. Raises InputError as `blocks` does."""
    chain = blocks(network)

    def outputs(inputs: tf.Tensor) -> tf.Tensor:
        return functools.reduce(lambda before, block: run(block, before, inputs), chain, inputs)

    return outputs


def blocks(network: keras.Model) -> list[keras.Model]:
    """`network` as a chain of networks that share its layers. One that also reads the input of `network`, as attention does to
    find padding, has that as its second input. Raises InputError when it is not a graph of layers."""
    network = getattr(network, "_functional", network)  # what a Sequential holds
    if not isinstance(network, keras.src.models.Functional):
        raise InputError(f"train.remat: {network.name} is no functional Keras model, so it has no blocks: turn remat off")
    cuts = [network.inputs[0], *_cuts(network), network.outputs[0]]
    return [_block(number, network.inputs[0], *ends) for number, ends in enumerate(itertools.pairwise(cuts))]


def _block(number: int, inputs: keras.KerasTensor, start: keras.KerasTensor, end: keras.KerasTensor) -> keras.Model:
    name = f"part_{number}"
    try:
        return keras.Model(start, end, name=name)
    except ValueError:  # `start` is not all that it reads
        return keras.Model([start, inputs], end, name=name)


def run(block: keras.Model, before: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
    """The output of `block` in training, from `before`, the output of the block before it, and the network's `inputs` where it
    reads those. Its activations are computed again in the backward pass. Integers have no gradient."""
    read = [before, inputs][: len(block.inputs)]
    frozen = [tf.convert_to_tensor(variable.value) for variable in block.non_trainable_variables]

    @tf.custom_gradient
    def recomputed(*given: tf.Tensor) -> tuple:
        outputs, statistics = _called(block, given, frozen)

        def backward(upstream: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor | None]:
            with tf.control_dependencies([upstream]):
                # 0.0, but not before `upstream` is known: XLA heeds no control dependencies, and would find that this has been
                # computed before. It does not see through the expression, which is that of `tf.recompute_grad`.
                known = tf.cast(tf.reshape(upstream, [-1])[0], tf.bool)
                nothing = tf.where(known == known, 0.0, math.nan)
                begun = [one + tf.cast(nothing, one.dtype) for one in given[: len(read)]]
                again = [*begun, *map(tf.identity, given[len(read) :])]
            floating = [one for one in again if one.dtype.is_floating]
            with tf.GradientTape() as tape:
                tape.watch(floating)
                outputs = _called(block, again, frozen)[0]
            gradients = iter(tape.gradient(outputs, floating, upstream, tf.UnconnectedGradients.ZERO))
            return [next(gradients) if one.dtype.is_floating else None for one in again]

        return (outputs, *statistics), backward

    outputs, *statistics = recomputed(*read, *(tf.convert_to_tensor(weight.value) for weight in block.trainable_variables))
    for variable, value in zip(block.non_trainable_variables, statistics, strict=True):
        variable.assign(value)
    return outputs


def _called(block: keras.Model, given: Sequence[tf.Tensor], frozen: Sequence[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The outputs of `block` and its new statistics, from what is `given`: its inputs, then its weights."""
    inputs, weights = given[: len(block.inputs)], given[len(block.inputs) :]
    return block.stateless_call(weights, frozen, inputs if len(inputs) > 1 else inputs[0], training=True)


def _cuts(network: keras.Model) -> list[keras.KerasTensor]:
    """The tensors at the ends of blocks: beside the input, all that follows depends on nothing else of what comes before. A
    block ends where branches meet or begin, or in a pooling, and holds weights."""
    nodes = [node for depth in sorted(network._nodes_by_depth, reverse=True) for node in network._nodes_by_depth[depth]]
    read = [(place, tensor) for place, node in enumerate(nodes) for tensor in node.input_tensors]
    uses = [(id(tensor), place) for place, tensor in read if tensor is not network.inputs[0]]
    last_use = dict(uses)
    cuts: list[keras.KerasTensor] = []
    open_tensors: set[int] = set()
    weighty = False
    for place, node in enumerate(nodes[:-1]):
        open_tensors = {key for key in open_tensors if last_use.get(key, 0) > place} | {
            id(tensor) for tensor in node.output_tensors
        }
        weighty = weighty or bool(node.operation.weights)
        output = node.output_tensors[0]
        ends = isinstance(node.operation, _BLOCK_ENDS) or [key for key, _ in uses].count(id(output)) > 1
        if weighty and ends and open_tensors == {id(output)}:
            cuts.append(output)
            weighty = False
    return cuts
