"""Status: what of a run is done, under way, failed or missing, and how long the rest takes."""

import dataclasses

import handmade
import pytest
from handmade import place_of, planned, write_mask
from helpers import kept

from data_prep import records
from lottery.base import locks
from lottery.experiment import reading
from lottery.results.status import status
from lottery.rundir.records import Timing
from lottery.rundir.run import Run

RECIPE = planned("80,90", "0,1ep", replicates=2)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run without outputs, its records there: 2,900 images are 45 steps an epoch."""
    monkeypatch.setenv("IMP_DATA", str(tmp_path / "data"))
    made = Run(tmp_path / "run", RECIPE)
    shards = [records.Shard("train-00000.tfrecord", "train", 2900, 0, "")]
    made_with = dataclasses.asdict(RECIPE.records())
    made.records().mkdir(parents=True)
    records.write_manifest(made.records(), records.Manifest((32, 32, 3), ["0", "1"], shards, made_with))
    return made


def ticket(run, replicate, quantile, step=0):
    return place_of(run, replicate, "oneshot", f"q{quantile}", step, "ticket")


def write(network, status, epochs=20, seconds=40.0, **more):
    handmade.write(network, 0.9, status, epochs=epochs, timing=Timing(seconds=seconds), **more)


def trained(run, replicate, **more):
    write(run.replicate(replicate).dense, "done", **more)


def mask(run, replicate, *quantiles):
    for quantile in quantiles:
        write_mask(run.replicate(replicate), "oneshot", f"q{quantile}", {"a": kept(10, 1)})


def counts(run):
    return {line.stage: (line.done, line.under_way, line.failed, line.missing) for line in status(run)}


def line(run, stage):
    return next(line for line in status(run) if line.stage == stage)


def test_without_records_only_they_are_missing_and_the_way_out_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("IMP_DATA", str(tmp_path / "nowhere"))

    (only,) = status(Run(tmp_path / "run", RECIPE))

    assert (only.stage, only.done, only.missing) == ("records", 0, 1)
    assert "imp prepare" in only.details[0]


def test_before_anything_is_made_all_of_the_recipe_is_missing(run):
    assert counts(run) == {"records": (1, 0, 0, 0), "train": (0, 0, 0, 2), "thresholds": (0, 0, 0, 4), "oneshot": (0, 0, 0, 8)}
    assert [line.seconds_left for line in status(run)] == [None] * 4


def test_masks_beyond_the_recipe_are_wanted_of_every_replicate_and_one_that_was_removed_is_missing(run):
    mask(run, 1, 80, 90, 95)
    mask(run, 2, 80)

    assert counts(run)["thresholds"] == (4, 0, 0, 2)
    assert line(run, "thresholds").details == ["replicate-2 has no mask oneshot q90, oneshot q95 yet"]
    assert sum(counts(run)["oneshot"]) == 2 * 3 * 2
    (run.replicate(1).mask_folder("oneshot") / "q80.h5").unlink()
    assert counts(run)["thresholds"] == (3, 0, 0, 3)


def test_what_failed_or_diverged_is_named_with_its_reason(run):
    write(ticket(run, 1, 80), "failed", reason="Traceback ...\nKeyError: 'fc'")
    write(ticket(run, 2, 90, 45), "diverged", reason="the loss is not finite at step 50")

    found = line(run, "oneshot")

    assert (found.failed, found.missing) == (2, 6)
    assert sorted(found.details) == [
        "replicate-1 oneshot q80-step-000000 ticket: failed, KeyError: 'fc'",
        "replicate-2 oneshot q90-step-000045 ticket: diverged, the loss is not finite at step 50",
    ]


def test_what_is_under_way_is_named_with_its_step_and_its_process(run):
    rounds = with_rounds(run)
    for network, stage, name in (
        (run.replicate(2).dense, "train", "replicate-2 dense"),
        (in_round(rounds, 2, 1), "weights", "replicate-2 weights round-01-step-000000 ticket"),
    ):
        with locks.writing(network.folder):
            assert line(rounds, stage).details[0].startswith(f"{name}: beginning, process ")
            locks.note(network.folder, "step 90 of 900")  # as an earlier version wrote it
            found = line(rounds, stage)
        assert found.under_way == 1
        (told,) = found.details
        assert told.startswith(f"{name}: step 90 of 900, process ")


def test_the_time_left_follows_from_the_speed_of_what_is_done(run):
    trained(run, 1, epochs=20, seconds=40.0)  # 2 seconds an epoch
    write(ticket(run, 1, 80), "done", epochs=20, seconds=80.0)  # 4
    write(ticket(run, 1, 90), "failed", epochs=20, seconds=0.0, reason="no disk")  # to be tried again
    write(ticket(run, 2, 80), "diverged", epochs=20, seconds=0.1, reason="not finite")  # never again

    assert line(run, "train").seconds_left == pytest.approx(20 * 3)
    assert line(run, "oneshot").seconds_left == pytest.approx((2 * 20 + 4 * 19) * 3)
    trained(run, 2)
    assert line(run, "train").seconds_left is None


def with_rounds(run, quantiles="", **table):
    """The same run with rounds in its recipe: two of `weights` from 0 in each of two replicates, unless told otherwise."""
    return Run(run.folder, planned(quantiles, "0,1ep", replicates=2, rounds={"rounds": 2, "rewind": "0", **table}))


def in_round(run, replicate, number, variant="ticket"):
    return place_of(run, replicate, "weights", f"round-{number:02d}", 0, variant, chain=0)


def test_where_the_recipe_prunes_in_rounds_their_networks_are_counted_and_no_masks(run):
    rounds = with_rounds(run, controls=["reinit"], controls_at="2")
    write(in_round(rounds, 1, 1), "done")
    write(in_round(rounds, 1, 2), "diverged", reason="the loss is not finite at step 50")

    assert counts(rounds) == {"records": (1, 0, 0, 0), "train": (0, 0, 0, 2), "weights": (1, 0, 1, 4)}
    found = line(rounds, "weights")
    assert found.details == ["replicate-1 weights round-02-step-000000 ticket: diverged, the loss is not finite at step 50"]
    assert found.seconds_left == pytest.approx(4 * 20 * 2)
    both = with_rounds(run, "80")
    assert [line.stage for line in status(both)] == ["records", "train", "thresholds", "oneshot", "weights"]


def test_what_needs_a_network_that_diverged_is_not_waited_for(run):
    rounds = with_rounds(run, controls=[])
    write(in_round(rounds, 1, 1), "diverged", reason="the loss is not finite at step 50")
    write(run.replicate(2).dense, "diverged", reason="the loss is not finite at step 9")

    assert counts(rounds)["weights"] == (0, 0, 4, 0)
    assert line(rounds, "weights").seconds_left is None
    assert (
        "replicate-1 weights round-02-step-000000 ticket: diverged, what it needs has diverged"
        in line(rounds, "weights").details
    )


def test_what_is_only_evaluated_says_nothing_of_the_speed(run):
    trained(run, 1, epochs=20, seconds=40.0)
    write(ticket(run, 1, 80), "done", epochs=1 / 3, seconds=40.0, first_step=900, step=900)

    assert line(run, "train").seconds_left == pytest.approx(20 * 2)


def test_rounds_beyond_those_of_the_recipe_are_counted_as_far_as_they_were_begun(run):
    rounds = with_rounds(run, rounds=1)
    write(in_round(rounds, 1, 1), "done")
    write(in_round(rounds, 1, 2), "failed", reason="no disk")
    in_round(rounds, 1, 2, "reinit").folder.mkdir()

    assert counts(rounds)["weights"] == (1, 0, 1, 2)
    assert line(rounds, "weights").details == ["replicate-1/weights/round-02-step-000000/ticket: failed, no disk"]


def test_a_replicate_that_was_added_is_counted_with_what_it_has(run):
    mask(run, 1, 80, 90)
    mask(run, 3, 80)
    trained(run, 3)
    write(ticket(run, 3, 80), "done")
    write(ticket(run, 3, 80, 45), "failed", reason="no disk")

    assert counts(run) == {"records": (1, 0, 0, 0), "train": (1, 0, 0, 2), "thresholds": (3, 0, 0, 2), "oneshot": (1, 0, 1, 8)}
    assert line(run, "oneshot").details == ["replicate-3/oneshot/q80-step-000045/ticket: failed, no disk"]


def test_a_pair_beyond_the_grids_is_counted_once_it_is_begun(run):
    write(ticket(run, 1, 80, 10), "done", epochs=19.8)

    assert counts(run)["oneshot"] == (1, 0, 0, 8)


def test_the_time_left_of_a_recipe_in_steps_is_that_of_its_steps(run):
    in_steps = ["train.epochs=1", "train.steps=90", "train.snapshots=0", "train.warmup=0"]
    recipe = reading.resolve(planned("80", "0").model_dump(), in_steps)
    steps = Run(run.folder, recipe.model_copy(update={"replicates": 2}))
    trained(steps, 1, epochs=2, seconds=8.0)

    assert line(steps, "train").seconds_left == pytest.approx(8)


def test_once_a_headline_is_known_its_controls_are_waited_for(run):
    made = Run(run.folder, planned("", rounds={"rounds": 2, "rewind": "1ep", "controls": ["reinit"]}))
    handmade.dense(made, 0.90, 0.91, 0.92)
    handmade.in_rounds(made, "weights", 1, 0.01)
    assert counts(made)["weights"] == (3, 0, 0, 3)

    handmade.in_rounds(made, "weights", 2, -0.05)
    assert counts(made)["weights"] == (6, 0, 0, 3)

    handmade.in_rounds(made, "weights", 1, -0.05, "reinit")
    assert counts(made)["weights"] == (9, 0, 0, 0)
