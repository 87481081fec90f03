"""Which networks are ready, which wait, how a command's end is told: on hand-made runs, with nothing trained."""

from functools import partial
from types import SimpleNamespace

import pytest
from handmade import amend, dense, in_round, planned, ticket
from helpers import Heard

from lottery import stages
from lottery.base import files
from lottery.base.errors import Moved
from lottery.executors.workload import WHOLE, Execution, Part
from lottery.experiment.plan import Plan
from lottery.results import grouping
from lottery.rundir.lineage import Lineage
from lottery.rundir.run import EVERYTHING, Run
from lottery.stages import retrain, stability, train
from lottery.stages.retrain import told

DONE = {"status": "done", "reason": "", "metric": "accuracy", "validation": 0.9, "seconds": 4.0}


class HandOut(retrain.HandOut):
    """The hand-out of a run, and its ranks: `train` writes the result of a network as one would."""

    def __init__(self, run, part=WHOLE):
        super().__init__(run, Plan(run.recipe, 45), Heard(), EVERYTHING, part)

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
    monkeypatch.setattr(Lineage, "_problem", lambda *_: None)
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


def lines(unfinished):
    return [f"{network} {told(outcome)}" for network, outcome in unfinished.items()]


def test_each_round_of_a_chain_is_ready_when_the_one_before_is_done_and_counted_as_it_ends(make):
    hand_out = make()

    (first,) = hand_out.begin()
    assert names(hand_out.waiting) == ["weights 2 ticket", "weights 3 ticket"]
    (second,) = hand_out.train(first)
    line = hand_out.reporter.said[-1]
    (third,) = hand_out.done(second, DONE)  # as a rank reports it, before its result shows up here

    assert names([first, second, third]) == ["weights 1 ticket", "weights 2 ticket", "weights 3 ticket"]
    assert hand_out.train(third) == []
    assert hand_out.end() == {}
    assert line.startswith("[1/3, ")
    assert line.endswith(" left] replicate-1 weights round-01-step-000045 ticket: validation 90.00%, 4 s")


@pytest.mark.parametrize(
    ("statuses", "table", "ready"),
    [
        (["done"] * 2, {}, ["weights 3 ticket"]),
        (["done", "failed"], {}, ["weights 2 ticket"]),  # which is tried again
        (
            ["done"] * 2,
            {"controls": ["reinit"], "controls_at": "1..3"},
            ["weights 3 ticket", "weights 1 reinit", "weights 2 reinit", "weights 3 reinit"],
        ),
    ],
)
def test_a_chain_goes_on_at_the_first_round_without_a_result_and_controls_of_finished_rounds_are_ready(
    make, statuses, table, ready
):
    hand_out = make(**table)
    for number, status in enumerate(statuses, 1):
        write(hand_out.run, hand_out.named(number), status)

    assert names(hand_out.begin()) == ready
    done, count = statuses.count("done"), 6 if table else 3
    assert f"{count} networks under masks: {done} finished, {count - done} to train" in hand_out.reporter.said


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


@pytest.mark.parametrize(
    ("table", "first", "released"),
    [
        (
            {"controls": ["reinit", "shuffle"], "controls_at": "1,2"},
            [f"1 weights 1 {variant}" for variant in ("ticket", "reinit", "shuffle")],
            [[f"1 weights 2 {variant}" for variant in ("ticket", "reinit", "shuffle")], [], []],
        ),
        ({"methods": ["lr"]}, ["1 lr 1 ticket", "1 lr 1 extended"], [["1 lr 2 ticket"], ["1 lr 2 extended"]]),
        (
            {"replicates": 2, "methods": ["weights", "other"], "method": "weights"},
            [f"{number} {family} 1 ticket" for number in (1, 2) for family in ("weights", "other")],
            [[f"{number} {family} 2 ticket"] for number in (1, 2) for family in ("weights", "other")],
        ),
    ],
    ids=["controls come after the tickets", "trained as long", "families and replicates"],
)
def test_networks_wait_for_their_own_round_before_and_for_no_other(make, table, first, released):
    def full(found):
        return [f"{one.replicate} {name}" for one, name in zip(found, names(found), strict=True)]

    hand_out = make(**table)
    ready = hand_out.begin()

    assert full(ready) == first
    assert [full(hand_out.train(one)) for one in ready] == released


@pytest.mark.parametrize("status", ["failed", "diverged"])
def test_a_round_that_is_not_done_stops_its_chain_and_the_others_are_told_to_wait(make, status):
    hand_out = make(methods=["weights", "lr"], controls=["reinit"], controls_at="2")
    weights, lr, _ = hand_out.begin()

    assert hand_out.train(weights, status) == []
    assert names(hand_out.train(lr)) == ["lr 2 ticket", "lr 2 reinit"]

    start = "replicate-1 weights round"
    assert [line for line in lines(hand_out.end()) if line.startswith(start)] == [
        f"{start}-01-step-000045 ticket {status}: for a reason",
        f"{start}-02-step-000045 ticket waiting: needs {start}-01-step-000045 ticket",
        f"{start}-02-step-000045 reinit waiting: needs {start}-01-step-000045 ticket",
        f"{start}-03-step-000045 ticket waiting: needs {start}-02-step-000045 ticket",
    ]


def test_a_round_that_diverged_before_stops_its_chain_at_once(make):
    hand_out = make()
    write(hand_out.run, hand_out.named(1))
    write(hand_out.run, hand_out.named(2), "diverged")
    amend(hand_out.run.network(hand_out.named(2)).result, reason="the loss was not finite")

    assert hand_out.begin() == []
    assert [line.removeprefix("replicate-1 weights ") for line in lines(hand_out.end())] == [
        "round-02-step-000045 ticket diverged: the loss was not finite",  # told again, however often it is asked for
        "round-03-step-000045 ticket waiting: needs replicate-1 weights round-02-step-000045 ticket",
    ]


def following_on(hand_out, monkeypatch, number):
    """Let the control of a round follow on `hand_out`; how often it was asked for."""
    asked = []

    def controls(run, planned, families):
        asked.append(number)
        one = hand_out.named(number)
        return planned.controls_of(one, run.recipe.families[one.family])

    monkeypatch.setattr(grouping, "controls", controls)
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
    assert hand_out.reporter.said[-2:] == [
        "controls of the headline: weights round-02-step-000045",
        "1 networks under masks: 0 finished, 1 to train",
    ]
    assert hand_out.train(ready[0]) == []
    assert hand_out.end() == {}
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
    assert [outcome["status"] for outcome in hand_out.end().values()] == ["diverged", "waiting"]


def test_of_what_follows_a_part_of_the_grid_has_its_own_part(make, monkeypatch):
    hand_out = make(replicates=2, part=Part(2, 2), rounds=1, controls=["reinit"], controls_at="")
    pair = [hand_out.named(1, replicate=number) for number in (1, 2)]
    family = hand_out.run.recipe.families["weights"]
    listed = [control for one in pair for control in hand_out.planned.controls_of(one, family)]
    monkeypatch.setattr(grouping, "controls", lambda *_: listed)

    (first,) = hand_out.begin()
    (control,) = hand_out.train(first)

    assert [(str(one)[:11], one.variant) for one in (first, control)] == [("replicate-2", "ticket"), ("replicate-2", "reinit")]


def test_where_no_controls_are_trained_it_is_said_why(make):
    without_a_headline = make(rounds=1, controls=["reinit"], controls_at="")
    (first,) = without_a_headline.begin()
    without_a_headline.train(first)
    of_other_rounds = make(rounds=1, controls=["reinit"], controls_at="2")
    of_other_rounds.begin()

    assert without_a_headline.reporter.said[-1] == (
        "no controls of headlines yet: they need three replicates with all tickets trained, and a ticket that matches; "
        "the same command trains them then"
    )
    assert of_other_rounds.reporter.said[0] == "no controls: families.weights.controls_at = 2 names none of these masks"
    assert not any("yet" in line for line in of_other_rounds.reporter.said)


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


@pytest.mark.parametrize(("finished", "left"), [(False, [1, 2, 3]), (True, [2, 3])])
def test_what_needs_a_round_that_another_process_trains_is_left_to_that_one(make, finished, left):
    hand_out = make()
    (first,) = hand_out.begin()

    assert hand_out.train(first, "busy") == []
    if finished:  # meanwhile
        write(hand_out.run, first)
    unfinished = hand_out.end()

    assert names(unfinished) == [f"weights {number} ticket" for number in left]
    assert {outcome["status"] for outcome in unfinished.values()} == {"busy"}


@pytest.fixture
def trained(monkeypatch):
    """What the whole stage trains, in its order, by a worker that writes results."""
    order = []

    class Worker:
        def __init__(self, run, *arguments):
            self.run = run

        def __call__(self, bundle):
            order.append([f"{network.replicate} {names([network])[0]}" for network in bundle.tickets])
            for network in bundle.tickets:
                write(self.run, network)
            return {"status": "done", "each": [DONE] * len(bundle.tickets)}

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
                *(["1 weights 1 ticket"], ["1 weights 2 ticket"], ["1 weights 2 reinit"]),
                *(["2 weights 1 ticket"], ["2 weights 2 ticket"], ["2 weights 2 reinit"]),
            ],
        ),
        (Execution(part=Part(2, 2)), [["2 weights 1 ticket"], ["2 weights 2 ticket"], ["2 weights 2 reinit"]]),
    ],
)
def test_the_whole_stage_trains_each_network_once_it_can_and_ends(make, trained, execution, expected):
    run = make(replicates=2, rounds=2, controls=["reinit"], controls_at="2").run

    assert retrain.retrain(run, Heard(), EVERYTHING, execution) == {}
    assert trained == expected
    assert retrain.retrain(run, Heard(), EVERYTHING, execution) == {}
    assert trained == expected


def test_networks_that_can_be_trained_at_once_are_handed_out_in_bundles(make, trained):
    run = make(replicates=3, rounds=2, controls=["reinit"], controls_at="2").run

    assert retrain.retrain(run, Heard(), EVERYTHING, Execution(bundle=2)) == {}
    assert trained == [
        ["1 weights 1 ticket", "2 weights 1 ticket"],
        ["1 weights 2 ticket", "2 weights 2 ticket"],
        ["1 weights 2 reinit", "2 weights 2 reinit"],
        ["3 weights 1 ticket"],
        ["3 weights 2 ticket"],
        ["3 weights 2 reinit"],
    ]


def test_for_an_executor_of_another_package_this_machine_is_not_measured_and_bundles_are_those_that_are_asked_for(
    make, trained, monkeypatch
):
    monkeypatch.setattr(retrain.bundles, "fastest", lambda *_: pytest.fail("measured"))
    run, elsewhere = make(replicates=2, rounds=1).run, "lottery.executors.here:Processes"

    assert retrain.retrain(run, Heard(), EVERYTHING, Execution(executor=elsewhere)) == {}
    assert [len(bundle) for bundle in trained] == [1, 1]


@pytest.mark.parametrize("kind", ["dense", "ticket", "pair"])
def test_a_worker_holds_its_run_so_that_it_writes_nothing_where_that_was(make, trained, monkeypatch, kind):
    run = make().run
    for stage, worker in ((train, "DenseWorker"), (stability, "PairWorker")):
        monkeypatch.setattr(stage, "start_tensorflow", lambda: None)
        monkeypatch.setattr(stage, worker, lambda *_: None)
    worker = {"dense": partial(train.dense_worker, run, None), "ticket": partial(retrain.ticket_worker, run)}
    with worker.get(kind, partial(stability.pair_worker, run, stability.USUAL))(None, None):
        run.folder.rename(run.folder.with_name("moved"))
        with pytest.raises(Moved):
            files.check_held()
