"""The memory of a sweep: an Optuna study in a journal file, which any number of workers add to, each trial in a folder of its
own whose lock says whether anyone is at work on it."""

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import TrialState

from lottery.base import locks
from lottery.base.errors import InputError, first_line
from lottery.experiment import seeds
from lottery.experiment.spaces import Dimension
from lottery.rundir import journal
from lottery.rundir.names import NetworkFiles

NAME = "sweep"
GRACE_SECONDS = 30  # after which a lock of the journal was left by a worker that was killed
STAGES = 100  # of an epoch: the stages at which trials are compared

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
warnings.filterwarnings("ignore", "The reported value is ignored")  # of a trial that goes on from its last checkpoint


class Study:
    """The sweep in `folder`: up to `count` trials of `dimensions`, the first `startup` of them drawn at random; none is pruned
    before `grace` epochs. The Optuna study itself is `memory`. Values after the first ones are proposed by the tree-structured
    Parzen estimator (Bergstra et al. 2011), from a seed that depends on how many trials there have been; a trial is pruned when
    its best `metric` on validation so far is under the median of the others' at that stage (Golovin et al. 2017). Raises
    InputError where the journal is damaged."""

    def __init__(
        self, folder: Path, dimensions: Sequence[Dimension], count: int, startup: int, grace: float, seed: int, metric: str
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.count, self.startup, self.seed = folder, count, startup, seed
        self.dimensions, self.metric = dimensions, metric
        log = folder.resolve() / "journal.log"  # an absolute path, or Optuna waits forever for a lock that was left
        try:
            self.memory = optuna.create_study(
                storage=optuna.storages.JournalStorage(_opened(log)),
                study_name=NAME,
                direction="maximize",
                load_if_exists=True,
                pruner=optuna.pruners.MedianPruner(n_startup_trials=startup, n_warmup_steps=round(grace * STAGES)),
            )
        except ValueError as error:
            raise InputError(f"{log} is damaged ({first_line(error)}): remove {folder} and begin the sweep again") from None

    def trial_folder(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:04d}"

    @contextlib.contextmanager
    def trial(self) -> Iterator[optuna.Trial | None]:
        """The next trial, its values drawn and its folder locked: one that a killed worker left, or else a new one; None when
        there are enough."""
        with contextlib.ExitStack() as lock:
            with locks.writing(self.folder / "choosing", patience=math.inf):
                asked = self._left(lock) or self._new(lock)
                if asked:
                    for dimension in self.dimensions:
                        _draw(asked, dimension)
            yield asked

    def _left(self, lock: contextlib.ExitStack) -> optuna.Trial | None:
        """A trial under way on which nobody is at work. Its worker may have been killed in the midst of drawing its values."""
        for frozen in self.memory.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            folder = self.trial_folder(frozen.number)
            if locks.holder(folder):  # asked first, because trying to get the lock takes a moment, and there may be many
                continue
            with contextlib.suppress(locks.Busy), contextlib.ExitStack() as mine:
                mine.enter_context(locks.writing(folder))
                if self.memory.get_trials()[frozen.number].state is TrialState.RUNNING:  # it may have been told in between
                    lock.enter_context(mine.pop_all())
                    return optuna.Trial(self.memory, frozen._trial_id)
        return None

    def _new(self, lock: contextlib.ExitStack) -> optuna.Trial | None:
        before = len(self.memory.get_trials(deepcopy=False))
        if before >= self.count:
            return None
        seed = seeds.derive(self.seed, before + 1, "sweep")
        self.memory.sampler = optuna.samplers.TPESampler(
            n_startup_trials=self.startup, multivariate=True, constant_liar=True, seed=seed
        )
        asked = self.memory.ask()
        lock.enter_context(locks.writing(self.trial_folder(asked.number)))
        return asked

    def outcome(self) -> dict[str, Any]:
        """What the sweep has found so far. `trials` has a row for each: its `metric` (validation, 0 .. 1) is the one at its
        end, or the last that was seen of it; `seconds` were spent training, not waiting for a worker to go on with it. `best`
        is the complete one with the highest metric, of equal ones the first; `importances` are shares of what varies by key
        (fANOVA, Hutter et al. 2014), the largest first, none where too little is known."""
        trials = [self._row(trial) for trial in self.memory.get_trials()]
        complete = [row for row in trials if row["status"] == "complete"]
        importances = {}
        if len({row[self.metric] for row in complete}) > 1:
            evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
            importances = optuna.importance.get_param_importances(self.memory, evaluator=evaluator)
        return {
            "trials": trials,
            "best": max(complete, key=lambda row: row[self.metric], default=None),
            "importances": importances,
            "keys": [dimension.key for dimension in self.dimensions],
            "planned": self.count,
            "under_way": sum(row["status"] == "under way" for row in trials),
        }

    def _row(self, trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
        stage, told = trial.last_step, {TrialState.FAIL: "failed", TrialState.RUNNING: "under way"}
        rows = journal.read(NetworkFiles(self.trial_folder(trial.number)).metrics)
        seen = None if stage is None else trial.intermediate_values[stage]
        return {
            "number": trial.number + 1,
            "status": told.get(trial.state, trial.state.name.lower()),
            self.metric: trial.value if trial.state is TrialState.COMPLETE else seen,
            "epochs": None if stage is None else stage / STAGES,
            "seconds": sum(row["timing"]["seconds"] for row in rows) if rows else None,
            "reason": trial.user_attrs.get("reason", ""),
            "values": trial.params,
        }


def _draw(asked: optuna.Trial, dimension: Dimension) -> None:
    """Give the trial a value, unless it has one already."""
    if dimension.kind == "choice":
        asked.suggest_categorical(dimension.key, dimension.values)
    else:
        suggest = asked.suggest_int if isinstance(dimension.values[0], int) else asked.suggest_float
        suggest(dimension.key, *dimension.values, log=dimension.kind == "log")


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
