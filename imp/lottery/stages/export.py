"""Writing a trained network to one file that other programs load: Keras, TensorFlow Lite or NumPy. And its compressed size."""

import gzip
import io
import os
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from data_prep import files
from data_prep.errors import InputError
from lottery.engine.start import start_tensorflow
from lottery.experiment.graph import DENSE
from lottery.progress import Reporter
from lottery.pruning.state import State
from lottery.results import lookup
from lottery.rundir.records import Result
from lottery.rundir.run import Run

FORMATS = ("keras", "tflite", "npz")


def export(
    run: Run,
    reporter: Reporter,
    ticket: str,
    to: str,
    out: Path | None = None,
    replicate: int = 1,
    variant: str = "ticket",
) -> dict[str, Any]:
    """Write the network `ticket` (`q90-step-000045`, `lr/round-03-step-000000`, or `dense`) as a file in the format `to`. The
    same network gives the same bytes.

    Returns its `path` and size, as it is and compressed by gzip at level 9, and those of the dense network. `macs`, `speedup`
    and the bytes of sparse formats are those of `pruning.costs`. `density` is over the prunable weights; `zeros` of the
    `weights` trainable ones are exactly 0.0; `averaged` says whether they are averages (`train.ema`). `test_accuracy` is that
    at the end of the training. `difference` is the largest one between the outputs of the file and those of the network that
    `model.name` builds now with these weights, as a share of the largest output (0.0 for arrays). Raises InputError when there
    is no such network, it is not finished, `out` cannot be written, or the format cannot hold it; Failed when the file does not
    answer as the network does.
    """
    path = _checked(out, to) if out else default_path(run, ticket, to, replicate, variant)
    place = lookup.replicate(run, replicate)
    result, state = lookup.trained(run, place, ticket, variant)
    if run.recipe.train.ema:
        reporter.say("exporting averaged weights and statistics (train.ema), which all accuracies of this run are of")
    if run.recipe.train.precision == "float64" and to != "npz":
        reporter.say("trained in float64, exported in float32")
    content, difference = _file(run, to, result, state, reporter)
    dense = content if ticket == DENSE else _file(run, to, *lookup.trained(run, place, DENSE), Reporter(quiet=True))[0]
    files.write_bytes(path, content)
    return {
        "path": str(path),
        "bytes": len(content),
        "gzip_bytes": gzipped(content),
        "dense_bytes": len(dense),
        "dense_gzip_bytes": gzipped(dense),
        **{name: getattr(result.costs, name, None) for name in ("macs", "dense_macs", "speedup", "bitmap_bytes", "csr_bytes")},
        "density": result.kept.density.prunable if result.kept else 1.0,
        "zeros": sum(array.size - int(np.count_nonzero(array)) for array in state.weights.values()),
        "weights": sum(array.size for array in state.weights.values()),
        "averaged": bool(run.recipe.train.ema),
        "test_accuracy": result.final.test_accuracy if result.final else 0.0,
        "difference": difference,
    }


def default_path(run: Run, ticket: str, to: str, replicate: int, variant: str) -> Path:
    """`export/replicate-1/q90-step-000045-ticket.keras` in the run directory."""
    name = "-".join((*PurePosixPath(ticket).parts, *([] if ticket == DENSE else [variant])))
    return run.folder / "export" / f"replicate-{replicate}" / f"{name}.{to}"


def _checked(out: Path, to: str) -> Path:
    """`out`, if it can be written: better to know before the work than after it."""
    if out.suffix != f".{to}":
        raise InputError(f"--out {out}: its name must end in .{to}")
    above = next(parent for parent in out.absolute().parents if parent.exists())
    if out.is_dir() or not above.is_dir() or not os.access(above, os.W_OK):
        raise InputError(f"--out {out} cannot be written: name a file in a folder where you may write")
    return out


def _file(run: Run, to: str, result: Result, state: State, reporter: Reporter) -> tuple[bytes, float]:
    """The bytes of the file, and how far its outputs are from the network's.

    An .npz has `weights/PATH` and `statistics/PATH`, as they were trained, and `mask/PATH`, True where a weight is kept; a
    network without a mask (dense, `extended`) keeps all that is prunable.
    """
    if to == "npz":
        mask, buffer = lookup.mask(run, run.replicate(result.replicate), result, state), io.BytesIO()
        groups = {"weights": state.weights, "statistics": state.statistics, "mask": mask}
        named: dict[str, Any] = {f"{group}/{path}": array for group in groups for path, array in groups[group].items()}
        np.savez_compressed(buffer, **named)
        return buffer.getvalue(), 0.0
    manifest = run.manifest()
    start_tensorflow()  # here, because arrays need none
    from lottery.engine import formats

    made = formats.make(to, run.recipe.model, manifest.shape, len(manifest.classes), state, result.made_from["network"])
    if made.needs:
        own = ", ".join(f"{kind.__name__!r} of {kind.__module__}" for kind in made.needs)
        reporter.say(f"it has layers of its own: to load it, have {own}, and name it in `custom_objects`")
    return made.content, made.difference


def gzipped(content: bytes) -> int:
    """How many bytes `content` has after gzip, at level 9."""
    return len(gzip.compress(content, 9, mtime=0))
