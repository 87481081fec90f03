"""What a measurement found, shown: as a table, as JSON, and as files."""

import json

from PIL import Image

from lottery.bench.sheet import Column, bars, content, write

MACHINE = {
    "python": "3.11.7",
    "packages": {"tensorflow": "2.21", "keras": "3.15", "numpy": "2.3"},
    "processor": "an abacus",
    "cores": 2,
    "gpus": [],
}
ROWS = [
    {"name": "slow <a>", "rate": 1234.5, "share": 1.0, "low": 1000.0, "high": 1300.0},
    {"name": "fast", "rate": 24690.0, "share": None, "low": 24000.0, "high": 25000.0},
]
COLUMNS = [Column("name", ""), Column("rate", "images/s"), Column("share", "share", ".0%")]
FIGURE = bars(ROWS, "name", "rate", "images a second", spread=True)


def found(name="speed", title="How fast"):
    return content(name, title, MACHINE, COLUMNS, ROWS, ["medians"])


def test_the_content_has_every_value_and_the_table_as_text_with_what_belongs_under_it():
    assert json.loads(json.dumps(found())) == {
        "name": "speed",
        "title": "How fast",
        "machine": MACHINE,
        "columns": {"name": "", "rate": "images/s", "share": "share"},
        "rows": ROWS,
        "notes": ["medians"],
        "cells": [["slow <a>", "1,234", "100%"], ["fast", "24,690", ""]],
        "remarks": ["medians", "an abacus, 2 cores, no GPU; Python 3.11.7, tensorflow 2.21, keras 3.15, numpy 2.3"],
    }


def test_it_is_written_as_files(tmp_path):
    write(found(), FIGURE, tmp_path / "out")

    assert {path.name for path in (tmp_path / "out").iterdir()} == {"speed.json", "speed.md", "speed.png"}
    with Image.open(tmp_path / "out/speed.png") as picture:
        assert picture.width >= 1000
    text = (tmp_path / "out/speed.md").read_text()
    assert "| slow <a> | 1,234 | 100% |" in text
    assert "![How fast](speed.png)" in text
