"""Patterns of a recipe: one that matches no variable of its network is refused."""

from pathlib import Path

import pytest

from data_prep import files
from data_prep.errors import InputError
from lottery import patterns, recipe
from lottery.run import Run

PATHS = ["conv1/kernel", "predictions/bias", "predictions/kernel"]


def check(exclude=("Conv_1/*",), rates=()):
    tables = {"model": {"name": "conv2"}, "thresholds": {"exclude": list(exclude)}, "rounds": {"rates": list(rates)}}
    patterns.check(Run(Path("run"), recipe.resolve(tables)), lambda: PATHS)


@pytest.mark.parametrize(
    ("exclude", "rates"), [([], []), (["predictions/*", "conv?/*"], []), ([], ["predictions/kernel=10", "*/bias=0"])]
)
def test_patterns_that_match_are_fine(exclude, rates):
    check(exclude, rates)


def test_the_default_names_layers_that_not_every_network_has():
    check(recipe.Thresholds().exclude)


@pytest.mark.parametrize("pattern", ["predicitons/*", "Predictions/*", "predictions", "conv1/kernel/*"])
def test_one_that_matches_nothing_is_refused_with_what_there_is(pattern):
    told = r" matches no variable of conv2, which has conv1/kernel ... predictions/kernel: correct it or leave it out"

    with pytest.raises(InputError) as refused:
        check(exclude=["predictions/*", pattern])
    assert str(refused.value) == f"thresholds.exclude: {pattern!r}{told}"
    with pytest.raises(InputError) as refused:
        check(rates=[f"{pattern}=10"])
    assert str(refused.value) == f"rounds.rates: {pattern!r}{told}"


def test_without_patterns_of_ones_own_the_variables_are_not_asked_for():
    patterns.check(Run(Path("run"), recipe.resolve({})), lambda: pytest.fail("asked"))


def test_masks_that_were_made_with_it_keep_it(here):
    masks, level = Path("run/replicate-2/masks"), Path("run/replicate-2/rounds/weights-step-000000/01")
    masks.mkdir(parents=True)
    (masks / "q60.h5").touch()
    files.write_json(Path("run/replicate-2/thresholds.json"), {"quantiles": [{"quantile": 60.0}]})

    check(exclude=["typo"])
    with pytest.raises(InputError, match=r"rounds\.rates: 'typo'"):
        check(exclude=["typo"], rates=["typo=10"])
    level.mkdir(parents=True)
    (level / "round.json").touch()
    check(exclude=["typo"], rates=["typo=10"])
