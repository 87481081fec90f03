"""Ranks and worker processes that are killed in the middle of their work: nothing is lost, nothing is done twice. Ranks over
MPI are at tasks that take a second, worker processes at trainings."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import AS_ROOT, IMP, clean_environment, contents, wait_for

from lottery.base import locks
from lottery.executors import launcher

MPIRUN = Path(sys.executable).with_name("mpirun")
tolerant = pytest.mark.skipif(not launcher.tolerates_faults(str(MPIRUN)), reason="this Open MPI is built without ULFM")
TASKS = [f"run/{name}" for name in "abcde"]

# The command line of a rank on a host of two cores, whose tasks are folders of `run` in which it counts.
COUNTING = """
import os, time
from pathlib import Path
from lottery.base import files
from lottery import cli
from lottery.base import preemption
from lottery.base.progress import Reporter
from lottery.executors import allocation, coordinator, mpi
from lottery.executors.choice import executor
from lottery.executors.workload import IN_PROCESS, Workload
from lottery.base import locks
from contextlib import nullcontext

coordinator.HEARTBEAT_SECONDS = 0.1
allocation.resources_here = mpi.resources_here = lambda: allocation.Resources("host", frozenset({0, 1}), ())

def list_tasks():
    return [f"run/{name}" for name in "abcde" if not Path(f"run/{name}/result").exists()]

def make_worker(allocation, reporter):
    def work(task):
        try:
            with locks.writing(Path(task)):
                return count(Path(task))
        except locks.Busy:
            return {"status": "busy"}

    def count(folder):
        if (folder / "result").exists():
            return {"status": "done"}
        began = int((folder / "count").read_text()) if (folder / "count").exists() else 0
        for number in range(began, 30):
            files.write_text(folder / "count", str(number + 1))
            time.sleep(0.03)
            reporter.saved()
            preemption.check()
        files.write_text(folder / "result", f"from {began}")
        return {"status": "done"}

    return nullcontext(work)

def main(standalone_mode):
    Path("rank " + os.environ["OMPI_COMM_WORLD_RANK"]).write_text(str(os.getpid()))
    with locks.staying(Path("run")):
        executor(IN_PROCESS).run(Workload(list_tasks, make_worker, lambda task, result: [], Reporter()))

cli.app = main
cli.main()
"""


def start(work, ranks, *options, arguments=()):
    line = [MPIRUN, "-n", str(ranks), "--oversubscribe", "--bind-to", "none", *options]
    line += [sys.executable, "-c", COUNTING, *map(str, arguments)]
    environment = clean_environment(**AS_ROOT)
    return subprocess.Popen(line, cwd=work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def under_way(work, pattern="run/*", begun="count", ended="result"):
    """The processes at work on a task, by its folder."""
    found = {}
    for folder in work.glob(pattern):
        lock = folder / ".lock"
        signed = re.match(r"process (\d+)", lock.read_text()) if lock.exists() else None
        if signed and (folder / begun).exists() and not (folder / ended).exists():
            found[folder] = int(signed[1])
    return found


def results(work):
    return {path: (path.read_text(), path.stat().st_mtime_ns) for path in work.glob("run/*/result")}


def finish(work):
    """The same command again: what is done stays as it is, and the rest is done. Ranks of the first one that mpirun has told to
    end may take a moment for it, in which their tasks are still locked, or get their results."""
    wait_for(lambda: not any(locks.holder(folder) for folder in work.glob("run/*")), seconds=30)
    before = results(work)
    process = start(work, 3)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    after = results(work)
    assert {path: after[path] for path in before} == before
    assert sorted(str(path.parent.relative_to(work)) for path in after) == TASKS


PAIRS, FILES = "runs/digits/replicate-1/oneshot/*/*", ("metrics.jsonl", "result.json")


@tolerant
def test_when_a_rank_is_killed_another_goes_on_with_its_task_where_it_was(tmp_path):
    process = start(tmp_path, 3, "--with-ft", "ulfm")
    (task, victim), *_ = wait_for(lambda: under_way(tmp_path), process).items()

    os.kill(victim, signal.SIGKILL)
    _, said = process.communicate(timeout=60)

    assert process.returncode == 0, said
    assert re.search(rf"rank [12] is lost, at work on run/{task.name}: another one goes on", said)
    assert len(results(tmp_path)) == len(TASKS)
    assert (task / "result").read_text() != "from 0"


@tolerant
def test_when_rank_0_is_killed_the_others_save_what_they_have_and_the_next_command_goes_on(tmp_path):
    process = start(tmp_path, 3, "--with-ft", "ulfm")
    tasks = wait_for(lambda: len(found := under_way(tmp_path)) == 2 and found, process)

    os.kill(int((tmp_path / "rank 0").read_text()), signal.SIGKILL)
    _, said = process.communicate(timeout=60)

    assert process.returncode == 75, said
    assert said.count("rank 0 is lost; the same command goes on from here") == 2
    finish(tmp_path)
    assert not any((task / "result").read_text() == "from 1" for task in tasks)


def test_without_fault_tolerance_the_job_ends_and_the_next_command_goes_on(tmp_path):
    process = start(tmp_path, 3)
    _, victim = next(iter(wait_for(lambda: under_way(tmp_path), process).items()))

    os.kill(victim, signal.SIGKILL)
    process.communicate(timeout=60)

    assert process.returncode != 0
    assert len(results(tmp_path)) < len(TASKS)
    finish(tmp_path)


@tolerant
def test_a_run_that_is_moved_away_ends_all_ranks_and_what_is_in_its_place_is_left_alone(tmp_path):
    process = start(tmp_path, 3, "--with-ft", "ulfm")
    wait_for(lambda: len(under_way(tmp_path)) == 2, process)

    (tmp_path / "run").rename(tmp_path / "moved")
    (tmp_path / "run/a").mkdir(parents=True)
    (tmp_path / "run/a/count").write_text("another's")
    _, said = process.communicate(timeout=30)

    assert process.returncode == 2, said
    assert re.findall("imp: .* was moved, removed or begun anew", said) == ["imp: run was moved, removed or begun anew"]
    assert "Traceback" not in said
    assert [str(path.relative_to(tmp_path)) for path in (tmp_path / "run").rglob("*")] == ["run/a", "run/a/count"]
    assert (tmp_path / "run/a/count").read_text() == "another's"


def test_a_worker_that_is_killed_is_started_again_and_the_bytes_are_the_same(retrained, work):
    line = [IMP, "retrain", "--ranks", "2", "--set", "train.checkpoint_share=0"]
    process = subprocess.Popen(line, cwd=work, env=clean_environment(), stderr=subprocess.PIPE, text=True)
    _, victim = wait_for(lambda: under_way(work, PAIRS, *FILES), process).popitem()

    os.kill(victim, signal.SIGKILL)
    _, said = process.communicate(timeout=180)

    assert process.returncode == 0, said
    assert re.search(r"rank [12] is lost, at work on replicate-1 oneshot .*: another one goes on", said)
    assert contents(work / "runs") == contents(retrained / "runs")
    assert not list(work.rglob("attempt.json"))
