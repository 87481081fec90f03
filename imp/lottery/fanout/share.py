"""What each rank trains on: GPUs of its own, or a share of its host's cores."""

import math
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import InputError
from lottery.engine import capacity
from lottery.fanout import launcher
from lottery.tables import count_of

RANK_BYTES = 1 << 30  # of memory, at least, for each rank: TensorFlow, a network, its activations


@dataclass(frozen=True)
class Station:
    """Where a rank finds itself: its host, the cores it may run on, and the GPUs it may use, as CUDA names them."""

    host: str
    cores: frozenset[int]
    gpus: tuple[str, ...]


@dataclass(frozen=True)
class Seat:
    """What one rank trains on: `gpus`, or as many `cores` where there are none. Their memory it has to share, as one of so
    many that train `on_host`, and `on_gpu`."""

    gpus: tuple[str, ...]
    cores: int
    on_host: int = 1
    on_gpu: int = 1


def here() -> Station:
    return Station(os.uname().nodename, frozenset(os.sched_getaffinity(0)), _gpus())


def seats(stations: Mapping[int, Station], threads: int, per_gpu: int | None = None) -> dict[int, Seat]:
    """The seat of every rank that trains, by rank; `stations` are where all ranks are.

    Ranks that find the same GPUs of a host, or the same cores where there are none, divide them: each takes GPUs of its own, or
    one that `per_gpu` ranks share, or its part of the cores.
    Rank 0, which coordinates, has a seat too where a GPU, or cores for the `threads` of a training, would be left over.
    Raises InputError when there are more ranks than GPUs.
    """
    pools: dict[tuple[str, object], list[int]] = {}
    for rank, station in sorted(stations.items()):
        pools.setdefault((station.host, station.gpus or station.cores), []).append(rank)
    gpus: dict[int, tuple[str, ...]] = {}
    for ranks in pools.values():
        station = stations[ranks[0]]
        room = len(station.gpus) * (per_gpu or 1) or max(1, len(station.cores) // threads)
        training = [rank for rank in ranks if rank or len(ranks) <= room]
        if per_gpu and not station.gpus:
            raise InputError(f"--per-gpu {per_gpu}: there is no GPU on {station.host}")
        if station.gpus and len(training) > room:
            raise InputError(
                f"{len(training)} ranks are to train on {station.host}, which has {count_of(len(station.gpus), 'GPU')}: start "
                f"fewer ranks, or let {-(-len(training) // len(station.gpus))} share one with --per-gpu"
            )
        gpus |= {rank: _own(station.gpus, position, len(training), per_gpu) for position, rank in enumerate(training)}
    return {rank: _seat(rank, stations, gpus) for rank in sorted(gpus)}


def seat_here(threads: int) -> Seat:
    """The seat of a process that nobody coordinates: its part of what the ranks on this host find, or all where it is alone.
    Where there are fewer GPUs than ranks, which may be those that a scheduler gave to each, they share them."""
    station, ranks = here(), launcher.local_size() or 1
    gpus = len(station.gpus)
    per_gpu = -(-ranks // gpus) if 0 < gpus < ranks else None
    numbers = range(1, ranks + 1)  # all of them train, whereas a rank 0 may not
    return seats(dict.fromkeys(numbers, station), threads, per_gpu)[numbers[launcher.local_rank() or 0]]


def fed(networks: int, threads: int) -> int:
    """How many ranks, each at one of so many `networks` with so many `threads`, this host has cores and memory for. One, which
    is this process, where a launcher or a scheduler started it, where it sees GPUs, and where no MPI can be had.

    A rank takes as much memory as this process has taken, which may have trained too, and at least `RANK_BYTES`.
    """
    station = here()
    if station.gpus or launcher.launched_rank() is not None or "SLURM_JOB_ID" in os.environ:
        return 1
    each = max(RANK_BYTES, capacity.peak_memory())
    cores = min(len(station.cores), _quota(Path("/sys/fs/cgroup/cpu.max")))
    ranks = min(networks, int(cores // threads), capacity.free_memory() // each)
    return ranks if ranks > 1 and launcher.finds_ranks() else 1


def _quota(file: Path) -> float:
    """How many cores' time the control group (version 2) of this process may use, which a container's may be. No limit:
    infinity."""
    try:
        microseconds, period = map(int, file.read_text().split())
        return microseconds / period
    except (OSError, ValueError):  # `max` is no number
        return math.inf


def crowded(stations: Mapping[int, Station], seated: Mapping[int, Seat], threads: int) -> list[str]:
    """A line for each host on which more cores are wanted than there are."""
    wanted: dict[str, tuple[int, set[int]]] = {}
    for rank, seat in seated.items():
        if not seat.gpus:
            count, cores = wanted.get(stations[rank].host, (0, set()))
            wanted[stations[rank].host] = (count + 1, cores | stations[rank].cores)
    return [
        f"{count} ranks train on {host} with {count_of(threads, 'thread')} each, but may run on "
        f"{count_of(len(cores), 'core')}: fewer ranks would be as fast"
        for host, (count, cores) in wanted.items()
        if count * threads > len(cores)
    ]


def take(seat: Seat) -> None:
    """Show TensorFlow, which must not have started, only the GPUs of `seat`."""
    if seat.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(seat.gpus)


def _seat(rank: int, stations: Mapping[int, Station], gpus: Mapping[int, tuple[str, ...]]) -> Seat:
    """Of one of the ranks that train, which are those that have `gpus`, none though they may be."""
    own, cores = gpus[rank], stations[rank].cores
    on_host = [other for other in gpus if stations[other].host == stations[rank].host]
    on_cores = sum(stations[other].cores == cores for other in on_host)
    on_gpu = sum(not set(own).isdisjoint(gpus[other]) for other in on_host)
    return Seat(own, max(1, len(cores) // on_cores), len(on_host), max(1, on_gpu))


def _own(gpus: Sequence[str], position: int, ranks: int, per_gpu: int | None) -> tuple[str, ...]:
    if per_gpu:
        return (gpus[position % len(gpus)],)
    return tuple(gpus[position::ranks])


def _gpus() -> tuple[str, ...]:
    """The GPUs that this process may use, by the names that mean the same to every process: a scheduler may call the GPU of
    each task 0. Where they cannot be learnt, as CUDA_VISIBLE_DEVICES says."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = None if visible is None else [name.strip() for name in visible.split(",") if name.strip()]
    if names == []:
        return ()
    listed = _listed()
    if names is None:
        return tuple(listed)
    return tuple(listed[int(name)] if name.isdigit() and int(name) < len(listed) else name for name in names)


def _listed() -> list[str]:
    """The UUIDs of the GPUs that this process is let near (a container's, not all of the host's), in PCI order."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return re.findall(r"^GPU \d+: .*\(UUID: (GPU-[^)]+)\)", listed, re.MULTILINE)
