"""Files that are either whole or not there: written beside their place, synced, then renamed over it."""

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_prep.errors import InputError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; when the block ends well, sync it and rename it to `path`.

    Should the block raise, the temporary file is removed and `path` stays as it was; an OSError then names `path`. The
    folder is made if missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The content of a JSON file; raises InputError with its name when it is not JSON."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}): remove it and run its stage again") from None


def remove_stale(folder: Path) -> None:
    """Remove what a killed process left half written in `folder`, and nothing else: it may be anybody's, not known yet to be
    ours. Only for the holder of the folder's lock."""
    for leftover in folder.glob(".*.tmp"):
        if re.fullmatch(r"\..+\.\d+\.tmp", leftover.name) and not leftover.is_dir():
            leftover.unlink(missing_ok=True)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def make_writable(folder: Path) -> None:
    """Make `folder` and, for a moment, a file in it. Raises OSError where that cannot be."""
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()
