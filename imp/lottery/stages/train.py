"""Stage 2: the dense network of every replicate, saved at each rewind point and at the end."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lottery.base import environment, locks
from lottery.base.capacity import Allocation
from lottery.base.errors import Failed
from lottery.base.progress import Reporter, duration
from lottery.engine.start import start_tensorflow
from lottery.executors.choice import executor
from lottery.executors.workload import IN_PROCESS, Execution, Worker, Workload
from lottery.experiment import agreement, plan, seeds
from lottery.experiment.recipe import Pruning
from lottery.pruning import masks
from lottery.pruning.allocation import Shapes
from lottery.pruning.connectivity import Topology
from lottery.rundir import identity, wording
from lottery.rundir.names import Replicate
from lottery.rundir.records import Result
from lottery.rundir.run import Run
from lottery.stages.cut import check_families
from lottery.trackers.mirror import track

if TYPE_CHECKING:
    from lottery.engine import training
    from lottery.engine.loop import Trainer


def train(run: Run, reporter: Reporter, profile: Path | None = None, execution: Execution = IN_PROCESS) -> list[Result]:
    """Train what is missing of every replicate's dense network; return the results, replicate by replicate (none where another
    process reports them).

    A trace of the first training goes to the folder `profile`, if one is given, and then all are trained here.

    If the grid of snapshots was widened after a training had finished, the new snapshots are made by training again from the
    nearest earlier one: the same steps give the same bits. Raises Failed if a dense network diverged."""
    agreement.check(run.recipe)
    run.check()
    planned = run.plan()
    run.check_origins({"records": run.manifest().digest} | run.begun_from())
    steps = planned.snapshot_steps()

    def missing() -> list[int]:
        return [number for number in run.numbers() if not is_complete(run.replicate(number), steps)]

    unfinished: list[Exception] = []

    def done(number: int, outcome: Mapping[str, Any]) -> Sequence[int]:
        if outcome["status"] == "busy":
            unfinished.append(locks.Busy(outcome["reason"]))
        elif outcome["status"] not in ("done", "diverged"):
            unfinished.append(Failed(f"{run.replicate(number).dense.folder} was not trained: {outcome['reason']}"))
        return ()

    workload = Workload(
        list_tasks=missing,
        make_worker=partial(dense_worker, run, profile),
        on_done=done,
        reporter=reporter,
        threads=run.recipe.train.threads,
        common=run.common(),
    )
    if not missing():  # else those who train check them
        check_families(run)
    with locks.staying(run.folder):
        if profile and not missing():
            reporter.say("no trace: there is nothing left to train")
        if not executor(dataclasses.replace(execution, ranks=1, executor=None) if profile else execution).run(workload):
            return []
        for error in unfinished:
            raise error
        run.adopt()
        return [_checked(replicate, reporter) for replicate in run.replicates()]


@contextlib.contextmanager
def dense_worker(run: Run, profile: Path | None, allocation: Allocation, reporter: Reporter) -> Iterator[Worker]:
    with locks.staying(run.folder):
        start_tensorflow()  # here, because a finished training need not wait for it
        yield DenseWorker(run, run.plan(), reporter, allocation, profile)


def is_complete(replicate: Replicate, steps: list[int]) -> bool:
    """Whether nothing is left to do: all files exist and snapshots are listed, or the training diverged."""
    dense, result = replicate.dense, replicate.dense.read_result()
    if result is None or result.status != "done":
        return dense.is_finished
    listed, snapshots = {replicate.folder / name for name in result.outputs}, set(map(replicate.snapshot, steps))
    wanted = snapshots | (listed & {replicate.topology}) | {dense.folder / identity.FILE}
    return snapshots <= listed and all(path.exists() for path in wanted)


class DenseWorker:
    """Trains the dense networks of replicates, by their numbers, all in the same compiled step. The first one leaves a trace in
    the folder `profile`, if there is one."""

    def __init__(self, run: Run, planned: plan.Plan, reporter: Reporter, allocation: Allocation, profile: Path | None):
        from lottery.engine import assembly, profiling
        from lottery.networks.topology import own_matrices, topology

        if profile:
            profiling.check(profile)
        self.run, self.planned, self.reporter, self.profile = run, planned, reporter, profile
        self.trainer = assembly.make_trainer(run, reporter, allocation=allocation)
        check_families(run, [variable.path for variable in self.trainer.model.variables])
        self.origins = self.trainer.origins | run.begun_from()
        run.check_origins(self.origins)
        assembly.check_draws(run, self.trainer)
        self.topology = topology(self.trainer.model)
        for line in (*self.trainer.given.notes, *_notes(run.recipe.pruning, self.topology, own_matrices(self.trainer.model))):
            reporter.once(line)

    def __call__(self, number: int) -> dict[str, Any]:
        replicate = self.run.replicate(number)
        try:
            with identity.claimed(replicate.dense.folder, self.run.recipe, "dense", self.origins):
                self.run.adopt()
                if self.topology and not replicate.topology.exists():
                    replicate.write_topology(self.topology)
                return {"status": self._train(number, replicate).status}
        except locks.Busy as error:
            return {"status": "busy", "reason": str(error)}

    def _train(self, number: int, replicate: Replicate) -> Result:
        from lottery.engine import training

        dense = replicate.dense
        makers = identity.signed(dense.folder, self.trainer.maker)
        if len(makers) > 1:
            self.reporter.say(f"warning: {dense.folder} was begun with {environment.named(makers)}")
        wanted = _training(self.run, self.planned, number, self.trainer, self.origins, makers, self.profile)
        self.profile = None
        result = dense.read_result()
        if not (result and result.is_ended):
            mirror = partial(track, self.run.recipe, self.run.folder, dense.folder)
            result = training.train(self.trainer, wanted, dense, self.reporter, mirror)
        if result.status == "done":
            training.fill_in(self.trainer, wanted, dense, result, self.reporter)
        return result


def _notes(pruning: Pruning, topology: Topology | None, own: Shapes) -> list[str]:
    """What a user must know about a network that is not wholly known, and about matrices of `own` layers."""
    unknown = topology.uncounted if topology else ["any kernel"]
    notes = [f"MACs are not counted: how often {_some(unknown)} is multiplied is not known"] if unknown else []
    left = [path for path, shape in own.items() if not pruning.covers(path, shape)]
    left = [path for path in left if masks.in_scope(path, (), "all", pruning.exclude)] if pruning.scope == "kernels" else []
    if left:
        notes += [f"{_some(left)} is not pruned, as its name does not end in `kernel`: pruning.include takes it in"]
    return notes


def _some(paths: Sequence[str]) -> str:
    return f"{', '.join(paths[:3])}{' and others' if len(paths) > 3 else ''}"


def _training(
    run: Run,
    planned: plan.Plan,
    number: int,
    trainer: "Trainer",
    origins: Mapping[str, str],
    makers: list[dict[str, str]],
    profile: Path | None,
) -> "training.Training":
    from lottery.engine import training

    replicate, seed = run.replicate(number), partial(seeds.derive, run.recipe.seed, number)
    return training.Training(
        title=f"replicate-{number} dense",
        start=lambda: trainer.begun(seed("initialisation")),
        last_step=planned.total_steps,
        order_seed=seed("order"),
        snapshots={step: replicate.snapshot(step) for step in planned.snapshot_steps()},
        record={
            "replicate": number,
            "first_step": 0,
            "finding_macs": 0,
            "epochs": planned.total_steps / planned.steps_per_epoch,
            "steps_per_epoch": planned.steps_per_epoch,
            "validation_images": trainer.feed.counts["validation"],
            "made_from": origins,
            "made_by": makers,
        },
        root=replicate.folder,
        topology=replicate.read_topology(),
        beside=[replicate.topology],
        profile=profile,
    )


def _checked(replicate: Replicate, reporter: Reporter) -> Result:
    """The result of a replicate's dense training, which is also reported to the user. Raises Failed if it diverged."""
    result = replicate.dense.read_result()
    if result is None or result.final is None:
        ended = f"{result.status}: {result.reason}" if result else "is gone"
        raise Failed(f"{replicate.dense.folder} {ended}, and remove that folder")
    replicate.dense.clear()
    named = partial(wording.value, result.metric)
    validation, test = (result.final.metric(split, result.metric) for split in ("validation", "test"))
    reporter.say(
        f"{replicate.folder.name} dense: validation {named(validation)}, test {named(test)}, {result.epochs:g} epochs in "
        f"{duration(result.timing.seconds)}"
    )
    return result
