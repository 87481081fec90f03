"""Replicates added to undecided pairs: on a hand-made run with stages that only write results, and once as typed."""

import dataclasses
import json
import re
import typing

import pytest
from handmade import all_replicates, dense, in_round, planned, relist, ticket, write
from helpers import imp, refused

from lottery import store, verdicts
from lottery.commands import stages as commands
from lottery.progress import Reporter
from lottery.run import Replicate, Run
from lottery.stages import decide

KEEPS_UP = [0.001, 0.002, 0.001]  # above dense, by replicate


def looks(most, error):
    return (
        f"looking after each replicate, up to {most}, calls a ticket that is 0.2 points worse matching in {error} of cases; "
        "looking once does so in 5%"
    )


class Stages:
    """Stages that write results: dense networks of 90 %, tickets `above` that by quantile, one for each replicate from 1."""

    def __init__(self, monkeypatch, above):
        self.above, self.called = above, []
        monkeypatch.setattr(decide, "train", self.train)
        monkeypatch.setattr(decide, "thresholds", self.thresholds)

    def train(self, run, reporter):
        self.called.append(f"train {list(run.numbers())}")
        for number in run.numbers():
            if not run.replicate(number).dense.is_finished:
                write(run.replicate(number).dense, 0.9, replicate=number)

    def thresholds(self, run, reporter, quantiles=None):
        self.called.append(f"thresholds {list(run.numbers())} {quantiles}")

    def retrain(self, run, quantiles, rewind):
        self.called.append(f"retrain {list(run.numbers())} {quantiles} {rewind}")
        for number in run.numbers():
            for quantile in quantiles.split(","):
                step = {"0": 0, "1ep": 45}[rewind]
                above = self.above[quantile][number - 1]
                ticket(
                    run,
                    number,
                    quantile,
                    None if above is None else 0.9 + above,
                    step,
                    "ticket",
                    "done" if above is not None else "diverged",
                )


class Telling(Reporter):
    def __init__(self):
        super().__init__(quiet=True)
        self.told = []

    def say(self, message):
        self.told.append(message)


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """A function that makes a run of one replicate with the quantiles of `above` at 1ep, and decides with `most`: the run,
    what was called, what was said."""

    def started(above, most, replicates=1, rewind="1ep"):
        run = Run(tmp_path / "run", planned(",".join(above), rewind, replicates))
        stages, reporter = Stages(monkeypatch, above), Telling()
        stages.train(run, reporter)
        for point in rewind.split(","):
            stages.retrain(run, ",".join(above), point)
        stages.called.clear()
        decide.until_decided(run, most, reporter, stages.retrain)
        return run, stages.called, reporter.told

    return started


def test_a_pair_that_keeps_up_gets_replicates_until_three_say_so(begin):
    run, called, told = begin({"60": [0.001, 0.002, 0.001, 0.0]}, 10)

    assert called == [
        *("train [2]", "thresholds [2] 60", "retrain [2] 60 1ep"),
        *("train [3]", "thresholds [3] 60", "retrain [3] 60 1ep"),
    ]
    assert told == [
        looks(10, "15%"),
        "undecided: 1 pair; adding replicate 2",
        "undecided: 1 pair; adding replicate 3",
        "every pair is decided after 3 replicates",
    ]
    assert run.known_numbers() == [1, 2, 3]


def test_only_pairs_that_are_undecided_get_more(begin):
    wavering = [0.02, -0.02, 0.02, -0.06, -0.06, -0.06, -0.06]

    _, called, told = begin({"60": KEEPS_UP, "97.5": wavering}, 5)

    assert [line for line in called if line.startswith("thresholds")] == [
        *("thresholds [2] 60,97.5", "thresholds [3] 60,97.5", "thresholds [4] 97.5", "thresholds [5] 97.5")
    ]

    assert [line for line in called if line.startswith("retrain")] == [
        *("retrain [2] 60,97.5 1ep", "retrain [3] 60,97.5 1ep"),
        *("retrain [4] 97.5 1ep", "retrain [5] 97.5 1ep"),
    ]
    assert told[-1] == "after 5 replicates still undecided: 1 pair"


def test_each_rewind_point_gets_the_quantiles_that_are_undecided_there(begin):
    run, called, _ = begin({"60": KEEPS_UP, "80": KEEPS_UP}, 3, rewind="0,1ep")

    assert [line for line in called if line.startswith("retrain [3]")] == ["retrain [3] 60,80 0", "retrain [3] 60,80 1ep"]
    assert run.known_numbers() == [1, 2, 3]


def test_with_as_many_replicates_as_allowed_none_is_added(begin):
    _, called, told = begin({"60": [0.001, 0.001]}, 2, replicates=2)

    assert called == []
    assert told == ["after 2 replicates still undecided: 1 pair"]


def test_a_pair_of_which_a_network_diverged_gets_no_more(begin):
    _, called, told = begin({"60": [0.001, None, 0.001], "80": KEEPS_UP}, 9)

    assert called[2] == "retrain [2] 60,80 1ep"
    assert called[5:] == ["retrain [3] 80 1ep"]
    assert told[-1] == "undecided, because a network is missing, failed or diverged: 1 pair"


def test_only_the_quantiles_and_rewind_points_asked_for_get_more(tmp_path, monkeypatch):
    run = Run(tmp_path / "run", planned("60,80", "0,1ep", 2))
    stages, reporter = Stages(monkeypatch, {"60": KEEPS_UP, "80": KEEPS_UP}), Telling()
    stages.train(run, reporter)
    for point in ("0", "1ep"):
        stages.retrain(run, "60,80", point)
    stages.called.clear()

    decide.until_decided(run, 9, reporter, stages.retrain, "70..80:5", "1ep")

    assert stages.called == ["train [3]", "thresholds [3] 80", "retrain [3] 80 1ep"]
    assert reporter.told == [
        looks(9, "14%"),
        "undecided: 1 pair; adding replicate 3",
        "every pair is decided after 3 replicates",
    ]


def lacking(tmp_path, monkeypatch, above, quantiles, numbers):
    """Stages and a run whose replicates `numbers` have tickets at 60 but, of the last one, at none of 80."""
    run = Run(tmp_path / "run", planned(quantiles, "1ep", 2))
    stages = Stages(monkeypatch, above)
    for number in numbers:
        one = dataclasses.replace(run, chosen=(number,))
        stages.train(one, Telling())
        stages.retrain(one, "60" if number == numbers[-1] else quantiles, "1ep")
    stages.called.clear()
    return run, stages


def test_a_replicate_that_was_killed_in_the_midst_is_gone_on_with_before_another_is_added(tmp_path, monkeypatch):
    wavering = [0.02, -0.02, 0.02, -0.06, 0.02]
    run, stages = lacking(tmp_path, monkeypatch, {"60": wavering, "80": wavering}, "60,80", (1, 2, 3))
    reporter = Telling()

    decide.until_decided(run, 3, reporter, stages.retrain)

    assert stages.called == ["train [3]", "thresholds [3] 80", "retrain [3] 80 1ep"]
    assert reporter.told == [
        "undecided: 2 pairs; going on with replicate 3",
        "after 3 replicates still undecided: 2 pairs",
    ]


def test_a_dense_network_that_was_killed_gets_its_pairs(tmp_path, monkeypatch):
    wavering = [0.02, -0.02, 0.02]
    run, stages = lacking(tmp_path, monkeypatch, {"60": wavering}, "60", (1, 2))
    run.replicate(3).folder.mkdir()
    reporter = Telling()

    decide.until_decided(run, 3, reporter, stages.retrain)

    assert stages.called == ["train [3]", "thresholds [3] 60", "retrain [3] 60 1ep"]
    assert reporter.told[0] == "undecided: 1 pair; going on with replicate 3"


def test_replicates_are_counted_whatever_their_numbers(tmp_path, monkeypatch):
    wavering = [0.02, -0.02, 0.02, -0.06, 0.02, 0.02, 0.02, 0.02, -0.02]
    run, stages = lacking(tmp_path, monkeypatch, {"60": wavering}, "60", (1, 2, 9))

    decide.until_decided(run, 5, Telling(), stages.retrain)

    assert [line for line in stages.called if line.startswith("retrain")] == ["retrain [3] 60 1ep", "retrain [4] 60 1ep"]


def test_where_training_leaves_a_pair_without_a_result_no_further_replicate_is_added(tmp_path, monkeypatch):
    run, stages = lacking(tmp_path, monkeypatch, {"60": [0.02, -0.02]}, "60", (1, 2))
    reporter = Telling()

    decide.until_decided(run, 9, reporter, lambda run, quantiles, rewind: None)  # as when another process trains it

    assert stages.called == ["train [3]", "thresholds [3] 60"]
    assert reporter.told == [
        looks(9, "14%"),
        "undecided: 1 pair; adding replicate 3",
        "replicate 3 has no result of 1 pair yet: the same command goes on there",
    ]


def test_a_replicate_whose_dense_network_diverged_is_passed_over(tmp_path, monkeypatch):
    run, stages = lacking(tmp_path, monkeypatch, {"60": [0.02, -0.02, 0.02, 0.02]}, "60", (1, 2))
    write(run.replicate(3).dense, 0.1, status="diverged", replicate=3)
    reporter = Telling()

    decide.until_decided(run, 3, reporter, stages.retrain)

    assert stages.called == ["train [4]", "thresholds [4] 60", "retrain [4] 60 1ep"]
    assert reporter.told[0] == "undecided: 1 pair; adding replicate 4"


def test_a_network_that_failed_is_named_with_the_command_that_tries_it_again(tmp_path, monkeypatch):
    run, stages = lacking(tmp_path, monkeypatch, {"60": KEEPS_UP}, "60", (1, 2))
    write(run.replicate(3).dense, 0.9, replicate=3)
    ticket(run, 3, "60", None, 45, "ticket", "failed")
    reporter = Telling()

    decide.until_decided(run, 9, reporter, stages.retrain)

    assert stages.called == []
    assert reporter.told == [
        looks(9, "14%"),
        "undecided, because a network is missing, failed or diverged: 1 pair; `imp retrain --replicate 3` tries those that "
        "failed again",
    ]


def test_replicates_that_are_there_already_are_counted(tmp_path, monkeypatch):
    run = Run(tmp_path / "run", planned("60"))
    dense(run, 0.90, 0.91, 0.92)
    all_replicates(run, "60", 0.001)
    for number in (1, 2, 3):
        in_round(run, number, "weights", 1, (0.90, 0.90, 0.93)[number - 1])  # of rounds nothing is decided
    stages, reporter = Stages(monkeypatch, {}), Telling()

    decide.until_decided(run, 9, reporter, stages.retrain)

    assert stages.called == []
    assert reporter.told == [looks(9, "14%"), "every pair is decided after 3 replicates"]


def test_as_typed_a_replicate_is_added_with_its_dense_network_its_masks_and_the_pair(work):
    imp("thresholds", "--quantiles", "75", cwd=work)  # which the recipe has not
    done = imp("retrain", "--quantiles", "75", "--rewind", "1ep", "--until-decided", "2", cwd=work)

    assert "undecided: 1 pair; adding replicate 2" in done.stderr
    assert done.stderr.splitlines()[-1] == "after 2 replicates still undecided: 1 pair"
    results = sorted(str(path.relative_to(work / "runs/digits")) for path in work.glob("runs/digits/*/**/result.json"))
    assert results == [
        f"replicate-{number}/{name}/result.json" for number in (1, 2) for name in ("retrain/q75-step-000017/ticket", "train")
    ]
    assert (work / "runs/digits/replicate-2/masks/q75.h5").exists()
    rows = json.loads(imp("report", "--json", cwd=work).stdout)["groups"]
    assert {(row["quantile"], row["rewind"]): row["count"] for row in rows if row["count"]} == {(None, "0"): 2, (75, "1ep"): 2}


def test_as_typed_a_network_that_diverges_does_not_keep_the_others_from_more_replicates(work):
    snapshot = work / "runs/digits/replicate-1/train/snapshots/step-000000.h5"
    state = store.load_state(snapshot)
    state.weights["fc1/bias"][:] = 1e38
    store.save_state(snapshot, state)
    relist(Replicate(work / "runs/digits/replicate-1"), snapshot)

    options = ["--quantiles", "90", "--set", "retrain.controls=[]", "--until-decided", "2"]
    done = imp("retrain", *options, cwd=work, check=False)

    assert done.returncode == 1
    assert "not finished: replicate-1 q90-step-000000 ticket diverged" in done.stderr
    assert done.stderr.splitlines()[-2:] == [
        "after 2 replicates still undecided: 1 pair",
        "undecided, because a network is missing, failed or diverged: 1 pair",
    ]
    assert (work / "runs/digits/replicate-2/retrain/q90-step-000017/ticket/result.json").exists()
    assert not (work / "runs/digits/replicate-2/retrain/q90-step-000000").exists()


def test_another_replicate_is_trained_and_pruned_by_its_number(work):
    imp("train", "--replicate", "2", cwd=work)
    imp("rounds", "--replicate", "2", "--levels", "1", "--set", "rounds.controls=[]", cwd=work)

    assert (work / "runs/digits/replicate-2/rounds/weights-step-000000/01/ticket/final.h5").exists()
    assert not (work / "runs/digits/replicate-1/rounds").exists()
    assert "replicates = 1\n" in (work / "runs/digits/recipe.toml").read_text()
    first, second = (work / f"runs/digits/replicate-{number}/train/snapshots/step-000000.h5" for number in (1, 2))
    assert first.read_bytes() != second.read_bytes()


def test_the_help_has_the_error_of_looking_after_each_replicate():
    option = typing.get_type_hints(commands.retrain, include_extras=True)["until_decided"].__metadata__[0]

    errors = {
        int(most): int(error) / 100 for error, most in re.findall(r"(\d+) % (?:of cases )?for (?:N = )?(\d+)", option.help)
    }

    assert errors.keys() == {5, 7, 10, 20}
    assert errors == pytest.approx({most: verdicts.error_until_decided(most) for most in errors}, abs=0.006)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--replicate", "0"], "--replicate"),
        (["--until-decided", "0"], "--until-decided"),
        (["--until-decided", "1001"], "--until-decided"),
        (["--until-decided", "3", "--replicate", "2"], "leave out --replicate"),
        (["--until-decided", "3", "--part", "2/2"], "leave out --part"),
    ],
)
def test_replicates_that_make_no_sense_are_refused(work, options, words):
    refused(imp("retrain", *options, cwd=work, check=False), words)


def test_a_replicate_that_is_not_trained_says_what_comes_first(work):
    refused(
        imp("rounds", "--replicate", "7", cwd=work, check=False),
        "replicate-7/train holds no finished training: run `imp train --replicate 7` first",
    )
    refused(
        imp("thresholds", "--replicate", "7", cwd=work, check=False),
        "replicate-7/train holds no finished training: run `imp train --replicate 7` first",
    )
    assert not (work / "runs/digits/replicate-7").exists()
