"""Trainings as a user's cluster treats them: told to stop, looked into, diverging. Each command is a process of its own."""

import gzip
import json
import signal
import subprocess
import time

import numpy as np
from helpers import IMP, LENET, clean_environment, contents, imp, imp_here, wait_for

from lottery.base.progress import Reporter
from lottery.engine import checkpoints
from lottery.rundir.run import open_run
from lottery.stages.train import train

DENSE = "runs/digits/replicate-1/train"
NEVER_SAVED = ["--set", "train.checkpoint_share=0"]  # unless the signal says so


def stop(line, folder, ready, number):
    """Start `line`, send it the signal `number` once `ready()` holds, and again as the impatient do; its exit code, and the
    lines it said."""
    process = subprocess.Popen(line, cwd=folder, env=clean_environment(), stderr=subprocess.PIPE, text=True)
    wait_for(ready, process)
    for _ in range(3):
        process.send_signal(number)
        time.sleep(0.02)
    said = process.communicate(timeout=60)[1]
    return process.returncode, said.splitlines()


def step_of(checkpoint):
    return checkpoints.load(checkpoint).state.step


def test_ranks_that_are_told_to_stop_save_what_they_have_and_end_later_with_the_same_bytes(retrained, work):
    folder = work / "runs/digits/replicate-1/oneshot"
    retrain = [IMP, "retrain", "--ranks", "2", *NEVER_SAVED]

    code, said = stop(retrain, work, lambda: any(folder.glob("*/*/metrics.jsonl")), signal.SIGTERM)

    assert (code, said[-1]) == (75, "stopped by SIGTERM; the same command goes on from here")
    assert "Traceback" not in "".join(said)
    under_way = [path.parent for path in folder.glob("*/*/metrics.jsonl") if not (path.parent / "result.json").exists()]
    assert under_way
    for pair in under_way:
        assert 0 < step_of(pair / "checkpoint.h5") < 51
    imp_here("retrain", cwd=work)
    assert contents(work / "runs") == contents(retrained / "runs")


def test_a_traced_training_has_the_same_bytes_and_leaves_a_trace(trained, prepared):
    done = imp_here("train", *LENET, "--profile", "trace", cwd=prepared)

    assert contents(prepared / DENSE) == contents(trained / DENSE)
    (trace,) = (prepared / "trace").glob("plugins/profile/*/trace.json.gz")
    with gzip.open(trace, "rt") as file:
        assert any("MatMul" in event["name"] for event in json.load(file)["traceEvents"])
    assert done.stderr.count("tensorboard --logdir trace") == 1


def test_without_anything_to_train_there_is_no_trace(work, capsys):
    train(open_run(work / "runs/digits"), Reporter(), work / "trace")

    assert capsys.readouterr().err.splitlines()[0] == "no trace: there is nothing left to train"
    assert not (work / "trace").exists()


def test_a_dense_training_that_diverges_is_one_line_and_keeps_its_checkpoint(prepared):
    done = imp_here("train", *LENET, "--set", "train.learning_rate=1e6", cwd=prepared, check=False)

    assert done.returncode == 1
    assert (done.stdout, done.stderr.count("\n")) == ("", 2), done.stderr  # one says what trains, and where
    line = done.stderr.splitlines()[1]
    assert line.startswith(f"imp: {DENSE} diverged: the loss was not finite at step ")
    for way in ("train.learning_rate", "train.warmup", "train.clip_norm", "remove that folder"):
        assert way in line
    result = json.loads((prepared / DENSE / "result.json").read_text())
    saved = checkpoints.load(prepared / DENSE / "checkpoint.h5").state
    assert 0 < saved.step <= result["step"] == int(line.split("at step ")[1].split(":")[0])
    assert all(np.isfinite(array).all() for array in saved.arrays())


def test_dense_networks_that_ranks_train_have_the_same_bytes_and_are_told_once(trained, prepared):
    done = imp("train", *LENET, "--set", "replicates=2", "--ranks", "2", cwd=prepared)

    assert contents(prepared / DENSE) == contents(trained / DENSE)
    assert (prepared / "runs/digits/replicate-2/train/result.json").exists()
    assert [done.stderr.count(f"replicate-{number} dense: validation") for number in (1, 2)] == [1, 1]
