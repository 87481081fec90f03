"""How much memory images may take: what is free, shared, or what the recipe says."""

from pathlib import Path

import pytest

from lottery.base import capacity

GIB = 1 << 30


@pytest.fixture
def free(monkeypatch):
    monkeypatch.setattr(capacity, "free_memory", lambda: 12_000)


@pytest.fixture
def kernel(monkeypatch):
    """A function that lets the kernel say what is in `files`, by path."""

    def say(**files):
        group = "/sys/fs/cgroup/memory"
        paths = {"meminfo": "/proc/meminfo", "limit": f"{group}.max", "used": f"{group}.current", "counts": f"{group}.stat"}
        said = {paths[name]: text for name, text in files.items()}
        read = Path.read_text

        def read_text(path, *arguments, **options):
            if str(path).startswith("/sys/fs/cgroup") and str(path) not in said:
                raise FileNotFoundError(path)
            return said.get(str(path)) or read(path, *arguments, **options)

        monkeypatch.setattr(Path, "read_text", read_text)

    return say


MEMINFO = "MemTotal:       32000 kB\nMemFree:         1000 kB\nMemAvailable:    8000 kB\n"


def test_ranks_share_half_of_what_is_free_on_their_host_and_take_what_is_given_as_it_is(free):
    assert capacity.host_budget(0) == 6000
    assert capacity.host_budget(0, ranks=3) == 2000
    assert capacity.host_budget(2, ranks=3) == 2 * GIB


def test_of_several_gpus_the_smallest_counts(monkeypatch):
    from tensorflow.python.client import device_lib

    from lottery.engine.devices import memory_of

    class Device:
        def __init__(self, name, memory_limit):
            self.name, self.memory_limit = name, memory_limit

    devices = [Device("/device:CPU:0", 10), Device("/device:GPU:0", 9 * GIB), Device("/device:GPU:1", 7 * GIB)]
    monkeypatch.setattr(device_lib, "list_local_devices", lambda: devices)

    assert memory_of(["GPU:0", "GPU:1"]) == 7 * GIB
    assert memory_of(["GPU:0"]) == 9 * GIB


def test_images_take_half_of_a_gpu_at_most():
    assert capacity.device_budget(0, 9 * GIB) == 4.5 * GIB
    assert capacity.device_budget(0, 9 * GIB, ranks=3) == 1.5 * GIB
    assert capacity.device_budget(2, 7 * GIB) == 2 * GIB
    assert capacity.device_budget(40, 7 * GIB) == 3.5 * GIB  # said of the host's memory, which has room for more


def test_free_is_what_the_kernel_calls_available(kernel):
    kernel(meminfo=MEMINFO)

    assert capacity.free_memory() == 8000 * 1024


@pytest.mark.parametrize(
    ("limit", "used", "cached", "expected"),
    [
        ("max", "5", 0, 8000 * 1024),
        ("3000000", "1000000", 0, 2_000_000),
        ("3000000", "1000000", 400_000, 2_400_000),
        ("90000000", "0", 0, 8000 * 1024),
        ("10", "20", 0, 0),
    ],
)
def test_a_control_group_may_leave_less_and_its_cached_files_give_way(kernel, limit, used, cached, expected):
    kernel(meminfo=MEMINFO, limit=f"{limit}\n", used=f"{used}\n", counts=f"anon 7\ninactive_file {cached}\n")

    assert capacity.free_memory() == expected


def test_this_machine_says_what_is_free():
    assert 1 << 20 < capacity.free_memory() < 1 << 50
