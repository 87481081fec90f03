"""Masks in a user's own `model.fit`: exact zeros whatever trains them, and exact counts."""

import math
from fractions import Fraction
from functools import partial

import keras
import numpy as np
import pytest
from keras_networks import (
    BACKEND,
    GRADUAL,
    LOSS,
    ON_TENSORFLOW,
    OPTIMIZERS,
    RNG,
    SIZES,
    X,
    Y,
    descent,
    fit,
    holds,
    is_exact,
    kept,
    kernels,
    left,
    network,
    same,
    sequential,
    stateless_descent,
)

from lottery.base.errors import InputError
from lottery.keras import Constant, Cubic, RigL, compact, masks, prune, resume, snapshot, strip, update
from lottery.keras.fitting import pruned
from lottery.pruning import ranking
from lottery.pruning.criteria import CRITERIA, WITH_IMAGES
from lottery.pruning.cut import Method, cut
from lottery.pruning.state import State
from lottery.pruning.updates import Schedule

pytestmark = [pytest.mark.usefixtures("any_backend"), pytest.mark.filterwarnings("ignore:fit ended before the schedule")]
# On PyTorch, Keras's product of two matrices of float64 is of float32.
EXACT = 1e-6 if BACKEND == "torch" else 1e-12


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_zeros_are_exact_after_every_epoch_with_every_optimizer_of_keras(optimizer):
    model, epochs = prune(network(optimizer), 0.8, schedule=GRADUAL), []

    fit(model, 4, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.append(is_exact(model)))])

    assert epochs == [True] * 4
    assert is_exact(model)  # after `use_ema` has put the averages in place
    assert sum(kept(model).values()) == left("0.8")
    assert all(pruned(model)._slots()[path] for path in SIZES)


def test_every_optimizer_of_keras_is_tested():
    tested = {type(make()).__name__ for make in OPTIMIZERS.values()}

    assert {one.__name__ for one in keras.src.optimizers.ALL_OBJECTS} - tested == {
        "Optimizer",
        "OptimizerMap",
        "LossScaleOptimizer",
    }


@ON_TENSORFLOW
@pytest.mark.parametrize(
    ("optimizer", "policy"),
    [("adamw", "mixed_float16"), ("muon", "mixed_bfloat16")],
    indirect=["policy"],
)
def test_replicas_keep_the_same_zeros(optimizer, policy, tensorflow, tmp_path):
    with tensorflow.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = prune(network(optimizer), 0.8, schedule=GRADUAL)
    fit(model)
    model.save(tmp_path / "whole.keras")
    fit(model, 3, 1)

    assert is_exact(model)
    assert sum(kept(model).values()) == left("0.8")
    with model.distribute_strategy.scope():
        other = resume(keras.models.load_model(tmp_path / "whole.keras"))
    fit(other, 3, 1)
    assert same(model, other)


@ON_TENSORFLOW
def test_xla_compiles_the_update_and_keeps_zeros_exact(tensorflow):
    model = prune(network("muon"), 0.8)
    weights = model.trainable_variables
    apply = tensorflow.function(lambda gradients: model.optimizer.apply(gradients, weights), jit_compile=True)
    for _ in range(3):
        apply([tensorflow.constant(RNG.normal(size=one.shape), "float32") for one in weights])

    assert pruned(model).step == 3
    assert is_exact(model)


def test_zeros_are_exact_in_an_eager_step():
    model = prune(network("adam", run_eagerly=True), 0.8, schedule=GRADUAL)
    fit(model, 4)

    assert is_exact(model)
    assert sum(kept(model).values()) == left("0.8")


def test_not_even_an_infinite_gradient_reaches_a_pruned_weight():
    model = prune(network("adam"), 0.5)
    weights = model.trainable_variables

    pruned(model).apply([keras.ops.full(one.shape, math.nan) for one in weights], weights)

    for path, bits in masks(model).items():
        (weight,) = [one.numpy() for one in weights if one.path == path]
        assert (weight[~bits] == 0).all()
        assert np.isnan(weight[bits]).all()


@pytest.mark.parametrize("division", ["global", "uniform", "uniform+", "erk"])
def test_masks_are_those_of_the_package(division):
    model = network()
    weights = {one.path: one.numpy() for one in model.weights if one.path in SIZES}
    shapes = {path: array.shape for path, array in weights.items()}
    method, whole = Method(CRITERIA["magnitude"], division), {path: np.ones(shape, bool) for path, shape in shapes.items()}
    expected = cut(method, State(0, weights, {}, {}), whole, [(tuple(SIZES), left("0.7"))], kernels=shapes).mask

    prune(model, 0.7, allocation=division)

    assert all((bits == expected[path]).all() for path, bits in masks(model).items())


def test_equal_scores_are_pruned_by_position_and_a_density_of_its_own_is_exact():
    ones = lambda state, mask, probe: {path: np.ones(bits.shape) for path, bits in mask.items()}  # noqa: E731

    assert kept(prune(network(), 0.5, criterion=ones)) == {"conv/kernel": 0, "dense/kernel": left("0.5")}
    assert kept(prune(network(), 0.5, densities={"conv/*": 1.0})) == {"conv/kernel": 36, "dense/kernel": left("0.5") - 36}
    assert list(masks(prune(network(), 0.5, exclude=["conv/*"]))) == ["dense/kernel"]
    assert len(masks(prune(network(), 0.5, scope="all"))) == 4


def test_a_cubic_schedule_prunes_as_gmp_does_and_ends_at_its_sparsity():
    model, counts = prune(network(), 0.9, schedule=Cubic(end=15, begin=2, every=4)), []
    gmp = Schedule("gmp", 4, 2, 15, 0.0)

    for _ in range(20):
        model.train_on_batch(X[:16], Y[:16])
        counts.append(396 - sum(kept(model).values()))  # before step 1, 2, ...

    finally_ = ranking.pruned_count(Fraction(90), 396)
    assert list(gmp.steps()) == [6, 10, 14]
    assert counts == [
        gmp.pruned(max((one for one in gmp.steps() if one <= step), default=2), finally_) for step in range(1, 21)
    ]


def test_a_pruned_weight_returns_with_its_value_while_the_schedule_runs():
    model = prune(network(), 0.5, schedule=Cubic(end=2, every=1, start=0.5))
    (dense,) = [one for one in model.weights if one.path == "dense/kernel"]
    aside, bits = pruned(model).aside["dense/kernel"], masks(model)["dense/kernel"]
    dense.assign(dense.numpy() / 1000)

    model.train_on_batch(X[:16], Y[:16])  # after the change before step 0
    update(model)

    returned = masks(model)["dense/kernel"] & ~bits
    assert returned.sum() > 100
    assert (dense.numpy()[returned] == aside[returned]).all()
    assert sum(kept(model).values()) == left("0.5")
    assert is_exact(model)


def test_all_goes_at_once_after_the_step_that_constant_says():
    model, counts = prune(network(), 0.5, schedule=Constant(begin=2)), []
    for _ in range(4):
        model.train_on_batch(X[:16], Y[:16])
        counts.append(sum(kept(model).values()))

    assert counts == [396, left("0.5"), left("0.5"), left("0.5")]  # before steps 1 to 4


def test_a_subclassed_model_is_pruned_too():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.flat, self.dense = keras.layers.Flatten(), keras.layers.Dense(10)

        def call(self, images):
            return self.dense(self.flat(images))

    model = Own()
    model(X[:1])
    model.compile("adam", LOSS)
    prune(model, 0.5, criterion="snip", images=(X, Y))
    fit(model)

    assert is_exact(model)
    assert sum(kept(model).values()) == 640 - ranking.pruned_count(Fraction(50), 640)
    with pytest.raises(InputError, match="subclassed"):
        prune(model, 0.7, criterion="synflow")


@pytest.mark.parametrize("criterion", CRITERIA)
def test_every_criterion_prunes_exactly_so_many(criterion):
    model = network()
    before = snapshot(model)

    prune(model, 0.7, criterion=criterion, images=(X, Y) if criterion in WITH_IMAGES else None, seed=3)

    assert sum(kept(model).values()) == left("0.7")
    assert all((np.where(bits, before[path], 0) == snapshot(model)[path]).all() for path, bits in masks(model).items())


def normalised():
    """A network that normalises by its batch."""
    keras.utils.set_random_seed(1)
    images = keras.Input((8, 8, 1))
    hidden = keras.layers.Dense(6, "tanh", name="first")(keras.layers.Flatten()(images))
    model = keras.Model(images, keras.layers.Dense(10, name="dense")(keras.layers.BatchNormalization(name="norm")(hidden)))
    model.compile("sgd", LOSS)
    return model


@pytest.mark.parametrize("policy", ["mixed_float16"], indirect=True)
@pytest.mark.parametrize("build", [network, normalised])
def test_derivatives_are_those_of_the_loss_on_the_whole_batch(build, policy):
    model, probes = build(), []
    prune(model, 0.5, criterion=lambda state, mask, probe: probes.append(probe) or state.weights, images=(X, Y))
    (probe,), weights = probes, {one.path: one for one in model.trainable_weights}
    keras.config.set_dtype_policy("float32")
    plain = build()
    plain.compile(keras.optimizers.SGD(1.0), LOSS)  # a step of which is the gradient

    def gradients(shift=None):
        for one in plain.trainable_weights:
            one.assign(network_weights[one.path] + (0 if shift is None else shift.get(one.path, 0)))
        before = {one.path: one.numpy() for one in plain.trainable_weights}
        plain.train_on_batch(X, Y)
        return {one.path: before[one.path] - one.numpy() for one in plain.trainable_weights}

    network_weights = {path: keras.ops.convert_to_numpy(one) for path, one in zip(weights, probe.weights, strict=True)}
    found, expected = probe.gradients(), gradients()
    vector = {"dense/kernel": np.random.default_rng(1).normal(size=found["dense/kernel"].shape).astype(np.float32)}
    products = probe.hessian_product(vector)
    above, below = (gradients({"dense/kernel": sign * 2e-3 * vector["dense/kernel"]}) for sign in (1, -1))

    assert all(np.allclose(found[path], expected[path], atol=1e-6) for path in expected)
    assert list(products) == ["dense/kernel"]
    assert np.allclose(products["dense/kernel"], (above["dense/kernel"] - below["dense/kernel"]) / 4e-3, atol=1e-3)


def test_the_flow_through_a_layer_is_that_through_every_other():
    probes = []
    prune(network(bias=False), 0.5, criterion=lambda state, mask, probe: probes.append(probe) or state.weights)

    flow = probes[0].flow()

    assert np.isclose(flow["conv/kernel"].sum(), flow["dense/kernel"].sum(), rtol=EXACT)


def branched():
    """A functional network with operators, slices, an activation as an operation and a layer within a layer."""
    keras.utils.set_random_seed(1)
    images = keras.Input((8, 8, 1))
    rows = keras.layers.TimeDistributed(keras.layers.Conv1D(4, 3, name="rows"), name="each")(images)
    maps = keras.ops.tanh(rows[..., :2] + 0.5 * rows[..., 2:])
    features = keras.layers.Flatten()(keras.ops.concatenate([maps, keras.ops.relu(maps) - 1], axis=-1))
    model = keras.Model(images, keras.layers.Dense(10, name="dense")(features))
    model.compile("sgd", LOSS)
    return model


@pytest.mark.parametrize("policy", ["mixed_bfloat16"], indirect=True)
def test_a_network_of_operations_is_scored_in_full_precision(policy):
    probes = []
    for _ in range(2):
        prune(branched(), 0.5, criterion=lambda state, mask, probe: probes.append(probe) or state.weights, images=(X, Y))
        keras.config.set_dtype_policy("float32")
    given, plain = probes

    flow, (first, last) = given.flow(), ("each/rows/kernel", "dense/kernel")
    assert all(np.allclose(array, plain.gradients()[path], atol=1e-7) for path, array in given.gradients().items())
    assert np.isclose(flow[first].sum(), flow[last].sum(), rtol=EXACT)
    assert np.isclose(flow[first].sum(), plain.flow()[first].sum(), rtol=EXACT)


@pytest.mark.parametrize(
    ("optimizer", "constraint"),
    [("sgd", lambda w: w - keras.ops.mean(w)), ("adam", lambda w: keras.ops.maximum(w, 0.01))],
)
def test_a_constraint_moves_no_zero(optimizer, constraint):
    model = sequential(kernel_constraint=constraint)
    model.compile(optimizer, LOSS)
    prune(model, 0.8)
    fit(model)

    assert holds(model, masks(model))
    assert kernels(strip(model))[0].constraint is constraint


class Matrix(keras.layers.Layer):
    """A kernel of the type `kind`."""

    def __init__(self, kind):
        super().__init__(name="matrix")
        self.kind = kind

    def build(self, shape):
        draw = lambda shape, dtype: keras.ops.cast(0.2 * keras.random.normal(shape), dtype)  # noqa: E731
        self.kernel = self.add_weight((shape[-1], 10), draw, self.kind, name="kernel", autocast=False)

    def call(self, inputs):
        return keras.ops.matmul(inputs, keras.ops.cast(self.kernel.value, "float32"))


@pytest.mark.parametrize("kind", [*([] if keras.backend.backend() == "torch" else ["float8_e4m3fn"]), "float16", "float64"])
@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # of float8
@pytest.mark.parametrize("schedule", [GRADUAL, RigL(end=12, every=3)])
def test_layers_of_every_float_type_are_pruned(kind, schedule):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Flatten(), Matrix(kind), keras.layers.Dense(10, dtype="bfloat16", name="second")]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    model.compile("sgd", LOSS)

    prune(model, 0.8, schedule=schedule)
    fit(model, 3)

    assert sum(kept(model).values()) == 740 - ranking.pruned_count(Fraction(80), 740)
    assert holds(model, masks(model))


def test_the_scales_of_float8_are_not_pruned():
    model = sequential(dtype="float8_from_mixed_bfloat16")

    assert sorted(path.split("/", 1)[1] for path in masks(prune(model, 0.5, scope="all"))) == [
        "first/bias",
        "first/kernel",
        "second/bias",
        "second/kernel",
    ]
    fit(model)
    assert holds(model, {path: bits for path, bits in masks(model).items() if path.endswith("kernel")})


def test_a_compact_model_answers_as_the_pruned_one_which_keeps_its_masks():
    model = prune(network(), masks={"conv/kernel": np.broadcast_to([True, False, True, True], (3, 3, 1, 4))})
    model.get_layer("conv").bias.assign([0, -1, 0, 0])
    small = compact(model)

    np.testing.assert_allclose(small.predict(X, verbose=0), model.predict(X, verbose=0), rtol=0, atol=1e-5)
    assert small.get_layer("conv").filters == 3
    assert small.count_params() == model.count_params() - 9 - 1 - 9 * 10
    assert not small.compiled
    assert small.name == model.name
    assert kept(model)["conv/kernel"] == 27
    small.compile("adam", LOSS)
    fit(small)


@pytest.mark.parametrize("policy", ["mixed_float16"], indirect=True)
def test_a_step_that_float16_skips_does_not_count(policy):
    model = prune(network(), 0.8, schedule=GRADUAL)
    for images in (X, X * np.inf, X):
        model.train_on_batch(images, Y)

    assert pruned(model).step == 2
    assert is_exact(model)


@pytest.mark.parametrize("schedule", [GRADUAL, RigL(end=12, every=3)])
def test_a_loop_of_ones_own_calls_update(schedule):
    model = prune(network("adamw"), 0.8, schedule=schedule)
    step = stateless_descent(model) if BACKEND == "jax" else partial(descent, model, X, Y, model.optimizer.apply)

    with pytest.raises(InputError, match=r"lottery.keras.update\(model\)"):
        step()
    for _ in range(13):
        update(model)
        step()

    assert is_exact(model)
    assert sum(kept(model).values()) == left("0.8")


def compiled(function):
    """`function`, compiled by the backend when it is called."""
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    import tensorflow

    return tensorflow.function(function, autograph=False)


@pytest.mark.skipif(BACKEND == "torch", reason="torch.compile leaves out what it cannot compile")
def test_update_inside_a_compiled_function_is_refused():
    model = prune(network(), 0.8, schedule=GRADUAL)

    with pytest.raises(InputError, match=r"update\(model\) inside a compiled function would run once"):
        compiled(lambda: update(model))()
