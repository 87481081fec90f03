"""Decoding: whatever the format, one image becomes uint8 [size, size, channels] by one rule, or is refused with one line."""

import functools
import io
import os
import struct
import subprocess
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image

from data_prep.pictures import Undecodable, pixels


def noise(*shape, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, np.iinfo(dtype).max + 1, shape).astype(dtype)


def smooth(height, width):
    """An image without fine detail, as photographs mostly are: a JPEG of it is close to it."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    return np.stack([255 * x, 255 * y, 127.5 + 127.5 * np.sin(9 * x + 5 * y)], -1).round().astype(np.uint8)


def grey(image):
    return np.repeat(image[..., None], 3, axis=-1)


def saved(image, format, **options):
    """The bytes of a file that holds `image`."""
    file = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(file, format, **options)
    return file.getvalue()


def png(values):
    """A PNG of 16 bits a channel, [height, width, channels], which Pillow reads but does not write."""
    height, width, channels = values.shape
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def hamming(line, size):
    """A line brought down to `size` values with Pillow's Hamming filter: a kernel one output pixel wide, to either side."""
    scale = len(line) / size
    away = np.abs(np.arange(len(line)) + 0.5 - (np.arange(size)[:, None] + 0.5) * scale) / scale
    weights = np.where(away < 1, np.sinc(away) * (0.54 + 0.46 * np.cos(np.pi * away)), 0)
    return np.floor((weights / weights.sum(axis=1, keepdims=True)) @ line + 0.5)


def bicubic(image, size):
    """Catmull-Rom interpolation (Keys 1981, a = -0.5) of [n, n] to [size, size]: rows first, each pass rounded to uint8."""

    def weight(distance):
        near = 1.5 * distance**3 - 2.5 * distance**2 + 1
        far = -0.5 * distance**3 + 2.5 * distance**2 - 4 * distance + 2
        return np.where(distance < 1, near, np.where(distance < 2, far, 0))

    centres = (np.arange(size) + 0.5) * len(image) / size
    weights = weight(np.abs(np.arange(len(image)) + 0.5 - centres[:, None]))
    weights /= weights.sum(axis=1, keepdims=True)
    along_rows = np.clip(np.floor(image @ weights.T + 0.5), 0, 255)
    return np.clip(np.floor(weights @ along_rows + 0.5), 0, 255).astype(np.uint8)


def luma(image):
    """ITU-R 601-2, in sixteen bits of fixed point: [..., 3] to [..., 1], uint8."""
    return ((image.astype(np.int64) @ [19595, 38470, 7471] + 0x8000) >> 16).astype(np.uint8)[..., None]


COLOUR, GREY, TRANSPARENT = noise(8, 8, 3), noise(8, 8), noise(8, 8, 4)
PALETTE = Image.fromarray(COLOUR).quantize(64)
BITS = Image.fromarray(GREY > 127)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (saved(COLOUR, "PNG"), COLOUR),
        (saved(COLOUR, "TIFF", compression="tiff_lzw"), COLOUR),
        (saved(COLOUR, "WEBP", lossless=True), COLOUR),
        (saved(GREY, "PNG"), grey(GREY)),
        (saved(PALETTE, "PNG", transparency=0), np.asarray(PALETTE.convert("RGB"))),
        (saved(TRANSPARENT, "PNG"), TRANSPARENT[..., :3]),
        (saved(Image.fromarray(TRANSPARENT[..., :2]), "PNG"), grey(TRANSPARENT[..., 0])),
        (saved(BITS, "PNG"), grey(np.where(GREY > 127, 255, 0))),
    ],
    ids=[
        *("png", "tiff", "webp", "grey", "palette with transparency", "rgba", "grey with transparency", "1-bit"),
    ],
)
def test_an_image_without_loss_keeps_its_pixels_in_three_channels_and_becomes_luma_in_one(tmp_path, content, expected):
    (tmp_path / "image").write_bytes(content)

    for picture in (content, tmp_path / "image"):
        found, grey = pixels(picture, 8), pixels(picture, 8, channels=1)
        assert found.dtype == grey.dtype == np.uint8
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(grey, luma(expected))


def test_colour_becomes_luma_before_it_is_resized():
    image = noise(24, 24, 3)

    np.testing.assert_array_equal(pixels(image, 9, channels=1), pixels(luma(image), 9, channels=1))


SMOOTH = smooth(40, 40)


def test_of_an_animation_the_first_frame_counts():
    frames = [Image.fromarray(np.full((8, 8), value, np.uint8)) for value in (10, 200, 90)]

    for format, options in (("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {}), ("TIFF", {}), ("MPO", {})):
        content = saved(frames[0], format, save_all=True, append_images=frames[1:], **options)
        assert (pixels(content, 8) == 10).all(), format


DEEP = noise(16, 16, dtype=np.uint16)
DEEP.flat[:5] = 0, 128, 129, 65406, 65535  # where rounding turns, and the ends


@pytest.mark.parametrize(
    "picture",
    [saved(DEEP, "PNG"), saved(DEEP.astype(np.int32), "TIFF"), DEEP, DEEP[..., None]],
    ids=["png", "tiff of 32 bits", "array", "array with a channel"],
)
def test_sixteen_bits_of_grey_are_divided_by_257_and_rounded(picture):
    np.testing.assert_array_equal(pixels(picture, 16), grey(np.rint(DEEP / 257)))
    np.testing.assert_array_equal(pixels(picture, 16, channels=1)[..., 0], np.rint(DEEP / 257))


def test_sixteen_bits_of_colour_are_divided_by_257_and_rounded_in_an_array():
    deep = noise(16, 16, 3, dtype=np.uint16)

    np.testing.assert_array_equal(pixels(deep, 16), np.rint(deep / 257))


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_sixteen_bits_of_colour_or_transparency_in_a_png_are_right_to_one_level(channels):
    deep = noise(16, 16, channels, dtype=np.uint16)

    expected = np.rint(deep / 257)[..., :3] if channels > 2 else grey(np.rint(deep[..., 0] / 257))
    assert np.abs(pixels(png(deep), 16) - expected).max() <= 1


@pytest.mark.parametrize(
    ("image", "words"),
    [
        *((np.full((8, 8), value, np.int32), "more than 16 bits") for value in (-1, 65536)),
        (np.ones((8, 8), np.float32), "floating-point"),
    ],
)
def test_pixels_that_do_not_fit_into_sixteen_bits_are_refused(image, words):
    with pytest.raises(Undecodable, match=words):
        pixels(saved(image, "TIFF"), 8)


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 1), (8, 8, 3), (8, 8, 4)])
def test_an_array_is_taken_as_it_is(shape):
    image = noise(*shape)
    image.flags.writeable = False

    expected = image[..., :3] if shape[2:] in ((3,), (4,)) else grey(image.reshape(8, 8))
    np.testing.assert_array_equal(pixels(image, 8), expected)


def test_an_image_is_brought_down_with_the_hamming_filter():
    line = noise(24)

    found = pixels(np.tile(line, (24, 1)), 9)

    np.testing.assert_array_equal(found, grey(np.tile(hamming(line.astype(float), 9), (9, 1))))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("length", "first"), [(12, 2), (13, 2.5), (40, 16)])
def test_the_largest_centred_square_is_kept(turned, length, first):
    image = np.tile(np.arange(length, dtype=np.uint8) * 4, (8, 1))

    found = pixels(image.T if turned else image, 8)[..., 0]

    row = found.T[0] if turned else found[0]
    assert (found == (row[:, None] if turned else row)).all()
    np.testing.assert_allclose(row, (first + np.arange(8)) * 4, atol=1)


def digit(index):
    from sklearn.datasets import load_digits

    return np.rint(load_digits().images[index] * (255 / 16)).astype(np.uint8)


def test_a_digit_is_enlarged_by_bicubic_interpolation_to_the_pixel():
    np.testing.assert_array_equal(pixels(digit(0), 32), grey(bicubic(digit(0).astype(float), 32)))


UPRIGHT = smooth(24, 40)
STORED = {
    1: UPRIGHT,
    2: UPRIGHT[:, ::-1],
    3: UPRIGHT[::-1, ::-1],
    4: UPRIGHT[::-1],
    5: UPRIGHT.transpose(1, 0, 2),
    6: UPRIGHT.transpose(1, 0, 2)[::-1],
    7: UPRIGHT.transpose(1, 0, 2)[::-1, ::-1],
    8: UPRIGHT.transpose(1, 0, 2)[:, ::-1],
}


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize(("format", "size"), [("PNG", 24), ("JPEG", 12), ("WEBP", 24), ("TIFF", 12)])
def test_the_orientation_of_exif_is_applied(orientation, format, size):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    options = {"PNG": {}, "TIFF": {}, "WEBP": {"lossless": True}, "JPEG": {"quality": 100, "subsampling": 0}}[format]

    found = pixels(saved(np.ascontiguousarray(STORED[orientation]), format, exif=exif, **options), size)

    assert np.abs(found.astype(int) - pixels(UPRIGHT, size)).max() <= (6 if format == "JPEG" else 1)


@pytest.mark.parametrize("size", [16, 100])
def test_a_jpeg_decoded_at_a_reduced_scale_is_close_to_one_decoded_whole(size):
    image = np.clip(smooth(400, 600) * 0.8 + np.random.default_rng(0).normal(0, 10, (400, 600, 3)), 0, 255).astype(np.uint8)
    content = saved(image, "JPEG", quality=90)

    found = pixels(content, size)

    whole = pixels(np.asarray(Image.open(io.BytesIO(content))), size)
    difference = np.abs(found.astype(int) - whole)
    assert difference.mean() < 2
    assert difference.max() <= 16


WHOLE = saved(smooth(40, 40), "JPEG")
BROKEN = {
    "truncated.jpg": WHOLE[: len(WHOLE) // 2],
    "header.jpg": WHOLE[:30],
    "truncated.png": saved(noise(40, 40, 3), "PNG")[:500],
    "empty.jpg": b"",
    "text.png": b"not an image\nat all\n",
    "random.jpg": noise(500).tobytes(),
}


FAR_AWAY = b"II+\0\x08\0\0\0" + struct.pack("<Q", 1 << 50)  # a BigTIFF whose directory lies further than files reach
BROKEN["far.tif"] = FAR_AWAY
BROKEN["drawing.jpg"] = saved(noise(8, 8, 3), "EPS")  # for which Pillow would start Ghostscript
ELSEWHERE = {
    "device.png": "/dev/zero",
    "loop.png": "loop.png",
    "through.png": "text.png/through.png",
    "long.png": "long" * 80,
}


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("name", [*BROKEN, *ELSEWHERE, "folder.png", "missing.png", "pipe.png"])
def test_a_file_or_bytes_that_are_no_image_are_refused_in_one_line_that_is_the_same_every_time(tmp_path, name):
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "text.png").touch()
    if name in ELSEWHERE:
        (tmp_path / name).symlink_to(ELSEWHERE[name])
    if name in BROKEN:
        (tmp_path / name).write_bytes(BROKEN[name])

    for picture in (tmp_path / name, *([BROKEN[name]] if name in BROKEN else [])):
        with pytest.raises(Undecodable) as refusal:
            pixels(picture, 8)
        assert str(refusal.value)
        assert "\n" not in str(refusal.value)
        assert "object at" not in str(refusal.value)


def test_formats_that_the_page_does_not_list_are_not_even_tried(monkeypatch):
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *options, **others: started.append(options))
    monkeypatch.setattr("PIL.EpsImagePlugin.has_ghostscript", lambda: True)

    for format in ("EPS", "PDF", "ICNS", "TGA", "JPEG2000"):
        with pytest.raises(Undecodable, match="unknown format"):
            pixels(saved(noise(16, 16, 3), format), 8)
    assert not started


def test_where_the_machine_is_at_fault_the_error_names_the_picture(tmp_path):
    (tmp_path / "a.png").symlink_to("/proc/self/mem")  # of whose first byte the kernel says EIO

    with pytest.raises(OSError, match="Input/output error") as failure:
        pixels(tmp_path / "a.png", 8)

    assert failure.value.filename == str(tmp_path / "a.png")


@pytest.mark.parametrize("image", [np.zeros((8, 8, 5), np.uint8), np.zeros((8, 8, 3), np.float32)])
def test_an_array_of_another_kind_is_refused(image):
    with pytest.raises(Undecodable):
        pixels(image, 8)


@functools.cache
def whole(format):
    options = {"JPEG": {"progressive": True}, "TIFF": {"compression": "tiff_deflate"}}.get(format, {})
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    return saved(smooth(30, 20), format, **options, **({} if format == "GIF" else {"exif": exif}))


@settings(max_examples=100)
@given(
    format=st.sampled_from(["PNG", "JPEG", "GIF", "WEBP", "TIFF"]),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=8),
    kept=st.one_of(st.just(1.0), st.floats(0, 1)),
)
def test_altered_bytes_decode_to_the_right_shape_or_are_refused(format, flips, kept):
    content = bytearray(whole(format))
    for place, change in flips:
        content[int(place * len(content))] ^= change

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = pixels(bytes(content[: int(kept * len(content))]), 8)
        except Undecodable as refusal:
            assert "\n" not in str(refusal)  # noqa: PT017
        else:
            assert (found.shape, found.dtype) == ((8, 8, 3), np.uint8)
