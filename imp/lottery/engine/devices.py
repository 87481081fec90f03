"""Where a network is trained: threads and devices, and the strategy that keeps its replicas alike."""

import gc
import os
from collections.abc import Sequence

import keras
import tensorflow as tf

from lottery.base.errors import InputError
from lottery.experiment.recipe import Recipe, Train


def set_up_tensorflow(train: Train, cores: int | None = None) -> list[str]:
    """Threads, determinism and devices, which must be settled before TensorFlow starts. Returns the devices to train on.

    So many operations run at a time as there are `cores`, or cores that the process may use. The devices are the GPUs that it
    sees, the first `train.devices` of them, or so many logical CPU devices where there is none. Products of float32 keep 23
    bits of the mantissa, unless `train.precision` is `tf32` (10 bits, on GPUs since Ampere)."""
    tf.config.threading.set_intra_op_parallelism_threads(train.threads)
    tf.config.threading.set_inter_op_parallelism_threads(cores or len(os.sched_getaffinity(0)))
    tf.config.experimental.enable_op_determinism()
    tf.config.experimental.enable_tensor_float_32_execution(train.precision == "tf32")
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if train.devices > len(gpus):
            raise InputError(f"train.devices is {train.devices}, but this process sees {len(gpus)} GPUs: lower it")
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
        return [f"GPU:{index}" for index in range(train.devices or len(gpus))]
    count = train.devices or 1
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    return [f"CPU:{index}" for index in range(count)]


def memory_of(devices: Sequence[str]) -> int:
    """The bytes of memory of the smallest of `devices` (`GPU:0`)."""
    from tensorflow.python.client import device_lib  # the only place where TensorFlow says how much a device has

    limits = {device.name.rsplit("device:", 1)[-1]: device.memory_limit for device in device_lib.list_local_devices()}
    return int(min(limits[name] for name in devices))


def forget() -> None:
    """Let go of networks and their compiled steps, before others are made in this process."""
    keras.backend.clear_session()
    gc.collect()


def on_cpu(devices: Sequence[str]) -> bool:
    return devices[0].startswith("CPU")


def kind(devices: Sequence[str]) -> str:
    """What the devices are: `CPU`, or the name of the GPU (`NVIDIA H100 80GB HBM3`)."""
    if on_cpu(devices):
        return "CPU"
    gpu = tf.config.list_physical_devices("GPU")[int(devices[0].partition(":")[2])]
    return str(tf.config.experimental.get_device_details(gpu).get("device_name", "GPU"))


def uses_xla(recipe: Recipe, devices: Sequence[str], network: keras.Model) -> bool:
    """Whether XLA compiles the step of `network`; on CPUs its convolutions take six times as long as oneDNN's. Raises
    InputError where it is wanted but cannot."""
    obstacle, wanted = None, recipe.train.xla
    if recipe.model.batchnorm == "synchronised" and len(devices) > 1:
        obstacle = "what it compiles does not talk to other devices, and BatchNorm is synchronised"
    elif any(isinstance(layer, keras.layers.MaxPooling2D) for layer in network._flatten_layers()):
        obstacle = "its gradient of max-pooling is not deterministic"
    if wanted == "on" and obstacle:
        raise InputError(f"XLA cannot compile {recipe.model.name} here: {obstacle}; set train.xla to auto or off")
    return wanted == "on" or (wanted == "auto" and not on_cpu(devices) and not obstacle)


def strategy(devices: Sequence[str]) -> tf.distribute.Strategy:
    """MirroredStrategy over two or more devices. NCCL adds up the gradients of GPUs, but not of several logical devices on one
    of them. On CPU devices the default collectives mix up gradients of different layers (TensorFlow 2.21 stops with a shape
    mismatch). So gradients of logical devices are added up on the first one."""
    if len(devices) == 1:
        return tf.distribute.get_strategy()
    physical = not on_cpu(devices) and len(tf.config.list_physical_devices("GPU")) >= len(devices)
    summed = tf.distribute.NcclAllReduce() if physical else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(list(devices), summed)
