"""One writer per output: an advisory lock that dies with its process, names its holder, and says how far that has come."""

import contextlib
import dataclasses
import fcntl
import math
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from data_prep import files
from data_prep.errors import InputError, Moved

TRIES = 100  # at a folder that others remove as fast
PATIENCE_SECONDS = 0.1  # between two tries to get the lock of another


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who is writing (`process 123 on host (imp retrain), since 12:30:01`), and what it noted last (empty: nothing)."""

    who: str
    note: str = ""


class Busy(InputError):
    """Another process is writing this output; the message names it."""


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder` (made if missing), cleared of what a killed writer left half written in it.

    Raises Busy, at once, when another process holds it. The kernel releases the lock of a process that dies.
    """
    path = folder / ".lock"
    with _existing(folder):
        descriptor = _acquire(path)
        try:
            _sign(descriptor)
            files.remove_stale(folder)
            with files.held(path, descriptor):
                yield
        finally:
            if files.is_still_at(path, descriptor):
                path.unlink(missing_ok=True)
            os.close(descriptor)


@contextlib.contextmanager
def staying(folder: Path) -> Iterator[None]:
    """Within, `folder` (made if missing) stays where it is: once it is moved, removed or begun anew, whatever this process
    writes raises Moved. For a command that writes, and locks, several folders in it, one after the other."""
    with _existing(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with files.held(folder, descriptor):
                yield
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _existing(folder: Path) -> Iterator[None]:
    """Within, `folder` is there; folders made for nothing go again, one that holds something stays."""
    files.check_held()
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    _make(folder)
    try:
        yield
    except Moved:
        made.clear()  # what is there now is another's
        raise
    finally:
        with contextlib.suppress(OSError):
            for parent in made:
                parent.rmdir()


@contextlib.contextmanager
def patiently(folder: Path, most_seconds: float = math.inf) -> Iterator[None]:
    """Hold the lock of `folder`, waiting for whoever has it: for what is written in a moment. Raises Busy after so long."""
    end = time.monotonic() + most_seconds
    with contextlib.ExitStack() as held:
        while True:
            try:
                held.enter_context(writing(folder))
                break
            except Busy:
                if time.monotonic() > end:
                    raise
                time.sleep(PATIENCE_SECONDS)
        yield


def note(folder: Path, text: str) -> None:
    """Let others know how far the writing in `folder` has come, if this process holds its lock. Raises Moved where it holds
    something that is elsewhere now."""
    files.check_held()
    descriptor = files.descriptor_of(folder / ".lock")
    if descriptor is not None:
        content = os.pread(descriptor, 1000, 0).split(b"\n")[0] + b"\n" + text.encode()
        os.pwrite(descriptor, content, 0)
        os.truncate(descriptor, len(content))


def holder(folder: Path) -> Holder | None:
    """Who is writing in `folder` at this moment, or None."""
    try:
        descriptor = os.open(folder / ".lock", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> Holder:
    who, _, note = os.pread(descriptor, 1000, 0).decode(errors="replace").partition("\n")
    return Holder(who or "another process", note)


def _make(folder: Path) -> None:
    """Make `folder`, which others that hold its lock for nothing may be removing meanwhile."""
    for _ in range(TRIES):
        with contextlib.suppress(FileExistsError, FileNotFoundError):  # it, or its parent, went in between
            folder.mkdir(parents=True, exist_ok=True)
            return
    folder.mkdir(parents=True, exist_ok=True)


def _acquire(path: Path) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # its last holder has removed the folder, in which it left nothing
            _make(path.parent)
            continue
        try:
            _flock(descriptor)
        except BlockingIOError:
            who = _read(descriptor).who
            os.close(descriptor)
            raise Busy(f"{path.parent} is being written by {who}: wait for it, or stop it") from None
        except OSError as error:
            os.close(descriptor)
            raise InputError(
                f"{path.parent} is on a file system without locks ({error.strerror}): "
                "keep the run directory on one that has them"
            ) from None
        if files.is_still_at(path, descriptor):  # its last holder may have removed it in between
            return descriptor
        os.close(descriptor)


def _sign(descriptor: int) -> None:
    os.truncate(descriptor, 0)
    os.write(
        descriptor,
        f"process {os.getpid()} on {socket.gethostname()} ({_command()}), since {time.strftime('%H:%M:%S')}".encode(),
    )


def _flock(descriptor: int) -> None:
    """Lock, with a few tries: `holder` holds a lock for the instant in which it looks."""
    for patience in (0.01, 0.02, 0.04, 0.08):
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(patience)
    return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _command() -> str:
    program = Path(sys.argv[0]).name
    return " ".join(["imp" if program == "__main__.py" else program, *sys.argv[1:2]])
