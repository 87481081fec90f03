"""One writer per output: an advisory lock that ends with its process, names its holder, and tells how far the holder is."""

import contextlib
import dataclasses
import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from lottery.base import files
from lottery.base.errors import InputError

TRIES = 100  # at a folder that others remove as fast
GLANCE_SECONDS = 0.15  # more than `holder` ever holds the lock of a writer that was killed
PAUSE_SECONDS = 0.05  # between two tries to get the lock of another


@dataclasses.dataclass(frozen=True)
class Holder:
    """The process that is writing (`process 123 on host (imp retrain), since 12:30:01`), and its last note (may be empty)."""

    who: str
    note: str = ""


class Busy(InputError):
    """Another process is writing this output; the message names it."""


@contextlib.contextmanager
def writing(folder: Path, patience: float = GLANCE_SECONDS) -> Iterator[None]:
    """Hold the lock of `folder` (made if missing, and removed again if nothing is written), cleared of what a killed writer
    left half written in it. Raises Busy when another process still holds it after `patience` seconds: by default at once. The
    kernel releases the lock of a process that dies."""
    files.check_held()
    path, made = folder / ".lock", _make(folder)
    descriptor = _acquire(path, made, time.monotonic() + patience)
    with _holding(path, descriptor, made):
        os.truncate(descriptor, 0)
        program = Path(sys.argv[0]).name
        command = " ".join(["imp" if program == "__main__.py" else program, *sys.argv[1:2]])
        told = f"process {os.getpid()} on {socket.gethostname()} ({command}), since {time.strftime('%H:%M:%S')}"
        os.write(descriptor, told.encode())
        files.remove_stale(folder)
        yield


@contextlib.contextmanager
def staying(folder: Path) -> Iterator[None]:
    """Within, `folder` (made if missing) stays where it is: once it is moved, removed or begun anew, whatever this process
    writes raises Moved. For a command that writes, and locks, several folders in it, one after the other."""
    files.check_held()
    made = _make(folder)
    with _holding(folder, os.open(folder, os.O_RDONLY | os.O_DIRECTORY), made):
        yield


@contextlib.contextmanager
def _holding(path: Path, descriptor: int, made: Sequence[Path]) -> Iterator[None]:
    """Hold the lock or the folder `path`; then remove the lock, and of the folders that were `made` those that are empty."""
    try:
        with files.held(path, descriptor):
            yield
    finally:
        if files.is_still_at(path, descriptor):
            if path.name == ".lock":
                path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # one that holds something stays, and so do its parents
                for folder in made:
                    folder.rmdir()
        os.close(descriptor)


def note(folder: Path, text: str) -> None:
    """Let others know how far the writing in `folder` has come, if this process holds its lock. Raises Moved."""
    files.check_held()
    descriptor = files.descriptor_of(folder / ".lock")
    if descriptor is not None:
        content = f"{_read(descriptor).who}\n{text}".encode()
        os.pwrite(descriptor, content, 0)
        os.truncate(descriptor, len(content))


def holder(folder: Path) -> Holder | None:
    """Who is writing in `folder` at this moment, or None."""
    try:
        descriptor = os.open(folder / ".lock", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        if not os.fstat(descriptor).st_size:  # its writer is still taking the lock: looking must not take it first
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def _make(folder: Path) -> list[Path]:
    """Make `folder`, which others that held it for nothing may be removing. Returns what was missing of it and its parents."""
    for attempt in range(TRIES):
        made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            break
        except (FileExistsError, FileNotFoundError):  # it, or its parent, went in between
            if attempt == TRIES - 1:
                raise
    return made


def _acquire(path: Path, made: list[Path], until: float) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # its last holder has removed the folder, in which it left nothing
            made[:] = _make(path.parent)
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            who, way_out = _read(descriptor).who, "keep the run directory on one that has them"
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise InputError(f"{path.parent} is on a file system without locks ({error.strerror}): {way_out}") from None
            if time.monotonic() > until:
                raise Busy(f"{path.parent} is being written by {who}: wait for it, or stop it") from None
            time.sleep(PAUSE_SECONDS)
            continue
        if files.is_still_at(path, descriptor):  # its last holder may have removed it in between
            return descriptor
        os.close(descriptor)


def _read(descriptor: int) -> Holder:
    who, _, note = os.pread(descriptor, 1000, 0).decode(errors="replace").partition("\n")
    return Holder(who or "another process", note)
