"""Rematerialisation: the same network in blocks, computed twice, with every statistic and every draw taken once."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import large
from tensorflow.python.eager import context
from tiny import CPUS, STEPS, advance, assert_close, half_masks, initial

from lottery.base.errors import InputError
from lottery.engine import models, rematerialise, signature
from lottery.engine.layers import BatchNorm
from lottery.experiment.recipe import Model

pytestmark = pytest.mark.usefixtures("tensorflow")

CONVOLUTIONS = ("conv1/kernel", "conv2/kernel", "conv3/kernel")


def network_of(name, size, **settings):
    network = models.build(Model(name=name, **settings), signature.images(size, 3))
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (4, size, size, 3)).astype(np.float32)
    return network, tf.constant(images)


@pytest.mark.parametrize(
    ("name", "size", "settings", "count"),
    [
        ("resnet20", 8, {}, 11),  # the stem, nine residual blocks, the classifier
        ("mobilenet_v2", 32, {"alpha": 0.35}, 16),  # cut before and after each of ten shortcuts, five of them in both ways
        *large(
            ("mobilenet_v2", 32, {"alpha": 0.35, "padding": "symmetric"}, 16), ("MobileNetV3Small", 32, {"alpha": 1.0}, None)
        ),
        ("lenet_300_100", 8, {}, 1),
        ("conv4", 8, {}, 3),
        ("tiny:local", 8, {}, 3),
        ("tiny:sequential", 8, {}, 2),
    ],
)
def test_blocks_chain_up_to_the_network(name, size, settings, count):
    network, images = network_of(name, size, **settings)

    blocks = rematerialise.blocks(network)

    assert len(blocks) == count if count else len(blocks) > 5
    paths = [variable.path for block in blocks for variable in block.variables]
    assert sorted(paths) == sorted(variable.path for variable in network.variables)
    outputs = images
    for block in blocks:
        assert block.trainable_variables
        outputs = block(outputs)
    np.testing.assert_array_equal(outputs, network(images))


def gradients(network, images, run):
    """The loss, its gradients, and the statistics afterwards, of a network that `run` runs; the network is left as it was."""
    before = [np.array(variable) for variable in network.variables]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(run(images) ** 2)
    found = [loss, *tape.gradient(loss, [variable.value for variable in network.trainable_variables])]
    found += [np.array(variable) for variable in network.non_trainable_variables]
    for variable, value in zip(network.variables, before, strict=True):
        variable.assign(value)
    return [np.asarray(array, np.float64) for array in found]


@pytest.mark.parametrize(
    ("name", "size", "settings"),
    [
        *(("resnet20", 8, {}), ("tiny:parts", 16, {}), ("tiny:symmetric_parts", 16, {})),
        *large(("mobilenet_v2", 32, {"alpha": 0.1}), ("mobilenet_v2", 32, {"alpha": 0.1, "padding": "symmetric"})),
    ],
)
def test_gradients_and_statistics_are_those_of_the_whole_network(name, size, settings):
    network, images = network_of(name, size, **settings)

    expected = gradients(network, images, lambda images: network(images, training=True))
    found = gradients(network, images, rematerialise.chained(network))

    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() <= 1e-4 * max(1, np.abs(other).max())


def test_statistics_move_once_a_step_though_computed_twice():
    images = keras.Input((4, 4, 3))
    network = keras.Model(images, BatchNorm(0.75, 1e-3, "ones", name="bn")(images))
    values = np.random.default_rng(0).normal(3, 2, (8, 4, 4, 3)).astype(np.float32)

    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(rematerialise.chained(network)(tf.constant(values)) ** 3)
    tape.gradient(loss, [variable.value for variable in network.trainable_variables])

    mean, variance = network.non_trainable_variables
    np.testing.assert_allclose(mean, 0.25 * values.mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(variance, 0.75 + 0.25 * values.var((0, 1, 2), ddof=1), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "count", "train", "tolerance"),
    [
        ("tiny:local", 1, {"precision": "float64", "ema": 0.9}, 1e-12),
        ("tiny:synchronised", 2, {"precision": "float64"}, 1e-12),
        ("tiny:local", 1, {"precision": "mixed_float16"}, 1e-3),
        ("tiny:stock", 1, {"precision": "float64"}, 1e-12),
    ],
)
def test_training_is_the_same_with_and_without(make_trainer, name, count, train, tolerance):
    """Of the stock network, whose draws of dropout must be the same in both passes, and move on once a step."""
    model = Model(name=name)
    state = initial(model=model)
    found = []
    for remat in (False, True):
        trainer = make_trainer(model, CPUS[:count], CONVOLUTIONS, remat=remat, learning_rate=0.02, **train)
        trainer.load(state, half_masks(state, CONVOLUTIONS))
        found.append((advance(trainer, 0, 2 * STEPS), trainer.state(2 * STEPS)))
    (losses, plain), (other_losses, recomputed) = found

    assert_close(recomputed, plain, tolerance)
    np.testing.assert_allclose(other_losses, losses, rtol=max(tolerance, 1e-6))
    for path, kept in half_masks(state, CONVOLUTIONS).items():
        assert not recomputed.weights[path][~kept].any()
    for path, array in plain.statistics.items():
        if path.endswith("seed_generator_state"):
            assert (array - state.statistics[path]).tolist() == [0, 2 * STEPS]


def convolutions(trainer):
    """How many convolutions a training step does forwards, in the graph as TensorFlow runs it, optimised."""
    here = context.context()
    here.enable_run_metadata()
    trainer.advance(0, 1, order_seed=0)
    graphs = here.export_run_metadata().partition_graphs
    here.disable_run_metadata()
    return sum(node.op.endswith("Conv2D") for graph in graphs for node in graph.node)


def convolutions_under_xla(trainer):
    tf.random.set_seed(0)  # which `experimental_get_compiler_ir` needs
    batch = {"image": tf.zeros([8, 8, 8, 3]), "label": tf.zeros([8], tf.int32)}
    compiled = trainer._step._gradients.experimental_get_compiler_ir(batch)
    return len(re.findall(r" convolution\(", compiled(stage="optimized_hlo")))


@pytest.mark.parametrize(("xla", "count"), [("off", convolutions), ("on", convolutions_under_xla)])
def test_activations_are_computed_again_in_what_is_compiled(make_trainer, xla, count):
    plain, recomputed = (count(make_trainer(Model(name="tiny:local"), xla=xla, remat=remat)) for remat in (False, True))

    assert plain == (3 if xla == "off" else 3 + 5)  # backwards it has convolutions too
    assert recomputed == plain + 3


def test_a_network_that_is_no_graph_of_layers_is_refused_in_one_line(make_trainer):
    with pytest.raises(InputError, match=r"^train\.remat: .* is no functional Keras model.*: turn remat off$") as caught:
        make_trainer(Model(name="tiny:subclassed"), remat=True)

    assert "\n" not in str(caught.value)
