"""`imp verify RECORDS` as a user types it: every damaged file is named, and nothing is changed."""

import json
import shutil
from pathlib import Path

import pytest
from helpers import file_bytes, flip, imp, imp_here


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with the digits in `set`."""
    folder = tmp_path_factory.mktemp("prepared")
    imp_here("prepare", "digits", "--size", "8", "--out", "set", cwd=folder)
    return folder


@pytest.fixture
def work(prepared, tmp_path):
    shutil.copytree(prepared / "set", tmp_path / "set")
    return tmp_path


def test_good_records_are_verified(prepared):
    before = file_bytes(prepared / "set")

    done = imp("verify", "set", cwd=prepared)

    assert (done.stdout, done.stderr) == ("set: 4 files checked, 0 damaged\n", "")
    checks = json.loads(imp_here("verify", "set", "--json", cwd=prepared).stdout)
    assert [check["path"] for check in checks] == [
        f"set/{name}" for name in ("manifest.json", "train-00000.tfrecord", "validation-00000.tfrecord", "test-00000.tfrecord")
    ]
    assert all(check["problem"] is None for check in checks)
    assert file_bytes(prepared / "set") == before


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def lengthen(path):
    path.write_bytes(path.read_bytes() + b"x")


def copy(path):
    shutil.copy(path, path.with_name("train-00009.tfrecord"))


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("train-00000.tfrecord", flip, "set/train-00000.tfrecord is damaged (its sha256 differs)"),
        ("test-00000.tfrecord", lengthen, "set/test-00000.tfrecord is damaged"),
        ("train-00000.tfrecord", Path.unlink, "set/train-00000.tfrecord is missing"),
        ("train-00000.tfrecord", copy, "set/train-00009.tfrecord is not in the manifest: remove it"),
        ("manifest.json", halve, "set/manifest.json is damaged"),
        ("manifest.json", Path.unlink, "no records in set"),
    ],
)
def test_each_damage_is_named(work, name, damage, words):
    damage(work / "set" / name)

    done = imp_here("verify", "set", cwd=work, check=False)

    assert done.returncode == 1
    assert words in done.stdout
    assert done.stdout.count("\n") == 2
    assert done.stdout.endswith("checked, 1 damaged\n")
    checks = json.loads(imp_here("verify", "set", "--json", cwd=work, check=False).stdout)
    assert [words in check["problem"] for check in checks if check["problem"]] == [True]


def test_the_remedy_for_a_damaged_shard_works(work, prepared):
    flip(work / "set/train-00000.tfrecord")
    said = imp_here("verify", "set", cwd=work, check=False).stdout
    assert "remove it and run `imp prepare --records set`" in said

    (work / "set/train-00000.tfrecord").unlink()
    imp_here("prepare", "--records", "set", cwd=work)

    assert file_bytes(work / "set") == file_bytes(prepared / "set")
    imp_here("verify", "set", cwd=work)
