"""A first layer that whitens: it takes the images' patches apart into directions that vary alike, and not together."""

import keras
import numpy as np

SIZE = 3  # of a patch, in pixels
IMAGES = 1000  # from whose patches the directions are taken
EPSILON = 1e-2  # on the variances: directions in which next to nothing varies are not blown up
NAME = "whiten"
PATH = f"{NAME}/kernel"


def layer(channels: int) -> keras.layers.Layer:
    """The convolution, one filter for each number of a patch; its kernel is not trained and has to be filled in."""
    return keras.layers.Conv2D(SIZE**2 * channels, SIZE, padding="same", use_bias=False, trainable=False, name=NAME)


def kernel(images: np.ndarray) -> np.ndarray:
    """The kernel (float32, [3, 3, channels, 9 channels]) that gives the patches of `images` (float, [n, height, width,
    channels], scaled as the network gets them) uncorrelated values of variance 1, or less where they vary by less than
    `EPSILON` (PCA whitening of patches: Coates & Ng 2012, and Page's "How to train your ResNet", part 8).

    The directions come by falling variance, each with its largest part positive."""
    numbers = SIZE * SIZE * images.shape[3]
    count, total, products = 0, np.zeros(numbers), np.zeros((numbers, numbers))
    for image in images:
        windows = np.lib.stride_tricks.sliding_window_view(image.astype(np.float64), (SIZE, SIZE), axis=(0, 1))
        patches = windows.transpose(0, 1, 3, 4, 2).reshape(-1, numbers)
        count, total, products = count + len(patches), total + patches.sum(axis=0), products + patches.T @ patches
    mean = total / count
    variances, directions = np.linalg.eigh(products / count - np.outer(mean, mean))
    variances, directions = variances[::-1], directions[:, ::-1]
    largest = directions[np.argmax(np.abs(directions), axis=0), np.arange(len(variances))]
    scaled = directions * np.sign(largest) / np.sqrt(np.maximum(variances, 0) + EPSILON)
    return scaled.reshape(SIZE, SIZE, images.shape[3], -1).astype(np.float32)
