"""`imp sweep --objective ticket:...`: trials that a ticket judges, each an ordinary run with all that this ticket needs."""

import csv
import errno
import json
import os
import shlex
import shutil
import tomllib

import optuna
import pytest
from helpers import imp_here, refused, settings

from lottery.base.errors import InputError
from lottery.engine import checkpoints
from lottery.experiment import reading
from lottery.experiment.objectives import Objective, parse_objective
from lottery.rundir import records
from lottery.rundir.records import Result
from lottery.stages import tickets as stage

SWEEP = """
name = "try"
replicates = 2
[data]
size = 8
crop = 0
[model]
name = "lenet_300_100"
[train]
epochs = 3
warmup = "1ep"
snapshots = "0,1ep"
checkpoint_seconds = 0.0
checkpoint_share = 1.0
[families.oneshot]
quantiles = "80,90"
rewind = "0,1ep"
controls = ["borrowed"]
controls_at = "90"
[sweep]
space = ["train.learning_rate=0.01..1:log", "train.batch=32,64"]
trials = 2
grace = "1ep"
"""
TICKET = ("--objective", "ticket:q90")


def sweep(folder, *options, check=True):
    return imp_here("sweep", "try.toml", *options, cwd=folder, check=check)


def trials(folder):
    with open(folder / "runs/try/sweep/trials.csv") as file:
        return list(csv.DictReader(file))


def own(folder, number):
    """The run of a trial."""
    return folder / f"runs/try/sweep/trials/{number:04d}/try-trial-{number:04d}"


def networks(run):
    """The folders of all networks of a run that have a result, and their results."""
    return {path.parent.relative_to(run).as_posix(): json.loads(path.read_text()) for path in run.rglob("result.json")}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A folder in which one worker has done a sweep, and what it printed."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "try.toml").write_text(SWEEP)
    return folder, sweep(folder, *TICKET).stdout


@pytest.fixture
def fresh(swept, tmp_path):
    """A folder with the recipe and the records, and no run."""
    shutil.copytree(swept[0] / "data", tmp_path / "data")
    shutil.copy(swept[0] / "try.toml", tmp_path)
    return tmp_path


def test_a_trial_is_what_a_run_with_its_values_comes_to(swept, tmp_path):
    folder = shutil.copytree(swept[0], tmp_path / "again", symlinks=True)
    best = max(trials(folder), key=lambda row: float(row["accuracy"]))
    command = swept[1].partition("another seed: ")[2].strip()
    assert command == "imp run runs/try/sweep/best.toml --set seed=1 --run runs/try-best"

    imp_here(*shlex.split(command.replace("seed=1", "seed=0"))[1:], *settings("replicates=2"), "--ranks", "1", cwd=folder)

    found, whole = networks(own(folder, int(best["trial"]) - 1)), networks(folder / "runs/try-best")
    [ticket] = (name for name in found if name != "replicate-1/train")
    assert len(whole) > len(found) == 2
    assert whole[ticket]["final"] == found[ticket]["final"]
    assert whole[ticket]["final"]["validation_accuracy"] == float(best["accuracy"])
    assert (whole[ticket]["mask"], whole[ticket]["rewind_step"]) == ("q90", whole[ticket]["steps_per_epoch"])
    text = (folder / "runs/try/sweep/best.toml").read_text()
    assert "judged by ticket:oneshot/q90: " in text.splitlines()[0]
    assert tomllib.loads(text)["families"]["oneshot"]["quantiles"] == "80,90"


def test_a_trial_costs_what_all_its_networks_do_and_leaves_no_large_files(swept):
    folder, printed = swept

    for row in trials(folder):
        found = networks(own(folder, int(row["trial"]) - 1)).values()
        assert float(row["seconds"]) == pytest.approx(sum(one["timing"]["seconds"] for one in found))
        assert float(row["epochs"]) == pytest.approx(3 + 2)  # rewound to 1ep
    assert "2 trials took 10.0 epochs, as many as 3.3 dense trainings, in " in printed
    assert not list((folder / "runs/try/sweep").rglob("*.h5"))


def test_a_trial_whose_ticket_meets_a_full_disk_is_left_to_whoever_comes_next(fresh, monkeypatch):
    save = checkpoints.save

    def no_room(path, saved):
        if path.parent.name == "ticket":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        save(path, saved)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "save", no_room)
        done = sweep(fresh, *TICKET, check=False)
    refused(done, "No space left on device", said=done.stderr.count("\n") - 1)
    assert [row["status"] for row in trials(fresh)] == ["under way"]

    sweep(fresh, *TICKET)
    assert [row["status"] for row in trials(fresh)] == ["complete", "complete"]


@pytest.fixture
def killed(fresh, monkeypatch):
    """A folder in which a worker was killed while it trained the ticket of its second trial."""
    save = checkpoints.save

    def die(path, saved):
        save(path, saved)
        if path.parent.name == "ticket" and "0001" in path.parts:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "save", die)
        sweep(fresh, *TICKET, check=False)
    assert [row["status"] for row in trials(fresh)] == ["complete", "under way"]
    assert [path.parent.name for path in own(fresh, 1).rglob("checkpoint.h5")] == ["ticket"]
    return fresh


def test_killed_it_goes_on_with_the_networks_of_the_trial_that_was_under_way(swept, killed):
    dense, told = own(killed, 1) / "replicate-1/train/result.json", ("status", "accuracy", "epochs", "train.batch")
    before = dense.stat().st_mtime_ns

    sweep(killed, *TICKET)

    assert dense.stat().st_mtime_ns == before
    assert [[row[key] for key in told] for row in trials(killed)] == [[row[key] for key in told] for row in trials(swept[0])]


def test_on_other_devices_the_trial_that_was_under_way_is_begun_anew(killed):
    path = own(killed, 1) / "replicate-1/train/result.json"
    records.write(path, records.read(path, Result).model_copy(update={"replicas": 2}))

    sweep(killed, *TICKET)

    assert [row["status"] for row in trials(killed)] == ["complete", "complete"]
    assert {one["replicas"] for one in networks(own(killed, 1)).values()} == {1}


def test_a_ticket_that_is_stopped_is_no_failure_and_has_cost_what_it_trained(fresh, monkeypatch):
    monkeypatch.setattr(optuna.Trial, "should_prune", lambda trial: trial.number == 1)

    sweep(fresh, *TICKET)

    assert [(row["status"], row["reason"], float(row["epochs"])) for row in trials(fresh)] == [
        ("complete", "", 5.0),
        ("stopped", "", pytest.approx(4.0)),
    ]
    assert list(networks(own(fresh, 1))) == ["replicate-1/train"]


def test_a_ticket_that_fails_makes_its_trial_fail(fresh, monkeypatch):
    def no_room(self):
        raise MemoryError("no room")

    monkeypatch.setattr(stage._Making, "training", no_room)

    assert sweep(fresh, *TICKET, check=False).returncode == 1

    assert [(row["status"], row["reason"]) for row in trials(fresh)] == [("failed", "MemoryError: no room")] * 2


def test_a_dense_network_that_diverges_makes_its_trial_fail(fresh):
    sweep(fresh, *TICKET, *settings("sweep.trials=1", 'sweep.space=["train.learning_rate=1e30,1e31"]'), check=False)

    [row] = trials(fresh)
    assert row["status"] == "failed"
    assert "loss" in row["reason"]
    assert list(networks(own(fresh, 0))) == ["replicate-1/train"]


def test_a_round_is_judged_after_those_before_it_also_on_fewer_classes(fresh):
    rounds = settings("families.slow.rounds=3", "sweep.classes=3", "sweep.trials=1", "sweep.pruner=asha")

    sweep(fresh, "--objective", "ticket:round-02", *rounds)

    assert (fresh / "data/digits-8-first3/manifest.json").exists()
    names = [f"replicate-1/slow/round-{number:02d}-step-000000/ticket" for number in (1, 2)]
    assert sorted(networks(own(fresh, 0))) == [*names, "replicate-1/train"]
    assert [(row["status"], float(row["epochs"])) for row in trials(fresh)] == [("complete", 9.0)]


BAD = [
    ("ticket", "sweep.objective: 'ticket' is not an objective: write dense, ticket:q90"),
    ("ticket:q80..90", "is not an objective"),
    ("ticket:q101", "sweep.objective: quantiles '101': '101' must ascend within 0..100"),
    ("ticket:round-0", "sweep.objective: '0' is not a list of rounds"),
    ("ticket:slow/q90", "no family has ticket:slow/q90"),
    ("ticket:round-03", "no family has ticket:round-03"),
    ("ticket:q90", "several families have a q90: write ticket:oneshot/q90 or ticket:other/q90"),
    ("ticket:q85", "no family has ticket:q85: oneshot has 80,90, other has 90, slow has 2 rounds"),
]


@pytest.mark.parametrize(
    ("command", "objective", "words"),
    [*(("sweep try.toml", *one) for one in BAD), ("slurm sweep --recipe try.toml", *BAD[-1])],
)
def test_bad_input_is_one_line(tmp_path, command, objective, words):
    (tmp_path / "try.toml").write_text(SWEEP)
    families = settings("families.other.quantiles=90", "families.slow.rounds=2")

    refused(imp_here(*command.split(), "--objective", objective, *families, cwd=tmp_path, check=False), words)

    assert [path.name for path in tmp_path.iterdir()] == ["try.toml"]


def test_workers_of_a_job_array_judge_as_the_command_said(tmp_path):
    (tmp_path / "try.toml").write_text(SWEEP)

    imp_here("slurm", "sweep", "--recipe", "try.toml", *TICKET, "--array", "4", cwd=tmp_path)

    assert 'objective = "ticket:q90"' in (tmp_path / "runs/try/recipe.toml").read_text()
    assert "imp sweep --run runs/try\n" in (tmp_path / "runs/try/slurm/sweep.sh").read_text()


@pytest.mark.parametrize("text", ["dense", "ticket:q90", "ticket:q97.5", "ticket:round-03", "ticket:my-own_1/q90"])
def test_an_objective_is_written_as_it_is_read(text):
    assert str(parse_objective(f" {text} ")) == text
    assert str(reading.resolve({"sweep": {"objective": text}}).sweep.objective) == text


def test_objectives_are_compared_by_value():
    assert parse_objective("ticket:q90.0") == Objective("q90")
    assert parse_objective("ticket:round-3") == Objective("round-03")
    with pytest.raises(InputError, match="is not an objective"):
        parse_objective("ticket:q90,95")
