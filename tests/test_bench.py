"""Each measurement runs small, says what it is of, and refuses in one line what it cannot measure. No test looks at a time."""

import contextlib
import importlib.util
import itertools
import json
import os
import pstats
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers import IMP, clean_environment
from PIL import Image

from lottery import cli
from lottery.base.errors import Failed
from lottery.base.progress import Reporter
from lottery.bench import costs, fanout, images, learning, timing
from lottery.bench.harness import Process, TooLarge
from lottery.experiment.reading import resolve

LENET = ["--set=model.name=lenet_300_100", "--set=data.size=8", "--set=train.batch=64"]


def test_contenders_take_turns_there_and_back_after_a_warm_up(monkeypatch):
    monkeypatch.setattr(timing, "RUN_SECONDS", 1e-9)
    turns = []

    timings = timing.in_turn({name: lambda name=name: turns.append(name) for name in "abc"}, 3, Reporter(quiet=True))

    assert "".join(turns) == "aabbcc" + "abc" + "cba" + "abc"
    assert {name: len(pairs) for name, pairs in timings.items()} == {"a": 3, "b": 3, "c": 3}


def test_what_is_quick_is_done_often_enough_to_be_timed(monkeypatch):
    monkeypatch.setattr(timing, "RUN_SECONDS", 0.05)
    calls = []

    assert len(timing.runs(lambda: calls.append(time.sleep(0.001)), 2)) == 2

    assert len(calls) > 20


def test_a_row_is_the_median_of_its_runs_against_the_first():
    slow, fast = images.compared({"slow": [(2, 1), (4, 2), (8, 4)], "fast": [(1, 2)] * 3}, 400, 1000)

    figures = {"images_per_s": 100, "low": 50, "high": 200, "mb_per_s": 0.1, "per_core": 200, "ratio": 1}
    assert slow == {"name": "slow", **figures, "repeats": 3}
    assert (fast["images_per_s"], fast["mb_per_s"], fast["per_core"], fast["ratio"]) == (400, 0.4, 200, 4)


def test_as_many_steps_are_taken_as_last():
    taken = []

    assert timing.lasting(taken.append, 10, most=6) == 6
    assert taken == [1, 2, 4, 6]
    assert timing.lasting(lambda count: time.sleep(0.002 * count), 0.005) in (2, 4)


def test_the_peak_of_memory_is_that_of_the_time_since():
    with timing.peak_memory() as peak:
        big = np.ones(100_000_000, np.uint8)
        del big
        assert 90e6 < peak() < 130e6
    with timing.peak_memory() as peak:
        assert peak() < 50e6


def test_photographs_are_jpeg_files_in_two_classes(tmp_path):
    images.make_photographs(tmp_path, 502)

    assert [len(list((tmp_path / name).iterdir())) for name in ("china", "flower")] == [251, 251]
    with Image.open(tmp_path / "china/000000.jpg") as image:
        assert (image.format, image.size, image.mode) == ("JPEG", (500, 375), "RGB")


def test_limits_are_a_table_with_its_remarks_and_files(typed, in_process, here):
    code, out, _ = typed("limits", "--quick", "--out", "pages")

    assert code == 0
    assert "medians of 2 runs of each, in turn; copy" in out
    assert "written to pages/limits.html, .md, .png and .json; all measurements there: pages/index.html" in out
    assert {path.name for path in (here / "pages").iterdir()} == {
        *("index.html", "limits.html", "limits.json", "limits.md", "limits.png")
    }
    measured = json.loads((here / "pages/limits.json").read_text())
    assert {row["unit"] for row in measured["rows"]} == {"GB/s", "GFLOP/s"}
    assert all(0 < row["low"] <= row["value"] <= row["high"] for row in measured["rows"])
    names = {row["name"] for row in measured["rows"]}
    assert {"copy, 1 thread", "float32 product, 1 thread", "bfloat16 product, 1 thread"} <= names
    assert all(name in out for name in names)
    assert {"processor", "cores", "packages"} <= measured["machine"].keys()


def test_its_help_has_every_sentence_and_loads_nothing_heavy():
    code = "import sys; sys.argv = ['imp', 'bench', '--help']\n"
    code += "try:\n import lottery.cli; lottery.cli.main()\nexcept SystemExit: pass\n"
    code += "print(sorted({'numpy', 'tensorflow', 'keras', 'altair', 'PIL', 'h5py', 'rich'} & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environment(COLUMNS="130"))

    assert "What a mask costs: inside the compiled step, and as a Python callback after each batch.\n" in done.stdout
    assert done.stdout.rstrip().splitlines()[-1] == "[]"


ROW = {"name", "images_per_s", "low", "high", "mb_per_s", "per_core", "ratio", "repeats"}


def test_prepare(quick, here):
    measured = quick("prepare", "--images", "30", "--workers", "2")

    names = [row["name"] for row in measured["rows"]]
    assert names[:2] == ["Pillow, decoded whole", "decoding alone, at reduced scale"]
    assert names[2:] == ["imp prepare, 1 worker", "imp prepare, 2 workers"]
    assert all(row.keys() == ROW and row["repeats"] == 2 and row["images_per_s"] > 0 for row in measured["rows"])
    assert measured["rows"][0]["ratio"] == 1
    assert measured["extras"]["GB_that_one_thread_copies_in_a_second"] > 0
    assert "workers_speed_up" in measured["extras"]
    assert list(here.iterdir()) == []


def test_feed(quick, here):
    measured = quick("feed", "--images", "600", "--size", "8", "--batch", "50", "--crop", "1", "--flip")

    names = [row["name"] for row in measured["rows"]]
    assert names == ["tf.data, one by one, then batched", "the same, parallel and prefetched", "stream", "memory"]
    assert all(row.keys() == ROW for row in measured["rows"])
    assert "resident_peak_over_raw_bytes" in measured["extras"]
    assert list(here.iterdir()) == []


def test_loader(quick):
    measured = quick("loader", *LENET)

    names = [row["name"] for row in measured["rows"]]
    assert names == ["tf.data, 0 workers", "tf.data, 2 workers", "stream", "memory"]
    for row in measured["rows"]:
        assert 0 <= row["load_s"] < row["epoch_s"]


def test_masks(quick):
    measured = quick("masks", *LENET, "--set=train.batch=700")

    assert [row["name"] for row in measured["rows"]] == [
        "our loop, no mask",
        "our loop, mask in the compiled step",
        "Keras fit, no mask",
        "Keras fit, mask by a callback after the batch",
    ]
    assert [row["mask_share"] is None for row in measured["rows"]] == [True, False, True, False]


def test_updates(quick):
    measured = quick("updates", *LENET)

    assert [row["name"] for row in measured["rows"]] == ["a mask that stays", "SET", "RigL", "GMP"]
    assert [row["overhead"] is None for row in measured["rows"]] == [True, False, False, False]
    assert all(row["ms_per_step"] > 0 for row in measured["rows"])


PARTS = ("input", "forward", "backward", "update", "mask")


def test_profile_divides_the_step_among_its_parts_and_leaves_its_trace(typed, quick, here, monkeypatch):
    (here / "nvtx.py").write_text(
        "import contextlib\n"
        "@contextlib.contextmanager\n"
        "def annotate(name, domain):\n"
        "    with open('ranges', 'a') as file:\n"
        "        print(domain, name, file=file)\n"
        "    yield\n"
    )
    monkeypatch.syspath_prepend(here)
    code, out, _ = typed("profile", "--quick", *LENET, "--out", "pages", "--cprofile", "--nvtx")
    del sys.modules["nvtx"]

    measured = json.loads((here / "pages/profile.json").read_text())
    rows = {row["name"]: row for row in measured["rows"]}
    assert code == 0
    assert list(rows) == [*PARTS, "other", "host"]
    for part in PARTS:
        assert rows[part]["ms_per_step"] > 0
        assert rows[part]["operations"] > 0
    assert rows["mask"]["operations"] == pytest.approx(3, abs=0.5)  # a kernel of each layer
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1)
    assert sum(row["ms_per_step"] for row in rows.values()) == pytest.approx(measured["extras"]["traced_step_ms"])
    (trace,) = (here / "pages").glob("profile-trace/plugins/profile/*/trace.json.gz")
    assert len(list(trace.parent.glob("*.xplane.pb"))) == 1
    seen, host = out.splitlines()[-2:]
    assert seen.startswith("the trace: `tensorboard --logdir pages/profile-trace`")
    assert str(trace.relative_to(here)) in seen
    assert "`snakeviz pages/profile.prof`" in host
    called = {name for _, _, name in pstats.Stats(str(here / "pages" / "profile.prof")).stats}
    assert {"advance", "steps", "take"} <= called
    ranges = (here / "ranges").read_text().splitlines()
    assert set(ranges[:-1]) == {"imp steps"}
    assert ranges[-1] == "imp evaluation"


def test_a_network_that_cannot_be_profiled_as_asked_is_refused(typed, quick):
    code, _, said = typed("profile", "--quick", "--set=model.name=conv2", "--set=train.xla=on")

    assert code == 2
    assert "XLA cannot compile conv2" in said.splitlines()[-1]


def test_ladder(quick):
    rows = quick("ladder", *LENET, "--batch", "16")["rows"]

    names = [row["name"] for row in rows]
    assert names[0].startswith("baseline")
    assert names[-1] == "+ XLA"
    assert [row["batch"] for row in rows[:3]] == [16, 16, 64]
    assert (rows[0]["share"], rows[0]["kept"]) == (1, True)
    below = {"precision": "float32", "batch": 16}
    for before, row in itertools.pairwise(rows):
        below = {key: before[key] for key in below} if before["kept"] else below
        assert len(below.items() - row.items()) <= 1
    assert all(row["memory_gb"] >= 0 for row in rows)


@pytest.fixture
def measured_steps(monkeypatch):
    """A step takes as many milliseconds as its batch has images, and every second row fails."""
    calls = itertools.count()

    def time_steps(recipe, **how):
        if next(calls) % 2:
            raise Failed("ResourceExhausted: out of memory")
        return [recipe.train.batch / 1000] * 3, [0.001], 0.5

    monkeypatch.setattr(costs, "time_steps", time_steps)
    monkeypatch.setattr(Process, "call", lambda self, function, **arguments: function(**arguments))


def test_a_row_that_fails_is_one_line_and_the_others_go_on(typed, measured_steps):
    code, out, said = typed("precision", *LENET, "--json")

    assert code == 1
    assert [row["name"] for row in json.loads(out)["rows"]] == ["float32", "mixed_float16"]
    assert "failed: mixed_bfloat16: ResourceExhausted: out of memory\n" in said


def test_a_rung_that_fails_or_is_slower_is_not_stood_on(typed, measured_steps):
    _, out, _ = typed("ladder", *LENET, "--batch", "16", "--json")

    rows = json.loads(out)["rows"]
    assert [row["name"] for row in rows] == [
        *("baseline: float32, small batch, a call a step", "+ larger batch"),
        *("+ parsed by batches, in parallel, ahead", "+ many steps a call"),
    ]
    assert [row["kept"] for row in rows] == [True, False, False, False]  # 1,000 images/s each
    assert [(row["precision"], row["batch"], row["feed"]) for row in rows] == [
        *(("float32", 16, "scaled"), ("float32", 64, "scaled"), ("float32", 16, "together"), ("float32", 16, "many"))
    ]


def test_precision(quick):
    measured = quick("precision", *LENET)

    assert [row["name"] for row in measured["rows"]] == ["float32", "mixed_bfloat16", "mixed_float16"]
    assert all(row["update_ms"] > 0 and row["step_ms"] > 0 for row in measured["rows"])


def test_remat_is_measured_in_the_same_batch_and_in_the_largest(typed, measured_steps, monkeypatch):
    def time_steps(recipe, limit_bytes, **how):
        if 1_000 * recipe.train.batch > limit_bytes:
            raise TooLarge("MemoryError: no room")
        return [1.0], [1.0], 0.5

    monkeypatch.setattr(costs, "time_steps", time_steps)

    _, out, said = typed("remat", "--json", *LENET, "--largest", "1000", "--memory", "0.0003")

    rows = {row["name"]: row["batch"] for row in json.loads(out)["rows"]}
    assert rows == {
        "activations held": 64,
        "activations held, largest batch": 250,
        "computed twice": 64,
        "computed twice, largest batch": 250,
    }
    assert "batch 1000 does not fit (MemoryError: no room), trying half of it" in said


def test_what_needs_more_memory_than_it_may_have_is_too_large():
    recipe = resolve({"model": {"name": "lenet_300_100"}, "data": {"size": 64}, "train": {"batch": 2000, "devices": 1}})

    with Process() as process, pytest.raises(TooLarge):
        process.call(costs.time_steps, recipe=recipe, images=2000, seconds=0.1, repeats=1, limit_bytes=4 * 10**7)


def test_grid(quick, here):
    measured = quick("grid", *LENET, "--rate", "0.05", "--rate", "1e30", "--seeds", "2", "--set=train.schedule=constant")

    cells = {(row["batch"], row["learning_rate"]): row for row in measured["rows"]}
    assert set(cells) == {(batch, rate) for batch in (64, 128) for rate in (0.05, 1e30)}
    assert 0 < cells[64, 0.05]["low"] <= cells[64, 0.05]["accuracy"] <= cells[64, 0.05]["high"] <= 100
    assert (cells[64, 1e30]["accuracy"], cells[64, 1e30]["diverged"]) == (None, 2)
    assert list(here.iterdir()) == []


def test_scaling(quick):
    measured = quick("scaling", *LENET, "--devices", "2", "--batch", "40")

    assert [(row["devices"], row["each"]) for row in measured["rows"]] == [(1, 40), (2, 40)]
    assert [row["images_per_s"] * row["epoch_s"] for row in measured["rows"]] == [pytest.approx(1120)] * 2
    assert measured["rows"][0]["speed_up"] == 1
    assert all(0 < row["accuracy"] <= 1 for row in measured["rows"])
    assert "a test of the code" in measured["notes"][0]


def test_a_batch_that_is_never_filled_is_one_line_and_the_others_go_on(typed, monkeypatch):
    epochs = [{"seconds": 1.0, "images": 1120, "accuracy": 50.0}] * 2
    monkeypatch.setattr(learning, "train_all", lambda **given: [epochs])
    monkeypatch.setattr(Process, "call", lambda self, function, **arguments: function(**arguments))
    sizes = ["--devices", "2", "--batch", "40", "--batch", "600"]

    code, out, said = typed("scaling", "--set=data.size=8", *sizes, "--repeats", "1", "--json")

    assert code == 1
    assert [(row["devices"], row["each"]) for row in json.loads(out)["rows"]] == [(1, 40), (2, 40), (1, 600)]
    refused = "a batch of 1,200 is more than the 1,151 training images: take a smaller one"
    assert f"failed: 2 devices, batch 600 each: {refused}\n" in said


def test_thresholds(quick, here):
    settings = ["--set=model.name=conv2", "--set=train.snapshots=0,500it"]

    measured = quick("thresholds", *LENET, *settings, "--quantiles", "60..80:10,99.5")

    (row,) = measured["rows"]
    assert (row["name"], row["masks"]) == ("conv2", 4)
    assert row["weights"] == 3 * 3 * 3 * 64 + 3 * 3 * 64 * 64 + 1024 * 256 + 256 * 256  # predictions are not ranked
    assert 0 < row["low"] <= row["seconds"] <= row["high"]
    assert row["sort_seconds"] > 0
    assert row["bytes_per_weight"] > 4  # the weights themselves
    assert row["written_mb"] > 4 * row["weights"] / 8e6  # a bit each
    assert list(here.iterdir()) == []


TINY = ["--model", "lenet_300_100", "--size", "8", "--images", "128", "--batch", "64", "--epochs", "1", "--repeats", "1"]


def test_fanout(quick, here, monkeypatch):
    def run_here(folder, *arguments):
        with contextlib.chdir(folder), contextlib.redirect_stdout(sys.stderr):
            cli.app(list(arguments), standalone_mode=False)

    monkeypatch.setattr(fanout, "_imp", run_here)
    monkeypatch.setattr(timing, "cores", lambda: 2)

    measured = quick("fanout", *TINY, "--pairs", "2", "--ranks", "1")

    assert [(row["ranks"], row["threads"]) for row in measured["rows"]] == [(1, 1), (1, 2)]
    assert max(row["ratio"] for row in measured["rows"]) == 1
    for row in measured["rows"]:
        assert 0 < row["evaluate_seconds"] < row["other_seconds"] < row["pair_seconds"]
        assert row["low"] <= row["tickets_per_hour"] <= row["high"]
    assert measured["title"].startswith("2 pairs of 1 epoch: lenet_300_100")
    assert list(here.iterdir()) == []


def test_of_a_pair_what_is_not_spent_in_steps_is_not_training(tmp_path):
    made_with, result = tmp_path / "made_with.json", tmp_path / "result.json"
    made_with.write_text(json.dumps({"values": {"train.batch": 100}}))
    result.write_text("{}")
    timings = [{"images_per_second": 1000.0, "seconds": 2.5}, {"images_per_second": 500.0, "seconds": 6.25}]
    rows = [{"step": step, "timing": one} for step, one in zip((20, 50), timings, strict=True)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(made_with, (100, 100))
    os.utime(result, (110, 110))

    assert fanout.pair_times(result) == (100.0, 110.0, pytest.approx(2 + 6), pytest.approx(0.5 + 0.25))


def test_a_setting_is_titled_by_its_processes_and_threads():
    assert fanout._title(1, 1) == "one process, 1 thread"
    assert fanout._title(1, 2) == "one process, 2 threads"
    assert fanout._title(4, 1) == "4 ranks, 1 thread each"


def test_ctrl_c_ends_it_in_one_line(tmp_path):
    running = subprocess.Popen(
        [IMP, "bench", "step"], cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stderr.readline().startswith("measuring mobilenet_v2")
    time.sleep(1)
    os.kill(running.pid, signal.SIGINT)
    out, error = running.communicate(timeout=30)

    assert (running.returncode, out, error.count("\n")) == (130, "", 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["brew"], "brew"),
        (["feed", "--batch", "100", "--images", "50"], "--batch 100 is more than --images 50"),
        (["prepare", "nowhere"], "nowhere is not a folder"),
        (["prepare", "--size", "2"], "--size"),
        (["limits", "--repeats", "0"], "--repeats"),
        (["limits", "--out", "/dev/null/there"], "/dev/null/there cannot take a measurement (Not a directory)"),
        (["ladder", *LENET, "--batch", "65"], "--batch 65 is to be the smaller one"),
        (["ladder", "--recipe", "nowhere.toml"], "there is no recipe nowhere.toml"),
        (["masks", "--set", "train.bacth=3"], "train.batch"),
        (["loader", *LENET, "--images", "10"], "train.batch 64 is more than the 10 images of an epoch"),
        (["profile", *LENET, "--cprofile"], "--cprofile writes a file: say where with --out DIR"),
        (["profile", *LENET, "--out", "/dev/null"], "/dev/null"),
        (["step", "--model", "lennet_300_100"], "did you mean 'lenet_300_100'?"),
        (["step", "--size", "0"], "--size"),
        (["step", "--alpha", "0", "--model", "mobilenet_v2"], "model.alpha"),
        (["step", "--precision", "float8"], "train.precision"),
        (["step", "--batch", "30000"], "--batch 30000 is more than"),
        (["grid", "--records", "nowhere"], "no records in nowhere"),
        *((["grid", "--rate", rate], f"--rate {rate} is no learning rate") for rate in ("-1", "0", "nan", "inf")),
        (["grid", *LENET, "--batch", "5000", "--batch", "4000"], "a batch of 4,000 is more than the 1,151 training images"),
        (["scaling", *LENET, "--batch", "4000"], "a batch of 4,000 is more than the 1,151 training images: take a smaller one"),
        (["scaling", "--set", "data.source=tfds:mnist"], "imp prepare"),
        (["fanout", *TINY, "--pairs", "2", "--ranks", "2"], "--pairs 4"),
        (["fanout", *TINY, "--evaluate", "often"], "often"),
    ],
)
def test_what_cannot_be_measured_is_refused(typed, arguments, words):
    code, out, said = typed(*arguments)

    assert (code, out, said.count("\n")) == (2, "", 1), said
    assert words in said


@pytest.mark.skipif(importlib.util.find_spec("nvtx") is not None, reason="nvtx is installed")
def test_ranges_want_their_package(typed):
    code, _, said = typed("profile", *LENET, "--nvtx")

    assert code == 2
    assert "--nvtx" in said
    assert "pip install nvtx" in said
