"""Masks cut: exactly the share of the weights goes, masks of rounds only shrink, and what they are cut from is chained."""

import copy
import dataclasses
import shutil
import threading
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from handmade import ORIGINS, finished, write_result
from helpers import file_bytes, flip

from lottery.base import locks
from lottery.base.errors import InputError
from lottery.experiment import reading
from lottery.pruning import criteria
from lottery.pruning.state import State
from lottery.rundir import identity, store
from lottery.rundir.lineage import seals
from lottery.rundir.records import Layer
from lottery.rundir.run import Run
from lottery.stages import cut, scoring

LAST = 12


def recipe_of(pruning=None, **family):
    """A recipe of one family, `iterative`, of rounds that rewind to 0 and 6, as `family` says."""
    table = {"rounds": 3, "rewind": "0,6it", **family}
    return reading.resolve(
        {
            "train": {"steps": LAST, "snapshots": "0,6it", "warmup": "0"},
            "pruning": {"exclude": [], **(pruning or {})},
            "families": {"iterative": table},
        }
    )


def state(statistics=None, **layers):
    """A network with a kernel for each of `layers`: its values, or the size of a ramp 1, 2, 3 ..."""
    weights = {
        f"{name}/kernel": np.arange(1, values + 1, dtype=np.float32) if isinstance(values, int) else np.float32(values)
        for name, values in layers.items()
    }
    return State(LAST, weights, statistics or {}, {})


@pytest.fixture
def make(tmp_path):
    """A function that makes a run with nothing but the last snapshot of a dense network, and the recipe's family as told."""

    def made(network, pruning=None, **family):
        run = Run(tmp_path / "run", recipe_of(pruning, **family))
        train(run, network)
        return run

    return made


@pytest.fixture
def run(make):
    """Kernels 1..10 and 11..20."""
    return make(state(a=10, b=np.arange(11, 21)))


def train(run, network):
    """Say that the dense network ended as `network`."""
    store.save_state(run.replicate(1).snapshot(LAST), network)
    finished(run.replicate(1), LAST)


def masks_of(run, rewind=0):
    """The masks of the chain that rewinds there, round by round."""
    return [one.mask for one in run.tickets(run.plan()) if one.variant == "ticket" and one.rewind == rewind]


def first_of(run, rewind=0):
    return masks_of(run, rewind)[0]


def finish(run, mask, network):
    """Say that the ticket of `mask` ended as `network`."""
    ticket = next(one for one in run.tickets(run.plan()) if (one.mask, one.variant) == (mask, "ticket"))
    made = run.network(ticket)
    store.save_state(made.final, network)
    write_result(run.replicate(1), made, [made.final], [run.mask(mask).mask])


def cut_of(run, mask):
    """The mask, cut, and its record."""
    cut.cut(run, [mask])
    return scoring.load(run, mask), run.mask(mask).read()


def kept(mask):
    return {path: int(array.sum()) for path, array in mask.items()}


@pytest.mark.parametrize(
    ("rate", "survivors", "gone"),
    [
        (20.0, 8, 2),  # 1.6
        (25.0, 10, 2),  # 2.5: half to even
        (25.0, 14, 4),  # 3.5
        (50.0, 3, 2),  # 1.5
        (0.7, 500, 4),  # exactly 3.5, where 0.7 / 100 * 500 is 3.4999999999999996
        (7.0, 150, 10),  # exactly 10.5, where 7 / 100 * 150 is 10.500000000000002
        (14.1, 1500, 212),  # exactly 211.5
        (99.9, 1000, 999),
    ],
)
def test_the_share_of_the_survivors_that_goes_is_rounded_exactly(make, rate, survivors, gone):
    run = make(state(a=survivors), rate=rate)

    mask, record = cut_of(run, first_of(run))

    assert mask["a/kernel"].tolist() == [False] * gone + [True] * (survivors - gone)
    assert (record.pruned, record.remaining) == (gone, survivors - gone)


def test_survivors_alone_are_counted_and_what_went_stays_away_however_large_it_is(make):
    run = make(state(a=[0.1, 5, 0.2, 5, 5, 5, 5], b=[0.3, 5, 5, 5, 5]), rate=25.0)  # three of twelve go
    one, two, _ = masks_of(run)
    cut.cut(run, [one])
    finish(run, one, state(a=[90, 1, 80, 2, 3, 4, 5], b=[70, -0.5, 6, 7, 8]))
    run = dataclasses.replace(run, recipe=recipe_of(rate=25.0))

    mask, record = cut_of(run, two)  # 2.25 of nine

    assert mask["a/kernel"].tolist() == [False, False, False, True, True, True, True]
    assert mask["b/kernel"].tolist() == [False, False, True, True, True]
    assert (record.round, record.pruned, record.remaining) == (2, 2, 7)
    ticket = run.replicate(1).folder / "iterative/round-01-step-000000/ticket/final.h5"
    assert record.made_from == seals(run.replicate(1).folder, [ticket, run.mask(one).mask])
    assert record.layers == {
        "a/kernel": Layer(rate=25.0, threshold=2.0, weights=5, kept=4),
        "b/kernel": Layer(rate=25.0, threshold=2.0, weights=4, kept=3),
    }
    assert (record.scores.count, record.scores.min, record.scores.max) == (9, 0.5, 8)


def test_layers_of_another_rate_are_ranked_among_themselves(make):
    run = make(state(a=10, b=10, predictions=20, stem=[0.1, 0.2, 0.3]), rate=20.0, rates=["predictions/*=10", "stem/*=0"])

    mask, record = cut_of(run, first_of(run))

    assert kept(mask) == {"a/kernel": 8, "b/kernel": 8, "predictions/kernel": 18, "stem/kernel": 3}
    assert {path: (one.rate, pytest.approx(one.threshold)) for path, one in record.layers.items()} == {
        "a/kernel": (20.0, 2.8),
        "b/kernel": (20.0, 2.8),
        "predictions/kernel": (10.0, 2.9),
        "stem/kernel": (0.0, 0.1),
    }
    assert (record.pruned, record.remaining, record.threshold) == (6, 37, None)


def test_all_layers_of_the_same_rate_are_ranked_together_whichever_pattern_gave_it(make):
    network = state(a=[1, 2, 3, 4, 5], b=[10, 20, 30, 40, 50], c=[0.1, 6, 7, 8, 9], d=[100, 200, 300, 400, 500])
    run = make(network, rate=20.0, rates=["b/*=40", "c/*=20", "d/*=40.0"])

    mask, _ = cut_of(run, first_of(run))

    assert kept(mask) == {"a/kernel": 4, "b/kernel": 1, "c/kernel": 4, "d/kernel": 5}


@pytest.mark.parametrize(
    ("pruning", "expected"),
    [
        ({"exclude": ["predictions/*"]}, {"a/kernel": 8}),
        ({"scope": "all"}, {"a/kernel": 10, "bn/moving_mean": 0, "predictions/kernel": 9, "z/bias": 5}),
    ],
)
def test_what_is_out_of_scope_or_excluded_is_not_in_the_mask_which_is_in_the_order_of_paths(make, pruning, expected):
    network = state({"bn/moving_mean": np.zeros(4, np.float32)}, predictions=10, a=np.arange(2, 12))
    network.weights["z/bias"] = np.full(5, 99, np.float32)
    run = make(network, pruning, rates=["z/*=0"])

    mask, record = cut_of(run, first_of(run))

    assert kept(mask) == expected
    assert list(mask) == list(record.layers) == list(expected)


@pytest.mark.parametrize(("allocation", "rates"), [("global", []), ("uniform", ["b/*=35", "c/*=0"])], ids=str)
def test_over_five_rounds_masks_only_shrink_each_by_exactly_its_share(make, allocation, rates):
    rng = np.random.default_rng(0)

    def network():
        return state(a=rng.standard_normal(101), b=np.round(rng.standard_normal(57)), c=np.ones(13))

    run = make(network(), rounds=5, rate=23.0, rates=rates, allocation=allocation)
    mask, before = {}, {"a/kernel": 101, "b/kernel": 57, "c/kernel": 13}

    for one in masks_of(run):
        last, (mask, record) = mask, cut_of(run, one)
        now = kept(mask)
        for group in [["a/kernel"], ["b/kernel"], ["c/kernel"]] if rates else [[*now]]:
            rate = {"b/kernel": Fraction(35), "c/kernel": Fraction(0)}.get(group[0], Fraction(23)) if rates else Fraction(23)
            had = sum(before[path] for path in group)
            assert sum(now[path] for path in group) == had - round(rate / 100 * had)
        assert all((mask[path] <= array).all() for path, array in last.items())
        assert {path: (layer.weights, layer.kept) for path, layer in record.layers.items()} == {
            path: (before[path], now[path]) for path in now
        }
        before = now
        finish(run, one, network())


def test_the_first_round_is_cut_from_the_dense_network(run):
    mask = first_of(run)

    bits, record = cut_of(run, mask)

    assert bits["a/kernel"].tolist() == [False] * 4 + [True] * 6
    assert bits["b/kernel"].all()
    replicate, there = run.replicate(1), run.mask(mask)
    assert sorted(file_bytes(there.folder)) == ["made_with.json", "round-01-step-000000.h5", "round-01-step-000000.json"]
    assert record.outputs == seals(replicate.folder, [there.mask])
    assert record.made_from == seals(replicate.folder, [replicate.snapshot(LAST)])
    assert (record.family, record.mask, record.round, record.rewind_step, record.rate) == ("iterative", "round-01", 1, 0, 20.0)
    made_with = identity.made_with(there.folder)
    assert (made_with.output, made_with.family, made_with.made_from) == ("mask", "iterative", ORIGINS)


def test_every_chain_is_cut_on_its_own_and_several_masks_at_once(run):
    one, two, _ = masks_of(run, 6)
    cut.cut(run, [first_of(run), one])
    finish(run, one, state(a=np.arange(10, 0, -1), b=np.arange(11, 21)))

    cut.cut(run, [two, first_of(run)])

    assert run.mask(two).read().rewind_step == 6
    assert not run.mask(masks_of(run)[1]).is_cut


def test_a_cut_that_was_killed_after_its_mask_is_made_again_with_the_same_bytes_and_one_that_is_there_only_read(run):
    mask = first_of(run)
    cut.cut(run, [mask])
    there = run.mask(mask)
    before = file_bytes(there.folder)
    there.table.unlink()
    (there.folder / f".{there.mask.name}.123.tmp").write_bytes(b"half")

    cut.cut(run, [mask])

    assert file_bytes(there.folder) == before
    run.replicate(1).snapshot(LAST).unlink()
    cut.cut(run, [mask])
    assert file_bytes(there.folder) == before


def test_masks_that_another_process_cuts_are_waited_for(run):
    mask = first_of(run)
    cutting = threading.Thread(target=cut.cut, args=(run, [mask]))

    with locks.writing(run.mask(mask).folder):
        cutting.start()
        cutting.join(0.3)
        assert cutting.is_alive()
        assert not run.mask(mask).is_cut
    cutting.join()

    assert run.mask(mask).is_cut


def largest(network, mask, probe):
    """The largest weights go; of those that are gone it says nothing."""
    return {path: np.where(kept, -np.abs(network.weights[path]), np.nan) for path, kept in mask.items()}


def test_a_criterion_of_the_users_own_says_what_goes_and_is_asked_of_what_is_left_alone(make, monkeypatch):
    given = []
    monkeypatch.setitem(criteria.CRITERIA, "noted", lambda *arguments: given.append(arguments) or largest(*arguments))
    run = make(state(a=10, b=np.arange(11, 21)), criterion="noted")
    before = copy.deepcopy(state(a=10, b=np.arange(11, 21)))
    one, two, _ = masks_of(run)

    first, record = cut_of(run, one)
    finish(run, one, state(a=10, b=np.arange(11, 21)))
    second, _ = cut_of(run, two)

    assert kept(first) == {"a/kernel": 10, "b/kernel": 6}
    assert kept(second) == {"a/kernel": 10, "b/kernel": 3}
    assert (record.scores.min, record.scores.max) == (-20, -1)
    assert [kept(mask) for _, mask, _ in given] == [{"a/kernel": 10, "b/kernel": 10}, {"a/kernel": 10, "b/kernel": 6}]
    assert (given[0][0].weights["b/kernel"] == before.weights["b/kernel"]).all()


def test_float_types_that_numpy_lacks_are_cut_as_the_same_numbers_in_float32(make, tmp_path):
    kinds = {"a/kernel": ml_dtypes.bfloat16, "b/kernel": ml_dtypes.float8_e4m3fn, "c/kernel": ml_dtypes.float8_e5m2}
    network = state(a=np.arange(11, 21), b=10, c=10)
    typed = {path: array.astype(kinds[path]) for path, array in network.weights.items()}
    wide = {path: array.astype(np.float32) for path, array in typed.items()}
    found = []
    for weights in (typed, wide):
        run = make(State(LAST, weights, {}, {}))
        found.append(cut_of(run, first_of(run)))
        shutil.rmtree(tmp_path / "run")

    assert kept(found[0][0]) == kept(found[1][0])
    assert sum(kept(found[0][0]).values()) == 24
    assert found[0][1].costs == found[1][1].costs


def damaged_mask(run, mask):
    finish(run, mask, state(a=10, b=10))
    flip(run.mask(mask).mask)


def damaged_weights(run, mask):
    finish(run, mask, state(a=10, b=10))
    flip(run.mask(mask).folder.parent / "round-01-step-000000/ticket/final.h5")


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (lambda run, mask: None, r"round-01-step-000000/ticket/result\.json is missing"),
        (lambda run, mask: finish(run, mask, state(a=10, b=[1, np.nan, 3])), "b/kernel holds NaN or infinite weights"),
        (damaged_mask, r"masks/round-01-step-000000\.h5 is damaged"),
        (damaged_weights, r"ticket/final\.h5 is damaged"),
    ],
)
def test_what_no_mask_can_be_cut_from_is_named_and_nothing_is_written(run, trouble, words):
    one, two, _ = masks_of(run)
    cut.cut(run, [one])
    trouble(run, one)

    with pytest.raises(InputError, match=words):
        cut.cut(run, [two])

    assert not run.mask(two).mask.exists()
    assert not run.mask(two).table.exists()
