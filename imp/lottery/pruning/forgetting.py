"""Images that pruning forgets: most tickets answer them otherwise than most dense networks ("pruning identified exemplars" of
Hooker et al. 2019, arXiv 1911.05248, section 2.2). Pure NumPy; answers are labels, integers [replicates, images]."""

import numpy as np
from numpy.typing import NDArray

DRAWS = 20  # for the number by chance

Answers = NDArray[np.integer]


def modal(answers: Answers) -> NDArray[np.integer]:
    """The answer that most networks give to each image ([images]); of several the lowest label."""
    counts = (answers[:, None] == answers).sum(1)
    return np.where(counts == counts.max(0), answers, np.iinfo(answers.dtype).max).min(0)


def forgotten(dense: Answers, tickets: Answers) -> NDArray[np.intp]:
    """The images whose modal answer of `tickets` is not that of `dense`, in their order."""
    return np.flatnonzero(modal(dense) != modal(tickets))


def by_chance(dense: Answers, seed: int = 0) -> float:
    """How many images would be forgotten if tickets were like dense networks: the mean number between two sets of as many
    networks, drawn with replacement from the dense ones. Rough: both are drawn from the same few, which makes them more alike,
    and may have one of these twice, which makes their modal answers less sure."""
    draws = np.random.default_rng(seed).integers(0, len(dense), (DRAWS, 2, len(dense)))
    return float(np.mean([len(forgotten(dense[first], dense[second])) for first, second in draws]))
