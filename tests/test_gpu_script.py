"""benchmarks/gpu.py: whole on one CPU, so that nothing is tried for the first time on a borrowed GPU; its limits, and what it
remembers."""

import sys
import time

import pytest
from helpers import ROOT, clean_environment

sys.path.insert(0, str(ROOT / "benchmarks"))  # where the script's processes look too
import gpu
from gpu import Case, Check, Checking, Seen


@pytest.mark.smoke
def test_everything_holds_on_a_cpu(tmp_path, monkeypatch, capsys):
    for name, value in clean_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path), "--minutes", "30"])

    assert gpu.main() == 0, capsys.readouterr().out

    page = (tmp_path / "cpu/summary.md").read_text()
    assert " hold, 0 fail, " in page
    assert " 0 were not tried." in page
    assert "Bundles of resnet20, times as fast as one at a time (needed: 5): 2: " in page
    for words in ("pruned exactly 0", "resumed from a checkpoint: 4 of 4", "2 replicas on two logical CPUs", "exit code 0, "):
        assert words in page
    capsys.readouterr()
    monkeypatch.setattr(Checking, "_attempt", lambda checking, case: pytest.fail("what was seen is not tried again"))
    assert gpu.main() == 0
    assert capsys.readouterr().out.strip() == page.strip()


def saw(text):
    return Seen(True, text, {"ms": 2.0, "none": float("nan")})


def fail():
    raise ValueError("no kernel\nat all")


def stay():
    time.sleep(600)


def checking(folder, seconds=60.0):
    return Checking(folder, time.monotonic() + seconds)


@pytest.fixture
def attempted(tmp_path):
    """A function that goes through cases, in processes without TensorFlow, and returns what was seen."""

    def attempted(*cases, seconds=60.0, share=60.0):
        trying = checking(tmp_path, seconds)
        try:
            trying.go_through(Check("all", share, [case._replace(place="commands") for case in cases]), share)
        finally:
            trying.close()
        return {name: (one["holds"], one["saw"]) for name, one in trying.seen.items()}

    return attempted


def test_a_case_that_fails_or_takes_too_long_is_written_down_and_the_others_go_on(attempted, tmp_path):
    seen = attempted(Case("bad", fail, {}), Case("slow", stay, {}, limit=1.5), Case("good", saw, {"text": "all"}))

    assert seen == {"bad": (False, "ValueError: no kernel"), "slow": (False, "took longer than 2 s"), "good": (True, "all")}
    assert checking(tmp_path).seen["good"]["figures"] == {"ms": 2.0}


def test_a_page_says_what_fails_what_was_not_tried_and_what_bundles_gain():
    every = [
        Check("Steps", 1, [Case("one", saw, {}), Case("two", saw, {}), Case("net x 1", saw, {}), Case("net x 4", saw, {})])
    ]
    seen = {
        "one": {"holds": False, "saw": "NOT 0", "figures": {}, "seconds": 1.5},
        "net x 1": {"holds": None, "saw": "6 ms", "figures": {"ms": 6.0}, "seconds": 2.0},
        "net x 4": {"holds": None, "saw": "2 ms", "figures": {"ms": 2.0}, "seconds": 2.0},
    }

    page = gpu.summary(every, seen, small=False)

    assert "0 hold, 1 fail, 2 are figures, 1 were not tried." in page
    assert "Bundles of net, times as fast as one at a time (needed: 5): 4: 3.00." in page
    assert "## What fails\n\n- one: NOT 0\n" in page
    assert "- two: not tried" in page
