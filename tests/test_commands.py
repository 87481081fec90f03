"""The commands as a user types them, each in a process of its own."""

import csv
import json
import os
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from helpers import LENET, ROOT, clean_environment, contents, imp, mpirun

from lottery import connectivity, densities, masks, store
from lottery.jobs import Job
from lottery.run import open_run

CHARTS = ("accuracy", "differences", "early_stop", "layers", "magnitudes", "courses", "training")


def test_the_smoke_recipe_runs_from_images_to_a_report(smoke):
    folder, done = smoke

    assert "Open runs/smoke/report/index.html" in done.stdout
    report = folder / "runs/latest/report"
    assert {path.name for path in report.iterdir()} == {
        *("index.html", "summary.csv", "summary.md", "training.md"),
        *("groups.csv", "contrasts.csv", "costs.csv", "thresholds.csv"),
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
    assert "0.2 points, which a ticket may be below dense, are 0.57 of one of the 287 validation images" in page


def test_pruned_weights_are_exactly_zero_in_every_file_of_the_smoke_run(smoke):
    folder, _ = smoke
    replicate = folder / "runs/smoke/replicate-1"
    finals = list(replicate.glob("retrain/*/*/final.h5"))
    assert {path.parts[-2] for path in finals} == {"ticket", "reinit", "shuffle", "random"}
    for path in finals:
        mask = masks.load(replicate / "masks" / f"{path.parts[-3].split('-')[0]}.h5")
        state = store.load_state(path)
        for name, kept in mask.items():
            gone = ~kept if path.parts[-2] in ("ticket", "reinit") else state.weights[name] == 0  # of others, as many
            assert not state.weights[name][gone].any()
            assert not state.slots[f"momentum/{name}"][gone].any()
            assert gone.sum() == (~kept).sum()
        pruned = sum(int((~kept).sum()) for kept in mask.values())
        assert json.loads(path.with_name("result.json").read_text())["exact_zeros"] >= pruned


def test_where_a_kernel_meets_only_padding_a_shuffled_mask_stays_as_it_was(smoke):
    folder, _ = smoke
    run = open_run(folder / "runs/smoke", must_exist=True)
    met = connectivity.met(densities.topology_of(run.replicate(1)))
    assert sorted(met) == [f"block_{block}_depthwise/kernel" for block in (13, 14, 15, 16)]
    kept = masks.load(run.replicate(1).mask(Fraction(50)))
    for variant in ("shuffle", "random"):
        weights = store.load_state(run.network(Job(1, Fraction(50), 0, variant)).final).weights
        for path, places in met.items():
            unmet = np.broadcast_to(~places, kept[path].shape)
            assert np.array_equal(kept[path][unmet], weights[path][unmet] != 0)
            assert not np.array_equal(kept[path][~unmet], weights[path][~unmet] != 0)


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


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a single core")
def test_a_whole_run_takes_as_many_ranks_as_there_are_cores_and_gives_the_bytes_of_one_process(retrained, work):
    done = imp("run", cwd=work, CUDA_VISIBLE_DEVICES="")

    assert "rank 1: lenet_300_100 on CPU:0" in done.stderr
    assert "7 finished" in imp("retrain", cwd=work).stderr
    shutil.rmtree(work / "runs/digits/report")
    assert contents(work / "runs") == contents(retrained / "runs")


def test_surplus_ranks_say_so_and_idle(work):
    done = imp("retrain", "--ranks", "4", "--quantiles", "50", "--rewind", "1ep", cwd=work)

    assert "3 ranks to train on, 1 networks to train now: 2 idle" in done.stderr
    assert len(list(work.glob("runs/latest/replicate-1/retrain/*/ticket/result.json"))) == 1


def test_a_rank_that_finds_nothing_to_do_ends_with_the_others(retrained):
    assert "0 to train" in imp("retrain", "--ranks", "3", cwd=retrained).stderr


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
    imp("run", "--ranks", "1", *LENET, *(part for setting in settings for part in ("--set", setting)), cwd=tmp_path)

    replicate = tmp_path / "runs/digits/replicate-1"
    dense = sorted((replicate / "train/snapshots").iterdir())[-1]
    tickets = list(replicate.glob("retrain/*/ticket/final.h5"))
    assert len(tickets) == 3
    for ticket in tickets:
        assert ticket.read_bytes() == dense.read_bytes()


def test_a_checkpoint_that_is_no_longer_needed_is_gone(retrained):
    assert not list(retrained.rglob("checkpoint.h5"))


def test_more_replicates_get_the_masks_that_the_first_one_has(work):
    imp("thresholds", "--quantiles", "75", cwd=work)
    imp("train", "--set", "replicates=2", cwd=work)
    assert "missing" in imp("status", cwd=work).stdout

    tables = map(json.loads, imp("thresholds", "--json", cwd=work).stdout.splitlines())

    assert [[row["quantile"] for row in table["quantiles"]] for table in tables] == [[50, 75, 90]] * 2


def test_wider_grids_add_outputs_and_leave_the_others(work):
    run = work / "runs/digits/replicate-1"
    before = contents(run)

    imp("train", "--set", "train.snapshots=0,10it,1ep,25it,2ep", cwd=work)
    imp("thresholds", "--quantiles", "50,97.5", cwd=work)
    after = contents(run)

    added = {"train/snapshots/step-000025.h5", "train/snapshots/step-000034.h5", "masks/q97.5.h5"}
    assert set(after) - set(before) == added
    tables = {"thresholds.json", "train/result.json"}  # which list what there is
    assert all(after[name] == before[name] for name in before.keys() - tables)
    assert [row["quantile"] for row in after["thresholds.json"]["quantiles"]] == [50, 90, 97.5]


def test_a_snapshot_made_later_is_the_one_made_on_the_way(trained, work):
    lost = "runs/digits/replicate-1/train/snapshots/step-000010.h5"
    (work / lost).unlink()

    imp("train", cwd=work)

    assert (work / lost).read_bytes() == (trained / lost).read_bytes()


def test_a_snapshot_that_no_result_lists_yet_is_listed(work):
    """As a kill leaves it that comes just before."""
    result = work / "runs/digits/replicate-1/train/result.json"
    before = result.read_bytes()
    imp("train", "--set", "train.snapshots=0,10it,1ep,25it", cwd=work)
    after = result.read_bytes()
    result.write_bytes(before)

    imp("train", cwd=work)

    assert result.read_bytes() == after


@pytest.mark.parametrize("name", ["topology.json", "made_with.json"])
def test_what_a_dense_network_says_of_itself_is_written_again_once_removed(work, name):
    lost = work / "runs/digits/replicate-1/train" / name
    whole = lost.read_bytes()
    lost.unlink()

    imp("train", cwd=work)

    assert lost.read_bytes() == whole
    assert imp("verify", "runs/digits", cwd=work).returncode == 0


def test_another_replicate_is_another_network(work):
    imp("train", "--set", "replicates=2", cwd=work)

    first, second = (sorted(work.glob(f"runs/digits/replicate-{n}/train/snapshots/*"))[0].read_bytes() for n in (1, 2))
    assert first != second


def test_a_set_is_prepared_where_it_is_wanted_and_a_run_is_named_after_it(trained, tmp_path):
    done = imp("prepare", "digits", "--size", "8", "--out", "my digits", cwd=tmp_path)
    assert done.stdout == "train on them with: imp run --records 'my digits'\n"
    assert [path.name for path in tmp_path.iterdir()] == ["my digits"]
    shards = {path.name: path.read_bytes() for path in (trained / "data/digits-8").glob("*.tfrecord")}
    assert {path.name: path.read_bytes() for path in (tmp_path / "my digits").glob("*.tfrecord")} == shards

    few = ["--set", "thresholds.quantiles=90", "--set", "retrain.rewind=1ep", "--set", "retrain.controls=[]"]
    done = imp("run", "--ranks", "1", "--records", "my digits", *LENET, *few, cwd=tmp_path)

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


def test_a_dry_run_lists_the_campaign_and_writes_nothing(tmp_path):
    recipe = str(ROOT / "pipelines/imagenet64.toml")

    table = imp("run", "--dry-run", recipe, cwd=tmp_path).stdout
    lines = json.loads(imp("run", "--dry-run", "--json", recipe, cwd=tmp_path).stdout)

    assert "100 networks under masks, 8670 epochs in all\n" in table
    assert sum(line["rewound"] for line in lines) == 100
    assert not list(tmp_path.iterdir())


def test_a_dry_run_of_rounds_says_which_controls_depend_on_a_headline(tmp_path):
    settings = ["--set", "replicates=3", "--set", 'pruning=["rounds"]', "--set", "rounds.levels=2"]

    table = imp("run", "--dry-run", str(ROOT / "pipelines/digits.toml"), *settings, cwd=tmp_path).stdout

    assert "replicate-3 weights from 0, headline reinit" in table
    assert "9 networks under masks, 240 epochs in all; 3 of them, controls, only where a ticket matches\n" in table


def test_a_run_is_found_by_option_by_environment_and_by_link(work):
    for arguments, environment in ((["--run", "runs/digits"], {}), ([], {"IMP_RUN": "runs/digits"}), ([], {})):
        assert "runs/digits" in imp("status", *arguments, cwd=work, **environment).stdout
