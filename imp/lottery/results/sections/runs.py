"""The parts of a page of several runs: each a function from what they have found to a `Block`, or to None."""

from collections.abc import Iterator
from typing import Any

import altair as alt
import pandas

from lottery.base.progress import count_of
from lottery.experiment.graph import DENSE, TICKET
from lottery.results import curves, frame
from lottery.results.block import Block, Cells
from lottery.results.curves import TOLD
from lottery.results.drawing import COLOURS, HEIGHT, WIDTH, ZOOMING, Chart, chart_of, tooltips, zoom
from lottery.results.several import TRAINED_BY, Several
from lottery.results.summary import summary
from lottery.results.tables import interval
from lottery.rundir import wording

NAMED = 3  # keys in a sentence
CHANGES = {"dense": "dense networks, masks, tickets", "mask": "masks, tickets", "ticket": "tickets", "": ""}
EXPLAINED = (
    "Networks of {others} less those of {first}, in points: means, with {student_intervals}. A star marks an interval that "
    "does not reach zero. The intervals are not corrected for their number. {pairs}"
)
PAIRED = "Pairs are replicates with the same seeds, on the same split of the data. "
UNPAIRED = "Where there are no pairs, two means are compared, with Welch's intervals. "


def blocks(several: Several) -> list[Block]:
    """The page of several runs, in its order."""
    made = [_found(several), _runs(several), _keys(several), _curves(several), _contrasts(several)]
    return [block for block in made if block]


def sentences(several: Several) -> list[str]:
    """What the runs have in common, and how the others do compared with the first."""
    names = list(several.runs)
    told = [f"{count_of(len(names), 'run')} on the same data: {', '.join(names)}. {_differing(several)}"]
    return [*told, *(sentence for name in names[1:] for sentence in _outcome(several, name))]


def _found(several: Several) -> Block:
    return Block("found", "What was found", sentences(several))


def _differing(several: Several) -> str:
    keys = several.keys[several.keys["key"] != TRAINED_BY]
    if keys.empty:
        return "Their recipes do not differ."
    if len(keys) > NAMED:
        return f"Their recipes differ in {len(keys)} keys, listed below."
    values = [(row["key"], " / ".join(row[name] for name in several.runs)) for row in keys.to_dict("records")]
    return f"Their recipes differ in {'; '.join(f'`{key}` ({told})' for key, told in values)}."


def _outcome(several: Several, name: str) -> Iterator[str]:
    """How the networks of the run `name` do compared with those of the first."""
    first, found = next(iter(several.runs)), several.contrasts
    found = found[(found["run"] == name) & (found["figure"] == f"validation_{several.first.metric}")]
    (dense,), tickets = frame.each(found[found["variant"] == DENSE]), found[found["variant"] == TICKET]
    seeds = [several.runs[run].recipe.seed for run in (first, name)]
    why = f"their seeds differ ({seeds[0]}, {seeds[1]})" if seeds[0] != seeds[1] else "they have no replicate in common"
    if dense.paired:
        yield f"{first} and {name} have {count_of(dense.count, 'pair')}: replicates with the same seeds are compared."
    else:
        yield f"{first} and {name} have no pairs, as {why}: their means are compared."
    yield f"The dense network of {name}: {_difference(dense)} points compared with that of {first}, {_verdict(dense)}."
    better, worse = ((tickets["clear"] & (sign * tickets["mean"] > 0)).sum() for sign in (1, -1))
    if tickets.empty:
        yield f"{first} and {name} have no tickets that are alike in family, density and rewind point."
    elif tickets["low"].isna().all():
        yield f"Both have {count_of(len(tickets), 'ticket')}, none with the spread that a comparison needs."
    else:
        yield f"Of {count_of(len(tickets), 'ticket')} that both have, {better} are clearly better in {name}, {worse} worse."


def _difference(row: Any) -> str:
    return interval(row.mean, row.low, row.high)


def _verdict(row: Any) -> str:
    if row.clear:
        return f"clearly {'better' if row.mean > 0 else 'worse'}"
    if row.low is None:
        return "with no spread to judge by" if row.mean else "the same"
    return "not clearly different"


def _runs(several: Several) -> Block:
    found = ({"run": name, "folder": str(one.run.folder), **summary(one)} for name, one in several.findings.items())
    return Block("runs", "Runs", table=list(found), frames={"summary": several.frame()})


def _keys(several: Several) -> Block | None:
    rows = several.keys
    table = [{"key": row["key"], **{name: row[name] for name in several.runs}} for row in rows.to_dict("records")]
    for line, decides in zip(table, rows["decides"], strict=True):
        line["changes"] = CHANGES[decides]
    explained = (
        "Keys with nothing under `changes` say which families and how many networks there are, or where and how they are "
        "trained."
    )
    return Block("keys", "Where they differ", table=table, explained=explained, frames={"keys": rows}) if table else None


def _curves(several: Several) -> Block | None:
    """The tickets of all runs against density, a line for each series; their dense networks across."""
    rows, metric = several.figures, several.first.metric
    if (rows["network"] == DENSE).all():
        return None
    scaled = curves.scaled(rows, "validation", "sd_low", "sd_high")
    y, told = scaled.y(f"validation {wording.title(metric)}"), tooltips("run", *TOLD)
    dense = scaled.rows[(scaled.rows["network"] == DENSE) & scaled.rows["shown"].notna()]
    tickets = scaled.rows[(scaled.rows["network"] == TICKET) & (scaled.rows["density"] > 0)]
    run, series = (alt.selection_point(fields=[field], bind="legend") for field in ("run", "series"))
    opacity = alt.when(run & series).then(alt.value(1)).otherwise(alt.value(0.12))
    colour = alt.Color("run:N", title=None).scale(domain=list(several.runs), range=list(COLOURS))
    names = tickets["series"].unique().tolist()
    places: dict[str, Any] = {"x": curves.left(tickets), "color": colour}
    base = chart_of(tickets).encode(**places, opacity=opacity, tooltip=told)
    across = chart_of(dense.assign(place=[WIDTH * number // len(dense) + 6 for number in range(len(dense))]))
    across = across.encode(y=y, color=colour, tooltip=told)
    drawing: Any = alt.layer(
        across.mark_rule(),
        across.mark_text(align="left", dy=-6).encode(x=alt.X("place:Q", scale=None, axis=None), text="network:N"),
        scaled.bars(base),
        base.mark_line().encode(y=y, strokeDash=alt.StrokeDash("series:N", title=None).scale(domain=names)),
        base.mark_point(filled=True, size=60)
        .encode(y=y, shape=alt.Shape("series:N", title=None).scale(domain=names))
        .add_params(run, series, zoom()),
        *(layer.encode(opacity=opacity) for layer in curves.below(tickets, HEIGHT, **places)),
    )
    return Block(
        metric,
        wording.worded("{Metric} against density", metric),
        charts=[Chart(metric, drawing.properties(width=WIDTH, height=HEIGHT))],
        explained=f"Final validation {wording.title(metric)} of the tickets, means over replicates, bars of one standard "
        f"deviation; across, the dense networks. Sparser to the right.{scaled.told} Click a name to see it alone. "
        f"{ZOOMING}",
        frames={metric: rows},
    )


def _contrasts(several: Several) -> Block | None:
    rows = several.contrasts
    if rows.empty:
        return None
    first, *others = several.runs
    alike = rows.groupby(["run", "variant", "family", "mask", "rewind"], sort=False)
    how = [text for text, is_said in ((PAIRED, rows["paired"].any()), (UNPAIRED, not rows["paired"].all())) if is_said]
    return Block(
        "contrasts",
        f"Compared with {first}",
        table=[_line(figures, several.first.metric) for _, figures in alike],
        explained=EXPLAINED.format(others=" and ".join(others), first=first, pairs="".join(how), **several.first.rule.words),
        frames={"contrasts": rows},
    )


def _line(figures: pandas.DataFrame, metric: str) -> Cells:
    rows = {row.figure.removesuffix(f"_{metric}"): row for row in frame.each(figures)}
    row = rows["validation"]
    count = count_of(row.count, "pair") if row.paired else f"{row.count} and {row.count_against}"
    place = {
        "network": row.variant,
        "mask": f"{row.family} {row.mask}".strip(),
        "density": f"{row.density:.2%}",
        "rewound to": "" if row.variant == DENSE else row.rewind,
    }
    differences = {
        name: _difference(rows[name]) + (" *" if rows[name].clear else "") for name in frame.DECIDING if name in rows
    }
    return {"run": row.run, **place, "networks": count, **differences}
