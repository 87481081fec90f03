"""The fan-out is measured, small. No test looks at a time."""

import dataclasses
import json
import os

import pytest
from helpers import imp, refused

from lottery.bench import fanout, measure
from lottery.bench.fanout import Grid, Row

TINY = ["--model", "lenet_300_100", "--size", "8", "--images", "128", "--batch", "64", "--epochs", "1", "--repeats", "1"]


def test_every_setting_is_measured(tmp_path):
    done = imp("bench", "fanout", *TINY, "--pairs", "4", "--ranks", "2", "--json", cwd=tmp_path)

    found = json.loads(done.stdout)
    settings = {(1, 1), (1, measure.cores()), (2, 1)}
    assert {(row["ranks"], row["threads"]) for row in found["rows"]} == settings
    assert max(row["ratio"] for row in found["rows"] if row["ranks"] == 1) == 1
    for row in found["rows"]:
        assert 0 < row["evaluate_seconds"] < row["other_seconds"] < row["pair_seconds"]
        assert row["low"] <= row["tickets_per_hour"] <= row["high"]
    assert found["title"].startswith("4 pairs of 1 epoch: lenet_300_100")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_measured_is_refused(tmp_path):
    refused(imp("bench", "fanout", *TINY, "--pairs", "2", "--ranks", "2", cwd=tmp_path, check=False), "--pairs 4")
    refused(imp("bench", "fanout", *TINY, "--evaluate", "often", cwd=tmp_path, check=False), "often")


def test_of_a_pair_what_is_not_spent_in_steps_is_not_training(tmp_path):
    made_with, result = tmp_path / "made_with.json", tmp_path / "result.json"
    made_with.write_text(json.dumps({"values": {"train.batch": 100}}))
    result.write_text("{}")
    timings = [{"images_per_second": 1000.0, "seconds": 2.5}, {"images_per_second": 500.0, "seconds": 6.25}]
    rows = [{"step": step, "timing": timing} for step, timing in zip((20, 50), timings, strict=True)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(made_with, (100, 100))
    os.utime(result, (110, 110))

    assert dataclasses.astuple(fanout._pair(result)) == (100.0, 110.0, pytest.approx(2 + 6), pytest.approx(0.5 + 0.25))


def test_a_row_is_titled_by_its_processes_and_threads():
    figures = [0.0] * 8

    assert Row(1, 1, *figures, 3).title == "one process, 1 thread"
    assert Row(1, 2, *figures, 3).title == "one process, 2 threads"
    assert Row(4, 1, *figures, 3).title == "4 ranks, 1 thread each"


def test_the_quantiles_are_as_many_as_the_pairs(tmp_path):
    options = fanout._recipe(Grid("lenet_300_100", None, 8, 64, 128, 1, 5), tmp_path, 2)

    (quantiles,) = (option for option in options if option.startswith("thresholds.quantiles="))
    assert quantiles.count(",") == 4
    assert "train.threads=2" in options
