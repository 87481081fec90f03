"""A whole campaign as a notebook calls it: families side by side, with a criterion and controls of the user's own."""

import csv
import dataclasses
import json
import re

import numpy as np
import pytest
from helpers import contents, set_up_devices

import lottery.campaign
from lottery.base.progress import Reporter
from lottery.campaign import Campaign, campaign, open_run
from lottery.executors.workload import IN_PROCESS
from lottery.results import frame
from lottery.rundir import store
from lottery.rundir.run import EVERYTHING

QUIET = Reporter(quiet=True)


def largest(state, mask, gradients):
    """|w|, turned around: the largest weights go."""
    return {path: -np.abs(state.weights[path]) for path in mask}


def turned(given):
    """the ticket's weights with their signs turned"""
    for kept in given.mask.values():
        kept[...] = kept[..., ::-1].copy()  # in place, as a user may
    state = given.start()
    return given.mask, dataclasses.replace(state, weights={path: -array for path, array in state.weights.items()})


def exploding(given):
    """weights that are far too large"""
    state = given.start()
    return given.mask, dataclasses.replace(state, weights={path: array * 1e30 for path, array in state.weights.items()})


def failing(given):
    """a control that cannot be made"""
    raise ValueError("no weights for you")


RECIPE = f"""
name = "own"
replicates = 3
delta = 1.0
[data]
size = 8
crop = 0
[model]
name = "lenet_300_100"
[train]
epochs = 3
snapshots = "0,1ep"
[families.upside-down]
criterion = "{__name__}:largest"
quantiles = "50,90"
rewind = "1ep"
controls = ["reinit", "{__name__}:turned"]
[families.going-on]
rounds = 1
rewind = "1ep"
method = "lr"
controls = []
[families.tuned]
quantiles = "50"
rewind = "1ep"
method = "finetune"
controls = ["{__name__}:exploding", "{__name__}:failing"]
controls_at = "50"
"""


@pytest.fixture(scope="module")
def place(trained, tmp_path_factory):
    """A folder with the recipe, and the environment to call a campaign in, in this process."""
    folder = tmp_path_factory.mktemp("campaign")
    (folder / "own.toml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("IMP_RUN", raising=False)
        patch.setenv("IMP_DATA", str(trained / "data"))
        set_up_devices()
        patch.setattr("lottery.engine.assembly.set_up_tensorflow", lambda train, cores=None: ["CPU:0"])
        yield folder


@pytest.fixture(scope="module")
def made(place):
    """What the campaign came to."""
    return campaign(open_run("own.toml"), reporter=QUIET)


def ended(made, **facts):
    """How the networks ended of which the table says so."""
    return [
        row.status
        for row in frame.each(made.report.findings.rows)
        if all(getattr(row, key) == fact for key, fact in facts.items())
    ]


def test_families_stand_side_by_side_with_what_accompanies_them(made):
    kinds = {(row.family, row.mask, row.variant) for row in frame.each(made.report.findings.groups)}

    assert kinds == {
        ("", "", "dense"),
        ("upside-down", "q50", "ticket"),
        *(("upside-down", "q90", variant) for variant in ("ticket", "reinit", "turned")),  # at the headline
        *(("going-on", "round-01", variant) for variant in ("ticket", "extended")),
        *(("tuned", "q50", variant) for variant in ("ticket", "extended", "exploding", "failing")),
    }
    against = {(row.family, row.variant): row.against for row in frame.each(made.report.findings.groups)}
    assert against["going-on", "ticket"] == against["tuned", "ticket"] == "extended"
    assert against["upside-down", "ticket"] == against["upside-down", "turned"] == "dense"


def test_the_mask_that_a_control_has_changed_is_beside_its_result_and_what_it_was_trained_under(made):
    own = made.report.run.replicate(1).folder / "upside-down/q90-step-000017/turned"
    mask, shared = store.load_mask(own / "mask.h5"), store.load_mask(own.parents[1] / "masks/q90.h5")

    assert all(np.array_equal(mask[path], kept[..., ::-1]) for path, kept in shared.items())
    weights = store.load_state(own / "final.h5").weights
    assert not any(weights[path][~kept].any() for path, kept in mask.items())


def test_a_criterion_and_a_control_of_the_users_own_stand_in_the_table_the_chart_and_the_page(made):
    folder = made.report.run.report

    assert ended(made, family="upside-down", variant="ticket") == ["done"] * 6
    assert ended(made, family="upside-down", variant="turned") == ["done"] * 3
    with open(folder / "summary.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["family"] for row in rows if row["variant"] == "turned"} == {"upside-down"}
    chart = next(block for block in made.report.blocks if block.charts).charts[0]
    legends = re.findall(r'"domain": (\[[^]]*\])', json.dumps(chart.specification))
    assert {"ticket", "reinit", "turned", "extended"} <= {name for legend in legends for name in json.loads(legend)}
    assert "upside-down" in {name for legend in legends for name in json.loads(legend)}
    page = (folder / "index.html").read_text()
    assert "<td>turned</td><td>upside-down q90</td>" in re.sub(r"\s*\n\s*", "", page)
    assert "<code>turned</code>: the ticket&#39;s weights with their signs turned" in page
    assert f"criterion = &#34;{__name__}:largest&#34;" in page


def test_a_network_that_fails_or_diverges_is_one_record_and_the_others_go_on(made):
    assert not made.elsewhere
    names = [f"replicate-{number} tuned q50-step-000017" for number in (1, 2, 3)]
    assert sorted(line.partition(":")[0] for line in made.unfinished) == sorted(
        f"{name} {ending}" for name in names for ending in ("exploding diverged", "failing failed")
    )
    assert ended(made, variant="exploding") == ["diverged"] * 3
    assert ended(made, variant="failing") == ["failed"] * 3
    assert {*ended(made, family="tuned", variant="ticket"), *ended(made, variant="dense"), *ended(made, variant="reinit")} == {
        "done"
    }
    reason = made.report.run.network_in("replicate-1/tuned/q50-step-000017/failing").read_result().last_reason
    assert reason == "ValueError: no weights for you"


def test_called_again_it_trains_nothing_but_what_failed(made, monkeypatch):
    run = made.report.run
    before = contents(run.folder)
    told = []
    monkeypatch.setattr(lottery.campaign, "report", lambda run: None)  # which takes the longest
    monkeypatch.setattr(Reporter, "say", lambda reporter, line: told.append(line))

    again = campaign(open_run(run.folder))

    assert contents(run.folder) == before
    assert [line for line in told if "networks under masks" in line] == [
        "24 networks under masks: 18 finished, 3 diverged, 3 to train",
        "6 networks under masks: 6 finished, 0 to train",
    ]
    assert sorted(again.unfinished) == sorted(made.unfinished)


def test_what_the_recipe_no_longer_asks_for_keeps_no_campaign_from_its_end(made, monkeypatch):
    monkeypatch.setattr(lottery.campaign, "report", lambda run: None)

    again = campaign(open_run(made.report.run.folder, overrides=["families.tuned.controls=[]"]), reporter=QUIET)

    assert again.unfinished == []


@pytest.fixture
def ending(monkeypatch):
    """A function that lets the stages do nothing, but for the retraining, which ends as told."""

    def ends(how):
        for name in ("prepare", "train", "thresholds", "publish", "report"):
            monkeypatch.setattr(lottery.campaign, name, lambda *_: None)

        def retrain(*_):
            if isinstance(how, Exception):
                raise how
            return how

        monkeypatch.setattr(lottery.campaign, "retrain", retrain)

    return ends


@pytest.mark.parametrize(
    ("how", "lines", "elsewhere"),
    [
        ({}, [], False),
        (None, [], False),  # another rank tells
        ({"a": {"status": "busy", "reason": "x"}}, ["a busy: x"], True),
        (
            {"a": {"status": "busy", "reason": "x"}, "b": {"status": "failed", "reason": "y"}},
            ["a busy: x", "b failed: y"],
            False,
        ),
    ],
    ids=["done", "told elsewhere", "busy", "failed"],
)
def test_of_the_networks_that_are_not_finished_each_has_a_line(place, ending, how, lines, elsewhere):
    ending(how)

    made = lottery.campaign.train_tickets(open_run("own.toml"), EVERYTHING, IN_PROCESS, QUIET)

    assert made == Campaign(None, lines, elsewhere)


@pytest.mark.parametrize(
    ("outcomes", "lines", "elsewhere"),
    [
        ([([], False), ([], False)], [], False),
        ([(["a"], False), (["b"], True)], ["a", "b"], False),
        ([([], False), (["b"], True)], ["b"], True),
    ],
)
def test_where_steps_follow_each_other_a_failure_counts_more_than_a_refusal(place, monkeypatch, outcomes, lines, elsewhere):
    given = iter([Campaign(), *(Campaign(None, *outcome) for outcome in outcomes)])  # all that is known is trained first
    monkeypatch.setattr(lottery.campaign, "train_dense", lambda *_: None)
    monkeypatch.setattr(lottery.campaign, "train_tickets", lambda *_: next(given))
    run = open_run("own.toml")
    monkeypatch.setattr(lottery.campaign, "until_decided", lambda *_: [(run, EVERYTHING)] * 2)
    monkeypatch.setattr(lottery.campaign, "thresholds", lambda *_: None)

    made = lottery.campaign.train_until_decided(run, 5, EVERYTHING, IN_PROCESS, QUIET)

    assert made == Campaign(None, lines, elsewhere)
