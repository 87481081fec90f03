"""The 1,797 handwritten digits (8x8, 17 grey levels) that scikit-learn bundles: the test part of UCI's
optical-recognition set (Alpaydin & Kaynak 1998)."""

import functools

import numpy as np

from data_prep.sources.source import Pictures, Source, Split


def digits() -> Source:
    """One split; a test split is cut from it."""
    return Source([str(digit) for digit in range(10)], Split(_load()[1], "digits", _part, mixed=True), None)


def _part(indices: np.ndarray) -> Pictures:
    return Pictures([f"digit {index}" for index in indices], _load()[0][indices])


@functools.cache
def _load() -> tuple[np.ndarray, np.ndarray]:
    """Images (uint8, [1797, 8, 8]; the 17 levels span 0 .. 255) and labels (int32)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.rint(bunch.images * (255 / 16)).astype(np.uint8), bunch.target.astype(np.int32)
