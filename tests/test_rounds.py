"""Rounds of pruning: what they come to on a small network, and what a command says of them."""

import shutil

import numpy as np
import pytest
from helpers import LENET, contents, flip, imp_here, kill_when, mpirun, refused, settings

from lottery.experiment import reading
from lottery.results.findings import Findings
from lottery.rundir import store
from lottery.rundir.names import MaskFiles, NetworkFiles
from lottery.rundir.run import Run, open_run

LAST, EPOCH = 51, 17  # steps of LENET's training and of its epochs
THREE = settings("families.rounds.rounds=3", "families.rounds.rewind=0,1ep", "families.rounds.controls_at=2")


def replicate_of(folder, number=1):
    return Run(folder / "runs/digits", reading.resolve({})).replicate(number)


def copied(source, target):
    shutil.copytree(source, target, symlinks=True)
    return target


@pytest.fixture(scope="module")
def pruned(trained, tmp_path_factory):
    """A folder in which one process pruned three rounds from two points, with `reinit` in the second."""
    folder = copied(trained, tmp_path_factory.mktemp("pruned") / "work")
    imp_here("rounds", *THREE, cwd=folder)
    return folder


def network(folder, step, number, variant="ticket"):
    return NetworkFiles(replicate_of(folder).folder / f"rounds/round-{number:02d}-step-{step:06d}" / variant)


def mask_files(folder, step, number):
    return MaskFiles(replicate_of(folder).mask_folder("rounds"), f"round-{number:02d}-step-{step:06d}")


def mask_of(folder, step, number):
    return store.load_mask(mask_files(folder, step, number).mask)


def test_each_round_prunes_exactly_its_share_of_what_is_left_and_its_ticket_is_zero_there(pruned):
    for step in (0, EPOCH):
        before, left = None, 64 * 3 * 300 + 300 * 100
        for number in (1, 2, 3):
            mask = mask_of(pruned, step, number)
            left -= round(left / 5)
            assert sum(int(kept.sum()) for kept in mask.values()) == left
            assert before is None or not any((kept & ~before[path]).any() for path, kept in mask.items())
            before = mask
            state = store.load_state(network(pruned, step, number).final)
            for path, kept in mask.items():
                assert not state.weights[path][~kept].any()
                assert not state.optimizer[f"momentum/{path}"][~kept].any()
                assert state.weights[path][kept].all()


def test_a_round_prunes_the_smallest_final_weights_that_the_one_before_left(pruned):
    sources = [replicate_of(pruned).snapshot(LAST), *(network(pruned, EPOCH, number).final for number in (1, 2))]
    before = None
    for number, source in enumerate(sources, 1):
        weights = store.load_state(source).weights
        kept = mask_of(pruned, EPOCH, number)
        before = before or {path: np.ones_like(array) for path, array in kept.items()}
        stayed = np.concatenate([np.abs(weights[path][kept[path]]) for path in kept])
        went = np.concatenate([np.abs(weights[path][before[path] & ~kept[path]]) for path in kept])
        assert went.max() <= stayed.min()
        before = kept


def test_a_round_says_what_it_pruned_and_its_networks_what_they_are(pruned):
    record = mask_files(pruned, EPOCH, 2).read()
    result, reinit = (network(pruned, EPOCH, 2, variant).read_result() for variant in ("ticket", "reinit"))

    assert (record.round, record.rewind_step, record.rate, record.pruned, record.remaining) == (2, EPOCH, 20.0, 14016, 56064)
    assert [(layer.rate, layer.weights > layer.kept) for layer in record.layers.values()] == [(20.0, True)] * 2
    assert record.kept == result.kept == reinit.kept
    assert result.kept.density.prunable == pytest.approx(0.64)
    assert 0 < result.kept.density.effective <= result.kept.density.prunable
    for one, variant, first_step, epochs in ((result, "ticket", EPOCH, 2.0), (reinit, "reinit", 0, 3.0)):
        assert (one.family, one.method, one.mask, one.round, one.rewind_step) == ("rounds", "weights", "round-02", 2, EPOCH)
        assert (one.variant, one.first_step, one.epochs) == (variant, first_step, epochs)


def test_finished_rounds_are_not_done_again_and_more_go_on_from_them(pruned, tmp_path):
    work = copied(pruned, tmp_path / "work")
    before = contents(work / "runs")

    assert "8 networks under masks: 8 finished, 0 to train" in imp_here("rounds", "--rounds", "3", cwd=work).stderr
    done = imp_here("rounds", "--rounds", "4", cwd=work)

    assert "10 networks under masks: 8 finished, 2 to train" in done.stderr
    after = contents(work / "runs")
    assert {name: after[name] for name in before} == before
    assert {name.split("/")[3][:8] for name in after.keys() - before.keys()} == {"masks", "round-04"}


def test_rounds_killed_in_the_middle_of_one_go_on_over_ranks_and_end_with_the_same_bytes(pruned, work):
    kill_when(["rounds", *THREE], work, network(work, 0, 2).checkpoint.exists)
    done = mpirun(3, "rounds", *THREE, cwd=work)

    assert done.returncode == 0, done.stderr
    assert contents(work / "runs") == contents(pruned / "runs")
    assert not list(work.rglob("*.tmp"))


def test_a_damaged_ticket_stops_its_chain_alone_and_is_named(pruned, tmp_path):
    work = copied(pruned, tmp_path / "work")
    for step in (0, EPOCH):
        shutil.rmtree(network(work, step, 3).folder.parent)
        mask_files(work, step, 3).mask.unlink()
        mask_files(work, step, 3).table.unlink()
    flip(network(work, 0, 2).final)

    done = imp_here("rounds", "--rounds", "4", *settings("families.rounds.controls=[]"), cwd=work, check=False)

    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("not finished")]
    assert len(lines) == 2
    chain = "replicate-1 rounds round"
    assert lines[0].startswith(f"not finished: {chain}-03-step-000000 ticket failed: ")
    assert "round-02-step-000000/ticket/final.h5 is damaged" in lines[0]
    assert lines[1] == f"not finished: {chain}-04-step-000000 ticket waiting: needs {chain}-03-step-000000 ticket"
    assert network(work, EPOCH, 4).is_finished


def test_a_damaged_record_of_a_mask_that_was_removed_as_told_is_written_again(pruned, tmp_path):
    work = copied(pruned, tmp_path / "work")
    table = mask_files(work, 0, 2).table
    whole = table.read_bytes()
    flip(table)
    refused(
        imp_here("rounds", cwd=work, check=False), "round-02-step-000000.json is damaged or was changed by hand", "remove it"
    )
    table.unlink()

    imp_here("rounds", cwd=work)

    assert table.read_bytes() == whole


MATCHING = settings("replicates=3", "delta=1.0", "families.rounds.rounds=2")


@pytest.fixture(scope="module")
def headlined(trained, tmp_path_factory):
    """A folder in which one process pruned two rounds in three replicates, where all tickets match, and what was said."""
    folder = copied(trained, tmp_path_factory.mktemp("headlined") / "work")
    imp_here("train", *settings("replicates=3"), cwd=folder)
    return folder, imp_here("rounds", *MATCHING, cwd=folder).stderr.splitlines()


def test_the_headline_s_round_gets_its_controls_after_all_tickets_and_the_report_names_them(headlined):
    folder, said = headlined

    assert "controls of the headline: rounds round-02-step-000000" in said
    assert "3 networks under masks: 0 finished, 3 to train" in said
    trained = [line.split("] ")[1].split(":")[0] for line in said if line.startswith("[")]
    chains = [f"replicate-{number} rounds round" for number in (1, 2, 3)]
    assert sorted(trained[:6]) == [f"{chain}-{number}-step-000000 ticket" for chain in chains for number in ("01", "02")]
    assert sorted(trained[6:]) == [f"{chain}-02-step-000000 reinit" for chain in chains]
    assert "3 networks under masks: 3 finished, 0 to train" in imp_here("rounds", *MATCHING, cwd=folder).stderr
    sentences = Findings(open_run(folder / "runs/digits")).headline.series
    (sentence,) = (sentence for sentence in sentences if "the sparsest matching ticket keeps 64.00%" in sentence)
    assert "its control `reinit` (its mask, fresh weights) matches too" in sentence


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["rewind=2ep"], ["rewind point 2ep is not among the snapshots", "imp train --set train.snapshots="]),
        (["rates=['prediction/*=10']"], ["families.rounds.rates: 'prediction/*' matches no variable of lenet_300_100"]),
        (["quantiles=90"], ["families.rounds", "give either quantiles (one shot) or rounds"]),
    ],
    ids=lambda value: value[0],
)
def test_bad_values_are_refused_before_anything_is_written(work, values, words):
    before = contents(work / "runs")
    given = settings("families.rounds.rounds=2", *(f"families.rounds.{value}" for value in values))

    refused(imp_here("rounds", *given, cwd=work, check=False), *words)

    assert contents(work / "runs") == before
    assert not (replicate_of(work).folder / "rounds").exists()


def test_a_number_of_rounds_that_makes_no_sense_is_refused(trained):
    refused(imp_here("rounds", "--rounds", "101", cwd=trained, check=False), "--rounds")


def test_rounds_of_an_untrained_network_say_what_comes_first(prepared):
    done = imp_here("rounds", *LENET, "--ranks", "3", cwd=prepared, check=False)

    refused(done, "holds no finished training: run `imp train` first")
