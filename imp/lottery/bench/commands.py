"""The measurements as commands, in the order of `imp bench --help`."""

import functools
from typing import Any

import typer.main

from lottery.bench.costs import ladder, precision, remat
from lottery.bench.fanout import fanout
from lottery.bench.feed import feed
from lottery.bench.grid import grid
from lottery.bench.inference import inference
from lottery.bench.limits import limits
from lottery.bench.loader import loader
from lottery.bench.prepare import prepare
from lottery.bench.profile import profile
from lottery.bench.race import race
from lottery.bench.scaling import scaling
from lottery.bench.step import masks, step
from lottery.bench.thresholds import thresholds


@functools.cache
def by_name() -> dict[str, Any]:
    """The commands of Click."""
    app = typer.Typer(rich_markup_mode=None)
    for command in (
        *(limits, prepare, feed, loader, step, profile, ladder, masks, precision, remat),
        *(race, grid, scaling, thresholds, fanout, inference),
    ):
        app.command()(command)
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
