"""`imp doctor`: what is found on this machine, and what is said about what is not there."""

import json
import os
import sys
from pathlib import Path

import pytest
from helpers import imp, imp_here

from lottery.commands import examining as doctor


def test_on_this_machine_nothing_is_broken(tmp_path):
    done = imp("doctor", "--json", cwd=tmp_path)

    found = {row["topic"]: row for row in json.loads(done.stdout)}
    assert set(found) == {"machine", "TensorFlow", "NVIDIA driver", "MPI", "Slurm", "W&B", "disk", "locks"}
    assert "broken" not in {row["state"] for row in found.values()}
    assert "TensorFlow 2." in found["TensorFlow"]["text"]
    assert "starts ranks that find each other" in found["MPI"]["text"]
    assert all(row["remedy"] for row in found.values() if row["state"] != "good")
    assert list(tmp_path.iterdir()) == []


def test_the_table_marks_what_is_not_good_and_what_is_broken_ends_with_1(tmp_path, monkeypatch):
    findings = {"W&B": doctor.Finding("good", "wandb 1"), "MPI": doctor.Finding("limited", "no mpirun", "load it")}
    monkeypatch.setattr(doctor, "examined", lambda runs: findings)
    assert imp_here("doctor", cwd=tmp_path).stdout == "ok W&B: wandb 1\n!  MPI: no mpirun\n     load it\n"

    findings["locks"] = doctor.Finding("broken", str(tmp_path), "name a folder")
    done = imp_here("doctor", cwd=tmp_path, check=False)

    assert done.returncode == 1
    assert f"X  locks: {tmp_path}\n     name a folder\n" in done.stdout


def test_a_place_without_locks_is_broken():
    finding = doctor._locking(Path("/proc"))

    assert finding.state == "broken"
    assert finding.text.startswith("/proc: ")
    assert "name a folder of your own with --run" in finding.remedy


@pytest.fixture
def probes(monkeypatch):
    """What probing processes find, in turn."""
    answers = []
    monkeypatch.setattr(doctor, "_probe", lambda line, variables=None: answers.pop(0))
    return answers


@pytest.mark.parametrize(
    ("answer", "state", "words"),
    [
        ((None, "ImportError: no libfoo"), "broken", "does not start: ImportError: no libfoo"),
        (({"gpus": []}, ""), "limited", "does not see the GPUs"),
        (({"gpus": ["A100"]}, ""), "good", "CUDA 12.5, cuDNN 9; A100"),
        (({"gpus": ["A100"], "xla": "no config"}, ""), "limited", "XLA does not compile a convolution: no config"),
    ],
)
def test_tensorflow_as_it_may_be_found(probes, answer, state, words):
    found, said = answer
    probes.append((found and {"version": "2.21", "keras": "3", "cuda": "12.5", "cudnn": "9", "xla": "", **found}, said))

    finding = doctor._tensorflow("580.1: A100 (39 GiB free)")

    assert finding.state == state
    assert words in finding.text
    assert bool(finding.remedy) == (state != "good")


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([(None, "ImportError: libmpi.so")], "mpi4py finds none: ImportError: libmpi.so"),
        ([("Open MPI v5.0", ""), (1, "")], "1 of them found each other"),
        ([("Open MPI v5.0", ""), (None, "timed out")], "timed out"),
    ],
)
def test_mpi_as_it_may_be_found(probes, answers, words):
    probes += answers

    finding = doctor._mpi()

    assert finding.state == "limited"
    assert words in finding.text
    assert finding.remedy


def test_without_mpirun_its_wheel_is_recommended(probes, monkeypatch, tmp_path):
    probes.append(("Open MPI v5.0", ""))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    finding = doctor._mpi()

    assert "no mpirun" in finding.text
    assert "[local]" in finding.remedy


@pytest.mark.parametrize(
    ("setting", "state"),
    [
        ({"WANDB_API_KEY": "x"}, "good"),
        ({"WANDB_MODE": "offline"}, "good"),
        ({"NETRC": "netrc"}, "good"),
        ({"NETRC": "nowhere"}, "limited"),
    ],
)
def test_wandb_as_it_may_be_found(monkeypatch, tmp_path, setting, state):
    monkeypatch.chdir(tmp_path)
    Path("netrc").write_text("machine api.wandb.ai\n  login user\n  password x\n")
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in setting.items():
        monkeypatch.setenv(name, value)

    finding = doctor._wandb("0.1")

    assert finding.state == state


def test_slurm_as_it_may_be_found(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor._slurm().text == "none here"
    (tmp_path / "sbatch").touch(0o755)
    assert doctor._slurm().text == "sbatch is here"


def test_little_room_on_the_disk_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1e9}))

    room = doctor._disk(tmp_path / "runs", tmp_path)

    assert room.state == "limited"
    assert "1 GB free" in room.text


def test_a_lock_that_keeps_nobody_out_is_broken(probes, tmp_path):
    probes.append((0, ""))

    finding = doctor._locking(tmp_path)

    assert finding.state == "broken"
    assert "flock" in finding.remedy


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print('noise'); print('found: [1]')", ([1], "")),
        ("raise SystemExit('sorry')", (None, "sorry")),
        ("raise SystemExit(3)", (None, "exit code 3")),
    ],
)
def test_a_probe_is_what_a_process_says(code, expected):
    assert doctor._probe([sys.executable, "-c", code], os.environ) == expected


def test_a_probe_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(doctor, "PROBE_SECONDS", 0.2)

    found, said = doctor._probe([sys.executable, "-c", "import time; time.sleep(30)"])

    assert found is None
    assert "timed out" in said
