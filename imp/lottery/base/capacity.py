"""What a training may take of its host: an allocation among ranks, and memory for resident images."""

import contextlib
import dataclasses
from pathlib import Path

_GIB = 1 << 30
SHARE = 0.5  # of what is free; the rest is for the network and its activations


@dataclasses.dataclass(frozen=True)
class Allocation:
    """What one rank trains on: `gpus`, or as many `cores` where there are none. Their memory it has to share, as one of so
    many that train `on_host`, and `on_gpu`."""

    gpus: tuple[str, ...]
    cores: int
    on_host: int = 1
    on_gpu: int = 1


def host_budget(gib: float, ranks: int = 1) -> int:
    """Bytes that resident images may take on this host: `gib`, or else half of what is free, shared by so many `ranks`."""
    return int(gib * _GIB) or int(free_memory() * SHARE / ranks)


def device_budget(gib: float, memory: int, ranks: int = 1) -> int:
    """Bytes that resident images may take on each device, the smallest of which has so many bytes of `memory`: half of them,
    shared by so many `ranks`, or `gib` if that is less."""
    half = int(memory * SHARE / ranks)
    return min(int(gib * _GIB) or half, half)


def free_memory() -> int:
    """Bytes that this process could still take: what the kernel calls available, and what the limit of its control group
    (version 2) leaves, where files that are cached in memory give way."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError, KeyError):  # without a limit it says `max`
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        free = min(free, max(limit - used + int(counts["inactive_file"]), 0))
    return free
