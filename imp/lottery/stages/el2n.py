"""How hard each training image is early in training: EL2N scores, by which other runs choose what they train on."""

import io
from pathlib import Path

import numpy as np

from data_prep.scores import COLUMNS
from lottery.base import files
from lottery.base.errors import InputError
from lottery.base.progress import Reporter, count_of
from lottery.engine.start import start_tensorflow
from lottery.experiment.grids import Point
from lottery.results import lookup
from lottery.rundir.run import Run


def el2n(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """||p - y||_2 (float64, [n], 0 .. sqrt(2)) for the probabilities p = softmax(`logits`) ([n, classes]) and the one-hot y of
    `labels` (int, [n]): the EL2N score of Paul et al. 2021 (arXiv 2107.07075)."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True), dtype=np.float64)
    errors = powers / powers.sum(axis=1, keepdims=True)
    errors[np.arange(len(labels)), labels] -= 1
    return np.linalg.norm(errors, axis=1)


def score(run: Run, point: Point, reporter: Reporter) -> Path:
    """Write the scores of the run's training images, unaugmented and in the order of its records, and return their file: the
    mean over the dense networks that are saved at `point`, as each is evaluated. Raises InputError where none is or one is
    damaged, where the records left out images, and for a task that is not classification."""
    path = run.folder / f"el2n-{point}.csv"
    if bad := run.manifest().bad:
        left_out = f"{run.records()} left out {count_of(len(bad), 'image')} that cannot be decoded"
        raise InputError(
            f"{left_out}: scores could not be told from those of other images. Remove such images, and prepare anew"
        )
    if run.recipe.task != "classification":
        raise InputError(f"EL2N is of classification, and {run.folder} learns {run.recipe.task}")
    step = point.step(run.plan().steps_per_epoch)
    replicates = map(run.replicate, run.known_numbers())
    states = [lookup.snapshot(one, step).evaluated for one in replicates if one.snapshot(step).exists()]
    if not states:
        raise InputError(f"no dense network of {run.folder} is saved at {point}: it saves {run.recipe.train.snapshots}")
    start_tensorflow()
    from lottery.engine import devices
    from lottery.engine.examples import Examples

    devices.set_up_tensorflow(run.recipe.train)
    examples = Examples(run)
    total = examples.count("train")
    scores, labels = np.zeros(total), np.empty(total, np.int32)
    with reporter.counting("scoring", total * len(states), "images") as progress:
        for state in states:
            first = 0
            for logits, of in examples.outputs(run.recipe, state, "train"):
                part = slice(first, first := first + len(of))
                scores[part] += el2n(logits, of) / len(states)
                labels[part] = of
                progress(len(of))
    table = io.StringIO()
    print(*COLUMNS, sep=",", file=table)
    for index, (label, value) in enumerate(zip(labels, scores, strict=True)):
        print(index, label, f"{value:.9g}", sep=",", file=table)
    files.write_text(path, table.getvalue())
    reporter.say(f"{path}: EL2N of {total:,} training images, mean of {count_of(len(states), 'dense network')} at {point}")
    return path
