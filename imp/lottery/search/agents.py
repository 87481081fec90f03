"""The same sweep for the agents of Weights & Biases: a file for `wandb sweep`, by which each agent runs `imp train`."""

from pathlib import Path
from typing import Any

import yaml

from data_prep import files
from lottery import grids, recipe
from lottery.recipe import Recipe
from lottery.run import Run
from lottery.search import values
from lottery.spaces import Choice, Dimension, Range


def write(run: Run) -> Path:
    """Write `wandb.yaml`, and beside it the recipe that it names; return where it is. Raises InputError for what cannot be
    searched."""
    dimensions = values.searched(run.recipe)
    base = run.sweep / "wandb-recipe.toml"
    file = run.sweep / "wandb.yaml"
    base.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(base, recipe.to_toml(run.recipe))
    files.write_text(file, yaml.safe_dump(content(run.recipe, dimensions, base.resolve()), sort_keys=False))
    return file


def content(wanted: Recipe, dimensions: list[Dimension], base: Path) -> dict[str, Any]:
    """The sweep as W&B writes one: Bayesian search, poor trials ended early, and the command of its agents."""
    settings = wanted.sweep
    classes = [f"data.classes={settings.classes}", "data.path="] if settings.classes else []
    grace = grids.parse_point(settings.grace)
    return {
        "name": f"{wanted.name} sweep",
        "project": wanted.track.project,
        "method": "bayes",
        "metric": {"name": "validation_accuracy", "goal": "maximize"},
        "run_cap": settings.trials,
        "early_terminate": {"type": "hyperband", "min_iter": max(1, round(grace.epochs(None)))},
        "parameters": {dimension.key: _parameter(dimension) for dimension in dimensions},
        "command": [
            *("${env}", "imp", "train", "--recipe", str(base), "--replicate", "1", "--set", "track.wandb=online"),
            *(part for override in classes for part in ("--set", override)),
            "${args_no_hyphens}",
        ],
    }


def _parameter(dimension: Dimension) -> dict[str, Any]:
    if isinstance(dimension, Choice):
        return {"values": list(dimension.values)}
    return {"distribution": _distribution(dimension), "min": dimension.low, "max": dimension.high}


def _distribution(dimension: Range) -> str:
    whole = isinstance(dimension.low, int)
    if dimension.log:
        return "q_log_uniform_values" if whole else "log_uniform_values"
    return "int_uniform" if whole else "uniform"
