"""What each rank trains on: the GPUs of its own, or its share of the cores."""

import os

import pytest

from lottery.base import gpus
from lottery.base.errors import InputError
from lottery.executors import allocation
from lottery.executors.allocation import Allocation, Resources, allocate

GIB = 1 << 30


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """No GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # so that what is set below is undone
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(gpus, "listed", dict)


def host(name="a", cores=4, gpus=()):
    return Resources(name, frozenset(range(cores)), tuple(gpus))


def ranks(*resources):
    """The resources by rank."""
    return dict(enumerate(resources))


def gpus_of(found):
    return {rank: own.gpus for rank, own in found.items()}


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
    found = gpus_of(allocate(ranks(*[host(gpus=gpus)] * count), 1, per_gpu))

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
def test_an_allocation_says_how_many_share_the_memory_of_the_host_and_of_a_gpu(gpus, count, per_gpu, shares):
    found = allocate(ranks(*[host(gpus=gpus)] * count, host("elsewhere", gpus=gpus)), 1, per_gpu)

    assert {rank: (own.on_host, own.on_gpu) for rank, own in found.items() if rank < count} == shares
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
    assert allocate(ranks(*[host(cores=cores)] * count), threads) == {
        rank: Allocation((), each, len(shares)) for rank, each in shares.items()
    }


def test_every_host_is_shared_by_its_own_ranks():
    found = allocate(ranks(host("a", gpus="01"), host("b", gpus="01"), host("b", gpus="01"), host("a", gpus="01")), 1)

    assert gpus_of(found) == {0: ("0",), 1: ("0",), 2: ("1",), 3: ("1",)}


def test_ranks_that_a_scheduler_has_given_different_things_to_share_nothing():
    """As where each task of a job sees only its own GPU and cores."""
    one = Resources("a", frozenset({0, 1}), ("GPU-1",))
    other = Resources("a", frozenset({2, 3}), ("GPU-2",))

    assert allocate(ranks(one, other), 1) == {0: Allocation(("GPU-1",), 2, 2), 1: Allocation(("GPU-2",), 2, 2)}


def test_ranks_that_are_bound_to_cores_of_their_own_still_divide_the_gpus():
    """As mpirun binds them, unless it is told not to."""
    bound = ranks(*[Resources("a", frozenset({2 * rank, 2 * rank + 1}), ("0", "1", "2", "3")) for rank in range(4)])

    assert allocate(bound, 1) == {rank: Allocation((str(rank),), 2, 4) for rank in range(4)}
    with pytest.raises(InputError, match="3 ranks are to train on a, which has 2 GPUs"):
        allocate(ranks(*[Resources("a", frozenset({rank}), ("0", "1")) for rank in range(4)]), 1)


def test_those_that_are_lost_leave_theirs_to_the_others():
    resources = ranks(*[host(gpus="0123")] * 4)
    del resources[2]

    assert gpus_of(allocate(resources, 1)) == {0: ("0", "3"), 1: ("1",), 3: ("2",)}


def test_a_rank_that_is_alone_has_everything():
    assert allocate(ranks(host(gpus="01")), 1) == {0: Allocation(("0", "1"), 4)}


def test_more_ranks_than_gpus_are_refused_with_the_way_out():
    with pytest.raises(
        InputError, match=r"^3 ranks are to train on a, which has 2 GPUs: start fewer .* 2 share one with --per-gpu"
    ):
        allocate(ranks(*[host(gpus="01")] * 4), 1)
    with pytest.raises(InputError, match=r"^3 ranks are to train on a, which has 1 GPU: .* let 3 share one"):
        allocate(ranks(*[host(gpus="0")] * 4), 1, per_gpu=2)


def test_sharing_gpus_where_there_are_none_is_refused():
    with pytest.raises(InputError, match="--per-gpu 2: there is no GPU on a"):
        allocate(ranks(*[host()] * 3), 1, per_gpu=2)


@pytest.mark.parametrize(
    ("gpus", "count", "rank", "expected"),
    [
        ("", None, None, Allocation((), 4)),
        ("", 2, 1, Allocation((), 2, 2)),
        ("01", None, None, Allocation(("0", "1"), 4)),
        ("01", 2, 1, Allocation(("1",), 2, 2)),
        ("01", 3, 2, Allocation(("0",), 1, 3, 2)),
        ("0", 4, 3, Allocation(("0",), 1, 4, 4)),
    ],
)
def test_what_nobody_coordinates_takes_its_part_among_the_ranks_on_its_host(monkeypatch, gpus, count, rank, expected):
    monkeypatch.setattr(allocation, "resources_here", lambda: host(gpus=gpus))
    monkeypatch.setattr(allocation.launcher, "local_size", lambda: count)
    monkeypatch.setattr(allocation.launcher, "local_rank", lambda: rank)

    assert allocation.allocate_here(1) == expected


def test_tensorflow_sees_the_gpus_of_the_allocation():
    allocation.show_gpus(Allocation(("GPU-a", "GPU-b"), 4))

    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"


def test_without_gpus_the_environment_stays_as_it_is():
    allocation.show_gpus(Allocation((), 4))

    assert "CUDA_VISIBLE_DEVICES" not in os.environ
