"""Tasks done in process: alone, and among ranks played by threads, so that no MPI is needed."""

import queue
import threading
import time

import pytest
from helpers import LAUNCHER

from data_prep.errors import InputError
from lottery import preemption
from lottery.fanout import allocation, coordinator, mpi, ranks
from lottery.fanout.allocation import Resources
from lottery.fanout.coordinator import Lost
from lottery.fanout.executors import IN_PROCESS
from lottery.fanout.ranks import Hello
from lottery.fanout.tasks import Workload
from lottery.preemption import Preempted

HERE = Resources("a", frozenset({0}), ())
THERE = Resources("b", frozenset({0}), ())
TASKS = list(range(8))


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """No MPI launcher, no GPUs."""
    for name in (*LAUNCHER, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(allocation, "visible", tuple)
    monkeypatch.setattr(ranks, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(coordinator, "POLL_SECONDS", 0.001)


def work(task):
    return {"status": "done", "number": task}


def alone(tasks, make_worker, on_done):
    return IN_PROCESS.map(Workload(lambda: list(tasks), make_worker, on_done, print))


def test_alone_a_process_does_every_task_in_order():
    found, started = [], []

    coordinated = alone(TASKS, lambda *_: started.append(1) or work, lambda *pair: found.append(pair) or [])

    assert coordinated
    assert started == [1]
    assert found == [(task, work(task)) for task in TASKS]


def test_alone_with_nothing_to_do_nothing_is_started():
    def refuse():
        raise AssertionError("started")

    assert alone([], refuse, refuse)


def test_alone_a_result_is_told_before_the_next_task_begins():
    events = []

    def make_worker(allocation, heartbeat):
        return lambda task: events.append(("work", task)) or {}

    alone(TASKS[:2], make_worker, lambda task, _: events.append(("done", task)) or [])

    assert events == [("work", 0), ("done", 0), ("work", 1), ("done", 1)]


def nothing_more(task, result):
    return []


def then(follow):
    """A `done` of a grid in which some tasks can be done only after others: `follow` says which."""
    return lambda task, result: follow.get(task, [])


def test_alone_what_a_task_has_made_possible_comes_before_what_waits():
    done, found = then({0: [3, 4], 3: [5]}), []

    alone(TASKS[:3], lambda *_: work, lambda task, result: found.append(task) or done(task, result))

    assert found == [0, 3, 5, 4, 1, 2]


def test_alone_a_chain_is_done_to_its_end():
    done, found = then({task: [task + 1] for task in range(7)}), []

    alone(TASKS[:1], lambda *_: work, lambda task, result: found.append(task) or done(task, result))

    assert found == TASKS


class Channel:
    """An end of the connection of rank `own` with rank `other`, between threads."""

    def __init__(self, ranks, own, other):
        self.ranks, self.own, self.other = ranks, own, other

    def send(self, message):
        self._check()
        self.ranks.boxes[self.own, self.other].put(message)

    def poll(self):
        if self.ranks.over.is_set() or self.own in self.ranks.dead:
            threading.Event().wait()  # this rank is no more; its thread, a daemon, ends with the tests
        if not self.ranks.boxes[self.other, self.own].empty():
            return True
        self._check()
        return False

    def recv(self):
        return self.ranks.boxes[self.other, self.own].get(timeout=10)

    def _check(self):
        if self.other in self.ranks.dead:
            raise Lost


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
        monkeypatch.setattr(mpi, "join", lambda: Communicator(self, OWN.rank, size))
        monkeypatch.setattr(ranks, "resources_here", lambda: resources)

        def started(allocation, heartbeat):
            self.started.append(OWN.rank)
            return lambda task: self.worked.append((OWN.rank, task)) or work(task)

        workload = Workload(
            list_tasks or (lambda: list(tasks)),
            make_worker or started,
            lambda *pair: self.done.append(pair) or (done or nothing_more)(*pair),
            self.said.append,
        )

        def rank(number):
            OWN.ranks, OWN.rank = self, number
            try:
                self.returned[number] = IN_PROCESS.map(workload)
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


def test_ranks_share_the_tasks_and_each_is_done_once(monkeypatch):
    ranks = Ranks(monkeypatch, 4, TASKS)

    assert ranks.hanging == []
    assert sorted(ranks.done, key=lambda pair: pair[0]) == [(task, work(task)) for task in TASKS]
    assert ranks.returned == {0: True, 1: False, 2: False, 3: False}
    assert sorted(ranks.left) == [0, 1, 2, 3]
    assert all(box.empty() for box in ranks.boxes.values())


def test_tasks_are_handed_out_in_their_order(monkeypatch):
    ranks = Ranks(monkeypatch, 2, TASKS)

    assert ranks.worked == [(1, task) for task in TASKS]
    assert ranks.started == [1]


def test_a_slow_task_holds_up_nobody_else(monkeypatch):
    others_done = threading.Event()
    finished = []

    def slow_first(task):
        if task == TASKS[0]:
            assert others_done.wait(10)
        else:
            finished.append(task)
            if len(finished) == len(TASKS) - 1:
                others_done.set()
        return work(task)

    ranks = Ranks(monkeypatch, 3, TASKS, slow_first)

    assert ranks.hanging == []
    assert TASKS[0] in [task for task, _ in ranks.done][-2:]  # it may be told in the same moment as the last of the others
    assert len(ranks.done) == len(TASKS)


def test_ranks_without_a_task_start_nothing_and_are_told_of(monkeypatch):
    def unhurried(task):
        time.sleep(0.05)
        return work(task)

    ranks = Ranks(monkeypatch, 5, TASKS[:2], unhurried)

    assert ranks.hanging == []
    assert len(ranks.started) == 2
    assert len(ranks.done) == 2
    assert ranks.said == ["4 ranks, 2 tasks to do now: 2 idle"]


def test_on_ranks_what_a_task_has_made_possible_comes_before_what_waits(monkeypatch):
    ranks = Ranks(monkeypatch, 2, TASKS[:3], done=then({0: [3, 4], 3: [5]}))

    assert ranks.hanging == []
    assert [task for _, task in ranks.worked] == [0, 3, 5, 4, 1, 2]


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


def test_ranks_that_idle_while_a_chain_is_done_by_another_end_with_it(monkeypatch):
    ranks = Ranks(monkeypatch, 4, TASKS[:1], done=then({task: [task + 1] for task in range(7)}))

    assert ranks.hanging == []
    assert [task for task, _ in ranks.done] == TASKS
    assert ranks.returned == {0: True, 1: False, 2: False, 3: False}
    assert all(box.empty() for box in ranks.boxes.values())


def test_a_task_that_makes_nothing_possible_leaves_nobody_waiting_for_what_it_should_have(monkeypatch):
    """As when a round fails: what needs it is never handed out."""
    ranks = Ranks(monkeypatch, 3, TASKS[:2], done=then({1: [2]}))

    assert ranks.hanging == []
    assert sorted(task for task, _ in ranks.done) == [0, 1, 2]


def test_two_chains_on_more_ranks_than_chains_are_both_done(monkeypatch):
    ranks = Ranks(monkeypatch, 5, [TASKS[0], TASKS[4]], done=then({0: [1], 1: [2], 2: [3], 4: [5], 5: [6], 6: [7]}))

    assert ranks.hanging == []
    found = [task for task, _ in ranks.done]
    assert [task for task in found if task < 4] == [0, 1, 2, 3]
    assert [task for task in found if task > 3] == [4, 5, 6, 7]


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
    assert sorted(task for task, _ in ranks.done) == [0, 1]
    assert isinstance(ranks.raised[0], Preempted)
    assert ranks.returned == {1: False, 2: False, 3: False}


def test_without_tasks_every_rank_ends(monkeypatch):
    ranks = Ranks(monkeypatch, 3, [])

    assert ranks.hanging == []
    assert ranks.started == []
    assert ranks.returned == {0: True, 1: False, 2: False}


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


@pytest.mark.parametrize(("error", "line"), [(FULL, FULL_LINE), (InputError("no mask"), "no mask")])
@pytest.mark.parametrize(("where", "rank"), [("work", 1), ("make_worker", 1), ("done", 0)])
def test_an_error_that_a_user_can_mend_ends_all_ranks_with_one_line_that_names_the_rank(
    monkeypatch, capsys, where, rank, error, line
):
    ranks = Ranks(monkeypatch, 2, TASKS, **{where: failing(error)})

    assert ranks.aborted == [(rank, 2)]
    assert (ranks.returned, ranks.raised) == ({}, {})
    assert capsys.readouterr().err == f"imp: rank {rank}: {line}\n"


@pytest.mark.parametrize(("where", "rank"), [("work", 1), ("make_worker", 1), ("done", 0)])
def test_any_other_error_ends_all_ranks_and_shows_where_it_came_from(monkeypatch, capsys, where, rank):
    ranks = Ranks(monkeypatch, 2, TASKS, **{where: failing(KeyError("odd"))})

    assert ranks.aborted == [(rank, 1)]
    told = capsys.readouterr().err
    assert told.startswith(f"imp: rank {rank}: Traceback")
    assert "KeyError: 'odd'" in told


def test_a_rank_that_breaks_ends_the_ranks_that_wait_too(monkeypatch, capsys):
    ranks = Ranks(monkeypatch, 4, TASKS[:1], failing(FULL))

    assert ranks.hanging == []
    assert [code for _, code in ranks.aborted] == [2]
    assert capsys.readouterr().err.count("\n") == 1


def test_after_a_task_that_was_told_to_stop_no_other_is_handed_out(monkeypatch):
    def stop(task):
        raise Preempted("stopped by SIGUSR1")

    ranks = Ranks(monkeypatch, 3, TASKS, stop)

    assert ranks.hanging == []
    assert ranks.aborted == []
    assert ranks.returned == {1: False, 2: False}
    assert isinstance(ranks.raised[0], Preempted)
    assert 1 <= len(ranks.done) <= 2
    assert all(result == {"status": "preempted", "reason": "stopped by SIGUSR1"} for _, result in ranks.done)


def test_a_coordinator_that_is_told_to_stop_waits_for_what_is_under_way_and_hands_nothing_out(monkeypatch):
    asked = threading.Event()
    monkeypatch.setattr(preemption, "asked", asked.is_set)

    def wait(task):
        asked.set()
        time.sleep(0.05)
        return work(task)

    ranks = Ranks(monkeypatch, 2, TASKS, wait)

    assert ranks.hanging == []
    assert ranks.done == [(TASKS[0], work(TASKS[0]))]


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


def test_the_task_of_a_rank_that_dies_is_done_by_another(monkeypatch):
    def dies_once(task):
        if task == TASKS[1] and not OWN.ranks.dead:
            OWN.ranks.die()
        return work(task)

    ranks = Ranks(monkeypatch, 3, TASKS, dies_once)

    assert ranks.hanging == []
    assert sorted(ranks.done, key=lambda pair: pair[0]) == [(task, work(task)) for task in TASKS]
    (dead,) = ranks.dead
    assert ranks.said == [f"rank {dead} is lost, at work on {TASKS[1]}: another one goes on with it"]
    assert ranks.returned == {0: True, 3 - dead: False}


def test_when_every_rank_has_died_what_is_left_is_said_not_to_be_done(monkeypatch):
    def dies(task):
        if task > 0:
            OWN.ranks.die()
        return work(task)

    ranks = Ranks(monkeypatch, 3, TASKS[:4], dies)

    assert ranks.hanging == []
    assert ranks.returned == {0: True}
    assert [result["status"] for _, result in ranks.done] == ["done", "waiting", "waiting", "waiting"]
    assert sorted(task for task, _ in ranks.done) == [0, 1, 2, 3]
    assert "no rank is left" in ranks.said[-1]


def test_when_rank_0_dies_the_others_save_what_they_have_and_end(monkeypatch):
    asked = []
    monkeypatch.setattr(preemption, "ask", asked.append)

    def make_worker(allocation, heartbeat):
        def long(task):
            OWN.ranks.dead.add(0)
            heartbeat()
            assert asked == ["rank 0 is lost"]
            raise Preempted(asked[0])

        return long

    monkeypatch.setattr("lottery.fanout.ranks.HEARTBEAT_SECONDS", 0)
    ranks = Ranks(monkeypatch, 2, TASKS, make_worker=make_worker)

    assert ranks.hanging == []
    assert isinstance(ranks.raised[1], Preempted)
    assert ranks.aborted == []


def test_a_rank_that_was_lost_before_it_began_has_no_part_in_it(monkeypatch):
    ranks = Ranks(monkeypatch, 4, TASKS, dead=[2])

    assert ranks.hanging == []
    assert sorted(ranks.done, key=lambda pair: pair[0]) == [(task, work(task)) for task in TASKS]
    assert ranks.said == ["rank 2 is lost, before there was anything to do"]
    assert ranks.returned == {0: True, 1: False, 3: False}


def test_when_rank_0_is_lost_before_it_began_the_others_end(monkeypatch):
    ranks = Ranks(monkeypatch, 3, TASKS, dead=[0])

    assert ranks.hanging == []
    assert [str(ranks.raised[rank]) for rank in (1, 2)] == ["rank 0 is lost"] * 2
    assert (ranks.started, ranks.aborted) == ([], [])


@pytest.mark.parametrize("what", ["recipes", "images", "versions of imp"])
def test_ranks_of_another_recipe_or_version_or_with_other_images_are_refused(what):
    common = {"versions of imp": "1", "recipes": "x", "images": "a"}
    hellos = {0: Hello(HERE, common), 1: Hello(HERE, common), 3: Hello(THERE, common | {what: "other"})}

    with pytest.raises(InputError, match=rf"^ranks 0 and 3 \(b\) have different {what}: start all with the same"):
        ranks._check_common(hellos)
