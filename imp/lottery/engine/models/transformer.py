"""Transformer encoders that score texts by a document (Liu & Liu 2021, "SimCLS"), of the sizes of Turc et al. 2019
("Well-Read Students Learn Better") and of RoBERTa (Liu et al. 2019). Without dropout: a training is a function of its seed."""

from collections.abc import Callable

import keras

from lottery.engine.signature import Signature
from lottery.engine.token_layers import (
    Attention,
    Cosines,
    FirstTokens,
    Gelu,
    LayerNorm,
    PositionEmbedding,
    Segments,
    TokenEmbedding,
)
from lottery.experiment import networks, recipe

HEAD = 64  # the width of each

Function = Callable[[keras.KerasTensor], keras.KerasTensor]


def transformer(tokens: keras.KerasTensor, model: recipe.Model, signature: Signature) -> keras.KerasTensor:
    """The scores, float [batch, texts], of rows of int32 tokens [batch, document + texts x text]: the cosines of the first
    token's output of the document and of each text. They have the dtype of variables."""
    firsts = encoded(tokens, model, signature.segments, signature.vocabulary)
    return Cosines(dtype=keras.config.dtype_policy().variable_dtype, name="scores")(firsts)


def encoded(tokens: keras.KerasTensor, model: recipe.Model, segments: Segments, vocabulary: int) -> keras.KerasTensor:
    """The output at the first token of each segment, float [batch, 1 + texts, width], of an encoder of the size `model.name`.
    `norm = "post"`, as in RoBERTa, has LayerNorm behind each sum; "pre" before each part, and once at the end (Xiong et al.
    2020). The last layer's output is wanted at first tokens alone, so only its keys and values are those of all tokens."""
    layers, width = networks.TRANSFORMERS[model.name]
    x = TokenEmbedding(vocabulary, width, name="embedding_tokens")(tokens)
    x = PositionEmbedding(segments, name="embedding_positions")(x)
    x = LayerNorm(name="embedding_norm")(x)
    for number in range(1, layers + 1):
        queried = FirstTokens(segments, name="first_tokens") if number == layers else _same
        x = _attention(x, tokens, model, segments, f"layer_{number}_attention", queried)
        x = _feed_forward(x, model, f"layer_{number}_feed_forward")
    return LayerNorm(name="norm")(x) if model.norm == "pre" else x


def _attention(
    x: keras.KerasTensor, tokens: keras.KerasTensor, model: recipe.Model, segments: Segments, name: str, queried: Function
) -> keras.KerasTensor:
    """The tokens of `x` that `queried` picks, to which their attention over all of `x` is added."""
    width, (before, after) = x.shape[-1], _norms(model, name)
    read = before(x)
    queries, keys, values = (
        _dense(y, width, model, f"{name}_{role}") for y, role in ((queried(read), "query"), (read, "key"), (read, "value"))
    )
    attended = Attention(segments, width // HEAD, name=name)(queries, keys, values, tokens)
    return after(keras.layers.Add(name=f"{name}_add")([queried(x), _dense(attended, width, model, f"{name}_output")]))


def _feed_forward(x: keras.KerasTensor, model: recipe.Model, name: str) -> keras.KerasTensor:
    width, (before, after) = x.shape[-1], _norms(model, name)
    hidden = Gelu(name=f"{name}_gelu")(_dense(before(x), 4 * width, model, f"{name}_in"))
    return after(keras.layers.Add(name=f"{name}_add")([x, _dense(hidden, width, model, f"{name}_out")]))


def _norms(model: recipe.Model, name: str) -> tuple[Function, Function]:
    """What normalises before a part, and what behind its sum."""
    norm = LayerNorm(name=f"{name}_norm")
    return (norm, _same) if model.norm == "pre" else (_same, norm)


def _same(x: keras.KerasTensor) -> keras.KerasTensor:
    return x


def _dense(x: keras.KerasTensor, width: int, model: recipe.Model, name: str) -> keras.KerasTensor:
    return keras.layers.Dense(width, kernel_initializer=model.initializer, name=name)(x)
