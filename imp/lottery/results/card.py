"""The model card of a ticket folder: its README.md, whose head model hubs read."""

from typing import Any

import yaml

from lottery.base.progress import count_of
from lottery.experiment.recipe import Recipe
from lottery.experiment.rule import Rule
from lottery.rundir import wording
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


def card(record: TicketRecord, recipe: Recipe, rule: Rule) -> str:
    """The text: metadata as YAML, what the ticket is and how it was found, and how to read the files."""
    head = yaml.safe_dump(_metadata(record, recipe), sort_keys=False, allow_unicode=True)
    return f"---\n{head}---\n\n# {record.run}: {record.network}\n\n" + "\n\n".join(_paragraphs(record, recipe, rule)) + "\n"


def _metadata(record: TicketRecord, recipe: Recipe) -> dict[str, Any]:
    """Model cards as hubs read them: huggingface.co/docs/hub/model-cards#model-card-metadata."""
    result = record.result
    task = "image-classification" if recipe.task == "classification" else "other"
    data = {"name": record.data.source, "type": record.data.source.partition(":")[2] or record.data.source}
    figures = {split: result.reached(split) for split in ("validation", "test")}
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
        "library_name": "keras",
        "pipeline_tag": task,
        "tags": ["lottery-ticket", "pruning", "sparsity", recipe.model.name],
        "datasets": [data["type"]],
        "metrics": [result.metric],
        "model-index": [{"name": f"{record.run} {record.network}", "results": results}],
    }


def _paragraphs(record: TicketRecord, recipe: Recipe, rule: Rule) -> list[str]:
    example, count = wording.example(record.result.metric), record.data.images["train"]
    return [
        f"{recipe.model.name} on {record.data.source}: {count:,} training {example}s{_input(record, recipe)}.",
        _found(record, recipe),
        _standing(record, rule),
        f"## Read it\n\nNumPy and [safetensors](https://pypi.org/project/safetensors/) are enough:\n\n```python\n{_READING}```",
        "`statistics/...` in ticket.safetensors are BatchNorm's moving means and variances."
        + (" start.safetensors has the weights that training started from, before the mask." if START in record.files else ""),
        "With imp (`pip install imp-lottery`), `imp tickets .` checks this folder, `imp import .` makes a run that trains the "
        f"ticket anew, on these {example}s or others, and `imp run recipe.toml` repeats the whole experiment.",
    ]


def _input(record: TicketRecord, recipe: Recipe) -> str:
    """What a network takes and returns, where that is an image and logits."""
    if recipe.task != "classification":
        return ""
    height, width, channels = record.data.shape
    return (
        f" of {height}x{width}x{channels}, {len(record.data.classes)} classes. It takes float32 images [batch, {height}, "
        f"{width}, {channels}], (pixel / 255 - {recipe.data.mean}) / {recipe.data.deviation}, and returns logits"
    )


def _found(record: TicketRecord, recipe: Recipe) -> str:
    result = record.result
    if not result.family or not result.kept:
        return "This is the dense network: nothing is pruned."
    family = recipe.families.get(result.family)
    how = f"by {family.chosen_by}, {'in rounds' if family.rounds else 'in one shot'}, " if family else ""
    what = "" if result.variant == "ticket" else f" It is the control `{result.variant}`."
    speed = f", and {result.costs.speedup:.2f} times fewer multiplications" if result.costs and result.costs.speedup else ""
    return (
        f"Pruned {how}to {result.kept.density.prunable:.2%} of the prunable weights{speed}; rewound to "
        f"step {result.rewind_step} of {result.step}, and trained from there.{what} A pruned weight is exactly 0.0."
    )


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
