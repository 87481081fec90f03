"""The record format: what is written is read back, by this package and by TensorFlow, and damage is named."""

import json
import struct

import google_crc32c
import numpy as np
import pytest

from data_prep import files, records
from data_prep.errors import InputError

SHAPE = (4, 5, 3)


def examples(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, *SHAPE)).astype(np.uint8), rng.integers(0, 10, count)


def write(folder, **counts):
    """A set with so many images per split; returns its manifest and the examples."""
    content = {split: examples(count, seed) for seed, (split, count) in enumerate(counts.items())}
    shards = [shard for split in counts for shard in records.write_split(folder, split, *content[split])]
    manifest = records.Manifest(SHAPE, [str(label) for label in range(10)], shards, {"source": "noise"})
    records.write_manifest(folder, manifest)
    return manifest, content


@pytest.fixture
def small_shards(monkeypatch):
    """Blocks of 3 images, shards of 7, so that a few images make many of both."""
    monkeypatch.setattr(records, "BLOCK", 3)
    monkeypatch.setattr(records, "IMAGES_PER_SHARD", 7)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 7, 8, 14, 20])
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
        ("train-00000.tfrecord", 7),
        ("train-00001.tfrecord", 7),
        ("train-00002.tfrecord", 2),
        ("test-00000.tfrecord", 1),
    ]
    for shard in manifest.shards:
        content = (tmp_path / shard.name).read_bytes()
        assert (len(content), files.sha256(content)) == (shard.bytes, shard.sha256)


def test_a_manifest_comes_back_as_it_was_written(tmp_path):
    manifest, _ = write(tmp_path, train=3, test=2)

    assert records.read_manifest(tmp_path) == manifest


def test_a_record_is_length_and_payload_each_with_its_masked_crc(tmp_path):
    images = np.arange(np.prod(SHAPE), dtype=np.uint8).reshape(1, *SHAPE)
    records.write_split(tmp_path, "train", images, np.array([7]))

    content = (tmp_path / "train-00000.tfrecord").read_bytes()

    def masked(part):
        crc = google_crc32c.value(part)
        return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

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


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"5",
        b"{}",
        b'{"shape": [4, 5, 3], "classes": [], "shards": []}',
        b'{"shape": 5, "classes": [], "shards": [], "made_with": {}}',
        b'{"shape": [4, 5, 3], "classes": [], "shards": 5, "made_with": {}}',
        b'{"shape": [4, 5, 3], "classes": [], "shards": [5], "made_with": {}}',
        b'{"shape": [4, 5, 3], "classes": [], "shards": [{"name": "a"}], "made_with": {}}',
    ],
)
def test_a_malformed_manifest_is_named(tmp_path, content):
    (tmp_path / "manifest.json").write_bytes(content)

    with pytest.raises(InputError, match=r"manifest\.json"):
        records.read_manifest(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["shards"][0].update(count=4),
        lambda manifest: manifest["shards"][0].update(count=6),
        lambda manifest: manifest.update(shape=[5, 5, 3]),
        lambda manifest: manifest.update(shape=[4, 5, 1]),
    ],
    ids=["fewer images", "more images", "larger images", "fewer channels"],
)
def test_a_manifest_that_does_not_fit_its_shards_is_refused(tmp_path, change):
    write(tmp_path, train=5)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    change(manifest)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))

    assert str(tmp_path) in refused(tmp_path)


def test_writing_leaves_no_temporary_files(tmp_path):
    write(tmp_path, train=3)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "train-00000.tfrecord"]
