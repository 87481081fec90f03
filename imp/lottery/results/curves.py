"""How the dense trainings went: accuracies by epoch as a table and as a figure."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from lottery import journal
from lottery.progress import duration
from lottery.recipe import Recipe
from lottery.run import Run

COLUMNS = ("epoch", "step", "train loss", "train", "validation", "test", "images/s")


def read(run: Run) -> dict[str, list[journal.Row]]:
    """The rows of each replicate's dense training, as far as it has come."""
    replicates = map(run.replicate, run.known_numbers())
    return {replicate.folder.name: journal.read(replicate.dense.metrics) for replicate in replicates}


def markdown(recipe: Recipe, curves: Mapping[str, Sequence[journal.Row]], machine: Mapping[str, Any]) -> str:
    """Per replicate a sentence and a table of its epochs; accuracies in per cent."""
    lines = [f"# {recipe.name}: {recipe.model.name} trained densely", ""]
    for name, rows in curves.items():
        if rows:
            lines += [_sentence(name, recipe, rows, machine), "", _line(COLUMNS), _line(["---"] * len(COLUMNS))]
            lines += [*map(_line, map(_cells, rows)), ""]
    return "\n".join(lines)


def _sentence(name: str, recipe: Recipe, rows: Sequence[journal.Row], machine: Mapping[str, Any]) -> str:
    seconds = sum(row["timing"]["seconds"] for row in rows)
    return (
        f"{name}: {rows[-1]['test_accuracy']:.2%} of the test and {rows[-1]['validation_accuracy']:.2%} of the validation "
        f"images after {rows[-1]['epoch']:g} epochs ({duration(seconds)}, evaluation included; {recipe.train.precision}, "
        f"{recipe.train.threads} intra-op threads) on {machine.get('processor', 'an unknown processor')}, "
        f"{machine.get('cores', '?')} cores, {len(machine.get('gpus', []))} GPUs, "
        f"TensorFlow {machine.get('packages', {}).get('tensorflow', '?')}."
    )


def _cells(row: journal.Row) -> list[str]:
    accuracies = (f"{100 * row[f'{split}_accuracy']:.2f}" for split in ("train", "validation", "test"))
    return [
        f"{row['epoch']:g}",
        str(row["step"]),
        f"{row['train_loss']:.4f}",
        *accuracies,
        f"{row['timing']['images_per_second']:,.0f}",
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def figure(curves: Mapping[str, Sequence[journal.Row]]) -> bytes:
    """A PNG: accuracy on training images (varied as they are), validation and test images, by epoch."""
    picture = Figure(figsize=(8, 4.5), dpi=100, layout="constrained")
    axes = picture.add_subplot()
    for split, colour in (("train", "0.6"), ("validation", "C0"), ("test", "C1")):
        for index, rows in enumerate(curves.values()):
            label = split if index == 0 else None
            axes.plot(
                [row["epoch"] for row in rows], [row[f"{split}_accuracy"] for row in rows], ".-", color=colour, label=label
            )
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(alpha=0.3)
    axes.legend()
    buffer = io.BytesIO()
    picture.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
