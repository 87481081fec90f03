"""What a trained network answers to the images of a split, and how sure it is: the file `predictions.h5`."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lottery.base.errors import InputError
from lottery.rundir import store

BINS = 15  # of confidence, as in Guo et al. 2017


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Of n images, in the order of their records: whether the network is `right` (bool, [n]), and its `answers` (the label with
    the highest probability, unsigned, [n]). By class (int64, [classes, 2]): its images, and the right answers to them. By
    confidence (float64, [15, 3], bins of equal width in 0 .. 1): images, right answers, and the sum of the confidences, which
    are the probabilities of the answers."""

    right: NDArray[np.bool_]
    answers: NDArray[np.unsignedinteger]
    by_class: NDArray[np.int64]
    by_confidence: NDArray[np.float64]

    @property
    def worst_class_accuracy(self) -> float:
        """The least accuracy over the classes that have images, 0 .. 1."""
        images, right = self.by_class[self.by_class[:, 0] > 0].T
        return float((right / images).min())

    @property
    def calibration_error(self) -> float:
        """The expected calibration error (ECE), 0 .. 1: how far accuracy and mean confidence are apart in each bin, on average
        over images (Guo et al. 2017, arXiv 1706.04599, section 2)."""
        images, right, confidence = self.by_confidence.T
        return float(np.abs(right - confidence).sum() / images.sum())

    def agreement(self, other: "Predictions") -> float:
        """The share of the images to which `other` gives the same answer, right or wrong."""
        return float(np.mean(self.answers == other.answers))


def of(labels: np.ndarray, answers: np.ndarray, confidence: np.ndarray, classes: int) -> Predictions:
    """Those of images with these labels (integers, [n]), answers, and confidences (floats 0 .. 1), among so many classes."""
    right = labels == answers
    by_class = [np.bincount(labels, minlength=classes), np.bincount(labels[right], minlength=classes)]
    places = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)  # a bin has its upper end, not its lower one
    by_confidence = [np.bincount(places, weights, BINS) for weights in (np.ones(len(labels)), right, confidence)]
    kind = np.min_scalar_type(classes - 1)
    return Predictions(right, answers.astype(kind), np.stack(by_class, 1), np.stack(by_confidence, 1))


def save(path: Path, by_split: Mapping[str, Predictions], step: int) -> None:
    """Write the predictions of each split after `step` steps; `right` is bit-packed, the first image in the highest bit."""
    groups = {split: vars(found) | {"right": np.packbits(found.right)} for split, found in by_split.items()}
    store.save(path, groups, {"step": step})


def load(path: Path) -> dict[str, Predictions]:
    """What `save` wrote, by split. Raises InputError as `store.load` does, and where the file holds something else."""
    groups, _ = store.load(path)
    names = {one.name for one in dataclasses.fields(Predictions)}
    if groups.keys() != {"validation", "test"} or any(arrays.keys() != names for arrays in groups.values()):
        raise InputError(f"{path} holds no predictions: remove it and run its stage again")
    unpacked = {
        split: np.unpackbits(arrays["right"], count=len(arrays["answers"])).view(bool) for split, arrays in groups.items()
    }
    return {split: Predictions(**arrays | {"right": unpacked[split]}) for split, arrays in groups.items()}
