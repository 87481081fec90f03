"""A sweep: trainings whose hyperparameters are proposed by what earlier ones came to. One of any number of workers."""

import dataclasses
import math
from functools import partial
from typing import Any

import optuna
from optuna.trial import TrialState

from data_prep.records import Manifest
from lottery.base import files, locks
from lottery.base.errors import Failed, InputError, first_line, one_line
from lottery.base.preemption import Preempted
from lottery.base.progress import Reporter
from lottery.engine.start import start_tensorflow
from lottery.executors import allocation
from lottery.executors.allocation import Allocation
from lottery.experiment import plan, reading, seeds
from lottery.experiment.decisive import decisive, differences
from lottery.experiment.keys import Output
from lottery.experiment.spaces import Dimension
from lottery.results.tables import csv_text
from lottery.rundir import attempts, wording
from lottery.rundir.names import NetworkFiles
from lottery.rundir.records import Result
from lottery.rundir.run import Run
from lottery.stages.prepare import prepare_set
from lottery.sweep import values
from lottery.sweep.trials import STAGES, Trials
from lottery.trackers.mirror import Row, Stopped, track

MADE_WITH = "sweep.json"
GIVE_UP = 3  # trials in a row whose training raised: something is wrong here, not with their values


def sweep(run: Run, reporter: Reporter) -> dict[str, Any]:
    """Train trials until there are `sweep.trials`; return what they have found so far (`Trials.outcome`), also written. Any
    number of processes may do this at once on one run. What a killed one left is gone on with. Raises Preempted once the trial
    under way is saved, and Failed when all trials are over and none came to its end, or `GIVE_UP` of this worker's in a row
    raised. What was found until then is written first."""
    values.objective(run.recipe)  # which there must be
    dimensions, seat = values.searched(run.recipe), allocation.allocate_here(run.recipe.train.threads)
    allocation.show_gpus(seat)
    on = subset(run)  # one of the workers makes its records if they are missing
    manifest = prepare_set(on.recipe.records(), on.records(), reporter, patience=math.inf, known=on.examples())
    run.check()
    trials = _open(run, dimensions, manifest)
    with locks.staying(run.folder):
        try:
            _work(trials, on, seat, reporter)
        finally:
            found = _conclude(trials, run)
    if found["best"] is None and not found["under_way"]:
        raise Failed(f"no trial of {run.sweep} came to its end: see {run.sweep / 'trials.csv'}")
    return found


def subset(run: Run) -> Run:
    """The run that trials are trainings of: the same, on the classes of `sweep.classes`."""
    classes = run.recipe.sweep.classes
    if not classes or classes == run.recipe.data.classes:
        return run
    data = run.recipe.data.model_copy(update={"classes": classes, "path": ""})
    return dataclasses.replace(run, recipe=run.recipe.model_copy(update={"data": data}))


def _open(run: Run, dimensions: list[Dimension], manifest: Manifest) -> Trials:
    """Those of a run's sweep, begun where there is none: they differ in nothing but what is searched. Raises
    InputError where it was begun with another recipe, or on other examples."""
    settings, path, objective = run.recipe.sweep, run.sweep / MADE_WITH, values.objective(run.recipe)
    searched = {dimension.key for dimension in dimensions}
    output: Output = "ticket" if objective.label else "dense"
    made_with = decisive(subset(run).recipe, output, objective.family)
    if objective.label:
        made_with |= {f"families.{objective.family}.rewind": str(run.recipe.families[objective.family].rewind)}
    made_with = {key: value for key, value in made_with.items() if key not in searched}
    made_with |= {"sweep.space": sorted(map(str, settings.space)), "records": manifest.digest}
    made_with |= {"sweep.objective": str(objective)}
    with locks.writing(run.sweep / "choosing", patience=math.inf):
        if not path.exists():
            files.write_json(path, made_with)
        if differing := differences(files.read_json(path), made_with):
            first = min(differing, key=lambda one: not one.startswith("sweep."))
            raise InputError(f"{run.sweep} is of another recipe ({first}): use that, another --run, or remove it")
        run.adopt()
    per_epoch = max(1, manifest.count("train") // run.recipe.train.batch)
    grace, epochs = float(settings.grace.epochs(per_epoch)), run.recipe.train.steps / per_epoch or run.recipe.train.epochs
    return Trials(run.sweep, dimensions, settings, grace, epochs, run.recipe.seed, run.metric)


def _work(trials: Trials, run: Run, seat: Allocation, reporter: Reporter) -> None:
    """Train one trial after the other until there are enough."""
    failures, is_set_up = 0, False  # failures in a row
    while True:
        with trials.next() as trial:
            if trial is None:
                return
            if not is_set_up:
                _set_up(run, seat)
                is_set_up = True
            network = NetworkFiles(trials.trial_folder(trial.number))
            failure = _train(trial, run, network, f"trial {trial.number + 1} of {trials.count}", seat, reporter)
        failures = failures + 1 if failure else 0
        if failures == GIVE_UP:
            raise Failed(f"{GIVE_UP} trials in a row failed here, the last: {failure}: mend that and run the command again")


def _set_up(run: Run, seat: Allocation) -> None:
    """Start TensorFlow on the devices of the recipe. What is wrong with these is no trial's fault, and raised."""
    start_tensorflow()
    from lottery.engine.devices import set_up_tensorflow

    set_up_tensorflow(run.recipe.train, seat.cores)


def _train(trial: optuna.Trial, run: Run, network: NetworkFiles, name: str, seat: Allocation, reporter: Reporter) -> str:
    """One trial to its end, whichever that is; why it failed, if its training raised. One that fails or diverges is kept with
    its reason, and not tried again. Raises OSError, such as of a full disk, and leaves the trial to whoever comes next."""
    drawn = (f"{key.rpartition('.')[2]} {values.text(value)}" for key, value in trial.params.items())
    reporter.say(f"{name}: {', '.join(drawn)}")  # such as learning_rate 0.03162, batch 64
    status, reason, reached = "failed", "", None
    try:
        with attempts.noted(network) as deaths:
            if deaths >= attempts.DEADLY:
                raise Failed(attempts.KILLS)
            ended = network.read_result() or _trained(trial, run, network, name, seat, reporter)
            status, reason, reached = ended.status, ended.last_reason, ended.reached("validation")
    except Stopped:
        status = "stopped"
    except (Preempted, locks.Busy, OSError):
        raise
    except Exception as error:  # such as a batch that does not fit into memory: the others go on
        reason = one_line(error) or f"{type(error).__name__}: {first_line(error)}"
    state = {"done": TrialState.COMPLETE, "stopped": TrialState.PRUNED}.get(status, TrialState.FAIL)
    if state is TrialState.FAIL:
        trial.set_user_attr("reason", reason)
    trial.study.tell(trial, reached if state is TrialState.COMPLETE else None, state)
    failure = reason if status == "failed" else ""
    told = status if reached is None else f"validation {wording.value(run.metric, reached)}"
    reporter.say(f"{name}: {told}{failure and f': {failure}'}")
    for file in network.folder.rglob("*.h5"):  # networks, masks, answers
        file.unlink()
    return failure


def _trained(trial: optuna.Trial, run: Run, network: NetworkFiles, name: str, seat: Allocation, reporter: Reporter) -> Result:
    """What the network of a trial that is judged comes to. Raises Stopped."""
    from lottery.engine import assembly, checkpoints, devices, training

    devices.forget()
    own = values.applied(run.recipe, trial.params)
    if own.sweep.objective.label:
        from lottery.sweep import judging

        return judging.train(run, network.folder, own, seat, reporter, partial(_watch, trial, run.metric))
    trainer = assembly.make_trainer(dataclasses.replace(run, recipe=own), Reporter(quiet=True), allocation=seat)
    planned = plan.make(own, run.manifest().count("train"))
    per_epoch = planned.steps_per_epoch
    wanted = training.Training(
        title=name,
        start=lambda: trainer.begun(seeds.derive(own.seed, 1, "initialisation")),
        last_step=planned.total_steps,
        order_seed=seeds.derive(own.seed, 1, "order"),
        record={"replicate": 1, "epochs": planned.total_steps / per_epoch, "steps_per_epoch": per_epoch},
        root=network.folder,
    )
    if network.checkpoint.exists():
        saved = checkpoints.load(network.checkpoint)
        if (saved.replicas, saved.xla) != (trainer.replicas, trainer.xla):  # by a killed worker on other devices: begin anew
            network.checkpoint.unlink()

    watch = partial(_watch, trial, run.metric, planned.total_steps)
    return training.train(trainer, wanted, network, reporter, partial(track, own, run.folder, network.folder, watch=watch))


def _watch(trial: optuna.Trial, metric: str, last: int, row: Row) -> None:
    """Let others compare themselves with `row` of a training of `last` steps. Raises Stopped where it is not worth going on."""
    trial.report(row[f"validation_{metric}"], round(row["epoch"] * STAGES))
    if row["step"] < last and trial.should_prune():  # else there is nothing left to save
        raise Stopped


def _conclude(trials: Trials, run: Run) -> dict[str, Any]:
    """What was found so far, also written: `trials.csv`, and the recipe of the best trial."""
    with locks.writing(run.sweep / "choosing", patience=math.inf):
        found = trials.outcome()
        rows = [{"trial": row["number"], **row, **row["values"]} for row in found["trials"]]
        columns = ("trial", "status", run.metric, "epochs", "seconds", "reason", *found["keys"])
        files.write_text(run.sweep / "trials.csv", csv_text(columns, rows))
        if best := found["best"]:
            recipe = values.applied(run.recipe, best["values"]).model_copy(update={"name": f"{run.recipe.name}-best"})
            classes = f", {run.recipe.sweep.classes} classes alone" if run.recipe.sweep.classes else ""
            came_to = f"{wording.part(run.metric, best[run.metric])} the validation {wording.example(run.metric)}s{classes}"
            head = f"# The best of {len(rows)} trials of imp sweep, judged by {values.objective(recipe)}: {came_to}."
            files.write_text(run.sweep / "best.toml", f"{head}\n\n{reading.to_toml(recipe)}")
    return found
