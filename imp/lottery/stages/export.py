"""A trained network as one file for others: of Keras, of TensorFlow Lite, or of NumPy arrays, and how small it compresses."""

import dataclasses
import gzip
import io
import os
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import numpy as np

from data_prep import files
from data_prep.errors import InputError
from lottery import masks, store
from lottery.progress import Reporter
from lottery.results import lookup
from lottery.results.lookup import DENSE
from lottery.run import Run
from lottery.start import start_tensorflow

Format = Literal["keras", "tflite", "npz"]
FORMATS: dict[str, Format] = {name: name for name in get_args(Format)}


@dataclasses.dataclass(frozen=True)
class Exported:
    """A file, how large it is, as it is and compressed by gzip at level 9, and the same of the dense network exported alike.

    `density` is over the prunable weights; `zeros` of the `weights` trainable ones are exactly 0.0. `averaged` tells whether
    they are averages over the training (`train.ema`). `test_accuracy` is the one of the training's end. `difference` is the
    largest of the file's outputs from those of the network that `model.name` builds now with these weights, as a share of the
    largest output (0.0 for arrays).
    """

    path: str
    bytes: int
    gzip_bytes: int
    dense_bytes: int
    dense_gzip_bytes: int
    density: float
    zeros: int
    weights: int
    averaged: bool
    test_accuracy: float
    difference: float

    @property
    def gzip_share(self) -> float:
        """Of the dense network's compressed size."""
        return self.gzip_bytes / self.dense_gzip_bytes


def export(
    run: Run,
    reporter: Reporter,
    ticket: str,
    to: Format,
    out: Path | None = None,
    replicate: int = 1,
    variant: str = "ticket",
) -> Exported:
    """Write the network `ticket` (`q90-step-000045`, `rounds/lr-step-000000/03`, or `dense`) as a file in the format `to`.

    The same network gives the same bytes. Raises InputError when there is no such network, it is not finished, `out` cannot be
    written, or the format cannot hold it; Failed when the file does not answer as the network does.
    """
    path = _checked(out, to) if out else default_path(run, ticket, to, replicate, variant)
    place = lookup.replicate(run, replicate)
    result, state = lookup.trained(run, place, ticket, variant)
    _say_what(run, to, reporter)
    content, difference = _file(run, to, result, state, reporter)
    dense = content if ticket == DENSE else _file(run, to, *lookup.trained(run, place, DENSE), Reporter(quiet=True))[0]
    files.write_bytes(path, content)
    return Exported(
        path=str(path),
        bytes=len(content),
        gzip_bytes=gzipped(content),
        dense_bytes=len(dense),
        dense_gzip_bytes=gzipped(dense),
        density=_density(result),
        zeros=sum(array.size - int(np.count_nonzero(array)) for array in state.weights.values()),
        weights=sum(array.size for array in state.weights.values()),
        averaged=bool(run.recipe.train.ema),
        test_accuracy=result["final"]["test_accuracy"],
        difference=difference,
    )


def default_path(run: Run, ticket: str, to: Format, replicate: int, variant: str) -> Path:
    """`export/replicate-1/q90-step-000045-ticket.keras` in the run directory."""
    name = "-".join((*PurePosixPath(ticket).parts, *([] if ticket == DENSE else [variant])))
    return run.folder / "export" / f"replicate-{replicate}" / f"{name}.{to}"


def _checked(out: Path, to: Format) -> Path:
    """`out`, which could be written: said before the work rather than after it."""
    if out.suffix != f".{to}":
        raise InputError(f"--out {out}: call it .{to}, by which those who load it know it")
    above = next(parent for parent in out.absolute().parents if parent.exists())
    if out.is_dir() or not above.is_dir() or not os.access(above, os.W_OK):
        raise InputError(f"--out {out} cannot be written: name a file in a folder of your own")
    return out


def _say_what(run: Run, to: Format, reporter: Reporter) -> None:
    if run.recipe.train.ema:
        reporter.say(
            "weights and statistics are their averages over the training (train.ema), as for all accuracies of this run"
        )
    if run.recipe.train.precision == "float64" and to != "npz":
        reporter.say("trained in float64, exported in float32")


def _file(run: Run, to: Format, result: dict[str, Any], state: store.State, reporter: Reporter) -> tuple[bytes, float]:
    """The bytes of the file, and how far its outputs are from the network's."""
    if to == "npz":
        return _arrays(run, result, state, reporter), 0.0
    manifest = run.manifest()
    start_tensorflow()  # here, because arrays need none
    from lottery.engine import formats

    made = formats.make(to, run.recipe.model, manifest.shape, len(manifest.classes), state, result["made_from"]["network"])
    if made.needs:
        own = ", ".join(f"{kind.__name__!r} of {kind.__module__}" for kind in made.needs)
        reporter.say(f"not of stock layers alone: whoever loads it must have {own}, and name it in `custom_objects`")
    return made.content, made.difference


def _arrays(run: Run, result: dict[str, Any], state: store.State, reporter: Reporter) -> bytes:
    """An .npz of `weights/PATH` and `statistics/PATH`, as they were trained, and `mask/PATH`, True where a weight is kept.

    What is pruned is exactly 0.0, so that is the mask; it is told where a kept weight has come to 0.0 as well.
    """
    settings = run.recipe.thresholds
    mask = {
        path: array != 0
        for path, array in state.weights.items()
        if masks.in_scope(path, array.shape, settings.scope, settings.exclude)
    }
    count, kept = sum(bits.size for bits in mask.values()), sum(int(np.count_nonzero(bits)) for bits in mask.values())
    extinct = round(count * _density(result)) - kept
    if extinct:
        reporter.say(f"{extinct} weights that the mask keeps have become exactly 0.0, and count as pruned in the file")
    groups = {"weights": state.weights, "statistics": state.statistics, "mask": mask}
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer, **{f"{group}/{path}": array for group, arrays in groups.items() for path, array in arrays.items()}
    )
    return buffer.getvalue()


def _density(result: dict[str, Any]) -> float:
    """Over the prunable weights; a dense network's result says nothing of it."""
    return float(result.get("density", {}).get("prunable", 1.0))


def gzipped(content: bytes) -> int:
    """How many bytes `content` has after gzip, at level 9."""
    return len(gzip.compress(content, 9, mtime=0))
