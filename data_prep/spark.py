"""The Spark engine: the same shards, made by the executors of a Spark application (PySpark 4, RDDs only). They read the images
and write the shards themselves: both must lie where every node sees them, and this package in the same place on each."""

import contextlib
import os
import re
import shutil
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from data_prep.shards import Job, Made, make
from lottery.base import extras
from lottery.base.errors import InputError, first_line, one_line

_MASTER = re.compile(r"local(\[(\*|[1-9]\d*)\])?|spark://([^/:]+):(\d+)|yarn|k8s://.+")
_CONNECT_SECONDS = 5.0
_SETTINGS = {
    "spark.app.name": "imp prepare",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.task.maxFailures": "1",
}


def run(jobs: Sequence[Job], master: str) -> Iterator[Made]:
    """Make `jobs` on the Spark cluster at `master`; what is made is yielded as it comes, in any order. Raises InputError as
    `check` does, when Spark does not start or stops, and for what a job cannot work with."""
    check(master)
    log = jobs[0].folder / f".spark.log.{os.getpid()}.tmp"
    with _context(master, log) as context:
        for outcome in _outcomes(context, jobs, log):
            if not isinstance(outcome, Made):
                raise outcome
            if not outcome.shard.is_whole(jobs[0].folder):
                raise InputError(f"{jobs[0].folder} is not what the executors see there: choose a folder that all nodes share")
            yield outcome
    log.unlink(missing_ok=True)


def check(master: str) -> None:
    """Raise InputError for what Spark itself would answer with a page, or not at all."""
    extras.check("--engine spark", "pyspark")
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        raise InputError("--engine spark needs Java 17 or later, and there is none: install it, or use --engine local")
    matched = _MASTER.fullmatch(master)
    if not matched:
        raise InputError(f"--master {master}: write local[*], local[4] or spark://HOST:PORT")
    if matched[3]:
        try:
            socket.create_connection((matched[3], int(matched[4])), _CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise InputError(f"--master {master} does not answer ({error}): start it, or name another") from None


@contextlib.contextmanager
def _context(master: str, log: Path) -> Iterator[Any]:
    """A SparkContext whose Java process writes its messages to `log`: no setting of its own keeps them all off a terminal."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")  # of its workers: pandas 3, which RDDs do not use
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    settings = SparkConf(loadDefaults=True).setMaster(master).setAll(list(_SETTINGS.items()))
    if master.startswith("local"):
        settings.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        with open(log, "wb") as sink:
            gateway = launch_gateway(settings, {"stdout": sink, "stderr": sink})
        context = SparkContext(conf=settings, gateway=gateway)
    except PySparkRuntimeError:
        said = log.read_text(errors="replace").split("\n")[:-1] or ["it says nothing"]
        raise InputError(f"Spark did not start ({said[-1]}): see {log}") from None
    server: Any = context._accumulatorServer
    server.handle_error = lambda request, address: None  # it would print that Java has heard Ctrl-C too
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, on_interrupt)  # SparkContext sets one of its own
    try:
        yield context
    finally:
        context.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None


def _outcomes(context: Any, jobs: Sequence[Job], log: Path) -> Iterator[Made | Exception]:
    """What became of each job, as soon as it is known: one Spark job with a partition for each, its results accumulated."""
    from pyspark import InheritableThread
    from pyspark.accumulators import AddingAccumulatorParam

    found = context.accumulator([], AddingAccumulatorParam([]))  # lists are added too
    crashes: list[Exception] = []

    def submit() -> None:
        try:
            context.parallelize(list(jobs), len(jobs)).foreach(lambda job: found.add([_attempt(job)]))
        except Exception as error:  # an executor died, or the application was stopped
            crashes.append(error)

    thread = InheritableThread(target=submit, daemon=True)
    thread.start()
    told = 0
    try:
        while told < len(jobs):
            alive = thread.is_alive()
            thread.join(0.1)
            yield from found.value[told:]
            told = len(found.value)
            if not alive and told < len(jobs):
                reason = first_line(crashes[0]) if crashes else "it was stopped"
                raise InputError(f"Spark stopped before all shards were made ({reason}): see {log}, and run it again")
    finally:
        if thread.is_alive():
            context.cancelAllJobs()
            thread.join()


def _attempt(job: Job) -> Made | Exception:
    """In an executor: the shard, or the error as one that the driver can raise."""
    try:
        return make(job)
    except Exception as error:
        line = one_line(error)
        return InputError(line) if line else RuntimeError(traceback.format_exc())
