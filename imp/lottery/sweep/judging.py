"""A trial that a ticket judges: an ordinary run of one replicate, with nothing but what that ticket needs."""

import dataclasses
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lottery.base import locks
from lottery.base.progress import Reporter
from lottery.engine import checkpoints, devices
from lottery.engine.loop import Trainer
from lottery.executors.allocation import Allocation
from lottery.experiment import grids
from lottery.experiment.graph import TICKET, Bundle
from lottery.experiment.grids import Grid
from lottery.experiment.plan import Selection
from lottery.experiment.recipe import Recipe
from lottery.rundir.names import NetworkFiles
from lottery.rundir.records import Result
from lottery.rundir.run import Run
from lottery.stages.cut import cut
from lottery.stages.probing import Probes
from lottery.stages.retrain import checked_tickets
from lottery.stages.tickets import TicketWorker
from lottery.stages.train import DenseWorker
from lottery.sweep import values
from lottery.trackers.mirror import Row

WatchTo = Callable[[int, Row], None]  # gets the last step of a training, and each new row of it


def train(run: Run, folder: Path, own: Recipe, seat: Allocation, reporter: Reporter, watch: WatchTo) -> Result:
    """What the ticket that judges trials of `run` comes to by the values of the recipe `own`, from its last rewind point; or
    the network before it that did not reach its end. Goes on with what a killed worker left in `folder`. Only the training of
    that ticket is watched. Raises what `watch` raises."""
    run = _alone(run, folder, own)
    dense = _dense(run, seat, reporter)
    return _ticket(run, seat, reporter, watch) if dense.status == "done" else dense


def _alone(run: Run, folder: Path, own: Recipe) -> Run:
    objective = values.objective(own)
    family, value = own.families[objective.family], grids.of_label(objective.label)
    grid: dict[str, Any] = {"rounds": value} if family.rounds else {"quantiles": Grid.of([value])}
    family = family.model_copy(update={**grid, "controls": [], "controls_at": Grid.of(())})
    data, families = own.data.model_copy(update={"path": str(run.records())}), {objective.family: family}
    name = f"{own.name}-trial-{folder.name}"
    recipe = own.model_copy(update={"name": name, "data": data, "replicates": 1, "families": families})
    return dataclasses.replace(run, folder=folder / name, recipe=recipe)


def _dense(run: Run, seat: Allocation, reporter: Reporter) -> Result:
    devices.forget()
    worker = DenseWorker(run, run.plan(), reporter, seat, None)
    if _is_elsewhere(run, worker.trainer):
        shutil.rmtree(run.folder)
    worker(1)
    return _result(run.replicate(1).dense)


def _is_elsewhere(run: Run, trainer: Trainer) -> bool:
    """Whether a killed worker began it on other devices, where alone it could go on."""
    networks = run.replicate(1).dense, *run.replicate(1).networks()
    left = (checkpoints.load(one.checkpoint) for one in networks if one.checkpoint.exists())
    ended = (result for one in networks if (result := one.read_result()) and result.is_ended)
    made_on = {(one.replicas, one.xla) for one in left} | {(one.replicas, one.xla) for one in ended}
    return not made_on <= {(trainer.replicas, trainer.xla)}


def _ticket(run: Run, seat: Allocation, reporter: Reporter, watch: WatchTo) -> Result:
    devices.forget()
    planned = run.plan()
    cut(run, planned.masks([1], run.recipe.families), Probes(run, seat.cores))
    tickets = [one for one in checked_tickets(run, Selection()) if one.variant == TICKET]
    judged = max(tickets, key=lambda one: (one.mask.round, one.rewind))
    watched = partial(watch, planned.last_step(judged))
    worker = TicketWorker(
        run, planned, reporter, seat, lambda one: watched if one == judged else None, raises=(locks.Busy, OSError)
    )
    for one in (*judged.lineage, judged):
        worker(Bundle((one,)))
        result = _result(run.network(one))
        if result.status != "done":
            break
    return result


def _result(network: NetworkFiles) -> Result:
    if result := network.read_result():
        return result
    raise locks.Busy(f"{network.folder} is being written by another process: wait for it, or stop it")
