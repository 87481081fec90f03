"""The live table of `imp status --watch`."""

import io
from types import SimpleNamespace

import pytest
from handmade import dense, planned, ticket
from rich.console import Console
from rich.table import Table

from lottery.experiment.plan import Plan
from lottery.results import status
from lottery.results.status import Standing
from lottery.rundir.run import Run


def text(parts):
    """What is shown, as a terminal would have it."""
    console = Console(width=140, file=io.StringIO())
    for part in parts:
        console.print(part)
    return console.file.getvalue()


GRID = [
    Standing("a", "done"),
    Standing("b", "waiting", "", 20.0),
    Standing("c", "diverged", "not finite at step 50"),
    Standing("d", "running", "step 45 of 900, process 12 on vm (imp retrain), since 12:00:00", 20.0),
    Standing("e", "failed", "KeyError: 'fc'", 20.0),
]


def test_what_runs_comes_first_then_what_failed_then_what_waits_and_what_is_done_is_counted():
    counts, table = status.shown({"retrain": GRID}, 3.0)

    assert counts == "retrain: 1 done, 1 running, 1 failed, 1 diverged, 1 waiting; 60 an hour, 3 min 00 s left"
    assert isinstance(table, Table)
    lines = text([table]).splitlines()
    assert [line.split()[0] for line in lines] == ["network", "d", "e", "c", "b"]
    assert "step 45 of 900, process 12 on vm (imp retrain)" in lines[1]
    assert lines[2].split("failed")[1].strip() == "KeyError: 'fc'"


def test_two_at_a_time_take_half_as_long():
    (counts, _) = status.shown({"retrain": [GRID[3], GRID[3], GRID[1], GRID[1]]}, 3.0)

    assert counts == "retrain: 2 running, 2 waiting; 120 an hour, 2 min 00 s left"


@pytest.mark.parametrize("pace", [None, 3.0])
def test_while_nothing_runs_there_is_no_rate(pace):
    (counts, _) = status.shown({"retrain": GRID[:3]}, pace)

    assert counts == "retrain: 1 done, 1 diverged, 1 waiting"


def test_of_many_that_wait_the_next_are_shown_and_the_others_counted():
    shown = status.shown({"retrain": [Standing(f"n{number}", "waiting", "", 1.0) for number in range(25)]}, None)

    assert "n9" in text(shown)
    assert "n10" not in text(shown)
    assert shown[-1] == "and 15 more waiting"


def test_when_all_is_done_there_is_no_table():
    assert status.shown({"train": GRID[:1]}, 3.0) == ["train: 1 done"]


def test_it_goes_on_until_all_is_done(tmp_path, monkeypatch, capsys):
    run = Run(tmp_path / "run", planned())
    dense(run, 0.9, 0.9, 0.9)
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        ticket(run, len(slept), "60", 0.9)

    monkeypatch.setattr(status, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(Run, "plan", lambda run: Plan(run.recipe, 45))

    status.watch(run, 2.0)

    assert slept == [2.0] * 3
    assert "oneshot: 3 done" in capsys.readouterr().out
