"""Keras on PyTorch."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from lottery.keras.backends.stateful import sync as sync
from lottery.keras.backends.stateful import watched as watched

WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes
_known = WeakTensorKeyDictionary()  # of each mask its version, and its words


def _words(mask: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """As wide as the floats of `tensor`: all bits where `mask` is true, else none."""
    kind = WORDS[tensor.element_size()]
    version, words = _known.get(mask, (None, None))
    if words is None or version != mask._version or words.dtype != kind:
        words = -mask.to(kind)
        _known[mask] = mask._version, words
    return words


def select(mask: keras.Variable, tensor: Any) -> torch.Tensor:
    tensor = keras.ops.convert_to_tensor(tensor).detach()
    if torch.compiler.is_compiling():
        return torch.where(mask.value, tensor, 0)
    words = _words(mask.value, tensor)
    return (tensor.view(words.dtype) & words).view(tensor.dtype)  # a fourth of the time that `torch.where` takes


def fill(optimizer: keras.Optimizer, given: Iterable[tuple[keras.Variable, keras.Variable, float]]) -> None:
    with torch.no_grad():
        for variable, mask, number in given:
            if number or torch.compiler.is_compiling():
                variable.value.masked_fill_(~mask.value, number)
            else:
                words = _words(mask.value, variable.value)
                variable.value.view(words.dtype).bitwise_and_(words)


def record(is_due: Any, given: Iterable[tuple[keras.Variable, Any]]) -> None:
    if is_due:
        for variable, tensor in given:
            variable.assign(tensor)


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
