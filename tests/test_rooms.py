"""The rooms of the house: which may use which, and where the heavy libraries are."""

import ast
import configparser
import graphlib
import json
import re
from pathlib import Path

import pytest
from helpers import ROOT

import lottery

HOUSE = ROOT / "imp/lottery"
# From the bottom up: a room may use those before it.
ROOMS = ("base", "pruning", "experiment", "trackers", "rundir", "networks", "engine", "keras", "executors")
ROOMS += ("results", "stages", "campaign", "sweep", "share", "bench", "commands", "cli", "__main__")
ONLY_IN = {  # `imp bench` measures Keras too, and a user's own `model.fit` is made of it
    "tensorflow": ("engine/", "bench/", "keras/", "trackers/tensorboard.py"),
    "jax": ("keras/backends/jax.py",),
    "torch": ("keras/backends/torch.py", "engine/", "bench/"),
    "keras": ("networks/", "engine/", "bench/", "keras/"),
    "MNN": ("engine/",),
    "h5py": ("rundir/",),
    "mpi4py": ("executors/",),
    "wandb": ("trackers/wandb.py",),
    "pynvml": ("base/",),
}


def imports(path):
    """What a module imports, wherever in it, as dotted names; without what is for type checkers alone."""
    tree = ast.parse(path.read_text())
    guards = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    checked = {inner for guard in guards for inner in ast.walk(guard)}
    for node in ast.walk(tree):
        if node in checked:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(path):
    place = path.relative_to(HOUSE)
    return place.parts[0] if len(place.parts) > 1 else place.stem


MODULES = sorted(path for path in HOUSE.rglob("*.py") if path.parent != HOUSE or path.stem != "__init__")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(HOUSE).as_posix())
def test_a_module_uses_only_rooms_below_its_own_and_heavy_libraries_where_they_belong(path):
    own, place = room(path), path.relative_to(HOUSE).as_posix()
    for name in imports(path):
        package, _, rest = name.partition(".")
        used = rest.split(".")[0]
        if package == "lottery" and used in ROOMS:
            assert ROOMS.index(used) <= ROOMS.index(own), f"{own} uses {name}"
        if package in ONLY_IN:
            assert place.startswith(ONLY_IN[package]), f"{place} imports {name}"


def test_few_files_lie_flat():
    assert len(list(HOUSE.glob("*.py"))) <= 8


def test_records_know_nothing_of_training():
    for path in (ROOT / "data_prep").rglob("*.py"):
        assert all(name.startswith("lottery.base") for name in imports(path) if name.startswith("lottery")), path


def test_the_base_stands_on_nothing():
    for path in (HOUSE / "base").glob("*.py"):
        assert all(name.startswith("lottery.base") for name in imports(path) if name.startswith(("lottery.", "data_prep"))), (
            path
        )


def test_no_module_imports_itself_by_way_of_others():
    modules = {
        ".".join(path.relative_to(HOUSE.parent).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES
    }
    uses = {
        name: {next((one for one in (used, used.rpartition(".")[0]) if one in modules), None) for used in imports(path)}
        - {name, None}
        for name, path in modules.items()
    }
    list(graphlib.TopologicalSorter(uses).static_order())  # raises CycleError, which names the modules


def test_no_stage_uses_the_entry_point_of_another():
    entries = {f"lottery.stages.{name}.{name}" for name in ("prepare", "train", "thresholds", "retrain", "export")}
    for path in (HOUSE / "stages").glob("*.py"):
        assert not entries & set(imports(path)), path


def test_pruning_is_numpy_alone():
    for path in (HOUSE / "pruning").glob("*.py"):
        outside = {name.split(".")[0] for name in imports(path)} - {"lottery", "data_prep", "numpy"}
        assert not any(Path(__file__).with_name(name).exists() or name in ONLY_IN for name in outside), path


def test_the_version_is_the_same_everywhere():
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
    latest = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    deposited = json.loads((ROOT / ".zenodo.json").read_text())["version"]
    assert cited == deposited == latest == lottery.__version__


def test_every_package_is_installed():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    folders = [path.parent for top in (HOUSE, ROOT / "data_prep") for path in top.rglob("__init__.py")]
    names = [folder.relative_to(HOUSE.parent if HOUSE in (folder, *folder.parents) else ROOT) for folder in folders]
    packages = {".".join(name.parts) for name in names}
    assert setup["options"]["packages"].split() == sorted(packages | {"lottery.pipelines"})
    installed = setup["options.package_data"]
    for package, folder in {".".join(name.parts): folder for name, folder in zip(names, folders, strict=True)}.items():
        data = [path for path in folder.iterdir() if path.is_file() and path.suffix != ".py"]
        assert all(any(path.match(glob) for glob in installed[package].split()) for path in data), folder
