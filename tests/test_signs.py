"""Which signs differ between networks: counted by hand on a kernel of six weights, over rounds and replicates."""

import numpy as np
import pytest
from handmade import ORIGINS, figures, finished, place_of, planned, write_mask, write_result

from lottery.pruning import signs
from lottery.pruning.state import State
from lottery.results import frame
from lottery.results import signs as results
from lottery.results.findings import Findings
from lottery.results.sections.signs import section
from lottery.rundir import store
from lottery.rundir.run import Run

STEPS = 900
PATH = "a/kernel"


@pytest.mark.parametrize(
    ("first", "second", "kept", "share"),
    [
        ([1, -2, 3, -4], [1, -2, 3, -4], [1, 1, 1, 1], 0),
        ([1, -2, 3, -4], [-1, 2, -3, 4], [1, 1, 1, 1], 1),
        ([1, -2, 3, -4], [-1, -2, -3, 4], [1, 1, 0, 0], 1 / 2),
        ([1, 0, 3, 4], [-1, 5, 0, 6], [1, 1, 1, 1], 1 / 2),
        ([0, 1], [1, 0], [1, 1], None),
        ([1, 1], [1, 1], [0, 0], None),
    ],
)
def test_the_share_of_kept_weights_that_are_not_zero_whose_sign_differs(first, second, kept, share):
    arrays = [{"a": np.float32(values)} for values in (first, second)]

    assert signs.flipped(*arrays, {"a": np.array(kept, bool)}) == share


def test_variables_are_counted_together():
    first = {"a": np.float32([1, 1, 1]), "b": np.float32([1])}
    second = {"a": np.float32([1, 1, 1]), "b": np.float32([-1])}

    assert signs.flipped(first, second, {path: np.ones(array.shape, bool) for path, array in first.items()}) == 1 / 4


DENSE = {0: [1, 1, 1, 1, 1, 1], 45: [1, 1, 1, 1, -1, 1], STEPS: [-1, 1, 1, 1, -1, 1]}
# Each round's mask, and its ticket's end.
ROUNDS = ([1, 1, 1, 1, 0, 0], [1, 1, -1, 1, 0, 0]), ([1, 1, 0, 0, 0, 0], [1, -1, 0, 0, 0, 0])


def save(path, weights, step):
    arrays = {PATH: np.float32(weights).reshape(2, 3), "a/bias": -np.ones(3, np.float32)}
    store.save_state(path, State(step, arrays, {}, {}))


def trained(folder, replicates=2, flip_in_second=False):
    run = Run(folder / "run", planned("", replicates=replicates, rounds={"rounds": 2, "rate": 50.0}))
    for number in range(1, replicates + 1):
        replicate = run.replicate(number)
        for step, weights in DENSE.items():
            save(replicate.snapshot(step), weights, step)
        reached = {"final": figures(0.9), "least_validation_loss": figures(0.9)}
        finished(replicate, STEPS, **reached)
        for round, (bits, weights) in enumerate(ROUNDS, 1):
            label = f"round-{round:02d}"
            mask = write_mask(replicate, "weights", label, {PATH: np.array(bits, bool).reshape(2, 3)}, 45, origins=ORIGINS)
            network = place_of(run, number, "weights", label, 45, "ticket", 45)
            own = [-weights[0], *weights[1:]] if flip_in_second and number == 2 and round == 2 else weights
            save(network.final, own, STEPS)
            place = {"variant": "ticket", "family": "weights", "mask": label, "round": round, "rewind_step": 45}
            kept = mask.read().kept
            write_result(replicate, network, [network.final], [mask.mask], step=STEPS, kept=kept, **reached, **place)
    return run


def shares(run):
    return {(row.mask, row.pair): row for row in frame.each(results.groups(run, frame.rows(run)))}


def test_each_ticket_is_compared_with_what_it_comes_from_by_the_weights_that_it_keeps(tmp_path):
    found = shares(trained(tmp_path))

    assert {place: row.flipped for place, row in found.items()} == {
        ("round-01", "start to rewind point"): 0,
        ("round-01", "start to dense end"): 1 / 4,
        ("round-01", "rewind point to dense end"): 1 / 4,
        ("round-01", "start to ticket end"): 1 / 4,
        ("round-01", "rewind point to ticket end"): 1 / 4,
        ("round-01", "dense end to ticket end"): 2 / 4,
        ("round-02", "start to rewind point"): 0,
        ("round-02", "start to dense end"): 1 / 2,
        ("round-02", "rewind point to dense end"): 1 / 2,
        ("round-02", "start to ticket end"): 1 / 2,
        ("round-02", "rewind point to ticket end"): 1 / 2,
        ("round-02", "dense end to ticket end"): 1,
        ("round-02", "round before to ticket end"): 1 / 2,
    }
    assert {row.replicates for row in found.values()} == {2}


def test_means_have_intervals_over_replicates_within_what_a_share_can_be(tmp_path):
    run = trained(tmp_path, flip_in_second=True)

    row = shares(run)["round-02", "dense end to ticket end"]

    assert (row.flipped, row.low, row.high) == (3 / 4, 0, 1)
    [first, second] = results.cells(results.groups(run, frame.rows(run)))
    assert (first["density"], first["start to dense end"], first["round before to ticket end"]) == ("66.67%", "25.00", "")
    assert second["dense end to ticket end"] == "75.00 (0.00 .. 100.00)"


def test_the_report_has_a_panel_for_each_family_and_rewind_point_or_nothing(tmp_path):
    run = trained(tmp_path)

    block = section(Findings(run))

    [panel] = block.charts[0].specification["concat"]
    assert panel["title"] == "weights, rewound to 1ep"
    assert "NaN" not in block.charts[0].svg
    assert len(block.frames["signs"]) == 13
    for number in (1, 2):
        for label in ("round-01", "round-02"):
            place_of(run, number, "weights", label, 45, "ticket", 45).final.unlink()
    assert section(Findings(run)) is None


def test_what_is_not_saved_is_left_out(tmp_path):
    run = trained(tmp_path, replicates=1)
    run.replicate(1).snapshot(0).unlink()
    place_of(run, 1, "weights", "round-01", 45, "ticket", 45).final.unlink()

    assert [pair for _, pair in shares(run)] == [
        "rewind point to dense end",
        "rewind point to ticket end",
        "dense end to ticket end",
    ]
