"""Measuring in a process of its own, so that memory, threads and failures are the contender's own too."""

import contextlib
import importlib
import json
import signal
import subprocess
import sys
from typing import Any

from data_prep.errors import Failed, InputError, first_line

COMMAND = (sys.executable, "-m", "lottery.bench.apart")
MEMORY_ERRORS = ("MemoryError", "ResourceExhaustedError")


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
    given = json.dumps({"function": function, "arguments": arguments})
    done = subprocess.run(COMMAND, input=given, stdout=subprocess.PIPE, text=True, process_group=0)
    if done.returncode < 0:
        raise TooLarge(f"its process was ended by {signal.Signals(-done.returncode).name}; is there memory enough?")
    if done.returncode:
        raise Failed(f"its process ended with code {done.returncode}")
    found = json.loads(done.stdout)
    if "error" in found:
        kind, _, line = found["error"].partition(": ")
        if kind == InputError.__name__:
            raise Refused(line)
        raise (TooLarge if kind in MEMORY_ERRORS else Failed)(found["error"])
    return found["result"]


def serve() -> None:
    """What such a process does."""
    from lottery.start import start_tensorflow

    given = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            start_tensorflow()
            module, _, name = given["function"].partition(":")
            found = {"result": getattr(importlib.import_module(module), name)(**given["arguments"])}
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {first_line(error)}"}
    print(json.dumps(found))


if __name__ == "__main__":
    serve()
