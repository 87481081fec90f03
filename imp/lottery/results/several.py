"""What several runs on the same data have found: where their recipes differ, all their networks, and how far those of the
others are from those of the first."""

import dataclasses
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas

from lottery.base.errors import InputError
from lottery.experiment import decisive, reading
from lottery.experiment.graph import DENSE, TICKET
from lottery.experiment.recipe import Recipe
from lottery.results import criteria, frame, grouping
from lottery.results.findings import Findings
from lottery.results.frame import ROWS
from lottery.results.grouping import CONTRASTED, SAME_DENSITY, Kind, Networks
from lottery.results.summary import five_lines
from lottery.rundir import wording
from lottery.rundir.run import Run, open_run

TRAINED_BY = "trained by"
COLUMNS = {"key", "decides", "changes", "run"}  # of tables that have a column for each run
OF_TRAINING = {"examples", "label_noise", "hardest", "easiest", "scores"}  # settings that change training examples alone
OWN = ("name", "data.path", "track.", "sweep.")  # how keys begin that no network of the run depends on
CONTRASTS = {
    "run": "string",
    "against": "string",  # the first run
    **{name: ROWS[name] for name in ("variant", "family", "mask", "rewind", "density")},
    "figure": "string",  # one of CONTRASTED
    "mean": "Float64",  # of the run's networks less those of `against`, with the two-sided interval of the difference
    "low": "Float64",
    "high": "Float64",
    "paired": "boolean",  # by replicate; else the difference of two means
    "count": "Int64",  # networks of the run, and of `against`
    "count_against": "Int64",
    "clear": "boolean",  # whether the interval lies on one side of zero
}


@dataclasses.dataclass(frozen=True, repr=False)
class Several:
    """Runs by their names, the first of which the others are compared with. What decides has its name in frames
    (`validation_accuracy`); metrics and shares are 0 .. 1."""

    runs: Mapping[str, Run]

    def __repr__(self) -> str:
        return "\n\n".join(map(five_lines, self.findings.values()))

    @cached_property
    def findings(self) -> dict[str, Findings]:
        return {name: Findings(run) for name, run in self.runs.items()}

    @property
    def first(self) -> Run:
        return next(iter(self.runs.values()))

    def frame(self) -> pandas.DataFrame:
        """All networks of all runs (the columns of `frame.ROWS`, behind `run`)."""
        found = [one.rows.assign(run=name) for name, one in self.findings.items()]
        return frame.named(pandas.concat(found, ignore_index=True)[["run", *ROWS]], self.first.metric)

    @cached_property
    def keys(self) -> pandas.DataFrame:
        """A row for each key in which their recipes differ, with a column for each run: `decides` says what is another network
        with another value. A family that not all have has a row with what it prunes by; so have the versions and devices that
        dense networks were trained by."""
        recipes = [run.recipe for run in self.runs.values()]
        shared = {name for name in recipes[0].families if all(name in recipe.families for recipe in recipes)}
        left_out = set.intersection(*map(decisive.without_effect, recipes))
        values = [_values(recipe, shared, left_out) for recipe in recipes]

        def differs(key: str) -> bool:
            is_of_family = key.startswith("families.") and key.count(".") > 1
            return len({own.get(key) for own in values if key in own or not is_of_family}) > 1

        for own, findings in zip(values, self.findings.values(), strict=True):
            dense = findings.rows.loc[findings.rows["variant"] == DENSE, "made_by"].dropna().unique()
            own[TRAINED_BY] = "; ".join(dense)
        names = dict.fromkeys(key for own in values for key in own)
        differing = [key for key in names if differs(key)]
        decides = {key: DENSE if key == TRAINED_BY else decisive.decides(key) or "" for key in differing}
        rows = ([key, decides[key], *(own.get(key) or "none" for own in values)] for key in differing)
        return pandas.DataFrame(rows, columns=["key", "decides", *self.runs])

    @cached_property
    def figures(self) -> pandas.DataFrame:
        """The means of dense networks and tickets (`Findings.figures`), and the `run` of each; `series` has what tickets differ
        in: their families, their rewind points."""
        found = [one.figures.assign(run=name) for name, one in self.findings.items()]
        rows = pandas.concat(found, ignore_index=True)
        rows = rows[rows["network"].isin([DENSE, TICKET])]
        tickets = rows[rows["network"] == TICKET]
        parts = [rows["family"]] if tickets["family"].nunique() > 1 else []
        parts += ["rewound to " + rows["rewind"]] if tickets["rewind"].nunique() > 1 or not parts else []
        return rows.assign(series=parts[0] if len(parts) == 1 else parts[0] + ", " + parts[1])

    @cached_property
    def contrasts(self) -> pandas.DataFrame:
        """The networks of each other run against those of the first that are like them: of the same variant and family (or the
        only one of each run), rewound to the same point, with a mask of the same name or as dense. Where seeds are the same, a
        replicate of both runs is a pair; else their means are compared."""
        (name, first), *others = self.findings.items()
        rows = (row | {"run": other, "against": name} for other, one in others for row in _contrasts(first, one))
        return frame.named(frame.table(rows, CONTRASTS), self.first.metric)


def open_several(folders: Sequence[Path]) -> Several:
    """The runs in `folders`, by the names of these where they differ. Raises InputError where there is none in one of them, for
    a run that is named twice, and for runs of different data or metrics."""
    if not folders:
        raise InputError("no run is named")
    runs = [open_run(folder, must_exist=True) for folder in folders]
    places = [run.folder.resolve() for run in runs]
    for number, (run, place) in enumerate(zip(runs, places, strict=True)):
        if place in places[:number]:
            raise InputError(f"{runs[places.index(place)].folder} and {run.folder} are the same run: name it once")
        _check_alike(runs[0], run)
    names = {place.name for place in places}
    are_told_apart = len(names) == len(runs) and not names & COLUMNS
    return Several({place.name if are_told_apart else str(run.folder): run for run, place in zip(runs, places, strict=True)})


def _check_alike(first: Run, other: Run) -> None:
    if first.metric != other.metric:
        metrics = f"{first.folder} is judged by {wording.title(first.metric)}, {other.folder} by {wording.title(other.metric)}"
        raise InputError(f"{metrics}: only runs that are judged alike can be compared")
    settings, others = (dataclasses.asdict(run.recipe.records()) for run in (first, other))
    digests, more = ({origins["records"] for one in run.replicates() if (origins := one.origins())} for run in (first, other))
    keys = [key for key in settings | others if settings.get(key) != others.get(key)]
    differ = digests.isdisjoint(more) if digests and more else bool(keys)
    if differ and not (keys and {*keys} <= OF_TRAINING):
        told = "; ".join(f"{key} is {settings.get(key)!r} and {others.get(key)!r}" for key in keys) or "their records differ"
        raise InputError(
            f"{first.folder} and {other.folder} are of different data ({told}): only runs of the same can be compared"
        )


def _values(recipe: Recipe, shared: set[str], left_out: set[str]) -> dict[str, str]:
    """What a recipe says, by dotted key, as text; of families that are not `shared` also what they prune by."""
    single = {name: family for name, family in recipe.families.items() if name not in shared}
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in reading.flat(recipe.model_dump()).items()
        if key not in left_out and not key.startswith(OWN)
    } | {f"families.{name}": criteria.words(one.chosen_by, one.allocation, one.updates) for name, one in single.items()}


def _contrasts(first: Findings, other: Findings) -> Iterator[dict[str, Any]]:
    ours, theirs = (_kinds(findings) for findings in (other, first))
    rule, same_seeds = first.run.rule, first.run.recipe.seed == other.run.recipe.seed
    are_single = len(first.run.recipe.families) == len(other.run.recipe.families) == 1
    for kind, networks in theirs.items():
        like = _like(kind, networks, ours, are_single)
        pairs = sorted(like.keys() & networks.keys()) if same_seeds else []
        members = [[own[number] for number in pairs] if pairs else [*own.values()] for own in (like, networks)]
        for figure in CONTRASTED if like else ():
            one, two = ([row[figure] for row in rows] for rows in members)
            if None in (*one, *two):
                continue
            differences = [a - b for a, b in zip(one, two, strict=True)] if pairs else []
            low, high = rule.interval(differences) if pairs else rule.unpaired_interval(one, two)
            about = {name: next(iter(networks.values()))[name] for name in ("variant", "family", "mask", "rewind")}
            yield about | {
                "density": grouping.mean(row["density"] for row in networks.values()),
                "figure": figure,
                "mean": statistics.fmean(one) - statistics.fmean(two),
                "low": low,
                "high": high,
                "paired": bool(pairs),
                "count": len(one),
                "count_against": len(two),
                "clear": low is not None and high is not None and (low > 0 or high < 0),
            }


def _kinds(findings: Findings) -> dict[Kind, Networks]:
    return grouping.kinds(findings.run, findings.networks[findings.networks["status"] == "done"])


def _like(kind: Kind, networks: Networks, others: Mapping[Kind, Networks], are_single: bool) -> Networks:
    """Of the networks of another run, those that are to be compared with `networks`; none where there are none."""
    variant, family, mask, step = kind
    row = next(iter(networks.values()))

    def is_like(other: Kind) -> bool:
        same_place = other[3] == step or next(iter(others[other].values()))["rewind"] == row["rewind"]
        return other[0] == variant and same_place and (other[1] == family or (are_single and variant != DENSE))

    def distance(other: Kind) -> tuple[float, bool]:
        density = grouping.mean(one["density"] for one in others[other].values()) or 0.0
        return abs(density / row["density"] - 1), other[2] != mask

    nearest = min(filter(is_like, others), key=distance, default=None)
    return others[nearest] if nearest and distance(nearest)[0] <= SAME_DENSITY else {}
