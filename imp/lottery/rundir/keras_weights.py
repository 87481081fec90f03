"""The weights in an HDF5 file of Keras's (`.weights.h5`, or that in a `.keras` file), without a network to put them into."""

from typing import IO

import h5py

from lottery.pruning.state import Arrays


def read(file: IO[bytes]) -> Arrays:
    """Its arrays, by the name of their layer and their place in it (`Conv1/0`); those of an optimizer are left out. Raises
    ValueError where an array is in another file, one holds no numbers, or two layers have one name; and what h5py raises for a
    file that is damaged. Links are not followed."""
    arrays: Arrays = {}

    def take(path: str, item: h5py.Group | h5py.Dataset) -> None:
        if not isinstance(item, h5py.Dataset) or path.split("/")[0] == "optimizer":
            return
        if item.external or item.is_virtual:
            raise ValueError(f"{path} is in another file")
        if item.dtype.kind in "OSU":  # texts, and references to objects
            raise ValueError(f"{path} holds no numbers")
        name = f"{item.parent.attrs.get('name', item.parent.name)}/{path.rpartition('/')[2]}"
        if name in arrays:
            raise ValueError(f"several layers are called {name.rpartition('/')[0]}")
        arrays[name] = item[()]

    with h5py.File(file, "r") as content:
        content.visititems(take)
    return arrays
