"""Grids and rates as a user writes them."""

import itertools
import pickle
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lottery.base.errors import InputError
from lottery.experiment import grids
from lottery.experiment.family import Family
from lottery.experiment.grids import ByPath, Grid, Quantile, Round

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
    grid = grids.parse_quantiles(text)

    assert list(map(str, grid)) == expected
    assert list(grid) == [Fraction(quantile) for quantile in expected]


QUANTILES = [
    *("", " ", "90,", ",90", "90,80", "90,90", "60..70,65", "80..60", "100.5", "60..101", "60..80:0", "60..80:0.0"),
    *("-5", "nan", "1e1", "60-80", "60..", "..60", "60..80:", "60..80:5:5", "60 70", "90%", "0x10", ".5", "60...80"),
    *("50.0000000000001", "9" * 5000, "0." + "9" * 5000),
]
POINTS = [
    *("", "10", "it", "ep", "1.5it", "-1ep", "1 ep", "1epoch", "1e3it", "01", "nan", "1EP"),
    *("9" * 13 + "it", "9" * 5000 + "ep"),
]
ROUNDS = ["", "  ", "0", "0..3", "1.5", "1..3:0.5", "-1", "3,1", "3,3", "1,", "101", "1..", "one", "1-3", "1..3:0", "1 2"]
RATES = [
    *("", "predictions/*", "predictions/*=", "=10", " =10", "a=100", "a=-1", "a=1e1", "a=ten", "a=10%", "a=10=", "a:10"),
    "a=0." + "1" * 5000,
]


MALFORMED = {grids.parse_quantiles: QUANTILES, grids.parse_point: POINTS, grids.parse_rounds: ROUNDS, grids.parse_rate: RATES}


@pytest.mark.parametrize(("parse", "text"), [(parse, text) for parse, texts in MALFORMED.items() for text in texts])
def test_what_is_malformed_is_refused_and_quoted(parse, text):
    with pytest.raises(InputError) as refusal:
        parse(text)

    assert repr(text) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert parse is not grids.parse_rate or "predictions/*=10" in str(refusal.value)


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


@given(low=PERCENT, high=PERCENT, step=st.decimals("0.5", 100, places=2))
def test_a_range_is_every_step_from_its_low_end_up_to_its_high_end(low, high, step):
    low, high = sorted((low, high))

    found = grids.parse_quantiles(f"{low:f}..{high:f}:{step:f}").values

    assert found[0] == Fraction(low)
    assert all(later - earlier == Fraction(step) for earlier, later in itertools.pairwise(found))
    assert found[-1] <= Fraction(high) < found[-1] + Fraction(step)


@pytest.mark.parametrize(
    ("value", "label"),
    [
        *((Quantile(text), f"q{text}") for text in ("90", "97.5", "0", "100")),
        (Quantile("99.90"), "q99.9"),
        (Round(3), "round-03"),
    ],
)
def test_a_mask_is_labelled_in_decimals(value, label):
    assert value.label == label


EXACT = st.one_of(PERCENT, st.decimals(0, 100, places=8), st.just(Decimal("99.999999999999")))
QUANTILE = EXACT.map(Quantile)
ROUND = st.integers(1, 100).map(Round)
AMOUNT = st.decimals(0, 10**6, allow_nan=False, places=3)
POINT = st.one_of(st.integers(0, 10**9).map("{}it".format), AMOUNT.map("{:f}ep".format))


@given(value=QUANTILE | ROUND)
def test_a_label_says_its_quantile_or_round(value):
    read = grids.of_label(value.label)

    assert (read, type(read)) == (value, type(value))
    assert grids.of_label(read.label).label == value.label


@given(quantiles=st.lists(QUANTILE, min_size=1, unique=True).map(sorted), blank=st.sampled_from(["", " "]))
def test_a_grid_is_written_as_it_was_read_and_compared_by_value(quantiles, blank):
    text = f",{blank}".join(f"{Decimal(one.numerator) / Decimal(one.denominator):.12f}" for one in quantiles)
    read, grid = Family(quantiles=text), Grid.of(quantiles)

    assert read.model_dump()["quantiles"] == str(read.quantiles) == text
    assert Family.model_validate(read.model_dump()) == Family.model_validate_json(read.model_dump_json()) == read
    assert read == Family(quantiles=str(grid))
    assert (read.quantiles, hash(read.quantiles)) == (grid, hash(grid))
    assert read.quantiles != Grid.of(quantiles[1:])
    assert list(read.grid) == quantiles


@given(texts=st.lists(POINT, min_size=1), blank=st.sampled_from(["", " "]))
def test_points_are_compared_by_value_and_written_in_one_way(texts, blank):
    grid = grids.parse_points(f"{blank},{blank}".join(texts))
    written = Family(rounds=1, rewind=f"{blank},".join(texts)).model_dump()["rewind"]

    assert grid == Grid.of(map(grids.parse_point, texts)) == grids.parse_points(str(grid))
    assert written == str(grid) == str(grids.parse_points(str(grid)))
    assert len(grid) == len(set(grid))


def test_a_grid_and_its_values_can_be_sent_to_another_process():
    for grid in (grids.parse_quantiles("60..80:5,97.5"), grids.parse_rounds("3..9:3"), grids.parse_points("0,1.5ep")):
        copy = pickle.loads(pickle.dumps(grid))

        assert (copy, str(copy), list(map(type, copy))) == (grid, str(grid), list(map(type, grid)))


@pytest.mark.parametrize(
    ("text", "step"),
    [("0", 0), ("0it", 0), ("10it", 10), ("1ep", 45), ("2ep", 90), ("0.5ep", 22), ("0.1ep", 4), ("0ep", 0), (" 3ep ", 135)],
)
def test_a_point_is_a_number_of_steps(text, step):
    assert grids.parse_point(text).step(steps_per_epoch=45) == step


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

    assert list(found) == rounds
    assert all(type(number) is Round for number in found)


@pytest.mark.parametrize(
    ("text", "pattern", "percent"),
    [
        ("predictions/*=10", "predictions/*", "10"),
        (" Conv* = 2.50 ", "Conv*", "2.5"),
        ("a=b/[xy]?=0", "a=b/[xy]?", "0"),
        ("*=99.9", "*", "99.9"),
    ],
)
def test_a_rate_by_path_is_read_exactly_and_written_in_one_way(text, pattern, percent):
    rate = grids.parse_rate(text)

    assert rate == (pattern, Fraction(percent))
    assert str(rate) == f"{pattern}={percent}"


def test_the_first_pattern_that_a_path_matches_has_its_rate():
    others = list(map(grids.parse_rate, ["predictions/*=10", "*/kernel=5", "predictions/kernel=1"]))

    assert grids.rate_of("predictions/kernel", Fraction(20), others) == 10
    assert grids.rate_of("Conv1/kernel", Fraction(20), others) == 5
    assert grids.rate_of("Conv1/bias", Fraction(20), others) == 20
    assert grids.rate_of("Conv1/bias", Fraction(20), []) == 20
    assert grids.rate_of("Conv1/bias", Fraction(20), [ByPath("conv1/*", Fraction(5)), ByPath("bias", Fraction(1))]) == 20


@pytest.mark.parametrize(("text", "count", "of_each_class"), [("100", 100, False), (" 10 a class ", 10, True)])
def test_a_sample_is_of_all_or_of_each_class(text, count, of_each_class):
    sample = grids.parse_sample(text)

    assert sample == (count, of_each_class)
    assert str(sample) == text.strip()


@pytest.mark.parametrize(
    ("table", "labels"),
    [
        ({"quantiles": "80..95:5", "controls_at": "80, 97.5"}, ["q80", "q97.5"]),
        ({"rounds": 9, "controls_at": "3..9:3"}, ["round-03", "round-06", "round-09"]),
        ({"rounds": 9}, []),
    ],
)
def test_controls_are_at_quantiles_or_at_rounds(table, labels):
    family = Family.model_validate(table)

    assert [value.label for value in family.controls_at] == labels
    assert family.model_dump()["controls_at"] == table.get("controls_at", "")


def test_controls_of_rounds_are_not_at_quantiles():
    with pytest.raises(ValueError, match=r"'97\.5' is not a list of rounds"):
        Family.model_validate({"rounds": 9, "controls_at": "97.5"})
