"""Along each axis of a map, the positions at which a tensor can depend on the network's input.

The others hold what padding has become on the way: the same for every image. Pure NumPy, by TensorFlow's geometry.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lottery.connectivity import Met

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
    padding = getattr(operation, "padding", "same")
    slid = _transposed if "Transpose" in type(operation).__name__ else _windows
    axes = [
        slid(where, reached.size, _Window(taps, step, apart, padding))
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
        return tuple(
            _windows(where, reached.size, _Window(size, stride, 1, operation.padding))[1]
            for where, reached, size, stride in axes
        )
    return _merged(known, after)


def _merged(inputs: list[Positions], after: Positions) -> Positions:
    """Where any of `inputs` depends on the input, each as wide as the output or of width 1; else everywhere (`after`)."""
    if not all(_fits(positions, after) for positions in inputs):
        return after
    return tuple(
        np.logical_or.reduce([np.broadcast_to(where, full.shape) for where in axis])
        for full, *axis in zip(after, *inputs, strict=True)
    )


def _fits(positions: Positions, after: Positions) -> bool:
    sizes = [(where.size, full.size) for where, full in zip(positions, after, strict=False)]
    return len(positions) == len(after) and all(size in (1, full) for size, full in sizes)


class _Window(NamedTuple):
    """A kernel's window, or a pool's, along one axis."""

    taps: int
    stride: int
    dilation: int
    padding: str

    def reads(self, windows: int, size: int) -> np.ndarray:
        """The position, int [windows, taps], that each tap of each window lies on, on an axis of `size` positions (and beyond
        it). Of the padding `same` the odd one comes last."""
        reach = (self.taps - 1) * self.dilation + 1
        lacking = max((windows - 1) * self.stride + reach - size, 0)
        before = {"valid": 0, "same": lacking // 2, "causal": reach - 1}[self.padding]
        return np.arange(windows)[:, None] * self.stride + np.arange(self.taps) * self.dilation - before


def _windows(where: np.ndarray, windows: int, window: _Window) -> tuple[np.ndarray, np.ndarray]:
    """Which taps read a position of `where`, and which of so many windows do."""
    reads = window.reads(windows, where.size)
    met = (reads >= 0) & (reads < where.size) & where[np.clip(reads, 0, where.size - 1)]
    return met.any(axis=0), met.any(axis=1)


def _transposed(where: np.ndarray, size: int, window: _Window) -> tuple[np.ndarray, np.ndarray]:
    """Which taps carry a position of `where` to one of `size` outputs, and to which."""
    writes = window.reads(where.size, size)
    met = (writes >= 0) & (writes < size) & where[:, None]
    reached = np.zeros(size, bool)
    reached[writes[met]] = True
    return met.any(axis=0), reached
