"""What a mask does to a network, in figures; and the masks of iterative rounds, each cut from what the one before left."""

import dataclasses
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from data_prep import files
from lottery import connectivity, grids, identity, masks, ranking, store
from lottery.connectivity import Topology
from lottery.jobs import Chain, Round
from lottery.recipe import Recipe, Stage
from lottery.run import Replicate, Run


def figures(mask: masks.Mask, state: store.State, recipe: Recipe, topology: Topology | None) -> dict[str, Any]:
    """What is left under `mask`: `density` (over `prunable`, `trainable` and `total` weights, and `effective`: of the prunable
    ones, those that are kept and still connected to input and output; None without a `topology`), `collapsed` (layers that
    keep less than the recipe's share) and `disconnected` (whether no path from input to output is left; None if not known)."""
    found = connectivity.effective(topology, mask) if topology else None
    counted = [path for path in mask if path in state.weights]
    prunable = sum(mask[path].size for path in counted)
    connected = found.connected if found else {}
    effective = sum(connected.get(path, np.count_nonzero(mask[path])) for path in counted) / max(prunable, 1) if found else None
    return {
        "density": dataclasses.asdict(masks.density(mask, state)) | {"effective": effective},
        "collapsed": masks.collapsed(mask, recipe.thresholds.collapse),
        "disconnected": found.disconnected if found else None,
    }


def warning(row: Mapping[str, Any]) -> str | None:
    """What `figures` found that a user must know: layer collapse, in one line."""
    if row.get("disconnected"):
        return "no path from input to output is left (layer collapse)"
    if row.get("collapsed"):
        return f"hardly anything is left of {', '.join(row['collapsed'])} (layer collapse)"
    return None


def layers_of(replicate: Replicate) -> list[str]:
    """The names of a network's layers in its order, as far as its topology is known."""
    topology = topology_of(replicate)
    return topology.layers if topology else []


def topology_of(replicate: Replicate) -> Topology | None:
    """How the replicate's network is connected; None where its training did not say (a user's subclassed model)."""
    return Topology.from_json(files.read_json(replicate.topology)) if replicate.topology.exists() else None


def stage_of(job: Round) -> Stage:
    """The stage that a round belongs to: what it is made with."""
    return "finetune" if job.chain.method == "finetune" else "rounds"


def cut(run: Run, chain: Chain, level: int, last_step: int) -> masks.Mask:
    """The mask of round `level` (from 1) of `chain`: the smallest survivors of the round before, by its final weights, are
    pruned. Written beside `round.json` when missing.

    Of the survivors that are ranked together (all of the same rate, or each layer) exactly round(rate x count) go. The round
    before round 1 is the dense network, of `last_step` steps. Raises locks.Busy while another process cuts the same.
    """
    replicate = run.replicate(chain.replicate)
    there = replicate.level(chain, level)
    if there.table.exists():
        identity.check_folder(there.folder, run.recipe)
        return masks.load(there.mask)
    with identity.claimed(there.folder, run.recipe, stage_of(Round(chain, level, "ticket"))):
        before = masks.load(replicate.level(chain, level - 1).mask) if level > 1 else {}
        source = replicate.network(Round(chain, level - 1, "ticket")).final if level > 1 else replicate.snapshot(last_step)
        state = store.load_state(source, slots=False)
        mask, table = prune(state, before, run.recipe)
        masks.save(there.mask, mask, {"level": level, "step": state.step})
        facts = {"level": level, "method": chain.method, "rewind_step": chain.step, **table}
        files.write_json(there.table, facts | figures(mask, state, run.recipe, topology_of(replicate)))
    return mask


def prune(state: store.State, before: masks.Mask, recipe: Recipe) -> tuple[masks.Mask, dict[str, Any]]:
    """The mask of the next round and what it prunes: `pruned` now, `remaining`, and by layer the rate, how many weights it had
    and has, and the largest magnitude that went among those it was ranked with (None where none went)."""
    weights = masks.prunable(state, recipe.thresholds.scope, recipe.thresholds.exclude)
    base, others = Fraction(str(recipe.rounds.rate)), grids.parse_rates(recipe.rounds.rates)
    mask: masks.Mask = {}
    layers: dict[str, dict[str, Any]] = {}
    for part in ranking.parted(weights, recipe.thresholds.layerwise, lambda path: grids.rate_of(path, base, others)):
        ranked = ranking.rank(part, before)
        rate = grids.rate_of(next(iter(part)), base, others)
        count = round(rate / 100 * ranked.magnitudes.size)
        pruned = ranked.prune(count)
        threshold = float(ranked.magnitudes[count - 1]) if count else None
        for path, kept in pruned.items():
            had = int(before[path].sum()) if path in before else kept.size
            layers[path] = {"rate": float(rate), "had": had, "has": int(kept.sum()), "threshold": threshold}
        mask |= pruned
    remaining = sum(layer["has"] for layer in layers.values())
    table = {"pruned": sum(layer["had"] for layer in layers.values()) - remaining, "remaining": remaining, "layers": layers}
    return dict(sorted(mask.items())), table
