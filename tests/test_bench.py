"""The measurements run, small, and say what they are of. No test looks at a time."""

import itertools
import json
import time

import numpy as np
import pytest
from helpers import imp, refused
from PIL import Image

from lottery.bench import measure
from lottery.bench.prepare import make_photographs
from lottery.progress import Reporter

ROW = {"name", "images_per_s", "low", "high", "mb_per_s", "per_core", "ratio", "repeats"}


def test_contenders_take_turns_after_a_warm_up(monkeypatch):
    monkeypatch.setattr(measure, "RUN_SECONDS", 1e-9)
    turns = []

    rows = measure.compare(
        {"one": lambda: turns.append("one"), "two": lambda: turns.append("two")}, 10, 3, "one", 3, Reporter(quiet=True)
    )

    assert turns == ["one", "one", "two", "two", *["one", "two"] * 3]
    assert [(row.name, row.repeats) for row in rows] == [("one", 3), ("two", 3)]


def test_what_is_quick_is_done_often_enough_to_be_timed(monkeypatch):
    monkeypatch.setattr(measure, "RUN_SECONDS", 0.05)
    calls = []

    measure.compare({"quick": lambda: calls.append(time.sleep(0.001))}, 1, 1, "quick", 2, Reporter(quiet=True))

    assert len(calls) > 20


def test_a_row_is_the_median_of_its_runs_against_the_baseline(monkeypatch):
    walls = itertools.chain([(2, 1), (1, 2)], [(4, 2), (1, 2)], [(8, 4), (1, 2)])
    monkeypatch.setattr(measure, "_goes", lambda work: 1)
    monkeypatch.setattr(measure, "_timed", lambda work, goes: next(walls))

    slow, fast = measure.compare({"slow": id, "fast": id}, 400, 1000, "slow", 3, Reporter(quiet=True))

    assert (slow.images_per_s, slow.low, slow.high, slow.per_core, slow.ratio) == (100, 50, 200, 200, 1)
    assert (fast.images_per_s, fast.mb_per_s, fast.per_core, fast.ratio) == (400, 0.4, 200, 4)


def test_the_peak_of_memory_is_that_of_the_time_since():
    with measure.peak_memory() as peak:
        big = np.ones(100_000_000, np.uint8)
        del big
        assert 90e6 < peak() < 130e6
    with measure.peak_memory() as peak:
        assert peak() < 50e6


def test_photographs_are_jpeg_files_in_two_classes(tmp_path):
    make_photographs(tmp_path, 502)

    assert [len(list((tmp_path / name).iterdir())) for name in ("china", "flower")] == [251, 251]
    with Image.open(tmp_path / "china/000000.jpg") as image:
        assert (image.format, image.size, image.mode) == ("JPEG", (500, 375), "RGB")


def test_preparing_is_measured_beside_pillow_and_decoding(tmp_path):
    found = json.loads(
        imp("bench", "prepare", "--images", "30", "--repeats", "2", "--workers", "2", "--json", cwd=tmp_path).stdout
    )

    assert [row["name"] for row in found["rows"]] == [
        "Pillow, decoded whole",
        "decoding alone, at reduced scale",
        "imp prepare, 1 worker",
        "imp prepare, 2 workers",
    ]
    assert all(row.keys() == ROW and row["repeats"] == 2 and row["images_per_s"] > 0 for row in found["rows"])
    assert found["rows"][0]["ratio"] == 1
    assert found["extras"]["GB_that_one_thread_copies_in_a_second"] > 0
    assert "workers_speed_up" in found["extras"]
    assert {"processor", "cores", "packages"} <= found["machine"].keys()
    assert list(tmp_path.iterdir()) == []


def test_feeding_is_measured_beside_tf_data(tmp_path):
    small = ("--images", "600", "--size", "8", "--batch", "50", "--repeats", "1")

    found = json.loads(imp("bench", "feed", *small, "--crop", "1", "--flip", "--json", cwd=tmp_path).stdout)
    table = imp("bench", "feed", *small, cwd=tmp_path).stdout

    names = [row["name"] for row in found["rows"]]
    assert names == ["tf.data, one by one, then batched", "the same, parallel and prefetched", "stream", "memory"]
    assert all(row.keys() == ROW for row in found["rows"])
    assert "resident_peak_over_raw_bytes" in found["extras"]
    assert all(name in table for name in [*names, "copies"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("feed", "--batch", "100", "--images", "50"), "--batch 100 is more than --images 50"),
        (("prepare", "nowhere"), "nowhere is not a folder"),
        (("prepare", "--size", "2"), "--size"),
        (("feed", "--repeats", "0"), "--repeats"),
        (("brew",), "brew"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(tmp_path, arguments, words):
    refused(imp("bench", *arguments, cwd=tmp_path, check=False), words)
