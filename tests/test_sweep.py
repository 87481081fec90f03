"""`imp sweep`: a search that any number of workers share, and that goes on when one is killed."""

import csv
import json
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import yaml
from helpers import IMP, SLOWLY, clean_environment, imp, refused

from lottery import recipe, spaces
from lottery.search import agents, study, values

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
[retrain]
rewind = "0"
[sweep]
space = ["train.learning_rate=0.001..3:log", "train.batch=32,64,128"]
trials = 6
startup = 3
grace = "1ep"
"""


def begin(folder, text=SWEEP):
    (folder / "try.toml").write_text(text)
    return folder


def trials(folder):
    with open(folder / "runs/try/sweep/trials.csv") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A folder in which one worker has done a sweep, and what it printed."""
    folder = begin(tmp_path_factory.mktemp("swept"))
    return folder, imp("sweep", "try.toml", cwd=folder).stdout


def test_a_sweep_ends_with_a_table_a_page_and_the_best_recipe(swept):
    folder, printed = swept
    rows = trials(folder)

    assert [row["trial"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert {row["status"] for row in rows} <= {"complete", "pruned", "failed"}
    complete = [row for row in rows if row["status"] == "complete"]
    best = max(complete, key=lambda row: float(row["accuracy"]))
    made = tomllib.loads((folder / "runs/try/sweep/best.toml").read_text())
    assert made["train"]["learning_rate"] == float(best["train.learning_rate"])
    assert made["train"]["batch"] == int(best["train.batch"])
    assert (made["name"], made["train"]["epochs"]) == ("try-best", 2)
    assert f"{float(best['accuracy']):.2%}" in printed
    page = (folder / "runs/try/sweep/index.html").read_text()
    assert page.count('<script type="application/json">') == 3
    assert "What matters" in page


def test_the_accuracy_of_a_trial_is_the_one_its_training_recorded(swept):
    folder, _ = swept

    for row in trials(folder):
        place = folder / f"runs/try/sweep/trials/{int(row['trial']) - 1:04d}"
        lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
        assert float(row["accuracy"]) == lines[-1]["validation_accuracy"]
        assert not list(place.glob("*.h5"))


def test_a_finished_sweep_is_not_done_again(swept):
    folder, _ = swept
    before = (folder / "runs/try/sweep/trials.csv").read_bytes()

    done = imp("sweep", cwd=folder)

    assert "trial 1 of" not in done.stdout + done.stderr
    assert (folder / "runs/try/sweep/trials.csv").read_bytes() == before


def test_more_trials_are_added_to_those_there_are(swept, tmp_path):
    folder = shutil.copytree(swept[0], tmp_path / "more", symlinks=True)

    imp("sweep", "--set", "sweep.trials=7", cwd=folder)

    before, after = trials(swept[0]), trials(folder)
    assert len(after) == 7
    assert [row["accuracy"] for row in after[:6]] == [row["accuracy"] for row in before]


def test_a_damaged_journal_is_named(swept, tmp_path):
    folder = shutil.copytree(swept[0], tmp_path / "damaged", symlinks=True)
    with open(folder / "runs/try/sweep/journal.log", "a") as journal:
        journal.write('{"half\nand more\n')

    done = imp("sweep", cwd=folder, check=False)

    assert done.returncode == 2
    assert "journal.log is damaged" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_last_line_that_was_cut_short_costs_no_trial(swept, tmp_path):
    folder = shutil.copytree(swept[0], tmp_path / "cut", symlinks=True)
    journal = folder / "runs/try/sweep/journal.log"
    journal.write_bytes(journal.read_bytes() + b'{"op_code": 6, "worker')

    imp("sweep", "--set", "sweep.trials=7", cwd=folder)
    imp("sweep", "--set", "sweep.trials=7", cwd=folder)

    assert [row["accuracy"] for row in trials(folder)[:6]] == [row["accuracy"] for row in trials(swept[0])]
    assert len(trials(folder)) == 7


def test_a_lock_of_the_journal_that_a_killed_worker_left_is_not_waited_for_forever(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "GRACE_SECONDS", 3)
    dimensions = spaces.parse(["train.learning_rate=0.1..1"])
    study.Study(Path("sweep"), dimensions, 3, 1, 0.0, 0)
    (tmp_path / "sweep/journal.log.lock").symlink_to(tmp_path / "sweep/journal.log")

    began = time.monotonic()
    study.Study(Path("sweep"), dimensions, 3, 1, 0.0, 0)

    assert 3 < time.monotonic() - began < 30


def test_another_recipe_is_not_mixed_in(swept, tmp_path):
    folder = shutil.copytree(swept[0], tmp_path / "other", symlinks=True)

    done = imp("sweep", "--set", "train.epochs=3", "--set", "sweep.trials=7", cwd=folder, check=False)

    assert done.returncode == 2
    assert "train.epochs was 2, is 3" in done.stderr
    assert len(trials(folder)) == 6


def test_killed_it_goes_on_with_the_trial_that_was_under_way(swept, tmp_path):
    folder = begin(tmp_path)
    trial = folder / "runs/try/sweep/trials/0002"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOWLY, "sweep", "try.toml"],
        cwd=folder,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    deadline = time.monotonic() + 300
    while not (trial / "checkpoint.h5").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.005)
    process.kill()
    process.communicate()
    assert (trial / "checkpoint.h5").exists()
    assert not (trial / "result.json").exists()

    imp("sweep", cwd=folder)

    whole, resumed = trials(swept[0]), trials(folder)
    assert [(row["status"], row["accuracy"], row["train.batch"]) for row in resumed[:3]] == [
        (row["status"], row["accuracy"], row["train.batch"]) for row in whole[:3]
    ]
    assert len(resumed) == 6
    assert "under way" not in {row["status"] for row in resumed}


def test_killed_while_the_values_of_a_trial_were_drawn(tmp_path):
    folder = begin(tmp_path, SWEEP.replace("trials = 6", "trials = 2"))
    half = "import os; from optuna.trial import Trial; Trial.suggest_categorical = lambda *_, **__: os._exit(9); "
    done = subprocess.run(
        [sys.executable, "-c", half + "from lottery import cli; cli.main()", "sweep", "try.toml"],
        cwd=folder,
        env=clean_environment(),
    )
    assert done.returncode == 9

    imp("sweep", cwd=folder)

    assert [row["status"] for row in trials(folder)] == ["complete", "complete"]
    assert all(row["train.batch"] and row["train.learning_rate"] for row in trials(folder))


def test_a_trial_that_kills_its_process_twice_is_set_aside(tmp_path):
    folder = begin(tmp_path, SWEEP.replace("trials = 6", "trials = 2"))
    killer = "import os; from lottery import start; start.start_tensorflow(); from lottery.engine import loop; "
    killer += "loop.Trainer.steps = lambda *_: os._exit(9); from lottery import cli; cli.main()"
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", killer, "sweep", "try.toml"], cwd=folder, env=clean_environment())
        assert done.returncode == 9

    imp("sweep", cwd=folder)

    assert [row["status"] for row in trials(folder)] == ["failed", "complete"]
    assert "twice in a row" in trials(folder)[0]["reason"]


def test_a_trial_whose_end_was_not_told_is_not_trained_again(swept, tmp_path):
    folder = begin(tmp_path, SWEEP.replace("trials = 6", "trials = 1"))
    silent = "import os; from lottery.search import study; study.Trial.complete = lambda *_: os._exit(9); "
    silent += "from lottery import cli; cli.main()"
    done = subprocess.run([sys.executable, "-c", silent, "sweep", "try.toml"], cwd=folder, env=clean_environment())
    assert done.returncode == 9
    journal = folder / "runs/try/sweep/trials/0000/metrics.jsonl"
    before = journal.stat().st_mtime_ns

    imp("sweep", cwd=folder)

    assert journal.stat().st_mtime_ns == before
    assert trials(folder)[0]["accuracy"] == trials(swept[0])[0]["accuracy"]


def test_a_request_to_stop_saves_the_trial(tmp_path):
    folder = begin(tmp_path, SWEEP.replace("epochs = 2", "epochs = 200").replace("trials = 6", "trials = 1"))
    process = subprocess.Popen(
        [IMP, "sweep", "try.toml"], cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    journal = folder / "runs/try/sweep/trials/0000/metrics.jsonl"
    deadline = time.monotonic() + 120
    while not journal.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    process.communicate()

    assert process.returncode == 75
    assert (folder / "runs/try/sweep/trials/0000/checkpoint.h5").exists()
    assert [row["status"] for row in trials(folder)] == ["under way"]
    assert (folder / "runs/try/sweep/index.html").exists()


@pytest.mark.parametrize("start", ["shell", "mpirun"])
def test_workers_share_a_sweep(tmp_path, start):
    folder = begin(tmp_path)
    imp("prepare", "--size", "8", cwd=folder)
    mpirun = [Path(sys.executable).with_name("mpirun"), "--oversubscribe", "-n", "2"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [*(mpirun if start == "mpirun" else []), IMP, "sweep", "try.toml"]
    options = {"cwd": folder, "env": clean_environment(**root), "text": True}
    workers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
        for _ in range(1 if start == "mpirun" else 2)
    ]
    printed = [worker.communicate()[0] for worker in workers]

    assert [worker.returncode for worker in workers] == [0] * len(workers), printed
    rows = trials(folder)
    assert [row["trial"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert "under way" not in {row["status"] for row in rows}
    begun = "".join(printed)
    assert all(begun.count(f"trial {number} of 6: learning_rate") == 1 for number in range(1, 7))


def test_trials_may_be_of_fewer_classes(tmp_path):
    folder = begin(tmp_path, SWEEP.replace("trials = 6", "trials = 1\nclasses = 3"))

    printed = imp("sweep", "try.toml", cwd=folder).stdout

    assert (folder / "data/digits-8-first3/manifest.json").exists()
    made = tomllib.loads((folder / "runs/try/sweep/best.toml").read_text())
    assert made["data"]["classes"] == 0
    assert "classes = 0" in (folder / "runs/try/recipe.toml").read_text()
    told = next(line for line in printed.splitlines() if "another seed" in line).partition("imp ")[2]
    for command in f"imp {told}".split(" && "):
        imp(*command.split()[1:], cwd=folder)
    trained = tomllib.loads((folder / "runs/try-best/recipe.toml").read_text())
    assert (trained["seed"], trained["train"]["batch"]) == (1, made["train"]["batch"])
    assert (folder / "runs/try-best/replicate-1/train/result.json").exists()


def test_a_trial_that_fails_is_a_record_and_the_others_go_on(tmp_path):
    text = SWEEP.replace("train.batch=32,64,128", "train.batch=32,100000").replace("trials = 6", "trials = 5")
    folder = begin(tmp_path, text)

    imp("sweep", "try.toml", cwd=folder)

    rows = trials(folder)
    failed = [row for row in rows if row["status"] == "failed"]
    assert len(rows) == 5
    assert {row["train.batch"] for row in failed} == {"100000"}
    assert all("train.batch" in row["reason"] for row in failed)


def test_a_worker_of_which_three_trials_in_a_row_fail_leaves_the_others(tmp_path):
    text = SWEEP.replace("train.batch=32,64,128", "train.batch=100000,200000")
    folder = begin(tmp_path, text)

    done = imp("sweep", "try.toml", cwd=folder, check=False)

    assert done.returncode == 1
    assert "imp: 3 trials in a row failed here, the last: train.batch is" in done.stderr
    assert [row["status"] for row in trials(folder)] == ["failed"] * 3


def test_a_trial_that_meets_a_full_disk_is_left_to_whoever_comes_next(tmp_path):
    def no_large_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    folder = begin(tmp_path, SWEEP.replace("trials = 6", "trials = 1"))
    imp("prepare", "--size", "8", cwd=folder)
    done = subprocess.run(
        [IMP, "sweep", "try.toml"],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        preexec_fn=no_large_files,
    )
    assert done.returncode == 2
    assert "File too large" in done.stderr.splitlines()[-1]
    assert [row["status"] for row in trials(folder)] == ["under way"]

    imp("sweep", cwd=folder)

    assert [row["status"] for row in trials(folder)] == ["complete"]


def test_the_time_of_a_trial_is_what_was_spent_training(swept):
    folder, _ = swept
    for row in trials(folder):
        metrics = (folder / f"runs/try/sweep/trials/{int(row['trial']) - 1:04d}/metrics.jsonl").read_text().splitlines()
        assert float(row["seconds"]) == sum(json.loads(line)["timing"]["seconds"] for line in metrics)


def test_a_range_of_whole_numbers_holds_all_between_them_where_its_key_is_no_whole_number():
    wanted = recipe.resolve(
        {"sweep": {"space": ["train.clip_norm=0..5", "train.epochs=5..20", "train.learning_rate=1..2:log"]}}
    )

    kinds = {dimension.key: type(dimension.low) for dimension in values.searched(wanted)}

    assert kinds == {"train.clip_norm": float, "train.epochs": int, "train.learning_rate": float}
    assert agents.content(wanted, values.searched(wanted), Path("x"))["parameters"]["train.clip_norm"] == {
        "distribution": "uniform",
        "min": 0.0,
        "max": 5.0,
    }


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["sweep.space=[]"], "sweep.space is empty"),
        (['sweep.space=["train.bach=1,2"]'], "did you mean 'train.batch'"),
        (['sweep.space=["data.size=8,16"]'], "changes the prepared images"),
        (['sweep.space=["train.batch=0,32"]'], "sweep.space: train.batch: Input should be greater than 0, not 0"),
        (['sweep.space=["train.momentum=2..1"]'], "imp: --set: sweep.space: 'train.momentum=2..1' must ascend"),
        (["sweep.trials=0"], "sweep.trials"),
        (["sweep.grace=soon"], "sweep.grace"),
    ],
)
def test_bad_input_is_one_line(tmp_path, values, words):
    begin(tmp_path)
    done = imp("sweep", "try.toml", *(part for value in values for part in ("--set", value)), cwd=tmp_path, check=False)

    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_the_sweep_as_a_file_for_wandb_agents(tmp_path):
    begin(tmp_path)

    done = imp("sweep", "try.toml", "--wandb", cwd=tmp_path)

    content = yaml.safe_load((tmp_path / "runs/try/sweep/wandb.yaml").read_text())
    assert "wandb.yaml: hand it to `wandb sweep`" in done.stdout
    assert content["metric"] == {"name": "validation_accuracy", "goal": "maximize"}
    assert content["parameters"] == {
        "train.learning_rate": {"distribution": "log_uniform_values", "min": 0.001, "max": 3.0},
        "train.batch": {"values": ["32", "64", "128"]},
    }
    assert content["command"][1:4] == ["imp", "train", "--recipe"]
    assert content["command"][-1] == "${args_no_hyphens}"


def test_the_command_of_that_file_trains_one_network(tmp_path):
    begin(tmp_path, f"replicates = 3\n{SWEEP}")
    imp("prepare", "--size", "8", cwd=tmp_path)
    imp("sweep", "try.toml", "--wandb", cwd=tmp_path)
    content = yaml.safe_load((tmp_path / "runs/try/sweep/wandb.yaml").read_text())
    arguments = [part.replace("=online", "=offline") for part in content["command"][2:-1]]

    for run in ("abc", "def"):
        imp(*arguments, "train.learning_rate=0.03", "train.batch=32", cwd=tmp_path, WANDB_SWEEP_ID="s1", WANDB_RUN_ID=run)

    made = tomllib.loads((tmp_path / "runs/wandb-s1-abc/recipe.toml").read_text())
    assert (made["train"]["learning_rate"], made["train"]["batch"]) == (0.03, 32)
    assert (tmp_path / "runs/wandb-s1-def/replicate-1/train/result.json").exists()
    assert not (tmp_path / "runs/wandb-s1-def/replicate-2").exists()


def test_a_recipe_given_to_train_without_its_option_is_explained(tmp_path):
    begin(tmp_path)

    done = imp("train", "try.toml", cwd=tmp_path, check=False)

    assert done.returncode == 2
    assert "--recipe try.toml" in done.stderr


def test_a_slurm_array_of_workers(tmp_path):
    begin(tmp_path)
    refused(imp("slurm", "sweep", "--run", "runs/try", "--array", "4", cwd=tmp_path, check=False), "no run in runs/try")
    assert not (tmp_path / "runs").exists()

    imp("slurm", "sweep", "--recipe", "try.toml", "--array", "4", "--gpus-per-node", "1", cwd=tmp_path)

    script = (tmp_path / "runs/try/slurm/sweep.sh").read_text()
    assert "--array=1-4" in script
    assert "imp sweep --run runs/try &" in script
    done = imp("slurm", "sweep", "--run", "runs/try", "--quantiles", "90", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "--quantiles does not go with sweep" in done.stderr
    done = imp("slurm", "sweep", "--run", "runs/try", "--replicate", "2", cwd=tmp_path, check=False)
    assert "--replicate does not go with sweep" in done.stderr
