"""Trackers mirror metrics.jsonl, one sink per network. They are never needed and never fatal, and only the end of a command
waits for them: whatever a tracker does, it does in a thread of its own while the training goes on."""

import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lottery.base import plugins
from lottery.base.errors import InputError, Moved, first_line

if TYPE_CHECKING:
    from lottery.experiment.recipe import Recipe
    from lottery.rundir.records import Result

GROUP = "lottery.trackers"  # of entry points
OURS = {"tensorboard": "lottery.trackers.tensorboard:TensorBoard", "wandb": "lottery.trackers.wandb:WandB"}
FINISH_SECONDS = 20  # that the end of a process waits for all that is still to be sent

Row = Mapping[str, Any]
Watch = Callable[[Row], None] | None  # which may raise Stopped

_sending: list[threading.Thread] = []  # by the names of their trackers
_told: set[tuple[str, type[BaseException]]] = set()


class Stopped(BaseException):
    """A training is to end where it is, without a result. No Exception, so that nobody takes it for a failure."""


class Sink(Protocol):
    """What a tracker shows of one network. Whatever a method raises is told in one line, and ends this sink."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Show the figures of the evaluation after `step` steps. They come in the order of their steps. Where a training that
        was killed goes on, all that it logged before its checkpoint comes again, and must not be shown twice."""

    def finish(self, status: str, final: Mapping[str, float]) -> None:
        """The training has ended (`done` or `diverged`) or was `stopped`; only one that is done has `final` figures."""


Calls = queue.SimpleQueue[Callable[[Sink], None] | None]


class Tracker(Protocol):
    """Mirrors the networks of one run."""

    def __init__(self, recipe: "Recipe", folder: Path, argument: str) -> None:
        """For the run in `folder`; `argument` is what the recipe has behind the name, as `offline` in `wandb:offline`. Raises
        InputError for one that it does not know. Loads nothing heavy."""

    def open(self, network: Path, record: Row) -> Sink:
        """A sink for the network in the folder `network`. `record` says what that is (variant, density, ...)."""

    def publish(self, report: Path) -> None:
        """Keep the report in the folder `report`, or do nothing."""


class Mirror:
    """Passes the rows of one network on to the sink that each function of `sinks` opens, by the names of their trackers: first
    those `known` from an earlier process. The first failure ends what a sink gets. Each new row goes to `watch`, too."""

    def __init__(self, sinks: Mapping[str, Callable[[], Sink]] | None = None, known: Iterable[Row] = (), watch: Watch = None):
        self._watch = watch
        self._calls: list[Calls] = []
        for name, begin in (sinks or {}).items():
            self._calls.append(queue.SimpleQueue())
            _send(name, partial(_pass_on, begin, self._calls[-1]))
        for row in known:
            self._call(partial(_log, row))

    def log(self, row: Row) -> None:
        self._call(partial(_log, row))
        if self._watch:
            self._watch(row)

    def finish(self, result: "Result | None") -> None:
        """The training has ended, or without a result was stopped."""
        status = result.status if result else "stopped"
        final = result.final.model_dump(exclude={"step"}, exclude_none=True) if result and result.final else {}
        self._call(lambda sink: sink.finish(status, final))
        self._call(None)

    def _call(self, call: Callable[[Sink], None] | None) -> None:
        for calls in self._calls:
            calls.put(call)


def _pass_on(begin: Callable[[], Sink], calls: Calls) -> None:
    sink = begin()
    while call := calls.get():
        call(sink)


def _log(row: Row, sink: Sink) -> None:
    sink.log(row["step"], {key: value for key, value in row.items() if key not in ("step", "timing")})


def track(recipe: "Recipe", folder: Path, network: Path, record: Row, rows: Iterable[Row] = (), watch: Watch = None) -> Mirror:
    """A mirror for the network in `network` of the run in `folder`, by the trackers of the recipe. `record` is what the network
    is (variant, density, ...), `rows` what is known of its training from before this process."""

    def begin(name: str) -> Sink:
        return _tracker(name, recipe, folder).open(network, record)

    return Mirror({name: partial(begin, name) for name in recipe.track.trackers}, rows, watch)


def publish(recipe: "Recipe", folder: Path, report: Path) -> None:
    """Let the trackers of the recipe keep the report of the run in `folder`."""

    def work(name: str) -> None:
        _tracker(name, recipe, folder).publish(report)

    for name in recipe.track.trackers:
        _send(name, partial(work, name))


def check(recipe: "Recipe", folder: Path) -> None:
    """Raise InputError where a tracker of the recipe does not exist, or does not know its argument. One that fails in another
    way says so once there is something to mirror."""
    for name in recipe.track.trackers:
        try:
            _tracker(name, recipe, folder)
        except InputError:
            raise
        except Exception:  # whatever the module of another package raises
            continue


def _tracker(name: str, recipe: "Recipe", folder: Path) -> Tracker:
    kind, _, argument = name.partition(":")
    return plugins.member(GROUP, kind, OURS, "tracker").load()(recipe, folder, argument)


def _send(name: str, work: Callable[[], None]) -> None:
    """Do `work` for a tracker in a thread. Why it fails is told once for each kind of error, however many networks have it."""
    kind = name.partition(":")[0]

    def sending() -> None:
        try:
            work()
        except (Exception, Moved) as error:  # no account, no network, no disk: a mirror ends no training, whatever breaks
            if (kind, type(error)) not in _told:
                _told.add((kind, type(error)))
                print(f"{kind} mirrors nothing ({first_line(error)}); metrics.jsonl has everything", file=sys.stderr)

    _sending.append(threading.Thread(target=sending, name=kind, daemon=True))
    _sending[-1].start()


def wait(seconds: float = FINISH_SECONDS) -> None:
    """Let what is still to be sent be sent, for so long at most: the last thing that a process does."""
    deadline = time.monotonic() + seconds
    for thread in _sending:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = Counter(thread.name for thread in _sending if thread.is_alive())
    _sending.clear()
    for kind, count in late.items():
        print(f"{kind} did not take {count} of its runs in time; metrics.jsonl has everything", file=sys.stderr)
