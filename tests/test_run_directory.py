"""docs/run-directory.md: it names every key and file, and a reader that knows nothing else can read a run."""

import csv
import dataclasses
import hashlib
import inspect
import json
import math
import re
import tomllib
from pathlib import Path

import h5py
import numpy as np
import pydantic
import pytest
from helpers import ROOT

from lottery.experiment.recipe import Recipe
from lottery.rundir import identity, names
from lottery.rundir.identity import MadeWith
from lottery.rundir.names import File, NetworkFiles
from lottery.rundir.records import MaskRecord, Result
from lottery.rundir.run import Run
from lottery.stages import thresholds

PAGE = (ROOT / "docs/run-directory.md").read_text()


def models(kind):
    """A model, and those within its fields."""
    fields = kind.model_fields if issubclass(kind, pydantic.BaseModel) else kind.__annotations__
    hints = [field.annotation if isinstance(field, pydantic.fields.FieldInfo) else field for field in fields.values()]
    inner = {cls for hint in hints for cls in (hint, *getattr(hint, "__args__", ())) if inspect.isclass(cls)}
    inner = {cls for cls in inner if (issubclass(cls, pydantic.BaseModel) or dataclasses.is_dataclass(cls))}
    return {kind: set(fields)} | {name: keys for cls in inner for name, keys in models(cls).items()}


def mentioned(name):
    return re.search(rf"`[^`\n]*\b{re.escape(name)}(?!\w)[^`\n]*`", PAGE)


@pytest.mark.parametrize(
    ("kind", "inner"),
    [(Result, "Kept Density Layer Costs Figures Timing"), (MaskRecord, "Kept Density Layer Costs Scores"), (MadeWith, "")],
)
def test_the_page_names_every_key_of_a_table(kind, inner):
    known = models(kind)

    assert {cls.__name__ for cls in known} == {kind.__name__, *inner.split()}
    assert [f"{cls.__name__}.{key}" for cls, keys in known.items() for key in sorted(keys) if not mentioned(key)] == []


def test_the_page_names_every_file():
    run = Run(Path("run"), Recipe())
    places = [NetworkFiles(Path("run")), run.replicate(1), run]
    paths = [getattr(place, name) for place in places for name, one in vars(type(place)).items() if isinstance(one, File)]
    paths += [
        run.replicate(1).thresholds("FAMILY"),
        Path(names.RECIPE),
        Path(names.ENVIRONMENT),
        Path(identity.FILE),
        Path(".lock"),
    ]

    assert len(paths) == 7 + 1 + 4 + 5
    assert [path.name for path in paths if path.name not in PAGE] == []
    for layout in ("replicate-1/train", "snapshots/step-000034.h5", "masks/q90.h5", "round-03-step-000034.h5"):
        assert layout in PAGE


def test_the_page_names_other_keys():
    keys = ["reached", "deaths", "nodes", "outputs", "records", "network", *thresholds.COLUMNS]

    assert [key for key in keys if not mentioned(key)] == []


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def read_json(path):
    content = path.read_bytes()
    found = json.loads(content)
    assert content.startswith(b'{\n  "sha256": "' + found["sha256"].encode())
    assert sha256(path.name.encode() + content.replace(found["sha256"].encode(), b"0" * 64, 1)) == found["sha256"]
    return found


def read_hdf5(path):
    content = path.read_bytes()
    assert re.fullmatch(rb"imp-lottery sha256 [0-9a-f]{64}\n\0*", content[:512])
    assert content[19:83].decode() == sha256(content[512:])
    assert content[512:520] == b"\x89HDF\r\n\x1a\n"
    return content[19:83].decode(), h5py.File(path, "r")


def read_lines(path):
    seal, rows = "", []
    for line in path.read_text().splitlines():
        before, _, own = line.rpartition(', "sha256": "')
        assert sha256((seal + before).encode()) + '"}' == own
        seal = own[:-2]
        rows.append(json.loads(before + "}"))
    return rows, seal


def unpacked(file):
    """As the page has it."""
    mask, start = {}, 0
    for path, shape in json.loads(file["mask/layout"][()]).items():
        size = math.prod(shape)
        bits = file["mask/bits"][start : start + (size + 7) // 8]
        mask[path] = np.unpackbits(bits, count=size).reshape(shape).astype(bool)
        start += len(bits)
    return mask


def test_a_reader_that_knows_the_page_alone_reads_a_run(retrained):
    run = retrained / "runs/digits"
    replicate = run / "replicate-1"
    first, content = (run / "recipe.toml").read_bytes().split(b"\n", 1)
    assert first == f"# written by imp, format 2; change it with --set. sha256 {sha256(content)}".encode()
    assert tomllib.loads(content.decode())["name"] == "digits"
    assert read_json(run / "environment.json")["packages"]["numpy"] == np.__version__

    tables = [*replicate.rglob("result.json"), *replicate.glob("*/masks/q*.json")]
    known = {path: read_json(path) for path in tables}
    assert len(known) == 1 + 7 + 2
    listed = {name: seal for table in known.values() for name, seal in table["outputs"].items()}
    for path, table in known.items():
        assert (run / table["folder"]) in (path.parent, path.with_suffix(""))
        assert table["format"] == read_json(path.parent / "made_with.json")["format"] == 2
        for name, seal in table["made_from"].items():
            assert seal == (known[replicate / "train/result.json"]["made_from"] | listed)[name]
        if path.name == "result.json":
            rows, seal = read_lines(path.parent / "metrics.jsonl")
            assert (table["status"], table["timing"]["journal"], table["final"]["step"]) == ("done", seal, rows[-1]["step"])
    for name, seal in listed.items():
        path = replicate / name
        assert seal == (read_hdf5(path)[0] if path.suffix == ".h5" else read_json(path)["sha256"])

    with read_hdf5(replicate / "oneshot/q90-step-000017/shuffle/mask.h5")[1] as own:
        mask = unpacked(own)
    kept = known[replicate / "oneshot/q90-step-000017/shuffle/result.json"]["kept"]["layers"]
    counts = {path: {name: layer[name] for name in ("weights", "kept")} for path, layer in kept.items()}
    assert {path: {"weights": bits.size, "kept": int(bits.sum())} for path, bits in mask.items()} == counts
    with read_hdf5(replicate / "oneshot/q90-step-000017/shuffle/final.h5")[1] as final:
        assert final.attrs["step"] == 51
        assert not any(final["weights"][path][()][~bits].any() for path, bits in mask.items())
        assert sum(array[()].size for array in leaves(final["weights"])) == table_of_weights(known)
    with (replicate / "oneshot/thresholds.csv").open() as file:
        assert [float(row["quantile"]) for row in csv.DictReader(file) if not row["layer"]] == [50, 90]


def leaves(group):
    for item in group.values():
        yield from leaves(item) if isinstance(item, h5py.Group) else [item]


def table_of_weights(known):
    (count,) = {table["trainable_weights"] for table in known.values() if "trainable_weights" in table}
    return count
