"""`imp prepare SOURCE` as a user types it: in this process for what it says and writes, in one of its own to be stopped."""

import importlib.util
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import IMP, LENET, clean_environment, descendants, file_bytes, imp_here, refused, settings, wait_for
from PIL import Image

from data_prep import records
from lottery.rundir import store

SPLITS = ("train", "validation", "test")
HAS_SPARK = importlib.util.find_spec("pyspark") is not None and (shutil.which("java") or os.environ.get("JAVA_HOME"))
needs_spark = pytest.mark.skipif(not HAS_SPARK, reason="PySpark or Java is missing")

# The command line with shards of a single block, so that a few images make many of them.
SMALL_SHARDS = [
    sys.executable,
    "-c",
    "from data_prep import records; records.SHARD_BYTES = 1; from lottery import cli; cli.main()",
]


@pytest.fixture
def small_shards(monkeypatch):
    """Commands of this process make such shards too."""
    monkeypatch.setattr(records, "SHARD_BYTES", 1)


def pictures(root, count, side=16, **options):
    """A folder of `count` noise images in three classes."""
    rng = np.random.default_rng(0)
    for index in range(count):
        path = root / ("cat", "dog", "fox")[index % 3] / f"{index:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (side, side, 3)).astype(np.uint8)).save(path, **options)
    return root


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A folder of 60 images."""
    return pictures(tmp_path_factory.mktemp("few"), 60)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A folder of 1,000 images, which make five shards of 96x96: 640, 160 and 200 images in blocks of 250."""
    return pictures(tmp_path_factory.mktemp("many"), 1000, 64, compress_level=0)


@pytest.fixture(scope="module")
def undisturbed(many, tmp_path_factory):
    """What an undisturbed command makes of `many`."""
    folder = tmp_path_factory.mktemp("undisturbed")
    subprocess.run([*SMALL_SHARDS, *preparing(many)], cwd=folder, env=clean_environment(), check=True)
    return file_bytes(folder / "set")


def preparing(source, *options):
    return ["prepare", f"folder:{source}", "--size", "96", "--out", "set", *options]


def counts(folder):
    manifest = records.read_manifest(folder)
    return [manifest.count(split) for split in SPLITS]


def test_the_digits_are_prepared_where_out_says_and_not_again(tmp_path):
    line = ["prepare", "digits", "--size", "8", "--out", "some/where"]
    done = imp_here(*line, cwd=tmp_path)

    assert done.stdout == "train on them with: imp run --records some/where\n"
    assert done.stderr == "records in some/where: 1151 train, 287 validation, 359 test images of 8x8, 10 classes\n"
    assert [path.name for path in tmp_path.iterdir()] == ["some"]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "some/where").iterdir()}
    assert imp_here(*line, cwd=tmp_path).stderr == done.stderr
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "some/where").iterdir()}
    refused(imp_here(*line, "--val", "0.3", cwd=tmp_path, check=False), "made with other settings", "data.validation 0.2 there")


def test_a_folder_is_prepared_with_fewer_classes_and_other_splits(few, tmp_path):
    options = ["--classes", "2", "--val", "0.1", "--test", "0.5", "--workers", "1", "--out", "set"]
    imp_here("prepare", f"folder:{few}", "--size", "8", *options, cwd=tmp_path)

    assert counts(tmp_path / "set") == [18, 2, 20]
    assert records.read_manifest(tmp_path / "set").classes == ["cat", "dog"]


def test_grey_records_are_prepared_and_a_network_trained_on_them(tmp_path):
    done = imp_here("prepare", "digits", "--size", "8", "--channels", "1", cwd=tmp_path)
    short = ["train.epochs=1", "train.warmup=0", "train.snapshots=0", "families.oneshot.rewind=0"]
    imp_here("train", *LENET, *settings(*short), "--records", "data/digits-8-grey", cwd=tmp_path)

    assert done.stderr == (
        "records in data/digits-8-grey: 1151 train, 287 validation, 359 test grey images of 8x8, 10 classes\n"
    )
    state = store.load_state(tmp_path / "runs/digits-8-grey/replicate-1/train/snapshots/step-000017.h5")
    assert state.weights["fc1/kernel"].shape == (64, 300)


@pytest.mark.skipif("TFDS_REAL_DIR" not in os.environ, reason="TFDS_REAL_DIR names no folder with mnist")
def test_a_set_of_tensorflow_datasets_is_prepared_by_workers_without_tensorflow(tmp_path):
    data_dir = os.environ["TFDS_REAL_DIR"]
    line = [IMP, "prepare", "tfds:mnist", "--size", "28", "--out", "set", "--workers", "2", "--data-dir", data_dir]

    with subprocess.Popen(line, cwd=tmp_path, env=clean_environment(), stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: (tmp_path / "set/.train-00000.tfrecord.done").exists(), process)
        workers = {pid: Path(f"/proc/{pid}/maps").read_text() for pid in descendants(process.pid)}
        said = process.communicate()[1]

    assert len(workers) >= 2
    assert not any("tensorflow" in maps for maps in workers.values())
    assert said == "records in set: 48000 train, 12000 validation, 10000 test images of 28x28, 10 classes\n"


@pytest.mark.usefixtures("small_shards")
def test_any_number_of_workers_gives_the_same_bytes(many, undisturbed, tmp_path):
    imp_here(*preparing(many, "--workers", "1"), cwd=tmp_path)

    assert file_bytes(tmp_path / "set") == undisturbed
    assert len(undisturbed) == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mnist", "--size", "8"], ["unknown data source 'mnist'", "tfds:NAME", "folder:DIR", "arrays:FILE.npz"]),
        (["digits"], ["--size is missing"]),
        (["digits", "--size", "big"], ["--size", "integer"]),
        (["digits", "--size", "8", "--channels", "2"], ["data.channels", "1 or 3, not 2"]),
        (["digits", "--size", "8", "--classes", "11"], ["digits has 10 classes, not 11"]),
        (["digits", "--size", "8", "--val", "0"], ["the validation split of digits would be empty"]),
        (["digits", "--size", "8", "--max-bad", "2"], ["--max-bad", "less than or equal to 1"]),
        (["digits", "--size", "8", "--engine", "dask"], ["'dask' is not one of 'local', 'spark'"]),
        (["digits", "--size", "8", "--run", "runs/x"], ["SOURCE cannot be combined with"]),
        (["folder:nowhere", "--size", "8"], ["nowhere is not a folder"]),
    ],
)
def test_what_cannot_be_prepared_is_one_line_and_nothing_is_written(tmp_path, arguments, words):
    refused(imp_here("prepare", *arguments, cwd=tmp_path, check=False), *words)
    assert not list(tmp_path.iterdir())


@needs_spark
def test_a_spark_master_that_is_none_is_one_line(few, tmp_path):
    line = ["prepare", f"folder:{few}", "--size", "8", "--engine", "spark", "--master", "nonsense"]

    refused(imp_here(*line, cwd=tmp_path, check=False), "--master nonsense")


def test_images_that_cannot_be_decoded_are_told_and_listed(few, tmp_path):
    shutil.copytree(few, tmp_path / "images")
    for name in ("cat/0000.png", "cat/0003.png", "dog/0001.png", "fox/0002.png"):
        (tmp_path / "images" / name).write_bytes(b"text")
    line = ["prepare", "folder:images", "--size", "8", "--out", "set", "--max-bad"]

    refused(
        imp_here(*line, "0.05", cwd=tmp_path, check=False), "of 60 images cannot be decoded so far, more than --max-bad 0.05"
    )
    assert not (tmp_path / "set/manifest.json").exists()
    said = imp_here(*line, "0.1", cwd=tmp_path).stderr.splitlines()

    assert len(said) == 5
    assert sum("left out, cannot be decoded: " in line for line in said) == 3
    assert said[-1] == "and 1 more, all listed in set/manifest.json"
    listed = json.loads((tmp_path / "set/manifest.json").read_text())["bad"]
    assert sorted(bad["name"] for bad in listed) == ["cat/0000.png", "cat/0003.png", "dog/0001.png", "fox/0002.png"]
    assert sum(counts(tmp_path / "set")) == 56


def test_what_is_passed_over_is_told_each_time_and_is_in_the_manifest(few, tmp_path):
    shutil.copytree(few, tmp_path / "images")
    (tmp_path / "images/cat/a.heic").touch()
    (tmp_path / "images/labels.csv").touch()

    said = [imp_here(*preparing("images", "--workers", "1"), cwd=tmp_path).stderr.splitlines()[-1] for _ in range(2)]

    assert said == [f"passed over in folder:{tmp_path / 'images'}: .heic (1), beside classes (1)"] * 2
    assert json.loads((tmp_path / "set/manifest.json").read_text())["passed_over"] == ".heic (1), beside classes (1)"


def test_images_that_came_or_went_since_are_told_and_the_records_stay(few, tmp_path):
    shutil.copytree(few, tmp_path / "images")
    line = preparing("images", "--workers", "1")
    first = imp_here(*line, cwd=tmp_path).stderr
    before = file_bytes(tmp_path / "set")
    assert imp_here(*line, cwd=tmp_path).stderr == first
    told = "to prepare it as it is now, name another --out, or remove set"

    shutil.copy(few / "cat/0000.png", tmp_path / "images/dog")
    added = imp_here(*line, cwd=tmp_path).stderr
    shutil.rmtree(tmp_path / "images/cat")
    (tmp_path / "images/cat").mkdir()
    emptied = imp_here(*line, cwd=tmp_path).stderr
    shutil.rmtree(tmp_path / "images")
    gone = imp_here(*line, cwd=tmp_path).stderr

    assert added == f"{first}folder:{tmp_path / 'images'} has changed since: {told}\n"
    assert emptied.startswith(f"{first}folder:{tmp_path / 'images'} can no longer be read (the class ")
    assert gone == first
    assert file_bytes(tmp_path / "set") == before


@pytest.mark.parametrize(("bits", "white"), [(12, 16), (16, 255)])
def test_a_set_that_is_nearly_black_is_told(tmp_path, bits, white):
    images = np.random.default_rng(0).integers(0, 1 << bits, (30, 8, 8)).astype(np.uint16)
    images[:, 0, 0] = (1 << bits) - 1
    np.savez(tmp_path / "deep.npz", images=images, labels=np.arange(30) % 3)

    said = imp_here("prepare", "arrays:deep.npz", "--size", "8", "--workers", "1", cwd=tmp_path).stderr.splitlines()[1:]

    assert said == [
        f"the brightest value in the first training images is {white} of 255: if that is too dark, scale the images of "
        f"arrays:{tmp_path / 'deep.npz'} so that white is 255, or 65535 in 16 bits"
    ] * (bits < 16)


# Stops of every kind, and going on after them.


def command(pid):
    return Path(f"/proc/{pid}/cmdline").read_text()


def stopped(line, folder, ready, stop):
    """Start `imp` in a session of its own and call `stop` with its process once `ready()` holds; how it ended, with what it
    said and the processes that it had."""
    environment = {**clean_environment(), "PYTHONFAULTHANDLER": "1"}
    process = subprocess.Popen(
        [*SMALL_SHARDS, *line], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for(ready, process)
    below = descendants(process.pid)
    stop(process)
    try:
        said = process.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # tells where each of its threads hangs
        pytest.fail(process.communicate()[1])
    return process.returncode, said, below


def one_is_done(folder):
    return lambda: any(folder.glob("set/.*.done"))


def done_times(folder):
    """The shards that are noted as done, and when each was written."""
    shards = [folder / note.name.removeprefix(".").removesuffix(".done") for note in folder.glob(".*.done")]
    return {path: path.stat().st_mtime_ns for path in shards}


def are_gone(pids):
    return lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids)


def kill(process):
    process.kill()


def interrupt(process):
    os.killpg(process.pid, signal.SIGINT)


@pytest.mark.usefixtures("small_shards")
def test_a_killed_preparation_goes_on_and_ends_with_the_same_bytes(many, undisturbed, tmp_path):
    code, _, workers = stopped(preparing(many), tmp_path, one_is_done(tmp_path), kill)
    assert code == -signal.SIGKILL
    wait_for(are_gone(workers), seconds=2)
    times = done_times(tmp_path / "set")
    assert len(workers) >= 2
    assert not (tmp_path / "set/manifest.json").exists()

    imp_here(*preparing(many), cwd=tmp_path)

    assert file_bytes(tmp_path / "set") == undisturbed
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_what_a_command_left_that_was_killed_once_its_set_was_done_is_removed(few, tmp_path):
    imp_here(*preparing(few, "--max-bad", "0.5"), cwd=tmp_path)
    before = file_bytes(tmp_path / "set")
    for name in (".begun.json", ".train-00000.tfrecord.done", ".x.4000000.tmp", ".lock"):
        (tmp_path / "set" / name).touch()

    imp_here(*preparing(few, "--max-bad", "0.5"), cwd=tmp_path)

    assert file_bytes(tmp_path / "set") == before


@pytest.mark.parametrize(
    ("stop", "code", "words"), [(subprocess.Popen.terminate, 75, "stopped by SIGTERM"), (interrupt, 130, "stopped")]
)
def test_a_cluster_that_takes_its_machine_back_or_ctrl_c_stops_every_process(many, tmp_path, stop, code, words):
    done = stopped(preparing(many), tmp_path, one_is_done(tmp_path), stop)

    assert done[:2] == (code, f"{words}; the same command goes on from here\n")
    wait_for(are_gone(done[2]), seconds=2)


def test_ctrl_c_while_workers_start_is_no_traceback(many, tmp_path):
    said = []
    for seconds in (0.02, 0.12):

        def soon(process, seconds=seconds):
            wait_for(lambda: any("spawn_main" in command(pid) for pid in descendants(process.pid)))
            time.sleep(seconds)
            interrupt(process)

        said.append(stopped(preparing(many), tmp_path, lambda: True, soon)[1])

    assert not any("Traceback" in lines for lines in said)


def test_files_that_cannot_grow_are_one_line(many, tmp_path):
    def no_large_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))

    line, how = [*SMALL_SHARDS, *preparing(many)], {"capture_output": True, "text": True, "preexec_fn": no_large_files}

    refused(
        subprocess.run(line, cwd=tmp_path, env=clean_environment(), **how), "tfrecord: File too large", "run the command again"
    )
    assert not list(tmp_path.glob("set/.*.tmp"))


@pytest.mark.usefixtures("small_shards")
def test_a_second_command_is_told_who_writes_there(many, tmp_path):
    told = []

    def look(process):
        told.append(imp_here(*preparing(many), cwd=tmp_path, check=False))
        process.send_signal(signal.SIGKILL)

    stopped(preparing(many, "--workers", "1"), tmp_path, lambda: (tmp_path / "set/.begun.json").exists(), look)

    refused(told[0], "set is being written by process")


@needs_spark
def test_ctrl_c_stops_every_process_of_spark(many, tmp_path):
    line = preparing(many, "--engine", "spark", "--master", "local[2]")

    code, said, below = stopped(line, tmp_path, one_is_done(tmp_path), interrupt)

    assert code == 130
    assert said.count("\n") <= 1
    wait_for(are_gone(below), seconds=10)


def test_verifying_and_preparing_images_need_no_tensorflow(few, tmp_path):
    lines = ["prepare", f"folder:{few}", "--size", "8", "--out", "set"], ["verify", "set"]
    code = f"import sys\nfrom lottery import cli\nfor line in {lines}:\n sys.argv = ['imp', *line]\n"
    code += " try: cli.main()\n except SystemExit as end: assert not end.code\n"
    code += "assert not {'tensorflow', 'pyspark', 'pandas'} & set(sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert "4 files checked, 0 damaged" in done.stdout
