"""What a measurement found, shown: as a table, as JSON, and as files."""

import json
import re

import pytest
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


def test_it_is_written_as_files_and_on_a_page_of_all_measurements_that_needs_no_network(tmp_path):
    for name in ("speed", "inference", "limits"):
        assert write(found(name, f"How fast: {name}"), FIGURE, tmp_path / "out") == []

    assert {path.name for path in (tmp_path / "out").glob("speed.*")} == {"speed.json", "speed.md", "speed.png"}
    with Image.open(tmp_path / "out/speed.png") as picture:
        assert picture.width >= 1000
    text = (tmp_path / "out/speed.md").read_text()
    assert "| slow <a> | 1,234 | 100% |" in text
    assert "![How fast: speed](speed.png)" in text
    page = (tmp_path / "out/index.html").read_text()
    titles = re.findall(r'<h2 id="(.*)">How fast: (.*)</h2>', page)
    assert titles == [(name, name) for name in ("inference", "limits", "speed")]
    assert page.count("<td>slow &lt;a&gt;</td>") == page.count("<p>medians</p>") == 3
    assert len(re.findall(r'<img alt="How fast: \w+" src="data:image/png;base64,[A-Za-z0-9+/=]{1000,}">', page)) == 3
    assert "http" not in page


@pytest.mark.parametrize(
    ("name", "content", "told", "shown"),
    [
        ("notes.json", "{}", "notes.json is damaged, or no measurement", "How fast"),
        ("index.html", "<h1>My own</h1>", "index.html is not a page of `imp bench`", "<h1>My own</h1>"),
    ],
)
def test_what_is_in_the_way_is_told_and_left_alone_and_the_rest_is_shown(tmp_path, name, content, told, shown):
    (tmp_path / name).write_text(content)

    (problem,) = write(found(), FIGURE, tmp_path)

    assert f"{tmp_path}/{told}" in problem
    assert (tmp_path / name).read_text() == content
    assert shown in (tmp_path / "index.html").read_text()
    assert (tmp_path / "speed.md").exists()
