"""result.json and a mask's table: written and read in one way each, refused in one line where they are not what they should
be."""

import pytest
from helpers import changed

from lottery.base import files
from lottery.base.errors import InputError
from lottery.pruning.costs import Costs
from lottery.pruning.densities import Density, Kept, Layer
from lottery.rundir import records
from lottery.rundir.names import MaskFiles, NetworkFiles, Replicate
from lottery.rundir.records import Figures, MaskRecord, Result, Scores

COSTS = Costs(dense_macs=100, macs=10, float32_bytes=40, gzip_bytes=9)
KEPT = Kept(Density(0.1, 0.2, 0.3, None), {"a/kernel": Layer(10, 1)}, None)
FIGURES = {"train_loss": 0.1, "validation_loss": 0.2, "validation_accuracy": 0.3, "test_loss": 0.4, "test_accuracy": 0.5}
DONE = Result(
    status="done",
    replicate=1,
    variant="ticket",
    family="own",
    method="weights",
    mask="q90",
    round=1,
    rewind_step=45,
    first_step=45,
    steps_per_epoch=45,
    epochs=1 / 3,
    step=900,
    kept=KEPT,
    costs=COSTS,
    final=Figures(step=900, **FIGURES),
    made_by=[{"imp": "0.1.0", "device": "CPU"}],
    outputs={"own/q90-step-000045/ticket/final.h5": "0" * 64},
    made_from={"records": "1" * 64},
)
MASK = MaskRecord(
    replicate=1,
    family="own",
    mask="q90",
    round=1,
    rewind_step=None,
    rate=90,
    step=900,
    scores=Scores(count=10, min=0, max=1, mean=0.5),
    threshold=None,
    pruned=9,
    remaining=1,
    layers={"a/kernel": records.Layer(rate=90, threshold=0.7, weights=10, kept=1)},
    kept=KEPT,
    costs=COSTS,
)


@pytest.fixture
def network(tmp_path):
    return NetworkFiles(tmp_path / "replicate-1/own/q90-step-000045/ticket")


@pytest.fixture
def mask(tmp_path):
    return MaskFiles(tmp_path / "replicate-1/own/masks", "q90")


def test_what_is_written_comes_back_with_the_name_of_its_folder(network, mask):
    records.write(network.result, DONE)
    records.write(mask.table, MASK)

    assert network.read_result() == DONE.model_copy(update={"folder": "replicate-1/own/q90-step-000045/ticket"})
    assert mask.read() == MASK.model_copy(update={"folder": "replicate-1/own/masks/q90"})
    replicate = Replicate(network.folder.parents[2])
    assert [type(replicate.read(table)) for table in (network.result, mask.table)] == [Result, MaskRecord]


def test_every_field_is_written(network, mask):
    records.write(network.result, DONE)
    records.write(mask.table, MASK)

    assert files.read_json(network.result).keys() == Result.model_fields.keys()
    assert files.read_json(mask.table).keys() == MaskRecord.model_fields.keys()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"format": 1}, "has format 1, but this version of imp reads format 2"),
        ({"status": "stopped"}, r"is not as it should be (status: Input should be 'done', 'diverged' or 'failed')"),
        ({"level": 3}, "is not as it should be (level: Extra inputs are not permitted)"),
    ],
)
def test_a_result_that_says_something_else_is_refused_in_one_line(network, values, words):
    records.write(network.result, DONE)
    changed(network.result, **values)

    with pytest.raises(InputError) as refusal:
        network.read_result()

    assert str(refusal.value).startswith(f"{network.result} {words}")
    assert str(refusal.value).endswith(": remove it and run its stage again")
    assert "\n" not in str(refusal.value)


def test_what_lacks_a_field_is_refused_in_one_line(mask):
    content = MASK.model_dump(mode="json", exclude={"kept"})
    files.write_json(mask.table, {**content, "folder": "replicate-1/own/masks/q90"})

    with pytest.raises(InputError, match=r"q90\.json is not as it should be \(kept: Field required\)"):
        mask.read()


def test_of_older_costs_the_bytes_of_other_forms_are_left_out(mask):
    content = MASK.model_dump(mode="json")
    content["costs"] |= {"bitmap_bytes": 6, "csr_bytes": 16}
    files.write_json(mask.table, {**content, "folder": "replicate-1/own/masks/q90"})

    assert mask.read().costs == COSTS


def test_a_damaged_or_copied_table_is_refused_in_one_line(network, mask):
    records.write(network.result, DONE)
    records.write(mask.table, MASK)
    other = MaskFiles(mask.folder, "q80")
    mask.table.rename(other.table)

    with pytest.raises(InputError, match=r"q80\.json is damaged or was changed by hand"):  # the name is sealed too
        other.read()
    network.result.write_text('{"status": "do')
    with pytest.raises(InputError, match=r"result\.json is damaged"):
        network.read_result()


@pytest.mark.parametrize(("status", "finished"), [("failed", False), ("diverged", True), ("done", True)])
def test_what_failed_is_tried_again(network, status, finished):
    records.write(network.result, DONE.model_copy(update={"status": status}))

    assert network.is_finished == finished


def test_a_result_warns_of_what_collapsed_in_one_line():
    constant = DONE.model_copy(update={"constant": True})

    assert DONE.warning(0.1) is None
    assert DONE.warning(0.2) == "hardly anything is left of a/kernel (layer collapse)"
    assert constant.warning(0.2) == "hardly anything is left of a/kernel (layer collapse)"
    assert constant.warning(0.1) == "it gives every image the same answer (collapsed in training)"
    assert constant.model_copy(update={"kept": None}).warning(0.2).endswith("(collapsed in training)")


@pytest.mark.parametrize(
    ("reason", "last"), [("", ""), ("one", "one"), ("Traceback\n  x\nValueError: odd\n", "ValueError: odd")]
)
def test_the_last_line_of_a_reason_is_what_a_traceback_ends_with(reason, last):
    assert DONE.model_copy(update={"reason": reason}).last_reason == last
