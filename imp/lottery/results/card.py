"""Model cards, whose head model hubs read: of a ticket folder, its README.md, and of a file in int8."""

from typing import Any, NamedTuple

import yaml

from lottery.base.progress import count_of
from lottery.experiment.family import Family
from lottery.experiment.graph import TICKET
from lottery.experiment.grids import Point
from lottery.experiment.recipe import Recipe
from lottery.experiment.rule import Rule
from lottery.rundir import wording
from lottery.rundir.records import Result
from lottery.rundir.tickets import START, TicketRecord

_READING = """\
import numpy as np
from safetensors.numpy import load_file

tensors, bits = load_file("ticket.safetensors"), load_file("mask.safetensors")
weights = {name.removeprefix("weights/"): array for name, array in tensors.items() if name.startswith("weights/")}
mask = {}
for name, packed in bits.items():
    path = name.removeprefix("mask/")
    kept = np.unpackbits(packed, count=weights[path].size).reshape(weights[path].shape)
    mask[path] = kept.astype(bool)  # True where a weight is kept
"""
_START = (
    " start.safetensors has the weights that training started from, before the mask; if this came as a .zip, NaN in place of "
    "those that the mask prunes."
)
_UPDATES = {"gmp": "GMP", "rigl": "RigL", "set": "SET"}
_RUNNING = """\
import numpy as np
import tensorflow as tf

interpreter = tf.lite.Interpreter("network.tflite", num_threads=2)
interpreter.allocate_tensors()
(into,), (out,) = interpreter.get_input_details(), interpreter.get_output_details()
scale, zero = into["quantization"]
pixels = np.zeros({shape}, np.uint8)  # your image
scaled = (pixels / 255 - {mean}) / {deviation}
interpreter.set_tensor(into["index"], np.clip(np.round(scaled / scale + zero), -128, 127).astype(np.int8)[np.newaxis])
interpreter.invoke()
outputs = interpreter.get_tensor(out["index"])[0]  # int8; the largest one is the answer
"""


class Int8(NamedTuple):
    """What a file in int8 does on all `test_images`: the deciding metric (0 .. 1), and the share of the images to which it
    gives the same answer as the network in floats, None where that is not known. Its ranges are from `calibration_images`."""

    test: float
    agreement: float | None
    test_images: int
    calibration_images: int

    def sentence(self, metric: str) -> str:
        same = "" if self.agreement is None else f", and the same answer as in floats to {self.agreement:.2%} of them"
        return wording.worded(f"{{Metric}} in int8: {self.test:.2%} on {self.test_images:,} test {{example}}s{same}.", metric)


def card(record: TicketRecord, recipe: Recipe, rule: Rule, int8: Int8 | None = None) -> str:
    """The text: metadata as YAML, what the ticket is and how it was found, and how to read the files, or the file in `int8`."""
    head = yaml.safe_dump(_metadata(record, recipe, int8), sort_keys=False, allow_unicode=True)
    paragraphs = _paragraphs(record, recipe, rule, int8)
    return f"---\n{head}---\n\n# {record.run}: {record.network}\n\n" + "\n\n".join(paragraphs) + "\n"


def _metadata(record: TicketRecord, recipe: Recipe, int8: Int8 | None) -> dict[str, Any]:
    """Model cards as hubs read them: huggingface.co/docs/hub/model-cards#model-card-metadata."""
    result = record.result
    task = "image-classification" if recipe.task == "classification" else "other"
    data = {"name": record.data.source, "type": record.data.source.partition(":")[2] or record.data.source}
    figures = {"test": int8.test} if int8 else {split: result.reached(split) for split in ("validation", "test")}
    results: list[dict[str, Any]] = [
        {
            "task": {"type": task},
            "dataset": data | {"split": split},
            "metrics": [{"type": result.metric, "value": round(value, 6)}],
        }
        for split, value in figures.items()
        if record.data.images.get(split) and value is not None
    ]
    return {
        "license": record.license,
        "library_name": "tflite" if int8 else "keras",
        "pipeline_tag": task,
        "tags": ["lottery-ticket", "pruning", "sparsity", recipe.model.name],
        "datasets": [data["type"]],
        "metrics": [result.metric],
        "model-index": [{"name": f"{record.run} {record.network}", "results": results}],
    }


def _paragraphs(record: TicketRecord, recipe: Recipe, rule: Rule, int8: Int8 | None) -> list[str]:
    example, count = wording.example(record.result.metric), record.data.images["train"]
    about = [
        f"{recipe.model.name} on {record.data.source}: {count:,} training {example}s{_input(record, recipe, int8)}.",
        _found(record, recipe),
    ]
    return about + (_run(record, recipe, rule, int8) if int8 else [_standing(record, rule), *_read(record, example)])


def _run(record: TicketRecord, recipe: Recipe, rule: Rule, int8: Int8) -> list[str]:
    code = _RUNNING.format(shape=record.data.shape, mean=recipe.data.mean, deviation=recipe.data.deviation)
    return [
        "This file computes in whole numbers alone. Input, output and activations are int8, with ranges measured on "
        f"{int8.calibration_images} training images. Weights are int8, with a scale for each channel. "
        + int8.sentence(record.result.metric),
        f"## Run it\n\nIt takes one image at a time:\n\n```python\n{code}```",
        f"## As it was trained, in floats\n\n{_standing(record, rule)}",
    ]


def _read(record: TicketRecord, example: str) -> list[str]:
    return [
        f"## Read it\n\nNumPy and [safetensors](https://pypi.org/project/safetensors/) are enough:\n\n```python\n{_READING}```",
        "`statistics/...` in ticket.safetensors are BatchNorm's moving means and variances."
        + (_START if START in record.files else ""),
        "With imp (`pip install 'imp-lottery[pipeline]'`), `imp tickets .` checks this folder, `imp import .` makes a run that "
        f"trains the ticket anew, on these {example}s or others, and `imp run recipe.toml` repeats the whole experiment.",
    ]


def _input(record: TicketRecord, recipe: Recipe, int8: Int8 | None) -> str:
    """What a network takes and returns, where that is an image and logits."""
    if recipe.task != "classification":
        return ""
    height, width, channels = record.data.shape
    images = f" of {height}x{width}x{channels}, {len(record.data.classes)} classes"
    return (
        images
        if int8
        else (
            f"{images}. It takes float32 images [batch, {height}, "
            f"{width}, {channels}], (pixel / 255 - {recipe.data.mean}) / {recipe.data.deviation}, and returns logits"
        )
    )


def _found(record: TicketRecord, recipe: Recipe) -> str:
    result = record.result
    if not result.family or not result.kept:
        return "This is the dense network: nothing is pruned."
    family = recipe.families.get(result.family)
    what = "" if result.variant == "ticket" else f" It is the control `{result.variant}`."
    speed = f", and {result.costs.speedup:.2f} times fewer multiplications" if result.costs and result.costs.speedup else ""
    how, trained = _ways(family, result) if family else ("", f"trained to step {result.step}")
    return (
        f"Pruned {how}to {result.kept.density.prunable:.2%} of the prunable weights{speed}; {trained}.{what} "
        "A pruned weight is exactly 0.0."
    )


def _ways(family: Family, result: Result) -> tuple[str, str]:
    """How a mask was found, such as `by magnitude, in one shot, `, and how the network was trained under it."""
    units, by = family.units, f"by {_UPDATES.get(family.updates, family.chosen_by)}, "
    begun = f"step {result.rewind_step} of {result.step}"
    if units.is_n_of_m:
        by += "with {} of each {} weights kept, ".format(*units.sizes)
    elif not units.is_weight:
        by += f"in whole {units.plural}, "
    if family.changes_masks:
        first = "with all weights" if family.is_gradual else f"under a {family.chosen_by} mask"
        own = f"trained from {begun}, at first {first}; the mask is the last one"
        return (
            f"{by}while the ticket trained, ",
            own if result.variant == TICKET else f"trained from {begun} under the last mask",
        )
    if family.is_scored and isinstance(family.scored_at, Point):
        when = f"at {family.scored_at}" if family.scored_at.amount else "before training"
        return f"{by}scored {when}, in one shot, ", f"trained from {begun}"
    return f"{by}in {'rounds' if family.rounds else 'one shot'}, ", f"rewound to {begun}, and trained from there"


def _standing(record: TicketRecord, rule: Rule) -> str:
    final, metric, standing = record.result.final, record.result.metric, record.standing
    reached = [f"{final.metric(split, metric):.2%} ({split})" for split in ("validation", "test")] if final else []
    figures = wording.worded(f"{{Metric}}: {', '.join(reached)}.", metric) if final else ""
    if standing.difference is None or not record.result.family:
        return figures
    bounds = ""
    if standing.low is not None and standing.high is not None:
        bounds = f" ({100 * standing.low:+.2f} .. {100 * standing.high:+.2f}, {rule.words['bounds']})"
    return (
        f"{figures} Beside the dense network: {100 * standing.difference:+.2f} points{bounds} over "
        f"{count_of(standing.replicates, 'replicate')}. Verdict: **{standing.verdict}**, where up to {100 * rule.delta:g} "
        f"points below count as {rule.matching}."
    )
