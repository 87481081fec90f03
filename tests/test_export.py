"""A trained network of a run becomes one file: which one, where, and how large."""

import dataclasses
import importlib.util
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import yaml
from handmade import figures, finished, place_of, relist, write_mask, write_result
from helpers import imp_here, lenet, refused, tiny_set
from safetensors.numpy import load_file
from tiny import initial

from data_prep import records as prepared_sets
from lottery.base.errors import Failed, InputError
from lottery.base.progress import Reporter
from lottery.engine import examples, formats, litert_session
from lottery.experiment.recipe import Data, Recipe, Train
from lottery.results.reader import open_results
from lottery.rundir import records, store
from lottery.rundir.records import Result
from lottery.rundir.run import Run, open_run
from lottery.share.export import ENDINGS, default_path, export

pytestmark = pytest.mark.usefixtures("tensorflow")

QUIET = Reporter(quiet=True)
needs_mnn = pytest.mark.skipif(not importlib.util.find_spec("MNN"), reason="MNN is not installed")
MNN = pytest.param("mnn", marks=needs_mnn)


@pytest.fixture
def run(retrained, monkeypatch):
    """A finished run of lenet, in the current folder. Nothing may be written there."""
    monkeypatch.chdir(retrained)
    return open_run(Path("runs/digits"))


@pytest.fixture
def tiny_run(tmp_path):
    """A function that makes up a run of lenet, of averaged weights or not, with two finished networks, and a ticket q50 from
    step 0 as told."""

    def make(ema: float = 0.0, task: str = "classification", outputs: int = 3, **half: object) -> Run:
        recipe = Recipe(task=task, data=Data(size=8, path=str(tmp_path / "data")), model=lenet(), train=Train(ema=ema))
        made_with = dataclasses.asdict(recipe.records())
        prepared = tmp_path / "data"
        prepared_sets.write_manifest(prepared, dataclasses.replace(tiny_set(prepared), made_with=made_with))
        run = Run(tmp_path / "run", recipe)
        state = initial(classes=outputs)
        state.optimizer.update({f"ema/{path}": array / 2 for path, array in state.weights.items()})
        place = run.replicate(1)
        store.save_state(place.snapshot(7), state)
        finished(place, 7)
        shots = [("oneshot", "q90", {}), *([("oneshot", "q50", half)] if half else []), ("lr", "round-03", {})]
        for family, label, more in shots:
            network = place_of(run, 1, family, label, 0, "ticket", chain=0 if label.startswith("round") else None)
            store.save_state(network.final, state)
            mask = {"fc1/kernel": state.weights["fc1/kernel"] > 0}
            cut = write_mask(place, family, label, mask, rewind_step=0 if label.startswith("round") else None)
            known = {"variant": "ticket", "family": family, "mask": label, "step": 7, "final": figures(0.51, 7)}
            write_result(place, network, [network.final], [cut.mask], **{**known, **more})
        return run

    return make


@pytest.mark.parametrize("to", ["tflite"])
def test_a_file_that_answers_otherwise_is_not_written(to, run, tmp_path, monkeypatch):
    honest = formats.FORMATS[to]

    def write(*given):
        content, outputs = honest.write(*given)
        return content, outputs * 1.01

    monkeypatch.setitem(formats.FORMATS, to, honest._replace(write=write))

    with pytest.raises(Failed, match=f"the outputs of the {to} file are .* off the network's"):
        export(run, QUIET, "q90-step-000000", to, tmp_path / f"x.{to}")

    assert not any(tmp_path.iterdir())


def kernels(to, path):
    """The kernels of an exported lenet, the three largest arrays, in any orientation."""
    if to == "keras":
        found = [np.asarray(variable) for variable in keras.models.load_model(path).trainable_variables]
    elif to == "torch":
        found = list(load_file(path).values())
    elif to == "npz":
        with np.load(path, allow_pickle=False) as arrays:
            found = [array for name, array in arrays.items() if name.startswith("weights/")]
    else:
        import tensorflow as tf

        plain = tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        interpreter = tf.lite.Interpreter(str(path), experimental_op_resolver_type=plain)
        interpreter.allocate_tensors()
        found = [interpreter.get_tensor(tensor["index"]) for tensor in interpreter.get_tensor_details() if tensor["shape"].size]
    return sorted((array for array in found if array.ndim == 2 and array.size > 500), key=lambda array: array.size)


@pytest.mark.parametrize("to", ["keras", "tflite", "torch", "npz"])
def test_a_ticket_is_exported_with_its_zeros_each_time_to_the_same_bytes(to, run, tmp_path):
    path = tmp_path / "new" / f"ticket.{ENDINGS.get(to, to)}"
    network = run.replicate(1).folder / "oneshot/q90-step-000000/ticket"
    state, result = store.load_state(network / "final.h5"), records.read(network / "result.json", Result)

    found = export(run, QUIET, "q90-step-000000", to, path)

    zeros = {array.size: np.count_nonzero(array == 0) for array in state.weights.values() if array.ndim == 2}
    assert {array.size: np.count_nonzero(array == 0) for array in kernels(to, path)} == zeros
    assert (found["zeros"], found["weights"]) == (result.exact_zeros, result.trainable_weights)
    assert found["density"] == result.kept.density.prunable
    assert found["test_accuracy"] == result.final.test_accuracy
    assert found["path"] == str(path)
    assert found["bytes"] == path.stat().st_size
    assert found["gzip_bytes"] / found["dense_gzip_bytes"] < 0.4
    assert found["difference"] < 1e-6
    assert [child.name for child in path.parent.iterdir()] == [path.name]
    content = path.read_bytes()
    export(run, QUIET, "q90-step-000000", to, path)
    assert path.read_bytes() == content


def compacted(tiny_run, **how):
    """What is told of a compact ticket of which just 60 of 300 units of the first layer have weights; the others are 0."""
    run = tiny_run()
    final = run.replicate(1).folder / "oneshot/q90-step-000000/ticket/final.h5"
    state = initial(classes=3)
    state.weights["fc1/kernel"][:, 60:] = 0
    store.save_state(final, state)
    relist(run.replicate(1), final)
    return export(run, QUIET, "q90-step-000000", compact=True, **how)


@pytest.mark.parametrize("to", ["keras", "tflite", "onnx", "tflite_sparse", MNN])
def test_a_compact_file_lacks_the_units_that_are_0_and_says_how_many(to, tiny_run):
    if to == "onnx":
        pytest.importorskip("tf2onnx")

    told = compacted(tiny_run, to=to)

    path, first = Path(told["path"]), 64 if to == "onnx" else 60  # there a multiple of 8, of which four do nothing
    assert path.name.startswith("q90-step-000000-ticket-compact.")
    assert told["compact"]["bytes"] == told["bytes"] == path.stat().st_size < told["full"]["bytes"] <= told["dense_bytes"]
    assert [(told[name]["channels"], told[name]["parameters"]) for name in ("compact", "full")] == [
        (first + 100, 193 * first + (first + 1) * 100 + 101 * 3),
        (400, 193 * 300 + 301 * 100 + 101 * 3),
    ]
    assert told["compact"]["macs"] == 192 * first + first * 100 + 100 * 3
    assert told["difference"] < 1e-6


@pytest.mark.parametrize("to", ["npz", "torch", "folder"])
def test_arrays_are_not_compact(to, tiny_run):
    with pytest.raises(InputError, match=f"--compact is for files with a whole network in them: --to {to} writes arrays alone"):
        compacted(tiny_run, to=to)


@pytest.mark.parametrize("to", ["onnx", MNN, "npz"])
def test_the_dense_network_is_exported_each_time_to_the_same_bytes(to, run, tmp_path):
    if to == "onnx":
        pytest.importorskip("tf2onnx")
    one, other = (tmp_path / name / f"dense.{ENDINGS.get(to, to)}" for name in ("one", "other"))

    found = export(run, QUIET, "dense", to, one)
    export(run, QUIET, "dense", to, other)

    assert one.read_bytes() == other.read_bytes()
    assert found["density"] == 1.0
    assert (found["bytes"], found["gzip_bytes"]) == (found["dense_bytes"], found["dense_gzip_bytes"])


def test_an_int8_file_is_tested_as_it_is_and_its_card_says_so(run, tmp_path, monkeypatch):
    path, results = tmp_path / "network.tflite", open_results("runs/digits")
    images, labels = results.images("test")

    exported = export(run, QUIET, "q90-step-000000", "tflite", path, license="mit", int8=True)

    answers = np.array([*tflite_answers(path, images)])
    kept = results.network("q90-step-000000").predictions()["test"].answers
    assert exported["int8"] == {
        "test": np.mean(answers == labels),
        "agreement": np.mean(answers == kept),
        "test_images": len(labels),
        "calibration_images": 256,
    }
    assert exported["int8"]["agreement"] > 0.95
    content, card = path.read_bytes(), Path(exported["card"]).read_text()
    assert export(run, QUIET, "q90-step-000000", "tflite", path, license="mit", int8=True) == exported
    assert (path.read_bytes(), Path(exported["card"]).read_text()) == (content, card)
    assert exported["card"] == f"{path}.md"
    metadata = yaml.safe_load(card.split("---")[1])
    assert (metadata["license"], metadata["library_name"]) == ("mit", "tflite")
    assert metadata["model-index"][0]["results"][0]["metrics"][0]["value"] == round(exported["int8"]["test"], 6)
    assert f"Accuracy in int8: {exported['int8']['test']:.2%} on {len(labels)} test images, and the same answer" in card
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1].replace("np.zeros((8, 8, 3), np.uint8)", "given")
    monkeypatch.chdir(tmp_path)
    pixels = np.round(255 * (0.5 + images[:9] / 2)).astype(np.uint8)
    for image, answer in zip(pixels, answers, strict=False):
        exec(code, names := {"given": image})
        assert names["outputs"].argmax() == answer


def tflite_answers(path, images):
    """The classes that the int8 file at `path` gives to float32 images."""
    import tensorflow as tf

    interpreter = tf.lite.Interpreter(str(path))
    interpreter.allocate_tensors()
    (into,), (out,) = interpreter.get_input_details(), interpreter.get_output_details()
    scale, zero = into["quantization"]
    for image in images:
        numbers = np.clip(np.round(image / np.float32(scale)) + zero, -128, 127).astype(np.int8)
        interpreter.set_tensor(into["index"], numbers[np.newaxis])
        interpreter.invoke()
        yield interpreter.get_tensor(out["index"])[0].argmax()


def test_ranges_of_int8_come_from_training_images_as_they_are_evaluated(run, tmp_path, monkeypatch):
    honest, given = formats.FORMATS[formats.INT8], []

    def write(network, images):
        given.append(images)
        return honest.write(network, images)

    monkeypatch.setitem(formats.FORMATS, formats.INT8, honest._replace(write=write))

    export(run, QUIET, "q90-step-000000", "tflite", tmp_path / "x.tflite", int8=True)

    ticket, dense = given
    np.testing.assert_array_equal(ticket, dense)
    pixels = [image.tobytes() for image in np.round(255 * (0.5 + ticket / 2)).astype(np.uint8)]
    training, _ = prepared_sets.read_split(run.records(), run.manifest(), "train")
    assert len(pixels) == 256
    assert {*pixels} <= {image.tobytes() for image in training}
    assert len({*pixels}) > 250  # a few images of the set are alike


def test_int8_that_cannot_be_had_is_one_line(tiny_run, tmp_path, monkeypatch):
    run = tiny_run()

    def refused(to, words):
        with pytest.raises(InputError, match=words) as raised:
            export(run, QUIET, "dense", to, int8=True)
        assert "\n" not in str(raised.value)
        assert not (run.folder / "export").exists()

    refused("onnx", "^--int8 is for --to tflite, and not for --to onnx$")
    texts = dataclasses.replace(run.manifest(), fields={"document": prepared_sets.Field("|u1", (192,))})
    with monkeypatch.context() as patched:
        patched.setattr(Run, "manifest", lambda run: texts)
        refused("tflite", "^--to tflite is for networks of images: ")
    (run.records() / run.manifest().shards_of("test")[0].name).unlink()
    refused("tflite", r"test.*\.tfrecord is missing: run `imp prepare")
    (run.records() / prepared_sets.MANIFEST).unlink()
    refused("tflite", "^no records in ")


def test_int8_of_a_user_s_own_task_is_tested_by_its_metric(tiny_run):
    own = examples.Examples(tiny_run(task="test_own_tasks:Value", outputs=1))
    images, labels = own.drawn("test", 99)
    content = formats.make("tflite_int8", lenet(), own.task.signature, initial(classes=1), images=images).content

    outputs = litert_session.Session(content).answers(images)[:, 0]
    assert examples.evaluate(content, own, QUIET) == (pytest.approx(np.mean(abs(outputs - labels) < 0.5)), None)


def test_an_npz_holds_weights_statistics_and_the_mask(run, tmp_path):
    export(run, QUIET, "q90-step-000000", "npz", tmp_path / "x.npz", variant="shuffle")

    state = store.load_state(run.replicate(1).folder / "oneshot/q90-step-000000/shuffle/final.h5")
    with np.load(tmp_path / "x.npz", allow_pickle=False) as arrays:
        found = dict(arrays)
    assert {name: array.tobytes() for name, array in found.items() if not name.startswith("mask/")} == {
        f"weights/{path}": array.tobytes() for path, array in state.weights.items()
    }
    assert {name for name in found if name.startswith("mask/")} == {"mask/fc1/kernel", "mask/fc2/kernel"}
    assert found["mask/fc1/kernel"].dtype == bool
    assert sum(int(found[f"mask/{path}"].sum()) for path in ("fc1/kernel", "fc2/kernel")) == round(
        0.1 * (192 * 300 + 300 * 100)
    )


def test_a_kept_weight_that_has_become_zero_is_still_kept_by_the_mask(tiny_run, tmp_path):
    run = tiny_run()
    state = initial()
    state.weights["fc1/kernel"][...] = 0
    final = run.replicate(1).folder / "oneshot/q90-step-000000/ticket/final.h5"
    store.save_state(final, state)
    relist(run.replicate(1), final)

    export(run, QUIET, "q90-step-000000", "npz", tmp_path / "x.npz")

    with np.load(tmp_path / "x.npz") as arrays:
        np.testing.assert_array_equal(arrays["mask/fc1/kernel"], initial().weights["fc1/kernel"] > 0)
        assert not arrays["weights/fc1/kernel"].any()


def test_averaged_weights_are_the_ones_exported(tiny_run, tmp_path, capsys):
    found = export(tiny_run(ema=0.9), Reporter(), "lr/round-03-step-000000", "npz", tmp_path / "x.npz")

    assert found["averaged"]
    assert "exporting averaged weights" in capsys.readouterr().err
    with np.load(tmp_path / "x.npz") as arrays:
        np.testing.assert_array_equal(arrays["weights/fc1/kernel"], initial().weights["fc1/kernel"] / 2)


def test_a_network_of_a_user_s_own_task_has_the_outputs_of_that_task(tiny_run, tmp_path):
    run = tiny_run(task="test_own_tasks:Value", outputs=1)

    export(run, QUIET, "lr/round-03-step-000000", "keras", tmp_path / "x.keras")

    assert keras.models.load_model(tmp_path / "x.keras").output_shape == (None, 1)


def test_files_lie_in_the_run_unless_told_otherwise(tiny_run):
    run = tiny_run()

    export(run, QUIET, "lr/round-03-step-000000", "npz")
    export(run, QUIET, "dense", "npz")

    written = run.folder / "export" / "replicate-1"
    assert sorted(path.name for path in written.iterdir()) == ["dense.npz", "lr-round-03-step-000000-ticket.npz"]
    assert default_path(run, "q90-step-000000", "keras", 2, "reinit") == (
        run.folder / "export/replicate-2/q90-step-000000-reinit.keras"
    )
    assert default_path(run, "dense", "torch", 1, "ticket").name == "dense.torch.safetensors"
    assert default_path(run, "dense", "tflite_sparse", 1, "ticket").name == "dense.tflite_sparse.tflite"


@pytest.mark.parametrize(
    ("ticket", "variant", "words"),
    [
        ("q90", "ticket", r"did you mean 'oneshot/q90-step-000000'"),
        (
            "q90-step-00000",
            "ticket",
            r"did you mean 'q90-step-000000'\?; finished are: dense, lr/round-03-step-000000, oneshot/",
        ),
        (
            "q90-step-000000",
            "reinit",
            r"no 'q90-step-000000 reinit' in .*replicate-1; did you mean '(oneshot/)?q90-step-000000'",
        ),
        (
            "nonsense",
            "ticket",
            r"no 'nonsense' in .*replicate-1; finished are: dense, lr/round-03-step-000000, oneshot/q90-step-000000$",
        ),
        ("../replicate-1/oneshot/q90-step-000000", "ticket", "finished are: dense"),
    ],
)
def test_a_network_that_is_not_there_is_one_line(ticket, variant, words, tiny_run, tmp_path):
    with pytest.raises(InputError, match=words) as raised:
        export(tiny_run(), QUIET, ticket, "npz", tmp_path / "x.npz", variant=variant)

    assert "\n" not in str(raised.value)
    assert not (tmp_path / "x.npz").exists()


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"status": "diverged", "reason": "step 9: loss nan"}, r"step-000000/ticket is diverged \(step 9: loss nan\)"),
        ({"status": "failed", "reason": "Traceback:\n  line\nOops: no"}, r"is failed \(Oops: no\)"),
        ({}, r"is not finished \(see `imp status`\)"),
    ],
)
def test_an_unfinished_network_says_so(result, words, tiny_run):
    run = tiny_run(**(result or {"status": "done"}))
    if not result:
        (run.replicate(1).folder / "oneshot/q50-step-000000/ticket/result.json").unlink()

    with pytest.raises(InputError, match=words):
        export(run, QUIET, "q50-step-000000", "npz")

    assert not (run.folder / "export").exists()


def test_an_unknown_format_is_one_line_that_lists_them_all(tmp_path):
    done = imp_here("export", "--ticket", "dense", "--to", "onyx", cwd=tmp_path, check=False)

    refused(done, "--to onyx: write keras, onnx, tflite, ", ", torch, folder")


def test_a_file_that_cannot_be_written_is_one_line(tiny_run, tmp_path):
    run = tiny_run()
    (tmp_path / "file").touch()
    (tmp_path / "folder.npz").mkdir()
    for out, words in (
        (tmp_path / "x.keras", r"its name must end in \.npz"),
        (tmp_path / "x", r"its name must end in \.npz"),
        (tmp_path / "folder.npz", "cannot be written"),
        (tmp_path / "file" / "x.npz", "cannot be written"),
    ):
        with pytest.raises(InputError, match=words):
            export(run, QUIET, "dense", "npz", out)
