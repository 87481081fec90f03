"""The engines that make shards: processes on this machine, and Spark. Whichever it is, the bytes are the same."""

import importlib.util
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers import clean_environment, descendants, imp_here, wait_for
from PIL import Image

from data_prep import prepare, shards, spark
from data_prep.images import Images
from data_prep.prepare import Means, Settings
from data_prep.sources import Pictures
from data_prep.sources.folder import image_files
from lottery.base.errors import InputError

HAS_SPARK = importlib.util.find_spec("pyspark") is not None and (shutil.which("java") or os.environ.get("JAVA_HOME"))
needs_spark = pytest.mark.skipif(not HAS_SPARK, reason="PySpark or Java is missing")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of 60 image files, 000.png to 059.png; 013.png and 037.png cannot be decoded."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for index in range(60):
        Image.fromarray(rng.integers(0, 256, (20, 24, 3)).astype(np.uint8)).save(folder / f"{index:03}.png")
    for index in (13, 37):
        (folder / f"{index:03}.png").write_bytes(b"not an image")
    return folder


def tasks(images, folder, count=6, channels=3):
    """Shards of 10 images each to make in `folder`; the last one's are arrays."""
    folder.mkdir(exist_ok=True)
    labels = np.arange(10, dtype=np.int32)
    files = [
        partial(image_files, images, [f"{index:03}.png" for index in range(10 * shard, 10 * shard + 10)])
        for shard in range(count - 1)
    ]
    arrays = Pictures([f"row {row}" for row in range(10)], np.random.default_rng(1).integers(0, 65536, (10, 9, 9), np.uint16))
    parts = [*files, arrays]
    shape = 16, 16, channels
    return [
        Images(folder, f"train-{number:05}.tfrecord", "train", 10, part, shape, labels) for number, part in enumerate(parts)
    ]


def made(engine, tasks, means):
    """What an engine made of the tasks, by name, and the bytes of every file."""
    found = {one.shard.name: one for one in engine.run(tasks, means)}
    return found, {path.name: path.read_bytes() for path in tasks[0].folder.iterdir()}


@pytest.fixture(scope="module")
def expected(images, tmp_path_factory):
    """What one process makes of the tasks."""
    return made(shards, tasks(images, tmp_path_factory.mktemp("one")), 1)


def test_one_process_names_what_it_cannot_decode(expected):
    found, contents = expected

    assert [bad.name for one in found.values() for bad in one.bad] == ["013.png", "037.png"]
    assert [one.shard.count for one in found.values()] == [10, 9, 10, 9, 10, 10]
    assert len(contents) == 12


def test_several_processes_give_the_same_bytes(images, expected, tmp_path):
    assert made(shards, tasks(images, tmp_path), 3) == expected


def test_workers_do_not_import_what_this_process_has(images, tmp_path, tensorflow):
    running = shards.run(tasks(images, tmp_path), 2)
    next(running)

    workers = multiprocessing.active_children()
    assert len(workers) == 2
    for worker in workers:
        assert "tensorflow" not in Path(f"/proc/{worker.pid}/maps").read_text()
    assert "tensorflow" in Path("/proc/self/maps").read_text()
    running.close()


def test_a_worker_that_is_killed_is_told_in_one_line(images, tmp_path):
    running = shards.run(tasks(images, tmp_path), 2)
    next(running)
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    with pytest.raises(InputError, match=r"a worker was killed .*fewer --workers"):
        list(running)
    assert not multiprocessing.active_children()


def test_an_error_of_a_worker_comes_back_with_its_file(images, tmp_path):
    some = tasks(images, tmp_path)
    (tmp_path / some[3].name).mkdir()

    with pytest.raises(OSError, match="Is a directory") as error:
        list(shards.run(some, 2))
    assert error.value.filename == str(tmp_path / some[3].name)


def refused(images, folder, master):
    with pytest.raises(InputError) as refusal:
        list(spark.run(tasks(images, folder), master))
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


@needs_spark
@pytest.mark.parametrize("master", ["", "local[0]", "spark://host", "http://a:1"])
def test_a_malformed_master_is_refused(images, tmp_path, master):
    assert f"--master {master}: write local[*], local[4] or spark://HOST:PORT" in refused(images, tmp_path, master)


@needs_spark
@pytest.mark.parametrize("master", ["spark://localhost:1", "spark://no.such.host.invalid:7077"])
def test_a_master_that_does_not_answer_is_refused_soon(images, tmp_path, master):
    begun = time.monotonic()

    assert f"--master {master} does not answer" in refused(images, tmp_path, master)
    assert time.monotonic() - begun < 10


def test_without_pyspark_the_way_out_is_told(images, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "pyspark" else find(name, *rest))

    assert "--engine spark needs pyspark: pip install 'imp-lottery[spark]'" in refused(images, tmp_path, "local[2]")


@pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="PySpark is missing")
def test_without_java_the_way_out_is_told(images, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")

    assert "needs Java 17 or later" in refused(images, tmp_path, "local[2]")


def test_what_an_executor_cannot_work_with_is_one_line_for_the_driver(images, tmp_path):
    task = tasks(images, tmp_path)[0]
    (tmp_path / task.name).mkdir()

    outcome = spark._attempt(task)

    assert isinstance(outcome, InputError)
    assert str(outcome) == f"{tmp_path / task.name}: Is a directory; mend that and run the command again"


def test_an_executor_s_fault_keeps_its_traceback(images, tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.images.pixels", lambda *_: 1 / 0)
    monkeypatch.setattr(spark, "make", shards.make)

    outcome = spark._attempt(tasks(images, tmp_path)[0])

    assert isinstance(outcome, RuntimeError)
    assert "ZeroDivisionError" in str(outcome)


def java_processes():
    return [pid for pid in descendants(os.getpid()) if Path(f"/proc/{pid}/comm").read_text().strip() == "java"]


@needs_spark
def test_spark_gives_the_bytes_of_one_process(images, expected, tmp_path):
    on_interrupt = signal.getsignal(signal.SIGINT)

    assert made(spark, tasks(images, tmp_path), "local[2]") == expected

    assert not java_processes()
    assert signal.getsignal(signal.SIGINT) is on_interrupt


@needs_spark
def test_too_many_bad_images_stop_spark_and_mended_the_set_is_finished_on_either_engine(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for index in range(600):
        path = tmp_path / "images" / ("cat", "dog")[index % 2] / f"{index:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (9, 9)).astype(np.uint8)).save(path)
    good = path.read_bytes()
    path.write_bytes(b"text")
    settings, folder = Settings(f"folder:{tmp_path / 'images'}", 8), tmp_path / "set"

    with pytest.raises(InputError, match=r"1 of 600 images cannot be decoded so far.*dog/599.png"):
        prepare.prepare(settings, folder, Means("spark", master="local[2]"))

    assert not java_processes()
    assert not (folder / "manifest.json").exists()
    path.write_bytes(good)
    prepare.prepare(settings, folder)
    prepare.prepare(settings, tmp_path / "undisturbed")
    assert {path.name for path in folder.iterdir()} == {path.name for path in (tmp_path / "undisturbed").iterdir()}
    for name in ("manifest.json", "train-00000.tfrecord"):
        assert (folder / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def answers(port):
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def cluster(tmp_path):
    """The URL of a Spark master on this machine with one worker of two cores."""
    import pyspark

    home = Path(pyspark.__file__).parent
    port, web, log = free_port(), free_port(), tmp_path / "worker.log"
    environment = clean_environment(SPARK_HOME=str(home), PYSPARK_PYTHON=sys.executable)
    url = f"spark://127.0.0.1:{port}"
    place, room = ["--host", "127.0.0.1", "--webui-port"], ["--cores", "2", "--memory", "1g", "--work-dir"]
    lines = [
        ["master.Master", *place, str(web), "--port", str(port)],
        ["worker.Worker", *place, str(free_port()), *room, str(tmp_path / "work"), url],
    ]
    started = []
    try:
        for name, *options in lines:
            command = [home / "bin/spark-class", f"org.apache.spark.deploy.{name}", *options]
            with open(log, "ab") as sink:
                started.append(subprocess.Popen(command, env=environment, stdout=sink, stderr=sink))
            wait_for(lambda: answers(port))
        wait_for(lambda: "Successfully registered with master" in log.read_text())
        yield url
    finally:
        for process in started:
            process.kill()
            process.wait()


@needs_spark
@pytest.mark.smoke
def test_a_standalone_cluster_gives_the_bytes_of_one_process(cluster, images, tmp_path):
    shutil.copytree(images, tmp_path / "images/cat")
    shutil.copytree(images, tmp_path / "images/dog")
    line = ["prepare", "folder:images", "--size", "16", "--max-bad", "0.1", "--out"]

    imp_here(*line, "cluster", "--engine", "spark", "--master", cluster, cwd=tmp_path)
    imp_here(*line, "one", "--workers", "1", cwd=tmp_path)

    contents = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("cluster", "one")]
    assert contents[0] == contents[1]
