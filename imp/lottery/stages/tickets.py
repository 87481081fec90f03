"""Training tickets and controls, one at a time or in bundles. The compiled step is kept from one to the next."""

import dataclasses
import threading
import traceback
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from lottery.base import environment, locks
from lottery.base.errors import InputError, one_line
from lottery.base.progress import Reporter
from lottery.engine import assembly, training
from lottery.engine.bundle import sizes
from lottery.engine.bundle.members import BundledTrainer
from lottery.engine.loop import Trainer
from lottery.engine.updates import MaskUpdates
from lottery.executors.allocation import Allocation
from lottery.experiment import controls, cutting, graph, plan, schedules, seeds
from lottery.experiment.graph import TICKET, Ticket
from lottery.networks.topology import topology as topology_of
from lottery.pruning import channels, connectivity, costs, criteria, densities, masks, ranking, slices
from lottery.pruning.cut import Method
from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays, State, mean
from lottery.pruning.units import Units, pooled_by
from lottery.rundir import attempts, identity, records, store
from lottery.rundir.lineage import Lineage, seals
from lottery.rundir.names import NetworkFiles, Replicate
from lottery.rundir.records import Result
from lottery.rundir.run import Run
from lottery.stages import cut
from lottery.stages.alignment import Alignments
from lottery.stages.probing import Probes
from lottery.trackers.mirror import Watch, track

ORDERS = {"same": "order", "fresh": "ticket order"}
WORTH_COMPILING = 10**11  # multiply-accumulates: about what two cores do while they compile a small network


class TicketWorker:
    """Trains bundles of tickets of `run` in sequence, all in the same compiled step. `watch` gives what watches each."""

    def __init__(
        self,
        run: Run,
        planned: plan.Plan,
        reporter: Reporter,
        allocation: Allocation,
        watch: Callable[[Ticket], Watch] = lambda ticket: None,
        raises: tuple[type[Exception], ...] = (locks.Busy,),
    ):
        self.run, self.planned, self.reporter, self.allocation, self.watch = run, planned, reporter, allocation, watch
        self.raises = raises  # what is no failure of a network, to be recorded
        self.trainer = assembly.make_trainer(run, reporter, run.recipe.covers, allocation)
        run.check_origins(self.trainer.origins)
        assembly.check_draws(run, self.trainer)
        self.making = threading.Lock()  # of what the networks of a bundle are made from, by one at a time
        self._bundled: BundledTrainer | None = None
        self._compact: tuple[bytes, Trainer] | None = None  # the last one, by the channels that it has
        self.shapes, self.probes = self.trainer.state(0), Probes(run, allocation.cores)
        self.alignments = Alignments(run, allocation.cores)
        for replicate in run.replicates():
            makers = _dense(replicate).made_by
            if makers != [self.trainer.maker]:
                here = environment.named([self.trainer.maker])
                reporter.once(
                    f"warning: {replicate.dense.folder} was trained with {environment.named(makers)}, this is {here}: "
                    "differences between the networks may come from that"
                )

    def __call__(self, bundle: graph.Bundle) -> dict[str, Any]:
        """Train the tickets of `bundle`, and return how `each` ended, in short."""
        obstacle = self._obstacle(bundle) if bundle.size > 1 else None
        if obstacle:
            self.reporter.say(f"{bundle}: one at a time, because {obstacle}")
        if obstacle or bundle.size == 1:
            each = [self._ended(ticket, self.trainer, self.reporter) for ticket in bundle.tickets]
        else:
            if not self._bundled or self._bundled.step.size != bundle.size:
                self._bundled = self._bundle(bundle.size)
            speaking = [self.reporter, *[self.reporter.silent()] * (len(bundle.tickets) - 1)]
            seated = zip(bundle.places, bundle.tickets, speaking, strict=True)
            member = partial(self._ended, alone=False)
            ended = self._bundled.run({place: partial(member, one, reporter=speaker) for place, one, speaker in seated})
            each = [ended[place] for place in bundle.places]
        return {"status": "busy" if any(outcome["status"] == "busy" for outcome in each) else "done", "each": each}

    def _obstacle(self, bundle: graph.Bundle) -> str | None:
        """Why the networks of `bundle` cannot be trained together, or None."""
        if any(attempts.must_be_alone(self.run.network(ticket)) for ticket in bundle.tickets):
            return "the process that trained one of them died"
        return sizes.obstacle(self.trainer)

    def _bundle(self, size: int) -> BundledTrainer:
        """What trains bundles of `size`. Raises InputError where there is too little memory."""
        self._bundled = None  # whose memory is free then
        each, free = sizes.bytes_of_each(self.trainer), sizes.free_bytes(self.trainer, self.allocation)
        needed = f"a bundle of {size} takes about {size * each / 1e9:.2g} GB of memory, {free / 1e9:.2g} GB are free"
        if size * each > free:
            raise InputError(f"{needed}: --bundle {max(1, free // each)} fits")
        self.reporter.once(needed)
        return BundledTrainer(self.trainer, size)

    def _ended(self, ticket: Ticket, trainer: Trainer, reporter: Reporter, alone: bool = True) -> dict[str, Any]:
        """Train `ticket`, `alone` or beside others, and return how that ended, in short. An exception is recorded as its
        failure, so that the others go on."""
        network, train = self.run.network(ticket), partial(self._train, trainer, reporter)
        try:
            with identity.claimed(network.folder, self.run.recipe, "ticket", self.trainer.origins, ticket.family):
                result = network.read_result()
                if not (result and result.is_ended):
                    network.result.unlink(missing_ok=True)
                    with attempts.noted(network, alone) as deaths:
                        kills = alone and deaths >= attempts.DEADLY
                        result = self._failed(ticket, network, attempts.KILLS) if kills else train(ticket, network)
        except locks.Busy as error:
            return {"status": "busy", "reason": str(error)}
        reporter.saved()
        reached = {"metric": result.metric, "validation": result.reached("validation"), "seconds": result.timing.seconds}
        return {"status": result.status, "reason": result.last_reason, **reached}

    def _train(self, trainer: Trainer, reporter: Reporter, ticket: Ticket, network: NetworkFiles) -> Result:
        try:
            mirror = partial(track, self.run.recipe, self.run.folder, network.folder, watch=self.watch(ticket))
            with self.making:
                wanted = _Making(self, ticket, network).training()
                trainer, facts = self._smaller(ticket, wanted) if trainer is self.trainer else (trainer, {})
            wanted = dataclasses.replace(wanted, record={**wanted.record, **facts})
            return training.train(trainer, wanted, network, reporter, mirror)
        except self.raises:
            raise
        except Exception as error:
            return self._failed(ticket, network, one_line(error) or traceback.format_exc())

    def _smaller(self, ticket: Ticket, wanted: training.Training) -> tuple[Trainer, dict[str, Any]]:
        """What trains `ticket`: a network without the channels of which its mask leaves nothing, if that saves enough
        multiply-accumulates; and what its result says of that."""
        every, steps = self._channels, wanted.last_step - self.planned.first_step(ticket)
        if not self.run.recipe.is_compact(ticket.family) or wanted.updates or every is None:
            return self.trainer, {}
        kept = slices.with_one_each(every, slices.left_by(wanted.mask, every, self.shapes.weights))
        dense, compact = (costs.macs(mask, every.topology) or 0 for mask in ({}, every.spread(kept)))
        if (dense - compact) * costs.STEP * steps * self.run.recipe.train.batch < WORTH_COMPILING:
            return self.trainer, {}
        if not self._compact or self._compact[0] != kept.tobytes():
            self._compact = None  # whose memory is free then
            try:
                self._compact = kept.tobytes(), self.trainer.without(every, kept)
            except InputError as error:
                self.reporter.say(f"{ticket}: trained with its zeros, because {error}")
                return self.trainer, {}
        return self._compact[1], {"compact_macs": compact}

    @cached_property
    def _channels(self) -> channels.Channels | None:
        """Those of the network that may go; None where it cannot be followed."""
        shapes = {path: array.shape for path, array in (self.shapes.weights | self.shapes.statistics).items()}
        topology = topology_of(self.trainer.model)
        return channels.channels(topology, shapes, self.run.recipe.pruning.streams) if topology else None

    def _failed(self, ticket: Ticket, network: NetworkFiles, reason: str) -> Result:
        result = Result.model_validate({"status": "failed", "reason": reason, **self.facts(ticket)})
        return records.write(network.result, result)

    def facts(self, ticket: Ticket) -> dict[str, Any]:
        """What a result says about its place in the grids."""
        return {
            "replicate": ticket.replicate,
            "variant": ticket.variant,
            "family": ticket.family,
            "method": self.run.recipe.families[ticket.family].method,
            "mask": ticket.mask.label,
            "round": ticket.mask.round,
            "rewind_step": ticket.rewind,
            "first_step": self.planned.first_step(ticket),
            "steps_per_epoch": self.planned.steps_per_epoch,
            "epochs": self.planned.epochs(ticket),
        }


class _Making:
    """What one network is made from: checked files, a mask, a state to start from."""

    def __init__(self, worker: TicketWorker, ticket: Ticket, network: NetworkFiles):
        self.worker, self.ticket, self.network = worker, ticket, network
        self.run, self.trainer, self.shapes = worker.run, worker.trainer, worker.shapes
        self.replicate, self.family = self.run.replicate(ticket.replicate), self.run.recipe.families[ticket.family]
        self.spoken = ticket.mask.label if ticket.mask.rewind is None else f"round {ticket.mask.round}"  # its mask, in seeds

    def training(self) -> training.Training:
        """Raises InputError if something that the network is made from is missing or damaged, or belongs to other networks
        or devices."""
        self._check_devices()
        ticket, recipe, planned = self.ticket, self.run.recipe, self.worker.planned
        if ticket.is_masked and (self.family.rounds or ticket.borrowed):
            cut.cut(self.run, [ticket.given], self.worker.probes)
        sources = [*([self._mask_file] if self._mask_file else []), *self._start_files]
        if ticket.borrowed and ticket.variant == controls.aligned.name:
            sources += map(self.worker.alignments.end, (ticket.replicate, ticket.borrowed.replicate))
        lineage = Lineage(self.replicate)
        for path in sources:
            lineage.check(path)
        mask, start = self._begun()
        updates = self._updates(mask)
        order = ORDERS.get(recipe.retrain.order, f"ticket order {self.spoken}")  # which a ticket and its controls share
        order += f" {ticket.variant}" if controls.is_again(ticket.variant) else ""
        return training.Training(
            title=str(ticket),
            start=start,
            last_step=planned.last_step(ticket),
            order_seed=seeds.derive(recipe.seed, ticket.replicate, order),
            mask=mask,
            topology=self.replicate.read_topology(),
            record={
                **self.worker.facts(ticket),
                "finding_macs": self._finding_macs(),
                **({} if updates else {"kept": self._kept(mask)}),
                "made_from": {**self.trainer.origins, **seals(self.replicate.folder, sources)},
                "made_by": identity.signed(self.network.folder, self.trainer.maker),
            },
            root=self.replicate.folder,
            beside=[self.network.mask],
            rates=self._rates(mask),
            updates=updates,
            kept=self._kept if updates else None,
        )

    @cached_property
    def _mask_file(self) -> Path | None:
        """The mask that its own is made from: the shared one, another replicate's, or what its ticket ended with; None for a
        network without one."""
        ticket = self.ticket
        if ticket.found_by:
            return self.run.network(ticket.found_by).mask
        return self.run.mask(ticket.given).mask if ticket.is_masked and ticket.given.scored_on else None

    def _updates(self, mask: Bits) -> MaskUpdates | None:
        """How the mask changes in this training. Only those of tickets do; controls have what theirs ended with."""
        ticket, family = self.ticket, self.family
        if not family.changes_masks or ticket.variant != TICKET:
            return None
        schedule, topology = self.worker.planned.updates(ticket.mask), self.replicate.read_topology()
        units = pooled_by(family.unit_score, self._units)  # whatever cut the first mask
        method = Method(criteria.magnitude, family.allocation, family.shares_kept, units=units)
        pruned = ranking.pruned_count(ticket.mask.rate, method.prunable(masks.whole(mask)))
        kernels, macs = topology.kernels if topology else None, partial(costs.macs, topology=topology)
        updates = MaskUpdates(schedule, ticket.first_step, pruned, method, self._seed("updates"), macs, kernels)
        if family.is_gradual:  # what cannot be reached is refused before anything is trained
            updates.check({path: self.shapes.weights[path] for path in mask})
        return updates

    def _rates(self, mask: Bits) -> schedules.Rates:
        train, ticket, planned = self.run.recipe.train, self.ticket, self.worker.planned
        length = planned.length(ticket)
        match self.family.method if ticket.start and ticket.is_trained else "weights":
            case "finetune":
                return schedules.constant(planned.finetune_rate(self.family))
            case "llr":
                return schedules.linear(train.learning_rate, planned.last_step(ticket))
            case "allr":
                lowered = schedules.discount(self._loaded().weights, mask, length)
                return schedules.linear(lowered * train.learning_rate, planned.last_step(ticket))
        return partial(schedules.rates, train, planned.steps_per_epoch, length=length)

    def _finding_macs(self) -> int | None:
        """The multiply-accumulates of all that had to be trained and scored before: the dense network up to the last step that
        something was taken from, the tickets of earlier rounds or that whose last mask this is, each scoring. None where MACs
        are not known, or the criterion does not say what it costs."""
        topology, ticket = self.replicate.read_topology(), self.ticket
        dense, passes = costs.macs({}, topology), self.worker.planned.scoring_passes(self.family)
        before = [self.run.network(one).read_result() for one in ticket.lineage]
        spent = [one.training_macs for one in before if one and one.training_macs is not None]
        if dense is None or passes is None or len(spent) < len(before):
            return None
        steps = ticket.dense_steps(self.family.is_scored, self.worker.planned.total_steps)
        examples = costs.STEP * steps * self.run.recipe.train.batch
        return round(dense * (examples + len(ticket.masks) * passes)) + sum(spent)

    def _check_devices(self) -> None:
        dense = _dense(self.replicate)
        if (dense.replicas, dense.xla) != (self.trainer.replicas, self.trainer.xla):
            raise InputError(
                f"the dense network was trained on {dense.replicas} devices, this process has {self.trainer.replicas}"
                f"{'' if dense.xla == self.trainer.xla else ', and only one of them uses XLA'}: "
                "give it as many of the same kind, or train both with train.devices=1"
            )

    @property
    def _start_files(self) -> list[Path]:
        """The snapshot of the rewind point, or the end of the network before; none where it starts with fresh weights; for an
        average the ends of its networks."""
        sources = self.ticket.averaged or ([self.ticket.start] if self.ticket.start else [])
        return [self.replicate.state_of(source) for source in sources]

    def _begun(self) -> tuple[Bits, Callable[[], State]]:
        """The mask of the network, over trainable variables, and a function that gives the state it starts from. A control's
        own mask is written beside its result."""
        ticket, shared = self.ticket, {}
        if self._mask_file:
            with store.promised_by(self.run.replicate(ticket.given.replicate).table_of(self._mask_file)):
                shared = masks.trainable_part(store.load_mask(self._mask_file), self.shapes.weights)
        elif ticket.is_masked:
            shared = cutting.everything(self._units, self.shapes.weights, self._prunable)
        if ticket.variant == TICKET or controls.is_again(ticket.variant):
            return shared, self._loaded
        topology = self.replicate.read_topology()
        met = connectivity.met(topology) if topology else {}
        known = [controls.extended, *map(controls.of, self.family.controls)]
        control = controls.of(ticket.variant) if ticket.averaged else next(one for one in known if one.name == ticket.variant)
        own = {path: kept.copy() for path, kept in shared.items()}  # which a user's function may change in place
        inverted = partial(cut.inverted, self.run, ticket.mask, self.worker.probes)
        refilled = partial(cut.refilled, self.run, ticket.mask, shared)
        drawn, trained = (self._drawn, self._seed("mask")), partial(cut.trained, self.run, ticket.mask)

        def aligned() -> Bits:
            return self.worker.alignments.of(ticket.replicate, ticket.given.replicate).permuted(shared)

        given = controls.Given(own, self._loaded, *drawn, met, self._units, inverted, refilled, trained, aligned)
        mask, start = control(given)
        differs = mask.keys() != shared.keys() or any((mask[path] != shared[path]).any() for path in shared)
        if ticket.is_masked and (ticket.borrowed or differs):
            store.save_mask(self.network.mask, mask, {"mask": ticket.mask.name})
        return mask, lambda: dataclasses.replace(start, step=self.worker.planned.first_step(ticket))

    def _loaded(self) -> State:
        """The state in `start`, set to that point of the schedule; the mean of several."""
        states = []
        for path in self._start_files:
            with store.promised_by(self.replicate.table_of(path)):
                states.append(store.load_state(path))
        if self.ticket.averaged:
            return mean(states)
        [state] = states
        optimizer = state.optimizer if self.run.recipe.retrain.optimizer_state == "restore" else {}
        return dataclasses.replace(state, step=self.ticket.first_step, optimizer=optimizer)

    def _drawn(self) -> State:
        return self.trainer.drawn(self._seed("initialisation"))

    def _seed(self, purpose: str) -> int:
        """A seed that all rewind points of a mask share, and all families with such a mask."""
        return seeds.derive(self.run.recipe.seed, self.ticket.replicate, f"{self.ticket.variant} {self.spoken} {purpose}")

    @cached_property
    def _prunable(self) -> Arrays:
        return self.run.recipe.pruning.prunable(self.shapes)

    @cached_property
    def _units(self) -> Units:
        return cutting.units_of(self.run.recipe.pruning, self.family, self.shapes, self.replicate.read_topology())

    def _kept(self, mask: Bits) -> densities.Kept:
        """What the mask keeps; without a mask, everything prunable."""
        whole = masks.whole(self._prunable) | mask
        kept = densities.kept(whole, self.shapes, self.replicate.read_topology(), self._prunable)
        if warning := kept.warning(self.run.recipe.pruning.collapse):
            self.worker.reporter.say(f"warning: {self.ticket}: {warning}")
        return kept


def _dense(replicate: Replicate) -> Result:
    """The result of the dense network, which must be trained before any network under a mask."""
    result = replicate.dense.read_result()
    assert result is not None, "commands check that the dense network is trained"
    return result
