"""Optimizers against their formulas in NumPy, in float64, at learning rates that change."""

import numpy as np
import pytest

from lottery.experiment.recipe import Train

keras = pytest.importorskip("keras")

from lottery.engine import optimizers  # noqa: E402
from lottery.engine.optimizers import Optimizer, weight_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("tensorflow")

RATES = np.array([0.1, 0.1, 0.05, 0.2, 0.0], np.float32)
SHAPES = {"kernel": (3, 4), "bias": (4,), "depthwise_kernel": (2, 2, 1)}
PLAIN = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}


def drawn(seed):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape) for name, shape in SHAPES.items()}


def follow(train, weight, gradients, decay):
    """The weight, and each kind of slot, after a step along each of `gradients`."""
    velocity = mean = variance = np.zeros_like(weight)
    average = weight
    for step, (gradient, rate) in enumerate(zip(gradients, RATES.astype(np.float64), strict=True), 1):
        if train.decay == "l2":
            gradient = gradient + decay * weight
        else:
            weight = weight - rate * decay * weight
        if train.optimizer == "adam":  # with epsilon as in section 2 of Kingma & Ba 2015
            mean = 0.9 * mean + 0.1 * gradient
            variance = 0.999 * variance + 0.001 * gradient**2
            weight = weight - rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step) * mean / (np.sqrt(variance) + 1e-7)
        else:
            velocity = train.momentum * velocity + gradient
            weight = weight - rate * (gradient + train.momentum * velocity if train.nesterov else velocity)
        kept = min(train.ema, (1 + step) / (10 + step))
        average = kept * average + (1 - kept) * weight
    return {"": weight, "momentum": velocity, "mean": mean, "variance": variance, "ema": average}


@pytest.mark.parametrize(
    "settings",
    [
        PLAIN,
        {**PLAIN, "momentum": 0.9, "nesterov": True},
        {**PLAIN, "optimizer": "adam"},
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "decays": "kernels"},
        {"weight_decay": 0.1, "decay": "decoupled", "decays": "kernels"},
        {"weight_decay": 0.1, "optimizer": "adam", "decay": "decoupled", "ema": 0.9},
    ],
    ids=str,
)
@pytest.mark.parametrize(("share", "large"), [(1.0, 1 << 16), (0.5, 1)], ids=["whole", "masked, merged by XLA"])
def test_an_optimizer_takes_the_steps_of_its_formula(tensorflow, monkeypatch, settings, share, large):
    monkeypatch.setattr(optimizers, "LARGE", large)
    train, rng = Train(**settings), np.random.default_rng(9)
    kept = {name: rng.random(shape) < share for name, shape in SHAPES.items()}
    weights = {name: np.where(kept[name], weight, 0) for name, weight in drawn(0).items()}
    gradients = [drawn(seed) for seed in range(1, len(RATES) + 1)]
    variables = [keras.Variable(weight, dtype="float64", name=name) for name, weight in weights.items()]
    masks = {name: tensorflow.Variable(mask) for name, mask in kept.items()} if share < 1 else {}
    optimizer = Optimizer(train, variables)
    assert {name.partition("/")[0] for name in optimizer.state} == {
        *(["mean", "variance"] if train.optimizer == "adam" else ["momentum"] if train.momentum else []),
        *(["ema"] if train.ema else []),
        *(["steps"] if train.ema or train.optimizer == "adam" else []),
    }
    for name, weight in weights.items() if train.ema else ():
        optimizer.state[f"ema/{name}"].assign(weight)

    apply = tensorflow.function(lambda gradients, rate: optimizer.apply(gradients, rate, masks))
    for step, rate in zip(gradients, RATES, strict=True):
        apply([tensorflow.constant(gradient) for gradient in step.values()], tensorflow.constant(rate))

    for name, variable in zip(SHAPES, variables, strict=True):
        decay = train.weight_decay if train.decays == "all" or "kernel" in name else 0
        expected = follow(train, weights[name], [np.where(kept[name], step[name], 0) for step in gradients], decay)
        states = {kind.partition("/")[0]: array for kind, array in optimizer.state.items() if weight_of(kind) == name}
        assert len(states) == len({kind.partition("/")[0] for kind in optimizer.state} - {"steps"})
        for kind, value in {"": variable, **states}.items():
            found = np.asarray(value)
            np.testing.assert_allclose(found, expected[kind], rtol=1e-12, atol=1e-12, err_msg=f"{kind} {name}")
            assert not found[~kept[name]].any()
            assert not np.signbit(found[~kept[name]]).any()
