"""Ranks that are killed in the middle of their work: nothing is lost, nothing is done twice, and the bytes are the same."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import SLOWLY, clean_environment, contents, imp

from lottery.fanout import launcher

PAIRS = 5
MPIRUN = Path(sys.executable).with_name("mpirun")
tolerant = pytest.mark.skipif(not launcher.tolerates_faults(str(MPIRUN)), reason="this Open MPI is built without ULFM")


def start(work, ranks, *options, arguments=(), script=SLOWLY):
    """mpirun, with its ranks at the pairs of `work`, slowly."""
    line = [MPIRUN, "-n", str(ranks), "--oversubscribe", "--bind-to", "none", *options]
    line += [sys.executable, "-c", script, "retrain", *arguments]
    environment = clean_environment() | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.Popen(line, cwd=work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def under_way(work):
    """The processes at work on a pair that has come to its first evaluation, by the folder of the pair."""
    found = {}
    for lock in work.glob("runs/digits/replicate-1/retrain/*/*/.lock"):
        signed = re.match(r"process (\d+)", lock.read_text())
        if signed and (lock.parent / "metrics.jsonl").exists() and not (lock.parent / "result.json").exists():
            found[lock.parent] = int(signed[1])
    return found


def wait_for(ready, process, seconds=60):
    until = time.monotonic() + seconds
    while not (found := ready()):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.005)
    return found


def results(work):
    return sorted(work.glob("runs/digits/replicate-1/retrain/*/*/result.json"))


@tolerant
def test_when_a_rank_is_killed_another_goes_on_with_its_pair(retrained, work):
    process = start(work, 3, "--with-ft", "ulfm")
    (pair, victim), *_ = wait_for(lambda: under_way(work), process).items()

    os.kill(victim, signal.SIGKILL)
    _, said = process.communicate(timeout=120)

    assert process.returncode == 0, said
    assert re.search(rf"rank [12] is lost, at work on replicate-1 {pair.parent.name} ticket: another one goes on", said)
    assert contents(work / "runs") == contents(retrained / "runs")
    assert not list(work.rglob("attempt.json"))


@tolerant
def test_when_rank_0_is_killed_the_others_save_what_they_have_and_the_next_command_goes_on(retrained, work):
    process = start(work, 3, "--with-ft", "ulfm")
    wait_for(lambda: len(under_way(work)) == 2, process)
    coordinator = next(number for number in ranks_of(process) if number not in under_way(work).values())
    pairs = under_way(work)

    os.kill(coordinator, signal.SIGKILL)
    _, said = process.communicate(timeout=60)

    assert process.returncode == 75, said
    assert said.count("rank 0 is lost; the same command goes on from here") == 2
    assert all((pair / "checkpoint.h5").exists() or (pair / "result.json").exists() for pair in pairs)
    imp("retrain", cwd=work)
    assert contents(work / "runs") == contents(retrained / "runs")


@tolerant
@pytest.mark.parametrize("number", [0, 2])
def test_when_a_rank_is_killed_before_all_have_begun_the_others_do_not_wait_for_ever(retrained, work, number):
    process = start(work, 3, "--with-ft", "ulfm")
    victim = sorted(wait_for(lambda: len(ranks_of(process)) == 3 and ranks_of(process), process))[number]

    os.kill(victim, signal.SIGKILL)
    _, said = process.communicate(timeout=60)

    assert process.returncode == 75, said
    assert said.count("another rank was lost before all had begun; the same command goes on from here") == 2
    imp("retrain", "--ranks", "2", cwd=work)
    assert contents(work / "runs") == contents(retrained / "runs")


def ranks_of(process):
    """The processes that this mpirun started."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    return [int(number) for number in listed.stdout.split()]


def test_without_fault_tolerance_the_job_ends_and_the_next_command_goes_on(retrained, work):
    process = start(work, 3)
    _, victim = next(iter(wait_for(lambda: under_way(work), process).items()))

    os.kill(victim, signal.SIGKILL)
    process.communicate(timeout=60)

    assert process.returncode != 0
    done = {path: path.read_bytes() for path in results(work)}
    assert len(done) < PAIRS
    imp("retrain", "--ranks", "2", cwd=work)
    assert {path: path.read_bytes() for path in done} == done
    assert contents(work / "runs") == contents(retrained / "runs")


def deaths(pair):
    """How many attempts at a pair had died when the one that is under way was begun."""
    return json.loads((pair / "attempt.json").read_text())["deaths"]


@tolerant
def test_a_pair_that_kills_its_rank_twice_is_set_aside_and_tried_again_by_the_next_command(retrained, work):
    process = start(
        work, 4, "--with-ft", "ulfm", arguments=["--set", "train.checkpoint_share=0"]
    )  # so that it comes no further
    (pair, first), *_ = wait_for(lambda: under_way(work), process).items()
    os.kill(first, signal.SIGKILL)
    second = wait_for(lambda: deaths(pair) == 1 and under_way(work).get(pair), process)
    os.kill(second, signal.SIGKILL)
    _, said = process.communicate(timeout=120)

    assert process.returncode == 1, said
    assert "set aside: twice in a row" in said
    imp("retrain", cwd=work)
    assert contents(work / "runs") == contents(retrained / "runs")


# The command line of a rank for which the disk is full once it trains.
DISK_FULL = """
import resource
from lottery import cli, start
start.start_tensorflow()
from lottery.engine import loop
fill = lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
loop.Trainer._adapt = fill
cli.main()
"""


@pytest.mark.parametrize("options", [[], pytest.param(["--with-ft", "ulfm"], marks=tolerant)])
def test_a_full_disk_ends_all_ranks_and_the_next_command_goes_on(retrained, work, options):
    process = start(work, 3, *options, script=DISK_FULL)
    _, said = process.communicate(timeout=60)

    assert process.returncode == 2, said
    assert re.search(r"imp: rank [12]: runs/digits/.*: File too large; mend that and run the command again", said)
    assert "Traceback" not in said
    done = {path: path.read_bytes() for path in results(work)}
    assert len(done) < PAIRS
    imp("retrain", "--ranks", "2", cwd=work)
    assert {path: path.read_bytes() for path in done} == done
    assert contents(work / "runs") == contents(retrained / "runs")


@pytest.mark.parametrize("options", [[], pytest.param(["--with-ft", "ulfm"], marks=tolerant)])
def test_a_run_that_is_moved_away_ends_all_ranks_and_what_is_in_its_place_is_left_alone(retrained, work, options):
    run, other = work / "runs/digits", work / "runs/other"
    shutil.copytree(run, other)
    process = start(work, 3, *options)
    wait_for(lambda: len(under_way(work)) == 2, process)

    run.rename(work / "runs/moved")
    other.rename(run)
    _, said = process.communicate(timeout=30)

    assert process.returncode == 2, said
    assert re.findall("imp: .* was moved, removed or begun anew", said) == ["imp: runs/digits was moved, removed or begun anew"]
    assert "Traceback" not in said
    assert not (run / "replicate-1/retrain").exists()
    imp("retrain", "--run", "runs/moved", cwd=work)
    assert contents(work / "runs/moved") == contents(retrained / "runs/digits")


def test_two_commands_on_one_run_share_its_pairs(retrained, work):
    first, second = (start(work, 2) for _ in range(2))
    codes = [(process.communicate(timeout=120), process.returncode)[1] for process in (first, second)]

    assert set(codes) <= {0, 2}  # 2: some are being trained by the other one
    assert 0 in codes
    assert contents(work / "runs") == contents(retrained / "runs")
