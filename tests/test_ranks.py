"""Handing jobs out: alone, and among ranks played by threads, so that no MPI is needed."""

import queue
import threading
import time
from fractions import Fraction

import pytest
from helpers import LAUNCHER

from data_prep.errors import InputError
from lottery import preemption
from lottery.fanout import coordinator, ranks, share
from lottery.fanout.coordinator import Lost
from lottery.fanout.ranks import Card
from lottery.fanout.share import Station
from lottery.jobs import Job
from lottery.preemption import Preempted

STATION = Station("a", frozenset({0}), ())
THERE = Station("b", frozenset({0}), ())
JOBS = [Job(1, Fraction(quantile), 0, "ticket") for quantile in range(60, 68)]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """No MPI launcher, no GPUs."""
    for name in (*LAUNCHER, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(share, "_gpus", tuple)
    monkeypatch.setattr(ranks, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(coordinator, "POLL_SECONDS", 0.001)


def work(job):
    return {"status": "done", "quantile": int(job.quantile)}


def test_alone_a_process_does_every_job_in_order():
    found, started = [], []

    coordinated = ranks.fan_out(
        lambda: list(JOBS), lambda *_: started.append(1) or work, lambda *pair: found.append(pair) or [], print
    )

    assert coordinated
    assert started == [1]
    assert found == [(job, work(job)) for job in JOBS]


def test_alone_with_nothing_to_do_nothing_is_started():
    def refuse():
        raise AssertionError("started")

    assert ranks.fan_out(list, refuse, refuse, print)


def test_alone_a_result_is_told_before_the_next_job_begins():
    events = []

    def make_work(seat, beat):
        return lambda job: events.append(("work", int(job.quantile))) or {}

    ranks.fan_out(lambda: JOBS[:2], make_work, lambda job, _: events.append(("done", int(job.quantile))) or [], print)

    assert events == [("work", 60), ("done", 60), ("work", 61), ("done", 61)]


def nothing_more(job, result):
    return []


def then(follow):
    """A `done` of a grid in which some jobs can be done only after others: `follow` says which, by quantile."""
    return lambda job, result: [JOBS[quantile - 60] for quantile in follow.get(int(job.quantile), [])]


def quantiles(jobs):
    return [int(job.quantile) for job in jobs]


def test_alone_what_a_job_has_made_possible_comes_before_what_waits():
    done, found = then({60: [63, 64], 63: [65]}), []

    ranks.fan_out(lambda: JOBS[:3], lambda *_: work, lambda job, result: found.append(job) or done(job, result), print)

    assert quantiles(found) == [60, 63, 65, 64, 61, 62]


def test_alone_a_chain_is_done_to_its_end():
    done, found = then({quantile: [quantile + 1] for quantile in range(60, 67)}), []

    ranks.fan_out(lambda: JOBS[:1], lambda *_: work, lambda job, result: found.append(job) or done(job, result), print)

    assert found == JOBS


class Killed(BaseException):
    """What `abort` does to the rank that calls it: it never returns."""


class World:
    """What `fan_out` knows of the ranks, between threads: `boxes` from rank to rank."""

    def __init__(self, rank, size, boxes, aborted, over, dead, left):
        self.rank, self.size, self.boxes = rank, size, boxes
        self.aborted, self.over, self.dead = aborted, over, dead
        self.left = left

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.left.append(self.rank)

    def send(self, value, rank):
        self._check(rank)
        self.boxes[self.rank, rank].put(value)

    def has_spoken(self, rank):
        if self.over.is_set() or self.rank in self.dead:
            threading.Event().wait()  # this rank is no more; its thread, a daemon, ends with the tests
        if not self.boxes[rank, self.rank].empty():
            return True
        self._check(rank)
        return False

    def receive(self, rank):
        return self.boxes[rank, self.rank].get(timeout=10)

    def abort(self, code):
        self.aborted.append((self.rank, code))
        self.over.set()
        raise Killed

    def _check(self, other):
        if other in self.dead:
            raise Lost


HERE = threading.local()  # the `ranks` and the `world` of a thread that plays a rank


class Ranks:
    """`fan_out` on `size` ranks; what each returned or raised, and what was done and said. Rank 0 trains where there are as
    many `cores` as ranks."""

    def __init__(self, monkeypatch, size, jobs, work=work, make_jobs=None, make_work=None, done=None, cores=None, dead=()):
        self.boxes = {(one, other): queue.Queue() for one in range(size) for other in range(size)}
        self.aborted, self.dead = [], set(dead)
        self.done, self.said, self.started, self.worked = [], [], [], []
        self.returned, self.raised, self.left = {}, {}, []
        over = threading.Event()
        station = Station("a", frozenset(range(cores or size - 1)), ())
        monkeypatch.setattr(ranks, "join", lambda: HERE.world)
        monkeypatch.setattr(share, "here", lambda: station)

        def started(seat, beat):
            self.started.append(HERE.world.rank)
            return lambda job: self.worked.append((HERE.world.rank, job)) or work(job)

        def rank(number):
            HERE.ranks = self
            HERE.world = World(number, size, self.boxes, self.aborted, over, self.dead, self.left)
            try:
                self.returned[number] = ranks.fan_out(
                    make_jobs or (lambda: list(jobs)),
                    make_work or started,
                    lambda *pair: self.done.append(pair) or (done or nothing_more)(*pair),
                    self.said.append,
                    ranks.Terms(),
                )
            except (Exception, Preempted) as error:
                self.raised[number] = error
            except Killed:
                pass

        threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(size)]
        began = [thread for number, thread in enumerate(threads) if number not in dead]
        for thread in began:
            thread.start()
        until = time.monotonic() + 20

        def alive():
            return [number for number, thread in enumerate(threads) if thread.is_alive() and number not in self.dead]

        while alive() and not over.is_set() and time.monotonic() < until:
            time.sleep(0.001)
        self.hanging = [] if over.is_set() else alive()

    def die(self):
        """What SIGKILL does to the rank that calls this."""
        self.dead.add(HERE.world.rank)
        threading.Event().wait()


def test_ranks_share_the_jobs_and_each_is_done_once(monkeypatch):
    ranks = Ranks(monkeypatch, 4, JOBS)

    assert ranks.hanging == []
    assert sorted(ranks.done, key=lambda pair: pair[0].quantile) == [(job, work(job)) for job in JOBS]
    assert ranks.returned == {0: True, 1: False, 2: False, 3: False}
    assert sorted(ranks.left) == [0, 1, 2, 3]
    assert all(box.empty() for box in ranks.boxes.values())


def test_jobs_are_handed_out_in_their_order(monkeypatch):
    ranks = Ranks(monkeypatch, 2, JOBS)

    assert ranks.worked == [(1, job) for job in JOBS]
    assert ranks.started == [1]


def test_a_slow_job_holds_up_nobody_else(monkeypatch):
    others_done = threading.Event()
    finished = []

    def slow_first(job):
        if job == JOBS[0]:
            assert others_done.wait(10)
        else:
            finished.append(job)
            if len(finished) == len(JOBS) - 1:
                others_done.set()
        return work(job)

    ranks = Ranks(monkeypatch, 3, JOBS, slow_first)

    assert ranks.hanging == []
    assert JOBS[0] in [job for job, _ in ranks.done][-2:]  # it may be told in the same moment as the last of the others
    assert len(ranks.done) == len(JOBS)


def test_ranks_without_a_job_start_nothing_and_are_told_of(monkeypatch):
    def unhurried(job):
        time.sleep(0.05)
        return work(job)

    ranks = Ranks(monkeypatch, 5, JOBS[:2], unhurried)

    assert ranks.hanging == []
    assert len(ranks.started) == 2
    assert len(ranks.done) == 2
    assert ranks.said == ["4 ranks to train on, 2 networks to train now: 2 idle"]


def test_on_ranks_what_a_job_has_made_possible_comes_before_what_waits(monkeypatch):
    ranks = Ranks(monkeypatch, 2, JOBS[:3], done=then({60: [63, 64], 63: [65]}))

    assert ranks.hanging == []
    assert quantiles(job for _, job in ranks.worked) == [60, 63, 65, 64, 61, 62]


def test_a_rank_that_found_nothing_to_do_gets_what_becomes_possible_later(monkeypatch):
    """Three jobs follow on one, and each of the three waits until all are under way: all three ranks have to be at work."""
    together = threading.Barrier(3, timeout=10)

    def meet(job):
        if job != JOBS[0]:
            together.wait()
        return work(job)

    ranks = Ranks(monkeypatch, 4, JOBS[:1], meet, done=then({60: [61, 62, 63]}))

    assert ranks.hanging == []
    assert len({rank for rank, job in ranks.worked if job != JOBS[0]}) == 3
    assert sorted(quantiles(job for job, _ in ranks.done)) == [60, 61, 62, 63]
    assert sorted(ranks.started) == [1, 2, 3]
    assert ranks.said == ["3 ranks to train on, 1 networks to train now: 2 idle"]


def test_ranks_that_idle_while_a_chain_is_done_by_another_end_with_it(monkeypatch):
    ranks = Ranks(monkeypatch, 4, JOBS[:1], done=then({quantile: [quantile + 1] for quantile in range(60, 67)}))

    assert ranks.hanging == []
    assert [job for job, _ in ranks.done] == JOBS
    assert ranks.returned == {0: True, 1: False, 2: False, 3: False}
    assert all(box.empty() for box in ranks.boxes.values())


def test_a_job_that_makes_nothing_possible_leaves_nobody_waiting_for_what_it_should_have(monkeypatch):
    """As when a round fails: what needs it is never handed out."""
    ranks = Ranks(monkeypatch, 3, JOBS[:2], done=then({61: [62]}))

    assert ranks.hanging == []
    assert sorted(quantiles(job for job, _ in ranks.done)) == [60, 61, 62]


def test_two_chains_on_more_ranks_than_chains_are_both_done(monkeypatch):
    ranks = Ranks(monkeypatch, 5, [JOBS[0], JOBS[4]], done=then({60: [61], 61: [62], 62: [63], 64: [65], 65: [66], 66: [67]}))

    assert ranks.hanging == []
    found = quantiles(job for job, _ in ranks.done)
    assert [quantile for quantile in found if quantile < 64] == [60, 61, 62, 63]
    assert [quantile for quantile in found if quantile > 63] == [64, 65, 66, 67]


def test_after_a_job_that_was_told_to_stop_what_another_has_made_possible_waits_too(monkeypatch):
    begun, stopped = threading.Event(), threading.Event()

    def one_stops(job):
        if job == JOBS[0]:
            assert begun.wait(10)
            stopped.set()
            raise Preempted("stopped by SIGTERM")
        begun.set()
        assert stopped.wait(10)
        time.sleep(0.05)
        return work(job)

    ranks = Ranks(monkeypatch, 4, JOBS[:2], one_stops, done=then({61: [62, 63]}))

    assert ranks.hanging == []
    assert sorted(quantiles(job for job, _ in ranks.done)) == [60, 61]
    assert isinstance(ranks.raised[0], Preempted)
    assert ranks.returned == {1: False, 2: False, 3: False}


def test_without_jobs_every_rank_ends(monkeypatch):
    ranks = Ranks(monkeypatch, 3, [])

    assert ranks.hanging == []
    assert ranks.started == []
    assert ranks.returned == {0: True, 1: False, 2: False}


@pytest.mark.parametrize("error", [InputError("no masks"), OSError(28, "No space left on device"), KeyError("x")])
def test_what_listing_the_jobs_raises_is_raised_by_the_coordinator_and_ends_the_others_quietly(monkeypatch, capsys, error):
    def make_jobs():
        raise error

    ranks = Ranks(monkeypatch, 3, [], make_jobs=make_jobs)

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
@pytest.mark.parametrize(("where", "rank"), [("work", 1), ("make_work", 1), ("done", 0)])
def test_an_error_that_a_user_can_mend_ends_all_ranks_with_one_line_that_names_the_rank(
    monkeypatch, capsys, where, rank, error, line
):
    ranks = Ranks(monkeypatch, 2, JOBS, **{where: failing(error)})

    assert ranks.aborted == [(rank, 2)]
    assert (ranks.returned, ranks.raised) == ({}, {})
    assert capsys.readouterr().err == f"imp: rank {rank}: {line}\n"


@pytest.mark.parametrize(("where", "rank"), [("work", 1), ("make_work", 1), ("done", 0)])
def test_any_other_error_ends_all_ranks_and_shows_where_it_came_from(monkeypatch, capsys, where, rank):
    ranks = Ranks(monkeypatch, 2, JOBS, **{where: failing(KeyError("odd"))})

    assert ranks.aborted == [(rank, 1)]
    told = capsys.readouterr().err
    assert told.startswith(f"imp: rank {rank}: Traceback")
    assert "KeyError: 'odd'" in told


def test_a_rank_that_breaks_ends_the_ranks_that_wait_too(monkeypatch, capsys):
    ranks = Ranks(monkeypatch, 4, JOBS[:1], failing(FULL))

    assert ranks.hanging == []
    assert [code for _, code in ranks.aborted] == [2]
    assert capsys.readouterr().err.count("\n") == 1


def test_after_a_job_that_was_told_to_stop_no_other_is_handed_out(monkeypatch):
    def stop(job):
        raise Preempted("stopped by SIGUSR1")

    ranks = Ranks(monkeypatch, 3, JOBS, stop)

    assert ranks.hanging == []
    assert ranks.aborted == []
    assert ranks.returned == {1: False, 2: False}
    assert isinstance(ranks.raised[0], Preempted)
    assert 1 <= len(ranks.done) <= 2
    assert all(result == {"status": "preempted", "reason": "stopped by SIGUSR1"} for _, result in ranks.done)


def test_a_coordinator_that_is_told_to_stop_waits_for_what_is_under_way_and_hands_nothing_out(monkeypatch):
    asked = threading.Event()
    monkeypatch.setattr(preemption, "asked", asked.is_set)

    def wait(job):
        asked.set()
        time.sleep(0.05)
        return work(job)

    ranks = Ranks(monkeypatch, 2, JOBS, wait)

    assert ranks.hanging == []
    assert ranks.done == [(JOBS[0], work(JOBS[0]))]


def test_one_rank_under_a_launcher_works_itself(monkeypatch):
    ranks = Ranks(monkeypatch, 1, JOBS)

    assert ranks.returned == {0: True}
    assert [job for job, _ in ranks.done] == JOBS


def test_rank_0_trains_too_where_a_core_would_idle(monkeypatch):
    both = threading.Barrier(2, timeout=10)

    def meet(job):
        both.wait()
        return work(job)

    ranks = Ranks(monkeypatch, 2, JOBS[:6], meet, cores=2)

    assert ranks.hanging == []
    assert ranks.returned == {0: True, 1: False}
    assert sorted(ranks.started) == [0, 1]
    assert sorted(job.quantile for _, job in ranks.worked) == [job.quantile for job in JOBS[:6]]


def test_rank_0_hands_out_while_it_trains(monkeypatch):
    others_done = threading.Event()

    def slow_on_rank_0(job):
        if HERE.world.rank == 0:
            assert others_done.wait(10)
        elif len(HERE.ranks.worked) == len(JOBS):
            others_done.set()
        return work(job)

    ranks = Ranks(monkeypatch, 3, JOBS, slow_on_rank_0, cores=3)

    assert ranks.hanging == []
    assert [rank for rank, _ in ranks.worked].count(0) == 1
    assert len(ranks.done) == len(JOBS)


@pytest.mark.parametrize("where", ["work", "make_work"])
def test_an_error_of_rank_0_that_trains_ends_all_ranks(monkeypatch, capsys, where):
    ranks = Ranks(monkeypatch, 2, JOBS[:1], **{where: failing(InputError("no mask"))}, cores=2)

    assert ranks.hanging == []
    assert [code for _, code in ranks.aborted] == [2]
    assert capsys.readouterr().err.count("no mask") == 1


def test_the_job_of_a_rank_that_dies_is_done_by_another(monkeypatch):
    def dies_once(job):
        if job == JOBS[1] and not HERE.ranks.dead:
            HERE.ranks.die()
        return work(job)

    ranks = Ranks(monkeypatch, 3, JOBS, dies_once)

    assert ranks.hanging == []
    assert sorted(ranks.done, key=lambda pair: pair[0].quantile) == [(job, work(job)) for job in JOBS]
    (dead,) = ranks.dead
    assert ranks.said == [f"rank {dead} is lost, at work on {JOBS[1]}: another one goes on with it"]
    assert ranks.returned == {0: True, 3 - dead: False}


def test_when_every_rank_has_died_what_is_left_is_said_not_to_be_done(monkeypatch):
    def dies(job):
        if int(job.quantile) > 60:
            HERE.ranks.die()
        return work(job)

    ranks = Ranks(monkeypatch, 3, JOBS[:4], dies)

    assert ranks.hanging == []
    assert ranks.returned == {0: True}
    assert [result["status"] for _, result in ranks.done] == ["done", "waiting", "waiting", "waiting"]
    assert sorted(quantiles(job for job, _ in ranks.done)) == [60, 61, 62, 63]
    assert "no rank is left" in ranks.said[-1]


def test_when_rank_0_dies_the_others_save_what_they_have_and_end(monkeypatch):
    asked = []
    monkeypatch.setattr(preemption, "ask", asked.append)

    def make_work(seat, beat):
        def long(job):
            HERE.ranks.dead.add(0)
            beat()
            assert asked == ["rank 0 is lost"]
            raise Preempted(asked[0])

        return long

    monkeypatch.setattr("lottery.fanout.ranks.BEAT_SECONDS", 0)
    ranks = Ranks(monkeypatch, 2, JOBS, make_work=make_work)

    assert ranks.hanging == []
    assert isinstance(ranks.raised[1], Preempted)
    assert ranks.aborted == []


def test_a_rank_that_was_lost_before_it_began_has_no_part_in_it(monkeypatch):
    ranks = Ranks(monkeypatch, 4, JOBS, dead=[2])

    assert ranks.hanging == []
    assert sorted(ranks.done, key=lambda pair: pair[0].quantile) == [(job, work(job)) for job in JOBS]
    assert ranks.said == ["rank 2 is lost, before there was anything to do"]
    assert ranks.returned == {0: True, 1: False, 3: False}


def test_when_rank_0_is_lost_before_it_began_the_others_end(monkeypatch):
    ranks = Ranks(monkeypatch, 3, JOBS, dead=[0])

    assert ranks.hanging == []
    assert [str(ranks.raised[rank]) for rank in (1, 2)] == ["rank 0 is lost"] * 2
    assert (ranks.started, ranks.aborted) == ([], [])


@pytest.mark.parametrize("what", ["recipes", "images", "versions of imp"])
def test_ranks_of_another_recipe_or_version_or_with_other_images_are_refused(what):
    common = {"versions of imp": "1", "recipes": "x", "images": "a"}
    cards = {0: Card(STATION, common), 1: Card(STATION, common), 3: Card(THERE, common | {what: "other"})}

    with pytest.raises(InputError, match=rf"^ranks 0 and 3 \(b\) have different {what}: start all with the same"):
        ranks._seats(cards, ranks.Terms())
