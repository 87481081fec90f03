"""Where XLA compiles the step; threads and devices themselves are for a process of its own to settle."""

import pytest

from lottery.base.errors import InputError
from lottery.experiment.recipe import Model, Recipe, Train

devices = pytest.importorskip("lottery.engine.devices")
models = pytest.importorskip("lottery.engine.models")
signature = pytest.importorskip("lottery.engine.signature")

pytestmark = pytest.mark.usefixtures("tensorflow")


def network(name="lenet_300_100"):
    return models.build(Model(name=name), signature.images(16, 10))


@pytest.mark.parametrize(
    ("xla", "batchnorm", "names", "used"),
    [
        ("auto", "local", ["CPU:0"], False),
        ("auto", "local", ["CPU:0", "CPU:1"], False),
        ("auto", "local", ["GPU:0"], True),
        ("auto", "local", ["GPU:0", "GPU:1"], True),
        ("auto", "synchronised", ["GPU:0"], True),
        ("auto", "synchronised", ["GPU:0", "GPU:1"], False),
        ("on", "local", ["CPU:0", "CPU:1"], True),
        ("on", "synchronised", ["CPU:0"], True),
        ("off", "local", ["GPU:0", "GPU:1"], False),
    ],
)
def test_xla_is_for_gpus_unless_the_recipe_says_otherwise(xla, batchnorm, names, used):
    recipe = Recipe(train=Train(xla=xla), model=Model(batchnorm=batchnorm))

    assert devices.uses_xla(recipe, names, network()) == used


def test_xla_that_would_have_to_talk_to_other_devices_is_refused():
    recipe = Recipe(train=Train(xla="on"), model=Model(batchnorm="synchronised"))

    with pytest.raises(InputError, match=r"BatchNorm is synchronised; set train\.xla to auto or off"):
        devices.uses_xla(recipe, ["CPU:0", "CPU:1"], network())


@pytest.mark.parametrize("name", ["conv2", "resnet9"])
def test_a_network_with_max_pooling_goes_without_xla(name):
    """TensorFlow stops at its gradient, as long as operations must be deterministic."""
    pooled = models.build(Model(name=name), signature.images(32, 10))

    assert not devices.uses_xla(Recipe(model=Model(name=name)), ["GPU:0"], pooled)
    with pytest.raises(InputError, match=name):
        devices.uses_xla(Recipe(model=Model(name=name), train=Train(xla="on")), ["GPU:0"], pooled)


@pytest.mark.parametrize(
    ("precision", "used"),
    [("float32", False), ("mixed_bfloat16", False), ("mixed_float16", False), ("float64", False), ("tf32", True)],
)
def test_products_of_float32_lose_bits_on_gpus_only_where_the_recipe_says_tf32(precision, used, monkeypatch):
    config = devices.tf.config
    for settled, name in (
        (config.threading, "set_intra_op_parallelism_threads"),
        (config.threading, "set_inter_op_parallelism_threads"),
        (config, "set_logical_device_configuration"),
    ):
        monkeypatch.setattr(settled, name, lambda *values: None)
    before = config.experimental.tensor_float_32_execution_enabled()
    config.experimental.enable_tensor_float_32_execution(not used)
    try:
        devices.set_up_tensorflow(Train(precision=precision))
        assert config.experimental.tensor_float_32_execution_enabled() == used
    finally:
        config.experimental.enable_tensor_float_32_execution(before)


@pytest.mark.parametrize("count", [1, 3])
def test_a_network_has_as_many_replicas_as_devices(count):
    names = [f"CPU:{index}" for index in range(count)]

    assert devices.strategy(names).num_replicas_in_sync == count


@pytest.mark.parametrize(("gpus", "summed"), [(2, "NcclAllReduce"), (1, "ReductionToOneDevice")])
def test_nccl_adds_up_what_gpus_found_but_not_logical_devices_on_one(gpus, summed, monkeypatch):
    monkeypatch.setattr(devices.tf.config, "list_physical_devices", lambda kind: ["GPU"] * gpus)
    monkeypatch.setattr(devices.tf.distribute, "MirroredStrategy", lambda names, operations: (names, type(operations).__name__))

    assert devices.strategy(["GPU:0", "GPU:1"]) == (["GPU:0", "GPU:1"], summed)
