"""Controls with the mask of another replicate: which one, when it can be trained, and that it is what its lender cut."""

import csv
import dataclasses
import shutil

import numpy as np
import pytest
from helpers import LENET, imp_here, refused, settings
from test_graph import END, ROUNDS, SHOT, places, the, tickets

from lottery.base import files
from lottery.base.errors import InputError
from lottery.experiment import graph, reading
from lottery.experiment.family import Family
from lottery.experiment.graph import Snapshot
from lottery.rundir import records, store
from lottery.rundir.lineage import Lineage
from lottery.rundir.run import EVERYTHING, open_run
from lottery.stages.alignment import Alignments
from lottery.stages.retrain import checked_tickets

BORROWING = {"controls": ["borrowed", "aligned"]}
ASKED = settings('families.oneshot.controls=["borrowed","aligned"]', 'families.chain.controls=["reinit","borrowed","aligned"]')
FAMILIES = settings(
    *("train.epochs=2", "train.warmup=0", "train.snapshots=0", "families.oneshot.rewind=0", "families.oneshot.quantiles=90"),
    *("families.oneshot.controls_at=90", "families.oneshot.controls=[]"),
    *("families.chain.rounds=2", "families.chain.controls_at=2", "families.chain.controls=[]"),
)


def test_a_replicate_borrows_from_the_one_before_and_the_first_from_the_second():
    assert [graph.lender(number) for number in (1, 2, 3, 10)] == [2, 1, 2, 9]


@pytest.mark.parametrize("variant", BORROWING["controls"])
def test_in_one_shot_a_mask_is_borrowed_and_the_start_is_the_replicates_own(variant):
    found = tickets(replicate=3, **{**SHOT, **BORROWING, "controls_at": "80"})
    control = the(found, "q80", variant)

    assert (control.start, control.first_step, control.needs) == (Snapshot(3, 45), 45, [])
    assert (control.mask.replicate, control.given.replicate, str(control)) == (
        3,
        2,
        f"replicate-3 own q80-step-000045 {variant}",
    )
    assert control.given.scored_on == Snapshot(2, END)
    assert the(found, "q80", "ticket").given == the(found, "q80", "ticket").mask
    of_both = {"borrowed": 45 + END, "aligned": 2 * END}  # networks are aligned at their end
    assert control.dense_steps(is_scored=True, end=END) == of_both[variant]


def test_in_rounds_it_waits_for_the_lenders_ticket_of_the_round_before():
    own, other = (tickets((0, 45), number, **{**ROUNDS, **BORROWING, "controls_at": "1,3", "copies": 2}) for number in (1, 2))
    first, third = the(own, "round-01", "aligned"), the(own, "round-03", "aligned")

    assert first.needs == []
    assert third.needs == [the(other, "round-02", "ticket")]
    assert third.given == the(other, "round-03", "ticket").mask
    assert third.given.within == the(other, "round-02", "ticket").mask
    assert third.chain == the(own, "round-03", "ticket").chain
    assert places(third.lineage) == [("round-01", "ticket", 45), ("round-02", "ticket", 45)]
    assert {one.replicate for one in third.lineage} == {2}


def test_a_mask_of_a_hundred_rounds_is_borrowed_in_no_time():
    found = tickets((0,), **{"rounds": 100, **BORROWING, "controls_at": "50,100"})

    assert the(found, "round-100", "borrowed", 0).given.round == 100


def test_masks_that_change_in_training_and_those_of_a_single_replicate_are_not_lent():
    with pytest.raises(ValueError, match="control aligned is of masks that stay as they are in training"):
        Family(quantiles="80", updates="gmp", controls=["aligned"])
    table = {"families": {"own": {"quantiles": "80", **BORROWING}}}
    with pytest.raises(InputError, match="control borrowed has the mask of another replicate: set replicates to 2 or more"):
        reading.resolve(table)
    reading.resolve({**table, "replicates": 2})


@pytest.fixture(scope="module")
def before(trained, tmp_path_factory):
    """A run of two replicates, its tickets trained without controls."""
    folder = tmp_path_factory.mktemp("borrowed") / "work"
    shutil.copytree(trained / "data", folder / "data")
    alike = [*LENET, *FAMILIES, "--set", "replicates=2"]
    for stage in ("train", "thresholds", "retrain", "rounds"):
        imp_here(stage, *(alike if stage == "train" else []), cwd=folder)
    return folder


@pytest.fixture(scope="module")
def finished(before, tmp_path_factory):
    """The same with controls, which were added to it."""
    folder = tmp_path_factory.mktemp("finished") / "work"
    shutil.copytree(before, folder, symlinks=True)
    assert "6 networks under masks: 2 finished, 4 to train" in imp_here("retrain", *ASKED, cwd=folder).stderr
    assert "10 networks under masks: 4 finished, 6 to train" in imp_here("rounds", cwd=folder).stderr
    return folder


NETWORKS = [
    ("oneshot/q90-step-000000", "oneshot/masks/q90"),
    ("chain/round-02-step-000000", "chain/masks/round-02-step-000000"),
]


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("network", "lent"), NETWORKS)
def test_the_mask_is_the_lenders_or_that_with_its_hidden_units_in_the_replicates_order(finished, network, lent):
    run = open_run(finished / "runs/digits", must_exist=True)
    one, other = run.replicate(1), run.replicate(2)
    borrowed, aligned = (store.load_mask(one.folder / network / variant / "mask.h5") for variant in BORROWING["controls"])
    cut = store.load_mask(other.folder / f"{lent}.h5")

    assert all(np.array_equal(borrowed[path], kept) for path, kept in cut.items())
    expected = Alignments(run).of(1, 2).permuted(cut)
    assert all(np.array_equal(aligned[path], kept) for path, kept in expected.items())
    assert (aligned["fc1/kernel"] != cut["fc1/kernel"]).any()
    assert np.array_equal(aligned["fc1/kernel"].sum(1), cut["fc1/kernel"].sum(1))  # each pixel keeps as many weights
    start = store.load_state(one.folder / network / "aligned/final.h5").weights["fc1/kernel"]
    assert not start[~aligned["fc1/kernel"]].any()


def test_what_was_borrowed_is_chained_by_content_and_nothing_is_trained_again(finished, tmp_path):
    folder = tmp_path / "work"
    shutil.copytree(finished, folder, symlinks=True)
    assert "10 finished, 0 to train" in imp_here("rounds", cwd=folder).stderr
    imp_here("verify", "runs/digits", cwd=folder)
    run = open_run(folder / "runs/digits", must_exist=True)
    network, lent = run.replicate(1).folder / NETWORKS[0][0], run.replicate(2).folder / f"{NETWORKS[0][1]}.json"
    made_from = files.read_json(network / "aligned/result.json")["made_from"]
    ends = [name for name in made_from if name.endswith(f"{run.plan().total_steps:06d}.h5")]
    assert ends == [f"{place}train/snapshots/step-{run.plan().total_steps:06d}.h5" for place in ("", "../replicate-2/")]
    assert "../replicate-2/oneshot/masks/q90.h5" in made_from

    lent.unlink()

    problem = Lineage(run.replicate(1)).problem(network / "borrowed/result.json")
    assert problem == f"was made from ../replicate-2/oneshot/masks/q90.h5, and {lent} is missing"


@pytest.mark.usefixtures("in_process")
def test_a_replicate_whose_lender_diverged_gets_its_tickets_without_the_controls(before, tmp_path):
    folder = tmp_path / "work"
    shutil.copytree(before, folder, symlinks=True)
    run = open_run(folder / "runs/digits", overrides=['families.oneshot.controls=["borrowed","shuffle"]'])
    dense = run.replicate(2).dense
    records.write(dense.result, dense.read_result().model_copy(update={"status": "diverged", "reason": "the loss is nan"}))

    left = checked_tickets(dataclasses.replace(run, chosen=(1,)), EVERYTHING)

    assert [one.variant for one in left if one.family == "oneshot"] == ["ticket", "shuffle"]


def test_a_lender_that_is_not_trained_is_named(before, tmp_path):
    folder = tmp_path / "work"
    shutil.copytree(before, folder, symlinks=True)
    shutil.rmtree(folder / "runs/digits/replicate-2")

    done = imp_here("retrain", "--replicate", "1", *ASKED, cwd=folder, check=False)

    refused(done, "replicate-2/train holds no finished training: run `imp train --replicate 1 --replicate 2` first")


def test_masks_of_replicates_are_compared_by_position_once_their_units_are_aligned(finished, tmp_path):
    folder = tmp_path / "work"
    shutil.copytree(finished, folder, symlinks=True)

    done = imp_here("compare", cwd=folder)

    assert "the same mask in different replicates, hidden units aligned" in done.stdout
    assert "Matched units correlate at 0." in done.stdout
    with open(folder / "runs/digits/report/compare.csv") as file:
        rows = [row for row in csv.DictReader(file) if (row["kind"], row["layer"]) == ("aligned", "")]
    assert [row["first"] for row in rows] == ["oneshot/q90", "chain-step-000000/round-01", "chain-step-000000/round-02"]
    assert {0 < float(row["correlation"]) < 1 for row in rows} == {True}

    for snapshot in (folder / "runs/digits").glob("replicate-2/train/snapshots/*.h5"):
        snapshot.unlink()
    refused(imp_here("compare", cwd=folder, check=False), "masks of different replicates are not compared: ")
