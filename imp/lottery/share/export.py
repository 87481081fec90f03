"""Writing a trained network to a file or folder that other programs load. And its compressed size."""

import gzip
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from lottery.base import files
from lottery.base.errors import InputError
from lottery.base.progress import Reporter
from lottery.engine import foreign
from lottery.engine.start import start_tensorflow
from lottery.experiment.graph import DENSE
from lottery.pruning.state import State
from lottery.results import lookup
from lottery.results.card import Int8, card
from lottery.rundir.lineage import Lineage
from lottery.rundir.predictions import Predictions
from lottery.rundir.records import Result
from lottery.rundir.run import Run
from lottery.share import folder

FOLDERS = "folder", "zip"  # formats of ticket folders
ARRAYS = "npz", "torch", *FOLDERS  # which are written without TensorFlow
INT8 = "tflite_int8"
ENDINGS = {"tflite_sparse": "tflite", INT8: "tflite", "torch": "safetensors", "folder": ""}  # where they are not the format
FORMATS = "keras", "onnx", "tflite", "tflite_sparse", "mnn", *ARRAYS


def export(
    run: Run,
    reporter: Reporter,
    ticket: str,
    to: str,
    out: Path | None = None,
    replicate: int = 1,
    variant: str = "ticket",
    license: str = "unknown",
    int8: bool = False,
    compact: bool = False,
) -> dict[str, Any]:
    """Write the network `ticket` (`q90-step-000045`, `lr/round-03-step-000000`, or `dense`) as a file in the format `to`, or as
    a ticket folder with this `license`; with `int8`, a TensorFlow Lite file in whole numbers alone, and its model card beside
    it. A `compact` file lacks the channels that do nothing. The same network gives the same bytes.

    Returns its `path` and size (of a folder that of its weights), as it is and compressed by gzip at level 9 (of a .zip its
    weights), and those of the dense network. `macs` and `speedup` are those of `pruning.costs`.
    `density` is over the prunable weights; `zeros` of the `weights` trainable ones are exactly 0.0; `averaged` says whether
    they are averages (`train.ema`). `test_accuracy` (`test_METRIC` where another decides) is that at the end of the training.
    `difference` is the largest one between the outputs of the file and those of the network that `model.name` builds now with
    these weights, as a share of the largest output (0.0 for arrays). `int8` is what the whole test split has shown of such a
    file (`card.Int8`), and `card` the path of its card; else None. `compact` has the channels, parameters, MACs and bytes of a
    compact file, and `full` those of the same file with all channels. Raises InputError when there is no such network, it is
    not finished, `out` cannot be written, or the format cannot hold it; Failed when the file does not answer as the network
    does."""
    if int8 and to != "tflite":
        raise InputError(f"--int8 is for --to tflite, and not for --to {to}")
    if compact and to in ARRAYS:
        raise InputError(f"--compact is for files with a whole network in them: --to {to} writes arrays alone, all of each")
    to = INT8 if int8 else to
    path = _checked(out, to) if out else default_path(run, ticket, to, replicate, variant, compact)
    place = lookup.replicate(run, replicate)
    result, state = lookup.trained(run, place, ticket, variant)
    if run.recipe.train.ema:
        reporter.say("exporting averaged weights and statistics (train.ema), which all figures of this run are of")
    if run.recipe.train.precision == "float64" and to not in ARRAYS:
        reporter.say("trained in float64, exported in float32")
    content, difference, sizes = _file(run, to, result, state, reporter, compact)
    full = _file(run, to, result, state, Reporter(quiet=True))[0] if compact else content
    dense = full if ticket == DENSE else _file(run, to, *lookup.trained(run, place, DENSE), Reporter(quiet=True))[0]
    tested = _tested(run, content, Lineage(place).predictions(lookup.find(place, ticket, variant)), reporter) if int8 else None
    name, beside = ticket if ticket == DENSE else f"{result.family}/{ticket.rpartition('/')[2]}", f"{path}.md"
    if to in FOLDERS:
        (folder.make if to == "folder" else folder.make_zip)(run, name, result, state, path, license)
    else:
        files.write_bytes(path, content)
    if tested:
        files.write_text(Path(beside), card(folder.record(run, name, result, license), run.recipe, run.rule, tested))
    return {
        "path": str(path),
        "card": beside if tested else None,
        "int8": tested and tested._asdict(),
        "bytes": path.stat().st_size if to == "zip" else len(content),
        "gzip_bytes": gzipped(content),
        "dense_bytes": len(dense),
        "dense_gzip_bytes": gzipped(dense),
        **{name: getattr(result.costs, name, None) for name in ("macs", "dense_macs", "speedup")},
        "density": result.kept.density.prunable if result.kept else 1.0,
        "zeros": sum(array.size - int(np.count_nonzero(array)) for array in state.weights.values()),
        "weights": sum(array.size for array in state.weights.values()),
        "averaged": bool(run.recipe.train.ema),
        f"test_{result.metric}": result.reached("test") or 0.0,
        "difference": difference,
        **{
            name: {**size, "bytes": len(file)}
            for name, size, file in zip(("compact", "full"), sizes, (content, full), strict=False)
        },
    }


def default_path(run: Run, ticket: str, to: str, replicate: int, variant: str, compact: bool = False) -> Path:
    """`export/replicate-1/q90-step-000045-ticket.keras` in the run directory; of a `compact` one `...-ticket-compact.keras`."""
    name = "-".join((*PurePosixPath(ticket).parts, *([] if ticket == DENSE else [variant]), *(["compact"] if compact else [])))
    ending = "" if to == "folder" else f".{to}" if to == _ending(to) else f".{to}.{_ending(to)}"
    return run.folder / "export" / f"replicate-{replicate}" / f"{name}{ending}"


def _ending(to: str) -> str:
    return ENDINGS.get(to, to)


def _checked(out: Path, to: str) -> Path:
    """`out`, if it can be written: better to know before the work than after it."""
    if to != "folder" and out.suffix != f".{_ending(to)}":
        raise InputError(f"--out {out}: its name must end in .{_ending(to)}")
    above = next(parent for parent in out.absolute().parents if parent.exists())
    if (to != "folder" and out.is_dir()) or not above.is_dir() or not os.access(above, os.W_OK):
        raise InputError(f"--out {out} cannot be written: name a file in a folder where you may write")
    return out


def _file(
    run: Run, to: str, result: Result, state: State, reporter: Reporter, compact: bool = False
) -> tuple[bytes, float, Sequence[Mapping[str, int | None]]]:
    """The bytes of the file, how far its outputs are from the network's, and of a `compact` one its size and that of the
    network. An .npz has `weights/PATH` and `statistics/PATH`, as they were trained, and `mask/PATH`, True where a weight is
    kept; a network without a mask (dense, `extended`) keeps all that is prunable. Of a folder the bytes are those of its
    weights."""
    if to in FOLDERS:
        return folder.values(state), 0.0, ()
    if to == "npz":
        mask, buffer = lookup.mask(run, run.replicate(result.replicate), result, state), io.BytesIO()
        groups = {"weights": state.weights, "statistics": state.statistics, "mask": mask}
        named: dict[str, Any] = {f"{group}/{path}": array for group in groups for path, array in groups[group].items()}
        np.savez_compressed(buffer, **named)
        return buffer.getvalue(), 0.0, ()
    manifest = run.manifest()
    if to == "torch":
        content, notes = foreign.to_torch(run.recipe.model, manifest.shape, state)
        for note in notes:
            reporter.say(note)
        return content, 0.0, ()
    if manifest.fields:
        raise InputError(f"--to {to.removesuffix('_int8')} is for networks of images: export this one with --to npz or torch")
    start_tensorflow()  # here, because arrays need none
    from lottery.engine import formats
    from lottery.engine.examples import Examples
    from lottery.engine.tasks import choice

    signature = choice.make(run.recipe, manifest).signature
    images = None
    if to == INT8:
        with formats.quietly_on_cpu():
            images, _ = Examples(run).drawn("train", formats.CALIBRATED_ON)
    made = formats.make(to, run.recipe.model, signature, state, result.made_from["network"], images, compact)
    if made.needs:
        objects = ", ".join(f'"{kind.__name__}": {kind.__module__}.{kind.__name__}' for kind in made.needs)
        reporter.say(f"this file uses classes of your own: load it with custom_objects={{{objects}}}")
    return made.content, made.difference, [size._asdict() for size in made.sizes]


def _tested(run: Run, content: bytes, predictions: Mapping[str, Predictions], reporter: Reporter) -> Int8:
    """What the int8 file `content` does on the test split, beside the `predictions` of its network by split."""
    from lottery.engine import examples, formats

    with formats.quietly_on_cpu():
        known = examples.Examples(run)
        reached, answers = examples.evaluate(content, known, reporter)
    same = [answers == found.answers for split, found in predictions.items() if split == "test" and answers is not None]
    calibrated_on = min(formats.CALIBRATED_ON, known.count("train"))
    return Int8(reached, float(np.mean(same)) if same else None, known.count("test"), calibrated_on)


def gzipped(content: bytes) -> int:
    """How many bytes `content` has after gzip, at level 9."""
    return len(gzip.compress(content, 9, mtime=0))
