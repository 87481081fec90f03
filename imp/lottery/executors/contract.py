"""What every executor must do, as checks for the tests of whoever writes one:

    @pytest.mark.parametrize("check", contract.CHECKS)
    def test_my_executor(check):
        check(MyExecutor())

Each raises AssertionError where the executor does something else.
"""

import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

from lottery.base.capacity import Allocation
from lottery.base.errors import InputError
from lottery.base.preemption import Preempted
from lottery.base.progress import Reporter
from lottery.executors.workload import Executor, MakeWorker, Result, Task, Worker, Workload

TASKS = [f"task {number}" for number in range(5)]
LATER = {"task 1": ["after 1", "also after 1"], "after 1": ["at last"]}


def every_task_is_done_once_and_told(executor: Executor) -> None:
    """Those that become possible too, each after what it needs."""
    with tempfile.TemporaryDirectory() as folder:
        told = _run(executor, partial(_marking, Path(folder)), TASKS, LATER)
        marks = sorted(path.name.partition("-")[0] for path in Path(folder).iterdir())
    wanted = [*TASKS, "after 1", "also after 1", "at last"]
    assert sorted(task for task, _ in told) == sorted(wanted), told
    assert all(result == {"status": "done", "of": [task]} for task, result in told), told
    assert marks == sorted(wanted), marks
    order = [task for task, _ in told]
    assert order.index("task 1") < order.index("after 1") < order.index("at last"), order


def a_task_that_fails_stops_no_other(executor: Executor) -> None:
    told = dict(_run(executor, _failing, TASKS))
    assert [told[task]["status"] for task in TASKS] == ["failed", *["done"] * (len(TASKS) - 1)], told


def with_nothing_to_do_nothing_is_started(executor: Executor) -> None:
    assert _run(executor, partial(_refusing, AssertionError("a worker was made")), []) == []


def what_listing_the_tasks_raises_is_raised(executor: Executor) -> None:
    _raises(executor, InputError("no masks"), listing=True)


def what_a_worker_raises_is_raised(executor: Executor) -> None:
    for error in (InputError("no masks"), OSError(28, "No space left on device", "a file"), KeyError("odd")):
        _raises(executor, error)


def where_a_worker_is_told_to_end_the_command_is(executor: Executor) -> None:
    """That is, `run` raises Preempted, by which the command ends with exit code 75, and is queued again."""
    try:
        _run(executor, partial(_refusing, Preempted("stopped by SIGTERM")), TASKS[:1])
    except Preempted:
        return
    raise AssertionError("it went on as if nothing had happened")


CHECKS: Sequence[Callable[[Executor], None]] = (
    every_task_is_done_once_and_told,
    a_task_that_fails_stops_no_other,
    with_nothing_to_do_nothing_is_started,
    what_listing_the_tasks_raises_is_raised,
    what_a_worker_raises_is_raised,
    where_a_worker_is_told_to_end_the_command_is,
)


def _run(
    executor: Executor, make_worker: MakeWorker, tasks: Sequence[Task], later: dict[Task, list[Task]] | None = None
) -> list[tuple[Task, Result]]:
    told: list[tuple[Task, Result]] = []

    def done(task: Task, result: Result) -> Sequence[Task]:
        told.append((task, result))
        return (later or {}).get(task, [])

    assert executor.run(Workload(lambda: list(tasks), make_worker, done, Reporter(quiet=True)))
    return told


def _raises(executor: Executor, error: Exception, listing: bool = False) -> None:
    def list_tasks() -> Sequence[Task]:
        if listing:
            raise error
        return TASKS

    raised: Exception | None = None
    try:
        executor.run(Workload(list_tasks, partial(_refusing, error), lambda *_: [], Reporter(quiet=True)))
    except Exception as what:
        raised = what
    assert type(raised) is type(error), f"{raised!r} was raised in place of {error!r}"
    assert str(raised) == str(error), f"{raised!r} was raised in place of {error!r}"


@contextmanager
def _marking(folder: Path, allocation: Allocation, reporter: Reporter) -> Iterator[Worker]:
    yield partial(_mark, folder)


def _mark(folder: Path, task: Task) -> Result:
    (folder / f"{task}-{uuid.uuid4()}").touch()
    return {"status": "done", "of": [task]}


@contextmanager
def _failing(allocation: Allocation, reporter: Reporter) -> Iterator[Worker]:
    yield _fail_first


def _fail_first(task: Task) -> Result:
    return {"status": "failed", "reason": "so it is"} if task == TASKS[0] else {"status": "done"}


def _refusing(error: BaseException, allocation: Allocation, reporter: Reporter) -> NoReturn:
    raise error
