"""Sources: scikit-learn's digits, and sets of TensorFlow Datasets, read for real from tiny ones defined here."""

import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds

from data_prep import prepare, sources
from data_prep.pictures import pixels
from data_prep.sources.tfds import classes_to_download
from data_prep.sources.tfds import source as tfds_source
from data_prep.sources.tfds_reading import read
from lottery.base.errors import Failed, InputError

tfds.disable_progress_bar()


class _Tiny(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Image i is 6x8 and full of i; a subclass says which splits it has, and of how many images."""

    VERSION = tfds.core.Version("1.0.0")
    SPLITS = {}  # noqa: RUF012
    FEATURES = ("image", "label")

    def _info(self):
        features = {"image": tfds.features.Image(shape=(6, 8, 3)), "label": tfds.features.ClassLabel(names=["cat", "dog"])}
        chosen = tfds.features.FeaturesDict({name: features[name] for name in self.FEATURES})
        return tfds.core.DatasetInfo(builder=self, features=chosen)

    def _split_generators(self, _):
        return {split: self._generate_examples(numbers) for split, numbers in self.SPLITS.items()}

    def _generate_examples(self, numbers):
        for number in numbers:
            example = {"image": np.full((6, 8, 3), number, np.uint8), "label": number % 2}
            yield number, {name: example[name] for name in self.FEATURES}


class TinyPets(_Tiny):
    SPLITS = {"train": range(16), "test": range(16, 20)}  # noqa: RUF012


class TinyPetsWithValidation(_Tiny):
    SPLITS = {"train": range(10), "validation": range(10, 13)}  # noqa: RUF012


class TinyPetsWithBoth(_Tiny):
    SPLITS = {"train": range(10), "validation": range(10, 13), "test": range(13, 15)}  # noqa: RUF012


class TinyPetsInOneSplit(_Tiny):
    SPLITS = {"train": range(10)}  # noqa: RUF012


class TinyPetsToTestOn(_Tiny):
    SPLITS = {"test": range(10)}  # noqa: RUF012


class TinyPetsWithoutLabels(_Tiny):
    SPLITS = {"train": range(4)}  # noqa: RUF012
    FEATURES = ("image",)


class TinyLabelsWithoutPets(_Tiny):
    SPLITS = {"train": range(4)}  # noqa: RUF012
    FEATURES = ("label",)


class TinyPetsToBeGuessed(_Tiny):
    """As on a leaderboard: those to test on have no label."""

    SPLITS = {"train": range(10), "validation": range(10, 13), "test": range(13, 20)}  # noqa: RUF012

    def _generate_examples(self, numbers):
        for number, example in super()._generate_examples(numbers):
            yield number, {**example, "label": -1 if number >= 13 else example["label"]}


class TinyPetsOfOtherNames(_Tiny):
    """Called `picture` and `pet`, beside another image and another label."""

    SPLITS = {"train": range(10)}  # noqa: RUF012

    def _info(self):
        features = {
            "picture": tfds.features.Image(shape=(6, 8, 3)),
            "pet": tfds.features.ClassLabel(names=["cat", "dog"]),
            "image": tfds.features.Image(shape=(2, 2, 3)),
            "label": tfds.features.ClassLabel(names=["a", "b", "c"]),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), supervised_keys=("picture", "pet")
        )

    def _generate_examples(self, numbers):
        for number, example in super()._generate_examples(numbers):
            other = {"image": np.full((2, 2, 3), 255, np.uint8), "label": 2}
            yield number, {"picture": example["image"], "pet": example["label"], **other}


class TinyPetsAsJpeg(_Tiny):
    """Many images of many sizes, so that a block of them is read at a time."""

    SPLITS = {"train": range(600)}  # noqa: RUF012

    def _info(self):
        image = tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg")
        features = tfds.features.FeaturesDict({"image": image, "label": tfds.features.ClassLabel(names=["cat", "dog"])})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _generate_examples(self, numbers):
        for number in numbers:
            shape = (8 + number % 5, 8 + number % 7, 3)
            yield number, {"image": np.full(shape, number % 256, np.uint8), "label": number // 256 % 2}


class TinyPetsThatAreGone(_Tiny):
    def _split_generators(self, dl_manager):
        raise ConnectionError("pets.example cannot be reached\nand a long story")


class TinyPetsToBeFetchedByHand(_Tiny):
    MANUAL_DOWNLOAD_INSTRUCTIONS = """Register at pets.example,
    then put pets.zip there."""

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(dl_manager.manual_dir.glob("*"))}


@pytest.fixture
def tfds_folder(tmp_path, monkeypatch):
    """An empty data folder of TFDS, which reads its variable when it is imported."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    return tmp_path


def loaded(split, indices=None):
    """Pictures of a split: all, or those at `indices`."""
    return split.part(np.arange(len(split.labels)) if indices is None else np.array(indices))().pictures


def numbers(split):
    """The number that each image of a tiny set is full of, with its label, sorted."""
    return sorted(
        (int(pixels(picture, 6)[0, 0, 0]), int(label)) for picture, label in zip(loaded(split), split.labels, strict=True)
    )


def test_the_digits_are_grey_images_of_8x8_in_ten_classes():
    source = sources.open_source("digits")

    images = loaded(source.train)

    assert source.classes == [str(digit) for digit in range(10)]
    assert source.test is None
    assert len(images) == len(source.train.labels) == 1797
    assert {(image.shape, image.dtype) for image in images} == {((8, 8), np.dtype(np.uint8))}
    assert source.train.labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


@pytest.mark.parametrize("name", ["mnist", "tfds", "folder:", "Digits", "digits:"])
def test_an_unknown_kind_of_source_is_refused_with_the_known_ones(name):
    with pytest.raises(InputError, match=f"unknown data source {name!r}.*digits.*tfds:.*folder:.*arrays:"):
        sources.open_source(name)


@pytest.mark.usefixtures("tensorflow")
def test_a_set_of_tfds_is_read_with_its_classes_and_splits(tfds_folder):
    source = sources.open_source("tfds:tiny_pets")

    assert source.classes == ["cat", "dog"]
    assert numbers(source.train) == [(number, number % 2) for number in range(16)]
    assert numbers(source.test) == [(number, number % 2) for number in range(16, 20)]
    assert (tfds_folder / "tiny_pets" / "1.0.0").is_dir()


@pytest.mark.usefixtures("tensorflow", "tfds_folder")
def test_the_classes_of_a_set_are_known_before_it_is_downloaded():
    assert classes_to_download("tiny_pets[:10%]") == ["cat", "dog"]
    expected = prepare.expected(prepare.Settings("tfds:tiny_pets", 8))
    assert (expected.classes, expected.shards) == (["cat", "dog"], [])

    sources.open_source("tfds:tiny_pets")

    assert classes_to_download("tiny_pets") is None


@pytest.mark.usefixtures("tensorflow", "tfds_folder")
def test_a_part_of_a_training_split_is_written_as_tfds_does():
    whole, part = (sources.open_source(f"tfds:tiny_pets{part}") for part in ("", "[25%:50%]"))

    assert loaded(part.train) == loaded(whole.train)[4:8]
    assert loaded(part.train, [2]) == loaded(whole.train, [6])
    assert part.train.labels.tolist() == whole.train.labels[4:8].tolist()
    assert numbers(part.test) == numbers(whole.test)
    assert part.train.fingerprint != whole.train.fingerprint
    for wrong in ("[:17]", "[5:5]", "[:10%", "[:2]+train[8:]"):
        with pytest.raises(InputError, match=f"{re.escape(wrong)} is no part of the training split: write one like"):
            sources.open_source(f"tfds:tiny_pets{wrong}")


@pytest.mark.usefixtures("tensorflow", "tfds_folder")
@pytest.mark.parametrize(
    ("name", "expected", "passed_over"),
    [
        ("tiny_pets_with_validation", range(10, 13), ""),
        ("tiny_pets_with_both", range(13, 15), "validation (3)"),
        ("tiny_pets_to_be_guessed", range(10, 13), "test (7)"),
        ("tiny_pets_in_one_split", None, ""),
    ],
)
def test_the_test_split_or_else_the_validation_split_is_tested_on_whichever_has_labels(name, expected, passed_over):
    source = tfds_source(name)
    test = source.test

    found = [number for number, _ in numbers(test)] if test else None
    assert found == (expected and list(expected))
    assert source.passed_over == passed_over


@pytest.mark.usefixtures("tensorflow", "tfds_folder")
def test_the_image_and_the_label_are_those_that_the_set_names():
    source = tfds_source("tiny_pets_of_other_names")

    assert source.classes == ["cat", "dog"]
    assert numbers(source.train) == [(number, number % 2) for number in range(10)]


@pytest.mark.usefixtures("tensorflow", "tfds_folder")
@pytest.mark.parametrize("first", [0, 395])
def test_examples_stay_encoded_as_they_were_stored_and_keep_their_labels_where_a_set_has_many_files(first):
    builder = tfds.builder("tiny_pets_as_jpeg")
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=3))
    split = tfds_source("tiny_pets_as_jpeg").train

    every, some = loaded(split), loaded(split, range(first, first + 205, 2))

    assert list(some) == list(every[first : first + 205 : 2])
    assert all(picture.startswith(b"\xff\xd8\xff") for picture in every)
    values = [int(pixels(picture, 8)[0, 0, 0]) for picture in every]
    assert sorted(zip(values, split.labels.tolist(), strict=True)) == sorted(
        (number % 256, number // 256 % 2) for number in range(600)
    )


@pytest.mark.usefixtures("tensorflow", "tfds_folder")
def test_the_examples_come_in_the_same_order_every_time():
    one, two = (tfds_source("tiny_pets").train for _ in range(2))

    assert list(loaded(one)) == list(loaded(two))
    assert one.labels.tolist() == two.labels.tolist()
    assert one.fingerprint == two.fingerprint
    assert one.mixed


@pytest.mark.usefixtures("tensorflow")
def test_whoever_reads_a_set_can_still_say_how_many_threads_tensorflow_has(tfds_folder):
    tfds.builder("tiny_pets").download_and_prepare()
    folder = tfds_folder / "tiny_pets" / "1.0.0"
    script = f"""
from data_prep.sources.tfds_reading import read
from pathlib import Path
assert len(list(read(Path({str(folder)!r}), "train", "label"))) == 16
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(3)
"""
    modules = {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    subprocess.run([sys.executable, "-c", script], env=os.environ | modules, check=True)


def test_a_set_that_cannot_be_read_is_one_line(tmp_path):
    with pytest.raises(Failed, match=rf"^{tmp_path} cannot be read: .*Error") as error:
        list(read(tmp_path, "train", "label"))
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("tensorflow")
def test_a_set_is_kept_where_data_dir_says(tfds_folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    tfds.builder("tiny_pets", data_dir=elsewhere).download_and_prepare()

    source = sources.open_source("tfds:tiny_pets", elsewhere)

    assert numbers(source.train) == [(number, number % 2) for number in range(16)]
    assert list(tfds_folder.iterdir()) == []


def test_a_data_dir_without_the_set_is_refused_and_nothing_is_fetched_into_it(tmp_path):
    with pytest.raises(InputError, match=r"--data-dir .* has no tiny_pets/1.0.0: name the folder that holds tiny_pets/"):
        sources.open_source("tfds:tiny_pets", tmp_path)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "meant"), [("photos", "folder:photos"), ("set.npz", "arrays:set.npz")])
def test_a_path_without_its_kind_is_refused_with_what_was_meant(tmp_path, monkeypatch, name, meant):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()

    with pytest.raises(InputError, match=f"did you mean {meant}"):
        sources.open_source(name)


@pytest.mark.usefixtures("tensorflow", "tfds_folder")
def test_a_part_is_small_on_its_way_to_another_process():
    sent = pickle.dumps(tfds_source("tiny_pets").train.part(np.array([3])))

    assert len(sent) < 2000
    assert len(pickle.loads(sent)().pictures) == 1


@pytest.mark.usefixtures("tfds_folder")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tiny_pet", r"did you mean .*\btiny_pets\b"),
        ("qqqqqqqq", "see `tfds.list_builders"),
        *((name, "") for name in ("not a name!", "mnist/nothing", "tiny_pets:2.0.0")),
    ],
)
def test_a_set_that_tfds_does_not_have_is_refused_in_one_line_with_the_nearest_names(name, words):
    with pytest.raises(InputError, match=rf"TensorFlow Datasets has no (set )?{name!r}: .*{words}") as refusal:
        sources.open_source(f"tfds:{name}")

    assert "\n" not in str(refusal.value)


@pytest.mark.usefixtures("tensorflow")
@pytest.mark.parametrize("name", ["tiny_pets_without_labels", "tiny_labels_without_pets"])
def test_a_set_without_an_image_and_a_label_is_refused_before_it_is_downloaded(tfds_folder, name):
    with pytest.raises(InputError, match=f"{name} of TensorFlow Datasets"):
        tfds_source(name)

    assert list(tfds_folder.iterdir()) == []


@pytest.mark.usefixtures("tensorflow", "tfds_folder")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tiny_pets_to_test_on", "train"),
        ("tiny_pets_that_are_gone", "pets.example cannot be reached and a long story"),
        ("tiny_pets_to_be_fetched_by_hand", "Register at pets.example, then put pets.zip there."),
    ],
)
def test_a_set_that_cannot_be_fetched_or_has_nothing_to_train_on_is_refused_in_one_line(name, words):
    with pytest.raises(InputError, match=f"(?s){name}.*{words}") as refusal:
        tfds_source(name)

    assert "\n" not in str(refusal.value)
