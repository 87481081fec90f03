"""Networks, built by name from a recipe: ours, those of `keras.applications`, and a user's own. They take what a task gives
(float images, scaled as `data.mean` and `deviation` say, or tokens) and return its outputs. Paths are alike in each process."""

import contextlib
import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state

from lottery.base import plugins
from lottery.base.errors import InputError, first_line
from lottery.engine.models import mobilenet, resnets, small, transformer
from lottery.engine.signature import Signature
from lottery.experiment import networks, recipe
from lottery.rundir import store

_OURS: dict[str, Callable[[keras.KerasTensor, recipe.Model, int], keras.KerasTensor]] = {
    name: builder for module in (mobilenet, resnets, small) for name, builder in vars(module).items() if name in networks.OURS
}


def build(model: recipe.Model, signature: Signature) -> keras.Model:
    """The network of `model` with this signature: from [batch, *shape] to [batch, outputs]. It computes in the dtype policy in
    force. Our own return their outputs in the dtype of the variables, others in that of computation. Raises InputError when
    there is no such network, or not for these numbers, or two variables have one path."""
    counts = "object_name_uids"  # by which Keras numbers layers without a name over the whole process: here, from the start
    before = global_state.get_global_attribute(counts)  # `clear_session` would forget policy, seed and compiled kernels too
    try:
        if bool(signature.segments) != (model.name in networks.TRANSFORMERS) and not plugins.is_own(model.name):
            raise InputError(f"model.name: {model.name} is not a network for {signature}: change the task or the network")
        if signature.segments and not plugins.is_own(model.name):
            tokens = keras.Input(signature.shape, name="tokens", dtype=signature.dtype)
            return keras.Model(tokens, transformer.transformer(tokens, model, signature), name=model.name)
        if model.name in _OURS:
            inputs = keras.Input(signature.shape, name="images", dtype=signature.dtype)
            return keras.Model(inputs, _OURS[model.name](inputs, model, signature.outputs), name=model.name)
        global_state.set_global_attribute(counts, defaultdict(int))
        network = _users_own(model, signature) if ":" in model.name else _application(model, signature)
        _check(network, model.name, signature)
        return network
    except InputError:
        raise
    except ValueError as error:
        raise InputError(
            f"model.name: {model.name} cannot be built for {signature} "
            f"(change data.size, data.channels, or the network): {first_line(error)}"
        ) from error
    finally:
        global_state.set_global_attribute(counts, before)


def _application(model: recipe.Model, signature: Signature) -> keras.Model:
    """A network of `keras.applications`, untrained, its BatchNorm by the recipe and its preprocessing (of 0 .. 255) off."""
    builder = getattr(keras.applications, model.name)
    taken = inspect.signature(builder).parameters
    options = {"weights": None, "input_shape": signature.shape, "classes": signature.outputs, "classifier_activation": None}
    some_take = {"alpha": model.alpha, "include_preprocessing": False}
    network = builder(**options, **{key: value for key, value in some_take.items() if key in taken})
    for layer in network.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum, layer.epsilon = model.batchnorm_momentum, model.batchnorm_epsilon
            layer.synchronized = model.batchnorm == "synchronised"
        if isinstance(layer, keras.layers.Rescaling):
            layer.scale = 1.0  # EfficientNet's preprocessing, which no option leaves out
    return network


def _users_own(model: recipe.Model, signature: Signature) -> keras.Model:
    """What `build(size, classes)` of `model.name` = "package.module:build" returns. Where examples are not square images,
    `size` is their shape; where the task has no classes, `classes` is the number of its outputs."""
    function = plugins.function(model.name, "model.name")
    try:
        inspect.signature(function).bind(signature.size, signature.outputs)
    except TypeError:
        raise InputError(f"model.name: {model.name} does not take (size, classes): let it do so") from None
    return function(signature.size, signature.outputs)


def _check(network: keras.Model, name: str, signature: Signature) -> None:
    if not isinstance(network, keras.Model):
        raise InputError(f"model.name: {name} returned {type(network).__name__}: let it return a keras.Model")
    takes = getattr(network, "input_shape", None)  # a subclassed network takes what comes
    if isinstance(takes, tuple) and takes[-1] not in (None, signature.shape[-1]):
        way_out = "change the network, or what it is given (of images: data.channels)"
        raise InputError(f"model.name: {name} takes inputs of shape {takes}, and is given {signature}: {way_out}")
    returned = getattr(network(keras.Input(signature.shape, dtype=signature.dtype)), "shape", None)
    if returned != (None, signature.outputs):
        raise InputError(f"model.name: {name} returns {returned}, not [batch, {signature.outputs}]: fix its last layer")
    if any(variable.regularizer or variable.constraint for variable in network.trainable_variables):
        raise InputError(f"model.name: {name} has regularisers or constraints, which are not heeded: use train.weight_decay")
    if plugins.is_own(name):
        _check_losses(network, name, signature)
    for path, count in Counter(variable.path for variable in network.variables).items():
        if count > 1:
            raise InputError(f"model.name: {name} has {count} variables called {path}: give its layers names of their own")


def _check_losses(network: keras.Model, name: str, signature: Signature) -> None:
    """A loss beside the task's, or in its place, is not trained on."""
    for method in ("train_step", "compute_loss"):
        if getattr(type(network), method) is not getattr(keras.Model, method):
            raise InputError(f"model.name: {name} has a {method} of its own, which is not heeded: use a task instead")
    losses: list[tf.Tensor] = []

    def call() -> None:
        with keras.StatelessScope(collect_losses=True) as scope:  # in which no statistics move
            network(tf.zeros((1, *signature.shape), signature.dtype), training=True)
        losses.extend(scope.losses)

    tf.distribute.get_strategy().run(call)  # as synchronised BatchNorm must be
    if losses:
        told = "losses of its layers (activity_regularizer, add_loss)"
        raise InputError(f"model.name: {name} has {told}, which are not heeded: leave them out")


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    """Networks built within have the Keras dtype policy of `train.precision`; that of tf32 is float32."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32" if name == "tf32" else name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def initial_weights(model: recipe.Model, signature: Signature, seed: int) -> store.State:
    """A freshly drawn network at step 0, a function of the recipe and `seed` alone. The optimizer state is left empty."""
    keras.utils.set_random_seed(seed)
    network = build(model, signature)
    weights = {variable.path: variable for variable in network.trainable_variables}
    statistics = {variable.path: variable for variable in network.non_trainable_variables}
    return store.State(0, arrays(weights), arrays(statistics), {})


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
