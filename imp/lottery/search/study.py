"""The memory of a sweep: an Optuna study in a journal file, which any number of workers add to, each trial in a folder of its
own whose lock says whether anyone is at work on it."""

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import TrialState

from data_prep.errors import InputError, first_line
from lottery.experiment import seeds
from lottery.experiment.spaces import Dimension
from lottery.rundir import locks

NAME = "sweep"
GRACE_SECONDS = 30  # after which a lock of the journal was left by a worker that was killed
STAGES = 100  # of an epoch: the stages at which trials are compared

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
warnings.filterwarnings("ignore", "The reported value is ignored")  # of a trial that goes on from its last checkpoint


class Study:
    """The sweep in `folder`: up to `count` trials of `dimensions`, the first `startup` of them drawn at random; none is pruned
    before `grace` epochs. The Optuna study itself is `memory`.

    Values after the first ones are proposed by the tree-structured Parzen estimator (Bergstra et al. 2011), from a seed that
    depends on how many trials there have been; a trial is pruned when its best accuracy so far is under the median of the
    others' at that stage (Golovin et al. 2017). Raises InputError where the journal is damaged.
    """

    def __init__(self, folder: Path, dimensions: Sequence[Dimension], count: int, startup: int, grace: float, seed: int):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.count, self.startup, self.seed = folder, count, startup, seed
        self.dimensions = dimensions
        journal = folder.resolve() / "journal.log"  # an absolute path, or Optuna waits forever for a lock that was left
        try:
            self.memory = optuna.create_study(
                storage=optuna.storages.JournalStorage(_opened(journal)),
                study_name=NAME,
                direction="maximize",
                load_if_exists=True,
                pruner=optuna.pruners.MedianPruner(n_startup_trials=startup, n_warmup_steps=round(grace * STAGES)),
            )
        except ValueError as error:
            raise InputError(f"{journal} is damaged ({first_line(error)}): remove {folder} and begin the sweep again") from None

    def trial_folder(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:04d}"

    @contextlib.contextmanager
    def trial(self) -> Iterator["Trial | None"]:
        """The next trial, its folder locked: one that a killed worker left, or else a new one; None when there are enough."""
        with contextlib.ExitStack() as lock:
            with locks.writing(self.folder / "choosing", patience=math.inf):
                asked = self._left(lock) or self._new(lock)
                trial = Trial(self._drawn(asked), self.trial_folder(asked.number)) if asked else None
            yield trial

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

    def _drawn(self, asked: optuna.Trial) -> optuna.Trial:
        """The same with a value for each dimension; those that it has already stay."""
        for dimension in self.dimensions:
            if dimension.kind == "choice":
                asked.suggest_categorical(dimension.key, dimension.values)
            else:
                suggest = asked.suggest_int if isinstance(dimension.values[0], int) else asked.suggest_float
                suggest(dimension.key, *dimension.values, log=dimension.kind == "log")
        return asked


def _opened(journal: Path) -> JournalFileBackend:
    """The file of a journal, without a last line that a full disk or a crash cut short, to which the next would be added."""
    lock = JournalFileSymlinkLock(str(journal), GRACE_SECONDS)
    opened = JournalFileBackend(str(journal), lock)
    lock.acquire()
    try:
        with open(journal, "r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
    finally:
        lock.release()
    return opened


@dataclasses.dataclass(frozen=True)
class Trial:
    """One choice of values, and how it comes out."""

    asked: optuna.Trial
    folder: Path

    def report(self, accuracy: float, epoch: float, is_last: bool) -> None:
        """Tell what it has come to. Raises TrialPruned where that is too little, and there is something left to save."""
        self.asked.report(accuracy, round(epoch * STAGES))
        if not is_last and self.asked.should_prune():
            raise optuna.TrialPruned

    def tell(self, result: Mapping[str, Any]) -> None:
        """How it ended. One that diverged, or raised, is kept with its reason, and not tried again."""
        if result["status"] == "done":
            self.asked.study.tell(self.asked, result["accuracy"])
        elif result["status"] == "pruned":
            self.asked.study.tell(self.asked, state=TrialState.PRUNED)
        else:
            self.asked.set_user_attr("reason", result["reason"])
            self.asked.study.tell(self.asked, state=TrialState.FAIL)
