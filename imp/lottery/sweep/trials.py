"""The trials of a sweep: an Optuna study in a journal file, which any number of workers add to, each trial in a folder of its
own whose lock says whether anyone is at work on it."""

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import TrialState

from lottery.base import locks
from lottery.base.errors import InputError, first_line
from lottery.experiment import controls, seeds
from lottery.experiment.recipe import Sweep
from lottery.experiment.spaces import Dimension
from lottery.rundir import journal
from lottery.rundir.names import NetworkFiles

NAME = "sweep"
GRACE_SECONDS = 30  # after which a lock of the journal was left by a worker that was killed
STAGES = 100  # of an epoch: the stages at which trials are compared
STATUSES = {
    TrialState.WAITING: "under way",  # for whoever comes next
    TrialState.RUNNING: "under way",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "stopped",
    TrialState.FAIL: "failed",
}

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
warnings.filterwarnings("ignore", "The reported value is ignored")  # of a trial that goes on from its last checkpoint


class Trials:
    """The sweep in `folder`: trials of `dimensions`, `settings` says how many, and how many of them are drawn at random first;
    none is pruned before the epoch `grace` of the network that is judged. Values after the first ones are proposed by the
    tree-structured Parzen estimator (Bergstra et al. 2011), from a seed that depends on how many trials there have been. A
    trial is pruned when its best `metric` on validation so far is under the median of the others' at that stage (Golovin et al.
    2017); or by `asha`, when it is not in the best quarter of those that came as far, at `grace` epochs, four times as many,
    and so on (Li et al. 2020). A dense training takes `epochs`. Raises InputError where the journal is damaged.

    They are asked for and told: `optuna.Study.optimize` would count a trial that is interrupted as failed, and begin one for
    each worker after the last, and a journal has none of Optuna's heartbeats."""

    def __init__(
        self,
        folder: Path,
        dimensions: Sequence[Dimension],
        settings: Sweep,
        grace: float,
        epochs: float,
        seed: int,
        metric: str,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.count, self.startup = folder, settings.trials, settings.startup
        self.epochs, self.seed, self.metric = epochs, seed, metric
        self.distributions = {dimension.key: _distribution(dimension) for dimension in dimensions}
        log = folder.resolve() / "journal.log"  # an absolute path, or Optuna waits forever for a lock that was left
        try:
            self.storage = optuna.storages.JournalStorage(_opened(log))
            self.study = optuna.create_study(
                storage=self.storage,
                study_name=NAME,
                direction="maximize",
                load_if_exists=True,
                pruner=_pruner(settings, round(grace * STAGES)),
            )
        except ValueError as error:
            raise InputError(f"{log} is damaged ({first_line(error)}): remove {folder} and begin the sweep again") from None

    def trial_folder(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:04d}"

    @contextlib.contextmanager
    def next(self) -> Iterator[optuna.Trial | None]:
        """The next trial, its folder locked: one that a killed worker left, or a new one; None when there are enough."""
        with contextlib.ExitStack() as lock:
            with locks.writing(self.folder / "choosing", patience=math.inf):
                trial = self._ask()
                if trial:
                    lock.enter_context(locks.writing(self.trial_folder(trial.number)))
            yield trial

    def _ask(self) -> optuna.Trial | None:
        for trial in self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
            if not locks.holder(self.trial_folder(trial.number)):  # its worker was killed, or has told how it ended just now
                with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
                    self.storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
        trials = self.study.get_trials(deepcopy=False)
        number = next((trial.number for trial in trials if trial.state is TrialState.WAITING), len(trials))
        if number >= self.count:
            return None
        seed = seeds.derive(self.seed, number + 1, "sweep")
        self.study.sampler = optuna.samplers.TPESampler(
            n_startup_trials=self.startup, multivariate=True, constant_liar=True, seed=seed
        )
        return self.study.ask(self.distributions)

    def outcome(self) -> dict[str, Any]:
        """What the sweep has found so far. `trials` has a row for each: its `metric` (validation, 0 .. 1) is the one at its
        end, or the last that was seen of it; `epochs` and `seconds` were spent training all its networks, not waiting for a
        worker to go on with it. `cost` is their sum over all trials, also in dense trainings. `best` is the complete one with
        the highest metric, of equal ones the first; `importances` are shares of what varies by key (fANOVA, Hutter et al.
        2014), the largest first, none where too little is known."""
        trials = [self._row(trial) for trial in self.study.get_trials()]
        complete = [row for row in trials if row["status"] == "complete"]
        importances = {}
        if len({row[self.metric] for row in complete}) > 1:
            evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
            importances = optuna.importance.get_param_importances(self.study, evaluator=evaluator)
        epochs, seconds = (sum(row[key] or 0.0 for row in trials) for key in ("epochs", "seconds"))
        return {
            "trials": trials,
            "cost": {"epochs": epochs, "dense_trainings": epochs / self.epochs, "seconds": seconds},
            "best": max(complete, key=lambda row: row[self.metric], default=None),
            "importances": importances,
            "keys": list(self.distributions),
            "planned": self.count,
            "under_way": sum(row["status"] == "under way" for row in trials),
        }

    def _row(self, trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
        stage = trial.last_step
        epochs, seconds = _spent(self.trial_folder(trial.number))
        seen = None if stage is None else trial.intermediate_values[stage]
        return {
            "number": trial.number + 1,
            "status": STATUSES[trial.state],
            self.metric: trial.value if trial.state is TrialState.COMPLETE else seen,
            "epochs": epochs,
            "seconds": seconds,
            "reason": trial.user_attrs.get("reason", ""),
            "values": trial.params,
        }


def _spent(folder: Path) -> tuple[float | None, float | None]:
    """The epochs and seconds that the networks of a trial have trained; None before the first row of one."""
    found = {path.parent: rows for path in folder.rglob(NetworkFiles(folder).metrics.name) if (rows := journal.read(path))}
    if not found:
        return None, None
    epochs = 0.0
    for place, (*_, last) in found.items():
        first = int(place.parent.name.partition("-step-")[2] or 0)  # a ticket begins where it is rewound to
        epochs += 0 if controls.averaged(place.name) else last["epoch"] * (1 - first / last["step"])
    return epochs, sum(row["timing"]["seconds"] for rows in found.values() for row in rows)


def _pruner(settings: Sweep, grace: int) -> optuna.pruners.BasePruner:
    if settings.pruner == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=max(1, grace))
    return optuna.pruners.MedianPruner(n_startup_trials=settings.startup, n_warmup_steps=grace)


def _distribution(dimension: Dimension) -> BaseDistribution:
    if dimension.kind == "choice":
        return CategoricalDistribution(dimension.values)
    low, high = dimension.values
    of_numbers = IntDistribution if isinstance(low, int) else FloatDistribution
    return of_numbers(low, high, log=dimension.kind == "log")


def _opened(log: Path) -> JournalFileBackend:
    """The file of a journal, without a last line that a full disk or a crash cut short, to which the next would be added."""
    lock = JournalFileSymlinkLock(str(log), GRACE_SECONDS)
    opened = JournalFileBackend(str(log), lock)
    lock.acquire()
    try:
        with open(log, "r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
    finally:
        lock.release()
    return opened
