"""Rounds of pruning, as typed on the command line."""

import json
import shutil

import numpy as np
import pytest
from helpers import LENET, contents, flip, imp, kill_when, refused

from lottery import masks, recipe, store
from lottery.jobs import Chain, Round
from lottery.run import Run

LAST, EPOCH = 51, 17  # steps of LENET's training and of its epochs
THREE = ["--levels", "3", "--set", "rounds.rewind=0,1ep", "--set", "rounds.control_levels=2"]


def replicate_of(folder, number=1):
    return Run(folder / "runs/digits", recipe.resolve({})).replicate(number)


def copied(source, target):
    shutil.copytree(source, target, symlinks=True)
    return target


@pytest.fixture(scope="module")
def pruned(trained, tmp_path_factory):
    """A folder in which one process pruned three rounds of `weights` from two points, with `reinit` in the second."""
    folder = copied(trained, tmp_path_factory.mktemp("pruned") / "work")
    imp("rounds", *THREE, cwd=folder)
    return folder


def ticket(method, step, level, variant="ticket"):
    return Round(Chain(1, method, step), level, variant)


def mask_of(folder, job):
    return masks.load(replicate_of(folder).level(job.chain, job.level).mask)


def survivors(mask):
    return sum(int(kept.sum()) for kept in mask.values())


def test_each_round_prunes_exactly_its_share_of_what_is_left_and_masks_only_shrink(pruned):
    for step in (0, EPOCH):
        before, left = None, 64 * 3 * 300 + 300 * 100
        for level in (1, 2, 3):
            found = mask_of(pruned, ticket("weights", step, level))
            left -= round(left / 5)
            assert survivors(found) == left
            assert before is None or not any((kept & ~before[path]).any() for path, kept in found.items())
            before = found


def test_a_round_prunes_the_smallest_final_weights_that_the_one_before_left(pruned):
    replicate = replicate_of(pruned)
    sources = [replicate.snapshot(LAST), *(replicate.network(ticket("weights", EPOCH, level)).final for level in (1, 2))]
    before = None
    for level, source in enumerate(sources, 1):
        weights = store.load_state(source).weights
        kept = mask_of(pruned, ticket("weights", EPOCH, level))
        before = before or {path: np.ones_like(array) for path, array in kept.items()}
        stayed = np.concatenate([np.abs(weights[path][kept[path]]) for path in kept])
        went = np.concatenate([np.abs(weights[path][before[path] & ~kept[path]]) for path in kept])
        assert went.max() <= stayed.min()
        before = kept


def test_pruned_weights_and_slots_are_exactly_zero_in_every_ticket(pruned):
    for step in (0, EPOCH):
        for level in (1, 2, 3):
            job = ticket("weights", step, level)
            state = store.load_state(replicate_of(pruned).network(job).final)
            for path, kept in mask_of(pruned, job).items():
                assert not state.weights[path][~kept].any()
                assert not state.slots[f"momentum/{path}"][~kept].any()
                assert state.weights[path][kept].all()


def test_a_round_says_what_it_pruned_and_its_networks_what_they_are(pruned):
    replicate = replicate_of(pruned)
    table = json.loads(replicate.level(Chain(1, "weights", EPOCH), 2).table.read_text())
    result = replicate.network(ticket("weights", EPOCH, 2)).read_result()
    reinit = replicate.network(ticket("weights", EPOCH, 2, "reinit")).read_result()

    assert table | {"level": 2, "method": "weights", "rewind_step": EPOCH, "pruned": 14016, "remaining": 56064} == table
    assert [(layer["rate"], layer["had"] - layer["has"] > 0) for layer in table["layers"].values()] == [(20.0, True)] * 2
    assert table["density"] == result["density"] == reinit["density"]
    assert result["density"]["prunable"] == pytest.approx(0.64)
    assert 0 < result["density"]["effective"] <= result["density"]["prunable"]
    place = {"method": "weights", "level": 2, "quantile": None, "rewind_step": EPOCH}
    assert result | place | {"variant": "ticket", "first_step": EPOCH, "epochs": 2.0} == result
    assert reinit | place | {"variant": "reinit", "first_step": 0, "epochs": 3.0} == reinit


def test_controls_accompany_the_rounds_that_are_asked_for_alone(pruned):
    found = {str(network.folder.relative_to(replicate_of(pruned).folder)) for network in replicate_of(pruned).networks()}

    chains = ("rounds/weights-step-000000", f"rounds/weights-step-{EPOCH:06d}")
    names = ("01/ticket", "02/reinit", "02/ticket", "03/ticket")
    assert found == {f"{chain}/{name}" for chain in chains for name in names}


def test_finished_rounds_are_not_done_again_and_more_go_on_from_them(pruned, tmp_path):
    work = copied(pruned, tmp_path / "work")
    before = contents(work / "runs")

    assert "8 networks under masks: 8 finished, 0 to train" in imp("rounds", "--levels", "3", cwd=work).stderr
    done = imp("rounds", "--levels", "4", cwd=work)

    assert "10 networks under masks: 8 finished, 2 to train" in done.stderr
    after = contents(work / "runs")
    assert {name: after[name] for name in before} == before
    assert {name.split("/")[-2] for name in after.keys() - before.keys()} == {"04", "ticket"}


def test_rounds_killed_in_the_middle_of_one_go_on_and_end_with_the_same_bytes(pruned, work):
    network = replicate_of(work).network(ticket("weights", 0, 2))

    kill_when(["rounds", *THREE], work, lambda: network.checkpoint.exists())
    imp("rounds", *THREE, cwd=work)

    assert contents(work / "runs") == contents(pruned / "runs")
    assert not list(work.rglob("*.tmp"))


def test_ranks_give_the_bytes_of_one_process(pruned, work):
    done = imp("rounds", "--ranks", "3", *THREE, cwd=work)

    assert "[8/8," in done.stderr
    assert contents(work / "runs") == contents(pruned / "runs")


def test_a_damaged_ticket_stops_its_chain_alone_and_is_named(pruned, tmp_path):
    work = copied(pruned, tmp_path / "work")
    replicate = replicate_of(work)
    for step in (0, EPOCH):
        shutil.rmtree(replicate.level(Chain(1, "weights", step), 3).folder)
    flip(replicate.network(ticket("weights", 0, 2)).final)

    done = imp("rounds", "--levels", "4", "--set", "rounds.controls=[]", cwd=work, check=False)

    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("not finished")]
    assert len(lines) == 2
    assert lines[0].startswith("not finished: replicate-1 weights-step-000000 round 03 ticket failed: ")
    assert "02/ticket/final.h5 is damaged" in lines[0]
    chain = "replicate-1 weights-step-000000 round"
    assert lines[1] == f"not finished: {chain} 04 ticket waiting: needs {chain} 03 ticket"
    assert replicate.network(ticket("weights", EPOCH, 4)).is_finished


def test_a_damaged_table_that_was_removed_as_told_is_written_again(pruned, tmp_path):
    work = copied(pruned, tmp_path / "work")
    table = replicate_of(work).level(Chain(1, "weights", 0), 2).table
    whole = table.read_bytes()
    flip(table)
    refused(imp("rounds", cwd=work, check=False), "02/round.json is damaged or was changed by hand", "remove it")
    table.unlink()

    imp("rounds", cwd=work)

    assert table.read_bytes() == whole


def test_where_no_controls_are_trained_it_is_said_why(work):
    without_a_headline = imp("rounds", "--levels", "1", cwd=work).stderr.splitlines()
    of_other_rounds = imp("rounds", "--levels", "1", "--set", "rounds.control_levels=2", cwd=work).stderr

    assert without_a_headline[-1] == (
        "no controls yet: they accompany the headline, which takes 3 replicates, all their tickets trained, and one that "
        "matches; the same command trains them then"
    )
    assert "no controls: rounds.control_levels names none of these rounds" in of_other_rounds
    assert "no controls yet" not in of_other_rounds


MATCHING = ["--levels", "2", "--set", "replicates=3", "--set", "delta=1.0"]


@pytest.fixture(scope="module")
def headlined(trained, tmp_path_factory):
    """A folder in which one process pruned two rounds in three replicates, where all tickets match; and what it said."""
    folder = copied(trained, tmp_path_factory.mktemp("headlined") / "work")
    imp("train", "--set", "replicates=3", cwd=folder)
    before = copied(folder, folder.parent / "before")
    return folder, before, imp("rounds", *MATCHING, cwd=folder).stderr.splitlines()


def test_the_headline_s_round_gets_its_controls_after_all_tickets(headlined):
    _, _, said = headlined

    assert "controls of the headline: weights-step-000000 round 02" in said
    assert "3 networks under masks: 0 finished, 3 to train" in said
    trained = [line.split("] ")[1].split(":")[0] for line in said if line.startswith("[")]
    chains = [f"replicate-{number} weights-step-000000 round" for number in (1, 2, 3)]
    assert sorted(trained[:6]) == [f"{chain} {level} ticket" for chain in chains for level in ("01", "02")]
    assert sorted(trained[6:]) == [f"{chain} 02 reinit" for chain in chains]


def test_a_headline_s_controls_that_are_there_are_not_trained_again(headlined):
    folder, _, _ = headlined

    said = imp("rounds", *MATCHING, cwd=folder).stderr

    assert "3 networks under masks: 3 finished, 0 to train" in said


def test_ranks_train_the_headline_s_controls_too(headlined):
    folder, before, _ = headlined

    done = imp("rounds", "--ranks", "2", *MATCHING, cwd=before)

    assert "controls of the headline: weights-step-000000 round 02" in done.stderr
    assert contents(before / "runs") == contents(folder / "runs")


def test_the_report_of_a_headline_names_its_control(headlined):
    folder, _, _ = headlined

    sentences = json.loads(imp("report", "--json", cwd=folder).stdout)["headline"]

    (sentence,) = (sentence for sentence in sentences if sentence.startswith("In rounds of weights from 0, "))
    assert "the sparsest matching ticket keeps 64.00% of the prunable weights" in sentence
    assert "its control `reinit` (its mask, fresh weights) matches too" in sentence


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["rounds.methods=[]"], ["rounds.methods is empty", "weights, lr, finetune or init"]),
        (["rounds.rewind=2ep"], ["rewind point 2ep is not among the snapshots", "imp train --set train.snapshots="]),
        (["rounds.rewind=4ep"], ["lies past the end of training"]),
        (["rounds.rate=100"], ["rounds.rate", "100"]),
        (["rounds.rates=['fc1/*']"], ["rounds.rates", "is not a rate of pruning"]),
        (["rounds.rates=['prediction/*=10']"], ["rounds.rates: 'prediction/*' matches no variable of lenet_300_100"]),
        (["rounds.methods=['rewind']"], ["rounds.methods", "'rewind'"]),
    ],
    ids=lambda value: value[0],
)
def test_bad_values_are_refused_before_anything_is_written(work, settings, words):
    before = contents(work / "runs")

    refused(imp("rounds", *(part for value in settings for part in ("--set", value)), cwd=work, check=False), *words)

    assert contents(work / "runs") == before
    assert not (replicate_of(work).folder / "rounds").exists()


@pytest.mark.parametrize("levels", ["0", "101", "few"])
def test_a_number_of_rounds_that_makes_no_sense_is_refused(work, levels):
    refused(imp("rounds", "--levels", levels, cwd=work, check=False), "--levels")


def test_rounds_of_an_untrained_network_say_what_comes_first(prepared):
    refused(imp("rounds", *LENET, cwd=prepared, check=False), "holds no finished training: run `imp train` first")
    refused(imp("rounds", *LENET, "--ranks", "3", cwd=prepared, check=False), "run `imp train` first")


def test_a_snapshot_that_is_gone_is_missed_by_name(work):
    replicate_of(work).snapshot(0).unlink()

    refused(imp("rounds", cwd=work, check=False), "step-000000.h5 is missing: run `imp train`, which adds it")
