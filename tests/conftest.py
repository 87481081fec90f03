import json
import os
import random
import runpy
import shutil
import signal
import sys

import hypothesis
import pytest
from helpers import LAUNCHER, LENET, ROOT, imp_here, set_up_devices, settings, tiny_set

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores Ctrl-C, and so would all it starts
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and under nohup this
hypothesis.settings.register_profile("unhurried", deadline=None)  # the machine may be busy
hypothesis.settings.load_profile("unhurried")


@pytest.fixture(autouse=True)
def seeded():
    """Of layers without a seed, Keras draws the weights by Python's own generator: the same in each run, and alone."""
    random.seed(0)


@pytest.fixture(scope="session")
def tensorflow():
    """TensorFlow with four logical CPU devices and everything deterministic, as the engine sets it up."""
    set_up_devices()
    import tensorflow

    return tensorflow


@pytest.fixture
def any_backend(request):
    """The backend of Keras that this process has; TensorFlow's set up as above."""
    import keras

    if keras.backend.backend() == "tensorflow":
        request.getfixturevalue("tensorflow")
    return keras.backend.backend()


@pytest.fixture
def policy(request, any_backend):
    """The dtype policy of Keras that a test names."""
    import keras

    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy("float32")


@pytest.fixture(scope="session")
def make_trainer(tensorflow, tmp_path_factory):
    """A function that makes a trainer on the tiny set, lenet's unless told otherwise."""
    from tiny import maker

    return maker(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """A folder in which one command ran the smoke recipe with a small network, and how that ended."""
    folder, small = tmp_path_factory.mktemp("smoke"), settings("model.name=conv2", "data.size=8", "data.crop=0")
    return folder, imp_here("run", str(ROOT / "pipelines/smoke.toml"), "--ranks", "1", *small, cwd=folder)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with a run of lenet as far as its masks."""
    folder = tmp_path_factory.mktemp("trained")
    imp_here("prepare", *LENET, cwd=folder)
    imp_here("train", cwd=folder)
    imp_here("thresholds", cwd=folder)
    return folder


@pytest.fixture(scope="session")
def retrained(trained, tmp_path_factory):
    """The same, every pair trained by one process."""
    folder = tmp_path_factory.mktemp("retrained") / "work"
    shutil.copytree(trained, folder, symlinks=True)
    imp_here("retrain", cwd=folder)
    return folder


@pytest.fixture(scope="session")
def exported(retrained, tmp_path_factory):
    """The folder `lenet` of a ticket of that run."""
    folder = tmp_path_factory.mktemp("tickets") / "lenet"
    line = ["--ticket", "q90-step-000000", "--to", "folder", "--license", "mit", "--out", str(folder)]
    imp_here("export", *line, cwd=retrained)
    return folder


@pytest.fixture
def work(trained, tmp_path):
    """A copy of `trained` to work in."""
    shutil.copytree(trained, tmp_path / "work", symlinks=True)
    return tmp_path / "work"


@pytest.fixture
def prepared(trained, tmp_path):
    """A folder with nothing but the records of `trained`."""
    shutil.copytree(trained / "data", tmp_path / "work" / "data")
    return tmp_path / "work"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder, and an environment that names no run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IMP_RUN", raising=False)
    monkeypatch.delenv("IMP_DATA", raising=False)
    return tmp_path


@pytest.fixture
def no_launcher(monkeypatch):
    """An environment of no launcher and no job, that shows no GPUs."""
    for name in (*LAUNCHER, "SLURM_JOB_ID", "SLURM_NTASKS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def uneven(tmp_path_factory):
    """1,311 training images in shards of 600: blocks of 250, 250, 100, 250, 250, 100, 111."""
    folder = tmp_path_factory.mktemp("records")
    return folder, tiny_set(folder, train=1311, others=411, per_shard=600)


@pytest.fixture
def benchmarks(monkeypatch):
    """The folder of scripts that measure, which import each other."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return ROOT / "benchmarks"


@pytest.fixture
def typed(here, benchmarks, monkeypatch, capsys):
    """A function that runs a measurement in this process, one of `imp bench` or a script (`ladder.py`): its exit code, what it
    printed, and what it said."""
    from lottery import cli

    def typed(name, *arguments):
        script = name.endswith(".py")
        monkeypatch.setattr(sys, "argv", [name, *arguments] if script else ["imp", "bench", name, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(benchmarks / name), run_name="__main__") if script else cli.main()
        return ended.value.code or 0, *capsys.readouterr()

    return typed


@pytest.fixture
def quick(typed, in_process):
    """A function that measures small."""

    def quick(*arguments):
        code, out, _ = typed(*arguments, "--quick", "--json")
        assert code == 0
        return json.loads(out)

    return quick


@pytest.fixture
def in_process(tensorflow, benchmarks, monkeypatch):
    """Measurements measure in this process, instead of in others, in which TensorFlow would take seconds to start; runs are
    short."""
    import limits
    import step
    import turns

    from lottery.bench import inference
    from lottery.bench.process import Process
    from lottery.engine import assembly, devices

    def names(train, cores=None):
        return [f"CPU:{index}" for index in range(train.devices or 1)]

    for module in (devices, assembly):
        monkeypatch.setattr(module, "set_up_tensorflow", names)
    monkeypatch.setattr(Process, "call", lambda self, function, **arguments: function(**arguments))
    monkeypatch.setattr(turns, "RUN_SECONDS", 1e-3)
    monkeypatch.setattr(inference, "ROUND_SECONDS", 1e-3)
    monkeypatch.setattr(limits, "COPY_BYTES", 1 << 22)
    monkeypatch.setattr(step, "IMAGE_BYTES", 1 << 17)
