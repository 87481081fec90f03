"""Stage 3: quantiles of the magnitudes of the dense network's final weights, and one mask per quantile."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from data_prep import files
from lottery import densities, grids, identity, locks, masks, patterns, ranking, store
from lottery.lineage import Lineage, seals
from lottery.progress import Reporter
from lottery.run import Replicate, Run
from lottery.tables import csv_text

COLUMNS = (
    *("quantile", "layer", "threshold", "pruned", "remaining", "prunable", "trainable", "total", "effective", "warning"),
    *("count", "min", "max", "mean"),
)


def thresholds(run: Run, reporter: Reporter, quantiles: str | None = None) -> list[dict[str, Any]]:
    """Write the missing masks of `quantiles`, or else of the recipe's; return every replicate's table.

    A table has `replicate`, `scope`, `count`, `min`, `max` and `mean` of |w|, and `quantiles`: a list, ascending, of
    `quantile`, `threshold` (None if layerwise: each layer has its own in `thresholds`), `pruned`, `remaining`, and what
    `densities.figures` says. The same is written as CSV, a layerwise quantile with a further line for each layer. Masks of
    other quantiles made earlier stay, and stay listed. Raises InputError when a dense network is not trained.
    """
    run.check_trained()
    last = run.plan().total_steps
    asked = run.recipe.quantiles() if quantiles is None else grids.parse_quantiles(quantiles)
    with locks.staying(run.folder):
        tables = [_replicate(run, number, asked, last, reporter) for number in run.numbers()]
        run.adopt()
    return tables


def _replicate(run: Run, number: int, asked: Sequence[Fraction], last: int, reporter: Reporter) -> dict[str, Any]:
    replicate = run.replicate(number)
    final = replicate.snapshot(last)
    lineage = Lineage(replicate)
    table = files.read_json(replicate.thresholds) if replicate.thresholds.exists() else {}
    cut = replicate.quantiles()
    for quantile in cut:
        lineage.check(replicate.mask(quantile))
    if cut != _wanted(run, asked) or table.get("collapse") != run.recipe.thresholds.collapse:
        with store.promised_by(replicate.dense.result):
            lineage.check(final)
            state = store.load_state(final, slots=False)
        patterns.check(run, lambda: [*state.weights, *state.statistics])
        weights = masks.prunable(state, run.recipe.thresholds.scope, run.recipe.thresholds.exclude)
        with identity.claimed(replicate.masks, run.recipe, "thresholds", replicate.origins()):
            run.adopt()
            files.remove_stale(replicate.folder)
            table = {"replicate": number, **_write(run, replicate, state, weights, _wanted(run, asked))}
            table |= {
                "outputs": seals(replicate.folder, map(replicate.mask, _wanted(run, asked))),
                "made_from": seals(replicate.folder, [final]),
            }
            files.write_text(replicate.thresholds.with_suffix(".csv"), csv_text(COLUMNS, list(_lines(table))))
            files.write_json(replicate.thresholds, table)
    _say(replicate, table, reporter)
    return table


def _lines(table: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines of the table as CSV."""
    figures = {name: table[name] for name in ("count", "min", "max", "mean")}
    for row in table["quantiles"]:
        yield {**row, **row["density"], "warning": densities.warning(row), **figures}
        for layer, threshold in row.get("thresholds", {}).items():
            yield {"quantile": row["quantile"], "layer": layer, "threshold": threshold}


def _wanted(run: Run, asked: Sequence[Fraction]) -> list[Fraction]:
    """The quantiles asked for, and those at which any replicate was thresholded: a grid is only ever widened, and for all. One
    of which all masks were removed begins anew."""
    made = {quantile for replicate in run.replicates() if replicate.quantiles() for quantile in replicate.listed_quantiles()}
    return sorted(made | set(asked))


def _say(replicate: Replicate, table: dict[str, Any], reporter: Reporter) -> None:
    reporter.say(f"{replicate.folder.name}: {len(table['quantiles'])} masks of {table['count']} weights")
    for row in table["quantiles"]:
        if warning := densities.warning(row):
            reporter.say(f"warning: at quantile {row['quantile']:g} {warning}")


def _write(
    run: Run, replicate: Replicate, state: store.State, weights: store.Arrays, quantiles: Sequence[Fraction]
) -> dict[str, Any]:
    settings = run.recipe.thresholds
    rankings = [ranking.rank(part) for part in ranking.parted(weights, settings.layerwise)]
    topology, cut = densities.topology_of(replicate), replicate.quantiles()  # these were found to hold
    rows = []
    for quantile in quantiles:
        mask = _mask(rankings, quantile)
        if quantile not in cut:
            masks.save(replicate.mask(quantile), mask, {"quantile": grids.quantile_name(quantile), "step": state.step})
        rows.append(
            {**_row(quantile, rankings, mask, settings.layerwise), **densities.figures(mask, state, run.recipe, topology)}
        )
    count = sum(part.magnitudes.size for part in rankings)
    return {
        "scope": settings.scope,
        "layerwise": settings.layerwise,
        "exclude": settings.exclude,
        "collapse": settings.collapse,
        "count": count,
        "min": float(min(part.magnitudes[0] for part in rankings)),
        "max": float(max(part.magnitudes[-1] for part in rankings)),
        "mean": float(sum(part.magnitudes.sum(dtype=np.float64) for part in rankings)) / count,
        "quantiles": rows,
    }


def _mask(rankings: Sequence[ranking.Ranking], quantile: Fraction) -> masks.Mask:
    mask: masks.Mask = {}
    for part in rankings:
        mask |= part.prune(ranking.pruned_count(quantile, part.magnitudes.size))
    return mask


def _row(quantile: Fraction, rankings: Sequence[ranking.Ranking], mask: masks.Mask, layerwise: bool) -> dict[str, Any]:
    remaining = sum(int(np.count_nonzero(kept)) for kept in mask.values())
    values = {next(iter(part.weights)): part.threshold(quantile) for part in rankings}
    return {
        "quantile": quantile.numerator if quantile.denominator == 1 else float(quantile),
        "threshold": None if layerwise else next(iter(values.values())),
        **({"thresholds": values} if layerwise else {}),
        "pruned": sum(kept.size for kept in mask.values()) - remaining,
        "remaining": remaining,
    }
