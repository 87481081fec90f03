"""Bad input, as a user gives it: one line, exit code 2, and nothing is written."""

import os
import re

import pytest
from helpers import LENET, contents, flip, imp_here, refused, settings

from data_prep import records
from lottery.base import files
from lottery.base.errors import InputError
from lottery.rundir.names import Replicate


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.epoch=5", ["unknown key 'train.epoch'", "did you mean 'train.epochs'"]),
        ("train.learning_rate=nan", ["train.learning_rate"]),
        ("train.snapshots=0,99ep", ["99ep", "20 epochs"]),
        ("families.oneshot.rewind=20ep", ["20ep", "nothing to train"]),
        ("families.oneshot.rewind=soon", ["'soon' is not a point of training"]),
        ("replicates=99999999999", ["replicates", "1000"]),
        ("families.oneshot.quantiles=0..100:0.0000001", ["0..100:0.0000001", "more than 1,000"]),
    ],
)
def test_a_bad_value_is_refused_before_anything_is_written(tmp_path, setting, words):
    refused(imp_here("run", "--set", setting, cwd=tmp_path, check=False), *words)
    assert not list(tmp_path.iterdir())


def test_grids_without_end_are_refused_by_every_command(work):
    for command in ("thresholds", "retrain", "explore"):
        refused(imp_here(command, "--quantiles", "0..100:0.0000001", cwd=work, check=False), "more than 1,000")
    refused(imp_here("run", "--dry-run", "--set", "replicates=99999999999", cwd=work, check=False), "replicates", "1000")
    refused(imp_here("train", "--replicate", "99999999999", cwd=work, check=False), "--replicate", "1000")
    refused(imp_here("slurm", "retrain", "--array", "9999999", cwd=work, check=False), "--array", "999999")
    refused(imp_here("explore", "--at", "9" * 5000 + "it", cwd=work, check=False), "not a point of training")


DEEP = {
    "arrays": "name = " + "[" * 5000 + "]" * 5000,
    "tables": "x = " + "{a=" * 5000 + "1" + "}" * 5000,
    "fewer dots": ".".join("a" * 600) + " = 1",
    "a table": f"[{'.'.join('a' * 20_000)}]",
    "digits": "seed = " + "9" * 10_000,
    "digits in a list": f"data.mean = [{'9' * 4000}]",
}


@pytest.mark.parametrize("case", DEEP)
def test_a_recipe_that_was_made_to_break_its_reader_is_one_line(case, tmp_path):
    (tmp_path / "made.toml").write_text(DEEP[case])

    done = imp_here("recipe", "made.toml", cwd=tmp_path, check=False)

    refused(done, "made.toml")
    assert len(done.stderr) < 500
    deep = imp_here("recipe", *settings(f"data.mean={'[' * 5000}{']' * 5000}"), cwd=tmp_path, check=False)
    refused(deep, "--set", "data.mean")


@pytest.mark.parametrize(
    ("name", "value"),
    [("result.json", "[" * 5000 + "]" * 5000), ("topology.json", "9" * 10_000)],
    ids=["result.json", "topology.json"],
)
def test_a_sealed_table_that_was_made_to_break_its_reader_is_one_line(work, name, value):
    path = work / "runs/digits/replicate-1/train" / name
    content = path.read_text().replace('"steps_per_epoch": 17', f'"steps_per_epoch": {value}')
    content = content.replace('"width": 300', f'"width": {value}')
    assert value in content
    blank = re.sub('(?<="sha256": ")[0-9a-f]{64}', "0" * 64, content, count=1)
    path.write_text(blank.replace("0" * 64, files.sha256(path.name.encode() + blank.encode()), 1))

    if name == "topology.json":
        with pytest.raises(InputError, match=name):
            Replicate(path.parents[1]).read_topology()
    else:
        refused(imp_here("thresholds", cwd=work, check=False), name)


def test_stages_out_of_order_say_which_comes_first(tmp_path):
    refused(imp_here("status", cwd=tmp_path, check=False), "no run in runs/digits")
    refused(imp_here("train", cwd=tmp_path, check=False), "no records in data/digits-32", "imp prepare")
    assert not list(tmp_path.iterdir())
    imp_here("prepare", *LENET, cwd=tmp_path)
    refused(imp_here("thresholds", cwd=tmp_path, check=False), "run `imp train` first")
    refused(imp_here("retrain", cwd=tmp_path, check=False), "run `imp train` first")
    refused(imp_here("report", cwd=tmp_path, check=False), "run `imp train` first")


def test_points_past_the_end_of_training_are_refused(work):
    refused(imp_here("train", "--set", "train.snapshots=0,1ep,52it", cwd=work, check=False), "52it", "3 epochs")
    refused(imp_here("retrain", "--rewind", "2ep", cwd=work, check=False), "2ep is not among the snapshots")
    refused(imp_here("retrain", "--rewind", "3ep", cwd=work, check=False), "3ep leaves nothing to train")
    refused(imp_here("retrain", "--rewind", "2.99ep", cwd=work, check=False), "2.99ep leaves nothing to train")
    refused(imp_here("retrain", "--quantiles", "75", cwd=work, check=False), "no mask of 75", "imp thresholds --quantiles 75")
    large = [*LENET, "--set", "train.batch=5000", "--set", "name=other", "--recipe", "default.toml"]
    (work / "default.toml").write_text("")
    refused(imp_here("train", *large, cwd=work, check=False), "5000", "1151")


@pytest.mark.parametrize(
    "command", [["train", "--replicate", "2"], ["thresholds", "--quantiles", "75"], ["retrain"], ["rounds"]]
)
def test_a_run_is_gone_on_with_on_its_own_images_alone(work, command):
    (path,) = work.glob("data/*/manifest.json")
    made_with = files.read_json(work / "runs/digits/replicate-1/train/made_with.json")
    assert made_with["made_from"]["records"] == records.read_manifest(path.parent).digest
    content = files.read_json(path)
    content["shards"][0]["sha256"] = "0" * 64  # as of images that are no longer the same
    files.write_json(path, content)
    before = contents(work)

    refused(imp_here(*command, cwd=work, check=False), "was made from other examples than those that are prepared now")
    assert contents(work) == before


def test_outputs_of_another_recipe_stop_the_stage_and_show_the_difference(work):
    before = contents(work)

    for command in ("train", "thresholds", "retrain", "run"):
        done = imp_here(command, "--set", "train.batch=32", cwd=work, check=False)
        refused(done, "replicate-1/train was made with another recipe", "train.batch was 64, is 32")
    done = imp_here("thresholds", *settings("pruning.scope=all"), cwd=work, check=False)
    refused(done, "pruning.scope was 'kernels', is 'all'")

    assert contents(work) == before
    assert "batch = 64" in (work / "runs/digits/recipe.toml").read_text()


def test_damaged_records_are_named_in_the_middle_of_a_training(work):
    flip(work / "data/digits-8/train-00000.tfrecord")

    done = imp_here("train", *settings("replicates=2", "data.feed=stream"), cwd=work, check=False)

    refused(done, "train-00000.tfrecord is damaged", "imp prepare", said=1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_one_line(tmp_path):
    tmp_path.chmod(0o500)

    refused(imp_here("prepare", cwd=tmp_path, check=False), "Permission denied")


@pytest.mark.parametrize("command", ["run", "report"])
def test_only_trainings_run_on_many_ranks(tmp_path, command):
    refused(imp_here(command, cwd=tmp_path, check=False, PMI_RANK="0", PMI_SIZE="2"), "only trainings run on many ranks")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [["retrain", "--ranks", "0"], ["frobnicate"], ["status", "--jsn"]])
def test_a_command_line_that_makes_no_sense_is_one_line(tmp_path, arguments):
    refused(
        imp_here(*arguments, cwd=tmp_path, check=False),
        arguments[-1].lstrip("-") if len(arguments) < 3 else "--ranks",
        "--help",
    )


ALONE = ["run", "--ranks", "1"]


@pytest.mark.parametrize(
    ("command", "values", "words"),
    [
        (ALONE, ["families.oneshot.rewind=0,2ep"], "rewind point 2ep is not among the snapshots (0,10it,1ep)"),
        (["thresholds"], ["families.oneshot.rewind=0,2ep"], "rewind point 2ep is not among the snapshots (0,10it,1ep)"),
        (ALONE, ["families.own.quantiles=50", 'families.own.densities=["conv/*=10"]'], "'conv/*' matches no variable"),
        (ALONE, ["families.own.quantiles=99", "families.own.budget=999"], "times as long as the dense one: lower it"),
    ],
)
def test_a_value_that_is_refused_is_not_saved(work, command, values, words):
    own = work / "runs/digits/recipe.toml"
    before = own.read_bytes()

    done = imp_here(*command, *settings(*values), cwd=work, check=False)

    refused(done, words, said=done.stderr.count("\n") - 1)
    assert own.read_bytes() == before


@pytest.mark.parametrize("command", [["run", "--set", "replicates=2"], ["train"], ["recipe"], ["slurm", "train"]])
def test_a_typo_in_the_name_of_a_run_does_not_start_another(work, command):
    before = sorted(work.rglob("*"))

    done = imp_here(*command, "--run", "runs/digtis", cwd=work, check=False)

    refused(done, "there is no run in runs/digtis; did you mean runs/digits? To start one there, name its recipe")
    assert sorted(work.rglob("*")) == before
