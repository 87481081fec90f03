"""The record format: TFRecord shards of raw uint8 image blocks, and the manifest that describes and checks them.

A prepared set is a folder:

    manifest.json               sizes, classes, splits, and count, bytes and sha256 of every shard; written last
    train-00000.tfrecord ...    one TFRecord file per shard

Each record is a block of n images: n labels (little-endian int32), then n images (uint8, height x width x channels, C
order). n follows from the record's length: it is `BLOCK`, less in the last block of a shard. Blocks, not single images,
because feeding is then limited by memory and not by parsing (framing and checks are paid once per block).
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

from data_prep import files
from data_prep.errors import InputError

FORMAT = 2
BLOCK = 250
SHARD_BYTES = 32 << 20
LABEL = np.dtype("<i4")
SPLITS = ("train", "validation", "test")
MANIFEST = "manifest.json"

_LENGTH = struct.Struct("<QI")
_CRC = struct.Struct("<I")

Shape = tuple[int, int, int]
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


@dataclasses.dataclass(frozen=True)
class Bad:
    """An image that could not be decoded, and is in no shard."""

    split: str
    name: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a prepared set holds. `shape` is (height, width, channels); `made_with` the settings it was made with, `made_by`
    the versions of what decoded it, `source` the fingerprints of the images."""

    shape: Shape
    classes: list[str]
    shards: list[Shard]
    made_with: dict[str, Any]
    made_by: dict[str, str] = dataclasses.field(default_factory=dict)
    bad: list[Bad] = dataclasses.field(default_factory=list)
    source: list[str] = dataclasses.field(default_factory=list)

    def shards_of(self, split: str) -> list[Shard]:
        return [shard for shard in self.shards if shard.split == split]

    def is_whole(self, folder: Path) -> bool:
        """Whether every shard is in `folder` at its full length."""
        return all(shard.is_whole(folder) for shard in self.shards)

    @property
    def digest(self) -> str:
        """What tells these images, in this order and these splits, from any others: a sha256 of the shards' own."""
        return files.sha256(json.dumps([(shard.split, shard.count, shard.sha256) for shard in self.shards]).encode())

    def count(self, split: str) -> int:
        """Number of images in `split` (train, validation or test)."""
        return sum(shard.count for shard in self.shards_of(split))

    @property
    def bytes(self) -> int:
        """What the pixels of all splits take."""
        return sum(shard.count for shard in self.shards) * math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Block:
    """Where a block lies: its record's payload in `path`, from `offset` on, holds `count` images with their labels."""

    path: Path
    offset: int
    count: int


def images_per_shard(shape: Shape) -> int:
    """Whole blocks, as many as come to about `SHARD_BYTES`."""
    return BLOCK * max(1, SHARD_BYTES // (BLOCK * image_bytes(shape)))


def image_bytes(shape: Shape) -> int:
    """What an image takes in a record, its label included."""
    return LABEL.itemsize + math.prod(shape)


def write_shard(path: Path, split: str, examples: Iterable[Example]) -> Shard:
    """Write images (uint8, [height, width, channels]) and their labels as one shard, whole or not at all."""
    count, size, digest = 0, 0, hashlib.sha256()
    remaining = iter(examples)
    with files.replacing(path) as temporary, open(temporary, "wb") as file:
        while block := list(itertools.islice(remaining, BLOCK)):
            labels = np.array([label for _, label in block], LABEL)
            record = _frame(labels.tobytes() + np.stack([image for image, _ in block]).tobytes())
            file.write(record)
            digest.update(record)
            count, size = count + len(block), size + len(record)
    return Shard(path.name, split, count, size, digest.hexdigest())


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
            offset += _LENGTH.size + count * image_bytes(manifest.shape) + _CRC.size
        if offset != shard.bytes:
            raise InputError(f"{folder / shard.name} does not hold the {shard.count} images of its manifest: {remedy(folder)}")
    return found


def read_block(block: Block, images: np.ndarray, labels: np.ndarray) -> None:
    """Fill `images` (uint8, [count, height, width, channels], contiguous) and `labels` (little-endian int32, [count]) with
    one block, its checksum compared. Raises InputError with the name of a shard that is missing, cut or altered there."""
    crc = bytearray(_CRC.size)
    try:
        with open(block.path, "rb") as file:
            file.seek(block.offset)
            read = sum(file.readinto(part) for part in (labels.data, images.data, crc))
    except FileNotFoundError:
        raise InputError(f"{block.path} is missing: {remedy(block.path.parent, 'run')}") from None
    if read != labels.nbytes + images.nbytes + _CRC.size or crc != _masked(crc32c.extend(crc32c.value(labels), images)):
        raise InputError(f"{block.path} is damaged (a checksum differs): {remedy(block.path.parent)}")


def read_labels(blocks: Iterable[Block]) -> np.ndarray:
    """The labels of `blocks` (int32, [n]), without their images and checksums."""
    return np.concatenate([np.fromfile(block.path, LABEL, block.count, offset=block.offset) for block in blocks])


def read_images(blocks: Sequence[Block], shape: Shape, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The images (uint8, [n, height, width, channels]) and labels (int32, [n]) at `indices` (int, [n]), counted through all of
    `blocks`. Only blocks that hold one are read. Raises InputError as `read_block` does."""
    ends = np.cumsum([block.count for block in blocks])
    images, labels = np.empty((len(indices), *shape), np.uint8), np.empty(len(indices), np.int32)
    holding = np.searchsorted(ends, indices, "right")
    for number in np.unique(holding):
        count = blocks[number].count
        held = np.empty((count, *shape), np.uint8), np.empty(count, LABEL)
        read_block(blocks[number], *held)
        places = np.flatnonzero(holding == number)
        within = indices[places] - (ends[number] - count)
        images[places], labels[places] = (part[within] for part in held)
    return images, labels


def check_shard(folder: Path, manifest: Manifest, shard: Shard) -> None:
    """Compare a shard with its manifest. Raises InputError with its name when it is missing, cut or altered."""
    alone, path = dataclasses.replace(manifest, shards=[shard]), folder / shard.name
    check_lengths(folder, alone)
    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != shard.sha256:
            raise InputError(f"{path} is damaged (its sha256 differs): {remedy(folder)}")
    blocks(folder, alone, shard.split)


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
    """Images (uint8, [n, height, width, channels]) and labels (int32, [n]) of one split, each shard checked. Raises InputError
    with the name of a shard that is missing, cut, altered, or not what the manifest says it holds."""
    images = np.empty((manifest.count(split), *manifest.shape), np.uint8)
    labels = np.empty(len(images), LABEL)
    for shard in manifest.shards_of(split):
        check_shard(folder, manifest, shard)
    first = 0
    for block in blocks(folder, manifest, split):
        part = slice(first, first + block.count)
        read_block(block, images[part], labels[part])
        first += block.count
    return images, labels


def write_manifest(folder: Path, manifest: Manifest) -> None:
    splits = {split: manifest.count(split) for split in SPLITS}
    content = {"format": FORMAT, "block": BLOCK, "splits": splits, **dataclasses.asdict(manifest)}
    files.write_json(folder / MANIFEST, content)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared set; raises InputError where there is none, or it is damaged or contradicts itself."""
    path = folder / MANIFEST
    if not path.exists():
        raise InputError(
            f"no records in {folder}: run `imp prepare` first, or say where they are (--records, data.path, IMP_DATA)"
        )
    content = files.read_json(path)
    try:
        own, block = content.get("format"), content.get("block")
        if (own, block) != (FORMAT, BLOCK):
            raise ValueError(f"its format is {own} in blocks of {block}, not {FORMAT} in {BLOCK}")
        height, width, channels = map(int, content["shape"])
        shards, bad = [Shard(**shard) for shard in content["shards"]], [Bad(**bad) for bad in content["bad"]]
        made = dict(content["made_with"]), dict(content["made_by"])
        manifest = Manifest((height, width, channels), list(content["classes"]), shards, *made, bad, list(content["source"]))
        if min(manifest.shape) < 1 or any(Path(shard.name).name != shard.name for shard in shards):
            raise ValueError("its images have no size, or its shards lie elsewhere")
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
