"""Candidate summaries for a document whose source has none: some better, some worse, none a model's own.

The first is what a simple summarizer would give, the document's first sentence; then, over and over, in this order:

    neighbour   the reference of a document that is alike, from the training split and another group
    dropped     the reference without some of its words
    sentence    the document's next sentence
    swapped     the reference, some of its words in each other's places
    neighbour   as before, the next nearest
    replaced    the reference, some of its words replaced by words of the document
    fragment    some words in a row from a sentence of the document, about as many as the reference has

Each word is changed with the same probability, which is drawn for each candidate from 0.2 to 0.8. A text that there is
already, or that equals the reference, is passed over for the next of its kind; where a kind has no more, a fragment stands in.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from data_prep.words import tokens

ORDER = ("neighbour", "dropped", "sentence", "swapped", "neighbour", "replaced", "fragment")
DESCRIBED = f"1 of the lead sentence, then {', '.join(ORDER)} over and over"
_TRIES = 30
_CHANGED = 0.2, 0.8  # probability of each of the reference's words


def neighbours_needed(count: int) -> int:
    """How many neighbours `make` uses for `count` candidates."""
    return sum(ORDER[place % len(ORDER)] == "neighbour" for place in range(count - 1))


def make(document: str, reference: str, neighbours: Sequence[str], count: int, seed: int) -> tuple[str, ...]:
    """`count` candidates for a summary of `document`, in the order of the table above. All draws depend on `seed` alone."""
    rng = np.random.default_rng(seed)
    sentences = document.split("\n")
    kinds = {
        "sentence": iter(sentences),
        "neighbour": iter(neighbours),
        "dropped": _changed(_drop, reference, document, rng),
        "swapped": _changed(_swap, reference, document, rng),
        "replaced": _changed(_replace, reference, document, rng),
        "fragment": _fragments(sentences, len(tokens(reference)), rng),
    }
    candidates: list[str] = []
    taken = {_plain(reference)}
    for place in range(count):
        kind = ORDER[(place - 1) % len(ORDER)] if place else "sentence"
        text = _first_new(kinds[kind], taken) or _first_new(kinds["fragment"], taken) or next(kinds["fragment"])
        candidates.append(text)
        taken.add(_plain(text))
    return tuple(candidates)


def _first_new(proposals: Iterator[str], taken: set[str]) -> str | None:
    return next((text for _, text in zip(range(_TRIES), proposals, strict=False) if _plain(text) not in taken), None)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")


def _changed(change: Callable[..., list[str]], reference: str, document: str, rng: np.random.Generator) -> Iterator[str]:
    """The reference with a share of its words changed, again and again."""
    words, others = tokens(reference), tokens(document)
    while True:
        chosen = rng.random(len(words)) < rng.uniform(*_CHANGED)
        if chosen.any():
            yield "".join(change(words, np.flatnonzero(chosen), others, rng)).strip() or reference


def _drop(words: list[str], chosen: np.ndarray, others: list[str], rng: np.random.Generator) -> list[str]:
    return [word for place, word in enumerate(words) if place not in chosen]


def _swap(words: list[str], chosen: np.ndarray, others: list[str], rng: np.random.Generator) -> list[str]:
    changed = list(words)
    for place, other in zip(chosen, rng.permutation(len(words)), strict=False):
        changed[place], changed[other] = changed[other], changed[place]
    return changed


def _replace(words: list[str], chosen: np.ndarray, others: list[str], rng: np.random.Generator) -> list[str]:
    return [others[rng.integers(len(others))] if place in chosen else word for place, word in enumerate(words)]


def _fragments(sentences: list[str], length: int, rng: np.random.Generator) -> Iterator[str]:
    while True:
        words = tokens(sentences[rng.integers(len(sentences))])
        count = min(len(words), max(1, length + int(rng.integers(-2, 3))))
        start = rng.integers(len(words) - count + 1)
        yield "".join(words[start : start + count]).strip()
