"""Feeding: in memory and streamed, the same batches bit for bit; damaged records are named; nothing is left running."""

import dataclasses
import gc
import math
import subprocess
import sys
import threading
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from helpers import clean_environment, flip, tiny_set, wait_for
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import records
from lottery.base.errors import InputError
from lottery.engine import order, stream
from lottery.engine.assembly import make_feed
from lottery.engine.feed import MemoryFeed
from lottery.engine.stream import StreamFeed
from lottery.experiment.recipe import Data

pytestmark = pytest.mark.usefixtures("tensorflow")

ONE = ["CPU:0"]
VARIED = {"size": 8, "crop": 1, "flip": True, "cutout": 2}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(stream, "CHUNK_BYTES", 100 * 196)  # 100 images


def in_memory(prepared, data):
    return MemoryFeed(*prepared, data, tf.distribute.get_strategy())


def streamed(prepared, data):
    return StreamFeed(*prepared, data, ONE)


BOTH = [in_memory, streamed]


def fed(feed, way, steps, counts=(1000,)):
    """Images, labels and extras of the next `steps` steps of `way`, asked for by `counts` in turn."""
    parts, turn = [], 0
    while steps:
        before, count = way.position, min(counts[turn % len(counts)], steps)
        rows, extras = way.take(count)
        assert 1 <= len(rows[0]) <= count
        assert way.position == before + len(rows[0])
        images, labels = feed.examples(list(map(tf.convert_to_tensor, rows)))
        parts.append({"images": images.numpy(), "labels": labels.numpy(), **extras})
        steps, turn = steps - len(rows[0]), turn + 1
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def expected(prepared, data, batch, seed, epoch, first, steps):
    """The same from whole arrays."""
    folder, manifest = prepared
    images, labels = records.read_split(folder, manifest, "train")
    sizes = np.array([block.count for block in records.blocks(folder, manifest, "train")])
    indices = order.shuffled(sizes, data.shuffle, seed, epoch).indices[: len(images) // batch * batch].reshape(-1, batch)
    indices = indices[first : first + steps]
    drawn = {name: values[indices] for name, values in order.draws(data, len(images), seed, epoch).items()}
    return {"images": images[indices], "labels": labels[indices], **drawn}


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@settings(max_examples=40)
@given(
    batch=st.integers(1, 200),
    shuffle=st.sampled_from([1, 250, 300, 500, 700, 1311, 65_536]),
    chunk=st.sampled_from([1, 13, 100, 1000]),
    key=st.tuples(st.integers(0, 5), st.integers(0, 3)),
    start=st.floats(0, 0.999),
    length=st.floats(0.01, 1),
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=4),
)
def test_both_feed_the_batches_of_the_order_from_any_step_on(uneven, batch, shuffle, chunk, key, start, length, counts):
    data = Data(**VARIED, shuffle=shuffle)
    first = int(start * (1311 // batch))
    steps = math.ceil(length * (1311 // batch - first))
    wanted = expected(uneven, data, batch, *key, first, steps)

    with mock.patch.object(stream, "CHUNK_BYTES", chunk * 196):
        for make in BOTH:
            feed = make(uneven, data)
            assert_same(fed(feed, feed.epoch(*key, batch, first), steps, counts), wanted)


@pytest.mark.parametrize("make", BOTH)
def test_a_pass_is_gone_on_with_where_it_stands_and_begun_anew_elsewhere(uneven, make):
    data = Data(**VARIED, shuffle=500)
    feed = make(uneven, data)
    began = feed.epoch(0, 0, 64)
    fed(feed, began, 4)

    assert feed.epoch(0, 0, 64, 4) is began
    for key, first in (((0, 0), 4), ((0, 0), 9), ((0, 0), 2), ((0, 1), 6), ((1, 1), 6), ((0, 0), 0)):
        assert_same(fed(feed, feed.epoch(*key, 64, first), 3, (2,)), expected(uneven, data, 64, *key, first, 3))


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize(("split", "batch"), [("validation", 1), ("test", 64), ("train", 137), ("test", 500)])
def test_a_sweep_has_each_image_once_and_pads_with_the_last(uneven, make, split, batch):
    images, labels = records.read_split(*uneven, split)
    feed = make(uneven, Data(**VARIED, shuffle=300))
    steps = math.ceil(len(images) / batch)
    found = fed(feed, feed.sweep(split, batch), steps, (3,))

    for name, values in (("images", images), ("labels", labels)):
        flat = found[name].reshape(-1, *values.shape[1:])
        np.testing.assert_array_equal(flat[: len(values)], values)
        assert (flat[len(values) :] == values[-1]).all()


@pytest.mark.parametrize("make", BOTH)
def test_a_sweep_between_leaves_an_epoch_where_it_is(uneven, make):
    data = Data(**VARIED, shuffle=300)
    feed = make(uneven, data)
    before = fed(feed, feed.epoch(0, 0, 64), 5)
    fed(feed, feed.sweep("validation", 64), 7)
    after = fed(feed, feed.epoch(0, 0, 64, 5), 5)

    wanted = expected(uneven, data, 64, 0, 0, 0, 10)
    assert_same({name: np.concatenate([before[name], after[name]]) for name in before}, wanted)


def test_each_device_has_all_the_images(uneven):
    devices = ["CPU:0", "CPU:1"]
    strategy = tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())
    feed = MemoryFeed(*uneven, Data(**VARIED), strategy, on_host=False)
    rows, _ = feed.epoch(0, 0, 64).take(2)
    first = [tf.constant(values[0]) for values in rows]

    found = tf.function(lambda: strategy.run(lambda: feed.examples(first)[0]))()

    copies = strategy.experimental_local_results(found)
    assert len(copies) == 2
    for copy in copies:
        np.testing.assert_array_equal(copy.numpy(), expected(uneven, Data(**VARIED), 64, 0, 0, 0, 1)["images"][0])


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def removed(path):
    path.unlink()


DAMAGE = [(flip, "is damaged"), (cut, "is damaged"), (removed, "is missing")]


@pytest.fixture
def own(tmp_path):
    """A set of its own to damage, like `uneven`."""
    return tmp_path, tiny_set(tmp_path, train=1311, others=411, per_shard=600)


@pytest.mark.parametrize(("damage", "words"), DAMAGE)
def test_a_damaged_shard_never_gets_into_memory(own, damage, words):
    name = "train-00001.tfrecord"
    damage(own[0] / name)

    with pytest.raises(InputError, match=f"{name} {words}.*imp prepare"):
        in_memory(own, Data(**VARIED))


@pytest.mark.parametrize(("damage", "words"), DAMAGE)
def test_a_damaged_shard_is_named_in_the_middle_of_a_stream(own, damage, words):
    name = "validation-00000.tfrecord"
    damage(own[0] / name)
    feed = streamed(own, Data(**VARIED, shuffle=300))
    fed(feed, feed.epoch(0, 0, 64), 20)

    with pytest.raises(InputError, match=f"{name} {words}.*imp prepare"):
        fed(feed, feed.sweep("validation", 64), 7)


@pytest.mark.parametrize("shuffle", [300, 65_536])
def test_no_batch_comes_from_a_damaged_block(own, shuffle):
    data = Data(**VARIED, shuffle=shuffle)
    wanted = expected(own, data, 64, 0, 0, 0, 20)
    flip(own[0] / "train-00001.tfrecord")
    feed = streamed(own, data)
    way = feed.epoch(0, 0, 64)

    found = []

    with pytest.raises(InputError, match=r"train-00001\.tfrecord is damaged"):
        found.extend(fed(feed, way, 1)["images"][0] for _ in range(20))

    assert len(found) < 20
    for image, right in zip(found, wanted["images"], strict=False):
        np.testing.assert_array_equal(image, right)


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith(("rows", "shards"))]


@pytest.mark.parametrize("taken", [0, 1, 20])
def test_a_stream_that_is_dropped_leaves_no_thread(uneven, taken):
    others = threads()
    feed = streamed(uneven, Data(**VARIED, shuffle=300))
    way = feed.epoch(0, 0, 64)
    if taken:
        fed(feed, way, taken)
    del feed, way
    gc.collect()

    wait_for(lambda: not set(threads()) - set(others), seconds=10)


ALONE = """
import re, sys
from pathlib import Path
import tensorflow as tf
from data_prep import records
from lottery.engine import stream
from lottery.engine.feed import MemoryFeed
from lottery.experiment.recipe import Data

def memory(kind):
    return int(re.search(rf"{kind}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

folder = Path(sys.argv[1])
manifest = records.read_manifest(folder)
tf.Variable(tf.zeros([10])).scatter_update(tf.IndexedSlices(tf.ones([2]), tf.range(2)))
before = memory("VmRSS")
feed = MemoryFeed(folder, manifest, Data(size=64), tf.distribute.get_strategy())
print((memory("VmHWM") - before) / manifest.bytes)
stream.CHUNK_BYTES = 1_000_000
held = stream.StreamFeed(folder, manifest, Data(size=64, shuffle=300), ["CPU:0"]).epoch(0, 0, 64)
held.take(3)
raise RuntimeError("the loop broke")
"""


@pytest.mark.smoke
def test_filling_the_memory_takes_little_more_than_the_images_and_a_process_ends_in_the_middle_of_a_stream(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (2000, 64, 64, 3), dtype=np.uint8)
    shards = [
        records.write_shard(tmp_path / records.shard_name(split, number), split, zip(images, range(2000), strict=True))
        for split, count in (("train", 10), ("validation", 1), ("test", 1))
        for number in range(count)
    ]
    records.write_manifest(tmp_path, records.Manifest((64, 64, 3), ["0"], shards, {}))

    line = [sys.executable, "-c", ALONE, str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=clean_environment())

    assert 0.9 < float(done.stdout) < 1.25
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "RuntimeError: the loop broke")


def test_a_manifest_that_claims_more_than_there_is_takes_no_memory(own):
    folder, manifest = own
    shard = dataclasses.replace(manifest.shards[0], count=10**12, bytes=10**15)
    claim = dataclasses.replace(manifest, shards=[shard, *manifest.shards[1:]])

    with pytest.raises(InputError, match=f"{shard.name} is damaged .its length differs"):
        make_feed(folder, claim, Data(size=8), tf.distribute.get_strategy(), ONE)
