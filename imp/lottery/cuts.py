"""The masks of iterative rounds, each cut from what the one before left."""

from fractions import Fraction
from typing import Any

from data_prep import files
from lottery import densities, grids, identity, masks, ranking, store
from lottery.jobs import Chain, Round
from lottery.recipe import Recipe, Stage
from lottery.run import Level, Run


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
        return _load(there)
    with identity.claimed(there.folder, run.recipe, stage_of(Round(chain, level, "ticket"))):
        if level > 1:
            before = _load(replicate.level(chain, level - 1))
            ticket = replicate.network(Round(chain, level - 1, "ticket"))
            with store.promised_by(ticket.result):
                state = store.load_state(ticket.final, slots=False)
        else:
            before = {}
            state = store.load_state(replicate.snapshot(last_step), slots=False)
        mask, table = prune(state, before, run.recipe)
        masks.save(there.mask, mask, {"level": level, "step": state.step})
        facts = {"level": level, "method": chain.method, "rewind_step": chain.step, **table}
        files.write_json(there.table, facts | densities.figures(mask, state, run.recipe, densities.topology_of(replicate)))
    return mask


def _load(level: Level) -> masks.Mask:
    with store.promised_by(level.table):
        return masks.load(level.mask)


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
