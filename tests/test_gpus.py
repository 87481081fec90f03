"""Which GPUs there are, which this process may use, and their figures since the last read; silence whenever NVML has none."""

import sys
import threading
import time
import types

import pytest

from lottery.base import gpus

UUIDS = ["GPU-aaaa-1", "GPU-bbbb-2", "GPU-bbcc-3", "GPU-dddd-4"]


class NVMLError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch):
    """A pynvml module with four GPUs: `nvml.busy` and `nvml.used` are theirs, and the calls named in `nvml.fails` raise."""
    module = types.ModuleType("pynvml")
    module.busy, module.used = [10, 20, 40, 80], [100, 200, 400, 800]
    module.fails, module.called = set(), []

    def function(name, answer):
        def call(*args):
            module.called.append(name)
            if name in module.fails:
                raise NVMLError(name)
            return answer(*args)

        setattr(module, name, call)

    function("nvmlInit", lambda: None)
    function("nvmlDeviceGetCount", lambda: len(UUIDS))
    function("nvmlDeviceGetHandleByIndex", lambda index: index)
    function("nvmlDeviceGetUUID", lambda handle: UUIDS[handle])
    function("nvmlDeviceGetName", lambda handle: f"NVIDIA H{handle}00")
    function("nvmlDeviceGetUtilizationRates", lambda handle: types.SimpleNamespace(gpu=module.busy[handle]))
    function("nvmlDeviceGetMemoryInfo", lambda handle: types.SimpleNamespace(used=module.used[handle]))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus._nvml.cache_clear()
    yield module
    gpus._nvml.cache_clear()


def test_gpus_are_listed_by_uuid_with_their_products(nvml):
    assert gpus.listed() == dict(zip(UUIDS, ["NVIDIA H000", "NVIDIA H100", "NVIDIA H200", "NVIDIA H300"], strict=True))


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetName"])
def test_without_a_driver_or_permission_none_are_listed(nvml, call):
    nvml.fails.add(call)

    assert gpus.listed() == {}


@pytest.mark.parametrize(
    ("shown", "listed", "found"),
    [
        (None, ["GPU-a", "GPU-b"], ("GPU-a", "GPU-b")),
        ("", ["GPU-a", "GPU-b"], ()),
        ("1,0", ["GPU-a", "GPU-b"], ("GPU-b", "GPU-a")),
        ("5,GPU-7", ["GPU-a"], ("5", "GPU-7")),
        ("0,1", [], ("0", "1")),
        ("-1", ["GPU-a"], ()),
        ("1,-1,0", ["GPU-a", "GPU-b"], ("GPU-b",)),
    ],
)
def test_the_gpus_at_hand_are_those_that_a_scheduler_or_a_user_shows_by_names_that_are_theirs_alone(
    monkeypatch, shown, listed, found
):
    monkeypatch.setattr(gpus, "listed", lambda: dict.fromkeys(listed, "NVIDIA H100"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)

    assert gpus.visible() == found


@pytest.fixture
def watch():
    """Starts gauges that end with the test; only a second later does their thread sample, too."""
    opened = []

    def start(count):
        opened.append(gpus.Gauges(count))
        return opened[-1]

    yield start
    for gauges in opened:
        gauges.close()


def watchers():
    return [thread for thread in threading.enumerate() if thread.name == "gpu gauges"]


def figures(share, used):
    return {"gpu_utilisation": pytest.approx(share), "gpu_memory_bytes": used}


def test_two_gpus_give_the_mean_of_their_shares_and_the_most_memory_on_one(nvml, watch):
    assert watch(2).read() == figures(0.15, 200)


@pytest.mark.parametrize(
    ("visible", "count", "share", "used"),
    [
        ("2", 1, 0.4, 400),
        ("3,0", 2, 0.45, 800),
        ("3,-1,0", 2, 0.8, 800),
        ("GPU-bbcc-3", 1, 0.4, 400),
        ("GPU-dd,GPU-aaaa-1", 2, 0.45, 800),
    ],
)
def test_the_gpus_are_those_that_cuda_shows(nvml, watch, monkeypatch, visible, count, share, used):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert watch(count).read() == figures(share, used)


@pytest.mark.parametrize("visible", ["", "-1", "9", "GPU-bb", "GPU-eeee", "MIG-aaaa-1"])
def test_a_name_that_fits_no_gpu_or_two_gives_no_figures(nvml, watch, monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert watch(1).read() == {}


def test_the_thread_samples_between_reads_and_a_read_starts_anew(nvml, watch, monkeypatch):
    monkeypatch.setattr(gpus, "SECONDS", 0.01)
    nvml.used[0] = 900
    gauges = watch(1)
    sampled = nvml.called.count("nvmlDeviceGetMemoryInfo")
    while nvml.called.count("nvmlDeviceGetMemoryInfo") < sampled + 3:
        time.sleep(0.005)
    monkeypatch.setattr(gpus, "SECONDS", 60)
    time.sleep(0.05)
    nvml.busy[0], nvml.used[0] = 100, 300

    first = gauges.read()
    assert first["gpu_memory_bytes"] == 900
    assert 0.1 < first["gpu_utilisation"] < 1
    assert gauges.read() == figures(1, 300)


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetHandleByIndex"])
def test_without_a_driver_or_permission_there_are_no_figures_and_no_thread(nvml, watch, capfd, call):
    nvml.fails.add(call)

    assert watch(1).read() == {}
    assert watchers() == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("call", ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo"])
def test_a_gpu_that_fails_midway_ends_the_figures_in_silence(nvml, watch, capfd, call):
    gauges = watch(2)
    assert gauges.read() == figures(0.15, 200)

    nvml.fails.add(call)
    assert gauges.read() == {}
    nvml.fails.clear()
    assert gauges.read() == {}
    assert capfd.readouterr() == ("", "")


def test_no_gpus_load_nothing(nvml, watch):
    assert watch(0).read() == {}
    assert nvml.called == []
    assert watchers() == []


def test_closing_ends_the_thread_and_may_be_done_twice(nvml, watch):
    gauges = watch(1)
    (thread,) = watchers()
    gauges.close()
    gauges.close()

    assert not thread.is_alive()
    assert gauges.read() == {}
