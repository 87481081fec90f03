"""The thresholds of a hand-made run: its masks and their records, and what a wider grid adds."""

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from handmade import ORIGINS, finished
from helpers import file_bytes, flip, selected

from data_prep import records
from lottery.base.errors import InputError
from lottery.base.progress import Reporter
from lottery.experiment import reading
from lottery.pruning import densities
from lottery.pruning.connectivity import Node, Topology
from lottery.rundir import store
from lottery.rundir.lineage import seals
from lottery.rundir.names import MaskFiles
from lottery.rundir.run import Run
from lottery.stages.thresholds import COLUMNS, thresholds, warnings

LAST = 90

pytestmark = pytest.mark.usefixtures("here")


def made(replicates=1, quantiles="50,90", pruning=None, **family):
    """A run of trained dense networks: kernels 1 .. 10, -20 .. -11 and ones (left out of the ranking), statistics 0 and 99."""
    run = Run(Path("runs/hand-made"), recipe_of(replicates, pruning, quantiles=quantiles, **family))
    shards = [records.Shard("train-00000.tfrecord", "train", 2900, 0, "")]
    run.records().mkdir(parents=True)
    made_with = dataclasses.asdict(run.recipe.records())
    records.write_manifest(run.records(), records.Manifest((32, 32, 3), ["0", "1"], shards, made_with))
    for number in range(1, replicates + 1):
        finish(run, number)
    return run


def recipe_of(replicates=1, pruning=None, **family):
    tables = {
        "replicates": replicates,
        "train": {"steps": LAST, "snapshots": "0", "warmup": "0"},
        "pruning": {"exclude": ["predictions/*"], **(pruning or {})},
        "families": {"oneshot": {"quantiles": "50,90", **family}},
    }
    return reading.resolve(tables)


def finish(run, number, scale=1):
    replicate = run.replicate(number)
    weights = {
        "a/kernel": np.arange(1, 11, dtype=np.float32).reshape(2, 5) * scale,
        "a/bias": np.zeros(4, np.float32),
        "b/kernel": -np.arange(20, 10, -1, dtype=np.float32).reshape(5, 2) * scale,
        "predictions/kernel": np.ones((2, 3), np.float32),
    }
    statistics = {"bn/moving_mean": np.float32([0, 99])}
    optimizer = {"momentum/a/kernel": np.full((2, 5), 7, np.float32)}
    store.save_state(replicate.snapshot(LAST), store.State(LAST, weights, statistics, optimizer))
    vouch(run, number)


def vouch(run, number=1):
    """Write the result of a dense network, for what there is of it."""
    finished(run.replicate(number), LAST, origins=ORIGINS | {"records": run.manifest().digest})


def take(run, quantiles=None):
    return thresholds(run, Reporter(quiet=True), selected(quantiles=quantiles))


def labels(table):
    return [mask.mask for mask in table]


def files_of(run, label, number=1):
    return MaskFiles(run.replicate(number).mask_folder("oneshot"), label)


def names(run, number=1):
    return sorted(path.name for path in run.replicate(number).mask_folder("oneshot").glob("*.h5"))


def test_a_mask_that_lost_a_file_is_cut_again_to_the_same_bytes_whatever_is_asked_for():
    run = made()
    take(run, "60,90")
    before = file_bytes(run.replicate(1).mask_folder("oneshot"))
    files_of(run, "q90").mask.unlink()
    files_of(run, "q60").table.unlink()

    (table,) = take(run, "60")

    assert file_bytes(run.replicate(1).mask_folder("oneshot")) == before
    assert labels(table) == ["q60", "q90"]


def test_masks_whose_records_were_removed_are_cut_again():
    run = made()
    take(run)
    replicate = run.replicate(1)
    state = store.load_state(replicate.snapshot(LAST))
    state.weights["a/kernel"] *= 100
    store.save_state(replicate.snapshot(LAST), state)
    vouch(run)
    with pytest.raises(InputError, match=r"q50\.json was made from another .* than the one that is there"):
        take(run)
    for label in ("q50", "q90"):
        files_of(run, label).table.unlink()

    take(run)

    mask = store.load_mask(files_of(run, "q50").mask)
    assert mask["a/kernel"].all()
    assert not mask["b/kernel"].any()


def test_a_record_says_what_was_ranked_and_where_its_quantile_lies():
    run = made()
    replicate = run.replicate(1)

    (table,) = take(run)

    chained = ("outputs", "made_from", "folder")
    half, sparse = table
    assert half.model_dump(exclude=chained) == {
        "format": 2,
        "replicate": 1,
        "family": "oneshot",
        "mask": "q50",
        "round": 1,
        "rewind_step": None,
        "rate": 50.0,
        "step": LAST,
        "scores": {"count": 20, "min": 1.0, "max": 20.0, "mean": 10.5},
        "threshold": 10.5,
        "pruned": 10,
        "remaining": 10,
        "layers": {
            "a/kernel": {"rate": 50.0, "threshold": 10.5, "weights": 10, "kept": 0},
            "b/kernel": {"rate": 50.0, "threshold": 10.5, "weights": 10, "kept": 10},
        },
        "kept": {
            "density": {"prunable": 0.5, "trainable": 1 - 10 / 30, "total": 1 - 10 / 32, "effective": None},
            "layers": {
                "a/kernel": {"weights": 10, "kept": 0, "positions": None},
                "b/kernel": {"weights": 10, "kept": 10, "positions": None},
            },
            "disconnected": None,
        },
        "costs": {
            "dense_macs": None,
            "macs": None,
            "float32_bytes": 4 * 32,
            "gzip_bytes": half.costs.gzip_bytes,
        },
    }
    assert (sparse.threshold, sparse.pruned, sparse.remaining) == (pytest.approx(18.1), 18, 2)
    assert not store.load_mask(files_of(run, "q50").mask)["a/kernel"].any()
    sparse_mask = store.load_mask(files_of(run, "q90").mask)
    assert {path: array.shape for path, array in sparse_mask.items()} == {"a/kernel": (2, 5), "b/kernel": (5, 2)}
    assert sparse_mask["b/kernel"].ravel().tolist() == [True] * 2 + [False] * 8
    assert dataclasses.astuple(sparse.kept.density) == (pytest.approx(0.1), 1 - 18 / 30, 1 - 18 / 32, None)
    for label, record in zip(("q50", "q90"), table, strict=True):
        assert record.folder == f"replicate-1/oneshot/masks/{label}"
        assert record.outputs == seals(replicate.folder, [files_of(run, label).mask])
        assert record.made_from == seals(replicate.folder, [replicate.snapshot(LAST)])
        assert files_of(run, label).read() == record


def lines(run, number=1):
    path = run.replicate(number).folder / "oneshot/thresholds.csv"
    return csv.DictReader(path.read_text().splitlines())


def test_the_thresholds_are_there_as_csv_too_and_layer_collapse_is_warned_of(capsys):
    run = made(quantiles="0,50,97.5")

    (table,) = thresholds(run, Reporter(), selected())

    collapse = "hardly anything is left of a/kernel (layer collapse)"
    assert capsys.readouterr().err.splitlines() == [
        "replicate-1 oneshot: 3 masks of 20 weights",
        *(f"warning: at quantile {quantile}: {collapse}" for quantile in ("50", "97.5")),
    ]
    reader = lines(run)
    every = list(reader)
    rows = [row for row in every if not row["layer"]]
    assert tuple(reader.fieldnames) == COLUMNS
    assert [row["layer"] for row in every] == ["", "a/kernel", "b/kernel"] * 3
    assert [row["quantile"] for row in rows] == ["0", "50", "97.5"]
    for row, expected in zip(rows, table, strict=True):
        assert float(row["threshold"]) == expected.threshold
        assert [int(row[name]) for name in ("pruned", "remaining")] == [expected.pruned, expected.remaining]
        assert float(row["prunable"]) == expected.kept.density.prunable
        assert row["effective"] == row["layer"] == ""
        assert [float(row[name]) for name in ("count", "min", "max", "mean")] == [20, 1, 20, 10.5]
    assert [row["warning"] for row in rows] == ["", collapse, collapse]


def test_uniformly_each_layer_has_its_own_threshold():
    run = made(quantiles="50", allocation="uniform")

    (table,) = take(run)

    (record,) = table
    assert record.scores.model_dump() == {"count": 20, "min": 1, "max": 20, "mean": 10.5}
    assert record.threshold is None
    assert {path: layer.threshold for path, layer in record.layers.items()} == {"a/kernel": 5.5, "b/kernel": 15.5}
    assert (record.pruned, record.remaining) == (10, 10)
    mask = store.load_mask(files_of(run, "q50").mask)
    assert mask["a/kernel"].ravel().tolist() == [False] * 5 + [True] * 5
    assert mask["b/kernel"].ravel().tolist() == [True] * 5 + [False] * 5
    assert [(line["quantile"], line["layer"], line["threshold"], line["remaining"]) for line in lines(run)] == [
        ("50", "", "", "10"),
        ("50", "a/kernel", "5.5", "5"),
        ("50", "b/kernel", "15.5", "5"),
    ]


def test_scope_all_counts_statistics_which_no_density_says_are_pruned():
    run = made(quantiles="50", pruning={"scope": "all", "exclude": []})

    (table,) = take(run)

    (record,) = table
    assert (record.scores.count, record.scores.min, record.scores.max) == (32, 0, 99)
    assert record.pruned == 16  # ceil(15.5): six zeros, seven ones (one of them of `a`), three of `a`
    assert record.kept.density.total == 1 - 15 / 32  # of the statistics one went, which stays in the network


def test_families_side_by_side_have_masks_of_their_own_and_scores_of_their_own_point(capsys):
    run = made(quantiles="50")
    early = {"quantiles": "90", "scored_at": "0"}
    rounds = {"rounds": 2}
    tables = run.recipe.model_dump() | {"families": {"oneshot": {"quantiles": "50"}, "early": early, "iterative": rounds}}
    run = dataclasses.replace(run, recipe=reading.resolve(tables))
    replicate = run.replicate(1)
    state = store.load_state(replicate.snapshot(LAST))
    state.weights["a/kernel"] *= 100
    store.save_state(replicate.snapshot(0), dataclasses.replace(state, step=0))
    vouch(run)

    tables = thresholds(run, Reporter(), selected())

    assert [(table[0].family, labels(table)) for table in tables] == [("oneshot", ["q50"]), ("early", ["q90"])]
    assert [table[0].step for table in tables] == [LAST, 0]
    assert [table[0].scores.max for table in tables] == [20, 1000]
    assert capsys.readouterr().err.splitlines()[0] == "replicate-1 oneshot: 1 mask of 20 weights"
    assert [(one[0].family, labels(one)) for one in thresholds(run, Reporter(quiet=True), selected(("early",), "60"))] == [
        ("early", ["q60", "q90"])
    ]
    with pytest.raises(InputError, match="no family prunes in one shot: add one"):
        thresholds(run, Reporter(quiet=True), selected(("iterative",)))


def test_another_share_that_a_layer_must_keep_is_asked_of_the_masks_there_are():
    run = made(quantiles="25")
    assert warnings(take(run)[0], 0.001) == []
    before = files_of(run, "q25").mask.stat().st_mtime_ns

    (table,) = take(dataclasses.replace(run, recipe=recipe_of(pruning={"collapse": 0.6}, quantiles="25")))

    assert warnings(table, 0.6) == ["quantile 25: hardly anything is left of a/kernel (layer collapse)"]
    told = [line["warning"] for line in lines(run) if not line["layer"]]
    assert told == ["hardly anything is left of a/kernel (layer collapse)"]
    assert files_of(run, "q25").mask.stat().st_mtime_ns == before


def test_with_the_networks_topology_connections_are_told(capsys):
    nodes = [Node("images", "input", 2), Node("a", "linear", 5, ("images",), kernels={"a/kernel": (2, 5)})]
    nodes += [Node("b", "linear", 2, ("a",), kernels={"b/kernel": (5, 2)})]
    run = made(quantiles="25,50")
    run.replicate(1).write_topology(Topology(tuple(nodes), ("b",)))
    vouch(run)

    quarter, half = (one.kept for one in thresholds(run, Reporter(), selected())[0])

    assert (quarter.density.effective, quarter.disconnected) == (15 / 20, False)  # 1 .. 5 went: one place of each channel
    assert (half.density.effective, half.disconnected) == (0, True)
    assert "warning: at quantile 50: no path from input to output is left (layer collapse)" in capsys.readouterr().err
    assert half.layers == {"a/kernel": densities.Layer(10, 0), "b/kernel": densities.Layer(10, 10)}


def test_a_second_time_nothing_is_written_and_the_records_are_the_same():
    run = made()
    first = take(run)
    replicate = run.replicate(1)
    before = {path: path.stat().st_mtime_ns for path in replicate.folder.rglob("*")}
    replicate.snapshot(LAST).unlink()
    del before[replicate.snapshot(LAST)]
    del before[replicate.snapshot(LAST).parent]

    assert take(run) == first

    assert {path: time for path, time in before.items() if path.stat().st_mtime_ns != time} == {}


def test_wider_grids_add_masks_in_their_order_as_one_that_was_taken_at_once_and_leave_the_recipe_alone(monkeypatch, tmp_path):
    ends = []
    for place, grids in (("one by one", ["90", "50", "60..70:5", "97.5"]), ("at once", ["50,60,65,70,90,97.5"])):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        run = made()
        tables = [take(run, grid)[0] for grid in grids]
        assert labels(tables[-1]) == ["q50", "q60", "q65", "q70", "q90", "q97.5"]
        assert all(record in tables[-1] for table in tables for record in table)
        assert reading.resolve(reading.load(run.folder / "recipe.toml")) == run.recipe
        ends.append((list(lines(run)), file_bytes(run.replicate(1).mask_folder("oneshot"))))

    assert ends[0] == ends[1]


def untrained(run):
    run.replicate(2).dense.result.unlink()


def diverged(run):
    finished(run.replicate(2), 7, status="diverged", reason="the loss is not finite: lower train.learning_rate")


@pytest.mark.parametrize(
    ("trouble", "exclude", "words"),
    [
        (untrained, [], r"replicate-2/train holds no finished training: run `imp train` first"),
        (diverged, [], r"replicate-2/train diverged: the loss .*rate, and remove that folder"),
        (lambda run: flip(run.replicate(1).snapshot(LAST)), [], r"step-000090\.h5 is damaged"),
        (lambda run: None, ["predicitons/*"], r"pruning\.exclude: 'predicitons/\*' matches no variable of mobilenet_v2"),
    ],
)
def test_what_no_mask_can_be_cut_from_is_named_before_anything_is_written(trouble, exclude, words):
    run = made(replicates=2, pruning={"exclude": exclude})
    trouble(run)

    with pytest.raises(InputError, match=words):
        take(run)

    assert run.replicate(1).masks() == []


@pytest.mark.parametrize(
    ("pruning", "other"),
    [({"scope": "all"}, {}), ({}, {"scored_at": "0"})],
    ids=str,
)
def test_masks_of_another_recipe_are_not_added_to(pruning, other):
    run = made()
    take(run)
    before = file_bytes(run.replicate(1).mask_folder("oneshot"))
    store.save_state(run.replicate(1).snapshot(0), store.load_state(run.replicate(1).snapshot(LAST)))
    vouch(run)
    changed = dataclasses.replace(run, recipe=recipe_of(pruning=pruning, **other))

    with pytest.raises(InputError, match="oneshot/masks was made with another recipe"):
        take(changed, "99")
    with pytest.raises(InputError, match="oneshot/masks was made with another recipe"):
        changed.check_outputs()

    assert file_bytes(run.replicate(1).mask_folder("oneshot")) == before
