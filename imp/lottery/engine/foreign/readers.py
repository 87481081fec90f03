"""Files of weights from elsewhere, as arrays by the names that are in them. Nothing in a file is run, or used as a path. A file
is not to be trusted: it may be cut, or carry code where its kind allows that."""

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from lottery.base import extras
from lottery.base.errors import InputError, first_line
from lottery.pruning.state import Arrays
from lottery.rundir import keras_weights

SAFE_TORCH = (2, 10)  # in earlier ones `weights_only` could be got around
_WRAPPERS = ("state_dict", "model_state_dict", "model")  # under which checkpoints of PyTorch keep the weights
_PREFIXES = ("module.", "model.", "_orig_mod.")  # of networks in a DataParallel, in open_lth's own, and compiled


def read(path: Path) -> Arrays:
    """The arrays of a .keras, .weights.h5, .npz, .safetensors, .pth or .pt file, by name. Raises InputError where it is
    missing, of another kind, damaged, holds anything but arrays, or needs PyTorch and that is not installed."""
    if not path.is_file():
        raise InputError(f"{path} is {'not a file' if path.exists() else 'missing'}: name a file of weights")
    reader = next((reader for ending, reader in READERS.items() if path.name.endswith(ending)), None)
    if reader is None:
        raise InputError(f"{path}: weights are read from {', '.join(READERS)} files, by the ending of their name")
    try:
        return reader(path)
    except InputError:
        raise
    except Exception as error:  # of a library, which is given any bytes at all
        raise InputError(f"{path} cannot be read as weights ({first_line(error)[:200]}): name another file") from error


def _keras(path: Path) -> Arrays:
    with zipfile.ZipFile(path) as archive:
        return keras_weights.read(io.BytesIO(archive.read("model.weights.h5")))


def _weights_h5(path: Path) -> Arrays:
    with path.open("rb") as file:
        return keras_weights.read(file)


def _npz(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # but bytes, of a member without the ending .npy
            raise ValueError(f"{name} is no array")
    return arrays


def _safetensors(path: Path) -> Arrays:
    import ml_dtypes  # noqa: F401, after which NumPy knows the name bfloat16

    with safetensors.safe_open(path, "np") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no dictionary
    return _plain({name: array.astype(np.float32) if array.dtype == "bfloat16" else array for name, array in arrays.items()})


def _torch(path: Path) -> Arrays:
    """The tensors of a file that `torch.save` wrote. Anything else in it, code above all, is refused by PyTorch."""
    extras.check(str(path), "torch")
    import torch

    if tuple(map(int, torch.__version__.split(".")[:2])) < SAFE_TORCH:
        raise InputError(f"{path} is not read by PyTorch {torch.__version__}: `pip install -U torch`; files may harm old ones")
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if not (code := re.search(r"GLOBAL ([\w.]+)", str(error))):
            raise
        raise InputError(f"{path} is not read, as {code[1]} in it is code and no tensor: save the state_dict alone") from error
    for _ in _WRAPPERS:
        saved = next((saved[key] for key in _WRAPPERS if key in saved), saved) if isinstance(saved, dict) else saved
    tensors = {name: one for name, one in saved.items() if isinstance(one, torch.Tensor)} if isinstance(saved, dict) else {}
    if not tensors:
        raise InputError(f"{path} holds no tensors by name: save the state_dict of a network")
    halves = (torch.float16, torch.bfloat16)  # of which NumPy has only one
    return _plain({name: (one.float() if one.dtype in halves else one).detach().numpy() for name, one in tensors.items()})


def _plain(arrays: dict[Any, np.ndarray]) -> Arrays:
    """`arrays` without the prefixes that all names share, and without PyTorch's counts of batches."""
    arrays = {str(name): array for name, array in arrays.items() if not str(name).endswith("num_batches_tracked")}
    while prefix := next((one for one in _PREFIXES if arrays and all(name.startswith(one) for name in arrays)), ""):
        arrays = {name.removeprefix(prefix): array for name, array in arrays.items()}
    return arrays


READERS: dict[str, Callable[[Path], Arrays]] = {
    ".keras": _keras,
    ".weights.h5": _weights_h5,
    ".npz": _npz,
    ".safetensors": _safetensors,
    ".pth": _torch,
    ".pt": _torch,
}
