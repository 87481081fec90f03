"""The part of a list of tasks that one process of a job array does."""

import pytest

from lottery.base.errors import InputError
from lottery.executors.workload import WHOLE, Part

TASKS = list("abcdefghij")


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_the_parts_are_all_tasks_and_share_none(count):
    parts = [Part(index, count).of(TASKS, key=str) for index in range(1, count + 1)]

    assert sorted(task for part in parts for task in part) == TASKS
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_tasks_with_the_same_key_stay_together_in_their_order():
    tasks = ["a1", "b1", "a2", "b2", "a3"]
    parts = [Part(index, 3).of(tasks, key=lambda task: task[0]) for index in (1, 2, 3)]

    assert parts == [["a1", "a2", "a3"], ["b1", "b2"], []]
    assert WHOLE.of(tasks, key=lambda task: task[0]) == tasks


def test_a_part_is_written_as_a_fraction():
    assert Part.parse(" 3/20 ") == Part(3, 20)
    assert str(Part(3, 20)) == "3/20"
    for text in ("", "3", "0/4", "5/4", "a/b", "-1/2", "1/0", "1/2/3"):
        with pytest.raises(InputError, match="write 3/20 for the third of twenty"):
            Part.parse(text)
