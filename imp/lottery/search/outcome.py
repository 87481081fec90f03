"""What a sweep has found so far: a row for each trial, the best of them, and which values matter."""

import dataclasses
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from lottery.rundir import journal
from lottery.rundir.names import NetworkFiles
from lottery.search.study import STAGES, Study

_STATUS = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "under way",
    TrialState.WAITING: "waiting",
}


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One trial: `accuracy` (validation, 0 .. 1) is the one at its end, or the last that was seen of it; `seconds` were spent
    training, not waiting for a worker to go on with it."""

    number: int
    status: str
    accuracy: float | None
    epochs: float | None
    seconds: float | None
    reason: str
    values: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A sweep so far: `best` is the complete trial with the highest accuracy, of equal ones the first; `importances` are shares
    of what varies by key (fANOVA, Hutter et al. 2014), the largest first, none where too little is known."""

    trials: list[Attempt]
    best: Attempt | None
    importances: dict[str, float]
    keys: list[str]
    planned: int
    under_way: int


def outcome(study: Study) -> Outcome:
    trials = [_attempt(study, trial) for trial in study.memory.get_trials()]
    complete = [one for one in trials if one.status == "complete"]
    importances = {}
    if len({one.accuracy for one in complete}) > 1:
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        importances = optuna.importance.get_param_importances(study.memory, evaluator=evaluator)
    return Outcome(
        trials=trials,
        best=max(complete, key=lambda one: one.accuracy or 0, default=None),
        importances=importances,
        keys=[dimension.key for dimension in study.dimensions],
        planned=study.count,
        under_way=sum(one.status == "under way" for one in trials),
    )


def _attempt(study: Study, trial: FrozenTrial) -> Attempt:
    stage = trial.last_step
    rows = journal.read(NetworkFiles(study.trial_folder(trial.number)).metrics)
    seen = trial.intermediate_values[stage] if stage is not None else None
    return Attempt(
        number=trial.number + 1,
        status=_STATUS[trial.state],
        accuracy=trial.value if trial.state is TrialState.COMPLETE else seen,
        epochs=None if stage is None else stage / STAGES,
        seconds=sum(row["timing"]["seconds"] for row in rows) if rows else None,
        reason=trial.user_attrs.get("reason", ""),
        values=dict(trial.params),
    )
