"""What a light install does, and says of what it lacks."""

import configparser
import importlib.metadata
import re
import sys
from importlib.metadata import PackageNotFoundError

import pytest
from helpers import ROOT, imp_light, refused
from test_rooms import HOUSE, imports

import lottery
from lottery.base.extras import EXTRAS, missing

OURS = {"lottery", "data_prep"}
LIBRARIES = {library for libraries in EXTRAS.values() for library in libraries}


def requirements(text):
    """The names of distributions in a field of setup.cfg, in lower case, with dashes."""
    return {re.sub("_", "-", name).lower() for name in re.findall(r"^([\w-]+)", text, re.MULTILINE)}


@pytest.fixture(scope="module")
def setup():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return setup


def test_each_library_that_is_imported_comes_with_the_package_or_an_extra(setup):
    files = [*HOUSE.rglob("*.py"), *(ROOT / "data_prep").rglob("*.py")]
    imported = {name.partition(".")[0] for path in files for name in imports(path)} - sys.stdlib_module_names - OURS
    brought = {name.replace("-", "_") for name in requirements(setup["options"]["install_requires"])}

    with_others = {"MNN": "_tools", "jinja2": "markupsafe", "keras": "ml_dtypes", "rouge_score": "nltk"}
    backends = {"jax"}  # of Keras, which users choose
    assert imported - brought - LIBRARIES - backends == {*with_others.values(), "pydantic_core"}


def test_each_library_comes_with_its_extra(setup):
    distributions = importlib.metadata.packages_distributions()
    for extra, libraries in EXTRAS.items():
        brought = requirements(setup["options.extras_require"][extra])
        for library in set(libraries) & set(distributions):
            assert brought & requirements("\n".join(distributions[library])), library


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ModuleNotFoundError(name="PIL.Image"), "this needs PIL, which is not installed: pip install 'imp-lottery[pipeline]'"),
        (ModuleNotFoundError(name="onnx"), "this needs onnx, which is not installed: pip install 'imp-lottery[onnx]'"),
        (PackageNotFoundError("wandb"), "this needs wandb, which is not installed: pip install 'imp-lottery[pipeline]'"),
        (ModuleNotFoundError(name="lottery.engine"), None),
        (ModuleNotFoundError("no name"), None),
        (ImportError(name="pandas"), None),  # which is there, and does not work
    ],
)
def test_what_is_not_installed_is_told_with_its_extra(error, line):
    assert missing(error) == line


@pytest.mark.parametrize("command", ["run digits", "prepare digits --size 8", "report", "sweep digits"])
def test_a_light_install_says_which_extra_a_command_needs_and_writes_nothing(command, tmp_path):
    done = imp_light(*command.split(), cwd=tmp_path)

    refused(done, "is not installed: pip install 'imp-lottery[pipeline]'")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("option", "printed"), [("--help", "retrain"), ("--version", f"imp {lottery.__version__}\n")])
def test_a_light_install_has_its_help_and_version(option, printed, tmp_path):
    done = imp_light(option, cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert printed in done.stdout
