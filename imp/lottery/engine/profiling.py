"""A trace of about a second of training, op by op: for TensorBoard as TensorFlow writes it, and as trace events for Perfetto.

`ProfilerOptions` would be the way to record less, but TensorFlow 2.21 reads none of them; so what bounds a trace is its time.
"""

import gzip
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from lottery.base import files
from lottery.base.errors import InputError, first_line

WARM_UP_CALLS = 2  # the first compiles, the second finds its feet
CALLS = 2
SECONDS = 1.0
LONGEST_SECONDS = 5.0  # an evaluation may come in between: minutes of it would fill the memory


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
    convert(source, target)
    return source, (
        f"`tensorboard --logdir {folder}` shows it (tensorboard-plugin-profile installed), or open {target} at "
        "https://ui.perfetto.dev"
    )


def convert(source: Path, target: Path) -> None:
    """Write an XSpace (TensorFlow's `*.xplane.pb`) in Chrome's trace event format: gzipped JSON, times in microseconds. Planes
    (the host, each device) become processes, lines threads or streams. Events have the full name of their op in `args`; those
    that took no time are left out."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    events: list[dict[str, Any]] = []
    for pid, plane in enumerate(xplane_pb2.XSpace.FromString(source.read_bytes()).planes, 1):
        events.append({"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": plane.name}})
        for tid, line in enumerate(plane.lines, 1):
            place = {"pid": pid, "tid": tid}
            events.append({"name": "thread_name", "ph": "M", **place, "args": {"name": line.display_name or line.name}})
            for event in line.events:
                if event.duration_ps:
                    operation = plane.event_metadata[event.metadata_id]
                    times = {"ts": line.timestamp_ns / 1e3 + event.offset_ps / 1e6, "dur": event.duration_ps / 1e6}
                    name = operation.display_name or operation.name
                    events.append({"name": name, "ph": "X", **place, **times, "args": {"op": operation.name}})
    with files.replacing(target) as temporary, gzip.open(temporary, "wt", compresslevel=5, encoding="utf-8") as file:
        json.dump({"displayTimeUnit": "ns", "traceEvents": events}, file)
