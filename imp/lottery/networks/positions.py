"""Along each axis of a map, the positions at which a tensor can depend on the network's input. The others hold what padding has
become on the way: the same for every image. Pure NumPy, by TensorFlow's geometry."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lottery.pruning.connectivity import Met

Positions = tuple[np.ndarray, ...]  # bool [size] for each axis between the batch and the channels


def everywhere(tensor: Any) -> Positions | None:
    """All positions of `tensor` [batch, ..., channels]; None where one of its sizes is not known."""
    sizes = tensor.shape[1:-1]
    return None if None in sizes else tuple(np.ones(size, bool) for size in sizes)


def convolved(operation: Any, window: tuple[int, ...], before: Positions | None, output: Any) -> tuple[Met, Positions | None]:
    """Which places of the `window` of a convolution (plain, depthwise or transposed) meet a position of `before` that depends
    on the input (empty where all do, or sizes are not known), and the positions of its `output` that then depend on it."""
    after = everywhere(output)
    if before is None or after is None:
        return (), after
    stride = np.broadcast_to(getattr(operation, "strides", getattr(operation, "stride", 1)), len(window))
    dilation = np.broadcast_to(getattr(operation, "dilation_rate", 1), len(window))
    padding, transposed = getattr(operation, "padding", "same"), "Transpose" in type(operation).__name__
    axes = [
        _slid(where, reached.size, taps, step, apart, padding, transposed)
        for where, reached, taps, step, apart in zip(before, after, window, stride, dilation, strict=True)
    ]
    met = tuple(tuple(axis.tolist()) for axis, _ in axes)
    return () if all(map(all, met)) else met, tuple(reached for _, reached in axes)


def followed(operation: Any, inputs: Sequence[Positions | None], output: Any) -> Positions | None:
    """The positions of the `output` of an operation that treats each channel on its own, or merges its `inputs`."""
    after, known = everywhere(output), [positions for positions in inputs if positions is not None]
    if after is None or len(known) < len(inputs):
        return after
    before, name = known[0], type(operation).__name__
    if name.startswith("ZeroPadding"):
        return tuple(map(np.pad, before, np.reshape(operation.padding, (-1, 2))))
    if name.startswith("Cropping"):
        cuts = np.reshape(operation.cropping, (-1, 2))
        return tuple(where[first : where.size - last] for where, (first, last) in zip(before, cuts, strict=True))
    if name.startswith("UpSampling") and getattr(operation, "interpolation", "nearest") == "nearest":
        return tuple(map(np.repeat, before, np.ravel(operation.size)))
    if hasattr(operation, "pool_size"):
        axes = zip(before, after, operation.pool_size, operation.strides, strict=True)
        return tuple(_slid(where, out.size, size, stride, 1, operation.padding)[1] for where, out, size, stride in axes)
    try:  # each of the inputs as wide as the output, or of width 1
        pairs = [zip(after, positions, strict=True) for positions in known]
        spread = [[np.broadcast_to(where, full.shape) for full, where in axes] for axes in pairs]
        return tuple(map(np.logical_or.reduce, zip(*spread, strict=True)))
    except ValueError:
        return after


def _slid(
    where: np.ndarray, size: int, taps: int, stride: int, dilation: int, padding: str, transposed: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """For a window slid along one axis: which of its taps meet a position of `where`, and which of the `size` positions of the
    output then depend on one. Of the padding `same` the odd place comes last."""
    windows, length = (where.size, size) if transposed else (size, where.size)
    reach = (taps - 1) * dilation + 1
    lacking = max((windows - 1) * stride + reach - length, 0)
    before = {"valid": 0, "same": lacking // 2, "causal": reach - 1}[padding]
    places = np.arange(windows)[:, None] * stride + np.arange(taps) * dilation - before
    inside = (places >= 0) & (places < length)
    if not transposed:
        met = inside & where[np.clip(places, 0, length - 1)]
        return met.any(axis=0), met.any(axis=1)
    met = inside & where[:, None]
    return met.any(axis=0), np.isin(np.arange(length), places[met])
