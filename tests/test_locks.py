"""Locks between processes: one writer, named, and gone with its process."""

import contextlib
import subprocess
import sys
import threading

import pytest

from lottery.base import locks

HOLD = """
import sys
from pathlib import Path
from lottery.base import locks

with locks.writing(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
WRITE = """
import sys
from pathlib import Path
from lottery.base import locks

print("writing", flush=True)
while True:
    try:
        with locks.writing(Path(sys.argv[1])):
            pass
    except locks.Busy:
        pass
"""
LOOK = """
import sys
from pathlib import Path
from lottery.base import locks

print("looking", flush=True)
while True:
    locks.holder(Path(sys.argv[1]))
"""


@contextlib.contextmanager
def another_process(source, folder):
    """Another process that runs `source` and has said its first line; killed in the end."""
    process = subprocess.Popen([sys.executable, "-c", source, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_process_is_refused_at_once_told_who_is_writing_and_removes_nothing_until_the_lock_is_free(tmp_path):
    folder = tmp_path / "q90"
    with another_process(HOLD, folder) as other:
        (folder / ".half.h5.1.tmp").touch()
        with pytest.raises(locks.Busy, match=f"{folder} is being written by process {other.pid} on "), locks.writing(folder):
            pass
        assert f"process {other.pid} on " in locks.holder(folder).who
        assert (folder / ".half.h5.1.tmp").exists()
        with locks.writing(tmp_path / "q95"), locks.writing(tmp_path):
            assert locks.holder(tmp_path / "q95") is not None
        (folder / ".half.h5.1.tmp").unlink()
        other.communicate()
        assert other.returncode == 0
    assert list(tmp_path.iterdir()) == []
    assert locks.holder(folder) is None
    with locks.writing(folder), pytest.raises(locks.Busy), locks.writing(folder):  # the same process is no exception
        pass


def test_a_killed_holder_leaves_the_lock_free(tmp_path):
    with another_process(HOLD, tmp_path) as other:
        other.kill()
        other.wait()
        assert locks.holder(tmp_path) is None
        with locks.writing(tmp_path):
            assert f"process {other.pid} on " not in locks.holder(tmp_path).who


def test_a_lock_that_says_nothing_readable_is_a_lock_all_the_same(tmp_path):
    with locks.writing(tmp_path):
        (tmp_path / ".lock").write_bytes(b"\xff\xfe process\nstep \xff")

        assert locks.holder(tmp_path).who.endswith(" process")
        with pytest.raises(locks.Busy, match="is being written by"), locks.writing(tmp_path):
            pass


def test_what_a_killed_writer_left_half_written_is_cleared_and_nothing_that_others_keep(tmp_path):
    for name in (".final.h5.123.tmp", ".result.json.9.tmp", "final.h5", "notes.tmp", ".hidden", ".report.tmp"):
        (tmp_path / name).touch()
    (tmp_path / ".bash_history-12345.tmp").touch()
    (tmp_path / ".cache.1.tmp").mkdir()

    with locks.writing(tmp_path):
        pass

    stayed = [".bash_history-12345.tmp", ".cache.1.tmp", ".hidden", ".report.tmp", "final.h5", "notes.tmp"]
    assert sorted(path.name for path in tmp_path.iterdir()) == stayed


def test_a_patient_writer_waits_for_the_other(tmp_path):
    with contextlib.ExitStack() as held:
        held.enter_context(locks.writing(tmp_path))
        threading.Timer(0.3, held.pop_all().close).start()
        with locks.writing(tmp_path, patience=10):
            assert locks.holder(tmp_path) is not None


def test_a_folder_made_for_nothing_goes_again_with_its_parents_and_one_that_was_there_or_holds_something_stays(tmp_path):
    folder = tmp_path / "replicate-1" / "train"
    with pytest.raises(ZeroDivisionError), locks.writing(folder):
        raise ZeroDivisionError
    assert locks.holder(folder) is None
    assert list(tmp_path.iterdir()) == []

    with locks.writing(folder):
        (folder / "result.json").touch()
    assert [path.name for path in folder.iterdir()] == ["result.json"]
    (tmp_path / "empty").mkdir()
    with locks.writing(tmp_path / "empty"):
        pass
    assert (tmp_path / "empty").is_dir()


def test_looking_who_holds_a_lock_never_makes_a_writer_think_it_is_taken(tmp_path):
    (tmp_path / "train").mkdir()
    with another_process(LOOK, tmp_path / "train"):
        for _ in range(300):
            with locks.writing(tmp_path / "train"):
                pass


FULL_DISK = """
import resource
from pathlib import Path
from lottery.base import locks

resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
try:
    with locks.writing(Path("train")):
        print("written")
except OSError:
    print("refused")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
with locks.writing(Path("train")):
    print("held")
"""


def test_a_lock_that_a_full_disk_prevented_can_be_taken_by_the_same_process_later(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL_DISK], cwd=tmp_path, capture_output=True, text=True)

    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "held"), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_writers_who_remove_the_folder_behind_them_do_not_trip_each_other(tmp_path):
    folder = tmp_path / "made" / "for nothing"
    with another_process(WRITE, folder) as other:
        held = 0
        while held < 300:
            with contextlib.suppress(locks.Busy), locks.writing(folder):
                held += 1

        assert other.poll() is None
