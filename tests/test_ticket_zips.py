"""Tickets in a .zip: small, read by NumPy alone, listed and trained anew."""

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from helpers import IMP, clean_environment, contents, imp_here, refused

from lottery.base import files
from lottery.base.errors import InputError
from lottery.rundir import store
from lottery.rundir.run import open_run
from lottery.rundir.tickets import FILES, UNZIPPED, open_ticket, unzipped

pytestmark = pytest.mark.usefixtures("tensorflow")

TICKET = "q90-step-000000"
# The command line, killed as it writes its third file.
KILLED = """
import os
from lottery import cli
from lottery.base import files
write, left = files.write_bytes, iter("12")
files.write_bytes = lambda *file: write(*file) if next(left, None) else os._exit(9)
cli.main()
"""


@pytest.fixture(scope="module")
def zipped(retrained, tmp_path_factory):
    path = tmp_path_factory.mktemp("zoo") / "lenet.zip"
    imp_here("export", "--ticket", TICKET, "--to", "zip", "--out", str(path), cwd=retrained)
    return path


def test_it_is_small_and_holds_the_ticket_and_its_start_as_far_as_the_mask_keeps_it(zipped, retrained):
    place = retrained / "runs/digits/replicate-1"
    final, start = (
        store.load_state(place / f"oneshot/{TICKET}/ticket/final.h5"),
        store.load_state(place / "train/snapshots/step-000000.h5"),
    )

    with unzipped(zipped) as folder:
        ticket = open_ticket(folder)
        weights, known, mask = ticket.state.weights, ticket.start.weights, ticket.mask

    assert zipped.stat().st_size < 120_000  # 8,760 of 87,600 weights, twice, and the mask
    for path, array in final.weights.items():
        kept = mask.get(path, np.ones(array.shape, bool))
        assert weights[path].tobytes() == array.tobytes()
        assert known[path].dtype == array.dtype
        np.testing.assert_array_equal(known[path], np.where(kept, start.weights[path], np.nan))


def test_the_same_ticket_gives_the_same_bytes(zipped, retrained, tmp_path):
    imp_here("export", "--ticket", TICKET, "--to", "zip", "--out", str(tmp_path / "again.zip"), cwd=retrained)

    assert (tmp_path / "again.zip").read_bytes() == zipped.read_bytes()


def test_it_is_trained_anew_and_what_it_lacks_of_the_start_is_drawn(zipped, retrained, tmp_path):
    said = imp_here("import", str(zipped), cwd=tmp_path).stdout
    assert said.startswith(f"tickets/lenet is {zipped}, unzipped. It lacks the pruned weights of the start: dense")
    shutil.copytree(retrained / "data", tmp_path / "data")

    told = imp_here("run", "--run", "runs/lenet", "--ranks", "1", cwd=tmp_path).stderr

    assert "lacks 78,840 weights (they are NaN): they are drawn by seed" in told
    run, own = open_run(tmp_path / "runs/lenet").replicate(1), open_run(retrained / "runs/digits").replicate(1)
    again, ticket = (
        store.load_state(one / "ticket/final.h5")
        for one in (run.folder / f"imported/{TICKET}", own.folder / f"oneshot/{TICKET}")
    )
    assert {path: array.tobytes() for path, array in again.weights.items()} == {
        path: array.tobytes() for path, array in ticket.weights.items()
    }
    start = store.load_state(run.folder / "train/snapshots/step-000000.h5").weights["fc1/kernel"]
    assert np.isfinite(start).all()
    assert (
        0.5 < np.std(start) / np.std(store.load_state(own.folder / "train/snapshots/step-000000.h5").weights["fc1/kernel"]) < 2
    )


def test_who_opens_a_zip_or_a_folder_of_zips_as_a_folder_is_told_what_to_do(zipped, tmp_path):
    with pytest.raises(InputError, match=f"unzip it first, `python -m zipfile -e {zipped} FOLDER`"):
        open_ticket(zipped)
    shutil.copy(zipped, tmp_path)
    refused(imp_here("import", ".", cwd=tmp_path, check=False), f"name one of those in it, such as {tmp_path}/lenet.zip")


def test_tickets_in_zips_are_listed_beside_folders(zipped, retrained, tmp_path):
    shutil.copy(zipped, tmp_path)
    imp_here("export", "--ticket", TICKET, "--to", "folder", "--out", str(tmp_path / "whole"), cwd=retrained)

    told = imp_here("tickets", ".", cwd=tmp_path).stdout

    assert "lenet.zip" in told
    assert "whole" in told
    assert "10.00%" in imp_here("tickets", "lenet.zip", cwd=tmp_path).stdout


def test_what_is_found_in_other_zips_is_no_ticket_but_a_zip_that_is_named_is_checked(zipped, tmp_path):
    shutil.copy(zipped, tmp_path)
    (tmp_path / "cut.zip").write_bytes(b"PK")
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.writestr("photos/result.json", b"")

    [row] = json.loads(imp_here("tickets", ".", "--json", cwd=tmp_path).stdout)

    assert row["folder"] == "lenet.zip"
    refused(
        imp_here("tickets", "photos.zip", cwd=tmp_path, check=False), "photos.zip is not a ticket: it has the file 'photos/"
    )


def test_its_size_is_that_of_the_file(retrained, tmp_path):
    line = ["export", "--ticket", TICKET, "--to", "zip", "--out", str(tmp_path / "lenet.zip"), "--json"]

    told = json.loads(imp_here(*line, cwd=retrained).stdout)

    assert told["bytes"] == (tmp_path / "lenet.zip").stat().st_size


def test_a_ticket_is_unzipped_once_and_another_of_its_name_is_not_written_over_it(zipped, retrained, tmp_path):
    for _ in range(2):
        imp_here("import", str(zipped), cwd=tmp_path)
    before = contents(tmp_path / "tickets")
    other = tmp_path / "other/lenet.zip"
    imp_here("export", "--ticket", "q50-step-000000", "--to", "zip", "--out", str(other), cwd=retrained)

    refused(imp_here("import", str(other), cwd=tmp_path, check=False), "there is another ticket in tickets/lenet")

    assert contents(tmp_path / "tickets") == before


def test_what_has_no_start_is_refused_and_leaves_nothing(retrained, tmp_path):
    line = ["export", "--ticket", "dense", "--to", "zip", "--out", str(tmp_path / "dense.zip")]
    imp_here(*line, cwd=retrained)

    refused(imp_here("import", "dense.zip", cwd=tmp_path, check=False), "imp: dense.zip has no start.safetensors, as it is not")

    assert os.listdir(tmp_path) == ["dense.zip"]


def test_an_import_that_was_killed_is_repeated(zipped, tmp_path):
    line = [sys.executable, "-c", KILLED, "import", str(zipped)]
    assert subprocess.run(line, cwd=tmp_path, env=clean_environment()).returncode == 9
    assert [path.name.startswith(UNZIPPED) for path in (tmp_path / "tickets").iterdir() if path.is_dir()] == [True]

    imp_here("import", str(zipped), cwd=tmp_path)

    assert os.listdir(tmp_path / "tickets") == ["lenet"]
    assert {*os.listdir(tmp_path / "tickets/lenet")} == {*FILES}


def test_two_imports_at_once_are_one(zipped, tmp_path):
    both = [subprocess.Popen([IMP, "import", str(zipped)], cwd=tmp_path, env=clean_environment()) for _ in range(2)]

    assert [process.wait() for process in both] == [0, 0]
    assert os.listdir(tmp_path / "tickets") == ["lenet"]
    assert open_ticket(tmp_path / "tickets/lenet")


def test_a_full_disk_is_no_fault_of_the_zip(zipped, tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(files, "write_bytes", full)

    for command in ("tickets", "import"):
        done = imp_here(command, str(zipped), cwd=tmp_path, check=False)
        assert "No space left on device; mend that" in done.stderr
        assert "cannot be unzipped" not in done.stderr
    assert not (tmp_path / "tickets").exists()


def rezipped(content, compression=zipfile.ZIP_DEFLATED, without=(), wrong=""):
    """The .zip `content` compressed anew, `without` some files, and without the first byte of the `wrong` one."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(written, "w", compression) as new:
        for name in old.namelist():
            if name not in without:
                new.writestr(name, old.read(name)[name == wrong :])
    return written.getvalue()


def with_file(name):
    def made(content):
        buffer = io.BytesIO(content)
        with zipfile.ZipFile(buffer, "a") as archive:
            archive.writestr(name, b"")
        return buffer.getvalue()

    return made


BAD = {
    "cut": (lambda content: content[:5000], "bad.zip cannot be unzipped"),
    "changed": (lambda content: content[:2000] + bytes([content[2000] ^ 1]) + content[2001:], "bad.zip cannot be unzipped"),
    "path": (with_file("../evil.py"), "bad.zip is not a ticket: it has the file '../evil.py'"),
    "name": (lambda content: with_file("\xe9")(content).replace(b"\xc3\xa9", b"\xe9\xe9"), "bad.zip cannot be unzipped"),
    "lzma": (
        lambda content: rezipped(content, zipfile.ZIP_LZMA),
        "bad.zip cannot be unzipped: README.md is neither stored nor",
    ),
    "bzip2": (
        lambda content: rezipped(content, zipfile.ZIP_BZIP2),
        "bad.zip cannot be unzipped: README.md is neither stored nor",
    ),
    "card alone": (lambda content: rezipped(content, without={*FILES} - {"README.md"}), "imp: bad.zip is not a ticket folder"),
    "no mask": (
        lambda content: rezipped(content, without={"mask.safetensors"}),
        "imp: bad.zip/mask.safetensors is missing or damaged",
    ),
    "wrong": (
        lambda content: rezipped(content, wrong="start.safetensors"),
        "imp: bad.zip/start.safetensors is missing or damaged",
    ),
    "empty": (lambda content: rezipped(content, without=FILES), "imp: bad.zip is not a ticket folder"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_damaged_or_strange_zip_is_one_line_and_leaves_nothing(kind, zipped, tmp_path):
    harm, words = BAD[kind]
    (tmp_path / "bad.zip").write_bytes(harm(zipped.read_bytes()))

    for command in ("tickets", "import"):
        refused(imp_here(command, "bad.zip", cwd=tmp_path, check=False), words)

    assert os.listdir(tmp_path) == ["bad.zip"]
    assert not (tmp_path.parent / "evil.py").exists()
