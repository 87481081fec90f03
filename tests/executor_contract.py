"""What every executor must do, as checks for the tests of whoever writes one:

    @pytest.mark.parametrize("check", executor_contract.CHECKS)
    def test_my_executor(check):
        check(MyExecutor())

Copy this file to them. The processes that train must be able to import it. Each check raises AssertionError where the executor
does something else.
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
from lottery.executors.workload import Executor, Result, Task, Worker, Workload

TASKS = [f"task {number}" for number in range(5)]
LATER = {"task 1": ["after 1", "also after 1"], "after 1": ["at last"]}
FAILS = "task 0"


def every_task_is_done_once_and_told(executor: Executor) -> None:
    """Those that become possible too, each after what it needs; a task that fails stops no other."""
    told: list[tuple[Task, Result]] = []

    def done(task: Task, result: Result) -> Sequence[Task]:
        told.append((task, result))
        return LATER.get(task, [])

    with tempfile.TemporaryDirectory() as folder:
        assert executor.run(Workload(lambda: list(TASKS), partial(_marking, Path(folder)), done, Reporter(quiet=True)))
        marks = sorted(path.name.partition("-")[0] for path in Path(folder).iterdir())
    order = [task for task, _ in told]
    assert sorted(order) == marks == sorted([*TASKS, "after 1", "also after 1", "at last"]), (order, marks)
    assert all(result == _result(task) for task, result in told), told
    assert order.index("task 1") < order.index("after 1") < order.index("at last"), order


def with_nothing_to_do_nothing_is_started(executor: Executor) -> None:
    assert _raised(executor, AssertionError("a worker was made"), list) is None


def what_listing_the_tasks_raises_is_raised(executor: Executor) -> None:
    def list_tasks() -> Sequence[Task]:
        raise InputError("no masks")

    raised = _raised(executor, AssertionError("a worker was made"), list_tasks)
    assert (type(raised), str(raised)) == (InputError, "no masks"), repr(raised)


def what_a_worker_raises_is_raised(executor: Executor) -> None:
    for error in (InputError("no masks"), OSError(28, "No space left on device", "a file"), KeyError("odd")):
        raised = _raised(executor, error)
        assert (type(raised), str(raised)) == (type(error), str(error)), f"{raised!r} was raised in place of {error!r}"


def where_a_worker_is_told_to_end_the_command_is(executor: Executor) -> None:
    """That is, `run` raises Preempted, by which the command ends with exit code 75, and is queued again."""
    raised = _raised(executor, Preempted("stopped by SIGTERM"))
    assert isinstance(raised, Preempted), f"{raised!r}: it went on as if nothing had happened"


CHECKS: Sequence[Callable[[Executor], None]] = (
    every_task_is_done_once_and_told,
    with_nothing_to_do_nothing_is_started,
    what_listing_the_tasks_raises_is_raised,
    what_a_worker_raises_is_raised,
    where_a_worker_is_told_to_end_the_command_is,
)


def _raised(
    executor: Executor, error: BaseException, list_tasks: Callable[[], Sequence[Task]] = lambda: TASKS
) -> BaseException | None:
    """What `executor` raises where each worker raises `error`."""
    try:
        executor.run(Workload(list_tasks, partial(_refusing, error), lambda *_: [], Reporter(quiet=True)))
    except (Exception, Preempted) as raised:
        return raised
    return None


@contextmanager
def _marking(folder: Path, allocation: Allocation, reporter: Reporter) -> Iterator[Worker]:
    yield partial(_mark, folder)


def _mark(folder: Path, task: Task) -> Result:
    (folder / f"{task}-{uuid.uuid4()}").touch()
    return _result(task)


def _result(task: Task) -> Result:
    return {"status": "failed" if task == FAILS else "done", "of": [task]}


def _refusing(error: BaseException, allocation: Allocation, reporter: Reporter) -> NoReturn:
    raise error
