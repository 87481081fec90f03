"""What a sweep has found, as rows and as a page: the course of the search, what matters, and all trials at a glance."""

import dataclasses
import math
from typing import Any

import altair as alt
from optuna.trial import FrozenTrial, TrialState

from lottery import journal, pages, spaces
from lottery.progress import duration
from lottery.recipe import Recipe
from lottery.results.charts import COLOURS, GREY, HEIGHT, WIDTH, Chart, script
from lottery.run import Network
from lottery.search.study import STAGES, Study
from lottery.spaces import Choice, Dimension

TELLING = 20  # trials from which on importances are worth something

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
    """A sweep so far. `importances` are shares by key, the largest first; none where too little is known."""

    trials: list[Attempt]
    best: Attempt | None
    importances: dict[str, float]
    keys: list[str]
    planned: int

    @property
    def under_way(self) -> int:
        return sum(one.status == "under way" for one in self.trials)

    @property
    def headings(self) -> tuple[str, ...]:
        return ("trial", "status", "validation", "epochs", "time", *self.keys)

    def cells(self, one: Attempt) -> tuple[str, ...]:
        return (
            str(one.number),
            f"{one.status}{': ' + one.reason if one.reason else ''}",
            "" if one.accuracy is None else f"{one.accuracy:.2%}",
            "" if one.epochs is None else f"{one.epochs:g}",
            "" if one.seconds is None else duration(one.seconds),
            *(text(one.values.get(key, "")) for key in self.keys),
        )

    def as_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "under_way": self.under_way}

    def ranked(self) -> list[Attempt]:
        """The trials from the best to the worst."""
        return sorted(self.trials, key=lambda one: (one.status != "complete", -(one.accuracy or 0), one.number))


def outcome(study: Study, recipe: Recipe) -> Outcome:
    """What a study has found so far."""
    found = study.best()
    return Outcome(
        trials=[_attempt(study, trial) for trial in study.trials()],
        best=_attempt(study, found) if found else None,
        importances=study.importances(),
        keys=[dimension.key for dimension in spaces.parse(recipe.sweep.space)],
        planned=study.count,
    )


def _attempt(study: Study, trial: FrozenTrial) -> Attempt:
    stage = trial.last_step
    rows = journal.read(Network(study.place(trial.number)).metrics)
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


def text(value: Any) -> str:
    """A value as people read it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def html(found: Outcome, recipe: Recipe) -> str:
    """The page of a sweep, which needs nothing beside it."""
    dimensions = spaces.parse(recipe.sweep.space)
    drawn = [course(found)] if any(one.accuracy is not None for one in found.trials) else []
    drawn += [importance(found)] if found.importances else []
    drawn += [parallel(found, dimensions)] if any(one.status == "complete" for one in found.trials) else []
    of = f" of the first {recipe.sweep.classes} classes" if recipe.sweep.classes else ""
    table = [found.cells(one) for one in found.ranked()]
    return pages.fill("search/page.html", outcome=found, charts=drawn, table=table, name=recipe.name, of=of, script=script())


def course(found: Outcome) -> Chart:
    """What each trial came to, and the best so far."""
    rows, best = [], -math.inf
    for one in found.trials:
        if one.accuracy is not None:
            best = max(best, one.accuracy) if one.status == "complete" else best
            rows.append(
                {
                    "trial": one.number,
                    "status": one.status,
                    "accuracy": one.accuracy,
                    "best": best if math.isfinite(best) else None,
                    **{key.replace(".", "_"): value for key, value in one.values.items()},
                }
            )
    base = alt.Chart(alt.InlineData(rows)).encode(x=alt.X("trial:Q").axis(tickMinStep=1, format="d"))
    y = alt.Y("accuracy:Q", title="validation accuracy").scale(zero=False).axis(format=".1%")
    shown = ["complete", "pruned", "failed", "under way"]
    dots = base.mark_point(filled=True, opacity=1, size=60).encode(
        y=y,
        color=alt.Color("status:N", title=None).scale(domain=shown, range=[COLOURS[0], GREY, COLOURS[6], COLOURS[1]]),
        tooltip=[
            "trial:Q",
            "status:N",
            alt.Tooltip("accuracy:Q", format=".2%"),
            *(f"{key.replace('.', '_')}:N" for key in found.keys),
        ],
    )
    line = base.mark_line(interpolate="step-after", color=COLOURS[0], opacity=0.5).encode(y="best:Q")
    drawn = alt.layer(line, dots).properties(width=WIDTH, height=HEIGHT)
    return Chart(
        "course", "The course of the search", "Each trial's validation accuracy, and the best one so far.", rows, drawn
    )


def importance(found: Outcome) -> Chart:
    """What the accuracies depend on."""
    rows = [{"key": key, "share": share} for key, share in found.importances.items()]
    drawn = (
        alt.Chart(alt.InlineData(rows))
        .mark_bar(color=COLOURS[0])
        .encode(
            x=alt.X("share:Q", title="share of what varies").axis(format="%", tickCount=8),
            y=alt.Y("key:N", title=None).sort(list(found.importances)),
            tooltip=["key:N", alt.Tooltip("share:Q", format=".1%")],
        )
        .properties(width=WIDTH, height=alt.Step(26))
    )
    over = sum(one.status == "complete" for one in found.trials)
    told = (
        f"By fANOVA over the {over} trials that came to their end: how much of the differences between them each value alone "
        f"explains.{'' if over >= TELLING else ' Of so few trials that says little.'}"
    )
    return Chart("importance", "What matters", told, rows, drawn)


def parallel(found: Outcome, dimensions: list[Dimension]) -> Chart:
    """A line for each complete trial across one axis for each key."""
    rows = [
        {
            "trial": one.number,
            "accuracy": one.accuracy,
            "key": dimension.key,
            "place": _place(dimension, one.values[dimension.key]),
            "value": text(one.values[dimension.key]),
        }
        for one in found.trials
        if one.status == "complete"
        for dimension in dimensions
    ]
    order = [dimension.key for dimension in dimensions]
    marks = [
        {"key": dimension.key, "place": place, "label": label} for dimension in dimensions for place, label in _marks(dimension)
    ]
    x = alt.X("key:N", title=None, sort=order).axis(labelAngle=0, domain=False, ticks=False).scale(type="point", padding=0.5)
    y = alt.Y("place:Q", axis=None).scale(domain=[-0.05, 1.05])
    near = alt.selection_point(fields=["trial"], on="pointerover", nearest=True, empty=False)
    lines = alt.Chart(alt.InlineData(rows)).encode(x=x, y=y, detail="trial:N")
    drawn = lines.mark_line().encode(
        color=alt.Color("accuracy:Q", title="validation").scale(scheme="viridis").legend(format=".0%"),
        size=alt.when(near).then(alt.value(5)).otherwise(alt.value(1.5)),
        opacity=alt.when(near).then(alt.value(1)).otherwise(alt.value(0.7)),
    )
    tips = ["trial:Q", alt.Tooltip("accuracy:Q", format=".2%"), "key:N", "value:N"]
    points = lines.mark_point(opacity=0, size=80).encode(tooltip=tips).add_params(near)
    axes = alt.Chart(alt.InlineData(marks)).encode(x=x)
    rules = axes.mark_line(color=GREY, strokeWidth=1).encode(y=y, detail="key:N")
    labels = axes.mark_text(align="left", dx=5, color=GREY).encode(y=y, text="label:N")
    told = "A line a trial that came to its end, bright for accurate; hold the pointer near one."
    layers = alt.layer(rules, drawn, points, labels).properties(width=WIDTH, height=HEIGHT)
    return Chart("parallel", "All trials", told, rows, layers)


def _place(dimension: Dimension, value: Any) -> float:
    """Where a value lies on its axis, from 0 to 1."""
    if isinstance(dimension, Choice):
        return dimension.values.index(value) / (len(dimension.values) - 1)
    if dimension.log:
        return math.log(value / dimension.low) / math.log(dimension.high / dimension.low)
    return float((value - dimension.low) / (dimension.high - dimension.low))


def _marks(dimension: Dimension) -> list[tuple[float, str]]:
    return [(_place(dimension, end), text(end)) for end in dimension.ends]
