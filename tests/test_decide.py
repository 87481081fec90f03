"""Replicates added to undecided tickets: on a hand-made run with a training that only writes results, and on a trained one."""

import dataclasses

import pytest
from handmade import dense, in_round, planned, ticket, write
from helpers import Heard, imp_here, refused, selected

from lottery.results import frame, grouping
from lottery.rundir.run import EVERYTHING, Run, open_run
from lottery.stages import decide

KEEPS_UP = [0.001, 0.002, 0.001]  # above dense, by replicate


def looks(most):
    return (
        f"looking after each replicate, up to {most}, by bounds of 98.6% confidence: all looks together then err as often "
        "as one by bounds of 95%"
    )


class Training:
    """A training that writes results: dense networks of 90 %, tickets `above` that by quantile, one for each replicate from
    1."""

    def __init__(self, above):
        self.above, self.called = above, []

    def __call__(self, run, selection):
        (number,) = run.numbers()
        self.called.append(f"{number}: {selection.quantiles} {selection.rewind}")
        self.dense(run, number)
        for quantile in map(str, selection.quantiles):
            above = self.above[quantile][number - 1]
            accuracy, status = (None, "diverged") if above is None else (0.9 + above, "done")
            ticket(run, number, quantile, accuracy, {"0": 0, "1ep": 45}[str(selection.rewind)], "ticket", status)

    def dense(self, run, number):
        if not run.replicate(number).dense.is_finished:
            write(run.replicate(number).dense, 0.9, replicate=number)

    def begun(self, run, numbers, quantiles, rewind="1ep"):
        """Have these replicates trained, before anything is decided."""
        for number in numbers:
            for point in rewind.split(","):
                self(dataclasses.replace(run, chosen=(number,)), selected(quantiles=quantiles, rewind=point))
        self.called.clear()


def decided(run, most, reporter, training, selection=EVERYTHING):
    """Have `training` do what is asked for until every ticket is decided."""
    for added, chosen in decide.until_decided(run, most, reporter, selection):
        training(added, chosen)


@pytest.fixture
def begin(tmp_path):
    """A function that makes a run of one replicate with the quantiles of `above` at 1ep, and decides with `most`: the run,
    what was trained, what was said."""

    def started(above, most, replicates=1, rewind="1ep", selection=EVERYTHING):
        run, training, reporter = (
            Run(tmp_path / "run", planned(",".join(above), rewind, replicates)),
            Training(above),
            Heard(),
        )
        training.begun(run, range(1, replicates + 1), ",".join(above), rewind)
        decided(run, most, reporter, training, selection)
        return run, training.called, reporter.said

    return started


WAVERING = [0.02, -0.02, 0.02, -0.06, -0.06, -0.06, -0.06]


def adding(most, *replicates):
    return [looks(most), *(f"undecided: 1 ticket; adding replicate {number}" for number in replicates)]


@pytest.mark.parametrize(
    ("above", "most", "more", "called", "told"),
    [
        (
            {"60": [0.001, 0.002, 0.001, 0.0]},
            10,
            {},
            ["2: 60 1ep", "3: 60 1ep"],
            [*adding(10, 2, 3), "every ticket is decided after 3 replicates"],
        ),
        (
            {"60": KEEPS_UP, "97.5": WAVERING},
            5,
            {},
            ["2: 60,97.5 1ep", "3: 60,97.5 1ep", "4: 97.5 1ep", "5: 97.5 1ep"],
            ["after 5 replicates still undecided: 1 ticket"],
        ),
        (
            {"60": KEEPS_UP, "80": KEEPS_UP},
            3,
            {"rewind": "0,1ep"},
            [f"{number}: 60,80 {point}" for number in (2, 3) for point in ("0", "1ep")],
            ["every ticket is decided after 3 replicates"],
        ),
        ({"60": [0.001, 0.001]}, 2, {"replicates": 2}, [], ["after 2 replicates still undecided: 1 ticket"]),
        (
            {"60": [0.001, None, 0.001], "80": KEEPS_UP},
            9,
            {},
            ["2: 60,80 1ep", "3: 80 1ep"],
            ["undecided, because a network is missing, failed or diverged: 1 ticket"],
        ),
        (
            {"60": KEEPS_UP, "80": KEEPS_UP},
            9,
            {"replicates": 2, "rewind": "0,1ep", "selection": selected(quantiles="70..80:5", rewind="1ep")},
            ["3: 80 1ep"],
            [*adding(9, 3), "every ticket is decided after 3 replicates"],
        ),
    ],
    ids=["keeps up", "the undecided alone", "each rewind point", "as many as allowed", "diverged", "asked for"],
)
def test_tickets_that_are_undecided_get_replicates_until_three_say_so(begin, above, most, more, called, told):
    run, trained, said = begin(above, most, **more)

    assert trained == called
    assert said[-len(told) :] == told
    assert run.known_numbers() == [*range(1, max([more.get("replicates", 1), *(int(line[0]) for line in called)]) + 1)]


def test_tickets_of_another_family_and_of_rounds_get_none(tmp_path):
    other = {"quantiles": "60", "rewind": "1ep", "controls": []}
    run = Run(tmp_path / "run", planned("60", replicates=2, rounds={"rounds": 1}, other=other))
    training = Training({"60": KEEPS_UP})
    training.begun(run, (1, 2), "60")
    for number in (1, 2):
        ticket(run, number, "60", 0.9, 45, family="other")
        in_round(run, number, "weights", 1, 0.9)

    decided(run, 3, Heard(), training, selected(("oneshot", "weights")))

    assert training.called == ["3: 60 1ep"]


def lacking(tmp_path, above, quantiles, numbers):
    """A training and a run whose replicates `numbers` have tickets at 60 but, of the last one, at none of 80."""
    run, training = Run(tmp_path / "run", planned(quantiles, "1ep", 2)), Training(above)
    training.begun(run, numbers[:-1], quantiles)
    training.begun(run, numbers[-1:], "60")
    return run, training, Heard()


def test_a_replicate_that_was_killed_in_the_midst_is_gone_on_with_before_another_is_added(tmp_path):
    wavering = [0.02, -0.02, 0.02, -0.06, 0.02]
    run, training, reporter = lacking(tmp_path, {"60": wavering, "80": wavering}, "60,80", (1, 2, 3))

    decided(run, 3, reporter, training)

    assert training.called == ["3: 80 1ep"]
    assert reporter.said == [
        "undecided: 2 tickets; continuing replicate 3",
        "after 3 replicates still undecided: 2 tickets",
    ]


def killed(run):
    run.replicate(3).folder.mkdir()


def diverged(run):
    write(run.replicate(3).dense, 0.1, status="diverged", replicate=3)


@pytest.mark.parametrize(
    ("numbers", "trouble", "most", "called", "told"),
    [
        ((1, 2), killed, 3, ["3: 60 1ep"], "continuing replicate 3"),
        ((1, 2), diverged, 3, ["4: 60 1ep"], "adding replicate 4"),
        ((1, 2, 9), lambda run: None, 5, ["3: 60 1ep", "4: 60 1ep"], "adding replicate 3"),
    ],
)
def test_a_replicate_that_was_begun_is_gone_on_with_and_one_that_diverged_passed_over(
    tmp_path, numbers, trouble, most, called, told
):
    wavering = [0.02, -0.02, 0.02, -0.06, 0.02, 0.02, 0.02, 0.02, -0.02]
    run, training, reporter = lacking(tmp_path, {"60": wavering}, "60", numbers)
    trouble(run)

    decided(run, most, reporter, training)

    assert training.called == called
    assert f"undecided: 1 ticket; {told}" in reporter.said


def test_where_training_leaves_a_ticket_without_a_result_no_further_replicate_is_added(tmp_path):
    run, _, reporter = lacking(tmp_path, {"60": [0.02, -0.02]}, "60", (1, 2))
    asked = []

    decided(run, 9, reporter, lambda *arguments: asked.append(arguments))  # another process trains it

    assert len(asked) == 1
    assert reporter.said == [
        *adding(9, 3),
        "replicate 3 has no result for 1 ticket yet: the same command goes on",
    ]


def test_a_network_that_failed_is_named_with_the_command_that_tries_it_again(tmp_path):
    run, training, reporter = lacking(tmp_path, {"60": KEEPS_UP}, "60", (1, 2))
    training.dense(run, 3)
    ticket(run, 3, "60", None, 45, "ticket", "failed")

    decided(run, 9, reporter, training)

    assert training.called == []
    assert reporter.said == [
        looks(9),
        "undecided, because a network is missing, failed or diverged: 1 ticket; `imp retrain --replicate 3` tries those that "
        "failed again",
    ]


def test_a_replicate_is_added_with_its_dense_network_its_masks_and_the_ticket(work):
    imp_here("thresholds", "--quantiles", "75", cwd=work)  # which the recipe has not
    done = imp_here("retrain", "--quantiles", "75", "--rewind", "1ep", "--until-decided", "2", cwd=work)

    assert "undecided: 1 ticket; adding replicate 2" in done.stderr
    assert done.stderr.splitlines()[-1] == "after 2 replicates still undecided: 1 ticket"
    results = sorted(str(path.relative_to(work / "runs/digits")) for path in work.glob("runs/digits/*/**/result.json"))
    assert results == [
        f"replicate-{number}/{name}/result.json" for number in (1, 2) for name in ("oneshot/q75-step-000017/ticket", "train")
    ]
    assert (work / "runs/digits/replicate-2/oneshot/masks/q75.h5").exists()
    run = open_run(work / "runs/digits")
    groups = frame.each(grouping.groups(run, frame.rows(run)))
    assert {(group.mask, group.rewind): group.count for group in groups if group.count} == {("", "0"): 2, ("q75", "1ep"): 2}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--until-decided", "1001"], "--until-decided"),
        (["--until-decided", "3", "--replicate", "2"], "leave out --replicate"),
        (["--until-decided", "3", "--part", "2/2"], "leave out --part"),
    ],
)
def test_replicates_that_make_no_sense_are_refused(work, options, words):
    refused(imp_here("retrain", *options, cwd=work, check=False), words)


def test_a_replicate_that_is_not_trained_says_what_comes_first(work):
    for command in ("rounds", "thresholds"):
        refused(
            imp_here(command, "--replicate", "7", cwd=work, check=False),
            "replicate-7/train holds no finished training: run `imp train --replicate 7` first",
        )
    assert not (work / "runs/digits/replicate-7").exists()


@pytest.mark.parametrize(("status", "lacks"), [("diverged", False), ("failed", True), (None, True)])
def test_a_soup_of_which_a_network_diverged_is_not_waited_for(tmp_path, status, lacks):
    run = Run(tmp_path / "run", planned("60", controls=["soup2"], controls_at="60", replicates=1))
    dense(run, 0.9)
    ticket(run, 1, "60", 0.9)
    if status:
        ticket(run, 1, "60", None, variant="again2", status=status)
    [group] = grouping.tickets(grouping.groups(run, frame.rows(run)))["oneshot", "1ep"]

    assert decide._lacks(run, 1, group) is lacks
