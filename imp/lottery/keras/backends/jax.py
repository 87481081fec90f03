"""Keras on JAX. Its training step is stateless: while `fit` runs, the state of the step has what variables had."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import keras

STATE = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")


def select(mask: keras.Variable, tensor: Any) -> jax.Array:
    tensor = jax.numpy.asarray(tensor)
    return jax.lax.select(mask.value, tensor, jax.numpy.zeros_like(tensor))


def fill(optimizer: keras.Optimizer, given: Iterable[tuple[keras.Variable, keras.Variable, float]]) -> None:
    for variable, mask, number in given:
        variable.assign(jax.lax.select(mask.value, variable.value, jax.numpy.full_like(variable.value, number)))


def stock(model: keras.Model) -> keras.Model:
    return model


def scope(model: keras.Model) -> AbstractContextManager[Any]:
    return nullcontext()


def is_traced() -> bool:
    return isinstance(jax.numpy.zeros(()), jax.core.Tracer)


def sync(model: keras.Model) -> None:
    model.jax_state_sync()


def watched(model: keras.Model, before: Callable[[], Any], after: Callable[[], Any]) -> Callable[..., Any]:
    run = model.train_function

    def with_state(action: Callable[[], Any], state: Any) -> Any:
        model._jax_state, model._jax_state_synced = dict(zip(STATE, state, strict=True)), False
        model.jax_state_sync()
        action()
        model._jax_state_synced = False
        return model._get_jax_state(**dict.fromkeys(STATE, True))

    def train_function(state: Any, iterator: Any) -> Any:
        if action := before():
            state = with_state(action, state)
        logs, state = run(state, iterator)
        if action := after():
            state = with_state(action, state)
        return logs, state

    return train_function


def record(is_due: Any, given: Iterable[tuple[keras.Variable, Any]]) -> None:
    for variable, tensor in given:
        variable.assign(jax.numpy.where(is_due, tensor.astype(variable.value.dtype), variable.value))


def derivatives(loss: Callable[[list[Any]], Any], weights: list[Any], along: list[Any]) -> list[Any]:
    gradient = jax.grad(loss)
    if not along:
        return jax.jit(gradient)(weights)
    return jax.jit(lambda at, vector: jax.jvp(gradient, (at,), (vector,))[1])(weights, along)


def differentiated(function: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(jax.grad(function))


def double() -> AbstractContextManager[Any]:
    return jax.enable_x64(True)
