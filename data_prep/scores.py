"""Scores of training images, by which a set takes the hardest or the easiest of them."""

import csv
import io
import math
from fractions import Fraction
from pathlib import Path

import numpy as np

from lottery.base import files
from lottery.base.errors import InputError

FILE = "scores.csv"  # beside the shards
COLUMNS = ("index", "label", "score")


def read(path: Path) -> bytes:
    """The content of a file of scores. Raises InputError where there is none."""
    files.check_regular(path)
    if not path.is_file():
        raise InputError(f"data.scores: there is no file {path}: `imp el2n` writes one")
    return path.read_bytes()


def chosen(content: bytes, labels: np.ndarray, hardest: float, easiest: float) -> np.ndarray:
    """The indices (int, ascending) of the images with the highest scores, `hardest` of them, or with the lowest, `easiest` of
    them: a share below 1, rounded up, else a number. They are taken of all classes together, as Paul et al. 2021 (arXiv
    2107.07075) do, so the balance of classes may change; of equal scores the first is the higher. `content` is a CSV with the
    `COLUMNS` of each image in order. Raises InputError where it is not, or is of images with other `labels` (int32, [n])."""
    rows = list(csv.reader(io.StringIO(content.decode(errors="replace"))))
    try:
        index, known, scores = np.array(rows[1:], float).T
    except ValueError:
        raise InputError(f"data.scores is not a table with three numbers in each row: {', '.join(COLUMNS)}") from None
    if not np.array_equal(index, np.arange(len(labels))) or not np.array_equal(known, labels):
        raise InputError(
            f"data.scores is of other training images ({len(index)} there, {len(labels)} here): score those of a run with the "
            "same source, split_seed, validation, test, examples, classes and label_noise"
        )
    if not np.isfinite(scores).all():
        raise InputError(f"data.scores: the score of image {np.argmin(np.isfinite(scores))} is not a finite number")
    key, amount = ("hardest", hardest) if hardest else ("easiest", easiest)
    if amount > 1 and amount % 1:
        raise InputError(f"data.{key} is {amount}: write a share below 1, or a whole number of images")
    count = math.ceil(Fraction(str(amount)) * len(labels)) if amount < 1 else int(amount)
    if count > len(labels):
        raise InputError(f"data.{key} is {count}, but there are {len(labels)} training images: lower it")
    order = np.argsort(-scores, kind="stable")
    return np.sort(order[:count] if hardest else order[-count:])


def check(path: Path, folder: Path, digest: str | None) -> None:
    """Raise InputError when the file at `path`, if it is still there, is not the one that the set in `folder` was made with."""
    if path.is_file() and files.sha256(path.read_bytes()) != digest:
        way_out = "prepare records in another place (--out, data.path)"
        raise InputError(f"records in {folder} were made with other scores than those in {path}: {way_out}")
