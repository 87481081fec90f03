"""Every command that the README and its pages show, typed: as it stands, or shortened where it would take minutes."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import typer
from helpers import LENET, ROOT, clean_environment, imp_here, set_up_devices, settings
from PIL import Image

from lottery import cli
from lottery.experiment import reading
from lottery.experiment.recipe import Model
from lottery.rundir import store

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "zoo/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]

FEW = settings("families.oneshot.quantiles=80")
TINY = settings("train.epochs=3", "model.name=lenet_300_100", "data.size=8", "data.crop=0")
SHORT = [*FEW, *TINY]

ONE_EACH = settings(*(f"families.{name}.quantiles=90" for name in ("ticket", "gmp", "rigl", "set", "static")))
DIGITS = settings("replicates=1", "families.iterative.rounds=1", "train.epochs=3")

# On a run of LeNet, trained as the README's first commands do it; in this order.
DAILY = [
    "imp prepare",
    "imp train",
    "imp thresholds --quantiles 60..99",
    "imp retrain --ranks 3",
    "imp report",
    "imp status",
    "imp status --watch",
    "imp explore --snapshots",
    "imp export --ticket q90-step-000030 --to keras",
    "imp export --ticket q90-step-000030 --to tflite --compact",
    "imp export --ticket q90-step-000030 --to tflite --int8",
    "imp export --ticket q50-step-000034 --to tflite --compact --int8",
    "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
    "mpirun --oversubscribe --bind-to none --with-ft ulfm -n 3 imp retrain",
    "imp retrain --executor my_executor:Submitit",
    "imp retrain --executor my_executor:Parsl",
    "imp slurm run pipelines/imagenet64.toml --nodes 20 --gpus-per-ticket 4 --time 24:00:00 --submit",
    "imp slurm retrain --nodes 20 --gpus-per-node 4 --time 4:00:00 --submit",
    "imp slurm retrain --array 20 --gpus-per-node 1 --time 4:00:00 --submit",
    "imp export --ticket q90-step-000030 --to folder --license mit --out tickets/digits-q90",
    "imp tickets tickets",
    "imp import tickets/digits-q90",
    "imp run --run runs/digits-q90",
    "imp report runs/digits runs/slower --out both",
]
# On another, with two masks.
MORE = [
    "imp rounds --rounds 5 --ranks 3",
    "imp train --replicate 4",
    "imp retrain --bundle 20",
    "imp retrain --until-decided 7",
    "imp compare",
    "imp retrain --set families.oneshot.copies=3",
    "imp stability",
    "imp stability --between rounds",
    "imp el2n --at 2ep",
]
# What takes less long than what the pages have: workers take seconds to start, and networks to be trained.
SHORTER = {
    "runs/digits runs/slower": "runs/digits runs/digits-q90",
    "pipelines/imagenet64.toml --nodes 20 --gpus-per-ticket 4": "--nodes 20",
    "--gpus-per-node 4 ": "",
    "--gpus-per-node 1 ": "",
    "--ranks 3": "--ranks 1",
    "imp run --run": "imp run --ranks 1 --run",
    "--quantiles 60..99": "--quantiles 60..90:15",
    "--rounds 5": "--rounds 2",
    "--until-decided 7": "--until-decided 3",
    "q50-step-000034": "q90-step-000030",
}
# Each in a place of its own, with what is added to make it short.
ALONE = {
    "imp doctor": [],
    "imp tickets zoo": [],
    "imp import zoo/digits-resnet20-rounds-round-05-1.zip": [],
    "imp prepare folder:photos --size 64": [],
    "imp run --records data/folder-photos-64": [
        *("--ranks", "1", *FEW, *settings("train.epochs=1", "train.warmup=0", "train.snapshots=0", "model.name=lenet_300_100")),
        *settings("families.oneshot.rewind=0", "families.oneshot.controls=[]"),
    ],
    "imp train --from mobilenet_v2.safetensors --set model.padding=symmetric --set model.batchnorm_epsilon=1e-5": settings(
        *("train.steps=12", "train.warmup=0", "train.snapshots=0", "families.oneshot.rewind=0", "families.oneshot.quantiles=80")
    ),
    "imp run pipelines/imagenet64.toml --dry-run --nodes 20 --epoch-seconds 780": [],
    "imp sweep pipelines/digits.toml": [*DIGITS, "--set", "sweep.trials=1"],
    "imp sweep pipelines/digits.toml --objective ticket:round-03": [
        *settings("sweep.trials=1", "train.epochs=3", "families.iterative.rounds=3")
    ],
    "imp run pipelines/digits.toml": DIGITS,
    "imp run pipelines/digits.toml --set 'track.trackers=[\"tensorboard\"]'": ["--ranks", "1", *DIGITS],
    "imp run pipelines/channels-digits.toml": ["--ranks", "1", *TINY],
    "imp run pipelines/baselines-digits.toml": ["--ranks", "1", *TINY, *ONE_EACH],
    "imp run pipelines/digits-mobilenet.toml --set families.oneshot.quantiles=0,80 --set families.oneshot.copies=3": [
        *("--ranks", "1", *SHORT, *settings("families.oneshot.rewind=0", "families.oneshot.controls=[]")),
    ],
    "imp search --rewind 2ep": ["--replicates", "3", *SHORT],
    "imp search --set families.oneshot.quantiles=50..98:4 --rewind 2ep --replicates 10": ["--budget", "1ep", *SHORT],
    "imp run pipelines/digits.toml --set name=value --set task=own_tasks:Value": ["--ranks", "1", *DIGITS],
    "imp run pipelines/simcls-tiny.toml": [
        *("--ranks", "1", *settings("data.source=candidates:articles.jsonl", "texts.document=16", "texts.candidate=8")),
        *settings("train.steps=4", "train.batch=8", "train.warmup=0", "train.snapshots=0,2it", "families.oneshot.rewind=2it"),
    ],
    "imp run pipelines/digits.toml --set train.learning_rate=0.02 --run runs/slower": ["--ranks", "1", *DIGITS],
}
# A recipe for the README's Python.
SMALL = """
name = "small"
[data]
size = 8
crop = 0
[model]
name = "lenet_300_100"
[train]
epochs = 3
[families.oneshot]
quantiles = "90"
rewind = "0"
controls = []
"""
# Installation, which .ci/run and people type.
INSTALLED = [
    "pip install -c constraints.txt -e '.[pipeline,local]' && imp run pipelines/digits.toml",
    "pip install -c constraints.txt -e '.[pipeline,local,test]' && pytest",
    "pip install tensorboard",
]


def shown():
    """The lines of command that the pages show, without what is remarked behind them; those of results take hours."""
    lines = [line for page in PAGES if "results" not in page.parts for line in page.read_text().splitlines()]
    commands = [
        re.sub(r"\s{2,}#.*", "", line.strip()) for line in lines if re.match(r"    (imp|pip|mpirun|[A-Z_]+=\d) ?", line)
    ]
    return [command for command in commands if "/" not in command.split()[0]]


def typed(command, folder, check=True):
    words = shlex.split(command)
    variables = dict(word.split("=") for word in words if re.fullmatch(r"[A-Z_]+=\w+", word))
    words = [word for word in words if word.split("=")[0] not in variables]
    words = [str(Path(sys.executable).with_name(word)) if word in ("imp", "mpirun") else word for word in words]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # as in an environment that is activated
    done = subprocess.run(words, cwd=folder, env=clean_environment(**variables, PATH=path), capture_output=True, text=True)
    if check:
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done


def here(command, folder, check=True):
    """The same in this process."""
    return imp_here(*shlex.split(command)[1:], cwd=folder, check=check)


def shortened(command):
    for long, short in SHORTER.items():
        command = command.replace(long, short)
    return command


def mentioned():
    """Every `imp ...` that stands in backticks in the pages, in the recipes' headers and in the notebooks' texts."""
    files = [*PAGES, *(ROOT / "pipelines").glob("*.toml"), *(ROOT / "notebooks").glob("*.ipynb")]
    texts = [file.read_text() for file in files]
    flowing = [re.sub(r"\n#? *", " ", text) for text in texts]
    inline = [command for text in flowing for command in re.findall(r"`((?:[A-Z_]+=\S+ )?imp [^`]+)`", text)]
    headers = [line[4:] for text in texts for line in text.splitlines() if re.match(r"#   imp ", line)]
    return [shlex.split(command, comments=True) for command in {*inline, *headers, *shown()} if "imp " in command]


def test_every_command_that_is_mentioned_exists_with_its_options():
    app, unknown = typer.main.get_command(cli.app), []
    for words in (words for words in mentioned() if "pip" not in words):
        path, command = words[words.index("imp") + 1 :], app
        while path and path[0] in getattr(command, "commands", {}):
            command = command.commands[path.pop(0)]
        commands = [command, *getattr(command, "commands", {}).values()]  # of which a placeholder may be any
        options = {option for one in commands for parameter in one.params for option in parameter.opts} | {"--help"}
        is_unknown = path and hasattr(command, "commands") and not re.fullmatch(r"[A-Z]+|\.\.\.|--\w+", path[0])
        if is_unknown or not {word for word in path if word.startswith("--")} <= options:
            unknown.append(" ".join(words))

    assert unknown == []
    assert len(mentioned()) > 50


def test_every_command_of_the_pages_is_run_here():
    assert set(shown()) == {*DAILY, *MORE, *ALONE, *INSTALLED} - {"imp run pipelines/digits.toml"}


@pytest.fixture(scope="module")
def lenet(tmp_path_factory):
    """A folder whose latest run is of LeNet on as many digits as the first run has, prepared and nothing else."""
    folder = tmp_path_factory.mktemp("readme")
    short = settings("train.snapshots=0,2ep", "families.oneshot.rewind=2ep", "families.oneshot.controls=[]")
    imp_here("prepare", *LENET, *short, *settings("data.validation=0.38", "data.test=0.12"), cwd=folder)
    return folder


def test_the_commands_of_daily_use_one_after_another(lenet, tmp_path):
    folder = shutil.copytree(lenet, tmp_path / "work", symlinks=True)
    (folder / "my_executor.py").write_text(python("class Submitit") + python("class Parsl"))
    for command in DAILY:
        run = typed if "mpirun" in command or "--executor" in command else here
        done = run(shortened(command), folder, check="--submit" not in command)
        assert "Traceback" not in done.stderr
        if "--submit" in command and not shutil.which("sbatch"):
            assert (done.returncode, "no sbatch" in done.stderr) == (2, True)

    assert (folder / "runs/digits-q90/report/index.html").exists()
    run = folder / "runs/digits"
    assert len(list((run / "replicate-1/oneshot/masks").glob("*.h5"))) == 3
    assert len(list((run / "replicate-1/oneshot").glob("*/ticket/result.json"))) == 3
    assert (run / "report/index.html").exists()
    assert (run / "export/replicate-1/q90-step-000030-ticket.keras").exists()
    assert (run / "slurm/retrain.sh").exists()


def test_the_commands_for_more_than_one_shot(lenet, tmp_path):
    folder = shutil.copytree(lenet, tmp_path / "work", symlinks=True)
    for command in ("imp train", "imp thresholds", *MORE):
        here(shortened(command), folder)

    run = folder / "runs/latest"
    assert (run / "replicate-1/rounds/round-02-step-000000/ticket/result.json").exists()
    assert (run / "replicate-4/train/result.json").exists()


FIRST = "imp run pipelines/digits.toml"
# These take long, and other files test what they do: CI runs them second.
SLOW = (
    "imp train --from mobilenet_v2.safetensors --set model.padding=symmetric --set model.batchnorm_epsilon=1e-5",
    "imp run pipelines/simcls-tiny.toml",
    "imp run pipelines/digits.toml --set train.learning_rate=0.02 --run runs/slower",
    "imp run pipelines/digits.toml --set 'track.trackers=[\"tensorboard\"]'",
    "imp run pipelines/digits.toml --set name=value --set task=own_tasks:Value",
    "imp run pipelines/digits-mobilenet.toml --set families.oneshot.quantiles=0,80 --set families.oneshot.copies=3",
    "imp search --rewind 2ep",
)


@pytest.mark.parametrize("command", [pytest.param(one, marks=[pytest.mark.smoke] * (one in SLOW)) for one in ALONE])
def test_a_command_of_the_pages(command, tmp_path):
    shutil.copytree(ROOT / "pipelines", tmp_path / "pipelines")
    if "zoo" in command:
        (tmp_path / "zoo").symlink_to(ROOT / "zoo")
    if "--from" in command:
        here("imp prepare", tmp_path)
        write_weights(tmp_path / "mobilenet_v2.safetensors")
    if "own_tasks" in command:
        (tmp_path / "own_tasks.py").write_text(python("class Value"))
    if "simcls" in command:
        pytest.importorskip("tokenizers")
        write_articles(tmp_path / "articles.jsonl")
    if "photos" in command:
        photographs(tmp_path / "photos")
    if "--records" in command:
        here("imp prepare folder:photos --size 64", tmp_path)

    run = typed if command == FIRST else here
    run(shlex.join([*shlex.split(command), *ALONE[command]]), tmp_path)


def write_weights(path):
    """Those of a MobileNetV2 for 1,000 classes, by the names of torchvision."""
    set_up_devices()
    from lottery.engine import foreign, models, signature

    state = models.initial_weights(Model(), signature.images(32, 1000), 0)
    path.write_bytes(foreign.to_torch(Model(), (32, 32, 3), state)[0])


def write_articles(path):
    """A hundred documents of random words, a sentence of each being its reference."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghij"), 6)) for _ in range(200)]
    with open(path, "w") as file:
        for _ in range(100):
            article = [" ".join(rng.choice(words, 9)) + "." for _ in range(4)]
            file.write(json.dumps({"article": article, "abstract": article[2:3]}) + "\n")


def photographs(folder):
    rng = np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (folder / name).mkdir(parents=True)
        for index in range(120):
            Image.fromarray(rng.integers(0, 256, (80, 90, 3), np.uint8)).save(folder / name / f"{index}.jpg")


def python(word):
    """The block of Python in the pages that has `word` in it."""
    blocks = [block for page in PAGES for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]
    (found,) = [block for block in blocks if word in block]
    return found


def test_the_python_of_the_readme_reads_a_run(smoke, monkeypatch, capsys):
    folder, _ = smoke
    monkeypatch.chdir(folder)

    exec(python("open_results").replace("runs/digits", "runs/smoke"), {})

    assert "q90-step-" in capsys.readouterr().out


@pytest.mark.usefixtures("here", "tensorflow")
def test_the_python_of_the_readme_makes_a_run(monkeypatch, capsys):
    monkeypatch.setattr("lottery.engine.assembly.set_up_tensorflow", lambda train, cores=None: ["CPU:0"])
    Path("small.toml").write_text(SMALL)

    exec(python("campaign(").replace('"digits"', '"small.toml"'), {})

    printed = capsys.readouterr().out
    assert "The dense network reaches" in printed
    assert re.search(r"ticket +q90 +0 ", printed)
    assert Path("runs/small/report/index.html").exists()


def test_the_families_of_the_readme_are_a_recipe():
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)

    families = reading.resolve(tomllib.loads(block)).families

    assert list(families) == ["oneshot", "iterative"]
    assert (len(families["oneshot"].grid), families["iterative"].rounds) == (3, 10)


def test_the_network_of_the_pages_is_trained(tmp_path):
    (tmp_path / "mynets.py").write_text(python("mynets.py"))
    sys.modules.pop("mynets", None)  # that of another test
    (tmp_path / "my.toml").write_text('name = "my"\n[model]\nname = "mynets:build"\n[train]\nepochs = 3\n[data]\nsize = 8\n')

    few = settings("families.oneshot.quantiles=50", "families.oneshot.rewind=0", "families.oneshot.controls=[]")
    imp_here("prepare", "--recipe", "my.toml", *few, cwd=tmp_path)
    imp_here("train", cwd=tmp_path)
    imp_here("thresholds", cwd=tmp_path)

    assert "conv2d/kernel" in store.load_mask(tmp_path / "runs/my/replicate-1/oneshot/masks/q50.h5")


def test_every_link_and_picture_leads_to_a_file():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_page_of_the_api_lists_what_users_import():
    set_up_devices()
    from lottery import keras

    texts = "".join(page.read_text() for page in PAGES)
    imported = [line.split(" import ") for line in re.findall(r"^from (lottery.+ import .+)", texts, re.MULTILINE)]
    names = {f"{module}.{name}" for module, them in imported for name in them.split(", ")}

    assert names | {f"lottery.keras.{name}" for name in keras.__all__} <= set(re.findall(r"^::: (.+)", texts, re.MULTILINE))


def test_every_command_stands_in_the_table():
    readme = (ROOT / "README.md").read_text()
    commands = typer.main.get_command(cli.app).commands

    assert {name for name in commands if f"| `imp {name}" not in readme} == set()


@pytest.mark.smoke
def test_the_first_run_names_a_ticket_that_wins_and_decides_four_verdicts_of_five(tmp_path):
    short = settings("replicates=4", "families.iterative.rounds=5")  # of eight and six
    imp_here("run", str(ROOT / "pipelines/digits.toml"), "--ranks", "1", *short, cwd=tmp_path)

    told = json.loads(imp_here("report", "--json", cwd=tmp_path).stdout)
    verdicts = [group["verdict"] for group in told["groups"] if group["variant"] != "dense"]
    assert " It wins: " in " ".join(told["headline"])
    assert sum(verdict in ("matching", "not matching") for verdict in verdicts) >= 0.8 * len(verdicts)
