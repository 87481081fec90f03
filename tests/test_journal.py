"""metrics.jsonl: what was written is there, what was cut is not, what was changed is noticed."""

import hashlib
import json

import pytest

from lottery.base.errors import InputError
from lottery.rundir import journal

ROWS = [{"step": 45, "loss": 0.5}, {"step": 90, "loss": 0.25}, {"step": 135, "loss": 0.125}]


@pytest.fixture
def metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    seal = ""
    for row in ROWS:
        seal = journal.append(path, row, seal)
    return path


def seals(metrics):
    return [json.loads(line)["sha256"] for line in metrics.read_text().splitlines()]


def test_rows_come_back_in_the_order_they_were_written(metrics):
    assert journal.read(metrics) == ROWS


def test_a_row_is_a_line(metrics):
    first, *others = [json.loads(line) for line in metrics.read_text().splitlines()]

    assert first == ROWS[0] | {"sha256": hashlib.sha256(b'{"step": 45, "loss": 0.5').hexdigest()}
    assert len(others) == 2
    assert len(set(seals(metrics))) == 3


def test_no_file_is_no_rows(tmp_path):
    assert journal.read(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize("cut", [1, 2, 10])
def test_a_last_line_cut_short_is_left_out(metrics, cut):
    metrics.write_text(metrics.read_text()[:-cut])

    assert journal.read(metrics) == ROWS[:2]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_line_that_is_lost_is_missed_by_those_after_it(metrics, lost):
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(line for number, line in enumerate(lines) if number != lost))

    with pytest.raises(InputError, match=rf"metrics\.jsonl is damaged in line {lost + 1}, or lacks lines before it"):
        journal.read(metrics)


def test_no_byte_of_a_finished_line_can_change_unnoticed(metrics):
    whole = metrics.read_bytes()
    end = whole.rindex(b"\n", 0, -1)  # what follows is the last line, which may be one that is being written
    changes = [(place, bit) for place in range(end + 1) for bit in (1, 0x80)]  # the latter makes it no text
    changed = [whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :] for place, bit in changes]
    first, _, last = whole.splitlines(keepends=True)
    for content in (*changed, first + b"\0\0\0\0\n" + last):
        metrics.write_bytes(content)
        with pytest.raises(InputError, match=r"metrics\.jsonl is damaged"):
            journal.read(metrics)


def test_the_last_seal_tells_a_journal_from_one_that_lost_its_end(metrics):
    *others, last = seals(metrics)
    assert journal.read_sealed(metrics)[1] == last

    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]))

    assert journal.read_sealed(metrics)[1] == others[-1]


def test_rewinding_drops_the_rows_after_a_step(metrics):
    assert journal.rewind(metrics, 90) == (ROWS[:2], seals(metrics)[1])
    assert journal.read(metrics) == ROWS[:2]


def test_rewinding_to_the_start_leaves_an_empty_file(metrics):
    assert journal.rewind(metrics, 0) == ([], "")
    assert metrics.read_text() == ""


def test_rewinding_drops_a_last_line_cut_short_so_that_the_next_row_stands_alone(metrics):
    whole = metrics.read_text()
    metrics.write_text(whole[:-5])

    _, seal = journal.rewind(metrics, 1000)
    journal.append(metrics, ROWS[2], seal)

    assert metrics.read_text() == whole


def test_rewinding_refuses_a_journal_that_lost_rows_before_that_step(metrics):
    _, second, _ = seals(metrics)
    metrics.write_text(metrics.read_text().splitlines(keepends=True)[0])

    with pytest.raises(InputError, match=r"metrics\.jsonl lacks rows that its training wrote up to step 90: remove"):
        journal.rewind(metrics, 90, second)
