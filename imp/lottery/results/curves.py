"""The course of the dense trainings: accuracies by epoch, as a table to read and as rows to draw."""

from collections.abc import Mapping, Sequence
from typing import Any

from lottery.experiment.recipe import Recipe
from lottery.progress import duration
from lottery.rundir import journal, lineage
from lottery.rundir.run import Run

COLUMNS = ("epoch", "step", "train loss", "train", "validation", "test", "images/s")


def read(run: Run) -> dict[str, list[journal.Row]]:
    """The rows of each replicate's dense training, as far as it has come."""
    replicates = map(run.replicate, run.known_numbers())
    return {replicate.folder.name: lineage.rows(replicate.dense) for replicate in replicates}


def markdown(run: Run) -> str:
    """Per replicate a sentence and a table of its epochs; accuracies in per cent."""
    recipe, machine = run.recipe, run.environment()
    lines = [f"# {recipe.name}: {recipe.model.name} trained densely", ""]
    for name, rows in read(run).items():
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


def tidy(curves: Mapping[str, Sequence[journal.Row]]) -> list[journal.Row]:
    """A row for each replicate, epoch and split (`train`, `validation`, `test`), with its `accuracy` (0 .. 1)."""
    return [
        {"replicate": name, "epoch": row["epoch"], "step": row["step"], "split": split, "accuracy": row[f"{split}_accuracy"]}
        for name, rows in curves.items()
        for row in rows
        for split in ("train", "validation", "test")
    ]
