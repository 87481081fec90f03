"""Which networks are ready, which wait, how a command's end is told: on hand-made runs, with nothing trained."""

import dataclasses
from fractions import Fraction
from types import SimpleNamespace

import pytest
from handmade import dense, in_round, planned, ticket
from helpers import changed

from lottery import stages
from lottery.fanout.ranks import ALONE, Terms
from lottery.jobs import Chain, Job, Part, Round
from lottery.plan import Plan
from lottery.progress import Reporter
from lottery.run import Run
from lottery.stages import dispatch
from lottery.stages.dispatch import Summary, outcome

DONE = {"status": "done", "final": {"validation_accuracy": 0.9}, "timing": {"seconds": 4.0}}
CHAIN = Chain(1, "weights", 45)


class Telling(Reporter):
    """A reporter that keeps what it is told to say."""

    def __init__(self):
        super().__init__(quiet=True)
        self.told = []

    def say(self, message):
        self.told.append(message)


class Campaign(dispatch._Campaign):
    """A campaign on a run of three rounds, and its ranks: `train` writes the result of a job as one would."""

    def __init__(self, run):
        self.made = Plan(run.recipe, 45)
        super().__init__(run, self.made, Telling())

    def train(self, job, status="done"):
        """The jobs that can be done after it."""
        if status != "busy":
            write(self.run, job, status)
        return self.done(job, DONE if status == "done" else {"status": status, "reason": "for a reason"})


def write(run, job, status="done"):
    accuracy = 0.9 if status == "done" else None
    if isinstance(job, Job):
        ticket(run, job.replicate, str(job.quantile), accuracy, job.step, job.variant, status)
    else:
        chain = job.chain
        in_round(run, job.replicate, chain.method, job.level, accuracy, chain.step, job.variant, status)


@pytest.fixture
def make(tmp_path):
    """A function that makes a campaign: three rounds of `weights` from 1ep, or as told."""

    def made(replicates=1, **table):
        settings = {"levels": 3, "rewind": "1ep", **table}
        run = Run(tmp_path / "run", planned("", replicates=replicates, rounds=settings))
        dense(run, *[0.9] * replicates)
        return Campaign(run)

    return made


def rounds_of(campaign):
    return campaign.made.rounds(campaign.run.numbers(), campaign.run.recipe.rounds.levels)


def names(found):
    return [f"{job.chain.method} {job.level} {job.variant}" for job in found]


def test_of_a_new_chain_only_the_first_round_is_ready(make):
    campaign = make()

    assert names(campaign.begin(rounds_of(campaign))) == ["weights 1 ticket"]
    assert names(campaign.waiting) == ["weights 2 ticket", "weights 3 ticket"]


def test_each_round_is_ready_when_the_one_before_is_done(make):
    campaign = make()
    (first,) = campaign.begin(rounds_of(campaign))

    (second,) = campaign.train(first)
    (third,) = campaign.train(second)

    assert names([second, third]) == ["weights 2 ticket", "weights 3 ticket"]
    assert campaign.train(third) == []
    assert dataclasses.astuple(campaign.end()) == (3, [])


def test_a_chain_goes_on_at_the_first_round_without_a_result(make):
    campaign = make()
    for level in (1, 2):
        write(campaign.run, Round(CHAIN, level, "ticket"))

    ready = campaign.begin(rounds_of(campaign))

    assert names(ready) == ["weights 3 ticket"]
    assert campaign.reporter.told == ["3 networks under masks: 2 finished, 1 to train"]


def test_what_a_training_left_that_died_in_its_last_moment_goes(make):
    campaign = make()
    first, second = rounds_of(campaign)[:2]
    for job, status in ((first, "done"), (second, "diverged")):
        write(campaign.run, job, status)
        for left in (campaign.run.network(job).checkpoint, campaign.run.network(job).attempt):
            left.touch()

    campaign.begin(rounds_of(campaign))

    assert [path.name for path in campaign.run.network(first).folder.iterdir()] == ["result.json"]
    assert campaign.run.network(second).checkpoint.exists()  # a network that diverged keeps it


def test_controls_come_once_their_ticket_is_done_and_after_the_next_round(make):
    campaign = make(controls=["reinit", "shuffle"], control_levels="1,2")
    first = campaign.begin(rounds_of(campaign))

    released = campaign.train(first[0])

    assert names(first) == ["weights 1 ticket"]
    assert names(released) == ["weights 2 ticket", "weights 1 reinit", "weights 1 shuffle"]
    assert campaign.train(released[1]) == []


def test_controls_that_were_added_to_finished_rounds_are_ready_at_once(make):
    campaign = make(controls=["reinit"], control_levels="1..3")
    for level in (1, 2):
        write(campaign.run, Round(CHAIN, level, "ticket"))

    assert names(campaign.begin(rounds_of(campaign))) == ["weights 3 ticket", "weights 1 reinit", "weights 2 reinit"]


def test_the_network_trained_as_long_needs_only_its_own_round_before(make):
    campaign = make(methods=["lr"])

    one, other = campaign.begin(rounds_of(campaign))

    assert names([one, other]) == ["lr 1 ticket", "lr 1 extended"]
    assert names(campaign.train(other)) == ["lr 2 extended"]
    assert names(campaign.train(one)) == ["lr 2 ticket"]


def test_chains_and_replicates_do_not_wait_for_each_other(make):
    campaign = make(replicates=2, methods=["weights", "init"])

    ready = campaign.begin(rounds_of(campaign))

    assert [(job.replicate, job.chain.method, job.level) for job in ready] == [
        (1, "weights", 1),
        (1, "init", 1),
        (2, "weights", 1),
        (2, "init", 1),
    ]
    assert [(job.replicate, job.chain.method, job.level) for job in campaign.train(ready[3])] == [(2, "init", 2)]


@pytest.mark.parametrize("status", ["failed", "diverged"])
def test_a_round_that_is_not_done_stops_its_chain_and_the_others_are_told_to_wait(make, status):
    campaign = make(methods=["weights", "init"], controls=["reinit"], control_levels="1")
    weights, init = campaign.begin(rounds_of(campaign))

    assert campaign.train(weights, status) == []
    assert names(campaign.train(init)) == ["init 2 ticket", "init 1 reinit"]
    summary = campaign.end()

    start = "replicate-1 weights-step-000045 round"
    told = [line for line in summary.lines() if line.startswith(start)]
    assert told == [
        f"{start} 01 ticket {status}: for a reason",
        f"{start} 01 reinit waiting: needs {start} 01 ticket",
        f"{start} 02 ticket waiting: needs {start} 01 ticket",
        f"{start} 03 ticket waiting: needs {start} 02 ticket",
    ]
    assert summary.finished == 1


def test_what_waits_for_a_round_that_another_process_trains_is_busy_too(make):
    campaign = make()
    (first,) = campaign.begin(rounds_of(campaign))

    assert campaign.train(first, "busy") == []
    summary = campaign.end()

    assert len(summary.unfinished) == 3
    assert summary.only_busy


def test_a_round_follows_on_one_that_a_rank_has_reported_before_its_result_shows_up_here(make):
    campaign = make()
    (first,) = campaign.begin(rounds_of(campaign))

    assert names(campaign.done(first, DONE)) == ["weights 2 ticket"]


def test_a_round_that_diverged_before_stops_its_chain_at_once(make):
    campaign = make()
    write(campaign.run, Round(CHAIN, 1, "ticket"))
    stopped = Round(CHAIN, 2, "ticket")
    write(campaign.run, stopped, "diverged")
    result = campaign.run.network(stopped).result
    changed(result, reason="the loss was not finite")

    assert campaign.begin(rounds_of(campaign)) == []
    summary = campaign.end()
    assert [line.removeprefix("replicate-1 weights-step-000045 round ") for line in summary.lines()] == [
        "02 ticket diverged: the loss was not finite",  # told again, however often it is asked for
        "03 ticket waiting: needs replicate-1 weights-step-000045 round 02 ticket",
    ]
    assert summary.finished == 1


def test_a_round_that_failed_before_is_tried_again(make):
    campaign = make()
    write(campaign.run, Round(CHAIN, 1, "ticket"))
    write(campaign.run, Round(CHAIN, 2, "ticket"), "failed")

    assert names(campaign.begin(rounds_of(campaign))) == ["weights 2 ticket"]


@pytest.fixture
def one_shot(tmp_path):
    """A campaign of one-shot tickets of two quantiles rewound to 0 and 1ep, with controls, and its jobs, longest first."""
    run = Run(tmp_path, planned("60,90", "0,1ep", replicates=1, controls=["reinit", "shuffle"]))
    dense(run, 0.9)
    campaign = Campaign(run)
    return campaign, run.jobs(campaign.made)


def following(campaign, level):
    """Let the control of a round follow on `campaign`; how often it was asked for."""
    asked = []

    def list_later():
        asked.append(level)
        return [Round(CHAIN, level, "reinit")]

    campaign.list_later = list_later
    return asked


def test_what_follows_is_listed_once_when_nothing_is_under_way_any_more(make):
    campaign = make(methods=["weights", "init"])
    asked = following(campaign, 2)
    ready = campaign.begin(rounds_of(campaign))

    trained = []
    while not asked:
        trained.append(ready[0])
        ready = [*ready[1:], *campaign.train(ready[0])]

    assert names(trained) == [f"{method} {level} ticket" for level in (1, 2, 3) for method in ("weights", "init")]
    assert (names(ready), asked) == (["weights 2 reinit"], [2])
    assert campaign.reporter.told[-1] == "1 networks under masks: 0 finished, 1 to train"
    assert campaign.train(ready[0]) == []
    assert dataclasses.astuple(campaign.end()) == (7, [])
    assert asked == [2]


def test_what_follows_on_finished_networks_is_ready_at_once(make):
    campaign = make()
    for level in (1, 2, 3):
        write(campaign.run, Round(CHAIN, level, "ticket"))
    following(campaign, 3)

    assert names(campaign.begin(rounds_of(campaign))) == ["weights 3 reinit"]


def test_what_follows_does_not_wait_for_networks_that_never_come(make):
    campaign = make()
    following(campaign, 1)
    (first,) = campaign.begin(rounds_of(campaign))
    (second,) = campaign.train(first)

    assert names(campaign.train(second, "diverged")) == ["weights 1 reinit"]
    assert [result["status"] for _, result in campaign.end().unfinished] == ["diverged", "waiting"]


def test_one_shot_networks_wait_for_nothing(one_shot):
    campaign, jobs = one_shot

    ready = campaign.begin(jobs)

    assert sorted(ready, key=str) == sorted(jobs, key=str)
    assert campaign.waiting == []
    assert campaign.train(ready[0]) == []


def test_one_shot_networks_are_trained_longest_first(one_shot):
    campaign, jobs = one_shot

    assert campaign.begin(jobs) == jobs


def test_every_network_is_counted_as_it_ends_with_its_outcome(make):
    campaign = make()
    (first,) = campaign.begin(rounds_of(campaign))

    campaign.train(first)

    assert campaign.reporter.told[-1].startswith("[1/3, ")
    assert campaign.reporter.told[-1].endswith(" left] replicate-1 weights-step-000045 round 01 ticket: validation 90.00%, 4 s")


def test_of_a_failure_the_last_line_is_told():
    assert outcome({"status": "failed", "reason": "Traceback\n  File\nKeyError: 'x'\n"}) == "failed: KeyError: 'x'"


def test_what_another_process_has_finished_meanwhile_is_finished_and_what_needs_it_is_left_to_that_one(make):
    campaign = make()
    (first,) = campaign.begin(rounds_of(campaign))

    campaign.train(first, "busy")
    write(campaign.run, first)
    summary = campaign.end()

    assert summary.finished == 1
    assert [str(job)[-15:] for job, _ in summary.unfinished] == ["round 02 ticket", "round 03 ticket"]
    assert summary.only_busy


@pytest.mark.parametrize(("statuses", "busy"), [(["busy", "busy"], True), (["busy", "failed"], False), ([], True)])
def test_a_command_that_only_left_what_others_train_can_say_so(statuses, busy):
    job = Job(1, Fraction(90), 0, "ticket")

    assert Summary(3, [(job, {"status": status}) for status in statuses]).only_busy == busy


@pytest.fixture
def whole(make, monkeypatch):
    """A campaign, what its trainings were in their order, and a function that gives a whole command on it."""
    campaign, order = make(controls=["reinit"], control_levels="2"), []

    class Worker:
        def __init__(self, *arguments):
            pass

        def __call__(self, job):
            order.append(f"{job.level} {job.variant}")
            write(campaign.run, job)
            return DONE

    monkeypatch.setattr(dispatch, "start_tensorflow", lambda: None)
    monkeypatch.setattr(Run, "manifest", lambda run: SimpleNamespace(digest="a"))
    monkeypatch.setattr(stages, "tickets", SimpleNamespace(Worker=Worker), raising=False)

    def command(jobs, later=None, terms=ALONE):
        return dispatch.dispatch(campaign.run, campaign.made, lambda: jobs, campaign.reporter, terms, later)

    return campaign, order, command


def test_the_whole_command_trains_each_network_once_it_can_and_ends(whole):
    campaign, order, command = whole
    jobs = rounds_of(campaign)

    summary = command(jobs)

    assert order == ["1 ticket", "2 ticket", "3 ticket", "2 reinit"]
    assert dataclasses.astuple(summary) == (4, [])
    assert all(campaign.run.network(job).is_finished for job in jobs)


def test_the_whole_command_trains_what_follows_after_all_else(whole):
    campaign, order, command = whole
    tickets = [job for job in rounds_of(campaign) if job.variant == "ticket"]

    summary = command(tickets, lambda: [Round(CHAIN, len(order), "reinit")])

    assert order == ["1 ticket", "2 ticket", "3 ticket", "3 reinit"]
    assert dataclasses.astuple(summary) == (4, [])


def test_of_what_follows_a_part_of_the_grid_has_its_own_part(whole):
    _, order, command = whole
    chains = [dataclasses.replace(CHAIN, replicate=number) for number in (1, 2)]
    jobs = [Round(chain, 1, "ticket") for chain in chains]

    summary = command(jobs, lambda: [Round(chain, 1, "reinit") for chain in chains], Terms(part=Part(2, 2)))

    assert order == ["1 ticket", "1 reinit"]
    assert dataclasses.astuple(summary) == (2, [])
