"""Rematerialisation: a network run block by block, each block's activations computed again when its gradient is wanted.

Chen et al. 2016 ("Training deep nets with sublinear memory cost"). Blocks are found in any graph of layers. `tf.recompute_grad`
and `keras.remat` update moving averages twice a step: here a block hands back its new statistics, which are assigned once.
"""

import itertools
import math

import keras
import tensorflow as tf

from data_prep.errors import InputError

_BLOCK_ENDS = (keras.layers.Add, keras.layers.Concatenate, keras.layers.MaxPooling2D, keras.layers.AveragePooling2D)


def blocks(network: keras.Model) -> list[keras.Model]:
    """`network` as a chain of networks that share its layers. Raises InputError when it is not a graph of layers."""
    network = getattr(network, "_functional", network)  # what a Sequential holds
    if not isinstance(network, keras.src.models.Functional):
        raise InputError(f"train.remat: {network.name} is no functional Keras model, so it has no blocks: turn remat off")
    cuts = [network.inputs[0], *_cuts(network), network.outputs[0]]
    return [keras.Model(*ends, name=f"part_{number}") for number, ends in enumerate(itertools.pairwise(cuts))]


def run(block: keras.Model, inputs: tf.Tensor) -> tf.Tensor:
    """What `block` makes of `inputs` in training. Its activations are computed again in the backward pass."""
    frozen = [tf.convert_to_tensor(variable.value) for variable in block.non_trainable_variables]

    @tf.custom_gradient
    def recomputed(inputs: tf.Tensor, *weights: tf.Tensor) -> tuple:
        outputs, statistics = block.stateless_call(weights, frozen, inputs, training=True)

        def backward(upstream: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor]:
            with tf.control_dependencies([upstream]):
                # 0.0, but not before `upstream` is known: XLA heeds no control dependencies, and would find that this has been
                # computed before. It does not see through the expression, which is that of `tf.recompute_grad`.
                known = tf.cast(tf.reshape(upstream, [-1])[0], tf.bool)
                nothing = tf.cast(tf.where(known == known, 0.0, math.nan), inputs.dtype)
                again = [inputs + nothing, *map(tf.identity, weights)]
            with tf.GradientTape() as tape:
                tape.watch(again)
                outputs, _ = block.stateless_call(again[1:], frozen, again[0], training=True)
            return tape.gradient(outputs, again, upstream, tf.UnconnectedGradients.ZERO)

        return (outputs, *statistics), backward

    outputs, *statistics = recomputed(inputs, *(tf.convert_to_tensor(weight.value) for weight in block.trainable_variables))
    for variable, value in zip(block.non_trainable_variables, statistics, strict=True):
        variable.assign(value)
    return outputs


def _cuts(network: keras.Model) -> list[keras.KerasTensor]:
    """The tensors at the ends of blocks: all that follows depends on nothing else of what comes before. A block ends where
    branches meet or begin, or in a pooling, and holds weights."""
    nodes = [node for depth in sorted(network._nodes_by_depth, reverse=True) for node in network._nodes_by_depth[depth]]
    uses = [(id(tensor), place) for place, node in enumerate(nodes) for tensor in node.input_tensors]
    last_use = dict(uses)
    cuts: list[keras.KerasTensor] = []
    open_tensors: set[int] = set()
    weighty = False
    for place, node in enumerate(nodes[:-1]):
        open_tensors = {key for key in open_tensors if last_use[key] > place} | {id(tensor) for tensor in node.output_tensors}
        weighty = weighty or bool(node.operation.weights)
        output = node.output_tensors[0]
        ends = isinstance(node.operation, _BLOCK_ENDS) or [key for key, _ in uses].count(id(output)) > 1
        if weighty and ends and open_tensors == {id(output)}:
            cuts.append(output)
            weighty = False
    return cuts
