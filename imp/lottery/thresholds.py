"""Stage 3: quantiles of the magnitudes of the dense network's final weights, and one mask per quantile."""

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from data_prep import files
from data_prep.errors import InputError
from lottery import grids, identity, masks, store
from lottery.progress import Reporter
from lottery.run import Replicate, Run


def thresholds(run: Run, reporter: Reporter) -> list[dict[str, Any]]:
    """Write the masks of the recipe's quantiles that are missing; return every replicate's table.

    A table has `scope`, `count`, `min`, `max` and `mean` of |w|, and `quantiles`: a list, ascending, of `quantile`,
    `threshold` (None if layerwise: each layer has its own), `pruned`, `remaining`, `density` and `collapsed` (layers of which
    nothing is kept). Masks of other quantiles made earlier stay, and stay listed. Raises InputError when a dense network is
    not trained.
    """
    last = run.plan().total_steps
    for replicate in run.replicates():
        if not replicate.dense.result.exists():
            raise InputError(f"{replicate.dense.folder} holds no finished training: run `imp train` first")
    tables = [_replicate(run, replicate, last, reporter) for replicate in run.replicates()]
    run.adopt()
    return tables


def _replicate(run: Run, replicate: Replicate, last: int, reporter: Reporter) -> dict[str, Any]:
    wanted = _wanted(run)
    if replicate.quantiles() == wanted:
        table = files.read_json(replicate.thresholds)
    else:
        with identity.claimed(replicate.masks, run.recipe, "thresholds"):
            run.adopt()
            files.remove_stale(replicate.folder)
            table = _write(run, replicate, store.load_state(replicate.snapshot(last)), _wanted(run))
    _say(replicate, table, reporter)
    return table


def _wanted(run: Run) -> list[Fraction]:
    """The recipe's quantiles, and those that any replicate has masks of: a grid is only ever widened, and for all."""
    made = {quantile for replicate in run.replicates() for quantile in replicate.quantiles()}
    return sorted(made | set(run.recipe.quantiles()))


def _say(replicate: Replicate, table: dict[str, Any], reporter: Reporter) -> None:
    reporter.say(f"{replicate.folder.name}: {len(table['quantiles'])} masks of {table['count']} weights")
    for row in table["quantiles"]:
        if row["collapsed"]:
            layers = ", ".join(row["collapsed"])
            reporter.say(f"warning: at quantile {row['quantile']:g} nothing is left of {layers} (layer collapse)")


def _write(run: Run, replicate: Replicate, state: store.State, quantiles: Sequence[Fraction]) -> dict[str, Any]:
    settings = run.recipe.thresholds
    weights = masks.prunable(state, settings.scope, settings.exclude)
    ranking = masks.rank(weights, settings.layerwise)
    rows = []
    for quantile in quantiles:
        mask = ranking.mask(quantile)
        if not replicate.mask(quantile).exists():
            masks.save(replicate.mask(quantile), mask, {"quantile": grids.quantile_name(quantile), "step": state.step})
        rows.append(_row(quantile, ranking, mask, state))
    table = {
        "scope": settings.scope,
        "layerwise": settings.layerwise,
        "exclude": settings.exclude,
        "count": ranking.magnitudes.size,
        "min": float(ranking.magnitudes[0]),
        "max": float(ranking.magnitudes[-1]),
        "mean": float(ranking.magnitudes.mean()),
        "quantiles": rows,
    }
    files.write_json(replicate.thresholds, table)
    return table


def _row(quantile: Fraction, ranking: masks.Ranking, mask: masks.Mask, state: store.State) -> dict[str, Any]:
    remaining = sum(int(np.count_nonzero(kept)) for kept in mask.values())
    return {
        "quantile": quantile.numerator if quantile.denominator == 1 else float(quantile),
        "threshold": None if ranking.layerwise else ranking.threshold(quantile),
        "pruned": ranking.magnitudes.size - remaining,
        "remaining": remaining,
        "density": dataclasses.asdict(masks.density(mask, state)),
        "collapsed": masks.collapsed(mask),
    }
