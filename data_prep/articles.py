"""Where texts come from: documents, each with a reference (a summary of it that is right) and perhaps candidates for one."""

import dataclasses
import hashlib
import importlib
import itertools
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from data_prep import records
from data_prep.sources import check_name
from data_prep.words import spaced, words
from lottery.base.errors import InputError

TELLING = 8  # words of a sentence that two documents share by more than chance
COMMON = 100  # documents that share a sentence before it is a phrase of the trade

_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'(`])")
_PARAGRAPH = re.compile(r"\n\s*\n|\n\s*[-*+o]\s")


@dataclasses.dataclass(frozen=True)
class Article:
    """A document, its reference, perhaps candidates, and what it is called in messages. A text is sentences, one a line."""

    name: str
    document: str
    reference: str
    candidates: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """What every draw for it depends on: the sha256 of its document and reference."""
        return hashlib.sha256(f"{self.document}\0{self.reference}".encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Articles:
    """A source of texts: what it holds, and what of it cannot be read."""

    articles: list[Article]
    bad: list[records.Bad] = dataclasses.field(default_factory=list)

    @property
    def fingerprint(self) -> str:
        """Changes when texts come, go or change."""
        digest = hashlib.sha256()
        for article in self.articles:
            digest.update("\0".join([article.identity, *article.candidates]).encode())
        return digest.hexdigest()


def open_articles(name: str, candidates: int) -> Articles:
    """The source called `name`: what `source` of the module of its kind returns. Each text has at least so many `candidates`,
    or none at all. Raises InputError when there is no such source, or it has no text."""
    check_name(name)
    kind, _, rest = name.partition(":")
    source = importlib.import_module(f"data_prep.sources.{kind.replace('-', '_')}").source
    opened: Articles = source(*([Path(rest)] if rest else []), *([candidates] if kind == "candidates" else []))
    told = {True: list[Article](), False: list[Article]()}
    for one in opened.articles:
        told[bool(words(one.reference))].append(one)
    if told[False]:  # the ROUGE of any candidate would be 0
        bad = [records.Bad("", one.name, "its reference has no word") for one in told[False]]
        opened = Articles(told[True], opened.bad + bad)
    if not opened.articles:
        broken = "".join(f" ({one.name}: {one.reason})" for one in opened.bad[:1])
        raise InputError(f"{name} has no text with a summary{broken}: choose another source")
    return opened


def sentences(text: str) -> str:
    """`text`, whose lines may break anywhere, with one sentence a line. An empty line ends one, as does the mark of a list."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in _PARAGRAPH.split(text))
    return "\n".join(sentence for paragraph in paragraphs for sentence in _END.split(paragraph) if sentence)


def distinct(articles: Iterable[Article]) -> list[Article]:
    """The first article of each document; documents that differ only in case, digits or punctuation count as one."""
    first: dict[str, Article] = {}
    for article in articles:
        first.setdefault(_plain(article.document), article)
    return list(first.values())


def groups(articles: list[Article]) -> np.ndarray:
    """The number of each article's group, int [n]: articles whose documents are equal, or share a telling sentence, are in one
    group, and so are those that these share one with. Case, digits and punctuation make no difference."""
    from scipy import sparse

    equal: dict[str, list[int]] = {}
    sharing: dict[str, list[int]] = {}
    for index, article in enumerate(articles):
        equal.setdefault(_plain(article.document), []).append(index)
        for line in {_plain(line) for line in article.document.split("\n")}:
            if line.count(" ") + 1 >= TELLING:
                sharing.setdefault(line, []).append(index)
    bound = [*equal.values(), *(held for held in sharing.values() if len(held) <= COMMON)]
    pairs = [pair for held in bound for pair in itertools.pairwise(held)]
    rows, columns = np.array(pairs, int).reshape(-1, 2).T
    shared = sparse.coo_array((np.ones(len(rows), bool), (rows, columns)), (len(articles), len(articles)))
    return sparse.csgraph.connected_components(shared, directed=False)[1]


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s]|\d", " ", spaced(text.casefold())).split())
