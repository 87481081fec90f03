"""Cutting masks: the weights with the lowest scores are pruned, from the dense network or from what the round before left."""

import dataclasses
import fnmatch
import itertools
import math
import os
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from lottery.base.errors import InputError
from lottery.experiment.graph import Mask, Snapshot
from lottery.experiment.grids import Quantile
from lottery.experiment.recipe import Pruning
from lottery.pruning import costs, criteria, densities, masks, refill
from lottery.pruning.state import State
from lottery.pruning.units import channels_of
from lottery.results import settling
from lottery.rundir import identity, records, store
from lottery.rundir.lineage import Lineage, seals
from lottery.rundir.records import Layer, MaskRecord, Scores
from lottery.rundir.run import Run
from lottery.stages import network
from lottery.stages.probing import Probes
from lottery.stages.scoring import Part, Scoring


def cut(run: Run, wanted: Iterable[Mask], probes: Probes | None = None) -> None:
    """Write those of the masks that are missing, and beside each what it prunes.

    Exactly k weights go: in one shot those of the quantile (`ranking.pruned_count`), in rounds round(rate x survivors); the
    family's allocation divides what stays among layers. Masks that are there are checked to be of the networks that are there.
    Raises InputError where they are not, or what they are scored on is missing or damaged.
    """
    probes = probes or Probes(run)

    def source(mask: Mask) -> tuple[int, str, str, str]:
        """What masks that are cut from the same scores have in common."""
        return mask.replicate, mask.family, mask.within.name if mask.within else "", str(mask.scored_on)

    for _, alike in itertools.groupby(sorted(_scored(run, list(wanted)), key=source), key=source):
        _cut(run, list(alike), probes)


def _scored(run: Run, wanted: Sequence[Mask]) -> list[Mask]:
    """The masks, those of families with `scored_at = "settled"` each with the snapshot where it is settled: where its record
    says that it was scored, or else where the saved networks say that it is to be."""
    found = []
    for (number, name), alike in itertools.groupby(wanted, key=lambda mask: (mask.replicate, mask.family)):
        of_family = list(alike)
        if run.recipe.families[name].is_settled:
            steps = {mask.label: record.step for mask in of_family if (record := run.mask(mask).read())}
            new = [Quantile(mask.rate) for mask in of_family if mask.label not in steps]
            steps |= settling.settled(run, number, name, new) if new else {}
            of_family = [dataclasses.replace(mask, scored_on=Snapshot(number, steps[mask.label])) for mask in of_family]
        found += of_family
    return found


def inverted(run: Run, mask: Mask, probes: Probes) -> masks.Bits:
    """The mask that keeps the other end of the same scores, as many weights by the same allocation."""
    [mask] = _scored(run, [mask])
    replicate = run.replicate(mask.replicate)
    if run.recipe.families[mask.family].changes_masks:
        raise InputError(f"families.{mask.family}: no scores to invert, as its masks change in training: use another control")
    lineage, sources = Lineage(replicate), _sources(run, mask)
    for path in sources:
        lineage.check(path)
    return Scoring(run, mask, probes, inverted=True).cut(mask)[0]


def trained(run: Run, mask: Mask) -> State:
    """The network that `mask` was scored on. Raises InputError where its file is missing or damaged."""
    replicate, [mask] = run.replicate(mask.replicate), _scored(run, [mask])
    network, *_ = _sources(run, mask)
    Lineage(replicate).check(network)
    with store.promised_by(replicate.table_of(network)):
        return store.load_state(network, optimizer=False)


def refilled(run: Run, mask: Mask, ticket: masks.Bits) -> masks.Bits:
    """The mask `ticket` turned into whole channels, by the trained weights that it was scored on (`refill.refill`)."""
    pruning, weights = run.recipe.pruning, trained(run, mask).weights
    shapes = {path: array.shape for path, array in weights.items()}
    scope = [path for path in ticket if pruning.covers(path, shapes[path])]
    topology = run.replicate(mask.replicate).read_topology()
    return refill.refill(ticket, weights, channels_of("control refill", "sum", shapes, scope, topology, pruning.streams))


def _cut(run: Run, alike: Sequence[Mask], probes: Probes) -> None:
    replicate, first = run.replicate(alike[0].replicate), alike[0]
    lineage, missing = Lineage(replicate), [mask for mask in alike if not run.mask(mask).is_cut]
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
        scoring, made_from = Scoring(run, first, probes), seals(replicate.folder, sources)

        def write(mask: Mask) -> None:
            if not run.mask(mask).is_cut:  # which another may have done meanwhile
                _write(run, mask, scoring, made_from)

        write(missing[0])  # which compiles what all of them need
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            list(threads.map(write, missing[1:]))


def _sources(run: Run, mask: Mask) -> list[Path]:
    """The files of the network that `mask` is scored on and of the mask that it is within."""
    replicate = run.replicate(mask.replicate)
    assert mask.scored_on, "masks of gradual pruning are not cut"
    return [replicate.state_of(mask.scored_on), *([replicate.mask(mask.within).mask] if mask.within else [])]


def _write(run: Run, mask: Mask, scoring: Scoring, made_from: dict[str, str]) -> None:
    replicate, files, state = scoring.replicate, run.mask(mask), scoring.state
    topology = scoring.topology
    bits, parts = scoring.cut(mask)
    kept = {path: bits[path] for path in scoring.units.ranked(scoring.before)}
    thresholds = [part.ranking.threshold(part.rate) for part in parts]
    rows = {path: row for row in zip(parts, thresholds, strict=True) for path in row[0].ranking.scores}
    layers = {path: _layer(scoring.before[path], left, *rows.get(path, ())) for path, left in sorted(kept.items())}
    remaining = sum(layer.kept for layer in layers.values())
    ranked = [part.ranking.ascending for part in parts if part.ranking.ascending.size]
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
            threshold=thresholds[0] if len(parts) == 1 else None,
            pruned=sum(layer.weights for layer in layers.values()) - remaining,
            remaining=remaining,
            layers=layers,
            kept=densities.kept(bits, state, topology, kept),
            costs=costs.costs(bits, state, topology),
        ),
    )


def _layer(before: np.ndarray, kept: np.ndarray, part: Part | None = None, threshold: float | None = None) -> Layer:
    """What of a variable goes. Where it only has inputs of channels that others make, it is not ranked."""
    counts = int(np.count_nonzero(before)), int(np.count_nonzero(kept))
    return Layer(rate=float(part.rate) if part else None, threshold=threshold, weights=counts[0], kept=counts[1])


def check_families(run: Run, variables: Collection[str] = ()) -> None:
    """Raise InputError for a criterion of the user's own that does not exist. Raise it too for a shell pattern of
    `pruning.exclude` or `include`, or of a family's `rates` or `densities`, that matches no path of `variables` (by default
    those of the trained dense network, or else of one that is built): it is a typo. The default of `pruning.exclude` names
    layers that only some networks have, and is not checked.

    A family that has masks keeps the patterns that they were made with, whatever these match.
    """
    recipe, usual = run.recipe, Pruning().exclude
    for family in recipe.families.values():
        criteria.by_name(family.criterion)
    begun = {name for name in recipe.families for number in run.known_numbers() if run.replicate(number).masks(name)}
    given = [] if begun else [("pruning.exclude", pattern) for pattern in recipe.pruning.exclude if pattern not in usual]
    given += [] if begun else [("pruning.include", pattern) for pattern in recipe.pruning.include]
    for name in (name for name in recipe.families if name not in begun):
        family = recipe.families[name]
        given += [(f"families.{name}.rates", pattern) for pattern, _ in family.rates]
        given += [(f"families.{name}.densities", pattern) for pattern, _ in family.densities]
    paths = sorted(variables or (_paths(run) if given else ()))
    for key, pattern in given:
        if not any(fnmatch.fnmatchcase(path, pattern) for path in paths):
            raise InputError(
                f"{key}: {pattern!r} matches no variable of {recipe.model.name}: correct it or leave it out. Its variables are "
                f"{', '.join(paths)}"
            )


def _paths(run: Run) -> list[str]:
    """The paths of the network's variables."""
    for replicate in map(run.replicate, run.known_numbers()):
        if steps := replicate.snapshot_steps():
            state = store.load_state(replicate.snapshot(steps[-1]), optimizer=False)
            return [*state.weights, *state.statistics]
    return [variable.path for variable in network.build(run).variables]
