"""Rows of random tokens, prepared sets of them, and networks that score them, for the files that test Transformers."""

import dataclasses
from pathlib import Path

import keras
import numpy as np
from helpers import write_split

from data_prep import records
from data_prep.texts import TextSettings
from lottery.engine import models
from lottery.engine.models.transformer import transformer
from lottery.engine.signature import Signature
from lottery.experiment.recipe import Model
from lottery.pruning.state import State

SEGMENTS = (12, 4, 8)  # tokens of a document, texts, tokens of a text
TINY = Model(name="transformer_tiny")


def scorer(model: Model = TINY, segments: tuple[int, int, int] = SEGMENTS, vocabulary: int = 50) -> keras.Model:
    document, texts, text = segments
    signature = Signature((document + texts * text,), texts, "int32", segments, vocabulary)
    tokens = keras.Input(signature.shape, dtype="int32", name="tokens")
    return keras.Model(tokens, transformer(tokens, model, signature), name=model.name)


def drawn(network: keras.Model) -> State:
    return State(0, models.arrays({variable.path: variable for variable in network.variables}), {}, {})


def rows(count: int = 3, segments: tuple[int, int, int] = SEGMENTS, vocabulary: int = 50) -> tuple[np.ndarray, np.ndarray]:
    """Documents int32 [count, tokens] and texts [count, texts, tokens] of random lengths, each <s> ... </s> and padding."""
    rng = np.random.default_rng(0)

    def texts(*shape: int) -> np.ndarray:
        tokens = rng.integers(4, vocabulary, shape, dtype=np.int32)
        ends = rng.integers(1, shape[-1], (*shape[:-1], 1))
        places = np.arange(shape[-1])
        tokens[..., 0] = 0
        return np.where(places < ends, tokens, np.where(places == ends, 2, 1)).astype(np.int32)

    document, number, text = segments
    return texts(count, document), texts(count, number, text)


def text_set(folder: Path, segments: tuple[int, int, int] = SEGMENTS, **counts: int) -> records.Manifest:
    """A prepared set of random texts and ROUGEs, as `imp prepare docstrings` writes it. `counts` of the splits are 48, 11 and
    11."""
    rng, shards = np.random.default_rng(0), []
    document, number, text = segments
    made = TextSettings("docstrings", document=document, candidate=text, candidates=number - 1)
    for split, count in {"train": 48, "validation": 11, "test": 11, **counts}.items():
        rouge = rng.random((count, number, 3), np.float32)
        arrays = dict(zip(made.fields, (*rows(count, segments), rouge), strict=True))
        labels = rouge[:, 1:].mean(axis=2).argmax(axis=1)
        shards += write_split(folder, split, records.pack(arrays, made.fields), labels)
    manifest = records.Manifest(made.shape, [], shards, dataclasses.asdict(made), {"ids": "50"}, fields=made.fields)
    records.write_manifest(folder, manifest)
    return manifest
