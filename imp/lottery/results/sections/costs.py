"""What the trainings took."""

import pandas

from lottery.base.progress import duration
from lottery.results import frame
from lottery.results.block import Block, Cells
from lottery.results.findings import Findings

EXPLAINED = "For finished networks. Device time is the time of training and evaluating, times the number of devices."


def section(findings: Findings) -> Block:
    found = costs(findings.rows)
    return Block("costs", "Cost of training", table=_table(found), explained=EXPLAINED, frames={"costs": found})


def costs(networks: pandas.DataFrame) -> pandas.DataFrame:
    """What the finished networks of each kind took: how many there are, epochs, hours of a device, seconds each."""
    done = networks[networks["status"] == "done"]
    done = done.assign(network=done["variant"], hours=done["seconds"] * done["devices"].fillna(1) / 3600)
    kinds = done.groupby(["network", "family"], sort=False, as_index=False)
    return kinds.agg(
        networks=("seconds", "size"), epochs=("epochs", "sum"), device_hours=("hours", "sum"), seconds_each=("seconds", "mean")
    )


def _table(costs: pandas.DataFrame) -> list[Cells]:
    """A line for each kind, and last of all in all."""
    sums = costs[["networks", "epochs", "device_hours"]].sum()
    seconds = (costs["seconds_each"] * costs["networks"]).sum() / sums["networks"]
    in_all = pandas.DataFrame([{"network": "in all", "family": "", **sums, "seconds_each": seconds}])
    return [
        {
            "networks": f"{row.network}{', ' + row.family if row.family else ''}",
            "trained": f"{row.networks:.0f}",
            "epochs": f"{row.epochs:,.1f}",
            "device time": duration(3600 * row.device_hours),
            "each": duration(row.seconds_each),
        }
        for row in frame.each(pandas.concat([costs, in_all]) if len(costs) > 1 else costs)
    ]
