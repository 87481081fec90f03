"""Where images come from. A source yields raw images of one split; preparing (resizing, splitting, sharding) is not its job."""

import contextlib
import dataclasses
import difflib
import sys
from collections.abc import Callable, Iterator

import numpy as np

from data_prep.errors import InputError

Examples = Iterator[tuple[np.ndarray, int]]


@dataclasses.dataclass(frozen=True)
class Source:
    """A labelled image set: class names, and its splits (`train`, perhaps `test`) as functions that yield examples.

    An example is (image, label): uint8 [height, width, 1 or 3] and an index into `classes`.
    """

    classes: list[str]
    splits: dict[str, Callable[[], Examples]]


def open_source(name: str) -> Source:
    """`digits`, or `tfds:NAME` for any image classification set of TensorFlow Datasets."""
    if name == "digits":
        return digits()
    if name.startswith("tfds:"):
        return tfds_source(name.removeprefix("tfds:"))
    raise InputError(f"unknown data source {name!r}: write `digits`, or `tfds:NAME` such as `tfds:cifar10`")


def digits() -> Source:
    """The 1,797 handwritten digits (8x8, 17 grey levels) that scikit-learn bundles: the test part of UCI's
    optical-recognition set (Alpaydin & Kaynak 1998). One split; a test split is cut from it."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]

    def train() -> Examples:
        return zip(images, map(int, bunch.target), strict=True)

    return Source([str(digit) for digit in bunch.target_names], {"train": train})


def tfds_source(name: str) -> Source:
    """A set of TensorFlow Datasets with features `image` and `label`, read from TFDS's own data folder
    (`TFDS_DATA_DIR`), downloaded there when missing. Its test split, or else its validation split, is the test split."""
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name)
    except tfds.core.DatasetNotFoundError:
        near = difflib.get_close_matches(name, tfds.list_builders(with_community_datasets=False), n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "see `tfds.list_builders()`"
        raise InputError(f"TensorFlow Datasets has no set {name!r}: {hint}") from None
    except (AssertionError, ValueError) as error:  # a version or a configuration that does not exist
        raise InputError(f"TensorFlow Datasets has no {name!r}: {_first_line(error)}") from None
    features = builder.info.features
    if not isinstance(features, dict | tfds.features.FeaturesDict) or not {"image", "label"} <= set(features.keys()):
        raise InputError(f"{name} of TensorFlow Datasets has no images with one label each: choose another set")
    if not isinstance(features["label"], tfds.features.ClassLabel):
        raise InputError(f"the labels of {name} of TensorFlow Datasets are not classes: choose another set")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # TFDS tells its progress there
            builder.download_and_prepare()
    except Exception as error:  # no network, no disk, a set to be fetched by hand: TFDS has an exception for each
        raise InputError(f"TensorFlow Datasets cannot prepare {name} in {builder.data_dir}: {_first_line(error)}") from error

    def split(part: str) -> Callable[[], Examples]:
        def examples() -> Examples:
            for example in tfds.as_numpy(builder.as_dataset(split=part)):
                yield example["image"], int(example["label"])

        return examples

    available = builder.info.splits
    if "train" not in available:
        raise InputError(f"{name} of TensorFlow Datasets has no split `train`, only {', '.join(available)}: choose another set")
    splits = {"train": split("train")}
    if held_out := next((part for part in ("test", "validation") if part in available), None):
        splits["test"] = split(held_out)
    return Source(list(features["label"].names), splits)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
