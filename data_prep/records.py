"""The record format: TFRecord shards of raw uint8 image blocks, and the manifest that describes and checks them.

A prepared set is a folder:

    manifest.json               sizes, classes, splits, and count, bytes and sha256 of every shard; written last
    train-00000.tfrecord ...    one TFRecord file per shard

Each record is a block of n images: n labels (little-endian int32), then n images (uint8, height x width x channels, C
order). n follows from the record's length. Blocks, not single images, because feeding is then limited by memory and not
by parsing (per record framing and checks are paid once for `BLOCK` images). `tf.data.TFRecordDataset` and
`tf.io.decode_raw` read them; so does this module, with NumPy alone.
"""

import dataclasses
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from data_prep import files
from data_prep.errors import InputError

BLOCK = 250
IMAGES_PER_SHARD = 20_000
LABEL = np.dtype("<i4")


@dataclasses.dataclass(frozen=True)
class Shard:
    """One TFRecord file: its name in the set's folder, and what it must hold."""

    name: str
    split: str
    count: int
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a prepared set holds. `shape` is (height, width, channels); `made_with` the settings it was made with."""

    shape: tuple[int, int, int]
    classes: list[str]
    shards: list[Shard]
    made_with: dict[str, Any]

    def count(self, split: str) -> int:
        """Number of images in `split` (train, validation or test)."""
        return sum(shard.count for shard in self.shards if shard.split == split)


def write_split(folder: Path, split: str, images: np.ndarray, labels: np.ndarray) -> list[Shard]:
    """Write `images` (uint8, [n, height, width, channels]) and `labels` (integers, [n]) as the shards of one split."""
    shards = []
    for number, start in enumerate(range(0, len(images), IMAGES_PER_SHARD)):
        chunk = slice(start, start + IMAGES_PER_SHARD)
        content = b"".join(_frame(block) for block in _blocks(images[chunk], labels[chunk]))
        name = f"{split}-{number:05d}.tfrecord"
        files.write_bytes(folder / name, content)
        shards.append(Shard(name, split, len(images[chunk]), len(content), files.sha256(content)))
    return shards


def read_split(folder: Path, manifest: Manifest, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (uint8, [n, height, width, channels]) and labels (int32, [n]) of one split, each shard checked.

    Raises InputError with the name of a shard that is missing, cut, altered, or not what the manifest says it holds.
    """
    images = np.empty((manifest.count(split), *manifest.shape), np.uint8)
    labels = np.empty(len(images), np.int32)
    filled = 0
    for shard in manifest.shards:
        if shard.split != split:
            continue
        blocks = list(_records(_checked(folder / shard.name, shard)))
        if sum(map(len, blocks)) != shard.count * _image_bytes(manifest.shape):
            raise InputError(f"{folder / shard.name} does not hold the {shard.count} images of its manifest: {_remedy(folder)}")
        for block in blocks:
            block_images, block_labels = _unpack(block, manifest.shape)
            place = slice(filled, filled + len(block_labels))
            images[place], labels[place] = block_images, block_labels
            filled += len(block_labels)
    return images, labels


def write_manifest(folder: Path, manifest: Manifest) -> None:
    files.write_json(folder / "manifest.json", dataclasses.asdict(manifest))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared set; raises InputError where there is none or it is damaged."""
    path = folder / "manifest.json"
    if not path.exists():
        raise InputError(f"no records in {folder}: run `imp prepare` first, or set IMP_DATA to where they are")
    content = files.read_json(path)
    try:
        shards = [Shard(**shard) for shard in content["shards"]]
        return Manifest(tuple(content["shape"]), content["classes"], shards, dict(content["made_with"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not a manifest ({error}): {_remedy(folder)}") from None


def _checked(path: Path, shard: Shard) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} is missing: {_remedy(path.parent)}") from None
    if len(content) != shard.bytes or files.sha256(content) != shard.sha256:
        raise InputError(f"{path} is damaged (its sha256 differs): {_remedy(path.parent)}")
    return content


def _remedy(folder: Path) -> str:
    return f"remove {folder} and run `imp prepare`"


def _image_bytes(shape: tuple[int, int, int]) -> int:
    """What an image takes in a record, its label included."""
    return LABEL.itemsize + int(np.prod(shape))


def _blocks(images: np.ndarray, labels: np.ndarray) -> Iterator[bytes]:
    for start in range(0, len(images), BLOCK):
        block = slice(start, start + BLOCK)
        yield labels[block].astype(LABEL).tobytes() + np.ascontiguousarray(images[block], np.uint8).tobytes()


def _unpack(block: bytes, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    count = len(block) // _image_bytes(shape)
    labels = np.frombuffer(block, LABEL, count)
    return np.frombuffer(block, np.uint8, offset=labels.nbytes).reshape(count, *shape), labels


def _frame(payload: bytes) -> bytes:
    """A TFRecord: length (uint64), its masked CRC-32C, the payload, its masked CRC-32C."""
    length = struct.pack("<Q", len(payload))
    return b"".join([length, _masked_crc(length), payload, _masked_crc(payload)])


def _records(content: bytes) -> Iterable[bytes]:
    position = 0
    while position < len(content):
        (length,) = struct.unpack_from("<Q", content, position)
        yield content[position + 12 : position + 12 + length]
        position += 12 + length + 4


def _masked_crc(content: bytes) -> bytes:
    crc = google_crc32c.value(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
