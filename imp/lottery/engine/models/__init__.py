"""Networks, built by name from a recipe. They take float images, scaled as `data.mean` and `deviation` say (-1 .. 1 unless
told otherwise), and return logits.

Variable paths are the same in every process, however many networks it built before.
"""

from collections.abc import Callable, Mapping

import keras
import numpy as np

from data_prep.errors import InputError, first_line
from data_prep.records import Shape
from lottery.engine.models import foreign, mobilenet, resnets, small
from lottery.experiment import recipe
from lottery.rundir import store

_OURS: dict[str, Callable[[recipe.Model, Shape, int], keras.Model]] = {
    "mobilenet_v2": mobilenet.mobilenet_v2,
    "resnet20": resnets.resnet20,
    "resnet56": resnets.resnet56,
    "resnet50": resnets.resnet50,
    "resnet9": resnets.resnet9,
    "resnext29_32x4d": resnets.resnext29_32x4d,
    "lenet_300_100": small.lenet_300_100,
    "conv2": small.conv2,
    "conv4": small.conv4,
    "conv6": small.conv6,
    "cifar_tutorial": small.cifar_tutorial,
}


def build(model: recipe.Model, size: int, classes: int, channels: int = 3) -> keras.Model:
    """The network of `model` for images of float [batch, size, size, channels]; output float [batch, classes].

    It computes in the dtype policy in force. Our own return their logits in the dtype of the variables, others in that of
    computation. Raises InputError when there is no such network or it does not work for this size and these numbers.
    """
    shape = size, size, channels
    try:
        if model.name in _OURS:
            return _OURS[model.name](model, shape, classes)
        return foreign.build(model, shape, classes)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(
            f"model.name: {model.name} cannot be built for {size}x{size} images of {channels} channels and {classes} classes "
            f"(change data.size, data.channels, or the network): {first_line(error)}"
        ) from error


def initial_weights(model: recipe.Model, size: int, classes: int, seed: int, channels: int = 3) -> store.State:
    """A freshly drawn network at step 0, a function of the recipe and `seed` alone. The optimizer state is left empty."""
    keras.utils.set_random_seed(seed)
    return state_of(build(model, size, classes, channels))


def state_of(network: keras.Model) -> store.State:
    """The weights and statistics of `network` as a state at step 0, with no optimizer state."""
    weights, statistics = (
        arrays({variable.path: variable for variable in variables})
        for variables in (network.trainable_variables, network.non_trainable_variables)
    )
    return store.State(0, weights, statistics, {})


def arrays(variables: Mapping[str, keras.Variable]) -> store.Arrays:
    return {name: np.asarray(variable) for name, variable in variables.items()}


def assign(variables: Mapping[str, keras.Variable], values: store.Arrays) -> None:
    """Set `variables` to `values`. Raises InputError when one is missing, unknown or of another shape."""
    if variables.keys() != values.keys():
        name = min(variables.keys() ^ values.keys())
        raise InputError(f"the saved network is not this one: {name} is in only one of them")
    for name, variable in variables.items():
        if tuple(variable.shape) != values[name].shape:
            raise InputError(f"the saved {name} has shape {values[name].shape}, not {tuple(variable.shape)}")
        variable.assign(values[name])
