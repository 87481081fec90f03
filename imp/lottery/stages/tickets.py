"""One job at a time: a ticket or a control, trained in a compiled step that is kept from job to job."""

import dataclasses
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from data_prep import files
from data_prep.errors import InputError, one_line
from lottery import (
    attempts,
    connectivity,
    cuts,
    densities,
    environment,
    grids,
    identity,
    jobs,
    locks,
    masks,
    plan,
    seeds,
    store,
)
from lottery.engine import assembly, training
from lottery.fanout.share import Seat
from lottery.jobs import FROM_SCRATCH, GOING_ON, AnyJob, Round
from lottery.lineage import Lineage, seals
from lottery.progress import Reporter
from lottery.recipe import Stage
from lottery.run import Network, Run
from lottery.tracking import track


class Worker:
    """Trains jobs of `run` one after the other, all in the same compiled step."""

    def __init__(self, run: Run, planned: plan.Plan, reporter: Reporter, seat: Seat | None = None):
        self.run, self.planned, self.reporter = run, planned, reporter
        scope, exclude = run.recipe.thresholds.scope, run.recipe.thresholds.exclude
        self.trainer = assembly.make_trainer(run, reporter, partial(masks.in_scope, scope=scope, exclude=exclude), seat)
        run.check_origins(self.trainer.origins)
        self._warn_of_versions()
        self.shapes = self.trainer.state(0)

    def _warn_of_versions(self) -> None:
        """Say which dense networks were trained with other versions, or on another kind of device."""
        for replicate in self.run.replicates():
            makers = (replicate.dense.read_result() or {})["made_by"]
            if makers != [self.trainer.maker]:
                here = environment.named([self.trainer.maker])
                self.reporter.say(
                    f"warning: {replicate.dense.folder} was trained with {environment.named(makers)}, this is {here}: "
                    "what differs between the networks may be of that"
                )

    def __call__(self, job: AnyJob) -> dict[str, Any]:
        """The result of `job`. Whatever it raises becomes its record, so that the others go on."""
        network = self.run.network(job)
        stage: Stage = cuts.stage_of(job) if isinstance(job, Round) else "retrain"
        try:
            with identity.claimed(network.folder, self.run.recipe, stage, self.trainer.origins):
                if network.is_finished:
                    return network.read_result() or {}
                network.result.unlink(missing_ok=True)
                with attempts.noted(network) as deaths:
                    return self._train(job, network) if deaths < attempts.DEADLY else self._failed(job, network, attempts.KILLS)
        except locks.Busy as error:
            return {"status": "busy", "reason": str(error)}

    def _train(self, job: AnyJob, network: Network) -> dict[str, Any]:
        try:
            tracker = partial(track, self.run.recipe, self.run.folder, network.folder)
            return training.train(self.trainer, self._task(job, network), network, self.reporter, tracker)
        except locks.Busy:
            raise
        except Exception as error:
            return self._failed(job, network, one_line(error) or traceback.format_exc())

    def _failed(self, job: AnyJob, network: Network, reason: str) -> dict[str, Any]:
        told = {"folder": identity.place(network.folder), "status": "failed", "reason": reason}
        result = {**told, **self._record(job), "outputs": {}, "made_from": {}, "timing": {}}
        files.write_json(network.result, result)
        return result

    def _task(self, job: AnyJob, network: Network) -> training.Task:
        self._check_devices(job)
        replicate, mask, sources = self.run.replicate(job.replicate), self._mask(job), self._sources(job)
        lineage = Lineage(replicate)
        for path in sources:
            lineage.check(path)
        finetunes = isinstance(job, Round) and job.chain.method == "finetune" and job.variant not in FROM_SCRATCH
        return training.Task(
            title=str(job),
            start=lambda: self._start(job, sources),
            last_step=self.planned.total_steps,
            order_seed=seeds.derive(self.run.recipe.seed, job.replicate, self._order(job)),
            mask=mask,
            record={
                **self._record(job),
                **self._figures(job, mask),
                "made_from": {**self.trainer.origins, **seals(replicate.folder, sources)},
                "made_by": identity.signed(network.folder, self.trainer.maker),
            },
            root=replicate.folder,
            rate=self.planned.finetune_rate if finetunes else None,
        )

    def _check_devices(self, job: AnyJob) -> None:
        dense = self.run.replicate(job.replicate).dense.read_result() or {}
        if (dense["replicas"], dense["xla"]) != (self.trainer.replicas, self.trainer.xla):
            raise InputError(
                f"the dense network was trained on {dense['replicas']} devices, this process has {self.trainer.replicas}"
                f"{'' if dense['xla'] == self.trainer.xla else ', and one of them uses XLA'}: "
                "give it as many of the same kind, or train both with train.devices=1"
            )

    def _record(self, job: AnyJob) -> dict[str, Any]:
        return {**jobs.facts(job), "epochs": self.planned.epochs(job)}

    def _figures(self, job: AnyJob, mask: masks.Mask) -> dict[str, Any]:
        found = densities.figures(mask, self.shapes, self.run.recipe, densities.topology_of(self.run.replicate(job.replicate)))
        if collapse := densities.warning(found):
            self.reporter.say(f"warning: {job}: {collapse}")
        return found

    def _mask(self, job: AnyJob) -> masks.Mask:
        """What `job` may use: the mask of its quantile or round (which is cut now, by whoever comes first)."""
        if job.variant == "extended":
            return {}
        if isinstance(job, Round):
            whole = cuts.cut(self.run, job.chain, job.level, self.planned.total_steps)
        else:
            whole = masks.load(self._mask_file(job))
        mask = masks.trainable_part(whole, self.shapes.weights)
        if job.variant not in ("shuffle", "random"):
            return mask
        topology = densities.topology_of(self.run.replicate(job.replicate))
        return masks.shuffle(mask, self._seed(job, "mask"), connectivity.met(topology) if topology else None)

    def _mask_file(self, job: AnyJob) -> Path:
        replicate = self.run.replicate(job.replicate)
        return replicate.level(job.chain, job.level).mask if isinstance(job, Round) else replicate.mask(job.quantile)

    def _sources(self, job: AnyJob) -> list[Path]:
        """The files that `job` is made from: its mask, and the state it begins with."""
        mask = [] if job.variant == "extended" else [self._mask_file(job)]
        return mask if job.variant in FROM_SCRATCH else [*mask, self._start_file(job)]

    def _start_file(self, job: AnyJob) -> Path:
        """The snapshot of the rewind point, or where the round before ended."""
        replicate = self.run.replicate(job.replicate)
        if not isinstance(job, Round) or job.chain.method not in GOING_ON:
            return replicate.snapshot(job.step)
        before = Round(job.chain, job.level - 1, "extended" if job.variant == "extended" else "ticket")
        if before.level == 0 or job.variant == "shuffle":  # which needs weights where the rounds before have none
            return replicate.snapshot(self.planned.total_steps)
        return replicate.network(before).final

    def _start(self, job: AnyJob, sources: Sequence[Path]) -> store.State:
        """Where `job` begins: with fresh weights, or with those of the last of `sources`, which count as that point of the
        schedule."""
        if job.variant in FROM_SCRATCH:
            return self.trainer.drawn(self._seed(job, "initialisation"))
        with store.promised_by(self.run.replicate(job.replicate).table_of(sources[-1])):
            state = store.load_state(sources[-1])
        slots = state.slots if self.run.recipe.retrain.slots == "restore" else {}
        return dataclasses.replace(state, step=job.step, slots=slots)

    def _order(self, job: AnyJob) -> str:
        """What the order of its images is drawn for; a ticket and its controls share it, whatever `retrain.order`."""
        orders = {"same": "order", "fresh": "ticket order", "each": f"ticket order {_mask_of(job)}"}
        return orders[self.run.recipe.retrain.order]

    def _seed(self, job: AnyJob, purpose: str) -> int:
        """A seed that all rewind points of a mask share."""
        return seeds.derive(self.run.recipe.seed, job.replicate, f"{job.variant} {_mask_of(job)} {purpose}")


def _mask_of(job: AnyJob) -> str:
    return f"round {job.level}" if isinstance(job, Round) else f"q{grids.quantile_name(job.quantile)}"
