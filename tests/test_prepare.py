"""Preparing a set: one size, three stratified splits, done once."""

import collections
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from data_prep import prepare as preparing
from data_prep import records, sources
from data_prep.errors import InputError
from data_prep.prepare import Settings, fit, prepare, stratified

DIGITS = Settings("digits", 8, 0.2, 0.2, 0)
SPLITS = ("train", "validation", "test")


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The digits at their own size, prepared once: folder and manifest."""
    folder = tmp_path_factory.mktemp("data") / "digits-8"
    return folder, prepare(DIGITS, folder)


def read(folder, manifest):
    return {split: records.read_split(folder, manifest, split) for split in SPLITS}


def raw_digits():
    """The digits as they come, as grey images of 0 .. 255, and their labels."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.floor(bunch.images * 255 / 16 + 0.5).astype(np.uint8), bunch.target


def test_the_folder_of_a_set_says_what_and_how_large():
    assert DIGITS.folder(Path("data")) == Path("data/digits-8")
    assert dataclasses.replace(DIGITS, source="tfds:imagenet_resized/64x64", size=64).folder(Path("data")) == Path(
        "data/tfds-imagenet_resized-64x64-64"
    )


def test_the_three_splits_of_the_digits_are_all_1797_images_each_once(digits):
    images, labels = raw_digits()

    found = collections.Counter(
        (image.tobytes(), int(label)) for part in read(*digits).values() for image, label in zip(*part, strict=True)
    )

    expected = np.repeat(images[..., None], 3, axis=-1)
    assert found == collections.Counter((image.tobytes(), int(label)) for image, label in zip(expected, labels, strict=True))
    assert sum(found.values()) == 1797


def test_the_splits_of_the_digits_are_stratified(digits):
    totals = np.bincount(raw_digits()[1])
    counts = {split: np.bincount(labels) for split, (_, labels) in read(*digits).items()}

    for label, total in enumerate(totals):
        test = round(0.2 * int(total))
        validation = round(0.2 * (int(total) - test))
        assert [counts[split][label] for split in SPLITS] == [total - test - validation, validation, test]


def test_the_manifest_says_what_the_set_is(digits):
    _, manifest = digits

    assert manifest.shape == (8, 8, 3)
    assert manifest.classes == [str(digit) for digit in range(10)]
    assert manifest.made_with == {"source": "digits", "size": 8, "validation": 0.2, "test": 0.2, "split_seed": 0}
    assert sum(manifest.count(split) for split in SPLITS) == 1797


def test_the_same_settings_give_the_same_bytes(digits, tmp_path):
    assert prepare(DIGITS, tmp_path) == digits[1]


def test_another_seed_gives_another_split_of_the_same_sizes(digits, tmp_path):
    other = prepare(dataclasses.replace(DIGITS, split_seed=1), tmp_path)

    assert [shard.count for shard in other.shards] == [shard.count for shard in digits[1].shards]
    assert all(one.sha256 != two.sha256 for one, two in zip(other.shards, digits[1].shards, strict=True))


def test_a_set_that_is_there_is_left_as_it_is(digits):
    folder, manifest = digits
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}

    assert prepare(DIGITS, folder) == manifest
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_set_made_with_other_settings_is_refused_with_both_values(digits):
    with pytest.raises(InputError, match=r"data\.validation 0\.2 there, 0\.3 wanted; data\.split_seed 0 there, 5 wanted"):
        prepare(dataclasses.replace(DIGITS, validation=0.3, split_seed=5), digits[0])


@pytest.mark.parametrize(
    ("change", "split"), [({"validation": 0.0}, "validation"), ({"test": 0.0}, "test"), ({"test": 0.999}, "train")]
)
def test_a_split_that_would_be_empty_is_refused_before_anything_is_written(tmp_path, change, split):
    with pytest.raises(InputError, match=f"the {split} split of digits would be empty"):
        prepare(dataclasses.replace(DIGITS, **change), tmp_path / "digits")

    assert not (tmp_path / "digits").exists()


def noise(count, label=lambda index: index % 2):
    """A source of small noise images in two classes, with a test split of its own: the last 4."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 9, 12, 3)).astype(np.uint8)

    def split(part):
        return lambda: ((images[index], label(index)) for index in part)

    return sources.Source(["0", "1"], {"train": split(range(count - 4)), "test": split(range(count - 4, count))})


def test_a_test_split_of_the_source_is_kept_whole(monkeypatch, tmp_path):
    monkeypatch.setattr(preparing, "open_source", lambda _: noise(24))

    manifest = prepare(Settings("noise", 8, 0.2, 0.5, 0), tmp_path)

    assert [manifest.count(split) for split in SPLITS] == [16, 4, 4]
    assert records.read_split(tmp_path, manifest, "test")[1].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("label", [-1, 2])
@pytest.mark.parametrize(("split", "odd_ones"), [("train", range(20)), ("train", range(10)), ("test", range(20, 24))])
def test_images_without_a_class_are_refused_before_anything_is_written(monkeypatch, tmp_path, label, split, odd_ones):
    source = noise(24, lambda index: label if index in odd_ones else index % 2)
    monkeypatch.setattr(preparing, "open_source", lambda _: source)

    with pytest.raises(InputError, match=f"the {split} split of noise has images without a class"):
        prepare(Settings("noise", 8, 0.2, 0.5, 0), tmp_path / "noise")

    assert not (tmp_path / "noise").exists()


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_split_that_the_source_has_no_images_of_is_refused(monkeypatch, tmp_path, split):
    source = noise(24)
    source.splits[split] = lambda: iter(())
    monkeypatch.setattr(preparing, "open_source", lambda _: source)

    with pytest.raises(InputError, match=f"the {split} split of noise would be empty"):
        prepare(Settings("noise", 8, 0.2, 0.5, 0), tmp_path / "noise")


def test_a_killed_preparation_is_begun_again(monkeypatch, tmp_path):
    monkeypatch.setattr(preparing, "open_source", lambda _: noise(24))
    (tmp_path / "train-00000.tfrecord").write_bytes(b"half")
    (tmp_path / ".train-00001.tfrecord.9.tmp").write_bytes(b"half")

    manifest = prepare(Settings("noise", 8, 0.2, 0.5, 0), tmp_path)

    assert len(records.read_split(tmp_path, manifest, "train")[0]) == 16
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "manifest.json",
        "test-00000.tfrecord",
        "train-00000.tfrecord",
        "validation-00000.tfrecord",
    ]


def test_an_unknown_source_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(InputError, match=r"unknown data source 'mnist'.*`tfds:NAME`"):
        prepare(dataclasses.replace(DIGITS, source="mnist"), tmp_path / "mnist")


@settings(deadline=None)
@given(
    labels=hnp.arrays(np.int32, st.integers(0, 60), elements=st.integers(0, 4)),
    fraction=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_stratifying_marks_the_same_share_of_each_class(labels, fraction, seed):
    marked = stratified(labels, fraction, seed)

    assert (marked.dtype, marked.shape) == (bool, labels.shape)
    for label in set(labels.tolist()):
        assert marked[labels == label].sum() == round(fraction * int((labels == label).sum()))
    np.testing.assert_array_equal(marked, stratified(labels, fraction, seed))


def test_a_class_is_split_alike_whatever_the_other_classes():
    labels = np.array([0] * 50 + [1] * 50)

    np.testing.assert_array_equal(stratified(labels, 0.3, 7)[:50], stratified(labels[:50], 0.3, 7))


def test_an_image_of_the_right_size_keeps_its_pixels():
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)

    np.testing.assert_array_equal(fit(image, 8), image)


def test_grey_is_repeated():
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)

    np.testing.assert_array_equal(fit(grey, 8), np.repeat(grey, 3, axis=-1))


def test_a_larger_image_is_averaged_square_by_square():
    image = np.array([[0, 4, 10, 10], [8, 4, 10, 10], [1, 1, 200, 100], [3, 3, 100, 200]], np.uint8)[..., None]

    assert fit(image, 2)[..., 0].tolist() == [[4, 10], [2, 150]]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("line", "fitted"),
    [
        # 4 to 3, each output pixel 4/3 wide: it covers the centres 0.5 | 1.5 and 2.5 | 3.5
        ([0, 90, 240, 30], [0, 165, 30]),
        # 5 to 3, each 5/3 wide: 0.5 and 1.5 | 2.5 | 3.5 and 4.5
        ([10, 30, 90, 100, 200], [20, 90, 150]),
        # 7 to 2, each 3.5 wide: 0.5, 1.5, 2.5 and (on the edge, which belongs to the pixel that ends there) 3.5 | the rest
        ([0, 4, 8, 100, 30, 60, 90], [28, 60]),
    ],
)
def test_a_pixel_goes_wholly_to_the_output_pixel_that_covers_its_centre(turned, line, fitted):
    image = np.repeat(np.array([line], np.uint8), len(line), axis=0)
    expected = np.repeat([fitted], len(fitted), axis=0)

    found = fit((image.T if turned else image)[..., None], len(fitted))[..., 0]

    np.testing.assert_array_equal(found, expected.T if turned else expected)


@pytest.mark.parametrize("turned", [False, True])
def test_the_largest_centred_square_is_kept(turned):
    image = np.array([[9, 9, 1, 2, 9, 9], [9, 9, 3, 4, 9, 9]], np.uint8)
    image = (image.T if turned else image)[..., None]

    assert fit(image, 2)[..., 0].tolist() == ([[1, 3], [2, 4]] if turned else [[1, 2], [3, 4]])


def bicubic(image, size):
    """Catmull-Rom interpolation (Keys 1981, a = -0.5) of [n, n] to [size, size]: rows first, each pass rounded to uint8."""

    def weight(distance):
        near = 1.5 * distance**3 - 2.5 * distance**2 + 1
        far = -0.5 * distance**3 + 2.5 * distance**2 - 4 * distance + 2
        return np.where(distance < 1, near, np.where(distance < 2, far, 0))

    centres = (np.arange(size) + 0.5) * len(image) / size
    weights = weight(np.abs(np.arange(len(image)) + 0.5 - centres[:, None]))
    weights /= weights.sum(axis=1, keepdims=True)
    along_rows = np.clip(np.floor(image @ weights.T + 0.5), 0, 255)
    return np.clip(np.floor(weights @ along_rows + 0.5), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("index", [0, 1000])
def test_a_digit_is_enlarged_by_bicubic_interpolation_to_the_pixel(index):
    digit = raw_digits()[0][index]

    enlarged = fit(digit[..., None], 32)

    for channel in range(3):
        np.testing.assert_array_equal(enlarged[..., channel], bicubic(digit.astype(float), 32))


@settings(deadline=None)
@given(
    shape=st.tuples(st.integers(1, 20), st.integers(1, 20), st.sampled_from([1, 3])),
    size=st.integers(8, 16),
    value=st.integers(0, 255),
)
def test_any_image_becomes_a_square_of_three_channels_and_a_plain_one_stays_plain(shape, size, value):
    image = np.full(shape, value, np.uint8)
    image.flags.writeable = False

    fitted = fit(image, size)

    assert (fitted.shape, fitted.dtype) == ((size, size, 3), np.uint8)
    assert (fitted == value).all()
