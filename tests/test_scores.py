"""Training images chosen by their scores."""

import numpy as np
import pytest

from data_prep import scores
from lottery.base.errors import InputError

LABELS = np.array([1, 0, 1, 2, 0], np.int32)


def table(*values, labels=LABELS):
    rows = [f"{index},{label},{value}" for index, (label, value) in enumerate(zip(labels, values, strict=True))]
    return "\n".join([",".join(scores.COLUMNS), *rows, ""]).encode()


def chosen(hardest=0.0, easiest=0.0, content=None):
    content = content or table(0.5, 0.9, 0.1, 0.9, 0.2)
    return scores.chosen(content, LABELS, hardest, easiest).tolist()


def test_the_hardest_have_the_highest_scores_and_the_easiest_the_lowest_in_their_own_order():
    assert [chosen(hardest=count) for count in (1, 2, 3, 5)] == [[1], [1, 3], [0, 1, 3], [0, 1, 2, 3, 4]]
    assert [chosen(easiest=count) for count in (1, 3, 4)] == [[2], [0, 2, 4], [0, 2, 3, 4]]


def test_below_one_is_a_share_which_is_rounded_up():
    assert chosen(hardest=0.4) == chosen(hardest=2)
    assert chosen(easiest=0.5) == chosen(easiest=3)
    assert chosen(hardest=0.001) == chosen(hardest=1)
    labels = np.zeros(100, np.int32)
    content = table(*range(100), labels=labels)
    assert [len(scores.chosen(content, labels, share, 0)) for share in (0.07, 0.28, 0.55)] == [
        7,
        28,
        55,
    ]  # not as floats have it
    with pytest.raises(InputError, match=r"data\.hardest is 2\.5: write a share below 1, or a whole number of images"):
        chosen(hardest=2.5)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a table"),
        (b"index,label,score\n0,1,high\n", "not a table"),
        (b"index,label,score\n0,1\n", "not a table"),
        (b"\xff\x00", "not a table"),
        (table(0.1, labels=[1]), r"other training images \(1 there, 5 here\)"),
        (table(1, 2, 3, 4, 5, labels=[1, 0, 1, 2, 1]), "other training images"),
        (table(1, 2, "nan", 4, 5), "image 2 is not a finite"),
    ],
)
def test_what_is_no_score_for_each_of_the_images_is_refused(content, words):
    with pytest.raises(InputError, match=words):
        scores.chosen(content, LABELS, 2, 0)


def test_more_images_than_there_are_and_a_file_that_is_not_there_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"data\.hardest is 6, but there are 5 training images"):
        chosen(hardest=6)
    with pytest.raises(InputError, match="there is no file"):
        scores.read(tmp_path)
