"""Verifying a run directory: every damaged or missing file is named with the way out, and nothing is changed."""

import json
import shutil

import numpy as np
import pytest
from handmade import ORIGINS, write_table
from helpers import empty, flip, imp, tiny_set

from data_prep import files
from data_prep.errors import InputError
from lottery import identity, journal, masks, recipe, store
from lottery.jobs import Chain, Job, Round
from lottery.progress import Reporter
from lottery.run import Run
from lottery.stages import verify as verifying
from lottery.stages.verify import verify

LAST = 12
WEIGHTS = {"fc1/kernel": np.arange(30, dtype=np.float32)}


@pytest.fixture
def run(tmp_path):
    """A finished run of made-up networks: two masks, a ticket of each and a control of the second."""
    made = Run(tmp_path / "run", recipe.resolve({"replicates": 1}))
    made.adopt()
    replicate = made.replicate(1)
    snapshots = [replicate.snapshot(step) for step in (0, 6, LAST)]
    for path in snapshots:
        store.save_state(path, store.State(LAST, WEIGHTS, {}, {}))
    finish(made, replicate.dense, snapshots, [])
    kept = [replicate.mask(made_of(quantile)) for quantile in (50, 97.5)]
    for level, path in enumerate(kept):
        masks.save(path, {"fc1/kernel": WEIGHTS["fc1/kernel"] > level}, {})
    claim(made, replicate.masks, "thresholds")
    write_table(replicate, replicate.thresholds, kept, snapshots[-1:], quantiles=[{"quantile": 50}, {"quantile": 97.5}])
    for mask, quantile, variant in ((kept[0], 50, "ticket"), (kept[1], 97.5, "ticket"), (kept[1], 97.5, "reinit")):
        end(made, made.network(Job(1, made_of(quantile), 6, variant)), [mask, snapshots[1]])
    return made


def made_of(quantile):
    return recipe.resolve({"thresholds": {"quantiles": str(quantile)}}).quantiles()[0]


def claim(run, folder, stage):
    with identity.claimed(folder, run.recipe, stage, ORIGINS):
        pass


def finish(run, network, outputs, made_from, stage="train"):
    """Write what a training leaves beside the weights that are there already."""
    claim(run, network.folder, stage)
    seal = ""
    for step in (6, LAST):
        seal = journal.append(network.metrics, {"step": step}, seal)
    write_table(run.replicate(1), network.result, outputs, made_from, status="done", step=LAST, timing={"journal": seal})


def end(run, network, made_from, stage="retrain"):
    store.save_state(network.final, store.State(LAST, WEIGHTS, {}, {}))
    finish(run, network, [network.final], made_from, stage)


def problems(run):
    """What is wrong, by path inside the run directory."""
    found = verify(run.folder, Reporter(quiet=True))
    start = f"{run.folder}/"
    assert all(check.path.startswith(start) for check in found)
    assert all("\n" not in check.problem and check.path in check.problem for check in found if check.problem)
    return {check.path.removeprefix(start): check.problem for check in found if check.problem}


def everything(folder):
    """Every file and folder, as it is and since when."""
    return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in [folder, *folder.rglob("*")]}


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


def binary(path):
    path.write_bytes(b"\xff\x00\xfe")


def test_a_good_run_has_every_file_checked_and_no_problem(run):
    found = verify(run.folder, Reporter(quiet=True))

    assert not problems(run)
    checked = {check.path for check in found}
    assert checked == {str(path) for path in run.folder.rglob("*") if path.is_file() and path.suffix != ".txt"}
    assert len(found) == 2 + 3 + 3 + 3 + 1 + 3 * 4


TICKET = "replicate-1/retrain/q50-step-000006/ticket"
RESULTS = [
    f"replicate-1/retrain/{name}/result.json"
    for name in ("q50-step-000006/ticket", "q97.5-step-000006/reinit", "q97.5-step-000006/ticket")
]


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("replicate-1/train/snapshots/step-000006.h5", flip, "is damaged"),
        ("replicate-1/train/snapshots/step-000012.h5", cut, "is damaged"),
        ("replicate-1/masks/q97.5.h5", flip, "is damaged"),
        ("replicate-1/masks/q50.h5", empty, "is damaged"),
        (f"{TICKET}/final.h5", flip, "is damaged"),
        (f"{TICKET}/metrics.jsonl", cut, "lacks rows"),
        (f"{TICKET}/metrics.jsonl", binary, "metrics.jsonl"),
        (f"{TICKET}/result.json", cut, "is damaged"),
        ("replicate-1/train/result.json", empty, "is damaged"),
        ("replicate-1/thresholds.json", cut, "is damaged"),
        ("replicate-1/thresholds.json", binary, "is damaged"),
        ("environment.json", cut, "is damaged"),
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
        ("replicate-1/masks/q97.5.h5", "thresholds.json"),
        ("replicate-1/train/snapshots/step-000012.h5", "train/result.json"),
        (f"{TICKET}/final.h5", "ticket/result.json"),
        (f"{TICKET}/metrics.jsonl", "ticket/result.json"),
        ("replicate-1/retrain/q97.5-step-000006/reinit/final.h5", "reinit/result.json"),
    ],
)
def test_a_missing_file_is_named_with_the_one_that_promised_it(run, name, promised_by):
    (run.folder / name).unlink()

    found = problems(run)

    assert list(found) == [name]
    assert "is missing" in found[name]
    assert promised_by in found[name]


ROUND = "replicate-1/rounds/weights-step-000006/01"


@pytest.fixture
def pruned(run):
    """The same run with a round of pruning and its ticket, a second round that is only cut, and a third that is begun."""
    replicate, chain = run.replicate(1), Chain(1, "weights", 6)
    made_from = [replicate.snapshot(LAST)]
    for level in (1, 2, 3):
        there = replicate.level(chain, level)
        claim(run, there.folder, "rounds")
        masks.save(there.mask, {"fc1/kernel": np.arange(30) >= level}, {})
        if level < 3:
            write_table(replicate, there.table, [there.mask], made_from, level=level)
        if level == 1:
            ticket = replicate.network(Round(chain, 1, "ticket"))
            end(run, ticket, [there.mask, replicate.snapshot(6)], "rounds")
            made_from = [ticket.final, there.mask]
    return run


def test_rounds_are_checked_file_by_file(pruned):
    before = 24

    found = verify(pruned.folder, Reporter(quiet=True))

    assert not problems(pruned)
    assert len(found) == before + 3 + 4 + 3 + 2


@pytest.mark.parametrize(
    ("name", "promised_by"),
    [
        (f"{ROUND}/mask.h5", f"{ROUND}/round.json"),
        (f"{ROUND}/ticket/final.h5", "ticket/result.json"),
        (f"{ROUND}/ticket/metrics.jsonl", "ticket/result.json"),
        ("replicate-1/rounds/weights-step-000006/02/mask.h5", "02/round.json"),
    ],
)
def test_a_missing_file_of_a_round_is_named_with_the_one_that_promised_it(pruned, name, promised_by):
    (pruned.folder / name).unlink()

    found = problems(pruned)

    assert list(found) == [name]
    assert "is missing" in found[name]
    assert promised_by in found[name]


@pytest.mark.parametrize("name", ["mask.h5", "round.json", "ticket/final.h5"])
def test_a_damaged_file_of_a_round_is_named(pruned, name):
    cut(pruned.folder / ROUND / name)

    assert list(problems(pruned)) == [f"{ROUND}/{name}"]


def test_a_round_that_is_being_cut_lacks_nothing(pruned):
    (pruned.folder / "replicate-1/rounds/weights-step-000006/03/mask.h5").unlink()

    assert not problems(pruned)


def test_every_problem_is_told_and_not_only_the_first(run):
    names = ["replicate-1/masks/q50.h5", f"{TICKET}/final.h5", f"{TICKET}/result.json"]
    for name in names:
        cut(run.folder / name)
    (run.folder / "replicate-1/masks/q97.5.h5").unlink()

    assert sorted(problems(run)) == sorted([*names, "replicate-1/masks/q97.5.h5"])


@pytest.mark.parametrize("content", ["[1, 2]", '"text"', "3", "{}", "null"])
@pytest.mark.parametrize("name", ["replicate-1/thresholds.json", "replicate-1/train/result.json", f"{TICKET}/result.json"])
def test_json_that_says_something_else_breaks_nothing(run, name, content):
    (run.folder / name).write_text(content)

    verify(run.folder, Reporter(quiet=True))


@pytest.mark.parametrize("content", [{}, {"quantiles": 5}, {"status": "done"}], ids=str)
@pytest.mark.parametrize(
    ("name", "made_from_it"),
    [
        ("replicate-1/train/result.json", ["replicate-1/thresholds.json", *RESULTS]),
        ("replicate-1/thresholds.json", RESULTS),
        (f"{TICKET}/result.json", []),
    ],
)
def test_json_that_does_not_say_what_it_should_is_named_and_the_others_are_checked(run, name, made_from_it, content):
    files.write_json(run.folder / name, content)
    cut(run.folder / f"{TICKET}/final.h5")

    assert sorted(problems(run)) == sorted([name, *made_from_it, f"{TICKET}/final.h5"])


def test_folders_that_are_links_are_checked_and_none_that_leads_back_or_elsewhere(run, tmp_path):
    (run.folder / "replicate-1").rename(tmp_path / "scratch")
    (run.folder / "replicate-1").symlink_to(tmp_path / "scratch")
    (run.folder / "replicate-9").symlink_to(run.folder)
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets/broken.json").write_text("{")
    (run.folder / "data").symlink_to(tmp_path / "datasets")
    cut(tmp_path / "scratch/masks/q50.h5")

    assert list(problems(run)) == ["replicate-1/masks/q50.h5"]


def test_a_file_that_goes_while_others_are_checked_is_no_damage(run):
    """As a checkpoint does when its training ends."""
    checkpoint = run.folder / "replicate-1/train/checkpoint.h5"
    store.save(checkpoint, {}, {})
    seen = list(verifying._run(run.folder))
    checkpoint.unlink()

    assert checkpoint in dict(seen)
    assert [verifying._problem(*check) for check in seen] == [None] * len(seen)


def test_a_run_that_is_under_way_lacks_nothing(run):
    for name in ("replicate-1/train/result.json", "replicate-1/train/snapshots/step-000012.h5", "replicate-1/thresholds.json"):
        (run.folder / name).unlink()
    shutil.rmtree(run.folder / "replicate-1/retrain")
    (run.folder / "replicate-1/train/.checkpoint.h5.123.tmp").write_bytes(b"half")

    assert not problems(run)


def test_what_diverged_has_no_weights_to_miss(run):
    network = run.network(Job(1, made_of(50), 6, "ticket"))
    network.final.unlink()
    made_from = [run.replicate(1).mask(made_of(50)), run.replicate(1).snapshot(6)]
    write_table(run.replicate(1), network.result, [], made_from, status="diverged", step=7)

    assert not problems(run)


def test_nothing_is_written(run):
    cut(run.folder / "replicate-1/masks/q50.h5")
    before = everything(run.folder)

    problems(run)

    assert everything(run.folder) == before


def test_verifying_the_smoke_run_finds_nothing_wrong(smoke):
    folder, _ = smoke
    before = everything(folder)

    for path in ("runs/latest", "runs/smoke", "data/digits-32"):
        assert imp("verify", path, cwd=folder).stdout.endswith("files checked, 0 damaged\n")

    assert everything(folder) == before


def test_the_command_ends_with_1_when_something_is_damaged_and_names_it(run):
    cut(run.folder / "replicate-1/masks/q50.h5")
    before = everything(run.folder)

    done = imp("verify", str(run.folder), cwd=run.folder, check=False)
    told = imp("verify", "--json", str(run.folder), cwd=run.folder, check=False)

    assert done.returncode == told.returncode == 1
    assert done.stdout.splitlines()[0].startswith(f"{run.folder}/replicate-1/masks/q50.h5 is damaged")
    assert done.stdout.splitlines()[1:] == [f"{run.folder}: 24 files checked, 1 damaged"]
    rows = json.loads(told.stdout)
    assert len(rows) == 24
    assert [row["path"] for row in rows if row["problem"]] == [f"{run.folder}/replicate-1/masks/q50.h5"]
    assert everything(run.folder) == before


def test_what_is_neither_records_nor_a_run_is_refused(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.h5").write_bytes(b"")

    with pytest.raises(InputError, match="holds neither records"):
        verify(tmp_path / "notes", Reporter(quiet=True))
    for path in (tmp_path / "nowhere", tmp_path / "notes/a.h5"):
        with pytest.raises(InputError, match="is not a folder"):
            verify(path, Reporter(quiet=True))
    assert imp("verify", "nowhere", cwd=tmp_path, check=False).returncode == 2


def test_records_are_checked_shard_by_shard(tmp_path):
    tiny_set(tmp_path, per_shard=20)
    names = ["train-00001.tfrecord", "test-00000.tfrecord"]
    flip(tmp_path / names[0])
    (tmp_path / names[1]).unlink()
    shutil.copy(tmp_path / "train-00000.tfrecord", tmp_path / "train-00009.tfrecord")

    found = {check.path: check.problem for check in verify(tmp_path, Reporter(quiet=True))}

    assert len(found) == 1 + 5 + 1
    assert {path: problem for path, problem in found.items() if problem}.keys() == {
        str(tmp_path / name) for name in (*names, "train-00009.tfrecord")
    }


def test_without_a_manifest_records_say_so(tmp_path):
    tiny_set(tmp_path)
    (tmp_path / "manifest.json").unlink()

    (only,) = verify(tmp_path, Reporter(quiet=True))

    assert "no records in" in str(only.problem)
