"""What a mask leaves of a network, in figures: densities, connections, layer collapse."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from data_prep import files
from lottery import connectivity, masks, store
from lottery.connectivity import Topology
from lottery.recipe import Recipe
from lottery.run import Replicate


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
