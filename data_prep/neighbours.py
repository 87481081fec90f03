"""Documents that are alike: by the cosine of their TF-IDF vectors (scikit-learn's, words in lower case)."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from data_prep.words import spaced

_LOOKED_AT = 40  # of the nearest documents
_COMMON = 0.05  # a word in more than this share of the documents says little, and costs most of the time
_FEW = 20  # documents, however common a word is among them


class Neighbours:
    """The references of documents near another's. Only those at `known` (int, [n]), the training split, are drawn on."""

    def __init__(self, documents: Sequence[str], references: Sequence[str], groups: np.ndarray, known: np.ndarray):
        self.documents, self.references, self.groups, self.known = documents, references, groups, known

    def of(self, indices: np.ndarray, count: int) -> list[list[str]]:
        """For each document at `indices`, at most `count` references of the nearest known documents of other groups, nearest
        first, none twice. Ties go to the document that comes first."""
        if not len(indices) or self._fitted is None:
            return [[] for _ in indices]
        vectorizer, vectors = self._fitted
        alike = (vectorizer.transform([spaced(self.documents[index]) for index in indices]) @ vectors.T).tocsr()
        references = []
        for row, index in enumerate(indices):
            part = slice(alike.indptr[row], alike.indptr[row + 1])
            places, scores = alike.indices[part], alike.data[part]
            if len(scores) > _LOOKED_AT:
                near = scores >= np.partition(scores, -_LOOKED_AT)[-_LOOKED_AT]
                places, scores = places[near], scores[near]
            order = np.lexsort((places, -scores))
            others = (int(self.known[place]) for place in places[order])
            references.append(list(self._distinct(others, int(index), count)))
        return references

    def _distinct(self, others: Iterator[int], index: int, count: int) -> Iterator[str]:
        seen = {self.references[index]}
        for other in others:
            reference = self.references[other]
            if self.groups[other] != self.groups[index] and reference not in seen and len(seen) <= count:
                seen.add(reference)
                yield reference

    @cached_property
    def _fitted(self) -> tuple[Any, Any] | None:
        """A vectorizer, and the vectors of the known documents; None where no word tells one from others."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        known = [spaced(self.documents[index]) for index in self.known]
        most = max(_FEW, round(_COMMON * len(known)))
        vectorizer = TfidfVectorizer(token_pattern=r"\w+", max_df=most, sublinear_tf=True, dtype=np.float32)
        try:
            return vectorizer, vectorizer.fit_transform(known)
        except ValueError:  # no word is left
            return None
