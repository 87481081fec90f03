"""Ticket folders: made of a network of a run, and made into a run that trains the ticket anew."""

import dataclasses
import math
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from lottery import __version__
from lottery.base import files, locks
from lottery.base.errors import InputError
from lottery.experiment import reading
from lottery.experiment.decisive import decisive, differences
from lottery.experiment.graph import TICKET
from lottery.experiment.recipe import Recipe, Track, name_like
from lottery.pruning.state import State
from lottery.results import frame, grouping, lookup
from lottery.results.card import card
from lottery.rundir import names, store, tickets
from lottery.rundir.lineage import Lineage
from lottery.rundir.records import Result
from lottery.rundir.run import Run, open_run
from lottery.rundir.tickets import DataSet, Standing, TicketFolder, TicketRecord
from lottery.stages.scoring import quantile_of

IMPORTED = "imported"  # the family of a ticket that came in a folder


def make_zip(run: Run, network: str, result: Result, state: State, target: Path, license: str) -> None:
    """Write the finished `network` of `run` as a small ticket: a folder as `make` makes it, in a .zip. Of the start it has what
    the mask keeps, and NaN for all else."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make(run, network, result, state, folder, license, whole=False)
        tickets.zipped(folder, target)


def make(run: Run, network: str, result: Result, state: State, folder: Path, license: str, whole: bool = True) -> None:
    """Write the finished `network` of `run` as a ticket folder. Raises InputError where `folder` holds something else, and Busy
    where another process writes it. If its start is not to be `whole`, what the mask prunes is NaN."""
    if folder.exists() and not (folder.is_dir() and _is_ours(folder)):
        raise InputError(f"--out {folder} is there already, and is not a ticket folder: name another")
    place, start = run.replicate(result.replicate), _start(run, result)
    mask = lookup.mask(run, place, result, state)
    if start and not whole:
        kept = {path: np.where(mask[path], array, np.nan) for path, array in start.weights.items() if path in mask}
        start = dataclasses.replace(start, weights=start.weights | kept)
    tensors = {
        tickets.VALUES: values(state),
        tickets.MASK: tickets.packed(mask),
        **({tickets.START: values(start)} if start else {}),
    }
    made = record(run, network, result, license, tensors)
    with locks.writing(folder):
        tickets.write(folder, made, run.recipe, tensors, card(made, run.recipe, run.rule))


def record(run: Run, network: str, result: Result, license: str, files: Iterable[str] = ()) -> TicketRecord:
    """What is known of the finished `network` of `run`, which lies in these `files`."""
    manifest = run.manifest()
    counts = {split: manifest.count(split) for split in ("train", "validation", "test")}
    source = manifest.made_with["source"]
    return TicketRecord(
        run=run.recipe.name,
        network=network,
        made_by=f"imp {__version__}",
        license=license,
        data=DataSet(source=source, digest=manifest.digest, shape=manifest.shape, classes=manifest.classes, images=counts),
        standing=_standing(run, result),
        result=result,
        files=dict.fromkeys(files, ""),
    )


def values(state: State) -> bytes:
    """A safetensors file of weights and statistics."""
    return tickets.named(weights=state.weights, statistics=state.statistics)


def _is_ours(folder: Path) -> bool:
    """Whether `folder` holds a ticket, nothing at all, or what of a ticket a process wrote that was killed."""
    found = {path.name for path in folder.iterdir() if path.name != ".lock" and not files.is_stale(path)}
    begun = {tickets.VALUES, tickets.MASK, tickets.START}  # which are written first, in this order
    return not found or found >= {tickets.VALUES, tickets.RECIPE} or {tickets.VALUES} <= found <= begun


def _start(run: Run, result: Result) -> State | None:
    """The state that a ticket's training started from; None of other networks."""
    place = run.replicate(result.replicate)
    found = [name for name in result.made_from if name.endswith(".h5") and "/masks/" not in name]
    if result.variant != TICKET or len(found) != 1:
        return None
    path = place.folder / found[0]
    Lineage(place).check(path)
    return store.load_state(path, optimizer=False)


def _standing(run: Run, result: Result) -> Standing:
    groups = frame.each(grouping.groups(run, grouping.rows(run)))
    own = [one for one in groups if all(getattr(one, key) == getattr(result, key) for key in frame.KIND)]
    if not own:
        return Standing()
    count, known = own[0].count or 0, own[0]
    return Standing(replicates=count, **{name: getattr(known, name) for name in ("difference", "low", "high", "verdict")})


def adopt(ticket: TicketFolder, into: Path | None, overrides: Sequence[str]) -> Run:
    """A new run whose dense network starts from the start of `ticket`, and whose one family trains the same mask. Nothing of
    its folder is copied: what is trained is. One that was made before is returned as it is now. Raises InputError where the
    ticket has no start, or another run is there."""
    recipe = reading.resolve(_recipe(ticket).model_dump(), overrides)
    target = into or Path("runs") / recipe.name
    run = open_run(target, must_exist=False)
    if not (target / names.RECIPE).exists():
        run = dataclasses.replace(run, recipe=recipe)
    elif not _is_alike(run.recipe, recipe):
        raise InputError(f"there is another run in {target}: name another folder with --run")
    run.adopt()
    return run


def unzip(path: Path) -> Path:
    """The folder of the ticket in a .zip, in `tickets` of the current folder. It is whole or not there. Raises InputError
    where another ticket is there, or it has no start."""
    folder = Path("tickets") / path.stem
    with locks.writing(folder.parent, math.inf):
        for leftover in folder.parent.glob(f"{tickets.UNZIPPED}*"):  # of a process that was killed
            shutil.rmtree(leftover)
        with tickets.unzipped(path, folder.parent) as new:
            ticket = tickets.open_ticket(new)
            _require_start(ticket, path)
            if not folder.exists():
                new.rename(folder)
            elif tickets.open_ticket(folder).record != ticket.record:
                raise InputError(f"there is another ticket in {folder}: move it away first")
    return folder


def _require_start(ticket: TicketFolder, path: Path) -> None:
    if ticket.start is None:
        raise InputError(f"{path} has no {tickets.START}, as it is not a ticket: nothing to train anew")


def _is_alike(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes train an imported ticket in the same way."""
    return IMPORTED in one.families and not differences(*(decisive(recipe, "ticket", IMPORTED) for recipe in (one, other)))


def _recipe(ticket: TicketFolder) -> Recipe:
    """The ticket's own recipe, with the mask and the start of the folder in place of its families; without what is another
    machine's or person's."""
    _require_start(ticket, ticket.folder)
    recipe, result = ticket.recipe, ticket.record.result
    pruned = {path: bits for path, bits in ticket.mask.items() if recipe.pruning.covers(path, bits.shape)}
    quantile, own = str(quantile_of(pruned)), recipe.families.get(result.family or "")
    family = {"mask": str(ticket.folder / tickets.MASK), "quantiles": quantile, "controls_at": quantile}
    family |= {"units": str(own.units)} if own else {}
    changed = {
        "name": name_like(ticket.folder.name),
        "data": recipe.data.model_dump() | {"path": ""},
        "model": recipe.model.model_dump() | {"weights": str(ticket.folder / tickets.START)},
        "train": recipe.train.model_dump() | {"snapshots": "0"},
        "families": {IMPORTED: {**family, "rewind": "0", "controls": ["reinit", "shuffle"]}},
        "track": Track().model_dump(),
    }
    return reading.resolve({**recipe.model_dump(), **changed}, (), str(ticket.folder / tickets.RECIPE))
