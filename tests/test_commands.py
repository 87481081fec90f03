"""The commands: the smoke recipe with a small network, and the rest."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import LENET, ROOT, changed, clean_environment, contents, imp, imp_here, refused, settings

from lottery.base import files
from lottery.pruning import connectivity
from lottery.rundir import store
from lottery.rundir.names import Replicate
from lottery.rundir.run import open_run

CHARTS = ("accuracy", "macs", "early_stop", "layers", "settling", "signs", "courses", "training")
FEW = settings("families.oneshot.quantiles=90", "families.oneshot.rewind=1ep", "families.oneshot.controls=[]")


def test_the_smoke_recipe_runs_from_images_to_a_report(smoke):
    folder, done = smoke

    assert "Open runs/smoke/report/index.html" in done.stdout
    report = folder / "runs/latest/report"
    assert {path.name for path in report.iterdir()} == {
        *("index.html", "summary.csv", "summary.md"),
        *("groups.csv", "contrasts.csv", "costs.csv", "criteria.csv", "settled.csv", "verdicts.csv"),
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
    assert re.search(r"keras 3\.\d+", page)  # of the environment
    assert "One of 287 validation images is 0.35 points, more than the margin of 0.2" in page


def test_pruned_weights_are_exactly_zero_in_every_file_of_the_smoke_run(smoke):
    folder, _ = smoke
    family = folder / "runs/smoke/replicate-1/oneshot"
    finals = list(family.glob("*/*/final.h5"))
    assert {path.parts[-2] for path in finals} == {"ticket", "reinit", "shuffle", "random"}
    for path in finals:
        shared = store.load_mask(family / "masks" / f"{path.parts[-3].split('-')[0]}.h5")
        has_own = path.parts[-2] in ("shuffle", "random")
        assert path.with_name("mask.h5").exists() == has_own
        mask = store.load_mask(path.with_name("mask.h5")) if has_own else shared
        state = store.load_state(path)
        for name, kept in mask.items():
            assert not state.weights[name][~kept].any()
            assert not state.optimizer[f"momentum/{name}"][~kept].any()
            assert kept.sum() == shared[name].sum()
        pruned = sum(int((~kept).sum()) for kept in mask.values())
        assert json.loads(path.with_name("result.json").read_text())["exact_zeros"] >= pruned


@pytest.mark.smoke
def test_where_a_kernel_meets_only_padding_a_shuffled_mask_stays_as_it_was(tmp_path):
    done = imp("run", str(ROOT / "pipelines/smoke.toml"), "--ranks", "1", cwd=tmp_path)
    run = open_run(tmp_path / "runs/smoke", must_exist=True)
    assert "Open runs/smoke/report/index.html" in done.stdout
    met = connectivity.met(run.replicate(1).read_topology())
    assert sorted(met) == [f"block_{block}_depthwise/kernel" for block in (13, 14, 15, 16)]
    shared = store.load_mask(run.replicate(1).folder / "oneshot/masks/q50.h5")
    for variant in ("shuffle", "random"):
        own = store.load_mask(run.network_in(f"replicate-1/oneshot/q50-step-000000/{variant}").mask)
        for path, places in met.items():
            unmet = np.broadcast_to(~places, shared[path].shape)
            assert np.array_equal(shared[path][unmet], own[path][unmet])
            assert not np.array_equal(shared[path][~unmet], own[path][~unmet])


def test_a_finished_run_is_not_done_again(smoke):
    folder, _ = smoke
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs/smoke/replicate-1").rglob("*") if path.is_file()}

    for command in ("prepare", "train", "thresholds", "retrain"):
        imp_here(command, cwd=folder)

    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_status_and_report_print_json(smoke):
    folder, _ = smoke

    lines = json.loads(imp_here("status", "--json", cwd=folder).stdout)
    report = json.loads(imp_here("report", "--json", cwd=folder).stdout)
    (table,) = json.loads(imp_here("thresholds", "--json", cwd=folder).stdout)

    assert {line["stage"]: (line["done"], line["missing"]) for line in lines} == {
        "records": (1, 0),
        "train": (1, 0),
        "thresholds": (2, 0),
        "oneshot": (8, 0),
    }
    assert len(report["networks"]) == 9
    assert (table["replicate"], table["family"]) == (1, "oneshot")
    assert [mask["mask"] for mask in table["masks"]] == ["q50", "q90"]
    scores = table["masks"][1]["scores"]
    assert scores.keys() == {"count", "min", "max", "mean"}
    assert table["masks"][1]["pruned"] == int(np.ceil(0.9 * (scores["count"] - 1)))


@pytest.mark.parametrize(
    ("command", "heavy", "sentence"),
    [
        ("", {"numpy", "pydantic", "tensorflow", "h5py", "keras", "mpi4py", "wandb"}, "retrain"),
        (
            "bench",
            {"numpy", "tensorflow", "keras", "altair", "PIL", "h5py", "rich"},
            "Exported tickets beside the dense network, in each engine: microseconds, speed-up, size, accuracy.\n",
        ),
    ],
)
def test_help_has_every_sentence_and_loads_nothing_heavy(command, heavy, sentence):
    code = f"import sys; sys.argv = ['imp', *{command!r}.split(), '--help']\n"
    code += "try:\n import lottery.cli; lottery.cli.main()\nexcept SystemExit: pass\n"
    code += f"print(sorted({heavy!r} & set(sys.modules)))"
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=clean_environment(COLUMNS="130"))

    assert sentence in done.stdout
    assert done.stdout.rstrip().splitlines()[-1] == "[]"


def test_cutting_masks_and_reading_results_need_no_tensorflow(retrained, tmp_path):
    shutil.copytree(retrained, tmp_path / "work", symlinks=True)
    shutil.rmtree(tmp_path / "work/runs/digits/replicate-1/oneshot/masks")
    commands = ["thresholds", "report", "status", "export --ticket dense --to npz"]
    code = f"import sys\nfrom lottery import cli\nfor command in {commands}:\n try: cli.app(command.split())\n"
    code += " except SystemExit as end: assert not end.code\nfrom lottery.results.reader import open_results\n"
    code += "results = open_results('runs/digits')\nresults.frame(), results.metrics(), results.networks()[0].norms()\n"
    code += "assert 'tensorflow' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "work", check=True, capture_output=True, env=clean_environment()
    )


def test_the_stdlib_module_imp_stays_importable():
    if sys.version_info >= (3, 12):
        pytest.skip("Python 3.12 removed the module imp")
    code = "import imp; print(imp.__file__)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert Path(done.stdout.strip()).parent == Path(os.__file__).parent


@pytest.mark.parametrize(
    "train",
    [
        ["train.ema=0.9", "train.clip_norm=0.5", "train.label_smoothing=0.1"],
        ["train.optimizer=adam", "train.decay=decoupled", "train.ema=0.9", "train.precision=mixed_bfloat16"],
    ],
    ids=" ".join,
)
def test_the_identity_ticket_is_the_dense_run_bit_for_bit(trained, tmp_path, train):
    family = ["quantiles=0", "rewind=0,10it,1ep", "controls=[]"]
    values = [*train, "retrain.optimizer_state=restore", "retrain.order=same", "data.crop=2", "data.flip=true"]
    values += [f"families.oneshot.{value}" for value in family]
    imp_here("train", *LENET, *settings(*values), cwd=tmp_path, IMP_DATA=str(trained / "data"))
    imp_here("thresholds", cwd=tmp_path)
    imp_here("retrain", cwd=tmp_path, IMP_DATA=str(trained / "data"))

    replicate = tmp_path / "runs/digits/replicate-1"
    dense = sorted((replicate / "train/snapshots").iterdir())[-1]
    tickets = list(replicate.glob("oneshot/*/ticket/final.h5"))
    assert len(tickets) == 3
    for ticket in tickets:
        assert ticket.read_bytes() == dense.read_bytes()


def test_a_checkpoint_that_is_no_longer_needed_is_gone(retrained):
    assert not list(retrained.rglob("checkpoint.h5"))


def test_more_replicates_get_the_masks_that_the_first_one_has(work):
    imp_here("thresholds", "--quantiles", "75", cwd=work)
    imp_here("train", *settings("replicates=2"), cwd=work)
    assert "missing" in imp_here("status", cwd=work).stdout

    tables = json.loads(imp_here("thresholds", "--json", cwd=work).stdout)

    assert [[mask["mask"] for mask in table["masks"]] for table in tables] == [["q50", "q75", "q90"]] * 2
    first, second = (sorted(work.glob(f"runs/digits/replicate-{n}/train/snapshots/*"))[0].read_bytes() for n in (1, 2))
    assert first != second


def test_wider_grids_add_outputs_and_leave_the_others(work):
    run = work / "runs/digits/replicate-1"
    before = contents(run)

    imp_here("train", *settings("train.snapshots=0,10it,1ep,25it,2ep"), cwd=work)
    imp_here("thresholds", "--quantiles", "50,97.5", cwd=work)
    after = contents(run)

    snapshots = {"train/snapshots/step-000025.h5", "train/snapshots/step-000034.h5"}
    assert set(after) - set(before) == {*snapshots, "oneshot/masks/q97.5.h5", "oneshot/masks/q97.5.json"}
    assert {name for name in before if after[name] != before[name]} == {"train/result.json"}  # which lists the snapshots
    with open(run / "oneshot/thresholds.csv") as file:
        assert [row["quantile"] for row in csv.DictReader(file) if not row["layer"]] == ["50", "90", "97.5"]


def test_a_snapshot_that_no_result_lists_yet_is_listed(trained, work):
    """As a kill leaves it that comes just before."""
    result = work / "runs/digits/replicate-1/train/result.json"
    listed = files.read_json(result)["outputs"]
    changed(result, outputs={name: seal for name, seal in listed.items() if "step-000010" not in name})

    imp_here("train", cwd=work)

    assert files.read_json(result) == files.read_json(trained / result.relative_to(work))


@pytest.mark.parametrize("name", ["snapshots/step-000010.h5", "topology.json", "made_with.json"])
def test_what_a_dense_network_has_lost_is_made_again_with_the_same_bytes(work, name):
    lost = work / "runs/digits/replicate-1/train" / name
    whole = lost.read_bytes()
    lost.unlink()

    imp_here("train", cwd=work)

    assert lost.read_bytes() == whole
    assert imp_here("verify", "runs/digits", cwd=work).returncode == 0


def test_a_set_is_prepared_where_it_is_wanted_and_a_run_is_named_after_it(trained, tmp_path):
    done = imp_here("prepare", "digits", "--size", "8", "--out", "my digits", cwd=tmp_path)
    assert done.stdout == "train on them with: imp run --records 'my digits'\n"
    assert [path.name for path in tmp_path.iterdir()] == ["my digits"]
    shards = {path.name: path.read_bytes() for path in (trained / "data/digits-8").glob("*.tfrecord")}
    assert {path.name: path.read_bytes() for path in (tmp_path / "my digits").glob("*.tfrecord")} == shards

    done = imp_here("run", "--ranks", "1", "--records", "my digits", *LENET, *FEW, cwd=tmp_path)

    assert "Open runs/my-digits/report/index.html" in done.stdout
    values = (tmp_path / "runs/my-digits/recipe.toml").read_text()
    for line in ('name = "my-digits"', 'source = "digits"', "size = 8", f'path = "{tmp_path / "my digits"}"'):
        assert line in values.splitlines()
    assert not (tmp_path / "data").exists()
    trained_dense, dense = (
        contents(run / "replicate-1/train") for run in (trained / "runs/digits", tmp_path / "runs/my-digits")
    )
    assert dense == trained_dense
    assert "my-digits" in imp_here("status", cwd=tmp_path).stdout
    imp_here("train", "--records", "my digits", cwd=tmp_path)
    assert contents(tmp_path / "runs/my-digits/replicate-1/train") == dense


def test_without_a_source_the_records_of_the_run_are_prepared(trained):
    before = {path: path.stat().st_mtime_ns for path in (trained / "data/digits-8").iterdir()}

    done = imp_here("prepare", cwd=trained)

    assert done.stdout == ""
    assert done.stderr == "records in data/digits-8: 1151 train, 287 validation, 359 test images of 8x8, 10 classes\n"
    assert {path: path.stat().st_mtime_ns for path in (trained / "data/digits-8").iterdir()} == before
    assert not list(trained.glob("data/*/.*"))


def test_a_dry_run_lists_the_campaign_and_writes_nothing(tmp_path):
    recipe = str(ROOT / "pipelines/imagenet64.toml")

    table = imp_here("run", "--dry-run", recipe, cwd=tmp_path).stdout
    left = json.loads(imp_here("run", "--dry-run", "--json", recipe, cwd=tmp_path).stdout)
    on_nodes = imp_here("run", "--dry-run", recipe, "--nodes", "20", "--epoch-seconds", "780", cwd=tmp_path).stdout

    assert "101 trainings (1 dense, 100 tickets, 0 controls), 8670 epochs\n" in table
    assert "│ oneshot ticket │    100 │   8580 │ 1.01 .. 1.40 │\n" in table  # of so many networks only the kinds
    assert "run `imp prepare` first\n" in table  # which are not downloaded
    assert [one["kind"] for one in left["networks"]] == ["dense", *["oneshot ticket"] * 100]
    assert left["seconds"] is None
    assert "\nabout 112 h 27 min of training on 20 nodes, 1,878 node-hours: 13 min 00 s an epoch, as given\n" in on_nodes
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nodes", "20"], "--nodes is for a forecast"),
        (["--epoch-seconds", "60"], "--epoch-seconds is for a forecast"),
        (["--dry-run", "--epoch-seconds", "nan"], "--epoch-seconds nan is not the length of an epoch"),
        (["--dry-run", "--epoch-seconds", "0"], "--epoch-seconds 0 is not the length of an epoch"),
        (["--dry-run", "--nodes", "0"], "--nodes"),
    ],
)
def test_a_forecast_for_nodes_is_refused_without_a_dry_run_and_where_it_has_no_length(tmp_path, options, words):
    refused(imp_here("run", *options, cwd=tmp_path, check=False), words)


def test_a_dry_run_does_not_count_networks_that_are_only_evaluated_as_trainings(work):
    masks = settings('families.oneshot.controls=["supermask"]', "families.oneshot.controls_at=90")

    told = imp_here("run", "--dry-run", *masks, cwd=work).stdout

    assert "\n4 trainings (0 dense, 4 tickets, 0 controls), 10.666 epochs; 2 more are evaluated without training; " in told


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (['families.oneshot.controls=["nobody:control"]'], "controls: nobody cannot be imported"),
        (['families.oneshot.densities=["fc9/*=10"]'], "'fc9/*' matches no variable of lenet_300_100"),
        (['pruning.exclude=["fc1/*", "fc9/*"]'], "pruning.exclude: 'fc9/*' matches no variable of lenet_300_100"),
        (['pruning.exclude=["*"]'], "nothing to prune"),
        (["model.weights=nowhere.npz"], "nowhere.npz"),
        (["families.oneshot.rewind=2ep"], "2ep is not among the snapshots"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would_refuse(prepared, tensorflow, values, words):
    done = imp_here("run", "--dry-run", *LENET, *settings(*values), cwd=prepared, check=False)

    refused(done, words)
    if "matches" in words:
        assert "Its variables are fc1/bias, fc1/kernel, fc2/bias" in done.stderr
    assert not (prepared / "runs").exists()


def test_a_dry_run_lists_what_is_left_to_train(work):
    told = imp_here("run", "--dry-run", cwd=work).stdout

    assert "replicate-1 dense" not in told
    assert "; 1 network more finished\n" in told
    assert re.search(r"\nabout \d+ s of training.*: .* s an epoch on CPU, as in 1 training of this run\n", told)
    two = imp_here("run", "--dry-run", "--set", "replicates=2", cwd=work).stdout
    assert "replicate-2 dense" in two


def test_the_variables_of_a_network_are_listed_before_anything_is_trained(prepared):
    asked = ["explore", "--model", *LENET, *settings('pruning.exclude=["fc2/*", "conv/*"]')]

    told = imp_here(*asked, cwd=prepared).stdout

    rows = [line.split() for line in told.splitlines()]
    assert ["│", "fc1/kernel", "│", "192x300", "│", "57,600", "│", "57,600", "│", "prunable", "│"] in rows
    assert ["│", "fc1/bias", "│", "300", "│", "300", "│", "│", "│"] in rows
    assert ["│", "fc2/kernel", "│", "300x100", "│", "30,000", "│", "30,000", "│", "exclude", "fc2/*", "│"] in rows
    assert told.splitlines()[-3:] == [
        "in all: 6 variables, 89,010 numbers, 88,600 MACs",
        "prunable: 2 variables, 58,600 numbers, 58,600 MACs",
        "pruning.exclude: nothing that would be prunable matches conv/*",
    ]
    assert not (prepared / "runs").exists()


@pytest.fixture(scope="module")
def in_rounds(trained, tmp_path_factory):
    """A folder with a trained run whose recipe prunes in rounds alone."""
    folder = tmp_path_factory.mktemp("rounds")
    shutil.copytree(trained / "data", folder / "data")
    recipe = imp_here("recipe", cwd=trained).stdout
    without = recipe[: recipe.index("[families.oneshot]")]
    (folder / "rounds.toml").write_text(f"{without}[families.iterative]\nrounds = 1\n")
    imp_here("train", "--recipe", "rounds.toml", cwd=folder)
    return folder


def test_commands_about_one_shot_and_rounds_stay_as_typed_on_a_run_whose_recipe_has_no_such_family(in_rounds):
    replicate = in_rounds / "runs/digits/replicate-1"

    refused(imp_here("retrain", cwd=in_rounds, check=False), "no family prunes in one shot: `imp thresholds` adds one")
    imp_here("retrain", "--family", "iterative", cwd=in_rounds)
    assert (replicate / "iterative/round-01-step-000000/ticket/result.json").exists()
    imp_here("thresholds", "--quantiles", "60..62", cwd=in_rounds)
    imp_here("retrain", "--quantiles", "62", "--rewind", "1ep", cwd=in_rounds)
    imp_here("rounds", "--rounds", "2", cwd=in_rounds)

    assert {mask.name for mask in Replicate(replicate).masks("oneshot")} == {"q60", "q61", "q62"}
    assert [path.parent.name for path in replicate.glob("oneshot/*/ticket")] == ["q62-step-000017"]
    assert sorted(path.parent.name for path in replicate.glob("iterative/*/ticket")) == [
        "round-01-step-000000",
        "round-02-step-000000",
    ]
    recipe = (in_rounds / "runs/digits/recipe.toml").read_text()
    assert "[families.iterative]" in recipe
    assert "[families.oneshot]" in recipe
