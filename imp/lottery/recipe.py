"""The recipe: every value an experiment depends on, read from TOML, checked, and written out whole.

The defaults are the digits experiment (pipelines/digits.toml): they are what a command works with when nothing is given.
"""

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import tomli_w
from pydantic import Field

from data_prep import files, sources
from data_prep.errors import InputError
from data_prep.prepare import Settings
from lottery import grids, networks, spaces
from lottery.jobs import Method

MOST = 1_000_000_000  # of whatever a whole number counts
DEEPEST = 8  # tables and lists within each other; a recipe has two

Positive = Annotated[int, Field(gt=0, le=MOST)]
NotNegative = Annotated[int, Field(ge=0, le=MOST)]
Moderate = Annotated[int, Field(ge=0, le=4096)]  # pixels, channels
Seed = Annotated[int, Field(ge=0)]
Fractional = Annotated[float, Field(ge=0, lt=1)]


def _checked(parse: Callable[[Any], object]) -> pydantic.AfterValidator:
    """A text that `parse` accepts; it stays a text, so that a recipe is written out as it was read."""

    def check(text: Any) -> Any:
        parse(text)
        return text

    return pydantic.AfterValidator(check)


def _check_name(text: str) -> None:
    if text == "latest" or not re.fullmatch(r"[A-Za-z0-9][\w.-]*", text):
        raise InputError(f"{text!r} cannot name a run: write letters, digits, '.', '_' and '-' (and not `latest`)")


Name = Annotated[str, _checked(_check_name)]
Network = Annotated[str, _checked(networks.check_name)]
Source = Annotated[str, _checked(sources.check_name)]
QuantileGrid = Annotated[str, _checked(grids.parse_quantiles)]
LevelGrid = Annotated[str, _checked(grids.parse_levels)]
Points = Annotated[str, _checked(grids.parse_points)]
Point = Annotated[str, _checked(grids.parse_point)]
Interval = Annotated[str, _checked(grids.parse_interval)]


class Table(pydantic.BaseModel):
    """A table of a recipe: no unknown keys, no silent conversion."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=True, allow_inf_nan=False)


class Data(Table):
    """Which images, how they are fed, and how each is varied. See `data_prep.prepare.Settings` for the splits."""

    source: Source = "digits"
    size: Annotated[int, Field(ge=8, le=4096)] = 32
    validation: Fractional = 0.2
    test: Fractional = 0.2
    split_seed: Seed = 0
    classes: NotNegative = 0  # the first so many; 0: all
    channels: Literal[1, 3] = 3  # 1: grey
    path: str = ""  # the folder of the records; empty: where `imp prepare` puts them
    feed: Literal["auto", "memory", "stream"] = "auto"  # auto: in memory where it fits the budget
    budget: Annotated[float, Field(ge=0, le=1e6)] = 0.0  # GiB for resident images; 0: half of what is free
    shuffle: Positive = 65_536  # images that are mixed at a time: of a larger set, blocks are drawn at random, then mixed
    mean: list[float] = [0.5]  # taken off the pixels (0 .. 1), of all channels or of each, and ...
    deviation: list[Annotated[float, Field(gt=0)]] = [0.5]  # ... what they are then divided by: -1 .. 1 as it stands
    crop: Moderate = 2  # pixels of zero padding before a random crop to the original size; 0 turns it off
    resized_crop: Fractional = 0.0  # the least area of a random crop that is resized (Szegedy et al. 2015); 0 turns it off
    flip: bool = False  # mirror half of the images
    cutout: Moderate = 0  # side of a square that is blanked out (DeVries & Taylor 2017); 0 turns it off

    @pydantic.model_validator(mode="after")
    def _scaled(self) -> "Data":
        if len(self.mean) != len(self.deviation) or len(self.mean) not in (1, self.channels):
            raise InputError(f"mean and deviation want one number each, or {self.channels}, one a channel")
        return self

    @pydantic.model_validator(mode="after")
    def _one_crop(self) -> "Data":
        if self.crop and self.resized_crop:
            raise InputError("crop and resized_crop exclude each other: set one to 0")
        return self


class Model(Table):
    """The network, its initialisation and its BatchNorm protocol."""

    name: Network = "mobilenet_v2"
    alpha: Annotated[float, Field(gt=0, le=10)] = 0.35  # width multiplier (mobilenet_v2)
    width: Moderate = 0  # channels of the first stage (resnet9, resnet20, resnet56); 0: as published, 64 or 16
    stem: Literal["standard", "small"] = "standard"  # small: the first convolution keeps the resolution
    activation: Literal["relu", "elu", "gelu", "silu"] = "relu"  # resnet9
    whitening: bool = False  # resnet9: begin with a fixed layer that whitens the images' 3x3 patches
    initializer: Literal["glorot_uniform", "glorot_normal", "he_uniform", "he_normal", "lecun_normal"] = "glorot_uniform"
    batchnorm: Literal["local", "synchronised"] = "local"  # by the batch of each replica, or of all
    batchnorm_momentum: Fractional = 0.9  # the share of the old moving statistic kept at each step
    batchnorm_epsilon: Annotated[float, Field(gt=0)] = 1e-3
    batchnorm_gamma: Literal["ones", "uniform"] = "ones"


class Train(Table):
    """How a network is trained: the dense one, and every ticket from its rewind point on."""

    epochs: Positive = 20
    steps: NotNegative = 0  # how many instead of epochs; 0: as many as the epochs have
    batch: Positive = 64
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: Annotated[float, Field(gt=0)] = 0.05
    momentum: Fractional = 0.9  # sgd
    nesterov: bool = True  # sgd
    schedule: Literal["constant", "step", "cosine", "linear"] = "cosine"  # linear: to 0; with a warm-up, a triangle
    milestones: Points = "10ep,15ep"  # step: where the rate is multiplied by gamma
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.1
    warmup: Point = "3ep"  # linear, from 0
    decay: Literal["l2", "decoupled"] = "l2"  # into the gradient, or rate x decay off the weights (SGDW, AdamW)
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    decays: Literal["all", "kernels"] = "all"
    clip_norm: Annotated[float, Field(ge=0)] = 0.0  # the most that the norm of the whole gradient may be; 0: no limit
    label_smoothing: Fractional = 0.0
    ema: Fractional = 0.0  # the share of its average that each weight keeps at a step; 0: no average. Accuracies are its
    precision: Literal["float32", "tf32", "mixed_bfloat16", "mixed_float16", "float64"] = "float32"
    remat: bool = False  # compute each block's activations twice instead of holding them
    xla: Literal["auto", "on", "off"] = "auto"  # auto: on GPUs
    snapshots: Points = "0,10it,1ep,2ep"
    evaluate: Interval = "1ep"  # how often validation and test images are looked at
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 60.0  # save the network under way when so long has passed
    checkpoint_steps: NotNegative = 0  # also after so many steps; 0: by time alone
    checkpoint_share: Annotated[float, Field(ge=0, le=1)] = 0.02  # of the training time, at most so much goes into saving
    threads: Annotated[int, Field(gt=0, le=1024)] = 1  # intra-op; changes the last bits
    devices: Annotated[int, Field(ge=0, le=64)] = 0  # replicas; 0: every GPU, or else one


class Thresholds(Table):
    """Which weights are ranked, and the quantiles of their magnitudes that become masks."""

    quantiles: QuantileGrid = "50,70,80,90,95"
    scope: Literal["kernels", "pointwise", "all"] = "kernels"
    exclude: list[str] = ["Conv_1/*", "predictions/*"]  # shell patterns of variable paths
    layerwise: bool = False
    collapse: Annotated[float, Field(ge=0, le=1)] = 0.001  # a layer that keeps less than this share has collapsed


class Retrain(Table):
    """Which tickets are trained, from what, and beside which controls."""

    rewind: Points = "0,2ep"
    slots: Literal["fresh", "restore"] = "fresh"  # optimizer slots at the rewind point
    order: Literal["fresh", "each", "same"] = "fresh"  # of images: one for all tickets, one for each mask, the dense run's
    controls: list[Literal["reinit", "shuffle", "random"]] = ["reinit", "shuffle"]
    control_quantiles: QuantileGrid = "80"


class Rounds(Table):
    """Iterative magnitude pruning: every round prunes a share of the weights that the one before left, and trains again."""

    levels: Annotated[int, Field(ge=1, le=100)] = 10
    rate: Annotated[float, Field(gt=0, lt=100)] = 20.0  # per cent of the surviving weights that go in each round
    rates: Annotated[list[str], _checked(grids.parse_rates)] = []  # other rates by path, such as predictions/*=10
    methods: list[Method] = ["weights"]  # what follows on pruning: weights, lr, finetune, init
    rewind: Points = "0"
    finetune_rate: Annotated[float, Field(ge=0)] = 0.0  # learning rate of finetune; 0: the last one of the schedule
    controls: list[Literal["reinit", "shuffle", "random"]] = ["reinit"]
    control_levels: LevelGrid = ""  # in which rounds; empty: in that of each headline, once it is known

    @property
    def controls_follow(self) -> bool:
        """Whether controls accompany headlines, which are not known before the tickets are trained."""
        return bool(self.controls) and not grids.parse_levels(self.control_levels)


class Sweep(Table):
    """A search for hyperparameters: `imp sweep`."""

    space: Annotated[list[str], _checked(spaces.parse)] = [  # see spaces.py
        "train.learning_rate=0.005..0.5:log",
        "train.weight_decay=1e-5..1e-2:log",
        "train.batch=32,64,128",
        "train.label_smoothing=0..0.2",
    ]
    trials: Positive = 30
    startup: NotNegative = 10  # trials drawn at random, before any is proposed by what was learnt, or pruned
    grace: Point = "2ep"  # how long every trial is left alone
    classes: NotNegative = 0  # train on the first so many classes alone; 0: on those of data.classes


class Track(Table):
    """Mirrors of the metrics outside the run directory."""

    wandb: Literal["off", "offline", "online"] = "off"
    project: str = "lottery"


class Recipe(Table):
    """An experiment: one dense network a replicate, its masks, and every ticket trained from them."""

    name: Name = "digits"
    seed: Seed = 0
    replicates: Annotated[int, Field(gt=0, le=grids.MOST)] = 1
    pruning: list[Literal["oneshot", "rounds"]] = ["oneshot"]  # what `imp run` does with the dense network
    delta: Annotated[float, Field(ge=0, le=1)] = 0.002  # a ticket this much below dense still matches (accuracy)
    data: Data = Data()
    model: Model = Model()
    train: Train = Train()
    thresholds: Thresholds = Thresholds()
    retrain: Retrain = Retrain()
    rounds: Rounds = Rounds()
    sweep: Sweep = Sweep()
    track: Track = Track()

    def records(self) -> Settings:
        """The settings of the prepared set that this recipe trains on."""
        return Settings(**self.data.model_dump(include={field.name for field in dataclasses.fields(Settings)}))

    def quantiles(self) -> list[Fraction]:
        return grids.parse_quantiles(self.thresholds.quantiles)


_SEAL = "# written by imp; change it with --set. sha256 "

Stage = Literal["train", "thresholds", "retrain", "rounds", "finetune"]

# Keys that say how much to make or how to go about it, not what an output is.
_NOT_IDENTITY = {
    *("data.path", "data.feed", "data.budget"),
    *("train.snapshots", "train.checkpoint_seconds", "train.checkpoint_steps", "train.checkpoint_share"),
    *("thresholds.quantiles", "thresholds.collapse"),
}
_TRAIN = ("seed", "data.", "model.", "train.")
_RETRAIN = (*_TRAIN, "thresholds.", "retrain.slots", "retrain.order")
_ROUNDS = (*_RETRAIN, "rounds.rate")
_DEPENDS: dict[Stage, tuple[str, ...]] = {
    "train": _TRAIN,
    "thresholds": (*_TRAIN, "thresholds."),
    "retrain": _RETRAIN,
    "rounds": _ROUNDS,
    "finetune": (*_ROUNDS, "rounds.finetune_rate"),
}


def depends(recipe: Recipe, stage: Stage) -> dict[str, Any]:
    """The values, by dotted key, that an output of `stage` depends on."""
    left_out = _NOT_IDENTITY | _without_effect(recipe)
    averages = {"averages": "weights and statistics"} if recipe.train.ema else {}
    return averages | {
        key: value
        for key, value in flat(recipe.model_dump()).items()
        if key.startswith(_DEPENDS[stage]) and key not in left_out
    }


def _without_effect(recipe: Recipe) -> set[str]:
    """Keys that the choice of another leaves without a meaning."""
    keys = {"train.epochs" if recipe.train.steps else "train.steps"}
    if recipe.train.schedule != "step":
        keys |= {"train.milestones", "train.gamma"}
    if recipe.train.optimizer != "sgd":
        keys |= {"train.momentum", "train.nesterov"}
    if not recipe.train.momentum:
        keys |= {"train.nesterov"}
    if not recipe.train.weight_decay:
        keys |= {"train.decay", "train.decays"}
    used = ("name", *networks.settings(recipe.model.name))
    return keys | {f"model.{key}" for key in Model.model_fields if key not in used}


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested table as one of dotted keys: `{"train": {"batch": 64}}` -> `{"train.batch": 64}`."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def load(path: Path) -> dict[str, Any]:
    """The table of a TOML file. Raises InputError when it is missing, or not TOML that could be a recipe."""
    try:
        return _parsed(path.read_text())
    except FileNotFoundError:
        raise InputError(f"there is no recipe {path}: see pipelines/ for some") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, not a recipe: name a .toml file, such as pipelines/digits.toml") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    except ValueError as error:
        raise InputError(f"{path} is not a recipe: {error}") from None


def _parsed(text: str) -> dict[str, Any]:
    """The table that `text` holds. Raises ValueError for what is not TOML, is nested ever deeper, or has whole numbers of more
    than the 64 bits that TOML asks for."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    _check_values(table, DEEPEST)
    return table


def _check_values(value: Any, deepest: int) -> None:
    if isinstance(value, dict | list):
        if not deepest:
            raise ValueError("it is nested too deep")
        for inner in value.values() if isinstance(value, dict) else value:
            _check_values(inner, deepest - 1)
    elif isinstance(value, int) and value.bit_length() > 63:
        raise ValueError("it has a whole number of more than 64 bits")


def resolve(table: dict[str, Any], overrides: Iterable[str] = (), origin: str = "recipe", setter: str = "--set") -> Recipe:
    """A checked recipe from `table`, the defaults, and `overrides` such as `train.epochs=5`.

    Raises InputError with the first key that is unknown (and the nearest known one) or of the wrong type; it begins with
    `setter` where the overrides are to blame, else with `origin`.
    """
    known = flat(Recipe().model_dump())
    merged = _copy(table)
    for override in overrides:
        key, value = _parse_override(override, known, setter)
        _put(merged, key, value)
    try:
        return Recipe.model_validate(merged)
    except pydantic.ValidationError as error:
        raise InputError(_explain(error, known, setter if merged != table and _is_valid(table) else origin)) from None


def _is_valid(table: dict[str, Any]) -> bool:
    try:
        Recipe.model_validate(table)
    except pydantic.ValidationError:
        return False
    return True


def to_toml(recipe: Recipe) -> str:
    return tomli_w.dumps(recipe.model_dump())


def sealed(recipe: Recipe) -> str:
    """The TOML of a run's own recipe, with its sha256 in the first line."""
    return f"{_SEAL}{files.sha256(to_toml(recipe).encode())}\n{to_toml(recipe)}"


def load_sealed(path: Path) -> dict[str, Any]:
    """The table of a run's own recipe. Raises InputError when it is not as it was written."""
    seal, _, content = path.read_bytes().partition(b"\n")
    if seal.decode(errors="replace") != _SEAL + files.sha256(content):
        raise InputError(
            f"{path} is damaged or was changed by hand: change a run's values with --set KEY=VALUE, or name its recipe with "
            "--recipe, which takes the place of this one"
        )
    return load(path)


def _copy(table: dict[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, dict) else value for key, value in table.items()}


_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: """a list: write it as in --set 'KEY=["one", "two"]'""",
}


def _parse_override(override: str, known: dict[str, Any], setter: str) -> tuple[str, Any]:
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals:
        raise InputError(f"{setter} {override!r}: write KEY=VALUE, such as train.epochs=5")
    if key not in known:
        raise InputError(f"{setter} {override!r}: unknown key {key!r}{_nearest(key, known)}")
    if isinstance(known[key], str):
        return key, text.strip().strip("\"'")
    try:
        value = _parsed(f"value = {text}")["value"]
    except ValueError:
        raise InputError(f"{setter} {override!r}: {text!r} is not {_KINDS[type(known[key])]}") from None
    return key, float(value) if isinstance(known[key], float) and type(value) is int else value


def _put(table: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            return  # validation names the table that is none
    table[last] = value


def _nearest(key: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if not near:
        leaf = key.rsplit(".", 1)[-1]
        near = [other for other in known if other.rsplit(".", 1)[-1] == leaf]
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"


def _explain(error: pydantic.ValidationError, known: dict[str, Any], origin: str) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        tables = {other.split(".")[0] for other in known if "." in other}
        return f"{origin}: unknown key {key!r}{_nearest(key, [*known, *tables])}"
    cause = first.get("ctx", {}).get("error")
    message = str(cause) if isinstance(cause, InputError) else f"{first['msg']}, not {first['input']!r}"
    return f"{origin}: {key}: {message.removeprefix(f'{key}: ')}"
