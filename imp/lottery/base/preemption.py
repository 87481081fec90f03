"""SIGTERM and SIGUSR1, by which a cluster takes its machine back, and SIGHUP, of a terminal that goes away: what is under way
is saved, and the process ends with the exit code that says "try again later", so that the job can be requeued."""

import contextlib
import errno
import os
import signal
import termios
import threading
from collections.abc import Iterator
from types import FrameType

EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)

_reason: str | None = None
_deferrals = 0


class Preempted(BaseException):
    """The process is to end now. Like KeyboardInterrupt no Exception, so that nobody takes it for a failure of a network."""


@contextlib.contextmanager
def heeded() -> Iterator[None]:
    """Within, each signal raises Preempted in the main thread: at once, or where deferred, when its code looks. A SIGHUP that
    is ignored (`nohup`) stays so."""
    global _reason
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = [one for one in SIGNALS if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]
    before = {number: signal.signal(number, _note) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if _note not in before.values():  # else it is for the code around this, too
            _reason = None


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Within, a signal is only noted; the code there asks `asked`, saves what it has, and calls `check`. Signals come to the
    main thread, so in another one there is nothing to defer."""
    global _deferrals
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _deferrals += 1
    try:
        yield
    finally:
        _deferrals -= 1


def ask(reason: str) -> None:
    """What a signal does, for another reason: code that defers saves what it has and ends."""
    global _reason
    _reason = reason


def asked() -> bool:
    """Whether a signal has come, or somebody has asked."""
    return _reason is not None


def check() -> None:
    """Raise Preempted when the process was asked to end."""
    if _reason is not None:
        raise Preempted(_reason)


def ignore() -> None:
    """For a process that is ending: more signals must not cut that short."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _leave_terminal() -> None:
    """Put the null device in the place of streams to a terminal that is gone: what is still to be said would raise there."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        try:
            termios.tcgetattr(stream)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                os.dup2(null, stream)
    os.close(null)


def _note(number: int, frame: FrameType | None) -> None:
    _leave_terminal()  # a worker process is told of a SIGHUP by another signal
    ask(f"stopped by {signal.Signals(number).name}")
    if not _deferrals:
        check()
