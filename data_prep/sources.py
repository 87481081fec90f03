"""Where images come from. A source yields raw images of one split; preparing (resizing, splitting, sharding) is not its job."""

import dataclasses
import difflib
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
    label = (builder.info.features or {}).get("label")
    if not isinstance(label, tfds.features.ClassLabel) or "image" not in builder.info.features:
        raise InputError(f"{name} of TensorFlow Datasets has no image with one class label: choose another set")
    builder.download_and_prepare()

    def split(part: str) -> Callable[[], Examples]:
        def examples() -> Examples:
            for example in tfds.as_numpy(builder.as_dataset(split=part)):
                yield example["image"], int(example["label"])

        return examples

    available = builder.info.splits
    splits = {"train": split("train")}
    if held_out := next((part for part in ("test", "validation") if part in available), None):
        splits["test"] = split(held_out)
    return Source(list(label.names), splits)
