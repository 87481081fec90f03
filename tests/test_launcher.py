"""What the launcher says of this process, and how mpirun is started."""

import contextlib
import os
import sys

import pytest

from lottery.base.errors import InputError
from lottery.commands import options
from lottery.executors import launcher

pytestmark = pytest.mark.usefixtures("no_launcher")
RANK, SIZE = launcher.launched_rank, launcher.launched_size


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        *(("OMPI_COMM_WORLD_RANK", RANK), ("PMIX_RANK", RANK), ("PMI_RANK", RANK)),
        *(("OMPI_COMM_WORLD_SIZE", SIZE), ("PMI_SIZE", SIZE), ("SLURM_STEP_NUM_TASKS", SIZE)),
    ],
)
def test_the_rank_and_the_number_of_ranks_are_what_the_launcher_says(monkeypatch, name, ask):
    assert ask() is None
    monkeypatch.setenv(name, "12")
    assert ask() == 12
    monkeypatch.setenv(name, "many")
    assert ask() is None


@pytest.mark.parametrize(
    ("rank", "size", "refused"),
    [("0", "2", True), ("1", "2", True), ("0", None, True), (None, None, False), ("0", "1", False), (None, "4", False)],
)
def test_a_stage_for_one_process_refuses_to_be_one_of_many_ranks(monkeypatch, rank, size, refused):
    for name, value in (("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", size)):
        if value:
            monkeypatch.setenv(name, value)

    with pytest.raises(InputError, match=r"leave mpirun out .*--ranks") if refused else contextlib.nullcontext():
        options.alone()


@pytest.mark.parametrize(
    ("tasks", "ranks", "told"), [("4", 1, True), ("4", 3, True), ("4", 4, False), ("4", 5, False), (None, 1, False)]
)
def test_tasks_of_a_slurm_job_that_are_not_used_are_told_of(monkeypatch, tasks, ranks, told):
    monkeypatch.delenv("SLURM_NTASKS", raising=False)
    if tasks:
        monkeypatch.setenv("SLURM_NTASKS", tasks)

    assert launcher.unused_tasks(ranks) == (
        f"Slurm gave this job 4 tasks, of which {ranks} train: `imp slurm` writes a script that uses all" if told else None
    )


def test_the_command_starts_this_python_on_so_many_ranks(monkeypatch, tmp_path):
    (tmp_path / "mpirun").touch(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    line, environment = launcher.command(4, ["-m", "lottery", "retrain", "--run", "runs/digits"])

    assert line[:3] == [str(tmp_path / "mpirun"), "-n", "4"]
    assert "--oversubscribe" in line
    assert line[-6:] == [str(tmp_path / "python"), "-m", "lottery", "retrain", "--run", "runs/digits"]
    assert environment["OMPI_ALLOW_RUN_AS_ROOT"] == environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
    assert environment["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize(
    ("about", "goes_on"),
    [("echo 'FT MPI support: yes'", True), ("echo 'FT MPI support: no'", False), ("exit 1", False), (None, False)],
)
def test_ranks_outlive_each_other_where_this_mpi_can_have_it_so(monkeypatch, tmp_path, about, goes_on):
    (tmp_path / "mpirun").touch(0o755)
    if about:
        (tmp_path / "ompi_info").write_text(f"#!/bin/sh\n{about}\n")
        (tmp_path / "ompi_info").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    line, _ = launcher.command(4, ["-m", "lottery", "retrain"])

    assert (line[5:7] == ["--with-ft", "ulfm"]) == goes_on


def test_an_mpirun_on_the_path_will_do_and_without_one_the_way_out_is_told(monkeypatch, tmp_path):
    (tmp_path / "mpirun").touch(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere/python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    assert launcher.command(2, ["retrain"])[0][0] == str(tmp_path / "mpirun")
    (tmp_path / "mpirun").unlink()
    with pytest.raises(InputError, match="pip install"):
        launcher.command(2, ["retrain"])
