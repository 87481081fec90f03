"""Cutting masks: the weights with the lowest scores are pruned, from the dense network or from what the round before left."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np

from data_prep.errors import InputError
from lottery.experiment import grids, named
from lottery.experiment.graph import Mask, Snapshot
from lottery.experiment.recipe import Family
from lottery.pruning import criteria, densities, masks, ranking
from lottery.pruning.ranking import Ranking
from lottery.pruning.state import Arrays, State
from lottery.rundir import identity, records, store
from lottery.rundir.lineage import Lineage, seals
from lottery.rundir.records import Layer, MaskRecord, Scores
from lottery.rundir.run import Run
from lottery.rundir.topology import topology_of


def cut(run: Run, wanted: Iterable[Mask]) -> None:
    """Write those of the masks that are missing, and beside each what it prunes.

    Of the weights that are ranked together (all of the same pruning rate, or each layer) exactly k go: in one shot those of the
    quantile (`ranking.pruned_count`), in rounds round(rate x survivors). Masks that are there are checked to be of the networks
    that are there. Raises InputError where they are not, or what they are scored on is missing or damaged.
    """
    together = sorted(wanted, key=_source)
    for _, alike in itertools.groupby(together, key=_source):
        _cut(run, list(alike))


def _source(mask: Mask) -> tuple[int, str, str]:
    """What masks that are cut from the same scores have in common."""
    return mask.replicate, mask.family, mask.within.name if mask.within else ""


def _cut(run: Run, alike: Sequence[Mask]) -> None:
    replicate, first = run.replicate(alike[0].replicate), alike[0]
    lineage, missing = Lineage(replicate), _missing(run, alike)
    for mask in alike:
        if mask not in missing:
            lineage.check(replicate.mask(mask).mask)
    if not missing:
        return
    sources = _sources(run, first)
    for path in sources:
        lineage.check(path)
    folder = replicate.mask_folder(first.family)
    with identity.claimed(folder, run.recipe, "mask", replicate.origins(), first.family, math.inf):
        with store.promised_by(replicate.table_of(sources[0])):
            state = store.load_state(sources[0], optimizer=False)
        before = load(run, first.within) if first.within else None
        family, made_from = run.recipe.families[first.family], seals(replicate.folder, sources)
        rankings, shapes = _ranked(run, family, first, state, before)
        for mask in _missing(run, missing):  # which others may have cut meanwhile
            _write(run, mask, family, rankings, shapes, made_from)


def _missing(run: Run, alike: Sequence[Mask]) -> list[Mask]:
    return [mask for mask in alike if not run.mask(mask).is_cut]


def _sources(run: Run, mask: Mask) -> list[Path]:
    """The network whose weights are scored and, from the second round on, the mask within which they are scored."""
    replicate = run.replicate(mask.replicate)
    scored = mask.scored_on
    network = replicate.snapshot(scored.step) if isinstance(scored, Snapshot) else replicate.network(scored).final
    return [network, *([replicate.mask(mask.within).mask] if mask.within else [])]


def load(run: Run, mask: Mask) -> masks.Mask:
    """The mask as it was cut. Raises InputError if it is missing or damaged."""
    cut = run.mask(mask)
    with store.promised_by(cut.table):
        return store.load_mask(cut.mask)


def _ranked(run: Run, family: Family, mask: Mask, state: State, before: masks.Mask | None) -> tuple[list[Ranking], State]:
    """The scores of what `before` keeps, ranked; and the network without its values, of which only the shapes are needed."""
    prunable = masks.prunable(state, run.recipe.pruning.scope, run.recipe.pruning.exclude)
    scores = _scores(family.criterion, state, before or masks.whole(prunable))
    parts = ranking.parted(scores, family.allocation == "layerwise", _rates(family, mask))
    return [ranking.rank(part, before) for part in parts], _shapes(state)


def _rates(family: Family, mask: Mask) -> Callable[[str], Fraction]:
    """How much of a variable goes, per cent: as much as of all, or in rounds what the recipe says of its path."""
    others = grids.parse_rates(family.rates) if family.rounds else []
    return lambda path: grids.rate_of(path, mask.rate, others)


def _scores(criterion: str, state: State, mask: masks.Mask) -> Arrays:
    """The score of each weight of `mask`. Raises InputError if a user's own criterion returns anything else."""
    score = criteria.CRITERIA.get(criterion) or named.function(criterion, "criterion")
    scores = dict(sorted(score(state, mask, None).items()))
    for path, kept in mask.items():
        if path not in scores or np.shape(scores[path]) != kept.shape or not np.isfinite(scores[path]).all():
            raise InputError(f"criterion: {criterion} must give a finite score for every weight of {path}")
    return {path: np.asarray(scores[path]) for path in mask}


def _shapes(state: State) -> State:
    def empty(arrays: Arrays) -> Arrays:
        return {path: np.broadcast_to(np.zeros((), array.dtype), array.shape) for path, array in arrays.items()}

    return State(state.step, empty(state.weights), empty(state.statistics), {})


def _write(run: Run, mask: Mask, family: Family, rankings: Sequence[Ranking], shapes: State, made_from: dict[str, str]) -> None:
    replicate, files, rates = run.replicate(mask.replicate), run.mask(mask), _rates(family, mask)
    bits: masks.Mask = {}
    layers: dict[str, Layer] = {}
    for part in rankings:
        rate, count = rates(next(iter(part.scores))), part.ascending.size
        threshold = part.threshold(rate)
        kept = part.prune(round(rate / 100 * count) if family.rounds else ranking.pruned_count(rate, count))
        bits |= kept
        for path, left in kept.items():
            had = int(np.count_nonzero(part.among[path])) if path in part.among else left.size
            layers[path] = Layer(rate=float(rate), threshold=threshold, weights=had, kept=int(np.count_nonzero(left)))
    bits, layers = dict(sorted(bits.items())), dict(sorted(layers.items()))
    remaining = sum(layer.kept for layer in layers.values())
    store.save_mask(files.mask, bits, {"mask": mask.name, "step": shapes.step})
    records.write(
        files.table,
        MaskRecord(
            outputs=seals(replicate.folder, [files.mask]),
            made_from=made_from,
            replicate=mask.replicate,
            family=mask.family,
            mask=mask.label,
            round=mask.round,
            rewind_step=mask.rewind,
            rate=float(mask.rate),
            step=shapes.step,
            scores=_figures(rankings),
            threshold=threshold if len(rankings) == 1 else None,
            pruned=sum(layer.weights for layer in layers.values()) - remaining,
            remaining=remaining,
            layers=layers,
            kept=densities.kept(bits, shapes, topology_of(replicate)),
        ),
    )


def _figures(rankings: Sequence[Ranking]) -> Scores:
    ranked = [part.ascending for part in rankings if part.ascending.size]
    count = sum(scores.size for scores in ranked)
    return Scores(
        count=count,
        min=float(min((scores[0] for scores in ranked), default=0.0)),
        max=float(max((scores[-1] for scores in ranked), default=0.0)),
        mean=float(sum(scores.sum(dtype=np.float64) for scores in ranked)) / max(count, 1),
    )
