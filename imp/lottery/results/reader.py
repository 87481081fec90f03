"""A run as a Python program or a notebook reads it: its networks, their weights, masks and metrics, as arrays and frames.

    results = open_results("runs/digits")
    results.frame()                                           # a row a network, as in summary.csv
    for ticket in results.networks(variant="ticket", mask="q90"):
        ticket.weights(), ticket.mask(), ticket.metrics()

Nothing is written. TensorFlow is loaded by `Trained.model` alone.
"""

import dataclasses
import os
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pandas

from data_prep import records
from lottery.base.errors import InputError
from lottery.engine.start import start_tensorflow
from lottery.experiment.graph import TICKET
from lottery.experiment.recipe import Recipe
from lottery.pruning import masks, norms
from lottery.pruning.costs import Costs
from lottery.pruning.state import Arrays, State
from lottery.results import frame, instability, lookup
from lottery.results.findings import Findings
from lottery.results.several import Several, open_several
from lottery.results.summary import five_lines
from lottery.rundir import lineage, store
from lottery.rundir.lineage import Lineage
from lottery.rundir.names import MaskFiles, NetworkFiles
from lottery.rundir.predictions import Predictions
from lottery.rundir.records import MaskRecord, Result
from lottery.rundir.run import Run, open_run
from lottery.rundir.tickets import open_ticket

if TYPE_CHECKING:
    import keras

QUANTILES = (25, 50, 75, 90, 99)


@dataclasses.dataclass(frozen=True)
class Trained:
    """A network that was trained to its end: dense, ticket or control.

    `name` is its name in `imp export --ticket`, `replicate` the number of its replicate, `result` its result.json.
    """

    name: str
    replicate: int
    result: Result
    run: Run = dataclasses.field(repr=False)
    network: NetworkFiles = dataclasses.field(repr=False)

    @property
    def variant(self) -> str:
        """`dense`, `ticket`, or the name of a control."""
        return self.result.variant

    @property
    def density(self) -> float:
        """The share (0 .. 1) of the prunable weights that it keeps."""
        return self.result.kept.density.prunable if self.result.kept else 1.0

    @property
    def costs(self) -> Costs:
        """Multiply-accumulates for one example, theoretical speed-up and bytes of its weights, as they are and compressed."""
        assert self.result.costs is not None, "it is done"
        return self.result.costs

    @property
    def test_accuracy(self) -> float:
        """That of a classifier at the end of training, 0 .. 1. Raises InputError in another task, where
        `result.reached("test")` decides."""
        assert self.result.final is not None, "it is done"
        return self.result.final.metric("test", "accuracy")

    def state(self) -> State:
        """Weights (averages over the training, if the recipe has them) and BatchNorm statistics at the end."""
        ticket, _, control = self.name.partition(" ")
        return lookup.trained(self.run, self.run.replicate(self.replicate), ticket, control or TICKET)[1]

    def weights(self) -> Arrays:
        """The trainable variables at the end, path -> array of floats; what is pruned is exactly 0.0."""
        return self.state().weights

    def mask(self) -> masks.Bits:
        """The mask it was trained under: path -> bool array, True where a prunable weight is kept; without one, all True."""
        return lookup.mask(self.run, self.run.replicate(self.replicate), self.result, self.state())

    def predictions(self) -> dict[str, Predictions]:
        """What it answers to `validation` and `test` images, image by image; empty where an earlier version trained it, and in
        tasks other than classification."""
        return Lineage(self.run.replicate(self.replicate)).predictions(self.network)

    def metrics(self) -> pandas.DataFrame:
        """A row for each time it was looked at: `step`, `epoch`, losses and metrics (0 .. 1) of each split, seconds."""
        return pandas.DataFrame([{"name": self.name, **row} for row in self._course()])

    def _course(self) -> list[dict[str, Any]]:
        rows = lineage.rows(self.network)
        return [{name: value for name, value in row.items() if name != "timing"} | row["timing"] for row in rows]

    def norms(self, quantiles: Iterable[float] = QUANTILES) -> pandas.DataFrame:
        """The magnitudes of its prunable weights at its end (averaged weights, if the recipe has them), in the columns of
        `Results.norms`."""
        return _norms(self.run.recipe.pruning.prunable(self.state()), quantiles)

    def model(self) -> "keras.Model":
        """The network in float32, with these weights, built as `model.name` builds it now. It takes images as `Results.images`
        gives them and returns logits."""
        start_tensorflow()
        from lottery.engine import formats
        from lottery.engine.tasks import choice

        task = choice.make(self.run.recipe, _manifest(self.run))
        return formats.rebuilt(self.run.recipe.model, task.signature, self.state(), self.result.made_from["network"])


@dataclasses.dataclass(frozen=True, repr=False)
class Results:
    """The results of a run so far."""

    run: Run

    def __repr__(self) -> str:
        """Five lines: its name, replicates, dense network, tickets, and the sparsest of these that matches."""
        return five_lines(Findings(self.run))

    @property
    def recipe(self) -> Recipe:
        return self.run.recipe

    def frame(self) -> pandas.DataFrame:
        """One row per network of the run's grids, finished or missing, with the columns of summary.csv; shares are 0 .. 1."""
        return frame.named(frame.rows(self.run), self.run.metric)

    def networks(self, replicate: int | None = None, **where: Any) -> list[Trained]:
        """Every finished network that is not stale, dense ones first in each replicate; of those only the ones whose result has
        the values `where` (`variant="ticket", family="oneshot", mask="q90", rewind_step=34, round=1`)."""
        if unknown := sorted(set(where) - set(frame.KIND)):
            raise InputError(f"no network has {', '.join(unknown)}: known are {', '.join(frame.KIND)}")
        found = [one for number in self.run.known_numbers() for one in self._of(number) if replicate in (None, number)]
        return [one for one in found if all(getattr(one.result, key) == value for key, value in where.items())]

    def network(self, name: str, replicate: int = 1, variant: str = TICKET) -> Trained:
        """The finished network with this name in `imp export --ticket`. Raises InputError, which names others, if none."""
        place = lookup.replicate(self.run, replicate)
        found = lookup.find(place, name, variant)
        for one in self._of(replicate):
            if one.network == found:
                return one
        raise InputError(f"{found.folder} is not finished, or stale: see `imp status` and the status in summary.csv")

    def _of(self, number: int) -> list[Trained]:
        place = self.run.replicate(number)
        results = [(name, network, network.read_result()) for name, network in lookup.named(place).items()]
        problem = Lineage(place).problem
        return [
            Trained(name, number, result, self.run, network)
            for name, network, result in results
            if result and result.status == "done" and not problem(network.result)
        ]

    def metrics(self) -> pandas.DataFrame:
        """A row for each time that any finished network was looked at, with its `name`, `replicate` and `variant`."""
        return pandas.DataFrame(
            {"replicate": one.replicate, "name": one.name, "variant": one.variant, **row}
            for one in self.networks()
            for row in one._course()
        )

    def instability(self) -> pandas.DataFrame:
        """That of each ticket, rewind point and kind of BatchNorm statistics whose copies were compared (`imp stability`)."""
        return instability.groups(self.run)

    def lines(self) -> pandas.DataFrame:
        """The errors (0 .. 1) on the lines between copies, by `share` of the second one: means over pairs and replicates."""
        return instability.curves(self.run)

    def snapshots(self, replicate: int = 1) -> list[int]:
        """The steps at which a replicate's dense training was saved, ascending."""
        return lookup.snapshots(lookup.replicate(self.run, replicate))

    def snapshot(self, step: int, replicate: int = 1) -> State:
        """The dense network at one of those steps: weights, BatchNorm statistics and optimizer state, path -> array."""
        return lookup.snapshot(lookup.replicate(self.run, replicate), step)

    def norms(self, step: int | None = None, replicate: int = 1, quantiles: Iterable[float] = QUANTILES) -> pandas.DataFrame:
        """Magnitudes of the raw prunable weights of the dense network after `step` steps (by default at its end): one row
        per variable and one for all of them, with `count`, `zeros`, `min`, `max`, `mean`, `norm`, `q50`, ..."""
        return _norms(self.prunable(step, replicate), quantiles)

    def prunable(self, step: int | None = None, replicate: int = 1) -> Arrays:
        """The raw weights of the dense network that the recipe's scope ranks, after `step` steps (by default at its end):
        path -> array. With scope `all`, BatchNorm statistics are included."""
        place = lookup.replicate(self.run, replicate)
        return self.run.recipe.pruning.prunable(lookup.snapshot(place, lookup.end(place) if step is None else step))

    def quantiles(self, replicate: int = 1, family: str = "") -> list[float]:
        """The quantiles that a replicate has masks of, ascending; by default of the first one-shot family of the recipe."""
        return [record.rate for _, record in self._one_shot(replicate, family) if record]

    def thresholds(self, replicate: int = 1, family: str = "") -> pandas.DataFrame:
        """Those masks: one row per quantile, with `threshold`, `pruned`, `remaining`, densities, costs (MACs and bytes), and a
        `warning` if a layer has collapsed or no path is left."""
        cut = self._one_shot(replicate, family)
        if not cut:
            raise InputError(f"{self.run.replicate(replicate).folder} has no masks yet: run `imp thresholds` first")
        least = self.recipe.pruning.collapse
        return pandas.DataFrame(
            {
                "quantile": record.rate,
                **record.model_dump(include={"threshold", "pruned", "remaining"}),
                **dataclasses.asdict(record.kept.density),
                **dataclasses.asdict(record.costs),
                "speedup": record.costs.speedup,
                "collapsed": record.kept.collapsed(least),
                "warning": record.kept.warning(least),
            }
            for _, record in cut
        )

    def mask(self, quantile: float, replicate: int = 1, family: str = "") -> masks.Bits:
        """The mask of a quantile: path -> array of booleans, True where a weight is kept; with scope `all` also of BatchNorm
        statistics, which no training prunes."""
        place = lookup.replicate(self.run, replicate)
        cut = {record.rate: files for files, record in self._one_shot(replicate, family)}
        if quantile not in cut:
            raise InputError(
                f"{place.folder} has no mask of {quantile:g}: it has {', '.join(f'{one:g}' for one in cut) or 'none'}"
            )
        Lineage(place).check(cut[quantile].mask)
        return store.load_mask(cut[quantile].mask)

    def _one_shot(self, replicate: int, family: str) -> list[tuple[MaskFiles, MaskRecord]]:
        place = lookup.replicate(self.run, replicate)
        name = family or next((name for name, one in self.recipe.families.items() if one.is_cut_at_once), "")
        return [(files, record) for files in place.masks(name) if name and (record := files.read())]

    def images(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Images (float32, [n, height, width, channels], scaled as in training) and labels (int32, [n]) of `train`,
        `validation` or `test`. Raises InputError if the records are not those that the run was trained on."""
        images, labels = records.read_split(self.run.records(), _manifest(self.run), split)
        mean, deviation = (np.asarray(values, np.float32) for values in (self.recipe.data.mean, self.recipe.data.deviation))
        return (images / np.float32(255) - mean) / deviation, labels


@overload
def open_results(folder: str | os.PathLike[str] | None = None) -> Results: ...
@overload
def open_results(folder: list[str] | list[Path]) -> Several: ...
def open_results(folder: Any = None) -> Results | Several:
    """The run in `folder`, else in `$IMP_RUN`, else `runs/latest`; or the runs in a list of folders. Raises InputError where
    there is none, and for runs that cannot be compared, as they are of different data or metrics."""
    if isinstance(folder, list):
        return open_several([Path(one) for one in folder])
    return Results(open_run(None if folder is None else Path(folder), must_exist=True))


def ticket_model(folder: str | os.PathLike[str]) -> "keras.Model":
    """The classifier in a ticket folder (`imp export --to folder`) in float32, built as `model.name` of its recipe builds it
    now. Raises InputError where the folder is damaged, that is another network, or its task is not classification."""
    ticket = open_ticket(os.fspath(folder))
    if ticket.recipe.task != "classification":
        raise InputError(f"{folder} has no classifier, but task = {ticket.recipe.task}: use its arrays, or `imp import` it")
    start_tensorflow()
    from lottery.engine import formats
    from lottery.engine.tasks import choice

    data, trained = ticket.record.data, ticket.record.result.made_from["network"]
    task = choice.make(ticket.recipe, records.Manifest(data.shape, data.classes, [], {}))
    return formats.rebuilt(ticket.recipe.model, task.signature, ticket.state, trained)


def _manifest(run: Run) -> records.Manifest:
    manifest = run.manifest()
    run.check_origins({"records": manifest.digest})
    return manifest


def _norms(weights: Arrays, quantiles: Iterable[float]) -> pandas.DataFrame:
    wanted = [Fraction(str(quantile)) for quantile in quantiles]
    rows = norms.table(weights, {f"q{float(quantile):g}": quantile for quantile in wanted})
    found = pandas.DataFrame([{**row, **row["quantiles"]} for row in rows]).set_index("path")
    return found.drop(columns=["quantiles", "histogram", "low", "high"])
