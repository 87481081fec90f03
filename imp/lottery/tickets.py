"""One job at a time: a ticket or a control, trained in a compiled step that is kept from job to job."""

import dataclasses
import traceback
from functools import partial
from typing import Any

from data_prep import files
from data_prep.errors import InputError, one_line
from lottery import engine, grids, identity, locks, masks, models, plan, seeds, store, training
from lottery.grids import Job
from lottery.progress import Reporter
from lottery.run import Network, Run
from lottery.tracking import track


class Worker:
    """Trains jobs of `run` one after the other, all in the same compiled step."""

    def __init__(self, run: Run, planned: plan.Plan, reporter: Reporter):
        self.run, self.planned, self.reporter = run, planned, reporter
        scope, exclude = run.recipe.thresholds.scope, run.recipe.thresholds.exclude
        self.trainer = engine.make_trainer(run, reporter, partial(masks.in_scope, scope=scope, exclude=exclude))
        self.shapes = self.trainer.state(0)

    def __call__(self, job: Job) -> dict[str, Any]:
        """The result of `job`. Whatever it raises becomes its record, so that the others go on."""
        network = self.run.network(job)
        try:
            with identity.claimed(network.folder, self.run.recipe, "retrain"):
                if network.is_finished:
                    return network.read_result() or {}
                network.result.unlink(missing_ok=True)
                return self._train(job, network)
        except locks.Busy as error:
            return {"status": "busy", "reason": str(error)}

    def _train(self, job: Job, network: Network) -> dict[str, Any]:
        try:
            tracker = partial(track, self.run.recipe, self.run.folder, network.folder)
            return training.train(self.trainer, self._task(job), network, self.reporter, tracker)
        except Exception as error:
            reason = one_line(error) or traceback.format_exc()
            result = {"status": "failed", "reason": reason, **self._record(job), "timing": {}}
            files.write_json(network.result, result)
            return result

    def _task(self, job: Job) -> training.Task:
        dense = self.run.replicate(job.replicate).dense.read_result() or {}
        if (dense["replicas"], dense["xla"]) != (self.trainer.replicas, self.trainer.xla):
            raise InputError(
                f"the dense network was trained on {dense['replicas']} devices, this process has {self.trainer.replicas}"
                f"{'' if dense['xla'] == self.trainer.xla else ', and one of them uses XLA'}: "
                "give it as many of the same kind, or train both with train.devices=1"
            )
        purpose = "order" if self.run.recipe.retrain.order == "same" else "ticket order"
        mask = self._mask(job)
        return training.Task(
            title=str(job),
            start=lambda: self._start(job),
            last_step=self.planned.total_steps,
            order_seed=seeds.derive(self.run.recipe.seed, job.replicate, purpose),
            mask=mask,
            record=self._record(job) | {"density": dataclasses.asdict(masks.density(mask, self.shapes))},
        )

    def _record(self, job: Job) -> dict[str, Any]:
        return {
            "replicate": job.replicate,
            "quantile": float(job.quantile),
            "variant": job.variant,
            "first_step": job.step,
            "epochs": self.planned.epochs(job),
        }

    def _mask(self, job: Job) -> masks.Mask:
        mask = masks.trainable_part(masks.load(self.run.replicate(job.replicate).mask(job.quantile)), self.shapes.weights)
        if job.variant in ("shuffle", "random"):
            return masks.shuffle(mask, self._seed(job, "mask"))
        return mask

    def _start(self, job: Job) -> store.State:
        if job.variant in grids.FROM_SCRATCH:
            seed = self._seed(job, "initialisation")
            return models.initial_weights(self.run.recipe.model, self.trainer.feed.size, self.trainer.feed.classes, seed)
        state = store.load_state(self.run.replicate(job.replicate).snapshot(job.step))
        return state if self.run.recipe.retrain.slots == "restore" else dataclasses.replace(state, slots={})

    def _seed(self, job: Job, purpose: str) -> int:
        """A seed that all rewind points of a mask share."""
        name = f"{job.variant} q{grids.quantile_name(job.quantile)} {purpose}"
        return seeds.derive(self.run.recipe.seed, job.replicate, name)
