"""The commands as a user types them, each in a process of its own."""

import csv
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import IMP, LENET, ROOT, clean_environment, contents, imp, refused

from lottery import cli, masks, store
from lottery.fanout import launcher


def mpirun(ranks: int, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`mpirun -n RANKS imp ...`, with what a small machine and root need."""
    line = [Path(sys.executable).with_name("mpirun"), "--oversubscribe", "-n", str(ranks), IMP, *arguments]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.run(line, cwd=cwd, env=clean_environment(**root), capture_output=True, text=True)


CHARTS = ("accuracy", "differences", "early_stop", "layers", "magnitudes", "courses", "training")


def test_the_smoke_recipe_runs_from_images_to_a_report(smoke):
    folder, done = smoke

    assert "Open runs/smoke/report/index.html" in done.stdout
    report = folder / "runs/latest/report"
    assert {path.name for path in report.iterdir()} == {
        *("index.html", "summary.csv", "summary.md", "training.md"),
        *(f"{chart}.{kind}" for chart in CHARTS for kind in ("csv", "png", "svg")),
    }
    with open(report / "summary.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["variant"] for row in rows].count("ticket") == 4
    assert {row["variant"] for row in rows} == {"dense", "ticket", "reinit", "shuffle", "random"}
    assert all(row["status"] == "done" for row in rows)
    page = (report / "index.html").read_text()
    assert [chart for chart in CHARTS if f'id="{chart}"' not in page] == []
    assert "src=http" not in page
    assert "undecided" in page


def test_pruned_weights_are_exactly_zero_in_every_file_of_the_smoke_run(smoke):
    folder, _ = smoke
    replicate = folder / "runs/smoke/replicate-1"
    finals = list(replicate.glob("retrain/*/ticket/final.h5"))
    assert len(finals) == 4
    for path in finals:
        mask = masks.load(replicate / "masks" / f"{path.parts[-3].split('-')[0]}.h5")
        state = store.load_state(path)
        for name, kept in mask.items():
            slot = state.slots[f"momentum/{name}"]
            assert not state.weights[name][~kept].any()
            assert not slot[~kept].any()
        pruned = sum(int((~kept).sum()) for kept in mask.values())
        assert json.loads(path.with_name("result.json").read_text())["exact_zeros"] >= pruned


def test_a_finished_run_is_not_done_again(smoke):
    folder, _ = smoke
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs/smoke/replicate-1").rglob("*") if path.is_file()}

    imp("run", str(ROOT / "pipelines/smoke.toml"), cwd=folder)

    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_status_and_report_print_json(smoke):
    folder, _ = smoke

    lines = json.loads(imp("status", "--json", cwd=folder).stdout)
    report = json.loads(imp("report", "--json", cwd=folder).stdout)
    table = json.loads(imp("thresholds", "--json", cwd=folder).stdout)

    assert {line["stage"]: (line["done"], line["missing"]) for line in lines} == {
        "records": (1, 0),
        "train": (1, 0),
        "thresholds": (2, 0),
        "retrain": (8, 0),
    }
    assert len(report["networks"]) == 9
    assert {"scope", "count", "min", "max", "mean"} <= table.keys()
    assert [row["quantile"] for row in table["quantiles"]] == [50, 90]
    assert table["quantiles"][1]["pruned"] == int(np.ceil(0.9 * (table["count"] - 1)))


def test_help_imports_nothing_heavy():
    code = "import sys; sys.argv = ['imp', '--help']\ntry:\n import lottery.cli; lottery.cli.main()\nexcept SystemExit: pass\n"
    code += "print(sorted({'numpy', 'pydantic', 'tensorflow', 'h5py', 'keras', 'mpi4py', 'wandb'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "retrain" in done.stdout
    assert done.stdout.rstrip().splitlines()[-1] == "[]"


def test_reading_results_needs_no_tensorflow(retrained, tmp_path):
    shutil.copytree(retrained, tmp_path / "work", symlinks=True)
    shutil.rmtree(tmp_path / "work/runs/digits/replicate-1/masks")
    code = "import sys\nfrom lottery import cli\nfor command in ('thresholds', 'report', 'status'):\n"
    code += " try: cli.app([command])\n except SystemExit: pass\nassert 'tensorflow' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "work", check=True, capture_output=True, env=clean_environment()
    )


def test_the_stdlib_module_imp_stays_importable():
    if sys.version_info >= (3, 12):
        pytest.skip("Python 3.12 removed the module imp")
    code = "import imp; print(imp.__file__)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert Path(done.stdout.strip()).parent == Path(os.__file__).parent


def test_three_ranks_give_the_bytes_of_one_process(retrained, work):
    done = mpirun(3, "retrain", cwd=work)

    assert done.returncode == 0, done.stderr
    assert contents(work / "runs") == contents(retrained / "runs")


def test_surplus_ranks_say_so_and_idle(work):
    done = imp("retrain", "--ranks", "4", "--quantiles", "50", "--rewind", "1ep", cwd=work)

    assert "3 ranks to train on, 1 networks to train now: 2 idle" in done.stderr
    assert len(list(work.glob("runs/latest/replicate-1/retrain/*/ticket/result.json"))) == 1


def test_a_rank_that_finds_nothing_to_do_ends_with_the_others(retrained):
    assert "0 to train" in imp("retrain", "--ranks", "3", cwd=retrained).stderr


def kill_when(command: list[str], folder: Path, ready) -> None:
    """Start `imp` and kill it with SIGKILL as soon as `ready()` holds; it must not have ended by then."""
    process = subprocess.Popen([IMP, *command], cwd=folder, env=clean_environment(), stderr=subprocess.DEVNULL)
    while not ready():
        assert process.poll() is None, "ended before it could be killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("moment", ["snapshots/step-000000.h5", "snapshots/step-000010.h5", "checkpoint.h5", "metrics.jsonl"])
def test_a_dense_training_killed_at_any_moment_ends_with_the_same_bytes(trained, prepared, moment):
    target = prepared / "runs/digits/replicate-1/train" / moment

    kill_when(["train", *LENET], prepared, lambda: target.exists() and target.stat().st_size)
    assert not (prepared / "runs/digits/replicate-1/train/result.json").exists()
    imp("train", cwd=prepared)

    expected = trained / "runs/digits/replicate-1/train"
    assert contents(prepared / "runs/digits/replicate-1/train") == contents(expected)
    assert not list(prepared.rglob("*.tmp"))


STREAM = ["--set", "data.feed=stream"]
WINDOWS = ["--set", "data.shuffle=300", "--set", "data.crop=1", "--set", "data.flip=true", "--set", "data.cutout=3"]


def test_a_streamed_training_that_is_killed_goes_on_in_memory_with_the_same_bytes(trained, tmp_path):
    moved = shutil.copytree(trained / "data/digits-8", tmp_path / "moved")
    dense = "replicate-1/train"
    imp("train", "--run", "whole", *LENET, *WINDOWS, cwd=tmp_path, IMP_DATA=str(trained / "data"))
    checkpoint = tmp_path / "killed" / dense / "checkpoint.h5"

    kill_when(["train", "--run", "killed", "--records", str(moved), *LENET, *WINDOWS, *STREAM], tmp_path, checkpoint.exists)
    refused(
        imp("train", "--run", "killed", "--set", "data.shuffle=400", cwd=tmp_path, check=False),
        "data.shuffle was 300, is 400",
    )
    elsewhere = ["--set", "data.feed=memory", "--set", "data.budget=1", "--set", f"data.path={trained / 'data/digits-8'}"]
    imp("train", "--run", "killed", *elsewhere, cwd=tmp_path)

    assert contents(tmp_path / "killed" / dense) == contents(tmp_path / "whole" / dense)


@pytest.mark.parametrize("moment", ["q50-step-000000/ticket/checkpoint.h5", "q90-step-000000/ticket/metrics.jsonl"])
def test_a_retraining_killed_at_any_moment_ends_with_the_same_bytes(retrained, work, moment):
    target = work / "runs/digits/replicate-1/retrain" / moment

    kill_when(["retrain"], work, lambda: target.exists() and target.stat().st_size)
    assert "missing" in imp("status", cwd=work).stdout
    imp("retrain", cwd=work)

    assert contents(work / "runs") == contents(retrained / "runs")


@pytest.mark.parametrize(
    "train",
    [
        ["train.ema=0.9", "train.clip_norm=0.5", "train.label_smoothing=0.1"],
        ["train.optimizer=adam"],
        ["train.optimizer=adam", "train.decay=decoupled", "train.ema=0.9", "train.precision=mixed_bfloat16"],
    ],
    ids=" ".join,
)
def test_the_identity_ticket_is_the_dense_run_bit_for_bit(tmp_path, train):
    settings = [*train, "retrain.slots=restore", "retrain.order=same", "thresholds.quantiles=0"]
    settings += ["retrain.rewind=0,10it,1ep", "retrain.controls=[]", "data.crop=2", "data.flip=true"]
    imp("run", *LENET, *(part for setting in settings for part in ("--set", setting)), cwd=tmp_path)

    replicate = tmp_path / "runs/digits/replicate-1"
    dense = sorted((replicate / "train/snapshots").iterdir())[-1]
    tickets = list(replicate.glob("retrain/*/ticket/final.h5"))
    assert len(tickets) == 3
    for ticket in tickets:
        assert ticket.read_bytes() == dense.read_bytes()


def test_a_training_that_was_begun_is_not_gone_on_with_under_another_recipe(prepared):
    checkpoint = prepared / "runs/digits/replicate-1/train/checkpoint.h5"
    kill_when(["train", *LENET], prepared, checkpoint.exists)

    done = imp("train", "--set", "seed=7", cwd=prepared, check=False)

    refused(done, "replicate-1/train was made with another recipe", "seed was 0, is 7")
    assert "seed = 0" in (prepared / "runs/digits/recipe.toml").read_text()


def test_masks_left_by_a_killed_stage_are_not_taken_for_others(work):
    (work / "runs/digits/replicate-1/thresholds.json").unlink()

    done = imp("thresholds", "--set", "thresholds.scope=all", cwd=work, check=False)

    refused(done, "replicate-1/masks was made with another recipe", "thresholds.scope was 'kernels', is 'all'")


def test_a_checkpoint_that_is_no_longer_needed_is_gone(retrained):
    assert not list(retrained.rglob("checkpoint.h5"))


def test_more_replicates_get_the_masks_that_the_first_one_has(work):
    imp("thresholds", "--quantiles", "75", cwd=work)
    imp("train", "--set", "replicates=2", cwd=work)
    assert "missing" in imp("status", cwd=work).stdout

    tables = map(json.loads, imp("thresholds", "--json", cwd=work).stdout.splitlines())

    assert [[row["quantile"] for row in table["quantiles"]] for table in tables] == [[50, 75, 90]] * 2


def test_two_commands_on_one_run_share_the_pairs(work, retrained):
    with subprocess.Popen([IMP, "retrain"], cwd=work, env=clean_environment(), stderr=subprocess.DEVNULL) as other:
        codes = {other.wait() if turn else imp("retrain", cwd=work, check=False).returncode for turn in (0, 1)}

    assert codes <= {0, 2}
    imp("retrain", cwd=work)
    assert contents(work / "runs") == contents(retrained / "runs")


def test_wider_grids_add_outputs_and_leave_the_others(work):
    run = work / "runs/digits/replicate-1"
    before = contents(run)

    imp("train", "--set", "train.snapshots=0,10it,1ep,25it,2ep", cwd=work)
    imp("thresholds", "--quantiles", "50,97.5", cwd=work)
    after = contents(run)

    added = {"train/snapshots/step-000025.h5", "train/snapshots/step-000034.h5", "masks/q97.5.h5"}
    assert set(after) - set(before) == added
    assert all(after[name] == before[name] for name in before if name != "thresholds.json")
    assert [row["quantile"] for row in after["thresholds.json"]["quantiles"]] == [50, 90, 97.5]


def test_a_snapshot_made_later_is_the_one_made_on_the_way(trained, work):
    lost = "runs/digits/replicate-1/train/snapshots/step-000010.h5"
    (work / lost).unlink()

    imp("train", cwd=work)

    assert (work / lost).read_bytes() == (trained / lost).read_bytes()


def test_another_replicate_is_another_network(work):
    imp("train", "--set", "replicates=2", cwd=work)

    first, second = (sorted(work.glob(f"runs/digits/replicate-{n}/train/snapshots/*"))[0].read_bytes() for n in (1, 2))
    assert first != second


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_pair_that_diverges_is_a_record_and_the_others_go_on(work, ranks):
    snapshot = work / "runs/digits/replicate-1/train/snapshots/step-000000.h5"
    state = store.load_state(snapshot)
    state.weights["fc1/bias"][:] = 1e38
    store.save_state(snapshot, state)

    options = ["--quantiles", "90", "--set", "retrain.controls=[]", "--ranks", ranks]
    done = imp("retrain", *options, cwd=work, check=False)

    assert done.returncode == 1
    assert "not finished: replicate-1 q90-step-000000 ticket diverged" in done.stderr
    retrain = work / "runs/digits/replicate-1/retrain"
    assert json.loads((retrain / "q90-step-000000/ticket/result.json").read_text())["status"] == "diverged"
    assert json.loads((retrain / "q90-step-000017/ticket/result.json").read_text())["status"] == "done"
    assert "diverged" in imp("status", cwd=work).stdout


def test_a_pair_that_fails_is_a_record_and_is_tried_again(trained, work):
    lost = "runs/digits/replicate-1/train/snapshots/step-000017.h5"
    (work / lost).write_bytes((work / lost).read_bytes()[:1000])

    done = imp("retrain", "--ranks", "2", "--quantiles", "90", cwd=work, check=False)
    assert done.returncode == 1
    assert done.stderr.count("step-000017.h5 is damaged") >= 2
    shutil.copy(trained / lost, work / lost)

    assert "5 networks under masks: 3 finished, 2 to train" in imp("retrain", "--quantiles", "90", cwd=work).stderr
    assert "failed" not in json.dumps(json.loads(imp("report", "--json", cwd=work).stdout)["networks"])


def test_a_set_is_prepared_where_it_is_wanted_and_a_run_is_named_after_it(trained, tmp_path):
    done = imp("prepare", "digits", "--size", "8", "--out", "my digits", cwd=tmp_path)
    assert done.stdout == "train on them with: imp run --records 'my digits'\n"
    assert [path.name for path in tmp_path.iterdir()] == ["my digits"]
    shards = {path.name: path.read_bytes() for path in (trained / "data/digits-8").glob("*.tfrecord")}
    assert {path.name: path.read_bytes() for path in (tmp_path / "my digits").glob("*.tfrecord")} == shards

    few = ["--set", "thresholds.quantiles=90", "--set", "retrain.rewind=1ep", "--set", "retrain.controls=[]"]
    done = imp("run", "--records", "my digits", *LENET, *few, cwd=tmp_path)

    assert "Open runs/my-digits/report/index.html" in done.stdout
    values = (tmp_path / "runs/my-digits/recipe.toml").read_text()
    for line in ('name = "my-digits"', 'source = "digits"', "size = 8", f'path = "{tmp_path / "my digits"}"'):
        assert line in values.splitlines()
    assert not (tmp_path / "data").exists()
    trained_dense, dense = (
        contents(run / "replicate-1/train") for run in (trained / "runs/digits", tmp_path / "runs/my-digits")
    )
    assert dense == trained_dense
    assert "my-digits" in imp("status", cwd=tmp_path).stdout
    imp("train", "--records", "my digits", cwd=tmp_path)
    assert contents(tmp_path / "runs/my-digits/replicate-1/train") == dense


def test_without_a_source_the_records_of_the_run_are_prepared(trained):
    before = {path: path.stat().st_mtime_ns for path in (trained / "data/digits-8").iterdir()}

    done = imp("prepare", cwd=trained)

    assert done.stdout == ""
    assert done.stderr == "records in data/digits-8: 1151 train, 287 validation, 359 test images of 8x8, 10 classes\n"
    assert {path: path.stat().st_mtime_ns for path in (trained / "data/digits-8").iterdir()} == before
    assert not list(trained.glob("data/*/.*"))


# Bad input: one line, exit code 2, nothing written.


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.epoch=5", ["unknown key 'train.epoch'", "did you mean 'train.epochs'"]),
        ("train.epochs=many", ["train.epochs", "many"]),
        ("train.epochs=0", ["train.epochs", "0"]),
        ("train.nesterov=1", ["train.nesterov"]),
        ("train.learning_rate=nan", ["train.learning_rate"]),
        ("thresholds.quantiles=101", ["0..100"]),
        ("thresholds.quantiles=", ["quantiles ''"]),
        ("thresholds.quantiles=99..60", ["ascend"]),
        ("thresholds.quantiles=90,80", ["80 comes after 90"]),
        ("train.snapshots=0,99ep", ["99ep", "20 epochs"]),
        ("name=latest", ["name", "'latest' cannot name a run"]),
        ("retrain.rewind=20ep", ["20ep", "nothing to train"]),
        ("retrain.rewind=soon", ["'soon' is not a point of training"]),
        ("data.source=mnist", ["data.source", "'mnist'", "folder:DIR"]),
        ("data.source=tfds:", ["data.source", "'tfds:'"]),
        ("data.feed=disk", ["data.feed", "'disk'"]),
        ("data.cutout=-1", ["data.cutout", "-1"]),
        ("data.shuffle=0", ["data.shuffle", "0"]),
        ("data.resized_crop=0.5", ["crop and resized_crop exclude each other", "set one to 0"]),
        ("model.name=resnet", ["model.name", "resnet"]),
    ],
)
def test_a_bad_value_is_refused_before_anything_is_written(tmp_path, setting, words):
    refused(imp("run", "--set", setting, cwd=tmp_path, check=False), *words)
    assert not list(tmp_path.iterdir())


def test_bad_recipes_are_refused_by_name(tmp_path):
    (tmp_path / "broken.toml").write_text("[train\n")
    (tmp_path / "misspelt.toml").write_text("[train]\nbatchs = 3\n")

    refused(imp("run", "none.toml", cwd=tmp_path, check=False), "there is no recipe none.toml")
    refused(imp("run", "broken.toml", cwd=tmp_path, check=False), "broken.toml is not TOML")
    refused(imp("run", "misspelt.toml", cwd=tmp_path, check=False), "misspelt.toml", "'train.batchs'", "'train.batch'")
    assert not (tmp_path / "runs").exists()


def test_stages_out_of_order_say_which_comes_first(tmp_path):
    refused(imp("status", cwd=tmp_path, check=False), "no run in runs/digits")
    refused(imp("train", cwd=tmp_path, check=False), "no records in data/digits-32", "imp prepare")
    assert not list(tmp_path.iterdir())
    imp("prepare", *LENET, cwd=tmp_path)
    refused(imp("thresholds", cwd=tmp_path, check=False), "run `imp train` first")
    refused(imp("retrain", cwd=tmp_path, check=False), "run `imp thresholds` first")
    refused(imp("report", cwd=tmp_path, check=False), "run `imp train` first")


def test_with_ranks_bad_input_is_one_line(work):
    shutil.rmtree(work / "runs/digits/replicate-1/masks")

    refused(imp("retrain", "--ranks", "3", cwd=work, check=False), "run `imp thresholds` first")


def test_under_mpirun_bad_input_is_told_once(work):
    shutil.rmtree(work / "runs/digits/replicate-1/masks")

    done = mpirun(3, "retrain", cwd=work)

    assert done.returncode == 2
    assert done.stderr.count("run `imp thresholds` first") == 1


def test_points_past_the_end_of_training_are_refused(work):
    refused(imp("train", "--set", "train.snapshots=0,1ep,52it", cwd=work, check=False), "52it", "3 epochs")
    refused(imp("retrain", "--rewind", "2ep", cwd=work, check=False), "2ep is not among the snapshots")
    refused(imp("retrain", "--rewind", "3ep", cwd=work, check=False), "3ep leaves nothing to train")
    refused(imp("retrain", "--rewind", "2.99ep", cwd=work, check=False), "2.99ep leaves nothing to train")
    refused(imp("retrain", "--quantiles", "75", cwd=work, check=False), "no mask of 75", "imp thresholds --quantiles 75")
    refused(imp("train", "--set", "train.batch=5000", "--run", "other", *LENET, cwd=work, check=False), "5000", "1151")


def test_outputs_of_another_recipe_stop_the_stage_and_show_the_difference(work):
    before = contents(work)

    for command in ("train", "thresholds", "retrain", "run"):
        done = imp(command, "--set", "train.batch=32", cwd=work, check=False)
        refused(done, "replicate-1/masks was made with another recipe", "train.batch was 64, is 32")
    refused(
        imp("thresholds", "--set", "thresholds.scope=all", cwd=work, check=False), "thresholds.scope was 'kernels', is 'all'"
    )

    assert contents(work) == before
    assert "batch = 64" in (work / "runs/digits/recipe.toml").read_text()


def cut(content: bytes) -> bytes:
    return content[:-100]


def altered(content: bytes) -> bytes:
    place = len(content) // 4  # within the first layer's weights
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("damage", [cut, altered])
def test_a_damaged_snapshot_is_named_and_never_used(work, damage):
    snapshot = work / "runs/digits/replicate-1/train/snapshots/step-000051.h5"
    snapshot.write_bytes(damage(snapshot.read_bytes()))
    shutil.rmtree(work / "runs/digits/replicate-1/masks")

    refused(imp("thresholds", cwd=work, check=False), "step-000051.h5 is damaged")


def test_damaged_records_are_named_and_never_used(work):
    shard = work / "data/digits-8/train-00000.tfrecord"
    shard.write_bytes(shard.read_bytes()[:-1])

    done = imp("train", "--set", "replicates=2", cwd=work, check=False)

    refused(done, "train-00000.tfrecord is damaged", "imp prepare")


def test_records_of_other_settings_are_refused(work):
    done = imp("prepare", "--run", "runs/other", *LENET, "--set", "data.validation=0.3", cwd=work, check=False)

    refused(done, "data.validation 0.2 there, 0.3 wanted")
    assert not (work / "runs/other").exists()


@pytest.mark.parametrize("command", ["train", "run"])
def test_values_that_the_records_do_not_have_are_refused(trained, tmp_path, command):
    records = ["--records", str(trained / "data/digits-8")]

    refused(imp(command, *records, "--set", "data.size=16", cwd=tmp_path, check=False), "data.size 8 there, 16 wanted")
    refused(imp(command, "--records", "nowhere", cwd=tmp_path, check=False), "no records in nowhere")
    assert not list(tmp_path.iterdir())


def test_a_damaged_shard_stops_a_stream_in_the_middle_and_is_named(work):
    shard = work / "data/digits-8/train-00000.tfrecord"
    shard.write_bytes(altered(shard.read_bytes()))

    done = imp("train", "--set", "replicates=2", "--set", "data.feed=stream", cwd=work, check=False)

    refused(done, "train-00000.tfrecord is damaged", "imp prepare", said=1)


def test_a_full_disk_is_one_line_and_the_run_goes_on_later(trained, prepared):
    def no_large_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = subprocess.run(
        [IMP, "train", *LENET], cwd=prepared, env=clean_environment(), capture_output=True, text=True, preexec_fn=no_large_files
    )
    refused(done, "step-000000.h5: File too large", said=1)
    assert not list(prepared.rglob("*.h5"))
    imp("train", cwd=prepared)

    assert contents(prepared / "runs/digits/replicate-1/train") == contents(trained / "runs/digits/replicate-1/train")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_one_line(tmp_path):
    tmp_path.chmod(0o500)

    refused(imp("prepare", cwd=tmp_path, check=False), "Permission denied")


@pytest.fixture
def hold(work):
    """A function that holds the lock of a folder of `work` in another process, whose id it returns."""
    code = "import sys, time; from pathlib import Path; from lottery import locks\n"
    code += "with locks.writing(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    started = []

    def start(folder: str) -> int:
        started.append(subprocess.Popen([sys.executable, "-c", code, folder], cwd=work, stdout=subprocess.PIPE))
        started[-1].stdout.readline()
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_second_writer_is_told_who_the_first_is(work, hold):
    holder = hold("runs/digits/replicate-2/train")

    done = imp("train", "--set", "replicates=2", cwd=work, check=False)

    refused(done, "runs/digits/replicate-2/train is being written by process", str(holder), said=1)
    assert "replicates = 1" in (work / "runs/digits/recipe.toml").read_text()


def test_a_pair_under_way_elsewhere_is_left_to_its_process(work, hold):
    holder = hold("runs/digits/replicate-1/retrain/q90-step-000017/ticket")
    assert re.search(r"retrain *│ +0 │ +1 │ +0 │ +6 │", imp("status", cwd=work).stdout)

    done = imp("retrain", "--quantiles", "90", "--set", "retrain.controls=[]", cwd=work, check=False)

    assert done.returncode == 2
    line = f"not finished: replicate-1 q90-step-000017 ticket busy: .* is being written by process {holder}"
    assert re.search(line, done.stderr)
    assert (work / "runs/digits/replicate-1/retrain/q90-step-000000/ticket/result.json").exists()


def test_without_mpi_ranks_are_refused_with_the_way_out(work, monkeypatch, capsys):
    monkeypatch.chdir(work)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "argv", ["imp", "retrain", "--ranks", "2"])

    with pytest.raises(SystemExit) as stopped:
        cli.main()

    assert stopped.value.code == 2
    assert (
        capsys.readouterr().err
        == "imp: no mpirun found: `pip install 'imp-lottery[local]'` brings one, or load your cluster's MPI\n"
    )


def test_an_mpirun_that_says_all_went_well_is_not_believed_while_networks_are_missing(work, monkeypatch, capsys):
    monkeypatch.chdir(work)
    monkeypatch.setattr(launcher, "launch", lambda line, environment: 0)
    monkeypatch.setattr(sys, "argv", ["imp", "retrain", "--ranks", "2"])
    (work / "runs/digits/replicate-1/retrain/q90-step-000000/ticket/result.json").unlink(missing_ok=True)

    with pytest.raises(SystemExit) as stopped:
        cli.main()

    assert stopped.value.code == 75
    said = capsys.readouterr().err
    assert re.fullmatch(r"mpirun ended early, \d+ networks are missing: the same command goes on from here\n", said)


@pytest.mark.parametrize("command", ["run", "prepare", "train", "thresholds", "report"])
def test_only_retraining_runs_on_many_ranks(tmp_path, command):
    refused(imp(command, cwd=tmp_path, check=False, PMI_RANK="0", PMI_SIZE="2"), "only `imp retrain` runs on many ranks")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [["retrain", "--ranks", "0"], ["frobnicate"], ["status", "--jsn"]])
def test_a_command_line_that_makes_no_sense_is_one_line(tmp_path, arguments):
    refused(
        imp(*arguments, cwd=tmp_path, check=False), arguments[-1].lstrip("-") if len(arguments) < 3 else "--ranks", "--help"
    )


def test_a_dry_run_lists_the_campaign_and_writes_nothing(tmp_path):
    recipe = str(ROOT / "pipelines/imagenet64.toml")

    table = imp("run", "--dry-run", recipe, cwd=tmp_path).stdout
    lines = json.loads(imp("run", "--dry-run", "--json", recipe, cwd=tmp_path).stdout)

    assert "100 networks under masks, 8670 epochs in all" in table
    assert sum(line["rewound"] for line in lines) == 100
    assert not list(tmp_path.iterdir())


def test_a_run_is_found_by_option_by_environment_and_by_link(work):
    for arguments, environment in ((["--run", "runs/digits"], {}), ([], {"IMP_RUN": "runs/digits"}), ([], {})):
        assert "runs/digits" in imp("status", *arguments, cwd=work, **environment).stdout
