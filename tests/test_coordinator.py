"""Handing tasks out: ranks that are lost, that say nothing, that find a task held by another. Time passes only in sleeps."""

import pytest
from helpers import Heard

from lottery.base import locks, preemption
from lottery.executors import coordinator
from lottery.executors.coordinator import DEADLY, SAVED, Coordinator, Line, Lost
from lottery.executors.workload import Workload

TASKS = list("abcdef")
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
    """A rank that answers the n-th task it is given with the n-th of `answers`: a result, an exception to raise when it is next
    heard of, or a list of (seconds after which, what it says). When they run out, every task is done at once."""

    def __init__(self, clock, answers=()):
        self.clock, self.answers, self.given = clock, list(answers), []
        self.says = [(0.0, None)]
        self.over = False

    def poll(self):
        if not self.says or self.clock.now < self.says[0][0]:
            return False
        if isinstance(self.says[0][1], Exception):
            raise self.says[0][1]
        return True

    def recv(self):
        return self.says.pop(0)[1]

    def send(self, task):
        if task is None:
            self.over = True
            return
        self.given.append(task)
        answer = self.answers.pop(0) if self.answers else DONE
        timed = answer if isinstance(answer, list) else [(0, answer)]
        self.says = [(self.clock.now + after, what) for after, what in timed]


def run(clock, ranks, tasks=TASKS, done=lambda task, result: [], **how):
    """What was done and said, and the tasks that were not handed out."""
    found, said = [], []

    def note(task, result):
        found.append((task, result["status"]))
        return done(task, result)

    workload = Workload(lambda: tasks, lambda *_: None, note, Heard(said))
    handed_out = Coordinator(dict(enumerate(ranks, 1)), workload, **how)
    handed_out.run(tasks)
    return found, said, handed_out.waiting


def test_a_line_of_several_ranks_is_said_once(clock):
    both = [Rank(clock, [[(1, Line("no GPU")), (2, Line(f"rank {rank} alone")), (3, DONE)]]) for rank in (1, 2)]

    found, said, _ = run(clock, both)

    assert said == ["no GPU", "rank 1 alone", "rank 2 alone"]
    assert len(found) == len(TASKS)


def test_a_lost_ranks_task_is_the_next_to_be_handed_out_and_what_it_makes_possible_follows_it(clock):
    ranks = [Rank(clock, [[(1, DONE)]] * 9), Rank(clock, [[(0.5, Lost())]])]

    found, said, left = run(clock, ranks, TASKS[:3], done=lambda task, result: [TASKS[4]] if task == TASKS[1] else [])

    assert [task for task, _ in found] == ranks[0].given == [TASKS[0], TASKS[1], TASKS[4], TASKS[2]]
    assert said == [f"rank 2 is lost, at work on {TASKS[1]}: another one goes on with it"]
    assert left == []


def test_a_rank_that_is_lost_when_it_has_nothing_to_do_is_not_waited_for(clock):
    idle = Rank(clock)
    ranks = [Rank(clock, [[(5, DONE)]]), idle]
    idle.says += [(1002.0, Lost())]

    found, said, left = run(clock, ranks, TASKS[:1])

    assert (found, left) == ([(TASKS[0], "done")], [])
    assert said[1:] == ["rank 2 is lost; it had nothing to do"]


def test_a_rank_that_dies_with_nothing_to_do_is_replaced_so_many_times(clock):
    replaced = []

    def replace(rank):
        replaced.append(rank)
        return dying()

    def dying():
        rank = Rank(clock)
        rank.says = [(0.0, Lost())]
        return rank

    found, said, _ = run(clock, [Rank(clock, [[(5, DONE)]]), dying()], TASKS[:1], replace=replace)

    assert (found, replaced) == ([(TASKS[0], "done")], [2] * (DEADLY - 1))
    assert said[1:] == ["rank 2 is lost; it had nothing to do"] * DEADLY


def test_with_no_rank_left_the_rest_is_handed_back(clock):
    found, said, left = run(clock, [Rank(clock, [DONE, Lost()])])

    assert found == [(TASKS[0], "done"), *((task, "waiting") for task in TASKS[1:])]
    assert left == TASKS[1:]
    assert said == [f"rank 1 is lost, at work on {TASKS[1]}: no rank is left"]


def test_the_lock_of_a_lost_rank_may_outlive_it_for_a_while(clock):
    """As on a shared file system, when a host goes down."""
    busy = {"status": "busy"}
    ranks = [Rank(clock, [[(0.1, DONE)], [(5, busy)], [(5, busy)], DONE]), Rank(clock, [Lost()])]

    found, _, left = run(clock, ranks, TASKS[:2])

    assert found == [(TASKS[0], "done"), (TASKS[1], "done")]
    assert ranks[0].given == [TASKS[0], TASKS[1], TASKS[1], TASKS[1]]
    assert clock.now - 1000 == pytest.approx(10, abs=1)
    assert left == []


def test_in_the_end_a_task_that_stays_locked_is_busy(clock):
    ranks = [Rank(clock, [[(0.1, DONE)], *[[(9, {"status": "busy"})]] * 99]), Rank(clock, [Lost()])]

    found, _, left = run(clock, ranks, TASKS[:2])

    assert (found, left) == ([(TASKS[0], "done"), (TASKS[1], "busy")], [])
    assert clock.now - 1000 == pytest.approx(coordinator.PATIENCE_SECONDS, abs=10)


def test_a_task_that_another_process_holds_is_busy_at_once(clock):
    found, _, _ = run(clock, [Rank(clock, [{"status": "busy"}])], TASKS[:1])

    assert found == [(TASKS[0], "busy")]
    assert clock.now - 1000 < 1


def test_after_a_signal_nothing_is_handed_out_and_a_lost_ranks_task_is_handed_back(clock, monkeypatch):
    monkeypatch.setattr(preemption, "asked", lambda: clock.now > 1000.5)
    ranks = [Rank(clock, [[(1, {"status": "preempted"})]]), Rank(clock, [[(1, Lost())]])]

    found, _, left = run(clock, ranks, TASKS)

    assert found == [(TASKS[0], "preempted")]
    assert left == [TASKS[1], *TASKS[2:]]
    assert ranks[0].over


def test_a_rank_that_dies_at_a_task_is_replaced_and_one_that_all_die_of_is_given_up(clock):
    deadly, replaced = [[(0, Lost())]] * DEADLY, []

    def replace(rank):
        replaced.append(rank)
        return Rank(clock, deadly[len(replaced) :])

    found, said, waiting = run(clock, [Rank(clock, deadly)], replace=replace)

    assert found == [("a", "failed"), *((task, "done") for task in TASKS[1:])]
    assert (replaced, waiting) == ([1] * DEADLY, [])
    assert said.count("rank 1 is lost, at work on a: another one goes on with it") == DEADLY


def test_a_task_that_ranks_die_of_is_not_given_up_while_it_saves_what_they_did(clock):
    unsaved = [Lost()] * (DEADLY - 1)
    deaths = [*unsaved, [(0, SAVED), (1, Lost())], *unsaved[1:]]

    def replace(rank):
        deaths.pop(0)
        return Rank(clock, deaths[:1])

    found, _, _ = run(clock, [Rank(clock, deaths[:1])], TASKS[:1], replace=replace)

    assert (found, deaths) == ([("a", "done")], [])


def test_once_the_run_is_moved_nothing_is_handed_out_and_who_is_at_work_is_told(clock, tmp_path):
    told, slow = [], Rank(clock, [[(9, {"status": "preempted"})]])

    def move(task, result):
        if result == DONE:
            (tmp_path / "run").rename(tmp_path / "moved")
        return []

    with locks.staying(tmp_path / "run"):
        found, _, left = run(clock, [slow, Rank(clock)], done=move, tell=told.append)

    assert (found, told, left) == ([("b", "done"), ("a", "preempted")], [1], TASKS[2:])


def test_a_rank_at_work_is_told_once_to_end(clock, monkeypatch):
    told, first = [], Rank(clock, [[(2, {"status": "preempted"})]])
    monkeypatch.setattr(preemption, "asked", lambda: clock.now > 1001)

    run(clock, [first, Rank(clock)], tasks=["a"], tell=told.append)

    assert told == [1]
