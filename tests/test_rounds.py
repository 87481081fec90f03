"""Rounds of pruning: what they come to on a small network, and what a command says of them."""

import shutil

import pytest
from helpers import LENET, contents, flip, imp_here, kill_when, mpirun, refused, settings

from lottery.experiment import reading
from lottery.rundir import store
from lottery.rundir.names import MaskFiles, NetworkFiles
from lottery.rundir.run import Run

EPOCH = 17  # steps of LENET's epochs
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
            assert network(pruned, step, number).read_result().kept == mask_files(pruned, step, number).read().kept
            state = store.load_state(network(pruned, step, number).final)
            for path, kept in mask.items():
                assert not state.weights[path][~kept].any()
                assert not state.optimizer[f"momentum/{path}"][~kept].any()
                assert state.weights[path][kept].all()


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


def test_a_number_of_rounds_that_makes_no_sense_is_refused(trained):
    refused(imp_here("rounds", "--rounds", "101", cwd=trained, check=False), "--rounds")


def test_rounds_of_an_untrained_network_say_what_comes_first(prepared):
    done = imp_here("rounds", *LENET, "--ranks", "3", cwd=prepared, check=False)

    refused(done, "holds no finished training: run `imp train` first")
