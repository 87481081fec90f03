"""Tokens: a byte-level BPE (Radford et al. 2019) with RoBERTa's numbers for what is no word, and texts as rows of its ids."""

import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from lottery.base.errors import InputError, first_line

START, PAD, END, UNKNOWN = 0, 1, 2, 3
SPECIAL = {"<s>": START, "<pad>": PAD, "</s>": END, "<unk>": UNKNOWN}
FILE = "tokenizer.json"
MOST = 1 << 16  # ids, which records hold in two bytes


def train(texts: Iterable[str], vocabulary: int) -> str:
    """The `tokenizer.json` of a byte-level BPE of at most `vocabulary` entries, the same for the same texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str())


def read(file: Path) -> str:
    """A user's own `tokenizer.json`. Raises InputError where it is none, or numbers special tokens otherwise than RoBERTa."""
    try:
        content = file.read_bytes().decode()
        tokenizer = load(content)
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}; name a tokenizer.json with texts.tokenizer") from None
    except Exception as error:  # the library raises a bare Exception for what it cannot parse
        raise InputError(f"{file} is not a tokenizer.json ({first_line(error)}): save one with tokenizers") from None
    for token, number in SPECIAL.items():
        if tokenizer.token_to_id(token) != number:
            raise InputError(f"{file}: {token} is {tokenizer.token_to_id(token)}, not {number}: use a tokenizer like RoBERTa's")
    if size(content) > MOST:
        raise InputError(f"{file} has {size(content)} entries: more than {MOST} do not fit a record")
    return content


def size(content: str) -> int:
    """One more than the largest id."""
    return 1 + int(max(load(content).get_vocab().values()))


@lru_cache(maxsize=1)
def load(content: str) -> Any:
    """The tokenizer that `content` describes, which neither cuts nor pads."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(content)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encode(content: str, texts: Iterable[str], length: int) -> np.ndarray:
    """`texts` as uint16 [n, length], by the tokenizer that `content` describes: <s>, what fits of the text, </s>, padding."""
    tokenizer = load(content)
    rows = [tokenizer.encode(text.replace("\n", " "), add_special_tokens=False).ids[: length - 2] for text in texts]
    ids = np.full((len(rows), length), PAD, np.uint16)
    for row, words in zip(ids, rows, strict=True):
        row[: len(words) + 2] = [START, *words, END]
    return ids
