"""Masks between two trainings: saved, resumed to the bit, compiled again, rewound, stripped, judged by callbacks."""

import math
import pickle
import re
import zipfile
from fractions import Fraction

import keras
import numpy as np
import pytest
from keras_networks import (
    BACKEND,
    GRADUAL,
    LOSS,
    OPTIMIZERS,
    WITH_VALUES,
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
)

from lottery.base.errors import InputError
from lottery.keras import SET, Cubic, RigL, from_target, masks, prune, resume, rewind, snapshot, strip, update
from lottery.keras.fitting import inner, pruned
from lottery.pruning import ranking

pytestmark = [pytest.mark.usefixtures("any_backend"), pytest.mark.filterwarnings("ignore:fit ended before the schedule")]
STEPS = 1 if BACKEND == "torch" else 2  # in a call of the training function


@pytest.mark.parametrize(
    ("policy", "steps", "planned"),
    [
        ("mixed_float16", STEPS, {"schedule": GRADUAL}),
        *(("float32", 1, {"schedule": grow(end=12, every=3), "criterion": "random"}) for grow in (RigL, SET)),
    ],
    indirect=["policy"],
)
def test_training_goes_on_to_the_bit_from_every_kind_of_file(policy, steps, planned, tmp_path):
    model = prune(network("adam", steps_per_execution=steps), 0.8, **planned)
    fit(model)
    model.save(tmp_path / "whole.keras")
    model.save_weights(tmp_path / "state.weights.h5")
    fit(model, 3, 1)

    opened = resume(keras.models.load_model(tmp_path / "whole.keras"))
    loaded = prune(network("adam", steps_per_execution=steps), 0.8, **planned)
    loaded.load_weights(tmp_path / "state.weights.h5")
    for other in (opened, loaded):
        fit(other, 3, 1)

    assert same(model, opened)
    assert same(model, loaded)
    assert is_exact(opened)
    assert sum(kept(opened).values()) == left("0.8")


def test_a_training_that_was_cut_short_goes_on_from_its_backup(tmp_path):
    def cut_short(epoch, logs):
        if epoch == 2:
            raise InterruptedError

    def begun(*callbacks):
        model = prune(network("adam"), 0.8, schedule=GRADUAL)
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
        fit(model, 4, callbacks=[backup, *callbacks])
        return model

    with pytest.raises(InterruptedError):
        begun(keras.callbacks.LambdaCallback(on_epoch_begin=cut_short))
    model = prune(network("adam"), 0.8, schedule=GRADUAL)
    fit(model, 4)

    assert same(model, begun())


@pytest.mark.parametrize("policy", ["mixed_float16"], indirect=True)
def test_a_frozen_part_is_left_alone_and_a_new_optimizer_takes_the_masks(policy):
    base = network()
    base.trainable = False
    model = keras.Sequential([keras.Input((8, 8, 1)), base, keras.layers.Dense(10, name="head")])
    model.compile("adam", LOSS)
    head = masks(prune(model, 0.5))
    assert [path.split("/")[-2] for path in head] == ["head"]

    base.trainable = True
    model.compile(OPTIMIZERS["sgd"](), LOSS)
    prune(model, 0.7, schedule=Cubic(end=2, every=1))
    fit(model)
    before = masks(model)
    model.compile(OPTIMIZERS["adam"](), LOSS)  # which knows nothing of masks
    fit(model)

    assert isinstance(inner(model), keras.optimizers.Adam)
    assert is_exact(model)
    assert all((bits == masks(model)[path]).all() for path, bits in before.items())
    assert sum(kept(model).values()) == 496 - ranking.pruned_count(Fraction(70), 496)
    assert all(not bits[~head[path]].any() for path, bits in before.items() if path in head)


def test_strip_gives_a_plain_model(tmp_path):
    model = prune(network("adam"), 0.8)
    fit(model)
    strip(model).save(tmp_path / "plain.keras")

    plain = keras.models.load_model(tmp_path / "plain.keras")

    assert isinstance(plain.optimizer, keras.optimizers.Adam)
    assert sum(int((one.numpy() == 0).sum()) for one in plain.weights) == 396 - left("0.8")
    assert b"lottery" not in zipfile.ZipFile(tmp_path / "plain.keras").read("config.json")
    fit(model)
    assert sum(int((one.numpy() == 0).sum()) for one in model.weights) < 10


def test_a_ticket_trains_as_a_new_model_under_its_masks(tmp_path):
    model = network("adam")
    fit(model)
    early = snapshot(model)
    model.save(tmp_path / "early.keras")
    model.save_weights(tmp_path / "early.weights.h5")
    fit(model, 2)
    prune(model, 0.8)
    for start in (early, tmp_path / "early.keras", tmp_path / "early.weights.h5"):
        model.set_weights([one + 1 for one in model.get_weights()])
        ticket = snapshot(rewind(model, start))
        assert all((np.where(masks(model).get(path, True), array, 0) == ticket[path]).all() for path, array in early.items())

    other = prune(network("adam"), masks=masks(model))
    rewind(other, early)
    for one in (model, other):
        fit(one, 2)

    assert is_exact(model)
    assert all(np.array_equal(array, snapshot(other)[path]) for path, array in snapshot(model).items())


def test_rounds_prune_more_within_their_masks():
    model, before = network(), None
    early = snapshot(model)
    for number in range(1, 4):
        fit(model)
        prune(model, 1 - Fraction(8, 10) ** number)
        rewind(model, early)
        assert before is None or all(not (bits & ~before[path]).any() for path, bits in masks(model).items())
        before = masks(model)

    assert sum(kept(model).values()) == left(1 - Fraction(8, 10) ** 3)


def compiled(model):
    model.compile("sgd", LOSS)
    return model


def saved(model, folder, name="whole.keras"):
    model.save(folder / name)
    return keras.models.load_model(folder / name)


def with_saved_weights(model, folder):
    model.save_weights(folder / "state.weights.h5")
    other = prune(compiled(sequential()), 0.8)
    other.load_weights(folder / "state.weights.h5")
    return other


def frozen(model):
    model.get_layer("first").trainable = False
    return model


def thawed(model):
    model.get_layer("first").trainable = True
    return compiled(model)


def quantized(model):
    model.quantize("int8")
    return model


def with_dense_weights(model):
    model.set_weights([np.ones(one.shape) for one in model.weights])
    return model


BETWEEN_FITS = {
    "compile": lambda model, folder: compiled(model),
    "compile, save, resume, compile": lambda model, folder: compiled(resume(saved(compiled(model), folder))),
    "save, compile": lambda model, folder: compiled(saved(model, folder)),
    "compile, pickle": lambda model, folder: pickle.loads(pickle.dumps(compiled(model))),
    "compile, weights": lambda model, folder: with_saved_weights(compiled(model), folder),
    "h5": lambda model, folder: resume(saved(model, folder, "whole.h5")),
    "int8": lambda model, folder: resume(saved(quantized(model), folder)),
    "freeze, compile, save, thaw": lambda model, folder: thawed(resume(saved(compiled(frozen(model)), folder))),
    "set weights": lambda model, folder: with_dense_weights(model),
}


@pytest.mark.parametrize("case", BETWEEN_FITS)
def test_masks_hold_through_what_is_done_between_two_fits(case, tmp_path):
    model = prune(sequential(), 0.8)
    fit(model)
    bits = masks(model)

    model = BETWEEN_FITS[case](model, tmp_path)
    fit(model)

    assert holds(model, bits)
    assert all(np.array_equal(*pair) for pair in zip(masks(model).values(), bits.values(), strict=True))


def test_a_schedule_goes_on_after_compile_save_and_resume(tmp_path):
    model = prune(sequential(), 0.8, schedule=Cubic(end=8, every=2))
    fit(model)
    model = resume(saved(compiled(model), tmp_path))
    fit(model)

    assert pruned(model).step == 8
    assert sum(kept(model).values()) == 444 - ranking.pruned_count(Fraction(80), 444)
    assert holds(model, masks(model))


class Step(keras.Sequential):
    """A model whose training step is `own`."""

    def train_step(self, data):
        return descent(self, *data, self.own)


def stepping(own):
    model = Step([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10, name="dense")])
    model.own = own
    model.compile("sgd", LOSS)
    return model


def descend(gradients, variables):
    for gradient, variable in zip(gradients, variables, strict=True):
        variable.assign(variable - 0.1 * gradient)


def test_masks_hold_under_another_model(tmp_path):
    base = sequential()
    outer = keras.Sequential([keras.Input((8, 8, 1)), base, keras.layers.Dense(10)])
    outer.compile("adam", LOSS)
    fit(outer)
    bits = masks(prune(base, 0.8))
    fit(outer)

    assert holds(base, bits)
    other = saved(resume(outer), tmp_path)
    fit(other)
    assert holds(other.layers[0], bits)


@WITH_VALUES
def test_masks_hold_under_an_optimizer_of_ones_own():
    model = prune(stepping(keras.optimizers.Adam().apply), 0.8)
    fit(model)

    assert holds(model, masks(model))


@WITH_VALUES
def test_what_passes_the_masks_by_is_said_after_the_first_step():
    with pytest.raises(InputError, match=r"\d+ pruned weights are not zero after a step"):
        fit(prune(stepping(descend), 0.8))
    with pytest.raises(InputError, match="counts the steps of the schedule"):
        fit(prune(stepping(keras.optimizers.Adam().apply), 0.8, schedule=GRADUAL))


def test_a_copy_without_masks_does_not_train(tmp_path):
    model = sequential()
    prune(model, masks={kernels(model)[0].path: np.arange(384).reshape(64, 6) % 2 == 0})

    clone = keras.models.clone_model(model)
    with pytest.raises(InputError, match="clone_model"):
        fit(clone)
    clone = keras.models.clone_model(model)  # as on JAX the other has lost its values
    fit(prune(strip(clone), 0.8))
    assert holds(clone, masks(clone))
    with pytest.raises(InputError, match=r"h5 file: call lottery.keras.resume\(model\)"):
        fit(saved(model, tmp_path, "whole.h5"))


@pytest.mark.parametrize("is_late", [False, True])
def test_an_early_end_is_told_and_callbacks_may_judge_from_the_end_of_the_schedule_on(is_late, tmp_path, recwarn):
    gate = from_target if is_late else lambda callback: callback
    stop = keras.callbacks.EarlyStopping("loss", mode="max", patience=1, restore_best_weights=True)  # at once: the loss falls
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", "loss", mode="max", save_best_only=True)
    model = prune(sequential(), 0.8, schedule=Cubic(end=12, every=4))

    fit(model, 6, callbacks=[gate(stop), gate(best)])

    told = [str(one.message) for one in recwarn if "schedule" in str(one.message)]
    kept_by_best = sum(np.count_nonzero(one.numpy()) for one in kernels(keras.models.load_model(tmp_path / "best.keras")))
    assert holds(model, masks(model))  # though the best weights had fewer zeros
    if is_late:
        assert (stop.stopped_epoch, kept_by_best, told) == (3, 444 - ranking.pruned_count(Fraction(80), 444), [])
    else:
        assert (stop.stopped_epoch, kept_by_best) == (1, 195)
        assert [re.sub(r"sequential\w*", "", line) for line in told] == [
            "fit ended before the schedule of : step 8 of 12; 76.8% of the weights are pruned, 80.0% in the end"
        ]


def test_divergence_is_told_as_such():
    model = prune(sequential(), 0.8, schedule=GRADUAL)
    kernels(model)[0].assign(np.full((64, 6), math.nan))

    with pytest.raises(InputError, match=r"training diverged: .*first/kernel"):
        update(model), fit(model)
    with pytest.raises(InputError, match=r"training diverged: .*first/kernel"):
        prune(strip(model), 0.8)


def test_weights_without_masks_are_not_loaded_over_them(tmp_path):
    network().save_weights(tmp_path / "dense.weights.h5")

    with pytest.raises(ValueError, match="by rewind"):
        prune(network(), 0.5).load_weights(tmp_path / "dense.weights.h5")


def test_weights_of_another_schedule_are_not_loaded(tmp_path):
    prune(network(), 0.8, schedule=GRADUAL).save_weights(tmp_path / "gradual.weights.h5")

    with pytest.raises(ValueError, match="another schedule's"):
        prune(network(), 0.8, schedule=SET(end=12, every=3)).load_weights(tmp_path / "gradual.weights.h5")


def test_a_callback_that_waits_may_be_alone():
    model = prune(network(), 0.8, schedule=GRADUAL)
    stop = from_target(keras.callbacks.EarlyStopping("loss", mode="max", patience=1))

    fit(model, 6, callbacks=[stop])

    assert stop.stopped_epoch == 3


def test_the_early_end_of_a_mask_that_moves_is_told():
    model = prune(network(), 0.8, criterion="random", schedule=SET(end=100, every=4))

    with pytest.warns(UserWarning, match=r"fit ended before the schedule of \w+: step 8 of 96; "):
        fit(model, 2)


def test_a_function_is_not_saved_and_resume_takes_it_again(tmp_path):
    prune(network(), 0.8, criterion=by_size, schedule=GRADUAL).save(tmp_path / "own.keras")

    with pytest.raises(InputError, match=r"criterion=\.\.\."):
        fit(resume(keras.models.load_model(tmp_path / "own.keras")))
    model = resume(keras.models.load_model(tmp_path / "own.keras"), criterion=by_size)
    fit(model, 4)

    assert is_exact(model)
    assert sum(kept(model).values()) == left("0.8")


def by_size(state, mask, probe):
    return {path: np.abs(state.weights[path]) for path in mask}
