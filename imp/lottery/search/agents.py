"""The same sweep for the agents of Weights & Biases: a file for `wandb sweep`, by which each agent runs `imp train`."""

from pathlib import Path
from typing import Any

import yaml

from data_prep import files
from lottery.experiment import grids, reading
from lottery.experiment.recipe import Recipe
from lottery.experiment.spaces import Dimension
from lottery.rundir.run import Run
from lottery.search import values


def write(run: Run) -> Path:
    """Write `wandb.yaml`, and beside it the recipe that it names; return where it is. Raises InputError for what cannot be
    searched."""
    dimensions = values.searched(run.recipe)
    base, file = run.sweep / "wandb-recipe.toml", run.sweep / "wandb.yaml"
    files.write_text(base, reading.to_toml(run.recipe))
    files.write_text(file, yaml.safe_dump(content(run.recipe, dimensions, base.resolve()), sort_keys=False))
    return file


def content(searched: Recipe, dimensions: list[Dimension], base: Path) -> dict[str, Any]:
    """The sweep as W&B writes one: Bayesian search, poor trials ended early, and the command of its agents."""
    settings = searched.sweep
    classes = ["--set", f"data.classes={settings.classes}", "--set", "data.path="] if settings.classes else []
    train = ["train", "--recipe", str(base), "--replicate", "1", "--set", "track.wandb=online", *classes]
    return {
        "name": f"{searched.name} sweep",
        "project": searched.track.project,
        "method": "bayes",
        "metric": {"name": "validation_accuracy", "goal": "maximize"},
        "run_cap": settings.trials,
        "early_terminate": {"type": "hyperband", "min_iter": max(1, round(grids.parse_point(settings.grace).epochs(None)))},
        "parameters": {dimension.key: _parameter(dimension) for dimension in dimensions},
        "command": ["${env}", "imp", *train, "${args_no_hyphens}"],
    }


def _parameter(dimension: Dimension) -> dict[str, Any]:
    if dimension.kind == "choice":
        return {"values": list(dimension.values)}
    low, high = dimension.values
    if dimension.kind == "log":
        distribution = "q_log_uniform_values" if isinstance(low, int) else "log_uniform_values"
    else:
        distribution = "int_uniform" if isinstance(low, int) else "uniform"
    return {"distribution": distribution, "min": low, "max": high}
