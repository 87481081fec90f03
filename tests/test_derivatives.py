"""Derivatives: against finite differences and by hand, on one device and on several, whatever the layers."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import large

from data_prep.records import Manifest
from lottery.base.errors import InputError
from lottery.engine import models, signature
from lottery.engine.derivatives import Derivatives
from lottery.engine.differentiation import second_order
from lottery.experiment import reading
from lottery.networks.topology import topology
from lottery.pruning import connectivity
from lottery.pruning.state import State

keras = pytest.importorskip("keras")
pytestmark = pytest.mark.usefixtures("tensorflow")

CLASSES = 3
DEVICES = ["CPU:0"]


def smooth(size, classes):
    """No BatchNorm and no kinks: exact to many digits by finite differences."""
    pixels = keras.Input((size, size, 3))
    x = keras.layers.Conv2D(4, 3, activation="tanh", name="conv")(pixels)
    x = keras.layers.DepthwiseConv2D(3, padding="same", name="depthwise")(x)
    x = keras.layers.Flatten(name="flatten")(keras.layers.Conv2D(4, 1, activation="softplus", name="pointwise")(x))
    return keras.Model(pixels, keras.layers.Dense(classes, name="logits")(x))


def stock(size, classes):
    """Keras's own normalisation, over the batch and over features."""
    pixels = keras.Input((size, size, 3))
    x = keras.layers.BatchNormalization(name="batch")(keras.layers.Conv2D(4, 3, activation="tanh", name="conv")(pixels))
    x = keras.layers.BatchNormalization(synchronized=True, name="synchronised")(keras.layers.Conv2D(4, 1, name="pointwise")(x))
    x = keras.layers.LayerNormalization(name="layer")(keras.layers.Conv2D(4, 3, activation="gelu", name="second")(x))
    x = keras.layers.GroupNormalization(2, name="group")(keras.layers.Conv2D(4, 3, activation="silu", name="third")(x))
    return keras.Model(pixels, keras.layers.Dense(classes, name="logits")(keras.layers.Flatten(name="flatten")(x)))


def dense(size, classes):
    pixels = keras.Input((size, size, 3))
    x = keras.layers.Dense(5, "sigmoid", use_bias=False, name="one")(keras.layers.Flatten(name="flatten")(pixels))
    return keras.Model(pixels, keras.layers.Dense(classes, use_bias=False, name="two")(x))


def mixed(size, classes):
    pixels = keras.Input((size, size, 3))
    x = keras.layers.Dense(5, dtype="bfloat16", name="one")(keras.layers.Flatten(name="flatten")(pixels))
    return keras.Model(pixels, keras.layers.Dense(classes, name="two")(x))


def recipe(name, precision="float64", batch=8, **model):
    table = {"model": {"name": name, **model}, "train": {"precision": precision, "batch": batch}, "data": {"size": 8}}
    return reading.resolve(table)


def network(name, size=8, **options):
    made = recipe(name, **options)
    with models.policy(made.train.precision):
        state = models.initial_weights(made.model, signature.images(size, CLASSES), 1)
    return made, state


def images(count=8, size=8):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (count, size, size, 3)).astype(np.uint8), rng.integers(0, CLASSES, count).astype(np.int32)


def derivatives(made, names=DEVICES, size=8):
    manifest = Manifest((size, size, 3), [str(label) for label in range(CLASSES)], [], {})
    return Derivatives(made, manifest, names)


def loss(made, state, pixels, labels, temperature):
    """By the network itself, built anew."""
    with models.policy("float64"):
        built = models.build(made.model, signature.images(pixels.shape[1], CLASSES))
    models.assign({one.path: one for one in built.variables}, state.weights | state.statistics)
    logits = np.asarray(built((pixels / 255 - 0.5) / 0.5, training=False)) / temperature
    largest = logits.max(axis=1)
    return np.mean(largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1)) - logits[np.arange(len(labels)), labels])


def moved(state, path, index, by):
    weights = {name: array.copy() for name, array in state.weights.items()}
    weights[path][index] += by
    return State(0, weights, state.statistics, {})


@pytest.mark.parametrize("temperature", [1.0, 200.0])
def test_gradients_are_those_of_finite_differences(temperature):
    made, state = network("test_derivatives:smooth")
    batch, step, rng = images(20), 1e-5, np.random.default_rng(1)

    found = derivatives(made).gradients(state, *batch, temperature, training=False)

    assert {path: array.shape for path, array in found.items()} == {path: one.shape for path, one in state.weights.items()}
    for path, array in found.items():
        index = tuple(rng.integers(0, size) for size in array.shape)
        up, down = (loss(made, moved(state, path, index, by), *batch, temperature) for by in (step, -step))
        assert array[index] == pytest.approx((up - down) / (2 * step), rel=1e-4, abs=1e-9), path


@pytest.mark.parametrize(
    ("name", "model", "training"),
    [
        ("test_derivatives:smooth", {}, True),
        ("tiny:parts", {}, False),
        ("tiny:synchronised", {}, True),
        ("conv2", {}, True),
        ("test_derivatives:stock", {}, True),
        *large(
            ("mobilenet_v2", {"alpha": 0.35}, False),
            ("resnext29_32x4d", {}, False),
            ("resnet20", {"width": 4}, True),
        ),
    ],
)
def test_a_hessian_product_is_the_difference_of_gradients_along_it(name, model, training):
    made, state = network(name, **model)
    rng, batch, step = np.random.default_rng(1), images(6), 1e-8  # so short that hardly any ReLU turns
    vector = {path: rng.standard_normal(array.shape) for path, array in state.weights.items() if path.endswith("kernel")}
    own = derivatives(made)

    found = own.gradients(state, *batch, 2.0, training, vector)

    def along(by):
        weights = {path: array + by * vector.get(path, 0) for path, array in state.weights.items()}
        return own.gradients(State(0, weights, state.statistics, {}), *batch, 2.0, training)

    up, down = along(step), along(-step)
    assert found.keys() == vector.keys()
    differences = np.concatenate([(up[path] - down[path]).ravel() / (2 * step) for path in found])
    whole = np.concatenate([array.ravel() for array in found.values()])
    assert np.quantile(np.abs(whole - differences), 0.9) < 1e-5 * np.abs(whole).max()


def test_batches_and_devices_change_nothing_but_the_last_bits():
    made, state = network("test_derivatives:smooth", batch=64)
    batch = images(23)

    whole = derivatives(made).gradients(state, *batch)
    assert derivatives(made).gradients(state, *batch)["conv/kernel"].tobytes() == whole["conv/kernel"].tobytes()
    for parts, names in ((8, DEVICES), (64, ["CPU:0", "CPU:1", "CPU:2"]), (4, ["CPU:0", "CPU:1"])):
        apart = derivatives(recipe("test_derivatives:smooth", batch=parts), names).gradients(state, *batch)
        for path, array in whole.items():
            np.testing.assert_allclose(apart[path], array, rtol=1e-6, atol=1e-9)


def test_gradients_of_a_layer_in_bfloat16_are_near_those_of_the_same_numbers_in_float32():
    made, state = network("test_derivatives:mixed", precision="float32")
    pixels, labels = images()

    found = derivatives(made).gradients(state, pixels, labels)

    flat = (pixels / 255 - 0.5).reshape(8, -1) / 0.5
    one, two = (state.weights[f"{name}/kernel"].astype(np.float32) for name in ("one", "two"))
    shares = np.exp(flat @ one @ two)
    slopes = shares / shares.sum(axis=1, keepdims=True) - np.eye(CLASSES)[labels]
    np.testing.assert_allclose(found["one/kernel"].astype(np.float32), flat.T @ slopes @ two.T / 8, atol=0.02)


def test_a_thread_does_not_switch_the_graph_optimizer_on_while_another_computes():
    from tensorflow import config

    def briefly():
        with second_order():
            pass

    with ThreadPoolExecutor(1) as threads:
        with second_order():
            other = threads.submit(briefly)
            with pytest.raises(TimeoutError):
                other.result(0.2)
            assert config.optimizer.get_experimental_options()["disable_meta_optimizer"] is True
        other.result(5)


def test_nothing_of_the_state_is_changed_and_no_statistics_move():
    made, state = network("tiny:parts")
    before = {path: array.tobytes() for path, array in (state.weights | state.statistics).items()}
    own, batch = derivatives(made), images()

    first = own.gradients(state, *batch)
    own.gradients(state, *batch, vector=first)
    own.flow(state, {})

    assert {path: array.tobytes() for path, array in (state.weights | state.statistics).items()} == before
    assert all(own.gradients(state, *batch)[path].tobytes() == array.tobytes() for path, array in first.items())


def test_the_flow_of_a_dense_network_is_a_product_of_absolute_weights():
    made, state = network("test_derivatives:dense", size=8)
    one, two = np.abs(state.weights["one/kernel"]), np.abs(state.weights["two/kernel"])

    flow = derivatives(made).flow(state, {})

    np.testing.assert_allclose(flow["one/kernel"], one * two.sum(axis=1))
    np.testing.assert_allclose(flow["two/kernel"], two * one.sum(axis=0)[:, None])


def operations(size, classes):
    """Activations and arithmetic as operations, and layers that normalise."""
    pixels = keras.Input((size, size, 3))
    x = keras.layers.Rescaling(1 / 127.5, offset=-1)(pixels)
    x = keras.ops.tanh(keras.layers.Conv2D(4, 3, name="first")(x))
    x = keras.layers.Dropout(0.5)(keras.layers.LayerNormalization()(x))
    x = keras.activations.gelu(keras.layers.Conv2D(4, 1, activation="sigmoid", name="second")(x))
    x = keras.layers.GroupNormalization(2)(x) - 1.5
    left, right = x[..., :2], x[..., 2:]
    x = keras.ops.concatenate([1 - left, left * right, left - right / 2, keras.ops.minimum(right, -1)], axis=-1)
    x = keras.layers.Conv2D(4, 3, name="third")(keras.layers.Softmax()(-x))
    return keras.Model(pixels, keras.layers.Dense(classes, "softmax", name="logits")(keras.layers.Flatten()(x)))


def gated(size, classes):
    """A block of MobileNetV3: hard swish, and a gate (squeeze-and-excite), within a network of its own."""

    def hard_sigmoid(x):
        return keras.layers.ReLU(6.0)(x + 3.0) * (1 / 6)

    maps = keras.Input((size - 2, size - 2, 8))
    x = keras.layers.BatchNormalization()(keras.layers.DepthwiseConv2D(3, padding="same", name="depthwise")(maps))
    x = keras.layers.Multiply()([x, hard_sigmoid(x)])
    gate = keras.layers.Conv2D(4, 1, activation="relu", name="squeeze")(keras.layers.GlobalAveragePooling2D(keepdims=True)(x))
    x = keras.layers.Multiply()([x, hard_sigmoid(keras.layers.Conv2D(8, 1, name="excite")(gate))])
    block = keras.Model(maps, maps + keras.layers.Activation("hard_swish")(x), name="block")
    pixels = keras.Input((size, size, 3))
    x = keras.layers.Conv2D(6, 1, name="project")(block(keras.layers.Conv2D(8, 3, name="expand")(pixels)))
    return keras.Model(pixels, keras.layers.Dense(classes, name="logits")(keras.layers.GlobalMaxPooling2D()(x)))


class Squared(keras.layers.Layer):
    def call(self, inputs):
        return inputs * inputs


class Shifted(keras.layers.Layer):
    def call(self, inputs):
        return inputs - 100.0


def unknown(layer):
    """A function that builds a network of images with this layer in it, on sequences of four numbers."""

    def build(size, classes):
        pixels = keras.Input((size, size, 3))
        x = layer()(keras.layers.Dense(4, name="first")(keras.layers.Reshape((-1, 3))(pixels)))
        return keras.Model(pixels, keras.layers.Dense(classes, name="logits")(keras.layers.Flatten()(x)))

    return build


recurrent = unknown(lambda: keras.layers.SimpleRNN(4, name="rnn"))
lstm = unknown(lambda: keras.layers.LSTM(4, name="unknown"))
attention = unknown(lambda: lambda x: keras.layers.MultiHeadAttention(2, 2, name="unknown")(x, x))
squared = unknown(lambda: Squared(name="unknown"))
shifted = unknown(lambda: Shifted(name="unknown"))


@pytest.mark.parametrize("name", ["lstm", "attention", "squared", "shifted"])
def test_flow_is_refused_where_it_cannot_be_followed(name):
    made, state = network(f"test_derivatives:{name}")

    with pytest.raises(InputError, match="synflow cannot follow unknown"):
        derivatives(made).flow(state, {})


def test_a_flow_that_is_more_than_a_float_holds_is_refused():
    made, state = network("test_derivatives:dense")
    weights = {path: np.full(array.shape, 1e200) for path, array in state.weights.items()}

    with pytest.raises(InputError, match="through two is more than float64 holds"):
        derivatives(made).flow(State(0, weights, {}, {}), {})


CHAINS = {
    "test_derivatives:operations": ["first", "second", "third", "logits"],
    "test_derivatives:gated": ["expand", "project", "logits"],
    "test_derivatives:recurrent": ["first", "logits"],
    "lenet_300_100": ["fc1", "fc2", "predictions"],
    "conv2": ["conv1", "conv2", "fc1", "fc2", "predictions"],
    "tiny:parts": ["stem", "grouped", "predictions"],
    "mobilenet_v2": ["Conv1", "expanded_conv_depthwise", "expanded_conv_project", "block_1_expand", "Conv_1", "predictions"],
    "resnext29_32x4d": ["conv1", "predictions"],
}


@pytest.mark.parametrize("name", [*list(CHAINS)[:-2], *large(*list(CHAINS)[-2:])])
def test_flow_is_conserved_whatever_the_mask(name):
    """Tanaka et al. 2020, theorem 2: as much flows through each layer that every path goes through."""
    made, state = network(name)

    flow = derivatives(made).flow(state, random_mask(state, 0.7))

    sums = [flow[path].sum() for path in (f"{layer}/kernel" for layer in CHAINS[name])]
    assert sums[0] > 0
    np.testing.assert_allclose(sums, sums[0], rtol=1e-9)


def random_mask(state, density):
    """A random mask of its kernels."""
    rng = np.random.default_rng(1)
    return {path: rng.random(array.shape) < density for path, array in state.weights.items() if path.endswith("kernel")}


@pytest.mark.parametrize(
    ("name", "model", "density", "is_exact"),
    [
        ("lenet_300_100", {}, 0.02, True),
        ("conv2", {}, 0.01, False),
        *large(("mobilenet_v2", {"alpha": 0.35}, 0.05, True), ("resnext29_32x4d", {}, 0.02, False)),
    ],
)
def test_what_something_flows_through_is_connected(name, model, density, is_exact):
    """Flow is followed from position to position and max-pooling passes on one of four, connections from channel to channel:
    on maps of several positions the counts differ, so that one cannot stand for the other."""
    made, state = network(name, **model)
    mask = random_mask(state, density)

    flow = derivatives(made).flow(state, mask)

    counts = {path: np.count_nonzero(flow[path]) for path in mask}
    connected = connectivity.effective(topology(models.build(made.model, signature.images(8, CLASSES))), mask).connected
    assert all(count <= connected[path] for path, count in counts.items())
    assert (counts == connected) == is_exact
