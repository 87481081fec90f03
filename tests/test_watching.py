"""What `imp status --watch` shows of a run that is under way."""

import sys
from types import SimpleNamespace

import pytest
from handmade import dense, planned, ticket

from lottery.base import locks
from lottery.commands import reading
from lottery.experiment.plan import Plan
from lottery.results import status
from lottery.results.status import Line, Networks, Standing
from lottery.rundir import journal
from lottery.rundir.run import Run
from lottery.rundir.running import Running

NOW = Running(step=90, last=900, train_loss=0.25, train_metric=0.91, steps_per_second=30.0)


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
    assert status.seconds_left(now) == {"train": 87.0, "oneshot": 85.5}


def test_what_a_process_trains_that_failed_before_is_under_way(run):
    dense(run, 0.9, 0.9, 0.9)
    ticket(run, 1, "60", status="failed", reason="no disk")
    network = run.replicate(1).networks()[0]

    assert [one.state for one in standings(run)["oneshot"]] == ["failed", "waiting", "waiting"]
    with locks.writing(network.folder):
        assert standings(run)["oneshot"][0].state == "running"


def test_two_at_a_time_take_half_as_long():
    assert status.seconds_left({"retrain": GRID}) == {"retrain": 180.0}
    assert status.seconds_left({"retrain": [*GRID[:2], *[GRID[3]] * 2]}) == {"retrain": 90.0}


def test_networks_alone_are_waited_for():
    others = [Line("records", missing=1), Line("thresholds", missing=2), Line("Slurm's queue", under_way=1)]

    assert status.is_over([Networks("train", done=2, failed=1), *others])
    assert not status.is_over([Networks("train", done=3), Networks("oneshot", missing=1), *others])
    assert not status.is_over([Networks("train", under_way=1)])
    assert not status.is_over([Line("records", missing=1)])  # before it is known how many there will be


@pytest.mark.parametrize(("on_a_terminal", "seconds"), [(False, 30.0), (True, 10.0)])
def test_it_goes_on_until_each_is_done_or_failed_in_place_on_a_terminal_and_one_below_the_other_elsewhere(
    run, monkeypatch, capsys, on_a_terminal, seconds
):
    dense(run, 0.9, 0.9, 0.9)
    slept = []

    def sleep(pause):
        slept.append(pause)
        ticket(run, len(slept), "60", 0.9, status="done" if len(slept) < 3 else "failed", reason="no disk")

    monkeypatch.setattr(reading, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: on_a_terminal)

    reading.watch_status(run)

    told = capsys.readouterr().out
    assert slept == [seconds] * 3
    assert told.count("time left") == 4
    assert told.endswith("replicate-3 oneshot q60-step-000045 ticket: failed, no disk\n")
    assert told.count("\x1b[2J") == (4 if on_a_terminal else 0)
