"""One image, whatever its format, as uint8 [size, size, channels]: three channels (RGB) or one (grey). The rule, for every
source:

1. A JPEG is decoded at the smallest scale (1/1, 1/2, 1/4, 1/8) that is still as large as the result; of an animation, the
   first frame counts.
2. Sixteen bits of grey become eight (x / 257, rounded; of colour, Pillow keeps the upper eight), palettes and CMYK become RGB,
   transparency is dropped. For three channels grey is repeated; for one, RGB becomes luma (Pillow's L: ITU-R 601-2,
   0.299 R + 0.587 G + 0.114 B, rounded) before it is resized.
3. The largest centred square is kept; it is brought down with Pillow's Hamming filter or up with its bicubic one, and left
   as it is at the right size.
4. The orientation that EXIF gives is applied.
"""

import errno
import io
import stat
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from data_prep.sources import Picture
from lottery.base.errors import first_line

FORMATS = ("JPEG", "PNG", "TIFF", "WEBP", "BMP", "GIF", "PPM")  # and no others: for EPS, Pillow would start Ghostscript

_MODES = {1: "L", 3: "RGB"}
_FAULTS = {  # of a picture; of any other, the machine is at fault
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL)
}
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class Undecodable(Exception):
    """An image that cannot be read; the message is the reason, in one line."""


def pixels(picture: Picture, size: int, channels: int = 3) -> np.ndarray:
    """`picture` as uint8 [size, size, channels]; `channels` is 3 or 1. Raises Undecodable, and an OSError that names the
    image's file when not the image but the machine is at fault."""
    try:
        with _opened(picture) as image:
            image.draft(None, (size, size))
            image.load()
            flat = _eight_bits(image)
            method = Image.Resampling.HAMMING if min(flat.size) > size else Image.Resampling.BICUBIC
            square = ImageOps.fit(flat.convert("L") if channels == 1 else flat, (size, size), method)
            turn = _UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
        upright = square if turn is None else square.transpose(turn)
        return np.asarray(upright.convert(_MODES[channels])).reshape(size, size, channels)
    except UnidentifiedImageError:
        raise Undecodable("not an image, or of an unknown format") from None
    except MemoryError:
        raise
    except Exception as error:  # a decoder given arbitrary bytes raises whatever it meets
        if not isinstance(error, OSError) or not error.errno:
            raise Undecodable(first_line(error)) from error
        if error.errno in _FAULTS or not isinstance(picture, Path):
            raise Undecodable(error.strerror) from error
        raise OSError(error.errno, error.strerror, str(picture)) from error


def _opened(picture: Picture) -> Image.Image:
    if isinstance(picture, bytes):
        return Image.open(io.BytesIO(picture), formats=FORMATS)
    if isinstance(picture, Path):
        if not stat.S_ISREG(picture.stat().st_mode):  # to open a pipe would wait for somebody who writes to it
            raise Undecodable("not a file")
        return Image.open(picture, formats=FORMATS)
    if picture.dtype == np.uint16:
        picture = _scaled(picture)
    return Image.fromarray(picture[..., 0] if picture.shape[2:] == (1,) else picture)


def _eight_bits(image: Image.Image) -> Image.Image:
    """`image` in mode L or RGB."""
    if image.mode in ("L", "RGB"):
        return image
    if image.mode.startswith("I"):
        return Image.fromarray(_scaled(np.asarray(image)))
    if image.mode == "F":
        raise ValueError("pixels are floating-point numbers, whose range is not known")
    return image.convert("L" if image.mode in ("1", "LA", "La") else "RGB")


def _scaled(values: np.ndarray) -> np.ndarray:
    """Sixteen bits to eight."""
    if values.min() < 0 or values.max() > 0xFFFF:
        raise ValueError("pixels have more than 16 bits")
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
