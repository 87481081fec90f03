"""Reading sets of TensorFlow Datasets in a process of its own.

Whoever reads one starts TensorFlow, which from then on has its threads, and a GPU. A training settles both before it starts.
"""

import contextlib
import functools
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from lottery.base.errors import Failed

BATCH = 256  # examples a read, because each read costs as much as many examples
_SERVE = "from data_prep.sources.tfds_reading import serve; serve()"


def read(folder: Path, split: str, key: str, encoded: bool = False) -> Iterator[Any]:
    """One feature of every example of `split` of the prepared set in `folder`, in the order of the files; an image stays
    `encoded`, as it was stored. Raises Failed where that cannot be read."""
    process, told = _reader()
    request, answers = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
    with contextlib.suppress(BrokenPipeError):
        pickle.dump((str(folder), split, key, encoded), request)
        request.flush()
    is_whole = False
    try:
        while (batch := pickle.load(answers)) is not None:
            yield from batch
        is_whole = True
    except (EOFError, pickle.UnpicklingError):
        stop()
        told.seek(0)
        last = told.read().decode(errors="replace").strip().rpartition("\n")[2]
        raise Failed(f"{folder} cannot be read: {last}") from None
    finally:
        if not is_whole:  # what it has not sent yet is not wanted
            stop()


def stop() -> None:
    """End the process that reads, if there is one."""
    if _reader.cache_info().currsize:
        process, _ = _reader()
        process.kill()
        process.communicate()
        _reader.cache_clear()


@functools.cache
def _reader() -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """The process that reads, which ends with this one, and what it writes to standard error."""
    modules = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    environment = {**os.environ, "PYTHONPATH": modules, "CUDA_VISIBLE_DEVICES": "-1"}
    told = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
    command = [sys.executable, "-P", "-c", _SERVE]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told, env=environment)
    return process, told


def serve() -> None:
    """Answer each request on standard input with batches of arrays, and with None at their end."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # where TFDS may write what it likes
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            for batch in _batches(*pickle.load(sys.stdin.buffer)):
                pickle.dump(batch, answers)
            pickle.dump(None, answers)
            answers.flush()


def _batches(folder: str, split: str, key: str, encoded: bool) -> Iterator[np.ndarray]:
    import tensorflow_datasets as tfds

    decoders = tfds.decode.PartialDecoding({key: True}, {key: tfds.decode.SkipDecoding()} if encoded else None)
    dataset = tfds.builder_from_directory(folder).as_dataset(
        split=split, batch_size=BATCH, decoders=decoders, read_config=tfds.ReadConfig(interleave_cycle_length=1)
    )
    return (batch[key] for batch in tfds.as_numpy(dataset))
