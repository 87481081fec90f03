"""The part of its host's GPUs that each rank takes."""

import os
import subprocess
from collections.abc import Sequence


def own_share(devices: Sequence[str], position: int, workers: int) -> list[str]:
    """The devices of worker number `position` of the `workers` on a host: a part of its own, or one shared if too few."""
    if not devices:
        return []
    return list(devices[position::workers]) or [devices[position % len(devices)]]


def take_own_gpus(rank: int, hosts: list[str]) -> None:
    """Show TensorFlow only this rank's part of its host's GPUs. Rank 0 trains nothing and takes none."""
    neighbours = [other for other in range(1, len(hosts)) if hosts[other] == hosts[rank]]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = _gpus() if visible is None else [device for device in visible.split(",") if device]
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(own_share(devices, neighbours.index(rank), len(neighbours)))


def _gpus() -> list[str]:
    """The numbers of the GPUs that this process may use (a container's, not all of the host's)."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [str(index) for index, _ in enumerate(line for line in listed.splitlines() if line.startswith("GPU"))]
