"""Fan jobs out to MPI ranks: rank 0 coordinates, the others train, and rank 0 too where it has a seat.

Alone, or without mpirun, a process does all the jobs itself. Ranks talk only to rank 0, and wait asleep: Open MPI's own
waiting would burn a core that a training needs. Under `mpirun --with-ft ulfm` a rank that dies is an error to those who
talk to it, and they go on; otherwise mpirun ends them all.
"""

import contextlib
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from data_prep import files
from data_prep.errors import InputError, Moved, one_line
from lottery import __version__, preemption
from lottery.fanout import share
from lottery.fanout.coordinator import Alive, Coordinator, Done, Free, Link, Lost, Result
from lottery.fanout.launcher import unused_tasks
from lottery.fanout.share import Seat, Station
from lottery.fanout.world import World, join
from lottery.jobs import WHOLE, AnyJob, Part

POLL_SECONDS = 0.02
BEAT_SECONDS = 1.0
ORPHANED = "rank 0 is lost"

Beat = Callable[[], None]
Work = Callable[[AnyJob], Result]
MakeWork = Callable[[Seat, Beat], Work]


@dataclass(frozen=True)
class Terms:
    """On what terms ranks work together: intra-op `threads` of each training, how many ranks share a GPU (None: none do), after
    how many seconds of silence a rank is named, which `part` of the grid is theirs, and what must be `common` to all, by its
    name (such as recipes)."""

    threads: int = 1
    common: Mapping[str, str] = field(default_factory=dict)
    per_gpu: int | None = None
    stall: float = 600.0
    part: Part = WHOLE


ALONE = Terms()


@dataclass(frozen=True)
class Card:
    """What a rank tells of itself when it begins."""

    station: Station
    common: Mapping[str, str]


def fan_out(
    make_jobs: Callable[[], Sequence[AnyJob]],
    make_work: MakeWork,
    done: Done,
    say: Callable[[str], None],
    terms: Terms = ALONE,
) -> bool:
    """Do the jobs that `make_jobs` lists, in its order; call `done` with each result as it comes. What that returns are the
    jobs that can be done now, which come before those that wait. Those that nobody is left to do get a result too.

    `make_jobs` and `done` run on one rank; `make_work` once in each process that gets a job, with its seat and a function to
    call as the work comes further. Returns whether this process is the one that coordinated. What `make_jobs` raises is
    raised there, and ends the other ranks quietly. Raises Preempted once every rank has saved what it had under way, and Moved
    where what this process holds is elsewhere now.
    """
    world = join()
    size = world.size if world else 1
    with world or contextlib.nullcontext():
        if (not world or world.rank == 0) and (line := unused_tasks(size)):
            say(line)
        if world is None or size == 1:
            _alone(make_jobs, make_work, done, terms)
            return True
        with preemption.deferred():
            preempted = _together(world, make_jobs, make_work, done, say, terms)
    if world.rank == 0:
        files.check_held()
    preemption.check()
    if preempted:
        raise preemption.Preempted("stopped, as another rank was told to")
    return bool(world.rank == 0)


def _alone(make_jobs: Callable[[], Sequence[AnyJob]], make_work: MakeWork, done: Done, terms: Terms) -> None:
    waiting = list(make_jobs())
    if not waiting:
        return
    work = make_work(share.seats({0: share.here()}, terms.threads, terms.per_gpu)[0], lambda: None)
    while waiting:
        job = waiting.pop(0)
        waiting[:0] = done(job, work(job))


def _together(
    world: World,
    make_jobs: Callable[[], Sequence[AnyJob]],
    make_work: MakeWork,
    done: Done,
    say: Callable[[str], None],
    terms: Terms,
) -> bool:
    """This rank's part. Returns, on rank 0, whether a rank was told to end before its job was done."""
    card = Card(share.here(), {"versions of imp": __version__, **terms.common})
    if world.rank:
        if seat := _seated(world, card):
            with _aborting(world):
                _serve(_RankPost(world), seat, make_work)
        return False
    cards = {0: card} | _arrived(world, say)
    try:
        jobs, seats = make_jobs(), _seats(cards, terms)
        for line in share.crowded(_stations(cards), seats, terms.threads):
            say(line)
    except BaseException:
        _tell(world, dict.fromkeys(cards))
        raise
    _tell(world, seats)
    return _coordinate(world, jobs, seats, make_work, done, say, terms)


def _arrived(world: World, say: Callable[[str], None]) -> dict[int, Card]:
    """What the other ranks are, of those that have not been lost already."""
    found = {}
    for rank in range(1, world.size):
        try:
            found[rank] = _next_of(world, rank)
        except Lost:
            say(f"rank {rank} is lost, before there was anything to do")
    return found


def _seated(world: World, card: Card) -> Seat | None:
    """The seat that rank 0 gives this rank; None where there is nothing to do."""
    try:
        world.send(card, 0)
        return _next_of(world, 0)
    except Lost:
        raise preemption.Preempted(ORPHANED) from None


def _tell(world: World, seats: Mapping[int, Seat | None]) -> None:
    for rank, seat in seats.items():
        if rank:
            with contextlib.suppress(Lost):  # the coordinator finds out by itself
                world.send(seat, rank)


def _next_of(world: World, rank: int) -> Any:
    """The next that `rank` says, waited for asleep."""
    while not world.has_spoken(rank):
        time.sleep(POLL_SECONDS)
    return world.receive(rank)


def _seats(cards: Mapping[int, Card], terms: Terms) -> dict[int, Seat]:
    """Raises InputError where ranks differ in what is to be common to them, or there are more of them than GPUs."""
    for rank, card in cards.items():
        for what, wanted in cards[0].common.items():
            if card.common.get(what) != wanted:
                raise InputError(f"ranks 0 and {rank} ({card.station.host}) have different {what}: start all with the same")
    return share.seats(_stations(cards), terms.threads, terms.per_gpu)


def _stations(cards: Mapping[int, Card]) -> dict[int, Station]:
    return {rank: card.station for rank, card in cards.items()}


def _coordinate(
    world: World,
    jobs: Sequence[AnyJob],
    seats: dict[int, Seat],
    make_work: MakeWork,
    done: Done,
    say: Callable[[str], None],
    terms: Terms,
) -> bool:
    """Returns whether a rank was told to end before its job was done. Where rank 0 has a seat, it hands out from a thread."""
    desk = _Desk()
    links: dict[int, Link] = {rank: _RankLink(world, rank) if rank else desk for rank in seats}
    coordinator = Coordinator(links, done, say, terms.stall)

    def hand_out() -> None:
        with _aborting(world):
            for job in coordinator.run(jobs):
                if not coordinator.stops():
                    done(job, {"status": "waiting", "reason": "no rank was left to train it"})

    if 0 not in seats:
        hand_out()
        return coordinator.preempted
    thread = threading.Thread(target=hand_out, name="coordinator")
    thread.start()
    with _aborting(world):
        _serve(desk, seats[0], make_work)
    thread.join()
    return coordinator.preempted


class _Post(Protocol):
    """A working rank's end of what connects it with the coordinator."""

    def next(self, result: Result | None) -> AnyJob | None:
        """Hand in the result of the last job, if there was one, and wait for the next; None: there is none."""

    def beat(self) -> None:
        """Say that the job comes further."""


def _serve(post: _Post, seat: Seat, make_work: MakeWork) -> None:
    work: Work | None = None
    result: Result | None = None
    while job := post.next(result):
        if work is None:
            share.take(seat)
            work = make_work(seat, post.beat)
        try:
            result = work(job)
        except (preemption.Preempted, Moved) as error:
            result = {"status": "preempted", "reason": str(error)}


class _Desk:
    """Both ends between the coordinator and the work in its own process."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[AnyJob | None] = queue.SimpleQueue()
        self.said: queue.SimpleQueue[Free | Alive] = queue.SimpleQueue()

    def receive(self) -> Free | Alive | None:
        return None if self.said.empty() else self.said.get()

    def send(self, job: AnyJob | None) -> None:
        self.jobs.put(job)

    def next(self, result: Result | None) -> AnyJob | None:
        self.said.put(Free(result))
        return self.jobs.get()

    def beat(self) -> None:
        self.said.put(Alive())


class _RankLink:
    """The coordinator's end towards `rank`."""

    def __init__(self, world: World, rank: int):
        self.world, self.rank = world, rank

    def receive(self) -> Free | Alive | None:
        return self.world.receive(self.rank) if self.world.has_spoken(self.rank) else None

    def send(self, job: AnyJob | None) -> None:
        self.world.send(job, self.rank)


class _RankPost:
    """A rank's end towards the coordinator. That may be lost too: then what is under way is saved, and the rank ends."""

    def __init__(self, world: World):
        self.world, self.spoken = world, time.monotonic()

    def next(self, result: Result | None) -> AnyJob | None:
        try:
            self.world.send(Free(result), 0)
            job: AnyJob | None = _next_of(self.world, 0)
            return job
        except Lost:
            raise preemption.Preempted(ORPHANED) from None

    def beat(self) -> None:
        if time.monotonic() - self.spoken < BEAT_SECONDS:
            return
        self.spoken = time.monotonic()
        try:
            self.world.has_spoken(0)  # which is how the loss of rank 0 is noticed
            self.world.send(Alive(), 0)
        except Lost:
            preemption.ask(ORPHANED)


@contextlib.contextmanager
def _aborting(world: World) -> Iterator[None]:
    """End every rank when this one raises: the others would wait for it for ever."""
    try:
        yield
    except preemption.Preempted:
        raise
    except BaseException as error:
        print(f"imp: rank {world.rank}: {one_line(error) or traceback.format_exc()}", file=sys.stderr, flush=True)
        world.abort(2 if one_line(error) else 1)
