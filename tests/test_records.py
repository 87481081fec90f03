"""The record format: what is written is read back, by this package and by TensorFlow, and damage is named."""

import dataclasses
import struct
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from helpers import write_split

from data_prep import records
from lottery.base import files
from lottery.base.errors import InputError

SHAPE = (4, 5, 3)
IMAGE_BYTES = 4 + 4 * 5 * 3


def masked(part):
    """The checksum that a TFRecord holds of `part`."""
    crc = google_crc32c.value(part)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def examples(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, *SHAPE)).astype(np.uint8), rng.integers(0, 10, count)


def write(folder, **counts):
    """A set with so many images per split; returns its manifest and the examples."""
    content = {split: examples(count, seed) for seed, (split, count) in enumerate(counts.items())}
    shards = [shard for split in counts for shard in write_split(folder, split, *content[split])]
    made = {"source": "noise"}, {"pillow": "11"}
    bad = [records.Bad("train", "image 3", "it is broken")]
    manifest = records.Manifest(SHAPE, [str(label) for label in range(10)], shards, *made, bad)
    records.write_manifest(folder, manifest)
    return manifest, content


@pytest.fixture
def small_shards(monkeypatch):
    """Blocks of 3 images, shards of 6, so that a few images make many of both."""
    monkeypatch.setattr(records, "BLOCK", 3)
    monkeypatch.setattr(records, "SHARD_BYTES", 6 * IMAGE_BYTES)


@pytest.mark.parametrize("count", [1, 3, 7, 20])
@pytest.mark.usefixtures("small_shards")
def test_images_and_labels_come_back_in_their_order(tmp_path, count):
    manifest, content = write(tmp_path, train=count, test=2)

    images, labels = records.read_split(tmp_path, records.read_manifest(tmp_path), "train")

    np.testing.assert_array_equal(images, content["train"][0])
    np.testing.assert_array_equal(labels, content["train"][1])
    assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
    assert manifest.count("train") == count
    assert manifest.count("validation") == 0


@pytest.mark.usefixtures("small_shards")
def test_a_split_is_cut_into_numbered_shards(tmp_path):
    manifest, _ = write(tmp_path, train=16, test=1)

    assert [(shard.name, shard.count) for shard in manifest.shards] == [
        ("train-00000.tfrecord", 6),
        ("train-00001.tfrecord", 6),
        ("train-00002.tfrecord", 4),
        ("test-00000.tfrecord", 1),
    ]
    for shard in manifest.shards:
        content = (tmp_path / shard.name).read_bytes()
        assert (len(content), files.sha256(content)) == (shard.bytes, shard.sha256)


def test_a_manifest_comes_back_as_it_was_written(tmp_path):
    manifest, _ = write(tmp_path, train=3, test=2)

    assert records.read_manifest(tmp_path) == manifest
    assert manifest.bytes == 5 * 4 * 5 * 3


def test_the_digest_tells_images_their_order_and_their_splits_from_others(tmp_path):
    manifest, _ = write(tmp_path, train=3, test=2)
    train, test = manifest.shards
    others = [
        [dataclasses.replace(train, sha256="0"), test],
        [dataclasses.replace(train, split="validation"), test],
        [test, train],
        [train],
    ]

    assert records.read_manifest(tmp_path).digest == manifest.digest
    assert dataclasses.replace(manifest, made_with={"source": "other"}).digest == manifest.digest
    digests = {dataclasses.replace(manifest, shards=shards).digest for shards in others}
    assert len(digests | {manifest.digest}) == 5


def read_block(block):
    images, labels = np.empty((block.count, *SHAPE), np.uint8), np.empty(block.count, np.int32)
    records.read_block(block, images, labels)
    return images, labels


def altered_manifest(folder, change):
    """Apply `change` to the content of the manifest."""
    manifest = files.read_json(folder / "manifest.json")
    change(manifest)
    files.write_json(folder / "manifest.json", manifest)


def refused(folder, split="train"):
    with pytest.raises(InputError) as refusal:
        records.read_split(folder, records.read_manifest(folder), split)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def altered(place):
    """A function that changes a bit of a file."""

    def alter(path):
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.write_bytes(content)

    return alter


def cut(length):
    return lambda path: path.write_bytes(path.read_bytes()[:length])


def grown(path):
    path.write_bytes(path.read_bytes() * 2)


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize(
    "damage",
    [*map(altered, [0, 12, -1]), *map(cut, [0, -1]), grown, Path.unlink],
)
def test_a_damaged_shard_is_named_and_the_others_are_not(tmp_path, damage):
    manifest, _ = write(tmp_path, train=16)
    first, second, _ = manifest.shards
    path = tmp_path / second.name
    damage(path)

    assert f"{path} is {'damaged' if path.exists() else 'missing'}" in refused(tmp_path)
    records.check_shard(tmp_path, manifest, first)
    with pytest.raises(InputError, match=second.name):
        records.check_shard(tmp_path, manifest, second)


def test_without_a_manifest_there_are_no_records(tmp_path):
    with pytest.raises(InputError, match=f"no records in {tmp_path}.*imp prepare"):
        records.read_manifest(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"null", b"{}"])
def test_a_file_that_is_no_manifest_is_named(tmp_path, content):
    (tmp_path / "manifest.json").write_bytes(content)

    with pytest.raises(InputError, match=r"manifest\.json") as refusal:
        records.read_manifest(tmp_path)
    assert "\n" not in str(refusal.value)


def put(**values):
    """A function that puts other values into a manifest."""
    return lambda manifest: manifest.update(values)


def renamed(name):
    return lambda manifest: manifest["shards"][0].update(name=name)


KEYS = ["format", "shape", "block", "classes", "splits", "made_with", "made_by", "bad", "shards", "source"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *((lambda manifest, key=key: manifest.pop(key), key) for key in KEYS),
        (put(format=1), f"format is 1 in blocks of 250, not {records.FORMAT} in 250.*imp prepare"),
        (put(format="2"), "format is 2"),
        (put(block=100), "in blocks of 100"),
        *((put(shape=shape), "") for shape in (5, [4, 5], ["a", 5, 3])),
        *((put(shape=shape), "have no size, or its files lie elsewhere") for shape in ([-4, 5, 3], [0, 5, 3])),
        *((renamed(name), "have no size, or its files lie elsewhere") for name in ("../a.tfrecord", "/a.tfrecord")),
        *((put(**{key: [{"name": "a"}]}), "") for key in ("shards", "bad")),
        *((put(splits=splits), "split sizes") for splits in ({"train": 3, "validation": 0, "test": 1}, {})),
    ],
)
def test_a_malformed_manifest_is_refused(tmp_path, change, words):
    write(tmp_path, train=3)

    altered_manifest(tmp_path, change)

    with pytest.raises(InputError, match=rf"manifest\.json is not a manifest .*{words}") as refusal:
        records.read_manifest(tmp_path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["shards"][0].update(count=4) or manifest["splits"].update(train=4),
        lambda manifest: manifest["shards"][0].update(sha256=""),
        lambda manifest: manifest.update(shape=[5, 5, 3]),
    ],
    ids=["fewer images", "another hash", "larger images"],
)
def test_a_manifest_that_does_not_fit_its_shards_is_refused(tmp_path, change):
    write(tmp_path, train=5)

    altered_manifest(tmp_path, change)

    assert str(tmp_path) in refused(tmp_path)


@pytest.mark.parametrize("size", [8, 224])
def test_a_shard_holds_whole_blocks_and_about_32_mib(size):
    count = records.examples_per_shard((size, size, 3))

    block = records.BLOCK * (4 + size * size * 3)
    assert count % records.BLOCK == 0
    assert count == records.BLOCK or count * (4 + size * size * 3) <= 32 << 20
    assert (count // records.BLOCK + 1) * block > 32 << 20


def parsed(path):
    """The records of a TFRecord file by its specification: offset and payload of each, both checksums compared."""

    content, at, found = path.read_bytes(), 0, []
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        payload = content[at + 12 : at + 12 + length]
        assert content[at + 8 : at + 12] == masked(content[at : at + 8])
        assert content[at + 12 + length : at + 16 + length] == masked(payload)
        found.append((at + 12, payload))
        at += 16 + length
    return found


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("count", [1, 6, 16])
def test_blocks_lie_where_the_records_of_the_file_do(tmp_path, count):
    manifest, _ = write(tmp_path, train=count)

    expected = [
        (tmp_path / shard.name, offset, len(payload) // IMAGE_BYTES)
        for shard in manifest.shards
        for offset, payload in parsed(tmp_path / shard.name)
    ]
    found = records.blocks(tmp_path, manifest, "train")
    assert [(block.path, block.offset, block.count) for block in found] == expected
    assert sum(block.count for block in found) == count


@pytest.mark.usefixtures("small_shards")
def test_a_block_is_read_into_the_middle_of_an_array(tmp_path):
    manifest, content = write(tmp_path, train=6)
    images, labels = np.zeros((9, *SHAPE), np.uint8), np.zeros(9, np.int32)

    records.read_block(records.blocks(tmp_path, manifest, "train")[1], images[4:7], labels[4:7])

    np.testing.assert_array_equal(images[4:7], content["train"][0][3:])
    np.testing.assert_array_equal(labels[4:7], content["train"][1][3:])
    assert not images[:4].any()
    assert not images[7:].any()
    assert not labels[[0, 1, 2, 3, 7, 8]].any()


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("place", [0, 12, 3 * IMAGE_BYTES + 3])
def test_a_block_with_an_altered_byte_is_refused_and_its_neighbours_are_not(tmp_path, place):
    manifest, _ = write(tmp_path, train=6)
    first, second = records.blocks(tmp_path, manifest, "train")
    altered(second.offset + place)(first.path)

    read_block(first)
    with pytest.raises(InputError, match=f"{first.path} is damaged .*imp prepare"):
        read_block(second)


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("damage", [*map(cut, [-1, -200]), Path.unlink])
def test_a_block_of_a_shard_that_is_cut_short_or_gone_is_refused(tmp_path, damage):
    manifest, _ = write(tmp_path, train=6)
    block = records.blocks(tmp_path, manifest, "train")[1]
    damage(block.path)

    with pytest.raises(InputError, match=f"{block.path} is {'damaged' if block.path.exists() else 'missing'}"):
        read_block(block)


def test_what_blocks_there_are_is_known_without_the_shards(tmp_path):
    manifest, _ = write(tmp_path, train=records.BLOCK + 2, test=1)
    for shard in manifest.shards:
        (tmp_path / shard.name).unlink()

    assert [block.count for block in records.blocks(tmp_path, manifest, "train")] == [records.BLOCK, 2]
    assert records.blocks(tmp_path, manifest, "validation") == []


def test_a_shard_is_whole_or_not_there(tmp_path):
    def breaking():
        yield np.zeros(SHAPE, np.uint8), 0
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left") as error:
        records.write_shard(tmp_path / "train-00000.tfrecord", "train", breaking())

    assert error.value.filename == str(tmp_path / "train-00000.tfrecord")
    assert list(tmp_path.iterdir()) == []


FIELDS = {"words": records.Field("<u2", (3,)), "scores": records.Field("<f4", (2, 3))}


def write_fields(folder, count):
    """A set of examples of `FIELDS`; returns their arrays."""
    rng = np.random.default_rng(0)
    arrays = {"words": rng.integers(0, 65_536, (count, 3)), "scores": rng.random((count, 2, 3), np.float32)}
    rows = records.pack(arrays, FIELDS)
    shards = write_split(folder, "train", rows, np.arange(count))
    (folder / "tokenizer.json").write_bytes(b"{}")
    beside = {"tokenizer.json": files.sha256(b"{}")}
    records.write_manifest(folder, records.Manifest(rows.shape[1:], [], shards, {}, fields=FIELDS, beside=beside))
    return arrays


def test_examples_of_several_fields_come_back(tmp_path):
    arrays = write_fields(tmp_path, 5)

    manifest = records.read_manifest(tmp_path)
    examples, labels = records.read_split(tmp_path, manifest, "train")

    assert manifest.shape == (30,)
    assert manifest.fields == FIELDS
    assert labels.tolist() == list(range(5))
    for name, array in records.unpack(examples, manifest.fields).items():
        assert array.dtype == FIELDS[name].dtype
        np.testing.assert_array_equal(array, arrays[name])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put(fields={"words": {"dtype": "<u2"}}), "shape"),
        (put(fields={"words": {"dtype": "|O", "shape": [15]}}), "a field is '|O'"),
        (put(fields={"words": {"dtype": "<u2", "shape": [-15]}}), "a field is '<u2' .-15,."),
        (put(fields={"words": {"dtype": "<u2", "shape": [14]}}), "its fields do not come to it"),
        (put(fields={}), "is not that of images"),
        (put(shape=[5, 6]), "its fields do not come to it"),
        (put(beside={"../tokenizer.json": ""}), "lie elsewhere"),
    ],
)
def test_fields_that_make_no_sense_are_refused(tmp_path, change, words):
    write_fields(tmp_path, 2)

    altered_manifest(tmp_path, change)

    with pytest.raises(InputError, match=rf"manifest\.json is not a manifest .*{words}") as refusal:
        records.read_manifest(tmp_path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("damage", "words"), [(altered(0), "is damaged"), (Path.unlink, "is missing")])
def test_a_damaged_file_beside_the_shards_is_named(tmp_path, damage, words):
    write_fields(tmp_path, 2)
    manifest = records.read_manifest(tmp_path)
    records.check_beside(tmp_path, manifest, "tokenizer.json")

    damage(tmp_path / "tokenizer.json")

    with pytest.raises(InputError, match=rf"tokenizer\.json {words}.*imp prepare"):
        records.check_beside(tmp_path, manifest, "tokenizer.json")
