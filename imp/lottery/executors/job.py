"""A task as a function without arguments, for executors that send functions elsewhere, and what it brings back."""

import dataclasses
import pickle
import traceback
from typing import Any, NamedTuple

from lottery.base import preemption
from lottery.base.errors import Failed, Moved
from lottery.base.progress import Reporter
from lottery.executors.allocation import allocate_here, show_gpus
from lottery.executors.workload import MakeWorker, Result, Task, Workload
from lottery.trackers import mirror

KNOWN = ("builtins", "lottery", "data_prep")  # packages whose errors can be raised in any process


class Raised(NamedTuple):
    """What comes back from a process that cannot go on: the `error`, and the text of its traceback."""

    error: BaseException
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> "Raised":
        """Of `error`, which is being handled: itself where its class is known to every process, else its words."""
        try:
            if type(error).__module__.partition(".")[0] not in KNOWN:
                raise TypeError
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = Failed(f"{type(error).__name__}: {error}")
        return cls(error, traceback.format_exc())


def opened(returned: Any) -> Any:
    """What came back, if it is no error; else the error is raised here."""
    if isinstance(returned, Raised):
        raise returned.error from Failed(f"in another process:\n{returned.trace}")
    return returned


@dataclasses.dataclass(frozen=True)
class Job:
    """Does `task` in whatever process calls it. It can be pickled, and returns what `opened` makes the task's result of. Where
    that process is told to end (SIGTERM, SIGUSR1), what is under way is saved, and the result's status is `preempted`."""

    make_worker: MakeWorker
    threads: int
    task: Task

    @classmethod
    def of(cls, workload: Workload, task: Task) -> "Job":
        return cls(workload.make_worker, workload.threads, task)

    def __call__(self) -> Result | Raised:
        allocation = allocate_here(self.threads)
        show_gpus(allocation)
        try:
            with preemption.heeded(), preemption.deferred(), self.make_worker(allocation, Reporter()) as worker:
                return worker(self.task)
        except (preemption.Preempted, Moved) as error:
            return {"status": "preempted", "reason": str(error)}
        except Exception as error:
            return Raised.of(error)
        finally:
            mirror.wait()
