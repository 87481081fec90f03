"""One job at a time: a ticket or a control, trained in a compiled step that is kept from job to job."""

import dataclasses
import traceback
from functools import partial
from typing import Any

from data_prep import files
from data_prep.errors import InputError
from lottery import grids, locks, masks, models, network, plan, seeds, store
from lottery.grids import Job
from lottery.progress import Reporter
from lottery.recipe import depends
from lottery.run import Run
from lottery.tracking import track


class Worker:
    """Trains jobs of `run` one after the other; builds its network at the first."""

    def __init__(self, run: Run, planned: plan.Plan, reporter: Reporter):
        self.run, self.planned, self.reporter = run, planned, reporter
        final = store.load_state(run.replicate(1).snapshot(planned.total_steps))
        scope, exclude = run.recipe.thresholds.scope, run.recipe.thresholds.exclude
        self.maskable = [path for path in masks.prunable(final, scope, exclude) if path in final.weights]
        self.trainer = network.make_trainer(run, self.maskable)

    def __call__(self, job: Job) -> dict[str, Any]:
        """The result of `job`. Whatever it raises becomes its record, so that the others go on."""
        folder = self.run.network(job)
        try:
            tracker = partial(track, self.run.recipe, self.run.folder, folder.folder)
            return network.train(self.trainer, self._task(job), folder, self.reporter, tracker)
        except locks.Busy as error:
            return {"status": "busy", "reason": str(error)}
        except Exception as error:
            reason = str(error) if isinstance(error, InputError) else traceback.format_exc()
            result = {"status": "failed", "reason": reason, **self._record(job), "timing": {}}
            files.write_json(folder.result, result)
            return result

    def _task(self, job: Job) -> network.Task:
        purpose = "order" if self.run.recipe.retrain.order == "same" else "ticket order"
        mask = self._mask(job)
        return network.Task(
            title=str(job),
            start=lambda: self._start(job),
            last_step=self.planned.total_steps,
            order_seed=seeds.derive(self.run.recipe.seed, job.replicate, purpose),
            mask=mask,
            record=self._record(job) | {"density": self._density(job, mask)},
        )

    def _record(self, job: Job) -> dict[str, Any]:
        return {
            "replicate": job.replicate,
            "quantile": float(job.quantile),
            "variant": job.variant,
            "first_step": job.step,
            "epochs": self.planned.epochs(job),
            "made_with": depends(self.run.recipe, "retrain"),
        }

    def _mask(self, job: Job) -> masks.Mask:
        mask = {
            path: kept
            for path, kept in masks.load(self.run.replicate(job.replicate).mask(job.quantile)).items()
            if path in set(self.maskable)
        }
        if job.variant in ("shuffle", "random"):
            purpose = f"{job.variant} q{grids.quantile_name(job.quantile)}"
            return masks.shuffle(mask, seeds.derive(self.run.recipe.seed, job.replicate, purpose))
        return mask

    def _start(self, job: Job) -> store.State:
        if job.variant in grids.FROM_SCRATCH:
            seed = seeds.derive(self.run.recipe.seed, job.replicate, f"{job.variant} q{grids.quantile_name(job.quantile)}")
            return models.initial_weights(self.run.recipe.model, self.trainer.feed.size, self.trainer.feed.classes, seed)
        state = store.load_state(self.run.replicate(job.replicate).snapshot(job.step))
        return state if self.run.recipe.retrain.slots == "restore" else dataclasses.replace(state, slots={})

    def _density(self, job: Job, mask: masks.Mask) -> dict[str, float]:
        state = store.load_state(self.run.replicate(job.replicate).snapshot(self.planned.total_steps))
        return dataclasses.asdict(masks.density(mask, state))
