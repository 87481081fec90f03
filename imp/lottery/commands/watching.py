"""`imp status --watch`: the networks of a run in a terminal, updated while they train."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from lottery.progress import duration
from lottery.results.status import Standing, speed, standings

if TYPE_CHECKING:
    from lottery.rundir.run import Run

WAITING_SHOWN = 10
ORDER = ("running", "failed", "diverged", "waiting")


def watch(run: "Run", seconds: float) -> None:
    """Show the state of all networks of `run`, every `seconds`, until none is left to train."""
    planned = run.plan()
    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        while True:
            found = standings(run, planned)
            live.update(Group(*shown(found, speed(found))), refresh=True)
            if all(one.state in ("done", "diverged") for stage in found.values() for one in stage):
                return
            time.sleep(seconds)


def shown(found: Mapping[str, Sequence[Standing]], pace: float | None) -> list[str | Table]:
    """A line of counts for each stage, with the rate and the time left at `pace` seconds an epoch; and a table of what is not
    done: what runs, what failed and why, and the first of what waits."""
    counts = [f"{stage}: {_counts(networks, pace)}" for stage, networks in found.items()]
    table = Table("network", "state", "how far and where, or why", box=None, pad_edge=False)
    left = [one for networks in found.values() for one in networks if one.state != "done"]
    waiting = 0
    for one in sorted(left, key=lambda one: ORDER.index(one.state)):
        waiting += one.state == "waiting"
        if waiting <= WAITING_SHOWN:
            table.add_row(one.title, one.state, one.told)
    more = [f"and {waiting - WAITING_SHOWN} more waiting"] if waiting > WAITING_SHOWN else []
    return [*counts, *([table] if left else []), *more]


def _counts(networks: Sequence[Standing], pace: float | None) -> str:
    counts = {state: sum(one.state == state for one in networks) for state in ("done", *ORDER)}
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    running = [one.epochs for one in networks if one.state == "running"]
    if not running or pace is None:
        return told
    hourly = 3600 / (pace * sum(running) / len(running)) * len(running)
    return f"{told}; {hourly:.3g} an hour, {duration(sum(one.epochs for one in networks) * pace / len(running))} left"
