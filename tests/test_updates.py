"""Masks that change in training, worked out by hand from the papers' formulas: GMP, RigL, SET."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from tiny import CPUS, KERNELS, half_masks, initial, same

from lottery.engine import events
from lottery.engine.loop import Trainer
from lottery.engine.updates import MaskUpdates
from lottery.networks.topology import topology
from lottery.pruning import masks
from lottery.pruning.criteria import magnitude
from lottery.pruning.cut import Method
from lottery.pruning.units import SINGLE, Blocks, of, parse
from lottery.pruning.updates import Schedule, gradual, mean_share, replaced

pytestmark = pytest.mark.usefixtures("tensorflow")

LAST = 24
RIGL = Schedule("rigl", every=4, begin=0, until=18, drop_fraction=0.3)
SET = dataclasses.replace(RIGL, method="set")
GMP = Schedule("gmp", every=4, begin=2, until=19, drop_fraction=0.3)


def updates(schedule, pruned=0, units=SINGLE):
    return MaskUpdates(schedule, 0, pruned, Method(magnitude, units=units), seed=3, macs=macs)


def macs(mask):
    return sum(int(kept.sum()) for kept in mask.values())


def loaded(make_trainer, schedule, **options):
    """A trainer at its start, and the mask that it starts with: half of each layer, or everything for GMP."""
    trainer, state = make_trainer(epochs=4, **options), initial()
    mask = half_masks(state)
    if schedule.method == "gmp":
        mask = masks.whole({path: state.weights[path] for path in KERNELS})
    trainer.load(state, mask)
    return trainer, mask


def counts(mask):
    return {path: int(kept.sum()) for path, kept in mask.items()}


def test_gmp_changes_the_mask_every_so_many_steps_up_to_its_end_and_the_others_before_theirs():
    assert list(GMP.steps()) == [6, 10, 14, 18]
    assert list(Schedule("gmp", 5, 0, 20, 0.3).steps()) == [5, 10, 15, 20]
    assert list(Schedule("set", 5, 0, 20, 0.3).steps()) == [5, 10, 15]
    assert list(RIGL.steps()) == [4, 8, 12, 16]
    assert list(RIGL.steps(first=8)) == list(RIGL.steps(first=11)) == [12, 16]
    assert list(GMP.steps(first=6)) == [10, 14, 18]
    assert list(GMP.steps(first=1)) == list(GMP.steps())
    assert list(Schedule("rigl", 100, 0, 18, 0.3).steps()) == []


@pytest.mark.parametrize(
    ("start", "final", "sparsities"),
    [
        (0, 9, [0.2439, 0.4392, 0.5913, 0.7056, 0.7875, 0.8424, 0.8757, 0.8928, 0.8991, 0.9]),
        (5, 9, [0.6084, 0.6952, 0.7628, 0.8136, 0.85, 0.8744, 0.8892, 0.8968, 0.8996, 0.9]),
    ],
)
def test_the_sparsities_of_the_cubic_are_those_of_jaxpruner(start, final, sparsities):
    """Its `PolynomialSchedule` of the power 3, every 100 steps from 200 to 1200, of Zhu & Gupta 2017, equation 1."""
    first, last = start * 10**8, final * 10**8
    schedule = Schedule("gmp", 100, 200, 1200, 0.0)

    found = [(first + schedule.pruned(step, last - first)) / 10**9 for step in schedule.steps()]
    assert found == pytest.approx(sparsities, abs=1e-6)


LONG = 100_000  # steps of a training


@pytest.mark.parametrize(("share", "begin", "until"), [(0.0, 0.0, 0.75), (0.1, 0.25, 0.75), (0.5, 0.5, 0.99), (1.0, 0.0, 0.1)])
def test_the_mean_step_of_gmp_costs_what_its_schedule_adds_up_to(share, begin, until):
    schedule, total = Schedule("gmp", 100, round(begin * LONG), round(until * LONG), 0.3), 10**9
    left = np.ones(LONG)
    for step in schedule.steps():
        left[step:] = 1 - schedule.pruned(step, round((1 - share) * total)) / total

    assert mean_share("gmp", share, begin, until, 100) == pytest.approx(left.mean(), abs=1e-3)
    assert left[-1] == pytest.approx(share)


@pytest.mark.parametrize(("share", "every"), [(0.0, 100), (0.1, 2), (0.5, 10)])
def test_a_look_of_rigl_costs_two_sparse_passes_and_a_dense_one(share, every):
    schedule, left = Schedule("rigl", every, 0, 75_000, 0.3), np.full(LONG, share)
    left[list(schedule.steps())] = (2 * share + 1) / 3

    assert mean_share("rigl", share, 0.0, 0.75, every) == pytest.approx(left.mean(), abs=1e-5)


@pytest.mark.parametrize("method", ["set", "none"])
def test_a_mask_that_keeps_as_much_and_takes_no_look_costs_its_share(method):
    assert mean_share(method, 0.3, 0.25, 0.75, 100) == 0.3


def chosen_by_hand(weights, kept, scores, count):
    """Algorithm 1 of Evci et al. 2020, one weight after another."""
    kept, weights, scores = kept.ravel().tolist(), np.abs(weights).ravel(), scores.ravel()
    places = range(len(kept))
    for place in sorted((place for place in places if kept[place]), key=lambda place: (weights[place], place))[:count]:
        kept[place] = False
    for place in sorted((place for place in places if not kept[place]), key=lambda place: (-scores[place], place))[:count]:
        kept[place] = True
    return kept


@pytest.mark.parametrize("seed", range(8))
def test_what_is_dropped_and_grown_is_that_of_the_paper_with_ties_by_position(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 9, size=2))
    weights, scores = rng.integers(-3, 4, shape) / 4, rng.integers(0, 4, shape) / 4
    kept = rng.random(shape) < rng.random()
    count = int(rng.integers(0, kept.sum() + 1))

    (found,) = replaced({"": weights}, {"": kept}, {"": scores}, {"": count}).values()

    assert found.ravel().tolist() == chosen_by_hand(weights, kept, scores, count)
    assert found.sum() == kept.sum()


@pytest.mark.parametrize("score", ["mean", "norm", "sum"])
def test_whole_blocks_are_dropped_and_grown_by_the_scores_of_their_weights(score):
    rng, units = np.random.default_rng(0), Blocks(2, 3, score)
    shape = (7, 8)
    weights, scores, blocks = rng.normal(size=shape), rng.random(shape), {"": rng.random((4, 3)) < 0.5}
    kept = units.spread(blocks, {"": np.ones(shape, bool)})
    count = int(blocks[""].sum()) // 2

    mask = replaced({"": weights}, kept, {"": scores}, {"": count}, units)

    def of_blocks(array):
        return units.pool({"": array}, {"": np.ones(shape, bool)})[0][""]

    expected = np.array(chosen_by_hand(of_blocks(np.abs(weights)), blocks[""], of_blocks(scores), count)).reshape(4, 3)
    assert (mask[""] == units.spread({"": expected}, {"": np.ones(shape, bool)})[""]).all()
    assert (expected != blocks[""]).any()


def test_layers_come_as_far_on_their_way_to_their_densities_as_gmp_has_pruned():
    method, pruned = gradual(Method(magnitude, fixed=[("a", Fraction(1, 5))]), GMP, 10, 640)

    assert pruned == math.floor(640 * (1 - Fraction(1, 2) ** 3)) == 560
    assert method == Method(magnitude, fixed=[("a", 1 - Fraction(560, 640) * Fraction(4, 5))])


@pytest.mark.parametrize("devices", [CPUS[:1], CPUS[:2]], ids=["one", "two"])
def test_dense_gradients_are_those_of_the_whole_batch_and_no_weight_moves(make_trainer, devices):
    plain = {"momentum": 0.0, "weight_decay": 0.0, "nesterov": False, "schedule": "constant", "learning_rate": 0.5}
    trainer = make_trainer(devices=devices, **plain)
    state = initial()
    trainer.load(state)

    figures, gradients = trainer.dense_gradients(3, 0)

    assert same(trainer.state(0), state)
    trainer.load(state)
    (taken,) = trainer.steps(3, 4, 0)
    moved = trainer.state(4)
    np.testing.assert_allclose(figures, taken, rtol=1e-6)
    assert gradients.keys() == set(KERNELS)
    for path, gradient in gradients.items():
        np.testing.assert_allclose(state.weights[path] - 0.5 * gradient, moved.weights[path], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("schedule", [RIGL, SET], ids=["rigl", "set"])
def test_each_change_is_that_of_the_paper_and_counts_never_do(make_trainer, monkeypatch, schedule):
    trainer, mask = loaded(make_trainer, schedule)
    monkeypatch.setattr(Trainer, "_adapt", lambda trainer, count, seconds: None)
    seen, change, look = [], trainer.change_mask, trainer.dense_gradients

    def seeing(mask, weights):
        seen.append((trainer.mask(), mask, weights))
        change(mask, weights)

    monkeypatch.setattr(trainer, "change_mask", seeing)
    gradients = []
    monkeypatch.setattr(trainer, "dense_gradients", lambda *where: gradients.append(look(*where)) or gradients[-1])

    for reached in events.run(trainer, 0, LAST, 0, updates=updates(schedule)):
        assert counts(trainer.mask()) == counts(mask)
        state = trainer.state(reached.step)
        for path, kept in trainer.mask().items():
            assert not state.weights[path][~kept].any()
            assert not state.optimizer[f"momentum/{path}"][~kept].any()

    assert len(seen) == len(schedule.steps())
    for number, (step, (before, after, weights)) in enumerate(zip(schedule.steps(), seen, strict=True)):
        assert any((before[path] != after[path]).any() for path in before)
        rng = np.random.default_rng([3, step])
        for path in sorted(before):
            share = 0.15 * (1 + math.cos(math.pi * step / 18))
            scores = np.abs(gradients[number][1][path]) if gradients else rng.random(before[path].shape)
            expected = chosen_by_hand(weights[path], before[path], scores, math.floor(share * before[path].sum()))
            assert after[path].ravel().tolist() == expected


@pytest.mark.parametrize("schedule", [RIGL, SET], ids=["rigl", "set"])
def test_a_training_costs_what_the_paper_counts(make_trainer, schedule):
    trainer, mask = loaded(make_trainer, schedule)
    changing, sparse, dense = updates(schedule), macs(mask), macs(masks.whole(mask))

    list(events.run(trainer, 0, LAST, 0, updates=changing))

    looks = 4 if schedule is RIGL else 0  # 3 f_S a step, and 2 f_S + f_D where RigL looks (Evci et al. 2020, appendix H)
    assert changing.trained_macs(trainer.mask(), LAST) == (LAST - looks) * 3 * sparse + looks * (2 * sparse + dense)


def test_gmp_costs_three_passes_through_what_is_left_at_each_step(make_trainer):
    trainer, mask = loaded(make_trainer, GMP)
    total = macs(mask)
    changing, pruned = updates(GMP, total // 2), [0] * 6

    list(events.run(trainer, 0, LAST, 0, updates=changing))

    for step in GMP.steps():  # 6, 10, 14, 18
        pruned += [GMP.pruned(step, total // 2)] * (4 if step < 18 else LAST - 18)
    assert len(pruned) == LAST
    assert changing.trained_macs(trainer.mask(), LAST) == sum(3 * (total - gone) for gone in pruned)


def test_a_weight_that_is_dropped_and_grown_at_once_keeps_value_and_momentum_and_a_new_one_starts_at_zero(make_trainer):
    trainer, mask = loaded(make_trainer, RIGL)
    trainer.advance(0, 4, 0)
    before = trainer.state(4)
    everything = dataclasses.replace(RIGL, drop_fraction=0.99, until=1_000_000)  # nearly all are dropped

    updates(everything).change(trainer, 4, 0)

    after, changed = trainer.state(5), trainer.mask()
    for path, kept in mask.items():
        stayed, new = changed[path] & kept, changed[path] & ~kept
        for name in (path, f"momentum/{path}"):
            old, now = ({**one.weights, **one.optimizer}[name] for one in (before, after))
            np.testing.assert_array_equal(now[stayed], old[stayed])
            assert not now[new].any()
    lost = sum(int((kept & ~changed[path]).sum()) for path, kept in mask.items())
    assert 0 < lost < sum(counts(mask).values()) * 0.9  # so that some were dropped and came back


def test_gmp_prunes_by_the_cubic_and_a_weight_that_returns_has_its_value(make_trainer, monkeypatch):
    trainer, mask = loaded(make_trainer, GMP)
    total = sum(counts(mask).values())
    pruned = math.floor(0.9 * total)
    changing, gone = updates(GMP, pruned), 0

    for reached in events.run(trainer, 0, LAST, 0, updates=changing):
        done = [step for step in GMP.steps() if step < reached.step]
        gone = math.floor(pruned * (1 - (1 - (done[-1] - 2) / 16) ** 3) + 1e-9) if done else 0
        assert total - sum(counts(trainer.mask()).values()) == gone
        state = trainer.state(reached.step)
        for path, kept in trainer.mask().items():
            assert not state.weights[path][~kept].any()
            assert not state.optimizer[f"momentum/{path}"][~kept].any()
            assert not changing.aside.get(path, np.zeros(1))[kept if done else slice(0)].any()
    assert gone == pruned

    state, (path, *_) = trainer.state(LAST), KERNELS
    kept = trainer.mask()[path]
    place = tuple(np.argwhere(~kept)[np.argmax(np.abs(changing.aside[path][~kept]))])
    value = changing.aside[path][place]
    assert value != 0
    for weights in (state.weights[name] for name in KERNELS):
        weights *= 1e-6  # all others fall below
    trainer.load(state, trainer.mask())
    changing.change(trainer, 18, 0)
    assert trainer.mask()[path][place]
    assert trainer.state(LAST).weights[path][place] == value
    assert trainer.state(LAST).optimizer[f"momentum/{path}"][place] == 0
    assert total - sum(counts(trainer.mask()).values()) == pruned


@pytest.mark.parametrize(
    ("schedule", "more"),
    [(RIGL, {"precision": "mixed_float16"}), (SET, {}), (GMP, {"ema": 0.9, "optimizer": "adam"})],
    ids=["rigl", "set", "gmp"],
)
def test_replicas_stay_alike_and_pruned_weights_are_zero_everywhere(make_trainer, schedule, more):
    trainer, _ = loaded(make_trainer, schedule, devices=CPUS[:2], **more)

    stream = list(events.run(trainer, 0, LAST, 0, stops={9, LAST}, updates=updates(schedule, 100)))

    assert stream[-1].evaluated
    final = trainer.state(LAST)
    for path, kept in trainer.mask().items():
        owned = [final.weights[path], *(array for name, array in final.optimizer.items() if name.endswith(f"/{path}"))]
        assert len(owned) == (4 if "ema" in more else 2)
        assert not any(array[~kept].any() for array in owned)
    for variable in [*trainer.masks.values(), *(one.value for one in trainer.model.variables), *trainer._optimizer.values()]:
        copies = [copy.numpy().tobytes() for copy in trainer.strategy.experimental_local_results(variable)]
        assert len(set(copies)) == 1


def test_where_float16_overflows_the_mask_stays(make_trainer, monkeypatch):
    trainer, mask = loaded(make_trainer, RIGL)
    monkeypatch.setattr(
        trainer, "dense_gradients", lambda *where: (np.ones((1, 3)), {path: np.full(1, np.inf) for path in mask})
    )

    assert updates(RIGL).change(trainer, 4, 0).tolist() == [[1, 1, 1]]

    assert all((trainer.mask()[path] == kept).all() for path, kept in mask.items())


def all_but_outputs(trainer):
    """Channels of lenet, of which the answers stay."""
    shapes = {path: array.shape for path, array in trainer.state(0).weights.items()}
    return of(parse("channel"), "mean", shapes, KERNELS[:2], topology(trainer.model), streams=True)


@pytest.mark.parametrize("more", [{}, {"ema": 0.9, "optimizer": "adam"}], ids=["sgd", "adam"])
def test_gmp_prunes_whole_channels_with_all_that_is_theirs_and_as_few_as_the_cubic_asks(make_trainer, more):
    state = initial()
    trainer = make_trainer(epochs=4, maskable=list(state.weights), **more)
    units = all_but_outputs(trainer)
    everything = masks.whole({path: state.weights[path] for path in sorted(units.covered(KERNELS[:2]))})
    assert everything.keys() == {"fc1/kernel", "fc1/bias", "fc2/kernel", "fc2/bias", "predictions/kernel"}
    trainer.load(state, everything)
    total = sum(state.weights[path].size for path in KERNELS[:2])
    changing = updates(GMP, math.floor(0.9 * total), units)

    for reached in events.run(trainer, 0, LAST, 0, updates=changing):
        if done := [step for step in GMP.steps() if step < reached.step]:
            mask, state = trainer.mask(), trainer.state(reached.step)
            assert mask.keys() == everything.keys()
            assert (mask["fc1/kernel"] == mask["fc1/bias"]).all()
            assert (mask["fc2/kernel"] == mask["fc1/bias"][:, None] & mask["fc2/bias"]).all()
            assert (mask["predictions/kernel"] == mask["fc2/bias"][:, None]).all()
            left, most = sum(macs({path: mask[path]}) for path in KERNELS[:2]), total - GMP.pruned(done[-1], changing.pruned)
            assert most - 192 - 100 - 300 < left <= most  # one channel less than could stay at most
            for path, kept in mask.items():
                owned = [array for name, array in state.optimizer.items() if name.endswith(f"/{path}")]
                assert len(owned) == (3 if more else 1)
                assert not any(array[~kept].any() for array in [state.weights[path], *owned])

    gone = np.flatnonzero(~mask["fc1/bias"])
    assert changing.aside["fc1/bias"][gone].any()
    back = gone[np.argmax(np.abs(changing.aside["fc1/bias"][gone]))]
    values = {path: array[..., back].copy() for path, array in changing.aside.items() if path.startswith("fc1")}
    changing.aside["fc1/kernel"][:, back] *= 1e3
    changing.change(trainer, 18, 0)
    state = trainer.state(LAST)
    assert trainer.mask()["fc1/bias"][back]
    assert state.weights["fc1/bias"][back] == values["fc1/bias"] != 0
    assert (state.weights["fc1/kernel"][:, back] == values["fc1/kernel"] * np.float32(1e3)).all()


@pytest.mark.parametrize("schedule", [RIGL, SET], ids=["rigl", "set"])
def test_rigl_and_set_keep_as_many_whole_blocks_of_each_layer(make_trainer, schedule):
    trainer, units = make_trainer(epochs=4), Blocks(8, 4)
    everything = masks.whole({path: initial().weights[path] for path in KERNELS})
    rng = np.random.default_rng(0)
    blocks = {path: rng.random(bits.shape) < 0.5 for path, bits in units.total(everything).items()}
    begun = units.spread(blocks, everything)
    trainer.load(initial(), begun)

    list(events.run(trainer, 0, LAST, 0, updates=updates(schedule, units=units)))

    mask = trainer.mask()
    assert any((mask[path] != begun[path]).any() for path in begun)
    assert {path: np.count_nonzero(kept) for path, kept in units.total(mask).items()} == counts(blocks)
    whole = units.spread({path: kept > 0 for path, kept in units.total(mask).items()}, everything)
    assert all((kept == mask[path]).all() for path, kept in whole.items())


@pytest.mark.parametrize("schedule", [RIGL, SET, GMP], ids=["rigl", "set", "gmp"])
def test_a_mask_that_changes_is_the_same_where_others_of_the_recipe_cover_more(make_trainer, schedule):
    ends = []
    for maskable in (KERNELS, list(initial().weights)):
        trainer, mask = loaded(make_trainer, schedule, maskable=maskable, precision="mixed_float16")
        changing = updates(schedule, 1000)
        list(events.run(trainer, 0, LAST, 0, updates=changing))
        assert trainer.mask().keys() == mask.keys()
        ends.append((trainer.state(LAST), changing.saved(trainer.mask())))

    (state, saved), (other, beside) = ends
    assert same(state, other)
    assert saved.keys() == beside.keys()
    assert all(saved[name].tobytes() == beside[name].tobytes() for name in saved)
