"""Progress: plain lines in a log file, in the unit of the work, and nothing when it is to be quiet."""

import pytest

from lottery.base import progress
from lottery.base.progress import Reporter


@pytest.fixture
def clock(monkeypatch):
    """A function that sets the time, in seconds."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return lambda seconds: now.__setitem__(0, seconds)


def test_a_line_every_half_minute_says_how_much_is_done_how_fast_and_what_is_left(clock, capsys):
    with Reporter().counting("dense", 1000) as advance:
        for seconds in range(1, 62):
            clock(float(seconds))
            advance(5)

    assert capsys.readouterr().err.splitlines() == [
        "dense: 150 of 1000 steps, 5 steps/s, 2 min 50 s left",
        "dense: 300 of 1000 steps, 5 steps/s, 2 min 20 s left",
    ]


def test_the_unit_is_that_of_the_work_and_a_rank_says_who_it_is(clock, capsys):
    with Reporter(prefix="rank 2: ").counting("preparing digits", 100, "images") as advance:
        clock(40.0)
        advance(80)

    assert capsys.readouterr().err == "rank 2: preparing digits: 80 of 100 images, 2 images/s, 10 s left\n"


def test_what_holds_for_all_processes_is_said_once_by_the_one_that_speaks_for_them(capsys):
    speaker, passed = Reporter(), []
    rank = Reporter(prefix="rank 2: ").of_rank(lambda saved: None, passed.append)
    for reporter in (speaker, speaker, rank, rank.silent()):
        reporter.once("MACs are not counted")

    assert capsys.readouterr().err == "MACs are not counted\n"
    assert passed == ["MACs are not counted"] * 2


def test_short_work_says_nothing(clock, capsys):
    with Reporter().counting("dense", 10) as advance:
        clock(29.0)
        advance(10)

    assert capsys.readouterr().err == ""


def test_a_quiet_reporter_says_nothing(clock, capsys):
    reporter = Reporter(quiet=True)
    reporter.say("hello")
    with reporter.counting("dense", 10) as advance:
        clock(100.0)
        advance(5)

    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    reporter = Reporter()
    assert reporter.bars
    assert not Reporter(prefix="rank 2: ").bars

    with reporter.counting("verifying", 10, "files") as advance:
        advance(10)

    assert "verifying" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("title", "shown"),
    [("preparing folder:/a/[b]c[/d]/:cat:", None), ("preparing a\x1b[2Jb\n", r"preparing a\x1b[2Jb\n")],
)
def test_names_are_shown_as_they_are(monkeypatch, capsys, title, shown):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")

    with Reporter().counting(title, 10) as advance:
        advance(10)
    bar = capsys.readouterr().err
    Reporter().say(title)

    assert (shown or title) in bar
    assert capsys.readouterr().err == f"{shown or title}\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (190, "3 min 10 s"), (7500, "2 h 05 min")]
)
def test_durations_are_read_at_a_glance(seconds, text):
    assert progress.duration(seconds) == text
