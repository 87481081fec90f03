"""Each measurement runs small, says what it is of, and refuses in one line what it cannot measure. No test looks at a time."""

import json

import pytest
from helpers import imp, refused

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
        *("limits.html", "limits.json", "limits.md", "limits.png")
    ]


def test_masks(tmp_path):
    found = quick(tmp_path, "masks", *LENET)

    assert [row["name"] for row in found["rows"]] == [
        "our loop, no mask",
        "our loop, mask in the compiled step",
        "Keras fit, no mask",
        "Keras fit, mask by a callback after the batch",
    ]
    assert [row["mask_share"] is None for row in found["rows"]] == [True, False, True, False]


def test_ladder(tmp_path):
    found = quick(tmp_path, "ladder", *LENET, "--batch", "16")

    names = [row["name"] for row in found["rows"]]
    assert names[0].startswith("baseline")
    assert names[-1] == "+ XLA"
    assert [row["batch"] for row in found["rows"]] == [16, 16, *[64] * 6]
    assert found["rows"][0]["share"] == 1
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
    done = imp("bench", "remat", "--quick", "--json", *LENET, "--largest", "50000", "--memory", "0.4", cwd=tmp_path)

    rows = {row["name"]: row["batch"] for row in json.loads(done.stdout)["rows"]}
    assert rows["activations held"] == rows["computed twice"] == 64
    assert rows["activations held, largest batch"] in (25_000, 12_500)
    assert "batch 50000 does not fit" in done.stderr


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
    assert found["rows"][0]["speed_up"] == 1
    assert all(0 < row["accuracy"] <= 1 for row in found["rows"])
    assert "a test of the code" in found["notes"][0]


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
        (["loader", *LENET, "--images", "10", "--repeats", "1"], "--images 10 is less than train.batch 64"),
        (["limits", "--repeats", "0"], "--repeats"),
        (["grid", "--records", "nowhere"], "no records in nowhere"),
        (["scaling", "--set", "data.source=tfds:mnist"], "imp prepare"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path, arguments, words):
    refused(imp("bench", *arguments, cwd=tmp_path, check=False), words)
