"""What a sweep searches, as a recipe writes it."""

import pytest

from lottery.base.errors import InputError
from lottery.experiment import reading, spaces
from lottery.experiment.recipe import Recipe
from lottery.experiment.spaces import Dimension
from lottery.sweep import values


@pytest.mark.parametrize(
    ("line", "dimension", "written"),
    [
        ("train.learning_rate=0.01..1:log", ("train.learning_rate", (0.01, 1.0), "log"), "train.learning_rate=0.01..1.0:log"),
        ("train.momentum = 0..0.95", ("train.momentum", (0.0, 0.95), "linear"), "train.momentum=0.0..0.95"),
        ("train.epochs=5..20", ("train.epochs", (5, 20), "linear"), "train.epochs=5..20"),
        ("train.batch=32, 64", ("train.batch", ("32", "64"), "choice"), "train.batch=32,64"),
        (
            "train.weight_decay=1e-5..1e-2:log",
            ("train.weight_decay", (1e-5, 1e-2), "log"),
            "train.weight_decay=1e-05..0.01:log",
        ),
    ],
)
def test_a_line_is_a_range_or_a_choice_and_is_written_in_one_way(line, dimension, written):
    read = spaces.parse_dimension(line)

    assert read == Dimension(*dimension) == spaces.parse_dimension(written)
    assert str(read) == written


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train.batch", "write KEY=LOW..HIGH"),
        ("train.batch=32", "leaves nothing to choose"),
        ("train.batch=32,32", "leaves nothing to choose"),
        ("train.momentum=0.9..0.1", "must be finite and ascend"),
        ("train.learning_rate=1..1e999", "must be finite and ascend"),
        ("train.momentum=0..0.9:log", "must start above 0"),
    ],
)
def test_a_malformed_line_is_refused(line, words):
    with pytest.raises(InputError, match=words):
        spaces.parse_dimension(line)


def test_a_key_stands_once():
    with pytest.raises(InputError, match=r"names train\.batch twice"):
        reading.resolve({"sweep": {"space": ["train.batch=32,64", "train.batch=16,32"]}})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train.bach=32,64", "unknown key 'train.bach'; did you mean 'train.batch'"),
        ("seed=1,2", "seed is no hyperparameter"),
        ("data.size=32,64", "changes the prepared records"),
        ("train.batch=32.0..64.0", "is a whole number"),
        ("train.batch=0..64", "train.batch"),
        ("train.schedule=cosine,sine", "train.schedule"),
    ],
)
def test_what_a_recipe_cannot_have_is_refused_before_anything_is_trained(line, words):
    name = line.split("=")[0]
    with pytest.raises(InputError, match=words) as error:
        values.searched(reading.resolve({"sweep": {"space": [line]}}))

    assert "sweep.space" in str(error.value) or name in str(error.value)
    assert "--set" not in str(error.value)


def test_drawn_values_become_a_recipe():
    drawn = {"train.learning_rate": 1e-05, "train.batch": "32", "train.nesterov": "false", "train.schedule": "linear"}

    found = values.applied(Recipe(), drawn)

    assert (found.train.learning_rate, found.train.batch, found.train.nesterov) == (1e-5, 32, False)
    assert found.train.schedule == "linear"


def test_a_malformed_space_is_found_when_the_recipe_is_read():
    with pytest.raises(InputError, match=r"sweep\.space\.0: .*write KEY=LOW"):
        reading.resolve({"sweep": {"space": ["train.batch"]}})
