"""How much memory there is for resident images: free on this host, and on the devices that train."""

import math
import resource
from collections.abc import Sequence
from pathlib import Path

_GIB = 1 << 30
SHARE = 0.5  # of what is free; the rest is for the network and its activations


def host_budget(gib: float, ranks: int = 1) -> int:
    """Bytes that resident images may take on this host: `gib`, or else half of what is free, shared by so many `ranks`."""
    return int(gib * _GIB) or int(free_memory() * SHARE / ranks)


def device_budget(gib: float, devices: Sequence[str], ranks: int = 1) -> int:
    """Bytes that resident images may take on each of `devices` (TensorFlow's names, `GPU:0`), which are GPUs: half of the
    smallest one's memory, shared by so many `ranks`, or `gib` if that is less."""
    from tensorflow.python.client import device_lib  # the only place where TensorFlow says how much a device has

    limits = {device.name.rsplit("device:", 1)[-1]: device.memory_limit for device in device_lib.list_local_devices()}
    half = int(min(limits[name] for name in devices) * SHARE / ranks)
    return min(int(gib * _GIB) or half, half)


def free_memory() -> int:
    """Bytes that this process could still take: what the kernel calls available, and what its control group has left."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return int(min(available, _left_in_group(Path("/sys/fs/cgroup"))))


def peak_memory() -> int:
    """The most bytes that this process has had in memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _left_in_group(folder: Path) -> float:
    """What the limit of a control group (version 2) leaves; files that are cached in memory give way. No limit: infinity."""
    try:
        limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(limit - used + int(counts["inactive_file"]), 0)
    except (OSError, ValueError, KeyError):  # `max` is no number
        return math.inf
