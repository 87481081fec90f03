"""The trained networks of a replicate by the names that users give them: `dense`, `q90-step-000045`,
`rounds/lr-step-000000/03`."""

import dataclasses
import difflib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from data_prep.errors import InputError
from lottery import masks, store
from lottery.lineage import Lineage
from lottery.run import Network, Replicate, Run

DENSE = "dense"
LISTED = 12  # names of networks in a message


def replicate(run: Run, number: int) -> Replicate:
    """Raises InputError where the run has no replicate of this number."""
    if number not in run.known_numbers():
        known = ", ".join(map(str, run.known_numbers()))
        raise InputError(f"--replicate {number}: {run.folder} has {known}")
    return run.replicate(number)


def trained(run: Run, place: Replicate, ticket: str, variant: str = "ticket") -> tuple[dict[str, Any], store.State]:
    """The result of a finished network, and its weights (averaged ones where the recipe has them) and statistics.

    Raises InputError where there is none of this name, it is not finished, or not of the dense network that is there.
    """
    network = find(place, ticket, variant)
    result = network.read_result() or {"status": "not finished"}
    if result["status"] != "done":
        reason = str(result.get("reason", "see `imp status`")).strip().splitlines()[-1]
        raise InputError(f"{network.folder} is {result['status']} ({reason}): take another, or train it again")
    slots = bool(run.recipe.train.ema)
    final = place.snapshot(result["step"]) if ticket == DENSE else network.final
    with store.promised_by(network.result):
        Lineage(place).check(final)
        state = store.load_state(final, slots)
    if run.recipe.train.ema:
        weights = {path: state.slots[f"ema/{path}"] for path in state.weights}
        statistics = {path: state.slots.get(f"ema/{path}", array) for path, array in state.statistics.items()}
        state = dataclasses.replace(state, weights=weights, statistics=statistics)
    return result, state


def trained_part(run: Run, place: Replicate) -> Callable[[masks.Mask], masks.Mask]:
    """What makes of a mask the one that networks are trained under: without the statistics that scope `all` ranks, too."""
    if run.recipe.thresholds.scope != "all":
        return lambda mask: mask
    weights = store.load_state(place.snapshot(end(place)), slots=False).weights
    return lambda mask: masks.trainable_part(mask, weights)


def end(place: Replicate) -> int:
    """The last step of a dense training. Raises InputError while there is none."""
    result = place.dense.read_result() or {}
    if result.get("status") != "done":
        raise InputError(f"{place.dense.folder} is not finished: name the step of a snapshot, or run `imp train`")
    return int(result["step"])


def snapshots(place: Replicate) -> list[int]:
    """The steps at which the dense network was saved, ascending. Raises InputError where one that its result lists is gone."""
    for name in (place.dense.read_result() or {}).get("outputs", {}):
        if not (place.folder / name).exists():
            raise InputError(f"{place.folder / name} is missing: `imp train` adds it")
    return place.snapshot_steps()


def snapshot(place: Replicate, step: int, slots: bool = True) -> store.State:
    """The dense network after `step` steps, its slots left out unless `slots`. Raises InputError where it was not saved then,
    with the steps at which it was."""
    saved = place.snapshot_steps()
    if step not in saved:
        there = f"there are snapshots of steps {', '.join(map(str, saved))}" if saved else "run `imp train` first"
        raise InputError(f"{place.folder} was not saved at step {step}: {there}")
    if place.dense.is_finished:
        Lineage(place).check(place.snapshot(step))
    return store.load_state(place.snapshot(step), slots)


def find(place: Replicate, ticket: str, variant: str = "ticket") -> Network:
    """The folder of `ticket` in a replicate, begun or finished. Raises InputError with what there is instead."""
    if ticket == DENSE and variant == "ticket":
        found = [place.dense.folder]
    else:
        inside = PurePosixPath(ticket)
        below = [place.folder / "retrain" / inside / variant, place.folder / inside / variant]
        found = [] if inside.is_absolute() or ".." in inside.parts else [folder for folder in below if folder.is_dir()]
    if found:
        return Network(found[0])
    wanted = ticket if variant == "ticket" else f"{ticket} {variant}"
    there = finished(place)
    begins = sorted((one for one in there if one.startswith(f"{wanted}-")), key=len)
    near = begins or difflib.get_close_matches(wanted, there, n=1, cutoff=0.7)
    shown = ", ".join(there[:LISTED]) + (f" and {len(there) - LISTED} more" if len(there) > LISTED else "")
    raise InputError(
        f"there is no {wanted!r} in {place.folder}{f'; did you mean {near[0]!r}?' if near else ''}; finished are: "
        f"{shown or 'none: run `imp train` and `imp retrain` first'}"
    )


def finished(place: Replicate) -> list[str]:
    """The names of what a replicate has finished: `dense`, `q90-step-000045`, `q90-step-000045 reinit`."""
    named = {DENSE: place.dense} | {name(place, network.folder): network for network in place.networks()}
    return [name for name, network in named.items() if (network.read_result() or {}).get("status") == "done"]


def name(place: Replicate, folder: Path) -> str:
    """What the network in `folder` is called: its ticket, and behind that what it is where it is a control."""
    *ticket, variant = folder.relative_to(place.folder).parts
    called = "/".join(ticket).removeprefix("retrain/")
    return called if variant == "ticket" else f"{called} {variant}"
