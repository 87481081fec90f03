"""What a measurement found, shown: as a table, as JSON, and as files."""

import dataclasses
import json
import re

import pytest
from PIL import Image

from lottery.bench.sheet import Bars, Column, Heat, Lines, Sheet, write

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
FIGURES = [
    Bars("name", "rate", "images a second", "low", "high"),
    Bars("name", "share", "share"),
    Lines("x", "rate", "seed", ("x", "y"), "seed", target=3.0),
    Heat("x", "low", "rate", ("x", "y", "rate")),
]


def sheet(figure=FIGURES[0]):
    return Sheet("speed", "How fast", MACHINE, COLUMNS, ROWS, figure, ["medians"], {"peak_of_it": 1.5})


def test_the_table_is_text_and_what_there_is_not_is_empty():
    assert sheet().headings == ["", "images/s", "share"]
    assert sheet().cells == [["slow <a>", "1,234", "100%"], ["fast", "24,690", ""]]


def test_what_belongs_under_it_ends_with_the_machine():
    assert sheet().remarks == [
        "medians",
        "peak of it: 1.5",
        "an abacus, 2 cores, no GPU; Python 3.11.7, tensorflow 2.21, keras 3.15, numpy 2.3",
    ]


def test_json_has_every_value_of_every_row():
    found = json.loads(json.dumps(sheet().content()))

    assert found["rows"] == ROWS
    assert (found["name"], found["machine"], found["extras"]) == ("speed", MACHINE, {"peak_of_it": 1.5})
    assert found["columns"] == {"name": "", "rate": "images/s", "share": "share"}
    assert (found["cells"], found["remarks"]) == (sheet().cells, sheet().remarks)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: type(figure).__name__)
def test_it_is_written_as_files_that_need_no_network(tmp_path, figure):
    assert write(sheet(figure), tmp_path / "out") == []

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
        write(dataclasses.replace(sheet(), name=name, title=f"How fast: {name}"), tmp_path)

    page = (tmp_path / "index.html").read_text()

    titles = re.findall(r'<h2 id="(.*)"><a href="(.*).html">How fast: (.*)</a></h2>', page)
    assert titles == [(name, name, name) for name in ("limits", "inference", "speed")]
    assert page.count("<td>slow &lt;a&gt;</td>") == page.count("<li>medians</li>") == 3
    assert len(re.findall(r'<img alt="How fast: \w+" src="data:image/png;base64,[A-Za-z0-9+/=]{1000,}">', page)) == 3
    assert 'href="index.html"' in (tmp_path / "speed.html").read_text()


def test_what_is_in_the_way_is_told_and_the_rest_is_shown(tmp_path):
    (tmp_path / "notes.json").write_text("{}")

    (problem,) = write(sheet(), tmp_path)

    assert "notes.json is damaged, or no measurement" in problem
    assert "How fast" in (tmp_path / "index.html").read_text()


def test_an_index_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "index.html").write_text("<h1>My own</h1>")

    (problem,) = write(sheet(), tmp_path)

    assert f"{tmp_path / 'index.html'} is none of `imp bench`" in problem
    assert (tmp_path / "index.html").read_text() == "<h1>My own</h1>"
    assert (tmp_path / "speed.html").exists()
