"""Versions, machine and git revision that a run was made with."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lottery
from lottery.base import gpus

_PACKAGES = ("tensorflow", "keras", "numpy", "h5py", "mpi4py", "wandb")


def maker(device: str) -> dict[str, str]:
    """What decides the last bits of a training: versions, and the kind of `device`."""
    versions = {name: importlib.metadata.version(name) for name in ("tensorflow", "keras")}
    return {"imp": lottery.__version__, **versions, "device": device}


def named(makers: Sequence[Mapping[str, str]]) -> str:
    """The makers of an output, in order of time: `imp 0.1.0, tensorflow 2.21.0, keras 3.15.1 on CPU, then ...`."""
    return ", then ".join(
        f"{', '.join(f'{name} {version}' for name, version in maker.items() if name != 'device')} on {maker['device']}"
        for maker in makers
    )


def describe() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return {
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "host": platform.node(),
        "system": platform.platform(),
        "processor": next(models, platform.processor()),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": list(gpus.listed().values()),
        "revision": _revision(),
    }


def _revision() -> str | None:
    """The git revision of the source tree this package runs from, `+` when it has uncommitted changes; None where it was
    installed, though in a folder of another project."""
    here = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", here, *arguments], capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
