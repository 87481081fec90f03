"""The record format: TFRecord shards of raw uint8 blocks of examples, and the manifest that describes and checks them.

A prepared set is a folder:

    manifest.json               sizes, classes, splits, and count, bytes and sha256 of every shard; written last
    train-00000.tfrecord ...    one TFRecord file per shard
    tokenizer.json              of texts: what made their tokens
    scores.csv                  of the hardest or easiest images: the scores of all

Each record is a block of n examples: n labels (little-endian int32), then n images (uint8, height x width x channels, C
order), or n rows of bytes, which the manifest's `fields` divide. n follows from the record's length: it is `BLOCK`, less in
the last block of a shard. Blocks, not single examples, because feeding is then limited by memory and not by parsing (framing
and checks are paid once per block).
`tf.data.TFRecordDataset` and `tf.io.decode_raw` read them; so does this module, with NumPy alone.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import google_crc32c as crc32c
import numpy as np

from lottery.base import files
from lottery.base.errors import InputError

FORMAT = 2
BLOCK = 250
SHARD_BYTES = 32 << 20
LABEL = np.dtype("<i4")
SPLITS = ("train", "validation", "test")
MANIFEST = "manifest.json"

_LENGTH = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_DTYPES = ("|u1", "<u2", "<i4", "<f4")

Shape = tuple[int, ...]
Example = tuple[np.ndarray, int]


@dataclasses.dataclass(frozen=True)
class Shard:
    """One TFRecord file: its name in the set's folder, and what it must hold."""

    name: str
    split: str
    count: int
    bytes: int
    sha256: str

    def is_whole(self, folder: Path) -> bool:
        """Whether it is in `folder` at its full length: it is written under another name, and renamed when complete."""
        path = folder / self.name
        return path.exists() and path.stat().st_size == self.bytes

    def is_unchanged(self, folder: Path) -> bool:
        """Whether every byte of it in `folder` is as it was written. Raises OSError where it is not there."""
        with open(folder / self.name, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256


@dataclasses.dataclass(frozen=True)
class Bad:
    """An image that could not be decoded, or a text that could not be read, and is in no shard. Of a text, `split` is empty."""

    split: str
    name: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Field:
    """A part of an example that is no image: an array of a little-endian `dtype`, such as "<u2", in C order."""

    dtype: str
    shape: Shape

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES or min(self.shape, default=1) < 1:
            raise ValueError(f"a field is {self.dtype!r} {self.shape}, not one of {', '.join(_DTYPES)} with a size")

    @property
    def bytes(self) -> int:
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a prepared set holds. `shape` is (height, width, channels) of images; of other examples it is (bytes,), which
    `fields` divide, in order. `made_with` are its settings, `made_by` the versions of what made it, `source` the fingerprints
    of the source, `beside` the sha256 of each file beside the shards. `passed_over` says what else lay there."""

    shape: Shape
    classes: list[str]
    shards: list[Shard]
    made_with: dict[str, Any]
    made_by: dict[str, str] = dataclasses.field(default_factory=dict)
    bad: list[Bad] = dataclasses.field(default_factory=list)
    source: list[str] = dataclasses.field(default_factory=list)
    fields: dict[str, Field] = dataclasses.field(default_factory=dict)
    beside: dict[str, str] = dataclasses.field(default_factory=dict)
    passed_over: str = ""

    def shards_of(self, split: str) -> list[Shard]:
        return [shard for shard in self.shards if shard.split == split]

    def is_whole(self, folder: Path) -> bool:
        """Whether every shard is in `folder` at its full length, and every file beside them there."""
        return all(shard.is_whole(folder) for shard in self.shards) and all((folder / name).is_file() for name in self.beside)

    @property
    def digest(self) -> str:
        """What tells these examples, in this order and these splits, from any others: a sha256 of the shards' own."""
        return files.sha256(json.dumps([(shard.split, shard.count, shard.sha256) for shard in self.shards]).encode())

    def count(self, split: str) -> int:
        """Number of examples in `split` (train, validation or test)."""
        return sum(shard.count for shard in self.shards_of(split))

    @property
    def bytes(self) -> int:
        """What the examples of all splits take, without their labels."""
        return sum(shard.count for shard in self.shards) * math.prod(self.shape)


def check_examples(asked: int, training: int, classes: int = 0) -> None:
    """Raise InputError where a set is to have more training examples (`data.examples`) than it has, or fewer than classes."""
    if 0 < asked < classes:
        raise InputError(f"data.examples is {asked}, but there are {classes} classes: raise it")
    if asked > training:
        raise InputError(f"data.examples is {asked}, but there are {training} training examples: lower it")


@dataclasses.dataclass(frozen=True)
class Block:
    """Where a block lies: its record's payload in `path`, from `offset` on, holds `count` examples with their labels."""

    path: Path
    offset: int
    count: int


def examples_per_shard(shape: Shape) -> int:
    """Whole blocks, as many as come to about `SHARD_BYTES`."""
    return BLOCK * max(1, SHARD_BYTES // (BLOCK * example_bytes(shape)))


def example_bytes(shape: Shape) -> int:
    """What an example takes in a record, its label included."""
    return LABEL.itemsize + math.prod(shape)


def write_shard(path: Path, split: str, examples: Iterable[Example]) -> Shard:
    """Write examples (uint8, of one shape) and their labels as one shard, whole or not at all."""
    count, size, digest = 0, 0, hashlib.sha256()
    remaining = iter(examples)
    with files.replacing(path) as temporary, open(temporary, "wb") as file:
        while block := list(itertools.islice(remaining, BLOCK)):
            labels = np.array([label for _, label in block], LABEL)
            record = _frame(labels.tobytes() + np.stack([example for example, _ in block]).tobytes())
            file.write(record)
            digest.update(record)
            count, size = count + len(block), size + len(record)
    return Shard(path.name, split, count, size, digest.hexdigest())


def pack(arrays: dict[str, np.ndarray], fields: dict[str, Field]) -> np.ndarray:
    """Examples as uint8 [n, bytes], from an array [n, *shape] for each of `fields`."""
    rows = [
        np.ascontiguousarray(arrays[name], field.dtype).reshape(-1, math.prod(field.shape)) for name, field in fields.items()
    ]
    return np.concatenate([row.view(np.uint8) for row in rows], axis=1)


def unpack(examples: np.ndarray, fields: dict[str, Field]) -> dict[str, np.ndarray]:
    """The array [n, *shape] of each of `fields`, from `examples` (uint8, [n, bytes]). The inverse of `pack`."""
    ends = np.cumsum([field.bytes for field in fields.values()])
    parts = np.split(examples, ends[:-1], axis=1)
    return {
        name: np.ascontiguousarray(part).view(field.dtype).reshape(-1, *field.shape)
        for part, (name, field) in zip(parts, fields.items(), strict=True)
    }


def shard_name(split: str, number: int) -> str:
    return f"{split}-{number:05d}.tfrecord"


def blocks(folder: Path, manifest: Manifest, split: str) -> list[Block]:
    """Where every block of `split` lies, in order. Reads no shard."""
    found = []
    for shard in manifest.shards_of(split):
        offset = 0
        for first in range(0, shard.count, BLOCK):
            count = min(BLOCK, shard.count - first)
            found.append(Block(folder / shard.name, offset + _LENGTH.size, count))
            offset += _LENGTH.size + count * example_bytes(manifest.shape) + _CRC.size
        if offset != shard.bytes:
            raise InputError(f"{folder / shard.name} is not as long as {shard.count} examples are: {remedy(folder)}")
    return found


def read_block(block: Block, examples: np.ndarray, labels: np.ndarray) -> None:
    """Fill `examples` (uint8, [count, *shape], contiguous) and `labels` (little-endian int32, [count]) with one block,
    its checksum compared. Raises InputError with the name of a shard that is missing, cut or altered there."""
    crc = bytearray(_CRC.size)
    try:
        with open(block.path, "rb") as file:
            file.seek(block.offset)
            read = sum(file.readinto(part) for part in (labels.data, examples.data, crc))
    except FileNotFoundError:
        raise InputError(f"{block.path} is missing: {remedy(block.path.parent, 'run')}") from None
    if read != labels.nbytes + examples.nbytes + _CRC.size or crc != _masked(crc32c.extend(crc32c.value(labels), examples)):
        raise InputError(f"{block.path} is damaged (a checksum differs): {remedy(block.path.parent)}")


def read_labels(blocks: Iterable[Block]) -> np.ndarray:
    """The labels of `blocks` (int32, [n]), without their examples and checksums."""
    return np.concatenate([np.fromfile(block.path, LABEL, block.count, offset=block.offset) for block in blocks])


def read_examples(blocks: Sequence[Block], shape: Shape, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The examples (uint8, [n, *shape]) and labels (int32, [n]) at `indices` (int, [n]), counted through all of `blocks`. Only
    blocks that hold one are read. Raises InputError as `read_block` does."""
    ends = np.cumsum([block.count for block in blocks])
    examples, labels = np.empty((len(indices), *shape), np.uint8), np.empty(len(indices), np.int32)
    holding = np.searchsorted(ends, indices, "right")
    for number in np.unique(holding):
        count = blocks[number].count
        held = np.empty((count, *shape), np.uint8), np.empty(count, LABEL)
        read_block(blocks[number], *held)
        places = np.flatnonzero(holding == number)
        within = indices[places] - (ends[number] - count)
        examples[places], labels[places] = (part[within] for part in held)
    return examples, labels


def check_shard(folder: Path, manifest: Manifest, shard: Shard) -> None:
    """Compare a shard with its manifest. Raises InputError with its name when it is missing, cut or altered."""
    alone, path = dataclasses.replace(manifest, shards=[shard]), folder / shard.name
    check_lengths(folder, alone)
    if not shard.is_unchanged(folder):
        raise InputError(f"{path} is damaged (its sha256 differs): {remedy(folder)}")
    blocks(folder, alone, shard.split)


def check_beside(folder: Path, manifest: Manifest, name: str) -> None:
    """Compare a file beside the shards with its manifest. Raises InputError when it is missing or altered."""
    path = folder / name
    if not path.is_file():
        raise InputError(f"{path} is missing: {remedy(folder, 'run')}")
    if files.sha256(path.read_bytes()) != manifest.beside[name]:
        raise InputError(f"{path} is damaged (its sha256 differs): {remedy(folder)}")


def check_lengths(folder: Path, manifest: Manifest) -> None:
    """Raise InputError when a shard is missing or not as long as the manifest says, without reading any: before memory is
    taken for what a manifest only claims, or hours are spent up to the shard that is gone."""
    for shard in manifest.shards:
        path = folder / shard.name
        if not path.exists():
            raise InputError(f"{path} is missing: {remedy(folder, 'run')}")
        if not shard.is_whole(folder):
            raise InputError(f"{path} is damaged (its length differs): {remedy(folder)}")


def read_split(folder: Path, manifest: Manifest, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Examples (uint8, [n, *shape]) and labels (int32, [n]) of one split, each shard checked. Raises InputError
    with the name of a shard that is missing, cut, altered, or not what the manifest says it holds."""
    examples = np.empty((manifest.count(split), *manifest.shape), np.uint8)
    labels = np.empty(len(examples), LABEL)
    for shard in manifest.shards_of(split):
        check_shard(folder, manifest, shard)
    first = 0
    for block in blocks(folder, manifest, split):
        part = slice(first, first + block.count)
        read_block(block, examples[part], labels[part])
        first += block.count
    return examples, labels


def write_manifest(folder: Path, manifest: Manifest) -> None:
    splits = {split: manifest.count(split) for split in SPLITS}
    described = dataclasses.asdict(manifest)
    content = {key: value for key, value in described.items() if value or key not in ("fields", "beside", "passed_over")}
    files.write_json(folder / MANIFEST, {"format": FORMAT, "block": BLOCK, "splits": splits, **content})


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared set; raises InputError where there is none, or it is damaged or contradicts itself."""
    path = folder / MANIFEST
    if not path.exists():
        raise InputError(f"no records in {folder}: run `imp prepare`, or say where they are (--records, data.path, IMP_DATA)")
    content = files.read_json(path)
    try:
        own, block = content.get("format"), content.get("block")
        if (own, block) != (FORMAT, BLOCK):
            raise ValueError(f"its format is {own} in blocks of {block}, not {FORMAT} in {BLOCK}")
        shape = tuple(map(int, content["shape"]))
        fields = {
            name: Field(field["dtype"], tuple(map(int, field["shape"]))) for name, field in content.get("fields", {}).items()
        }
        beside = {str(name): str(digest) for name, digest in content.get("beside", {}).items()}
        shards, bad = [Shard(**shard) for shard in content["shards"]], [Bad(**bad) for bad in content["bad"]]
        made = dict(content["made_with"]), dict(content["made_by"])
        source = list(content["source"])
        passed_over = str(content.get("passed_over", ""))
        manifest = Manifest(shape, list(content["classes"]), shards, *made, bad, source, fields, beside, passed_over)
        names = [*beside, *(shard.name for shard in shards)]
        if min(shape, default=0) < 1 or any(Path(name).name != name for name in names):
            raise ValueError("its examples have no size, or its files lie elsewhere")
        if (sum(field.bytes for field in fields.values()),) != shape if fields else len(shape) != 3:
            raise ValueError(f"its shape {list(shape)} is not that of images, or its fields do not come to it")
        if content["splits"] != {split: manifest.count(split) for split in SPLITS}:
            raise ValueError("its split sizes are not those of its shards")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not a manifest ({error}): remove that folder and run `imp prepare` again") from None
    return manifest


def remedy(folder: Path, how: str = "remove it and run") -> str:
    return f"{how} `imp prepare --records {folder}`"


def _frame(payload: bytes) -> bytes:
    """A TFRecord: length (uint64), its masked CRC-32C, the payload, its masked CRC-32C."""
    length = struct.pack("<Q", len(payload))
    return b"".join([length, _masked(crc32c.value(length)), payload, _masked(crc32c.value(payload))])


def _masked(crc: int) -> bytes:
    """A checksum as a TFRecord stores it."""
    return _CRC.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
