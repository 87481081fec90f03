"""The figures: which densities their axes label, what they draw, and that they are PNGs of any groups there are."""

import math

import pytest
from handmade import all_replicates, dense, in_rounds, planned, ticket

from lottery.results import figure, grouping, listing
from lottery.results.figure import _apart
from lottery.run import Run

PNG = b"\x89PNG\r\n\x1a\n"


def test_densities_that_stand_apart_are_all_labelled():
    assert _apart([0.5, 0.3, 0.2, 0.1, 0.05], 6) == [0.05, 0.1, 0.2, 0.3, 0.5]


def test_of_crowded_densities_the_sparse_ones_are_labelled():
    assert _apart([0.01, 0.02, 0.022, 0.024, 0.026, 0.04], 5) == [0.01, 0.02, 0.04]


def test_one_density_is_labelled_and_of_none_there_is_nothing_to_label():
    assert _apart([0.2], 6) == [0.2]
    assert _apart([], 6) == []


def test_of_the_rounds_of_a_long_chain_no_more_are_labelled_than_there_is_room_for():
    assert len(_apart([0.8**level for level in range(1, 31)], 7)) <= 8


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path / "run", planned("60,90", rounds={"levels": 2, "rewind": "1ep", "methods": ["lr"]}))
    dense(made, 0.90, 0.91, 0.92)
    return made


def groups_of(run):
    return grouping.groups(listing.rows(run), 0.002)


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn from now on."""
    figures = []
    png = figure._png
    monkeypatch.setattr(figure, "_png", lambda picture: figures.append(picture) or png(picture))
    return figures


@pytest.mark.parametrize("draw", [figure.accuracy, figure.early_stop])
def test_a_figure_is_a_png_also_before_a_ticket_is_done(run, draw):
    assert draw(groups_of(run)).startswith(PNG)
    ticket(run, 1, "60", 0.9)
    assert draw(groups_of(run)).startswith(PNG)


@pytest.mark.parametrize("draw", [figure.accuracy, figure.early_stop])
def test_the_same_groups_give_the_same_bytes(run, draw):
    all_replicates(run, "60", 0.0)

    assert draw(groups_of(run)) == draw(groups_of(run))


def test_a_line_per_method_and_rewind_point_and_markers_for_controls(run, drawn):
    all_replicates(run, "60", 0.01)
    all_replicates(run, "90", -0.01)
    all_replicates(run, "90", -0.01, step=0)
    all_replicates(run, "90", -0.02, step=0, variant="reinit")
    in_rounds(run, "lr", 1, 0.0)
    in_rounds(run, "lr", 1, 0.0, "extended")

    figure.accuracy(groups_of(run))

    (axes,) = drawn[0].axes
    handles, labels = axes.get_legend_handles_labels()
    assert set(labels) == {
        "dense network",
        "ticket rewound to 0",
        "ticket rewound to 1ep",
        "reinit: same mask, fresh weights",
        "lr: ticket rewound to 1ep",
        "lr: dense, trained as long",
    }
    lines = dict(zip(labels, handles, strict=True))
    line = lines["ticket rewound to 1ep"].lines[0]
    assert line.get_xdata() == pytest.approx([0.4, 0.1])
    assert line.get_ydata() == pytest.approx([0.92, 0.90])
    assert lines["reinit: same mask, fresh weights"].lines[0].get_linestyle() == "None"
    assert axes.get_ylabel() == "final validation accuracy"


def test_early_stopping_is_drawn_as_step_and_test_accuracy_against_density(run, drawn):
    for number in (1, 2, 3):
        ticket(run, number, "60", 0.9, early=(100 * number, 0.80))

    figure.early_stop(groups_of(run))

    step, reached = drawn[0].axes
    assert (step.get_ylabel(), reached.get_ylabel()) == ("step of least validation loss", "test accuracy there")
    assert step.containers[0].lines[0].get_ydata() == pytest.approx([200])
    assert reached.containers[0].lines[0].get_ydata() == pytest.approx([0.80])
    assert (step.get_legend(), reached.get_legend() is not None) == (None, True)


def test_what_is_not_done_is_not_drawn(run, drawn):
    ticket(run, 1, "90", status="diverged")

    figure.accuracy(groups_of(run))

    (axes,) = drawn[0].axes
    assert axes.get_legend_handles_labels()[1] == ["dense network"]
    assert all(math.isfinite(value) for value in axes.get_ylim())
