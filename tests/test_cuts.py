"""Rounds of pruning: exactly the share of the survivors goes, and masks only shrink."""

import copy
from fractions import Fraction

import numpy as np
import pytest
from handmade import ORIGINS, finished, write_table
from helpers import file_bytes, flip

from data_prep import files
from data_prep.errors import InputError
from lottery import cuts, identity, locks, masks, recipe, store
from lottery.jobs import Chain, Round
from lottery.lineage import seals
from lottery.run import Run

LAST = 12
CHAIN = Chain(1, "weights", 0)


def resolved(rate=20.0, rates=(), collapse=0.001, **thresholds):
    return recipe.resolve(
        {
            "thresholds": {"exclude": [], "collapse": collapse, **thresholds},
            "rounds": {"rate": rate, "rates": list(rates)},
        }
    )


def state(statistics=None, **layers):
    """A network with a kernel for each of `layers`: its values, or the size of a ramp 1, 2, 3 ..."""
    weights = {
        f"{name}/kernel": np.arange(1, values + 1, dtype=np.float32) if isinstance(values, int) else np.float32(values)
        for name, values in layers.items()
    }
    return store.State(LAST, weights, statistics or {}, {})


def kept(mask):
    return {path: int(array.sum()) for path, array in mask.items()}


@pytest.mark.parametrize(
    ("rate", "survivors", "gone"),
    [
        (20.0, 10, 2),
        (20.0, 7, 1),  # 1.4
        (20.0, 8, 2),  # 1.6
        (25.0, 10, 2),  # 2.5: half to even
        (25.0, 14, 4),  # 3.5
        (50.0, 1, 0),  # 0.5
        (50.0, 3, 2),  # 1.5
        (0.7, 500, 4),  # exactly 3.5, where 0.7 / 100 * 500 is 3.4999999999999996
        (7.0, 150, 10),  # exactly 10.5, where 7 / 100 * 150 is 10.500000000000002
        (14.1, 1500, 212),  # exactly 211.5
        (0.001, 1000, 0),
        (99.9, 1000, 999),
    ],
)
def test_the_share_of_the_survivors_that_goes_is_rounded_exactly(rate, survivors, gone):
    mask, table = cuts.prune(state(a=survivors), {}, resolved(rate))

    assert mask["a/kernel"].tolist() == [False] * gone + [True] * (survivors - gone)
    assert (table["pruned"], table["remaining"]) == (gone, survivors - gone)


def test_survivors_alone_are_counted_and_what_went_stays_away_however_large_it_is():
    network = state(a=[90, 1, 80, 2, 3, 4, 5], b=[70, -0.5, 6, 7, 8])
    before = {
        "a/kernel": np.array([0, 1, 0, 1, 1, 1, 1], bool),
        "b/kernel": np.array([0, 1, 1, 1, 1], bool),
    }  # nine survivors

    mask, table = cuts.prune(network, before, resolved(34.0))  # 3.06

    assert mask["a/kernel"].tolist() == [False, False, False, False, True, True, True]
    assert mask["b/kernel"].tolist() == [False, False, True, True, True]
    assert (table["pruned"], table["remaining"]) == (3, 6)
    assert table["layers"] == {
        "a/kernel": {"rate": 34.0, "had": 5, "has": 3, "threshold": 2.0},
        "b/kernel": {"rate": 34.0, "had": 4, "has": 3, "threshold": 2.0},
    }


def test_layers_of_another_rate_are_ranked_among_themselves():
    network = state(a=10, b=10, predictions=20, stem=[0.1, 0.2, 0.3])

    mask, table = cuts.prune(network, {}, resolved(20.0, ["predictions/*=10", "stem/*=0"]))

    assert kept(mask) == {"a/kernel": 8, "b/kernel": 8, "predictions/kernel": 18, "stem/kernel": 3}
    layers = table["layers"]
    assert {path: (layer["rate"], layer["threshold"]) for path, layer in layers.items()} == {
        "a/kernel": (20.0, 2.0),
        "b/kernel": (20.0, 2.0),
        "predictions/kernel": (10.0, 2.0),
        "stem/kernel": (0.0, None),
    }
    assert (table["pruned"], table["remaining"]) == (6, 37)


def test_all_layers_of_the_same_rate_are_ranked_together_whichever_pattern_gave_it():
    network = state(a=[1, 2, 3, 4, 5], b=[10, 20, 30, 40, 50], c=[0.1, 6, 7, 8, 9], d=[100, 200, 300, 400, 500])

    mask, _ = cuts.prune(network, {}, resolved(20.0, ["b/*=40", "c/*=20", "d/*=40.0"]))

    assert kept(mask) == {"a/kernel": 4, "b/kernel": 1, "c/kernel": 4, "d/kernel": 5}


def test_layer_by_layer_each_loses_its_own_share():
    network = state(a=[1, 2, 3, 4, 5], b=[10, 20, 30, 40, 50, 60, 70, 80, 90, 100], c=[100] * 4)

    mask, table = cuts.prune(network, {}, resolved(20.0, ["c/*=50"], layerwise=True))

    assert kept(mask) == {"a/kernel": 4, "b/kernel": 8, "c/kernel": 2}
    assert mask["c/kernel"].tolist() == [False, False, True, True]
    assert [layer["threshold"] for layer in table["layers"].values()] == [1.0, 20.0, 100.0]


def test_what_is_out_of_scope_or_excluded_is_not_in_the_mask():
    network = state({"bn/moving_mean": np.zeros(3, np.float32)}, a=10, predictions=10)
    network.weights["a/bias"] = np.zeros(5, np.float32)

    mask, table = cuts.prune(network, {}, resolved(20.0, exclude=["predictions/*"]))

    assert kept(mask) == {"a/kernel": 8}
    assert list(table["layers"]) == ["a/kernel"]


def test_scope_all_prunes_every_variable_statistics_too():
    network = state({"bn/moving_mean": np.zeros(2, np.float32)}, a=8)

    mask, _ = cuts.prune(network, {}, resolved(20.0, scope="all"))

    assert kept(mask) == {"a/kernel": 8, "bn/moving_mean": 0}


def test_variables_are_in_the_order_of_their_paths_whatever_their_rates():
    mask, _ = cuts.prune(state(c=5, b=5, a=5), {}, resolved(20.0, ["a/*=10"]))

    assert list(mask) == ["a/kernel", "b/kernel", "c/kernel"]


@pytest.mark.parametrize("layerwise", [False, True])
@pytest.mark.parametrize("rates", [[], ["b/*=35", "c/*=0"]], ids=str)
def test_over_five_rounds_masks_only_shrink_each_by_exactly_its_share(layerwise, rates):
    rng = np.random.default_rng(0)
    settings = resolved(23.0, rates, layerwise=layerwise)
    mask, before = {}, {"a/kernel": 101, "b/kernel": 57, "c/kernel": 13}

    for _ in range(5):
        network = state(a=rng.standard_normal(101), b=np.round(rng.standard_normal(57)), c=np.ones(13))
        last, (mask, table) = mask, cuts.prune(network, mask, settings)
        now = kept(mask)
        groups = [[path] for path in now] if layerwise else [["a/kernel"], ["b/kernel"], ["c/kernel"]] if rates else [[*now]]
        for group in groups:
            rate = {"b/kernel": Fraction(35), "c/kernel": Fraction(0)}.get(group[0], Fraction(23)) if rates else Fraction(23)
            had = sum(before[path] for path in group)
            assert sum(now[path] for path in group) == had - round(rate / 100 * had)
        assert all((mask[path] <= array).all() for path, array in last.items())
        assert {path: (layer["had"], layer["has"]) for path, layer in table["layers"].items()} == {
            path: (before[path], now[path]) for path in now
        }
        before = now


def test_pruning_leaves_the_network_and_the_mask_before_as_they_are():
    network, before = state(a=[3, -1, 2], b=[0.5, 4]), {"a/kernel": np.array([True, True, False])}
    copies = copy.deepcopy((network, before))

    cuts.prune(network, before, resolved(50.0))

    assert all((network.weights[path] == array).all() for path, array in copies[0].weights.items())
    assert (before["a/kernel"] == copies[1]["a/kernel"]).all()


@pytest.fixture
def run(tmp_path):
    """A run with nothing but the last snapshot of a dense network: kernels 1..10 and 11..20."""
    made = Run(tmp_path / "run", resolved())
    train(made, state(a=10, b=np.arange(11, 21)))
    return made


def train(run, network):
    """Say that the dense network ended as `network`."""
    store.save_state(run.replicate(1).snapshot(LAST), network)
    finished(run.replicate(1), LAST)


def finish(run, chain, level, network):
    """Say that the ticket of a round ended as `network`."""
    replicate, ticket = run.replicate(chain.replicate), run.network(Round(chain, level, "ticket"))
    store.save_state(ticket.final, network)
    write_table(replicate, ticket.result, [ticket.final], [replicate.level(chain, level).mask], status="done")


def level(run, number, chain=CHAIN):
    return run.replicate(1).level(chain, number)


def test_the_first_round_is_cut_from_the_dense_network(run):
    mask = cuts.cut(run, CHAIN, 1, LAST)

    assert mask["a/kernel"].tolist() == [False] * 4 + [True] * 6
    assert mask["b/kernel"].all()
    there = level(run, 1)
    assert sorted(file_bytes(there.folder)) == ["made_with.json", "mask.h5", "round.json"]
    assert kept(masks.load(there.mask)) == kept(mask)
    assert files.read_json(there.table) == {
        "folder": "weights-step-000000/01",
        "level": 1,
        "method": "weights",
        "rewind_step": 0,
        "pruned": 4,
        "remaining": 16,
        "layers": {
            "a/kernel": {"rate": 20.0, "had": 10, "has": 6, "threshold": 4.0},
            "b/kernel": {"rate": 20.0, "had": 10, "has": 10, "threshold": 4.0},
        },
        "density": {"prunable": 0.8, "trainable": 0.8, "total": 0.8, "effective": None},
        "collapsed": [],
        "disconnected": None,
        "outputs": seals(run.replicate(1).folder, [there.mask]),
        "made_from": seals(run.replicate(1).folder, [run.replicate(1).snapshot(LAST)]),
    }


def test_a_later_round_is_cut_from_what_the_one_before_left(run):
    first = cuts.cut(run, CHAIN, 1, LAST)
    finish(run, CHAIN, 1, state(a=[100, 100, 100, 100, 1, 2, 3, 4, 5, 6], b=np.arange(11, 21)))

    second = cuts.cut(run, CHAIN, 2, LAST)  # 3.2 of 16

    assert second["a/kernel"].tolist() == [False] * 7 + [True] * 3
    assert second["b/kernel"].all()
    assert kept(masks.load(level(run, 1).mask)) == kept(first)
    assert files.read_json(level(run, 2).table)["pruned"] == 3


def test_every_chain_is_cut_on_its_own(run):
    other = Chain(1, "lr", 6)
    cuts.cut(run, CHAIN, 1, LAST)
    cuts.cut(run, other, 1, LAST)
    finish(run, other, 1, state(a=np.arange(10, 0, -1), b=np.arange(11, 21)))
    cuts.cut(run, other, 2, LAST)

    assert level(run, 2, other).table.exists()
    assert not level(run, 2).folder.exists()
    assert files.read_json(level(run, 2, other).table)["method"] == "lr"


def test_a_round_that_is_cut_is_read(run):
    first = cuts.cut(run, CHAIN, 1, LAST)
    before = file_bytes(level(run, 1).folder)
    run.replicate(1).snapshot(LAST).unlink()

    again = cuts.cut(run, CHAIN, 1, LAST)

    assert again.keys() == first.keys()
    assert all((again[path] == array).all() for path, array in first.items())
    assert file_bytes(level(run, 1).folder) == before


def test_a_cut_that_was_killed_after_its_mask_is_made_again_and_ends_with_the_same_files(run):
    cuts.cut(run, CHAIN, 1, LAST)
    there = level(run, 1)
    before = file_bytes(there.folder)
    there.table.unlink()
    (there.folder / ".mask.h5.123.tmp").write_bytes(b"half")

    cuts.cut(run, CHAIN, 1, LAST)

    assert file_bytes(there.folder) == before


@pytest.mark.parametrize("other", [{"rate": 30.0}, {"rates": ["a/*=10"]}, {"layerwise": True}, {"scope": "all"}], ids=str)
def test_a_round_of_another_recipe_is_refused(run, other):
    cuts.cut(run, CHAIN, 1, LAST)
    changed = Run(run.folder, resolved(**other))

    with pytest.raises(InputError, match=r"rounds/weights-step-000000/01 was made with another recipe"):
        identity.check(changed.folder, changed.recipe)
    level(run, 1).table.unlink()  # begun, not finished
    with pytest.raises(InputError, match=r"rounds/weights-step-000000/01 was made with another recipe"):
        cuts.cut(changed, CHAIN, 1, LAST)


def test_a_round_that_another_process_cuts_is_busy(run):
    with locks.writing(level(run, 1).folder), pytest.raises(locks.Busy):
        cuts.cut(run, CHAIN, 1, LAST)


def test_a_damaged_mask_is_named(run):
    cuts.cut(run, CHAIN, 1, LAST)
    finish(run, CHAIN, 1, state(a=10, b=10))
    flip(level(run, 1).mask)

    for number in (1, 2):
        with pytest.raises(InputError, match=r"01/mask\.h5 is damaged"):
            cuts.cut(run, CHAIN, number, LAST)
    assert not level(run, 2).table.exists()


def test_damaged_or_missing_weights_are_named(run):
    flip(run.replicate(1).snapshot(LAST))
    with pytest.raises(InputError, match=r"step-000012\.h5 is damaged"):
        cuts.cut(run, CHAIN, 1, LAST)
    run.replicate(1).snapshot(LAST).unlink()
    with pytest.raises(InputError, match=r"step-000012\.h5 is missing"):
        cuts.cut(run, CHAIN, 1, LAST)


def test_a_round_whose_ticket_before_has_not_ended_says_so(run):
    cuts.cut(run, CHAIN, 1, LAST)

    with pytest.raises(InputError, match=r"01/ticket/result\.json is missing"):
        cuts.cut(run, CHAIN, 2, LAST)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused_by_name(run, value):
    train(run, state(a=10, b=[1, value, 3]))

    with pytest.raises(InputError, match="b/kernel holds NaN or infinite weights"):
        cuts.cut(run, CHAIN, 1, LAST)

    assert not level(run, 1).mask.exists()
    assert not level(run, 1).table.exists()


@pytest.mark.parametrize(
    ("method", "stage"), [("weights", "rounds"), ("init", "rounds"), ("lr", "rounds"), ("finetune", "finetune")]
)
def test_what_a_round_is_made_with_goes_by_its_method(run, method, stage):
    chain = Chain(1, method, 0)

    cuts.cut(run, chain, 1, LAST)

    assert cuts.stage_of(Round(chain, 1, "reinit")) == stage
    content = files.read_json(level(run, 1, chain).folder / "made_with.json")
    made_with = {"folder": f"{method}-step-000000/01", "stage": stage, "values": recipe.depends(run.recipe, stage)}
    assert content == made_with | {"made_from": ORIGINS, "made_by": []}
