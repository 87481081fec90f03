"""What several test files need: small networks, and the command line as a user types it."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from data_prep import records
from lottery import cli
from lottery.base import files
from lottery.base.progress import Reporter
from lottery.executors import launcher
from lottery.experiment import grids
from lottery.experiment.plan import Selection
from lottery.experiment.recipe import Model, Train
from lottery.pruning.state import Arrays
from lottery.rundir import identity, journal
from lottery.rundir.tickets import RESULT

ROOT = Path(__file__).parents[1]
IMP = Path(sys.executable).with_name("imp")

# What launchers of MPI ranks say: a test that plays one starts without.
LAUNCHER = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

# Commands that start TensorFlow.
TRAINING = ("train", "retrain", "rounds", "run", "sweep")

# A network of which a whole training takes a second, most of it TensorFlow's start.
LENET = [
    *("--set", "model.name=lenet_300_100", "--set", "data.size=8", "--set", "data.crop=0", "--set", "train.epochs=3"),
    *("--set", "train.snapshots=0,10it,1ep", "--set", "families.oneshot.rewind=0,1ep"),
    *("--set", "families.oneshot.quantiles=50,90", "--set", "families.oneshot.controls_at=90"),
    *("--set", "train.checkpoint_seconds=0", "--set", "train.checkpoint_share=1"),
]

# The command line with every training one step a call, each as long as a signal needs to come in between.
SLOWLY = """
import time
from lottery import cli
from lottery.engine import start
start.start_tensorflow()
from lottery.engine import loop
loop.Trainer._adapt = lambda trainer, count, seconds: time.sleep(0.03)
cli.main()
"""

# The command line where no extra is installed.
LIGHT = """
import sys
from lottery.base.extras import EXTRAS

class Absent:
    def find_spec(name, path=None, target=None):
        if any(name.partition(".")[0] in libraries for libraries in EXTRAS.values()):
            raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, Absent)
from lottery import cli
cli.main()
"""


def selected(families=(), quantiles=None, rewind=None, rounds=None):
    """What these options select."""
    return Selection(families, quantiles and grids.parse_quantiles(quantiles), rewind and grids.parse_points(rewind), rounds)


def lenet(**settings: Any) -> Model:
    return Model(name="lenet_300_100", **settings)


def tiny_set(
    folder: Path,
    size: int = 8,
    train: int = 48,
    others: int = 11,
    classes: int = 3,
    per_shard: int | None = None,
    channels: int = 3,
) -> records.Manifest:
    """A prepared set of noise with a bright stripe per class, easy to learn; `per_shard` images a shard, or all in one."""
    rng = np.random.default_rng(0)
    shards = []
    for split, count in (("train", train), ("validation", others), ("test", others)):
        labels = np.arange(count) % classes
        images = rng.integers(0, 60, (count, size, size, channels)).astype(np.uint8)
        for index, label in enumerate(labels):
            images[index, 2 * label : 2 * label + 2] += 150
        shards += write_split(folder, split, images, labels, per_shard or count)
    manifest = records.Manifest((size, size, channels), [str(label) for label in range(classes)], shards, {})
    records.write_manifest(folder, manifest)
    return manifest


def write_split(
    folder: Path, split: str, images: np.ndarray, labels: np.ndarray, per_shard: int | None = None
) -> list[records.Shard]:
    """The shards of one split: images (uint8, [n, height, width, channels]) and labels (integers, [n])."""
    step = per_shard or records.examples_per_shard(images.shape[1:])
    examples = list(zip(images, labels, strict=True))
    return [
        records.write_shard(folder / records.shard_name(split, number), split, examples[start : start + step])
        for number, start in enumerate(range(0, len(examples), step))
    ]


def large(*cases: Any) -> list[Any]:
    """Parameters of a test that take seconds, most of them large networks: `pytest -m smoke` tests them. What holds of each of
    their parts is tested by default, on a small network."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.smoke) for case in cases]


def install_package(folder: Path, monkeypatch: pytest.MonkeyPatch, chapter: str, group: str, entry_points: str) -> None:
    """Let `mypackage`, whose code is that of a chapter of CONTRIBUTING.md, be a package that is installed, with these entry
    points of `group`."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition(f"## {chapter}")[2]
    (folder / "mypackage.py").write_text(text.partition("```python\n")[2].partition("```")[0])
    about = folder / "mypackage-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{entry_points}\n")
    monkeypatch.syspath_prepend(folder)
    sys.modules.pop("mypackage", None)


def settings(*values: str) -> list[str]:
    """`--set` before each of them."""
    return [part for value in values for part in ("--set", value)]


def imp(*arguments: str, cwd: Path, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `imp` in `cwd` and return what it printed; unless `check` is off it must succeed."""
    done = subprocess.run([IMP, *arguments], cwd=cwd, env=clean_environment(**environment), capture_output=True, text=True)
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def imp_light(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The same where no extra is installed."""
    return subprocess.run([sys.executable, "-c", LIGHT, *arguments], cwd=cwd, capture_output=True, text=True)


def imp_here(*arguments: str, cwd: Path, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, which takes no seconds to start: for what needs no process to end. What trains, or is run after
    TensorFlow was started, has the TensorFlow of the fixture `tensorflow`."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.ExitStack() as stack:
        if arguments[0] in TRAINING or "tensorflow" in sys.modules:
            set_up_devices()
            for module in ("assembly", "devices"):
                stack.enter_context(mock.patch(f"lottery.engine.{module}.set_up_tensorflow", _set_up_before))
        stack.enter_context(contextlib.chdir(cwd))
        stack.enter_context(mock.patch.dict(os.environ, clean_environment(**environment), clear=True))
        stack.enter_context(mock.patch.object(sys, "argv", [str(IMP), *arguments]))
        stack.enter_context(mock.patch("lottery.base.preemption.ignore"))  # this process goes on
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
    done = subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def set_up_devices() -> None:
    """TensorFlow with four logical CPU devices and everything deterministic, as the engine sets it up."""
    from lottery.engine.devices import set_up_tensorflow

    set_up_tensorflow(Train(devices=4))


def _set_up_before(train: Train, cores: int | None = None) -> list[str]:
    return [f"CPU:{index}" for index in range(train.devices or 1)]


def wait_for(ready: Callable[[], Any], process: subprocess.Popen | None = None, seconds: float = 180.0) -> Any:
    """What `ready()` gives once that holds, within so many seconds; `process` must not have ended by then."""
    until = time.monotonic() + seconds
    while not (given := ready()):
        assert process is None or process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.002)
    return given


def descendants(pid: int) -> list[int]:
    """Ids of every process below `pid`."""
    children = [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    return children + [below for child in children for below in descendants(child)]


def kill_when(command: list[str], folder: Path, ready: Callable[[], Any]) -> None:
    """Start `imp` and kill it with SIGKILL as soon as `ready()` holds; it must not have ended by then."""
    process = subprocess.Popen([IMP, *command], cwd=folder, env=clean_environment(), stderr=subprocess.DEVNULL)
    wait_for(ready, process)
    process.send_signal(signal.SIGKILL)
    process.wait()


def mpirun(ranks: int, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`mpirun -n RANKS imp ...`, with what a small machine and root need."""
    line = [launcher.mpirun(), "--oversubscribe", "-n", str(ranks), IMP, *arguments]
    return subprocess.run(line, cwd=cwd, env=clean_environment(**AS_ROOT), capture_output=True, text=True)


def clean_environment(**extra: str) -> dict[str, str]:
    """This environment without what would steer `imp`, and with `extra`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("IMP_", "OMPI_", "PMIX_", "PMI_"))}
    return {**kept, **extra}


def refused(done: subprocess.CompletedProcess[str], *words: str, said: int = 0) -> None:
    """Assert that `imp` refused its input: exit code 2, one line, with `words` in it, after `said` lines of progress."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == said + 1, done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr.splitlines()[-1]


def contents(folder: Path) -> dict[str, Any]:
    """Every file under `folder` by its relative name: bytes of HDF5 files, JSON without `timing`; logs and locks left out."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".h5":
            found[name] = path.read_bytes()
        elif path.name == "result.json" or (
            path.parent.name == "masks" and path.suffix == ".json" and path.name != identity.FILE
        ):
            found[name] = _timeless(files.read_json(path))
        elif path.name == "metrics.jsonl":
            found[name] = [_timeless(row) for row in journal.read(path)]
    return found


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "timing"}


def changed(path: Path, **values: Any) -> None:
    """Put other values into a JSON file, which keeps a seal that is right."""
    files.write_json(path, {**files.read_json(path), **values})


def flip(path: Path) -> None:
    """Alter one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def file_bytes(folder: Path) -> dict[str, bytes]:
    """What lies in a folder, hidden files too, byte for byte."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def forge(folder: Path, name: str, content: bytes) -> None:
    """Write a file of a ticket folder, and its checksum where it belongs."""
    (folder / name).write_bytes(content)
    record = files.read_json(folder / RESULT)
    files.write_json(folder / RESULT, {**record, "files": record["files"] | {name: files.sha256(content)}})


def assert_same(found: Arrays, expected: Arrays) -> None:
    """That two tables of arrays have the same names and bytes."""
    assert {path: array.tobytes() for path, array in found.items()} == {
        path: array.tobytes() for path, array in expected.items()
    }


def kept(size, *places):
    """A mask of `size` weights that keeps those at `places`."""
    mask = np.zeros(size, bool)
    mask[list(places)] = True
    return mask


class Heard(Reporter):
    """Keeps what is said."""

    def __init__(self, said=None):
        super().__init__(quiet=True)
        self.said = [] if said is None else said

    def say(self, message):
        self.said.append(message)


def events(folder: Path) -> tuple[dict[str, list[tuple[int, float]]], dict[str, str]]:
    """What TensorBoard shows of the event files in a folder: by tag, steps and values of scalars, and texts."""
    import tensorflow as tf

    scalars, texts = {}, {}
    for file in folder.glob("events*"):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                content, plugin = tf.make_ndarray(value.tensor)[()], value.metadata.plugin_data.plugin_name
                if plugin == "text":
                    texts[value.tag] = content.decode()
                elif plugin == "scalars":
                    scalars.setdefault(value.tag, []).append((event.step, round(float(content), 6)))
    return scalars, texts
