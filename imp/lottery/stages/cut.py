"""Cutting masks: the weights with the lowest scores are pruned, from the dense network or from what the round before left."""

import fnmatch
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction

import numpy as np

from data_prep.errors import InputError
from lottery.experiment import grids, named
from lottery.experiment.graph import Mask, Snapshot
from lottery.experiment.recipe import Family, Pruning
from lottery.pruning import densities, masks, ranking
from lottery.pruning.ranking import Ranking
from lottery.pruning.state import Arrays, State
from lottery.rundir import identity, records, store
from lottery.rundir.lineage import Lineage, seals
from lottery.rundir.records import Layer, MaskRecord, Scores
from lottery.rundir.run import Run


def cut(run: Run, wanted: Iterable[Mask]) -> None:
    """Write those of the masks that are missing, and beside each what it prunes.

    Of the weights that are ranked together (all of the same pruning rate, or each layer) exactly k go: in one shot those of the
    quantile (`ranking.pruned_count`), in rounds round(rate x survivors). Masks that are there are checked to be of the networks
    that are there. Raises InputError where they are not, or what they are scored on is missing or damaged.
    """

    def source(mask: Mask) -> tuple[int, str, str]:
        """What masks that are cut from the same scores have in common."""
        return mask.replicate, mask.family, mask.within.name if mask.within else ""

    for _, alike in itertools.groupby(sorted(wanted, key=source), key=source):
        _cut(run, list(alike))


def _cut(run: Run, alike: Sequence[Mask]) -> None:
    replicate, first = run.replicate(alike[0].replicate), alike[0]
    lineage, missing = Lineage(replicate), [mask for mask in alike if not run.mask(mask).is_cut]
    for mask in alike:
        if mask not in missing:
            lineage.check(replicate.mask(mask).mask)
    if not missing:
        return
    scored = first.scored_on
    network = replicate.snapshot(scored.step) if isinstance(scored, Snapshot) else replicate.network(scored).final
    sources = [network, *([replicate.mask(first.within).mask] if first.within else [])]
    for path in sources:
        lineage.check(path)
    folder, family = replicate.mask_folder(first.family), run.recipe.families[first.family]
    with identity.claimed(folder, run.recipe, "mask", replicate.origins(), first.family, math.inf):
        with store.promised_by(replicate.table_of(network)):
            state = store.load_state(network, optimizer=False)
        before = load(run, first.within) if first.within else None
        prunable = masks.prunable(state, run.recipe.pruning.scope, run.recipe.pruning.exclude)
        scores = _scores(family.criterion, state, before or masks.whole(prunable))
        parts = ranking.parted(scores, family.allocation == "layerwise", _rates(family, first))
        rankings, made_from = [ranking.rank(part, before) for part in parts], seals(replicate.folder, sources)
        for mask in missing:
            if not run.mask(mask).is_cut:  # which another may have done meanwhile
                _write(run, mask, family, rankings, state, made_from)


def load(run: Run, mask: Mask) -> masks.Bits:
    """The mask as it was cut. Raises InputError if it is missing or damaged."""
    cut = run.mask(mask)
    with store.promised_by(cut.table):
        return store.load_mask(cut.mask)


def _rates(family: Family, mask: Mask) -> Callable[[str], Fraction]:
    """How much of a variable goes, per cent: as much as of all, or in rounds what the recipe says of its path."""
    others = grids.parse_rates(family.rates) if family.rounds else []
    return lambda path: grids.rate_of(path, mask.rate, others)


def _scores(criterion: str, state: State, mask: masks.Bits) -> Arrays:
    """The score of each weight of `mask`. Raises InputError if a user's own criterion returns anything else."""
    scores = named.criterion(criterion)(state, mask, None)
    for path, kept in mask.items():
        if (
            not isinstance(scores, Mapping)
            or path not in scores
            or np.shape(scores[path]) != kept.shape
            or not np.isfinite(scores[path]).all()
        ):
            raise InputError(f"criterion: {criterion} must give a finite score for every weight of {path}")
    return {path: np.asarray(scores[path]) for path in sorted(mask)}


def _write(run: Run, mask: Mask, family: Family, rankings: Sequence[Ranking], state: State, made_from: dict[str, str]) -> None:
    replicate, files, rates = run.replicate(mask.replicate), run.mask(mask), _rates(family, mask)
    bits: masks.Bits = {}
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
    ranked = [part.ascending for part in rankings if part.ascending.size]
    count = sum(scores.size for scores in ranked)
    store.save_mask(files.mask, bits, {"mask": mask.name, "step": state.step})
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
            step=state.step,
            scores=Scores(
                count=count,
                min=float(min((scores[0] for scores in ranked), default=0.0)),
                max=float(max((scores[-1] for scores in ranked), default=0.0)),
                mean=float(sum(scores.sum(dtype=np.float64) for scores in ranked)) / max(count, 1),
            ),
            threshold=threshold if len(rankings) == 1 else None,
            pruned=sum(layer.weights for layer in layers.values()) - remaining,
            remaining=remaining,
            layers=layers,
            kept=densities.kept(bits, state, replicate.read_topology()),
        ),
    )


def check_families(run: Run, variables: Collection[str] = ()) -> None:
    """Raise InputError for a criterion of the user's own that does not exist. Raise it too for a shell pattern of
    `pruning.exclude`, or of a family's `rates`, that matches no path of `variables`, which are those of the trained dense
    network where none are given: it is a typo. The default of `pruning.exclude` names layers that only some networks have, and
    is not checked.

    A family that has masks keeps the patterns that they were made with, whatever these match.
    """
    recipe, usual = run.recipe, Pruning().exclude
    for family in recipe.families.values():
        named.criterion(family.criterion)
    begun = {name for name in recipe.families for number in run.known_numbers() if run.replicate(number).masks(name)}
    given = [] if begun else [("pruning.exclude", pattern) for pattern in recipe.pruning.exclude if pattern not in usual]
    for name in (name for name in recipe.families if name not in begun):
        given += [(f"families.{name}.rates", pattern) for pattern, _ in grids.parse_rates(recipe.families[name].rates)]
    if given and not variables:
        state = store.load_state(run.replicates()[0].snapshot(run.plan().total_steps), optimizer=False)
        variables = [*state.weights, *state.statistics]
    paths = sorted(variables)
    for key, pattern in given:
        if not any(fnmatch.fnmatchcase(path, pattern) for path in paths):
            raise InputError(
                f"{key}: {pattern!r} matches no variable of {recipe.model.name}, which has {paths[0]} ... {paths[-1]}: correct "
                "it or leave it out"
            )
