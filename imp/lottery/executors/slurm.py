"""Batch scripts for Slurm, for people to read: an MPI job, an array of tasks that need no MPI, or a chain of such jobs."""

import dataclasses
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from lottery.base.errors import Failed, InputError
from lottery.base.preemption import EXIT_CODE
from lottery.executors import launcher

WARNING_SECONDS = 120  # before the time limit; a training notices within a second or two, and saves
STALE_SECONDS = 60  # for which a shared file system may not show what another node has written; that of NFS by default
TASK = "$SLURM_ARRAY_TASK_ID"
MOST_TASKS = 1000  # of an array, as Slurm is set up by default
JOBS = "jobs"  # beside the scripts of a chain: the name and the number of each job, as it was submitted last
UNFINISHED = 1  # the exit code of imp where networks failed
KILLED = 128 + signal.SIGUSR1  # the exit code of imp where the signal came before it could heed one: nothing is lost
REFUSED = 2  # the exit code of imp, and of the script of a chain, for what the user can fix


@dataclasses.dataclass(frozen=True)
class Job:
    """A job of a chain: imp with `arguments`, in which TASK stands for the number of a task of its `array`, if it is one. It
    begins once those that `after` names (each by its name, with Slurm's type of dependency) have ended so. One that `tolerates`
    networks that failed, which are recorded, counts as a success."""

    name: str
    arguments: tuple[str, ...]
    after: Mapping[str, str] = dataclasses.field(default_factory=dict)
    array: str | None = None
    on_gpus: bool = True
    tolerates: bool = False


def script(
    arguments: Sequence[str],
    logs: Path,
    options: Mapping[str, object],
    more: Sequence[str] = (),
    ranks: int = 1,
    waits: bool = False,
    tolerates: bool = False,
) -> str:
    """A batch script that runs imp with `arguments` on so many `ranks`, and leaves what it, or each of them, says in `logs`.

    `options` are sbatch's by their long names (None: left to the cluster), `more` are others, as they are typed, with or
    without hyphens; they come first, as sbatch goes by the last of two that are alike. Where `options` ask for an `array`, TASK
    in `arguments` stands for the number of a task. The job is queued again when its time limit is near or a node is taken away.
    One that `waits` for others of its chain tries again if it finds nothing to work on: the files of the others may not show on
    its node yet. `tolerates` is a Job's. Raises InputError for what cannot be printed, such as a line's end, which would begin
    another line."""
    is_array = options.get("array") is not None
    asked = {
        **options,
        "chdir": Path.cwd(),
        "output": logs / ("%x-%A_%a.log" if is_array else "%x-%j.log"),
        "open-mode": "append",
        "signal": f"B:USR1@{WARNING_SECONDS}",
        "kill-on-invalid-dep": "yes" if waits else None,
    }
    line = [str(Path(sys.executable).with_name("imp")), *arguments]
    if ranks > 1:
        line = [*launcher.mpirun_line(ranks, "--output", f"file={logs}/rank"), *line]
    # TASK is for the shell; all else is quoted for it.
    command = " ".join(TASK.join(shlex.quote(text) if text else "" for text in word.split(TASK)) for word in line)
    given = [*map(_hyphened, more), "--requeue"]
    given += [f"--{option}={shlex.quote(str(value))}" for option, value in asked.items() if value is not None]
    own = f"${{SLURM_ARRAY_JOB_ID}}_{TASK}" if is_array else "$SLURM_JOB_ID"
    late = "other nodes' files may take as long to show here"
    is_new = f"[ $code -eq {REFUSED} ] && [ ${{SLURM_RESTART_COUNT:-0}} -eq 0 ]"
    again = f"{is_new} && run sleep {STALE_SECONDS} && [ $code -eq 0 ] && work  # {late}"
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in given),
        "",
        "# Before the time limit Slurm sends USR1: what is under way is saved, imp ends with 75, and the job is queued again.",
        "trap 'kill -USR1 $!' USR1",
        "run() {",
        '    "$@" &',
        "    while wait $!; kill -0 $! 2> /dev/null; do :; done  # a signal cuts a wait short",
        "    wait $!; code=$?",
        "}",
        "work() {",
        f"    run {command}",
        "}",
        "work",
        *([again] if waits else []),
        *([f"[ $code -eq {UNFINISHED} ] && code=0  # what failed is recorded, and holds up nothing else"] if tolerates else []),
        f"[[ $code == {EXIT_CODE} || $code == {KILLED} ]] && scontrol requeue {own}",
        "exit $code",
        "",
    ]
    _check_printable(lines)
    return "\n".join(lines)


def chain(jobs: Sequence[Job], folder: Path) -> str:
    """A script that submits the scripts of `jobs` in `folder`, NAME.sh, as a chain: all of them or none. It ends with REFUSED
    while jobs that it submitted before are in the queue. Raises InputError for what cannot be printed."""
    lines = [
        "#!/bin/bash",
        "# Submits all jobs of a run, each to begin when those before it have ended, or none where sbatch refuses one.",
        f"cd {shlex.quote(str(folder.absolute()))} || exit",
        f'if [ -s {JOBS} ] && [ -n "$(squeue -h -j "$(cut -d " " -f 2 {JOBS} | paste -sd ,)" 2> /dev/null)" ]; then',
        f'    echo "jobs of this run are in the queue: wait, or scancel $(cut -d " " -f 2 {JOBS} | paste -sd " ")" >&2',
        f"    exit {REFUSED}",
        "fi",
        f"rm -f {JOBS}",
        "declare -A job",
        'undo() { scancel "${job[@]}" ${number%%;*} 2> /dev/null; exit 1; }',
        "trap undo INT TERM HUP",
        "submit() {",
        "    local number",
        '    number=$(sbatch --parsable ${2:+--dependency="$2"} "$1.sh") || { echo "$1.sh was refused" >&2; undo; }',
        "    job[$1]=${number%%;*}",
        f'    echo "$1 ${{job[$1]}}" >> {JOBS}',
        "}",
        *(f'submit {one.name} "{_dependency(one)}"' for one in jobs),
        "",
    ]
    _check_printable(lines)
    return "\n".join(lines)


def _dependency(job: Job) -> str:
    """`afterok:${job[train]},afterany:${job[retrain]}`"""
    return ",".join(f"{kind}:${{job[{name}]}}" for name, kind in job.after.items())


def _check_printable(lines: Sequence[str]) -> None:
    if strange := [line for line in lines if not line.isprintable()]:
        raise InputError(f"{strange[0]!r} cannot be a line of a batch script: leave out what cannot be printed")


def _hyphened(option: str) -> str:
    """An option of sbatch as its script takes it, which may have been typed without hyphens."""
    name = re.split(r"[=\s]", option, maxsplit=1)[0]
    return option if option.startswith("-") else f"{'-' if len(name) == 1 else '--'}{option}"


def submit(path: Path) -> str:
    """Hand a script to sbatch and return what that says. Raises InputError where there is none, Failed when it refuses."""
    return _submitted(path, ["sbatch", str(path)])


def submit_chain(path: Path) -> str:
    """Run the script of a chain, and return the names and numbers of its jobs. Raises InputError also while jobs of it are in
    the queue."""
    _submitted(path, ["bash", str(path)])
    return (path.parent / JOBS).read_text().strip().replace("\n", ", ")


def _submitted(path: Path, line: Sequence[str]) -> str:
    if not shutil.which("sbatch"):
        raise InputError(f"there is no sbatch here: submit {path} where Slurm is, or leave out --submit")
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode == REFUSED:
        raise InputError(done.stderr.strip())
    if done.returncode:
        raise Failed(f"sbatch refused {path}: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}")
    return done.stdout.strip()


def queued(folder: Path) -> dict[str, Counter[str]] | None:
    """Of each job of the chain in `folder` that is in the queue, by its name: how many of its tasks are in which of Slurm's
    states, and why they wait. None where no chain is known to be submitted, or there is no Slurm to ask."""
    if not (folder / JOBS).exists() or not shutil.which("squeue"):
        return None
    names = dict(re.findall(r"^(\S+) (\d+)$", (folder / JOBS).read_text(errors="replace"), re.MULTILINE))
    if not names:
        return None
    line = ["squeue", "-h", "-r", "-o", "%F %T %r", "-j", ",".join(names.values())]
    found = {number: Counter[str]() for number in names.values()}
    for row in subprocess.run(line, capture_output=True, text=True).stdout.splitlines():
        number, state, reason = row.split(maxsplit=2)
        found[number][state.lower() if reason == "None" else f"{state.lower()} ({reason})"] += 1
    return {f"{name} (job {number})": found[number] for name, number in names.items() if found[number]}
