"""What a mask leaves of a network, in figures: densities, connections, layer collapse."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from data_prep import files
from data_prep.errors import InputError
from lottery import connectivity, masks, store
from lottery.connectivity import Topology
from lottery.recipe import Recipe
from lottery.run import Replicate


def figures(mask: masks.Mask, state: store.State, recipe: Recipe, topology: Topology | None) -> dict[str, Any]:
    """What is left under `mask` (where it is empty, with all that is prunable): `density` (over `prunable`, `trainable` and
    `total` weights, and `effective`: of the prunable ones, those that are kept and still connected to input and output; None
    without a `topology`), `collapsed` (layers that keep less than the recipe's share) and `disconnected` (whether no path from
    input to output is left; None if not known)."""
    mask = mask or _whole(state, recipe)
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


def _whole(state: store.State, recipe: Recipe) -> masks.Mask:
    prunable = masks.prunable(state, recipe.thresholds.scope, recipe.thresholds.exclude)
    return {path: np.broadcast_to(np.True_, array.shape) for path, array in prunable.items()}


def effective_of_dense(replicate: Replicate, recipe: Recipe) -> float | None:
    """The effective density of a replicate's dense network: 1, unless some of its weights only ever meet padding. None where
    its topology is not known, or it has no snapshot."""
    topology, steps = topology_of(replicate), replicate.snapshot_steps()
    if topology is None or not steps:
        return None
    state = store.load_state(replicate.snapshot(steps[-1]), slots=False)
    effective: float = figures({}, state, recipe, topology)["density"]["effective"]
    return effective


def warning(row: Mapping[str, Any]) -> str | None:
    """What `figures` found, or a result says, that a user must know: layer collapse, in one line."""
    if row.get("disconnected"):
        return "no path from input to output is left (layer collapse)"
    if row.get("constant"):
        return "it gives every image the same answer (collapsed in training)"
    if row.get("collapsed"):
        return f"hardly anything is left of {', '.join(row['collapsed'])} (layer collapse)"
    return None


def layers_of(replicate: Replicate) -> list[str]:
    """The names of a network's layers in its order, as far as its topology is known."""
    topology = topology_of(replicate)
    return topology.layers if topology else []


def topology_of(replicate: Replicate) -> Topology | None:
    """How the replicate's network is connected; None where its training did not say (a user's subclassed model). Raises
    InputError where it did, and that is gone."""
    if replicate.topology.exists():
        return Topology.from_json(files.read_json(replicate.topology))
    result = replicate.dense.read_result() or {}
    if replicate.topology.relative_to(replicate.folder).as_posix() in result.get("outputs", {}):
        raise InputError(f"{replicate.topology} is missing: `imp train` adds it")
    return None
