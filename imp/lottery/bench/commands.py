"""The measurements as commands, in the order of `imp bench --help`."""

import functools
from typing import Any

import typer.main

from lottery.bench import (
    bundle,
    costs,
    fanout,
    grid,
    images,
    inference,
    limits,
    loader,
    profile,
    race,
    scaling,
    step,
    thresholds,
    updates,
)

COMMANDS = (
    *(limits.limits, images.prepare, images.feed, loader.loader, step.step, profile.profile, costs.ladder, step.masks),
    updates.updates,
    *(costs.precision, costs.remat, race.race, grid.grid, scaling.scaling, thresholds.thresholds, fanout.fanout),
    bundle.bundle,
    inference.inference,
)


@functools.cache
def by_name() -> dict[str, Any]:
    """The commands of Click."""
    app = typer.Typer(rich_markup_mode=None)
    for command in COMMANDS:
        app.command()(command)
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
