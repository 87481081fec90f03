"""`imp stability`: pairs of trainings that differ in the order of images alone, and the error on the lines between them."""

import json
import shutil

import numpy as np
import pandas
import pytest
from helpers import contents, imp, imp_here, refused, settings
from tiny import Model, initial

from lottery.base.errors import Failed
from lottery.base.progress import Reporter
from lottery.experiment import graph
from lottery.experiment.family import Family
from lottery.experiment.rule import Rule
from lottery.results import instability
from lottery.rundir import records
from lottery.rundir.records import PairRecord
from lottery.rundir.run import open_run
from lottery.stages import stability

COPIES = settings(*(f"families.oneshot.{value}" for value in ("copies=3", "quantiles=0,90", "rewind=0", "controls=[]")))
PLACE = "runs/digits/replicate-1/oneshot/q90-step-000000"


@pytest.fixture(scope="module")
def finished(trained, tmp_path_factory):
    """A run of lenet whose tickets have three copies each, and their instability."""
    folder = tmp_path_factory.mktemp("stability") / "work"
    shutil.copytree(trained, folder, symlinks=True)
    imp_here("run", *COPIES, "--ranks", "1", cwd=folder)
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "work", symlinks=True)


def pair(folder, copies="1-2"):
    return records.read(folder / PLACE / f"pair-{copies}.json", PairRecord)


def test_copies_are_trained_beside_every_ticket_and_not_twice_for_a_soup():
    family = Family(quantiles="0,80", copies=3, controls=["soup4"], controls_at="80")
    found = [f"{one.mask.label} {one.variant}" for one in graph.tickets(1, "own", family, 900, [45])]

    assert sorted(found) == [
        *("q0 again2", "q0 again3", "q0 ticket"),
        *("q80 again2", "q80 again3", "q80 again4", "q80 soup4", "q80 ticket"),
    ]


def test_with_particles_a_round_prunes_the_average_of_the_one_before():
    family = Family(rounds=2, particles=3, controls=[])
    found = graph.tickets(1, "own", family, 900, [45])

    names = [f"{one.mask.label} {one.variant}" for one in found]
    assert names == [f"round-0{number} {one}" for number in (1, 2) for one in ("ticket", "again2", "again3", "soup3")]
    first, *_, soup = found[:4]
    assert found[0].mask.scored_on == graph.Snapshot(1, 900)
    assert found[4].mask.scored_on == soup
    assert found[4].mask.within == first.mask
    assert set(found[4].needs) == {soup}
    assert list(soup.averaged) == found[:3]


def test_the_report_has_every_pair_and_the_ends_of_its_line_are_the_networks(finished):
    replicate = open_run(finished / "runs/digits").replicate(1)
    found = pair(finished)

    assert len(replicate.pairs()) == 3 * 3  # of the masks that are there, q50 among them
    for end, variant in ((0, "ticket"), (-1, "again2")):
        result = json.loads((finished / PLACE / variant / "result.json").read_text())
        assert 1 - found.errors["test"][end] == pytest.approx(result["final"]["test_accuracy"])
    assert (found.copies, found.rewind_step, found.recomputed, len(found.shares)) == ((1, 2), 0, {}, 30)
    assert found.distances.between > 0
    page = (finished / "runs/digits/report/summary.md").read_text()
    assert "## How stable tickets are" in page
    assert "again2" not in page.partition("## Cost")[0]


def test_a_pair_that_is_there_is_left_and_one_that_is_not_comes_out_the_same(copy):
    before = contents(copy / PLACE)
    (copy / PLACE / "pair-1-3.json").unlink()

    told = imp_here("stability", cwd=copy)

    assert "9 pairs of trainings, 1 to interpolate" in told.stderr
    assert contents(copy / PLACE) == before


def test_ranks_find_the_same_bytes(copy):
    before = contents(copy / PLACE)
    for path in (copy / "runs").rglob("pair-*.json"):
        path.unlink()

    told = imp("stability", "--ranks", "2", cwd=copy)

    assert told.stdout.count("oneshot q90: ") == 1
    assert contents(copy / PLACE) == before


def test_a_pair_that_nobody_was_left_to_do_is_a_failure_and_one_that_was_told_to_stop_ends_as_the_executor_says(
    copy, monkeypatch
):
    (copy / PLACE / "pair-1-3.json").unlink()
    run = open_run(copy / "runs/digits")

    class Leaving:
        def run(self, workload):
            workload.on_done(workload.list_tasks()[0], {"status": "waiting", "reason": "no rank was left to do it"})
            return True

    monkeypatch.setattr(stability, "executor", lambda execution: Leaving())
    with pytest.raises(Failed, match="copies 1 and 3: no rank was left to do it"):
        stability.stability(run, Reporter(quiet=True))


def test_what_cannot_be_compared_is_said_in_a_line(copy, trained):
    refused(imp_here("stability", cwd=trained, check=False), "imp retrain --set families.oneshot.copies=3")
    refused(imp_here("stability", "--set", "families.oneshot.copies=4", cwd=copy, check=False), "run `imp retrain` first")
    final = copy / PLACE / "again2/final.h5"
    content = bytearray(final.read_bytes())
    content[-9] ^= 1
    final.write_bytes(content)
    (copy / PLACE / "pair-1-2.json").unlink()
    damaged = imp_here("stability", cwd=copy, check=False)
    assert damaged.returncode == 2
    assert "final.h5 is damaged" in damaged.stderr.splitlines()[-1]


def test_a_pair_says_on_which_line_it_was_found_and_none_is_found_on_another(copy):
    for path in (copy / PLACE).parent.glob("*/pair-*.json"):
        path.unlink()
    line = ["--points", "5", "--examples", "20"]
    imp_here("stability", *line, cwd=copy)

    found = records.read(copy / PLACE / "pair-1-2.json", PairRecord)
    assert (found.shares, found.examples, len(found.errors["train"])) == ([0, 0.25, 0.5, 0.75, 1], 20, 5)
    (copy / PLACE / "pair-1-2.json").unlink()
    imp_here("stability", cwd=copy)
    assert records.read(copy / PLACE / "pair-1-2.json", PairRecord) == found
    another = imp_here("stability", "--points", "30", "--replicate", "1", cwd=copy, check=False)
    refused(another, "found with --points 5 and --examples 20: give the same")


def test_a_damaged_pair_is_named_by_verify_and_never_used(copy):
    path = copy / PLACE / "pair-1-2.json"
    path.write_text(path.read_text().replace('"rewind_step": 0', '"rewind_step": 7'))

    refused(imp_here("stability", cwd=copy, check=False), "pair-1-2.json")
    assert "pair-1-2.json" in imp_here("verify", "runs/digits", cwd=copy, check=False).stdout


def test_a_pair_of_other_networks_is_not_shown_and_those_of_another_rewind_point_are_apart(copy):
    shutil.rmtree(copy / PLACE / "again2")
    later = (copy / PLACE).with_name("q90-step-000017") / "pair-1-2.json"
    later.parent.mkdir()
    records.write(later, pair(copy).model_copy(update={"rewind_step": 17, "made_from": {}}))
    imp_here("retrain", "--set", "retrain.order=same", cwd=copy, check=False)  # refused: made with another recipe
    found = instability.groups(open_run(copy / "runs/digits"))

    of_ticket = found[found["mask"] == "q90"]
    assert of_ticket["rewind_step"].tolist() == [0, 17]
    assert of_ticket["pairs"].tolist() == [1, 1]  # at 0 that is 1-3: all that does not need the second


@pytest.mark.usefixtures("tensorflow")
def test_statistics_that_are_computed_anew_are_those_taken_by_hand(make_trainer):
    model = Model(name="tiny:local")
    trainer = make_trainer(model=model, maskable=(), varied={})
    state, taken = initial(1, model), []

    def errors(examples, is_only_anew=False):
        worker = object.__new__(stability.PairWorker)
        worker.trainer, worker.has_statistics, worker.line = trainer, True, stability.Line(examples=examples)
        return worker._errors(0, is_only_anew, taken.append, state)

    def by_hand(examples):
        trainer.load(state)
        list(trainer.settle(0, examples))
        return {"train": 1 - trainer.evaluate("train", most=examples).deciding, "test": 1 - trainer.evaluate("test").deciding}

    interpolated, recomputed = errors(None)
    assert recomputed == by_hand(None)
    assert set(interpolated) == {"train", "test"}
    assert errors(9, is_only_anew=True) == ({}, by_hand(9))
    assert taken == [1, 1]


@pytest.mark.usefixtures("tensorflow")
def test_the_first_examples_and_batches_may_stand_for_all(make_trainer):
    trainer = make_trainer(model=Model(name="tiny:local"), maskable=(), varied={})
    all_answers, first = trainer.answers("train"), trainer.answers("train", most=9)

    np.testing.assert_array_equal(first.loss, all_answers.loss[:9])
    assert len(first.loss) == 9 < len(all_answers.loss)
    assert len(np.concatenate(list(trainer.settle(0, 9)))) == -(-9 // trainer.train.batch)
    assert len(np.concatenate(list(trainer.settle(0)))) == trainer.steps_per_epoch


def test_verdicts_follow_the_bounds_over_replicates():
    def one(replicate, barrier, copies=(1, 2)):
        line = {"train": [0.1, 0.1, 0.1], "test": [0.1, 0.1 + barrier, 0.1]}
        made = {"replicate": replicate, "rewind_step": 0, "copies": copies, "shares": [0, 0.5, 1], "errors": line}
        return PairRecord(**made, family="f", mask="q90", distances=(1, 1, 1, 60))

    def row(*barriers):
        (found,) = instability._rows([one(number, barrier) for number, barrier in enumerate(barriers, 1)], Rule(0.002))
        return found

    assert row(0.001, 0.002, 0.003)["verdict"] == "stable"
    assert row(0.1, 0.12, 0.11)["verdict"] == "unstable"
    assert row(0.001, 0.1, 0.003)["verdict"] == row(0.001, 0.002)["verdict"] == "undecided"
    assert row(0.1, 0.12, 0.11)["test"] == pytest.approx(0.11)
    several = list(instability._rows([one(1, 0.1), one(1, 0.3, (1, 3)), one(2, 0.4)], Rule(0.002)))
    assert several[0]["test"] == pytest.approx(np.mean([0.2, 0.4]))  # over replicates, of means over pairs


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        (["undecided", "matching", "matching"], "matching from 10it"),
        (["undecided", "matching", "undecided"], "not shown to be matching from any point on"),
        (["undecided", "undecided", "not matching"], "not shown to be matching from any point on"),
    ],
)
def test_a_ticket_that_matches_at_some_points_is_not_said_to_match_nowhere(verdicts, words):
    points = [{"rewind": name, "rewind_step": step} for name, step in (("0", 0), ("10it", 10), ("1ep", 45))]
    table = {"family": "oneshot", "mask": "q90", "variant": "ticket", "statistics": "none"}
    rows = pandas.DataFrame([{**table, **point, "verdict": one} for point, one in zip(points, verdicts, strict=True)])

    (sentence,) = instability.answers(rows.assign(verdict="stable"), rows, Rule(0.002))

    assert sentence == f"oneshot q90: stable from 0; {words}"
