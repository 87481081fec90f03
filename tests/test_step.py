"""The compiled step: the same on any number of replicas and under XLA, and what it does to the gradient on the way."""

import numpy as np
import pytest
import tensorflow as tf
from tiny import CPUS, KERNELS, STEPS, advance, assert_close, half_masks, initial, same

from data_prep import records
from lottery.engine import optimizers, order
from lottery.engine.augment import normalise
from lottery.experiment.recipe import Data, Model
from lottery.pruning import masks

pytestmark = pytest.mark.usefixtures("tensorflow")

PRUNED = {"lenet_300_100": KERNELS} | dict.fromkeys(
    ("tiny:local", "tiny:synchronised", "tiny:stock"), ("conv1/kernel", "conv2/kernel", "conv3/kernel")
)
EXACT = {"precision": "float64", "weight_decay": 0.1, "ema": 0.9}


@pytest.fixture
def trained(make_trainer):
    """A function that trains a network for so many steps under half masks, on images as they are: its trainer, its state and
    what the steps found."""

    def train(name, replicas, steps, **settings):
        model = Model(name=name)
        trainer = make_trainer(model, CPUS[:replicas], PRUNED[name], varied={"crop": 0}, **settings)
        state = initial(model=model)
        trainer.load(state, half_masks(state, PRUNED[name]))
        found = advance(trainer, 0, steps)
        return trainer, trainer.state(steps), found

    return train


def assert_replicas_agree(trainer):
    """Every replica has the same weights, statistics and optimizer state, bit for bit."""
    variables = [variable.value for variable in trainer.model.variables] + list(trainer._optimizer.values())
    for variable in variables:
        first, *others = map(np.asarray, trainer.strategy.experimental_local_results(variable))
        assert len(others) == trainer.replicas - 1
        assert all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize(
    ("name", "replicas", "steps", "settings"),
    [
        ("tiny:synchronised", 4, 20, {"learning_rate": 0.02, "clip_norm": 1.0, "label_smoothing": 0.1, **EXACT}),
        ("tiny:synchronised", 2, 20, {"learning_rate": 0.01, "optimizer": "adam", "decay": "decoupled", **EXACT}),
        ("lenet_300_100", 2, 1, {"learning_rate": 0.1}),
    ],
)
def test_any_number_of_replicas_trains_the_same_network(trained, monkeypatch, name, replicas, steps, settings):
    if name == "lenet_300_100":
        monkeypatch.setattr(optimizers, "LARGE", 100)  # so that XLA has the kernels
    _, expected, sums = trained(name, 1, steps, **settings)

    trainer, state, other_sums = trained(name, replicas, steps, **settings)

    assert_close(state, expected, 1e-10 if "precision" in settings else 1e-5)
    np.testing.assert_allclose(other_sums, sums, rtol=1e-5)
    assert_replicas_agree(trainer)


def test_clipping_shortens_the_whole_summed_and_masked_gradient(make_trainer):
    """As the change of the weights in a first step at rate 1 shows it."""
    state = initial()
    mask = half_masks(state)

    def gradient(mask, replicas=1, **settings):
        plain = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "learning_rate": 1.0, "precision": "float64"}
        trainer = make_trainer(devices=CPUS[:replicas], **plain, **settings)
        trainer.load(state, mask)
        before = trainer.state(0).weights
        trainer.advance(0, 1, order_seed=0)
        after = trainer.state(1).weights
        return np.concatenate([(before[path] - after[path]).ravel() for path in before])

    free = gradient(mask)
    norm = np.linalg.norm(free)
    assert norm < 0.9 * np.linalg.norm(gradient({}))
    for replicas, share in ((1, 0.25), (2, 0.25), (1, 4.0)):
        clipped = gradient(mask, replicas, clip_norm=share * norm)
        np.testing.assert_allclose(clipped, free * min(share, 1), rtol=1e-9, atol=1e-14)


def test_smoothing_gives_every_class_its_part_of_the_label(make_trainer):
    """A network that tells three classes apart by nothing but its biases, of which the loss is known."""
    trainer = make_trainer(label_smoothing=0.3, learning_rate=1e-30)
    state = initial()
    state.weights = {path: np.zeros_like(array) for path, array in state.weights.items()}
    state.weights["predictions/bias"][:] = logits = np.array([0.5, -1.0, 2.0], np.float32)
    trainer.load(state)

    found = trainer.advance(0, STEPS, order_seed=0)[:, 0].mean()

    logs = logits - np.log(np.exp(logits).sum())
    wanted = np.eye(3) * 0.7 + 0.1  # by label, of which the training split has as many each
    assert found == pytest.approx(-(wanted @ logs).mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "replicas", "settings", "tolerance"),
    [
        ("lenet_300_100", 2, {"ema": 0.9, "clip_norm": 1.0}, 1e-4),
        ("tiny:local", 1, {"precision": "mixed_float16", "ema": 0.9}, 0.1),  # XLA computes parts of it in float32
    ],
)
def test_xla_trains_the_same_network(trained, name, replicas, settings, tolerance):
    (_, expected, sums), (trainer, state, other_sums) = (
        trained(name, replicas, STEPS, xla=xla, learning_rate=0.02, **settings) for xla in ("off", "on")
    )

    assert trainer.xla
    assert_close(state, expected, tolerance)
    np.testing.assert_allclose(other_sums[:, 0], sums[:, 0], rtol=tolerance)
    for path in PRUNED[name]:
        np.testing.assert_array_equal(state.weights[path] == 0, expected.weights[path] == 0)
    assert_replicas_agree(trainer)


def test_replicas_share_the_mean_of_their_moving_statistics(trained):
    trainer, state, _ = trained("tiny:local", 2, 1)

    images, _ = records.read_split(trainer.feed.folder, trainer.feed.manifest, "train")
    batch = order.shuffled(np.array([len(images)]), len(images), 0, 0).indices[:8]
    begun = initial(model=Model(name="tiny:local"))
    kernel = masks.apply(half_masks(begun, PRUNED["tiny:local"]), begun.weights)["conv1/kernel"]
    features = tf.nn.conv2d(normalise(images[batch], Data()), kernel, 1, "SAME").numpy()
    variances = [half.var((0, 1, 2), ddof=1) for half in np.split(features, 2)]
    np.testing.assert_allclose(state.statistics["bn1/moving_mean"], 0.1 * features.mean((0, 1, 2)), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(state.statistics["bn1/moving_variance"], 0.9 + 0.1 * np.mean(variances, axis=0), rtol=1e-5)
    assert_replicas_agree(trainer)
    trainer.load(state)
    assert same(trainer.state(1), state)


def test_a_network_of_stock_layers_trains_on_two_replicas(trained):
    """BatchNorm and dropout as Keras has them."""
    trainer, state, sums = trained("tiny:stock", 2, 2 * STEPS)

    assert np.isfinite(sums).all()
    assert (state.statistics["bn1/moving_mean"] != 0).any()
    assert_replicas_agree(trainer)
