"""Networks that kill the process which trains them (out of memory, a broken device). Each attempt leaves a note while it lasts:
one that finds the note of another knows that the other process died. Of several that it trained together any may have killed
it: they are tried alone before one is set aside."""

import contextlib
from collections.abc import Iterator

from lottery.base import files, locks
from lottery.rundir.names import NetworkFiles

DEADLY = 2  # attempts that nobody came out of alive: no third one is made
KILLS = "set aside: twice in a row the process that trained it died without progress"


@contextlib.contextmanager
def noted(network: NetworkFiles, alone: bool = True) -> Iterator[int]:
    """An attempt at `network`, whose lock the caller holds, `alone` or beside others. Yields how many such died in a row
    since something was last saved. Once too many died beside others, it begins anew, without the checkpoint of those."""
    deaths = _deaths(network, alone)
    if alone and _deaths(network, alone=False) >= DEADLY:
        network.checkpoint.unlink(missing_ok=True)
    files.write_json(network.attempt, {"reached": _reached(network), "deaths": deaths, "alone": alone})
    try:
        yield deaths
    finally:
        files.check_held()  # else it is another's
        network.attempt.unlink(missing_ok=True)


def must_be_alone(network: NetworkFiles) -> bool:
    """Whether `network` is to be trained alone: a process that did died, or several in a row that trained it beside others."""
    if locks.holder(network.folder):  # which trains it now
        return False
    return _deaths(network, alone=True) > 0 or _deaths(network, alone=False) >= DEADLY


def _deaths(network: NetworkFiles, alone: bool) -> int:
    """How many attempts in a row died, if the last of them was made `alone`."""
    try:
        before = files.read_json(network.attempt)
    except FileNotFoundError:
        return 0
    if before.get("alone", True) != alone or before["reached"] != _reached(network):
        return 0
    return int(before["deaths"]) + 1


def _reached(network: NetworkFiles) -> int:
    """When something was last saved: its checkpoint, or those and results of the networks that a trial has in its folder."""
    saved = [*network.folder.rglob(network.checkpoint.name), *network.folder.glob(f"*/**/{network.result.name}")]
    return max((path.stat().st_mtime_ns for path in saved), default=0)
