"""The memory of a sweep: an Optuna study in a journal file, which any number of workers add to, each trial in a folder of its
own whose lock says whether anyone is at work on it."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, TrialState

from data_prep.errors import InputError, first_line
from lottery import locks, seeds
from lottery.spaces import Choice, Dimension

NAME = "sweep"
GRACE_SECONDS = 30  # after which a lock of the journal was left by a worker that was killed
STAGES = 100  # of an epoch: the stages at which trials are compared

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)


class Pruned(Exception):
    """A trial that is no longer worth its while."""


class Study:
    """The sweep in `folder`: up to `count` trials of `dimensions`, the first `startup` of them drawn at random; none is pruned
    before `grace` epochs.

    Values after the first ones are proposed by the tree-structured Parzen estimator (Bergstra et al. 2011), from a seed that
    depends on how many trials there have been; a trial is pruned when its best accuracy so far is under the median of the
    others' at that stage (Golovin et al. 2017). Raises InputError where the journal is damaged.
    """

    def __init__(self, folder: Path, dimensions: Sequence[Dimension], count: int, startup: int, grace: float, seed: int):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.count, self.startup, self.seed = folder, count, startup, seed
        self.dimensions = dimensions
        journal = folder.resolve() / "journal.log"  # whole, or Optuna waits for ever for a lock that was left
        try:
            self.study = optuna.create_study(
                storage=optuna.storages.JournalStorage(_opened(journal)),
                study_name=NAME,
                direction="maximize",
                load_if_exists=True,
                pruner=optuna.pruners.MedianPruner(n_startup_trials=startup, n_warmup_steps=round(grace * STAGES)),
            )
        except ValueError as error:
            raise InputError(f"{journal} is damaged ({first_line(error)}): remove {folder} and begin the sweep again") from None

    @contextlib.contextmanager
    def trial(self) -> Iterator["Trial | None"]:
        """The next trial, its folder locked: one that a killed worker left, or else a new one; None when there are enough."""
        with contextlib.ExitStack() as held:
            with locks.patiently(self.folder / "choosing"):
                chosen = self._left(held) or self._new(held)
            yield chosen

    def _left(self, held: contextlib.ExitStack) -> "Trial | None":
        """A trial under way on which nobody is at work. Its worker may have been killed in the midst of drawing its values."""
        for frozen in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            place = self.place(frozen.number)
            if locks.holder(place):
                continue
            with contextlib.suppress(locks.Busy), contextlib.ExitStack() as mine:
                mine.enter_context(locks.writing(place))
                if self.trials()[frozen.number].state is TrialState.RUNNING:  # it may have been told in between
                    held.enter_context(mine.pop_all())
                    return Trial(self, frozen.number, self._drawn(optuna.trial.Trial(self.study, frozen._trial_id)))
        return None

    def _new(self, held: contextlib.ExitStack) -> "Trial | None":
        made = len(self.study.get_trials(deepcopy=False))
        if made >= self.count:
            return None
        seed = seeds.derive(self.seed, made + 1, "sweep")
        self.study.sampler = optuna.samplers.TPESampler(
            n_startup_trials=self.startup, multivariate=True, constant_liar=True, seed=seed
        )
        asked = self.study.ask()
        held.enter_context(locks.writing(self.place(asked.number)))
        return Trial(self, asked.number, self._drawn(asked))

    def _drawn(self, asked: optuna.trial.Trial) -> optuna.trial.Trial:
        """The same with a value for each dimension; those that it has already stay."""
        for dimension in self.dimensions:
            if isinstance(dimension, Choice):
                asked.suggest_categorical(dimension.key, dimension.values)
            elif isinstance(dimension.low, int) and isinstance(dimension.high, int):
                asked.suggest_int(dimension.key, dimension.low, dimension.high, log=dimension.log)
            else:
                asked.suggest_float(dimension.key, dimension.low, dimension.high, log=dimension.log)
        return asked

    def place(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:04d}"

    def trials(self) -> list[FrozenTrial]:
        """Every trial so far, in the order of its number."""
        return self.study.get_trials()

    def best(self) -> FrozenTrial | None:
        """The trial with the highest accuracy; of equal ones the first. None before one is complete."""
        complete = self.study.get_trials(states=(TrialState.COMPLETE,))
        return max(complete, key=lambda trial: (trial.value, -trial.number), default=None)

    def importances(self) -> dict[str, float]:
        """Each key's share of what varies (fANOVA, Hutter et al. 2014), from most to least; nothing where too few trials are
        complete, or all came out alike."""
        complete = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if len(complete) < 2 or len({trial.value for trial in complete}) < 2:
            return {}
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        return dict(optuna.importance.get_param_importances(self.study, evaluator=evaluator))


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


class Trial:
    """One choice of values, and how it comes out."""

    def __init__(self, study: Study, number: int, asked: optuna.trial.Trial):
        self.study, self.number, self._asked = study, number, asked
        self.values: dict[str, Any] = dict(asked.params)
        self.folder = study.place(number)

    def report(self, accuracy: float, epoch: float, is_last: bool) -> None:
        """Tell what it has come to. Raises Pruned where that is too little, and there is something left to save."""
        stage = round(epoch * STAGES)
        known = self.study.study.get_trials(deepcopy=False)[self.number].intermediate_values
        if stage not in known:
            self._asked.report(accuracy, stage)
        if not is_last and self._asked.should_prune():
            raise Pruned

    def complete(self, accuracy: float) -> None:
        self.study.study.tell(self._asked, accuracy)

    def prune(self) -> None:
        self.study.study.tell(self._asked, state=TrialState.PRUNED)

    def fail(self, reason: str) -> None:
        """It diverged, or raised: kept with its reason, and not tried again."""
        self._asked.set_user_attr("reason", reason)
        self.study.study.tell(self._asked, state=TrialState.FAIL)
