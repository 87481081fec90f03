"""The record format: what is written is read back, by this package and by TensorFlow, and damage is named."""

import dataclasses
import os
import struct

import google_crc32c
import numpy as np
import pytest

from data_prep import files, records
from data_prep.errors import InputError

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
    shards = [shard for split in counts for shard in records.write_split(folder, split, *content[split])]
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


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 7, 9, 12, 20])
@pytest.mark.usefixtures("small_shards")
def test_images_and_labels_come_back_in_their_order(tmp_path, count):
    manifest, content = write(tmp_path, train=count, test=2)

    images, labels = records.read_split(tmp_path, records.read_manifest(tmp_path), "train")

    np.testing.assert_array_equal(images, content["train"][0])
    np.testing.assert_array_equal(labels, content["train"][1])
    assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
    assert manifest.count("train") == count
    assert manifest.count("validation") == 0


def test_blocks_of_the_usual_size_come_back(tmp_path):
    manifest, content = write(tmp_path, train=records.BLOCK + 1)

    images, labels = records.read_split(tmp_path, manifest, "train")

    np.testing.assert_array_equal(images, content["train"][0])
    np.testing.assert_array_equal(labels, content["train"][1])


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


def test_a_record_is_length_and_payload_each_with_its_masked_crc(tmp_path):
    images = np.arange(np.prod(SHAPE), dtype=np.uint8).reshape(1, *SHAPE)
    records.write_split(tmp_path, "train", images, np.array([7]))

    content = (tmp_path / "train-00000.tfrecord").read_bytes()

    payload = b"\x07\0\0\0" + images.tobytes()
    length = struct.pack("<Q", 64)
    assert content == length + masked(length) + payload + masked(payload)


def test_images_that_are_not_contiguous_are_written_by_their_values(tmp_path):
    images, labels = examples(4)
    turned = np.ascontiguousarray(images[:, ::-1])[:, ::-1]

    shards = records.write_split(tmp_path, "train", turned, labels)
    found, _ = records.read_split(tmp_path, records.Manifest(SHAPE, [], shards, {}), "train")

    np.testing.assert_array_equal(found, images)


def test_the_same_images_give_the_same_bytes(tmp_path):
    one, _ = write(tmp_path / "one", train=5)
    two, _ = write(tmp_path / "two", train=5)

    assert one == two


@pytest.mark.usefixtures("small_shards")
def test_tensorflow_reads_the_same_content(tmp_path, tensorflow):
    tf = tensorflow
    manifest, content = write(tmp_path, train=16)

    images, labels = [], []
    for record in tf.data.TFRecordDataset([str(tmp_path / shard.name) for shard in manifest.shards]):
        count = len(record.numpy()) // (4 + int(np.prod(SHAPE)))
        labels.append(tf.io.decode_raw(tf.strings.substr(record, 0, 4 * count), tf.int32, little_endian=True))
        images.append(tf.reshape(tf.io.decode_raw(tf.strings.substr(record, 4 * count, -1), tf.uint8), (count, *SHAPE)))

    np.testing.assert_array_equal(tf.concat(images, 0), content["train"][0])
    np.testing.assert_array_equal(tf.concat(labels, 0), content["train"][1])


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


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("place", [0, 8, 12, 30, -5, -1])
def test_a_shard_with_an_altered_byte_is_named(tmp_path, place):
    write(tmp_path, train=16)
    path = tmp_path / "train-00001.tfrecord"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)

    assert f"{path} is damaged" in refused(tmp_path)


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_a_shard_cut_short_is_named(tmp_path, length):
    write(tmp_path, train=16)
    path = tmp_path / "train-00001.tfrecord"
    path.write_bytes(path.read_bytes()[:length])

    assert f"{path} is damaged" in refused(tmp_path)


def test_a_shard_that_grew_is_named(tmp_path):
    write(tmp_path, train=2)
    path = tmp_path / "train-00000.tfrecord"
    path.write_bytes(path.read_bytes() * 2)

    assert f"{path} is damaged" in refused(tmp_path)


@pytest.mark.usefixtures("small_shards")
def test_a_missing_shard_is_named(tmp_path):
    write(tmp_path, train=16)
    (tmp_path / "train-00002.tfrecord").unlink()

    assert f"{tmp_path / 'train-00002.tfrecord'} is missing" in refused(tmp_path)


def test_damage_to_another_split_is_no_hindrance(tmp_path):
    manifest, content = write(tmp_path, train=2, test=2)
    (tmp_path / "train-00000.tfrecord").unlink()

    images, _ = records.read_split(tmp_path, manifest, "test")

    np.testing.assert_array_equal(images, content["test"][0])


def test_without_a_manifest_there_are_no_records(tmp_path):
    with pytest.raises(InputError, match=f"no records in {tmp_path}.*imp prepare"):
        records.read_manifest(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"null", b"[]", b"5", b"{}", b'"manifest"'])
def test_a_file_that_is_no_manifest_is_named(tmp_path, content):
    (tmp_path / "manifest.json").write_bytes(content)

    with pytest.raises(InputError, match=r"manifest\.json") as refusal:
        records.read_manifest(tmp_path)
    assert "\n" not in str(refusal.value)


KEYS = ["format", "shape", "block", "classes", "splits", "made_with", "made_by", "bad", "shards"]


@pytest.mark.parametrize("key", KEYS)
def test_a_manifest_without_one_of_its_keys_is_refused(tmp_path, key):
    write(tmp_path, train=3)

    altered_manifest(tmp_path, lambda manifest: manifest.pop(key))

    with pytest.raises(InputError, match=f"manifest.json is not a manifest .*{key}"):
        records.read_manifest(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 1},
        {"format": "2"},
        {"block": 100},
        {"shape": 5},
        {"shape": [4, 5]},
        {"shape": [4, 5, 3, 1]},
        {"shape": ["a", 5, 3]},
        {"shards": 5},
        {"shards": [5]},
        {"shards": [{"name": "a"}]},
        {"bad": [{"name": "a"}]},
        {"bad": 5},
        {"classes": 5},
        {"made_with": 5},
        {"made_by": [1]},
        {"splits": {"train": 3, "validation": 0, "test": 1}},
        {"splits": {"train": 3}},
        {"splits": {}},
    ],
    ids=str,
)
def test_a_malformed_manifest_is_refused(tmp_path, change):
    write(tmp_path, train=3)

    altered_manifest(tmp_path, lambda manifest: manifest.update(change))

    with pytest.raises(InputError, match=r"manifest\.json is not a manifest") as refusal:
        records.read_manifest(tmp_path)
    assert "\n" not in str(refusal.value)


def test_a_manifest_of_another_format_says_which(tmp_path):
    write(tmp_path, train=3)

    altered_manifest(tmp_path, lambda manifest: manifest.update(format=1))

    with pytest.raises(InputError, match=f"format is 1 in blocks of 250, not {records.FORMAT} in 250.*imp prepare"):
        records.read_manifest(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["shards"][0].update(count=4) or manifest["splits"].update(train=4),
        lambda manifest: manifest["shards"][0].update(count=6) or manifest["splits"].update(train=6),
        lambda manifest: manifest["shards"][0].update(bytes=1),
        lambda manifest: manifest["shards"][0].update(sha256=""),
        lambda manifest: manifest.update(shape=[5, 5, 3]),
        lambda manifest: manifest.update(shape=[4, 5, 1]),
    ],
    ids=["fewer images", "more images", "fewer bytes", "another hash", "larger images", "fewer channels"],
)
def test_a_manifest_that_does_not_fit_its_shards_is_refused(tmp_path, change):
    write(tmp_path, train=5)

    altered_manifest(tmp_path, change)

    assert str(tmp_path) in refused(tmp_path)


def test_a_split_that_there_is_not_is_refused_with_those_there_are(tmp_path):
    manifest, _ = write(tmp_path, train=2)

    with pytest.raises(InputError, match="no split 'val': there are train, validation, test"):
        records.read_split(tmp_path, manifest, "val")


@pytest.mark.parametrize("size", [8, 32, 64, 224])
def test_a_shard_holds_whole_blocks_and_about_32_mib(size):
    count = records.images_per_shard((size, size, 3))

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
@pytest.mark.parametrize("count", [1, 3, 5, 6, 7, 16])
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
def test_a_block_is_read_on_its_own(tmp_path):
    manifest, content = write(tmp_path, train=16)

    images, labels = read_block(records.blocks(tmp_path, manifest, "train")[3])

    np.testing.assert_array_equal(images, content["train"][0][9:12])
    np.testing.assert_array_equal(labels, content["train"][1][9:12])


@pytest.fixture
def short_reads(monkeypatch):
    """A system that reads 7 bytes at a time, as real ones read 2 GB."""
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda descriptor, parts, offset: preadv(descriptor, [parts[0][:7]], offset))


@pytest.mark.usefixtures("small_shards", "short_reads")
def test_a_block_of_more_than_one_system_call_reads_is_read_whole(tmp_path):
    manifest, content = write(tmp_path, train=6)
    block = records.blocks(tmp_path, manifest, "train")[1]

    images, labels = read_block(block)

    np.testing.assert_array_equal(images, content["train"][0][3:])
    np.testing.assert_array_equal(labels, content["train"][1][3:])
    block.path.write_bytes(block.path.read_bytes()[:-5])
    with pytest.raises(InputError, match="is damaged"):
        read_block(block)


@pytest.mark.usefixtures("small_shards")
def test_a_block_is_read_into_the_middle_of_an_array(tmp_path):
    manifest, content = write(tmp_path, train=6)
    images, labels = np.zeros((9, *SHAPE), np.uint8), np.zeros(9, np.int32)

    records.read_block(records.blocks(tmp_path, manifest, "train")[1], images[4:7], labels[4:7])

    np.testing.assert_array_equal(images[4:7], content["train"][0][3:])
    assert not images[:4].any()
    assert not images[7:].any()
    assert not labels[[0, 1, 2, 3, 7, 8]].any()


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("place", [0, 11, 12, 100, 3 * IMAGE_BYTES - 1, 3 * IMAGE_BYTES + 3])
def test_a_block_with_an_altered_byte_is_refused_and_its_neighbours_are_not(tmp_path, place):
    manifest, _ = write(tmp_path, train=6)
    first, second = records.blocks(tmp_path, manifest, "train")
    content = bytearray(first.path.read_bytes())
    content[second.offset + place] ^= 16
    first.path.write_bytes(content)

    read_block(first)
    with pytest.raises(InputError, match=f"{first.path} is damaged .*imp prepare"):
        read_block(second)


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("lost", [1, 4, 5, 200])
def test_a_block_that_is_cut_short_is_refused(tmp_path, lost):
    manifest, _ = write(tmp_path, train=6)
    block = records.blocks(tmp_path, manifest, "train")[1]
    block.path.write_bytes(block.path.read_bytes()[:-lost])

    with pytest.raises(InputError, match="is damaged"):
        read_block(block)


def test_a_block_of_a_missing_shard_is_refused(tmp_path):
    manifest, _ = write(tmp_path, train=2)
    (block,) = records.blocks(tmp_path, manifest, "train")
    block.path.unlink()

    with pytest.raises(InputError, match=f"{block.path} is missing"):
        read_block(block)


def test_what_blocks_there_are_is_known_without_the_shards(tmp_path):
    manifest, _ = write(tmp_path, train=records.BLOCK + 2, test=1)
    for shard in manifest.shards:
        (tmp_path / shard.name).unlink()

    assert [block.count for block in records.blocks(tmp_path, manifest, "train")] == [records.BLOCK, 2]
    assert records.blocks(tmp_path, manifest, "validation") == []


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("place", [0, 40, -1])
def test_a_shard_is_checked_whole(tmp_path, place):
    manifest, _ = write(tmp_path, train=7)
    first, second = manifest.shards
    content = bytearray((tmp_path / first.name).read_bytes())
    content[place] ^= 1
    (tmp_path / first.name).write_bytes(content)

    records.check_shard(tmp_path, manifest, second)
    with pytest.raises(InputError, match=f"{first.name} is damaged"):
        records.check_shard(tmp_path, manifest, first)


def test_a_shard_is_whole_or_not_there(tmp_path):
    def breaking():
        yield np.zeros(SHAPE, np.uint8), 0
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left") as error:
        records.write_shard(tmp_path / "train-00000.tfrecord", "train", breaking())

    assert error.value.filename == str(tmp_path / "train-00000.tfrecord")
    assert list(tmp_path.iterdir()) == []


def test_writing_leaves_no_temporary_files(tmp_path):
    write(tmp_path, train=3)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "train-00000.tfrecord"]


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["shards"][0].update(name="../train-00000.tfrecord"),
        lambda manifest: manifest["shards"][0].update(name="/train-00000.tfrecord"),
        lambda manifest: manifest.update(shape=[-4, 5, 3]),
        lambda manifest: manifest.update(shape=[0, 5, 3]),
    ],
)
def test_a_manifest_that_leads_elsewhere_or_to_images_of_no_size_is_refused(tmp_path, change):
    write(tmp_path, train=3)
    altered_manifest(tmp_path, change)

    with pytest.raises(InputError, match="have no size, or its shards lie elsewhere"):
        records.read_manifest(tmp_path)
