"""Verifying a run directory: every damaged or missing file is named with the way out, and nothing is changed."""

import json
import shutil

import numpy as np
import pytest
from handmade import COSTS
from helpers import empty, flip, imp, imp_here

from lottery.base import files
from lottery.base.errors import InputError
from lottery.base.progress import Reporter
from lottery.experiment import graph, reading
from lottery.experiment.graph import Mask, Ticket, masks_of
from lottery.pruning.densities import Density, Kept
from lottery.pruning.state import State
from lottery.results import verify as verifying
from lottery.results.verify import verify
from lottery.rundir import identity, journal, predictions, records, store
from lottery.rundir.lineage import seals
from lottery.rundir.records import MaskRecord, Result, Scores
from lottery.rundir.run import Run

LAST = 12
WEIGHTS = {"fc1/kernel": np.arange(30, dtype=np.float32)}
ORIGINS = {"records": "0" * 64, "network": "f" * 64}
RECIPE = {
    "shot": {"quantiles": "50,97.5", "controls": ["reinit"], "controls_at": "97.5"},
    "chained": {"rounds": 3, "controls": []},
}


@pytest.fixture
def run(tmp_path):
    """A run of made-up networks: of one shot two masks, a ticket of each and a control of the second; a round of pruning and
    its ticket, a second round that is only cut, and a third that is begun."""
    made = Run(tmp_path / "run", reading.resolve({"families": RECIPE}))
    made.adopt()
    replicate = made.replicate(1)
    snapshots = [replicate.snapshot(step) for step in (0, 6, LAST)]
    for path in snapshots:
        store.save_state(path, State(LAST, WEIGHTS, {}, {}))
    finish(made, replicate.dense, snapshots, ORIGINS)
    found = tickets(made, "shot")
    for mask in masks_of(found):
        cut(made, mask, snapshots[-1:])
    for one in found:
        end(made, one, [made.mask(one.mask).mask, snapshots[1]])
    first, second, third = tickets(made, "chained")
    cut(made, first.mask, snapshots[-1:])
    end(made, first, [made.mask(first.mask).mask, snapshots[1]])
    cut(made, second.mask, [made.network(first).final, made.mask(first.mask).mask])
    cut(made, third.mask, [], table=False)
    return made


def tickets(run, family):
    return graph.tickets(1, family, run.recipe.families[family], LAST, (6,))


def claim(run, folder, output, family):
    with identity.claimed(folder, run.recipe, output, ORIGINS, family):
        pass


def cut(run, mask: Mask, made_from, table=True):
    """A mask, and what it prunes."""
    made = run.mask(mask)
    claim(run, made.folder, "mask", mask.family)
    store.save_mask(made.mask, {"fc1/kernel": WEIGHTS["fc1/kernel"] >= mask.rate / 10 + mask.round}, {})
    if table:
        chain = {"outputs": seals(run.replicate(1).folder, [made.mask]), "made_from": seals(run.replicate(1).folder, made_from)}
        place = {"replicate": 1, "family": mask.family, "mask": mask.label, "round": mask.round, "rewind_step": mask.rewind}
        kept = Kept(Density(0.5, 0.5, 0.5, None), {}, None)
        scores = Scores(count=30, min=0, max=29, mean=14.5)
        others = {"step": LAST, "scores": scores, "threshold": None, "pruned": 0, "remaining": 30, "layers": {}, "kept": kept}
        others["costs"] = COSTS
        records.write(made.table, MaskRecord(**chain, **place, rate=float(mask.rate), **others))


def finish(run, network, outputs, made_from, status="done", **more):
    """Write what a training leaves beside the weights that are there already."""
    claim(run, network.folder, "ticket" if more else "dense", more.get("family", ""))
    network.metrics.unlink(missing_ok=True)
    seal = ""
    for step in (6, LAST):
        seal = journal.append(network.metrics, {"step": step}, seal)
    made = {"status": status, "replicate": 1, "steps_per_epoch": 6, "epochs": 2.0, "step": LAST, **more}
    chain = {"outputs": seals(run.replicate(1).folder, outputs), "made_from": made_from}
    records.write(network.result, Result.model_validate({**made, **chain, "timing": {"journal": seal}}))


def end(run, ticket: Ticket, made_from, status="done"):
    network = run.network(ticket)
    if status == "done":
        store.save_state(network.final, State(LAST, WEIGHTS, {}, {}))
        answered = predictions.of(np.array([0, 1]), np.array([0, 0]), np.array([0.9, 0.8]), 2)
        predictions.save(network.predictions, {"validation": answered, "test": answered}, LAST)
    outputs = [network.final, network.predictions] if status == "done" else []
    facts = {"family": ticket.family, "variant": ticket.variant, "mask": ticket.mask.label}
    finish(run, network, outputs, ORIGINS | seals(run.replicate(1).folder, made_from), status, **facts)


def problems(run):
    """What is wrong, by path inside the run directory."""
    found = verify(run.folder, Reporter(quiet=True))
    start = f"{run.folder}/"
    assert all(path.startswith(start) for path in found)
    assert all("\n" not in problem and path in problem for path, problem in found.items() if problem)
    return {path.removeprefix(start): problem for path, problem in found.items() if problem}


def everything(folder):
    """Every file and folder, as it is and since when."""
    return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in [folder, *folder.rglob("*")]}


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-3])


def binary(path):
    path.write_bytes(b"\xff\x00\xfe")


def something_else(path):
    path.write_text("[1, 2]")


COUNT = 39


def test_a_good_run_has_every_file_checked_and_no_problem(run):
    found = verify(run.folder, Reporter(quiet=True))

    assert not problems(run)
    assert found.keys() == {str(path) for path in run.folder.rglob("*") if path.is_file() and path.suffix != ".txt"}
    assert len(found) == COUNT == 2 + (3 + 3) + (1 + 2 * 2) + 3 * 5 + (1 + 2 + 2 + 1) + 5


SHOT, ROUND = "replicate-1/shot", "replicate-1/chained/masks/round-01-step-000006"
TICKET, CHAINED = f"{SHOT}/q50-step-000006/ticket", "replicate-1/chained/round-01-step-000006/ticket"
RESULTS = [
    f"{SHOT}/{name}/result.json" for name in ("q50-step-000006/ticket", "q97.5-step-000000/reinit", "q97.5-step-000006/ticket")
]


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("replicate-1/train/snapshots/step-000006.h5", flip, "is damaged"),
        (f"{SHOT}/masks/q50.h5", empty, "is damaged"),
        (f"{TICKET}/final.h5", flip, "is damaged"),
        (f"{TICKET}/predictions.h5", flip, "is damaged"),
        (f"{TICKET}/metrics.jsonl", cut_off, "lacks rows"),
        (f"{TICKET}/result.json", cut_off, "is damaged"),
        (f"{SHOT}/masks/q50.json", cut_off, "is damaged"),
        (f"{TICKET}/result.json", something_else, ""),
        ("environment.json", cut_off, "is damaged"),
        ("recipe.toml", binary, "is damaged"),
    ],
)
def test_a_damaged_file_is_named(run, name, damage, words):
    damage(run.folder / name)

    found = problems(run)

    assert list(found) == [name]
    assert words in found[name]


def test_a_recipe_that_says_what_cannot_be_is_named(run):
    path, text = run.folder / "recipe.toml", "[train]\nepoch = 5\n"
    before_the_seal = path.read_text().partition("\n")[0].rpartition(" ")[0]
    path.write_text(f"{before_the_seal} {files.sha256(text.encode())}\n{text}")

    assert "did you mean 'train.epochs'" in problems(run)["recipe.toml"]


@pytest.mark.parametrize(
    ("name", "promised_by"),
    [
        (f"{SHOT}/masks/q97.5.h5", "masks/q97.5.json"),
        ("replicate-1/train/snapshots/step-000012.h5", "train/result.json"),
        (f"{TICKET}/metrics.jsonl", "ticket/result.json"),
        (f"{CHAINED}/final.h5", "ticket/result.json"),
        ("replicate-1/chained/masks/round-02-step-000006.h5", "round-02-step-000006.json"),
        ("replicate-1/chained/masks/made_with.json", "round-01-step-000006.json"),
    ],
)
def test_a_missing_file_is_named_with_the_one_that_promised_it(run, name, promised_by):
    (run.folder / name).unlink()

    found = problems(run)

    assert list(found) == [name]
    assert "is missing" in found[name]
    assert promised_by in found[name]


@pytest.mark.parametrize(
    ("name", "made_from_it"),
    [
        ("replicate-1/train/result.json", [f"{SHOT}/masks/q50.json", f"{SHOT}/masks/q97.5.json", *RESULTS]),
        (f"{SHOT}/masks/q50.json", RESULTS[:1]),
        (f"{TICKET}/result.json", []),
    ],
)
def test_json_that_does_not_say_what_it_should_is_named_and_the_others_are_checked(run, name, made_from_it):
    content = {"format": 2, "status": "done"}
    place = records.own_place(run.folder / name)
    files.write_json(run.folder / name, {"folder": place, **content})
    cut_off(run.folder / f"{TICKET}/final.h5")

    assert sorted(problems(run)) == sorted([name, f"{TICKET}/final.h5"])
    files.write_json(run.folder / name, content)
    assert name in problems(run)


def test_folders_that_are_links_are_checked_and_none_that_leads_back_or_elsewhere(run, tmp_path):
    (run.folder / "replicate-1").rename(tmp_path / "scratch")
    (run.folder / "replicate-1").symlink_to(tmp_path / "scratch")
    (run.folder / "replicate-9").symlink_to(run.folder)
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets/broken.json").write_text("{")
    (run.folder / "data").symlink_to(tmp_path / "datasets")
    cut_off(tmp_path / "scratch/shot/masks/q50.h5")

    assert list(problems(run)) == [f"{SHOT}/masks/q50.h5"]


def test_a_file_that_goes_while_others_are_checked_is_no_damage(run):
    """As a checkpoint does when its training ends."""
    checkpoint = run.folder / "replicate-1/train/checkpoint.h5"
    store.save(checkpoint, {}, {})
    seen = list(verifying._run(run.folder))
    checkpoint.unlink()

    assert checkpoint in dict(seen)
    assert [verifying._problem(*check) for check in seen] == [None] * len(seen)


def test_a_run_that_is_under_way_lacks_nothing_nor_do_networks_that_diverged_and_rounds_that_are_being_cut(run):
    one = tickets(run, "shot")[1]
    run.network(one).final.unlink()
    end(run, one, [run.mask(one.mask).mask, run.replicate(1).snapshot(6)], "diverged")
    (run.folder / "replicate-1/chained/masks/round-03-step-000006.h5").unlink()
    assert not problems(run)

    for name in ("train/result.json", "train/snapshots/step-000012.h5"):
        (run.folder / "replicate-1" / name).unlink()
    for family in ("shot", "chained"):
        shutil.rmtree(run.folder / "replicate-1" / family)
    (run.folder / "replicate-1/train/.checkpoint.h5.123.tmp").write_bytes(b"half")

    assert not problems(run)


def test_verifying_a_run_that_was_trained_finds_nothing_wrong(retrained):
    before = everything(retrained)

    for path in ("runs/latest", "data/digits-8"):
        assert imp_here("verify", path, cwd=retrained).stdout.endswith("files checked, 0 damaged\n")

    assert everything(retrained) == before


def test_the_command_ends_with_1_when_something_is_damaged_names_it_all_and_writes_nothing(run):
    names = sorted([f"{SHOT}/masks/q50.h5", f"{TICKET}/final.h5", f"{TICKET}/metrics.jsonl"])
    for name in names:
        cut_off(run.folder / name)
    before = everything(run.folder)

    done = imp("verify", str(run.folder), cwd=run.folder, check=False)
    told = imp_here("verify", "--json", str(run.folder), cwd=run.folder, check=False)

    assert done.returncode == told.returncode == 1
    *lines, last = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [f"{run.folder}/{name}" for name in names]
    assert lines[0].startswith(f"{run.folder}/{names[0]} ")
    assert last == f"{run.folder}: {COUNT} files checked, 3 damaged"
    rows = json.loads(told.stdout)
    assert len(rows) == COUNT
    assert [row["path"] for row in rows if row["problem"]] == [f"{run.folder}/{name}" for name in names]
    assert everything(run.folder) == before


def test_what_is_neither_records_nor_a_run_is_refused(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.h5").write_bytes(b"")

    with pytest.raises(InputError, match="holds neither records"):
        verify(tmp_path / "notes", Reporter(quiet=True))
    for path in (tmp_path / "nowhere", tmp_path / "notes/a.h5"):
        with pytest.raises(InputError, match="is not a folder"):
            verify(path, Reporter(quiet=True))
    assert imp_here("verify", "nowhere", cwd=tmp_path, check=False).returncode == 2
