"""Streams that are closed, as a scheduler may start a command, and a terminal that goes away."""

import os
import pty
import select
import subprocess
import sys

import pytest
from helpers import IMP, LENET, SLOWLY, clean_environment, contents, imp_here

STREAMS = {"stdin": 0, "stdout": 1, "stderr": 2}


def closing(*streams):
    return lambda: [os.close(STREAMS[name]) for name in streams]


@pytest.mark.parametrize("closed", [["stdout"], [*STREAMS]])
def test_a_closed_stream_is_as_the_null_device(closed, tmp_path):
    line = [IMP, "prepare", "digits", "--size", "8"]

    done = subprocess.run(
        line, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, preexec_fn=closing(*closed)
    )

    assert done.returncode == 0, done.stderr
    assert ("imp run" in done.stdout) == ("stdout" not in closed)
    assert ("1151 train" in done.stderr) == ("stderr" not in closed)
    assert (tmp_path / "data/digits-8/manifest.json").exists()


def test_a_report_is_drawn_though_standard_input_is_closed(retrained, tmp_path):
    line = [IMP, "report", "--run", str(retrained / "runs/digits")]

    done = subprocess.run(
        line, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, preexec_fn=closing("stdin")
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_training_whose_terminal_goes_away_is_saved_and_goes_on_later(trained, prepared):
    dense = prepared / "runs/digits/replicate-1/train"
    process, terminal = pty.fork()
    if not process:
        os.chdir(prepared)
        line = [sys.executable, "-c", SLOWLY, "train", *LENET, "--set", "train.checkpoint_share=0"]
        os.execve(sys.executable, line, clean_environment())
    while not (dense / "snapshots/step-000010.h5").exists():
        if select.select([terminal], [], [], 0.05)[0]:
            os.read(terminal, 1000)

    os.close(terminal)

    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 75
    assert (dense / "checkpoint.h5").exists()
    assert (dense / "topology.json").exists()  # so that none is without, whenever it was stopped
    assert not (dense / "result.json").exists()
    imp_here("train", cwd=prepared)
    assert contents(dense) == contents(trained / "runs/digits/replicate-1/train")
