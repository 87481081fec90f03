"""The masks of iterative rounds, each cut from what the one before left."""

from fractions import Fraction
from pathlib import Path
from typing import Any

from data_prep import files
from lottery import densities, grids, identity, masks, ranking, store
from lottery.jobs import Chain, Round
from lottery.lineage import Lineage, seals
from lottery.recipe import Recipe, Stage
from lottery.run import Level, Replicate, Run


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
    sources = _sources(replicate, chain, level, last_step)
    lineage = Lineage(replicate)
    for path in sources:
        lineage.check(path)
    with identity.claimed(there.folder, run.recipe, stage_of(Round(chain, level, "ticket")), replicate.origins()):
        with store.promised_by(replicate.table_of(sources[0])):
            state = store.load_state(sources[0], slots=False)
        before = _load(replicate.level(chain, level - 1)) if level > 1 else {}
        mask, table = prune(state, before, run.recipe)
        masks.save(there.mask, mask, {"level": level, "step": state.step})
        facts = {
            "folder": identity.place(there.folder),
            "level": level,
            "method": chain.method,
            "rewind_step": chain.step,
            **table,
        }
        facts |= densities.figures(mask, state, run.recipe, densities.topology_of(replicate))
        outputs, made_from = seals(replicate.folder, [there.mask]), seals(replicate.folder, sources)
        files.write_json(there.table, {**facts, "outputs": outputs, "made_from": made_from})
    return mask


def _sources(replicate: Replicate, chain: Chain, level: int, last_step: int) -> list[Path]:
    """The network whose weights are ranked, and of a later round than the first the mask within which they are."""
    if level == 1:
        return [replicate.snapshot(last_step)]
    return [replicate.network(Round(chain, level - 1, "ticket")).final, replicate.level(chain, level - 1).mask]


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
