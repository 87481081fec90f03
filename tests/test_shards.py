"""One shard: made from images, noted when done, found again, and made again where it lacks images."""

import numpy as np
import pytest

from data_prep import records
from data_prep.images import Images
from data_prep.shards import made_before, make
from data_prep.sources import Pictures
from lottery.base import files

NAMES = [f"image {index}" for index in range(6)]
NOTE = ".train-00000.tfrecord.done"


def job(folder, pictures=None, labels=range(6), shape=(8, 8, 3)):
    images = list(np.random.default_rng(0).integers(0, 256, (6, 9, 12, 3)).astype(np.uint8))
    part = Pictures(NAMES, pictures or images)
    return Images(folder, "train-00000.tfrecord", "train", 6, part, shape, np.array(labels, np.int32))


def damaged():
    """The job's images, of which two cannot be decoded."""
    pictures = [np.full((8, 8), 40 * index, np.uint8) for index in range(6)]
    pictures[1] = pictures[4] = np.zeros((8, 8, 3), np.float32)
    return pictures


def test_images_that_cannot_be_decoded_are_left_out_and_named(tmp_path):
    made = make(job(tmp_path, damaged()))

    images, labels = records.read_split(tmp_path, records.Manifest((8, 8, 3), [], [made.shard], {}), "train")
    assert images[:, 0, 0, 0].tolist() == [0, 80, 120, 200]
    assert labels.tolist() == [0, 2, 3, 5]
    assert [(bad.split, bad.name) for bad in made.bad] == [("train", "image 1"), ("train", "image 4")]
    assert (made.shard.count, made.count) == (4, 6)


@pytest.mark.parametrize("note", ["", "{}"])
def test_a_note_that_no_shard_left_is_no_note(tmp_path, note):
    make(job(tmp_path))
    (tmp_path / NOTE).write_text(note)

    assert made_before(job(tmp_path)) is None


@pytest.mark.parametrize("note", [{}, {"shard": 5, "bad": []}], ids=str)
def test_a_note_that_makes_no_sense_is_no_note(tmp_path, note):
    make(job(tmp_path))
    files.write_json(tmp_path / NOTE, note)

    assert made_before(job(tmp_path)) is None


def test_the_note_comes_after_the_shard(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "write_shard", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make(job(tmp_path))

    assert list(tmp_path.iterdir()) == []


def test_odd_metadata_of_an_image_is_no_news(tmp_path, recwarn):
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("P", (8, 8)).save(file, "PNG", transparency=b"\1\2\3")

    make(job(tmp_path, [file.getvalue()] * 6))

    assert not recwarn.list
    assert made_before(job(tmp_path)).shard.is_whole(tmp_path)
