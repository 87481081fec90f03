"""Ticket folders: what `imp export --to folder` writes, others read and `imp tickets` lists, and masks in files."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers import ROOT, assert_same, clean_environment, file_bytes, forge, imp_here, imp_light, refused, settings

from lottery.base import files, locks
from lottery.base.errors import InputError
from lottery.base.progress import Reporter
from lottery.experiment import reading
from lottery.experiment.rule import Rule
from lottery.results.card import card
from lottery.results.reader import open_results, ticket_model
from lottery.rundir import store, tickets
from lottery.rundir.run import open_run
from lottery.rundir.tickets import MASK, RECIPE, RESULT, START, VALUES, open_ticket
from lottery.share.export import export
from lottery.stages import scoring

pytestmark = pytest.mark.usefixtures("tensorflow")

TICKET = "q90-step-000000"
# As if no more than NumPy and safetensors were installed.
STRANGER = """
import sys
for name in ("lottery", "data_prep", "tensorflow", "keras", "h5py", "pydantic"):
    sys.modules[name] = None
exec(open("card.py").read())
np.savez("read.npz", **{f"weights/{path}": array for path, array in weights.items()}, **mask)
"""


@pytest.fixture
def folder(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "lenet")


def test_a_folder_holds_the_ticket_its_start_and_its_mask_bit_for_bit(exported, retrained):
    place, ticket = retrained / "runs/digits/replicate-1", open_ticket(exported)

    final, start = (
        store.load_state(place / f"oneshot/{TICKET}/ticket/final.h5"),
        store.load_state(place / "train/snapshots/step-000000.h5"),
    )
    assert_same(ticket.state.weights, final.weights)
    assert_same(ticket.state.statistics, final.statistics)
    assert_same(ticket.start.weights, start.weights)
    assert_same(ticket.mask, store.load_mask(place / "oneshot/masks/q90.h5"))
    assert ticket.recipe == open_run(retrained / "runs/digits").recipe
    assert (ticket.record.result.mask, ticket.record.standing.verdict) == ("q90", "undecided")


def test_the_same_ticket_gives_the_same_bytes_and_replaces_itself(exported, folder, retrained):
    before = {path.name: path.read_bytes() for path in exported.iterdir()}
    (folder / VALUES).write_bytes(b"")

    imp_here("export", "--ticket", TICKET, "--to", "folder", "--license", "mit", "--out", str(folder), cwd=retrained)

    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_stranger_reads_it_by_the_code_on_its_card(exported, folder):
    code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[1]
    (folder / "card.py").write_text(code)

    done = subprocess.run([sys.executable, "-c", STRANGER], cwd=folder, env=clean_environment(), capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    ticket = open_ticket(exported)
    with np.load(folder / "read.npz") as arrays:
        assert_same(dict(arrays), {f"weights/{path}": array for path, array in ticket.state.weights.items()} | ticket.mask)


def test_a_folder_becomes_a_keras_model(exported, retrained):
    images, _ = open_results(retrained / "runs/digits").images("test")

    outputs = np.asarray(ticket_model(exported)(images))

    expected = open_results(retrained / "runs/digits").network(TICKET).model()(images)
    np.testing.assert_array_equal(outputs, expected)


def test_the_python_of_the_page_reads_a_folder_and_an_mnn_file(exported, retrained, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    of_mnn, of_folder, of_zip = re.findall(r"```python\n(.*?)```", (ROOT / "docs/tickets.md").read_text(), re.DOTALL)

    found = {}
    imp_here("export", "--ticket", TICKET, "--to", "zip", "--out", str(tmp_path / "digits-q90.zip"), cwd=retrained)
    exec(of_zip, found)
    start, mask = open_ticket(exported).start.weights, open_ticket(exported).mask
    expected = {path: np.where(mask[path], array, 0) if path in mask else array for path, array in start.items()}
    assert_same(found["ticket"], {f"weights/{path}": array for path, array in expected.items()})

    exec(of_folder.replace("tickets/digits-q90", str(exported)), {})
    pytest.importorskip("MNN")
    out = str(tmp_path / "q90-step-000030-ticket.mnn")
    imp_here("export", "--ticket", TICKET, "--to", "mnn", "--out", out, cwd=retrained)
    found = {}
    exec(of_mnn.replace("32, 32", "8, 8"), found)

    expected = np.asarray(ticket_model(exported)(found["image"]))[0]
    np.testing.assert_allclose(found["logits"], expected, rtol=1e-4, atol=1e-5)


def test_the_card_has_what_model_hubs_read(exported):
    head = yaml.safe_load((exported / "README.md").read_text().split("---\n")[1])

    assert (head["license"], head["pipeline_tag"], head["datasets"]) == ("mit", "image-classification", ["digits"])
    [model] = head["model-index"]
    values = {row["dataset"]["split"]: row["metrics"][0]["value"] for row in model["results"]}
    final = open_ticket(exported).record.result.final
    assert values == {"validation": round(final.validation_accuracy, 6), "test": round(final.test_accuracy, 6)}


def test_controls_and_the_dense_network_have_no_start(retrained, tmp_path):
    for name, variant in ((TICKET, "reinit"), ("dense", "ticket")):
        out = tmp_path / variant
        imp_here("export", "--ticket", name, "--variant", variant, "--to", "folder", "--out", str(out), cwd=retrained)

        assert open_ticket(out).start is None
        refused(imp_here("import", str(out), cwd=tmp_path, check=False), "has no start.safetensors")


def test_a_folder_of_something_else_is_not_written_into(retrained, tmp_path):
    (tmp_path / "mine.txt").touch()

    done = imp_here("export", "--ticket", TICKET, "--to", "folder", "--out", str(tmp_path), cwd=retrained, check=False)

    refused(done, "is there already, and is not a ticket folder")

    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(("writes", "left"), [(0, "nothing"), (2, "temporary"), (4, "nothing"), (5, "temporary")])
def test_an_export_that_ended_at_any_write_is_repeated(writes, left, exported, retrained, tmp_path, monkeypatch):
    """With a temporary file left as by SIGKILL, or nothing, as where the disk was full."""
    run, done, replace = open_run(retrained / "runs/digits"), [], os.replace

    def failing(source, target):
        if len(done) == writes:
            if left == "temporary":
                shutil.copy(source, Path(source).with_name(f".{Path(target).name}.4000000.tmp"))
            raise OSError(28, "No space left on device", str(target))
        done.append(replace(source, target))

    write = partial(export, run, Reporter(quiet=True), TICKET, "folder", tmp_path / "lenet", license="mit")
    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="No space"):
        write()
    assert len(done) == writes
    monkeypatch.undo()
    write()

    assert file_bytes(tmp_path / "lenet") == file_bytes(exported)


def test_an_export_waits_for_nobody_and_is_told_who_writes_there(retrained, tmp_path):
    with locks.writing(tmp_path / "lenet"), pytest.raises(locks.Busy, match=f"process {os.getpid()} "):
        export(open_run(retrained / "runs/digits"), Reporter(quiet=True), TICKET, "folder", tmp_path / "lenet")


@pytest.mark.parametrize(
    ("name", "harm"),
    [(VALUES, "cut"), (VALUES, "remove"), (START, "flip"), (MASK, "remove"), (RECIPE, "flip"), (RESULT, "cut")],
)
def test_a_damaged_folder_is_one_line_and_the_others_are_listed(name, harm, exported, folder, tmp_path):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    {
        "flip": lambda: (folder / name).write_bytes(content),
        "cut": lambda: (folder / name).write_bytes(content[:-1]),
        "remove": (folder / name).unlink,
    }[harm]()
    shutil.copytree(exported, tmp_path / "whole")

    done = imp_here("tickets", ".", cwd=tmp_path, check=False)

    if (name, harm) == (VALUES, "remove"):  # without its values a folder is no ticket; asked for by name it says so
        done = imp_here("tickets", "whole", "lenet", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("imp: lenet")
    assert done.stderr.count("\n") == 1
    assert "whole" in done.stdout


def huge_header():
    return struct.pack("<Q", 2**60) + b"{}"


def test_hostile_files_are_one_line_though_their_checksums_are_right(folder):
    whole = (folder / VALUES).read_bytes()
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}}).encode()
    lying = struct.pack("<Q", len(header)) + header + b"\0" * 4
    for content in (huge_header(), b"", b"\x80\x04K\x01.", lying, whole[:-4]):
        forge(folder, VALUES, content)
        with pytest.raises(InputError, match=r"ticket\.safetensors is not a safetensors file"):
            open_ticket(folder).state  # noqa: B018

    forge(folder, VALUES, tickets.named(**{"../weights": {"fc1/kernel": np.zeros(1)}}))
    with pytest.raises(InputError, match=r"'../weights/fc1/kernel' is neither"):
        open_ticket(folder).state  # noqa: B018


def test_a_mask_of_another_network_is_one_line(folder):
    for bits in ({"../x": np.ones(8, bool)}, {"fc1/kernel": np.ones(9, bool)}, {}):
        forge(folder, VALUES, (folder / VALUES).read_bytes())
        forge(folder, MASK, tickets.packed(bits))
        with pytest.raises(InputError, match=r"mask.safetensors(: '.*' is not the mask of| holds no mask)|'mask/"):
            open_ticket(folder).mask  # noqa: B018


@pytest.mark.parametrize("changes", [{"files": {"../../x": "0"}}, {"format": 2}, {"result": {}}])
def test_a_forged_record_is_one_line(changes, folder):
    files.write_json(folder / RESULT, files.read_json(folder / RESULT) | changes)

    with pytest.raises(InputError, match=f"{RESULT} is not that of a ticket"):
        open_ticket(folder)


def test_what_is_no_ticket_folder_is_one_line(tmp_path):
    refused(imp_here("tickets", "nowhere", cwd=tmp_path, check=False), "there is no folder nowhere")
    refused(imp_here("tickets", ".", cwd=tmp_path, check=False), "is not a ticket folder")
    refused(imp_here("import", "nowhere", cwd=tmp_path, check=False), "nowhere is not a ticket folder")


@pytest.mark.parametrize("imp", [imp_here, imp_light])
def test_tickets_are_listed_with_their_verdicts(imp, exported):
    [row] = json.loads(imp("tickets", ".", "--json", cwd=exported.parent).stdout)

    assert (row["network"], row["model"], row["verdict"], row["license"]) == (
        *(f"digits oneshot/{TICKET}", "lenet_300_100", "undecided", "mit"),
    )
    assert row["density"] == pytest.approx(0.1, abs=1e-4)


def test_what_a_stranger_has_written_does_not_steer_the_terminal(folder, tmp_path):
    record = files.read_json(folder / RESULT)
    files.write_json(folder / RESULT, record | {"license": "\x1b[2Jmit", "network": "one\nanother"})

    shown = imp_here("tickets", "lenet", cwd=tmp_path).stdout

    assert r"\x1b[2Jmit" in shown
    assert r"one\nanother" in shown


def with_mask(work, path, quantile, check=True):
    """The masks of a family whose mask is in a file, cut in a run."""
    family = settings(*(f"families.given.{value}" for value in (f"mask={path}", f"quantiles={quantile}", "controls=[]")))
    return imp_here("thresholds", *family, "--family", "given", cwd=work, check=check)


@pytest.mark.parametrize("kind", ["folder", "npz"])
def test_a_mask_in_a_file_is_cut_bit_for_bit(kind, exported, retrained, work, tmp_path):
    path = exported / MASK
    if kind == "npz":
        path = tmp_path / "ticket.npz"
        imp_here("export", "--ticket", TICKET, "--to", "npz", "--out", str(path), cwd=retrained)

    with_mask(work, path, "90")

    cut = store.load_mask(work / "runs/digits/replicate-1/given/masks/q90.h5")
    assert_same(cut, open_ticket(exported).mask)


def test_a_mask_in_a_file_that_does_not_suit_is_one_line(exported, work, folder):
    (folder / MASK).write_bytes(tickets.packed({"fc1/kernel": np.ones((192, 300), bool)}))
    for path, quantile, words in (
        (exported / MASK, "80", "is that of quantile 90: write '90'"),
        ("nowhere.safetensors", "90", "there is no file nowhere.safetensors"),
        (exported / RECIPE, "90", "weights are read from"),
        (exported / VALUES, "90", "is not the mask of a variable"),
        (folder / MASK, "90", "has none of fc2/kernel"),
    ):
        refused(with_mask(work, path, quantile, check=False), words)


@pytest.mark.parametrize("more", [{"criterion": "random"}, {"rounds": 2}])
def test_a_mask_in_a_file_needs_no_criterion(more):
    table = {"mask": "mask.safetensors", **({} if "rounds" in more else {"quantiles": "90"}), **more}
    with pytest.raises(InputError, match="mask is a file: leave criterion"):
        reading.resolve({"families": {"given": table}})


@pytest.mark.parametrize(
    ("pruned", "of", "quantile"), [(90, 100, "90"), (0, 7, "0"), (6, 7, "100"), (1, 3, "50"), (123, 8191, "1.5")]
)
def test_the_shortest_quantile_of_a_mask_is_found(pruned, of, quantile):
    found = scoring.quantile_of({"kernel": np.arange(of) >= pruned})

    assert str(found) == quantile
    assert scoring.ranking.pruned_count(found, of) == pruned


CHANGING = {"scored_at": "0", "criterion": "random"}


@pytest.mark.parametrize(
    ("family", "variant", "how"),
    [
        ({"rounds": 2}, "ticket", "by magnitude, in rounds, to 10.00%"),
        ({"quantiles": "90"}, "ticket", "rewound to step 0 of 90, and trained from there."),
        ({"criterion": "snip", "scored_at": "0"}, "ticket", "by snip, scored before training, in one shot, to 10.00%"),
        ({"scored_at": "2it"}, "ticket", "by magnitude, scored at 2it, in one shot, to 10.00%"),
        ({"updates": "gmp"}, "ticket", "from step 0 of 90, at first with all weights; the mask is the last one."),
        ({"updates": "rigl", **CHANGING}, "ticket", "by RigL, while the ticket trained, to 10.00%"),
        ({"updates": "set", **CHANGING}, "ticket", "at first under a random mask; the mask is the last one."),
        ({"updates": "gmp"}, "rewound", "from step 0 of 90 under the last mask. It is the control `rewound`."),
        ({"units": "channel"}, "ticket", "by magnitude, in whole channels, in one shot, to 10.00%"),
        ({"units": "4x1"}, "ticket", "by magnitude, in whole 4x1 blocks, in one shot, to 10.00%"),
        ({"units": "2:4", "quantiles": "50"}, "ticket", "with 2 of each 4 weights kept, in one shot, to 10.00%"),
    ],
)
def test_the_card_says_how_the_mask_was_found(family, variant, how, exported):
    ticket = open_ticket(exported)
    table = {"controls": [], **({} if "rounds" in family else {"quantiles": "90"}), **family}
    record = ticket.record.model_copy(
        update={"result": ticket.record.result.model_copy(update={"variant": variant, "step": 90})}
    )

    text = card(record, reading.resolve({"families": {"oneshot": table}}), Rule(0.2))

    assert how in text
    assert ("rewound to" in text) == (family.keys() <= {"rounds", "quantiles", "units"})


def test_a_ticket_of_another_task_becomes_no_keras_model(folder):
    recipe = open_ticket(str(folder)).recipe.model_copy(update={"task": "theirs:Task"})
    forge(folder, RECIPE, reading.sealed(recipe).encode())

    with pytest.raises(InputError, match="has no classifier, but task = theirs:Task"):
        ticket_model(folder)
