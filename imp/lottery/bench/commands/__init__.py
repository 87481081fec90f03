"""The measurements as commands, in the order of `imp bench --help`."""

import typer

from lottery.bench.commands import data, machines, steps, trainings

app = typer.Typer(no_args_is_help=True, help="Measure this machine.")
app.command()(machines.limits)
app.command()(data.prepare)
app.command()(data.feed)
app.command()(data.loader)
app.command()(steps.step)
app.command()(steps.profile)
app.command()(steps.ladder)
app.command()(steps.masks)
app.command()(steps.precision)
app.command()(steps.remat)
app.command()(trainings.race)
app.command()(trainings.grid)
app.command()(trainings.scaling)
app.command()(machines.thresholds)
app.command()(machines.fanout)
app.command()(machines.inference)
