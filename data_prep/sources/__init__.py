"""Where images come from. Reading labels and naming images is a source's job; decoding, resizing and splitting is not."""

from pathlib import Path

from data_prep.errors import InputError
from data_prep.sources.source import Part, Picture, Pictures, Source, Split

__all__ = ["PATHS", "Part", "Picture", "Pictures", "Source", "Split", "check_name", "open_source"]

PATHS = ("folder", "arrays")  # kinds whose name is a path
KINDS = "`digits`, `tfds:NAME` (such as `tfds:cifar10`), `folder:DIR` or `arrays:FILE.npz`"


def check_name(name: str) -> None:
    """Raise InputError for what cannot be a source, with what was perhaps meant."""
    kind, _, rest = name.partition(":")
    if name != "digits" and not (kind in ("tfds", *PATHS) and rest):
        meant = "folder" if name and Path(name).is_dir() else "arrays" if name.endswith(".npz") else None
        raise InputError(f"unknown data source {name!r}: " + (f"did you mean {meant}:{name}?" if meant else f"write {KINDS}"))


def open_source(name: str, data_dir: Path | None = None) -> Source:
    """The source called `name`, one of `KINDS`. `data_dir` is where TensorFlow Datasets keeps its files.

    Raises InputError when there is no such source, or when its images have no classes.
    """
    check_name(name)
    kind, _, rest = name.partition(":")
    if name == "digits":
        from data_prep.sources.digits import digits

        return digits()
    if kind == "tfds":
        from data_prep.sources.tfds import tfds_source

        return tfds_source(rest, data_dir)
    if kind == "folder":
        from data_prep.sources.folder import folder_source

        return folder_source(Path(rest).expanduser())
    from data_prep.sources.arrays import arrays_source

    return arrays_source(Path(rest).expanduser())
