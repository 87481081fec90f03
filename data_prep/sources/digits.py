"""The 1,797 handwritten digits (8x8, 17 grey levels) that scikit-learn bundles: the test part of UCI's
optical-recognition set (Alpaydin & Kaynak 1998)."""

import numpy as np

from data_prep.sources import Pictures, Source, Split


def source() -> Source:
    """One split, its images uint8 [8, 8] whose 17 levels span 0 .. 255; a test split is cut from it."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)

    def part(indices: np.ndarray) -> Pictures:
        return Pictures([f"digit {index}" for index in indices], images[indices])

    return Source([str(digit) for digit in range(10)], Split(bunch.target.astype(np.int32), "digits", part, mixed=True), None)
