"""Files that are either whole or not there: written beside their place, synced, then renamed over it."""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lottery.base.errors import InputError, Moved

_held: list[tuple[Path, int]] = []  # files and folders by which this process holds what it writes, and open descriptors of them
_looking = threading.RLock()  # at these, of which other threads may let go, and close them


@contextlib.contextmanager
def held(path: Path, descriptor: int) -> Iterator[None]:
    """Within, nothing is written once `path` is no longer what the open `descriptor` is of: Moved is raised instead."""
    with _looking:
        _held.append((path, descriptor))
    try:
        yield
    except OSError:
        check_held()
        raise
    finally:
        with _looking:
            _held.remove((path, descriptor))


def descriptor_of(path: Path) -> int | None:
    """That of what is held at `path`."""
    with _looking:
        return next((descriptor for place, descriptor in _held if place == path), None)


def check_held() -> None:
    """Raise Moved where something that this process holds is no longer where it was."""
    with _looking:
        for path, descriptor in _held:
            if not is_still_at(path, descriptor):
                folder = path if stat.S_ISDIR(os.fstat(descriptor).st_mode) else path.parent
                raise Moved(f"{folder} was moved, removed or begun anew while this was written: go on with it where it is now")


def is_still_at(path: Path, descriptor: int) -> bool:
    """Whether the open file or folder is the one at `path`."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
            return False
        raise


_BLANK = "0" * 64
_SEALED = re.compile(rb'\{\n  "sha256": "([0-9a-f]{64})"')


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path` (made if missing); when the block ends well, sync it and rename it to
    `path`. Should the block raise, it is removed and `path` stays as it was; an OSError then names `path`, unless it names
    another file. What a killed process left of it is removed. Raises Moved where this process no longer holds what it held."""
    check_held()
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
            if leftover != temporary and is_stale(leftover):
                _remove_abandoned(leftover)
        with _locked(temporary) as descriptor:
            yield temporary
            os.fsync(descriptor)
            os.replace(temporary, path)
    except OSError as error:
        named = str(error.filename or temporary)
        raise OSError(error.errno, error.strerror, str(path) if named == str(temporary) else named) from error
    finally:
        temporary.unlink(missing_ok=True)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:  # to make the renaming survive a power cut
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(temporary: Path) -> Iterator[int]:
    """The descriptor of a new file, which others tell from an abandoned one by its lock, where there are locks."""
    while True:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if is_still_at(temporary, descriptor):  # another may have removed it, before it was locked
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _remove_abandoned(temporary: Path) -> None:
    """Remove a temporary file unless a process is writing it."""
    with contextlib.suppress(OSError), open(temporary, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_still_at(temporary, file.fileno()):  # and not renamed meanwhile, and another begun
            temporary.unlink()


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode())


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` as a JSON object, whose first key seals it: the sha256 of its name and its bytes, with zeros there."""
    blank = (json.dumps({"sha256": _BLANK, **content}, indent=2, allow_nan=False) + "\n").encode()
    write_bytes(path, blank.replace(_BLANK.encode(), sha256(path.name.encode() + blank).encode(), 1))


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote. Raises InputError with the file's name when a byte of it has changed since."""
    return _sealed(path)[0]


def json_seal(path: Path) -> str:
    """The sha256 in a JSON file that `write_json` wrote. Raises InputError as `read_json` does."""
    return _sealed(path)[1]


def _sealed(path: Path) -> tuple[dict[str, Any], str]:
    check_regular(path)
    content = path.read_bytes()
    seal = _SEALED.match(content)
    if not seal or sha256(path.name.encode() + content.replace(seal[1], _BLANK.encode(), 1)) != seal[1].decode():
        problem = "its sha256 differs" if seal else "it has no sha256, as earlier versions wrote none"
        raise InputError(f"{path} is damaged or was changed by hand ({problem}): remove it and run its stage again")
    try:
        return {key: value for key, value in json.loads(content).items() if key != "sha256"}, seal[1].decode()
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not as it should be ({error}): remove it and run its stage again") from None


def check_regular(path: Path) -> None:
    """Raise InputError for a pipe or a device, on whose other end a reader would wait."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"{path} is not a file, but a pipe or a device: name a file")


def remove_stale(folder: Path) -> None:
    """Remove what a killed process left half written in `folder`, and nothing else: it may be anybody's, not known yet to be
    ours. Only for the holder of the folder's lock."""
    for leftover in folder.glob(".*.tmp"):
        if is_stale(leftover):
            leftover.unlink(missing_ok=True)


def is_stale(path: Path) -> bool:
    """Whether `path` is called like a temporary file of `replacing`."""
    return re.fullmatch(r"\..+\.\d+\.tmp", path.name) is not None and not path.is_dir()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def make_writable(folder: Path) -> None:
    """Make `folder` and, for a moment, a file in it. Raises OSError where that cannot be."""
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()
