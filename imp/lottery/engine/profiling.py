"""A trace of about a second of training, op by op: for TensorBoard as TensorFlow writes it, and as trace events for Perfetto.

`ProfilerOptions` would be the way to record less, but TensorFlow 2.21 reads none of them; so what bounds a trace is its time.
"""

import gzip
import heapq
import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import tensorflow as tf

from data_prep import files
from data_prep.errors import InputError, first_line

WARM_UP_CALLS = 2  # the first compiles, the second finds its feet
CALLS = 2
SECONDS = 1.0
LONGEST_SECONDS = 5.0  # an evaluation may come in between: minutes of it would fill the memory
MOST_EVENTS = 1_000_000  # of a trace.json.gz; a browser can take no more
PLAIN = ("int64_value", "uint64_value", "double_value", "str_value", "ref_value")  # kinds of stats that go into it


def check(folder: Path) -> None:
    """Make `folder`; raises InputError where that, or a file in it, cannot be made."""
    try:
        files.make_writable(folder)
    except OSError as error:
        raise InputError(f"{folder} cannot take a trace ({error.strerror}): name another folder with --profile") from None


class Trace:
    """A trace of a training, which ends with this context at the latest; with no `folder`, nothing at all.

    Below `folder`/plugins/profile/ come TensorFlow's `*.xplane.pb` and beside it `trace.json.gz`; `say` is told where, or
    why there is none: a failure is told, not raised. The process may have one trace under way at a time.
    """

    def __init__(self, folder: Path | None, say: Callable[[str], None]):
        self._folder, self._say = folder or Path(), say
        self._calls = 0
        self._began = self._seconds = 0.0
        self._running, self._over = False, folder is None
        self._lock = threading.Lock()
        self._limit = threading.Timer(LONGEST_SECONDS, self._attempt, [self._stop])
        self._limit.daemon = True

    def advance(self) -> None:
        """To be called after each compiled call of the training."""
        self._calls += 1
        if self._calls == WARM_UP_CALLS and not self._over:
            self._attempt(self._start)
        elif self._calls >= WARM_UP_CALLS + CALLS and time.monotonic() - self._began >= SECONDS:
            self._finish()

    def __enter__(self) -> "Trace":
        return self

    def __exit__(self, *error: object) -> None:
        self._finish()

    def _finish(self) -> None:
        """Stop and write what there is; does nothing the second time."""
        if self._over:
            return
        self._over = True
        if self._calls > WARM_UP_CALLS:
            self._attempt(self._write)
        else:
            self._attempt(lambda: self._stop(save=False))
            self._say(f"no trace: the training was over before its compiled call {WARM_UP_CALLS + 1}; train for longer")

    def _start(self) -> None:
        tf.profiler.experimental.start(str(self._folder))
        self._began = time.monotonic()
        self._running = True
        self._limit.start()

    def _stop(self, save: bool = True) -> None:
        self._limit.cancel()
        with self._lock:
            if self._running:
                self._running = False
                self._seconds = time.monotonic() - self._began
                tf.profiler.experimental.stop(save)

    def _write(self) -> None:
        self._stop()
        _, shown = convert_newest(self._folder)
        self._say(f"a trace of {self._seconds:.1f} s: {shown}")

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # a trace must not end a training, whatever breaks in it
            self._over = True
            self._say(f"no trace: {first_line(error)}")


def convert_newest(folder: Path) -> tuple[Path, str]:
    """Put a `trace.json.gz` beside the newest `*.xplane.pb` below `folder`/plugins/profile/. Returns the latter's path, and how
    to look at either."""
    source = max(folder.glob("plugins/profile/*/*.xplane.pb"), key=lambda path: path.stat().st_mtime_ns)
    target = source.parent / "trace.json.gz"
    count = convert(source, target)
    events = f"its first {count} events" if count == MOST_EVENTS else f"{count} events"
    return source, (
        f"`tensorboard --logdir {folder}` shows it (tensorboard-plugin-profile installed), or open {target} ({events}) at "
        "https://ui.perfetto.dev"
    )


def convert(source: Path, target: Path) -> int:
    """Write the earliest `MOST_EVENTS` events of an XSpace (TensorFlow's `*.xplane.pb`) in Chrome's trace event format.

    Gzipped JSON; times in microseconds, sorted. Planes (the host, each device) become processes, lines threads or streams.
    Events are named by their op, if any, with the full name in `args`; those that took no time are left out (half of a
    host's are the thread pool's book-keeping). Returns the number of events.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(source.read_bytes())
    names: list[dict[str, Any]] = []
    lanes = []
    for pid, plane in enumerate((plane for plane in space.planes if plane.lines), 1):
        names.append(_naming("process", plane.name, pid, 0))
        for tid, line in enumerate(plane.lines, 1):
            names.append(_naming("thread", line.display_name or line.name, pid, tid))
            lanes.append(_events(plane, line, pid, tid))
    count = 0
    with files.replacing(target) as temporary, gzip.open(temporary, "wt", compresslevel=5, encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        file.write(",\n".join(map(json.dumps, names)))
        for event in itertools.islice(heapq.merge(*lanes, key=itemgetter("ts")), MOST_EVENTS):
            file.write(",\n" + json.dumps(event))
            count += 1
        file.write("\n]}\n")
    return count


def _naming(kind: str, name: str, pid: int, tid: int) -> dict[str, Any]:
    return {"name": f"{kind}_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _events(plane: Any, line: Any, pid: int, tid: int) -> Iterator[dict[str, Any]]:
    """The events of one line, by time."""
    full = {key: event.name for key, event in plane.event_metadata.items()}
    short = {key: event.display_name or event.name for key, event in plane.event_metadata.items()}
    stats = {key: stat.name for key, stat in plane.stat_metadata.items()}
    lasting = (event for event in line.events if event.duration_ps)
    for event in sorted(lasting, key=lambda event: (event.offset_ps, -event.duration_ps)):  # what encloses comes first
        yield {
            "name": short[event.metadata_id],
            "ph": "X",
            "pid": pid,
            "tid": tid,
            "ts": (line.timestamp_ns * 1000 + event.offset_ps) / 1e6,
            "dur": event.duration_ps / 1e6,
            "args": {"op": full[event.metadata_id], **_details(event.stats, stats)},
        }


def _details(stats: Any, names: dict[int, str]) -> dict[str, int | float | str]:
    """The stats of an event that JSON can hold; those with a leading underscore are the profiler's own."""
    details: dict[str, int | float | str] = {}
    for stat in stats:
        name, kind = names[stat.metadata_id], stat.WhichOneof("value")
        if name.startswith("_") or kind not in PLAIN:
            continue
        value = getattr(stat, kind)
        if kind == "ref_value":
            details[name] = names[value]
        elif kind != "double_value" or math.isfinite(value):
            details[name] = value
    return details
