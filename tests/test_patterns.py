"""Patterns of a recipe: one that matches no variable of its network is refused."""

from pathlib import Path

import pytest

from lottery.base.errors import InputError
from lottery.experiment import reading
from lottery.experiment.recipe import Pruning
from lottery.rundir.run import Run
from lottery.stages.cut import check_families

PATHS = ["conv1/kernel", "predictions/bias", "predictions/kernel"]


def check(exclude=("Conv_1/*",), rates=(), families=("own",), include=()):
    tables = {name: {"rounds": 3, "rates": list(rates)} for name in families}
    recipe = reading.resolve(
        {"model": {"name": "conv2"}, "pruning": {"exclude": list(exclude), "include": list(include)}, "families": tables}
    )
    check_families(Run(Path("run"), recipe), PATHS)


@pytest.mark.parametrize(
    ("exclude", "rates"), [([], []), (["predictions/*", "conv?/*"], []), ([], ["predictions/kernel=10", "*/bias=0"])]
)
def test_patterns_that_match_are_fine(exclude, rates):
    check(exclude, rates)


def test_the_default_names_layers_that_not_every_network_has():
    check(Pruning().exclude)


@pytest.mark.parametrize("pattern", ["predicitons/*", "Predictions/*"])
def test_one_that_matches_nothing_is_refused_with_what_there_is(pattern):
    told = (
        " matches no variable of conv2: correct it or leave it out. Its variables are conv1/kernel, predictions/bias, "
        "predictions/kernel"
    )

    with pytest.raises(InputError) as refused:
        check(exclude=["predictions/*", pattern])
    assert str(refused.value) == f"pruning.exclude: {pattern!r}{told}"
    with pytest.raises(InputError) as refused:
        check(include=["conv1/*", pattern])
    assert str(refused.value) == f"pruning.include: {pattern!r}{told}"
    with pytest.raises(InputError) as refused:
        check(rates=[f"{pattern}=10"])
    assert str(refused.value) == f"families.own.rates: {pattern!r}{told}"


def test_without_patterns_of_ones_own_no_network_is_looked_at():
    check_families(Run(Path("nowhere"), reading.resolve({})))


def test_masks_that_were_made_with_it_keep_it(here):
    made = Path("run/replicate-2/begun/masks/round-01-step-000000.json")
    made.parent.mkdir(parents=True)
    made.touch()

    check(exclude=["typo"], rates=["typo=10"], families=["begun"])
    with pytest.raises(InputError, match=r"families\.new\.rates: 'typo'"):
        check(exclude=["typo"], rates=["typo=10"], families=["begun", "new"])
