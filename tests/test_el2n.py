"""`imp el2n`: scores of training images by hand, by other means, and as another run uses them."""

import csv
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import imp_here, refused, settings

from data_prep import records
from lottery.base.errors import InputError
from lottery.experiment.grids import parse_point
from lottery.rundir import store
from lottery.rundir.run import open_run
from lottery.stages.el2n import el2n, score


def test_the_score_is_the_distance_of_the_probabilities_from_the_label():
    logits = np.array([[0, 0], [math.log(3), 0], [math.log(3), 0], [1000, 0], [1000, 0]], np.float32)
    labels = np.array([0, 0, 1, 0, 1], np.int32)

    half, quarter, all_of_it = (math.hypot(part, part) for part in (1 / 2, 1 / 4, 1))
    assert el2n(logits, labels) == pytest.approx([half, quarter, 3 * quarter, 0, all_of_it])
    three = el2n(np.log([[0.5, 0.2, 0.3]]), np.array([1]))
    assert three == pytest.approx([math.sqrt(0.25 + 0.64 + 0.09)])


def read(path):
    with path.open() as file:
        return [(int(row["index"]), int(row["label"]), float(row["score"])) for row in csv.DictReader(file)]


def lenet(state, images):
    """What lenet_300_100 answers to images, by NumPy."""
    found = ((images / 255 - 0.5) / 0.5).reshape(len(images), -1)
    for layer in ("fc1", "fc2"):
        found = np.maximum(0, found @ state.weights[f"{layer}/kernel"] + state.weights[f"{layer}/bias"])
    return found @ state.weights["predictions/kernel"] + state.weights["predictions/bias"]


def test_scores_are_means_over_dense_networks_and_another_run_trains_on_the_hardest(work):
    imp_here("train", "--replicate", "2", cwd=work)
    done = imp_here("el2n", "--run", "runs/digits", "--at", "1ep", cwd=work)

    run, path = open_run(work / "runs/digits"), work / "runs/digits/el2n-1ep.csv"
    assert "mean of 2 dense networks at 1ep" in done.stderr
    images, labels = records.read_split(work / "data/digits-8", records.read_manifest(work / "data/digits-8"), "train")
    step = run.plan().steps_per_epoch
    states = [store.load_state(run.replicate(number).snapshot(step)) for number in (1, 2)]
    expected = np.mean([el2n(lenet(state, images), labels) for state in states], axis=0)
    index, found, scores = zip(*read(path), strict=True)
    assert (index, found) == (tuple(range(len(labels))), tuple(labels))
    np.testing.assert_allclose(scores, expected, atol=1e-5)

    hard = ["--run", "runs/hard", *settings("data.hardest=0.5", f"data.scores={path}")]
    imp_here("prepare", "--recipe", "runs/digits/recipe.toml", *hard, cwd=work)
    imp_here("train", "--run", "runs/hard", cwd=work)

    made = work / "data/digits-8-hardest-50pct"
    chosen, _ = records.read_split(made, records.read_manifest(made), "train")
    hardest = np.sort(np.argsort(-np.array(scores), kind="stable")[: math.ceil(0.5 * len(labels))])
    np.testing.assert_array_equal(chosen, images[hardest])
    assert open_run(work / "runs/hard").replicate(1).origins()["records"] == records.read_manifest(made).digest
    before = path.read_bytes()
    imp_here("el2n", "--run", "runs/digits", "--at", "1ep", cwd=work)
    assert path.read_bytes() == before

    path.write_bytes(before.replace(b"\n0,", b"\n00,", 1))
    refused(imp_here("train", "--run", "runs/hard", cwd=work, check=False), "made with other scores than those in")


def test_records_that_left_out_images_are_not_scored():
    run = SimpleNamespace(
        folder=Path("runs/a"), records=lambda: Path("data/a"), manifest=lambda: SimpleNamespace(bad=["b.png"])
    )

    with pytest.raises(InputError, match="data/a left out 1 image that cannot be decoded: "):
        score(run, parse_point("1ep"), None)


def test_a_point_that_is_not_saved_and_a_run_that_does_not_exist_are_refused(work):
    refused(imp_here("el2n", "--at", "2ep", cwd=work, check=False), "is saved at 2ep: it saves 0,10it,1ep")
    refused(imp_here("el2n", "--at", "soon", cwd=work, check=False), "soon")
    refused(imp_here("el2n", "--run", "nowhere", "--at", "1ep", cwd=work, check=False), "no run in nowhere")
