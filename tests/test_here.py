"""Worker processes of this host."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import executor_contract
import pytest
from helpers import Heard, wait_for

from lottery.base import locks, preemption
from lottery.base.errors import Moved
from lottery.base.preemption import Preempted
from lottery.base.progress import Reporter
from lottery.executors import allocation, here
from lottery.executors.here import Processes
from lottery.executors.workload import Workload


@pytest.fixture(autouse=True)
def plain_environment(no_launcher, monkeypatch):
    monkeypatch.setattr(allocation, "visible", tuple)


@pytest.mark.parametrize("check", executor_contract.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("count", [1, 2])
def test_processes_keep_the_contract(check, count):
    check(Processes(count))


@contextmanager
def dying(folder, times, allocation, reporter):
    yield partial(_die, folder, times)


def _die(folder, times, task):
    attempt = folder / f"{task}-{len(list(folder.glob(f'{task}-*')))}"
    attempt.write_text(str(os.getpid()))
    if task == "b" and len(list(folder.glob("b-*"))) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"status": "done"}


def test_a_process_that_is_killed_is_started_again_and_its_task_done(tmp_path):
    told, said = [], []
    workload = Workload(
        lambda: ["a", "b", "c"], partial(dying, tmp_path, 2), lambda task, result: told.append(task) or [], Heard(said)
    )

    assert Processes(2).run(workload)

    assert sorted(told) == ["a", "b", "c"]
    assert [line.partition(" ")[2].partition(" ")[2] for line in said if "lost" in line] == [
        "is lost, at work on b: another one goes on with it"
    ] * 2
    assert len({path.read_text() for path in tmp_path.glob("b-*")}) == 3


@contextmanager
def saving(folder, allocation, reporter):
    yield partial(_save, folder)


def _save(folder, task):
    with preemption.deferred():
        (folder / f"begun-{task}").write_text(str(os.getpid()))
        while not preemption.asked():
            time.sleep(0.01)
        (folder / f"saved-{task}").touch()
    preemption.check()


def written(folder, pattern, count):
    return wait_for(lambda: len([path for path in folder.glob(pattern) if path.read_text()]) >= count)


def test_a_signal_to_end_reaches_the_workers_and_they_are_waited_for(tmp_path):
    def end():
        written(tmp_path, "begun-*", 2)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end).start()
    workload = Workload(lambda: ["a", "b", "c"], partial(saving, tmp_path), lambda *_: [], Reporter(quiet=True))
    with pytest.raises(Preempted, match="stopped by SIGTERM"), preemption.heeded():
        Processes(2).run(workload)

    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-a", "saved-b"]


def test_what_interrupts_the_wait_ends_the_workers(tmp_path, monkeypatch):
    def interrupt(coordinator):
        written(tmp_path, "begun-*", 1)
        raise KeyboardInterrupt

    monkeypatch.setattr("lottery.executors.coordinator.Coordinator._tell_to_end", interrupt)
    monkeypatch.setattr("lottery.executors.coordinator.Coordinator._hear", hear_at_once(here.Coordinator._hear))
    workload = Workload(lambda: ["a"], partial(saving, tmp_path), lambda *_: [], Reporter(quiet=True))
    with pytest.raises(KeyboardInterrupt):
        Processes(2).run(workload)

    assert (tmp_path / "saved-a").exists()


def hear_at_once(hear):
    """As `hear`, once the rank has said something or has a task."""

    def heard(coordinator, rank):
        while rank not in coordinator.running and rank not in coordinator.idle and not coordinator.channels[rank].poll():
            time.sleep(0.01)
        hear(coordinator, rank)
        coordinator._hand_out()

    return heard


ALONE = """
import sys; sys.path.insert(0, {tests!r})
from functools import partial; from pathlib import Path
from lottery.base.progress import Reporter
from lottery.executors.here import Processes
from lottery.executors.workload import Workload
import test_here
Processes(2).run(Workload(lambda: ["a", "b"], partial(test_here.beating, Path({folder!r})), lambda *_: [], Reporter()))
"""


@contextmanager
def beating(folder, allocation, reporter):
    yield partial(_beat, folder, reporter)


def _beat(folder, reporter, task):
    with preemption.deferred():
        (folder / f"begun-{task}").write_text(str(os.getpid()))
        with reporter.silent().counting("steps", 1) as count:
            while not preemption.asked():
                time.sleep(0.05)
                count(1)
        (folder / f"saved-{task}").touch()
    preemption.check()


def test_workers_save_and_end_when_who_started_them_is_killed(tmp_path):
    code = ALONE.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    written(tmp_path, "begun-*", 2)

    process.kill()
    process.communicate()  # which waits for whoever can still write there

    assert len(list(tmp_path.glob("saved-*"))) == 2


def test_a_worker_is_not_told_what_a_terminal_tells_who_started_it_and_signs_locks_with_that_command():
    told = []
    Processes(2).run(Workload(lambda: ["a"], grouped, lambda *pair: told.append(pair) or [], Reporter()))

    assert told == [("a", {"status": "done", "leads": True, "input": "", "argv": sys.argv})]


@contextmanager
def grouped(allocation, reporter):
    yield _group


def _group(task):
    return {"status": "done", "leads": os.getpgid(0) == os.getpid(), "input": sys.stdin.read(), "argv": sys.argv}


def test_what_cannot_be_sent_to_the_workers_is_raised_and_none_is_left():
    started = []

    class Watched(here.subprocess.Popen):
        def __init__(self, *line, **how):
            super().__init__(*line, **how)
            started.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(here.subprocess, "Popen", Watched)
        with pytest.raises(AttributeError, match="pickle"):
            Processes(2).run(Workload(lambda: ["a", "b"], lambda *_: None, lambda *_: [], Reporter(quiet=True)))

    assert all(process.returncode is not None for process in started)


@contextmanager
def staying(folder, allocation, reporter):
    with locks.staying(folder / "run"):
        yield partial(_move, folder)


def _move(folder, task):
    if task == "a":
        (folder / "run").rename(folder / "moved")
        return {"status": "done"}
    with preemption.deferred():
        while not preemption.asked():
            time.sleep(0.01)
    return locks.note(folder / "run", "writing")


def test_a_run_that_is_moved_ends_all_and_nothing_is_made_where_it_was(tmp_path):
    workload = Workload(lambda: list("abcdef"), partial(staying, tmp_path), lambda *_: [], Reporter(quiet=True))
    with pytest.raises(Moved, match=r"run was moved, removed or begun anew"), locks.staying(tmp_path / "run"):
        Processes(2).run(workload)

    assert not (tmp_path / "run").exists()
