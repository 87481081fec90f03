"""Where the time of a trace went: to which part of the training step each instant of it belongs."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lottery.engine.scopes import PARTS

MARK = "profile_step"  # the event, on a thread of the host, that is as long as what is looked at
OTHER, HOST = "other", "host"
ROWS = (*PARTS, OTHER, HOST)

Interval = tuple[int, int, str]  # begins, ends (picoseconds), and what ran
Operations = dict[tuple[str, str], str]  # module and instruction of XLA -> the operation that it was made from

_SCOPE = re.compile(rf"\bstep\.({'|'.join(PARTS)})(?![a-z])")
_GRADIENT = "gradient_tape/"  # where TensorFlow puts what it derives, whichever scope that is asked for in
_OPERATION = re.compile(r"[^:\s]+:[^:\s]+")  # name:type
_SCHEDULER = "ExecutorState::Process"  # may lie within an operation that it goes on from


def part_of(operation: str) -> str | None:
    """Which of `PARTS` the operation of this full name belongs to, if any."""
    if _GRADIENT in operation:
        return "backward"
    parts = _SCOPE.findall(operation)
    return parts[-1] if parts else None


def divide(lanes: Sequence[Sequence[Interval]], first: int, last: int) -> tuple[dict[str, float], Counter[str]]:
    """The time from `first` to `last` by what ran, and how many operations of each part began then. An instant belongs, in
    equal parts, to what each lane is doing, and to `HOST` where no lane does anything else. Intervals of one lane may lie
    within each other: the innermost is what it does."""
    changes = []
    for lane in lanes:
        for begins, ends, part in _innermost(lane):
            begins, ends = max(begins, first), min(ends, last)
            if part != HOST and begins < ends:
                changes += [(begins, part, 1), (ends, part, -1)]
    spent = dict.fromkeys(ROWS, 0.0)
    running: Counter[str] = Counter()
    now = first
    for moment, part, change in sorted(changes):
        for name, count in (running if running.total() else {HOST: 1}).items():
            spent[name] += (moment - now) * count / max(running.total(), 1)
        running[part] += change
        now = moment
    spent[HOST] += last - now
    began = Counter(part for lane in lanes for moment, _, part in lane if part != HOST and first <= moment < last)
    return spent, began


def _innermost(lane: Sequence[Interval]) -> Iterator[Interval]:
    """What a lane does, one thing after another."""
    open_intervals: list[Interval] = []
    now = 0
    for interval in (*sorted(lane, key=lambda one: (one[0], -one[1])), None):
        while open_intervals and (interval is None or open_intervals[-1][1] <= interval[0]):
            _, ends, part = open_intervals.pop()
            if now < ends:
                yield now, ends, part
                now = ends
        if interval:
            if open_intervals and now < interval[0]:
                yield now, interval[0], open_intervals[-1][2]
            now = interval[0]
            open_intervals.append(interval)


def read(source: Path) -> tuple[list[list[Interval]], int, int, bool]:
    """What an XSpace (TensorFlow's `*.xplane.pb`) says: what ran on each stream of the GPUs, or, where it has none, on each
    thread of the host; when the stretch called `MARK` begins and ends; and whether the streams are those of GPUs."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(source.read_bytes())
    operations = _operations(space)
    gpus = [(plane, line) for plane in space.planes if plane.name.startswith("/device:GPU") for line in plane.lines]
    streams = [_lane(plane, line, operations, OTHER) for plane, line in gpus if line.name.startswith("Stream")]
    host = next(plane for plane in space.planes if plane.name == "/host:CPU")
    mark = next(key for key, event in host.event_metadata.items() if event.name == MARK)
    first, last = next(_span(line, event) for line in host.lines for event in line.events if event.metadata_id == mark)
    return streams or [_lane(host, line, operations, None) for line in host.lines], first, last, bool(streams)


def _span(line: Any, event: Any) -> tuple[int, int]:
    begins = line.timestamp_ns * 1000 + event.offset_ps
    return begins, begins + event.duration_ps


def _lane(plane: Any, line: Any, operations: Operations, otherwise: str | None) -> list[Interval]:
    """The events of a line that belong to one of `ROWS`, by name or by what their stats state; those that say nothing of it, to
    `otherwise`, or else to the event that they lie in."""
    named = {key: part_of(one.name) or OTHER for key, one in plane.event_metadata.items() if _OPERATION.fullmatch(one.name)}
    named |= {key: HOST for key, one in plane.event_metadata.items() if one.name == _SCHEDULER}
    stats = {key: stat.name for key, stat in plane.stat_metadata.items()}
    lane = []
    for event in line.events:
        part = named.get(event.metadata_id) or _stated(event.stats, stats, operations) or otherwise
        if part and event.duration_ps:
            lane.append((*_span(line, event), part))
    return lane


def _stated(found: Any, names: dict[int, str], operations: Operations) -> str | None:
    """The part that an event's stats state: those of XLA's instructions, of a GPU's kernels, of operations being started."""
    texts = {names[stat.metadata_id]: names.get(stat.ref_value) or stat.str_value for stat in found}
    instruction = texts.get("hlo_module", ""), texts.get("hlo_op", "").rpartition("::")[2]
    if part := part_of(operations.get(instruction, "")) or part_of(texts.get("tf_op", "")):
        return part
    return part_of(texts["name"]) or OTHER if "kernel_type" in texts else None


def _operations(space: Any) -> Operations:
    """From the programs of XLA that lie in the trace."""
    from tensorflow.compiler.xla.service import hlo_pb2

    planes = [plane for plane in space.planes if plane.name == "/host:metadata"]
    programs = [stat.bytes_value for plane in planes for event in plane.event_metadata.values() for stat in event.stats]
    modules = [hlo_pb2.HloProto.FromString(program).hlo_module for program in programs]
    return {
        (module.name, instruction.name): instruction.metadata.op_name
        for module in modules
        for computation in module.computations
        for instruction in computation.instructions
    }
