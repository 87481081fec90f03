"""A run as a Python program or a notebook reads it: its networks, their weights, masks and metrics, as arrays and frames.

    results = open_results("runs/digits")
    results.frame()                                           # a row a network, as in summary.csv
    for ticket in results.networks(variant="ticket", quantile=90):
        ticket.weights(), ticket.mask(), ticket.metrics()

Nothing is written. TensorFlow is loaded by `Trained.model` alone.
"""

import dataclasses
import os
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas

from data_prep import files, records
from data_prep.errors import InputError
from lottery import densities, lineage, masks, norms, store
from lottery.lineage import Lineage
from lottery.recipe import Recipe
from lottery.results import listing, lookup
from lottery.run import Network, Run, open_run
from lottery.start import start_tensorflow

if TYPE_CHECKING:
    import keras

_DEFAULTS = {"variant": "dense", "method": "oneshot", "quantile": None, "level": None}
QUANTILES = (25, 50, 75, 90, 99)


@dataclasses.dataclass(frozen=True)
class Trained:
    """A network that is trained to its end: dense, ticket or control.

    `name` is what `imp export --ticket` calls it, `replicate` whose it is, `result` what result.json says of it.
    """

    name: str
    replicate: int
    result: dict[str, Any]
    run: Run = dataclasses.field(repr=False)
    network: Network = dataclasses.field(repr=False)

    @property
    def variant(self) -> str:
        """`dense`, `ticket`, `reinit`, `shuffle`, `random` or `extended`."""
        return str(self.result["variant"])

    @property
    def density(self) -> float:
        """The share (0 .. 1) of the prunable weights that it keeps."""
        return float(self.result.get("density", {}).get("prunable", 1.0))

    @property
    def test_accuracy(self) -> float:
        """At the end of training, 0 .. 1."""
        return float(self.result["final"]["test_accuracy"])

    def state(self) -> store.State:
        """Weights (averages over the training, where the recipe has them) and BatchNorm statistics at the end."""
        ticket, variant = ("dense", "ticket") if self.variant == "dense" else (self.name.split(" ")[0], self.variant)
        return lookup.trained(self.run, self.run.replicate(self.replicate), ticket, variant)[1]

    def weights(self) -> store.Arrays:
        """The trainable variables at the end, path -> array of floats; what is pruned is exactly 0.0."""
        return self.state().weights

    def mask(self) -> masks.Mask:
        """Path -> array of booleans, True where a prunable weight is kept; read off the weights, so that a kept weight that has
        become exactly 0.0 counts as pruned. All True for a network without a mask."""
        settings = self.run.recipe.thresholds
        dense = self.variant in ("dense", "extended")
        return {
            path: np.ones(array.shape, bool) if dense else array != 0
            for path, array in self.weights().items()
            if masks.in_scope(path, array.shape, settings.scope, settings.exclude)
        }

    def metrics(self) -> pandas.DataFrame:
        """A row for each time it was looked at: `step`, `epoch`, losses and accuracies (0 .. 1) of each split, seconds."""
        return _frame([self.network], [{"name": self.name}])

    def norms(self, quantiles: Iterable[float] = QUANTILES) -> pandas.DataFrame:
        """The magnitudes of its prunable weights at its end, in the columns of `Results.norms`; averages over the training
        where the recipe has them."""
        return _norms(self.state(), self.run.recipe, quantiles)

    def model(self) -> "keras.Model":
        """The network in float32, with these weights, built as `model.name` builds it now. It takes images as `Results.images`
        gives them and returns logits."""
        start_tensorflow()
        from lottery.engine import formats

        manifest = _manifest(self.run)
        trained = self.result["made_from"]["network"]
        return formats.rebuilt(self.run.recipe.model, manifest.shape, len(manifest.classes), self.state(), trained)


@dataclasses.dataclass(frozen=True)
class Results:
    """What a run directory holds so far."""

    run: Run

    @property
    def recipe(self) -> Recipe:
        return self.run.recipe

    def frame(self) -> pandas.DataFrame:
        """A row for each network of the run's grids, finished or missing, with the columns of summary.csv; accuracies and
        densities are 0 .. 1."""
        return pandas.DataFrame(listing.rows(self.run), columns=list(listing.COLUMNS))

    def networks(self, replicate: int | None = None, **where: Any) -> list[Trained]:
        """Every finished network that is not stale, dense ones first in each replicate; of those only the ones whose result has
        the values `where` (`variant="ticket", quantile=90, rewind_step=34, method="weights", level=3`)."""
        found = [one for number in self.run.known_numbers() for one in self._of(number) if replicate in (None, number)]
        unknown = sorted(set(where) - {key for one in found for key in one.result}) if found else []
        if unknown:
            raise InputError(f"no network has {', '.join(unknown)}: known are variant, quantile, rewind_step, method, level")
        return [one for one in found if all(one.result.get(key) == value for key, value in where.items())]

    def network(self, name: str, replicate: int = 1, variant: str = "ticket") -> Trained:
        """The finished network that `imp export --ticket` calls so. Raises InputError where there is none, naming others."""
        place = lookup.replicate(self.run, replicate)
        called = name if variant == "ticket" else f"{name} {variant}"
        for one in self._of(replicate):
            if one.name == called:
                return one
        found = lookup.find(place, name, variant)
        raise InputError(f"{found.folder} is not finished, or stale: see `imp status` and the status in summary.csv")

    def _of(self, number: int) -> list[Trained]:
        place = self.run.replicate(number)
        found = [("dense", place.dense)] + [(lookup.name(place, one.folder), one) for one in place.networks()]
        results = [(name, network, network.read_result()) for name, network in found]
        problem = Lineage(place).problem
        return [
            Trained(name, number, _DEFAULTS | {"rewind_step": result["first_step"]} | result, self.run, network)
            for name, network, result in results
            if result and result["status"] == "done" and not problem(network.result)
        ]

    def metrics(self) -> pandas.DataFrame:
        """A row for each time that any finished network was looked at, with its `name`, `replicate` and `variant`."""
        found = self.networks()
        keys = [{"replicate": one.replicate, "name": one.name, "variant": one.variant} for one in found]
        return _frame([one.network for one in found], keys)

    def snapshots(self, replicate: int = 1) -> list[int]:
        """The steps at which a replicate's dense training was saved, ascending."""
        return lookup.snapshots(lookup.replicate(self.run, replicate))

    def snapshot(self, step: int, replicate: int = 1) -> store.State:
        """The dense network at one of those steps: weights, BatchNorm statistics and optimizer slots, path -> array."""
        return lookup.snapshot(lookup.replicate(self.run, replicate), step)

    def norms(self, step: int | None = None, replicate: int = 1, quantiles: Iterable[float] = QUANTILES) -> pandas.DataFrame:
        """Magnitudes of the raw prunable weights of the dense network after `step` steps (at its end unless told otherwise):
        a row for each variable and one for all of them, with `count`, `zeros`, `min`, `max`, `mean`, `norm`, `q50`, ..."""
        return _norms(self._dense(step, replicate), self.recipe, quantiles)

    def prunable(self, step: int | None = None, replicate: int = 1) -> store.Arrays:
        """The raw weights of the dense network that the recipe's scope ranks, after `step` steps (at its end unless told
        otherwise): path -> array, BatchNorm statistics among them with scope `all`."""
        settings = self.recipe.thresholds
        return masks.prunable(self._dense(step, replicate), settings.scope, settings.exclude)

    def _dense(self, step: int | None, replicate: int) -> store.State:
        place = lookup.replicate(self.run, replicate)
        return lookup.snapshot(place, lookup.end(place) if step is None else step)

    def quantiles(self, replicate: int = 1) -> list[float]:
        """The quantiles of which a replicate has masks, ascending."""
        return [float(quantile) for quantile in lookup.replicate(self.run, replicate).quantiles()]

    def thresholds(self, replicate: int = 1) -> pandas.DataFrame:
        """The masks of a replicate: a row a quantile, with `threshold`, `pruned`, `remaining`, densities, and a `warning` where
        a layer has collapsed or no path is left."""
        place = lookup.replicate(self.run, replicate)
        if not place.thresholds.exists():
            raise InputError(f"{place.folder} has no masks yet: run `imp thresholds` first")
        rows = files.read_json(place.thresholds)["quantiles"]
        return pandas.DataFrame([{**row, **row["density"], "warning": densities.warning(row)} for row in rows]).drop(
            columns=["density", "disconnected"], errors="ignore"
        )

    def mask(self, quantile: float, replicate: int = 1) -> masks.Mask:
        """The mask of a quantile: path -> array of booleans, True where a weight is kept; with scope `all` also of BatchNorm
        statistics, which no training prunes."""
        place = lookup.replicate(self.run, replicate)
        path = place.mask(Fraction(str(quantile)))
        Lineage(place).check(path)
        return masks.load(path)

    def images(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Images (float32, [n, height, width, channels], scaled as in training) and labels (int32, [n]) of `train`,
        `validation` or `test`. Raises InputError where those that lie there are not what the run was trained on."""
        images, labels = records.read_split(self.run.records(), _manifest(self.run), split)
        data = self.recipe.data
        mean, deviation = (np.asarray(values, np.float32) for values in (data.mean, data.deviation))
        return (images / np.float32(255) - mean) / deviation, labels


def open_results(folder: str | os.PathLike[str] | None = None) -> Results:
    """The run in `folder`, else in `$IMP_RUN`, else `runs/latest`. Raises InputError where there is none."""
    return Results(open_run(None if folder is None else Path(folder), must_exist=True))


def _manifest(run: Run) -> records.Manifest:
    manifest = run.manifest()
    run.check_origins({"records": manifest.digest})
    return manifest


def _frame(networks: Iterable[Network], keys: Iterable[dict[str, Any]]) -> pandas.DataFrame:
    rows = [
        {**key, **{name: value for name, value in row.items() if name != "timing"}, **row.get("timing", {})}
        for network, key in zip(networks, keys, strict=True)
        for row in lineage.rows(network)
    ]
    return pandas.DataFrame(rows)


def _norms(state: store.State, recipe: Recipe, quantiles: Iterable[float]) -> pandas.DataFrame:
    weights = masks.prunable(state, recipe.thresholds.scope, recipe.thresholds.exclude)
    rows = []
    for one in norms.table(weights, [Fraction(str(quantile)) for quantile in quantiles]):
        named = {f"q{float(quantile):g}": value for quantile, value in one.quantiles.items()}
        figures = {key: getattr(one, key) for key in ("path", "count", "zeros", "min", "max", "mean", "norm")}
        rows.append({**figures, **named})
    return pandas.DataFrame(rows).set_index("path")
