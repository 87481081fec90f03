"""Measurements read back from the folder that `imp bench --out` writes."""

import pytest

from lottery.base import files
from lottery.results import measurements
from lottery.results.block import Block

PNG = b"\x89PNG\r\n\x1a\n"


def lay(folder, name, **changes):
    """A measurement as files."""
    written = {
        "name": name,
        "title": f"How fast: {name}",
        "columns": {"rate": "images/s"},
        "cells": [["12"]],
        "remarks": ["On this machine"],
    }
    files.write_json(folder / f"{name}.json", written | {"rows": [{"rate": 12.3}]} | changes)
    (folder / f"{name}.png").write_bytes(PNG + name.encode())


def test_they_are_blocks_in_the_order_of_their_names(tmp_path):
    for name in ("limits", "feed"):
        lay(tmp_path, name)

    found, problems = measurements.read(tmp_path)

    feed = Block("feed", "How fast: feed", table=[{"images/s": "12"}], explained="On this machine", picture=PNG + b"feed")
    assert found[0] == feed
    assert found[1].name == "limits"
    assert problems == []


@pytest.mark.parametrize(
    "content", ["", '{"name": "feed", "title"', "[1, 2]", '{"epochs": 3}', '{"name": 3}', "\x00", '"feed"'], ids=repr
)
def test_a_json_file_that_is_none_is_left_out_and_named(tmp_path, content):
    lay(tmp_path, "limits")
    (tmp_path / "feed.json").write_text(content)

    found, (problem,) = measurements.read(tmp_path)

    assert [one.name for one in found] == ["limits"]
    assert problem.startswith(f"{tmp_path / 'feed.json'} is damaged, or no measurement: left out")
    assert "\n" not in problem


@pytest.mark.parametrize("changes", [{"cells": [[1, 2]]}, {"cells": "none"}, {"remarks": None}, {"columns": ["rate"]}])
def test_one_with_other_values_is_left_out(tmp_path, changes):
    lay(tmp_path, "limits", **changes)

    assert measurements.read(tmp_path)[0] == []


def test_one_without_its_picture_is_left_out(tmp_path):
    lay(tmp_path, "limits")
    (tmp_path / "limits.png").unlink()
    (tmp_path / "folder.json").mkdir()

    found, problems = measurements.read(tmp_path)

    assert found == []
    assert "folder.json: Is a directory" in problems[0]
    assert "limits.png: No such file or directory" in problems[1]


def test_where_nothing_was_measured_there_is_nothing(tmp_path):
    assert measurements.read(tmp_path / "nowhere") == ([], [])
