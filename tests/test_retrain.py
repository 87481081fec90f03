"""Which networks are ready, which wait, how a command's end is told: on hand-made runs, with nothing trained."""

import dataclasses
from types import SimpleNamespace

import pytest
from handmade import amend, dense, in_round, planned, ticket

from lottery import stages
from lottery.experiment.plan import Plan, Selection
from lottery.fanout.tasks import WHOLE, Part
from lottery.progress import Reporter
from lottery.results import following
from lottery.rundir.run import EVERYTHING, Run
from lottery.stages import retrain
from lottery.stages.retrain import Execution, Summary, told

DONE = {"status": "done", "reason": "", "validation_accuracy": 0.9, "seconds": 4.0}


class Telling(Reporter):
    """A reporter that keeps what it is told to say."""

    def __init__(self):
        super().__init__(quiet=True)
        self.told = []

    def say(self, message):
        self.told.append(message)


class HandOut(retrain._HandOut):
    """The hand-out of a run, and its ranks: `train` writes the result of a network as one would."""

    def __init__(self, run, part=WHOLE):
        super().__init__(run, Plan(run.recipe, 45), Telling(), EVERYTHING, part)

    def train(self, network, status="done"):
        """The networks that can be trained after it."""
        if status != "busy":
            write(self.run, network, status)
        return self.done(network, DONE if status == "done" else {"status": status, "reason": "for a reason"})

    def named(self, label, variant="ticket", family="weights", replicate=1):
        """The network of a round."""
        found = self.run.tickets(self.planned)
        return next(one for one in found if names([one]) == [f"{family} {label} {variant}"] and one.replicate == replicate)


def write(run, network, status="done"):
    accuracy = 0.9 if status == "done" else None
    mask = network.mask
    place = (run, network.replicate)
    if mask.rewind is None:
        ticket(*place, mask.label.removeprefix("q"), accuracy, network.rewind, network.variant, status)
    else:
        in_round(*place, network.family, mask.round, accuracy, network.rewind, network.variant, status)


@pytest.fixture(autouse=True)
def checked(monkeypatch):
    """Nothing is made from files here, and so none is looked for."""
    monkeypatch.setattr(retrain, "checked_tickets", lambda run, selection: run.tickets(run.plan(), selection))
    monkeypatch.setattr(retrain._HandOut, "_check_lineage", lambda *_: None)
    monkeypatch.setattr(Run, "adopt", lambda run: None)


@pytest.fixture
def make(tmp_path):
    """A function that makes a hand-out: three rounds of `weights` from 1ep, or as told."""

    def made(replicates=1, part=WHOLE, **table):
        rounds = {"rounds": 3, "rewind": "1ep", **table}
        run = Run(tmp_path / "run", planned("", replicates=replicates, rounds=rounds))
        dense(run, *[0.9] * replicates)
        return HandOut(run, part)

    return made


def names(found):
    """`weights 3 reinit`."""
    return [f"{one.family} {one.mask.round} {one.variant}" for one in found]


def test_of_a_new_chain_only_the_first_round_is_ready(make):
    hand_out = make()

    assert names(hand_out.begin()) == ["weights 1 ticket"]
    assert names(hand_out.waiting) == ["weights 2 ticket", "weights 3 ticket"]


def test_each_round_is_ready_when_the_one_before_is_done(make):
    hand_out = make()
    (first,) = hand_out.begin()

    (second,) = hand_out.train(first)
    (third,) = hand_out.train(second)

    assert names([second, third]) == ["weights 2 ticket", "weights 3 ticket"]
    assert hand_out.train(third) == []
    assert dataclasses.astuple(hand_out.end()) == (3, [])


def test_a_chain_goes_on_at_the_first_round_without_a_result(make):
    hand_out = make()
    for number in (1, 2):
        write(hand_out.run, hand_out.named(number))

    ready = hand_out.begin()

    assert names(ready) == ["weights 3 ticket"]
    assert hand_out.reporter.told == ["3 networks under masks: 2 finished, 1 to train"]


def test_what_a_training_left_that_died_in_its_last_moment_goes(make):
    hand_out = make()
    first, second = (hand_out.named(number) for number in (1, 2))
    for network, status in ((first, "done"), (second, "diverged")):
        write(hand_out.run, network, status)
        for left in (hand_out.run.network(network).checkpoint, hand_out.run.network(network).attempt):
            left.touch()

    hand_out.begin()

    assert [path.name for path in hand_out.run.network(first).folder.iterdir()] == ["result.json"]
    assert hand_out.run.network(second).checkpoint.exists()  # a network that diverged keeps it


def test_controls_are_ready_with_their_mask_and_come_after_the_tickets(make):
    hand_out = make(controls=["reinit", "shuffle"], controls_at="1,2")

    first = hand_out.begin()
    released = hand_out.train(first[0])

    assert names(first) == ["weights 1 ticket", "weights 1 reinit", "weights 1 shuffle"]
    assert names(released) == ["weights 2 ticket", "weights 2 reinit", "weights 2 shuffle"]
    assert hand_out.train(first[1]) == []


def test_controls_that_were_added_to_finished_rounds_are_ready_at_once(make):
    hand_out = make(controls=["reinit"], controls_at="1..3")
    for number in (1, 2):
        write(hand_out.run, hand_out.named(number))

    assert names(hand_out.begin()) == ["weights 3 ticket", "weights 1 reinit", "weights 2 reinit", "weights 3 reinit"]


def test_the_network_trained_as_long_needs_only_its_own_round_before(make):
    hand_out = make(methods=["lr"])

    one, other = hand_out.begin()

    assert names([one, other]) == ["lr 1 ticket", "lr 1 extended"]
    assert names(hand_out.train(other)) == ["lr 2 extended"]
    assert names(hand_out.train(one)) == ["lr 2 ticket"]


def test_chains_families_and_replicates_do_not_wait_for_each_other(make):
    hand_out = make(replicates=2, methods=["weights", "other"], method="weights")

    ready = hand_out.begin()

    assert [(one.replicate, one.family, one.mask.round) for one in ready] == [
        (1, "weights", 1),
        (1, "other", 1),
        (2, "weights", 1),
        (2, "other", 1),
    ]
    assert [(one.replicate, one.family, one.mask.round) for one in hand_out.train(ready[3])] == [(2, "other", 2)]


@pytest.mark.parametrize("status", ["failed", "diverged"])
def test_a_round_that_is_not_done_stops_its_chain_and_the_others_are_told_to_wait(make, status):
    hand_out = make(methods=["weights", "lr"], controls=["reinit"], controls_at="2")
    weights, lr, _ = hand_out.begin()

    assert hand_out.train(weights, status) == []
    assert names(hand_out.train(lr)) == ["lr 2 ticket", "lr 2 reinit"]
    summary = hand_out.end()

    start = "replicate-1 weights round"
    assert [line for line in summary.lines() if line.startswith(start)] == [
        f"{start}-01-step-000045 ticket {status}: for a reason",
        f"{start}-02-step-000045 ticket waiting: needs {start}-01-step-000045 ticket",
        f"{start}-02-step-000045 reinit waiting: needs {start}-01-step-000045 ticket",
        f"{start}-03-step-000045 ticket waiting: needs {start}-02-step-000045 ticket",
    ]
    assert summary.finished == 1


def test_what_waits_for_a_round_that_another_process_trains_is_busy_too(make):
    hand_out = make()
    (first,) = hand_out.begin()

    assert hand_out.train(first, "busy") == []
    summary = hand_out.end()

    assert len(summary.unfinished) == 3
    assert summary.only_busy


def test_a_round_follows_on_one_that_a_rank_has_reported_before_its_result_shows_up_here(make):
    hand_out = make()
    (first,) = hand_out.begin()

    assert names(hand_out.done(first, DONE)) == ["weights 2 ticket"]


def test_a_round_that_diverged_before_stops_its_chain_at_once(make):
    hand_out = make()
    write(hand_out.run, hand_out.named(1))
    write(hand_out.run, hand_out.named(2), "diverged")
    amend(hand_out.run.network(hand_out.named(2)).result, reason="the loss was not finite")

    assert hand_out.begin() == []
    summary = hand_out.end()
    assert [line.removeprefix("replicate-1 weights ") for line in summary.lines()] == [
        "round-02-step-000045 ticket diverged: the loss was not finite",  # told again, however often it is asked for
        "round-03-step-000045 ticket waiting: needs replicate-1 weights round-02-step-000045 ticket",
    ]
    assert summary.finished == 1


def test_a_round_that_failed_before_is_tried_again(make):
    hand_out = make()
    write(hand_out.run, hand_out.named(1))
    write(hand_out.run, hand_out.named(2), "failed")

    assert names(hand_out.begin()) == ["weights 2 ticket"]


def following_on(hand_out, monkeypatch, number):
    """Let the control of a round follow on `hand_out`; how often it was asked for."""
    asked = []

    def controls(run, planned, families):
        asked.append(number)
        one = hand_out.named(number)
        return planned.controls_of(one, run.recipe.families[one.family])

    monkeypatch.setattr(following, "controls", controls)
    return asked


def test_what_follows_is_listed_once_when_nothing_is_under_way_any_more(make, monkeypatch):
    hand_out = make(methods=["weights", "lr"], controls=["reinit"], controls_at="")
    asked = following_on(hand_out, monkeypatch, 2)
    ready = hand_out.begin()

    trained = []
    while not asked:
        trained.append(ready[0])
        ready = [*ready[1:], *hand_out.train(ready[0])]

    assert {*names(trained)} == {
        f"{family} {number} {variant}"
        for number in (1, 2, 3)
        for family, variant in (("weights", "ticket"), ("lr", "ticket"), ("lr", "extended"))
    }
    assert (names(ready), asked) == (["weights 2 reinit"], [2])
    assert hand_out.reporter.told[-2:] == [
        "controls of the headline: weights round-02-step-000045",
        "1 networks under masks: 0 finished, 1 to train",
    ]
    assert hand_out.train(ready[0]) == []
    assert dataclasses.astuple(hand_out.end()) == (10, [])
    assert asked == [2]


def test_what_follows_on_finished_networks_is_ready_at_once(make, monkeypatch):
    hand_out = make(controls=["reinit"], controls_at="")
    for number in (1, 2, 3):
        write(hand_out.run, hand_out.named(number))
    following_on(hand_out, monkeypatch, 3)

    assert names(hand_out.begin()) == ["weights 3 reinit"]


def test_what_follows_does_not_wait_for_networks_that_never_come(make, monkeypatch):
    hand_out = make(controls=["reinit"], controls_at="")
    following_on(hand_out, monkeypatch, 1)
    (first,) = hand_out.begin()
    (second,) = hand_out.train(first)

    assert names(hand_out.train(second, "diverged")) == ["weights 1 reinit"]
    assert [result["status"] for _, result in hand_out.end().unfinished] == ["diverged", "waiting"]


def test_of_what_follows_a_part_of_the_grid_has_its_own_part(make, monkeypatch):
    hand_out = make(replicates=2, part=Part(2, 2), rounds=1, controls=["reinit"], controls_at="")
    pair = [hand_out.named(1, replicate=number) for number in (1, 2)]
    family = hand_out.run.recipe.families["weights"]
    listed = [control for one in pair for control in hand_out.planned.controls_of(one, family)]
    monkeypatch.setattr(following, "controls", lambda *_: listed)

    (first,) = hand_out.begin()
    (control,) = hand_out.train(first)

    assert [(str(one)[:11], one.variant) for one in (first, control)] == [("replicate-2", "ticket"), ("replicate-2", "reinit")]


def test_where_no_controls_are_trained_it_is_said_why(make):
    without_a_headline = make(rounds=1, controls=["reinit"], controls_at="")
    (first,) = without_a_headline.begin()
    without_a_headline.train(first)
    of_other_rounds = make(rounds=1, controls=["reinit"], controls_at="2")
    of_other_rounds.begin()

    assert without_a_headline.reporter.told[-1] == (
        "no controls of headlines yet: they need three replicates with all tickets trained, and a ticket that matches; "
        "the same command trains them then"
    )
    assert of_other_rounds.reporter.told[0] == "no controls: families.weights.controls_at = 2 names none of these masks"
    assert not any("yet" in line for line in of_other_rounds.reporter.told)


def test_one_shot_networks_wait_for_nothing_and_are_trained_longest_first(tmp_path):
    run = Run(tmp_path, planned("60,90", "0,1ep", replicates=1, controls=["reinit", "shuffle"]))
    dense(run, 0.9)
    hand_out = HandOut(run)

    ready = hand_out.begin()

    assert [f"{one.name} {one.variant}" for one in ready] == [
        *("q60-step-000000 ticket", "q90-step-000000 ticket", "q90-step-000000 reinit", "q90-step-000000 shuffle"),
        *("q60-step-000045 ticket", "q90-step-000045 ticket", "q90-step-000045 shuffle"),
    ]
    assert hand_out.waiting == []
    assert hand_out.train(ready[0]) == []


def test_every_network_is_counted_as_it_ends_with_its_outcome(make):
    hand_out = make()
    (first,) = hand_out.begin()

    hand_out.train(first)

    line = hand_out.reporter.told[-1]
    assert line.startswith("[1/3, ")
    assert line.endswith(" left] replicate-1 weights round-01-step-000045 ticket: validation 90.00%, 4 s")
    assert told({"status": "failed", "reason": "KeyError: 'x'"}) == "failed: KeyError: 'x'"


def test_what_another_process_has_finished_meanwhile_is_finished_and_what_needs_it_is_left_to_that_one(make):
    hand_out = make()
    (first,) = hand_out.begin()

    hand_out.train(first, "busy")
    write(hand_out.run, first)
    summary = hand_out.end()

    assert summary.finished == 1
    assert names([one for one, _ in summary.unfinished]) == ["weights 2 ticket", "weights 3 ticket"]
    assert summary.only_busy


@pytest.mark.parametrize(("statuses", "busy"), [(["busy", "busy"], True), (["busy", "failed"], False), ([], True)])
def test_a_command_that_only_left_what_others_train_can_say_so(statuses, busy):
    assert Summary(3, [("a network", {"status": status}) for status in statuses]).only_busy == busy


@pytest.fixture
def trained(monkeypatch):
    """What the whole stage trains, in its order, by a worker that writes results."""
    order = []

    class Worker:
        def __init__(self, run, *arguments):
            self.run = run

        def __call__(self, network):
            order.append(f"{network.replicate} {names([network])[0]}")
            write(self.run, network)
            return DONE

    monkeypatch.setattr(retrain, "start_tensorflow", lambda: None)
    monkeypatch.setattr(Run, "manifest", lambda run: SimpleNamespace(digest="a"))
    monkeypatch.setattr(stages, "tickets", SimpleNamespace(TicketWorker=Worker), raising=False)
    return order


@pytest.mark.parametrize(
    ("execution", "expected"),
    [
        (
            Execution(),
            [
                *("1 weights 1 ticket", "1 weights 2 ticket", "1 weights 2 reinit"),
                *("2 weights 1 ticket", "2 weights 2 ticket", "2 weights 2 reinit"),
            ],
        ),
        (Execution(part=Part(2, 2)), ["2 weights 1 ticket", "2 weights 2 ticket", "2 weights 2 reinit"]),
    ],
)
def test_the_whole_stage_trains_each_network_once_it_can_and_ends(make, trained, execution, expected):
    run = make(replicates=2, rounds=2, controls=["reinit"], controls_at="2").run

    summary = retrain.retrain(run, Telling(), EVERYTHING, execution)

    assert trained == expected
    assert dataclasses.astuple(summary) == (len(expected), [])
    assert retrain.retrain(run, Telling(), EVERYTHING, execution).finished == len(expected)
    assert trained == expected


def test_what_starts_ranks_gives_them_its_own_selection_with_the_families_by_name(make, monkeypatch):
    run = dataclasses.replace(make(replicates=2, methods=["weights", "lr"]).run, chosen=(2,))
    asked = []
    monkeypatch.setattr(retrain.executors, "on_ranks", lambda *arguments: asked.append(arguments))
    execution = Execution(3, per_gpu=2, stall=60.0, part=Part(1, 4))

    retrain._ranks(run, run.plan(), Selection(rounds=2), execution)

    (count, arguments, list_missing, _, threads), *_ = asked
    assert (count, threads) == (3, 1)
    assert arguments == [
        *("retrain", "--run", str(run.folder), "--replicate", "2", "--family", "weights", "--family", "lr", "--rounds", "2"),
        *("--part", "1/4", "--stall", "60.0", "--per-gpu", "2"),
    ]
    assert names(list_missing()) == ["weights 1 ticket", "weights 2 ticket"]
