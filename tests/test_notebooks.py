"""Every notebook is stored without output and runs on the smoke run."""

import shutil

import nbclient
import nbformat
import pytest
from helpers import ROOT, imp_here, large, settings

SAID = {"weight_norms": "collapsed layers", "winning_tickets": "us an image", "stability": "the instability of"}
SECONDS = 30


def test_every_notebook_is_known():
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} == set(SAID)


@pytest.mark.parametrize("name", SAID)
def test_notebook_runs_on_the_smoke_run(name, smoke, monkeypatch):
    folder, _ = smoke
    monkeypatch.setenv("IMP_RUN", str(folder / "runs/smoke"))
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)

    nbclient.NotebookClient(notebook, timeout=SECONDS).execute()

    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert SAID[name] in printed


PAIRS = [("weight_norms", "every variable"), ("winning_tickets", "rounds")]
OTHERS = [("weight_norms", "rounds"), ("winning_tickets", "every variable"), ("stability", "rounds")]


@pytest.mark.parametrize(("name", "kind"), [*PAIRS, *large(*OTHERS)])
@pytest.mark.usefixtures("tensorflow")
def test_notebook_runs_on_runs_of_other_kinds(name, kind, work, monkeypatch):
    shutil.rmtree(work / "runs/digits/replicate-1/oneshot")
    if kind == "rounds":
        imp_here("rounds", "--rounds", "2", cwd=work)
    else:
        imp_here("thresholds", "--quantiles", "50", *settings("pruning.scope=all"), cwd=work)
        imp_here("retrain", "--rewind", "1ep", cwd=work)
    monkeypatch.setenv("IMP_RUN", str(work / "runs/digits"))

    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=SECONDS).execute()
