"""Which published claims about tickets hold? Trains what `claims.toml` asks for; with --table, judges it and writes a folder.

    python benchmarks/claims.py --plan                      # networks and hours of each claim
    python benchmarks/claims.py                             # train all that is missing
    python benchmarks/claims.py signs --study resnet20      # one claim, on one network
    python benchmarks/claims.py --table claims              # judge what is trained

Runs are in `runs/` of the current folder. What was stopped goes on where it was. Networks that a folder of --known has are not
trained again, and are judged with those that are here. docs/method.md says what the verdicts are. Answers are by one-sided 95 %
t bounds of the difference in validation accuracy, paired by replicate; barriers are of test images.
"""

import dataclasses
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import altair as alt
import pandas
import typer
from claims_asked import BARRIER, CONFIRMED, CONTRADICTED, NOT_CONFIRMED, NOT_RUN, RULE, Claim, Side, Study, read, verdict
from claims_known import COLUMNS, LINE, Known
from harness import imp

from lottery import cli
from lottery.base import files
from lottery.base.errors import InputError
from lottery.experiment import plan
from lottery.experiment.controls import extended
from lottery.experiment.rule import known as known_bounds
from lottery.results import markdown
from lottery.results.drawing import Chart
from lottery.results.tables import interval

CLAIMS = Path(__file__).with_suffix(".toml")


def networks(study: Study, name: str, families: Mapping[str, int]) -> dict[Any, tuple[bool, float]]:
    """What a run trains for these families up to a round, dense networks first: whether each is finished, and its epochs."""
    run = study.runs[name]
    asked_of = {one: plan.Selection((one,), rounds=last or None).of(run.recipe)[one] for one, last in families.items()}
    planned = dataclasses.replace(study.plan(name), recipe=run.recipe.model_copy(update={"families": asked_of}))
    found = {}
    for one in plan.dry_run(planned, controls=()):
        files_of = run.replicate(one.network).dense if isinstance(one.network, int) else run.network(one.network)
        found[name, one.network] = (files_of.is_finished, one.epochs or 0.0)
    return found


def networks_of(study: Study, claim: Claim) -> dict[Any, tuple[bool, float]]:
    """What a claim needs on one network. What only serves questions that are answered counts as finished."""
    found: dict[Any, tuple[bool, float]] = {}
    lacking = claim.families(claim.lacking(study))
    for name, families in claim.families(claim.sides(study)).items():
        left = networks(study, name, lacking[name]) if name in lacking else {}
        needed = networks(study, name, families)
        found |= {one: (finished or one not in left, epochs) for one, (finished, epochs) in needed.items()}
    return found


def planned_rows(studies: Sequence[Study], claims: Sequence[Claim]) -> list[dict[str, str]]:
    """A row for each claim on each network, and one for all together, which share networks."""
    rows = []
    for study in studies:
        whole: dict[Any, tuple[bool, float]] = {}
        for claim in claims:
            if not claim.sides(study):
                continue
            needed = networks_of(study, claim)
            rows.append({"claim": claim.name, **counted(study, needed)})
            for one, (finished, epochs) in needed.items():
                whole[one] = (finished and whole.get(one, (True,))[0], epochs)
        rows.append({"claim": "all", **counted(study, whole)})
    return rows


def counted(study: Study, needed: Mapping[Any, tuple[bool, float]]) -> dict[str, str]:
    seconds = {name: run["epoch_seconds"] for name, run in study.table.items()}
    left = sum(epochs * seconds[name] for (name, _), (finished, epochs) in needed.items() if not finished)
    total = sum(epochs * seconds[name] for (name, _), (_, epochs) in needed.items())
    return {
        "on": study.title,
        "networks": f"{len(needed):,}",
        "finished": f"{sum(finished for finished, _ in needed.values()):,}",
        "core hours": f"{total / 3600:.1f}",
        "left": f"{left / 3600:.1f}",
    }


def train(study: Study, claim: Claim, ranks: int) -> None:
    """Train what a claim lacks on one network, by the commands that anybody may type."""
    lacking = claim.lacking(study)
    if claim.sides(study) and not lacking:
        print(f"{claim.name} on {study.title}: nothing is left to train")
    for name, families in claim.families(lacking).items():
        own = study.runs[name].recipe.families
        common = ["--run", str(study.folder(name)), "--recipe", str(study.recipe(name))]
        common += [word for change in study.changes(name) for word in ("--set", change)]
        many = ["--ranks", str(ranks), *common]
        at_once = each([one for one, last in families.items() if not last])
        with_masks = each([one for one in families if own[one].is_cut_at_once])
        barriers = claim.families([side for side in lacking if side.variant == BARRIER]).get(name, {})
        imp("prepare", *common)
        imp("train", *many)
        if with_masks:
            imp("thresholds", *with_masks, *common)
        if at_once:
            imp("retrain", *at_once, *many)
        for family, last in families.items():
            if last:
                imp("rounds", "--family", family, "--rounds", str(last), *many)
        for family, last in barriers.items():
            upto = ["--family", family, "--rounds", str(last)]
            imp("stability", "--between", "rounds", "--points", "11", "--examples", "5000", *upto, *many)


def each(families: Sequence[str]) -> list[str]:
    return [word for family in families for word in ("--family", family)]


def judged(studies: Sequence[Study], claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """A row for each question."""
    rows = []
    for study in studies:
        for claim in claims:
            for question, is_premise in claim.asked(study):
                by_replicate = question.differences(study)
                differences = list(by_replicate)
                mean = sum(differences) / len(differences) if differences else None
                low, high = known_bounds(*RULE.bounds(differences))
                answer = question.answer(differences, study.replicates(question))
                rows.append(
                    {
                        "claim": claim.name,
                        "study": study.name,
                        "premise": is_premise,
                        "question": question.text,
                        "differences": by_replicate,
                        "replicates": len(differences),
                        "mean": mean,
                        "low": low,
                        "high": high,
                        "answer": answer,
                        "decided_by": question.decided_by(differences) if answer == NOT_CONFIRMED else None,
                    }
                )
    return rows


def table(study: Study, claims: Sequence[Claim], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """A line for each claim that is asked of a network, as Markdown has it."""
    lines = []
    for claim in claims:
        own = [row for row in rows if (row["claim"], row["study"]) == (claim.name, study.name)]
        if not own:
            continue
        answers, premises = ([row["answer"] for row in own if row["premise"] == kind] for kind in (False, True))
        decided = verdict(answers, premises)
        needed = counted(study, networks_of(study, claim))
        undecided = [row for row in own if decided == NOT_CONFIRMED and row["decided_by"]]
        lines.append(
            {
                "claim": f"`{claim.name}`: {claim.says} ({linked(claim.source)})",
                "verdict": f"**{decided}**",
                "differences, points": "<br>".join(told(row) for row in own if row["answer"] != NOT_RUN),
                "networks": needed["networks"],
                "core hours": needed["core hours"],
                "would decide it": "<br>".join(needs(row, own) for row in undecided),
            }
        )
    return lines


def accuracies(networks: pandas.DataFrame) -> list[dict[str, str]]:
    """A line for each kind of network that claims ask about, with means over replicates."""
    kinds = networks.fillna({"family": "", "mask": ""}).groupby(["study", "run", "family", "mask", "variant"])
    means = kinds[["density", "validation", "test"]].mean().mul(100).assign(replicates=kinds.size()).reset_index()
    return [
        {
            "run": f"{row.study} {row.run}",
            "network": f"{row.family}/{row.mask} {row.variant}" if row.family else row.variant,
            "replicates": str(row.replicates),
            "kept, %": f"{row.density:.2f}",
            "validation, %": f"{row.validation:.2f}",
            "test, %": f"{row.test:.2f}",
        }
        for row in means.itertuples()
    ]


def linked(source: str) -> str:
    return re.sub(r"arXiv (\d+\.\d+)", r"[arXiv \1](https://arxiv.org/abs/\1)", source)


def told(row: Mapping[str, Any]) -> str:
    return f"{named(row)}: {interval(row['mean'], row['low'], row['high'])}"


def needs(row: Mapping[str, Any], rows: Sequence[Any]) -> str:
    return f"{row['question']}: {row['decided_by']}" if len(rows) > 1 else row["decided_by"]


def named(row: Mapping[str, Any]) -> str:
    return f"{'given: ' if row['premise'] else ''}{row['question']}"


def chart(studies: Sequence[Study], rows: Sequence[Mapping[str, Any]]) -> Chart:
    """The interval of each question, a panel for each network."""
    panels = []
    for study in studies:
        found = [
            {"question": named(row), "answer": row["answer"]}
            | {"points": 100 * row["mean"], "from": 100 * row["low"], "to": 100 * row["high"]}
            for row in rows
            if row["study"] == study.name and row["answer"] != NOT_RUN and row["low"] is not None
        ]
        if not found:
            continue
        order = [row["question"] for row in found]
        y = alt.Y("question:N", title=None).sort(order).axis(labelLimit=420)
        x = alt.X("from:Q", title="difference in points, with one-sided 95 % bounds").scale(type="symlog", constant=0.2)
        x = x.axis(values=[sign * points for points in (0, 0.2, 0.5, 1, 2, 5, 10, 20) for sign in (-1, 1)], format="~g")
        colour = alt.Color("answer:N", title=None).scale(
            domain=[CONFIRMED, NOT_CONFIRMED, CONTRADICTED], range=["#2f9e5f", "#8a8a8a", "#d24b4b"]
        )
        base = alt.Chart(alt.InlineData(found)).encode(y=y, color=colour)
        reach = base.mark_rule(strokeWidth=2).encode(x=x, x2="to:Q")
        mean = base.mark_point(filled=True, size=50).encode(x="points:Q")
        panels.append(alt.layer(reach, mean).properties(width=420, height=alt.Step(20), title=study.title))
    return Chart("claims", alt.vconcat(*panels).resolve_scale(x="shared"), "Which claims hold", "green: as the claim says")


def write(studies: Sequence[Study], claims: Sequence[Claim], folder: Path) -> None:
    """Everything that the page about claims is made of: two tables, the answer to each question and its differences, each
    network's accuracy, the errors on the lines of barriers, the chart, the recipes."""
    rows = judged(studies, claims)
    networks = pandas.concat([asked_about(study, claims, name) for study in studies for name in study.runs])
    lines = barrier_lines(studies, claims)
    if (folder / "networks.csv").exists():
        Known(folder).keeps(networks, lines)
    folder.mkdir(parents=True, exist_ok=True)
    tables = [f"### {study.title}\n\n{markdown.table(table(study, claims, rows))}\n" for study in studies]
    files.write_text(folder / "table.md", "\n".join(tables))
    files.write_text(folder / "claims.csv", pandas.DataFrame(rows).drop(columns="differences").to_csv(index=False))
    differences = {(row["claim"], row["study"], row["question"]): row["differences"] for row in rows}
    by_replicate = pandas.concat(differences, names=["claim", "study", "question", "replicate"]).rename("difference")
    files.write_text(folder / "differences.csv", by_replicate.to_csv())
    files.write_text(folder / "lines.csv", lines.to_csv(index=False))
    for study in studies:
        for name, run in study.runs.items():
            if (run.folder / "recipe.toml").exists():
                shutil.copy(run.folder / "recipe.toml", folder / f"{study.name}-{name}.toml")
    files.write_text(folder / "networks.csv", networks.to_csv(index=False))
    if len(networks):
        files.write_text(folder / "accuracies.md", markdown.table(accuracies(networks)) + "\n")
    if any(row["answer"] != NOT_RUN for row in rows):
        files.write_bytes(folder / "claims.png", chart(studies, rows).png)


def barrier_lines(studies: Sequence[Study], claims: Sequence[Claim]) -> pandas.DataFrame:
    """The errors that each barrier which claims ask about is computed from."""
    columns = ["study", "run", "family", "mask", *LINE]
    found = [
        side.lines(study).assign(study=study.name, run=side.run, family=side.family, mask=side.mask)
        for study in studies
        for side in dict.fromkeys(side for claim in claims for side in claim.sides(study) if side.variant == BARRIER)
    ]
    return pandas.concat(found)[columns] if found else pandas.DataFrame(columns=columns)


def asked_about(study: Study, claims: Sequence[Claim], name: str) -> pandas.DataFrame:
    """The networks of a run that claims ask about, and dense networks that were trained as long, as far as they are there."""
    rows = study.frames[name]
    sides = {Side(name), *(side for claim in claims for side in claim.sides(study) if side.run == name)}
    sides |= {dataclasses.replace(side, variant=extended.name) for side in sides}
    own = pandas.concat([side.of(rows) for side in sides]).sort_index()
    return own[own.status != "missing"][COLUMNS].assign(study=study.name, run=name)


def claims(
    names: Annotated[list[str] | None, typer.Argument(metavar="[CLAIM]...", help="Which; default: all.")] = None,
    study: Annotated[list[str] | None, typer.Option(help="On which network; repeatable. Default: all.")] = None,
    ranks: Annotated[int, typer.Option(min=1, help="Networks that are trained at a time.")] = os.cpu_count() or 1,
    plan_: Annotated[bool, typer.Option("--plan", help="Say what is to be trained, and how long that takes.")] = False,
    asked: Annotated[Path, typer.Option("--claims", metavar="TOML", exists=True, dir_okay=False, help="The claims.")] = CLAIMS,
    table_: Annotated[Path | None, typer.Option("--table", metavar="DIR", help="Judge what is trained, write it here.")] = None,
    known_: Annotated[
        Path | None, typer.Option("--known", metavar="DIR", help="What --table wrote: not trained again.")
    ] = None,
) -> None:
    """Which published claims about tickets hold?"""
    studies, every = read(asked, Known(known_) if known_ else None)
    chosen = [one for one in every if not names or one.name in names]
    studies = [one for one in studies if not study or one.name in study]
    if unknown := sorted({*(names or ())} - {one.name for one in every}):
        raise InputError(f"no claim {unknown[0]}; there are {', '.join(one.name for one in every)}")
    if not studies:
        raise InputError(f"none of these networks is in {asked}: {', '.join(study or ())}")
    asked_of = [one for one in studies if any(claim.sides(one) for claim in chosen)]
    if not asked_of:
        raise InputError(f"none of these claims is asked of {', '.join(one.title for one in studies)}")
    if plan_:
        print(markdown.table(planned_rows(asked_of, chosen)))
    elif table_:
        write(asked_of, chosen, table_)
    else:
        for one in asked_of:
            for claim in chosen:
                train(one, claim, ranks)


if __name__ == "__main__":
    cli.main(claims)
