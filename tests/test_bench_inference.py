"""`imp bench inference`: each installed engine runs the dense network and its tickets, and what is faster is said."""

import numpy as np
import pytest
from helpers import lenet
from tiny import initial

from lottery.bench import engines, inference
from lottery.engine import signature
from lottery.results.reader import open_results


def test_the_first_and_the_last_ticket_are_measured_beside_the_dense_network(quick, retrained, monkeypatch):
    monkeypatch.setattr(engines.Engine, "installed", property(lambda engine: engine.name in ("Keras", "LiteRT")))

    measured = quick("inference", "--run", str(retrained / "runs/digits"))

    rows, tickets = measured["rows"], ["oneshot/q50-step-000000", "oneshot/q90-step-000017"]
    assert [row["name"] for row in rows] == [
        f"{name}, {compact}{engine}, 1 thread"
        for name in ("dense", *tickets)
        for compact in ("", *([] if name == "dense" else ["compact, "]))
        for engine in ("Keras", "LiteRT")
    ]
    assert all(row["agreement"] == 1 and row["off"] < 1e-5 for row in rows)
    assert [note.split(":")[0].replace(", compact", "") for note in measured["notes"] if "times as fast" in note] == [
        f"{one}, 1 thread" for one in tickets
    ]
    assert sorted(note for note in measured["notes"] if note.startswith("skipped: ")) == [
        "skipped: MNN is not installed: pip install 'imp-lottery[mnn]'",
        "skipped: ONNX Runtime is not installed: pip install 'imp-lottery[onnx]'",
    ]


def accuracy_of_drawn(results):
    """That of the dense network, as the run has kept it, on the test images that are drawn with --quick."""
    predictions = results.network("dense").predictions()["test"]
    count = min(100, len(predictions.right))
    return np.mean(predictions.right[np.random.default_rng(0).choice(len(predictions.right), count, replace=False)])


def test_each_engine_answers_as_keras_does(quick, retrained):
    rows = quick("inference", "--run", str(retrained / "runs/digits"), "--ticket", "dense")["rows"]

    used = [engine for engine in engines.ENGINES if engine.installed]
    assert [(row["engine"], row["version"], row["flags"]) for row in rows] == [
        (one.name, one.version, one.flags) for one in used
    ]
    assert all(row["off"] < (1e-5 if row["exact"] else 0.1) for row in rows)
    assert all(row["agreement"] == 1 for row in rows if row["exact"])
    assert {row["accuracy"] for row in rows if row["exact"]} == {accuracy_of_drawn(open_results(retrained / "runs/digits"))}
    assert all(0 < row["low"] <= row["us"] <= row["high"] and row["gzip_kb"] < row["file_kb"] for row in rows)


@pytest.mark.usefixtures("tensorflow")
def test_a_compact_file_lacks_dead_channels(tmp_path):
    state = initial()
    state.weights["fc2/kernel"][:150] = 0
    network = {"model": lenet(), "signature": signature.images(8, 3), "state": state, "images": tmp_path / "none.npy"}

    whole, compact = (inference.file_of("tflite", compact=compact, **network) for compact in (False, True))

    assert len(compact) < 0.6 * len(whole)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ticket", "q42"], "there is no 'q42'"),
        ([], "replicate-1 has no finished ticket: train one with `imp run` or `imp retrain`"),
    ],
)
def test_without_such_a_ticket_there_is_nothing_to_compare(typed, trained, arguments, words):
    code, _, said = typed("inference", "--run", str(trained / "runs/digits"), "--quick", *arguments)

    assert (code, said.count("\n")) == (2, 1)
    assert words in said


def test_a_ticket_is_compared_turn_by_turn_with_the_fastest_dense_engine_that_has_the_trained_weights():
    def row(network, engine, exact=True):
        row = {"name": f"{network}, {engine}", "network": network, "engine": engine, "exact": exact, "threads": 2}
        return row | {"compact": engine == "new"}

    rows = [
        row("dense", "slow"),
        row("dense", "fast"),
        row("dense", "rough", exact=False),
        row("q90", "fast"),
        row("q90", "new"),
    ]
    walls = {
        "dense, slow": [4e-6, 8e-6, 4e-6],
        "dense, fast": [2e-6, 6e-6, 2e-6],
        "dense, rough": [1e-6] * 3,
        "q90, fast": [2e-6, 6e-6, 4e-6],
        "q90, new": [1e-6, 2e-6, 2e-6],
    }

    found = inference.compared(rows, walls)

    speedups = {row["name"]: (row["at_least"], row["speedup"], row["at_most"]) for row in found}
    assert speedups["dense, fast"] == (1, 1, 1)
    assert speedups["q90, fast"] == (0.5, 1, 1)
    assert speedups["q90, new"] == (1, 2, 3)
    assert {row["name"]: row["us"] for row in found}["q90, new"] == pytest.approx(2)
    assert inference.summary(found) == [
        "dense, 2 threads: rough is 2.00 times as fast (2.00 to 6.00) as the fastest dense engine in float32, fast",
        "q90, compact, 2 threads: new is 2.00 times as fast (1.00 to 3.00) as the fastest dense engine in float32, fast",
    ]
    assert [one["speedup"] for one in inference.compared(rows[3:], walls)] == [None, None]


def test_the_interval_of_a_median_holds_it_in_95_of_100_cases_and_no_outlier():
    rng = np.random.default_rng(0)
    intervals = [inference.interval(rng.lognormal(0, 3, 21)) for _ in range(2000)]

    assert 0.95 <= np.mean([low <= 1 <= high for low, high in intervals]) <= 0.985
    assert inference.interval([1, 2, 3, 4, 5]) == (1, 5)
    assert inference.interval([*range(20), 1e9]) == (5, 15)
