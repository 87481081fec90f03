"""Errors that a user can mend, and the one line they get of them."""

import re

_COLOUR = re.compile("\x1b\\[[0-9;]*m")
# They move what is printed, or are no text.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class InputError(ValueError):
    """Something the user gave, or left lying about, that cannot be worked with. The message is one line: what is wrong, where,
    and the way out. The command line prints it and exits with code 2."""


class Failed(Exception):
    """Something went wrong while it ran, through nobody's input. The message is one line; the exit code is 1."""


class Moved(BaseException):
    """A folder that this process writes to was moved, removed or begun anew under it. The message is one line. No Exception, so
    that nobody takes it for a failure of what was under way."""


def printable(text: str) -> str:
    """`text` with its control characters written as Python does (`\\x1b`): names of files may hold any."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def first_line(error: BaseException) -> str:
    """The first line of `error`, or its type when it says nothing; of Keras's, whose first says only where it failed, two."""
    lines = [line for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[: 1 + lines[0].startswith("Exception encountered when calling")]).strip()


def one_line(error: BaseException) -> str | None:
    """The line for a user, if `error` is ours or comes from the file system; None for any other error."""
    if isinstance(error, InputError | Failed | Moved):
        return printable(" ".join(str(error).splitlines()))  # it may quote a name of several
    if isinstance(error, OSError) and error.strerror:
        return printable(f"{error.filename or 'the file system'}: {error.strerror}; mend that and run the command again")
    return None
