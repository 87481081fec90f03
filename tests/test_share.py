"""The part of its host's GPUs that each rank takes."""

import os

import pytest

from lottery.fanout import share

GPUS = share._gpus


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """No GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(share, "_gpus", list)


@pytest.mark.parametrize(
    ("devices", "workers", "shares"),
    [
        (["0", "1", "2", "3"], 4, [["0"], ["1"], ["2"], ["3"]]),
        (["0", "1", "2", "3"], 2, [["0", "2"], ["1", "3"]]),
        (["0", "1", "2"], 2, [["0", "2"], ["1"]]),
        (["4", "7"], 3, [["4"], ["7"], ["4"]]),
        (["GPU-a"], 2, [["GPU-a"], ["GPU-a"]]),
        ([], 2, [[], []]),
        (["0", "1"], 1, [["0", "1"]]),
    ],
)
def test_each_worker_of_a_host_has_devices_of_its_own_while_there_are_enough(devices, workers, shares):
    assert [share.own_share(devices, position, workers) for position in range(workers)] == shares


@pytest.mark.parametrize(
    ("rank", "hosts", "visible"),
    [
        (1, ["a", "a", "a"], "0,2"),
        (2, ["a", "a", "a"], "1,3"),
        (1, ["a", "b", "b"], "0,2"),
        (2, ["a", "a", "b"], "0,1,2,3"),
    ],
)
def test_a_rank_sees_its_own_part_of_its_hosts_gpus(monkeypatch, rank, hosts, visible):
    monkeypatch.setattr(share, "_gpus", lambda: ["0", "1", "2", "3"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # so that what is set below is undone
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")

    share.take_own_gpus(rank, hosts)

    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible


def not_asked():
    raise AssertionError("the GPUs were asked for")


def test_gpus_that_a_scheduler_granted_are_the_ones_that_are_shared(monkeypatch):
    monkeypatch.setattr(share, "_gpus", not_asked)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7")

    share.take_own_gpus(2, ["a", "a", "a"])

    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-7"


def test_gpus_that_a_user_hides_stay_hidden(monkeypatch):
    monkeypatch.setattr(share, "_gpus", not_asked)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    share.take_own_gpus(1, ["a", "a"])

    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_without_gpus_the_environment_stays_as_it_is():
    share.take_own_gpus(1, ["a", "a"])

    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def listed_gpus(monkeypatch, folder, script):
    """The GPUs found where `nvidia-smi` is this shell script; None: where there is none."""
    if script is not None:
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return GPUS()


def test_gpus_are_those_that_nvidia_smi_lists_and_not_their_parts(monkeypatch, tmp_path):
    script = """
[ "$1" = -L ] || exit 1
echo "GPU 0: NVIDIA H200 (UUID: GPU-4cf8db2d)"
echo "  MIG 1g.18gb Device 0: (UUID: MIG-8e1d)"
echo "GPU 1: NVIDIA H200 (UUID: GPU-5e0a31b7)"
"""

    assert listed_gpus(monkeypatch, tmp_path, script) == ["0", "1"]


@pytest.mark.parametrize("script", [None, "echo 'No devices were found'", "echo 'GPU 0: half'; exit 9"])
def test_there_are_no_gpus_where_nvidia_smi_lists_none_or_is_not_there(monkeypatch, tmp_path, script):
    assert listed_gpus(monkeypatch, tmp_path, script) == []
