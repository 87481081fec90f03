"""What each rank trains on: GPUs of its own, or a share of its host's cores."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import InputError
from lottery.fanout import launcher
from lottery.machine import capacity
from lottery.machine.capacity import Allocation
from lottery.machine.gpus import visible
from lottery.progress import count_of

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
    one that `per_gpu` ranks share, or its part of the cores.
    Rank 0, which coordinates, trains too where a GPU, or cores for the `threads` of a training, would be left over.
    Raises InputError when there are more ranks than GPUs.
    """
    pools: dict[tuple[str, object], list[int]] = {}
    for rank, own in sorted(resources.items()):
        pools.setdefault((own.host, own.gpus or own.cores), []).append(rank)
    gpus: dict[int, tuple[str, ...]] = {}
    for ranks in pools.values():
        gpus |= _divide(resources[ranks[0]], ranks, threads, per_gpu)
    return {rank: _allocation(rank, resources, gpus) for rank in sorted(gpus)}


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


def _allocation(rank: int, resources: Mapping[int, Resources], gpus: Mapping[int, tuple[str, ...]]) -> Allocation:
    """Of one of the ranks that train, which are those that have `gpus`, none though they may be."""
    own, cores = gpus[rank], resources[rank].cores
    on_host = [other for other in gpus if resources[other].host == resources[rank].host]
    on_cores = sum(resources[other].cores == cores for other in on_host)
    on_gpu = sum(not set(own).isdisjoint(gpus[other]) for other in on_host)
    return Allocation(own, max(1, len(cores) // on_cores), len(on_host), max(1, on_gpu))


def allocate_here(threads: int) -> Allocation:
    """That of a process that nobody coordinates: its part of what the ranks on this host find, or all where it is alone. Where
    there are fewer GPUs than ranks, which may be those that a scheduler gave to each, they share them."""
    own, ranks = resources_here(), launcher.local_size() or 1
    per_gpu = -(-ranks // len(own.gpus)) if 0 < len(own.gpus) < ranks else None
    numbers = range(1, ranks + 1)  # all of them train, whereas a rank 0 may not
    return allocate(dict.fromkeys(numbers, own), threads, per_gpu)[numbers[launcher.local_rank() or 0]]


def ranks_fed(tasks: int, threads: int) -> int:
    """How many ranks, each at one of so many `tasks` with so many `threads`, this host has cores and memory for. One, which is
    this process, where a launcher or a scheduler started it, where it sees GPUs, and where no MPI can be had.

    A rank takes as much memory as this process has taken, which may have trained too, and at least `RANK_BYTES`.
    """
    own = resources_here()
    if own.gpus or launcher.launched_rank() is not None or "SLURM_JOB_ID" in os.environ:
        return 1
    cores = min(len(own.cores), _quota(Path("/sys/fs/cgroup/cpu.max")))
    memory = capacity.free_memory() // max(RANK_BYTES, capacity.peak_memory())
    ranks = min(tasks, int(cores // threads), memory)
    return ranks if ranks > 1 and launcher.finds_ranks() else 1


def _quota(file: Path) -> float:
    """How many cores' time the control group (version 2) of this process may use, which a container's may be. No limit:
    infinity."""
    try:
        microseconds, period = map(int, file.read_text().split())
        return microseconds / period
    except (OSError, ValueError):  # `max` is no number
        return math.inf


def crowded(resources: Mapping[int, Resources], allocations: Mapping[int, Allocation], threads: int) -> list[str]:
    """A line for each host on which more cores are wanted than there are."""
    lines = []
    on_cores = [rank for rank, allocation in allocations.items() if not allocation.gpus]
    for host in dict.fromkeys(resources[rank].host for rank in on_cores):
        ranks = [rank for rank in on_cores if resources[rank].host == host]
        cores = frozenset().union(*(resources[rank].cores for rank in ranks))
        if len(ranks) * threads > len(cores):
            lines.append(
                f"{len(ranks)} ranks train on {host} with {count_of(threads, 'thread')} each, but may run on "
                f"{count_of(len(cores), 'core')}: fewer ranks would be as fast"
            )
    return lines


def show_gpus(allocation: Allocation) -> None:
    """Show TensorFlow, which must not have started, only the GPUs of `allocation`."""
    if allocation.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(allocation.gpus)
