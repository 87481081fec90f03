"""The course of a dense training, as a table and as a picture."""

from lottery.experiment.recipe import Recipe
from lottery.results import curves
from lottery.rundir.run import Run

ROWS = [
    {
        "step": 10 * epoch,
        "epoch": float(epoch),
        "train_loss": 1 / epoch,
        "train_accuracy": 0.5,
        "validation_accuracy": 0.25 * epoch,
        "test_accuracy": 0.125 * epoch,
        "timing": {"seconds": 30.0, "images_per_second": 1234.5},
    }
    for epoch in (1, 2)
]
MACHINE = {"processor": "abacus", "cores": 3, "gpus": [], "packages": {"tensorflow": "2.0"}}


def test_the_table_has_a_line_an_epoch_and_a_sentence_with_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "read", lambda run: {"replicate-1": ROWS, "replicate-2": []})
    monkeypatch.setattr(Run, "environment", lambda run: MACHINE)

    lines = curves.markdown(Run(tmp_path, Recipe())).splitlines()

    assert lines[2] == (
        "replicate-1: 25.00% of the test and 50.00% of the validation images after 2 epochs (1 min 00 s, evaluation included; "
        "float32, 1 intra-op threads) on abacus, 3 cores, 0 GPUs, TensorFlow 2.0."
    )
    assert lines[-1] == "| 2 | 20 | 0.5000 | 50.00 | 50.00 | 25.00 | 1,234 |"
    assert len([line for line in lines if line.startswith("replicate")]) == 1


def test_a_row_for_each_replicate_epoch_and_split():
    rows = curves.tidy({"replicate-1": ROWS, "replicate-2": []})

    assert len(rows) == 2 * 3
    assert rows[-1] == {"replicate": "replicate-1", "epoch": 2.0, "step": 20, "split": "test", "accuracy": 0.25}
