"""RoBERTa as Hugging Face's Transformers saves it (Liu et al. 2019), and others that are built like it. Only the encoder is
read. All tokens are of one type, whose vector is added to each: here it is part of the table of positions. Rows of that table
for places that no text here has are left out."""

import re
from pathlib import Path

import numpy as np

from lottery.base.errors import InputError
from lottery.experiment import networks, recipe
from lottery.pruning.state import Arrays

_TOKENS, _POSITIONS, _TYPES = (f"embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type"))
_WANTED = re.compile(r"(?:\w+\.)?((?:embeddings|encoder)\.(?!position_ids).+)")  # whatever a model or its head is called


def adapted(path: Path, arrays: Arrays, model: recipe.Model, drawn: Arrays) -> Arrays:
    """Those of `arrays`, read from `path`, that the network of `model` has, by Hugging Face's names; all of them where the file
    has other names. `drawn` are the weights of that network. Raises InputError where sizes or norms differ."""
    encoder = {match[1]: array for name, array in arrays.items() if (match := _WANTED.fullmatch(name))}
    if not {_TOKENS, _POSITIONS} <= encoder.keys():
        return arrays
    if model.norm == "pre":
        raise InputError(f"{path}: RoBERTa has LayerNorm behind each sum: set model.norm=post")
    _check_sizes(path, encoder, model, drawn)
    types = encoder.pop(_TYPES, np.zeros((1, 1), np.float32))
    if len(types) != 1:
        raise InputError(f"{path} has {len(types)} types of tokens, as BERT has, and this network one: name a RoBERTa")
    rows = len(drawn["embedding_positions/table"])
    return encoder | {_POSITIONS: encoder[_POSITIONS][:rows].astype(np.float32) + types.astype(np.float32)}


def token_types(weights: Arrays) -> Arrays:
    """The one type of tokens of a network, whose vector is already in its table of positions: zeros."""
    return {_TYPES: np.zeros((1, weights["embedding_tokens/kernel"].shape[1]), np.float32)}


def _check_sizes(path: Path, encoder: Arrays, model: recipe.Model, drawn: Arrays) -> None:
    tokens, width = encoder[_TOKENS].shape
    layers = {match[1] for name in encoder if (match := re.match(r"encoder\.layer\.(\d+)\.", name))}
    size, places, rows = networks.Size(len(layers), width), len(encoder[_POSITIONS]), len(drawn["embedding_positions/table"])
    if size != networks.TRANSFORMERS[model.name]:
        named = next(
            (f"set model.name={name}" for name, one in networks.TRANSFORMERS.items() if one == size),
            "no network here is of that size",
        )
        raise InputError(f"{path} has {size.layers} layers of width {width}, and {model.name} has not: {named}")
    if tokens != (known := len(drawn["embedding_tokens/kernel"])):
        raise InputError(f"{path} has {tokens} tokens, the texts {known}: prepare them with its texts.tokenizer")
    if places < rows:
        raise InputError(f"{path} has {places} places, and the longest text needs {rows}: prepare the texts shorter")
