"""What each rank trains on: the GPUs of its own, or its share of the cores."""

import math
import os

import pytest
from helpers import LAUNCHER

from data_prep.errors import InputError
from lottery.fanout import share
from lottery.fanout.share import Seat, Station, seats

LISTED = share._listed
GIB = 1 << 30


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """No GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # so that what is set below is undone
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(share, "_listed", list)


def host(name="a", cores=4, gpus=()):
    return Station(name, frozenset(range(cores)), tuple(gpus))


def ranks(*stations):
    """The stations by rank."""
    return dict(enumerate(stations))


def gpus_of(found):
    return {rank: seat.gpus for rank, seat in found.items()}


@pytest.mark.parametrize(
    ("gpus", "count", "per_gpu", "shares"),
    [
        ("0123", 4, None, ["0", "1", "2", "3"]),
        ("0123", 3, None, ["03", "1", "2"]),
        ("0123", 5, None, [None, "0", "1", "2", "3"]),
        ("01", 3, None, [None, "0", "1"]),
        ("01", 4, 2, ["0", "1", "0", "1"]),
        ("01", 5, 2, [None, "0", "1", "0", "1"]),
        ("0", 2, 2, ["0", "0"]),
        ("01", 2, 2, ["0", "1"]),
    ],
)
def test_each_rank_of_a_host_has_gpus_of_its_own_or_one_that_so_many_share(gpus, count, per_gpu, shares):
    found = gpus_of(seats(ranks(*[host(gpus=gpus)] * count), 1, per_gpu))

    assert found == {rank: tuple(share) for rank, share in enumerate(shares) if share}


@pytest.mark.parametrize(
    ("gpus", "count", "per_gpu", "shares"),
    [
        ("01", 2, None, {0: (2, 1), 1: (2, 1)}),
        ("01", 3, None, {1: (2, 1), 2: (2, 1)}),
        ("01", 4, 2, dict.fromkeys(range(4), (4, 2))),
        ("01", 3, 3, {0: (3, 2), 1: (3, 1), 2: (3, 2)}),
        ("", 4, None, dict.fromkeys(range(4), (4, 1))),
        ("", 6, None, dict.fromkeys(range(1, 6), (5, 1))),
    ],
)
def test_a_seat_says_how_many_share_the_memory_of_the_host_and_of_a_gpu(gpus, count, per_gpu, shares):
    found = seats(ranks(*[host(gpus=gpus)] * count, host("elsewhere", gpus=gpus)), 1, per_gpu)

    assert {rank: (seat.on_host, seat.on_gpu) for rank, seat in found.items() if rank < count} == shares
    assert (found[count].on_host, found[count].on_gpu) == (1, 1)


@pytest.mark.parametrize(
    ("cores", "threads", "count", "shares"),
    [
        (2, 1, 2, {0: 1, 1: 1}),
        (2, 1, 3, {1: 1, 2: 1}),
        (2, 2, 2, {1: 2}),
        (64, 1, 9, dict.fromkeys(range(9), 7)),
        (8, 2, 4, dict.fromkeys(range(4), 2)),
        (1, 4, 3, {1: 1, 2: 1}),
    ],
)
def test_without_gpus_ranks_share_the_cores_and_rank_0_trains_where_some_would_idle(cores, threads, count, shares):
    assert seats(ranks(*[host(cores=cores)] * count), threads) == {
        rank: Seat((), each, len(shares)) for rank, each in shares.items()
    }


def test_every_host_is_shared_by_its_own_ranks():
    found = seats(ranks(host("a", gpus="01"), host("b", gpus="01"), host("b", gpus="01"), host("a", gpus="01")), 1)

    assert gpus_of(found) == {0: ("0",), 1: ("0",), 2: ("1",), 3: ("1",)}


def test_ranks_that_a_scheduler_has_given_different_things_to_share_nothing():
    """As where each task of a job sees only its own GPU and cores."""
    one = Station("a", frozenset({0, 1}), ("GPU-1",))
    other = Station("a", frozenset({2, 3}), ("GPU-2",))

    assert seats(ranks(one, other), 1) == {0: Seat(("GPU-1",), 2, 2), 1: Seat(("GPU-2",), 2, 2)}


def test_ranks_that_are_bound_to_cores_of_their_own_still_divide_the_gpus():
    """As mpirun binds them, unless it is told not to."""
    bound = ranks(*[Station("a", frozenset({2 * rank, 2 * rank + 1}), ("0", "1", "2", "3")) for rank in range(4)])

    assert seats(bound, 1) == {rank: Seat((str(rank),), 2, 4) for rank in range(4)}
    with pytest.raises(InputError, match="3 ranks are to train on a, which has 2 GPUs"):
        seats(ranks(*[Station("a", frozenset({rank}), ("0", "1")) for rank in range(4)]), 1)


def test_those_that_are_lost_leave_theirs_to_the_others():
    stations = ranks(*[host(gpus="0123")] * 4)
    del stations[2]

    assert gpus_of(seats(stations, 1)) == {0: ("0", "3"), 1: ("1",), 3: ("2",)}


def test_a_rank_that_is_alone_has_everything():
    assert seats(ranks(host(gpus="01")), 1) == {0: Seat(("0", "1"), 4)}


def test_more_ranks_than_gpus_are_refused_with_the_way_out():
    with pytest.raises(
        InputError, match=r"^3 ranks are to train on a, which has 2 GPUs: start fewer .* 2 share one with --per-gpu"
    ):
        seats(ranks(*[host(gpus="01")] * 4), 1)
    with pytest.raises(InputError, match=r"^3 ranks are to train on a, which has 1 GPU: .* let 3 share one"):
        seats(ranks(*[host(gpus="0")] * 4), 1, per_gpu=2)


def test_sharing_gpus_where_there_are_none_is_refused():
    with pytest.raises(InputError, match="--per-gpu 2: there is no GPU on a"):
        seats(ranks(*[host()] * 3), 1, per_gpu=2)


@pytest.mark.parametrize(
    ("gpus", "count", "rank", "expected"),
    [
        ("", None, None, Seat((), 4)),
        ("", 2, 1, Seat((), 2, 2)),
        ("01", None, None, Seat(("0", "1"), 4)),
        ("01", 2, 1, Seat(("1",), 2, 2)),
        ("01", 3, 2, Seat(("0",), 1, 3, 2)),
        ("0", 4, 3, Seat(("0",), 1, 4, 4)),
    ],
)
def test_what_nobody_coordinates_takes_its_part_among_the_ranks_on_its_host(monkeypatch, gpus, count, rank, expected):
    monkeypatch.setattr(share, "here", lambda: host(gpus=gpus))
    monkeypatch.setattr(share.launcher, "local_size", lambda: count)
    monkeypatch.setattr(share.launcher, "local_rank", lambda: rank)

    assert share.seat_here(1) == expected


def test_more_threads_than_cores_are_told_of_host_by_host():
    stations = ranks(*[host("a", cores=2)] * 4, host("b", cores=2), *[host("c", cores=1, gpus="01")] * 2)
    found = seats(stations, 1)

    assert share.crowded(stations, found, 1) == [
        "3 ranks train on a with 1 thread each, but may run on 2 cores: fewer ranks would be as fast"
    ]
    two = ranks(*[host("a", cores=2)] * 2)
    assert share.crowded(two, seats(two, 1), 1) == []


def test_ranks_that_run_on_cores_of_their_own_are_not_crowded():
    stations = ranks(*[Station("a", frozenset({core}), ()) for core in range(4)])

    assert share.crowded(stations, seats(stations, 1), 1) == []


def test_tensorflow_sees_the_gpus_of_the_seat():
    share.take(Seat(("GPU-a", "GPU-b"), 4))

    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"


def test_without_gpus_the_environment_stays_as_it_is():
    share.take(Seat((), 4))

    assert "CUDA_VISIBLE_DEVICES" not in os.environ


@pytest.mark.parametrize(
    ("visible", "listed", "found"),
    [
        (None, [], ()),
        (None, ["GPU-a", "GPU-b"], ("GPU-a", "GPU-b")),
        ("", ["GPU-a", "GPU-b"], ()),
        ("1,0", ["GPU-a", "GPU-b"], ("GPU-b", "GPU-a")),
        ("5,GPU-7", ["GPU-a"], ("5", "GPU-7")),
        ("0,1", [], ("0", "1")),
    ],
)
def test_the_gpus_at_hand_are_those_that_a_scheduler_or_a_user_shows_by_names_that_are_theirs_alone(
    monkeypatch, visible, listed, found
):
    monkeypatch.setattr(share, "_listed", lambda: listed)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert share.here().gpus == found


def listed_gpus(monkeypatch, folder, script):
    """The GPUs found where `nvidia-smi` is this shell script; None: where there is none."""
    if script is not None:
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return LISTED()


def test_gpus_are_those_that_nvidia_smi_lists_and_not_their_parts(monkeypatch, tmp_path):
    script = """
[ "$1" = -L ] || exit 1
echo "GPU 0: NVIDIA H200 (UUID: GPU-4cf8db2d)"
echo "  MIG 1g.18gb Device 0: (UUID: MIG-8e1d)"
echo "GPU 1: NVIDIA H200 (UUID: GPU-5e0a31b7)"
"""

    assert listed_gpus(monkeypatch, tmp_path, script) == ["GPU-4cf8db2d", "GPU-5e0a31b7"]


@pytest.mark.parametrize("script", [None, "echo 'No devices were found'", "echo 'GPU 0: half'; exit 9"])
def test_there_are_no_gpus_where_nvidia_smi_lists_none_or_is_not_there(monkeypatch, tmp_path, script):
    assert listed_gpus(monkeypatch, tmp_path, script) == []


@pytest.fixture
def machine(monkeypatch):
    """A function that puts this process on a machine: eight cores and 100 GiB free unless told otherwise, and an MPI."""

    def put(cores=8, gpus=(), free=100, peak=0.5, mpi=True, quota=math.inf, **variables):
        for name in (*LAUNCHER, "SLURM_JOB_ID"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(share, "here", lambda: host(cores=cores, gpus=gpus))
        monkeypatch.setattr(share, "_quota", lambda file: quota)
        monkeypatch.setattr(share.capacity, "free_memory", lambda: int(free * GIB))
        monkeypatch.setattr(share.capacity, "peak_memory", lambda: int(peak * GIB))
        monkeypatch.setattr(share.launcher, "finds_ranks", lambda: mpi)

    return put


@pytest.mark.parametrize(
    ("there", "networks", "threads", "count"),
    [
        ({}, 13, 1, 8),
        ({}, 13, 3, 2),
        ({}, 5, 1, 5),
        ({}, 1, 1, 1),
        ({}, 0, 1, 1),
        ({"cores": 1}, 13, 1, 1),
        ({"cores": 2}, 13, 4, 1),
        ({"quota": 2.5}, 13, 1, 2),
        ({"quota": 0.5}, 13, 1, 1),
        ({"free": 3.9}, 13, 1, 3),
        ({"free": 3.9, "peak": 1.5}, 13, 1, 2),
        ({"free": 0.2}, 13, 1, 1),
        ({"gpus": "0"}, 13, 1, 1),
        ({"mpi": False}, 13, 1, 1),
        ({"OMPI_COMM_WORLD_RANK": "0"}, 13, 1, 1),
        ({"SLURM_JOB_ID": "7"}, 13, 1, 1),
    ],
)
def test_a_host_feeds_a_rank_for_each_network_that_it_has_cores_and_memory_for(machine, there, networks, threads, count):
    machine(**there)

    assert share.fed(networks, threads) == count


def test_where_a_single_rank_is_fed_no_mpirun_is_tried(machine, monkeypatch):
    machine(cores=1)
    monkeypatch.setattr(share.launcher, "finds_ranks", lambda: pytest.fail("tried"))

    assert share.fed(13, 1) == 1


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", math.inf), ("250000 100000", 2.5), ("", math.inf), (None, math.inf)]
)
def test_a_control_group_says_how_many_cores_time_there_is(tmp_path, text, cores):
    if text is not None:
        (tmp_path / "cpu.max").write_text(text)

    assert share._quota(tmp_path / "cpu.max") == cores
