"""Where the time of a trace went, on hand-made events and a hand-made XSpace."""

import importlib

import pytest


@pytest.fixture
def traces(tensorflow, benchmarks):
    return importlib.import_module("traces")


LANE = [(0, 100, "update"), (10, 40, "mask"), (20, 30, "other"), (40, 50, "mask"), (60, 80, "host"), (65, 70, "forward")]
INNERMOST = {"update": 40, "mask": 30, "other": 10, "host": 15, "forward": 5}


LANES = [[(0, 40, "forward")], [(20, 60, "backward")], [(20, 40, "backward")]]
EDGES = [[(0, 15, "input"), (15, 25, "forward"), (30, 50, "update")], [(60, 70, "mask")]]


@pytest.mark.parametrize(
    ("lanes", "first", "last", "expected"),
    [
        ([], 0, 100, {"host": 100}),
        ([[(10, 30, "forward"), (50, 60, "backward")]], 0, 100, {"host": 70, "forward": 20, "backward": 10}),
        ([LANE], 0, 100, INNERMOST),
        ([LANE[::-1]], 0, 100, INNERMOST),
        ([[(0, 100, "host")], [(0, 100, "forward")]], 0, 100, {"forward": 100}),
        ([[(0, 60, "forward"), (40, 100, "backward")]], 0, 100, {"forward": 40, "backward": 60}),
        (LANES, 0, 60, {"forward": pytest.approx(20 + 20 / 3), "backward": pytest.approx(40 / 3 + 20)}),
        (EDGES, 10, 40, {"input": 5, "forward": 10, "update": 10, "host": 5}),
    ],
)
def test_within_a_lane_an_instant_counts_once_among_lanes_in_parts_and_where_nothing_runs_it_is_the_host(
    traces, lanes, first, last, expected
):
    assert {part: time for part, time in traces.divide(lanes, first, last)[0].items() if time} == expected


@pytest.fixture
def space(traces):
    """Ten nanoseconds on two threads of a host, marked by a third, and a program of XLA."""
    from tensorflow.compiler.xla.service import hlo_pb2
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    program = hlo_pb2.HloProto()
    program.hlo_module.name = "_gradients"
    instruction = program.hlo_module.computations.add().instructions.add(name="fusion.3")
    instruction.metadata.op_name = "gradient_tape/step.forward/Mul"
    space = xplane_pb2.XSpace()
    metadata = space.planes.add(name="/host:metadata")
    metadata.event_metadata[1].stats.add(bytes_value=program.SerializeToString())
    host = space.planes.add(name="/host:CPU")
    line(host, "python", (0, 20, "_steps"), (5, 10, traces.MARK))
    line(
        host,
        "first",
        (0, 20, "ExecutorState::Process"),
        (6, 4, "while/step.forward/MatMul:_MklMatMul"),
        (7, 1, "allocate"),
        (11, 2, "while/TensorListSetItem:TensorListSetItem"),
    )
    line(
        host,
        "second",
        (10, 5, "ExecutorState::ProcessAsync::Start", {"kernel_type": "PartitionedCall", "name": "step.update/Call"}),
        (12, 2, "fusion.3", {"hlo_module": "_gradients", "hlo_op": "fusion.3"}),
        (14, 1, "fusion.4", {"hlo_module": "_gradients", "hlo_op": "fusion.4"}),
    )
    return space


def line(plane, name, *events):
    """A line of (begins, lasts, name, stats), in nanoseconds since an hour ago."""
    made = plane.lines.add(name=name, timestamp_ns=3_600 * 10**9)
    for begins, lasts, called, *stats in events:
        event = made.events.add(metadata_id=key_of(plane.event_metadata, called), offset_ps=begins * 1000)
        event.duration_ps = lasts * 1000
        for stat, text in dict(*stats).items():
            event.stats.add(metadata_id=key_of(plane.stat_metadata, stat), ref_value=key_of(plane.stat_metadata, text))


def key_of(metadata, name):
    for key, known in metadata.items():
        if known.name == name:
            return key
    metadata[len(metadata) + 1].name = name
    return len(metadata)


def read(traces, space, folder):
    (folder / "vm.xplane.pb").write_bytes(space.SerializeToString())
    lanes, first, last, on_gpu = traces.read(folder / "vm.xplane.pb")
    found, began = traces.divide(lanes, first, last)
    times = {part: round(time / 1000, 6) for part, time in found.items() if time}
    assert sum(times.values()) == pytest.approx(10)
    return times, began, on_gpu


def test_events_of_the_host_say_their_part_by_name_by_stat_or_by_what_they_lie_in(traces, space, tmp_path):
    times, began, on_gpu = read(traces, space, tmp_path)

    assert times == {"forward": 4, "other": 1, "update": 2.5, "backward": 1.5, "host": 1}
    assert began == {"forward": 1, "other": 1, "update": 1, "backward": 1}
    assert not on_gpu


def test_where_there_is_a_gpu_its_streams_count_and_every_kernel_does(traces, space, tmp_path):
    gpu = space.planes.add(name="/device:GPU:0")
    line(
        gpu,
        "Stream #13(Compute)",
        (5, 2, "sgemm", {"hlo_module": "_gradients", "hlo_op": "call::fusion.3"}),
        (8, 1, "void select<float>", {"tf_op": "step.update/step.mask/SelectV2:SelectV2"}),
        (10, 2, "MemcpyD2H"),
    )
    line(gpu, "XLA Ops", (5, 10, "while/step.forward/Mul:Mul"))

    times, _, on_gpu = read(traces, space, tmp_path)

    assert times == {"backward": 2, "mask": 1, "other": 2, "host": 5}
    assert on_gpu
