"""Stage 3: the masks of one-shot families, one for each quantile of the scores of the dense network's weights."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from lottery.base import files, locks
from lottery.base.errors import InputError
from lottery.base.progress import Reporter, count_of
from lottery.experiment import grids
from lottery.experiment.grids import Grid
from lottery.experiment.plan import Selection
from lottery.results.tables import csv_text
from lottery.rundir.records import MaskRecord
from lottery.rundir.run import Run
from lottery.stages.cut import check_families, cut
from lottery.stages.probing import Probes

COLUMNS = (
    *("quantile", "layer", "threshold", "pruned", "remaining", "prunable", "trainable", "total", "effective", "warning"),
    *("dense_macs", "macs", "speedup", "float32_bytes", "gzip_bytes"),
    *("count", "min", "max", "mean"),
)
Table = list[MaskRecord]  # the masks of one family in one replicate, from dense to sparse


def thresholds(run: Run, reporter: Reporter, selection: Selection) -> list[Table]:
    """Write the missing masks of the selected quantiles, or of the recipe's; return those of every replicate and family. Masks
    of other quantiles stay; a quantile that one replicate has is cut in all. Raises InputError if a dense network is not
    trained, or no selected family prunes in one shot."""
    families = {name: family for name, family in selection.of(run.recipe).items() if family.is_cut_at_once}
    if not families:
        raise InputError("no family prunes in one shot: add one, as with --set families.oneshot.quantiles=60..99")
    run.check_trained()
    run.check()
    planned = run.plan()
    check_families(run)
    for name, family in families.items():
        quantiles = Grid.of(sorted({*family.quantiles, *run.cut_quantiles(name)}))
        families[name] = family.model_copy(update={"quantiles": quantiles})
    tables, probes = [], Probes(run)
    with locks.staying(run.folder):
        for number in run.numbers():
            cut(run, planned.masks([number], families), probes)
        run.adopt()
        for replicate in run.replicates():
            for name in families:
                table = [record for mask in replicate.masks(name) if (record := mask.read())]
                path, text = replicate.thresholds(name), csv_text(COLUMNS, _rows(table, run.recipe.pruning.collapse))
                if not path.exists() or path.read_text() != text:
                    files.write_text(path, text)
                tables.append(table)
    for table in tables:
        masks, weights = count_of(len(table), "mask"), table[0].pruned + table[0].remaining
        reporter.say(f"replicate-{table[0].replicate} {table[0].family}: {masks} of {weights} weights")
        if run.recipe.families[table[0].family].is_settled:
            reporter.say(f"settled: {', '.join(f'{mask.mask} at {planned.point_at(mask.step)}' for mask in table)}")
        for warning in warnings(table, run.recipe.pruning.collapse):
            reporter.say(f"warning: at {warning}")
    return tables


def warnings(table: Sequence[MaskRecord], collapse: float) -> list[str]:
    """A line for each mask with a layer of which no more than the share `collapse` is left."""
    return [f"quantile {mask.rate:g}: {warning}" for mask in table if (warning := mask.kept.warning(collapse))]


def _rows(table: Sequence[MaskRecord], collapse: float) -> Iterator[dict[str, Any]]:
    """One row per mask, with the keys `COLUMNS`, and one more for each of its layers."""
    for mask in table:
        figures = {name: getattr(mask, name) for name in ("threshold", "pruned", "remaining")}
        kept = {**dataclasses.asdict(mask.kept.density), "warning": mask.kept.warning(collapse)}
        quantile = str(grids.of_label(mask.mask))
        spent = dataclasses.asdict(mask.costs) | {"speedup": mask.costs.speedup}
        yield {"quantile": quantile, **figures, **kept, **spent, **mask.scores.model_dump()}
        for path, layer in mask.layers.items():
            left = mask.kept.layers.get(path)  # none of BatchNorm's statistics, which no training prunes
            spent = {"dense_macs": left.dense_macs, "macs": left.macs} if left else {}
            one = {"threshold": layer.threshold, "pruned": layer.weights - layer.kept, "remaining": layer.kept}
            yield {"quantile": quantile, "layer": path, **one, **spent}
