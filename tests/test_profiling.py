"""Traces of training: what is recorded and when, the trace event format, and that a trace never ends a training."""

import gzip
import json
import time

import pytest

from lottery.base.errors import InputError


@pytest.fixture
def profiling(tensorflow, monkeypatch):
    """The module, content with traces that are shorter than a second."""
    from lottery.engine import profiling

    monkeypatch.setattr(profiling, "SECONDS", 0.0)
    return profiling


@pytest.fixture
def small(tensorflow):
    """A compiled call of a few steps, each with a convolution and a product of matrices."""
    tf = tensorflow

    @tf.function
    def call(images):
        total = 0.0
        for _ in tf.range(5):
            features = tf.reshape(tf.nn.conv2d(images, tf.ones([3, 3, 3, 4]), 1, "SAME"), [2, -1])
            total += tf.reduce_sum(tf.linalg.matmul(features, features, transpose_b=True))
        return total

    return lambda: call(tf.ones([2, 8, 8, 3])).numpy()


def train(profiling, folder, call, calls):
    """Make `calls` calls under a trace; returns what was said."""
    said = []
    profiling.check(folder)
    with profiling.Trace(folder, said.append) as trace:
        for _ in range(calls):
            call()
            trace.advance()
    return said


def events_below(folder):
    (path,) = folder.glob("plugins/profile/*/trace.json.gz")
    with gzip.open(path, "rt") as file:
        return json.load(file)["traceEvents"]


def ops(folder):
    return {event["name"] for event in events_below(folder) if event["ph"] == "X"}


def has(names, op):
    return any(op in name for name in names)  # oneDNN's Conv2D is _MklNativeConv2D


def test_a_training_leaves_both_traces_and_one_line_that_says_how_to_see_them(profiling, small, tmp_path):
    folder = tmp_path / "new" / "trace"

    (line,) = train(profiling, folder, small, 8)

    (session,) = (folder / "plugins" / "profile").iterdir()
    assert {path.name.split(".", 1)[1] for path in session.iterdir()} == {"xplane.pb", "json.gz"}
    assert f"tensorboard --logdir {folder}" in line
    assert f"open {session / 'trace.json.gz'}" in line
    assert "https://ui.perfetto.dev" in line
    assert "\n" not in line
    assert (session / "trace.json.gz").stat().st_size < next(session.glob("*.pb")).stat().st_size
    assert has(ops(folder), "Conv2D")
    assert has(ops(folder), "MatMul")


def test_the_first_two_calls_and_those_after_the_trace_are_left_out(profiling, tensorflow, tmp_path):
    tf = tensorflow
    todo = iter([tf.sin, tf.sin, tf.cos, tf.cos, tf.sinh, tf.sinh])

    train(profiling, tmp_path, lambda: next(todo)(tf.ones([4])), 6)

    assert has(ops(tmp_path), "Cos")
    assert not has(ops(tmp_path), "Sin")


def test_what_a_failing_training_left_is_written_and_its_error_goes_on(profiling, small, tmp_path):
    todo = iter([small, small, small, lambda: 1 / 0])

    with pytest.raises(ZeroDivisionError):
        train(profiling, tmp_path, lambda: next(todo)(), 4)

    assert has(ops(tmp_path), "Conv2D")


def test_a_training_that_is_over_too_soon_is_told(profiling, small, tmp_path):
    (line,) = train(profiling, tmp_path, small, 2)

    assert line.startswith("no trace: the training was over before its compiled call 3")
    assert list(tmp_path.iterdir()) == []
    assert len(train(profiling, tmp_path, small, 4)) == 1  # the profiler is free again
    assert has(ops(tmp_path), "Conv2D")


def test_a_trace_is_bounded_in_time_whatever_lies_between_two_calls(profiling, tensorflow, tmp_path, monkeypatch):
    monkeypatch.setattr(profiling, "LONGEST_SECONDS", 0.2)
    tf = tensorflow
    todo = iter([tf.sin, tf.sin, tf.cos, tf.sinh])

    def call():
        next(todo)(tf.ones([4]))
        time.sleep(0.6)

    (line,) = train(profiling, tmp_path, call, 4)

    assert line.startswith("a trace of 0.2 s")
    assert has(ops(tmp_path), "Cos")
    assert not has(ops(tmp_path), "Sinh")


def test_a_folder_that_cannot_be_written_to_is_refused_before_training(profiling, tmp_path):
    (tmp_path / "file").write_text("mine")

    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=r"cannot take a trace .*: name another folder with --profile$"):
            train(profiling, folder, lambda: pytest.fail("trained"), 1)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_profiler_that_does_not_start_is_told_once_and_not_fatal(profiling, tensorflow, small, tmp_path):
    tensorflow.profiler.experimental.start(str(tmp_path / "other"))
    try:
        (line,) = train(profiling, tmp_path / "mine", small, 8)
    finally:
        tensorflow.profiler.experimental.stop(save=False)

    assert line == "no trace: Another profiler is running."


def test_a_trace_that_cannot_be_written_is_told_once_and_not_fatal(profiling, small, tmp_path, monkeypatch):
    def fail(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(profiling, "convert", fail)
    (line,) = train(profiling, tmp_path, small, 8)

    assert line == "no trace: [Errno 28] No space left on device"


@pytest.fixture
def space(tensorflow):
    """A hand-written trace of a host with two threads, a device, and a plane of nothing but metadata."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.planes.add(name="/host:metadata").event_metadata[1].name = "nothing"
    host = space.planes.add(name="/host:CPU")
    for key, name in enumerate(["_c", "bytes", "shape", "f32[2]", "broken", "share"], 1):
        host.stat_metadata[key].name = name
    host.event_metadata[1].name = "Executor"
    host.event_metadata[2].name, host.event_metadata[2].display_name = "block/Conv2D:Conv2D", "Conv2D"
    first = host.lines.add(name="python", timestamp_ns=1_000)
    first.events.add(metadata_id=2, offset_ps=3_000_000, duration_ps=500)
    first.events.add(metadata_id=2, offset_ps=0, duration_ps=2_000_000)
    first.events.add(metadata_id=1, offset_ps=0, duration_ps=4_000_000)
    first.events.add(metadata_id=1, offset_ps=7, duration_ps=0)
    for key, value in [(1, 9), (2, 64)]:
        first.events[1].stats.add(metadata_id=key, int64_value=value)
    first.events[1].stats.add(metadata_id=3, ref_value=4)
    first.events[1].stats.add(metadata_id=4, bytes_value=b"long")
    first.events[1].stats.add(metadata_id=5, double_value=float("nan"))
    first.events[1].stats.add(metadata_id=6, double_value=0.5)
    second = host.lines.add(name="17", display_name="worker", timestamp_ns=2_000)
    second.events.add(metadata_id=1, offset_ps=1_000_000, duration_ps=1_000_000)
    device = space.planes.add(name="/device:GPU:0")
    device.event_metadata[1].name = "sgemm"
    device.lines.add(name="Stream #7", timestamp_ns=0).events.add(metadata_id=1, offset_ps=1_500_000, duration_ps=250_000)
    return space


def converted(profiling, space, folder):
    (folder / "vm.xplane.pb").write_bytes(space.SerializeToString())
    count = profiling.convert(folder / "vm.xplane.pb", folder / "trace.json.gz")
    with gzip.open(folder / "trace.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    lasting = [event for event in events if event["ph"] == "X"]
    assert count == len(lasting)
    return [event for event in events if event["ph"] == "M"], lasting


def test_planes_become_processes_lines_threads_and_picoseconds_microseconds(profiling, space, tmp_path):
    names, events = converted(profiling, space, tmp_path)

    assert [(name["name"], name["pid"], name["tid"], name["args"]["name"]) for name in names] == [
        ("process_name", 1, 0, "/host:CPU"),
        ("thread_name", 1, 1, "python"),
        ("thread_name", 1, 2, "worker"),
        ("process_name", 2, 0, "/device:GPU:0"),
        ("thread_name", 2, 1, "Stream #7"),
    ]
    assert [(event["name"], event["pid"], event["tid"], event["ts"], event["dur"]) for event in events] == [
        ("Executor", 1, 1, 1.0, 4.0),
        ("Conv2D", 1, 1, 1.0, 2.0),
        ("sgemm", 2, 1, 1.5, 0.25),
        ("Executor", 1, 2, 3.0, 1.0),
        ("Conv2D", 1, 1, 4.0, 0.0005),
    ]
    assert events[1]["args"] == {"op": "block/Conv2D:Conv2D", "bytes": 64, "shape": "f32[2]", "share": 0.5}


def test_a_trace_of_too_many_events_keeps_the_earliest_of_all_threads(profiling, space, tmp_path, monkeypatch):
    monkeypatch.setattr(profiling, "MOST_EVENTS", 3)

    names, events = converted(profiling, space, tmp_path)

    assert len(names) == 5
    assert [event["name"] for event in events] == ["Executor", "Conv2D", "sgemm"]


def test_a_cut_trace_says_so(profiling, small, tmp_path, monkeypatch):
    monkeypatch.setattr(profiling, "MOST_EVENTS", 20)

    (line,) = train(profiling, tmp_path, small, 6)

    assert "(its first 20 events)" in line
