"""What others call the variables of our networks, and how PyTorch lays them out."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from data_prep.records import Shape
from lottery.experiment import networks
from lottery.pruning.state import State

_LEAVES = {"kernel": "weight", "table": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
_LEAVES |= {"moving_mean": "running_mean", "moving_variance": "running_var"}
_FLAT = "fc1/kernel"  # reads an image's numbers in a row: by pixel here, by channel in PyTorch


class Dialect(NamedTuple):
    """What `title` calls each variable (path -> name), and whether it lays them out as PyTorch does."""

    title: str
    names: dict[str, str]
    is_torch: bool = False


def dialects(model: str, state: State) -> list[Dialect]:
    """All those in which the network `model` (a name in a recipe) has names, `state` being one of it, in its own order: those
    of this package's exports, Keras's by the place in a layer, and PyTorch's where it has a twin there."""
    owned = {f"{group}/{path}": path for group in ("weights", "statistics") for path in getattr(state, group)}
    layers: Counter[str] = Counter()
    places = {}
    for path in owned.values():
        layer = path.rpartition("/")[0].rpartition("/")[2]
        places[path], layers[layer] = f"{layer}/{layers[layer]}", layers[layer] + 1
    found = [Dialect("imp", {path: name for name, path in owned.items()}), Dialect("Keras", places)]
    return found + torch_dialects(model, owned.values())


def torch_dialects(model: str, paths: Iterable[str]) -> list[Dialect]:
    """The names of the variables `paths` in each twin that the network `model` has in PyTorch; the first is exported to.
    A Transformer that normalises before each part has none."""
    paths = list(paths)
    if "norm/gamma" in paths:
        return []
    return [Dialect(title, _named(paths, module), True) for title, module in _TWINS.get(model, {}).items()]


def to_torch(path: str, array: np.ndarray, example: Shape) -> np.ndarray:
    """The variable `path` as PyTorch has it, in a network for examples of this shape; a view where that is possible."""
    if path == _FLAT:
        return array.reshape(*example, -1).transpose(3, 2, 0, 1).reshape(array.shape[1], -1)
    return array.transpose(_axes(path, array.ndim))


def from_torch(path: str, array: np.ndarray, example: Shape) -> np.ndarray:
    """What `to_torch` makes `array` of."""
    if path == _FLAT:
        height, width, channels = example
        return array.reshape(-1, channels, height, width).transpose(2, 3, 1, 0).reshape(-1, len(array))
    return array.transpose(np.argsort(_axes(path, array.ndim)))


def _axes(path: str, rank: int) -> tuple[int, ...]:
    if path.startswith("embedding_"):  # a row for each token or place, here and there
        return tuple(range(rank))
    if rank == 4 and path.endswith("_depthwise/kernel"):  # [height, width, channels, 1] to [channels, 1, height, width]
        return 2, 3, 0, 1
    return (3, 2, 0, 1) if rank == 4 else tuple(reversed(range(rank)))  # a kernel's outputs come first


def _named(paths: Iterable[str], module: Callable[[str], str]) -> dict[str, str]:
    return {path: f"{module(layer)}.{_LEAVES[leaf]}" for path in paths for layer, _, leaf in [path.rpartition("/")]}


def _mobilenet(layer: str) -> str:
    """That of torchvision."""
    ends = {"Conv1": "0.0", "bn_Conv1": "0.1", "Conv_1": "18.0", "Conv_1_bn": "18.1"}
    if layer in ends:
        return f"features.{ends[layer]}"
    if layer == "predictions":
        return "classifier.1"
    block, part = _block_of_mobilenet(layer)
    places = {"expand": "0.0", "expand_BN": "0.1", "depthwise": "1.0", "depthwise_BN": "1.1", "project": "2", "project_BN": "3"}
    if block == 0:
        places = {"depthwise": "0.0", "depthwise_BN": "0.1", "project": "1", "project_BN": "2"}
    return f"features.{block + 1}.conv.{places[part]}"


def _timm_mobilenet(layer: str) -> str:
    ends = {"Conv1": "conv_stem", "bn_Conv1": "bn1", "Conv_1": "conv_head", "Conv_1_bn": "bn2", "predictions": "classifier"}
    if layer in ends:
        return ends[layer]
    block, part = _block_of_mobilenet(layer)
    firsts = (0, 1, 3, 6, 10, 13, 16)  # blocks of the stages
    stage = sum(first <= block for first in firsts) - 1
    steps = ("depthwise", "project") if block == 0 else ("expand", "depthwise", "project")
    convolutions = {"expand": "conv_pw", "depthwise": "conv_dw", "project": "conv_pwl" if block else "conv_pw"}
    step = part.removesuffix("_BN")
    place = f"bn{steps.index(step) + 1}" if part.endswith("_BN") else convolutions[step]
    return f"blocks.{stage}.{block - firsts[stage]}.{place}"


def _block_of_mobilenet(layer: str) -> tuple[int, str]:
    number, part = re.fullmatch(r"(?:block_(\d+)|expanded_conv)_(\w+)", layer).groups()  # type: ignore[union-attr]
    return int(number or 0), part


def _resnet(layer: str) -> str:
    """That of torchvision, and of timm."""
    if layer == "predictions":
        return "fc"
    if layer in ("conv1", "bn1"):
        return layer
    stage, block, part = _block_of_resnet(layer)
    place = {"shortcut": "downsample.0", "shortcut_bn": "downsample.1"}.get(part, part)
    return f"layer{stage}.{block}.{place}"


def _open_lth_resnet(layer: str, blocks: int) -> str:
    """That of open_lth for CIFAR, of so many `blocks` in each stage."""
    ends = {"conv1": "conv", "bn1": "bn", "predictions": "fc"}
    if layer in ends:
        return ends[layer]
    stage, block, part = _block_of_resnet(layer)
    place = {"shortcut": "shortcut.0", "shortcut_bn": "shortcut.1"}.get(part, part)
    return f"blocks.{(stage - 1) * blocks + block}.{place}"


def _block_of_resnet(layer: str) -> tuple[int, int, str]:
    """The stage, from 1, the block in it, from 0, and the part of that."""
    stage, block, part = re.fullmatch(r"stage(\d+)_block(\d+)_(\w+)", layer).groups()  # type: ignore[union-attr]
    return int(stage), int(block) - 1, part


def _open_lth_lenet(layer: str) -> str:
    return "fc" if layer == "predictions" else f"fc_layers.{int(layer.removeprefix('fc')) - 1}"


def _roberta(layer: str) -> str:
    """That of RobertaModel in Hugging Face's Transformers."""
    ends = {"embedding_tokens": "word_embeddings", "embedding_positions": "position_embeddings", "embedding_norm": "LayerNorm"}
    if layer in ends:
        return f"embeddings.{ends[layer]}"
    number, part = re.fullmatch(r"layer_(\d+)_(\w+)", layer).groups()  # type: ignore[union-attr]
    places = {f"attention_{part}": f"attention.self.{part}" for part in ("query", "key", "value")}
    places |= {"attention_output": "attention.output.dense", "attention_norm": "attention.output.LayerNorm"}
    places |= {"feed_forward_in": "intermediate.dense", "feed_forward_out": "output.dense"}
    places |= {"feed_forward_norm": "output.LayerNorm"}
    return f"encoder.layer.{int(number) - 1}.{places[part]}"


# The modules of the twins in PyTorch by the names of our layers.
_TWINS: dict[str, dict[str, Callable[[str], str]]] = {
    "mobilenet_v2": {"torchvision": _mobilenet, "timm": _timm_mobilenet},
    "resnet50": {"torchvision": _resnet},
    "resnet20": {"open_lth": partial(_open_lth_resnet, blocks=3), "torchvision": _resnet},
    "resnet56": {"open_lth": partial(_open_lth_resnet, blocks=9), "torchvision": _resnet},
    "lenet_300_100": {"open_lth": _open_lth_lenet},
    **{name: {"Hugging Face's RoBERTa": _roberta} for name in networks.TRANSFORMERS},
}
