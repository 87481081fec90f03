"""What `imp status --watch` shows of a run that is under way."""

import io
import sys
from types import SimpleNamespace

import pytest
from handmade import dense, planned, ticket
from rich.console import Console

from lottery.base import locks
from lottery.experiment.plan import Plan
from lottery.results import status
from lottery.results.status import Standing
from lottery.rundir import journal
from lottery.rundir.run import Run
from lottery.rundir.running import Running

NOW = Running(step=90, last=900, train_loss=0.25, train_metric=0.91, steps_per_second=30.0)


def text(parts):
    """What is shown, as a terminal would have it."""
    console = Console(width=140, file=io.StringIO())
    for part in parts:
        console.print(part)
    return console.file.getvalue()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of three replicates and one ticket each, of which nothing is trained; 45 steps an epoch."""
    monkeypatch.setattr(Run, "plan", lambda run: Plan(run.recipe, 45))
    return Run(tmp_path / "run", planned())


def standings(run):
    return status.standings(run, run.plan())


GRID = [
    Standing("a", "done", pace=3.0),
    Standing("b", "waiting", "", 20.0),
    Standing("c", "diverged", "not finite at step 50"),
    Standing("d", "running", "beginning, process 12 on vm (imp retrain), since 12:00:00", 20.0),
    Standing("e", "failed", "KeyError: 'fc'", 20.0),
]


def test_of_a_training_that_runs_loss_metrics_speed_and_time_left_are_told(run):
    network = run.replicate(2).dense
    with locks.writing(network.folder):
        (begun,) = (one for one in standings(run)["train"] if one.state == "running")
        locks.note(network.folder, NOW.model_dump_json())
        journal.append(network.metrics, {"step": 45, "validation_accuracy": 0.955}, "")
        now = standings(run)

    (running,) = (one for one in now["train"] if one.state == "running")
    figures = "step 90 of 900, loss 0.2500, accuracy 91.00%, validation 95.50%, 1,920 images/s, 27 s left"
    assert begun.told.startswith("beginning, process ")
    assert running.told.startswith(f"{figures}, process ")
    assert (running.epochs, running.pace) == (18.0, 1.5)
    # 18 and 2 x 20 epochs of dense networks, 3 x 19 of tickets, at 1.5 seconds
    assert status.lines(now)[:2] == ["train: 1 running, 2 waiting; 1 min 27 s left", "oneshot: 3 waiting; 1 min 26 s left"]
    assert status.lines(now)[2].startswith(f"replicate-2 dense: {figures}")
    heading, row = text(status.shown(now)).splitlines()[2:4]
    assert heading.split() == ["running", "step", "loss", "accuracy", "validation", "images/s", "left"]
    assert " ".join(row.split()) == "replicate-2 dense 90 of 900 0.2500 91.00% 95.50% 1,920 27 s"


def test_what_a_process_trains_that_failed_before_is_under_way(run):
    dense(run, 0.9, 0.9, 0.9)
    ticket(run, 1, "60", status="failed", reason="no disk")
    network = run.replicate(1).networks()[0]

    assert [one.state for one in standings(run)["oneshot"]] == ["failed", "waiting", "waiting"]
    with locks.writing(network.folder):
        assert standings(run)["oneshot"][0].state == "running"


def test_what_runs_comes_first_then_what_failed_then_what_waits_and_what_is_done_is_counted():
    counts, running, left = status.shown({"retrain": GRID})

    assert counts == "retrain: 1 done, 1 running, 1 failed, 1 diverged, 1 waiting; 3 min 00 s left"
    assert [line.split()[0] for line in text([running, left]).splitlines()] == ["running", "d", "network", "e", "c", "b"]
    assert text([left]).splitlines()[1].split("failed")[1].strip() == "KeyError: 'fc'"


def test_two_at_a_time_take_half_as_long():
    counts = status.lines({"retrain": [*GRID[:2], *[GRID[3]] * 2]})[0]

    assert counts == "retrain: 1 done, 2 running, 1 waiting; 1 min 30 s left"


def test_while_nothing_runs_that_is_said():
    assert status.lines({"retrain": GRID[:2]})[1:] == ["nothing is being trained now"]
    assert status.lines({"retrain": [GRID[0], GRID[2]]}) == ["retrain: 1 done, 1 diverged"]


def test_of_many_that_wait_the_next_are_shown_and_the_others_counted():
    shown = status.shown({"retrain": [Standing(f"n{number}", "waiting", "", 1.0) for number in range(25)]})

    assert "n9" in text(shown)
    assert "n10" not in text(shown)
    assert shown[-1] == "and 15 more waiting"


def test_when_all_is_done_there_is_no_table():
    assert status.shown({"train": GRID[:1]}) == ["train: 1 done"]


@pytest.mark.parametrize(("on_a_terminal", "seconds"), [(False, 30.0), (True, 2.0)])
def test_it_goes_on_until_each_is_done_or_failed_in_place_on_a_terminal_and_in_plain_lines_elsewhere(
    run, monkeypatch, capsys, on_a_terminal, seconds
):
    dense(run, 0.9, 0.9, 0.9)
    slept = []

    def sleep(pause):
        slept.append(pause)
        ticket(run, len(slept), "60", 0.9, status="done" if len(slept) < 3 else "failed", reason="no disk")

    monkeypatch.setattr(status, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: on_a_terminal)

    status.watch(run)

    told = capsys.readouterr().out
    assert slept == [seconds] * 3
    assert "oneshot: 2 done, 1 failed" in told
    assert ("\x1b[" in told) == on_a_terminal
