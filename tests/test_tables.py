"""Tables for people: whatever the terminal, no figure is cut."""

import pytest

from lottery.results.tables import print_table


@pytest.mark.parametrize("columns", ["20", "80", "200"])
def test_a_table_is_as_wide_as_its_figures(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    rows = [["q90", *(f"{number}.23456e-10" for number in range(15))]]

    print_table("A table", ["mask", *(f"column {number}" for number in range(15))], rows)

    printed = capsys.readouterr().out
    assert all(cell in printed for cell in rows[0])
    assert "…" not in printed
    assert len(printed.splitlines()) == 6  # title, three rules, headings, row


def test_a_narrow_table_is_no_wider_than_it_needs_to_be(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    print_table("A table", ["mask", "count"], [["q90", "5"]])

    assert max(map(len, capsys.readouterr().out.splitlines())) < 30


def test_names_are_shown_as_they_are(capsys):
    print_table("runs/[b]:cat:", ["mask"], [["[/b]:dog:"]])

    printed = capsys.readouterr().out
    assert "runs/[b]:cat:" in printed
    assert "[/b]:dog:" in printed
