"""Networks of others: those of `keras.applications`, and a user's own."""

import importlib
import inspect
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import keras
from keras.src.backend.common import global_state

from data_prep.errors import InputError, first_line
from data_prep.records import Shape
from lottery.experiment import recipe


def build(model: recipe.Model, shape: Shape, classes: int) -> keras.Model:
    """The network of `model`, checked: a keras.Model from [batch, *shape] to [batch, classes].

    Raises InputError when it is none, cannot be found, is for other channels, or has two variables of one path.
    """
    with _automatic_names_from_the_start():
        network = _users_own(model, shape[0], classes) if ":" in model.name else _application(model, shape, classes)
        _check(network, model.name, shape, classes)
    return network


@contextmanager
def _automatic_names_from_the_start() -> Iterator[None]:
    """Keras numbers the layers that have no name over the whole process; within, it numbers as if it had made none before.

    `keras.utils.clear_session` would do that too, but forgets the dtype policy, the seed and compiled kernels with it.
    """
    counts = "object_name_uids"
    before = global_state.get_global_attribute(counts)
    global_state.set_global_attribute(counts, defaultdict(int))
    try:
        yield
    finally:
        global_state.set_global_attribute(counts, before)


def _application(model: recipe.Model, shape: Shape, classes: int) -> keras.Model:
    """A network of `keras.applications`, untrained, its BatchNorm by the recipe and its preprocessing (of 0 .. 255) off."""
    builder = getattr(keras.applications, model.name)
    options = {"alpha": model.alpha, "include_preprocessing": False}
    taken = inspect.signature(builder).parameters
    network = builder(
        weights=None,
        input_shape=shape,
        classes=classes,
        classifier_activation=None,
        **{key: value for key, value in options.items() if key in taken},
    )
    for layer in network.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum, layer.epsilon = model.batchnorm_momentum, model.batchnorm_epsilon
            layer.synchronized = model.batchnorm == "synchronised"
        if isinstance(layer, keras.layers.Rescaling):
            layer.scale = 1.0  # EfficientNet's preprocessing, which no option leaves out
    return network


def _users_own(model: recipe.Model, size: int, classes: int) -> keras.Model:
    """What `build(size, classes)` of `model.name` = "package.module:build" returns; the current folder is searched last."""
    module_name, _, function_name = model.name.partition(":")
    if "" not in sys.path:
        sys.path.append("")
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as error:
        raise InputError(
            f"model.name: {module_name} cannot be imported: {first_line(error)}; name a module that is installed or in the "
            "current folder"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InputError(f"model.name: {module_name} has no function {function_name}: define one of (size, classes)")
    try:
        inspect.signature(function).bind(size, classes)
    except TypeError:
        raise InputError(f"model.name: {model.name} does not take (size, classes): let it do so") from None
    return function(size, classes)


def _check(network: keras.Model, name: str, shape: Shape, classes: int) -> None:
    if not isinstance(network, keras.Model):
        raise InputError(f"model.name: {name} returned {type(network).__name__}: let it return a keras.Model")
    takes = getattr(network, "input_shape", None)  # a subclassed network takes what comes
    if isinstance(takes, tuple) and takes[-1] not in (None, shape[-1]):
        raise InputError(
            f"model.name: {name} takes images of shape {takes}, and data.channels is {shape[-1]}: change one of the two"
        )
    returned = getattr(network(keras.Input(shape)), "shape", None)
    if returned != (None, classes):
        raise InputError(f"model.name: {name} returns {returned}, not logits [batch, {classes}]: see to its last layer")
    if any(variable.regularizer or variable.constraint for variable in network.trainable_variables):
        raise InputError(f"model.name: {name} has regularisers or constraints, which are not heeded: use train.weight_decay")
    for path, count in Counter(variable.path for variable in network.variables).items():
        if count > 1:
            raise InputError(f"model.name: {name} has {count} variables called {path}: give its layers names of their own")
