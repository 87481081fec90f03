"""A sweep: dense trainings whose hyperparameters are proposed by what earlier ones came to. One of any number of workers."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import optuna

from data_prep import files
from data_prep.errors import Failed, InputError, first_line, one_line
from data_prep.records import Manifest
from lottery.engine.start import start_tensorflow
from lottery.experiment import grids, plan, reading, seeds
from lottery.experiment.recipe import decisive
from lottery.experiment.spaces import Dimension
from lottery.fanout import allocation
from lottery.fanout.allocation import Allocation
from lottery.preemption import Preempted
from lottery.progress import Reporter
from lottery.results.tables import csv_text
from lottery.rundir import attempts, locks
from lottery.rundir.names import NetworkFiles
from lottery.rundir.records import Result
from lottery.rundir.run import Run
from lottery.search import values
from lottery.search.outcome import Outcome, outcome
from lottery.search.study import Study, Trial
from lottery.stages.prepare import prepare_set
from lottery.tracking import Tracker, track

if TYPE_CHECKING:
    from lottery.engine.loop import Trainer

MakeTrainer = Callable[[Run], "Trainer"]
MADE_WITH = "sweep.json"
LOOK_SECONDS = 0.1  # between two looks at a set that another worker is preparing
GIVE_UP = 3  # trials in a row whose training raised: something is wrong here, not with their values


def sweep(run: Run, reporter: Reporter) -> Outcome:
    """Train trials until there are `sweep.trials`; return what they have found so far, which is also written.

    Any number of processes may do this at once on one run. What a killed one left is gone on with. Raises Preempted once the
    trial under way is saved, and Failed when all trials are over and none came to its end, or `GIVE_UP` of this worker's in a
    row raised. What was found until then is written first.
    """
    dimensions, seat = values.searched(run.recipe), allocation.allocate_here(run.recipe.train.threads)
    allocation.show_gpus(seat)
    study = _open(run, dimensions, prepared(run, reporter))
    with locks.staying(run.folder):
        try:
            _work(study, subset(run), seat, reporter)
        except BaseException:
            with contextlib.suppress(Exception):
                _conclude(study, run)
            raise
        found = _conclude(study, run)
    if found.best is None and not found.under_way:
        raise Failed(f"no trial of {run.sweep} came to its end: see {run.sweep / 'trials.csv'}")
    return found


def subset(run: Run) -> Run:
    """The run that trials are trainings of: the same, on the classes of `sweep.classes`."""
    classes = run.recipe.sweep.classes
    if not classes or classes == run.recipe.data.classes:
        return run
    data = run.recipe.data.model_copy(update={"classes": classes, "path": ""})
    return dataclasses.replace(run, recipe=run.recipe.model_copy(update={"data": data}))


def prepared(run: Run, reporter: Reporter) -> Manifest:
    """What is in the set that trials train on, which one of the workers makes if it is missing."""
    on = subset(run)
    while True:
        try:
            return prepare_set(on.recipe.records(), on.records(), reporter)
        except locks.Busy:
            time.sleep(LOOK_SECONDS)


def _open(run: Run, dimensions: list[Dimension], manifest: Manifest) -> Study:
    """The study of a run's sweep, begun where there is none."""
    settings = run.recipe.sweep
    with locks.writing(run.sweep / "choosing", patience=math.inf):
        _check_same(run, dimensions, manifest.digest)
        run.adopt()
    per_epoch = max(1, manifest.count("train") // run.recipe.train.batch)
    grace = float(grids.parse_point(settings.grace).epochs(per_epoch))
    return Study(run.sweep, dimensions, settings.trials, settings.startup, grace, run.recipe.seed)


def _check_same(run: Run, dimensions: list[Dimension], records: str) -> None:
    """Trials of one study differ in nothing but what is searched; `records` is the digest of their images. Raises InputError
    where the study was begun with another recipe, or on other images."""
    searched = {dimension.key for dimension in dimensions}
    made_with = {key: value for key, value in decisive(subset(run).recipe).items() if key not in searched}
    made_with |= {"sweep.space": sorted(run.recipe.sweep.space), "records": records}
    path = run.sweep / MADE_WITH
    if not path.exists():
        files.write_json(path, made_with)
    before = files.read_json(path)
    for key in sorted(before | made_with):
        if before.get(key) != made_with.get(key):
            raise InputError(
                f"{run.sweep} was begun with another recipe ({key} was {before.get(key)!r}, is {made_with.get(key)!r}): use "
                "the same, another --run, or remove that folder"
            )


def _work(study: Study, run: Run, seat: Allocation, reporter: Reporter) -> None:
    """Train one trial after the other until there are enough."""
    make_trainer: MakeTrainer | None = None
    failures = 0  # in a row
    while True:
        with study.trial() as trial:
            if trial is None:
                return
            make_trainer = make_trainer or _set_up(run, seat)
            failure = _train(trial, run, make_trainer, f"trial {trial.asked.number + 1} of {study.count}", reporter)
        failures = failures + 1 if failure else 0
        if failures == GIVE_UP:
            raise Failed(f"{GIVE_UP} trials in a row failed here, the last: {failure}: mend that and run the command again")


def _set_up(run: Run, seat: Allocation) -> MakeTrainer:
    start_tensorflow()
    from lottery.engine import assembly
    from lottery.engine.devices import set_up_tensorflow

    devices = set_up_tensorflow(run.recipe.train, seat.cores)
    return partial(assembly.make_trainer, reporter=Reporter(quiet=True), allocation=seat, devices=devices)


def _train(trial: Trial, run: Run, make_trainer: MakeTrainer, name: str, reporter: Reporter) -> str:
    """One trial to its end, whichever that is; why it failed, if its training raised. Raises OSError, such as of a full disk,
    and leaves the trial to whoever comes next."""
    reporter.say(f"{name}: {values.told(trial.asked.params)}")
    network = NetworkFiles(trial.folder)
    try:
        with attempts.noted(network) as deaths:
            if deaths >= attempts.DEADLY:
                raise Failed(attempts.KILLS)
            ended = network.read_result() or _trained(trial, run, network, name, make_trainer, reporter)
            result: dict[str, Any] = {"status": ended.status, "reason": ended.reason}
            result |= {"accuracy": ended.final.validation_accuracy} if ended.final else {}
    except optuna.TrialPruned:
        result = {"status": "pruned"}
    except (Preempted, locks.Busy, OSError):
        raise
    except Exception as error:  # such as a batch that does not fit into memory: the others go on
        result = {"status": "failed", "reason": one_line(error) or f"{type(error).__name__}: {first_line(error)}"}
    finally:
        _forget()
    trial.tell(result)
    failure = result["reason"] if result["status"] == "failed" else ""
    accuracy = f"validation {result['accuracy']:.2%}" if "accuracy" in result else ""
    reporter.say(f"{name}: {accuracy or result['status']}{failure and f': {failure}'}")
    network.checkpoint.unlink(missing_ok=True)
    network.final.unlink(missing_ok=True)
    return failure


def _trained(trial: Trial, run: Run, network: NetworkFiles, name: str, make_trainer: MakeTrainer, reporter: Reporter) -> Result:
    """What the training of a trial comes to. Raises TrialPruned."""
    from lottery.engine import training

    drawn = trial.asked.params
    own = values.applied(run.recipe, drawn)
    trainer = make_trainer(dataclasses.replace(run, recipe=own))
    planned = plan.make(own, run.manifest().count("train"))
    per_epoch = planned.steps_per_epoch
    task = training.Task(
        title=name,
        start=lambda: trainer.drawn(seeds.derive(own.seed, 1, "initialisation")),
        last_step=planned.total_steps,
        order_seed=seeds.derive(own.seed, 1, "order"),
        record={"replicate": 1, "epochs": planned.total_steps / per_epoch, "steps_per_epoch": per_epoch},
        root=network.folder,
    )
    if network.checkpoint.exists() and not _goes_on(network, trainer):
        network.checkpoint.unlink()
    mirror = partial(track, own, run.folder, network.folder)
    return training.train(trainer, task, network, reporter, partial(_Watch, trial, planned.total_steps, mirror))


def _goes_on(network: NetworkFiles, trainer: "Trainer") -> bool:
    """Whether what a killed worker saved was made on such devices as these; else the trial begins anew."""
    from lottery.engine import checkpoints

    saved = checkpoints.load(network.checkpoint)
    return (saved.replicas, saved.xla) == (trainer.replicas, trainer.xla)


def _forget() -> None:
    from lottery.engine import devices  # TensorFlow, which has started by now

    devices.forget()


class _Watch(Tracker):
    """Hands each accuracy to the trial, which may end the training, and to W&B where the recipe asks for it."""

    def __init__(self, trial: Trial, last_step: int, mirror: Callable[..., Tracker], *known: Any):
        super().__init__()
        self.trial, self.last_step, self.mirror = trial, last_step, mirror(*known)

    def log(self, row: Mapping[str, Any]) -> None:
        self.mirror.log(row)
        self.trial.report(row["validation_accuracy"], row["epoch"], row["step"] >= self.last_step)

    def finish(self, result: Result | None) -> None:
        self.mirror.finish(result)


def _conclude(study: Study, run: Run) -> Outcome:
    """What was found so far, also written: `trials.csv`, and the recipe of the best trial."""
    with locks.writing(run.sweep / "choosing", patience=math.inf):
        found = outcome(study)
        rows = [{"trial": one.number, **dataclasses.asdict(one), **one.values} for one in found.trials]
        columns = ("trial", "status", "accuracy", "epochs", "seconds", "reason", *found.keys)
        files.write_text(run.sweep / "trials.csv", csv_text(columns, rows))
        if found.best is not None:
            best = values.applied(run.recipe, found.best.values).model_copy(update={"name": f"{run.recipe.name}-best"})
            classes = f", {run.recipe.sweep.classes} classes alone" if run.recipe.sweep.classes else ""
            came_to = f"{found.best.accuracy:.2%} of the validation images{classes}"
            head = f"# The best of {len(found.trials)} trials of imp sweep: {came_to}."
            files.write_text(run.sweep / "best.toml", f"{head}\n\n{reading.to_toml(best)}")
    return found
