"""`imp import`: a run that trains a ticket anew, and folders that none is made of."""

import dataclasses
import shutil

import pytest
from helpers import assert_same, forge, imp_here, refused

from lottery.experiment import reading
from lottery.rundir import store
from lottery.rundir.run import open_run
from lottery.rundir.tickets import RECIPE, open_ticket

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.fixture
def folder(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "lenet")


def test_an_imported_ticket_starts_as_it_did_under_the_same_mask(exported, retrained, tmp_path):
    shutil.copytree(retrained / "data", tmp_path / "data")
    said = imp_here("import", str(exported), cwd=tmp_path).stdout
    assert said == "runs/lenet is ready: 4 networks, of 1 replicate. `imp run --run runs/lenet` trains them.\n"
    for command in ("train", "thresholds"):
        imp_here(command, "--run", "runs/lenet", cwd=tmp_path)

    place, ticket = tmp_path / "runs/lenet/replicate-1", open_ticket(exported)
    assert_same(store.load_state(place / "train/snapshots/step-000000.h5").weights, ticket.start.weights)
    assert_same(store.load_mask(place / "imported/masks/q90.h5"), ticket.mask)


def test_an_import_is_repeated_and_no_other_run_is_taken_for_its_own(exported, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    imp_here("import", str(exported), cwd=tmp_path)
    (tmp_path / "runs/latest").unlink()  # as if it had been killed before it made the link
    widened = dataclasses.replace(
        run := open_run(tmp_path / "runs/lenet"), recipe=run.recipe.model_copy(update={"replicates": 7})
    )
    widened.adopt()

    assert "28 networks, of 7 replicates" in imp_here("import", str(exported), cwd=tmp_path).stdout
    assert (tmp_path / "runs/latest").is_symlink()
    assert open_run(tmp_path / "runs/lenet").recipe.replicates == 7
    for other in ([str(folder)], [str(exported), "--set", "train.batch=32"]):
        refused(imp_here("import", *other, cwd=tmp_path, check=False), "there is another run in runs/lenet")


@pytest.mark.parametrize(
    ("name", "run"), [("my q90, no. 1", "my-q90--no.-1"), ("_q90", "ticket-_q90"), ("latest", "ticket-latest")]
)
def test_an_imported_run_is_named_after_the_folder(name, run, exported, tmp_path):
    folder = shutil.copytree(exported, tmp_path / name)

    imp_here("import", ".", cwd=folder)

    assert open_run(folder / "runs" / run).recipe.name == run


def test_of_several_tickets_one_is_to_be_named(folder, tmp_path):
    refused(imp_here("import", ".", cwd=tmp_path, check=False), f"name one of those in it, such as {tmp_path}/lenet")


@pytest.mark.parametrize("more", [{"updates": "gmp"}, {"updates": "rigl", "scored_at": "0", "criterion": "random"}], ids=str)
def test_an_import_says_that_a_mask_which_changed_stays(more, folder, tmp_path):
    recipe = open_ticket(folder).recipe.model_dump()
    changed = reading.resolve({**recipe, "families": {"oneshot": {"quantiles": "90", "controls": [], **more}}})
    forge(folder, RECIPE, reading.sealed(changed).encode())

    said = imp_here("import", "lenet", cwd=tmp_path).stdout

    last = "Here the last one stays, as in the control rewound."
    assert said.startswith(f"Its mask changed in training ({more['updates']}). {last}\n")


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("model.name=theirs:build", "network is the function theirs:build"),
        ("task=theirs:Task", "task is the class theirs:Task"),
    ],
)
def test_code_that_a_ticket_names_is_told(exported, tmp_path, named, told):
    said = imp_here("import", str(exported), "--set", named, cwd=tmp_path).stdout

    assert said.startswith(f"Its {told}: `imp train` calls it, so look at it first.")
