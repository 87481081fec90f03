"""A run as Python reads it."""

import json
import shutil

import numpy as np
import pytest
from helpers import LENET, changed, imp_here, settings

from lottery.base import files
from lottery.base.errors import InputError
from lottery.results.reader import open_results
from lottery.rundir import store


@pytest.fixture
def folder(retrained):
    return retrained / "runs" / "digits"


@pytest.fixture
def results(folder, monkeypatch):
    monkeypatch.chdir(folder.parents[1])
    return open_results("runs/digits")


def test_the_frame_has_a_row_for_each_network(results):
    frame, dense = results.frame(), results.network("dense")

    assert len(frame) == 1 + 2 * 2 + 1 + 2  # dense; two masks rewound to two points; reinit; shuffles of one mask
    assert set(frame.variant) == {"dense", "ticket", "reinit", "shuffle"}
    assert frame.validation_accuracy.between(0, 1).all()
    assert (dense.variant, dense.density) == ("dense", 1.0)
    assert all(kept.all() for kept in dense.mask().values())


def test_networks_are_chosen_by_what_their_results_say(results):
    tickets = results.networks(variant="ticket", mask="q90")

    assert [ticket.name for ticket in tickets] == ["oneshot/q90-step-000000", "oneshot/q90-step-000017"]
    assert results.networks()[0].name == "dense"
    assert results.networks(variant="random") == []
    assert results.networks(replicate=1, rewind_step=17, variant="shuffle")[0].name == "oneshot/q90-step-000017 shuffle"
    with pytest.raises(InputError, match="no network has quantil: known are variant, family, method, mask"):
        results.networks(quantil=90)


def test_a_tickets_arrays_are_what_its_files_hold(results, folder):
    ticket = results.network("q90-step-000017")
    place, mask = folder / "replicate-1/oneshot/q90-step-000017/ticket", folder / "replicate-1/oneshot/masks/q90.h5"
    stored, saved = store.load_state(place / "final.h5"), store.load_mask(mask)

    for path, array in ticket.weights().items():
        np.testing.assert_array_equal(array, stored.weights[path])
    for path, kept in ticket.mask().items():
        np.testing.assert_array_equal(kept, saved[path])
        np.testing.assert_array_equal(kept, results.mask(90)[path])
    assert ticket.density == pytest.approx(0.1, abs=1e-3)
    assert ticket.test_accuracy == json.loads((place / "result.json").read_text())["final"]["test_accuracy"]


def test_predictions_are_those_of_the_model_and_of_its_accuracy(results):
    """Computed anew by the network that the reader rebuilds."""
    ticket = results.network("q50-step-000017")
    images, labels = results.images("test")
    found = ticket.predictions()["test"]

    assert (images.shape, images.dtype, np.abs(images).max()) == ((359, 8, 8, 3), np.float32, 1)
    logits = np.asarray(ticket.model()(images))
    assert np.mean(found.answers == logits.argmax(axis=1)) > 0.99  # rounding may tell ties apart
    assert found.right.mean() == ticket.test_accuracy == np.mean(found.answers == labels)
    row = results.frame().set_index("folder").loc["replicate-1/oneshot/q50-step-000017/ticket"]
    assert row.agreement == np.mean(found.answers == results.network("dense").predictions()["test"].answers)
    assert row.worst_class_accuracy == min(found.right[labels == label].mean() for label in set(labels))


def test_metrics_by_network_and_of_all(results):
    metrics = results.network("q50-step-000000").metrics()

    assert list(metrics.step) == [17, 34, 51]
    assert set(metrics.name) == {"oneshot/q50-step-000000"}
    assert (metrics.images_per_second > 0).all()
    together = results.metrics()
    assert set(together.name) == {network.name for network in results.networks()}
    assert together.test_accuracy.between(0, 1).all()


def test_snapshots_and_their_norms(results):
    assert results.snapshots() == [0, 10, 17, 51]
    assert results.snapshot(17).step == 17
    norms = results.norms(step=17, quantiles=[50, 97.5])
    assert list(norms.index) == ["fc1/kernel", "fc2/kernel", "in all"]
    assert norms.loc["in all", "count"] == norms["count"][:-1].sum()
    assert {"q50", "q97.5"} <= set(norms.columns)
    ticket = results.network("q90-step-000017").norms()
    assert ticket.loc["in all", "zeros"] == pytest.approx(0.9 * ticket.loc["in all", "count"], abs=1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda results: results.network("q91"), "there is no 'q91'"),
        (lambda results: results.snapshot(5), "not saved at step 5"),
        (lambda results: results.mask(33), "replicate-1 has no mask of 33: it has 50, 90"),
    ],
)
def test_what_is_not_there_is_an_input_error(results, call, words):
    with pytest.raises(InputError, match=words):
        call(results)


@pytest.mark.parametrize("call", [lambda results: results.norms(), lambda results: results.prunable()])
def test_a_dense_training_that_has_not_ended_has_no_last_step(retrained, tmp_path, call):
    run = shutil.copytree(retrained / "runs/digits", tmp_path / "run")
    (run / "replicate-1/train/result.json").unlink()

    with pytest.raises(InputError, match=r"replicate-1/train is not finished: name the step of a snapshot"):
        call(open_results(run))
    assert open_results(run).norms(step=17).loc["in all", "count"]


def test_images_of_another_set_are_refused(retrained, tmp_path, monkeypatch):
    folder = shutil.copytree(retrained, tmp_path / "work", symlinks=True)
    monkeypatch.chdir(folder)
    (path,) = folder.glob("data/*/manifest.json")
    content = files.read_json(path)
    changed(folder / "runs/digits/environment.json", records="not here")
    for change, words in (
        (content["made_with"] | {"split_seed": 1}, "split_seed"),
        (content["made_with"], "was made from other examples than those that are prepared"),
    ):
        content["shards"][0]["sha256"] = "0" * 64
        files.write_json(path, content | {"made_with": change})
        with pytest.raises(InputError, match=words):
            open_results("runs/digits").images("test")


def test_no_run_is_an_input_error(here):
    with pytest.raises(InputError, match="there is no run"):
        open_results()


def test_a_run_finds_its_images_though_the_current_folder_has_others_of_that_name(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    imp_here("prepare", *LENET, *settings("data.validation=0.38"), cwd=tmp_path)

    images, _ = open_results(folder).images("test")

    assert len(images) == 359
