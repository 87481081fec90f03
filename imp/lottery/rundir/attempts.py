"""Networks that kill the process which trains them (out of memory, a broken device). Each attempt leaves a note while it lasts:
one that finds the note of another knows that the other process died."""

import contextlib
from collections.abc import Iterator

from data_prep import files
from lottery.rundir.names import NetworkFiles

DEADLY = 2  # attempts that nobody came out of alive: no third one is made
KILLS = "set aside: twice in a row the process that trained it died without progress"


@contextlib.contextmanager
def noted(network: NetworkFiles) -> Iterator[int]:
    """An attempt at `network`, whose lock the caller holds. Yields how many in a row died since the last checkpoint."""
    reached = network.checkpoint.stat().st_mtime_ns if network.checkpoint.exists() else 0
    deaths = 0
    if network.attempt.exists():
        before = files.read_json(network.attempt)
        deaths = before["deaths"] + 1 if before["reached"] == reached else 0
    files.write_json(network.attempt, {"reached": reached, "deaths": deaths})
    try:
        yield deaths
    finally:
        files.check_held()  # else it is another's
        network.attempt.unlink(missing_ok=True)
