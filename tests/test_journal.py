"""metrics.jsonl: what was written is there, what was cut is not."""

import pytest

from data_prep.errors import InputError
from lottery import journal

ROWS = [{"step": 45, "loss": 0.5}, {"step": 90, "loss": 0.25}, {"step": 135, "loss": 0.125}]


@pytest.fixture
def metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for row in ROWS:
        journal.append(path, row)
    return path


def test_rows_come_back_in_the_order_they_were_written(metrics):
    assert journal.read(metrics) == ROWS


def test_a_row_is_a_line(metrics):
    assert metrics.read_text().splitlines()[0] == '{"step": 45, "loss": 0.5}'
    assert metrics.read_text().count("\n") == 3


def test_no_file_is_no_rows(tmp_path):
    assert journal.read(tmp_path / "metrics.jsonl") == []


def test_an_empty_file_is_no_rows(tmp_path):
    (tmp_path / "metrics.jsonl").touch()

    assert journal.read(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize("cut", [1, 2, 10])
def test_a_last_line_cut_short_is_left_out(metrics, cut):
    metrics.write_text(metrics.read_text()[:-cut])

    assert journal.read(metrics) == ROWS[:2]


def test_a_damaged_line_in_between_is_refused_by_name(metrics):
    first, _, last = metrics.read_text().splitlines(keepends=True)
    metrics.write_text(first + "\0\0\0\0\n" + last)

    with pytest.raises(InputError, match=r"metrics\.jsonl"):
        journal.read(metrics)


def test_a_bit_that_makes_it_no_text_is_refused_by_name(metrics):
    content = bytearray(metrics.read_bytes())
    content[3] |= 0x80
    metrics.write_bytes(content)

    with pytest.raises(InputError, match=r"metrics\.jsonl is damaged"):
        journal.read(metrics)


def test_text_beyond_ascii_comes_back(tmp_path):
    row = {"step": 1, "note": "µ\u2028\n\x85"}

    journal.append(tmp_path / "metrics.jsonl", row)

    assert journal.read(tmp_path / "metrics.jsonl") == [row]


def test_rewinding_drops_the_rows_after_a_step(metrics):
    assert journal.rewind(metrics, 90) == ROWS[:2]
    assert journal.read(metrics) == ROWS[:2]


def test_rewinding_to_the_start_leaves_an_empty_file(metrics):
    assert journal.rewind(metrics, 0) == []
    assert metrics.read_text() == ""


def test_rewinding_drops_a_last_line_cut_short_so_that_the_next_row_stands_alone(metrics):
    whole = metrics.read_text()
    metrics.write_text(whole[:-5])

    journal.rewind(metrics, 1000)
    journal.append(metrics, ROWS[2])

    assert metrics.read_text() == whole


def test_rewinding_makes_the_file_when_there_is_none(tmp_path):
    assert journal.rewind(tmp_path / "train" / "metrics.jsonl", 10) == []
    assert (tmp_path / "train" / "metrics.jsonl").read_text() == ""
