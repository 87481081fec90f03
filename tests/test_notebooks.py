"""Every notebook is stored without output and runs on the smoke run."""

import nbclient
import nbformat
import pytest
from helpers import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_on_the_smoke_run(path, smoke, monkeypatch):
    folder, _ = smoke
    monkeypatch.setenv("IMP_RUN", str(folder / "runs/smoke"))
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)

    nbclient.NotebookClient(notebook, timeout=60).execute()

    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert "collapsed layers" in printed
