"""The thresholds of a hand-made run: its table, its masks, and what a wider grid adds."""

import csv
import dataclasses
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from handmade import ORIGINS, finished
from helpers import clean_environment, file_bytes, flip

from data_prep import files, records
from data_prep.errors import InputError
from lottery import identity, locks, masks, ranking, recipe, store
from lottery.connectivity import Node, Topology
from lottery.lineage import seals
from lottery.progress import Reporter
from lottery.run import Run
from lottery.stages.thresholds import COLUMNS, thresholds

LAST = 90
KERNELS = {"a/kernel": (2, 5), "b/kernel": (5, 2), "predictions/kernel": (2, 3)}

pytestmark = pytest.mark.usefixtures("here")


def made(replicates=1, quantiles="50,90", **settings):
    """A run of trained dense networks: kernels 1 .. 10, -20 .. -11 and ones (left out of the ranking), statistics 0 and 99."""
    tables = {
        "replicates": replicates,
        "train": {"steps": LAST, "snapshots": "0", "warmup": "0"},
        "retrain": {"rewind": "0"},
        "thresholds": {"quantiles": quantiles, "exclude": ["predictions/*"], **settings},
    }
    run = Run(Path("runs/hand-made"), recipe.resolve(tables))
    shards = [records.Shard("train-00000.tfrecord", "train", 2900, 0, "")]
    run.records().mkdir(parents=True)
    made_with = dataclasses.asdict(run.recipe.records())
    records.write_manifest(run.records(), records.Manifest((32, 32, 3), ["0", "1"], shards, made_with))
    for number in range(1, replicates + 1):
        finish(run, number)
    return run


def finish(run, number, scale=1):
    replicate = run.replicate(number)
    weights = {
        "a/kernel": np.arange(1, 11, dtype=np.float32).reshape(2, 5) * scale,
        "a/bias": np.zeros(4, np.float32),
        "b/kernel": -np.arange(20, 10, -1, dtype=np.float32).reshape(5, 2) * scale,
        "predictions/kernel": np.ones((2, 3), np.float32),
    }
    statistics = {"bn/moving_mean": np.float32([0, 99])}
    slots = {"momentum/a/kernel": np.full((2, 5), 7, np.float32)}
    store.save_state(replicate.snapshot(LAST), store.State(LAST, weights, statistics, slots))
    vouch(run, number)


def vouch(run, number=1):
    """Write the result of a dense network, for what there is of it."""
    finished(run.replicate(number), LAST, origins=ORIGINS | {"records": run.manifest().digest})


def take(run, quantiles=None):
    return thresholds(run, Reporter(quiet=True), quantiles)


def changed(run, **settings):
    """The same run under a recipe with other thresholds."""
    table = run.recipe.model_dump()
    table["thresholds"] |= settings
    return dataclasses.replace(run, recipe=recipe.resolve(table))


def listed(run, number=1):
    return [row["quantile"] for row in files.read_json(run.replicate(number).thresholds)["quantiles"]]


def names(run, number=1):
    return sorted(path.name for path in run.replicate(number).masks.glob("*.h5"))


def test_a_mask_that_is_gone_is_cut_again_to_the_same_bytes():
    run = made()
    take(run)
    lost = run.replicate(1).mask(Fraction(90))
    whole = lost.read_bytes()
    lost.unlink()

    take(run, "50")

    assert lost.read_bytes() == whole
    assert listed(run) == [50, 90]


def test_masks_that_no_table_lists_are_cut_again():
    run = made()
    take(run)
    replicate = run.replicate(1)
    state = store.load_state(replicate.snapshot(LAST))
    state.weights["a/kernel"] *= 100
    store.save_state(replicate.snapshot(LAST), state)
    vouch(run)
    with pytest.raises(InputError, match=r"thresholds\.json was made from another .* than the one that is there"):
        take(run)
    replicate.thresholds.unlink()

    take(run)

    mask = masks.load(replicate.mask(Fraction(50)))
    assert mask["a/kernel"].all()
    assert not mask["b/kernel"].any()


def test_the_table_says_what_was_ranked_and_where_each_quantile_lies():
    run = made()
    replicate = run.replicate(1)

    (table,) = take(run)

    assert table == {
        "replicate": 1,
        "scope": "kernels",
        "layerwise": False,
        "exclude": ["predictions/*"],
        "collapse": 0.001,
        "count": 20,
        "min": 1.0,
        "max": 20.0,
        "mean": 10.5,
        "quantiles": [
            {
                "quantile": 50,
                "threshold": 10.5,
                "pruned": 10,
                "remaining": 10,
                "density": {"prunable": 0.5, "trainable": 1 - 10 / 30, "total": 1 - 10 / 32, "effective": None},
                "collapsed": ["a/kernel"],
                "disconnected": None,
            },
            {
                "quantile": 90,
                "threshold": pytest.approx(18.1),
                "pruned": 18,
                "remaining": 2,
                "density": {"prunable": pytest.approx(0.1), "trainable": 1 - 18 / 30, "total": 1 - 18 / 32, "effective": None},
                "collapsed": ["a/kernel"],
                "disconnected": None,
            },
        ],
        "outputs": seals(replicate.folder, map(replicate.mask, run.recipe.quantiles())),
        "made_from": seals(replicate.folder, [replicate.snapshot(LAST)]),
    }
    assert files.read_json(run.replicate(1).thresholds) == table


def test_thresholds_are_those_of_numpy_and_exactly_k_weights_go():
    rng = np.random.default_rng(0)
    run = made(quantiles="0,12.5,60..99:13,99.9,100")
    kernels = {"a/kernel": rng.standard_normal((30, 20)), "b/kernel": np.round(rng.standard_normal((17, 10)))}
    weights = {path: array.astype(np.float32) for path, array in kernels.items()}
    store.save_state(run.replicate(1).snapshot(LAST), store.State(LAST, weights, {}, {}))
    vouch(run)

    (table,) = take(run)

    magnitudes = np.abs(np.concatenate([array.ravel() for array in weights.values()]).astype(np.float64))
    for row, quantile in zip(table["quantiles"], run.recipe.quantiles(), strict=True):
        assert row["threshold"] == pytest.approx(np.quantile(magnitudes, float(quantile) / 100), rel=1e-9, abs=1e-12)
        assert row["pruned"] == ranking.pruned_count(quantile, 770)
        assert row["pruned"] + row["remaining"] == table["count"] == 770
        assert row["quantile"] == float(quantile)
        kept = masks.load(run.replicate(1).mask(quantile))
        assert sum(int(array.sum()) for array in kept.values()) == row["remaining"]
    assert (table["min"], table["max"]) == (magnitudes.min(), magnitudes.max())
    assert table["mean"] == pytest.approx(magnitudes.mean(), rel=1e-12)


def test_there_is_a_mask_for_each_quantile_of_the_smallest_weights():
    run = made(quantiles="50,97.5")

    take(run)

    assert names(run) == ["q50.h5", "q97.5.h5"]
    half, sparse = (masks.load(run.replicate(1).mask(Fraction(quantile))) for quantile in ("50", "97.5"))
    assert {path: array.shape for path, array in half.items()} == {path: KERNELS[path] for path in ("a/kernel", "b/kernel")}
    assert not half["a/kernel"].any()
    assert half["b/kernel"].all()
    assert sparse["b/kernel"].ravel().tolist() == [True] + [False] * 9  # k = ceil(18.525) = 19


def test_the_table_is_there_as_csv_too():
    run = made(quantiles="0,50,97.5")

    (table,) = take(run)

    with open(run.replicate(1).thresholds.with_suffix(".csv"), newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    assert tuple(reader.fieldnames) == COLUMNS
    assert [row["quantile"] for row in rows] == ["0", "50", "97.5"]
    for row, expected in zip(rows, table["quantiles"], strict=True):
        assert float(row["threshold"]) == expected["threshold"]
        assert [int(row[name]) for name in ("pruned", "remaining")] == [expected["pruned"], expected["remaining"]]
        assert float(row["prunable"]) == expected["density"]["prunable"]
        assert row["effective"] == row["layer"] == ""
        assert [float(row[name]) for name in ("count", "min", "max", "mean")] == [20, 1, 20, 10.5]
    assert [row["warning"] for row in rows] == ["", *["hardly anything is left of a/kernel (layer collapse)"] * 2]


def test_layer_by_layer_each_has_its_own_threshold():
    run = made(quantiles="50", layerwise=True)

    (table,) = take(run)

    (row,) = table["quantiles"]
    assert (table["layerwise"], table["count"], table["min"], table["max"], table["mean"]) == (True, 20, 1, 20, 10.5)
    assert row["threshold"] is None
    assert row["thresholds"] == {"a/kernel": 5.5, "b/kernel": 15.5}
    assert (row["pruned"], row["remaining"]) == (10, 10)
    mask = masks.load(run.replicate(1).mask(Fraction(50)))
    assert mask["a/kernel"].ravel().tolist() == [False] * 5 + [True] * 5
    assert mask["b/kernel"].ravel().tolist() == [True] * 5 + [False] * 5
    lines = csv.DictReader(run.replicate(1).thresholds.with_suffix(".csv").read_text().splitlines())
    assert [(line["quantile"], line["layer"], line["threshold"], line["remaining"]) for line in lines] == [
        ("50", "", "", "10"),
        ("50", "a/kernel", "5.5", ""),
        ("50", "b/kernel", "15.5", ""),
    ]


def test_scope_all_counts_statistics_which_no_density_says_are_pruned():
    run = made(quantiles="50", scope="all", exclude=[])

    (table,) = take(run)

    (row,) = table["quantiles"]
    assert (table["scope"], table["count"], table["min"], table["max"]) == ("all", 32, 0, 99)
    assert row["pruned"] == 16  # ceil(15.5): six zeros, seven ones (one of them of `a`), three of `a`
    assert row["density"]["total"] == 1 - 15 / 32  # of the statistics one went, which stays in the network


def test_layer_collapse_is_warned_of_by_quantile(capsys):
    run = made(quantiles="25,50")

    thresholds(run, Reporter())

    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "replicate-1: 2 masks of 20 weights",
        "warning: at quantile 50 hardly anything is left of a/kernel (layer collapse)",
    ]


def test_another_share_that_a_layer_must_keep_is_asked_of_the_masks_there_are():
    run = made(quantiles="25")
    assert [row["collapsed"] for row in take(run)[0]["quantiles"]] == [[]]
    before = run.replicate(1).mask(Fraction(25)).stat().st_mtime_ns

    (table,) = take(dataclasses.replace(run, recipe=recipe.resolve(run.recipe.model_dump(), ["thresholds.collapse=0.6"])))

    assert [row["collapsed"] for row in table["quantiles"]] == [["a/kernel"]]
    assert files.read_json(run.replicate(1).thresholds) == table
    assert run.replicate(1).mask(Fraction(25)).stat().st_mtime_ns == before


def test_with_the_networks_topology_connections_are_told(capsys):
    nodes = [Node("images", "input", 2), Node("a", "linear", 5, ("images",), kernels={"a/kernel": (2, 5)})]
    nodes += [Node("b", "linear", 2, ("a",), kernels={"b/kernel": (5, 2)})]
    run = made(quantiles="25,50")
    files.write_json(run.replicate(1).topology, Topology(tuple(nodes), ("b",)).to_json())
    vouch(run)

    table = thresholds(run, Reporter())[0]

    quarter, half = table["quantiles"]
    assert (quarter["density"]["effective"], quarter["disconnected"]) == (
        15 / 20,
        False,
    )  # 1 .. 5 went: one place of each channel
    assert (half["density"]["effective"], half["disconnected"]) == (0, True)
    assert "warning: at quantile 50 no path from input to output is left (layer collapse)" in capsys.readouterr().err


def test_a_second_time_nothing_is_written_and_the_table_is_the_same():
    run = made()
    first = take(run)
    replicate = run.replicate(1)
    before = {path: path.stat().st_mtime_ns for path in replicate.folder.rglob("*")}
    replicate.snapshot(LAST).unlink()
    del before[replicate.snapshot(LAST)]
    del before[replicate.snapshot(LAST).parent]

    assert take(run) == first

    assert {path: time for path, time in before.items() if path.stat().st_mtime_ns != time} == {}


def test_quantiles_asked_for_leave_the_grid_of_the_recipe_alone():
    run = made(quantiles="50,90")

    (table,) = take(run, "60,97.5")

    assert [row["quantile"] for row in table["quantiles"]] == [60, 97.5]
    assert names(run) == ["q60.h5", "q97.5.h5"]
    assert recipe.resolve(recipe.load(run.folder / "recipe.toml")) == run.recipe
    assert run.recipe.thresholds.quantiles == "50,90"


def test_a_wider_grid_adds_masks_and_rows_in_their_order_and_leaves_the_others():
    run = made(quantiles="50,90")
    (narrow,) = take(run)
    before = file_bytes(run.replicate(1).masks)

    (wide,) = take(run, "60,97.5")
    (again,) = take(changed(run, quantiles="50,70,99"))

    assert [row["quantile"] for row in wide["quantiles"]] == [50, 60, 90, 97.5]
    assert [row["quantile"] for row in again["quantiles"]] == [50, 60, 70, 90, 97.5, 99]
    after = file_bytes(run.replicate(1).masks)
    assert {name: after[name] for name in before} == before
    assert names(run) == ["q50.h5", "q60.h5", "q70.h5", "q90.h5", "q97.5.h5", "q99.h5"]
    for row in narrow["quantiles"]:
        assert row in again["quantiles"]


def test_a_narrower_grid_takes_nothing_away():
    run = made(quantiles="50,90")
    take(run)

    (table,) = take(run, "90")

    assert [row["quantile"] for row in table["quantiles"]] == [50, 90]


def test_grids_taken_one_by_one_end_as_one_that_was_taken_at_once(monkeypatch, tmp_path):
    ends = []
    for place, grids in (("one by one", ["90", "50", "60..70:5"]), ("at once", ["50,60,65,70,90"])):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        run = made()
        for grid in grids:
            take(run, grid)
        ends.append((run.replicate(1).thresholds.read_bytes(), file_bytes(run.replicate(1).masks)))

    assert ends[0] == ends[1]


def test_every_replicate_has_a_table_of_its_own_weights():
    run = made(replicates=3)
    finish(run, 2, scale=2)

    tables = take(run)

    assert [table["replicate"] for table in tables] == [1, 2, 3]
    assert [table["max"] for table in tables] == [20, 40, 20]
    assert [names(run, number) for number in (1, 2, 3)] == [["q50.h5", "q90.h5"]] * 3


def test_replicates_that_are_added_get_the_masks_that_the_others_have():
    run = made(replicates=2)
    take(dataclasses.replace(run, chosen=(1,)), "60")

    take(run, "70")

    assert listed(run, 1) == listed(run, 2) == [60, 70]
    assert names(run, 2) == ["q60.h5", "q70.h5"]


def test_only_the_replicates_that_were_chosen_are_looked_at():
    run = made(replicates=2)
    run.replicate(1).dense.result.unlink()

    (table,) = take(dataclasses.replace(run, chosen=(2,)))

    assert table["replicate"] == 2
    assert not run.replicate(1).thresholds.exists()


def test_masks_that_were_removed_are_made_again_alone():
    run = made(quantiles="50,90")
    take(run)
    before = file_bytes(run.replicate(1).masks)
    run.replicate(1).mask(Fraction(50)).unlink()

    take(run)

    assert file_bytes(run.replicate(1).masks) == before
    assert listed(run) == [50, 90]


def test_a_run_killed_before_its_table_was_written_ends_with_the_same_files():
    run = made()
    take(run)
    replicate = run.replicate(1)
    before = (replicate.thresholds.read_bytes(), file_bytes(replicate.masks))
    for path in (replicate.thresholds, replicate.thresholds.with_suffix(".csv"), replicate.mask(Fraction(90))):
        path.unlink()
    (replicate.folder / ".thresholds.json.12.tmp").write_bytes(b"half")

    take(run)

    assert (replicate.thresholds.read_bytes(), file_bytes(replicate.masks)) == before
    assert not list(replicate.folder.rglob("*.tmp"))


def test_a_dense_network_that_is_not_trained_is_asked_for_before_anything_is_written():
    run = made(replicates=2)
    run.replicate(2).dense.result.unlink()

    with pytest.raises(InputError, match=r"replicate-2/train holds no finished training: run `imp train` first"):
        take(run)

    assert not run.replicate(1).masks.exists()
    assert not (run.folder / "recipe.toml").exists()


def test_a_damaged_snapshot_is_named_and_no_table_is_written():
    run = made()
    flip(run.replicate(1).snapshot(LAST))

    with pytest.raises(InputError, match=r"step-000090\.h5 is damaged"):
        take(run)

    assert not run.replicate(1).thresholds.exists()


def test_weights_that_are_not_finite_are_refused_by_name():
    run = made()
    state = store.load_state(run.replicate(1).snapshot(LAST))
    state.weights["b/kernel"][0, 0] = np.nan
    store.save_state(run.replicate(1).snapshot(LAST), state)
    vouch(run)

    with pytest.raises(InputError, match="b/kernel holds NaN or infinite weights"):
        take(run)

    assert not run.replicate(1).masks.exists()


def test_a_pattern_that_matches_nothing_is_refused_before_anything_is_written():
    run = made(exclude=["predicitons/*"])

    with pytest.raises(InputError, match=r"thresholds\.exclude: 'predicitons/\*' matches no variable of mobilenet_v2"):
        take(run)

    assert not run.replicate(1).masks.exists()


def test_a_dense_network_that_diverged_is_told_with_the_way_out_and_nothing_is_written_that_would_bar_it():
    run = made(replicates=2)
    finished(run.replicate(2), 7, status="diverged", reason="the loss is not finite: lower train.learning_rate")

    with pytest.raises(InputError, match=r"replicate-2/train diverged: the loss .*rate, and remove that folder"):
        take(run)

    assert not run.replicate(1).masks.exists()


@pytest.mark.parametrize("other", [{"layerwise": True}, {"scope": "all"}, {"exclude": []}], ids=str)
def test_masks_of_another_recipe_are_not_added_to(other):
    run = made()
    take(run)
    before = file_bytes(run.replicate(1).masks)

    with pytest.raises(InputError, match="masks was made with another recipe"):
        take(changed(run, **other), "99")
    with pytest.raises(InputError, match="masks was made with another recipe"):
        identity.check(run.folder, changed(run, **other).recipe)

    assert file_bytes(run.replicate(1).masks) == before


def test_masks_that_another_process_makes_are_busy():
    run = made()

    with locks.writing(run.replicate(1).masks), pytest.raises(locks.Busy):
        take(run)


@pytest.mark.parametrize("quantiles", ["", "90,80", "101"])
def test_a_malformed_grid_is_refused(quantiles):
    with pytest.raises(InputError, match="quantiles"):
        take(made(), quantiles)


def test_the_stage_does_without_tensorflow():
    code = "import sys; import lottery.stages.thresholds; sys.exit(bool({'tensorflow', 'keras'} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", code], env=clean_environment()).returncode == 0
