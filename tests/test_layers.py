"""Layers of our own against Keras's, BatchNorm in every dtype, and its statistics over replicas."""

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from lottery.engine.layers import BatchNorm, GroupedConv2D, PointwiseConv2D, SynchronisedBatchNorm, depthwise  # noqa: E402


def values(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).normal(3, 2, shape).astype(dtype)


def made(layer, momentum=0.75, **options):
    """A BatchNorm whose gamma and beta are not their initial ones."""
    built = layer(momentum, 1e-3, "ones", name="bn", **options)
    built.build((None, None, None, 5))
    built.gamma.assign(values(5, seed=1))
    built.beta.assign(values(5, seed=2))
    return built


@pytest.mark.parametrize("layer", [BatchNorm, SynchronisedBatchNorm])
def test_batch_norm_moves_its_statistics_by_its_momentum(tensorflow, layer):
    inputs, normalise = values(8, 4, 4, 5), made(layer)

    normalise(inputs, training=True)

    np.testing.assert_allclose(normalise.moving_mean, 0.25 * inputs.mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(normalise.moving_variance, 0.75 + 0.25 * inputs.var((0, 1, 2), ddof=1), rtol=1e-5)


def test_batch_norm_in_inference_uses_the_moving_statistics(tensorflow):
    normalise = made(BatchNorm)
    normalise.moving_mean.assign(values(5, seed=3))
    normalise.moving_variance.assign(values(5, seed=4) ** 2)
    stock = keras.layers.BatchNormalization(epsilon=1e-3)
    stock.build((None, 4, 4, 5))
    stock.set_weights(normalise.get_weights())
    inputs = values(8, 4, 4, 5)

    np.testing.assert_allclose(normalise(inputs), stock(inputs), rtol=1e-4, atol=1e-4)


def trained(tensorflow, layer, inputs, **options):
    """Outputs of a training call, gradients of a function of them with respect to inputs, gamma and beta, and statistics."""
    normalise = made(layer, **options)
    inputs = tensorflow.constant(inputs)
    with tensorflow.GradientTape() as tape:
        tape.watch(inputs)
        outputs = normalise(inputs, training=True)
        weighted = tensorflow.reduce_sum(tensorflow.cast(outputs, "float32") ** 2 * values(*inputs.shape, seed=5))
    gradients = tape.gradient(weighted, [inputs, normalise.gamma.value, normalise.beta.value])
    return [np.asarray(array, "float64") for array in (outputs, *gradients, *normalise.get_weights())]


@pytest.mark.parametrize(
    ("layer", "dtype", "tolerance"),
    [
        (BatchNorm, "float64", 1e-4),
        (BatchNorm, "mixed_float16", 1e-2),
        (BatchNorm, "mixed_bfloat16", 5e-2),
        (SynchronisedBatchNorm, "float32", 1e-4),
        (SynchronisedBatchNorm, "float64", 1e-4),
        (SynchronisedBatchNorm, "mixed_float16", 1e-2),
        (SynchronisedBatchNorm, "mixed_bfloat16", 5e-2),
    ],
)
def test_every_batch_norm_agrees_with_the_fused_kernel_in_float32(tensorflow, layer, dtype, tolerance):
    inputs = values(8, 4, 4, 5)

    expected = trained(tensorflow, BatchNorm, inputs)
    found = trained(tensorflow, layer, inputs.astype("float64" if dtype == "float64" else "float32"), dtype=dtype)

    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() <= tolerance * np.abs(other).max()


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_in_mixed_precision_batch_norm_keeps_its_variables_and_scales_in_float32(tensorflow, dtype):
    normalise = made(BatchNorm, dtype=dtype)
    normalise.moving_mean.assign(np.full(5, 1e4, "float32"))  # of which a scale in 8 to 11 bits would lose the offset

    outputs = normalise(np.full((1, 2, 2, 5), 1e4, "float32"))

    assert {variable.dtype for variable in normalise.variables} == {"float32"}
    assert outputs.dtype.name == dtype.removeprefix("mixed_")
    assert normalise(values(2, 2, 2, 5), training=True).dtype == outputs.dtype


@pytest.mark.parametrize("layer", [BatchNorm, SynchronisedBatchNorm])
def test_a_stateless_call_returns_the_statistics_and_leaves_the_live_ones(tensorflow, layer):
    images = keras.Input((4, 4, 5))
    network = keras.Model(images, layer(0.75, 1e-3, "ones", name="bn")(images))
    inputs, before = values(8, 4, 4, 5), [np.array(variable) for variable in network.non_trainable_variables]

    outputs, after = network.stateless_call(
        [variable.value for variable in network.trainable_variables],
        [variable.value for variable in network.non_trainable_variables],
        inputs,
        training=True,
    )

    for variable, old in zip(network.non_trainable_variables, before, strict=True):
        np.testing.assert_array_equal(variable, old)
    np.testing.assert_allclose(outputs, network(inputs, training=True), rtol=1e-6)
    for variable, new in zip(network.non_trainable_variables, after, strict=True):
        np.testing.assert_array_equal(variable, new)


def test_a_synchronised_variance_keeps_its_digits_about_a_mean_far_from_nought(tensorflow):
    inputs, normalise = values(8, 4, 4, 5) + 1e4, made(SynchronisedBatchNorm, momentum=0)

    normalise(inputs, training=True)

    np.testing.assert_allclose(normalise.moving_variance, inputs.astype("float64").var((0, 1, 2), ddof=1), rtol=1e-4)


def replicated(tensorflow, layer, inputs, replicas):
    """What `layer` gives, with gradients and statistics, when `inputs` are divided among replicas."""
    devices = [f"CPU:{index}" for index in range(replicas)]
    reduction = tensorflow.distribute.ReductionToOneDevice()
    strategy = tensorflow.distribute.MirroredStrategy(devices, reduction)
    with strategy.scope():
        normalise = made(layer, dtype="float64")
    share = len(inputs) // replicas

    @tensorflow.function
    def step(inputs):
        first = tensorflow.distribute.get_replica_context().replica_id_in_sync_group * share
        own = inputs[first : first + share]
        with tensorflow.GradientTape() as tape:
            tape.watch(own)
            outputs = normalise(own, training=True)
            loss = tensorflow.reduce_sum(outputs**3)
        return outputs, *tape.gradient(loss, [own, normalise.gamma.value, normalise.beta.value])

    found = [strategy.experimental_local_results(result) for result in strategy.run(step, (tensorflow.constant(inputs),))]
    outputs, inward = (np.concatenate(parts) for parts in found[:2])
    return [outputs, inward, *(np.sum(parts, axis=0) for parts in found[2:]), *(np.array(v) for v in normalise.variables)]


def test_synchronised_statistics_do_not_depend_on_the_number_of_replicas(tensorflow):
    inputs = values(8, 4, 4, 5, dtype="float64")

    one, two, four = (replicated(tensorflow, SynchronisedBatchNorm, inputs, replicas) for replicas in (1, 2, 4))
    local = replicated(tensorflow, BatchNorm, inputs, 2)

    for alone, half, quarter in zip(one, two, four, strict=True):
        np.testing.assert_allclose(half, alone, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(quarter, alone, rtol=1e-10, atol=1e-10)
    assert np.abs(local[0] - one[0]).max() > 0.01


def test_local_moving_statistics_are_those_of_the_replicas_own_part(tensorflow):
    inputs = values(8, 4, 4, 5, dtype="float64")

    *_, mean, variance = replicated(tensorflow, BatchNorm, inputs, 2)

    first, _ = np.split(inputs, 2)
    np.testing.assert_allclose(mean, 0.25 * first.mean((0, 1, 2)))
    np.testing.assert_allclose(variance, 0.75 + 0.25 * first.var((0, 1, 2), ddof=1))


@pytest.mark.parametrize(
    ("dtype", "tolerance", "stride", "groups", "padding"),
    [
        ("float64", 1e-12, 1, 1, "same"),
        ("mixed_bfloat16", 2e-2, 1, 1, "same"),
        ("mixed_float16", 1e-2, 1, 2, "same"),
        ("float64", 1e-12, 2, 2, "same"),
        ("float32", 1e-5, 2, 2, "valid"),
    ],
)
def test_a_convolution_of_ours_is_kerass(tensorflow, dtype, tolerance, stride, groups, padding):
    """The same variable, outputs and gradients."""
    size, options = 3 if groups > 1 else 1, {"dtype": dtype} if padding == "same" else {"dtype": dtype, "padding": padding}
    ours = GroupedConv2D(8, 3, stride, 2, "he_normal", **options) if groups > 1 else PointwiseConv2D(8, "he_normal", **options)
    theirs = keras.layers.Conv2D(8, size, stride, padding=padding, groups=groups, use_bias=False, dtype=dtype)
    inputs = tensorflow.constant(values(2, 5, 5, 4, dtype="float64" if dtype == "float64" else "float32"))
    found = []
    for layer in (ours, theirs):
        layer.build(inputs.shape)
        layer.kernel.assign(ours.kernel)
        with tensorflow.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs)
            loss = tensorflow.reduce_sum(tensorflow.cast(outputs, "float32") ** 2)
        found.append([outputs, *tape.gradient(loss, [inputs, layer.kernel.value])])

    assert (ours.kernel.name, ours.kernel.shape) == (theirs.kernel.name, theirs.kernel.shape)
    images = keras.Input((5, 5, 4))
    assert ours(images).shape == theirs(images).shape
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype
        one, other = (np.asarray(array, "float64") for array in (one, other))
        assert np.abs(one - other).max() <= tolerance * np.abs(other).max()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("size", "window", "padding"),
    [
        *(((height, width), 3, "same") for height, width in ((1, 1), (1, 4), (2, 2), (3, 1))),
        ((2, 2), 2, "valid"),
        ((4, 1), 1, "valid"),
    ],
)
def test_the_gradient_of_a_depthwise_kernel_on_few_pixels_is_tensorflows(tensorflow, size, window, padding, stride):
    rng = np.random.default_rng(0)
    images, kernel = (
        tensorflow.constant(rng.normal(size=(5, *size, 7))),
        tensorflow.constant(rng.normal(size=(window, window, 7, 1))),
    )
    with tensorflow.GradientTape(persistent=True) as tape:
        tape.watch([images, kernel])
        outputs = depthwise(images, kernel, stride, padding)
        expected = tensorflow.nn.depthwise_conv2d(images, kernel, [1, stride, stride, 1], padding.upper())
        loss, its_loss = tensorflow.reduce_sum(outputs**3), tensorflow.reduce_sum(expected**3)
    np.testing.assert_array_equal(outputs, expected)
    for variable in (images, kernel):
        np.testing.assert_allclose(tape.gradient(loss, variable), tape.gradient(its_loss, variable), rtol=1e-12, atol=1e-12)
