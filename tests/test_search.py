"""`imp search`: bisection over densities or rewind points, with as many replicates as verdicts need."""

import importlib.util
import itertools
import shutil

import numpy as np
import pytest
from helpers import ROOT, contents, imp_here, selected, settings

from lottery.base.errors import InputError
from lottery.base.progress import Reporter
from lottery.experiment import bisection
from lottery.experiment.rule import Rule
from lottery.rundir.run import open_run
from lottery.stages.search import Search

MATCHING, NOT, UNDECIDED, _ = Rule(0.002).verdicts
GRID = settings("families.oneshot.quantiles=50,70,90", "families.oneshot.rewind=0,1ep", "families.oneshot.controls=[]")


def ended(verdict, count):
    """The tests that a search makes where `verdict` (a function of places) is what it finds, and its answer."""
    tested = {}
    while (place := bisection.next_place(tested, count)) is not None:
        assert place not in tested
        tested[place] = verdict(place)
    return tested, bisection.answer(tested, count)


@pytest.mark.parametrize("count", [1, 2, 7, 18, 40])
def test_where_every_verdict_falls_the_two_neighbours_are_found_in_few_tests(count):
    for first_bad in range(count + 1):
        tested, answer = ended(lambda place, first=first_bad: MATCHING if place < first else NOT, count)

        assert answer == (first_bad - 1, first_bad)
        assert len(tested) <= count.bit_length()


@pytest.mark.parametrize("count", [1, 2, 7, 18])
def test_undecided_candidates_lie_between_what_matches_and_what_does_not(count):
    for low, high in itertools.combinations_with_replacement(range(count + 1), 2):
        tested, answer = ended(lambda p, low=low, high=high: MATCHING if p < low else UNDECIDED if p < high else NOT, count)

        assert answer == (low - 1, high)
        assert len(tested) <= bisection.most_tests(count)


def test_of_no_candidate_nothing_is_tested():
    assert bisection.next_place({}, 0) is None
    assert bisection.answer({}, 0) == (-1, 0)
    assert bisection.most_tests(0) == 0


def test_searches_err_in_less_than_five_per_cent_of_cases_and_cost_less_than_the_grid():
    spec = importlib.util.spec_from_file_location("search_errors", ROOT / "benchmarks/search_errors.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    rng = np.random.default_rng(5)
    for title, true in script.SERIES.items():
        _, _, wrong, _, cost, _ = (cell.strip().rstrip("%") for cell in script.row(title, true, 1500, rng).split("|"))

        assert float(wrong) <= 5
        assert float(cost) <= (50 if title.startswith("all exactly") else 40)


@pytest.fixture
def search(work):
    """A function that runs a search of three quantiles."""
    return lambda *options, **rest: imp_here("search", *GRID, "--rewind", "0", *options, cwd=work, **rest)


def test_a_search_ends_the_same_if_it_was_stopped_and_trains_nothing_twice(search, work, tmp_path):
    options = "--replicates", "3", *settings("delta=0.2")
    whole = shutil.copytree(work, tmp_path / "whole", symlinks=True)
    imp_here("search", *GRID, "--rewind", "0", *options, cwd=whole)

    stopped = search(*options, "--budget", "7ep")
    assert "because the budget of 7ep is spent" in stopped.stdout
    done = search(*options)

    assert contents(work / "runs/digits/replicate-3") == contents(whole / "runs/digits/replicate-3")
    assert "to train" not in search(*options).stderr
    assert done.stdout == imp_here("search", *GRID, "--rewind", "0", *options, cwd=whole).stdout
    assert "The sparsest ticket known to match: q" in done.stdout


def test_a_search_over_rewind_points_goes_from_late_to_early(work):
    run = open_run(work / "runs/digits")
    found = Search(run, selected(quantiles="90", rewind="0,1ep"), "rewind").candidates

    assert [str(one) for one in found] == ["q90 rewound to 1ep", "q90 rewound to 0"]


def test_rounds_are_candidates_too(work):
    run = open_run(work / "runs/digits", overrides=["families.rounds.rounds=3"])
    found = Search(run, selected(("rounds",)), "density").candidates

    assert [one.at.label for one in found] == ["round-01", "round-02", "round-03"]
    assert found[1].selection.rounds == 2


def test_more_candidates_have_wider_bounds(work):
    run = open_run(work / "runs/digits")

    def confidence(quantiles):
        return Search(run, selected(quantiles=quantiles, rewind="0")).rule.confidence

    assert run.rule.after_looks(10).confidence == pytest.approx(confidence("90"))
    assert confidence("90") < confidence("60,90") < confidence("50..90")


@pytest.mark.parametrize(("at_once", "most", "expected"), [(1, 10, [1, 2, 3]), (4, 10, [1, 2, 3, 4]), (4, 2, [1, 2])])
def test_the_replicates_without_which_there_is_no_verdict_are_trained_together(work, at_once, most, expected):
    shutil.rmtree(work / "runs/digits/replicate-1/oneshot")
    search = Search(open_run(work / "runs/digits"), selected(quantiles="50,90", rewind="0"), most=most, at_once=at_once)

    first, selection = next(search.steps(Reporter(quiet=True)))

    assert list(first.chosen) == expected
    assert selection == selected(("oneshot",), "50", "0")


def test_a_diverged_network_leaves_its_candidate_undecided(search, work):
    (work / "default.toml").write_text("")
    hot = [*settings("train.learning_rate=1e30", "name=hot"), "--recipe", "default.toml"]
    told = search("--replicates", "3", *hot, check=False)

    assert told.returncode == 1
    assert "diverged" in told.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--budget", "3dense"], "write 300ep or 5h"),
        (["--over", "depth"], "--over"),
        (["--rewind", "0,1ep"], "choose one with --rewind"),
        (["--over", "rewind", "--rewind", "0,1ep"], "choose one with --quantiles"),
        (["--replicates", "2"], "--replicates"),
        (["--quantiles", "x"], "quantiles 'x'"),
        (["--rewind", "5it"], "not among the snapshots"),
        (settings("families.other.quantiles=90"), "choose with --family from oneshot, other"),
    ],
)
def test_bad_input_is_one_line(search, options, words):
    told = search(*options, check=False)

    assert told.returncode == 2
    assert words in told.stderr.splitlines()[-1]
    assert "Traceback" not in told.stderr


def test_the_budget_counts_hours_too(work):
    run = open_run(work / "runs/digits")

    with pytest.raises(InputError, match="neither epochs nor hours"):
        Search(run, selected(rewind="0"), budget="soon")
    steps = Search(run, selected(quantiles="50,90", rewind="0"), budget="0h").steps(Reporter(quiet=True))
    assert list(steps) == []
