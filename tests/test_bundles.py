"""Bundles: several tickets in one compiled step, each as it would be alone, and none moved by another."""

import dataclasses
import threading
from functools import cache, lru_cache

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import large
from tiny import KERNELS, STEPS, flat, half_masks, initial, same

from lottery.engine import models, signature
from lottery.engine.bundle import network
from lottery.engine.bundle.members import BundledTrainer
from lottery.engine.layers import BatchNorm
from lottery.engine.loop import Diverged
from lottery.experiment import schedules
from lottery.experiment.recipe import Model

pytestmark = pytest.mark.usefixtures("tensorflow")

ADAMW = {"optimizer": "adam", "learning_rate": 0.01, "decay": "decoupled", "weight_decay": 0.1}
NORMED = Model(name="tiny:local")
OURS = (
    ("resnet9", "same"),
    ("conv2", "same"),
    ("cifar_tutorial", "same"),
    ("lenet_300_100", "same"),
    ("tiny:parts", "same"),
    ("tiny:symmetric_parts", "symmetric"),
    *large(*((name, "same") for name in ("mobilenet_v2", "resnet20", "resnext29_32x4d", "wrn_22_2", "resnet50"))),
    *large(*((name, "symmetric") for name in ("mobilenet_v2", "resnet50", "resnext29_32x4d"))),
)


@cache
def drawn(model, number):
    return initial(number, model)


def trained(trainer, number, last=STEPS, rates=None, state=None):
    """Train the network of this number: its end, the figures of its steps, and how it does on validation images."""
    start = state or drawn(trainer.recipe.model, number)
    trainer.load(start, half_masks(start, list(trainer.masks), number))
    figures = np.concatenate(list(trainer.steps(0, last, number, rates)))
    return trainer.state(last), figures, trainer.evaluate("validation"), trainer.is_constant()


bundled = lru_cache(1)(BundledTrainer)  # which takes seconds to compile, and may run again


def together(trainer, tickets, *trainings):
    for number in range(6):  # drawing is for one thread at a time
        drawn(trainer.recipe.model, number)
    outcomes = bundled(trainer, tickets).run(dict(enumerate(trainings)))
    return [outcomes[place] for place in sorted(outcomes)]


def numbered(*numbers, **options):
    return [lambda member, number=number: trained(member, number, **options) for number in numbers]


@pytest.mark.parametrize(("name", "padding"), OURS)
def test_each_of_our_networks_answers_in_a_bundle_as_alone(name, padding):
    keras.utils.set_random_seed(0)  # some draws leave BatchNorm of three images no digits to agree in
    with models.policy("float64"):
        model = Model(name=name, width=8 if name in ("resnet20", "resnet9") else 0, padding=padding)
        one = models.build(model, signature.images(32, 10))
    rng = np.random.default_rng(0)
    states = [{v.path: np.asarray(v) + rng.uniform(0, 0.1, v.shape) for v in one.variables} for _ in range(2)]
    images = rng.normal(size=(2, 3, 32, 32, 3))
    stacked = {path: tf.constant(np.stack([state[path] for state in states])) for path in states[0]}

    assert network.obstacle(one) is None
    for training in (False, True):
        forward = network.Forward(one, stacked, 2, training)
        found = forward(tf.constant(images))
        for place, state in enumerate(states):
            models.assign({v.path: v for v in one.variables}, state)
            np.testing.assert_allclose(found[place], one(images[place], training=training), rtol=1e-5, atol=1e-5)
            for path, moved in forward.statistics.items():
                own = next(np.asarray(v) for v in one.variables if v.path == path)
                np.testing.assert_allclose(moved[place], own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "train",
    [
        {"momentum": 0.0, "nesterov": False},
        {"nesterov": False, "weight_decay": 0.1, "label_smoothing": 0.1},
        {"ema": 0.9, "clip_norm": 0.1, "schedule": "constant"},
        {**ADAMW, "ema": 0.9},
    ],
    ids=str,
)
def test_a_ticket_in_a_bundle_is_that_alone_but_for_the_last_bits(make_trainer, train):
    trainer = make_trainer(precision="float64", **train)
    alone = [trained(trainer, number) for number in range(3)]

    for (state, figures, evaluation, constant), found in zip(alone, together(trainer, 3, *numbered(0, 1, 2)), strict=True):
        for name, array in flat(found[0]).items():
            np.testing.assert_allclose(array, flat(state)[name], rtol=1e-9, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(found[1], figures, rtol=1e-9)
        assert found[2].loss == pytest.approx(evaluation.loss, rel=1e-6)
        assert found[2].metrics == pytest.approx(evaluation.metrics, rel=1e-6)
        assert found[3] == constant


@pytest.mark.parametrize(
    "train",
    [
        {"weight_decay": 0.1, "ema": 0.9, "clip_norm": 0.1},
        {**ADAMW, "ema": 0.9},
        {"ema": 0.9, "precision": "mixed_float16"},
    ],
    ids=str,
)
def test_pruned_weights_and_their_optimizer_state_are_exactly_zero_in_a_bundle(make_trainer, train):
    trainer = make_trainer(**train)

    for number, (state, *_) in enumerate(together(trainer, 2, *numbered(0, 1))):
        for path, kept in half_masks(initial(number), KERNELS, number).items():
            states = [array for name, array in state.optimizer.items() if name.endswith(path)]
            for array in (state.weights[path], *states):
                assert not array[~kept].any()
                assert not np.signbit(array[~kept]).any()


def test_a_ticket_does_not_depend_on_its_company(make_trainer):
    trainer = make_trainer(model=NORMED, maskable=(), clip_norm=0.5)

    full = together(trainer, 3, *numbered(0, 1, 2))
    with_others = together(trainer, 3, *numbered(5, 1))
    by_itself = bundled(trainer, 3).run({1: numbered(1)[0]})[1]

    assert same(full[1][0], with_others[1][0])
    assert same(full[1][0], by_itself[0])
    np.testing.assert_array_equal(full[1][1], by_itself[1])


def test_one_that_diverges_is_set_aside_and_moves_no_bit_of_the_others(make_trainer):
    trainer = make_trainer(model=NORMED, maskable=(), clip_norm=0.5)
    broken = initial(1, NORMED)
    broken.weights["predictions/kernel"][:] = np.inf

    def diverging(member):
        with pytest.raises(Diverged) as told:
            trained(member, 1, state=broken)
        return told.value.step

    first, step, last = together(trainer, 3, numbered(0)[0], diverging, numbered(2)[0])
    expected = together(trainer, 3, *numbered(0, 1, 2))

    assert step == 0
    assert same(first[0], expected[0][0])
    assert same(last[0], expected[2][0])


def test_each_has_its_own_loss_scale(make_trainer):
    trainer = make_trainer(precision="mixed_float16")
    state = initial(1)
    state.optimizer = {
        name: np.array(2.0**24 if name == "loss_scale" else array) for name, array in trainer.state(0).optimizer.items()
    }
    state.weights["predictions/kernel"] *= 1000

    (calm, *_), (shaken, figures, *_) = together(trainer, 2, numbered(0)[0], lambda member: trained(member, 1, state=state))
    expected = together(trainer, 2, *numbered(0))[0][0]

    assert figures[:, 2].any()
    assert shaken.optimizer["loss_scale"] < 2**24
    assert same(calm, expected)


def test_tickets_join_at_their_steps_and_have_their_own_learning_rates(make_trainer):
    trainer = make_trainer()

    def joining(member):
        start = dataclasses.replace(drawn(trainer.recipe.model, 5), step=4)
        member.load(start)
        figures = [
            taken
            for first, last in ((4, STEPS), (STEPS, STEPS + 3))
            for taken in member.steps(first, last, 7, schedules.constant(0.003))
        ]
        return member.state(STEPS + 3), np.concatenate(figures)

    whole, joined = together(trainer, 2, numbered(0, last=STEPS)[0], joining)

    assert same(whole[0], together(trainer, 2, *numbered(0))[0][0])
    assert same(joined[0], bundled(trainer, 2).run({1: joining})[1][0])
    assert len(joined[1]) == STEPS - 1


def test_a_ticket_that_goes_on_has_the_bits_of_one_that_was_never_stopped(make_trainer):
    trainer = make_trainer(model=NORMED, maskable=(), ema=0.9)

    def stopped(member):
        member.load(drawn(NORMED, 0))
        list(member.steps(0, 2, 0))
        return member.state(2)

    def resumed(member):
        member.load(*together_state)
        list(member.steps(2, STEPS, 0))
        return member.state(STEPS)

    def whole(member):
        member.load(drawn(NORMED, 0))
        list(member.steps(0, STEPS, 0))
        return member.state(STEPS)

    together_state = together(trainer, 2, stopped, numbered(4)[0])[:1]

    assert same(together(trainer, 2, resumed, numbered(3)[0])[0], together(trainer, 2, whole)[0])


def test_what_one_raises_ends_with_the_others_and_what_the_step_raises_reaches_all(make_trainer, monkeypatch):
    trainer, ended = make_trainer(), []

    def failing(member):
        raise RuntimeError("mine")

    def ending(member):
        trained(member, 0)
        ended.append(member)

    with pytest.raises(RuntimeError, match="mine"):
        together(trainer, 2, failing, ending)
    assert len(ended) == 1

    bundle, told = BundledTrainer(trainer, 2), []
    monkeypatch.setattr(bundle.step, "steps", lambda *given: 1 / 0)

    def hearing(member):
        with pytest.raises(ZeroDivisionError):
            trained(member, 0)
        told.append(threading.current_thread())

    bundle.run({0: hearing, 1: hearing})
    assert len(told) == 2


def test_an_interruption_while_members_are_at_work_ends_them_all(make_trainer, monkeypatch):
    bundle, at_work, told = BundledTrainer(make_trainer(), 2), threading.Event(), []

    def interrupted():
        at_work.set()
        raise KeyboardInterrupt

    def working(member):
        at_work.wait()
        with pytest.raises(KeyboardInterrupt):
            member.evaluate("validation")
        told.append(member.place)

    monkeypatch.setattr(bundle, "_gathered", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bundle.run({0: working, 1: working})

    assert sorted(told) == [0, 1]


def test_layers_that_a_ticket_axis_does_not_fit_are_named_also_a_users_own_that_come_from_one_it_fits():
    keras = tf.keras

    class Doubled(keras.layers.Dense):
        def call(self, inputs):
            return 2 * super().call(inputs)

    def relu(values):
        return keras.activations.softmax(values)

    images = keras.Input((8, 8, 3))
    features = keras.layers.Flatten()(images)
    frozen = BatchNorm(0.9, 1e-3, "ones", name="frozen", trainable=False)
    shared = keras.layers.Conv2D(3, 3, padding="same", name="shared")
    outputs = {
        "soft": keras.layers.Conv2D(4, 3, name="soft", activation="softmax")(images),
        "every_pixel": keras.layers.Dense(3, name="every_pixel")(images),
        "wide": keras.layers.Conv2D(4, 3, dilation_rate=2, name="wide")(images),
        "drop": keras.layers.Dropout(0.5, name="drop")(features),
        "stock": keras.layers.BatchNormalization(name="stock")(images),
        "doubled": Doubled(3, name="doubled")(features),
        "own": keras.layers.Conv2D(4, 3, name="own", activation=relu)(images),
        "multiply": keras.layers.Dense(3)(features * 2.0),
        "frozen": frozen(images),
        "shared": shared(shared(images)),
    }

    for name, output in outputs.items():
        assert name in network.obstacle(keras.Model(images, output))
    assert network.obstacle(keras.Model(images, keras.layers.Dense(3, "relu")(features))) is None
    assert network.obstacle(keras.Sequential([images, keras.Sequential([keras.layers.Flatten()], name="inner")])) is not None
