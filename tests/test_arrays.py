"""NumPy archives of images and labels."""

import os
import pickle

import numpy as np
import pytest

from data_prep.sources import open_source
from lottery.base.errors import InputError

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 4, 5, 3)).astype(np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def archive(folder, **arrays):
    np.savez(folder / "set.npz", **arrays)
    return folder / "set.npz"


def read(split):
    return np.stack(split.part(np.arange(len(split.labels)))().pictures)


def refused(file):
    with pytest.raises(InputError) as refusal:
        open_source(f"arrays:{file}")
    assert "\n" not in str(refusal.value)
    assert str(file) in str(refusal.value)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (("images", "labels"), ("test_images", "test_labels")),
        (("x_train", "y_train"), None),
        (("x_train", "y_train"), ("x_val", "y_val")),
        (("train_images", "train_labels"), ("test_images", "test_labels")),
    ],
)
def test_the_arrays_may_be_called_as_keras_or_medmnist_call_them(tmp_path, train, test):
    pairs = {train[0]: IMAGES, train[1]: LABELS, **({test[0]: IMAGES[:2], test[1]: LABELS[:2]} if test else {})}

    source = open_source(f"arrays:{archive(tmp_path, **pairs)}")

    assert source.classes == ["0", "1", "2"]
    np.testing.assert_array_equal(read(source.train), IMAGES)
    assert source.train.labels.tolist() == LABELS.tolist()
    assert source.train.labels.dtype == np.int32
    if test is None:
        assert source.test is None
    else:
        np.testing.assert_array_equal(read(source.test), IMAGES[:2])
        assert source.test.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("save", "shape", "dtype"),
    [(np.savez, (6, 4, 5), np.uint8), (np.savez_compressed, (6, 4, 5, 1), np.uint16), (np.savez, (6, 4, 5, 4), np.uint16)],
)
def test_images_may_be_grey_or_coloured_of_8_or_16_bits_compressed_or_not(tmp_path, save, shape, dtype):
    images = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape).astype(dtype)
    save(tmp_path / "set.npz", images=images, labels=LABELS)

    found = read(open_source(f"arrays:{tmp_path / 'set.npz'}").train)

    np.testing.assert_array_equal(found, images)
    assert found.dtype == dtype


def test_labels_may_be_a_column(tmp_path):
    source = open_source(f"arrays:{archive(tmp_path, images=IMAGES, labels=LABELS.astype('>i2').reshape(6, 1))}")

    assert source.train.labels.tolist() == LABELS.tolist()


def test_arrays_that_are_passed_over_are_named(tmp_path):
    pairs = {"train_images": IMAGES, "train_labels": LABELS, "test_images": IMAGES, "test_labels": LABELS}

    assert open_source(f"arrays:{archive(tmp_path, **pairs)}").passed_over == ""
    file = archive(tmp_path, **pairs, val_images=IMAGES, val_labels=LABELS)
    assert open_source(f"arrays:{file}").passed_over == "val_images, val_labels"


def test_classes_have_the_names_that_the_file_gives(tmp_path):
    file = archive(tmp_path, images=IMAGES, labels=LABELS, classes=np.array(["cat", "dog", "Füchsin"]))

    assert open_source(f"arrays:{file}").classes == ["cat", "dog", "Füchsin"]
    file = archive(tmp_path, images=IMAGES, labels=LABELS, classes=np.array([b"cat", b"dog", "Füchsin".encode()]))
    assert open_source(f"arrays:{file}").classes == ["cat", "dog", "Füchsin"]


def test_some_images_are_asked_for_by_index_and_named_by_it(tmp_path):
    split = open_source(f"arrays:{archive(tmp_path, images=IMAGES, labels=LABELS)}").train

    pictures = split.part(np.array([4, 1]))()

    assert list(pictures.names) == ["images[4]", "images[1]"]
    np.testing.assert_array_equal(np.stack(pictures.pictures), IMAGES[[4, 1]])


def test_a_part_is_small_on_its_way_to_another_process(tmp_path, monkeypatch):
    images = np.zeros((6, 100, 100), np.uint8)
    archive(tmp_path, images=images, labels=LABELS)
    monkeypatch.chdir(tmp_path)
    sent = pickle.dumps(open_source("arrays:set.npz").train.part(np.array([2])))
    monkeypatch.chdir("/")

    assert len(sent) < 2000
    assert pickle.loads(sent)().pictures[0].shape == (100, 100)


def test_the_fingerprint_changes_with_the_file(tmp_path):
    before = open_source(f"arrays:{archive(tmp_path, images=IMAGES, labels=LABELS)}").train.fingerprint

    assert open_source(f"arrays:{tmp_path / 'set.npz'}").train.fingerprint == before
    assert open_source(f"arrays:{archive(tmp_path, images=IMAGES[1:], labels=LABELS[1:])}").train.fingerprint != before


@pytest.mark.parametrize("content", [b"", b"text", b"PK\3\4 and no more", bytes(300), *(-lost for lost in (1, 30, 200, 400))])
def test_a_file_that_is_no_archive_or_cut_short_is_refused(tmp_path, content):
    file = archive(tmp_path, images=IMAGES, labels=LABELS)
    file.write_bytes(content if isinstance(content, bytes) else file.read_bytes()[:content])

    assert "numpy.savez" in refused(file)


@pytest.mark.parametrize("make", [lambda path: None, os.mkfifo], ids=["missing", "pipe"])
def test_a_missing_file_or_a_pipe_is_refused_and_not_waited_for(tmp_path, make):
    make(tmp_path / "set.npz")

    assert "there is no file" in refused(tmp_path / "set.npz")


def test_an_archive_with_altered_bytes_is_refused(tmp_path):
    file = archive(tmp_path, images=np.zeros((6, 40, 50), np.uint8), labels=LABELS)
    content = bytearray(file.read_bytes())
    content[5000] ^= 1
    file.write_bytes(content)

    assert "images cannot be read" in refused(file)


@pytest.mark.parametrize(
    "arrays",
    [
        {"images": np.array([None] * 6), "labels": LABELS},
        {"images": IMAGES, "labels": np.array(list("abcdef"), object)},
        {"images": IMAGES, "labels": LABELS, "classes": np.array(["a", "b", None], object)},
    ],
    ids=["images", "labels", "classes"],
)
def test_pickled_objects_are_never_loaded(tmp_path, arrays):
    assert "cannot be read" in refused(archive(tmp_path, **arrays))


@pytest.mark.parametrize("keys", [{}, {"images": IMAGES}, {"labels": LABELS}, {"x_train": IMAGES, "labels": LABELS}])
def test_arrays_of_other_names_are_refused_with_those_there_are(tmp_path, keys):
    line = refused(archive(tmp_path, **keys))

    assert ", ".join(sorted(keys)) in line
    assert "it needs `images` and `labels` or `x_train`" in line


ONE_EACH = "one integer for each of the 6 images"
NO_GAPS = "number the classes without gaps"


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        *(
            ({"images": IMAGES.astype(dtype)}, f"images is {np.dtype(dtype)}: give uint8")
            for dtype in ("f4", "f8", "i1", "i8", "?", "S1")
        ),
        *(
            ({"images": np.zeros(shape, np.uint8)}, f"images has shape {shape}")
            for shape in [(6,), (6, 20), (6, 4, 5, 2), (6, 4, 5, 3, 1), (), (6, 0, 5), (6, 4, 0, 3)]
        ),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, "there is no image in it"),
        *(
            ({"labels": labels}, f"{labels.shape}: give {ONE_EACH}")
            for labels in (LABELS[:5], LABELS.astype(float), np.array(list("abcabc")), np.eye(6, 3, dtype=int), np.array(1))
        ),
        ({"labels": [-1, 1, 2, 0, 1, 2]}, "labels goes from -1 to 2: number the classes from 0"),
        ({"labels": [0, 0, 0, 2, 2, 2]}, NO_GAPS),
        ({"classes": np.array(["cat", "dog", "cat"])}, "`classes` names 'cat' twice: give each class a name of its own"),
        ({"classes": np.array([b"cat", b"dog", b"\xff"])}, "`classes` are bytes that are no UTF-8"),
        ({"classes": np.array(["cat", "dog"])}, "the labels go to 2, but `classes` names 2"),
        ({"classes": np.array(["cat", "dog", "fox", "owl"])}, "the class owl has no training image"),
        (
            {"test_images": IMAGES[:2], "test_labels": [0, 3]},
            "test_labels has classes that labels has not: there are 3",
        ),
    ],
)
def test_arrays_that_are_not_labelled_images_are_refused(tmp_path, arrays, words):
    assert words in refused(archive(tmp_path, **{"images": IMAGES, "labels": LABELS, **arrays}))
