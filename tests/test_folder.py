"""Folders of image files, one per class."""

import errno
import os
import pickle
import re

import numpy as np
import pytest
from PIL import Image

from data_prep.pictures import pixels
from data_prep.sources import open_source
from lottery.base.errors import InputError


def tree(root, *names):
    """Files below `root`; image i, in the order given, is full of i."""
    for value, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix:
            Image.fromarray(np.full((6, 8, 3), value, np.uint8)).save(path, "PNG")
        else:
            path.write_text("not an image")
    return root


def read(split):
    """What each image of a split is called, is full of, and is labelled."""
    pictures = split.part(np.arange(len(split.labels)))()
    values = [int(pixels(picture, 6)[0, 0, 0]) for picture in pictures.pictures]
    return list(zip(pictures.names, values, split.labels.tolist(), strict=True))


def refused(folder):
    with pytest.raises(InputError) as refusal:
        open_source(f"folder:{folder}")
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_a_folder_per_class_is_one_split_sorted_by_class_and_name(tmp_path):
    tree(tmp_path, "dog/b.png", "cat/2.png", "dog/a.png", "cat/10.png")

    source = open_source(f"folder:{tmp_path}")

    assert source.classes == ["cat", "dog"]
    assert source.test is None
    assert source.train.labels.dtype == np.int32
    assert not source.train.mixed
    assert read(source.train) == [("cat/10.png", 3, 0), ("cat/2.png", 1, 0), ("dog/a.png", 2, 1), ("dog/b.png", 0, 1)]


@pytest.mark.parametrize("held_out", ["test", "val", "validation"])
def test_images_to_test_on_lie_beside_those_to_train_on(tmp_path, held_out):
    tree(tmp_path, "train/cat/a.png", "train/dog/a.png", f"{held_out}/dog/a.png", f"{held_out}/cat/a.png")

    source = open_source(f"folder:{tmp_path}")

    assert source.classes == ["cat", "dog"]
    assert read(source.train) == [("train/cat/a.png", 0, 0), ("train/dog/a.png", 1, 1)]
    assert read(source.test) == [(f"{held_out}/cat/a.png", 3, 0), (f"{held_out}/dog/a.png", 2, 1)]


@pytest.mark.parametrize(
    ("names", "classes", "train", "test"),
    [
        (["train/cat/a.png", "val/cat/a.png", "test/cat/a.png"], ["cat"], ["train/cat/a.png"], ["test/cat/a.png"]),
        (["train/cat/a.png"], ["cat"], ["train/cat/a.png"], None),
        (["control/a.png", "test/a.png"], ["control", "test"], ["control/a.png", "test/a.png"], None),
        (["cat/one/deep/a.png", "cat/b.png"], ["cat"], ["cat/b.png", "cat/one/deep/a.png"], None),
        (["cat/a.png", "cat/.b.png", "cat/README", ".hidden/a.png", "cat/notes.txt"], ["cat"], ["cat/a.png"], None),
        (["cat/a.png", "cat/.ipynb_checkpoints/a-checkpoint.png"], ["cat"], ["cat/a.png"], None),
        (["schöne Katze/ä b.png", "犬/一.png"], ["schöne Katze", "犬"], ["schöne Katze/ä b.png", "犬/一.png"], None),
    ],
    ids=[
        "test before val",
        "train alone",
        "a class called test",
        "subfolders",
        "other files",
        "hidden folders",
        "any alphabet",
    ],
)
def test_a_tree_of_files_is_classes_and_splits(tmp_path, names, classes, train, test):
    source = open_source(f"folder:{tree(tmp_path, *names)}")

    assert source.classes == classes
    assert [name for name, _, _ in read(source.train)] == train
    assert (source.test and [name for name, _, _ in read(source.test)]) == test


def test_images_are_known_by_their_suffix_in_either_case(tmp_path):
    suffixes = ("JPG", "Jpeg", "PNG", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "pbm", "pnm")
    tree(tmp_path, *(f"cat/a.{suffix}" for suffix in suffixes))

    assert len(open_source(f"folder:{tmp_path}").train.labels) == len(suffixes)


def test_links_to_folders_and_files_are_followed(tmp_path):
    tree(tmp_path, "store/dogs/a.png", "store/cats/a.png", "set/fox/a.png")
    (tmp_path / "set/dog").symlink_to(tmp_path / "store/dogs", target_is_directory=True)
    (tmp_path / "set/cat").mkdir()
    (tmp_path / "set/cat/more").symlink_to("../../store/cats", target_is_directory=True)
    (tmp_path / "set/cat/one.png").symlink_to(tmp_path / "store/dogs/a.png")

    source = open_source(f"folder:{tmp_path / 'set'}")

    assert read(source.train) == [("cat/more/a.png", 1, 0), ("cat/one.png", 0, 0), ("dog/a.png", 0, 1), ("fox/a.png", 2, 2)]


def test_a_link_to_a_folder_above_repeats_no_image(tmp_path):
    tree(tmp_path, "cat/a.png", "dog/a.png")
    (tmp_path / "cat/all").symlink_to(tmp_path / "cat", target_is_directory=True)

    assert [name for name, _, _ in read(open_source(f"folder:{tmp_path}").train)] == ["cat/a.png", "dog/a.png"]


def test_some_images_are_asked_for_by_index(tmp_path):
    tree(tmp_path, "cat/a.png", "cat/b.png", "dog/a.png", "dog/b.png")
    split = open_source(f"folder:{tmp_path}").train

    assert list(split.part(np.array([3, 0]))().names) == ["dog/b.png", "cat/a.png"]


def test_a_part_travels_to_another_process_from_a_relative_folder(tmp_path, monkeypatch):
    tree(tmp_path, "set/cat/a.png")
    monkeypatch.chdir(tmp_path)
    part = open_source("folder:set").train.part(np.array([0]))
    monkeypatch.chdir("/")

    assert (pixels(pickle.loads(pickle.dumps(part))().pictures[0], 6) == 0).all()


def test_the_fingerprint_changes_with_the_files(tmp_path):
    tree(tmp_path, "cat/a.png", "dog/a.png")
    before = open_source(f"folder:{tmp_path}").train.fingerprint

    assert open_source(f"folder:{tmp_path}").train.fingerprint == before
    tree(tmp_path, "cat/b.png")
    assert open_source(f"folder:{tmp_path}").train.fingerprint != before


def test_what_is_not_a_folder_is_refused(tmp_path):
    (tmp_path / "file.png").write_text("")

    assert "file.png is not a folder" in refused(tmp_path / "file.png")
    assert "nowhere is not a folder" in refused(tmp_path / "nowhere")


def test_a_folder_without_class_folders_is_refused(tmp_path):
    assert "has no class folders" in refused(tmp_path)
    tree(tmp_path, "a.png", "b.png")
    assert "has no class folders" in refused(tmp_path)


@pytest.mark.parametrize("split", ["", "train/", "val/"])
def test_a_class_without_an_image_is_refused(tmp_path, split):
    trained = ["train/cat/a.png", "train/dog/b.png"] if split == "val/" else []
    tree(tmp_path, *trained, f"{split}cat/a.png", f"{split}dog/notes.txt")

    assert f"{tmp_path / split / 'dog'} has no image" in refused(tmp_path)


def test_images_to_test_on_without_any_to_train_on_are_refused(tmp_path):
    assert "has val/ but no train/" in refused(tree(tmp_path, "val/cat/a.png"))


def test_a_class_to_test_on_that_is_not_trained_on_is_refused(tmp_path):
    tree(tmp_path, "train/cat/a.png", "val/cat/a.png", "val/fox/a.png")

    assert "val has the class fox, which" in refused(tmp_path)


CLASSES = ["cat/a.png", "dog/a.png"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([*CLASSES, "cat/a.HEIC", "cat/b.heic", "cat/deep/c.txt", "dog/README"], ".heic (2), .txt (1), no ending (1)"),
        ([*CLASSES, "b.png", "labels.csv"], "beside classes (2)"),
        (["train/dog/a.png", "boxes/a.xml", "boxes/b.xml", "LICENCE"], ".xml (2), beside train/ (1)"),
        (["train/dog/a.png", "test/dog/a.png", "val/x/a.png", "val/y/b.png", "val/y/c.txt"], "images in val/ (2), .txt (1)"),
        ([*CLASSES, *(f"cat/a.{number}" for number in range(10))], ", ".join([*(f".{n} (1)" for n in range(8)), "others (2)"])),
        ([*CLASSES, "cat/.a", ".git/x.png"], ""),
    ],
    ids=["other endings", "loose files", "a folder without images", "validation", "many endings", "hidden files"],
)
def test_what_is_passed_over_is_counted(tmp_path, names, expected):
    assert open_source(f"folder:{tree(tmp_path, *names)}").passed_over == expected


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["train/cat/a.png", "valid/cat/a.png"], "has valid/ beside train/: splits are called train/ and test/, val/ or"),
        (["bus/a.png", "car/a.png", "train/a.png"], "has bus/ beside train/.*put all classes into train/ if train is one"),
        (["Train/cat/a.png", "Val/cat/a.png"], "has Train/ but no train/: .*; rename it if it is a class"),
        (["cat/a.png", "dog/a.png", "test/cat/a.png"], "has test/ but no train/"),
        (["train/cat/a.png", "train/val2017/cat/a.png"], "train has val2017/ but no train/"),
    ],
)
def test_what_looks_like_a_split_where_none_is_expected_is_refused(tmp_path, names, words):
    tree(tmp_path, *names)

    assert re.search(words, refused(tmp_path))


def test_a_class_may_be_called_like_a_split_where_nothing_else_looks_like_one(tmp_path):
    tree(tmp_path, "train/bus/a.png", "train/train/a.png", "train/test/a.png", "val/bus/a.png")

    assert open_source(f"folder:{tmp_path}").classes == ["bus", "test", "train"]


@pytest.mark.parametrize("place", ["cat", "cat/deep", "val"])
def test_a_folder_that_cannot_be_listed_is_refused(tmp_path, monkeypatch, place):
    top = "train/" if place.startswith(("train", "val")) else ""
    tree(tmp_path, f"{top}cat/a.png", f"{top}dog/a.png", *([f"{place}/b.png"] if place != "train" else []))
    listed = os.scandir

    def scandir(folder):
        if str(folder) == str(tmp_path / place):
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr(os, "scandir", scandir)

    assert f"{tmp_path / place} cannot be read (Permission denied)" in refused(tmp_path)


@pytest.mark.parametrize("place", ["dog", "cat/deep"])
def test_a_link_that_leads_nowhere_is_refused(tmp_path, place):
    tree(tmp_path, "cat/a.png", "fox/a.png")
    (tmp_path / place).symlink_to("nowhere")

    assert f"{tmp_path / place} cannot be read" in refused(tmp_path)
