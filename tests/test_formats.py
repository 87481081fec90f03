"""Networks as files of each format: others load them without this package, and they answer as the networks did."""

import importlib.util
import subprocess
import sys
from itertools import pairwise

import keras
import numpy as np
import pytest
from helpers import clean_environment, large, lenet
from tiny import initial

from lottery.base.errors import InputError
from lottery.engine import formats, mnn_session, models, signature
from lottery.engine.formats import mnn
from lottery.engine.layers import BatchNorm, GroupedConv2D, PointwiseConv2D
from lottery.engine.litert_session import PLAIN, Session
from lottery.engine.stock import not_stock, rebuild
from lottery.experiment.recipe import Model

pytestmark = pytest.mark.usefixtures("tensorflow")

needs_mnn = pytest.mark.skipif(not importlib.util.find_spec("MNN"), reason="MNN is not installed")
STRANGER = """
import sys
sys.modules["lottery"] = sys.modules["data_prep"] = None  # as if they were not installed
import keras, numpy
images = numpy.load("images.npy")
for path in sys.argv[1:]:
    numpy.save(path + ".npy", keras.models.load_model(path)(images))
"""


LARGE = large("mobilenet_v2", "resnext29_32x4d")


def nested(size, classes):
    """A network within a network, with a layer of ours inside."""
    inner = keras.Sequential([keras.Input((size, size, 3)), BatchNorm(0.9, 1e-3, "ones", name="bn")], name="inner")
    images = keras.Input((size, size, 3))
    return keras.Model(images, keras.layers.Dense(classes)(keras.layers.Flatten()(inner(images))))


class Whole(keras.Model):
    """A network that is no graph of layers, but can be made from what it says of itself."""

    def __init__(self, classes, **options):
        super().__init__(**options)
        self.classes = classes
        self.flatten, self.dense = keras.layers.Flatten(), keras.layers.Dense(classes)

    def get_config(self):
        return {"classes": self.classes, "name": self.name}

    def call(self, images):
        return self.dense(self.flatten(images))


def whole(size, classes):
    return Whole(classes)


class Secretive(keras.layers.Layer):
    """A layer that cannot be made from what it says of itself."""

    def __init__(self, secret):
        super().__init__()
        self.secret = secret

    def get_config(self):
        return super().get_config()

    def call(self, inputs):
        return inputs * self.secret


@keras.saving.register_keras_serializable()
class Lookup(keras.layers.Layer):
    """A layer whose operation ONNX does not have."""

    def call(self, x):
        import tensorflow as tf

        return tf.math.bessel_i0e(x)


def inexpressible(size, classes):
    images = keras.Input((size, size, 3))
    return keras.Model(images, keras.layers.Dense(classes)(Lookup()(keras.layers.Flatten()(images))), name="inexpressible")


def grouped(size, classes):
    images = keras.Input((size, size, 3))
    x = GroupedConv2D(8, 3, 2, 4, "he_normal", name="b")(keras.layers.Conv2D(8, 3, name="a")(images))
    return keras.Model(images, keras.layers.Dense(classes)(keras.layers.Flatten()(x)))


def secretive(size, classes):
    return keras.Sequential([keras.Input((size, size, 3)), Secretive(2), keras.layers.Flatten(), keras.layers.Dense(classes)])


def noise(shape):
    return np.random.default_rng(1).uniform(-1, 1, (5, *shape)).astype(np.float32)


def random_state(name, shape, classes=10, **settings):
    """Weights and statistics unlike any initial ones, a few of them 0.0."""
    state = models.initial_weights(Model(name=name, **settings), signature.images(shape[0], classes), 0)
    rng = np.random.default_rng(2)
    for path, array in (state.weights | state.statistics).items():
        if np.issubdtype(array.dtype, np.floating):
            array[...] += rng.normal(0, 0.05, array.shape).clip(-0.4, 0.4) * (rng.random(array.shape) < 0.9)
            assert "variance" not in path or array.min() > 0
    return state


def outputs_of(name, state, images, classes=10, **settings):
    network = models.build(Model(name=name, **settings), signature.images(images.shape[1], classes))
    models.assign({variable.path: variable for variable in network.variables}, state.weights | state.statistics)
    return np.asarray(network(images, training=False))


def off(outputs, expected):
    return np.abs(outputs - expected).max() / np.abs(expected).max()


def interpreted(content, images):
    """What TensorFlow Lite, as it comes, makes of `images` one by one."""
    import tensorflow as tf

    interpreter = tf.lite.Interpreter(model_content=content)
    answer = interpreter.get_signature_runner()
    return np.concatenate([answer(images=image[np.newaxis])["output_0"] for image in images])


STRANGERS = [("tiny:parts", "tiny:symmetric_parts", "tiny:synchronised"), *large((("mobilenet_v2", "MobileNetV3Small"),))]


@pytest.mark.parametrize("names", STRANGERS)
def test_a_stranger_loads_a_keras_file_and_gets_the_same_outputs(names, tmp_path):
    """All in one process, which takes seconds to start."""
    exported = [*((name, "same") for name in names), *((name, "symmetric") for name in names[:1])]
    images = noise((32, 32, 3))
    np.save(tmp_path / "images.npy", images)
    states = {name: random_state(name, (32, 32, 3)) for name in names}
    for name, padding in exported:
        content = formats.make("keras", Model(name=name, padding=padding), signature.images(32, 10), states[name]).content
        (tmp_path / f"{name}-{padding}.keras").write_bytes(content)

    command = [sys.executable, "-c", STRANGER, *("-".join(one) + ".keras" for one in exported)]
    subprocess.run(command, cwd=tmp_path, env=clean_environment(), check=True, capture_output=True)

    for name, padding in exported:
        outputs = np.load(tmp_path / f"{name}-{padding}.keras.npy")
        assert off(outputs, outputs_of(name, states[name], images, padding=padding)) < 1e-5, name


@pytest.mark.parametrize("name", ["tiny:parts", "conv2", "tiny:sequential", "test_formats:whole", *LARGE])
def test_tensorflow_lite_gives_the_same_outputs(name):
    state, images = random_state(name, (32, 32, 3)), noise((32, 32, 3))

    content = formats.make("tflite", Model(name=name), signature.images(32, 10), state).content

    assert off(interpreted(content, images), outputs_of(name, state, images)) < 1e-5


def operations(content):
    """The operations of a TensorFlow Lite file, in order: name, shapes of inputs and outputs, and its constant of integers."""
    import tensorflow as tf

    plain = tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = tf.lite.Interpreter(model_content=content, experimental_op_resolver_type=plain)
    interpreter.allocate_tensors()
    tensors = {tensor["index"]: tensor for tensor in interpreter.get_tensor_details()}
    for operation in interpreter._get_ops_details():
        inputs, outputs = ([tensors[index] for index in operation[side] if index >= 0] for side in ("inputs", "outputs"))
        integers = [interpreter.get_tensor(tensor["index"]).tolist() for tensor in inputs if tensor["dtype"] == np.int32]
        shapes = [[tensor["shape"].tolist() for tensor in side] for side in (inputs, outputs)]
        yield operation["op_name"], *shapes, *integers


@pytest.mark.parametrize("name", ["tiny:parts", "conv2", "test_formats:whole", *LARGE])
def test_an_int8_file_computes_in_whole_numbers_alone(name):
    state, images = random_state(name, (32, 32, 3)), noise((32, 32, 3))

    content = formats.make("tflite_int8", Model(name=name), signature.images(32, 10), state, images=images).content

    interpreter = Session(content, kernels=PLAIN).interpreter
    tensors = interpreter.get_tensor_details()
    assert {tensor["dtype"] for tensor in tensors} <= {np.int8, np.int32}
    assert [end[0]["dtype"] for end in (interpreter.get_input_details(), interpreter.get_output_details())] == [np.int8] * 2
    channels = {len(tensor["quantization_parameters"]["scales"]) for tensor in tensors if tensor["dtype"] == np.int8}
    assert max(channels) > 1
    expected = outputs_of(name, state, images)
    assert off(Session(content).answers(images), expected) < (0.3 if name == "mobilenet_v2" else 0.1)


def unquantisable(size, classes):
    images = keras.Input((size, size, 3))
    waves = keras.layers.Lambda(keras.ops.sin)(keras.layers.Dense(4)(keras.layers.Flatten()(images)))
    return keras.Model(images, keras.layers.Dense(classes)(waves), name="unquantisable")


def test_an_operation_without_an_int8_kernel_is_one_line():
    model = Model(name="test_formats:unquantisable")

    with pytest.raises(InputError, match=r"^unquantisable has no int8 kernel for SIN: export it without --int8$"):
        formats.make("tflite_int8", model, signature.images(8, 3), initial(model=model), images=noise((8, 8, 3)))


@pytest.mark.smoke
def test_the_file_of_a_symmetric_mobilenet_meets_the_conditions_of_sparse_inference():
    """Those of XNNPACK, in the README of its delegate in TensorFlow Lite."""
    model, symmetric = Model(alpha=0.35, padding="symmetric"), [[0, 0], [1, 1], [1, 1], [0, 0]]
    state = models.initial_weights(model, signature.images(64, 10), 0)
    steps = list(operations(formats.make("tflite", model, signature.images(64, 10), state).content))
    names = [step[0] for step in steps]

    assert names[:2] == ["PAD", "CONV_2D"]
    assert steps[1][1][1][1:] == [3, 3, 3]
    assert names[-2:] == ["MEAN", "FULLY_CONNECTED"]
    assert steps[-2][3] == [1, 2]
    assert set(names[2:-2]) == {"PAD", "CONV_2D", "DEPTHWISE_CONV_2D", "ADD"}
    halvings = 0
    for before, (name, inputs, outputs, *_) in pairwise(steps[1:-2]):
        if name == "CONV_2D":
            assert inputs[1][1:3] == [1, 1]
            assert inputs[0][:3] == outputs[0][:3]
        if name == "DEPTHWISE_CONV_2D":
            assert inputs[1][1:3] == [3, 3]
            halves = inputs[0][1] > outputs[0][1]  # else of stride 1, and padded by the operation itself
            halvings += halves
            assert (before[0] == "PAD") == halves
    assert halvings == 4
    pads = [step for step in steps if step[0] == "PAD"]
    assert [pad[3] for pad in pads] == [symmetric] * 5
    assert [pad[1][0][1] for pad in pads] == [64, 32, 16, 8, 4]


def wide(size, classes):
    images = keras.Input((size, size, 3))
    x = PointwiseConv2D(512, "he_normal", name="b")(PointwiseConv2D(256, "he_normal", name="a")(images))
    return keras.Model(images, keras.layers.Dense(classes)(keras.layers.GlobalAveragePooling2D()(x)))


@pytest.mark.parametrize(("name", "pointwise"), [("test_formats:wide", 2), *large(("mobilenet_v2", 34))])
def test_a_sparse_file_leaves_out_the_zeros_of_pointwise_kernels_and_answers_alike(name, pointwise):
    model, shape = Model(name=name, alpha=1.0, padding="symmetric"), (32, 32, 3)
    state, rng = random_state(name, shape, alpha=1.0), np.random.default_rng(0)
    for path, array in state.weights.items():
        if path.endswith("kernel") and array.shape[:2] == (1, 1):
            array[rng.random(array.shape) < 0.9] = 0

    whole, sparse = (
        formats.make(to, model, signature.images(shape[0], 10), state).content for to in ("tflite", "tflite_sparse")
    )

    names = [name for name, *_ in operations(sparse)]
    assert names.count("DENSIFY") == pointwise
    assert [name for name in names if name != "DENSIFY"] == [name for name, *_ in operations(whole)]
    assert len(sparse) < len(whole) / 4
    images = noise(shape)
    assert off(interpreted(sparse, images), outputs_of(name, state, images, alpha=1.0, padding="symmetric")) < 1e-5


@needs_mnn
@pytest.mark.parametrize("name", ["tiny:parts", "conv2", "test_formats:whole", *LARGE])
def test_mnn_gives_the_same_outputs(name, tmp_path):
    state, images = random_state(name, (32, 32, 3)), noise((32, 32, 3))

    (tmp_path / "x.mnn").write_bytes(formats.make("mnn", Model(name=name), signature.images(32, 10), state).content)

    answer = mnn_session.load(tmp_path / "x.mnn", threads=1)
    assert off(np.stack([answer(image) for image in images]), outputs_of(name, state, images)) < 1e-5


@needs_mnn
@pytest.mark.smoke
def test_zeros_of_pointwise_kernels_are_left_out_of_an_mnn_file():
    """Which is how sparse kernels show; MNN takes them from 60 % of zeros on."""
    state = random_state("mobilenet_v2", (32, 32, 3))
    for array in state.weights.values():
        if array.shape[:2] == (1, 1):
            array[np.random.default_rng(0).random(array.shape) < 0.9] = 0

    sizes = {
        to: len(formats.make(to, Model(name="mobilenet_v2"), signature.images(32, 10), state).content)
        for to in ("mnn", "mnn_dense")
    }

    assert sizes["mnn"] < sizes["mnn_dense"] / 2


def test_without_mnn_one_line_says_what_to_install(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "MNN" else find(name))

    with pytest.raises(InputError, match=r"^an \.mnn file needs MNN: pip install 'imp-lottery\[mnn\]'$"):
        formats.make("mnn", lenet(), signature.images(8, 3), initial())


@needs_mnn
def test_a_network_that_mnn_cannot_read_is_one_line_though_its_converter_crashes(monkeypatch):
    monkeypatch.setattr(mnn.tflite, "write", lambda network, images: (b"nothing of the kind" * 99, images))

    with pytest.raises(
        InputError, match=r"^MNN cannot express lenet_300_100 \(.*TFlite model version ERROR!\): export to tflite$"
    ):
        formats.make("mnn", lenet(), signature.images(8, 3), initial())


@pytest.mark.parametrize("name", ["tiny:parts", "tiny:synchronised", "test_formats:nested"])
def test_a_rebuilt_network_has_stock_layers_and_the_variables_of_ours(name):
    ours = models.build(Model(name=name), signature.images(32, 10))

    rebuilt = rebuild(ours)

    assert not not_stock(rebuilt)
    assert {variable.path: variable.shape for variable in rebuilt.variables} == {
        variable.path: variable.shape for variable in ours.variables
    }
    normalisers = [layer for layer in rebuilt._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    assert normalisers
    assert {(layer.momentum, layer.epsilon) for layer in normalisers} == {(0.9, 1e-3)}


def test_what_is_of_the_users_own_stays_and_is_named(tmp_path):
    model = Model(name="test_formats:whole")
    state = initial(model=model)

    made = formats.make("keras", model, signature.images(8, 3), state)

    assert made.needs == [Whole]
    (tmp_path / "x.keras").write_bytes(made.content)
    loaded = keras.models.load_model(tmp_path / "x.keras", custom_objects={"Whole": Whole})
    np.testing.assert_array_equal(loaded.dense.kernel, state.weights["whole/dense/kernel"])


def test_a_network_that_keras_cannot_write_is_one_line():
    model = Model(name="test_formats:secretive")

    with pytest.raises(InputError, match=r"cannot be loaded from a \.keras file .*Secretive.*, or export to npz$") as raised:
        formats.make("keras", model, signature.images(8, 3), initial(model=model))

    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["tiny:parts", "test_formats:grouped", "test_formats:whole", *large("mobilenet_v2")])
def test_onnx_runtime_gives_the_same_outputs(name):
    runtime = pytest.importorskip("onnxruntime")
    state, images = random_state(name, (16, 16, 3)), noise((16, 16, 3))

    content = formats.make("onnx", Model(name=name), signature.images(16, 10), state).content

    outputs = runtime.InferenceSession(content).run(["logits"], {"images": images})[0]
    assert off(outputs, outputs_of(name, state, images)) < 1e-5


def test_onnx_without_its_libraries_says_how_to_get_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match=r"^--to onnx needs onnx: pip install 'imp-lottery\[onnx\]'$"):
        formats.make("onnx", lenet(), signature.images(8, 3), initial())


def test_a_network_that_onnx_cannot_express_is_one_line():
    pytest.importorskip("tf2onnx")
    model = Model(name="test_formats:inexpressible")
    with pytest.raises(InputError, match="ONNX cannot express inexpressible"):
        formats.make("onnx", model, signature.images(8, 3), initial(model=model))


def test_whatever_it_was_trained_in_a_network_is_exported_in_float32(tmp_path):
    state = initial()
    state.weights.update({path: array.astype(np.float64) for path, array in state.weights.items()})

    (tmp_path / "x.keras").write_bytes(formats.make("keras", lenet(), signature.images(8, 3), state).content)

    loaded = keras.models.load_model(tmp_path / "x.keras")
    assert {variable.dtype for variable in loaded.variables} == {loaded.compute_dtype} == {"float32"}
    assert keras.config.dtype_policy().name == "float32"
