"""Stage 2: the dense network of every replicate, saved at each rewind point and at the end."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep import files
from data_prep.errors import Failed
from lottery import identity, patterns, plan, seeds
from lottery.progress import Reporter, duration
from lottery.run import Replicate, Run
from lottery.start import start_tensorflow
from lottery.tracking import track

if TYPE_CHECKING:
    from lottery.engine import training
    from lottery.engine.loop import Trainer


def train(run: Run, reporter: Reporter, profile: Path | None = None) -> list[dict[str, Any]]:
    """Train what is missing of every replicate's dense network; return the results, replicate by replicate.

    A trace of the first training goes to the folder `profile`, if one is given.

    Snapshots that a widened grid asks of a finished training are made by training on from the nearest earlier one: the
    same steps give the same bits. Raises Failed when a dense network diverged, since nothing can be built on it.
    """
    planned = run.plan()
    run.check_records(run.manifest())
    steps = planned.snapshot_steps()
    unfinished = [number for number in run.numbers() if not _is_complete(run.replicate(number), steps)]
    if unfinished:
        _train(run, planned, unfinished, reporter, profile)
    elif profile:
        reporter.say("no trace: there is nothing left to train")
    run.adopt()
    return [_checked(replicate, reporter) for replicate in run.replicates()]


def _is_complete(replicate: Replicate, steps: list[int]) -> bool:
    """Whether there is nothing left to do: all snapshots are there, or never will be."""
    result = replicate.dense.read_result()
    diverged = result is not None and result["status"] == "diverged"
    return diverged or (replicate.dense.is_finished and all(replicate.snapshot(step).exists() for step in steps))


def _train(run: Run, planned: plan.Plan, numbers: list[int], reporter: Reporter, profile: Path | None) -> None:
    start_tensorflow()  # here, because a finished training need not wait for it
    from lottery.engine import assembly, profiling, training
    from lottery.engine.models.topology import topology

    if profile:
        profiling.check(profile)
    trainer = assembly.make_trainer(run, reporter)
    patterns.check(run, lambda: [variable.path for variable in trainer.model.variables])
    found = topology(trainer.model)
    for number in numbers:
        dense = run.replicate(number).dense
        task = _task(run, planned, number, trainer, profile if number == numbers[0] else None)
        with identity.claimed(dense.folder, run.recipe, "train", run.manifest().digest):
            run.adopt()
            if found and not run.replicate(number).topology.exists():
                files.write_json(run.replicate(number).topology, found.to_json())
            result = dense.read_result()
            if not dense.is_finished:
                tracker = partial(track, run.recipe, run.folder, dense.folder)
                result = training.train(trainer, task, dense, reporter, tracker)
            if result and result["status"] == "done":
                training.fill_in(trainer, task, result, reporter)


def _task(run: Run, planned: plan.Plan, number: int, trainer: "Trainer", profile: Path | None) -> "training.Task":
    from lottery.engine import training

    seed = partial(seeds.derive, run.recipe.seed, number)
    return training.Task(
        title=f"replicate-{number} dense",
        start=lambda: trainer.drawn(seed("initialisation")),
        last_step=planned.total_steps,
        order_seed=seed("order"),
        snapshots={step: run.replicate(number).snapshot(step) for step in planned.snapshot_steps()},
        record={"replicate": number, "first_step": 0, "epochs": planned.total_steps / planned.steps_per_epoch},
        profile=profile,
    )


def _checked(replicate: Replicate, reporter: Reporter) -> dict[str, Any]:
    """The result of a replicate's dense training, told to the user; Failed when it diverged."""
    result = replicate.dense.read_result() or {}
    if result["status"] != "done":
        raise Failed(f"{replicate.dense.folder} {result['status']}: {result['reason']}, and remove that folder")
    replicate.dense.clear()
    final = result["final"]
    reporter.say(
        f"{replicate.folder.name} dense: validation {final['validation_accuracy']:.2%}, "
        f"test {final['test_accuracy']:.2%}, {result['epochs']} epochs in {duration(result['timing']['seconds'])}"
    )
    return result
