"""A run that is moved or begun anew while a command writes it: the command ends, and what is there now is left alone. And one
that was moved before, which goes on where it is."""

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import LENET, SLOWLY, clean_environment, contents, imp_here, refused, settings, wait_for

from lottery.base import files, locks
from lottery.base.errors import Moved
from lottery.rundir import journal

RUN = "runs/digits"
MOMENTS = {"train": "train/metrics.jsonl", "retrain": "oneshot/q50-step-000000/ticket/metrics.jsonl"}


@pytest.fixture
def under_way(request):
    """The stage, its folder, and a command that is at work on it, slowly."""
    stage = request.param
    folder = request.getfixturevalue("prepared" if stage == "train" else "work")
    line = [sys.executable, "-c", SLOWLY, stage, *(LENET if stage == "train" else [])]
    process = subprocess.Popen(line, cwd=folder, env=clean_environment(), stderr=subprocess.PIPE, text=True)
    written = folder / RUN / "replicate-1" / MOMENTS[stage]
    wait_for(lambda: written.exists() and written.stat().st_size, process)
    yield stage, folder, process
    process.kill()


def everything(folder):
    """Every file in a folder with its bytes, and every folder."""
    return {path.relative_to(folder): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def ended(process):
    """That it has ended within seconds, with a line."""
    _, said = process.communicate(timeout=15)
    assert process.returncode == 2, said
    assert said.splitlines()[-1].startswith(f"imp: {RUN}"), said
    assert "moved, removed or begun anew" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert said.count("imp: ") == 1


@pytest.mark.parametrize("under_way", ["train"], indirect=True)
def test_a_run_that_is_moved_away_is_not_made_again(under_way, trained):
    stage, folder, process = under_way

    (folder / RUN).rename(folder / "runs/moved")

    ended(process)
    assert not (folder / RUN).exists()
    imp_here(stage, "--run", "runs/moved", cwd=folder)
    assert contents(folder / "runs/moved/replicate-1/train") == contents(trained / RUN / "replicate-1/train")


@pytest.mark.parametrize("under_way", ["retrain"], indirect=True)
def test_a_run_that_is_begun_in_its_place_is_left_alone(under_way, retrained):
    _, folder, process = under_way
    shutil.copytree(retrained / RUN, folder / "runs/other")
    for result in (folder / "runs/other").glob("replicate-1/oneshot/q50*/*/result.json"):
        result.unlink()
    before = everything(folder / "runs/other")

    (folder / RUN).rename(folder / "runs/moved")
    (folder / "runs/other").rename(folder / RUN)

    ended(process)
    assert everything(folder / RUN) == before


def in_another(folder, *writes):
    """Do `writes` where `folder`, of which the lock is held, is moved away and made anew; each must raise Moved."""
    with locks.writing(folder):
        folder.parent.rename(folder.parent.with_name("moved"))
        folder.mkdir(parents=True)
        (folder / ".lock").write_text("another")
        for write in writes:
            with pytest.raises(Moved, match=f"{folder} was moved, removed or begun anew"):
                write()
        files.check_held()


def test_nothing_is_written_once_a_folder_is_another_and_its_lock_stays(tmp_path):
    folder = tmp_path / "run" / "train"
    with pytest.raises(Moved):
        in_another(
            folder,
            lambda: files.write_text(folder / "final.h5", ""),
            lambda: journal.append(folder / "metrics.jsonl", {"step": 1}, ""),
            lambda: locks.note(folder, "step 1 of 2"),
            lambda: locks.writing(folder.with_name("masks")).__enter__(),
        )

    assert everything(tmp_path / "run") == {Path("train"): False, Path("train/.lock"): b"another"}


def test_a_folder_that_goes_between_the_check_and_the_write_is_told_as_moved(tmp_path):
    with pytest.raises(Moved), locks.writing(tmp_path / "run"):
        moved_while_writing(tmp_path / "run")


def moved_while_writing(folder):
    with files.replacing(folder / "result.json") as temporary:
        temporary.write_text("{}")
        folder.rename(folder.with_name("moved"))


def test_between_the_folders_that_a_command_writes_its_run_is_held(tmp_path):
    run = tmp_path / "run"

    with locks.staying(run):
        with locks.writing(run / "q50"):
            files.write_text(run / "q50/result.json", "{}")
        run.rename(tmp_path / "moved")
        run.mkdir()
        with pytest.raises(Moved, match=f"{run} was moved, removed or begun anew"), locks.writing(run / "q90"):
            pass
        assert list(run.iterdir()) == []


def test_what_stays_where_it_is_may_be_written_by_several_contexts(tmp_path):
    with locks.staying(tmp_path / "run"):
        with locks.staying(tmp_path / "run"), locks.writing(tmp_path / "run"):
            files.write_text(tmp_path / "run/one", "1")
        (tmp_path / "run").rename(tmp_path / "moved")
        with pytest.raises(Moved):
            files.check_held()


def test_a_folder_that_was_to_stay_and_holds_nothing_goes_again(tmp_path):
    with locks.staying(tmp_path / "runs" / "run"):
        assert (tmp_path / "runs" / "run").is_dir()

    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_in_the_place_of_one_that_was_made_and_moved_stays(tmp_path):
    for holding in (locks.staying, locks.writing):
        run, moved = tmp_path / "run", tmp_path / holding.__name__
        with holding(run):
            run.rename(moved)
            run.mkdir()

        assert run.is_dir()
        run.rmdir()


def test_a_thread_that_looks_at_what_is_held_does_not_see_another_let_go_of_it(tmp_path, monkeypatch):
    errors, done, is_still_at = [], threading.Event(), files.is_still_at

    def slowly(*held):
        if threading.current_thread() is looking:
            time.sleep(0.001)
        return is_still_at(*held)

    monkeypatch.setattr(files, "is_still_at", slowly)

    def look():
        try:
            while not done.is_set():
                files.check_held()
        except Exception as error:
            errors.append(error)

    looking = threading.Thread(target=look)
    looking.start()
    for number in range(50):
        with locks.writing(tmp_path / str(number)):
            pass
    done.set()
    looking.join()

    assert errors == []


SHAPES = [
    *LENET,
    *settings("data.source=arrays:shapes.npz", "train.batch=16", "train.snapshots=0,1ep"),
    "--recipe",
    "defaults.toml",
    "--run",
    "run",
]


@pytest.fixture(scope="module")
def on_a_file(tmp_path_factory):
    """A folder with a file of images, records of it, a run that is prepared, and one that is trained on them."""
    folder = tmp_path_factory.mktemp("project")
    images = np.random.default_rng(0).integers(0, 256, (90, 8, 8)).astype(np.uint8)
    np.savez(folder / "shapes.npz", images=images, labels=np.arange(90) % 3)
    (folder / "defaults.toml").write_text("")
    imp_here("prepare", *SHAPES, cwd=folder)
    shutil.copytree(folder / "run", folder / "prepared")
    imp_here("train", *SHAPES, cwd=folder)
    return folder


@pytest.fixture
def moved(on_a_file, tmp_path):
    """The run and the records, without what these were made from, in another place."""
    shutil.copytree(on_a_file, tmp_path / "moved", ignore=shutil.ignore_patterns("shapes.npz"))
    return tmp_path / "moved"


@pytest.mark.parametrize("run", ["run", "prepared"])
def test_a_run_on_a_file_goes_on_where_it_and_its_records_were_moved(on_a_file, moved, run):
    imp_here("prepare", "--run", run, cwd=moved)
    imp_here("train", "--run", run, *settings("replicates=2"), cwd=moved)
    imp_here("thresholds", "--run", run, cwd=moved)

    assert contents(moved / run / "replicate-1/train") == contents(on_a_file / "run/replicate-1/train")
    assert (moved / run / "replicate-2/train/result.json").exists()


def test_a_run_on_a_file_goes_on_with_its_records_by_name(on_a_file, moved, tmp_path):
    shutil.move(moved / "data/arrays-shapes-8", tmp_path / "records")
    for _ in range(2):
        imp_here("thresholds", "--run", "run", "--set", f"data.path={tmp_path / 'records'}", cwd=moved)
        imp_here("train", "--run", "run", "--records", str(tmp_path / "records"), cwd=moved)

    shutil.copy(on_a_file / "shapes.npz", moved)
    imp_here("train", "--run", "run", *settings("data.source=arrays:shapes.npz"), cwd=moved)


@pytest.mark.parametrize(
    ("command", "words"), [("prepare", "other.npz: name an .npz file"), ("train", "no records in data/arrays-other-8")]
)
def test_other_images_by_name_are_not_taken_for_those_of_a_run(moved, command, words):
    other = ["--run", "run", *settings("data.source=arrays:other.npz")]
    refused(imp_here(command, *other, cwd=moved, check=False), words)


def test_records_made_of_other_images_are_not_taken_for_those_of_a_run(moved):
    np.savez(moved / "shapes.npz", images=np.zeros((90, 8, 8), np.uint8), labels=np.arange(90) % 3)
    shutil.rmtree(moved / "data")
    imp_here("prepare", "--run", "elsewhere", *SHAPES[:-2], cwd=moved)

    refused(imp_here("train", "--run", "run", cwd=moved, check=False), "was made from other examples")


def test_records_of_another_file_of_that_name_are_not_those_of_a_new_run(moved):
    refused(imp_here("train", *SHAPES[:-1], "new", cwd=moved, check=False), "data.source", "wanted")
