"""Which places of a kernel meet the map: held against networks of which one weight after the other is changed."""

from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from lottery.engine.layers import GroupedConv2D, PointwiseConv2D
from lottery.networks.topology import topology
from lottery.pruning.connectivity import met

keras = pytest.importorskip("keras")
layers = keras.layers
pytestmark = pytest.mark.usefixtures("tensorflow")  # set up before a test here starts it

KERNELS = ["kernel", "depthwise_kernel"]


def chain(shape, *steps):
    """The network of `steps` in a row on images of `shape`."""
    x = images = keras.Input(shape)
    for step in steps:
        x = step(x)
    return keras.Model(images, x)


def places(network):
    """What the topology says of the window of the last layer's kernel: which places are met."""
    variable = kernel(network)
    found = met(topology(network)).get(variable.path, True)
    return np.broadcast_to(found, (*variable.shape[:-2], 1, 1))[..., 0, 0]


def kernel(network):
    return next(variable for variable in network.layers[-1].variables if variable.path.rsplit("/")[-1] in KERNELS)


def places_that_matter(network):
    """The places of that window where a weight's change changes the output of one image otherwise than that of another.

    All weights are positive and biases small, so that no pool prefers a constant to what depends on the images.
    """
    rng = np.random.default_rng(0)
    for variable in network.variables:
        low, high = (0, 1e-6) if variable.path.endswith("bias") else (0.5, 1)
        variable.assign(rng.uniform(low, high, variable.shape))
    images = rng.uniform(1, 2, (3, *network.input_shape[1:])).astype("float32")
    variable = kernel(network)
    weights = np.array(variable)
    before = network(images).numpy()
    found = np.zeros(weights.shape[:-2], bool)
    for place in np.ndindex(found.shape):
        changed = weights.copy()
        changed[place][0, 0] += 1
        variable.assign(changed)
        differences = network(images).numpy() - before
        found[place] = np.ptp(differences, axis=0).max() > 1e-3
    return found


PADDINGS = st.tuples(*[st.tuples(st.integers(0, 3), st.integers(0, 3))] * 2)
SMALL = st.integers(1, 3)
SAME = st.sampled_from(["same", "valid"])


def made(kind, *arguments, **options):
    """Layers of a kind yet to be made, by strategies of their arguments."""
    return st.builds(partial, st.just(kind), *arguments, **options)


BEFORE = st.one_of(
    made(layers.ZeroPadding2D, PADDINGS),
    made(layers.Cropping2D, PADDINGS),
    made(layers.UpSampling2D, st.tuples(SMALL, SMALL)),
    made(layers.MaxPooling2D, SMALL, SMALL, SAME),
    made(layers.AveragePooling2D, SMALL, SMALL, SAME),
    made(layers.ReLU),
    made(layers.Conv2D, st.just(2), SMALL, SMALL, SAME),
    made(layers.Conv2DTranspose, st.just(2), SMALL, SMALL),
)
SIZES, STRIDES = st.tuples(st.integers(1, 5), st.integers(1, 5)), st.integers(1, 4)
DILATED = {"padding": SAME, "dilation_rate": st.integers(1, 3)}
CONVOLUTIONS = st.one_of(
    made(layers.Conv2D, st.just(2), SIZES, STRIDES, SAME),
    made(layers.Conv2D, st.just(2), SIZES, **DILATED),
    made(layers.DepthwiseConv2D, SIZES, STRIDES, SAME),
    made(layers.DepthwiseConv2D, SIZES, **DILATED),
    made(layers.SeparableConv2D, st.just(2), SIZES, STRIDES, SAME),
    made(layers.Conv2DTranspose, st.just(2), SIZES, STRIDES, SAME),
    made(GroupedConv2D, st.just(2), SMALL, STRIDES, st.just(2), st.just("ones")),
    made(PointwiseConv2D, st.just(2), st.just("ones")),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(SIZES, st.lists(BEFORE, max_size=2), CONVOLUTIONS)
def test_exactly_those_places_are_met_whose_weights_bring_something_of_the_images(size, before, convolution):
    try:
        network = chain((*size, 2), *(layer() for layer in [*before, convolution]))
    except ValueError:  # a map smaller than what is to be read or cropped of it
        reject()

    assert places(network).tolist() == places_that_matter(network).tolist()


@pytest.mark.parametrize(
    ("length", "stride", "dilation", "padding"),
    [(1, 1, 1, "same"), (2, 2, 1, "causal"), (3, 1, 2, "valid"), (7, 1, 3, "causal"), (2, 1, 3, "same"), (3, 2, 1, "same")],
)
def test_so_it_is_along_one_axis(length, stride, dilation, padding):
    padded = length + (2 * dilation if padding == "valid" else 0)
    network = chain(
        (length, 2), layers.ZeroPadding1D((padded - length, 0)), layers.Conv1D(2, 3, stride, padding, dilation_rate=dilation)
    )

    assert places(network).tolist() == places_that_matter(network).tolist()


def test_so_it_is_along_three_axes():
    network = chain((1, 2, 3, 2), layers.ZeroPadding3D((0, 1, 0)), layers.Conv3D(2, 3, padding="same"))

    assert places(network).tolist() == places_that_matter(network).tolist()
    assert places(network).sum() == 1 * 3 * 3


def merged(merge, *amounts):
    """`merge` of images of 1x1 pixels padded in different ways to 5x5, then a convolution that reads its corners only."""
    images = keras.Input((1, 1, 2))
    x = merge([layers.ZeroPadding2D(amount)(images) for amount in amounts])
    return keras.Model(images, layers.Conv2D(2, 2, strides=4, padding="same")(x))


CORNERS = ((0, 4), (0, 4)), ((4, 0), (4, 0))


@pytest.mark.parametrize("merge", [layers.Add(), layers.Concatenate(), layers.Maximum()])
def test_a_merge_depends_on_the_images_where_one_of_its_inputs_does(merge):
    middle = merged(merge, 2, 2)
    assert not places(middle).any()
    assert places(middle).tolist() == places_that_matter(middle).tolist()
    corners = merged(merge, *CORNERS)
    assert places(corners).tolist() == places_that_matter(corners).tolist()


def test_of_an_operation_that_may_do_anything_every_position_counts():
    padding, last = layers.ZeroPadding2D(4), layers.Conv2D(2, 3, strides=9, padding="same")

    assert places(chain((1, 1, 2), padding, last)).sum() == 0
    assert places(chain((1, 1, 2), padding, layers.Lambda(abs), last)).all()
    assert places(chain((1, 1, 2), padding, layers.Reshape((9, 9, 2)), last)).all()


def test_of_maps_whose_size_is_not_known_every_position_counts():
    network = chain((None, None, 2), layers.ZeroPadding2D(4), layers.Conv2D(2, 3, padding="same"))

    assert places(network).all()
    assert met(topology(network)) == {}


def test_a_kernel_that_is_used_twice_is_met_where_either_use_meets_it():
    shared = layers.Conv2D(2, 3, padding="same")
    images = keras.Input((4, 4, 2))
    small = shared(layers.MaxPooling2D(4)(images))
    once = met(topology(keras.Model(images, small)))
    assert once[shared.kernel.path][..., 0, 0].tolist() == [[False] * 3, [False, True, False], [False] * 3]

    both = keras.Model(images, [small, shared(images)])
    assert met(topology(both)) == {}


def test_a_network_within_a_network_is_followed_too():
    inner = chain((1, 1, 2), layers.Conv2D(2, 3, padding="same"))
    network = chain((4, 4, 2), layers.AveragePooling2D(4), inner)

    assert [array.sum() for array in met(topology(network)).values()] == [1]
