"""A trace of about a second of training, op by op: for TensorBoard as TensorFlow writes it, and as trace events for Perfetto.
TensorFlow 2.21 reads no `ProfilerOptions`, so what bounds a trace is its time."""

import gzip
import json
import math
import threading
import time
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import tensorflow as tf

from lottery.base import files
from lottery.base.errors import InputError, first_line

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
    """A trace of a training, which ends with this context at the latest; with no `folder`, nothing at all. Below
    `folder`/plugins/profile/ come TensorFlow's `*.xplane.pb` and `trace.json.gz`; `say` is told where, or why there is none,
    for failures are not raised. A process may have one trace under way at a time."""

    def __init__(self, folder: Path | None, say: Callable[[str], None]):
        self._folder, self._say = folder, say
        self._calls, self._began, self._seconds = 0, 0.0, 0.0
        self._lock = threading.Lock()
        self._limit = threading.Timer(LONGEST_SECONDS, self._attempt, [self._stop])
        self._limit.daemon = True

    def __enter__(self) -> "Trace":
        return self

    def advance(self) -> None:
        """To be called after each compiled call of the training."""
        self._calls += 1
        if self._calls == WARM_UP_CALLS and self._folder:
            self._attempt(self._start)
        elif self._calls >= WARM_UP_CALLS + CALLS and time.monotonic() - self._began >= SECONDS:
            self._attempt(self._finish)

    def __exit__(self, *error: object) -> None:
        self._attempt(self._finish)

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # a trace must not end a training, whatever breaks in it
            self._folder = None
            self._say(f"no trace: {first_line(error)}")

    def _start(self) -> None:
        tf.profiler.experimental.start(str(self._folder))
        self._began = time.monotonic()
        self._limit.start()

    def _stop(self, save: bool = True) -> None:
        self._limit.cancel()
        with self._lock:
            began, self._began = self._began, 0.0
            if began:
                self._seconds = time.monotonic() - began
                tf.profiler.experimental.stop(save)

    def _finish(self) -> None:
        """Stop and write what there is; does nothing the second time."""
        folder, self._folder = self._folder, None
        if folder is None:
            return
        was_long_enough = self._calls > WARM_UP_CALLS
        self._stop(save=was_long_enough)
        if was_long_enough:
            self._say(f"a trace of {self._seconds:.1f} s: {convert_newest(folder)[1]}")
        else:
            self._say(f"no trace: the training was over before its compiled call {WARM_UP_CALLS + 1}; train for longer")


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
    Events have the full name of their op in `args`; those that took no time are left out. Returns the number of events."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    planes = [plane for plane in xplane_pb2.XSpace.FromString(source.read_bytes()).planes if plane.lines]
    names, lasting = [], []
    for pid, plane in enumerate(planes, 1):
        names.append(("process_name", pid, 0, plane.name))
        for tid, line in enumerate(plane.lines, 1):
            names.append(("thread_name", pid, tid, line.display_name or line.name))
            starts = ((line.timestamp_ns * 1000 + event.offset_ps, event) for event in line.events if event.duration_ps)
            lasting += [(start, pid, tid, -event.duration_ps, event) for start, event in starts]
    lasting.sort(key=itemgetter(0, 1, 2, 3))  # what encloses comes first
    del lasting[MOST_EVENTS:]
    with files.replacing(target) as temporary, gzip.open(temporary, "wt", compresslevel=5, encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        named = ({"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}} for kind, pid, tid, name in names)
        file.write(",\n".join(map(json.dumps, named)))
        for start, pid, tid, _, event in lasting:
            place = {"pid": pid, "tid": tid, "ts": start / 1e6, "dur": event.duration_ps / 1e6}
            file.write(",\n" + json.dumps({"ph": "X", **place, **_described(event, planes[pid - 1])}))
        file.write("\n]}\n")
    return len(lasting)


def _described(event: Any, plane: Any) -> dict[str, Any]:
    """The name of an event, and its stats that JSON can hold; those with a leading underscore are the profiler's own."""
    operation = plane.event_metadata[event.metadata_id]
    details: dict[str, int | float | str] = {"op": operation.name}
    for stat in event.stats:
        name, kind = plane.stat_metadata[stat.metadata_id].name, stat.WhichOneof("value")
        if kind in PLAIN and not name.startswith("_"):
            value = plane.stat_metadata[stat.ref_value].name if kind == "ref_value" else getattr(stat, kind)
            if isinstance(value, int | str) or math.isfinite(value):
                details[name] = value
    return {"name": operation.display_name or operation.name, "args": details}
