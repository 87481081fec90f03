"""Batch scripts for Slurm, for people to read: one MPI job, or an array of tasks that need no MPI."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lottery.base.errors import Failed, InputError
from lottery.base.preemption import EXIT_CODE
from lottery.executors import launcher

WARNING_SECONDS = 120  # before the time limit; a training notices within a second or two, and saves
TASK = "$SLURM_ARRAY_TASK_ID"


def script(
    arguments: Sequence[str], logs: Path, options: Mapping[str, object], more: Sequence[str] = (), ranks: int = 1
) -> str:
    """A batch script that runs imp with `arguments` on so many `ranks`, and leaves what it, or each of them, says in `logs`.

    `options` are sbatch's by their long names (None: left to the cluster), `more` are others, as they are typed, with or
    without hyphens before their long names. Where they ask for an `array`, TASK in `arguments` stands for the number of a task.
    The job is queued again when its time limit is near or a node is taken away. Raises InputError for what cannot be printed,
    such as a line's end, which would begin another line."""
    is_array = options.get("array") is not None
    asked = {
        **options,
        "chdir": Path.cwd(),
        "output": logs / ("%A_%a.log" if is_array else "%j.log"),
        "open-mode": "append",
        "signal": f"B:USR1@{WARNING_SECONDS}",
    }
    line = [str(Path(sys.executable).with_name("imp")), *arguments]
    if ranks > 1:
        line = [*launcher.mpirun_line(ranks, "--output", f"file={logs}/rank"), *line]
    # TASK is for the shell; all else is quoted for it.
    command = " ".join(TASK.join(shlex.quote(text) if text else "" for text in word.split(TASK)) for word in line)
    given = [f"--{option}={shlex.quote(str(value))}" for option, value in asked.items() if value is not None]
    given += ["--requeue", *(option if option.startswith("-") else f"--{option}" for option in more)]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in given),
        "",
        "# Before the time limit Slurm sends USR1: what is under way is saved, imp ends with 75, and the job is queued again.",
        "trap 'kill -USR1 $!' USR1",
        f"{command} &",
        "wait $!; code=$?",
        "while kill -0 $! 2> /dev/null; do wait $!; code=$?; done  # a signal cut the wait short",
        f"[ $code -eq {EXIT_CODE} ] && scontrol requeue {'${SLURM_ARRAY_JOB_ID}_' + TASK if is_array else '$SLURM_JOB_ID'}",
        "exit $code",
        "",
    ]
    if strange := [line for line in lines if not line.isprintable()]:
        raise InputError(f"{strange[0]!r} cannot be a line of a batch script: leave out what cannot be printed")
    return "\n".join(lines)


def submit(path: Path) -> str:
    """Hand a script to sbatch and return what that says. Raises InputError where there is none, Failed when it refuses."""
    if not shutil.which("sbatch"):
        raise InputError(f"there is no sbatch here: copy {path} to where Slurm is, or leave out --submit")
    done = subprocess.run(["sbatch", str(path)], capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"sbatch refused {path}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip()
