"""Stage 2: the dense network of every replicate, saved at each rewind point and at the end."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.errors import Failed
from lottery.engine.start import start_tensorflow
from lottery.experiment import plan, seeds
from lottery.machine import environment
from lottery.progress import Reporter, duration
from lottery.rundir import identity, locks
from lottery.rundir.names import Replicate
from lottery.rundir.records import Result
from lottery.rundir.run import Run
from lottery.stages.cut import check_families
from lottery.tracking import track

if TYPE_CHECKING:
    from lottery.engine import training
    from lottery.engine.loop import Trainer


def train(run: Run, reporter: Reporter, profile: Path | None = None) -> list[Result]:
    """Train what is missing of every replicate's dense network; return the results, replicate by replicate.

    A trace of the first training goes to the folder `profile`, if one is given.

    If the grid of snapshots was widened after a training had finished, the new snapshots are made by training again from the
    nearest earlier one: the same steps give the same bits. Raises Failed if a dense network diverged, because nothing can be
    built on it.
    """
    planned = run.plan()
    run.check_origins({"records": run.manifest().digest})
    steps = planned.snapshot_steps()
    unfinished = [number for number in run.numbers() if not _is_complete(run.replicate(number), steps)]
    with locks.staying(run.folder):
        if unfinished:
            _train(run, planned, unfinished, reporter, profile)
        elif profile:
            reporter.say("no trace: there is nothing left to train")
        run.adopt()
        return [_checked(replicate, reporter) for replicate in run.replicates()]


def _is_complete(replicate: Replicate, steps: list[int]) -> bool:
    """Whether nothing is left to do: all files exist and snapshots are listed, or the training diverged."""
    dense, result = replicate.dense, replicate.dense.read_result()
    if result is None or result.status != "done":
        return dense.is_finished
    listed, snapshots = {replicate.folder / name for name in result.outputs}, set(map(replicate.snapshot, steps))
    wanted = snapshots | (listed & {replicate.topology}) | {dense.folder / identity.FILE}
    return snapshots <= listed and all(path.exists() for path in wanted)


def _train(run: Run, planned: plan.Plan, numbers: list[int], reporter: Reporter, profile: Path | None) -> None:
    start_tensorflow()  # here, because a finished training need not wait for it
    from lottery.engine import assembly, profiling, training
    from lottery.engine.models.topology import topology

    if profile:
        profiling.check(profile)
    trainer = assembly.make_trainer(run, reporter)
    check_families(run, [variable.path for variable in trainer.model.variables])
    run.check_origins(trainer.origins)
    found = topology(trainer.model)
    for number in numbers:
        dense = run.replicate(number).dense
        with identity.claimed(dense.folder, run.recipe, "dense", trainer.origins):
            run.adopt()
            if found and not run.replicate(number).topology.exists():
                run.replicate(number).write_topology(found)
            makers = identity.signed(dense.folder, trainer.maker)
            if len(makers) > 1:
                reporter.say(f"warning: {dense.folder} was begun with {environment.named(makers)}")
            task = _task(run, planned, number, trainer, makers, profile if number == numbers[0] else None)
            result = dense.read_result()
            if not (result and result.is_ended):
                tracker = partial(track, run.recipe, run.folder, dense.folder)
                result = training.train(trainer, task, dense, reporter, tracker)
            if result and result.status == "done":
                training.fill_in(trainer, task, dense, result, reporter)


def _task(
    run: Run, planned: plan.Plan, number: int, trainer: "Trainer", makers: list[dict[str, str]], profile: Path | None
) -> "training.Task":
    from lottery.engine import training

    replicate, seed = run.replicate(number), partial(seeds.derive, run.recipe.seed, number)
    return training.Task(
        title=f"replicate-{number} dense",
        start=lambda: trainer.drawn(seed("initialisation")),
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
            "made_from": trainer.origins,
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
    reporter.say(
        f"{replicate.folder.name} dense: validation {result.final.validation_accuracy:.2%}, "
        f"test {result.final.test_accuracy:.2%}, {result.epochs:g} epochs in {duration(result.timing.seconds)}"
    )
    return result
