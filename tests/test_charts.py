"""The charts: that each can be drawn of any rows there are, shows what it should, and is the same picture each time."""

import csv
import io
import json
import re

import pytest
from handmade import all_replicates, dense, in_rounds, planned, ticket

from lottery.results import charts, grouping, listing, tidy
from lottery.run import Run

PNG = b"\x89PNG\r\n\x1a\n"

LAYERS = [
    {
        "replicate": replicate,
        "masks": source,
        "mask": mask,
        "density": density,
        "layer": layer,
        "weights": 100,
        "kept": kept,
        "share": kept / 100,
        "collapsed": kept == 0,
    }
    for replicate in (1, 2)
    for source, mask, density in (("oneshot", "q50", 0.5), ("oneshot", "q90", 0.1), ("lr-step-000000", "round 1", 0.8))
    for layer, kept in (("Conv1", 30), ("block_2/depthwise", 0))
]
BARS = [{"replicate": 1, "log10_from": float(low), "log10_to": low + 1.0, "weights": 10 * low + 50} for low in range(-4, 0)]
CUTS = [{"replicate": 1, "mask": f"q{quantile}", "threshold": 0.01, "log10": -2.0} for quantile in range(60, 90)]
COURSE = [
    {
        "network": network,
        "method": "oneshot",
        "mask": "q90",
        "density": density,
        "rewind": "0",
        "runs": 1,
        "step": step,
        "epoch": step / 10,
        "train_accuracy": 0.5,
        "validation_accuracy": 0.6,
        "test_accuracy": 0.7,
    }
    for network, density in (("dense", 1.0), ("ticket", 0.1), ("random", 0.1))
    for step in (10, 20)
]


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path / "run", planned("60,90", rounds={"levels": 2, "rewind": "1ep", "methods": ["lr"]}))
    dense(made, 0.90, 0.91, 0.92)
    return made


def rows_of(run):
    return tidy.accuracies(grouping.groups(listing.rows(run), 0.002))


def marks(specification):
    """The rows that each of a chart's datasets has."""
    return list(specification["datasets"].values())


@pytest.mark.parametrize(
    "chart",
    [
        charts.layers(LAYERS),
        charts.magnitudes(BARS, CUTS),
        charts.magnitudes(BARS, []),
        charts.courses(COURSE),
        charts.training([{"replicate": "replicate-1", "epoch": 1.0, "step": 9, "split": "test", "accuracy": 0.5}]),
    ],
    ids=lambda chart: chart.name,
)
def test_a_chart_is_a_png_an_svg_and_a_table(chart):
    assert chart.png().startswith(PNG)
    assert chart.svg().startswith("<svg")
    assert "NaN" not in chart.svg()
    assert len(list(csv.DictReader(io.StringIO(chart.tables()[chart.name])))) == len(chart.rows)


def test_thresholds_are_a_table_beside_the_histogram():
    assert charts.magnitudes(BARS, CUTS).tables().keys() == {"magnitudes", "thresholds"}
    assert charts.magnitudes(BARS, []).tables().keys() == {"magnitudes"}


@pytest.mark.parametrize(
    ("draw", "figures"), [(charts.accuracy, ["validation"]), (charts.early_stop, ["early_step", "early_test"])]
)
def test_what_a_mark_shows_is_told_when_the_pointer_is_on_it(run, draw, figures):
    all_replicates(run, "60", -0.01)

    specification = json.dumps(draw(rows_of(run)).specification())

    tips = re.findall(r'"tooltip": \[(.*?)\]', specification)
    assert len(tips) >= 2
    for tip in tips:
        assert all(f'"field": "{figure}"' in tip for figure in figures)


@pytest.mark.parametrize("draw", [charts.accuracy, charts.early_stop, charts.differences])
@pytest.mark.parametrize("quantile", ["60", "100"])
def test_one_ticket_can_be_drawn_also_one_that_keeps_nothing(run, draw, quantile):
    ticket(run, 1, "60", 0.9)
    ticket(run, 2, quantile, 0.9)

    assert draw(rows_of(run)).png().startswith(PNG)
    assert "NaN" not in draw(rows_of(run)).svg()


def test_what_lies_far_below_is_at_the_edge_and_does_not_press_the_others_together(run):
    all_replicates(run, "60", -0.01)
    near = charts.accuracy(rows_of(run))
    all_replicates(run, "90", -0.8)
    far = charts.accuracy(rows_of(run))

    def least(chart):
        return min(row["validation_shown"] for rows in marks(chart.specification()) for row in rows)

    assert least(near) == pytest.approx(0.90)
    assert "lie below that" not in near.explained
    assert least(far) == pytest.approx(0.90 - charts.SHOWN)
    assert "Marks at 80.0% (1) lie below that" in far.explained
    assert {round(row["validation"], 2) for row in far.rows} == {0.91, 0.9, 0.11}
    assert "Marks at 80.0% (1) lie below that" in charts.early_stop(rows_of(run)).explained


def test_the_same_rows_give_the_same_picture(run):
    all_replicates(run, "60", 0.0)

    assert charts.accuracy(rows_of(run)).png() == charts.accuracy(rows_of(run)).png()


def test_a_line_per_method_and_rewind_point_and_marks_for_controls(run):
    all_replicates(run, "60", 0.01)
    all_replicates(run, "90", -0.01)
    all_replicates(run, "90", -0.01, step=0)
    all_replicates(run, "90", -0.02, step=0, variant="reinit")
    in_rounds(run, "lr", 1, 0.0)
    in_rounds(run, "lr", 1, 0.0, "extended")

    specification = charts.accuracy(rows_of(run)).specification()

    shown = [row for rows in marks(specification) for row in rows]
    assert {row["series"] for row in shown} == {
        *("dense", "rewound to 0", "rewound to 1ep", "from scratch", "lr, rewound to 1ep")
    }
    line = [row for row in shown if (row["series"], row["network"]) == ("rewound to 1ep", "ticket")]
    assert [row["density"] for row in line] == pytest.approx([0.4, 0.1])
    assert [row["validation"] for row in line] == pytest.approx([0.92, 0.90])
    assert [row["sd_high"] - row["sd_low"] for row in line] == pytest.approx([0.02, 0.02])


def test_the_heat_map_has_a_cell_for_each_ticket_with_its_verdict(run):
    all_replicates(run, "60", 0.01)
    all_replicates(run, "90", -0.05)
    all_replicates(run, "90", -0.05, step=0, variant="reinit")

    (cells,) = marks(charts.differences(rows_of(run)).specification())

    assert [(row["mask"], row["verdict"]) for row in cells] == [("q60", "matching"), ("q90", "not matching")]
    assert [row["points"] for row in cells] == pytest.approx([1, -5])


def test_courses_of_a_network_that_keeps_nothing_are_drawn():
    rows = [{**row, "density": 0.0 if row["network"] == "random" else row["density"]} for row in COURSE]

    assert "NaN" not in charts.courses(rows).svg()


def test_without_one_threshold_for_all_layers_none_is_spoken_of():
    assert "threshold" in charts.magnitudes(BARS, CUTS).explained
    assert "threshold" not in charts.magnitudes(BARS, []).explained


def test_layers_and_magnitudes_are_drawn_of_the_first_replicate():
    shown = [row for rows in marks(charts.layers(LAYERS).specification()) for row in rows]

    assert {row["replicate"] for row in shown} == {1}
    assert len(shown) == len(LAYERS) / 2


def test_the_script_draws_without_a_network():
    script = charts.script()

    assert "vegaEmbed" in script
    assert "</script" not in script
