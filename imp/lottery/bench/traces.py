"""Where the time of a trace went: to which part of the training step each instant of it belongs."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lottery.engine.scopes import PARTS, part_of

MARK = "imp bench profile"  # the event, on a thread of the host, that is as long as what is looked at
OTHER, HOST = "other", "host"
ROWS = (*PARTS, OTHER, HOST)

Interval = tuple[int, int, str]  # begins, ends (picoseconds), and what ran
Operations = dict[tuple[str, str], str]  # module and instruction of XLA -> the operation that it was made from

_OPERATION = re.compile(r"[^:\s]+:[^:\s]+")  # name:type
_SCHEDULER = "ExecutorState::Process"  # may lie within an operation that it goes on from


class Trace(NamedTuple):
    """What ran on each thread of the host, or on each stream of the GPUs, and the stretch (picoseconds) that was looked at."""

    lanes: list[list[Interval]]
    first: int
    last: int
    on_gpu: bool

    def counts(self) -> Counter[str]:
        """How many operations of each part began."""
        began = (part for lane in self.lanes for first, _, part in lane if self.first <= first < self.last)
        return Counter(part for part in began if part != HOST)


def divide(lanes: Iterable[Sequence[Interval]], first: int, last: int) -> dict[str, float]:
    """The time from `first` to `last` by what ran: an instant belongs, in equal parts, to what each lane is doing then, and to
    `HOST` where no lane does anything else. Intervals of one lane may lie within each other: the innermost is what it does."""
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
    return spent


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


def read(source: Path) -> Trace:
    """What an XSpace (TensorFlow's `*.xplane.pb`) says of the stretch called `MARK`: of GPUs where it has any, else of the
    host's threads."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(source.read_bytes())
    operations = _operations(space)
    gpus = [(plane, line) for plane in space.planes if plane.name.startswith("/device:GPU") for line in plane.lines]
    streams = [_lane(plane, line, operations, OTHER) for plane, line in gpus if line.name.startswith("Stream")]
    host = next(plane for plane in space.planes if plane.name == "/host:CPU")
    lanes = streams or [_lane(host, line, operations, None) for line in host.lines]
    return Trace(lanes, *_marked(host), on_gpu=bool(streams))


def _marked(host: Any) -> tuple[int, int]:
    """When the event `MARK` begins and ends."""
    key = next(key for key, event in host.event_metadata.items() if event.name == MARK)
    return next(_span(line, event) for line in host.lines for event in line.events if event.metadata_id == key)


def _span(line: Any, event: Any) -> tuple[int, int]:
    begins = line.timestamp_ns * 1000 + event.offset_ps
    return begins, begins + event.duration_ps


def _lane(plane: Any, line: Any, operations: Operations, otherwise: str | None) -> list[Interval]:
    """The events of a line that belong to one of `ROWS`; those that say nothing of it, to `otherwise`, if that is not None."""
    named = {key: _named(event.name) for key, event in plane.event_metadata.items()}
    stats = {key: stat.name for key, stat in plane.stat_metadata.items()}
    lane = []
    for event in line.events:
        part = named[event.metadata_id] or _stated(event.stats, stats, operations) or otherwise
        if part and event.duration_ps:
            lane.append((*_span(line, event), part))
    return lane


def _named(name: str) -> str | None:
    """What an event of this name belongs to; None where that is for its stats to say, or for the event that it lies in."""
    if name == _SCHEDULER:
        return HOST
    return part_of(name) or OTHER if _OPERATION.fullmatch(name) else None


def _stated(found: Any, names: dict[int, str], operations: Operations) -> str | None:
    """As `_named`, by an event's stats: those of XLA's instructions, of a GPU's kernels, and of operations being started."""
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
