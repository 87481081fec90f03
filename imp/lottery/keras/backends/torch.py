"""Keras on PyTorch."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import torch

from lottery.keras.backends.stateful import sync as sync
from lottery.keras.backends.stateful import watched as watched


def select(mask: keras.Variable, tensor: Any) -> torch.Tensor:
    return torch.where(mask.value, keras.ops.convert_to_tensor(tensor).detach(), 0)


def fill(optimizer: keras.Optimizer, given: Iterable[tuple[keras.Variable, keras.Variable, float]]) -> None:
    with torch.no_grad():
        for variable, mask, number in given:
            variable.value.masked_fill_(~mask.value, number)


def record(is_due: Any, given: Iterable[tuple[keras.Variable, Any]]) -> None:
    if is_due:
        for variable, tensor in given:
            variable.assign(tensor)


def bare(variable: keras.Variable) -> keras.Variable:
    return variable


def stock(model: keras.Model) -> keras.Model:
    return model


def scope(model: keras.Model) -> AbstractContextManager[Any]:
    return nullcontext()


def is_traced() -> bool:
    return torch.compiler.is_compiling()


def derivatives(loss: Callable[[list[Any]], Any], weights: list[Any], along: list[Any]) -> list[Any]:
    leaves = [weight.detach().requires_grad_() for weight in weights]
    with torch.enable_grad():
        first = torch.autograd.grad(loss(leaves), leaves, create_graph=bool(along), materialize_grads=True)
        if not along:
            return list(first)
        pairs = zip(first, along, strict=True)
        slope = sum((gradient.double() * keras.ops.convert_to_tensor(array)).sum() for gradient, array in pairs)
        return list(torch.autograd.grad(slope, leaves, materialize_grads=True))


def differentiated(function: Callable[..., Any]) -> Callable[..., Any]:
    def gradients(weights: list[Any], *given: Any) -> list[Any]:
        return derivatives(lambda leaves: function(leaves, *given), weights, [])

    return gradients


def double() -> AbstractContextManager[Any]:
    return nullcontext()
