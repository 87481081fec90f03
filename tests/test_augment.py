"""Augmentation in the compiled step against the same in plain NumPy, pixel by pixel, on one device and on two."""

import numpy as np
import pytest
import tensorflow as tf

from lottery.engine import order
from lottery.engine.augment import augment, cut_out, normalise
from lottery.experiment.recipe import Data

pytestmark = pytest.mark.usefixtures("tensorflow")

SIZE = 9
PLAIN = {"size": SIZE, "crop": 0}


def noise(count, size=SIZE):
    return np.random.default_rng(0).integers(1, 256, (count, size, size, 3)).astype(np.uint8)


def on_one_device(function, *values):
    return function(*values).numpy()


def on_two_devices(function, *values):
    """What `function` makes of two halves of `values`, each on its own replica, inside one compiled function."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    half = len(values[0]) // 2

    def replica():
        first = tf.distribute.get_replica_context().replica_id_in_sync_group * half
        return function(*(tf.constant(array)[first : first + half] for array in values))

    halves = tf.function(lambda: strategy.run(replica))()
    return np.concatenate([part.numpy() for part in strategy.experimental_local_results(halves)])


everywhere = pytest.mark.parametrize("run", [on_one_device, on_two_devices])


def augmented(run, data, images, **draws):
    def function(images, *values):
        return augment(images, dict(zip(draws, values, strict=True)), data)

    return run(function, images, *draws.values())


@everywhere
@pytest.mark.parametrize("flip", [False, True])
def test_every_crop_is_a_slice_of_the_padded_image_mirrored_or_not(run, flip):
    places = [(down, right, mirror) for down in range(5) for right in range(5) for mirror in range(1 + flip)]
    places += places[: len(places) % 2]
    images = noise(len(places))
    draws = {"corner": np.array([place[:2] for place in places], np.int32)}
    if flip:
        draws["mirrored"] = np.array([place[2] for place in places], np.int32)

    found = augmented(run, Data(size=SIZE, crop=2, flip=flip), images, **draws)

    assert found.dtype == np.uint8
    for image, (down, right, mirror), moved in zip(images, places, found, strict=True):
        cropped = np.pad(image, ((2, 2), (2, 2), (0, 0)))[down : down + SIZE, right : right + SIZE]
        np.testing.assert_array_equal(moved, cropped[:, ::-1] if mirror else cropped)


@pytest.mark.parametrize("varied", [{"crop": 2, "flip": True}, {"crop": 0, "resized_crop": 0.3, "flip": True}])
def test_one_channel_is_varied_like_each_of_three(varied):
    data, images = Data(size=SIZE, **varied), noise(20)
    draws = order.draws(data, 20, 0, 0)

    grey = augmented(on_one_device, data, images[..., 1:2], **draws)

    assert grey.shape == (20, SIZE, SIZE, 1)
    np.testing.assert_array_equal(grey, augmented(on_one_device, data, images, **draws)[..., 1:2])


def test_images_that_are_not_to_be_varied_are_left_alone():
    images = noise(4)

    assert augment(images, {}, Data(**PLAIN)) is images


def bilinear(image, box):
    """The part of `image` in `box` at the image's own size; pixels are squares and the image goes on beyond its border."""
    size = len(image)

    def axis(start, stop):
        places = np.clip((start + (np.arange(size) + 0.5) / size * (stop - start)) * size - 0.5, 0, size - 1)
        before = np.floor(places).astype(int)
        return before, np.minimum(before + 1, size - 1), places - before

    top, bottom, down = axis(box[0], box[2])
    left, right, along = axis(box[1], box[3])
    image = image.astype(np.float64)
    rows = image[top] * (1 - down[:, None, None]) + image[bottom] * down[:, None, None]
    return rows[:, left] * (1 - along[:, None]) + rows[:, right] * along[:, None]


@everywhere
@pytest.mark.parametrize(("size", "flip"), [(8, True), (9, False)])
def test_a_resized_crop_is_interpolated_bilinearly_and_then_mirrored(run, size, flip):
    data = Data(size=size, crop=0, resized_crop=0.1, flip=flip)
    images, draws = noise(64, size), order.draws(data, 64, 0, 0)

    found = augmented(run, data, images, **draws)

    assert found.dtype == np.uint8
    for index, (image, box) in enumerate(zip(images, draws["box"], strict=True)):
        expected = bilinear(image, box.astype(np.float64))
        if flip and draws["mirrored"][index]:
            expected = expected[:, ::-1]
        assert np.abs(found[index] - expected).max() < 0.51


@everywhere
@pytest.mark.parametrize("size", [9, 32])
def test_a_crop_of_the_whole_image_is_the_image(run, size):
    images = noise(4, size)
    box = np.tile(np.array([0, 0, 1, 1], np.float32), (4, 1))

    np.testing.assert_array_equal(augmented(run, Data(size=size, crop=0, resized_crop=0.5), images, box=box), images)


@everywhere
@pytest.mark.parametrize("side", [1, 4, 9, 40])
def test_a_square_is_cut_out_and_ends_at_the_border(run, side):
    holes = np.array([(row, column) for row in (0, 1, 4, 7, 8) for column in (0, 3, 5, 8)], np.int32)
    images = noise(len(holes)).astype(np.float32)

    found = run(lambda images, hole: cut_out(images, hole, side), images, holes)

    for image, (row, column), left in zip(images, holes, found, strict=True):
        expected = image.copy()
        top, start = row - side // 2, column - side // 2
        expected[max(top, 0) : max(top + side, 0), max(start, 0) : max(start + side, 0)] = 0
        np.testing.assert_array_equal(left, expected)


def test_normalised_images_lie_between_minus_one_and_one():
    found = normalise(np.array([0, 51, 255], np.uint8), Data()).numpy()

    np.testing.assert_array_equal(found, np.array([-1, -0.6, 1], np.float32))


def test_images_are_scaled_by_channel_as_the_recipe_says():
    data = Data(mean=[0.0, 0.2, 0.5], deviation=[1.0, 0.4, 0.5])

    found = normalise(np.array([[[51, 51, 255]]], np.uint8), data).numpy()

    np.testing.assert_allclose(found, [[[0.2, 0.0, 1.0]]], atol=1e-7)
