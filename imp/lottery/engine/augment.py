"""Augmentation inside the compiled step: images varied as their draws (see `order.draws`) say. XLA makes one pass of each
function (36 times as fast on two cores as small copies). Scaling is left to the step: XLA rounds otherwise."""

from collections.abc import Mapping

import tensorflow as tf

from lottery.engine.scopes import part
from lottery.experiment.recipe import Data


def augment(images: tf.Tensor, draws: Mapping[str, tf.Tensor], data: Data) -> tf.Tensor:
    """`images` (uint8, [n, height, width, channels]) cropped and mirrored by their `draws` ([n, ...])."""
    mirrored = draws["mirrored"] if data.flip else tf.zeros(tf.shape(images)[:1], tf.int32)
    if data.resized_crop:
        return _resized(images, draws["box"], mirrored)
    if data.crop:
        return _cropped(images, draws["corner"] - data.crop, mirrored)
    if data.flip:
        return _cropped(images, tf.zeros([tf.shape(images)[0], 2], tf.int32), mirrored)
    return images


def normalise(images: tf.Tensor, data: Data) -> tf.Tensor:
    """uint8 0 .. 255 to float32: (x / 255 - mean) / deviation, of all channels or of each."""
    scale = [255 * deviation for deviation in data.deviation]
    offset = [mean / deviation for mean, deviation in zip(data.mean, data.deviation, strict=True)]
    if len(scale) == 1:
        return tf.cast(images, tf.float32) / scale[0] - offset[0]
    return tf.cast(images, tf.float32) / tf.constant(scale) - tf.constant(offset)


@tf.function(jit_compile=True, autograph=False)
@part("input")
def cut_out(images: tf.Tensor, hole: tf.Tensor, side: int) -> tf.Tensor:
    """`images` (float32, [n, height, width, channels]) with 0 in a square of `side` pixels centred at `hole`
    (int32, [n, 2]) and cut off at the border (DeVries & Taylor 2017)."""
    rows, columns = (
        (place >= hole[:, axis, None] - side // 2) & (place < hole[:, axis, None] - side // 2 + side)
        for axis, place in enumerate((tf.range(images.shape[1]), tf.range(images.shape[2])))
    )
    return tf.where((rows[:, :, None] & columns[:, None, :])[..., None], tf.zeros_like(images), images)


@tf.function(jit_compile=True, autograph=False)
@part("input")
def _cropped(images: tf.Tensor, corner: tf.Tensor, mirrored: tf.Tensor) -> tf.Tensor:
    """A crop of each image's own size that begins at `corner` (int32, [n, 2]), outside zero; some mirrored after that."""
    rows, inside_rows = _reach(corner[:, :1], images.shape[1])
    columns, inside_columns = _reach(corner[:, 1:], images.shape[2], mirrored[:, None] > 0)
    cropped = _gathered(images, rows, columns)
    inside = inside_rows[:, :, None, None] & inside_columns[:, None, :, None]
    return tf.where(inside, cropped, tf.zeros_like(cropped))


@tf.function(jit_compile=True, autograph=False)
@part("input")
def _resized(images: tf.Tensor, box: tf.Tensor, mirrored: tf.Tensor) -> tf.Tensor:
    """The part of each image in `box` (float32, [n, 4]: top, left, bottom, right, as fractions), interpolated bilinearly to
    the image's own size; some mirrored after that."""
    rows, low = _between(box[:, :1], box[:, 2:3], images.shape[1])
    columns, left = _between(box[:, 1:2], box[:, 3:], images.shape[2], mirrored[:, None] > 0)
    below, right = tf.minimum(rows + 1, images.shape[1] - 1), tf.minimum(columns + 1, images.shape[2] - 1)
    parts = [tf.cast(_gathered(images, row, column), tf.float32) for row in (rows, below) for column in (columns, right)]
    low, left = low[:, :, None, None], left[:, None, :, None]
    upper, lower = (parts[at] + (parts[at + 1] - parts[at]) * left for at in (0, 2))
    return tf.cast(tf.round(upper + (lower - upper) * low), tf.uint8)


def _gathered(images: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """From each image the pixels at `rows` x `columns` (int32, [n, height] and [n, width])."""
    return tf.gather(tf.gather(images, rows, axis=1, batch_dims=1), columns, axis=2, batch_dims=1)


def _reach(start: tf.Tensor, size: int, backwards: tf.Tensor | bool = False) -> tuple[tf.Tensor, tf.Tensor]:
    """Where each place of a crop that begins at `start` ([n, 1]) lies in its image, and whether it lies inside at all."""
    reach = tf.range(size)
    places = start + tf.where(backwards, reach[::-1], reach)
    return tf.clip_by_value(places, 0, size - 1), (places >= 0) & (places < size)


def _between(start: tf.Tensor, stop: tf.Tensor, size: int, backwards: tf.Tensor | bool = False) -> tuple[tf.Tensor, tf.Tensor]:
    """For each pixel of a crop from `start` to `stop` ([n, 1]) resized to `size`: the pixel before it, and how far beyond."""
    reach = (tf.range(size, dtype=tf.float32) + 0.5) / size
    reach = tf.where(backwards, reach[::-1], reach)
    places = tf.clip_by_value((start + reach * (stop - start)) * size - 0.5, 0.0, size - 1.0)
    before = tf.floor(places)
    return tf.cast(before, tf.int32), places - before
