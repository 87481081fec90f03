"""Measuring in a process of its own, so that memory, threads and failures are the measured thing's own too."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess, parent_process
from typing import Any, Self, TypeVar

from data_prep.errors import Failed, InputError, first_line

MEMORY_ERRORS = ("MemoryError", "ResourceExhaustedError")

Result = TypeVar("Result")


class TooLarge(Failed):
    """It needs more memory than it may have: TensorFlow said so, or the process was killed, which is how that looks too."""


class Process:
    """A process with TensorFlow that does one call after another; it starts at the first one, and anew where it has ended.

    It ends with the context, and with the process that asks, even where that is killed. Ctrl-C does not reach it.
    """

    def __init__(self) -> None:
        self._child: BaseProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child:
            self._child.kill()
            self._child.join()

    def call(self, function: Callable[..., Result], **arguments: Any) -> Result:
        """What `function`, one of a module's, returns for `arguments`. Raises InputError where that does, TooLarge where it is
        memory, and Failed, with a line that says why, where there is no result."""
        if self._child is None or not self._child.is_alive():
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._child = context.Process(target=_serve, args=[theirs], daemon=True)
            self._child.start()
            theirs.close()
        try:
            self._pipe.send((function, arguments))
            result, error = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._child.join()
            code = self._child.exitcode or 0
            if code < 0:
                raise TooLarge(f"its process was ended by {signal.Signals(-code).name}; is there memory enough?") from None
            raise Failed(f"its process ended with code {code}") from None
        if error:
            raise error
        return result


def _serve(pipe: Connection) -> None:
    """Answer each call with its result or its error."""
    os.setpgrp()  # Ctrl-C is for the process that asks
    os.dup2(2, 1)  # standard output is for the sheet
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(_answer(*pipe.recv()))


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent
    parent.join()
    os._exit(1)


def _answer(function: Callable[..., Any], arguments: dict[str, Any]) -> tuple[Any, Failed | InputError | None]:
    from lottery.engine.start import start_tensorflow

    try:
        start_tensorflow()
        return function(**arguments), None
    except InputError as error:
        return None, error
    except Exception as error:
        kind = TooLarge if type(error).__name__ in MEMORY_ERRORS else Failed
        return None, kind(f"{type(error).__name__}: {first_line(error)}")
