"""Masks cut: exactly the share of the weights goes, masks of rounds only shrink, and what they are cut from is chained."""

import copy
import dataclasses
import threading
from fractions import Fraction

import numpy as np
import pytest
from handmade import ORIGINS, finished, write_result
from helpers import file_bytes, flip

from data_prep import files
from data_prep.errors import InputError
from lottery.experiment import reading
from lottery.experiment.recipe import decisive
from lottery.pruning import criteria
from lottery.pruning.state import State
from lottery.rundir import identity, locks, records, store
from lottery.rundir.lineage import seals
from lottery.rundir.records import Layer, MaskRecord
from lottery.rundir.run import Run
from lottery.stages import cut

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
    return cut.load(run, mask), run.mask(mask).read()


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
    assert (record.pruned, record.remaining) == (2, 7)
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


def test_layer_by_layer_each_loses_its_own_share(make):
    network = state(a=[1, 2, 3, 4, 5], b=[10, 20, 30, 40, 50, 60, 70, 80, 90, 100], c=[100] * 4)
    run = make(network, rate=20.0, rates=["c/*=50"], allocation="layerwise")

    mask, record = cut_of(run, first_of(run))

    assert kept(mask) == {"a/kernel": 4, "b/kernel": 8, "c/kernel": 2}
    assert mask["c/kernel"].tolist() == [False, False, True, True]
    assert [one.threshold for one in record.layers.values()] == pytest.approx([1.8, 28.0, 100.0])


def test_what_is_out_of_scope_or_excluded_is_not_in_the_mask(make):
    network = state({"bn/moving_mean": np.zeros(3, np.float32)}, a=10, predictions=10)
    network.weights["a/bias"] = np.zeros(5, np.float32)
    run = make(network, {"exclude": ["predictions/*"]})

    mask, record = cut_of(run, first_of(run))

    assert kept(mask) == {"a/kernel": 8}
    assert list(record.layers) == ["a/kernel"]


def test_scope_all_prunes_every_variable_statistics_too(make):
    run = make(state({"bn/moving_mean": np.zeros(2, np.float32)}, a=8), {"scope": "all"})

    mask, _ = cut_of(run, first_of(run))

    assert kept(mask) == {"a/kernel": 8, "bn/moving_mean": 0}


def test_variables_are_in_the_order_of_their_paths_whatever_their_rates(make):
    run = make(state(c=5, b=5, a=5), rates=["a/*=10"])

    mask, record = cut_of(run, first_of(run))

    assert list(mask) == list(record.layers) == ["a/kernel", "b/kernel", "c/kernel"]


@pytest.mark.parametrize("allocation", ["global", "layerwise"])
@pytest.mark.parametrize("rates", [[], ["b/*=35", "c/*=0"]], ids=str)
def test_over_five_rounds_masks_only_shrink_each_by_exactly_its_share(make, allocation, rates):
    rng = np.random.default_rng(0)

    def network():
        return state(a=rng.standard_normal(101), b=np.round(rng.standard_normal(57)), c=np.ones(13))

    run = make(network(), rounds=5, rate=23.0, rates=rates, allocation=allocation)
    mask, before = {}, {"a/kernel": 101, "b/kernel": 57, "c/kernel": 13}

    for one in masks_of(run):
        last, (mask, record) = mask, cut_of(run, one)
        now = kept(mask)
        alone = [["a/kernel"], ["b/kernel"], ["c/kernel"]]
        for group in alone if allocation == "layerwise" or rates else [[*now]]:
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
    assert record == MaskRecord(
        folder="replicate-1/iterative/masks/round-01-step-000000",
        outputs=seals(replicate.folder, [there.mask]),
        made_from=seals(replicate.folder, [replicate.snapshot(LAST)]),
        replicate=1,
        family="iterative",
        mask="round-01",
        round=1,
        rewind_step=0,
        rate=20.0,
        step=LAST,
        scores={"count": 20, "min": 1.0, "max": 20.0, "mean": 10.5},
        threshold=4.8,
        pruned=4,
        remaining=16,
        layers={
            "a/kernel": {"rate": 20.0, "threshold": 4.8, "weights": 10, "kept": 6},
            "b/kernel": {"rate": 20.0, "threshold": 4.8, "weights": 10, "kept": 10},
        },
        kept={
            "density": {"prunable": 0.8, "trainable": 0.8, "total": 0.8, "effective": None},
            "layers": {"a/kernel": {"weights": 10, "kept": 6}, "b/kernel": {"weights": 10, "kept": 10}},
            "disconnected": None,
        },
    )
    assert files.read_json(there.folder / "made_with.json") == {
        "format": 2,
        "folder": "replicate-1/iterative/masks",
        "output": "mask",
        "family": "iterative",
        "values": decisive(run.recipe, "mask", "iterative"),
        "made_from": ORIGINS,
        "made_by": [],
    }


def test_a_later_round_is_cut_from_what_the_one_before_left(run):
    one, two, _ = masks_of(run)
    first, _ = cut_of(run, one)
    finish(run, one, state(a=[100, 100, 100, 100, 1, 2, 3, 4, 5, 6], b=np.arange(11, 21)))

    second, record = cut_of(run, two)  # 3.2 of 16

    assert second["a/kernel"].tolist() == [False] * 7 + [True] * 3
    assert second["b/kernel"].all()
    assert kept(cut.load(run, one)) == kept(first)
    ticket = run.replicate(1).folder / "iterative/round-01-step-000000/ticket/final.h5"
    assert record.made_from == seals(run.replicate(1).folder, [ticket, run.mask(one).mask])
    assert (record.round, record.pruned) == (2, 3)


def test_every_chain_is_cut_on_its_own_and_several_masks_at_once(run):
    one, two, _ = masks_of(run, 6)
    cut.cut(run, [first_of(run), one])
    finish(run, one, state(a=np.arange(10, 0, -1), b=np.arange(11, 21)))

    cut.cut(run, [two, first_of(run)])

    assert run.mask(two).read().rewind_step == 6
    assert not run.mask(masks_of(run)[1]).is_cut


def test_a_mask_that_is_cut_is_only_read(run):
    mask = first_of(run)
    cut.cut(run, [mask])
    before = file_bytes(run.mask(mask).folder)
    run.replicate(1).snapshot(LAST).unlink()

    cut.cut(run, [mask])

    assert file_bytes(run.mask(mask).folder) == before


def test_a_cut_that_was_killed_after_its_mask_is_made_again_and_ends_with_the_same_files(run):
    mask = first_of(run)
    cut.cut(run, [mask])
    there = run.mask(mask)
    before = file_bytes(there.folder)
    there.table.unlink()
    (there.folder / f".{there.mask.name}.123.tmp").write_bytes(b"half")

    cut.cut(run, [mask])

    assert file_bytes(there.folder) == before


@pytest.mark.parametrize(
    ("pruning", "other"),
    [({}, {"rate": 30.0}), ({}, {"rates": ["a/*=10"]}), ({}, {"allocation": "layerwise"}), ({"scope": "all"}, {})],
    ids=str,
)
def test_a_mask_of_another_recipe_is_refused(run, pruning, other):
    mask = first_of(run)
    cut.cut(run, [mask])
    changed = dataclasses.replace(run, recipe=recipe_of(pruning, **other))

    with pytest.raises(InputError, match=r"replicate-1/iterative/masks was made with another recipe"):
        changed.check_outputs()
    run.mask(mask).table.unlink()  # begun, not finished
    with pytest.raises(InputError, match=r"replicate-1/iterative/masks was made with another recipe"):
        cut.cut(changed, [mask])


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


def test_a_damaged_mask_is_named(run):
    one, two, _ = masks_of(run)
    cut.cut(run, [one])
    finish(run, one, state(a=10, b=10))
    flip(run.mask(one).mask)

    for use in (lambda: cut.load(run, one), lambda: cut.cut(run, [two])):
        with pytest.raises(InputError, match=r"masks/round-01-step-000000\.h5 is damaged"):
            use()
    assert not run.mask(two).table.exists()


def test_damaged_or_missing_weights_are_named(run):
    mask = first_of(run)
    flip(run.replicate(1).snapshot(LAST))
    with pytest.raises(InputError, match=r"step-000012\.h5 is damaged"):
        cut.cut(run, [mask])
    run.replicate(1).snapshot(LAST).unlink()
    with pytest.raises(InputError, match=r"step-000012\.h5 is missing"):
        cut.cut(run, [mask])


def test_a_round_whose_ticket_before_has_not_ended_says_so(run):
    one, two, _ = masks_of(run)
    cut.cut(run, [one])

    with pytest.raises(InputError, match=r"round-01-step-000000/ticket/result\.json is missing"):
        cut.cut(run, [two])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused_by_name(run, value):
    mask = first_of(run)
    train(run, state(a=10, b=[1, value, 3]))

    with pytest.raises(InputError, match="b/kernel holds NaN or infinite weights"):
        cut.cut(run, [mask])

    assert not run.mask(mask).mask.exists()
    assert not run.mask(mask).table.exists()


def largest(network, mask, gradients):
    return {path: -np.abs(network.weights[path]) for path in mask}


def without_b(network, mask, gradients):
    return {"a/kernel": np.ones(10)}


def with_nan(network, mask, gradients):
    return {path: np.full(kept.shape, np.nan) for path, kept in mask.items()}


def test_a_criterion_of_the_users_own_says_what_goes_and_is_given_what_is_left(make, monkeypatch):
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


@pytest.mark.parametrize(("name", "path"), [("without_b", "b/kernel"), ("with_nan", "a/kernel")])
def test_a_criterion_that_leaves_a_weight_without_a_score_is_refused_by_name(make, name, path):
    run = make(state(a=10, b=10), criterion=f"{__name__}:{name}")

    with pytest.raises(InputError, match=f"{name} must give a finite score for every weight of {path}"):
        cut.cut(run, [first_of(run)])

    assert not run.mask(first_of(run)).mask.exists()


def test_what_finetunes_is_cut_with_the_values_of_masks_alone(make):
    run = make(state(a=10), method="finetune", finetune_rate=0.01)

    cut.cut(run, [first_of(run)])

    values = files.read_json(run.mask(first_of(run)).folder / identity.FILE)["values"]
    assert {key for key in values if key.startswith("families.")} == {
        f"families.iterative.{key}" for key in ("criterion", "allocation", "rate", "rates")
    }
    assert records.read(run.mask(first_of(run)).table, MaskRecord).family == "iterative"
