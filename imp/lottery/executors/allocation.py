"""What each rank trains on: GPUs of its own, or a share of its host's cores."""

import contextlib
import os
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lottery.base import capacity
from lottery.base.capacity import Allocation
from lottery.base.errors import InputError
from lottery.base.gpus import visible
from lottery.base.progress import count_of
from lottery.executors import launcher

RANK_BYTES = 1 << 30  # of memory, at least, for each rank: TensorFlow, a network, its activations


@dataclass(frozen=True)
class Resources:
    """What a rank finds: its host, the cores it may run on, and the GPUs it may use, as CUDA names them."""

    host: str
    cores: frozenset[int]
    gpus: tuple[str, ...]


def resources_here() -> Resources:
    return Resources(os.uname().nodename, frozenset(os.sched_getaffinity(0)), visible())


def allocate(resources: Mapping[int, Resources], threads: int, per_gpu: int | None = None) -> dict[int, Allocation]:
    """The allocation of every rank that trains, by rank; `resources` are those of all ranks.

    Ranks that find the same GPUs of a host, or the same cores where there are none, divide them: each takes GPUs of its own, or
    one that `per_gpu` ranks share, or its part of the cores. Rank 0, which coordinates, trains too where a GPU, or cores for
    the `threads` of a training, would be left over. Raises InputError when there are more ranks than GPUs."""
    pools: dict[tuple[str, object], list[int]] = {}
    for rank, own in sorted(resources.items()):
        pools.setdefault((own.host, own.gpus or own.cores), []).append(rank)
    gpus: dict[int, tuple[str, ...]] = {}  # of the ranks that train, none though they may be
    for ranks in pools.values():
        gpus |= _divide(resources[ranks[0]], ranks, threads, per_gpu)
    allocations = {}
    for rank in sorted(gpus):
        own = resources[rank]
        on_host = [other for other in gpus if resources[other].host == own.host]
        on_cores = sum(resources[other].cores == own.cores for other in on_host)
        on_gpu = sum(not set(gpus[rank]).isdisjoint(gpus[other]) for other in on_host)
        allocations[rank] = Allocation(gpus[rank], max(1, len(own.cores) // on_cores), len(on_host), max(1, on_gpu))
    return allocations


def _divide(pool: Resources, ranks: Sequence[int], threads: int, per_gpu: int | None) -> dict[int, tuple[str, ...]]:
    """The GPUs, if any, of each of the `ranks` that train on the same `pool`. Raises InputError."""
    room = len(pool.gpus) * (per_gpu or 1) or max(1, len(pool.cores) // threads)
    training = [rank for rank in ranks if rank or len(ranks) <= room]
    if per_gpu and not pool.gpus:
        raise InputError(f"--per-gpu {per_gpu}: there is no GPU on {pool.host}")
    if pool.gpus and len(training) > room:
        raise InputError(
            f"{len(training)} ranks are to train on {pool.host}, which has {count_of(len(pool.gpus), 'GPU')}: start fewer "
            f"ranks, or let {-(-len(training) // len(pool.gpus))} share one with --per-gpu"
        )
    if per_gpu:
        return {rank: (pool.gpus[place % len(pool.gpus)],) for place, rank in enumerate(training)}
    return {rank: pool.gpus[place :: len(training)] for place, rank in enumerate(training)}


def allocate_here(threads: int) -> Allocation:
    """That of a process that nobody coordinates: its part of what the ranks on this host find, which share the GPUs where there
    are fewer, or all where it is alone."""
    own, ranks = resources_here(), launcher.local_size() or 1
    per_gpu = -(-ranks // len(own.gpus)) if 0 < len(own.gpus) < ranks else None
    numbers = range(1, ranks + 1)  # all of them train, whereas a rank 0 may not
    return allocate(dict.fromkeys(numbers, own), threads, per_gpu)[numbers[launcher.local_rank() or 0]]


def ranks_to_start(count: int | None, count_tasks: Callable[[], int], threads: int) -> int:
    """How many worker processes a command is to start on this host: `count`, or with None as many as the host has cores and
    memory for, each with so many `threads` at one of the tasks, of which `count_tasks()` can be under way at once. 1 means that
    it does its tasks itself: with None also where a launcher or a scheduler started it, and beside GPUs.

    A worker takes as much memory as this process has taken, which may have trained too, and at least `RANK_BYTES`."""
    if count or launcher.launched_rank() is not None or "SLURM_JOB_ID" in os.environ:
        return count or 1
    own = resources_here()
    if own.gpus:
        return 1
    cores: float = len(own.cores)
    with contextlib.suppress(OSError, ValueError):  # its control group (version 2), as of a container, may have no limit: `max`
        microseconds, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        cores = min(cores, microseconds / period)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return max(1, min(count_tasks(), int(cores // threads), capacity.free_memory() // max(RANK_BYTES, most)))


def show_gpus(allocation: Allocation) -> None:
    """Show TensorFlow, which must not have started, only the GPUs of `allocation`."""
    if allocation.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(allocation.gpus)
