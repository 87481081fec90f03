"""The charts: that each can be drawn of any rows there are, shows what it should, and is the same picture each time."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest
from handmade import all_replicates, dense, in_rounds, planned, ticket

from lottery.experiment import reading
from lottery.results import curves, drawing, findings, sections
from lottery.results.ranking import RANKS
from lottery.results.sections import (
    accuracy,
    courses,
    early_stop,
    layers,
    macs,
    overlaps,
    ranking,
    stability,
    training,
)
from lottery.rundir.run import Run

PNG = b"\x89PNG\r\n\x1a\n"

LAYERS = [
    {"replicate": replicate, "masks": source, "mask": mask, "density": density, "layer": layer, "weights": 100}
    | {"kept": kept, "share": kept / 100, "collapsed": kept == 0}
    for replicate in (1, 2)
    for source, mask, density in (("oneshot", "q50", 0.5), ("oneshot", "q90", 0.1), ("lr from 0", "round-01", 0.8))
    for layer, kept in (("Conv1", 30), ("block_2/depthwise", 0))
]
COURSE = [
    {"network": network, "family": "oneshot", "mask": "q90", "density": density, "rewind": "0", "runs": 1}
    | {"step": step, "epoch": step / 10, "train_accuracy": 0.5, "validation_accuracy": 0.6, "test_accuracy": 0.7}
    for network, density in (("dense", 1.0), ("ticket", 0.1), ("random", 0.0))  # which keeps nothing
    for step in (10, 20)
]


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path / "run", planned("60,90", rounds={"rounds": 2, "rewind": "1ep", "methods": ["lr"]}))
    dense(made, 0.90, 0.91, 0.92)
    return made


OVERLAPS = [
    {"mask": mask, "first": first, "second": second, "density": density, "overlap": 0.6, "chance": chance}
    | {"beyond_chance": (0.6 - chance) / (1 - chance)}
    for mask, density, chance in (("q50", 0.5, 0.5), ("q90", 0.1, 0.1))
    for first, second in (("one", "two"), ("one", "three"), ("two", "three"))
]


INSTABILITY = [
    {"family": "oneshot", "mask": mask, "rewind": rewind, "rewind_step": step, "statistics": kind, "replicates": 3, "pairs": 9}
    | {"train": 0.1, "test": 0.2, "low": 0.15, "high": 0.25, "verdict": "unstable"}
    | {"between": 1.0, "from_start": 1.0, "angle": 60.0}
    for mask in ("q0", "q80")
    for rewind, step in (("0", 0), ("1ep", 17))
    for kind in ("interpolated", "recomputed")
]
LINES = [row | {"split": "test", "share": share, "error": 0.1} for row in INSTABILITY for share in (0.0, 0.5, 1.0)]


GROUPS = [{"variant": "ticket", "family": "oneshot", "mask": "q80", "rewind": "0", "rewind_step": 0, "verdict": "matching"}]
RANKING = [
    {"level": 1, "rank": rank, "density": 0.4, "family": family, "rewind": "1ep", "validation": 0.9, "verdict": "matching"}
    | {"clear": False, "training_cost": 1.0, "finding_cost": 1.0, "cost": 2.0}
    for rank, family in enumerate(("oneshot", "other"), 1)
]
COLUMNS = {"figures": findings._FIGURES, "ranking": list(RANKS)}  # also where there is no row
NAMES = (*COLUMNS, "groups", "layers", "overlaps", "courses", "training", "instability", "lines")

CHARTS = [
    *(accuracy.section, macs.section, ranking.section, early_stop.section, layers.section),
    *(overlaps.section, courses.section, stability.section, training.section),
]


def found(**tables):
    """What was found, by hand: these tables, and nothing else."""
    frames = {name: pandas.DataFrame(tables.get(name, ()), columns=COLUMNS.get(name)) for name in NAMES}
    return SimpleNamespace(run=Run(Path("none"), reading.resolve({})), **frames)


def of(run):
    return findings.Findings(run)


def told(block):
    """What is said below a chart and its table."""
    return block.caption + block.explained


def marks(specification):
    """The rows that each of a chart's datasets has."""
    return list(specification["datasets"].values())


@pytest.mark.parametrize(
    "chart",
    [
        layers.section(found(layers=LAYERS)),
        overlaps.section(found(overlaps=OVERLAPS)),
        courses.section(found(courses=COURSE)),
        training.section(
            found(training=[{"replicate": "replicate-1", "epoch": 1.0, "step": 9, "split": "test", "accuracy": 0.5}])
        ),
    ],
    ids=lambda chart: chart.name,
)
def test_a_chart_is_a_png_an_svg_and_a_table(chart):
    assert chart.charts[0].png.startswith(PNG)
    assert chart.charts[0].svg.startswith("<svg")
    assert "NaN" not in chart.charts[0].svg
    assert len(chart.frames[chart.name]) > 0


def test_where_there_is_nothing_to_draw_there_is_no_chart_and_each_is_called_like_its_file(run):
    assert [draw(found()) for draw in CHARTS] == [None] * len(CHARTS)

    all_replicates(run, "60", 0.0)
    rows = of(run).figures
    rows = rows.assign(macs_share=rows["density"] ** 0.5, cost=2.0)
    other = rows[rows["network"] == "ticket"].assign(family="other", series="other")
    tables = {"figures": pandas.concat([rows, other]), "layers": LAYERS, "overlaps": OVERLAPS}
    tables |= {"courses": COURSE, "instability": INSTABILITY, "lines": LINES, "groups": GROUPS, "ranking": RANKING}
    drawn = [draw(found(**tables)) for draw in CHARTS[:-1]]
    names = [draw.__module__.rpartition(".")[2] for draw in CHARTS[:-1]]
    assert [block.name for block in drawn] == [chart.name for block in drawn for chart in block.charts] == names


@pytest.mark.parametrize(
    ("draw", "figures"), [(accuracy.section, ["validation"]), (early_stop.section, ["early_step", "early_test"])]
)
def test_what_a_mark_shows_is_told_when_the_pointer_is_on_it(run, draw, figures):
    all_replicates(run, "60", -0.01)

    specification = json.dumps(draw(of(run)).charts[0].specification)

    tips = re.findall(r'"tooltip": \[(.*?)\]', specification)
    assert len(tips) >= 2
    for tip in tips:
        assert all(f'"field": "{figure}"' in tip for figure in figures)


@pytest.mark.parametrize("draw", [accuracy.section, early_stop.section])
def test_one_ticket_can_be_drawn_also_one_that_keeps_nothing(run, draw):
    ticket(run, 1, "60", 0.9)
    ticket(run, 2, "100", 0.9)

    assert draw(of(run)).charts[0].png.startswith(PNG)
    assert "NaN" not in draw(of(run)).charts[0].svg


def shares(run):
    """These findings with fewer multiply-accumulates than weights, and a second family with costs."""
    found = of(run)
    rows = found.figures.assign(macs_share=found.figures["density"] ** 0.5, cost=2.0)
    other = rows[rows["network"] == "ticket"].assign(family="other", series="other")
    ranked = pandas.DataFrame(RANKING, columns=COLUMNS["ranking"])
    return SimpleNamespace(run=run, ranking=ranked, figures=pandas.concat([rows, other]))


@pytest.mark.parametrize("draw", [accuracy.section, macs.section, early_stop.section, ranking.section])
def test_what_lies_below_the_scale_is_marked_and_has_no_line(run, draw):
    all_replicates(run, "60", -0.01)
    assert "▼" not in told(draw(shares(run)))
    all_replicates(run, "90", -0.8)

    chart = draw(shares(run))

    assert "▼ below the scale" in chart.charts[0].svg
    drawn = [row for rows in marks(chart.charts[0].specification) for row in rows if "network" in row]
    lying = {round(row["density"], 2): row["shown"] for row in drawn if row["network"] == "ticket" and "level" not in row}
    assert lying[0.1] is None  # so that no mark, no bar and no line goes there
    assert lying[0.4] == pytest.approx(0.89 if draw is early_stop.section else 0.90)
    reached = 0.10 if draw is early_stop.section else 0.11
    assert {round(row["below"], 4) for row in drawn if "level" in row} == {reached}
    least = 0.90 - curves.SHOWN
    assert f'"domain": [{least}' in json.dumps(chart.charts[0].specification)
    assert "▼ marks a network below the scale (2); the pointer and the chart's CSV tell its value." in told(chart)


def test_a_dense_network_that_failed_to_learn_does_not_stretch_the_scale_of_the_tickets(run):
    dense(run, 0.88, 0.38, 0.89)
    all_replicates(run, "60", -0.03)
    all_replicates(run, "90", -0.04)

    chart = accuracy.section(of(run))

    domain = chart.charts[0].specification["layer"][1]["encoding"]["y"]["scale"]["domain"]
    assert domain == pytest.approx([0.87 - curves.SHOWN, 0.89])
    assert "The dense network (71.7%) is below the scale." in told(chart)
    assert "▼" not in told(chart)


def test_marks_below_the_scale_at_one_density_stand_one_above_the_other(run):
    all_replicates(run, "60", 0.0)
    for control in ("reinit", "shuffle", "invert"):
        all_replicates(run, "90", -0.8, variant=control)

    drawn = marks(accuracy.section(of(run)).charts[0].specification)

    assert [row["level"] for rows in drawn for row in rows if "level" in row] == [312.5, 297.5, 282.5]  # of 320 pixels


def test_bars_and_band_are_spoken_of_where_there_are_replicates(run, tmp_path):
    all_replicates(run, "60", 0.0)
    single = Run(tmp_path / "single", planned(replicates=1))
    dense(single, 0.9)
    ticket(single, 1, "60", 0.9)

    several, one = accuracy.section(of(run)), accuracy.section(of(single))

    assert several.charts[0].subtitle == "means over 3 runs, bars: one standard deviation"
    assert "Bars and the grey band" in several.explained
    assert one.charts[0].subtitle == "one run"
    assert "standard deviation" not in one.explained


def test_a_picture_has_a_title_the_dense_network_its_name_and_one_series_a_colour_for_each_network(run):
    all_replicates(run, "60", 0.0)
    all_replicates(run, "60", -0.02, variant="shuffle")

    (chart,) = next(block for block in sections.blocks(of(run)) if block.name == "accuracy").charts

    assert ">Accuracy against density</text>" in chart.svg
    assert ">digits: means over 3 runs, bars: one standard deviation</text>" in chart.svg
    assert ">dense</text>" in chart.svg
    assert "title" not in chart.specification
    assert curves.colour_key(of(run).figures) == "network"

    all_replicates(run, "60", 0.0, step=0)
    assert curves.colour_key(of(run).figures) == "series"


def test_the_same_rows_give_the_same_picture(run):
    all_replicates(run, "60", 0.0)

    assert accuracy.section(of(run)).charts[0].png == accuracy.section(of(run)).charts[0].png


def test_a_line_per_family_and_rewind_point_and_marks_for_controls(run):
    all_replicates(run, "60", 0.01)
    all_replicates(run, "90", -0.01)
    all_replicates(run, "90", -0.01, step=0)
    all_replicates(run, "90", -0.02, step=0, variant="reinit")
    in_rounds(run, "lr", 1, 0.0)
    in_rounds(run, "lr", 1, 0.0, "extended")

    specification = accuracy.section(of(run)).charts[0].specification

    shown = [row for rows in marks(specification) for row in rows]
    assert {row["series"] for row in shown} == {
        *("dense", "oneshot, rewound to 0", "oneshot, rewound to 1ep", "oneshot, from scratch", "lr, rewound to 1ep")
    }
    together = specification["vconcat"][0]["layer"][3]["data"]["name"]
    line = [row for row in specification["datasets"][together] if row["series"] == "oneshot, rewound to 1ep"]
    assert [row["density"] for row in line] == pytest.approx([0.4, 0.1])
    assert [row["validation"] for row in line] == pytest.approx([0.92, 0.90])
    assert [row["sd_high"] - row["sd_low"] for row in line] == pytest.approx([0.02, 0.02])


def test_several_families_have_a_panel_for_each_series_with_its_controls_and_the_one_reinit_of_its_mask(run):
    for step in (0, 45):
        all_replicates(run, "60", 0.01, step=step)
        all_replicates(run, "60", -0.03, step=step, variant="shuffle")
    all_replicates(run, "60", -0.02, step=0, variant="reinit")
    in_rounds(run, "lr", 1, 0.0)

    specification = accuracy.section(of(run)).charts[0].specification

    together, panels = specification["vconcat"]
    drawn = [specification["datasets"][layer["data"]["name"]] for layer in together["layer"][1:]]
    assert {row["network"] for rows in drawn for row in rows} == {"dense", "ticket"}
    shown = {}
    for panel in panels["concat"]:
        rows = specification["datasets"][panel["layer"][-1]["data"]["name"]]
        shown[panel["title"]["text"]] = [(row["network"], row["rewind"]) for row in rows]
        assert panel["title"]["subtitle"] == "magnitude, global"
    assert shown == {
        "oneshot, rewound to 0": [("ticket", "0"), ("reinit", "0"), ("shuffle", "0")],
        "oneshot, rewound to 1ep": [("reinit", "0"), ("ticket", "1ep"), ("shuffle", "1ep")],
        "lr, rewound to 1ep": [("ticket", "1ep")],
    }


def test_overlaps_have_a_panel_for_each_mask_that_says_what_chance_gives():
    panels = overlaps.section(found(overlaps=OVERLAPS)).charts[0].specification["concat"]

    assert [(panel["title"]["text"], panel["title"]["subtitle"]) for panel in panels] == [
        ("q50", "chance: 50.0%"),
        ("q90", "chance: 10.0%"),
    ]


def test_every_line_has_a_colour_of_its_own_also_with_many_families(tmp_path):
    made = Run(tmp_path / "many", planned("60", **{f"f{n}": {"quantiles": "60", "rewind": "1ep"} for n in range(12)}))
    dense(made, 0.90, 0.91, 0.92)
    for family in made.recipe.families:
        all_replicates(made, "60", 0.01, family=family)

    scale = next(
        layer["encoding"]["color"]["scale"]
        for layer in accuracy.section(of(made)).charts[0].specification["layer"]
        if "color" in layer["encoding"]
    )

    assert len(scale["domain"]) == 13
    assert len(set(scale["range"])) >= 13


def test_the_script_draws_without_a_network():
    script = drawing.script()

    assert "vegaEmbed" in script
    assert "</script" not in script
