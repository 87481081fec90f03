"""Stage 3: the masks of one-shot families, one for each quantile of the scores of the dense network's weights."""

import dataclasses
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from data_prep import files
from data_prep.errors import InputError
from lottery.experiment import grids
from lottery.experiment.plan import Selection
from lottery.experiment.recipe import Family
from lottery.progress import Reporter, count_of
from lottery.results.tables import csv_text
from lottery.rundir import locks
from lottery.rundir.records import MaskRecord
from lottery.rundir.run import Run
from lottery.stages import patterns
from lottery.stages.cut import cut

COLUMNS = (
    *("quantile", "layer", "threshold", "pruned", "remaining", "prunable", "trainable", "total", "effective", "warning"),
    *("count", "min", "max", "mean"),
)


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """The masks of one family in one replicate, from dense to sparse."""

    replicate: int
    family: str
    masks: list[MaskRecord]
    collapse: float

    @property
    def warnings(self) -> list[str]:
        """A line for each mask with a collapsed layer."""
        return [f"quantile {mask.rate:g}: {warning}" for mask in self.masks if (warning := mask.kept.warning(self.collapse))]

    def as_json(self) -> dict[str, Any]:
        """The replicate, the family, and what each mask prunes."""
        masks = [mask.model_dump(mode="json", exclude={"format", "folder", "outputs", "made_from"}) for mask in self.masks]
        return {"replicate": self.replicate, "family": self.family, "masks": masks}

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row per mask, with the keys `COLUMNS`; if thresholds differ by layer, one more per layer."""
        for mask in self.masks:
            figures = {name: getattr(mask, name) for name in ("threshold", "pruned", "remaining")}
            kept = {**dataclasses.asdict(mask.kept.density), "warning": mask.kept.warning(self.collapse)}
            quantile = mask.mask.removeprefix("q")
            yield {"quantile": quantile, **figures, **kept, **mask.scores.model_dump()}
            if mask.threshold is None:
                for layer, one in mask.layers.items():
                    yield {"quantile": quantile, "layer": layer, "threshold": one.threshold}


def thresholds(run: Run, reporter: Reporter, selection: Selection) -> list[Thresholds]:
    """Write the missing masks of the selected quantiles, or of the recipe's; return those of every replicate and family.

    Masks of other quantiles stay; a quantile that one replicate has is cut in all. Raises InputError if a dense network is not
    trained, or no selected family prunes in one shot.
    """
    families = {name: family for name, family in selection.of(run.recipe).items() if family.quantiles}
    if not families:
        raise InputError("no family prunes in one shot: add one, as with --set families.oneshot.quantiles=60..99")
    run.check_trained()
    planned = run.plan()
    patterns.check_trained(run)
    families = {name: _widened(family, run.cut_quantiles(name)) for name, family in families.items()}
    with locks.staying(run.folder):
        for number in run.numbers():
            cut(run, planned.masks([number], families))
        run.adopt()
        tables = [_table(run, number, name) for number in run.numbers() for name in families]
    for table in tables:
        _say(table, reporter)
    return tables


def _widened(family: Family, cut: Sequence[Fraction]) -> Family:
    quantiles = sorted({*grids.parse_quantiles(family.quantiles), *cut})
    return family.model_copy(update={"quantiles": ",".join(map(grids.quantile_name, quantiles))})


def _table(run: Run, number: int, family: str) -> Thresholds:
    replicate = run.replicate(number)
    masks = [record for mask in replicate.masks(family) if (record := mask.read())]
    table = Thresholds(number, family, masks, run.recipe.pruning.collapse)
    path, text = replicate.thresholds(family), csv_text(COLUMNS, list(table.rows()))
    if not path.exists() or path.read_text() != text:
        files.write_text(path, text)
    return table


def _say(table: Thresholds, reporter: Reporter) -> None:
    weights = max((mask.scores.count for mask in table.masks), default=0)
    reporter.say(f"replicate-{table.replicate} {table.family}: {count_of(len(table.masks), 'mask')} of {weights} weights")
    for warning in table.warnings:
        reporter.say(f"warning: at {warning}")
