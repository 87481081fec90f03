"""Handing jobs out: ranks that are lost, that say nothing, that find a job held by another. Time passes only in sleeps."""

from fractions import Fraction

import pytest

from lottery import preemption
from lottery.fanout import coordinator
from lottery.fanout.coordinator import Alive, Coordinator, Free, Lost
from lottery.jobs import Job

JOBS = [Job(1, Fraction(quantile), 0, "ticket") for quantile in range(60, 66)]
DONE = {"status": "done"}


class Clock:
    """`time` as the coordinator knows it."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(coordinator, "time", clock)
    return clock


class Rank:
    """A rank that answers the n-th job it is given with the n-th of `answers`: a result, an exception to raise when it is next
    heard of, or a list of (seconds after which, what it says). When they run out, every job is done at once."""

    def __init__(self, clock, answers=()):
        self.clock, self.answers, self.given = clock, list(answers), []
        self.says = [(0.0, Free())]
        self.over = False

    def receive(self):
        if self.says and self.clock.now >= self.says[0][0]:
            said = self.says.pop(0)[1]
            if isinstance(said, Exception):
                raise said
            return said
        return None

    def send(self, job):
        if job is None:
            self.over = True
            return
        self.given.append(job)
        answer = self.answers.pop(0) if self.answers else DONE
        timed = answer if isinstance(answer, list) else [(0, answer)]
        self.says = [
            (self.clock.now + after, what if isinstance(what, Alive | Exception) else Free(what)) for after, what in timed
        ]


def run(clock, ranks, jobs=JOBS, done=lambda job, result: [], stall=600.0):
    """What was done and said, and the jobs that were not handed out."""
    found, said = [], []

    def note(job, result):
        found.append((job, result["status"]))
        return done(job, result)

    made = Coordinator(dict(enumerate(ranks, 1)), note, said.append, stall)
    return found, said, made.run(jobs)


def test_a_lost_ranks_job_is_the_next_to_be_handed_out(clock):
    ranks = [Rank(clock, [[(1, DONE)]] * 9), Rank(clock, [[(0.5, Lost())]])]

    found, said, left = run(clock, ranks)

    assert [job for job, _ in found] == [JOBS[0], JOBS[1], *JOBS[2:]]
    assert ranks[0].given == [JOBS[0], JOBS[1], *JOBS[2:]]
    assert said == [f"rank 2 is lost, at work on {JOBS[1]}: another one goes on with it"]
    assert left == []


def test_a_rank_that_is_lost_when_it_has_nothing_to_do_is_not_waited_for(clock):
    idle = Rank(clock)
    ranks = [Rank(clock, [[(5, DONE)]]), idle]
    idle.says += [(1002.0, Lost())]

    found, said, left = run(clock, ranks, JOBS[:1])

    assert (found, left) == ([(JOBS[0], "done")], [])
    assert said[1:] == ["rank 2 is lost; it had nothing to do"]


def test_a_rank_that_is_lost_as_it_is_given_a_job_costs_nothing(clock):
    ranks = [Rank(clock), Rank(clock)]

    def refuse(job):
        raise Lost

    ranks[1].send = refuse

    found, _, left = run(clock, ranks)

    assert sorted(found, key=lambda pair: pair[0].quantile) == [(job, "done") for job in JOBS]
    assert left == []


def test_a_rank_that_is_lost_as_it_is_told_of_the_end_keeps_no_other_from_being_told(clock):
    ranks = [Rank(clock), Rank(clock), Rank(clock)]
    give = ranks[0].send

    def refuse_the_end(job):
        if job is None:
            raise Lost
        give(job)

    ranks[0].send = refuse_the_end

    run(clock, ranks, JOBS[:3])

    assert [rank.over for rank in ranks[1:]] == [True, True]


def test_with_no_rank_left_the_rest_is_handed_back(clock):
    found, said, left = run(clock, [Rank(clock, [DONE, Lost()])])

    assert found == [(JOBS[0], "done")]
    assert left == JOBS[1:]
    assert said == [f"rank 1 is lost, at work on {JOBS[1]}: no rank is left"]


def test_the_lock_of_a_lost_rank_may_outlive_it_for_a_while(clock):
    """As on a shared file system, when a host goes down."""
    busy = {"status": "busy"}
    ranks = [Rank(clock, [[(0.1, DONE)], busy, busy, DONE]), Rank(clock, [Lost()])]

    found, _, left = run(clock, ranks, JOBS[:2])

    assert found == [(JOBS[0], "done"), (JOBS[1], "done")]
    assert ranks[0].given == [JOBS[0], JOBS[1], JOBS[1], JOBS[1]]
    assert clock.now - 1000 == pytest.approx(10, abs=1)
    assert left == []


def test_in_the_end_a_job_that_stays_locked_is_busy(clock):
    ranks = [Rank(clock, [[(0.1, DONE)], *[{"status": "busy"}] * 99]), Rank(clock, [Lost()])]

    found, _, left = run(clock, ranks, JOBS[:2])

    assert (found, left) == ([(JOBS[0], "done"), (JOBS[1], "busy")], [])
    assert clock.now - 1000 == pytest.approx(coordinator.PATIENCE_SECONDS, abs=10)


def test_a_job_that_another_process_holds_is_busy_at_once(clock):
    found, _, _ = run(clock, [Rank(clock, [{"status": "busy"}])], JOBS[:1])

    assert found == [(JOBS[0], "busy")]
    assert clock.now - 1000 < 1


def test_a_rank_that_comes_no_further_is_named_once_and_again_when_it_stalls_again(clock):
    ranks = [Rank(clock, [[(100, Alive()), (1000, Alive()), (2000, DONE)]])]

    _, said, _ = run(clock, ranks, JOBS[:1], stall=600)

    assert said == [f"rank 1 has come no further for 10 min 00 s with {JOBS[0]}"] * 2


def test_a_rank_that_says_it_comes_further_is_not_named(clock):
    ranks = [Rank(clock, [[*((minute * 60, Alive()) for minute in range(1, 60)), (3600, DONE)]])]

    _, said, _ = run(clock, ranks, JOBS[:1], stall=90)

    assert said == []


def test_a_rank_without_a_job_is_not_named(clock):
    ranks = [Rank(clock, [[(10, Alive()), (20, Alive()), (30, DONE)]]), Rank(clock)]

    _, said, _ = run(clock, ranks, JOBS[:1], stall=15)

    assert said == ["2 ranks to train on, 1 networks to train now: 1 idle"]


def test_after_a_signal_nothing_is_handed_out_and_a_lost_ranks_job_is_handed_back(clock, monkeypatch):
    monkeypatch.setattr(preemption, "asked", lambda: clock.now > 1000.5)
    ranks = [Rank(clock, [[(1, {"status": "preempted"})]]), Rank(clock, [[(1, Lost())]])]

    found, _, left = run(clock, ranks, JOBS)

    assert found == [(JOBS[0], "preempted")]
    assert left == [JOBS[1], *JOBS[2:]]
    assert ranks[0].over


def test_what_a_lost_ranks_job_makes_possible_follows_it(clock):
    ranks = [Rank(clock, [[(1, DONE)]] * 9), Rank(clock, [[(0.5, Lost())]])]

    found, _, _ = run(clock, ranks, JOBS[:3], done=lambda job, result: [JOBS[4]] if job == JOBS[1] else [])

    assert [job for job, _ in found] == [JOBS[0], JOBS[1], JOBS[4], JOBS[2]]
