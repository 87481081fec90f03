"""Trackers: none by default, none ends a training, and one contract for all; then what is particular to each."""

import contextlib
import re
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from helpers import events, install_package

from lottery.base.errors import InputError
from lottery.experiment import reading
from lottery.experiment.recipe import Recipe
from lottery.rundir.records import Figures, Result, Timing
from lottery.rundir.run import Run
from lottery.trackers import mirror
from lottery.trackers.wandb import ID

ROW = {"step": 45, "epoch": 1.0, "train_loss": 0.5, "timing": {"seconds": 3.0}}
FIGURES = {"train_loss": 0.1, "validation_loss": 0.3, "validation_accuracy": 0.9, "test_loss": 0.4, "test_accuracy": 0.8}
RESULT = Result(
    status="done", replicate=1, steps_per_epoch=45, epochs=2, final=Figures(step=90, **FIGURES), timing=Timing(seconds=1)
)


RUN = Path("runs/digits")
TRAIN = RUN / "replicate-1/train"
TRAIN_EVENTS = RUN / "tensorboard/replicate-1/train"


class FakeRun:
    """A W&B run that records what it is given and raises at the calls named in `breaks`."""

    def __init__(self, breaks=()):
        self.breaks, self.logged, self.summary, self.finished, self.step = breaks, [], FakeSummary(self), [], 0

    def _break(self, call):
        if call in self.breaks:
            raise ConnectionError(f"{call} failed\nand more lines")

    def log(self, figures, step):
        self._break("log")
        self.logged.append((step, figures))

    def finish(self, exit_code=None):
        self._break("finish")
        self.finished.append(exit_code)


class FakeSummary(dict):
    def __init__(self, run):
        super().__init__()
        self.run = run

    def update(self, values):
        self.run._break("summary")
        super().update(values)


@pytest.fixture
def fake(monkeypatch):
    """A wandb module in place of the real one; `fake.run` is what its init gives, an exception is raised."""
    module = types.ModuleType("wandb")
    module.run, module.asked = FakeRun(), []
    module.Settings = dict

    def init(**options):
        module.asked.append(options)
        if isinstance(module.run, Exception):
            raise module.run
        return module.run

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    """A network's folder in a run in the current folder, in a process that has told nothing yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mirror, "_told", set())
    TRAIN.mkdir(parents=True)
    return TRAIN


def recipe(*trackers):
    return reading.resolve({"track": {"trackers": list(trackers), "project": "mine"}})


def begun(tracker="wandb:offline", rows=(), network=TRAIN):
    """The mirror of a training that goes on after `rows`."""
    return mirror.track(recipe(tracker), RUN, network, {"variant": "dense", "replicate": 1}, rows)


def ended(tracked):
    """The mirror of a training that comes to its end."""
    tracked.log(ROW)
    tracked.log({**ROW, "step": 90})
    tracked.finish(RESULT)
    mirror.wait()


def shown_by_wandb(fake):
    return [(step, figures["train_loss"]) for step, figures in fake.run.logged], fake.run.summary["status"]


def shown_by_tensorboard(fake):
    scalars, texts = events(TRAIN_EVENTS)
    return scalars["curves/train_loss"], texts["status"]


def shown_by_figures(fake):
    *rows, (status, *_) = [line.split() for line in (TRAIN / "figures.txt").read_text().splitlines()]
    return [(int(step), float(loss)) for step, _, loss in rows], status


# Each with how a test sees what it shows of `train_loss` and the status, and what lets it fail.
TRACKERS = {
    "wandb": (shown_by_wandb, lambda fake: setattr(fake, "run", ConnectionError("no route to host"))),
    "wandb:offline": (shown_by_wandb, lambda fake: setattr(fake, "run", ConnectionError("no route to host"))),
    "tensorboard": (shown_by_tensorboard, lambda fake: (RUN / "tensorboard").touch()),
    "figures": (shown_by_figures, lambda fake: [(RUN / f"{number}/figures.txt").mkdir(parents=True) for number in range(3)]),
}
contract = pytest.mark.parametrize("name", TRACKERS)


@pytest.fixture
def figures(monkeypatch, tmp_path):
    """The tracker of CONTRIBUTING.md, in a package that is installed."""
    install_package(tmp_path, monkeypatch, "Add a tracker", mirror.GROUP, "figures = mypackage:Figures")


@pytest.fixture
def outside(tensorflow, fake, figures):
    """What trackers need."""
    return fake


def test_the_contract_is_of_all_trackers():
    assert {name.partition(":")[0] for name in TRACKERS} == {*mirror.OURS, "figures"}


@contract
def test_a_tracker_is_found_without_what_is_heavy(name, monkeypatch, figures):
    for heavy in ("wandb", "tensorflow"):
        monkeypatch.setitem(sys.modules, heavy, None)

    mirror.check(recipe(name), RUN)


@contract
def test_a_training_that_goes_on_shows_what_one_that_was_never_killed_shows(name, outside, capfd):
    shown, _ = TRACKERS[name]
    ended(begun(name))
    whole = shown(outside)
    assert whole == ([(45, 0.5), (90, 0.5)], "done")

    killed = begun(name)
    for step in (15, 45, 60):
        killed.log({**ROW, "step": step})
    killed.finish(None)
    mirror.wait()
    outside.run = FakeRun()
    ended(begun(name, rows=[{**ROW, "step": 15}]))

    steps = [(step, loss) for step, loss in shown(outside)[0]]
    assert steps == [(15, 0.5), *whole[0]]
    assert capfd.readouterr().err == ""


@contract
def test_a_network_that_did_not_come_to_its_end_is_shown_as_such(name, outside):
    for result, status in ((None, "stopped"), (RESULT.model_copy(update={"status": "diverged", "final": None}), "diverged")):
        tracked = begun(name)
        tracked.log(ROW)
        tracked.finish(result)
        mirror.wait()

        assert TRACKERS[name][0](outside)[1] == status


@contract
def test_a_tracker_that_fails_says_so_in_one_line_for_all_networks(name, outside, capfd):
    TRACKERS[name][1](outside)

    for number in range(3):
        (RUN / f"{number}").mkdir(exist_ok=True)
        ended(begun(name, network=RUN / f"{number}"))

    line = rf"{name.partition(':')[0]} mirrors nothing \([^\n]+\); metrics\.jsonl has everything\n"
    assert re.fullmatch(line, capfd.readouterr().err)


@contract
def test_a_report_is_published_or_not_and_that_is_all(name, outside, kept, capfd):
    (RUN / "report").mkdir()

    mirror.publish(recipe(name), RUN, RUN / "report")
    mirror.wait()

    assert capfd.readouterr() == ("", "")


def test_trackers_work_beside_each_other_and_one_that_fails_stops_no_other(outside, capfd):
    TRACKERS["wandb"][1](outside)

    ended(mirror.track(recipe("wandb", "figures", "tensorboard"), RUN, TRAIN, {}))

    assert shown_by_figures(outside) == shown_by_tensorboard(outside) == ([(45, 0.5), (90, 0.5)], "done")
    assert capfd.readouterr().err == "wandb mirrors nothing (no route to host); metrics.jsonl has everything\n"


def test_no_tracker_is_the_default_and_loads_nothing(monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "wandb", None)

    ended(mirror.track(Recipe(), RUN, TRAIN, {}))

    assert Recipe().track.trackers == mirror._sending == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tensorbord", "unknown tracker 'tensorbord'; did you mean 'tensorboard'"),
        ("mlflow", "unknown tracker 'mlflow'; known are .*figures.*tensorboard, wandb; other packages add entry points"),
        ("wandb:of", "'wandb:of' is not known: write wandb or wandb:offline"),
        ("tensorboard:x", "'tensorboard:x' is not known: write tensorboard"),
    ],
)
def test_a_tracker_that_is_not_there_is_refused_before_anything_is_trained(name, words, figures):
    with pytest.raises(InputError, match=words):
        Run(RUN, recipe(name)).check()


def test_a_tracker_is_named_once():
    with pytest.raises(InputError, match=r"track\.trackers: wandb is named more than once"):
        recipe("wandb", "wandb:offline")


def test_a_package_that_cannot_be_loaded_is_no_reason_to_train_nothing(figures, tmp_path, capfd):
    (tmp_path / "mypackage.py").write_text("import nowhere")

    Run(RUN, recipe("figures")).check()
    ended(begun("figures"))

    assert capfd.readouterr().err == "figures mirrors nothing (No module named 'nowhere'); metrics.jsonl has everything\n"


def test_figures_go_to_a_run_named_after_the_network(fake):
    ended(begun())

    (options,) = fake.asked
    assert (options["project"], options["group"], options["name"]) == ("mine", "digits", "replicate-1/train")
    assert options["mode"] == "offline"
    assert options["config"]["track"] == {"trackers": ["wandb:offline"], "project": "mine"}
    assert options["config"]["network"] == {"variant": "dense", "replicate": 1}
    assert fake.run.logged == [(45, {"epoch": 1.0, "train_loss": 0.5}), (90, {"epoch": 1.0, "train_loss": 0.5})]
    assert fake.run.summary == {"status": "done", **FIGURES}
    assert fake.run.finished == [0]


def test_a_network_that_is_gone_on_with_has_the_run_it_had_and_only_what_that_lacks_is_sent(fake, place):
    ended(begun("wandb"))
    fake.run = FakeRun()
    fake.run.step = 91  # as one that is resumed begins after its last
    ended(begun("wandb", rows=[ROW, {**ROW, "step": 90}, {**ROW, "step": 135}]))

    first, second = fake.asked
    assert first["id"] == second["id"] == (place / ID).read_text()
    assert first["resume"] == "allow"
    assert next(step for step, _ in fake.run.logged) == 135


def test_offline_a_network_that_is_gone_on_with_takes_the_place_of_what_was_written(fake, place):
    ended(begun())
    own, other = (Path(f"runs/digits/wandb/offline-run-1-{name}") for name in (fake.asked[0]["id"], "another"))
    own.mkdir(parents=True)
    other.mkdir()
    fake.run = FakeRun()

    ended(begun(rows=[{**ROW, "step": 15}]))

    assert (own.exists(), other.exists()) == (False, True)
    assert fake.asked[1]["resume"] is None
    assert [step for step, _ in fake.run.logged] == [15, 45, 90]


@pytest.mark.parametrize("forged", ["*", "../../../../replicate-1"])
def test_an_id_that_is_none_of_ours_removes_nothing(fake, place, forged):
    other = Path("runs/digits/wandb/offline-run-1-another")
    other.mkdir(parents=True)
    (place / ID).write_text(forged)

    ended(begun())

    assert other.exists()
    assert place.exists()
    assert fake.asked[0]["id"] == (place / ID).read_text() != forged


def test_networks_have_runs_of_their_own(fake):
    other = Path("runs/digits/replicate-2/train")
    other.mkdir(parents=True)
    ended(begun("wandb"))
    resolved = recipe("wandb")
    ended(mirror.track(resolved, Path("runs/digits"), other, {}))

    assert fake.asked[0]["id"] != fake.asked[1]["id"]


def test_a_network_that_diverged_ends_its_run_as_failed(fake):
    begun("wandb").finish(RESULT.model_copy(update={"status": "diverged", "final": None}))
    mirror.wait()

    assert fake.asked[0]["mode"] == "online"
    assert fake.run.summary == {"status": "diverged"}
    assert fake.run.finished == [1]


@pytest.mark.parametrize("call", ["log", "summary", "finish"])
def test_an_error_of_the_server_is_told_once_and_not_fatal(fake, capfd, call):
    fake.run = FakeRun(breaks=(call,))

    for _ in range(2):
        ended(begun())

    assert capfd.readouterr() == ("", f"wandb mirrors nothing ({call} failed); metrics.jsonl has everything\n")


class SlowRun(FakeRun):
    """One that takes its time for everything until `released`."""

    def __init__(self):
        super().__init__()
        self.released = threading.Event()

    def _break(self, call):
        self.released.wait(30)

    def log(self, figures, step):
        self._break("log")
        super().log(figures, step)


def test_a_slow_server_is_not_waited_for(fake, capfd):
    fake.run = SlowRun()
    began = time.monotonic()

    tracked = begun("wandb")
    for step in range(100):
        tracked.log({**ROW, "step": step})
    tracked.finish(RESULT)

    assert time.monotonic() - began < 1
    mirror.wait(0.1)
    assert capfd.readouterr().err == "wandb did not take 1 of its runs in time; metrics.jsonl has everything\n"
    fake.run.released.set()


class FakeArtifact:
    def __init__(self, name, type):
        self.name, self.type, self.files = name, type, []

    def add_file(self, path, name):
        self.files.append((Path(path).name, name))


@pytest.fixture
def kept(fake):
    """The artifacts that are logged."""
    fake.Artifact, logged = FakeArtifact, []
    fake.run.log_artifact = logged.append
    return logged


def test_the_report_is_an_artifact_in_the_group_of_the_run(fake, kept, tmp_path):
    folder = tmp_path / "digits"
    (folder / "report").mkdir(parents=True)
    (folder / "report" / "index.html").touch()

    for _ in range(2):
        mirror.publish(recipe("wandb"), folder, folder / "report")
        mirror.wait()

    artifact, again = kept
    assert fake.asked[0]["id"] == fake.asked[1]["id"]
    assert again.files == artifact.files
    assert (artifact.name, artifact.type, artifact.files) == ("digits-report", "report", [("index.html", "index.html")])
    assert (fake.asked[0]["group"], fake.asked[0]["name"]) == ("digits", "report")
    assert fake.run.finished == [None, None]


@contextlib.contextmanager
def listener():
    """A server on this host that hangs up on everybody, and the list of those who called."""
    callers = []

    def answer():
        with contextlib.suppress(OSError):
            while True:
                connection, caller = server.accept()
                callers.append(caller)
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield server, callers
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


SCRIPT = f"""
import time
from pathlib import Path
from lottery.trackers import mirror, wandb
from lottery.experiment import reading
from lottery.experiment.recipe import Recipe
from lottery.rundir.records import Figures, Result, Timing

def show(tracker, rows=()):
    recipe = reading.resolve({{}}, [f'track.trackers=["{{tracker}}"]'])
    tracked = mirror.track(recipe, Path("run"), Path("run/replicate-1/train"), {{"density": 0.125}}, rows)
    tracked.log({{**{ROW!r}, "step": 90, "train_loss": 0.25}})
    tracked.finish({RESULT!r})
    return recipe
"""


def in_a_process(folder, address, script, **variables):
    """How a process ended that shows figures of a network of `run` to the real wandb, with its server at `address`."""
    (folder / "run/replicate-1/train").mkdir(parents=True)
    (folder / "run/report").mkdir()
    (folder / "run/report/index.html").write_text("a report")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "WANDB_BASE_URL": address, **variables}
    line = [sys.executable, "-c", SCRIPT + script]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_offline_mode_of_the_real_wandb_writes_to_the_run_directory_and_calls_nobody(tmp_path):
    script = f"""
for rows in ([], [{ROW!r}]):
    recipe = show("wandb:offline", rows)
    mirror.wait()
mirror.publish(recipe, Path("run"), Path("run/report"))
mirror.wait()
"""
    with listener() as (server, callers):
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        done = in_a_process(tmp_path, address, script, HTTPS_PROXY=address, HTTP_PROXY=address)

    assert callers == []
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    logs = [path.read_bytes() for path in (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")]
    assert len(logs) == 2
    (network,) = (log for log in logs if b"train_loss" in log)
    assert all(words in network for words in (b"validation_accuracy", b"density", b"0.125", b"0.25", b"0.5"))
    assert any(b"run-report" in log for log in logs)


def test_a_dead_server_does_not_keep_a_process_from_ending(tmp_path):
    script = """
wandb.INIT_SECONDS = 1
began = time.monotonic()
show("wandb")
print(time.monotonic() - began < 1)
mirror.wait()
"""
    began = time.monotonic()
    with listener() as (server, _):
        done = in_a_process(tmp_path, f"http://127.0.0.1:{server.getsockname()[1]}", script, WANDB_API_KEY="a" * 40)

    assert (done.returncode, done.stdout) == (0, "True\n")
    assert "metrics.jsonl has everything" in done.stderr
    assert time.monotonic() - began < 60


def test_tensorboard_has_curves_final_figures_and_the_recipe_of_each_network(tensorflow):
    ended(begun("tensorboard"))

    scalars, texts = events(TRAIN_EVENTS)
    assert scalars == {
        "curves/epoch": [(45, 1.0), (90, 1.0)],
        "curves/train_loss": [(45, 0.5), (90, 0.5)],
        **{f"final/{name}": [(90, value)] for name, value in FIGURES.items()},
    }
    assert texts["recipe"] == f"```toml\n{reading.to_toml(recipe('tensorboard'))}```"
    assert texts["network"] == '```json\n{\n  "variant": "dense",\n  "replicate": 1\n}\n```'


def test_what_a_killed_process_wrote_of_a_network_goes_and_that_of_others_stays(tensorflow):
    for name in ("replicate-1/train", "replicate-1/train/other"):
        (RUN / "tensorboard" / name).mkdir(parents=True)
        (RUN / "tensorboard" / name / "events.out.tfevents.1.cut").write_bytes(b"cut short")

    ended(begun("tensorboard"))

    assert events(TRAIN_EVENTS)[0]["curves/train_loss"] == [(45, 0.5), (90, 0.5)]
    assert [path.name for path in RUN.glob("tensorboard/replicate-1/train/*/events*")] == ["events.out.tfevents.1.cut"]
