"""Sources: scikit-learn's digits, and sets of TensorFlow Datasets, read for real from tiny ones defined here."""

import numpy as np
import pytest
import tensorflow_datasets as tfds

from data_prep import sources
from data_prep.errors import InputError

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


class TinyPetsByAge(_Tiny):
    SPLITS = {"train": range(4)}  # noqa: RUF012

    def _info(self):
        features = tfds.features.FeaturesDict({"image": tfds.features.Image(shape=(6, 8, 3)), "label": np.int64})
        return tfds.core.DatasetInfo(builder=self, features=features)


class TinyPetsThatAreGone(_Tiny):
    def _split_generators(self, dl_manager):
        raise ConnectionError("pets.example cannot be reached\nand a long story")


@pytest.fixture
def tfds_folder(tmp_path, monkeypatch):
    """An empty data folder of TFDS, which reads its variable when it is imported."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    return tmp_path


def numbers(examples):
    """The number that each image of a tiny set is full of, with its label."""
    found = []
    for image, label in examples:
        assert (image.shape, image.dtype) == ((6, 8, 3), np.uint8)
        assert (image == image[0, 0, 0]).all()
        assert type(label) is int
        found.append((int(image[0, 0, 0]), label))
    return sorted(found)


def test_the_digits_are_grey_images_of_8x8_in_ten_classes():
    source = sources.open_source("digits")

    examples = list(source.splits["train"]())

    assert source.classes == [str(digit) for digit in range(10)]
    assert list(source.splits) == ["train"]
    assert len(examples) == 1797
    assert {(image.shape, image.dtype) for image, _ in examples} == {((8, 8, 1), np.dtype(np.uint8))}
    assert [label for _, label in examples[:12]] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_the_grey_levels_of_the_digits_span_the_whole_range():
    images = np.stack([image for image, _ in sources.digits().splits["train"]()])

    assert images[0, 0, :, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]  # 0 0 5 13 9 1 0 0 sixteenths of 255
    assert (images.min(), images.max()) == (0, 255)
    assert len(np.unique(images)) == 17


def test_a_split_can_be_read_again():
    read = sources.digits().splits["train"]

    assert len(list(read())) == len(list(read())) == 1797


@pytest.mark.parametrize("name", ["mnist", "", "tfds", "Digits", "file:images"])
def test_an_unknown_kind_of_source_is_refused_with_the_known_ones(name):
    with pytest.raises(InputError, match=f"unknown data source {name!r}.*digits.*tfds:"):
        sources.open_source(name)


@pytest.mark.usefixtures("tensorflow")
def test_a_set_of_tfds_is_read_with_its_classes_and_splits(tfds_folder):
    source = sources.open_source("tfds:tiny_pets")

    assert source.classes == ["cat", "dog"]
    assert numbers(source.splits["train"]()) == [(number, number % 2) for number in range(16)]
    assert numbers(source.splits["test"]()) == [(number, number % 2) for number in range(16, 20)]
    assert (tfds_folder / "tiny_pets" / "1.0.0").is_dir()


@pytest.mark.usefixtures("tensorflow", "tfds_folder")
@pytest.mark.parametrize(
    ("name", "expected"),
    [("tiny_pets_with_validation", range(10, 13)), ("tiny_pets_with_both", range(13, 15)), ("tiny_pets_in_one_split", None)],
)
def test_the_test_split_or_else_the_validation_split_is_the_test_split(name, expected):
    splits = sources.tfds_source(name).splits

    found = [number for number, _ in numbers(splits["test"]())] if "test" in splits else None
    assert found == (expected and list(expected))


@pytest.mark.usefixtures("tensorflow", "tfds_folder")
def test_the_examples_come_in_the_same_order_every_time():
    read = sources.tfds_source("tiny_pets").splits["train"]

    assert [image[0, 0, 0] for image, _ in read()] == [image[0, 0, 0] for image, _ in read()]


@pytest.mark.usefixtures("tfds_folder")
@pytest.mark.parametrize(("name", "nearest"), [("cifar1", "cifar10"), ("tiny_pet", "tiny_pets"), ("mnits", "mnist")])
def test_an_unknown_set_of_tfds_is_refused_with_the_nearest_names(name, nearest):
    with pytest.raises(InputError) as refusal:
        sources.open_source(f"tfds:{name}")

    assert repr(name) in str(refusal.value)
    assert nearest in str(refusal.value).split("did you mean")[1].replace(",", " ").replace("?", " ").split()


@pytest.mark.usefixtures("tfds_folder")
def test_an_unknown_set_that_is_near_to_none_is_refused_all_the_same():
    with pytest.raises(InputError, match="no set 'qqqqqqqq'"):
        sources.open_source("tfds:qqqqqqqq")


@pytest.mark.usefixtures("tfds_folder")
@pytest.mark.parametrize("name", ["", "not a name!", "mnist/nothing", "mnist:9.9.9", "tiny_pets:2.0.0"])
def test_a_name_that_tfds_cannot_make_sense_of_is_refused_in_one_line(name):
    with pytest.raises(InputError) as refusal:
        sources.open_source(f"tfds:{name}")

    assert repr(name) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.usefixtures("tensorflow")
@pytest.mark.parametrize("name", ["tiny_pets_without_labels", "tiny_labels_without_pets", "tiny_pets_by_age"])
def test_a_set_without_an_image_and_a_label_is_refused_before_it_is_downloaded(tfds_folder, name):
    with pytest.raises(InputError, match=f"{name} of TensorFlow Datasets"):
        sources.tfds_source(name)

    assert list(tfds_folder.iterdir()) == []


@pytest.mark.usefixtures("tensorflow", "tfds_folder")
def test_a_set_without_a_training_split_is_refused():
    with pytest.raises(InputError, match=r"tiny_pets_to_test_on.*train"):
        list(sources.tfds_source("tiny_pets_to_test_on").splits["train"]())


@pytest.mark.usefixtures("tensorflow", "tfds_folder")
def test_a_set_that_cannot_be_fetched_is_refused_in_one_line():
    with pytest.raises(InputError) as refusal:
        sources.tfds_source("tiny_pets_that_are_gone")

    assert "tiny_pets_that_are_gone" in str(refusal.value)
    assert "pets.example cannot be reached" in str(refusal.value)
    assert "\n" not in str(refusal.value)
