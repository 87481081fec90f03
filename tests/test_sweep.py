"""`imp sweep`: a search that any number of workers share, and that goes on when one is killed."""

import csv
import errno
import json
import math
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from helpers import AS_ROOT, clean_environment, imp_here, refused, settings

from lottery.base.errors import InputError
from lottery.base.preemption import Preempted
from lottery.engine import checkpoints
from lottery.executors.launcher import mpirun
from lottery.experiment import plan, reading, spaces
from lottery.experiment.recipe import Data, Model, Recipe, Sweep
from lottery.rundir import records
from lottery.rundir.records import Figures, Result
from lottery.sweep import trials as made
from lottery.sweep import values, worker
from lottery.trackers.mirror import Stopped

SWEEP = """
name = "try"
[data]
size = 8
crop = 0
[model]
name = "lenet_300_100"
[train]
epochs = 2
warmup = "1ep"
snapshots = "0"
checkpoint_seconds = 0.0
checkpoint_share = 1.0
[families.oneshot]
quantiles = "90"
rewind = "0"
[sweep]
space = ["train.learning_rate=0.001..3:log", "train.batch=32,64,128"]
trials = 6
startup = 3
grace = "1ep"
"""


def begin(folder, text=SWEEP, trials=6):
    (folder / "try.toml").write_text(text.replace("trials = 6", f"trials = {trials}"))
    return folder


def trials(folder):
    with open(folder / "runs/try/sweep/trials.csv") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A folder in which one worker has done a sweep, and what it printed."""
    folder = begin(tmp_path_factory.mktemp("swept"))
    return folder, imp_here("sweep", "try.toml", cwd=folder).stdout


@pytest.fixture
def again(swept, tmp_path):
    """A copy of it to work in."""
    return shutil.copytree(swept[0], tmp_path / "again", symlinks=True)


@pytest.fixture
def fresh(swept, tmp_path):
    """A folder with the recipe and the records, and no run."""
    shutil.copytree(swept[0] / "data", tmp_path / "data")
    return begin(tmp_path)


def best_known(trial, run, network, *_):
    """A training without a network: the nearer its learning rate to 0.1, the better."""
    accuracy = 1 - abs(math.log10(trial.params["train.learning_rate"]) + 1) / 10
    for epoch in (1, 2):
        trial.report(accuracy * epoch / 2, epoch * made.STAGES)
        if epoch == 1 and trial.should_prune():
            raise Stopped
    final = Figures(
        step=90, train_loss=0.1, validation_loss=0.3, validation_accuracy=accuracy, test_loss=0.4, test_accuracy=accuracy
    )
    return records.write(network.result, Result(status="done", replicate=1, steps_per_epoch=45, epochs=2, final=final))


def play(trained=best_known, patch=setattr):
    """Have trials end as `trained` says, without TensorFlow."""
    patch(worker, "_trained", trained)
    patch(worker, "_set_up", lambda run, seat: None)


@pytest.fixture
def played(monkeypatch):
    """A function that has trials of this process end otherwise than `best_known` says."""
    play(patch=monkeypatch.setattr)
    return lambda trained: monkeypatch.setattr(worker, "_trained", trained)


def start_worker(folder, before="", slowly=0.0, launcher=()):
    """A process that sweeps `try.toml`, its trials played, after it has done what `before` says."""
    code = f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
import optuna, test_sweep
from lottery import cli
from lottery.sweep import worker
test_sweep.play(lambda *given: (time.sleep({slowly}), test_sweep.best_known(*given))[1])
{before}
cli.main()
"""
    line = [*launcher, sys.executable, "-c", code, "sweep", "try.toml"]
    return subprocess.Popen(
        line, cwd=folder, env=clean_environment(**AS_ROOT), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_a_sweep_ends_with_a_table_and_the_best_recipe(swept):
    folder, printed = swept
    rows = trials(folder)

    assert [row["trial"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert {row["status"] for row in rows} <= {"complete", "stopped", "failed"}
    complete = [row for row in rows if row["status"] == "complete"]
    best = max(complete, key=lambda row: float(row["accuracy"]))
    made = tomllib.loads((folder / "runs/try/sweep/best.toml").read_text())
    assert made["train"]["learning_rate"] == float(best["train.learning_rate"])
    assert made["train"]["batch"] == int(best["train.batch"])
    assert (made["name"], made["train"]["epochs"]) == ("try-best", 2)
    assert f"{float(best['accuracy']):.2%}" in printed
    assert "explains" in printed


def test_a_row_is_what_the_training_of_its_trial_recorded(swept):
    folder, _ = swept

    for row in trials(folder):
        place = folder / f"runs/try/sweep/trials/{int(row['trial']) - 1:04d}"
        lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
        assert float(row["accuracy"]) == lines[-1]["validation_accuracy"]
        assert float(row["seconds"]) == sum(line["timing"]["seconds"] for line in lines)
        assert float(row["epochs"]) == lines[-1]["epoch"]
        assert not list(place.glob("*.h5"))


def test_a_finished_sweep_is_not_done_again(again):
    before = (again / "runs/try/sweep/trials.csv").read_bytes()

    told = json.loads(imp_here("sweep", "--json", cwd=again).stdout)

    assert (again / "runs/try/sweep/trials.csv").read_bytes() == before
    assert list(told) == ["trials", "cost", "best", "importances", "keys", "planned", "under_way"]
    assert (len(told["trials"]), told["planned"], told["under_way"]) == (6, 6, 0)
    assert told["cost"]["epochs"] == sum(one["epochs"] for one in told["trials"]) == 2 * told["cost"]["dense_trainings"]
    assert set(told["importances"]) == set(told["keys"]) == {"train.learning_rate", "train.batch"}
    assert told["best"]["accuracy"] == max(one["accuracy"] for one in told["trials"] if one["status"] == "complete")


@pytest.mark.usefixtures("played")
def test_asha_lets_the_best_quarter_go_on(fresh):
    imp_here("sweep", "try.toml", *settings("sweep.pruner=asha", "sweep.startup=6"), cwd=fresh)

    reached = [(row["status"], float(row["accuracy"])) for row in trials(fresh)]
    assert reached[0][0] == "complete"
    assert {status for status, _ in reached} == {"complete", "stopped"}


@pytest.mark.usefixtures("played")
@pytest.mark.parametrize("tail", [b"", b'{"op_code": 6, "worker'], ids=["whole", "cut short"])
def test_more_trials_are_added_to_those_there_are(swept, again, tail):
    journal = again / "runs/try/sweep/journal.log"
    journal.write_bytes(journal.read_bytes() + tail)

    for _ in range(2):
        imp_here("sweep", "--set", "sweep.trials=7", cwd=again)

    before, after = trials(swept[0]), trials(again)
    assert len(after) == 7
    assert [row["accuracy"] for row in after[:6]] == [row["accuracy"] for row in before]


def test_a_damaged_journal_is_named(again):
    with open(again / "runs/try/sweep/journal.log", "a") as journal:
        journal.write('{"half\nand more\n')

    done = imp_here("sweep", cwd=again, check=False)

    assert done.returncode == 2
    assert "journal.log is damaged" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_lock_of_the_journal_that_a_killed_worker_left_is_not_waited_for_forever(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(made, "GRACE_SECONDS", 1)
    dimensions = [spaces.parse_dimension("train.learning_rate=0.1..1")]
    made.Trials(Path("sweep"), dimensions, Sweep(), 0.0, 20, 0, "accuracy")
    (tmp_path / "sweep/journal.log.lock").symlink_to(tmp_path / "sweep/journal.log")

    began = time.monotonic()
    made.Trials(Path("sweep"), dimensions, Sweep(), 0.0, 20, 0, "accuracy")

    assert 1 < time.monotonic() - began < 30


def test_another_recipe_is_not_mixed_in(again):
    done = imp_here("sweep", "--set", "train.epochs=3", "--set", "sweep.trials=7", cwd=again, check=False)

    assert done.returncode == 2
    assert "train.epochs was 2, is 3" in done.stderr
    assert len(trials(again)) == 6


def test_killed_it_goes_on_with_the_trial_that_was_under_way(swept, fresh, monkeypatch):
    save = checkpoints.save

    def die(path, saved):
        save(path, saved)
        if path.parent.name == "0001":
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "save", die)
        imp_here("sweep", "try.toml", cwd=fresh, check=False)
    trial = fresh / "runs/try/sweep/trials/0001"
    assert ((trial / "checkpoint.h5").exists(), (trial / "result.json").exists()) == (True, False)

    imp_here("sweep", "--set", "sweep.trials=2", cwd=fresh)

    whole, resumed = trials(swept[0]), trials(fresh)
    assert [(row["status"], row["accuracy"], row["train.batch"]) for row in resumed] == [
        (row["status"], row["accuracy"], row["train.batch"]) for row in whole[:2]
    ]


@pytest.mark.usefixtures("played")
def test_killed_while_the_values_of_a_trial_were_drawn(fresh):
    begin(fresh, trials=2)
    dying = "os._exit(9) if given[1] == 'train.batch' else draw(*given)"
    worker = start_worker(fresh, f"draw = optuna.Trial._suggest; optuna.Trial._suggest = lambda *given: {dying}")
    assert worker.wait() == 9

    imp_here("sweep", cwd=fresh)

    assert [row["status"] for row in trials(fresh)] == ["complete", "complete"]
    assert all(row["train.batch"] and row["train.learning_rate"] for row in trials(fresh))


@pytest.mark.usefixtures("played")
def test_a_trial_that_kills_its_process_twice_is_set_aside(fresh):
    begin(fresh, trials=2)
    for _ in range(2):
        assert start_worker(fresh, "worker._trained = lambda *_: os._exit(9)").wait() == 9

    imp_here("sweep", cwd=fresh)

    assert [row["status"] for row in trials(fresh)] == ["failed", "complete"]
    assert "twice in a row" in trials(fresh)[0]["reason"]


def test_a_trial_whose_end_was_not_told_is_not_trained_again(fresh, played):
    begin(fresh, trials=1)
    assert start_worker(fresh, "optuna.Study.tell = lambda *_: os._exit(9)").wait() == 9
    assert (fresh / "runs/try/sweep/trials/0000/result.json").exists()
    played(lambda *_: pytest.fail("trained again"))

    imp_here("sweep", cwd=fresh)

    assert [row["status"] for row in trials(fresh)] == ["complete"]


def test_a_trial_that_is_told_to_stop_stays_under_way(fresh, played):
    def stopping(*_):
        raise Preempted("stopped by SIGTERM")

    played(stopping)
    done = imp_here("sweep", "try.toml", cwd=fresh, check=False)

    assert (done.returncode, done.stderr.splitlines()[-1]) == (75, "stopped by SIGTERM; the same command goes on from here")
    assert [row["status"] for row in trials(fresh)] == ["under way"]


@pytest.mark.parametrize("launchers", [[(), ()], [(mpirun(), "--oversubscribe", "-n", "2")]], ids=["shell", "mpirun"])
def test_workers_share_a_sweep(fresh, launchers):
    begin(fresh, trials=4)
    workers = [start_worker(fresh, slowly=0.2, launcher=launcher) for launcher in launchers]
    printed = "".join(worker.communicate()[0] for worker in workers)
    assert not any(worker.returncode for worker in workers), printed

    rows = trials(fresh)
    assert [row["trial"] for row in rows] == ["1", "2", "3", "4"]
    assert "under way" not in {row["status"] for row in rows}
    assert all(printed.count(f"trial {number} of 4: learning_rate") == 1 for number in range(1, 5))


@pytest.mark.usefixtures("played")
def test_trials_may_be_of_fewer_classes(fresh):
    shutil.rmtree(fresh / "data")
    begin(fresh, SWEEP.replace("trials = 6", "trials = 1\nclasses = 3"))

    printed = imp_here("sweep", "try.toml", cwd=fresh).stdout

    assert (fresh / "data/digits-8-first3/manifest.json").exists()
    made = tomllib.loads((fresh / "runs/try/sweep/best.toml").read_text())
    assert made["data"]["classes"] == 0
    assert "classes = 0" in (fresh / "runs/try/recipe.toml").read_text()
    told = next(line for line in printed.splitlines() if "another seed" in line).partition("imp ")[2]
    for command in f"imp {told}".split(" && "):
        imp_here(*command.split()[1:], cwd=fresh)
    trained = tomllib.loads((fresh / "runs/try-best/recipe.toml").read_text())
    assert (trained["seed"], trained["train"]["batch"]) == (1, made["train"]["batch"])
    assert (fresh / "runs/try-best/replicate-1/train/result.json").exists()


def test_a_trial_that_fails_is_a_record_and_the_others_go_on(fresh, played):
    def large_batches_fail(trial, *others):
        if trial.params["train.batch"] == "128":
            raise MemoryError("no room\nfor that")
        return best_known(trial, *others)

    played(large_batches_fail)

    imp_here("sweep", "try.toml", cwd=fresh)

    rows = trials(fresh)
    assert len(rows) == 6
    assert {row["train.batch"] for row in rows if row["status"] == "failed"} == {"128"}
    assert {row["reason"] for row in rows if row["status"] == "failed"} == {"MemoryError: no room"}
    assert all(row["train.batch"] != "128" for row in rows if row["status"] == "complete")


def test_a_worker_of_which_three_trials_in_a_row_fail_leaves_the_others(fresh, played):
    begin(fresh, SWEEP.replace("train.batch=32,64,128", "train.batch=100000,200000"))
    played(lambda trial, run, *_: plan.make(values.applied(run.recipe, trial.params), 1151))

    done = imp_here("sweep", "try.toml", cwd=fresh, check=False)

    assert done.returncode == 1
    assert "imp: 3 trials in a row failed here, the last: train.batch is" in done.stderr
    assert [row["status"] for row in trials(fresh)] == ["failed"] * 3


def test_devices_that_are_not_there_are_one_line_and_use_up_no_trial(fresh, played, monkeypatch):
    def no_devices(run, seat):
        raise InputError("train.devices is 4, but this process sees 1 GPUs")

    monkeypatch.setattr(worker, "_set_up", no_devices)

    done = imp_here("sweep", "try.toml", cwd=fresh, check=False)

    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, "imp: train.devices is 4, but this process sees 1 GPUs")
    assert [row["status"] for row in trials(fresh)] == ["under way"]


def test_a_trial_that_meets_a_full_disk_is_left_to_whoever_comes_next(fresh, played):
    def no_room(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "trials/0000/checkpoint.h5")

    begin(fresh, trials=1)
    played(no_room)
    done = imp_here("sweep", "try.toml", cwd=fresh, check=False)
    assert done.returncode == 2
    assert "checkpoint.h5: No space left on device" in done.stderr.splitlines()[-1]
    assert [row["status"] for row in trials(fresh)] == ["under way"]

    played(best_known)
    imp_here("sweep", cwd=fresh)

    assert [row["status"] for row in trials(fresh)] == ["complete"]


def test_a_range_of_whole_numbers_holds_all_between_them_where_its_key_is_no_whole_number():
    wanted = reading.resolve(
        {"sweep": {"space": ["train.clip_norm=0..5", "train.epochs=5..20", "train.learning_rate=1..2:log"]}}
    )

    kinds = {dimension.key: type(dimension.values[0]) for dimension in values.searched(wanted)}

    assert kinds == {"train.clip_norm": float, "train.epochs": int, "train.learning_rate": float}
    assert values.searched(wanted)[0].values == (0.0, 5.0)


def test_what_the_task_cannot_have_is_not_searched():
    model, space = Model(name="transformer_tiny"), ["train.label_smoothing=0,0.1"]
    wanted = Recipe(task="ranking", data=Data(source="docstrings"), model=model, sweep=Sweep(space=space))

    with pytest.raises(InputError, match=r"train\.label_smoothing is of classes, and task = ranking has none"):
        values.searched(wanted)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["sweep.space=[]"], "sweep.space is empty"),
        (['sweep.space=["train.batch=0,32"]'], "sweep.space: train.batch: Input should be greater than 0, not 0"),
        (["sweep.trials=0"], "sweep.trials"),
        (["task=ranking"], "task = ranking is of texts"),
        (["data.source=docstrings", "sweep.classes=3"], "sweep.classes is of images"),
        (["sweep.grace=soon"], "sweep.grace"),
    ],
)
def test_bad_input_is_one_line(tmp_path, values, words):
    begin(tmp_path)
    done = imp_here("sweep", "try.toml", *(part for value in values for part in ("--set", value)), cwd=tmp_path, check=False)

    refused(done, words)
    assert not (tmp_path / "runs").exists()


def test_a_slurm_array_of_workers(tmp_path):
    begin(tmp_path)
    refused(imp_here("slurm", "sweep", "--run", "runs/try", "--array", "4", cwd=tmp_path, check=False), "no run in runs/try")
    assert not (tmp_path / "runs").exists()

    imp_here("slurm", "sweep", "--recipe", "try.toml", "--array", "4", "--gpus-per-node", "1", cwd=tmp_path)

    script = (tmp_path / "runs/try/slurm/sweep.sh").read_text()
    assert "--array=1-4" in script
    assert "imp sweep --run runs/try\n" in script
    for option, value in (("--quantiles", "90"), ("--replicate", "2")):
        done = imp_here("slurm", "sweep", "--run", "runs/try", option, value, cwd=tmp_path, check=False)
        refused(done, f"No such option: {option}")
