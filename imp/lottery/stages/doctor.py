"""Whether this machine has what the commands need: each thing found out, and what to do about what is missing."""

import dataclasses
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from data_prep.errors import InputError, first_line
from lottery import environment, locks
from lottery.fanout import launcher
from lottery.tables import count_of

PROBE_SECONDS = 60.0  # TensorFlow's start on a cold disk takes some
SINFO_SECONDS = 10.0
MOST_RANKS = 16  # that are tried, however many cores there are
LITTLE_DISK = 5e9  # bytes
MARK = "found: "

State = Literal["good", "limited", "broken"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """What was found about `topic`. `limited`: some command will not work, or be slower; `broken`: training will not work.
    `remedy` is what to do, empty where all is good."""

    topic: str
    state: State
    text: str
    remedy: str = ""


def doctor(runs: Path) -> list[Finding]:
    """Look at everything; run directories would lie in `runs`. What does not answer is given up after a while, and none
    raises."""
    looks: list[Callable[[], list[Finding]]] = [_machine, _tensorflow, _gpus, _mpi, _slurm, _wandb, lambda: _disk(runs)]
    return [finding for look in looks for finding in look()]


def _machine() -> list[Finding]:
    about = environment.describe()
    cores, there = about["cores"], os.cpu_count() or 1
    part = f" (of {there}: this process may not use the others)" if cores < there else ""
    return [Finding("machine", "good", f"{about['processor']}, {count_of(cores, 'core')}{part}; Python {about['python']}")]


_TENSORFLOW = """
import json
from lottery.start import start_tensorflow
start_tensorflow()
import tensorflow as tf, keras
build = tf.sysconfig.get_build_info()
gpus = tf.config.list_physical_devices("GPU")
names = [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]
total = float(tf.reduce_sum(tf.ones((64, 64)) @ tf.ones((64, 64))))
print("found: " + json.dumps({"version": tf.__version__, "keras": keras.__version__, "cuda": build.get("cuda_version"),
    "cudnn": build.get("cudnn_version"), "gpus": names, "right": total == 64.0**3}))
"""


def _tensorflow() -> list[Finding]:
    found, said = _probe([sys.executable, "-c", _TENSORFLOW])
    if found is None:
        return [Finding("TensorFlow", "broken", f"does not start: {said}", "install this package again in a new environment")]
    built = f"built for CUDA {found['cuda']}, cuDNN {found['cudnn']}" if found["cuda"] else "built for CPUs alone"
    text = f"TensorFlow {found['version']}, Keras {found['keras']}, {built}"
    if not found["right"]:
        return [Finding("TensorFlow", "broken", f"{text}; it multiplies matrices wrongly", "try another machine")]
    devices = ", ".join(found["gpus"]) or "no GPU: it trains on CPUs"
    driver = _driver()
    if driver and not found["gpus"]:
        lacking = "does not see the GPUs that the driver knows"
        return [
            Finding("TensorFlow", "limited", f"{text}; {lacking}", "pip install -e '.[cuda]', and look at CUDA_VISIBLE_DEVICES")
        ]
    return [Finding("TensorFlow", "good", f"{text}; {devices}")]


def _gpus() -> list[Finding]:
    driver = _driver()
    if driver:
        return [Finding("NVIDIA driver", "good", driver)]
    if any(Path("/proc/driver/nvidia").glob("*")) or shutil.which("nvidia-smi"):
        remedy = "ask who runs this machine: driver and library must be of one version"
        return [Finding("NVIDIA driver", "limited", "there is one, but NVML does not answer", remedy)]
    return [Finding("NVIDIA driver", "good", "none, and no GPU")]


def _driver() -> str | None:
    """The driver's version and its GPUs, or None where NVML does not answer."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
            named = ", ".join(
                f"{pynvml.nvmlDeviceGetName(handle)} ({pynvml.nvmlDeviceGetMemoryInfo(handle).free / 2**30:.0f} GiB free)"
                for handle in handles
            )
            return f"{pynvml.nvmlSystemGetDriverVersion()}: {named}"
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # whatever NVML has against it
        return None


_MPI = 'from mpi4py import MPI; print("found: " + __import__("json").dumps(MPI.Get_library_version().splitlines()[0]))'


def _mpi() -> list[Finding]:
    found, said = _probe([sys.executable, "-c", _MPI])
    if found is None:
        return [
            Finding("MPI", "limited", f"mpi4py finds none: {said}", "pip install -e '.[local]', or load your cluster's MPI")
        ]
    library = str(found).partition(", package")[0].strip("\0 ,")
    try:
        starter = launcher.mpirun()
    except InputError:
        remedy = "load the MPI that mpi4py found, or pip install -e '.[local]'"
        return [Finding("MPI", "limited", f"{library}; no mpirun", remedy)]
    cores = environment.describe()["cores"]
    ranks = min(max(2, cores), MOST_RANKS)
    total, said = _probe(*launcher.command(ranks, ["-c", launcher.COUNTING]))
    if total != ranks:
        got = f"{total} of them found each other" if total else said
        remedy = "mpirun and mpi4py must be of one MPI: which mpirun is first on PATH?"
        return [Finding("MPI", "limited", f"{library}; {starter} started {ranks} ranks: {got}", remedy)]
    tried = "no more were tried" if ranks < cores else f"for {count_of(cores, 'core')}"
    text = f"{library}; {starter} starts {ranks} ranks that find each other ({tried})"
    if launcher.tolerates_faults(starter):
        return [Finding("MPI", "good", f"{text}; ranks outlive each other (ULFM)")]
    remedy = "nothing is lost: type the command again; an Open MPI 5 built with ULFM goes on by itself"
    return [Finding("MPI", "limited", f"{text}; when one dies the job ends (no ULFM)", remedy)]


def _slurm() -> list[Finding]:
    if not shutil.which("sbatch"):
        return [Finding("Slurm", "good", "none here")]
    remedy = "ask who runs the cluster; imp slurm writes its scripts all the same"
    try:
        done = subprocess.run(["sinfo", "--noheader", "--format=%P %D"], capture_output=True, text=True, timeout=SINFO_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [Finding("Slurm", "limited", f"sbatch is here, sinfo does not answer: {first_line(error)}", remedy)]
    if done.returncode:
        return [Finding("Slurm", "limited", f"sbatch is here, sinfo says: {_last(done.stderr)}", remedy)]
    partitions = ", ".join(f"{name} ({nodes} nodes)" for name, nodes in map(str.split, done.stdout.splitlines()))
    tasks = launcher.unused_tasks(1)
    return [Finding("Slurm", "limited" if tasks else "good", f"partitions: {partitions}", tasks or "")]


def _wandb() -> list[Finding]:
    version = importlib.metadata.version("wandb")
    if os.environ.get("WANDB_MODE") in ("offline", "disabled"):
        return [Finding("W&B", "good", f"wandb {version}, {os.environ['WANDB_MODE']} (WANDB_MODE)")]
    if _has_key():
        return [Finding("W&B", "good", f"wandb {version}, with a key")]
    remedy = "wandb login, for --set track.wandb=online; offline needs none"
    return [Finding("W&B", "limited", f"wandb {version}, no key", remedy)]


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").rstrip("/").rpartition("/")[2]
    return netrc.is_file() and f"machine {host}" in netrc.read_text(errors="replace")


def _disk(runs: Path) -> list[Finding]:
    there = next(folder for folder in (runs.absolute(), *runs.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    room = Finding("disk", "good", f"{free / 1e9:,.0f} GB free for {runs}")
    if free < LITTLE_DISK:
        room = dataclasses.replace(room, state="limited", remedy="make room, or put run directories elsewhere with --run")
    return [room, _locking(there)]


_HELD = """
import sys
from pathlib import Path
from lottery import locks
print("found: " + str(int(locks.holder(Path(sys.argv[1])) is not None)))
"""


def _locking(there: Path) -> Finding:
    """Whether a lock that one process holds keeps another out, as run directories need it."""
    try:
        with tempfile.TemporaryDirectory(dir=there, prefix=".imp-doctor-") as folder, locks.writing(Path(folder) / "lock"):
            kept, said = _probe([sys.executable, "-c", _HELD, str(Path(folder) / "lock")])
            began = time.perf_counter()
            with open(Path(folder) / "file", "wb") as file:
                file.write(b"0" * 4096)
                os.fsync(file.fileno())
            took = 1e3 * (time.perf_counter() - began)
    except (OSError, InputError) as error:
        return Finding(
            "locks", "broken", f"{there}: {first_line(error)}", "name a folder of your own with --run, on a disk with locks"
        )
    if not kept:
        remedy = "keep run directories on a file system with flock (NFS: mounted without nolock)"
        return Finding("locks", "broken", f"a lock in {there} does not keep others out{': ' + said if said else ''}", remedy)
    return Finding("locks", "good", f"work in {there}; a small file is on disk after {took:.1f} ms")


def _probe(line: list[str], variables: Mapping[str, str] | None = None) -> tuple[Any, str]:
    """What a process prints as JSON after the word `found:`; or None, and the last thing it said."""
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=PROBE_SECONDS, env=variables and dict(variables))
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, first_line(error)
    told = [text.removeprefix(MARK) for text in done.stdout.splitlines() if text.startswith(MARK)]
    if done.returncode or not told:
        return None, _last(done.stderr or done.stdout) or f"exit code {done.returncode}"
    return json.loads(told[-1]), ""


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
