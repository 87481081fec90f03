"""Grids and rates as a user writes them."""

import itertools
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lottery.base.errors import InputError
from lottery.experiment import grids
from lottery.experiment.grids import Point

relaxed = settings(deadline=None)
PERCENT = st.decimals(0, 100, allow_nan=False, places=4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", ["90"]),
        ("97.5", ["97.5"]),
        ("0,100", ["0", "100"]),
        ("60..63", ["60", "61", "62", "63"]),
        ("60..80:10,90,95", ["60", "70", "80", "90", "95"]),
        ("60..79:10", ["60", "70"]),
        ("99..99", ["99"]),
        (" 60 , 70..72 ", ["60", "70", "71", "72"]),
        ("99..99.5:0.1", ["99", "99.1", "99.2", "99.3", "99.4", "99.5"]),
        ("60,65,70,75,80,85..99", ["60", "65", "70", "75", "80", *map(str, range(85, 100))]),
    ],
)
def test_a_quantile_grid_is_read_exactly(text, expected):
    assert grids.parse_quantiles(text) == [Fraction(quantile) for quantile in expected]


QUANTILES = [
    *("", " ", "90,", ",90", "90,80", "90,90", "60..70,65", "80..60", "100.5", "60..101", "60..80:0", "60..80:0.0"),
    *("-5", "nan", "1e1", "60-80", "60..", "..60", "60..80:", "60..80:5:5", "60 70", "90%", "0x10", ".5", "60...80"),
    *("50.0000000000001", "9" * 5000, "0." + "9" * 5000),
]
POINTS = [
    "",
    "10",
    "it",
    "ep",
    "1.5it",
    "-1ep",
    "1 ep",
    "1epoch",
    "1e3it",
    "01",
    "nan",
    "1EP",
    "9" * 13 + "it",
    "9" * 5000 + "ep",
]
ROUNDS = ["", "  ", "0", "0..3", "1.5", "1..3:0.5", "-1", "3,1", "3,3", "1,", "101", "1..", "one", "1-3", "1..3:0", "1 2"]
RATES = [
    *("", "predictions/*", "predictions/*=", "=10", " =10", "a=100", "a=-1", "a=1e1", "a=ten", "a=10%", "a=10=", "a:10"),
    "a=0." + "1" * 5000,
]


def rate(text):
    return grids.parse_rates(["*=10", text])


MALFORMED = {grids.parse_quantiles: QUANTILES, grids.parse_point: POINTS, grids.parse_rounds: ROUNDS, rate: RATES}


@pytest.mark.parametrize(("parse", "text"), [(parse, text) for parse, texts in MALFORMED.items() for text in texts])
def test_what_is_malformed_is_refused_and_quoted(parse, text):
    with pytest.raises(InputError) as refusal:
        parse(text)

    assert repr(text) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert parse is not rate or "predictions/*=10" in str(refusal.value)


def test_a_quantile_named_twice_is_told_and_a_point_that_is_empty_refused():
    with pytest.raises(InputError, match="70 comes after 70"):
        grids.parse_quantiles("60..70:5,70")
    with pytest.raises(InputError):
        grids.parse_points("0,,1ep")


@pytest.mark.parametrize("text", ["0..100:0.0000001", "50..51:0.000000000001", "0..99.9:0.1,99.91"])
def test_a_grid_of_more_than_a_thousand_quantiles_is_refused_before_it_is_built(text):
    with pytest.raises(InputError, match="1,000"):
        grids.parse_quantiles(text)
    with pytest.raises(InputError, match="is not a list of rounds"):
        grids.parse_rounds(text)
    assert len(grids.parse_quantiles("0..99.9:0.1")) == 1000


@relaxed
@given(low=PERCENT, high=PERCENT, step=st.decimals("0.5", 100, places=2))
def test_a_range_is_every_step_from_its_low_end_up_to_its_high_end(low, high, step):
    low, high = sorted((low, high))

    found = grids.parse_quantiles(f"{low:f}..{high:f}:{step:f}")

    assert found[0] == Fraction(low)
    assert all(later - earlier == Fraction(step) for earlier, later in itertools.pairwise(found))
    assert found[-1] <= Fraction(high) < found[-1] + Fraction(step)


@pytest.mark.parametrize(
    ("quantile", "name"), [("90", "90"), ("97.5", "97.5"), ("99.90", "99.9"), ("0", "0"), ("100.0", "100")]
)
def test_a_quantile_is_named_in_decimals(quantile, name):
    assert grids.quantile_name(Fraction(quantile)) == name


@relaxed
@given(value=st.one_of(PERCENT, st.decimals(0, 100, places=8), st.just(Decimal("99.999999999999"))))
def test_the_name_of_a_quantile_reads_back_as_that_quantile(value):
    quantile = Fraction(value)

    assert grids.parse_quantiles(grids.quantile_name(quantile)) == [quantile]


@pytest.mark.parametrize(
    ("text", "step"),
    [("0", 0), ("0it", 0), ("10it", 10), ("1ep", 45), ("2ep", 90), ("0.5ep", 22), ("0.1ep", 4), ("0ep", 0), (" 3ep ", 135)],
)
def test_a_point_is_a_number_of_steps(text, step):
    assert grids.parse_point(text).step(steps_per_epoch=45) == step


def test_points_are_joined_by_commas_and_written_as_they_were_read():
    points = grids.parse_points("0, 10it,1.5ep")

    assert points == [Point(Fraction(0), "it"), Point(Fraction(10), "it"), Point(Fraction(3, 2), "ep")]
    assert [str(point) for point in points] == ["0", "10it", "1.5ep"]


def test_points_in_epochs():
    assert grids.parse_point("1.5ep").epochs(None) == Fraction(3, 2)
    assert grids.parse_point("10it").epochs(40) == Fraction(1, 4)
    assert grids.parse_point("10it").epochs(None) == 0


@pytest.mark.parametrize(
    ("text", "rounds"),
    [
        ("9", [9]),
        ("1..4", [1, 2, 3, 4]),
        ("3,7,9..18:3", [3, 7, 9, 12, 15, 18]),
        (" 1 , 100 ", [1, 100]),
        ("2..2", [2]),
        ("3.0", [3]),
    ],
)
def test_rounds_are_whole_numbers_ascending(text, rounds):
    found = grids.parse_rounds(text)

    assert found == rounds
    assert all(type(number) is int for number in found)


def test_rates_are_read_in_their_order_and_exactly():
    assert grids.parse_rates(["predictions/*=10", " Conv* = 2.5 ", "a=b/[xy]?=0", "*=99.9"]) == [
        ("predictions/*", Fraction(10)),
        ("Conv*", Fraction("2.5")),
        ("a=b/[xy]?", Fraction(0)),
        ("*", Fraction("99.9")),
    ]


def test_the_first_pattern_that_a_path_matches_has_its_rate():
    others = grids.parse_rates(["predictions/*=10", "*/kernel=5", "predictions/kernel=1"])

    assert grids.rate_of("predictions/kernel", Fraction(20), others) == 10
    assert grids.rate_of("Conv1/kernel", Fraction(20), others) == 5
    assert grids.rate_of("Conv1/bias", Fraction(20), others) == 20
    assert grids.rate_of("Conv1/bias", Fraction(20), grids.parse_rates([])) == 20
    assert grids.rate_of("Conv1/bias", Fraction(20), grids.parse_rates(["conv1/*=5", "bias=1"])) == 20


@pytest.mark.parametrize(("label", "number"), [("q90", 90), ("q97.5", 97.5), ("round-03", 3), ("round-100", 100), ("", 0)])
def test_a_label_says_its_quantile_or_round(label, number):
    assert grids.label_number(label) == number
    assert label in ("", grids.quantile_label(Fraction(str(number))), grids.round_label(int(number)))
