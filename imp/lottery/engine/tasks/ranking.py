"""Ranking: which of several summaries of a document is the best. SimCLS (Liu & Liu 2021, arXiv 2106.01890)."""

import tensorflow as tf

from data_prep.records import Manifest
from lottery.base.errors import InputError
from lottery.engine.signature import Signature
from lottery.engine.tasks import Batch, Task
from lottery.experiment.recipe import Recipe

MARGIN = 0.01  # lambda of the paper
FIELDS = ("document", "texts", "rouge")
MOST_IDS = 1 << 16  # which records hold in two bytes
ROUGES = ("rouge1", "rouge2", "rougeL")


class Ranking(Task):
    """A score for the reference summary and for each candidate; that of a better candidate is to be higher, by a margin. Better
    is a higher mean of ROUGE-1, -2 and -L; of equal ones, the candidate that was generated first.

    Metrics: the ROUGEs of the candidate with the highest score, and ROUGE-1 of the candidate generated first, of a random one
    (the mean over candidates), and of the best (the oracle)."""

    metrics = (*ROUGES, "first_rouge1", "random_rouge1", "oracle_rouge1")

    def __init__(self, recipe: Recipe, manifest: Manifest):
        super().__init__(recipe, manifest)
        if tuple(manifest.fields) != FIELDS:
            raise InputError("task = ranking is of texts with candidates, which these records are not: change data.source")
        (document,), (self.outputs, text) = (manifest.fields[name].shape for name in FIELDS[:2])
        self.segments = document, self.outputs, text
        ids = manifest.made_by.get("ids", "")
        if not (ids.isascii() and ids.isdigit() and len(ids) < 6 and 0 < int(ids) <= MOST_IDS):
            raise InputError("the manifest of these records does not say how many tokens there are: prepare them anew")
        self.vocabulary = int(ids)

    @property
    def signature(self) -> Signature:
        """In: token ids of the document, the reference and the candidates in a row. Out: a score for each but the document."""
        document, texts, text = self.segments
        return Signature((document + texts * text,), texts, "int32", self.segments, self.vocabulary)

    def inputs(self, batch: Batch) -> tf.Tensor:
        texts = tf.reshape(batch["texts"], [-1, self.segments[1] * self.segments[2]])
        return tf.concat([batch["document"], texts], axis=1)

    def loss(self, batch: Batch, outputs: tf.Tensor) -> tf.Tensor:
        """max(0, r(D, s) - r(D, reference)) summed over candidates s, and max(0, r(D, s_j) - r(D, s_i) + lambda (j - i)) summed
        over pairs i < j of candidates in the order of their ROUGE, best first."""
        reference, scores = outputs[:, :1], outputs[:, 1:]
        above_reference = tf.reduce_sum(tf.nn.relu(scores - reference), axis=1)
        best_first = tf.argsort(_mean_rouge(batch), axis=1, direction="DESCENDING", stable=True)
        ranked = tf.gather(scores, best_first, axis=1, batch_dims=1)
        place = tf.range(ranked.shape[1])
        distance = tf.cast(place[None, :] - place[:, None], ranked.dtype)  # j - i
        hinges = tf.nn.relu(ranked[:, None, :] - ranked[:, :, None] + MARGIN * distance)
        pairs = tf.where(distance > 0, hinges, tf.zeros_like(hinges))
        return above_reference + tf.reduce_sum(pairs, axis=[1, 2])

    def measures(self, batch: Batch, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        candidates = batch["rouge"][:, 1:]
        chosen = tf.gather(candidates, tf.argmax(outputs[:, 1:], axis=1), axis=1, batch_dims=1)
        best = tf.gather(candidates, tf.argmax(_mean_rouge(batch), axis=1), axis=1, batch_dims=1)
        return {
            **dict(zip(ROUGES, tf.unstack(chosen, axis=1), strict=True)),
            "first_rouge1": candidates[:, 0, 0],
            "random_rouge1": tf.reduce_mean(candidates[:, :, 0], axis=1),
            "oracle_rouge1": best[:, 0],
        }


def _mean_rouge(batch: Batch) -> tf.Tensor:
    """Of each candidate, float32 [n, candidates]."""
    return tf.reduce_mean(batch["rouge"][:, 1:], axis=2)
