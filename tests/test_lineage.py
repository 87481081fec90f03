"""What outputs were made from, by content: nothing of another dense network, mask, network or set of images is taken for one's
own, whoever put it there."""

import dataclasses
import json
import shutil
import sys

import numpy as np
import pytest
from helpers import changed, imp_here, refused, settings, write_split

from data_prep import records
from lottery.base import files
from lottery.base.errors import InputError
from lottery.results import frame
from lottery.results.reader import open_results
from lottery.rundir import lineage, store
from lottery.rundir.lineage import Lineage
from lottery.rundir.run import open_run

PLACE = "runs/digits/replicate-1"
TICKET = f"{PLACE}/oneshot/q90-step-000017/ticket"
OWN = [
    *("--set", "model.name=mynets:build", "--set", "data.size=8", "--set", "data.crop=0", "--set", "train.epochs=1"),
    *("--set", "train.snapshots=0", "--set", "families.oneshot.rewind=0", "--set", "families.oneshot.quantiles=50"),
    *("--set", "families.oneshot.controls=[]", "--set", "train.warmup=0"),
]
MYNETS = """
import keras


def build(size, classes):
    images = keras.Input((size, size, 3))
    x = keras.layers.Dense(8, activation="relu")(keras.layers.Flatten()(images))
    return keras.Model(images, keras.layers.Dense(classes)(x))
"""


@pytest.fixture
def done(retrained, tmp_path, monkeypatch):
    """A copy of `retrained`, which is the current folder."""
    shutil.copytree(retrained, tmp_path / "work", symlinks=True)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("IMP_RUN", raising=False)
    monkeypatch.delenv("IMP_DATA", raising=False)
    return tmp_path / "work"


def with_other_labels(folder):
    """Make the set in `folder` anew: the same images, each of the next class."""
    manifest = records.read_manifest(folder)
    shards = []
    for split in records.SPLITS:
        images, labels = records.read_split(folder, manifest, split)
        shards += write_split(folder, split, images, (labels + 1) % len(manifest.classes))
    records.write_manifest(folder, dataclasses.replace(manifest, shards=shards))


def stale(folder):
    """The status and reason of each network under a mask, as the report has them."""
    rows = frame.rows(open_run(folder / "runs/digits"))
    stale = rows[rows["status"] == "stale"]
    return dict(zip(stale["folder"], stale["reason"], strict=True))


def trained_again(folder, **values):
    """A dense network in place of the run's, with `values` in its result and another end."""
    replicate = open_run(folder / "runs/digits").replicate(1)
    state = store.load_state(replicate.snapshot(51))
    turned = {path: -array for path, array in state.weights.items()}
    store.save_state(replicate.snapshot(51), dataclasses.replace(state, weights=turned))
    outputs = files.read_json(replicate.dense.result)["outputs"]
    outputs |= lineage.seals(replicate.folder, [replicate.snapshot(51)])
    changed(replicate.dense.result, outputs=outputs, **values)


def test_every_table_of_a_run_holds_also_where_a_file_that_it_was_made_from_was_removed_to_save_room(done):
    replicate = open_run(done / "runs/digits").replicate(1)

    assert len(replicate.tables()) == 1 + 2 + 7
    assert [Lineage(replicate).problem(table) for table in replicate.tables()] == [None] * 10
    (done / PLACE / "oneshot/masks/q90.h5").unlink()
    (done / PLACE / "train/snapshots/step-000017.h5").unlink()
    assert stale(done) == {}


def test_nothing_is_trained_on_other_images_beside_what_was_trained_before(done):
    with_other_labels(done / "data/digits-8")
    shutil.rmtree(done / PLACE / "train")

    for command in (["run"], ["train"], ["retrain"]):
        assert imp_here(*command, cwd=done, check=False).returncode == 2
    assert not (done / PLACE / "train").exists()


def test_networks_of_another_dense_network_are_told_and_left_out_of_every_table(done):
    trained_again(done)

    told = stale(done)
    assert len(told) == 6 + 1
    assert all("was made from" in reason and "step-000051.h5" in reason for reason in told.values())
    results = open_results()
    assert [one.variant for one in results.networks()] == ["dense"]
    assert "do not belong to the dense network beside them: 7 networks" in imp_here("report", cwd=done).stdout
    for command in (
        ["thresholds"],
        ["retrain"],
        ["export", "--ticket", "q90-step-000017", "--to", "npz"],
    ):
        refused(imp_here(*command, cwd=done, check=False), "was made from another train/snapshots/step-000051.h5")
    told = imp_here("verify", "runs/digits", cwd=done, check=False)
    assert told.returncode == 1
    assert told.stdout.count("was made from") >= 7 + 1


def test_a_mask_in_the_place_of_another_is_not_used(done):
    shutil.copy(done / PLACE / "oneshot/masks/q50.h5", done / PLACE / "oneshot/masks/q90.h5")
    shutil.rmtree(done / TICKET)

    told = imp_here("retrain", cwd=done, check=False)

    assert told.returncode == 1
    assert "q90.json was written for another q90.h5 than the one that is there" in told.stderr
    assert not (done / TICKET / "final.h5").exists()


def test_a_snapshot_made_again_that_is_another_is_refused(done):
    replicate = open_run(done / "runs/digits").replicate(1)
    outputs = files.read_json(replicate.dense.result)["outputs"]
    changed(replicate.dense.result, outputs=outputs | {"train/snapshots/step-000017.h5": "0" * 64})
    replicate.snapshot(17).unlink()

    told = imp_here("train", cwd=done, check=False)

    assert told.returncode == 2
    assert "step-000017.h5, made again, differs" in told.stderr


def test_networks_of_other_versions_and_devices_are_told_with_a_warning_and_a_column(done):
    maker = {"imp": "0.0.9", "tensorflow": "2.20.0", "keras": "3.15.0", "device": "NVIDIA H100"}
    result = done / PLACE / "train/result.json"
    here = files.read_json(result)["made_by"]
    changed(result, made_by=[maker])
    shutil.rmtree(done / TICKET)

    told = imp_here("retrain", cwd=done)

    assert "was trained with imp 0.0.9, tensorflow 2.20.0, keras 3.15.0 on NVIDIA H100, this is imp" in told.stderr
    dense, *others = frame.rows(open_run(done / "runs/digits"))["made_by"]
    assert dense == "imp 0.0.9, tensorflow 2.20.0, keras 3.15.0 on NVIDIA H100"
    versions = f"tensorflow {here[0]['tensorflow']}, keras {here[0]['keras']}"
    assert others == [f"imp {here[0]['imp']}, {versions} on CPU"] * 7
    assert "or another kind of device than the dense network: 7 networks" in imp_here("report", cwd=done).stdout


def test_a_network_that_was_changed_in_its_own_file_is_not_mixed_with_the_one_before(tmp_path):
    (tmp_path / "mynets.py").write_text(MYNETS)
    imp_here("run", *OWN, "--ranks", "1", cwd=tmp_path)
    (tmp_path / "mynets.py").write_text(MYNETS.replace("relu", "tanh"))
    del sys.modules["mynets"]  # as in another process
    imp_here("thresholds", "--quantiles", "90", cwd=tmp_path)

    for command in (["retrain"], ["train", "--replicate", "2"], ["export", "--ticket", "dense", "--to", "keras"]):
        told = imp_here(*command, cwd=tmp_path, check=False)

        assert told.returncode == 2, told.stderr
        assert "another network" in told.stderr.splitlines()[-1]
    assert not list((tmp_path / "runs").rglob("q90-step-*"))
    assert not (tmp_path / "runs/digits/replicate-2").exists()


SEEDED = MYNETS.replace("Dense(classes)", "Dense(classes, kernel_initializer=keras.initializers.HeNormal(1))").replace(
    "Dense(8, ", "Dense(8, kernel_initializer=keras.initializers.HeNormal(0), "
)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (['families.oneshot.controls=["reinit"]'], "families.oneshot.controls: reinit needs fresh weights, but mynets:build"),
        (["replicates=2"], "replicates: mynets:build draws all weights alike"),
    ],
)
def test_a_network_that_is_never_drawn_anew_is_refused_before_anything_is_trained(tmp_path, values, told):
    (tmp_path / "mynets.py").write_text(SEEDED)
    sys.modules.pop("mynets", None)
    imp_here("prepare", *OWN, cwd=tmp_path)

    refused(imp_here("train", *OWN, *settings(*values), cwd=tmp_path, check=False), told, said=1)
    assert not list((tmp_path / "runs").rglob("replicate-*"))

    if "controls" in values[0]:  # asked for later
        imp_here("run", *OWN, "--ranks", "1", cwd=tmp_path)
        given = settings(*values, "families.oneshot.controls_at=50")
        refused(imp_here("retrain", *given, cwd=tmp_path, check=False), told, said=2)


MATRIX = (
    MYNETS.replace(
        "def build",
        """
class Own(keras.layers.Layer):
    def build(self, shape):
        self.w = self.add_weight((shape[-1], 8), name="w")

    def call(self, x):
        return x @ self.w


def build""",
    )
    .replace('Dense(8, activation="relu")(', 'Dense(8, name="body")(Own(name="own")(')
    .replace("(images))", "(images)))")
)


def test_a_matrix_of_another_name_is_told_and_is_pruned_where_the_recipe_takes_it_in(tmp_path):
    (tmp_path / "mynets.py").write_text(MATRIX)
    (tmp_path / "whole.toml").write_text("")
    sys.modules.pop("mynets", None)
    imp_here("prepare", *OWN, cwd=tmp_path)

    said = imp_here("train", *OWN, cwd=tmp_path).stderr
    assert "MACs are not counted: how often own/w is multiplied is not known" in said
    assert "own/w is not pruned, as its name does not end in `kernel`: pruning.include takes it in" in said
    imp_here("thresholds", cwd=tmp_path)
    plain = files.read_json(tmp_path / PLACE / "oneshot/masks/q50.json")
    assert list(plain["layers"]) == ["body/kernel", "dense/kernel"]

    said = imp_here(
        "run", "whole.toml", *OWN, "--run", "runs/whole", *settings('pruning.include=["own/*"]'), "--ranks", "1", cwd=tmp_path
    ).stderr
    assert "is not pruned" not in said
    [whole] = (tmp_path / "runs/whole").glob("*/oneshot/masks/q50.json")
    assert list(files.read_json(whole)["layers"]) == ["body/kernel", "dense/kernel", "own/w"]
    [final] = (tmp_path / "runs/whole").glob("*/oneshot/q50-step-000000/ticket/final.h5")
    weights = store.load_state(final).weights
    assert sum(np.count_nonzero(weights[path]) for path in ("own/w", "body/kernel", "dense/kernel")) == 840
    assert np.count_nonzero(weights["own/w"]) < 8 * 8 * 3 * 8
    refused(
        imp_here("thresholds", *settings("pruning.include=[]"), cwd=tmp_path, check=False), "pruning.include was ['own/*'], is"
    )


def test_a_journal_that_lost_its_last_rows_is_not_drawn(done):
    path = done / TICKET / "metrics.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])

    with pytest.raises(InputError, match=r"metrics\.jsonl lacks rows"):
        open_results().metrics()


def test_what_needs_no_images_needs_no_records(done, tmp_path):
    shutil.move(done / "data", tmp_path / "elsewhere")
    run = str(done / "runs/digits")
    changed(done / "runs/digits/environment.json", records=str(done / "data/digits-8"))

    imp_here("thresholds", "--run", run, "--quantiles", "70", cwd=tmp_path)
    imp_here("report", "--run", run, cwd=tmp_path)
    told = json.loads(imp_here("status", "--json", "--run", run, cwd=tmp_path).stdout)

    assert [(line["stage"], line["done"], line["missing"]) for line in told] == [
        ("records", 0, 1),
        ("train", 1, 0),
        ("thresholds", 3, 0),
        ("oneshot", 7, 2),
    ]


def test_a_run_knows_where_its_records_were(done, tmp_path):
    shutil.rmtree(done / TICKET)
    (tmp_path / "other").mkdir()

    imp_here("retrain", "--run", str(done / "runs/digits"), cwd=tmp_path / "other")

    assert (done / TICKET / "result.json").exists()
