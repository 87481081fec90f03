"""What lies in a run directory: outputs that must not be mixed, masks, and the networks they come to."""

import contextlib
import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from helpers import selected

from lottery.base import environment
from lottery.base.errors import InputError
from lottery.experiment import reading
from lottery.experiment.plan import Plan
from lottery.rundir.records import Result, write
from lottery.rundir.run import open_run
from lottery.stages import retrain

pytestmark = pytest.mark.usefixtures("here")


def end(network, number=1, **result):
    made = {"replicate": number, "steps_per_epoch": 45, "epochs": 20.0, **result}
    write(network.result, Result.model_validate(made))


def adopted(*overrides):
    """A run with its recipe in place; the values that the tests below change are written out."""
    plain = ["train.learning_rate=0.03", "train.batch=64", "data.size=32", "pruning.exclude=[]"]
    run = open_run(Path("run"), overrides=[*plain, *overrides])
    run.adopt()
    return run


def cut(replicate, *names, family="oneshot"):
    """Let `replicate` have these masks, as far as their names go."""
    replicate.mask_folder(family).mkdir(parents=True, exist_ok=True)
    for name in names:
        for suffix in ("h5", "json"):
            (replicate.mask_folder(family) / f"{name}.{suffix}").touch()


GRID = ("families.oneshot.quantiles=50,90", "families.oneshot.controls=[]", "families.oneshot.rewind=0,2ep")
CHAINED = ("families.chained.rounds=2", "families.chained.controls=[]")


@pytest.fixture
def masked():
    """A run of two replicates with masks of quantiles 80 and 97.5."""
    run = adopted("replicates=2", *GRID)
    for replicate in run.replicates():
        cut(replicate, "q80", "q97.5")
    return run


def tickets(run, **selection):
    """The masks and steps of each replicate's networks."""
    found = run.tickets(Plan(run.recipe, 45), selected(**selection))
    return sorted((one.replicate, one.mask.label, one.rewind) for one in found)


def test_the_networks_of_a_run_are_the_masks_of_any_replicate_at_the_rewind_points_of_its_recipe(masked):
    labels = ("q80", "q97.5")

    assert tickets(masked) == [(number, label, step) for number in (1, 2) for label in labels for step in (0, 90)]
    assert tickets(dataclasses.replace(masked, chosen=(2,)), rewind="0") == [(2, label, 0) for label in labels]
    assert tickets(masked, quantiles="85", rewind="10it") == [(1, "q85", 10), (2, "q85", 10)]
    cut(masked.replicate(2), "q85")
    assert tickets(masked, rewind="0") == [(number, label, 0) for number in (1, 2) for label in ("q80", "q85", "q97.5")]
    for replicate in masked.replicates():
        shutil.rmtree(replicate.mask_folder("oneshot"))
    assert tickets(masked, rewind="0") == [(number, label, 0) for number in (1, 2) for label in ("q50", "q90")]


def test_masks_that_are_gone_ask_for_no_networks_and_those_that_lost_a_file_still_do(masked):
    folders = [replicate.mask_folder("oneshot") for replicate in masked.replicates()]
    (folders[0] / "q80.h5").unlink()
    (folders[1] / "q80.json").unlink()
    assert {label for _, label, _ in tickets(masked)} == {"q80", "q97.5"}

    (folders[0] / "q80.json").unlink()
    (folders[1] / "q80.h5").unlink()
    assert {label for _, label, _ in tickets(masked)} == {"q97.5"}


def test_families_have_masks_of_their_own(masked):
    run = dataclasses.replace(masked, recipe=reading.resolve(masked.recipe.model_dump(), [*CHAINED, "families.b.quantiles=70"]))
    cut(run.replicate(1), "round-01-step-000000", family="chained")

    assert {name: list(map(str, family.grid)) for name, family in run.families().items()} == {
        "oneshot": ["80", "97.5"],
        "chained": ["1", "2"],
        "b": ["70"],
    }
    retrain._check_masks(run, selected(("chained",)))  # which are cut on the way


NONE = "has no masks: run `imp thresholds` first"


@pytest.mark.parametrize(
    ("lost", "quantiles", "words"),
    [
        *(((), quantiles, None) for quantiles in (None, "80")),
        ((), "80,85,90,97.5", "replicate-1 has no mask of 85,90: run `imp thresholds --quantiles 85,90` first"),
        (("oneshot/masks",), None, f"replicate-2 {NONE}"),
        (("oneshot/masks/q97.5.json",), None, "replicate-2 has no mask of 97.5: run `imp thresholds --quantiles 97.5`"),
    ],
)
def test_retraining_asks_for_masks_that_a_replicate_lacks(masked, lost, quantiles, words):
    for name in lost:
        (masked.replicate(2).folder / name).rename("lost")

    with pytest.raises(InputError, match=re.escape(words)) if words else contextlib.nullcontext():
        retrain._check_masks(masked, selected(quantiles=quantiles))


def test_the_plan_is_the_one_that_the_dense_training_carried_out():
    run = adopted()
    assert run.trained_plan() is None

    end(run.replicate(1).dense, status="diverged")
    assert run.trained_plan() is None
    end(run.replicate(12).dense, 12, status="done", steps_per_epoch=7)
    assert run.plan() == Plan(run.recipe, 7)


def test_a_run_has_its_environment_before_its_recipe(monkeypatch):
    monkeypatch.setattr(environment, "describe", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        adopted()

    assert not Path("run/recipe.toml").exists()  # so that the next command writes both


def test_the_revision_is_that_of_this_package_and_not_of_a_project_that_it_is_installed_in(monkeypatch):
    package = Path("site-packages/lottery").resolve()
    (package / "base").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setattr(environment, "__file__", str(package / "base/environment.py"))
    for words in ("init", "commit --allow-empty -m project"):
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x", *words.split()], check=True)
    assert environment.describe()["revision"] is None

    subprocess.run(["git", "add", package / "__init__.py"], check=True)
    assert re.fullmatch("[0-9a-f]{40}[+]", environment.describe()["revision"])


def test_a_run_without_its_environment_says_what_writes_one():
    run = adopted()
    assert run.environment()["packages"]["numpy"] == np.__version__
    Path("run/environment.json").unlink()

    with pytest.raises(InputError, match=r"environment\.json is missing: `imp train` writes a new one"):
        run.environment()
    run.adopt()
    assert run.environment()["packages"]["numpy"] == np.__version__


def test_a_replicate_that_is_a_copy_of_another_is_refused():
    run = adopted()
    end(run.replicate(1).dense, status="done")
    open_run(run.folder)
    shutil.copytree(run.replicate(1).folder, run.replicate(2).folder)

    with pytest.raises(
        InputError, match=r"replicate-2/train/result\.json was copied from another folder \(replicate-1/train\): remove "
    ):
        open_run(run.folder)
