"""ROUGE (Lin 2004) as summarization reports it: `rouge-score`'s F-measures of stemmed words."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

METRICS = ("rouge1", "rouge2", "rougeLsum")  # the last is ROUGE-L over sentences, one a line; of one sentence it is ROUGE-L


def rouge(reference: str, candidates: Sequence[str]) -> np.ndarray:
    """ROUGE-1, -2 and -L of each candidate against `reference`, 0 .. 1, float32 [n, 3]."""
    scores = [_scorer().score(reference, candidate) for candidate in candidates]
    return np.array([[score[metric].fmeasure for metric in METRICS] for score in scores], np.float32).reshape(-1, len(METRICS))


@lru_cache(maxsize=1)
def _scorer() -> Any:
    from nltk.stem.porter import PorterStemmer
    from rouge_score import rouge_scorer, tokenize

    class Words:
        """`rouge-score`'s own words with stems, each stem found once: finding them takes most of the time."""

        stem = staticmethod(lru_cache(maxsize=1 << 18)(PorterStemmer().stem))

        def tokenize(self, text: str) -> list[str]:
            words: list[str] = tokenize.tokenize(text, self)
            return words

    return rouge_scorer.RougeScorer(list(METRICS), tokenizer=Words())
