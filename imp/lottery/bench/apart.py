"""Measuring in a process of its own, so that memory, threads and failures are the contender's own too."""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from data_prep.errors import Failed, InputError, first_line

COMMAND = (sys.executable, "-m", "lottery.bench.apart")
MEMORY_ERRORS = ("MemoryError", "ResourceExhaustedError")

Call = Callable[..., Any]


class Refused(Failed):
    """It was given something that it cannot work with."""


class TooLarge(Failed):
    """It needs more memory than it may have: TensorFlow said so, or the process was ended, which is how that looks too."""


def call(function: str, **arguments: Any) -> Any:
    """What `function` ("package.module:name") returns for `arguments`, in a new process in which TensorFlow has started; all
    of it as JSON can hold. Raises Failed with a line that says why there is no result: Refused where that is an InputError,
    TooLarge where it is memory.

    Ctrl-C does not reach the process, which is in a group of its own: it ends with us.
    """
    with calling(together=True) as once:
        return once(function, **arguments)


@contextlib.contextmanager
def calling(together: bool) -> Iterator[Call]:
    """Yields `call`, or where it may all be done `together` one like it that asks the same process again and again, which is
    quicker by TensorFlow's start; another one where that has ended."""
    if not together:
        yield call
        return
    with contextlib.ExitStack() as ended:
        process: subprocess.Popen[str] | None = None

        def again(function: str, **arguments: Any) -> Any:
            nonlocal process
            if process is None or process.poll() is not None:
                process = ended.enter_context(_started())
            return _ask(process, {"function": function, "arguments": arguments})

        yield again


def note(together: bool) -> str:
    """What a reader is told of that."""
    return "rows share processes" if together else "each row in a process of its own"


def serve() -> None:
    """What such a process does: an answer, a line of JSON, for each line that asks; it ends with the process that asks."""
    threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


@contextlib.contextmanager
def _started() -> Iterator[subprocess.Popen[str]]:
    """A process that serves; it ends with the block, at once where that raises."""
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)
    try:
        yield process
    except BaseException:
        process.kill()
        raise
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.communicate()


def _ask(process: subprocess.Popen[str], given: dict[str, Any]) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended, which is told below
        print(json.dumps(given), file=process.stdin, flush=True)
    answer = process.stdout.readline()
    if not answer:
        code = process.wait()
        if code < 0:
            raise TooLarge(f"its process was ended by {signal.Signals(-code).name}; is there memory enough?")
        raise Failed(f"its process ended with code {code}")
    found = json.loads(answer)
    if "error" in found:
        kind, _, line = found["error"].partition(": ")
        if kind == InputError.__name__:
            raise Refused(line)
        raise (TooLarge if kind in MEMORY_ERRORS else Failed)(found["error"])
    return found["result"]


def _answer(given: dict[str, Any]) -> dict[str, Any]:
    from lottery.start import start_tensorflow

    with contextlib.redirect_stdout(sys.stderr):
        try:
            start_tensorflow()
            module, _, name = given["function"].partition(":")
            return {"result": getattr(importlib.import_module(module), name)(**given["arguments"])}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {first_line(error)}"}


if __name__ == "__main__":
    serve()
