"""NVIDIA's GPUs by NVML: which there are, which this process may use, and how busy they are while it trains."""

import contextlib
import functools
import itertools
import os
import threading
from typing import Any

SECONDS = 1.0  # between two samples; NVML's own utilisation is that of the last sixth of a second to second


def listed() -> dict[str, str]:
    """The products (`NVIDIA H100 80GB HBM3`) of the GPUs that this process is let near (a container's, not all of the host's),
    by UUID, in PCI order. Without a GPU or its driver there are none."""
    with contextlib.suppress(Exception):
        nvml, handles = _nvml()
        return {uuid: nvml.nvmlDeviceGetName(handle) for uuid, handle in handles.items()}
    return {}


def driver() -> str | None:
    """The driver's version, its GPUs and their free memory, in words; None where NVML does not answer."""
    with contextlib.suppress(Exception):
        nvml, handles = _nvml()
        named = (
            f"{nvml.nvmlDeviceGetName(handle)} ({nvml.nvmlDeviceGetMemoryInfo(handle).free / 2**30:.0f} GiB free)"
            for handle in handles.values()
        )
        return f"{nvml.nvmlSystemGetDriverVersion()}: {', '.join(named)}"
    return None


def visible() -> tuple[str, ...]:
    """The GPUs that this process may use, in CUDA's order, by UUIDs, which mean the same to every process: a scheduler may call
    the GPU of each task 0. Where they cannot be learnt, as CUDA_VISIBLE_DEVICES says. Numbers are taken in PCI order, which is
    CUDA's wherever all GPUs of a host are alike, or CUDA_DEVICE_ORDER says so. -1 is none, and hides those after it."""
    shown, uuids = os.environ.get("CUDA_VISIBLE_DEVICES"), list(listed())
    if shown is None:
        return tuple(uuids)
    names = itertools.takewhile(lambda name: name != "-1", (name.strip() for name in shown.split(",") if name.strip()))
    return tuple(uuids[int(name)] if name.isdigit() and int(name) < len(uuids) else name for name in names)


class Gauges:
    """Watches, from a thread of its own, the first `count` GPUs that this process sees; with a count of 0, nothing at all. It
    is never fatal: without a GPU, driver or permission, and from the first failure of NVML on, there are no figures."""

    def __init__(self, count: int):
        self._samples: list[tuple[float, int]] = []
        self._watched: list[Any] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gpu gauges", daemon=True)
        with contextlib.suppress(Exception):
            for name in visible()[:count] if count else ():  # as CUDA does, up to the first that fits none or two
                fitting = [handle for uuid, handle in _nvml()[1].items() if name.startswith("GPU-") and uuid.startswith(name)]
                if len(fitting) != 1:
                    break
                self._watched += fitting
        if self._watched:
            self._thread.start()

    def read(self) -> dict[str, float]:
        """Figures since the last read: `gpu_utilisation`, the mean share (0 to 1) of the time in which the GPUs ran anything,
        and `gpu_memory_bytes`, the most that was in use on any one of them, by whomever. Empty when there are none."""
        self._sample()
        samples, self._samples = self._samples, []
        if not samples or self._closed.is_set():
            return {}
        shares, used = zip(*samples, strict=True)
        return {"gpu_utilisation": sum(shares) / len(shares), "gpu_memory_bytes": float(max(used))}

    def close(self) -> None:
        """End the watch; later reads are empty."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(SECONDS)

    def _watch(self) -> None:
        while not self._closed.wait(SECONDS):
            self._sample()

    def _sample(self) -> None:
        if self._closed.is_set() or not self._watched:
            return
        try:
            nvml, _ = _nvml()
            shares = [nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in self._watched]
            used = [nvml.nvmlDeviceGetMemoryInfo(handle).used for handle in self._watched]
            self._samples.append((sum(shares) / len(shares), max(used)))
        except Exception:  # a GPU that fell off the bus, a driver that was replaced
            self._closed.set()


@functools.cache
def _nvml() -> tuple[Any, dict[str, Any]]:
    """NVML, begun (the end of the process ends it), and its handles by UUID, in PCI order. Raises whatever it raises."""
    import pynvml as nvml

    nvml.nvmlInit()
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    return nvml, {nvml.nvmlDeviceGetUUID(handle): handle for handle in handles}
