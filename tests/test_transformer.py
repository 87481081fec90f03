"""The Transformer: what its scores depend on, how it trains under masks, and what is counted of it."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import erf
from texts import SEGMENTS, TINY, rows, scorer

from lottery.engine import models
from lottery.engine.token_layers import Gelu
from lottery.experiment.networks import TRANSFORMERS
from lottery.experiment.recipe import Model
from lottery.networks.topology import topology
from lottery.pruning import connectivity, costs, masks
from lottery.pruning.state import State

pytestmark = pytest.mark.usefixtures("tensorflow")

TOKENS = SEGMENTS[0] + SEGMENTS[1] * SEGMENTS[2]
NORMS = [Model(name=TINY.name, norm=norm) for norm in ("post", "pre")]


def joined(documents, texts):
    return np.concatenate([documents, texts.reshape(len(texts), -1)], axis=1)


def shaken(network, seed=0):
    """`network` with random numbers in all of its variables, each a function of its path alone."""
    for variable in network.variables:
        rng = np.random.default_rng([seed, *variable.path.encode()])
        variable.assign(rng.normal(0, 0.3, (600, *variable.shape[1:]))[: variable.shape[0]])
    return network


def loss_of(scores):
    """That of SimCLS for texts from best to worst, but for the reference's part."""
    return tf.reduce_sum(tf.nn.relu(scores[:, 1:] - scores[:, :-1] + 0.01))


def gradients(network, tokens, run):
    @tf.function
    def found(tokens):
        with tf.GradientTape() as tape:
            loss = loss_of(run(tokens))
        weights = [variable.value for variable in network.trainable_variables]
        return [loss, *map(tf.convert_to_tensor, tape.gradient(loss, weights))]

    return [np.array(one) for one in found(tokens)]


@pytest.mark.parametrize("model", NORMS, ids=lambda model: model.norm)
def test_further_padding_changes_no_bit_of_scores_and_no_gradient(model):
    documents, texts = rows()
    further = [np.pad(one, [(0, 0)] * (one.ndim - 1) + [(0, 5)], constant_values=1) for one in (documents, texts)]
    document, count, text = SEGMENTS

    short, long = shaken(scorer(model)), shaken(scorer(model, (document + 5, count, text + 5)))
    tokens, padded = joined(documents, texts), joined(*further)

    np.testing.assert_array_max_ulp(np.array(short(tokens)), np.array(long(padded)), 4)
    found, of_padded = gradients(short, tokens, short)[1:], gradients(long, padded, long)[1:]
    largest = max(np.abs(one).max() for one in found)
    for one, other in zip(found, of_padded, strict=True):
        np.testing.assert_allclose(other[: len(one)], one, rtol=1e-3, atol=1e-4 * largest)
        assert not other[len(one) :].any()  # of places that only padding has


def test_a_score_depends_on_the_document_and_its_text_alone():
    documents, texts = rows()
    network = shaken(scorer())
    before = np.array(network(joined(documents, texts)))
    texts[:, 2, 1] += 1

    after = np.array(network(joined(documents, texts)))

    assert (after != before).tolist() == [[False, False, True, False]] * len(texts)
    assert (np.array(network(joined(documents[::-1], texts))) != after).any(axis=0).all()


def test_positions_begin_again_in_each_text():
    documents, texts = rows()
    texts[:, :] = documents[:, None, : texts.shape[2]]
    texts[:, :, -1] = 2
    documents[:] = 1
    documents[:, : texts.shape[2]] = texts[:, 0]

    np.testing.assert_allclose(shaken(scorer())(joined(documents, texts)), 1, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "mixed_float16"])
def test_texts_of_nothing_but_padding_give_no_nan_in_any_precision(dtype):
    documents, texts = rows()
    texts[:, 1] = 1
    with models.policy(dtype):
        network = scorer()

    loss, *found = gradients(network, joined(documents, texts), network)

    assert network.output.dtype == loss.dtype.name == network.variable_dtype
    assert all(np.isfinite(one).all() for one in (loss, *found))
    assert all(one.any() for one, weight in zip(found, network.trainable_variables, strict=True) if "kernel" in weight.path)


def test_gradients_are_those_of_finite_differences():
    with models.policy("float64"):
        network = shaken(scorer())
    tokens = joined(*rows())
    _, *found = gradients(network, tokens, network)
    for variable, gradient in zip(network.trainable_variables, found, strict=True):
        value = np.array(variable)
        direction = np.random.default_rng(1).normal(size=value.shape)
        ends = []
        for step in (1e-6, -1e-6):
            variable.assign(value + step * direction)
            ends.append(float(loss_of(network(tokens))))
        variable.assign(value)

        np.testing.assert_allclose((ends[0] - ends[1]) / 2e-6, (gradient * direction).sum(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-14), ("float16", 4e-3)])
def test_gelu_and_its_gradient_are_those_of_its_equation(dtype, tolerance):
    values = tf.cast(tf.linspace(-9.0, 9.0, 2001), dtype)
    with tf.GradientTape() as tape:
        tape.watch(values)
        outputs = Gelu(dtype=dtype)(values)

    x = np.array(tf.cast(values, tf.float64))
    share, density = (1 + erf(x / np.sqrt(2))) / 2, np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(tf.cast(outputs, tf.float64), x * share, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(tf.cast(tape.gradient(outputs, values), tf.float64), share + x * density, atol=tolerance)


def test_macs_are_those_of_each_token_and_none_of_looking_up():
    network = scorer()
    graph = topology(network)
    width, firsts = TRANSFORMERS[TINY.name].width, 1 + SEGMENTS[1]
    state = State(0, models.arrays({variable.path: variable for variable in network.variables}), {}, {})
    kernels = masks.whole(masks.prunable(state, "kernels"))

    assert graph.kernels.keys() == kernels.keys()
    assert graph.positions["embedding_tokens/kernel"] == 0
    assert graph.positions["layer_1_feed_forward_in/kernel"] == TOKENS
    # Of the last layer keys and values are wanted of all tokens, the rest of first tokens alone.
    of_all, of_firsts = (4 + 8 + 2) * width**2, (2 + 8) * width**2
    assert costs.macs(kernels, graph) == TOKENS * of_all + firsts * of_firsts


def test_hidden_units_that_receive_nothing_carry_nothing():
    network = scorer()
    graph = topology(network)
    dead = {"layer_1_feed_forward_in/kernel": np.zeros((128, 512), bool)}

    connected, disconnected = connectivity.effective(graph, dead)

    assert not disconnected
    assert connected["layer_1_feed_forward_out/kernel"] == 0
    assert connected["layer_2_attention_query/kernel"] == 128**2
    assert connectivity.effective(graph, {}).connected == {path: np.prod(shape) for path, shape in graph.kernels.items()}


@pytest.mark.parametrize("name", ["transformer_tiny", "transformer_mini"])
def test_parameters_are_those_of_the_published_sizes(name):
    layers, width = TRANSFORMERS[name]
    per_layer = 4 * (width + 1) * width + (width + 1) * 4 * width + (4 * width + 1) * width + 4 * width

    counted = scorer(Model(name=name), vocabulary=100).count_params()

    assert counted == layers * per_layer + (100 + 2 + 12 + 2) * width
