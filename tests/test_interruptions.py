"""Commands that are killed, fail, or meet others on the same run: what is there stays good, and goes on."""

import fcntl
import json
import re
import resource
import shutil
import subprocess
import sys

import pytest
from helpers import IMP, LENET, clean_environment, contents, imp_here, kill_when, refused, settings

from lottery.base import files
from lottery.results import frame
from lottery.rundir.run import open_run


def test_a_bundle_that_is_killed_ends_with_the_same_bytes(work, tmp_path):
    whole = shutil.copytree(work, tmp_path / "whole", symlinks=True)
    imp_here("retrain", "--bundle", "3", cwd=whole)
    ticket = "runs/digits/replicate-1/oneshot/q90-step-000000/ticket"

    kill_when(["retrain", "--bundle", "3"], work, lambda: list(work.rglob("checkpoint.h5")))
    imp_here("retrain", "--bundle", "3", cwd=work)

    assert contents(work / "runs") == contents(whole / "runs")
    assert json.loads((whole / ticket / "result.json").read_text())["bundle"] == 3


def test_what_a_killed_process_left_of_a_file_goes_when_that_is_written_again(tmp_path):
    path = tmp_path / "pair-1-2.json"
    killed, under_way, *others = (
        tmp_path / f".pair-{name}.tmp" for name in ("1-2.json.1", "1-2.json.2", "1-2.json", "1-3.json.1")
    )
    for temporary in (killed, under_way, *others):
        temporary.touch()

    with open(under_way) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as the process does that writes it
        files.write_text(path, "whole")

    assert {*tmp_path.iterdir()} == {path, under_way, *others}


def test_a_full_disk_is_one_line_and_the_run_goes_on_later(trained, prepared):
    def no_large_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = subprocess.run(
        [IMP, "train", *LENET], cwd=prepared, env=clean_environment(), capture_output=True, text=True, preexec_fn=no_large_files
    )
    refused(done, "step-000000.h5: File too large", said=1)
    assert not list(prepared.rglob("*.h5"))
    imp_here("train", cwd=prepared)

    assert contents(prepared / "runs/digits/replicate-1/train") == contents(trained / "runs/digits/replicate-1/train")


def test_a_ticket_that_fails_is_a_record_and_is_tried_again(trained, work):
    lost = "runs/digits/replicate-1/train/snapshots/step-000017.h5"
    (work / lost).write_bytes((work / lost).read_bytes()[:1000])

    done = imp_here("retrain", "--quantiles", "90", cwd=work, check=False)
    assert done.returncode == 1
    assert done.stderr.count("step-000017.h5 is damaged") >= 2
    shutil.copy(trained / lost, work / lost)

    assert "5 networks under masks: 3 finished, 2 to train" in imp_here("retrain", "--quantiles", "90", cwd=work).stderr
    assert "failed" not in {*frame.rows(open_run(work / "runs/digits"))["status"]}


def test_two_commands_on_one_run_share_its_tickets(work, retrained):
    with subprocess.Popen([IMP, "retrain"], cwd=work, env=clean_environment(), stderr=subprocess.DEVNULL) as other:
        codes = {other.wait() if turn else imp_here("retrain", cwd=work, check=False).returncode for turn in (0, 1)}

    assert codes <= {0, 2}
    imp_here("retrain", cwd=work)
    assert contents(work / "runs") == contents(retrained / "runs")


@pytest.fixture
def hold(work):
    """A function that holds the lock of a folder of `work` in another process, whose id it returns."""
    code = "import sys, time; from pathlib import Path; from lottery.base import locks\n"
    code += "with locks.writing(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    started = []

    def start(folder: str) -> int:
        started.append(subprocess.Popen([sys.executable, "-c", code, folder], cwd=work, stdout=subprocess.PIPE))
        started[-1].stdout.readline()
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_second_writer_is_told_who_the_first_is(work, hold):
    holder = hold("runs/digits/replicate-2/train")

    done = imp_here("train", "--set", "replicates=2", cwd=work, check=False)

    refused(done, "runs/digits/replicate-2/train is being written by process", str(holder), said=1)
    assert "replicates = 1" in (work / "runs/digits/recipe.toml").read_text()


def test_a_ticket_under_way_elsewhere_is_left_to_its_process(work, hold):
    holder = hold("runs/digits/replicate-1/oneshot/q90-step-000017/ticket")
    assert re.search(r"oneshot *│ +0 │ +1 │ +0 │ +6 │", imp_here("status", cwd=work).stdout)

    done = imp_here("retrain", "--quantiles", "90", *settings("families.oneshot.controls=[]"), cwd=work, check=False)

    assert done.returncode == 2
    line = f"not finished: replicate-1 oneshot q90-step-000017 ticket busy: .* is being written by process {holder}"
    assert re.search(line, done.stderr)
    assert (work / "runs/digits/replicate-1/oneshot/q90-step-000000/ticket/result.json").exists()
