"""Every notebook is stored without output and runs on the smoke run."""

import shutil

import nbformat
import pytest
from helpers import ROOT, imp_here, large, settings
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

SAID = {"weight_norms": "collapsed layers", "winning_tickets": "us an image", "stability": "the instability of"}

pytestmark = pytest.mark.usefixtures("tensorflow")


def printed_by(name):
    """What the notebook prints, run by IPython in this process, which has TensorFlow already."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells
    assert not any(cell.outputs for cell in cells)
    shell = InteractiveShell()
    shell.history_manager.enabled = False
    with capture_output() as printed:
        for cell in cells:
            shell.run_cell(cell.source).raise_error()
    return printed.stdout


def test_every_notebook_is_known():
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} == set(SAID)


@pytest.mark.parametrize("name", SAID)
def test_notebook_runs_on_the_smoke_run(name, smoke, monkeypatch):
    folder, _ = smoke
    monkeypatch.setenv("IMP_RUN", str(folder / "runs/smoke"))

    assert SAID[name] in printed_by(name)


PAIRS = [("weight_norms", "every variable"), ("winning_tickets", "rounds")]
OTHERS = [("weight_norms", "rounds"), ("winning_tickets", "every variable"), ("stability", "rounds")]


@pytest.mark.parametrize(("name", "kind"), [*PAIRS, *large(*OTHERS)])
def test_notebook_runs_on_runs_of_other_kinds(name, kind, work, monkeypatch):
    shutil.rmtree(work / "runs/digits/replicate-1/oneshot")
    if kind == "rounds":
        imp_here("rounds", "--rounds", "2", cwd=work)
    else:
        imp_here("thresholds", "--quantiles", "50", *settings("pruning.scope=all"), cwd=work)
        imp_here("retrain", "--rewind", "1ep", cwd=work)
    monkeypatch.setenv("IMP_RUN", str(work / "runs/digits"))

    assert SAID[name] in printed_by(name)
