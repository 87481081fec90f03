"""The command that examines the machine: doctor."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from lottery.base.errors import InputError, first_line
from lottery.base.progress import count_of
from lottery.commands.options import JsonOption, print_json
from lottery.executors import launcher

PROBE_SECONDS = 60.0  # TensorFlow's start on a cold disk takes some
RANKS = 2  # that are tried
LITTLE_DISK = 5e9  # bytes
MARKS = {"good": "ok", "limited": "!", "broken": "X"}
FOUND = "found: "  # before the JSON that a probe prints


class Finding(NamedTuple):
    """What was found out. `limited`: some command will not work, or be slower; `broken`: training will not work. `remedy` is
    what to do, empty where all is good."""

    state: Literal["good", "limited", "broken"]
    text: str
    remedy: str = ""


def doctor(
    runs: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder of the run directories.")] = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Check devices, drivers, TensorFlow, MPI, Slurm, W&B, disk and locks, and say what to fix."""
    findings = examined(runs)
    if as_json:
        print_json([{"topic": topic, **finding._asdict()} for topic, finding in findings.items()])
    else:
        for topic, finding in findings.items():
            print(f"{MARKS[finding.state]:2} {topic}: {finding.text}")
            if finding.remedy:
                print(f"     {finding.remedy}")
    if any(finding.state == "broken" for finding in findings.values()):
        raise typer.Exit(1)


def examined(runs: Path) -> dict[str, Finding]:
    """What is found, by topic; run directories would lie in `runs`. What does not answer is given up after a while."""
    from lottery.base import environment, gpus

    about, driver = environment.describe(), gpus.driver()
    folder = next(folder for folder in (runs.absolute(), *runs.absolute().parents) if folder.exists())
    return {
        "machine": _machine(about),
        "TensorFlow": _tensorflow(driver),
        "NVIDIA driver": _gpus(driver),
        "MPI": _mpi(),
        "Slurm": _slurm(),
        "W&B": _wandb(about["packages"]["wandb"]),
        "disk": _disk(runs, folder),
        "locks": _locking(folder),
    }


def _machine(about: Mapping[str, Any]) -> Finding:
    return Finding("good", f"{about['processor']}, {count_of(about['cores'], 'core')}; Python {about['python']}")


_TENSORFLOW = """
import json
from lottery.engine.start import start_tensorflow
start_tensorflow()
import tensorflow as tf, keras
build = tf.sysconfig.get_build_info()
gpus = tf.config.list_physical_devices("GPU")
names = [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]
convolution = keras.layers.Conv2D(8, 3, activation="relu")
convolution.build((4, 16, 16, 3))
xla = ""
try:
    tf.function(convolution, jit_compile=True)(tf.ones((4, 16, 16, 3)))
except Exception as error:
    xla = str(error).strip().partition("\\n")[0][:200]
print("found: " + json.dumps({"version": tf.__version__, "keras": keras.__version__, "cuda": build.get("cuda_version"),
    "cudnn": build.get("cudnn_version"), "gpus": names, "xla": xla}))
"""


def _tensorflow(driver: str | None) -> Finding:
    about, said = _probe([sys.executable, "-c", _TENSORFLOW])
    if about is None:
        return Finding("broken", f"does not start: {said}", "install this package again in a new environment")
    built = f"built for CUDA {about['cuda']}, cuDNN {about['cudnn']}" if about["cuda"] else "built for CPUs alone"
    text = f"TensorFlow {about['version']}, Keras {about['keras']}, {built}"
    if driver and not about["gpus"]:
        remedy = "pip install 'imp-lottery[cuda]', and look at CUDA_VISIBLE_DEVICES"
        return Finding("limited", f"{text}; does not see the GPUs that the driver knows", remedy)
    if about["xla"]:
        remedy = "pip install 'imp-lottery[cuda]', which brings a cuDNN that works, or --set train.xla=off"
        return Finding("limited", f"{text}; XLA does not compile a convolution: {about['xla']}", remedy)
    return Finding("good", f"{text}; {', '.join(about['gpus']) or 'no GPU: it trains on CPUs'}")


def _gpus(driver: str | None) -> Finding:
    if driver is None and (any(Path("/proc/driver/nvidia").glob("*")) or shutil.which("nvidia-smi")):
        remedy = "ask who runs this machine: driver and library must be of one version"
        return Finding("limited", "there is one, but NVML does not answer", remedy)
    return Finding("good", driver or "none, and no GPU")


_MPI = 'from mpi4py import MPI; print("found: " + __import__("json").dumps(MPI.Get_library_version().splitlines()[0]))'


def _mpi() -> Finding:
    version, said = _probe([sys.executable, "-c", _MPI])
    if version is None:
        return Finding("limited", f"mpi4py finds none: {said}", "pip install 'imp-lottery[local]', or load your cluster's MPI")
    library = str(version).partition(", package")[0].strip("\0 ,")
    try:
        starter, line = launcher.mpirun(), launcher.command(RANKS, ["-c", launcher.COUNTING])
    except InputError:
        remedy = "load the MPI that mpi4py found, or pip install 'imp-lottery[local]'"
        return Finding("limited", f"{library}; no mpirun", remedy)
    total, said = _probe(*line)
    if total != RANKS:
        got = f"{total} of them found each other" if total else said
        remedy = "mpirun and mpi4py must be of one MPI: which mpirun is first on PATH?"
        return Finding("limited", f"{library}; {starter} started {RANKS} ranks: {got}", remedy)
    text = f"{library}; {starter} starts ranks that find each other"
    if launcher.tolerates_faults(starter):
        return Finding("good", f"{text}; ranks outlive each other (ULFM)")
    remedy = "nothing is lost: type the command again; an Open MPI 5 built with ULFM goes on by itself"
    return Finding("limited", f"{text}; when one dies the job ends (no ULFM)", remedy)


def _slurm() -> Finding:
    if not shutil.which("sbatch"):
        return Finding("good", "none here")
    tasks = launcher.unused_tasks(1)
    return Finding("limited" if tasks else "good", "sbatch is here", tasks or "")


def _wandb(version: str) -> Finding:
    if os.environ.get("WANDB_MODE") in ("offline", "disabled"):
        return Finding("good", f"wandb {version}, {os.environ['WANDB_MODE']} (WANDB_MODE)")
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").rstrip("/").rpartition("/")[2]
    if os.environ.get("WANDB_API_KEY") or (netrc.is_file() and f"machine {host}" in netrc.read_text(errors="replace")):
        return Finding("good", f"wandb {version}, with a key")
    remedy = 'wandb login, for track.trackers = ["wandb"]; wandb:offline needs none'
    return Finding("limited", f"wandb {version}, no key", remedy)


def _disk(runs: Path, folder: Path) -> Finding:
    """How much room there is for `runs`, of which `folder` is there already."""
    free = shutil.disk_usage(folder).free
    remedy = "make room, or put run directories elsewhere with --run" if free < LITTLE_DISK else ""
    return Finding("limited" if remedy else "good", f"{free / 1e9:,.0f} GB free for {runs}", remedy)


_HELD = """
import sys
from pathlib import Path
from lottery.base import locks
print("found: " + str(int(locks.holder(Path(sys.argv[1])) is not None)))
"""


def _locking(folder: Path) -> Finding:
    """Whether a lock that one process holds keeps another out, as run directories need it."""
    from lottery.base import locks

    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".imp-doctor-") as trial, locks.writing(Path(trial) / "lock"):
            is_held, said = _probe([sys.executable, "-c", _HELD, str(Path(trial) / "lock")])
    except (OSError, InputError) as error:
        remedy = "name a folder of your own with --run, on a disk with locks"
        return Finding("broken", f"{folder}: {first_line(error)}", remedy)
    if not is_held:
        remedy = "keep run directories on a file system with flock (NFS: mounted without nolock)"
        return Finding("broken", f"a lock in {folder} does not keep others out{': ' + said if said else ''}", remedy)
    return Finding("good", f"work in {folder}")


def _probe(line: list[str], variables: Mapping[str, str] | None = None) -> tuple[Any, str]:
    """What a process prints as JSON after the word `found:`; or None where it fails or takes long, and what it said last."""
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=PROBE_SECONDS, env=variables)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, first_line(error)
    told = [text.removeprefix(FOUND) for text in done.stdout.splitlines() if text.startswith(FOUND)]
    if told and not done.returncode:
        return json.loads(told[-1]), ""
    said = [text.strip() for text in (done.stderr or done.stdout).splitlines() if text.strip()]
    return None, said[-1] if said else f"exit code {done.returncode}"
