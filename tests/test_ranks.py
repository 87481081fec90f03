"""Tasks done in process: alone, and among ranks played by threads, so that no MPI is needed."""

import queue
import threading
import time
from contextlib import contextmanager, nullcontext

import pytest
from helpers import Heard

from lottery.base import preemption
from lottery.base.errors import InputError
from lottery.base.preemption import Preempted
from lottery.base.progress import Reporter
from lottery.executors import allocation, communicator, coordinator, mpi
from lottery.executors.allocation import Resources
from lottery.executors.choice import executor
from lottery.executors.coordinator import Lost
from lottery.executors.workload import IN_PROCESS, Workload

HERE = Resources("a", frozenset({0}), ())
THERE = Resources("b", frozenset({0}), ())
TASKS = list(range(8))


@pytest.fixture(autouse=True)
def plain_environment(no_launcher, monkeypatch):
    monkeypatch.setattr(allocation, "visible", tuple)
    monkeypatch.setattr(coordinator, "POLL_SECONDS", 0.001)


def work(task):
    return {"status": "done", "number": task}


def alone(tasks, make_worker, on_done):
    return executor(IN_PROCESS).run(Workload(lambda: list(tasks), make_worker, on_done, Reporter()))


def test_alone_a_process_does_every_task_in_order_and_tells_its_result_before_the_next_begins():
    events, started = [], []

    @contextmanager
    def make_worker(allocation, reporter):
        started.append(1)
        yield lambda task: events.append(("work", task)) or work(task)

    assert alone(TASKS, make_worker, lambda *pair: events.append(("done", *pair)) or [])
    assert started == [1]
    assert events == [event for task in TASKS for event in (("work", task), ("done", task, work(task)))]


def then(follow):
    """A `done` of a grid in which some tasks can be done only after others: `follow` says which."""
    return lambda task, result: follow.get(task, [])


class Channel:
    """An end of the connection of rank `own` with rank `other`, between threads."""

    def __init__(self, ranks, own, other):
        self.ranks, self.own, self.other = ranks, own, other

    def send(self, message):
        self.ranks.boxes[self.own, self.other].put(message)

    def poll(self):
        if self.ranks.over.is_set() or self.own in self.ranks.dead:
            threading.Event().wait()  # this rank is no more; its thread, a daemon, ends with the tests
        if not self.ranks.boxes[self.other, self.own].empty():
            return True
        if self.other in self.ranks.dead:
            raise Lost
        return False

    def recv(self):
        return self.ranks.boxes[self.other, self.own].get(timeout=10)


class Communicator:
    """The ranks that threads play, as one of them has them."""

    def __init__(self, ranks, rank, size):
        self.ranks, self.rank, self.size = ranks, rank, size

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ranks.left.append(self.rank)

    def channel(self, rank):
        return Channel(self.ranks, self.rank, rank)

    def abort(self, code):
        self.ranks.aborted.append((self.rank, code))
        self.ranks.over.set()
        threading.Event().wait()


OWN = threading.local()  # the `ranks` and the `rank` of a thread that plays one


class Ranks:
    """A workload on `size` ranks; what each returned or raised, and what was done and said. Rank 0 trains where there are as
    many `cores` as ranks."""

    def __init__(self, monkeypatch, size, tasks, work=work, list_tasks=None, make_worker=None, done=None, cores=None, dead=()):
        self.boxes = {(one, other): queue.Queue() for one in range(size) for other in range(size)}
        self.aborted, self.dead, self.over = [], set(dead), threading.Event()
        self.done, self.said, self.started, self.worked = [], [], [], []
        self.returned, self.raised, self.left = {}, {}, []
        resources = Resources("a", frozenset(range(cores or size - 1)), ())
        monkeypatch.setattr(communicator, "join", lambda: Communicator(self, OWN.rank, size))
        monkeypatch.setattr(mpi, "resources_here", lambda: resources)

        @contextmanager
        def started(allocation, reporter):
            self.started.append(OWN.rank)
            yield lambda task: self.worked.append((OWN.rank, task)) or work(task)

        workload = Workload(
            list_tasks or (lambda: list(tasks)),
            make_worker or started,
            lambda *pair: self.done.append(pair) or (done or then({}))(*pair),
            Heard(self.said),
        )

        def rank(number):
            OWN.ranks, OWN.rank = self, number
            try:
                self.returned[number] = executor(IN_PROCESS).run(workload)
            except (Exception, Preempted) as error:
                self.raised[number] = error

        threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(size)]
        began = [thread for number, thread in enumerate(threads) if number not in dead]
        for thread in began:
            thread.start()
        until = time.monotonic() + 20

        def alive():
            return [number for number, thread in enumerate(threads) if thread.is_alive() and number not in self.dead]

        while alive() and not self.over.is_set() and time.monotonic() < until:
            time.sleep(0.001)
        self.hanging = [] if self.over.is_set() else alive()

    def die(self):
        """What SIGKILL does to the rank that calls this."""
        self.dead.add(OWN.rank)
        threading.Event().wait()


CHAIN = {task: [task + 1] for task in range(7)}


@pytest.mark.parametrize(
    ("tasks", "follow", "expected"),
    [(TASKS, {}, TASKS), (TASKS[:3], {0: [3, 4], 3: [5]}, [0, 3, 5, 4, 1, 2]), (TASKS[:1], CHAIN, TASKS)],
)
def test_tasks_are_done_in_their_order_and_what_one_has_made_possible_before_what_waits(monkeypatch, tasks, follow, expected):
    found = []
    alone(tasks, lambda *_: nullcontext(work), lambda task, result: found.append(task) or follow.get(task, []))
    ranks = Ranks(monkeypatch, 2, tasks, done=then(follow))

    assert found == expected
    assert ranks.hanging == []
    assert ranks.worked == [(1, task) for task in expected]
    assert ranks.started == [1]


@pytest.mark.parametrize(("size", "tasks"), [(4, TASKS), (3, [])])
def test_ranks_share_the_tasks_and_each_is_done_once(monkeypatch, size, tasks):
    ranks = Ranks(monkeypatch, size, tasks)

    assert ranks.hanging == []
    assert sorted(ranks.done, key=lambda pair: pair[0]) == [(task, work(task)) for task in tasks]
    assert tasks or ranks.started == []
    assert ranks.returned == {number: number == 0 for number in range(size)}
    assert sorted(ranks.left) == list(range(size))
    assert all(box.empty() for box in ranks.boxes.values())


def test_a_rank_that_found_nothing_to_do_gets_what_becomes_possible_later(monkeypatch):
    """Three tasks follow on one, and each of the three waits until all are under way: all three ranks have to be at work."""
    together = threading.Barrier(3, timeout=10)

    def meet(task):
        if task != TASKS[0]:
            together.wait()
        return work(task)

    ranks = Ranks(monkeypatch, 4, TASKS[:1], meet, done=then({0: [1, 2, 3]}))

    assert ranks.hanging == []
    assert len({rank for rank, task in ranks.worked if task != TASKS[0]}) == 3
    assert sorted(task for task, _ in ranks.done) == [0, 1, 2, 3]
    assert sorted(ranks.started) == [1, 2, 3]
    assert ranks.said == ["3 ranks, 1 task to do now: 2 idle"]


def test_after_a_task_that_was_told_to_stop_what_another_has_made_possible_waits_too(monkeypatch):
    begun, stopped = threading.Event(), threading.Event()

    def one_stops(task):
        if task == TASKS[0]:
            assert begun.wait(10)
            stopped.set()
            raise Preempted("stopped by SIGTERM")
        begun.set()
        assert stopped.wait(10)
        time.sleep(0.05)
        return work(task)

    ranks = Ranks(monkeypatch, 4, TASKS[:2], one_stops, done=then({1: [2, 3]}))

    assert ranks.hanging == []
    assert sorted(ranks.done, key=lambda pair: pair[0])[0] == (0, {"status": "preempted", "reason": "stopped by SIGTERM"})
    assert sorted(task for task, _ in ranks.done) == [0, 1]
    assert ranks.aborted == []
    assert isinstance(ranks.raised[0], Preempted)
    assert ranks.returned == {1: False, 2: False, 3: False}


@pytest.mark.parametrize("error", [InputError("no masks"), OSError(28, "No space left on device"), KeyError("x")])
def test_what_listing_the_tasks_raises_is_raised_by_the_coordinator_and_ends_the_others_quietly(monkeypatch, capsys, error):
    def list_tasks():
        raise error

    ranks = Ranks(monkeypatch, 3, [], list_tasks=list_tasks)

    assert ranks.hanging == []
    assert ranks.raised == {0: error}
    assert sorted(ranks.left) == [0, 1, 2]
    assert ranks.returned == {1: False, 2: False}
    assert ranks.started == []
    assert ranks.aborted == []
    assert capsys.readouterr().err == ""


FULL = OSError(28, "No space left on device", "runs/x")
FULL_LINE = "runs/x: No space left on device; mend that and run the command again"


def failing(error):
    def fail(*_):
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [(FULL, 2, [FULL_LINE]), (InputError("no mask"), 2, ["no mask"]), (KeyError("odd"), 1, ["Traceback", "KeyError: 'odd'"])],
)
@pytest.mark.parametrize(("where", "rank"), [("work", 1), ("make_worker", 1), ("done", 0)])
def test_an_error_ends_all_ranks_with_a_line_that_names_the_rank_or_shows_where_it_came_from(
    monkeypatch, capsys, where, rank, error, code, lines
):
    ranks = Ranks(monkeypatch, 2, TASKS, **{where: failing(error)})

    assert ranks.aborted == [(rank, code)]
    assert (ranks.returned, ranks.raised) == ({}, {})
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith(f"imp: rank {rank}: {lines[0]}")
    assert [line for line in told if line][-1].endswith(lines[-1])
    assert code == 1 or len(told) == 1


def test_one_rank_under_a_launcher_works_itself(monkeypatch):
    ranks = Ranks(monkeypatch, 1, TASKS)

    assert ranks.returned == {0: True}
    assert [task for task, _ in ranks.done] == TASKS


def test_rank_0_trains_too_where_a_core_would_idle(monkeypatch):
    both = threading.Barrier(2, timeout=10)

    def meet(task):
        both.wait()
        return work(task)

    ranks = Ranks(monkeypatch, 2, TASKS[:6], meet, cores=2)

    assert ranks.hanging == []
    assert ranks.returned == {0: True, 1: False}
    assert sorted(ranks.started) == [0, 1]
    assert sorted(task for _, task in ranks.worked) == TASKS[:6]


def test_rank_0_hands_out_while_it_trains(monkeypatch):
    others_done = threading.Event()

    def slow_on_rank_0(task):
        if OWN.rank == 0:
            assert others_done.wait(10)
        elif len(OWN.ranks.worked) == len(TASKS):
            others_done.set()
        return work(task)

    ranks = Ranks(monkeypatch, 3, TASKS, slow_on_rank_0, cores=3)

    assert ranks.hanging == []
    assert [rank for rank, _ in ranks.worked].count(0) == 1
    assert len(ranks.done) == len(TASKS)


@pytest.mark.parametrize("where", ["work", "make_worker"])
def test_an_error_of_rank_0_that_trains_ends_all_ranks(monkeypatch, capsys, where):
    ranks = Ranks(monkeypatch, 2, TASKS[:1], **{where: failing(InputError("no mask"))}, cores=2)

    assert ranks.hanging == []
    assert [code for _, code in ranks.aborted] == [2]
    assert capsys.readouterr().err.count("no mask") == 1


def test_when_rank_0_dies_the_others_save_what_they_have_and_end(monkeypatch):
    asked = []
    monkeypatch.setattr(preemption, "ask", asked.append)

    def make_worker(allocation, reporter):
        def long(task):
            OWN.ranks.dead.add(0)
            reporter.beat(False)
            assert asked == ["rank 0 is lost"]
            raise Preempted(asked[0])

        return nullcontext(long)

    monkeypatch.setattr(coordinator, "HEARTBEAT_SECONDS", 0)
    ranks = Ranks(monkeypatch, 2, TASKS, make_worker=make_worker)

    assert ranks.hanging == []
    assert isinstance(ranks.raised[1], Preempted)
    assert ranks.aborted == []


def test_a_rank_that_was_lost_before_it_began_has_no_part_in_it_and_without_rank_0_all_end(monkeypatch):
    ranks = Ranks(monkeypatch, 4, TASKS, dead=[2])

    assert ranks.hanging == []
    assert sorted(ranks.done, key=lambda pair: pair[0]) == [(task, work(task)) for task in TASKS]
    assert ranks.said == ["rank 2 is lost, before there was anything to do"]
    assert ranks.returned == {0: True, 1: False, 3: False}

    ranks = Ranks(monkeypatch, 3, TASKS, dead=[0])

    assert ranks.hanging == []
    assert [str(ranks.raised[rank]) for rank in (1, 2)] == ["rank 0 is lost"] * 2
    assert (ranks.started, ranks.aborted) == ([], [])


@pytest.mark.parametrize("what", ["recipes", "images", "versions of imp"])
def test_ranks_of_another_recipe_or_version_or_with_other_images_are_refused(what):
    common = {"versions of imp": "1", "recipes": "x", "images": "a"}
    resources = {0: HERE, 1: HERE, 3: THERE}

    with pytest.raises(InputError, match=rf"^ranks 0 and 3 \(b\) have different {what}: start all with the same"):
        mpi.check_common(resources, {0: common, 1: common, 3: common | {what: "other"}})
