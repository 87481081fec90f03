"""Images that pruning forgets: modal answers, and how many differ by chance."""

import numpy as np

from lottery.pruning import forgetting

DENSE = np.array([[3, 1, 0, 2], [3, 1, 1, 2], [0, 1, 2, 2]], np.uint8)


def test_the_modal_answer_is_that_of_most_networks_and_of_several_the_lowest():
    assert forgetting.modal(DENSE).tolist() == [3, 1, 0, 2]


def test_images_are_forgotten_whose_modal_answer_differs():
    tickets = np.array([[3, 1, 0, 0], [3, 2, 1, 0], [3, 2, 2, 2]], np.uint8)

    assert forgetting.forgotten(DENSE, tickets).tolist() == [1, 3]


def test_chance_alone_forgets_no_fewer_images_than_is_said_and_not_many_more():
    rng = np.random.default_rng(0)
    dense, tickets = rng.integers(0, 2, (2, 7, 4000))

    assert 0.6 < forgetting.by_chance(dense) / len(forgetting.forgotten(dense, tickets)) < 1


def test_where_dense_networks_agree_nothing_is_forgotten_by_chance():
    assert forgetting.by_chance(np.tile(np.arange(10), (5, 1))) == 0
