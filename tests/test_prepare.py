"""Preparing a set: one size, three stratified splits, done once, and gone on with after any stop."""

import collections
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from helpers import file_bytes, flip
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from data_prep import images, records, sources
from data_prep import prepare as preparing
from data_prep.images import stratified, subset
from data_prep.prepare import Means, Settings, settings_of
from lottery.base import files
from lottery.base.errors import InputError, one_line

DIGITS = Settings("digits", 8, 0.2, 0.2, 0)
GREY = dataclasses.replace(DIGITS, channels=1)
SPLITS = ("train", "validation", "test")


def prepare(settings, folder, max_bad=0.001, **options):
    """The set, made by this process alone, so that a patch reaches all of it."""
    return preparing.prepare(settings, folder, Means(workers=1, max_bad=max_bad), **options)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The digits at their own size, prepared once: folder and manifest."""
    folder = tmp_path_factory.mktemp("data") / "digits-8"
    return folder, prepare(DIGITS, folder)


def read(folder, manifest):
    return {split: records.read_split(folder, manifest, split) for split in SPLITS}


def raw_digits():
    """The digits as they come, as grey images of 0 .. 255, and their labels."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.floor(bunch.images * 255 / 16 + 0.5).astype(np.uint8), bunch.target


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        (DIGITS, "digits-8"),
        (Settings("tfds:imagenet_resized/64x64", 64), "tfds-imagenet_resized-64x64-64"),
        (Settings("tfds:mnist", 28, channels=1, classes=2), "tfds-mnist-28-grey-first2"),
        (Settings("folder:some/where/photos", 64), "folder-photos-64"),
        (Settings("arrays:some/where/photos.npz", 64, classes=10), "arrays-photos-64-first10"),
        (Settings("tfds:mnist[10%:20%]", 28, examples=500), "tfds-mnist-10pct..20pct-28-500-examples"),
        (Settings("digits", 8, examples=500, label_noise=0.125), "digits-8-500-examples-12.5pct-noise"),
        (Settings("digits", 8, hardest=0.5, scores="a.csv"), "digits-8-hardest-50pct"),
        (Settings("digits", 8, easiest=500.0, scores="a.csv"), "digits-8-easiest-500"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_folder_of_a_set_says_what_and_how_large(settings, folder):
    assert settings.folder(Path("data")) == Path("data", folder)


def test_the_current_folder_has_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert Settings("folder:.", 8).folder(Path()) == Path(f"folder-{tmp_path.name}-8")


def test_the_three_splits_of_the_digits_are_all_1797_images_each_once(digits):
    images, labels = raw_digits()

    found = collections.Counter(
        (image.tobytes(), int(label)) for part in read(*digits).values() for image, label in zip(*part, strict=True)
    )

    expected = np.repeat(images[..., None], 3, axis=-1)
    assert found == collections.Counter((image.tobytes(), int(label)) for image, label in zip(expected, labels, strict=True))
    assert sum(found.values()) == 1797


def test_a_part_of_the_training_images_leaves_the_others_as_they_are(digits, tmp_path):
    some = dataclasses.replace(DIGITS, examples=333)
    every, part = read(*digits), read(tmp_path, prepare(some, tmp_path))

    assert all(np.array_equal(*both) for split in SPLITS[1:] for both in zip(every[split], part[split], strict=True))
    whole, held = ({image.tobytes() for image in one["train"][0]} for one in (every, part))
    labels = part["train"][1]
    assert len(labels) == len(held) == 333
    assert held < whole
    shares = 333 * np.bincount(every["train"][1]) / len(every["train"][1])
    assert (np.abs(np.bincount(labels) - shares) < 1).all()
    with pytest.raises(InputError, match=r"data\.examples is 1152, but there are 1151 training examples"):
        prepare(dataclasses.replace(DIGITS, examples=1152), tmp_path / "more")
    with pytest.raises(InputError, match=r"data\.examples is 9, but there are 10 classes"):
        prepare(dataclasses.replace(DIGITS, examples=9), tmp_path / "fewer")
    with pytest.raises(InputError, match=r"data\.examples 333 there, 0 wanted"):
        prepare(DIGITS, tmp_path)


def test_label_noise_turns_a_share_of_the_training_labels_alone_into_other_classes(digits, tmp_path):
    clean = read(*digits)
    little, much = (
        read(tmp_path / str(share), prepare(dataclasses.replace(DIGITS, label_noise=share), tmp_path / str(share)))
        for share in (0.2, 0.6)
    )

    for noisy, share in ((little, 0.2), (much, 0.6)):
        assert all(np.array_equal(clean[split][0], noisy[split][0]) for split in SPLITS)
        assert all(np.array_equal(clean[split][1], noisy[split][1]) for split in SPLITS[1:])
        turned = clean["train"][1] != noisy["train"][1]
        assert abs(turned.mean() - share) < 4 * math.sqrt(share * (1 - share) / len(turned))
        by = (noisy["train"][1] - clean["train"][1])[turned] % 10  # 1 .. 9, each as often as the others
        assert (np.abs(np.bincount(by, minlength=10)[1:] - len(by) / 9) < 4 * math.sqrt(len(by) / 9)).all()
    first = clean["train"][1] != little["train"][1]
    assert np.array_equal(little["train"][1][first], much["train"][1][first])
    with pytest.raises(InputError, match=r"data\.label_noise 0\.2 there, 0\.0 wanted"):
        prepare(DIGITS, tmp_path / "0.2")


def test_noise_of_a_label_depends_on_its_seed_and_place_alone():
    labels = np.zeros(1000, np.int32)
    noisy = images.noisy(labels, 0.3, 5, seed=1)

    assert np.array_equal(images.noisy(labels[:400], 0.3, 5, seed=1), noisy[:400])
    assert not np.array_equal(images.noisy(labels, 0.3, 5, seed=2), noisy)
    assert set(noisy) == {0, 1, 2, 3, 4}


def test_what_a_set_will_hold_is_known_before(digits):
    made, expected = digits[1], preparing.expected(DIGITS)

    assert [expected.count(split) for split in SPLITS] == [made.count(split) for split in SPLITS]
    assert (expected.classes, expected.shape, expected.bytes) == (made.classes, made.shape, made.bytes)


def test_the_manifest_says_what_the_set_is(digits):
    _, manifest = digits

    assert manifest.shape == (8, 8, 3)
    assert manifest.classes == [str(digit) for digit in range(10)]
    assert settings_of(manifest) == DIGITS
    assert set(manifest.made_by) == {"pillow", "libjpeg", "numpy"}
    assert manifest.bad == []
    assert sum(manifest.count(split) for split in SPLITS) == 1797


@pytest.fixture(scope="module")
def grey(tmp_path_factory):
    """The digits in one channel: folder and manifest."""
    folder = tmp_path_factory.mktemp("data") / "digits-8-grey"
    return folder, prepare(GREY, folder)


def test_a_grey_set_has_one_channel_of_the_same_images_in_the_same_order(digits, grey):
    three, one = read(*digits), read(*grey)

    assert grey[1].shape == (8, 8, 1)
    assert settings_of(records.read_manifest(grey[0])) == GREY
    for split in SPLITS:
        np.testing.assert_array_equal(np.repeat(one[split][0], 3, axis=-1), three[split][0])
        np.testing.assert_array_equal(one[split][1], three[split][1])


def test_a_set_of_other_channels_is_refused_and_a_manifest_that_says_none_is_of_three(digits, grey, tmp_path):
    folder, manifest = digits
    made_with = {key: value for key, value in manifest.made_with.items() if key != "channels"}
    earlier = dataclasses.replace(manifest, made_with=made_with)
    records.write_manifest(tmp_path, earlier)

    assert settings_of(earlier) == DIGITS
    assert preparing.existing(DIGITS, tmp_path) == earlier
    for place in (folder, tmp_path):
        with pytest.raises(InputError, match=r"other settings \(data\.channels 3 there, 1 wanted\)"):
            preparing.existing(GREY, place)
    with pytest.raises(InputError, match=r"other settings \(data\.channels 1 there, 3 wanted\)"):
        preparing.existing(DIGITS, grey[0])


@dataclasses.dataclass(frozen=True)
class Noise:
    """A split of noise images that are called 0, 1, 2; with `bad`, those cannot be decoded."""

    labels: np.ndarray
    mixed: bool = True
    fingerprint: str = "noise"
    bad: tuple[int, ...] = ()

    def part(self, indices):
        images = np.random.default_rng(0).integers(0, 256, (len(self.labels), 9, 12, 3)).astype(np.uint8)
        pictures = [b"" if index in self.bad else images[index] for index in indices]
        return sources.Pictures([str(index) for index in indices], pictures)


@pytest.fixture
def source(monkeypatch):
    """A function that makes the source `noise` have these labels to train on, and these to test on (None: no such split)."""

    def become(train, test=None, classes=2, **options):
        held_out = None if test is None else Noise(np.array(test, np.int32), **options)
        made = sources.Source([str(label) for label in range(classes)], Noise(np.array(train, np.int32), **options), held_out)
        monkeypatch.setattr(images, "open_source", lambda *_: made)

    return become


@pytest.fixture
def small_shards(monkeypatch):
    """Blocks of 2 images of 8x8 and shards of 4."""
    monkeypatch.setattr(records, "BLOCK", 2)
    monkeypatch.setattr(records, "SHARD_BYTES", 4 * (4 + 8 * 8 * 3))


NOISE = Settings("noise", 8, 0.2, 0.5, 0)
ALTERNATELY = [0, 1] * 10


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_test_split_of_the_source_is_kept_whole(source, tmp_path):
    source(ALTERNATELY, [1, 0, 0, 1])

    manifest = prepare(NOISE, tmp_path)

    assert [manifest.count(split) for split in SPLITS] == [16, 4, 4]
    assert records.read_split(tmp_path, manifest, "test")[1].tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("mixed", [True, False])
def test_the_first_classes_are_kept_with_their_names_and_splits(source, tmp_path, mixed):
    source([0, 1, 2, 3] * 10, [3, 2, 1, 0, 1], classes=4, mixed=mixed)

    manifest = prepare(dataclasses.replace(NOISE, classes=2), tmp_path)

    assert manifest.classes == ["0", "1"]
    assert [manifest.count(split) for split in SPLITS] == [16, 4, 3]
    labels = {split: np.bincount(part[1], minlength=4).tolist() for split, part in read(tmp_path, manifest).items()}
    assert labels == {"train": [8, 8, 0, 0], "validation": [2, 2, 0, 0], "test": [1, 2, 0, 0]}


@pytest.mark.parametrize(
    ("train", "test", "kept", "words"),
    [
        (ALTERNATELY, None, 3, "noise has 2 classes, not 3: lower --classes"),
        ([-1, *ALTERNATELY], [0, 1], 0, "the train split of noise has images without a class"),
        ([], [0, 1], 0, "the train split of noise would be empty"),
        (ALTERNATELY, [], 0, "the test split of noise would be empty"),
        ([*ALTERNATELY, 2, 2], [2, 2], 2, "the test split of noise would be empty: change --val or --test"),
        (ALTERNATELY, [0, 1], 1, "noise gives a single class, 0: a network needs two"),
    ],
)
def test_a_source_that_gives_no_three_splits_of_classes_is_refused_before_anything_is_written(
    source, tmp_path, train, test, kept, words
):
    source(train, test, classes=max(2, len(set(train) - {-1})))

    with pytest.raises(InputError, match=words):
        prepare(dataclasses.replace(NOISE, classes=kept), tmp_path / "noise")

    assert not (tmp_path / "noise").exists()


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    images = pictures(tmp_path / "images")
    before = sorted(images.rglob("*"))

    with pytest.raises(InputError, match=r"images holds other things .*name a new or empty folder with --out"):
        prepare(Settings(f"folder:{images}", 8), images)

    assert sorted(images.rglob("*")) == before


def test_a_lost_shard_is_not_made_of_other_images_and_the_others_stay(tmp_path):
    images, folder = pictures(tmp_path / "images"), tmp_path / "set"
    settings = Settings(f"folder:{images}", 8)
    prepare(settings, folder)
    (folder / "train-00000.tfrecord").unlink()
    next(images.glob("*/*.png")).unlink()
    before = file_bytes(folder)

    with pytest.raises(InputError, match=r"images is another now: bring the old one back"):
        prepare(settings, folder)

    assert file_bytes(folder) == before


def test_sorted_images_are_mixed_and_mixed_ones_keep_their_order(source, tmp_path):
    by_class = [0] * 100 + [1] * 100
    source(by_class, by_class, mixed=False)
    mixed = prepare(NOISE, tmp_path / "mixed")
    again = prepare(NOISE, tmp_path / "again")
    other = prepare(dataclasses.replace(NOISE, split_seed=1), tmp_path / "other")
    source(by_class, by_class, mixed=True)
    kept = prepare(NOISE, tmp_path / "kept")

    labels = records.read_split(tmp_path / "mixed", mixed, "train")[1]
    assert 50 < (labels[1:] != labels[:-1]).sum() < 110
    assert mixed == again
    assert mixed.shards[0].sha256 != other.shards[0].sha256
    assert (np.diff(records.read_split(tmp_path / "kept", kept, "train")[1]) >= 0).all()


def pictures(root, count=12, side=10):
    """A folder of `count` images in two classes."""
    for index in range(count):
        path = root / ("cat", "dog")[index % 2] / f"{index:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(index).integers(0, 256, (side, side, 3)).astype(np.uint8)).save(path)
    return root


@pytest.mark.usefixtures("small_shards")
def test_progress_counts_the_images_that_are_still_to_be_made(tmp_path):
    settings = Settings(f"folder:{pictures(tmp_path / 'images', 40)}", 8)
    told = []

    def begin(total):
        told.append(total)
        return told.append

    prepare(settings, tmp_path / "set", begin=begin)
    assert told[0] == sum(told[1:]) == 40
    (tmp_path / "set/train-00001.tfrecord").unlink()
    prepare(settings, tmp_path / "set", begin=begin)
    assert told[-2:] == [4, 4]


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize(
    ("lost", "how", "broken"),
    [
        ("train-00001.tfrecord", "gone", []),
        ("test-00000.tfrecord", "cut", []),
        ("train-00001.tfrecord", "gone", ["cat/004.png"]),
    ],
)
def test_a_finished_set_that_lacks_a_shard_gets_just_that_one_back_though_it_lacked_images(tmp_path, lost, how, broken):
    root, folder = pictures(tmp_path / "images", 40), tmp_path / "set"
    for name in broken:
        (root / name).write_bytes(b"text")
    settings = Settings(f"folder:{root}", 8)
    manifest = prepare(settings, folder, max_bad=0.05)
    before = file_bytes(folder)
    times = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    if how == "gone":
        (folder / lost).unlink()
    else:
        (folder / lost).write_bytes(before[lost][:-1])

    assert prepare(settings, folder, max_bad=0.05) == manifest

    assert len(manifest.bad) == len(broken)
    assert file_bytes(folder) == before
    after = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {name for name in after if after[name] != times[name]} == {lost}


def test_a_shard_made_again_of_other_images_is_refused(tmp_path):
    settings, folder = Settings(f"folder:{pictures(tmp_path / 'images')}", 8), tmp_path / "set"
    prepare(settings, folder)
    (folder / "train-00000.tfrecord").unlink()
    for path in (tmp_path / "images").glob("*/*.png"):
        Image.new("RGB", (8, 8)).save(path)

    with pytest.raises(InputError, match=r"not what its manifest says.*\(pillow .*\); remove that folder"):
        prepare(settings, folder)
    assert not (folder / "train-00000.tfrecord").exists()


def interrupted(settings, folder, monkeypatch, after):
    """Prepare the set and stop, as a killed process does, once `after` shards are there."""
    from data_prep import shards

    def stop(jobs, workers):
        yield from map(shards.make, jobs[:after])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shards, "run", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(settings, folder)


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize(("after", "harmed"), [(0, []), (3, []), (3, ["train-00001.tfrecord"])])
def test_a_stopped_preparation_goes_on_and_ends_with_the_same_bytes_also_where_a_shard_is_not_what_its_note_says(
    tmp_path, monkeypatch, after, harmed
):
    settings = Settings(f"folder:{pictures(tmp_path / 'images', 40)}", 8)
    prepare(settings, tmp_path / "undisturbed")
    interrupted(settings, tmp_path / "set", monkeypatch, after)
    (tmp_path / "set/.train-00009.tfrecord.9.tmp").write_bytes(b"half")
    for name in harmed:
        flip(tmp_path / "set" / name)
    shards = (tmp_path / "set").glob("*.tfrecord")
    times = {path.name: path.stat().st_mtime_ns for path in shards if path.name not in harmed}

    prepare(settings, tmp_path / "set")

    assert len(times) == after - len(harmed)
    assert all((tmp_path / "set" / name).stat().st_mtime_ns == time for name, time in times.items())
    assert file_bytes(tmp_path / "set") == file_bytes(tmp_path / "undisturbed")


@pytest.mark.usefixtures("small_shards")
def test_a_preparation_is_begun_again_when_the_images_are_others(tmp_path, monkeypatch):
    settings = Settings(f"folder:{pictures(tmp_path / 'images', 40)}", 8)
    interrupted(settings, tmp_path / "set", monkeypatch, 3)
    pictures(tmp_path / "images", 44)

    prepare(settings, tmp_path / "set")
    prepare(settings, tmp_path / "undisturbed")

    assert file_bytes(tmp_path / "set") == file_bytes(tmp_path / "undisturbed")


@pytest.mark.usefixtures("small_shards")
def test_a_preparation_is_begun_again_when_the_decoder_is_another(tmp_path, monkeypatch):
    settings = Settings(f"folder:{pictures(tmp_path / 'images', 40)}", 8)
    with monkeypatch.context() as patched:
        patched.setattr(images, "_versions", lambda: {"pillow": "1.0"})
        interrupted(settings, tmp_path / "set", monkeypatch, 3)
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "set").glob("*.tfrecord")}

    prepare(settings, tmp_path / "set")

    assert all((tmp_path / "set" / name).stat().st_mtime_ns > time for name, time in times.items())


@pytest.mark.usefixtures("small_shards")
def test_a_preparation_begun_with_other_settings_is_refused(tmp_path, monkeypatch):
    settings = Settings(f"folder:{pictures(tmp_path / 'images', 40)}", 8)
    interrupted(settings, tmp_path / "set", monkeypatch, 3)
    before = file_bytes(tmp_path / "set")

    with pytest.raises(InputError, match=r"made with other settings \(data\.size 8 there, 9 wanted\): keep to those"):
        prepare(dataclasses.replace(settings, size=9), tmp_path / "set")
    assert file_bytes(tmp_path / "set") == before


def test_a_shard_of_unknown_origin_is_made_anew(source, tmp_path):
    source(ALTERNATELY)
    (tmp_path / "train-00000.tfrecord").write_bytes(b"half")
    (tmp_path / ".train-00001.tfrecord.9.tmp").write_bytes(b"half")

    manifest = prepare(NOISE, tmp_path)

    assert len(records.read_split(tmp_path, manifest, "train")[0]) == 8
    assert names(tmp_path) == ["manifest.json", "test-00000.tfrecord", "train-00000.tfrecord", "validation-00000.tfrecord"]


def test_an_input_error_stops_it_and_names_the_picture(tmp_path):
    root = pictures(tmp_path / "images", 40)
    (root / "dog/bad.png").symlink_to("/proc/self/mem")  # of whose first byte the kernel says EIO

    with pytest.raises(OSError, match="Input/output error") as failure:
        prepare(Settings(f"folder:{root}", 8), tmp_path / "set", max_bad=1)

    assert one_line(failure.value) == f"{root / 'dog/bad.png'}: Input/output error; mend that and run the command again"


@pytest.mark.usefixtures("small_shards")
def test_too_many_bad_images_stop_it_and_once_mended_it_goes_on(tmp_path):
    root = pictures(tmp_path / "images", 40)
    good = (root / "cat/004.png").read_bytes()
    (root / "cat/004.png").write_bytes(b"text")
    settings, folder = Settings(f"folder:{root}", 8), tmp_path / "set"

    with pytest.raises(InputError) as refusal:
        prepare(settings, folder)
    assert "1 of 40 images cannot be decoded so far, more than --max-bad 0.001 allows (cat/004.png: " in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not (folder / "manifest.json").exists()

    (root / "cat/004.png").write_bytes(good)
    prepare(settings, folder)
    prepare(settings, tmp_path / "undisturbed")
    assert file_bytes(folder) == file_bytes(tmp_path / "undisturbed")


def test_a_split_of_which_no_image_can_be_decoded_is_refused(source, tmp_path):
    source(ALTERNATELY, [0, 1], bad=(0, 1))

    with pytest.raises(InputError, match="nothing of the test split of noise can be read"):
        prepare(NOISE, tmp_path, max_bad=1.0)


@pytest.mark.usefixtures("small_shards")
def test_a_shard_of_which_no_image_can_be_decoded_is_not_left_behind(source, tmp_path):
    source(ALTERNATELY, [0, 1] * 4, bad=(0, 1, 2, 3))

    manifest = prepare(NOISE, tmp_path, max_bad=1.0)

    assert sorted(path.name for path in tmp_path.glob("*.tfrecord")) == sorted(shard.name for shard in manifest.shards)


def test_a_manifest_that_does_not_say_its_settings_is_refused(digits, tmp_path):
    manifest = files.read_json(digits[0] / "manifest.json")
    files.write_json(tmp_path / "manifest.json", {**manifest, "made_with": {"folder": "x"}})

    with pytest.raises(InputError, match="does not say what they were made from"):
        settings_of(records.read_manifest(tmp_path))
    with pytest.raises(InputError, match="made with other settings"):
        prepare(DIGITS, tmp_path)


@given(
    labels=hnp.arrays(np.int32, st.integers(0, 60), elements=st.integers(0, 4)),
    fraction=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_stratifying_marks_the_same_share_of_each_class(labels, fraction, seed):
    marked = stratified(labels, fraction, seed)

    assert (marked.dtype, marked.shape) == (bool, labels.shape)
    for label in set(labels.tolist()):
        assert marked[labels == label].sum() == round(fraction * int((labels == label).sum()))
    np.testing.assert_array_equal(marked, stratified(labels, fraction, seed))


@given(hnp.arrays(np.int32, st.integers(1, 200), elements=st.integers(0, 4)), st.data())
def test_a_subset_has_so_many_and_each_class_its_share_to_within_one(labels, data):
    count = data.draw(st.integers(0, len(labels)))
    marked = subset(labels, count, 3)

    assert marked.sum() == count
    for label in np.unique(labels):
        assert abs(marked[labels == label].sum() - count * (labels == label).mean()) < 1
    np.testing.assert_array_equal(marked, subset(labels, count, 3))


def test_another_seed_marks_other_examples():
    labels = np.arange(200) % 5

    assert not np.array_equal(subset(labels, 100, 3), subset(labels, 100, 4))


def test_a_class_is_split_alike_whatever_the_other_classes():
    labels = np.array([0] * 50 + [1] * 50)

    np.testing.assert_array_equal(stratified(labels, 0.3, 7)[:50], stratified(labels[:50], 0.3, 7))
