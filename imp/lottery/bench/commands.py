"""The measurements as commands, in the order of `imp bench --help`."""

import functools
from typing import Any

import typer.main

from lottery.bench import inference, limits, step

COMMANDS = (limits.limits, step.step, inference.inference)


@functools.cache
def by_name() -> dict[str, Any]:
    """The commands of Click."""
    app = typer.Typer(rich_markup_mode=None)
    for command in COMMANDS:
        app.command()(command)
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
