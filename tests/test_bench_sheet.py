"""What a measurement found, shown: as a table, as JSON, and as files."""

import json
import re

import pytest
from PIL import Image

from lottery.bench.sheet import Column, bars, content, heat, lines, write

MACHINE = {
    "python": "3.11.7",
    "packages": {"tensorflow": "2.21", "keras": "3.15", "numpy": "2.3"},
    "processor": "an abacus",
    "cores": 2,
    "gpus": [],
}
ROWS = [
    {"name": "slow <a>", "rate": 1234.5, "share": 1.0, "low": 1000.0, "high": 1300.0, "seed": "one", "x": 1},
    {"name": "fast", "rate": 24690.0, "share": None, "low": 24000.0, "high": 25000.0, "seed": "one", "x": 2},
]
COLUMNS = [Column("name", ""), Column("rate", "images/s"), Column("share", "share", ".0%")]
FIGURES = {
    "spread": bars(ROWS, "name", "rate", "images a second", spread=True),
    "bars": bars(ROWS, "name", "share", "share"),
    "lines": lines(ROWS, "x", "rate", "seed", ("x", "y"), "seed", target=3.0),
    "heat": heat(ROWS, "x", "low", "rate", ("x", "y", "rate")),
}


def found(name="speed", title="How fast"):
    return content(name, title, MACHINE, COLUMNS, ROWS, ["medians"], {"peak_of_it": 1.5})


def test_the_content_has_every_value_and_the_table_as_text_with_what_belongs_under_it():
    assert json.loads(json.dumps(found())) == {
        "name": "speed",
        "title": "How fast",
        "machine": MACHINE,
        "columns": {"name": "", "rate": "images/s", "share": "share"},
        "rows": ROWS,
        "notes": ["medians"],
        "extras": {"peak_of_it": 1.5},
        "cells": [["slow <a>", "1,234", "100%"], ["fast", "24,690", ""]],
        "remarks": [
            "medians",
            "peak of it: 1.5",
            "an abacus, 2 cores, no GPU; Python 3.11.7, tensorflow 2.21, keras 3.15, numpy 2.3",
        ],
    }


@pytest.mark.parametrize("figure", FIGURES)
def test_it_is_written_as_files_that_need_no_network(tmp_path, figure):
    assert write(found(), FIGURES[figure], tmp_path / "out") == []

    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("index.html", "speed.html", "speed.json", "speed.md", "speed.png")
    ]
    with Image.open(tmp_path / "out/speed.png") as picture:
        assert picture.width >= 1000
    page = (tmp_path / "out/speed.html").read_text()
    assert "<td>slow &lt;a&gt;</td>" in page
    assert "http" not in page
    text = (tmp_path / "out/speed.md").read_text()
    assert "| slow <a> | 1,234 | 100% |" in text
    assert "![How fast](speed.png)" in text


def test_the_index_shows_every_measurement_of_the_folder(tmp_path):
    for name in ("speed", "inference", "limits"):
        write(found(name, f"How fast: {name}"), FIGURES["bars"], tmp_path)

    page = (tmp_path / "index.html").read_text()

    titles = re.findall(r'<h2 id="(.*)"><a href="(.*).html">How fast: (.*)</a></h2>', page)
    assert titles == [(name, name, name) for name in ("limits", "inference", "speed")]
    assert page.count("<td>slow &lt;a&gt;</td>") == page.count("<li>medians</li>") == 3
    assert len(re.findall(r'<img alt="How fast: \w+" src="data:image/png;base64,[A-Za-z0-9+/=]{1000,}">', page)) == 3
    assert 'href="index.html"' in (tmp_path / "speed.html").read_text()


@pytest.mark.parametrize(
    ("name", "content", "told", "shown"),
    [
        ("notes.json", "{}", "notes.json is damaged, or no measurement", "How fast"),
        ("index.html", "<h1>My own</h1>", "index.html is none of `imp bench`", "<h1>My own</h1>"),
    ],
)
def test_what_is_in_the_way_is_told_and_left_alone_and_the_rest_is_shown(tmp_path, name, content, told, shown):
    (tmp_path / name).write_text(content)

    (problem,) = write(found(), FIGURES["bars"], tmp_path)

    assert f"{tmp_path}/{told}" in problem
    assert (tmp_path / name).read_text() == content
    assert shown in (tmp_path / "index.html").read_text()
    assert (tmp_path / "speed.html").exists()
