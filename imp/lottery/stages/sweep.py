"""A sweep: dense trainings whose hyperparameters are proposed by what earlier ones came to. One of any number of workers."""

import contextlib
import dataclasses
import gc
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep import files
from data_prep.errors import Failed, InputError, first_line, one_line
from data_prep.records import Manifest
from lottery import attempts, grids, locks, plan, recipe, seeds, spaces
from lottery.fanout import share
from lottery.fanout.share import Seat
from lottery.preemption import Preempted
from lottery.progress import Reporter
from lottery.recipe import Recipe
from lottery.run import Network, Run
from lottery.search import page, values
from lottery.search.study import Pruned, Study, Trial
from lottery.spaces import Dimension
from lottery.stages.prepare import prepare_set
from lottery.start import start_tensorflow
from lottery.tables import csv_text
from lottery.tracking import Tracker, track

if TYPE_CHECKING:
    from lottery.engine.loop import Trainer

MakeTrainer = Callable[[Run], "Trainer"]
MADE_WITH = "sweep.json"
GIVE_UP = 3  # trials in a row whose training raised: something is wrong here, not with their values


def subset(run: Run) -> Run:
    """The run that trials are trainings of: the same, on the classes of `sweep.classes`."""
    classes = run.recipe.sweep.classes
    if not classes or classes == run.recipe.data.classes:
        return run
    data = run.recipe.data.model_copy(update={"classes": classes, "path": ""})
    return dataclasses.replace(run, recipe=run.recipe.model_copy(update={"data": data}))


def _open(run: Run, dimensions: list[Dimension], manifest: Manifest) -> Study:
    """The study of a run's sweep, begun where there is none. Raises InputError where it was begun with another recipe, or on
    other images."""
    settings = run.recipe.sweep
    with locks.patiently(run.sweep / "choosing"):
        _check_same(run.sweep / MADE_WITH, subset(run).recipe, manifest.digest)
        run.adopt()
    per_epoch = max(1, manifest.count("train") // run.recipe.train.batch)
    grace = float(grids.parse_point(settings.grace).epochs(per_epoch))
    return Study(run.sweep, dimensions, settings.trials, settings.startup, grace, run.recipe.seed)


def prepared(run: Run, reporter: Reporter) -> Manifest:
    """What is in the set that trials train on, which one of the workers makes if it is missing."""
    on = subset(run)
    while True:
        try:
            return prepare_set(on.recipe.records(), on.records(), reporter)
        except locks.Busy:
            time.sleep(locks.PATIENCE_SECONDS)


def _check_same(path: Path, wanted: Recipe, records: str) -> None:
    """Trials of one study differ in nothing but what is searched; `records` is the digest of their images."""
    searched = {dimension.key for dimension in spaces.parse(wanted.sweep.space)}
    made_with = {key: value for key, value in recipe.depends(wanted, "train").items() if key not in searched}
    made_with |= {"sweep.space": sorted(wanted.sweep.space), "records": records}
    before = files.read_json(path) if path.exists() else None
    if before is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, made_with)
    elif before != made_with:
        differs = [key for key in sorted(before | made_with) if before.get(key) != made_with.get(key)]
        key = differs[0]
        raise InputError(
            f"{path.parent} was begun with another recipe ({key} was {before.get(key)!r}, is {made_with.get(key)!r}): use the "
            "same, another --run, or remove that folder"
        )


def sweep(run: Run, reporter: Reporter) -> "page.Outcome":
    """Train trials until there are `sweep.trials`; return what they have found so far, which is also written.

    Any number of processes may do this at once on one run. What a killed one left is gone on with. Raises Preempted once the
    trial under way is saved, and Failed when all trials are over and none came to its end, or `GIVE_UP` of this worker's in a
    row raised. What was found until then is written first.
    """
    dimensions, seat = values.searched(run.recipe), share.seat_here(run.recipe.train.threads)
    share.take(seat)
    study = _open(run, dimensions, prepared(run, reporter))
    with locks.staying(run.folder):
        try:
            _work(study, subset(run), seat, reporter)
        except BaseException:
            with contextlib.suppress(Exception):
                _conclude(study, run)
            raise
        outcome = _conclude(study, run)
    if outcome.best is None and not outcome.under_way:
        raise Failed(f"no trial of {run.sweep} came to its end: see {run.sweep / 'trials.csv'}")
    return outcome


def _conclude(study: Study, run: Run) -> "page.Outcome":
    """What the sweep has found so far, written for people to look at."""
    with locks.patiently(run.sweep / "choosing"):
        outcome = page.outcome(study, run.recipe)
        _write(run, outcome)
    return outcome


def _work(study: Study, run: Run, seat: Seat, reporter: Reporter) -> None:
    make_trainer: MakeTrainer | None = None
    failures: list[str] = []  # in a row
    while len(failures) < GIVE_UP:
        with study.trial() as trial:
            if trial is None:
                return
            if make_trainer is None:
                start_tensorflow()
                from lottery.engine import assembly
                from lottery.engine.devices import set_up_tensorflow

                devices = set_up_tensorflow(run.recipe.train, seat.cores)
                make_trainer = partial(assembly.make_trainer, reporter=Reporter(quiet=True), seat=seat, devices=devices)
            failure = _train(study, trial, run, make_trainer, reporter)
            failures = [*failures, failure] if failure else []
    raise Failed(f"{GIVE_UP} trials in a row failed here, the last: {failures[-1]}: mend that and run the command again")


def _train(study: Study, trial: Trial, run: Run, make_trainer: MakeTrainer, reporter: Reporter) -> str | None:
    """One trial to its end, whichever that is; why it failed, if its training raised. Raises OSError, such as of a full disk,
    and leaves the trial to whoever comes next."""
    name = f"trial {trial.number + 1} of {study.count}"
    reporter.say(f"{name}: {_told(trial.values)}")
    network, failure = Network(trial.folder), None
    try:
        own = dataclasses.replace(run, recipe=values.applied(run.recipe, trial.values))
        with attempts.noted(network) as deaths:
            if deaths >= attempts.DEADLY:
                raise Failed(attempts.KILLS)
            result = _result(trial, own, network, name, make_trainer, reporter)
    except Pruned:
        trial.prune()
        reporter.say(f"{name}: pruned")
    except (Preempted, locks.Busy, OSError):
        raise
    except Exception as error:  # such as a batch that does not fit into memory: the others go on
        reason = one_line(error) or f"{type(error).__name__}: {first_line(error)}"
        trial.fail(reason)
        reporter.say(f"{name}: failed: {reason}")
        failure = reason
    else:
        _tell(trial, result, name, reporter)
    finally:
        _forget()
    network.checkpoint.unlink(missing_ok=True)
    network.final.unlink(missing_ok=True)
    return failure


def _result(
    trial: Trial, run: Run, network: Network, name: str, make_trainer: MakeTrainer, reporter: Reporter
) -> dict[str, Any]:
    """What the training of a trial came to; it may have ended before whoever did it could tell."""
    if result := network.read_result():
        return result
    from lottery.engine import training

    planned = plan.make(run.recipe, run.manifest().count("train"))
    trainer = make_trainer(run)
    task = training.Task(
        title=name,
        start=lambda: trainer.drawn(seeds.derive(run.recipe.seed, 1, "initialisation")),
        last_step=planned.total_steps,
        order_seed=seeds.derive(run.recipe.seed, 1, "order"),
        record={"replicate": 1, "first_step": 0, "epochs": planned.total_steps / planned.steps_per_epoch, **trial.values},
        root=network.folder,
    )
    if network.checkpoint.exists() and not _goes_on(network, trainer):
        network.checkpoint.unlink()
    mirror = partial(track, run.recipe, run.folder, network.folder)
    watch = partial(_Watch, trial, planned.total_steps, mirror)
    return training.train(trainer, task, network, reporter, watch)


def _goes_on(network: Network, trainer: "Trainer") -> bool:
    """Whether what a killed worker saved was made on such devices as these; else the trial begins anew."""
    from lottery.engine import checkpoints

    saved = checkpoints.load(network.checkpoint)
    return (saved.replicas, saved.xla) == (trainer.replicas, trainer.xla)


def _tell(trial: Trial, result: dict[str, Any], name: str, reporter: Reporter) -> None:
    if result["status"] == "done":
        accuracy = result["final"]["validation_accuracy"]
        trial.complete(accuracy)
        reporter.say(f"{name}: validation {accuracy:.2%}")
    else:
        trial.fail(result["reason"])
        reporter.say(f"{name}: {result['status']}")


def _forget() -> None:
    """Let go of a network and its compiled step, which the next trial makes anew."""
    import keras

    keras.backend.clear_session()
    gc.collect()


class _Watch(Tracker):
    """Hands each accuracy to the trial, which may end the training, and to W&B where the recipe asks for it."""

    def __init__(self, trial: Trial, last_step: int, mirror: Callable[..., Tracker], *known: Any):
        super().__init__()
        self.trial, self.last_step, self.mirror = trial, last_step, mirror(*known)

    def log(self, row: Mapping[str, Any]) -> None:
        self.mirror.log(row)
        self.trial.report(row["validation_accuracy"], row["epoch"], row["step"] >= self.last_step)

    def finish(self, result: dict[str, Any]) -> None:
        self.mirror.finish(result)


def _told(drawn: dict[str, Any]) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {page.text(value)}" for key, value in drawn.items())


def _write(run: Run, outcome: "page.Outcome") -> None:
    rows = [{"trial": one.number, **dataclasses.asdict(one), **one.values} for one in outcome.trials]
    columns = ("trial", "status", "accuracy", "epochs", "seconds", "reason", *outcome.keys)
    files.write_text(run.sweep / "trials.csv", csv_text(columns, rows))
    files.write_text(run.sweep / "index.html", page.html(outcome, run.recipe))
    if outcome.best is not None:
        best = values.applied(run.recipe, outcome.best.values).model_copy(update={"name": f"{run.recipe.name}-best"})
        classes = f", {run.recipe.sweep.classes} classes alone" if run.recipe.sweep.classes else ""
        came_to = f"{outcome.best.accuracy:.2%} of the validation images{classes}"
        head = f"# The best of {len(outcome.trials)} trials of imp sweep: {came_to}."
        files.write_text(run.sweep / "best.toml", f"{head}\n\n{recipe.to_toml(best)}")
