"""Images that pruning forgets, and the classes that it hurts."""

import base64
import dataclasses
import io
from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas
from PIL import Image

from data_prep import records
from lottery.experiment.graph import DENSE, TICKET
from lottery.experiment.rule import LEAST_REPLICATES
from lottery.pruning import forgetting
from lottery.results import cells, frame, grouping
from lottery.results.block import Block, Cells
from lottery.results.drawing import WIDTH, Chart, chart_of, tooltips
from lottery.results.findings import Findings
from lottery.results.tables import interval, points
from lottery.rundir import wording
from lottery.rundir.lineage import Lineage
from lottery.rundir.predictions import Predictions
from lottery.rundir.run import Run

SHOWN, ACROSS = 20, 10  # images, and of these in a row
SIZE = 64  # pixels of one on the page

EXPLAINED = (
    "On test {example}s. forgotten: {example}s that most tickets answer otherwise than most dense networks do (Hooker et al. "
    "2019, arXiv 1911.05248). by chance: roughly how many that are between two sets of dense networks (drawn from these, with "
    "replacement). "
    "dense there, ticket there: the accuracy on the forgotten {example}s. dense: that on all. hurt most: the class whose "
    "accuracy falls most, and by how many points, with an interval that holds for all classes at once (Bonferroni, {level}); a "
    "star marks one that does not reach zero."
)
CAPTION = (
    "The {example}s that changed most from dense networks to the tickets {ticket}: the label, and how many are right about it, "
    "of the {count} dense networks, and of the tickets."
)


@dataclasses.dataclass(frozen=True)
class _Pairs:
    """The tickets of one kind, paired with the dense networks of their replicates, on the test split."""

    group: Any
    dense: tuple[Predictions, ...]
    tickets: tuple[Predictions, ...]

    def images(self) -> pandas.DataFrame:
        """A row for each image of the split: what most networks answer, the share of networks that are right, and the label,
        which is known where one of them is."""
        answers = {name: np.stack([one.answers for one in networks]) for name, networks in self._named()}
        right = {name: np.stack([one.right for one in networks]) for name, networks in self._named()}
        every, correct = np.concatenate([*answers.values()]), np.concatenate([*right.values()])
        label = np.where(correct.any(0), every[correct.argmax(0), np.arange(every.shape[1])].astype(int), -1)
        columns = {f"{name}_answer": forgetting.modal(found) for name, found in answers.items()}
        columns |= {f"{name}_right": found.mean(0) for name, found in right.items()}
        return pandas.DataFrame({"image": np.arange(len(label)), "label": label, **columns})

    def by_chance(self) -> float:
        return forgetting.by_chance(np.stack([one.answers for one in self.dense]))

    def classes(self, run: Run, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """How the accuracy on each class changes, over replicates, with an interval that holds for all classes at once."""
        dense, tickets = (np.stack([one.by_class for one in networks]) for _, networks in self._named())
        classes = [number for number in range(dense.shape[1]) if dense[0, number, 0]]
        rule = dataclasses.replace(run.rule, error=run.rule.error / len(classes))
        for number in classes:
            before, after = (found[:, number, 1] / found[:, number, 0] for found in (dense, tickets))
            low, high = rule.interval([*(after - before)])
            clear = low is not None and high is not None and (low > 0 or high < 0)
            change = {"mean": float((after - before).mean()), "low": low, "high": high, "clear": clear}
            yield {"class": names[number], "dense": before.mean(), "ticket": after.mean(), **change}

    def _named(self) -> tuple[tuple[str, tuple[Predictions, ...]], ...]:
        return (DENSE, self.dense), (TICKET, self.tickets)


def section(findings: Findings) -> Block | None:
    pairs = list(_pairs(findings))
    if not pairs:
        return None
    run = findings.run
    names = run.manifest().classes if (run.records() / records.MANIFEST).exists() else []
    names = names or [str(number) for number in range(len(pairs[0].dense[0].by_class))]
    table, images, classes = [], [], []
    for one in pairs:
        about = {"family": one.group.family, "mask": one.group.mask, "rewind": one.group.rewind}
        every = one.images()
        changed = every[every["dense_answer"] != every["ticket_answer"]]
        by_class = list(one.classes(run, names))
        table.append(_line(one, every, changed, by_class))
        images.append(changed.assign(**about))
        classes += [about | row for row in by_class]
    shown = next((one for one in pairs if _is_headline(findings, one.group)), pairs[0])
    words = {"ticket": f"{shown.group.family} {shown.group.mask}", "count": str(len(shown.dense))}
    chart = _chart(run, shown, names)
    return Block(
        "forgotten",
        "What pruning forgets",
        charts=[chart] if chart else [],
        caption=wording.worded(CAPTION, run.metric, **words),
        table=table,
        explained=run.worded(EXPLAINED),
        frames={"pies": pandas.concat(images), "classes": pandas.DataFrame(classes)},
    )


def _pairs(findings: Findings) -> Iterator[_Pairs]:
    """Every kind of ticket of which all networks are done, as far as three replicates have predictions."""
    run, known = findings.run, dict[str, Predictions]()
    done = findings.networks[findings.networks["status"] == "done"]
    for number, networks in done.groupby("replicate"):
        held = Lineage(run.replicate(number))
        for row in frame.each(networks[networks["variant"].isin([DENSE, TICKET])]):
            if split := held.predictions(run.network_in(row.folder)):
                known[row.folder] = split["test"]
    kinds = grouping.kinds(run, done)
    dense = kinds.get((DENSE, "", "", 0), {})
    for group in frame.each(findings.groups[findings.groups["variant"] == TICKET]):
        tickets = kinds.get((TICKET, group.family, group.mask, group.rewind_step), {})
        folders = [(dense[number]["folder"], row["folder"]) for number, row in tickets.items() if number in dense]
        pairs = [(known[before], known[after]) for before, after in folders if before in known and after in known]
        if len(pairs) >= LEAST_REPLICATES:
            yield _Pairs(group, *zip(*pairs, strict=True))


def _is_headline(findings: Findings, group: Any) -> bool:
    series = grouping.tickets(findings.groups)[group.family, group.rewind]
    best = grouping.sparsest_matching(series)
    return best is not None and best.mask == group.mask


def _line(pairs: _Pairs, every: pandas.DataFrame, changed: pandas.DataFrame, classes: Sequence[dict[str, Any]]) -> Cells:
    worst = min(classes, key=lambda row: row["mean"])
    fall = f"{worst['class']}: {interval(worst['mean'], worst['low'], worst['high'])}" + " *" * worst["clear"]
    accuracy = {"dense there": changed["dense_right"], "ticket there": changed["ticket_right"], "dense": every["dense_right"]}
    return {
        **{name: cell for name, cell in cells.place(pairs.group).items() if name != "network"},
        "forgotten": f"{len(changed)} of {len(every)}",
        "by chance": f"{pairs.by_chance():.1f}",
        **{name: points(shares.mean()) if len(shares) else "" for name, shares in accuracy.items()},
        "hurt most": fall if worst["mean"] < 0 else "",
    }


def _chart(run: Run, pairs: _Pairs, names: Sequence[str]) -> Chart | None:
    """The images that changed most, with their labels; None of texts, and where the records are not there."""
    if not (run.records() / records.MANIFEST).exists():
        return None
    manifest, images, count = run.manifest(), pairs.images(), len(pairs.dense)
    change = (images["dense_right"] - images["ticket_right"]).abs()
    most = images[change > 0].loc[change[change > 0].sort_values(ascending=False, kind="stable").index][:SHOWN]
    if len(manifest.shape) != 3 or most.empty:
        return None
    blocks = records.blocks(run.records(), manifest, "test")
    pixels, labels = records.read_examples(blocks, manifest.shape, most["image"].to_numpy())
    rows = most.assign(
        url=[_url(one) for one in pixels],
        column=np.arange(len(most)) % ACROSS,
        row=np.arange(len(most)) // ACROSS,
        label=[names[number] for number in labels],
        **{f"{name} answer": [names[number] for number in most[f"{name}_answer"]] for name in (DENSE, TICKET)},
    )
    rows["told"] = [f"{one.label}: {one.dense_right * count:.0f} → {one.ticket_right * count:.0f}" for one in rows.itertuples()]
    tips = tooltips("image", "label", "dense answer", "ticket answer")
    base = chart_of(rows).encode(x=alt.X("column:O", axis=None), y=alt.Y("row:O", axis=None))
    pictures = base.mark_image(width=SIZE, height=SIZE).encode(url="url:N", tooltip=tips)
    text = base.mark_text(dy=SIZE / 2 + 9, fontSize=10, fill="#777").encode(text="told:N")
    return Chart("forgotten", alt.layer(pictures, text).properties(width=WIDTH, height=alt.Step(SIZE + 28)))


def _url(pixels: np.ndarray) -> str:
    """An image (uint8, [height, width, channels]) as a PNG in a URL."""
    file = io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
