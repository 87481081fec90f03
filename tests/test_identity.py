"""What outputs are made with: said before anything else is written, and never gone on with otherwise."""

import os
import re

import pytest
from helpers import changed

from lottery.base import files, locks
from lottery.base.errors import InputError
from lottery.experiment import reading
from lottery.experiment.decisive import decisive
from lottery.experiment.recipe import Train
from lottery.rundir import identity, records
from lottery.rundir.identity import MadeWith
from lottery.rundir.run import Run

FAMILIES = {"own": {"rounds": 3, "controls": []}, "tuned": {"rounds": 3, "method": "finetune", "controls": []}}
CLAIMS = [
    ("dense", "", {"train": {"optimizer": "adam", "schedule": "step", "milestones": "2ep,5ep", "learning_rate": 1e-3}}),
    ("mask", "own", {"model": {"name": "lenet_300_100"}, "pruning": {"exclude": ["a/*", "ä/*"]}}),
    ("ticket", "own", {"retrain": {"optimizer_state": "restore", "order": "same"}, "model": {"alpha": 1 / 3}}),
    ("ticket", "tuned", {"train": {"steps": 500, "evaluate": "7it"}}),
]
ORIGINS = {"records": "a", "network": "b"}
MADE_WITH = MadeWith(output="mask", family="own", values={}, made_from=ORIGINS, made_by=[])


def contents(folder):
    """Every file, hidden ones too, with its time and bytes."""
    return {
        path.relative_to(folder): (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()
    }


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "replicate-1" / "train"


def check(folder, recipe):
    Run(folder, recipe).check_outputs()


def resolved(**tables):
    return reading.resolve({"families": FAMILIES, **tables})


@pytest.mark.parametrize(("output", "family", "table"), CLAIMS)
def test_the_first_to_claim_a_folder_writes_what_its_outputs_depend_on_and_the_same_values_claim_it_again(
    folder, output, family, table
):
    wanted = resolved(**table)

    with identity.claimed(folder, wanted, output, ORIGINS, family):
        assert sorted(path.name for path in folder.iterdir()) == [".lock", "made_with.json"]
        assert f"process {os.getpid()} " in locks.holder(folder).who
        content = files.read_json(folder / "made_with.json")

    made_with = {"output": output, "family": family, "values": decisive(wanted, output, family)}
    assert content == {"format": 2, "folder": "replicate-1/train", **made_with, "made_from": ORIGINS, "made_by": []}
    (folder / "made").touch()
    before = contents(folder)
    with pytest.raises(ZeroDivisionError), identity.claimed(folder, resolved(**table), output, ORIGINS, family):
        raise ZeroDivisionError
    assert contents(folder) == before
    assert sorted(path.name for path in folder.iterdir()) == ["made", "made_with.json"]
    assert locks.holder(folder) is None


def test_a_folder_in_which_an_exception_leaves_nothing_may_be_begun_with_other_values(folder):
    with pytest.raises(ZeroDivisionError), identity.claimed(folder, resolved(seed=1), "dense", ORIGINS):
        raise ZeroDivisionError

    with identity.claimed(folder, resolved(seed=2), "dense", ORIGINS):
        assert identity.made_with(folder).values["seed"] == 2


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        ("records", "train was made from other examples than those that are prepared now: name its records"),
        ("network", "train was made from another network than model.name builds now: build that one again"),
    ],
)
def test_what_was_begun_on_other_images_or_another_network_is_not_gone_on_with(folder, origin, words):
    for _ in range(2):
        with identity.claimed(folder, resolved(), "dense", ORIGINS):
            content = files.read_json(folder / "made_with.json")

    assert content["made_from"] == ORIGINS
    with pytest.raises(InputError, match=words), identity.claimed(folder, resolved(), "dense", ORIGINS | {origin: "c"}):
        raise AssertionError("claimed")
    assert files.read_json(folder / "made_with.json") == content


def test_other_values_are_refused_and_leave_the_folder_as_it_was(folder):
    with identity.claimed(folder, resolved(), "dense", ORIGINS):
        (folder / "checkpoint.h5").write_bytes(b"half way")
    before = contents(folder)

    other = resolved(seed=3, train={"batch": 32})
    with pytest.raises(InputError) as refusal, identity.claimed(folder, other, "dense", ORIGINS):
        raise AssertionError("claimed")

    assert str(refusal.value) == (
        f"{folder} was made with another recipe (seed was 0, is 3; train.batch was 64, is 32): "
        "use the same values, or start a new run with --run"
    )
    assert contents(folder) == before
    assert locks.holder(folder) is None


def claim(folder, output, family="", **tables):
    with identity.claimed(folder, resolved(**tables), output, ORIGINS, family):
        pass


@pytest.mark.parametrize(
    ("name", "output", "family"),
    [
        ("replicate-1/train", "dense", ""),
        ("replicate-2/own/masks", "mask", "own"),
        ("replicate-7/own/q97.5-step-000045/shuffle", "ticket", "own"),
        ("replicate-1/tuned/round-12-step-000045/ticket", "ticket", "tuned"),
    ],
)
def test_every_output_of_a_run_is_compared_wherever_it_lies(tmp_path, name, output, family):
    check(tmp_path, resolved(seed=2))
    claim(tmp_path / name, output, family, seed=1)

    check(tmp_path, resolved(seed=1))
    with pytest.raises(InputError, match=f"^{tmp_path / name} was made with another recipe .seed was 1, is 2.:"):
        check(tmp_path, resolved(seed=2))


def test_each_output_is_compared_by_what_it_depends_on_itself_and_while_the_recipe_has_its_family(tmp_path):
    claim(tmp_path / "replicate-1/train", "dense")
    tables = {"pruning": {"scope": "all"}, "retrain": {"optimizer_state": "restore"}}

    check(tmp_path, resolved(**tables))
    claim(tmp_path / "replicate-1/own/masks", "mask", "own")
    check(tmp_path, resolved(**tables, families={"tuned": FAMILIES["tuned"] | {"rate": 50.0}}))
    with pytest.raises(InputError, match=r"own/masks .*\(pruning\.scope was 'kernels', is 'all'\)"):
        check(tmp_path, resolved(**tables))


def forget(folder, key):
    """Let an output be from before there was this key."""
    values = files.read_json(folder / "made_with.json")["values"]
    del values[key]
    changed(folder / "made_with.json", values=values)


@pytest.mark.parametrize(
    ("key", "train"),
    [
        *((key, {}) for key in ("data.channels", "train.momentum")),
        ("averages", {"ema": 0.9}),  # as it was before there were averaged statistics
    ],
)
def test_a_key_that_an_output_does_not_know_is_a_difference(folder, key, train):
    tables = {"model": {"name": "resnet9"}, "train": train}
    claim(folder, "dense", **tables)
    forget(folder, key)

    with pytest.raises(InputError, match=f"{key} was None, is"):
        check(folder.parents[1], resolved(**tables))


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("replicate-2/train/result.json", "replicate-2/train"),
        ("replicate-12/own/masks/q97.5.json", "replicate-12/own/masks/q97.5"),
        ("replicate-2/own/masks/made_with.json", "replicate-2/own/masks"),
        ("replicate-2/own/q90-step-000000/ticket/result.json", "replicate-2/own/q90-step-000000/ticket"),
        ("sweep/trials/0001/result.json", "trials/0001"),
    ],
)
def test_what_an_output_calls_its_place_does_not_change_when_the_run_moves(tmp_path, path, place):
    for run in (tmp_path / "runs/own", tmp_path / "replicate-3/elsewhere"):
        assert records.own_place(run / path) == place
        records.write(run / path, MADE_WITH)
        assert records.read(run / path, MadeWith) == MADE_WITH.model_copy(update={"folder": place})


def test_a_table_from_another_folder_is_refused(tmp_path):
    path = tmp_path / "replicate-2/own/masks/q90.json"
    files.write_json(path, MADE_WITH.model_copy(update={"folder": "replicate-1/own/masks/q90"}).model_dump())

    with pytest.raises(InputError, match=r"q90\.json was copied from another folder \(replicate-1/own/masks/q90\): remove "):
        records.read(path, MadeWith)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "has format 1, but this version of imp reads format 2"),  # as earlier versions wrote it
        ({"format": 2, "folder": "replicate-1/train"}, "is not as it should be (output: Field required)"),
    ],
)
def test_what_says_something_else_is_refused_in_one_line(folder, values, words):
    files.write_json(folder / "made_with.json", {"values": {}, **values})

    for use in (lambda: claim(folder, "dense"), lambda: check(folder.parents[1], resolved())):
        with pytest.raises(InputError, match=re.escape(f"made_with.json {words}: remove it and run its stage again")):
            use()


def test_what_earlier_versions_left_without_a_seal_is_refused(folder):
    claim(folder, "dense")
    (folder / "made_with.json").write_text("{}")

    with pytest.raises(InputError, match=r"train/made_with\.json .* has no sha256, as earlier versions wrote none"):
        check(folder.parents[1], resolved())


def test_equal_values_are_the_same_recipe_however_they_are_written(folder):
    plain = {"criterion": "snip", "scored_at": "2ep", "scored_on": "100", "densities": ["a/*=10"]}
    other = {"criterion": "snip", "scored_at": "2.0ep", "scored_on": "100 ", "densities": ["a/* = 10.0"]}
    recipes = [
        reading.resolve({"train": {"warmup": warmup, "evaluate": every}, "families": {"own": {"quantiles": "90", **own}}})
        for warmup, every, own in (("3ep", "1ep", plain), ("3.0ep", "1.00ep", other))
    ]
    assert decisive(recipes[0], "ticket", "own") == decisive(recipes[1], "ticket", "own")

    with identity.claimed(folder, recipes[0], "ticket", ORIGINS, "own"):
        pass

    identity.check_folder(folder, recipes[1])
    with pytest.raises(InputError, match=r"\(train\.warmup was '3ep', is '2ep'\)"):
        identity.check_folder(folder, recipes[0].model_copy(update={"train": Train(warmup="2ep")}))
