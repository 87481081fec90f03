"""Weights and masks from elsewhere: their names and layout, networks of PyTorch computed again, and files that are refused."""

import io
import pickle
import struct
import sys
from functools import cache
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers import LENET, imp_here, large, lenet, refused, settings
from safetensors.numpy import load_file, save

from lottery.base import files
from lottery.base.errors import InputError
from lottery.engine import foreign, formats, models, signature
from lottery.engine.foreign import names
from lottery.engine.foreign.names import dialects, from_torch, to_torch
from lottery.experiment import networks
from lottery.experiment.recipe import Model
from lottery.pruning.state import State
from lottery.rundir import store

pytestmark = pytest.mark.usefixtures("tensorflow")

IMAGE = (8, 8, 3)
TWIN = {"padding": "symmetric", "batchnorm_epsilon": 1e-5}
LARGE = ("resnet50", "resnet56")
TWINS_OF_IMAGES = [
    *(name for name in names._TWINS if name not in (*networks.TRANSFORMERS, *LARGE)),
    *large(*LARGE),
]
DENSE = "runs/digits/replicate-1/train"


@pytest.fixture
def twins():
    """Networks of PyTorch, if that is installed."""
    pytest.importorskip("torch")
    import torch_twins

    return torch_twins


def drawn(model: Model | None = None, image=IMAGE, classes: int = 3, seed: int = 1) -> State:
    return models.initial_weights(model or lenet(), signature.images(image[0], classes, image[2]), seed)


drawn_once = cache(lambda name: drawn(Model(name=name)))


def arrays_of(state: State) -> dict[str, np.ndarray]:
    return state.weights | state.statistics


def in_torch_names(model: Model, state: State, image=IMAGE, place: int = 0) -> dict[str, np.ndarray]:
    dialect = [one for one in dialects(model.name, state) if one.is_torch][place]
    return {dialect.names[path]: np.ascontiguousarray(to_torch(path, array, image)) for path, array in arrays_of(state).items()}


def in_our_names(state: State) -> dict[str, np.ndarray]:
    return {f"{group}/{one}": array for group in ("weights", "statistics") for one, array in getattr(state, group).items()}


def write(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    """A file of these arrays, of the kind that its name says."""
    match path.suffix:
        case ".npz":
            np.savez(path, **arrays)
        case ".safetensors":
            path.write_bytes(save(arrays))
        case ".pth":
            torch = pytest.importorskip("torch")
            torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)
    return path


def loaded(path: Path, model: Model | None = None) -> foreign.Loaded:
    return foreign.load(path, model or lenet(), IMAGE, drawn(model))


def expect_the_same(found: foreign.Loaded, state: State) -> None:
    for group, expected in ((found.weights, state.weights), (found.statistics, state.statistics)):
        assert group.keys() == expected.keys()
        for path, array in expected.items():
            np.testing.assert_array_equal(group[path], array)
            assert group[path].dtype == array.dtype


@pytest.mark.parametrize("model", TWINS_OF_IMAGES)
def test_every_variable_has_a_name_of_its_own_in_pytorch_and_comes_back_bit_for_bit(model):
    state = drawn(Model(name=model))
    for dialect in dialects(model, state):
        assert dialect.names.keys() == arrays_of(state).keys()
        assert len(set(dialect.names.values())) == len(dialect.names)
    for path, array in arrays_of(state).items():
        array = np.random.default_rng(0).normal(size=array.shape)
        foreign_array = to_torch(path, array, IMAGE)
        np.testing.assert_array_equal(from_torch(path, foreign_array, IMAGE), array)
        if path.endswith("kernel"):
            assert foreign_array.shape[0] == array.shape[-2 if path.endswith("depthwise/kernel") else -1]


@pytest.mark.parametrize(
    ("model", "title", "path", "name"),
    [
        ("mobilenet_v2", "torchvision", "Conv1/kernel", "features.0.0.weight"),
        ("mobilenet_v2", "torchvision", "block_16_depthwise_BN/beta", "features.17.conv.1.1.bias"),
        ("mobilenet_v2", "timm", "expanded_conv_project/kernel", "blocks.0.0.conv_pw.weight"),
        ("resnet50", "torchvision", "stage4_block3_bn2/moving_mean", "layer4.2.bn2.running_mean"),
        ("resnet20", "open_lth", "stage2_block1_conv1/kernel", "blocks.3.conv1.weight"),
        ("lenet_300_100", "open_lth", "predictions/kernel", "fc.weight"),
    ],
)
def test_names_are_those_of_the_published_code(model, title, path, name):
    found = next(one for one in dialects(model, drawn_once(model)) if one.title == title)

    assert found.names[path] == name


def test_kernels_of_pytorch_have_their_outputs_first():
    kernel = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)

    assert to_torch("conv1/kernel", kernel, IMAGE)[4, 3, 1, 2] == kernel[1, 2, 3, 4]
    assert to_torch("block_1_depthwise/kernel", kernel[..., :1], IMAGE)[3, 0, 1, 2] == kernel[1, 2, 3, 0]
    assert to_torch("predictions/kernel", kernel[0, 0], IMAGE)[4, 3] == kernel[0, 0, 3, 4]
    pixels = np.arange(2 * 3 * 4 * 5).reshape(24, 5)  # of images of 2x3 pixels and 4 channels, which PyTorch has first
    assert to_torch("fc1/kernel", pixels, (2, 3, 4))[4, 3 * 6 + 1 * 3 + 2] == pixels[(1 * 3 + 2) * 4 + 3, 4]


CASES = {
    "torchvision mobilenet_v2": (lambda vision, *_: vision.mobilenet_v2(), "mobilenet_v2", (64, 64, 3), 1000),
    "torchvision resnet50": (lambda vision, *_: vision.resnet50(), "resnet50", (64, 64, 3), 1000),
    "timm mobilenetv2_100": (lambda _, timm, __: timm.create_model("mobilenetv2_100"), "mobilenet_v2", (64, 64, 3), 1000),
    "timm resnet50": (lambda _, timm, __: timm.create_model("resnet50"), "resnet50", (64, 64, 3), 1000),
    "open_lth cifar_resnet_20": (lambda *libraries: libraries[2].OpenLthResnet(), "resnet20", (32, 32, 3), 10),
    "open_lth cifar_resnet_56_8": (lambda *libraries: libraries[2].OpenLthResnet(8, 9), "resnet56", (32, 32, 3), 10),
    "open_lth mnist_lenet_300_100": (lambda *libraries: libraries[2].OpenLthLenet(), "lenet_300_100", (28, 28, 1), 10),
    "its images in colour": (lambda *libraries: libraries[2].OpenLthLenet(192), "lenet_300_100", (8, 8, 3), 10),
}


@pytest.mark.parametrize("case", CASES)
def test_a_network_of_pytorch_computes_the_same_here_and_comes_back(case, twins, tmp_path):
    import torch

    make, name, image, classes = CASES[case]
    try:
        import timm
        import torchvision
    except Exception as error:  # of torchvision, which may have been built for another PyTorch
        if "open_lth" not in case and "images" not in case:
            pytest.skip(f"no torchvision or timm: {error}")
        timm = torchvision = None
    torch.manual_seed(0)
    network = twins.randomised(make(torchvision and torchvision.models, timm, twins))
    model = Model(name=name, alpha=1.0, width=8 if case.endswith("_8") else 0, **TWIN)
    state = drawn(model, image, classes)
    torch.save({"state_dict": {f"module.{key}": value for key, value in network.state_dict().items()}}, tmp_path / "x.pth")

    found = foreign.load(tmp_path / "x.pth", model, image, state)

    assert found.notes == []
    ours = models.build(model, signature.images(image[0], classes, image[2]))
    models.assign({variable.path: variable for variable in ours.variables}, found.weights | found.statistics)
    images = np.random.default_rng(0).normal(size=(2, *image)).astype(np.float32)
    expected = twins.outputs(network, images)
    assert np.ptp(expected, axis=0).max() > 0.01 * np.abs(expected).max()  # it sees its images
    outputs = np.asarray(ours(images, training=False))
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    if "timm" in case:
        return
    (tmp_path / "y.safetensors").write_bytes(foreign.to_torch(model, image, State(0, found.weights, found.statistics, {}))[0])
    before = {key: value.numpy() for key, value in network.state_dict().items() if not key.endswith("tracked")}
    after = load_file(tmp_path / "y.safetensors")
    assert after.keys() == before.keys()
    assert all(np.array_equal(after[key], before[key]) for key in before)
    back = make(torchvision and torchvision.models, timm, twins)
    back.load_state_dict({key: torch.from_numpy(value) for key, value in after.items()})  # complains of any that is missing
    np.testing.assert_array_equal(twins.outputs(back.eval(), images), expected)


@pytest.mark.parametrize("name", ["resnet20", "lenet_300_100", *large("mobilenet_v2", *LARGE)])
def test_what_is_exported_to_pytorch_comes_back_bit_for_bit(name, tmp_path):
    model = Model(name=name)
    state = drawn(model, seed=3)

    content, notes = foreign.to_torch(model, IMAGE, state)

    (tmp_path / "x.safetensors").write_bytes(content)
    expect_the_same(loaded(tmp_path / "x.safetensors", model), state)
    assert content == foreign.to_torch(model, IMAGE, state)[0]
    kernels = [array for path, array in state.weights.items() if path.endswith("kernel")]
    shapes = [array.shape for array in load_file(tmp_path / "x.safetensors").values() if array.ndim > 1]
    assert sorted(map(sorted, shapes)) == sorted(sorted(kernel.shape) for kernel in kernels)
    assert any("PyTorch pads otherwise" in note for note in notes) == (name != "lenet_300_100")
    assert ("set eps of every BatchNorm2d to 0.001" in notes) == (name != "lenet_300_100")
    if name != "lenet_300_100":
        assert len(foreign.to_torch(Model(name=name, **TWIN), IMAGE, state)[1]) == 1


def test_a_network_without_a_twin_is_not_exported_to_pytorch():
    with pytest.raises(InputError, match="conv2 has no twin in PyTorch whose names could be used: export to npz"):
        foreign.to_torch(Model(name="conv2"), IMAGE, drawn(Model(name="conv2")))


@pytest.mark.parametrize(("name", "place"), [("resnet20", 1), ("lenet_300_100", 0)])
def test_safetensors_in_the_names_of_pytorch_need_no_pytorch(name, place, tmp_path):
    model = Model(name=name, **TWIN)
    state = drawn(model, seed=2)
    content = in_torch_names(model, state, place=place)
    content["features.0.1.num_batches_tracked"] = np.array(3)

    expect_the_same(loaded(write(tmp_path / "x.safetensors", content), model), state)


def test_other_padding_and_epsilon_than_pytorchs_are_said(tmp_path):
    model = Model(name="resnet20", width=4)

    (note,) = loaded(write(tmp_path / "x.safetensors", in_torch_names(model, drawn(model))), model).notes

    assert note.endswith("as there, with --set model.padding=symmetric --set model.batchnorm_epsilon=1e-05")


@pytest.mark.parametrize(
    ("name", "ending"),
    [("tiny:parts", ".keras"), ("tiny:local", ".weights.h5"), ("tiny:parts", ".npz"), ("tiny:local", ".safetensors")],
)
def test_files_of_this_package_and_of_keras_give_the_weights_back(name, ending, tmp_path):
    model, path = Model(name=name), tmp_path / f"x{ending}"
    state = drawn(model, seed=2)
    match ending:
        case ".npz":
            write(path, in_our_names(state) | {"mask/fc1/kernel": np.ones(3, bool)})
        case ".safetensors":
            write(path, in_our_names(state))
        case ".keras":
            path.write_bytes(formats.make("keras", model, signature.images(IMAGE[0], 3), state).content)
        case ".weights.h5":
            network = formats.rebuilt(model, signature.images(IMAGE[0], 3), state)
            network.compile("adam", "mse")
            network.optimizer.build(network.trainable_variables)
            network.save_weights(path)

    expect_the_same(loaded(path, model), state)


def test_the_head_for_another_number_of_classes_is_left_out_and_said(tmp_path):
    big = drawn(classes=7)
    for content in (in_torch_names(lenet(), big), in_our_names(big)):
        found = loaded(write(tmp_path / "x.safetensors", content))

        assert found.weights.keys() == big.weights.keys() - {"predictions/kernel", "predictions/bias"}
        (note,) = found.notes
        assert note.endswith("x.safetensors has 7 classes, the images 3: predictions is drawn by seed")


def test_halves_are_read_as_they_are(tmp_path):
    import ml_dtypes

    for dtype in (np.float16, ml_dtypes.bfloat16):
        state = drawn()
        for array in state.weights.values():
            array[...] = array.astype(dtype)
        halves = {name: array.astype(dtype) for name, array in in_our_names(state).items()}

        expect_the_same(loaded(write(tmp_path / "x.safetensors", halves)), state)


HEADER = b'{"fc.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
NOT_FINITE = "values that are not finite numbers"
UNFIT = {
    "lacks": ({"fc.bias": None}, "does not fit lenet_300_100, by the names of open_lth: it lacks fc.bias (predictions/bias)"),
    "unknown": ({"more": np.ones(1)}, "it has the unknown 'more'"),
    "path": ({"../../etc/passwd": np.ones(1), "/etc/x": np.ones(1)}, "it has the unknown '../../etc/passwd' and 1 more"),
    "shape": ({"fc_layers.1.bias": np.ones(7)}, "fc_layers.1.bias (fc2/bias) has the shape (7,), lenet_300_100 has (100,)"),
    "NaN": ({"fc.weight": np.full((3, 100), np.nan)}, f"predictions/kernel has {NOT_FINITE}"),
    "integers": ({"fc.bias": np.ones(3, int)}, f"predictions/bias has {NOT_FINITE}"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_does_not_fit_the_network_is_named(case, tmp_path):
    changed, said = UNFIT[case]
    content = in_torch_names(lenet(), drawn()) | changed
    path = write(tmp_path / "x.safetensors", {name: array for name, array in content.items() if array is not None})

    with pytest.raises(InputError) as caught:
        loaded(path)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_of_statistics_none_may_be_lacking(tmp_path):
    model = Model(name="resnet20", width=4)
    state = drawn(model)
    next(iter(state.statistics.values()))[0] = np.nan
    path = write(tmp_path / "x.safetensors", in_our_names(state))

    with pytest.raises(InputError, match=f"^[^\\n]*moving_mean has {NOT_FINITE}[^\\n]*$"):
        loaded(path, model)


def test_a_file_of_another_network_is_told_by_its_names(tmp_path):
    path = write(tmp_path / "x.safetensors", {"encoder.weight": np.ones(3), "encoder.bias": np.ones(3)})

    with pytest.raises(InputError, match=r"no name of the network in imp, Keras, open_lth: 'encoder.bias' and 1 more"):
        loaded(path)


class Code:
    """What runs when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("run"),)


def hdf5(fill):
    written = io.BytesIO()
    with h5py.File(written, "w") as file:
        fill(file)
    return written.getvalue()


HOSTILE = {
    "code.pth": pickle.dumps({"state_dict": Code()}),
    "header.safetensors": struct.pack("<Q", 2**60) + b"{}",
    "longer.safetensors": struct.pack("<Q", len(HEADER) + 1) + HEADER,
    "cut.safetensors": struct.pack("<Q", len(HEADER)) + HEADER + b"\0\0\0",
    "negative.safetensors": struct.pack("<Q", len(HEADER)) + HEADER.replace(b"[1]", b"[-1]") + b"\0" * 4,
    "text.keras": b"these are no weights\n",
    "text.weights.h5": b"these are no weights\n",
    "other.npz": b"PK\x05\x06" + bytes(18),
    "pickled.npz": None,
    "weights.onnx": b"\x08\x07",
    "virtual.weights.h5": hdf5(
        lambda file: file.create_virtual_dataset("layers/x/vars/0", h5py.VirtualLayout((3,), "f4"), fillvalue=0)
    ),
    "external.weights.h5": hdf5(
        lambda file: file.create_dataset("layers/x/vars/0", (3,), "f4", external=[("/etc/hostname", 0, h5py.h5f.UNLIMITED)])
    ),
    "linked.weights.h5": hdf5(lambda file: file.__setitem__("layers", h5py.ExternalLink("/etc/hostname", "/"))),
    "missing.safetensors": None,
    "folder.keras": None,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_and_damaged_files_are_refused_in_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    if name == "pickled.npz":
        np.savez(path, **{"weights/fc1/kernel": np.array([Code()], object)})
    elif HOSTILE[name] is not None:
        path.write_bytes(HOSTILE[name])
    elif name.startswith("folder"):
        path.mkdir()

    with pytest.raises(InputError) as caught:
        loaded(path)

    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert not (tmp_path / "run").exists()


NO_ARRAYS = {
    "texts": lambda file: [b"text"] * 100,
    "references": lambda file: np.array([file.ref] * 100, h5py.ref_dtype),
}


@pytest.mark.parametrize("case", NO_ARRAYS)
def test_a_variable_that_is_no_array_of_numbers_is_refused(case, tmp_path):
    state, path = drawn(), tmp_path / "x.weights.h5"
    with h5py.File(path, "w") as file:
        for one, name in next(
            dialect for dialect in dialects("lenet_300_100", state) if dialect.title == "Keras"
        ).names.items():
            layer, place = name.split("/")
            group = file.require_group(f"layers/{layer}/vars")
            group.attrs["name"] = layer
            group[place] = NO_ARRAYS[case](file) if one == "fc2/bias" else arrays_of(state)[one]

    with pytest.raises(InputError, match=r"x\.weights\.h5 cannot be read as weights \(layers/fc2/vars/1 holds no numbers"):
        loaded(path)


def test_without_pytorch_its_files_are_not_opened_and_the_way_out_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    Path("x.pth").write_bytes(HOSTILE["code.pth"])

    with pytest.raises(InputError, match=r"^x\.pth needs torch: pip install 'imp-lottery\[torch\]'$"):
        loaded(Path("x.pth"))

    assert not Path("run").exists()


@pytest.mark.parametrize("ending", [".pth", ".keras", ".npz", ".safetensors"])
def test_a_file_that_is_cut_anywhere_is_refused(ending, tmp_path):
    state, path = drawn(), tmp_path / f"x{ending}"
    if ending == ".keras":
        path.write_bytes(formats.make("keras", lenet(), signature.images(IMAGE[0], 3), state).content)
    else:
        write(path, in_our_names(state) if ending == ".npz" else in_torch_names(lenet(), state))
    content = path.read_bytes()
    for share in (0.01, 0.3, 0.9, 0.999):
        path.write_bytes(content[: int(len(content) * share)])
        with pytest.raises(InputError, match="name another file"):
            loaded(path)


@pytest.mark.parametrize("ending", [".pth", ".safetensors", ".npz"])
def test_a_mask_of_open_lth_is_read_by_our_names(ending, tmp_path):
    model, path = Model(name="resnet20", width=4), tmp_path / f"mask{ending}"
    state, rng = drawn(model), np.random.default_rng(0)
    mask = {one: rng.random(array.shape) < 0.3 for one, array in state.weights.items() if one.endswith("kernel")}
    shapes = {one: array.shape for one, array in mask.items()}
    theirs = in_torch_names(model, State(0, {one: array.astype(np.int32) for one, array in mask.items()}, {}, {}))
    ours = {f"mask/{one}": array for one, array in mask.items()} | {"weights/conv1/kernel": np.ones(2)}
    write(path, ours if ending == ".npz" else theirs)

    found = foreign.read_mask(path, model.name, IMAGE, shapes)

    assert found.keys() == mask.keys()
    for one, kept in mask.items():
        np.testing.assert_array_equal(found[one], kept)
        assert found[one].dtype == bool


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fc.weight": np.full((3, 100), 0.5)}, "fc.weight has values other than 0 and 1, so it is no mask"),
        ({"fc.weight": np.ones((3, 99))}, "fc.weight (predictions/kernel) has the shape (3, 99), lenet_300_100 has (3, 100)"),
        ({"conv.weight": np.ones(3)}, "lenet_300_100 has no kernel 'conv.weight' to mask"),
    ],
)
def test_what_is_no_mask_of_the_network_is_refused(change, said, tmp_path):
    kernels = {"predictions/kernel": (100, 3), "fc2/kernel": (300, 100)}
    path = write(tmp_path / "x.safetensors", {"fc.weight": np.ones((3, 100)), **change})

    with pytest.raises(InputError) as caught:
        foreign.read_mask(path, "lenet_300_100", IMAGE, kernels)

    assert said in str(caught.value)


@pytest.fixture
def given(prepared):
    """A folder with records, a recipe's options, and a file of weights in the names of PyTorch."""
    state = drawn(Model(name="lenet_300_100", initializer="glorot_normal"), (8, 8, 3), 10, seed=7)
    write(prepared / "x.safetensors", in_torch_names(Model(name="lenet_300_100"), state))
    return prepared, state


def test_a_dense_training_begins_with_the_weights_of_a_file_and_with_no_others_later(given):
    folder, state = given
    done = imp_here("train", *LENET, "--from", "x.safetensors", *settings("replicates=2"), cwd=folder)

    assert done.returncode == 0
    for number in (1, 2):
        start = store.load_state(folder / f"runs/digits/replicate-{number}/train/snapshots/step-000000.h5")
        for path, array in state.weights.items():
            np.testing.assert_array_equal(start.weights[path], array)
    later = "train/snapshots/step-000010.h5"
    first, second = (store.load_state(folder / f"runs/digits/replicate-{number}/{later}") for number in (1, 2))
    assert not np.array_equal(first.weights["fc1/kernel"], second.weights["fc1/kernel"])  # images came in other orders
    result = files.read_json(folder / DENSE / "result.json")
    assert result["made_from"]["weights"] == files.sha256((folder / "x.safetensors").read_bytes())

    assert imp_here("train", cwd=folder).returncode == 0
    (folder / "x.safetensors").rename(folder / "moved.safetensors")
    assert imp_here("train", cwd=folder).returncode == 0  # for nothing is left to train
    assert imp_here("train", "--from", "moved.safetensors", cwd=folder).returncode == 0
    gone = imp_here("train", "--from", "x.safetensors", cwd=folder, check=False)
    refused(gone, "--from x.safetensors: there is no such file")
    other = {name: array + 1 for name, array in in_torch_names(Model(name="lenet_300_100"), state).items()}
    write(folder / "x.safetensors", other)
    again = imp_here("train", "--from", "x.safetensors", cwd=folder, check=False)
    refused(again, "was made from other weights than those in the file of model.weights: name their file, or start a new run")
    drawn_now = imp_here("train", *settings("model.weights="), cwd=folder, check=False)
    refused(drawn_now, "model.weights was 'those of a file', is None")


def test_a_file_that_cannot_begin_a_training_leaves_nothing_behind(given):
    folder, _ = given
    (folder / "y.safetensors").write_bytes(struct.pack("<Q", 2**60))

    done = imp_here("train", *LENET, "--from", "y.safetensors", cwd=folder, check=False)

    assert done.returncode == 2
    assert "y.safetensors cannot be read as weights (" in done.stderr.splitlines()[-1]
    assert not (folder / DENSE).exists()


def test_fresh_weights_are_drawn_all_the_same(make_trainer, tmp_path):
    model = lenet().model_copy(update={"weights": str(tmp_path / "x.safetensors")})
    state = drawn(seed=7)
    write(Path(model.weights), in_torch_names(model, state))
    trainer = make_trainer(model)

    assert all(np.array_equal(trainer.begun(5).weights[path], array) for path, array in state.weights.items())
    assert all(np.array_equal(trainer.drawn(5).weights[path], array) for path, array in drawn(seed=5).weights.items())
