"""One writer per output: an advisory lock that dies with its process and names its holder."""

import contextlib
import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from data_prep import files
from data_prep.errors import InputError


class Busy(InputError):
    """Another process is writing this output; the message names it."""


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder` (made if missing), cleared of what a killed writer left half written in it.

    Raises Busy, at once, when another process holds it. The kernel releases the lock of a process that dies.
    """
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    try:
        descriptor = _acquire(path)
        try:
            _sign(descriptor)
            files.remove_stale(folder)
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)
    finally:
        with contextlib.suppress(OSError):  # folders made for nothing go again; one that holds something stays
            for parent in made:
                parent.rmdir()


def holder(folder: Path) -> str | None:
    """Who is writing in `folder` at this moment (`process 123 on host, since 12:30:01`), or None."""
    try:
        descriptor = os.open(folder / ".lock", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return os.read(descriptor, 1000).decode() or "another process"
    finally:
        os.close(descriptor)


def _acquire(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _flock(descriptor)
        except BlockingIOError:
            who = os.read(descriptor, 1000).decode() or "another process"
            os.close(descriptor)
            raise Busy(f"{path.parent} is being written by {who}: wait for it, or stop it") from None
        except OSError as error:
            os.close(descriptor)
            raise InputError(
                f"{path.parent} is on a file system without locks ({error.strerror}): "
                "keep the run directory on one that has them"
            ) from None
        if _still_named(path, descriptor):
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


def _still_named(path: Path, descriptor: int) -> bool:
    """Whether the locked file is still the one at `path`: its last holder may have removed it in between."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _command() -> str:
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:3]])
