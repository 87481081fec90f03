"""How busy this process's NVIDIA GPUs are while it trains, as NVML tells it. Never needed, never fatal, never heard."""

import contextlib
import os
import threading
from typing import Any

SECONDS = 1.0  # between two samples; NVML's own utilisation is that of the last sixth of a second to second


class Gauges:
    """Watches, from a thread of its own, the first `count` GPUs that this process sees; with a count of 0, nothing at all.

    Where there is no GPU, driver or permission, and from the first failure of NVML on, there are no figures.
    """

    def __init__(self, count: int):
        self._nvml: Any = None
        self._handles: list[Any] = []
        self._samples: list[tuple[float, int]] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gpu gauges", daemon=True)
        if count:
            self._open(count)

    def read(self) -> dict[str, float]:
        """Figures since the last read: `gpu_utilisation`, the mean share (0 to 1) of the time in which the GPUs ran anything,
        and `gpu_memory_bytes`, the most that was in use on any one of them, by whomever. Empty when there are none."""
        self._sample()
        with self._lock:
            samples, self._samples = self._samples, []
        if not samples:
            return {}
        shares, used = zip(*samples, strict=True)
        return {"gpu_utilisation": sum(shares) / len(shares), "gpu_memory_bytes": float(max(used))}

    def close(self) -> None:
        """End the watch; later reads are empty."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(SECONDS)
        with self._lock, contextlib.suppress(Exception):
            nvml, self._nvml, self._handles, self._samples = self._nvml, None, [], []
            if nvml:
                nvml.nvmlShutdown()

    def _open(self, count: int) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handles = _visible(pynvml)[:count]
        except Exception:  # whatever NVML has against it, training does not depend on it
            return
        if self._handles:
            self._thread.start()

    def _watch(self) -> None:
        while not self._closed.wait(SECONDS):
            self._sample()

    def _sample(self) -> None:
        with self._lock:
            try:
                shares = [self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in self._handles]
                used = [self._nvml.nvmlDeviceGetMemoryInfo(handle).used for handle in self._handles]
            except Exception:  # a GPU that fell off the bus, a driver that was replaced
                self._closed.set()
                self._handles, self._samples = [], []
                return
            if shares:
                self._samples.append((sum(shares) / len(shares), max(used)))


def _visible(nvml: Any) -> list[Any]:
    """NVML's handles of the GPUs that CUDA shows this process, in CUDA's order.

    That names them by number or by (the beginning of) their UUID and ends at the first name that fits none. Numbers are taken
    in PCI order, which is CUDA's wherever all GPUs of a host are alike, or CUDA_DEVICE_ORDER says so.
    """
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return handles
    uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
    found = []
    for name in names.split(","):
        fitting = [index for index, uuid in enumerate(uuids) if _names(name.strip(), index, uuid)]
        if len(fitting) != 1:
            break
        found.append(handles[fitting[0]])
    return found


def _names(name: str, index: int, uuid: str) -> bool:
    return name == str(index) or (name.startswith("GPU-") and uuid.startswith(name))
