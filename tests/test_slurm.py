"""Batch scripts: read, and run by a Slurm whose daemons are these tests' own, in a folder of its own."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from handmade import MAKER, amend
from helpers import IMP, LENET, ROOT, SLOWLY, clean_environment, contents, imp_here, refused, wait_for

from lottery import cli
from lottery.base.errors import Failed, InputError
from lottery.executors import launcher, slurm
from lottery.executors.slurm import TASK

DAEMONS = ("munged", "slurmctld", "slurmd")
CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=10
SlurmdParameters=config_overrides
MpiDefault=none
SchedulerParameters=sched_interval=1,batch_sched_delay=0,requeue_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL PriorityTier=2 MaxTime=INFINITE State=UP
"""
NODE = "NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN\n"
NODES = ("n1", "n2", "n3", "n4")
BOTH = """
name = "digits"
[families.oneshot]
[families.chain]
rounds = 2
rewind = "0"
controls = ["reinit"]
controls_at = "2"
"""


@pytest.fixture
def batch(tmp_path, monkeypatch):
    """A function that makes a script of `imp retrain` on so many ranks, with an mpirun that tolerates faults."""
    monkeypatch.setattr(launcher, "mpirun", lambda: "/opt/mpi/bin/mpirun")
    monkeypatch.setattr(launcher, "tolerates_faults", lambda mpirun: True)
    monkeypatch.chdir(tmp_path)
    return lambda ranks=1, more=(), **asked: slurm.script(["retrain", "--run", "my run"], tmp_path / "logs", asked, more, ranks)


def options(text):
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]


def test_several_ranks_are_started_by_mpirun_with_a_log_each_and_one_without(batch, tmp_path):
    assert f"\n    run {IMP} retrain --run 'my run'\n" in batch(account=None)
    assert not any("account" in option for option in options(batch(account=None)))

    (line,) = (line.strip() for line in batch(ranks=8).splitlines() if "mpirun" in line)
    assert line.startswith(f"run /opt/mpi/bin/mpirun -n 8 --bind-to none --with-ft ulfm --output file={tmp_path}/logs/rank ")
    assert line.endswith(f"{IMP} retrain --run 'my run'")


def test_nothing_that_is_given_is_taken_for_a_command_of_the_shell(batch, tmp_path):
    run = f"my runs/{TASK}; touch mine"
    text = slurm.script(["retrain", "--run", run], tmp_path / "my logs", {"job-name": "my name", "array": "1-2"})

    assert f"\n    run {IMP} retrain --run 'my runs/'{TASK}'; touch mine'\n" in text
    assert "--job-name='my name'" in options(text)
    assert f"--output='{tmp_path}/my logs/%x-%A_%a.log'" in options(text)


def test_an_array_has_a_task_for_each_part_and_requeues_its_own_task(tmp_path):
    text = slurm.script(["retrain", "--part", f"{TASK}/20"], tmp_path / "logs", {"array": "1-20"})

    assert "--array=1-20" in options(text)
    assert f"\n    run {IMP} retrain --part $SLURM_ARRAY_TASK_ID/20\n" in text
    assert "scontrol requeue ${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID\n" in text
    assert any(option.endswith("logs/%x-%A_%a.log") for option in options(text))


@pytest.fixture
def batch_job(tmp_path):
    """A function that starts a script as Slurm does, in a shell, with an imp that is played and a scontrol that notes what
    is asked of it in `requeued`. It returns once there is a file `ready`."""

    def begin(text, imp):
        for name, content in (("imp", imp), ("scontrol", "echo $* > requeued"), ("job.sh", text.replace(str(IMP), "./imp"))):
            (tmp_path / name).write_text(content if content.startswith("#!") else f"#!/bin/sh\n{content}\n")
            (tmp_path / name).chmod(0o755)
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "12"}
        job = subprocess.Popen([tmp_path / "job.sh"], cwd=tmp_path, env=environment)
        wait_for((tmp_path / "ready").exists, seconds=20)
        return job

    return begin


@pytest.mark.parametrize(("code", "requeued"), [(75, True), (138, True), (0, False), (1, False)])
def test_a_signal_is_passed_on_and_who_ends_with_75_is_queued_again(batch, batch_job, tmp_path, code, requeued):
    played = f'trap "sleep 0.2; touch saved; exit {code}" USR1\ntouch ready\nwhile :; do sleep 0.05; done'
    job = batch_job(batch(), played)
    job.send_signal(signal.SIGUSR1)

    assert job.wait(timeout=20) == code
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "requeued").exists() == requeued
    assert not requeued or (tmp_path / "requeued").read_text() == "requeue 12\n"


def test_a_job_that_waits_for_late_files_when_its_time_is_up_is_queued_again(batch_job, tmp_path):
    (tmp_path / "sleep").write_text("#!/bin/sh\ntouch asleep\nexec /bin/sleep $1\n")
    (tmp_path / "sleep").chmod(0o755)
    job = batch_job(slurm.script(["train"], tmp_path, {}, waits=True), "echo >> ready\nexit 2")
    wait_for((tmp_path / "asleep").exists, seconds=20)
    job.send_signal(signal.SIGUSR1)

    assert job.wait(timeout=20) == slurm.KILLED
    assert (tmp_path / "requeued").exists()
    assert (tmp_path / "ready").read_text() == "\n"  # imp was not started again


def test_what_sbatch_has_against_a_script_is_told_and_what_to_do_without_one(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"there is no sbatch here: submit job.sh where Slurm is"):
        slurm.submit("job.sh")

    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 'invalid partition' >&2\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    with pytest.raises(Failed, match=r"sbatch refused job.sh: invalid partition"):
        slurm.submit("job.sh")


def test_a_script_is_written_only_for_what_can_be_done(trained, work, tmp_path):
    refused(imp_here("slurm", "retrain", "--quantiles", "42", cwd=work, check=False), "has no mask of 42")
    refused(imp_here("slurm", "train", cwd=tmp_path, check=False), "imp prepare")
    assert not list(work.glob("runs/digits/slurm"))

    told = imp_here("slurm", "train", "--time", "1:00:00", cwd=work).stdout
    assert told.startswith("runs/digits/slurm/train.sh: submit it with sbatch")
    assert "imp train --run runs/digits\n" in (work / "runs/digits/slurm/train.sh").read_text()


@pytest.fixture
def typed(work, monkeypatch, capsys):
    """A function that types `imp slurm` in `work`, in this process; the line it was refused with, or None."""
    monkeypatch.chdir(work)
    for name in ("IMP_RUN", "IMP_DATA"):
        monkeypatch.delenv(name, raising=False)

    def type_in(*arguments):
        monkeypatch.setattr(sys, "argv", ["imp", "slurm", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr().err
        assert (ended.value.code, said.count("\n")) in ((None, 0), (2, 1)), said
        return said or None

    return type_in


@pytest.mark.parametrize("option", ["--partition", "--account", "--time", "--sbatch", "--run"])
def test_what_would_be_a_line_of_its_own_in_a_script_is_refused_and_nothing_is_written(work, typed, option):
    shutil.copytree(work / "runs/digits", work / "runs/two\nlines", symlinks=True)
    value = "runs/two\nlines" if option == "--run" else "gpu\ntouch mine"

    assert "cannot be a line of a batch script" in (refusal := typed("retrain", option, value))

    assert "\\n" in refusal
    assert not list(work.glob("runs/*/slurm"))


def test_what_is_asked_of_slurm_is_in_the_script_and_the_rest_is_left_to_the_cluster(work, typed):
    shape = ["--nodes", "2", "--gpus-per-node", "4", "--per-gpu", "2", "--cpus-per-task", "3", "--time", "4:00:00"]
    amend(work / "runs/digits/replicate-1/train/result.json", made_by=[MAKER | {"device": "NVIDIA H100"}])

    assert typed("retrain", *shape, "--partition", "gpu", "--account", "me", "--sbatch=--constraint=h100") is None

    text = (work / "runs/digits/slurm/retrain.sh").read_text()
    assert sorted(options(text)) == sorted(
        [
            *("--job-name=digits-retrain", "--nodes=2", "--ntasks-per-node=8", "--gpus-per-node=4", "--cpus-per-task=3"),
            *("--time=4:00:00", "--partition=gpu", "--account=me", f"--chdir={work}"),
            "--output=runs/digits/slurm/%x-%j.log",
            *("--open-mode=append", "--signal=B:USR1@120", "--requeue", "--constraint=h100"),
        ]
    )
    assert "mpirun -n 16 " in text
    assert "imp retrain --run runs/digits --per-gpu 2\n" in text


@pytest.mark.parametrize(
    ("line", "array", "command"),
    [
        (["train", "--replicate", "2", "--replicate", "5"], "2,5", "imp train --run runs/digits --replicate {task}\n"),
        (["rounds", "--rounds", "3", "--array", "4"], "1-4", "imp rounds --run runs/digits --rounds 3 --part {task}/4\n"),
    ],
)
def test_replicates_and_parts_are_the_tasks_of_an_array(work, typed, line, array, command):
    assert typed(*line) is None

    text = (work / f"runs/digits/slurm/{line[0]}.sh").read_text()
    assert f"--array={array}" in options(text)
    assert command.format(task="$SLURM_ARRAY_TASK_ID") in text


@pytest.mark.parametrize(
    ("stage", "option"), [("train", "--nodes"), ("train", "--array"), ("retrain", "--rounds"), ("rounds", "--quantiles")]
)
def test_an_option_of_another_stage_is_refused(work, typed, stage, option):
    assert "No such option" in typed(stage, option, "2")
    assert not list(work.glob("runs/digits/slurm"))


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """The environment in which Slurm's commands talk to a Slurm of four nodes, all of them on this machine."""
    if os.environ.get("CI") != "true" and "IMP_TEST_SLURM" not in os.environ:
        pytest.skip("a Slurm is started where CI=true or IMP_TEST_SLURM is set")
    if os.geteuid() or not all(map(shutil.which, DAEMONS)):
        pytest.skip("starting a Slurm takes root, slurm-wlm and munge")
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    host = socket.gethostname().split(".")[0]
    configuration = folder / "slurm.conf"
    port, *ports = free_ports(1 + len(NODES))
    nodes = [NODE.format(node=node, host=host, port=one) for node, one in zip(NODES, ports, strict=True)]
    configuration.write_text(CONFIGURATION.format(folder=folder, host=host, port=port) + "".join(nodes))
    munge = [f"--{name}={folder}/munge.{name}" for name in ("pid-file", "log-file", "seed-file")]
    lines = [
        ["munged", "-F", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.sock", *munge],
        ["slurmctld", "-D", "-f", configuration],
        *(["slurmd", "-D", "-f", configuration, "-N", node] for node in NODES),
    ]
    environment = clean_environment() | {"SLURM_CONF": str(configuration)}
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with contextlib.ExitStack() as stack:
        for line in lines:
            daemon = subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(daemon.wait, 20)
            stack.callback(daemon.terminate)
            time.sleep(0.5)
        until = time.monotonic() + 30
        while slurms("sinfo", "-h", "-p", "all", "-N", "-o", "%T", environment=environment).split() != ["idle"] * len(NODES):
            assert time.monotonic() < until, (folder / "slurmctld.log").read_text()
            time.sleep(0.2)
        yield environment


def slurms(*line, environment):
    return subprocess.run(line, env=environment, capture_output=True, text=True).stdout


def submitted(environment, work, *arguments):
    """The number of the job that `imp slurm retrain` has submitted."""
    line = [IMP, "slurm", "retrain", "--time", "0:10:00", *arguments, "--submit"]
    told = subprocess.run(line, cwd=work, env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    return told.stdout.split()[-1]


@pytest.mark.parametrize("arguments", [["--tasks-per-node", "2"], ["--array", "2"]], ids=["MPI job", "array"])
def test_slurm_trains_the_grid_with_the_bytes_of_one_process(cluster, retrained, work, arguments):
    submitted(cluster, work, *arguments)

    wait_for(lambda: not slurms("squeue", "-h", environment=cluster))

    assert contents(work / "runs") == contents(retrained / "runs"), [
        log.read_text() for log in work.glob("runs/digits/slurm/*.log")
    ]


def slowed(folder):
    """Let every script in `folder` train slowly."""
    slow = folder / "slow_imp"
    slow.write_text(f"#!{sys.executable}{SLOWLY}")
    slow.chmod(0o755)
    for script in folder.glob("*.sh"):
        script.write_text(script.read_text().replace(str(IMP), str(slow)))


TO_URGENT = ["sbatch", "--partition=urgent", f"--nodes={len(NODES)}", "--exclusive", "--output=/dev/null", "--wrap=true"]
STOPPED = [
    ("SIGUSR1", ["scancel", "--batch", "--signal=USR1", "{job}"]),  # as before its time limit
    ("SIGTERM", TO_URGENT),
]


@pytest.mark.parametrize(("told", "line"), STOPPED, ids=["before its time limit", "preempted"])
def test_a_job_that_is_stopped_is_queued_again_and_ends_with_the_same_bytes(cluster, retrained, work, told, line):
    imp_here("slurm", "retrain", "--time", "0:10:00", cwd=work)
    slowed(work / "runs/digits/slurm")
    job = slurms("sbatch", "--parsable", str(work / "runs/digits/slurm/retrain.sh"), environment=cluster).strip()
    wait_for(lambda: any(work.glob("runs/digits/replicate-1/oneshot/*/*/metrics.jsonl")))

    slurms(*(word.format(job=job) for word in line), environment=cluster)

    wait_for(lambda: "PENDING" in slurms("squeue", "-h", "-o", "%T", "-j", job, environment=cluster), seconds=30)
    (log,) = work.glob(f"runs/digits/slurm/*-{job}.log")
    wait_for(lambda: f"stopped by {told}; the same command goes on" in log.read_text(), seconds=30)  # so it was saved
    wait_for(lambda: not slurms("squeue", "-h", environment=cluster))
    assert contents(work / "runs") == contents(retrained / "runs")


def test_networks_that_are_jobs_of_submitit_have_the_bytes_of_one_process(cluster, retrained, work):
    code = re.search(r"```python\n(import time.*?)```", (ROOT / "docs/cluster.md").read_text(), re.DOTALL)[1]
    (work / "my_executor.py").write_text(code)

    subprocess.run([IMP, "retrain", "--executor", "my_executor:Submitit"], cwd=work, env=cluster, check=True, timeout=300)

    networks = list(work.glob("runs/digits/replicate-1/oneshot/*/*/result.json"))
    assert len(list(work.glob("submitit/*_submission.sh"))) == len(networks)
    assert contents(work / "runs") == contents(retrained / "runs")


def vanish(node):
    """Kill the daemon of `node`, and all that it has started."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line, parent = (process / "cmdline").read_bytes(), int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if line.startswith(b"slurmd\0") and line.endswith(f"-N\0{node}\0".encode()):
                os.kill(int(process.name), signal.SIGKILL)
            elif f"SLURMD_NODENAME={node}\0".encode() in (process / "environ").read_bytes():
                is_step = (Path("/proc") / str(parent) / "comm").read_text().startswith("slurmstepd")
                for pid in (parent, int(process.name)) if is_step else (int(process.name),):
                    os.kill(pid, signal.SIGKILL)


def test_a_chain_ends_with_the_bytes_of_one_process_though_a_job_is_told_to_stop_and_a_node_is_lost(cluster, tmp_path):
    recipe = ["both.toml", *LENET]
    for name in ("alone", "chain"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "both.toml").write_text(BOTH)
    imp_here("run", *recipe, "--ranks", "1", cwd=tmp_path / "alone")
    work = tmp_path / "chain"
    imp_here("slurm", "run", *recipe, "--nodes", "3", "--time", "0:10:00", cwd=work)
    slowed(work / "runs/digits/slurm/run")

    subprocess.run(["bash", "runs/digits/slurm/run/run.sh"], cwd=work, env=cluster, check=True)

    wait_for(lambda: len(list(work.glob("runs/digits/replicate-1/oneshot/*/*/metrics.jsonl"))) > 1)
    nodes = dict(
        row.split() for row in slurms("squeue", "-h", "-r", "-t", "R", "-o", "%i %N", environment=cluster).splitlines()
    )
    stopped = next(iter(nodes))
    lost = next(node for node in nodes.values() if node != nodes[stopped])
    slurms("scancel", "--batch", "--signal=USR1", stopped, environment=cluster)
    vanish(lost)
    told = imp_here("status", cwd=work, PATH=cluster["PATH"], SLURM_CONF=cluster["SLURM_CONF"]).stdout
    assert "(Dependency)" in told
    wait_for(lambda: not slurms("squeue", "-h", environment=cluster), seconds=400)

    assert contents(work / "runs") == contents(tmp_path / "alone/runs"), [
        log.read_text() for log in work.glob("runs/digits/slurm/run/*.log")
    ]
    assert (work / "runs/digits/report/index.html").exists()


def test_a_job_of_a_chain_tries_again_what_it_does_not_find_yet(tmp_path, monkeypatch):
    """The script as a shell runs it: imp is played, and finds what it needs the second time."""
    monkeypatch.setattr(slurm, "STALE_SECONDS", 0)
    (tmp_path / "imp").write_text("#!/bin/sh\n[ -e seen ] && exit 0\ntouch seen\nexit 2\n")
    (tmp_path / "imp").chmod(0o755)

    def code(waits):
        (tmp_path / "seen").unlink(missing_ok=True)
        (tmp_path / "job.sh").write_text(slurm.script(["train"], tmp_path, {}, waits=waits).replace(str(IMP), "./imp"))
        return subprocess.run(["bash", "job.sh"], cwd=tmp_path).returncode

    assert (code(waits=True), code(waits=False)) == (0, 2)


def test_options_of_sbatch_may_be_typed_without_hyphens_and_those_that_imp_sets_come_later_and_win(tmp_path):
    more = ["dependency=afterok:1", "--constraint=h100", "-C gpu", "C h100", "a 1-3"]
    text = slurm.script(["train"], tmp_path, {"array": "1-2"}, more)

    typed = ["--dependency=afterok:1", "--constraint=h100", "-C gpu", "-C h100", "-a 1-3"]
    assert options(text)[:7] == [*typed, "--requeue", "--array=1-2"]
