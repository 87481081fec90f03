"""The metrics of a task beside the one that decides, such as `rouge2` and `first_rouge1`, over the replicates of each kind of
network.

Where the deciding metric M has a `random_M` and an `oracle_M`, as in ranking, `way_to_oracle` is (M - random_M) / (oracle_M -
random_M), of means: 0 for a choice at random, 1 for the best choice that there is.
"""

import itertools
import statistics

import pandas

from lottery.experiment.graph import DENSE, TICKET
from lottery.results import frame
from lottery.results.block import Block, Cells
from lottery.results.findings import Findings
from lottery.results.frame import DECIDING, KIND, ROWS
from lottery.results.tables import points
from lottery.rundir import wording
from lottery.rundir.run import Run

WAY = "way_to_oracle"
MEANS = {
    **{name: ROWS[name] for name in (*KIND, "rewind", "density")},
    "count": "Int64",  # networks that are done
    "metric": "string",
    "split": "string",
    "mean": "Float64",
}
EXPLAINED = (
    "All metrics of the task on validation and test {example}s (validation / test), in per cent: means over replicates. The "
    "first one decides."
)
WAY_EXPLAINED = " way to oracle: how far {metric} is above a choice at random, as a share of how far the best choice is."


def section(findings: Findings) -> Block | None:
    found = means(findings.run, findings.networks)
    if found.empty:
        return None
    explained = EXPLAINED + (WAY_EXPLAINED if WAY in set(found["metric"]) else "")
    explained = findings.run.worded(explained)
    return Block("metrics", "All metrics", table=_table(found), explained=explained, frames={"metrics": found})


def means(run: Run, networks: pandas.DataFrame) -> pandas.DataFrame:
    """A row for each metric and split of the dense network and of each kind of ticket; the deciding metric comes first. There
    are none where a task has no other metric, nor beside accuracy that of the first five answers."""
    left_out = {run.metric, "top5_accuracy"} if run.metric == wording.ACCURACY else {run.metric}
    done = networks[(networks["status"] == "done") & networks["variant"].isin([DENSE, TICKET])]
    found = []
    for _, alike in done.groupby(KIND, sort=False):
        rows = frame.dicts(alike)
        results = [run.network_in(row["folder"]).read_result() for row in rows]
        ends = [result.final for result in results if result and result.final]
        further = [name for name in ends[0].metrics if name not in left_out]
        about = {name: rows[0][name] for name in (*KIND, "rewind")} | {"count": len(ends)}
        about["density"] = statistics.fmean(row["density"] for row in rows)
        for name in [run.metric, *further] if further else ():
            for split in DECIDING:
                mean = statistics.fmean(end.metric(split, name) for end in ends)
                found.append({**about, "metric": name, "split": split, "mean": mean})
    table = frame.table(sorted(found, key=frame.order(run)), MEANS)
    return pandas.concat([table, _ways(table, run.metric)]) if len(table) else table


def _ways(means: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """The way to the oracle of each kind of network and split, where that is known."""
    by_metric = means.pivot(index=[*KIND, "rewind", "density", "count", "split"], columns="metric", values="mean")
    if not {f"random_{metric}", f"oracle_{metric}"} <= set(by_metric):
        return means[:0]
    chance, best = by_metric[f"random_{metric}"], by_metric[f"oracle_{metric}"]
    ways = ((by_metric[metric] - chance) / (best - chance)).where(best > chance)
    return ways.rename("mean").reset_index().assign(metric=WAY)[list(MEANS)].astype(MEANS)


def _table(means: pandas.DataFrame) -> list[Cells]:
    """A line for each kind of network, a column for each metric."""
    lines = []
    for _, alike in means.groupby(KIND, sort=False):
        rows = frame.each(alike)
        line = {
            "network": rows[0].variant,
            "mask": f"{rows[0].family} {rows[0].mask}".strip(),
            "density": f"{rows[0].density:.2%}",
            "rewound to": "" if rows[0].variant == DENSE else rows[0].rewind,
            "runs": str(rows[0].count),
        }
        for metric, splits in itertools.groupby(rows, lambda row: row.metric):
            means_of = {row.split: row.mean for row in splits}
            line[wording.title(metric)] = " / ".join(points(means_of[split]) or "-" for split in DECIDING)
        lines.append(line)
    return lines
