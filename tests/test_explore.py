"""`imp explore`: the magnitudes of a network in a table, by variable and in all, at any snapshot."""

import json

import numpy as np
import pytest
from helpers import imp_here

from lottery.experiment.grids import parse_point
from lottery.results import explore
from lottery.rundir import store
from lottery.rundir.run import open_run


@pytest.fixture
def run(retrained):
    return open_run(retrained / "runs" / "digits")


def rows(folder, *arguments):
    return json.loads(imp_here("explore", "--json", *arguments, cwd=folder).stdout)


def test_all_together_is_what_thresholds_found(retrained):
    folder = retrained / "runs/digits/replicate-1/oneshot/masks"
    half, most = (json.loads((folder / f"{name}.json").read_text()) for name in ("q50", "q90"))
    *_, row = rows(retrained, "--quantiles", "50,90")

    assert row["path"] == "in all"
    assert {key: row[key] for key in ("count", "min", "max")} == {key: half["scores"][key] for key in ("count", "min", "max")}
    assert row["mean"] == pytest.approx(half["scores"]["mean"])
    assert row["quantiles"] == {"50": half["threshold"], "90": most["threshold"]}


def test_a_table_with_a_row_and_bars_for_each_variable(retrained):
    printed = imp_here("explore", cwd=retrained).stdout

    assert "replicate-1, dense, step 51" in printed
    for word in ("fc1/kernel", "in all", "q99", "█"):
        assert word in printed


@pytest.mark.parametrize(("at", "step"), [("0", 0), ("10it", 10), ("1ep", 17), ("end", 51)])
def test_a_point_of_the_dense_training(run, at, step):
    title, found = explore.explore(run, None if at == "end" else parse_point(at))
    weights = store.load_state(run.replicate(1).snapshot(step)).weights

    assert title == f"{run.folder}/replicate-1, dense, step {step}"
    for row in found[:-1]:
        assert row["norm"] == pytest.approx(float(np.linalg.norm(weights[row["path"]])), rel=1e-5)


def test_a_ticket_has_zeros_where_it_is_pruned(retrained):
    name = "q90-step-000017"
    result = json.loads((retrained / f"runs/digits/replicate-1/oneshot/{name}/ticket/result.json").read_text())
    *_, row = rows(retrained, "--ticket", name)

    assert row["zeros"] == result["exact_zeros"]


def test_how_norms_move_from_snapshot_to_snapshot(retrained, run):
    _, course = explore.course(run)
    together = [row for row in course if row["path"] == explore.IN_ALL]
    printed = imp_here("explore", "--snapshots", cwd=retrained).stdout

    assert [row["step"] for row in together] == [0, 10, 17, 51]
    moved = [row["moved"] for row in together]
    assert moved[0] == 0
    assert moved == sorted(moved)
    assert "mean |w|" in printed
    assert rows(retrained, "--snapshots") == course


def test_bars_are_full_for_the_highest_and_seen_for_the_least():
    assert explore.bars([0, 1e-6, 4, 8]) == " ▁▄█"
    assert explore.bars([0, 0]) == "  "
    assert explore.bars([]) == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--at", "12it"), "was not saved at step 12: there are snapshots of steps 0, 10, 17, 51"),
        (("--ticket", "q91"), "there is no 'q91'"),
        (("--ticket", "q90-step-000017", "--at", "1ep"), "leave --ticket out"),
        (("--snapshots", "--at", "1ep"), "leave out --at"),
        (("--variant", "reinit"), "needs a ticket: name it with --ticket"),
        (("--replicate", "7"), "--replicate 7"),
        (("--run", "nowhere"), "there is no run in nowhere"),
    ],
)
def test_bad_input_is_one_line(retrained, arguments, words):
    done = imp_here("explore", *arguments, cwd=retrained, check=False)

    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
