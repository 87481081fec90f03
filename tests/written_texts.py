"""Made-up words and lines of files, for the tests of texts."""

import json

import numpy as np

WORDS = [f"{first}{second}{last}" for first in "bdfgk" for second in ("ala", "eme", "iri", "ono") for last in "lmnrst"]


def words(rng, count):
    return " ".join(rng.choice(WORDS, count))


def lines(path, *objects):
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in objects))
    return path


def article(index=0, count=3, **other):
    """A line of a file of candidates."""
    texts = [f"candidate {number} of {index}" for number in range(count)]
    return {"article": [f"Document {WORDS[index]}.", "It goes on."], "abstract": f"about {index}", "candidates": texts, **other}


def stanza(index, synopsis=None, long=None):
    """A package of a file as Debian's archive has it; every third shares a sentence with the one before."""
    rng, shared = np.random.default_rng(index), np.random.default_rng(1000 + index - (index % 3 == 1))
    long = long or f"{words(rng, 6).capitalize()}.\n {words(shared, 12).capitalize()}.\n .\n {words(rng, 9).capitalize()}."
    return f"Package: package-{index:04}\nDescription-en: {synopsis or words(rng, 7)}\n {long}\n"
