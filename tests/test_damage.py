"""The script that damages a run: no reader takes what is damaged for whole."""

import subprocess
import sys

import pytest
from helpers import ROOT, clean_environment


@pytest.mark.smoke
def test_no_damage_is_used_in_silence_or_ends_in_a_traceback(tmp_path):
    """Some of what the script tries; with nothing left out it takes five minutes."""
    command = [sys.executable, ROOT / "benchmarks/damage.py", "--every", "67"]

    told = subprocess.run(command, cwd=tmp_path, env=clean_environment(TMPDIR=str(tmp_path)), capture_output=True, text=True)

    assert told.returncode == 0, told.stdout + told.stderr
    *_, total = told.stdout.splitlines()
    _, name, damages, refused, told_of, unread, *faults, _ = (cell.strip() for cell in total.split("|"))
    assert name == "in all"
    assert int(damages) >= 20
    assert int(refused) + int(told_of) + int(unread) == int(damages)
    assert faults == ["0", "0", "0"]
