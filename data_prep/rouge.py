"""ROUGE (Lin 2004) as summarization reports it: `rouge-score`'s F-measures of stemmed words. Its own words are runs of a-z and
0-9; where most words of a reference are others, ROUGE is of the words of `data_prep.words`."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from data_prep.words import words

METRICS = ("rouge1", "rouge2", "rougeLsum")  # the last is ROUGE-L over sentences, one a line; of one sentence it is ROUGE-L


def rouge(reference: str, candidates: Sequence[str]) -> np.ndarray:
    """ROUGE-1, -2 and -L of each candidate against `reference`, which has a word, 0 .. 1, float32 [n, 3]."""
    is_ascii = [word.isascii() for word in words(reference)]
    scorer = _scorer(2 * sum(is_ascii) >= len(is_ascii))
    scores = [scorer.score(reference, candidate) for candidate in candidates]
    return np.array([[score[metric].fmeasure for metric in METRICS] for score in scores], np.float32).reshape(-1, len(METRICS))


@lru_cache(maxsize=2)
def _scorer(is_ascii: bool) -> Any:
    from nltk.stem.porter import PorterStemmer
    from rouge_score import rouge_scorer, tokenize

    class Words:
        """Words with stems, each stem found once: finding them takes most of the time."""

        stem = staticmethod(lru_cache(maxsize=1 << 18)(PorterStemmer().stem))

        def tokenize(self, text: str) -> list[str]:
            if is_ascii:
                return list(tokenize.tokenize(text, self))
            return [self.stem(word) if word.isascii() and len(word) > 3 else word for word in words(text)]

    return rouge_scorer.RougeScorer(list(METRICS), tokenizer=Words())
