"""Masks from the scores of a real network, as `imp thresholds` and the control `invert` cut them."""

from fractions import Fraction

import numpy as np
import pytest
from helpers import contents, imp_here, refused, settings

from data_prep import records
from lottery.pruning import criteria, ranking
from lottery.rundir import store
from lottery.rundir.run import open_run
from lottery.stages.probing import Probes

pytestmark = pytest.mark.usefixtures("tensorflow")

SIZES = {"fc1/kernel": (192, 300), "fc2/kernel": (300, 100)}  # predictions are not pruned
COUNT = 57_600 + 30_000


def own(*values, quantiles="50,90", name="own", scored_at="0"):
    """Options for a family that is scored at initialisation."""
    table = [f"quantiles={quantiles}", f"scored_at={scored_at}", "rewind=0", "controls=[]", *values]
    return settings(*(f"families.{name}.{value}" for value in table))


def cut(work, *values, check=True, more=(), **options):
    return imp_here("thresholds", "--family", "own", *own(*values, **options), *more, cwd=work, check=check)


def masks_in(work, family="own"):
    made = open_run(work / "runs/digits", must_exist=True).replicate(1).masks(family)
    return {one.name: (store.load_mask(one.mask), one.read()) for one in made}


def lowest(scores, within, count):
    """Naively: a mask without the `count` lowest survivors."""
    flat = np.concatenate([np.where(within[path], scores[path], np.inf).ravel() for path in SIZES])
    kept = np.isfinite(flat)
    kept[np.argsort(flat, kind="stable")[:count]] = False
    parts = np.split(kept, [57_600])
    return {path: part.reshape(SIZES[path]) for path, part in zip(SIZES, parts, strict=True)}


def equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[path], other[path]) for path in one)


@pytest.fixture
def probe(work, monkeypatch):
    """A function: what the family of the run may ask about its initial network under a mask, and that network."""

    def ask(mask):
        run = open_run(work / "runs/digits", must_exist=True)
        state = store.load_state(run.replicate(1).snapshot(0), optimizer=False)
        monkeypatch.setattr("lottery.engine.assembly.set_up_tensorflow", lambda train, cores=None: ["CPU:0"])
        return state, Probes(run).of(1, run.recipe.families["own"]).at(state, mask)

    return ask


@pytest.mark.parametrize(
    ("name", "iterations"), [("lamp", 1), ("snip", 1), ("grasp", 1), ("random", 1), ("snip", 3), ("synflow", 3)]
)
def test_iterations_score_and_prune_in_turn_exactly_as_many_as_the_quantile_says(work, probe, name, iterations):
    done = cut(work, f"criterion={name}", f"iterations={iterations}")

    assert f"2 masks of {COUNT} weights" in done.stderr
    assert f" of {COUNT} weights (kernels)" in done.stdout
    for quantile in (50, 90):
        mask, record = masks_in(work)[f"q{quantile}"]
        gone = ranking.pruned_count(Fraction(quantile), COUNT)
        assert (record.pruned, record.remaining) == (gone, COUNT - gone)
        assert sum(int(kept.sum()) for kept in mask.values()) == COUNT - gone
    within = {path: np.ones(shape, bool) for path, shape in SIZES.items()}
    for number in range(1, iterations + 1):
        state, asked = probe(within)
        scores = criteria.CRITERIA[name](state, within, asked)
        left = round(COUNT * ((COUNT - gone) / COUNT) ** (number / iterations))
        within = lowest(scores, within, sum(int(kept.sum()) for kept in within.values()) - left)
    assert equal(mask, within)


def test_no_layer_collapses_before_it_must_with_synflow(work):
    """Maximal critical compression (Tanaka et al. 2020, section 2): one weight a layer is left, and they are connected."""
    one_each = f"{Fraction(100 * (COUNT - 2), COUNT - 1)!s}"
    quantile = f"{float(Fraction(one_each)):.9f}"[:-1]

    cut(work, "criterion=synflow", quantiles=quantile)
    imp_here("thresholds", "--family", "plain", *own("criterion=magnitude", quantiles=quantile, name="plain"), cwd=work)

    [(mask, record)] = masks_in(work).values()
    assert {path: int(kept.sum()) for path, kept in mask.items()} == {"fc1/kernel": 1, "fc2/kernel": 1}
    assert not record.kept.disconnected
    [(_, record)] = masks_in(work, "plain").values()
    assert record.remaining == 2
    assert record.kept.disconnected


def drawn(work, *values):
    cut(work, "criterion=snip", *values)
    run = open_run(work / "runs/digits", must_exist=True)
    return Probes(run).of(1, run.recipe.families["own"]).examples


def test_images_are_drawn_by_class_without_replacement_and_shuffled(work):
    images, labels = drawn(work, "scored_on=7 a class")

    assert images.shape == (70, 8, 8, 3)
    assert np.bincount(labels).tolist() == [7] * 10
    assert len(set(labels[:10].tolist())) > 3
    run = open_run(work / "runs/digits", must_exist=True)
    every, classes = records.read_split(run.records(), run.manifest(), "train")
    places = [np.flatnonzero((every == image).all(axis=(1, 2, 3))) for image in images]
    assert all(label in classes[place] for place, label in zip(places, labels, strict=True))
    assert len({int(place[0]) for place in places}) > 65  # a few digits are there twice


def test_images_are_drawn_from_all_and_others_by_another_seed_or_replicate(work):
    first, labels = drawn(work, "scored_on=100")
    run = open_run(work / "runs/digits", must_exist=True)
    family = run.recipe.families["own"]

    assert first.shape == (100, 8, 8, 3)
    assert len(set(np.bincount(labels, minlength=10).tolist())) > 1
    assert np.array_equal(Probes(run).of(1, family).examples[0], first)
    assert not np.array_equal(Probes(run).of(2, family).examples[0], first)
    other = family.model_copy(update={"scored_seed": 1})
    assert not np.array_equal(Probes(run).of(1, other).examples[0], first)


def test_invert_trains_under_the_other_end_of_the_scores(work, probe):
    options = own("criterion=snip", "controls=['invert']", "controls_at=90", quantiles="90")
    imp_here("thresholds", "--family", "own", *options, cwd=work)
    imp_here("retrain", "--family", "own", cwd=work)

    whole = {path: np.ones(shape, bool) for path, shape in SIZES.items()}
    state, asked = probe(whole)
    scores = criteria.snip(state, whole, asked)
    opposite = lowest({path: -array for path, array in scores.items()}, whole, ranking.pruned_count(Fraction(90), COUNT))
    folder = work / "runs/digits/replicate-1/own/q90-step-000000/invert"
    assert equal(store.load_mask(folder / "mask.h5"), opposite)
    weights = store.load_state(folder / "final.h5").weights
    assert not any(weights[path][~kept].any() for path, kept in opposite.items())


def test_what_cannot_be_scored_is_one_line_and_changes_nothing(work):
    before = contents(work)

    for value, words in (
        ("criterion=test_criteria:short", "test_criteria:short must give a finite score for every weight of fc1/kernel"),
        ("densities=['fc1/*=100']", "a density of 10.0000% cannot be reached: fc1/kernel alone keep 65.7534%"),
        ("densities=['fc7/*=3']", "families.own.densities: 'fc7/*' matches no variable"),
    ):
        refused(cut(work, value, quantiles="90", check=False), words)
    refused(
        cut(work, "criterion=snip", "scored_on=200 a class", check=False), "a class has only", "training examples: lower it"
    )
    refused(cut(work, "criterion=snip", "scored_on=5000", check=False), "there are only 1151 training examples")
    assert contents(work) == before


def test_a_criterion_that_needs_images_says_where_they_are_missing(work):
    done = cut(work, "criterion=snip", check=False, more=["--set", "data.path=nowhere"])

    refused(done, "no records in nowhere", "imp prepare")
