"""A process to measure in, so that memory, threads and failures are the measured thing's own."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess, parent_process
from typing import Any, TypeVar

from lottery.base.errors import Failed, InputError, first_line

Result = TypeVar("Result")


class Process(contextlib.AbstractContextManager["Process"]):
    """A process, with TensorFlow unless told otherwise, that does one call after another; it starts at the first one, and anew
    where it has ended. It ends with the context, and with the process that asks."""

    _child: BaseProcess | None = None

    def __init__(self, tensorflow: bool = True) -> None:
        self._tensorflow = tensorflow
        self._reaping = threading.Lock()  # of two threads that wait for a child one is told how it ended

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End it, and whatever it has started; the next call starts another. A call under way raises Failed."""
        if self._lives() and self._child and self._child.pid:
            with contextlib.suppress(ProcessLookupError):  # it has just begun, and has no group of its own yet
                os.killpg(self._child.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, signal.SIGKILL)
            with self._reaping:
                self._child.join()

    def _lives(self) -> bool:
        with self._reaping:
            return self._child is not None and self._child.is_alive()

    def call(self, function: Callable[..., Result], **arguments: Any) -> Result:
        """What `function`, one of a module's, returns for `arguments`. Raises InputError as that does, or Failed."""
        if not self._lives():
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._child = context.Process(target=_serve, args=[theirs, self._tensorflow], daemon=True)
            self._child.start()
            theirs.close()
        assert self._child
        try:
            self._pipe.send((function, arguments))
            result, error = self._pipe.recv()
        except (EOFError, ConnectionError):
            with self._reaping:
                self._child.join()
                code = self._child.exitcode or 0
            if code < 0:
                raise Failed(f"its process was ended by {signal.Signals(-code).name}; is there memory enough?") from None
            raise Failed(f"its process ended with code {code}") from None
        if error:
            raise error
        return result


def _serve(pipe: Connection, tensorflow: bool) -> None:
    """Answer each call with its result or its error."""
    from lottery.engine.start import start_tensorflow

    os.setpgrp()  # Ctrl-C is for the process that asks
    os.dup2(2, 1)  # standard output is for the sheet
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError):
        while True:
            function, arguments = pipe.recv()
            answer: tuple[Any, Exception | None]
            try:
                if tensorflow:
                    start_tensorflow()
                answer = function(**arguments), None
            except InputError as error:
                answer = None, error
            except Exception as error:
                answer = None, Failed(f"{type(error).__name__}: {first_line(error)}")
            pipe.send(answer)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent
    parent.join()
    os._exit(1)
