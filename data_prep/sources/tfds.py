"""Image classification sets of TensorFlow Datasets. Images leave it encoded."""

import contextlib
import difflib
import hashlib
import logging
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.sources import Pictures, Source, Split
from data_prep.sources.tfds_reading import read
from lottery.base.errors import InputError, first_line

HELD_OUT = ("test", "validation")


def source(name: str, data_dir: Path | None = None) -> Source:
    """A set of TensorFlow Datasets with one image and one class label per example, read from `data_dir` (else TFDS's own
    folder, `TFDS_DATA_DIR`) and downloaded there when missing. Of `NAME[:10%]`, the training images are that part of its
    training split, in TFDS's own syntax. Its test split, or else its validation split, is kept for testing, whichever has
    labels. Raises InputError when there is no such set (with the nearest names) or part, or when it is not one of labelled
    images."""
    name, bracket, part = name.partition("[")
    builder = _builder(name, data_dir)
    _, label = _keys(name, builder)
    if data_dir is not None and not Path(builder.data_path).exists():
        raise InputError(
            f"--data-dir {data_dir} has no {builder.info.full_name}: name the folder that holds {builder.name}/, "
            "or leave it out to download the set"
        )
    try:
        with contextlib.redirect_stdout(sys.stderr):  # TFDS tells its progress there
            builder.download_and_prepare()
    except Exception as error:  # no network, no disk, a set to be fetched by hand: TFDS has an exception for each
        raise InputError(f"TensorFlow Datasets cannot prepare {name} in {builder.data_dir}: {_whole(error)}") from error
    available = builder.info.splits
    if "train" not in available:
        raise InputError(f"{name} of TensorFlow Datasets has no split `train`, only {', '.join(available)}: choose another set")

    def split(own: str, first: int = 0, last: int | None = None) -> Split:
        span = own if last is None else f"{own}[{first}:{last}]"
        labels = np.fromiter(read(Path(builder.data_path), span, label), np.int32)
        fingerprint = f"{builder.info.full_name} {span} {hashlib.sha256(labels.tobytes()).hexdigest()}"
        # TFDS has shuffled it.
        return Split(labels, fingerprint, lambda indices: partial(_examples, name, data_dir, own, first + indices), mixed=True)

    held_out = ((own, split(own)) for own in HELD_OUT if own in available)
    labelled = ((own, one) for own, one in held_out if len(one.labels) and one.labels.min() >= 0)
    tested, test = next(labelled, (None, None))
    others = [f"{own} ({available[own].num_examples:,})" for own in sorted(available) if own not in ("train", tested)]
    train = split("train", *(_span(bracket + part, available) if bracket else ()))
    return Source(list(builder.info.features[label].names), train, test, ", ".join(others))


def classes_to_download(name: str) -> list[str] | None:
    """The classes of a set that is not on this machine yet; None where it is. Raises InputError as `source` does."""
    name = name.partition("[")[0]
    builder = _builder(name, None)
    return None if Path(builder.data_path).exists() else list(builder.info.features[_keys(name, builder)[1]].names)


def _span(part: str, available: Mapping[str, Any]) -> tuple[int, int]:
    """Where a `part` (`[:10%]`) of the training split begins and ends."""
    import tensorflow_datasets as tfds

    try:
        (span,) = tfds.core.ReadInstruction.from_spec(f"train{part}").to_absolute(available)
        first, last = span.from_ or 0, available["train"].num_examples if span.to is None else span.to
        if first >= last:
            raise ValueError("it is empty")
    except (AssertionError, ValueError) as error:
        raise InputError(f"{part} is no part of the training split: write one like [:10%] ({first_line(error)})") from None
    return first, last


def _examples(name: str, data_dir: Path | None, split: str, indices: np.ndarray) -> Pictures:
    """Some examples of a split, by ascending index in the order of its files."""
    builder, wanted = _builder(name, data_dir), set(indices.tolist())
    first, last = int(indices[0]), int(indices[-1])
    images = read(Path(builder.data_path), f"{split}[{first}:{last + 1}]", _keys(name, builder)[0], encoded=True)
    encoded = [image for index, image in enumerate(images, first) if index in wanted]
    return Pictures([f"{split}[{index}]" for index in indices], encoded)


def _whole(error: Exception) -> str:
    """All that TFDS says, in one line: of a set to be fetched by hand, the first line says where to, and the others how."""
    return " ".join(str(error).split()) or type(error).__name__


def _is_news(record: logging.LogRecord) -> bool:
    """TFDS deprecates a name that it uses itself, once per feature it reads."""
    return "FeatureConnector.dtype" not in record.getMessage()


def _builder(name: str, data_dir: Path | None) -> Any:
    import tensorflow_datasets as tfds

    logging.getLogger("absl").addFilter(_is_news)
    if data_dir is not None and not data_dir.is_dir():
        raise InputError(f"--data-dir {data_dir} is not a folder: name the one that TensorFlow Datasets keeps its sets in")
    try:
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError:
        near = difflib.get_close_matches(name, tfds.list_builders(with_community_datasets=False), n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "see `tfds.list_builders()`"
        raise InputError(f"TensorFlow Datasets has no set {name!r}: {hint}") from None
    except (AssertionError, ValueError) as error:  # a version or a configuration that does not exist
        raise InputError(f"TensorFlow Datasets has no {name!r}: {_whole(error)}") from None


def _keys(name: str, builder: Any) -> tuple[str, str]:
    """The features that hold the image and its class: what the set calls its input and target, or `image` and `label`."""
    import tensorflow_datasets as tfds

    features = builder.info.features
    keys = builder.info.supervised_keys or ("image", "label")
    if len(keys) != 2 or not isinstance(features, dict | tfds.features.FeaturesDict) or not set(keys) <= set(features.keys()):
        raise InputError(f"{name} of TensorFlow Datasets has no images with one label each: choose another set")
    image, label = keys
    if not isinstance(features[image], tfds.features.Image) or features[image].np_dtype not in (np.uint8, np.uint16):
        raise InputError(f"{name} of TensorFlow Datasets has no images of 8 or 16 bits: choose another set")
    if not isinstance(features[label], tfds.features.ClassLabel):
        raise InputError(f"the labels of {name} of TensorFlow Datasets are not classes: choose another set")
    return image, label
