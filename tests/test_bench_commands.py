"""Each measurement runs small, says what it is of, and refuses in one line what it cannot measure. No test looks at a time."""

import importlib.util
import itertools
import json
import os
import pstats

import pytest
from helpers import imp, refused

from lottery.bench import apart
from lottery.bench.scaling import bench_scaling
from lottery.progress import Reporter
from lottery.recipe import resolve

LENET = ["--set", "model.name=lenet_300_100", "--set", "data.size=8", "--set", "train.batch=64"]


def quick(folder, name, *options):
    return json.loads(imp("bench", name, "--quick", "--json", *options, cwd=folder).stdout)


def test_limits(tmp_path):
    found = quick(tmp_path, "limits", "--out", "pages")

    assert {row["unit"] for row in found["rows"]} == {"GB/s", "GFLOP/s"}
    assert all(0 < row["low"] <= row["value"] <= row["high"] for row in found["rows"])
    assert {"copy, 1 thread", "float32 product, 1 thread", "bfloat16 product, 1 thread"} <= {
        row["name"] for row in found["rows"]
    }
    assert sorted(path.name for path in (tmp_path / "pages").iterdir()) == [
        *("index.html", "limits.html", "limits.json", "limits.md", "limits.png")
    ]


def test_masks(tmp_path):
    found = quick(tmp_path, "masks", *LENET, "--set", "train.batch=700")

    assert [row["name"] for row in found["rows"]] == [
        "our loop, no mask",
        "our loop, mask in the compiled step",
        "Keras fit, no mask",
        "Keras fit, mask by a callback after the batch",
    ]
    assert [row["mask_share"] is None for row in found["rows"]] == [True, False, True, False]


def test_profile_divides_the_step_among_its_parts(tmp_path):
    found = quick(tmp_path, "profile", *LENET)

    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == ["input", "forward", "backward", "update", "mask", "other", "host"]
    for part in ("input", "forward", "backward", "update", "mask"):
        assert rows[part]["ms_per_step"] > 0
        assert rows[part]["operations"] > 0
    assert rows["mask"]["operations"] == pytest.approx(3, abs=0.5)  # a kernel of each layer
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1)
    assert sum(row["ms_per_step"] for row in rows.values()) == pytest.approx(found["extras"]["traced_step_ms"])
    assert list(tmp_path.iterdir()) == []


def test_a_profile_leaves_its_trace_and_what_python_did(tmp_path):
    done = imp("bench", "profile", "--quick", *LENET, "--out", "pages", "--cprofile", cwd=tmp_path)

    (trace,) = (tmp_path / "pages").glob("profile-trace/plugins/profile/*/trace.json.gz")
    assert len(list(trace.parent.glob("*.xplane.pb"))) == 1
    seen, host = done.stdout.splitlines()[-2:]
    assert seen.startswith("the trace: `tensorboard --logdir pages/profile-trace`")
    assert str(trace.relative_to(tmp_path)) in seen
    assert "`snakeviz pages/profile.prof`" in host
    called = {name for _, _, name in pstats.Stats(str(tmp_path / "pages" / "profile.prof")).stats}
    assert {"advance", "steps", "take"} <= called


@pytest.mark.skipif(importlib.util.find_spec("nvtx") is not None, reason="nvtx is installed")
def test_ranges_want_their_package(tmp_path):
    refused(imp("bench", "profile", *LENET, "--nvtx", cwd=tmp_path, check=False), "--nvtx", "pip install nvtx")


def test_ranges_are_put_around_calls_and_evaluations(tmp_path):
    (tmp_path / "nvtx.py").write_text(
        "import contextlib\n"
        "@contextlib.contextmanager\n"
        "def annotate(name, domain):\n"
        "    with open('ranges', 'a') as file:\n"
        "        print(domain, name, file=file)\n"
        "    yield\n"
    )
    paths = [str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]

    imp("bench", "profile", "--quick", *LENET, "--nvtx", cwd=tmp_path, PYTHONPATH=os.pathsep.join(paths))

    ranges = (tmp_path / "ranges").read_text().splitlines()
    assert set(ranges[:-1]) == {"imp steps"}
    assert ranges[-1] == "imp evaluation"


def test_a_network_that_cannot_be_profiled_as_asked_is_refused(tmp_path):
    conv = ["--set", "model.name=conv2", "--set", "train.xla=on"]

    refused(imp("bench", "profile", "--quick", *conv, cwd=tmp_path, check=False), "XLA cannot compile conv2", said=1)


def test_ladder(tmp_path):
    found = quick(tmp_path, "ladder", *LENET, "--batch", "16")

    names = [row["name"] for row in found["rows"]]
    assert names[0].startswith("baseline")
    assert names[-1] == "+ XLA"
    assert [row["batch"] for row in found["rows"][:3]] == [16, 16, 64]
    assert (found["rows"][0]["share"], found["rows"][0]["kept"]) == (1, True)
    below = {"precision": "float32", "batch": 16}
    for before, row in itertools.pairwise(found["rows"]):
        below = {key: before[key] for key in below} if before["kept"] else below
        assert len(below.items() - row.items()) <= 1
    assert all(row["peak_bytes"] > 0 if "peak_bytes" in row else row["memory_gb"] > 0 for row in found["rows"])


def test_loader(tmp_path):
    found = quick(tmp_path, "loader", *LENET)

    names = [row["name"] for row in found["rows"]]
    assert names == [f"tf.data, {count} worker{'' if count == 1 else 's'}" for count in (0, 2)] + ["stream", "memory"]
    for row in found["rows"]:
        assert 0 <= row["load_s"] < row["epoch_s"]


def test_precision(tmp_path):
    found = quick(tmp_path, "precision", *LENET)

    assert [row["name"] for row in found["rows"]] == ["float32", "mixed_bfloat16", "mixed_float16"]
    assert all(row["update_ms"] > 0 and row["memory_gb"] > 0 for row in found["rows"])


def test_remat_is_measured_in_the_same_batch_and_in_the_largest(tmp_path):
    done = imp("bench", "remat", "--quick", "--json", *LENET, "--largest", "100000", "--memory", "0.6", cwd=tmp_path)

    rows = {row["name"]: row["batch"] for row in json.loads(done.stdout)["rows"]}
    assert rows["activations held"] == rows["computed twice"] == 64
    assert rows["activations held, largest batch"] in (50_000, 25_000, 12_500)
    assert "batch 100000 does not fit" in done.stderr


def test_grid(tmp_path):
    found = quick(
        tmp_path, "grid", *LENET, "--rate", "0.05", "--rate", "1e30", "--seeds", "2", "--set", "train.schedule=constant"
    )

    cells = {(row["batch"], row["learning_rate"]): row for row in found["rows"]}
    assert set(cells) == {(batch, rate) for batch in (64, 128) for rate in (0.05, 1e30)}
    assert 0 < cells[64, 0.05]["low"] <= cells[64, 0.05]["accuracy"] <= cells[64, 0.05]["high"] <= 100
    assert (cells[64, 1e30]["accuracy"], cells[64, 1e30]["diverged"]) == (None, 2)
    assert list(tmp_path.iterdir()) == []


def test_scaling(tmp_path):
    found = quick(tmp_path, "scaling", *LENET, "--devices", "2", "--batch", "40")

    assert [(row["devices"], row["each"]) for row in found["rows"]] == [(1, 40), (2, 40)]
    assert [row["images_per_s"] * row["epoch_s"] for row in found["rows"]] == [pytest.approx(1120)] * 2
    assert found["rows"][0]["speed_up"] == 1
    assert all(0 < row["accuracy"] <= 1 for row in found["rows"])
    assert "a test of the code" in found["notes"][0]


def test_a_batch_that_is_never_filled_is_one_line_and_the_others_go_on(here, monkeypatch, capsys):
    monkeypatch.setattr(apart, "call", lambda function, **given: {"epoch_s": [1.0], "images": 1120, "accuracy": 0.5})

    sheet, failed = bench_scaling(resolve({"data": {"size": 8}}), None, 2, [40, 600], 1, Reporter())

    assert [(row["devices"], row["each"]) for row in sheet.rows] == [(1, 40), (2, 40), (1, 600)]
    assert failed == ["2 devices, batch 600 each"]
    assert (
        f"failed: {failed[0]}: a batch of 1,200 is more than the 1,151 training images: take a smaller one\n"
        in capsys.readouterr().err
    )


def test_thresholds(tmp_path):
    found = quick(
        tmp_path,
        "thresholds",
        *LENET,
        "--set",
        "model.name=conv2",
        "--set",
        "train.snapshots=0,500it",
        "--quantiles",
        "60..80:10,99.5",
    )

    (row,) = found["rows"]
    assert (row["name"], row["masks"]) == ("conv2", 4)
    assert row["weights"] == 3 * 3 * 3 * 64 + 3 * 3 * 64 * 64 + 1024 * 256 + 256 * 256  # predictions are not ranked
    assert 0 < row["low"] <= row["seconds"] <= row["high"]
    assert row["sort_seconds"] > 0
    assert row["bytes_per_weight"] > 4  # the weights themselves
    assert row["written_mb"] > 4 * row["weights"] / 8e6  # a bit each
    assert list(tmp_path.iterdir()) == []


def test_inference(retrained):
    found = quick(retrained, "inference", "--ticket", "q90-step-000017")

    assert [row["name"] for row in found["rows"]] == [
        f"{network}, {kind}, 1 thread" for network in ("dense", "q90-step-000017") for kind in ("float32", "8-bit kernels")
    ]
    assert found["rows"][1]["file_kb"] < found["rows"][0]["file_kb"] / 2
    refused(imp("bench", "inference", "--ticket", "q42", cwd=retrained, check=False), "there is no 'q42'", "q50-step-000000")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ladder", *LENET, "--batch", "65"], "--batch 65 is to be the smaller one"),
        (["ladder", "--recipe", "nowhere.toml"], "there is no recipe nowhere.toml"),
        (["masks", "--set", "train.bacth=3"], "train.batch"),
        (["loader", *LENET, "--images", "10", "--repeats", "1"], "train.batch 64 is more than the 10 images of an epoch"),
        (["limits", "--repeats", "0"], "--repeats"),
        (["limits", "--out", "/dev/null/there"], "/dev/null/there cannot take a measurement (Not a directory)"),
        (["profile", *LENET, "--cprofile"], "--cprofile writes a file: say where with --out DIR"),
        (["profile", *LENET, "--out", "/dev/null"], "/dev/null"),
        (["grid", "--records", "nowhere"], "no records in nowhere"),
        *(
            (["grid", "--rate", "0.1", "--rate", rate], f"--rate {rate} is no learning rate")
            for rate in ("-1", "0", "nan", "inf")
        ),
        (["grid", *LENET, "--batch", "5000", "--batch", "4000"], "a batch of 4,000 is more than the 1,151 training images"),
        (["scaling", *LENET, "--batch", "4000"], "a batch of 4,000 is more than the 1,151 training images: take a smaller one"),
        (["scaling", "--set", "data.source=tfds:mnist"], "imp prepare"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path, arguments, words):
    refused(imp("bench", *arguments, cwd=tmp_path, check=False), words)
