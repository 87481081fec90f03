"""Weights & Biases: a mirror that is off by default and never ends a training."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from lottery import tracking
from lottery.experiment import reading
from lottery.experiment.recipe import Recipe
from lottery.rundir.records import Figures, Result, Timing

ROW = {"step": 45, "epoch": 1.0, "train_loss": 0.5, "timing": {"seconds": 3.0}}
FIGURES = {"train_loss": 0.1, "validation_loss": 0.3, "validation_accuracy": 0.9, "test_loss": 0.4, "test_accuracy": 0.8}
RESULT = Result(
    status="done", replicate=1, steps_per_epoch=45, epochs=2, final=Figures(step=90, **FIGURES), timing=Timing(seconds=1)
)


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
    monkeypatch.setattr(tracking, "_told", set())
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    return module


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    """A network's folder in a run in the current folder."""
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/digits/replicate-1/train")
    folder.mkdir(parents=True)
    return folder


def tracker(mode="offline", folder=Path("runs/digits"), rows=()):
    resolved = reading.resolve({"track": {"wandb": mode, "project": "mine"}})
    return tracking.track(resolved, folder, folder / "replicate-1" / "train", {"variant": "dense", "replicate": 1}, rows)


def mirror(tracked):
    tracked.log(ROW)
    tracked.log({**ROW, "step": 90})
    tracked.finish(RESULT)
    tracking.wait()


def test_off_does_nothing_and_does_not_even_load_wandb(monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "wandb", None)

    mirror(tracker("off"))

    assert capfd.readouterr() == ("", "")


def test_off_is_the_default(fake):
    mirror(tracking.track(Recipe(), Path("run"), Path("run/replicate-1/train"), {}))

    assert fake.asked == []


def test_figures_go_to_a_run_named_after_the_network(fake):
    mirror(tracker())

    (options,) = fake.asked
    assert (options["project"], options["group"], options["name"]) == ("mine", "digits", "replicate-1/train")
    assert options["mode"] == "offline"
    assert options["config"]["track"] == {"wandb": "offline", "project": "mine"}
    assert options["config"]["network"] == {"variant": "dense", "replicate": 1}
    assert fake.run.logged == [(45, {"epoch": 1.0, "train_loss": 0.5}), (90, {"epoch": 1.0, "train_loss": 0.5})]
    assert fake.run.summary == {"status": "done", **FIGURES}
    assert fake.run.finished == [0]


def test_a_network_that_is_gone_on_with_has_the_run_it_had_and_only_what_that_lacks_is_sent(fake, place):
    mirror(tracker("online"))
    fake.run = FakeRun()
    fake.run.step = 91  # as one that is resumed begins after its last
    mirror(tracker("online", rows=[ROW, {**ROW, "step": 90}, {**ROW, "step": 135}]))

    first, second = fake.asked
    assert first["id"] == second["id"] == (place / tracking.ID).read_text()
    assert first["resume"] == "allow"
    assert next(step for step, _ in fake.run.logged) == 135


def test_offline_a_network_that_is_gone_on_with_takes_the_place_of_what_was_written(fake, place):
    mirror(tracker())
    own, other = (Path(f"runs/digits/wandb/offline-run-1-{name}") for name in (fake.asked[0]["id"], "another"))
    own.mkdir(parents=True)
    other.mkdir()
    fake.run = FakeRun()

    mirror(tracker(rows=[{**ROW, "step": 15}]))

    assert (own.exists(), other.exists()) == (False, True)
    assert fake.asked[1]["resume"] is None
    assert [step for step, _ in fake.run.logged] == [15, 45, 90]


@pytest.mark.parametrize("forged", ["*", "../../../../replicate-1", "", "0123456789abcdef\n"])
def test_an_id_that_is_none_of_ours_removes_nothing(fake, place, forged):
    other = Path("runs/digits/wandb/offline-run-1-another")
    other.mkdir(parents=True)
    (place / tracking.ID).write_text(forged)

    mirror(tracker())

    assert other.exists()
    assert place.exists()
    assert fake.asked[0]["id"] == (place / tracking.ID).read_text() != forged


def test_networks_have_runs_of_their_own_and_an_agent_has_named_its_run(fake, monkeypatch):
    other = Path("runs/digits/replicate-2/train")
    other.mkdir(parents=True)
    mirror(tracker("online"))
    resolved = reading.resolve({}, ["track.wandb=online"])
    mirror(tracking.track(resolved, Path("runs/digits"), other, {}))
    monkeypatch.setenv("WANDB_RUN_ID", "abc")
    mirror(tracker("online"))

    assert fake.asked[0]["id"] != fake.asked[1]["id"]
    assert fake.asked[2]["id"] is fake.asked[2]["resume"] is None


def test_a_network_that_diverged_ends_its_run_as_failed(fake):
    tracker("online").finish(RESULT.model_copy(update={"status": "diverged", "final": None}))
    tracking.wait()

    assert fake.asked[0]["mode"] == "online"
    assert fake.run.summary == {"status": "diverged"}
    assert fake.run.finished == [1]


def test_a_missing_wandb_is_told_once_and_not_fatal(monkeypatch, capfd):
    monkeypatch.setattr(tracking, "_told", set())
    monkeypatch.setitem(sys.modules, "wandb", None)

    mirror(tracker())

    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (ConnectionError("no route to host\nat line 5"), "no route to host"),
        (TimeoutError(), "TimeoutError"),
        *((FakeRun(breaks=(call,)), f"{call} failed") for call in ("log", "summary", "finish")),
    ],
    ids=["start", "without a message", "log", "summary", "finish"],
)
def test_an_error_is_told_once_for_all_networks_and_not_fatal(fake, capfd, run, words):
    fake.run = run

    for _ in range(3):
        mirror(tracker())

    assert capfd.readouterr() == ("", f"wandb mirrors nothing ({words}); metrics.jsonl has everything\n")


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

    tracked = tracker("online")
    for step in range(100):
        tracked.log({**ROW, "step": step})
    tracked.finish(RESULT)

    assert time.monotonic() - began < 1
    tracking.wait(0.1)
    assert capfd.readouterr().err == "wandb did not take 1 of its runs in time; metrics.jsonl has everything\n"
    fake.run.released.set()


def test_rows_arrive_in_their_order_however_late(fake):
    fake.run = SlowRun()
    tracked = tracker("online")
    for step in range(20):
        tracked.log({**ROW, "step": step})
    tracked.finish(RESULT)
    fake.run.released.set()
    tracking.wait()

    assert [step for step, _ in fake.run.logged] == list(range(20))
    assert fake.run.finished == [0]


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
        tracking.publish(reading.resolve({}, ["track.wandb=online"]), folder, folder / "report")
        tracking.wait()

    artifact, again = kept
    assert fake.asked[0]["id"] == fake.asked[1]["id"]
    assert again.files == artifact.files
    assert (artifact.name, artifact.type, artifact.files) == ("digits-report", "report", [("index.html", "index.html")])
    assert (fake.asked[0]["group"], fake.asked[0]["name"]) == ("digits", "report")
    assert fake.run.finished == [None, None]


def test_without_mirroring_no_report_is_published(fake, kept):
    tracking.publish(Recipe(), Path("runs/digits"), Path("runs/digits/report"))

    assert fake.asked == kept == []


def test_a_report_that_cannot_be_published_is_told_and_not_fatal(fake, capfd):
    fake.run = ConnectionError("no route to host")

    Path("runs/digits/report").mkdir()
    tracking.publish(reading.resolve({}, ["track.wandb=online"]), Path("runs/digits"), Path("runs/digits/report"))
    tracking.wait()

    assert capfd.readouterr().err == "wandb mirrors nothing (no route to host); metrics.jsonl has everything\n"


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


def test_offline_mode_of_the_real_wandb_writes_to_the_run_directory_and_calls_nobody(tmp_path):
    source = f"""
from pathlib import Path
from lottery import tracking
from lottery.experiment import reading
from lottery.experiment.recipe import Recipe
from lottery.rundir.records import Figures, Result, Timing

folder = Path("run")
offline = reading.resolve({{}}, ["track.wandb=offline"])
for rows in ([], [{ROW!r}]):
    tracked = tracking.track(offline, folder, folder / "replicate-1" / "train", {{"density": 0.125}}, rows)
    tracked.log({{**{ROW!r}, "step": 90, "train_loss": 0.25}})
    tracked.finish({RESULT!r})
    tracking.wait()
tracking.publish(reading.resolve({{}}, ["track.wandb=offline"]), folder, folder / "report")
tracking.wait()
"""
    (tmp_path / "run" / "report").mkdir(parents=True)
    (tmp_path / "run" / "replicate-1" / "train").mkdir(parents=True)
    (tmp_path / "run" / "report" / "index.html").write_text("a report")
    with listener() as (server, callers):
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-c", source],
            cwd=tmp_path,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(tmp_path),
                "WANDB_BASE_URL": address,
                "HTTPS_PROXY": address,
                "HTTP_PROXY": address,
            },
            capture_output=True,
            text=True,
        )
    assert callers == []
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    logs = [path.read_bytes() for path in (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")]
    assert len(logs) == 2
    (network,) = (log for log in logs if b"train_loss" in log)
    assert all(words in network for words in (b"validation_accuracy", b"density", b"0.125", b"0.25", b"0.5"))
    assert any(b"run-report" in log for log in logs)


def test_a_dead_server_does_not_keep_a_process_from_ending(tmp_path):
    source = f"""
import time
from pathlib import Path
from lottery import tracking
from lottery.experiment import reading
from lottery.experiment.recipe import Recipe
from lottery.rundir.records import Figures, Result, Timing

tracking.INIT_SECONDS = 3
began = time.monotonic()
tracked = tracking.track(reading.resolve({{}}, ["track.wandb=online"]), Path("run"), Path("run/replicate-1/train"), {{}})
tracked.log({ROW!r})
tracked.finish({RESULT!r})
print(time.monotonic() - began < 1)
tracking.wait()
"""
    (tmp_path / "run/replicate-1/train").mkdir(parents=True)
    began = time.monotonic()
    with listener() as (server, _):
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-c", source],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "WANDB_BASE_URL": address, "WANDB_API_KEY": "a" * 40},
            capture_output=True,
            text=True,
            timeout=120,
        )

    assert (done.returncode, done.stdout) == (0, "True\n")
    assert "metrics.jsonl has everything" in done.stderr
    assert time.monotonic() - began < 60
