"""Finding the trained networks of a replicate by the names that users write: `dense`, `q90-step-000045`, or, if several
families have such a ticket, `lr/round-03-step-000000`."""

import dataclasses
import difflib

from lottery.base.errors import InputError
from lottery.experiment.graph import DENSE, TICKET
from lottery.pruning import masks
from lottery.pruning.state import State
from lottery.rundir import store
from lottery.rundir.lineage import Lineage
from lottery.rundir.names import NetworkFiles, Replicate
from lottery.rundir.records import Result
from lottery.rundir.run import Run

LISTED = 12  # names of networks in a message


def replicate(run: Run, number: int) -> Replicate:
    """Raises InputError if the run has no replicate of this number."""
    if number not in run.known_numbers():
        known = ", ".join(map(str, run.known_numbers()))
        raise InputError(f"--replicate {number}: {run.folder} has only {known}")
    return run.replicate(number)


def trained(run: Run, place: Replicate, ticket: str, variant: str = TICKET) -> tuple[Result, State]:
    """The result of a finished network, its weights (averaged ones if the recipe has them) and its statistics.

    Raises InputError if there is none of this name, it is not finished, or it does not belong to the current dense network.
    """
    network = find(place, ticket, variant)
    result = network.read_result()
    if result is None or result.status != "done":
        status, reason = (result.status, result.last_reason) if result else ("not finished", "see `imp status`")
        raise InputError(f"{network.folder} is {status} ({reason}): choose another, or train it again")
    final = place.snapshot(result.step or 0) if ticket == DENSE else network.final
    with store.promised_by(network.result):
        Lineage(place).check(final)
        state = store.load_state(final, optimizer=bool(run.recipe.train.ema))
    return result, state.evaluated


def mask(run: Run, place: Replicate, result: Result, state: State) -> masks.Bits:
    """The mask that a network was trained under, over trainable variables; of one without (dense, `extended`) all that is
    prunable. Raises InputError where it is missing or not the one."""
    file = place.mask_of(result)
    if file is None:
        return masks.whole(run.recipe.pruning.prunable(dataclasses.replace(state, statistics={})))
    Lineage(place).check(file)
    return masks.trainable_part(store.load_mask(file), state.weights)


def end(place: Replicate) -> int:
    """The last step of a dense training. Raises InputError if it is not finished."""
    result = place.dense.read_result()
    if result is None or result.step is None or result.status != "done":
        raise InputError(f"{place.dense.folder} is not finished: name the step of a snapshot, or run `imp train`")
    return result.step


def snapshots(place: Replicate) -> list[int]:
    """The steps at which the dense network was saved, ascending. Raises InputError if one that its result lists is missing."""
    result = place.dense.read_result()
    for name in result.outputs if result else ():
        if not (place.folder / name).exists():
            raise InputError(f"{place.folder / name} is missing: `imp train` adds it")
    return place.snapshot_steps()


def snapshot(place: Replicate, step: int, optimizer: bool = True) -> State:
    """The dense network after `step` steps, its optimizer state left out unless `optimizer`. Raises InputError where it was not
    saved then, with the steps at which it was."""
    saved = place.snapshot_steps()
    if step not in saved:
        there = f"there are snapshots of steps {', '.join(map(str, saved))}" if saved else "run `imp train` first"
        raise InputError(f"{place.folder} was not saved at step {step}: {there}")
    if place.dense.is_finished:
        Lineage(place).check(place.snapshot(step))
    return store.load_state(place.snapshot(step), optimizer)


def find(place: Replicate, ticket: str, variant: str = TICKET) -> NetworkFiles:
    """The folder of `ticket` in a replicate, begun or finished. Raises InputError if there is none, with the names that
    exist, or if several families have one of that name."""
    called, known = ticket if variant == TICKET else f"{ticket} {variant}", named(place)
    found = [name for name in known if called in (name, _short(name))]
    if len(found) > 1:
        raise InputError(f"several families have {called!r}: write {', '.join(found)}")
    if found:
        return known[found[0]]
    there = finished(place)
    begins = sorted((one for one in there if f"/{called}-" in f"/{one}"), key=len)
    near = begins or difflib.get_close_matches(called, [*there, *map(_short, there)], n=1, cutoff=0.7)
    shown = ", ".join(there[:LISTED]) + (f" and {len(there) - LISTED} more" if len(there) > LISTED else "")
    raise InputError(
        f"there is no {called!r} in {place.folder}{f'; did you mean {near[0]!r}?' if near else ''}; finished are: "
        f"{shown or 'none: run `imp train` and `imp retrain` first'}"
    )


def _short(name: str) -> str:
    """The name of a network without its family."""
    return name.split("/")[-1]


def named(place: Replicate) -> dict[str, NetworkFiles]:
    """The networks of a replicate, begun or finished, by name: `dense`, `oneshot/q90-step-000045`, `oneshot/q90-step-000045
    reinit`."""
    return {DENSE: place.dense} | {place.ticket_name(network): network for network in place.networks()}


def finished(place: Replicate) -> list[str]:
    """The names of all finished networks of a replicate."""
    results = {name: network.read_result() for name, network in named(place).items()}
    return [name for name, result in results.items() if result and result.status == "done"]
