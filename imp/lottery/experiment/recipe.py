"""The recipe: every value an experiment depends on. Each key is one line: its type, its default, and what it means. The
defaults are an experiment, too: a MobileNetV2 on the digits. A command without a recipe uses them."""

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import pydantic
from pydantic import Field

from data_prep import sources
from lottery.base import plugins
from lottery.base.errors import InputError
from lottery.experiment import controls, grids, networks, spaces, tasks
from lottery.experiment.family import ONESHOT, ROUNDS, Family
from lottery.experiment.grids import Grid, Point
from lottery.experiment.keys import AtLeast0, Fractional, Interval, Points, Seed, Table, aside, checked, key, written
from lottery.experiment.objectives import Objective, parse_objective
from lottery.experiment.spaces import Dimension
from lottery.pruning import masks
from lottery.pruning.masks import Scope
from lottery.pruning.state import Arrays, State

if TYPE_CHECKING:
    from data_prep.prepare import AnySettings

MOST = 1_000_000_000  # of whatever a whole number counts
FAMILY_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]*"  # of a folder, and of a table without quotes

OF_IMAGES = (  # keys of data
    *("size", "label_noise", "hardest", "easiest", "scores", "classes", "channels"),
    *("mean", "deviation", "crop", "resized_crop", "flip", "cutout"),
)

Amount = Annotated[float, Field(ge=0, le=MOST)]  # a share below 1, or a number
Positive = Annotated[int, Field(gt=0, le=MOST)]
NotNegative = Annotated[int, Field(ge=0, le=MOST)]
Moderate = Annotated[int, Field(ge=0, le=4096)]  # pixels, channels
Tokens = Annotated[int, Field(ge=3, le=8192)]
Above0 = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Replicates = Annotated[int, Field(gt=0, le=grids.MOST)]
Initializer = Literal["glorot_uniform", "glorot_normal", "he_uniform", "he_normal", "lecun_normal"]
Precision = Literal["float32", "tf32", "mixed_bfloat16", "mixed_float16", "float64"]


def _check_name(text: str) -> None:
    if text == "latest" or not re.fullmatch(r"[A-Za-z0-9][\w.-]*", text):
        raise InputError(f"{text!r} cannot name a run: write letters, digits, '.', '_' and '-' (and not `latest`)")


def name_like(text: str) -> str:
    """A name for a run that is `text` as far as it may be."""
    name = re.sub(r"[^\w.-]", "-", text)
    return name if re.match(r"[A-Za-z0-9]", name) and name != "latest" else f"ticket-{name}"


def _check_family(text: str) -> None:
    if text == "train" or text.startswith("replicate-") or not re.fullmatch(FAMILY_NAME, text):
        raise InputError(f"{text!r} cannot name a family: write letters, digits, '_' and '-' (not `train` or `replicate-`)")


def _check_trackers(names: list[str]) -> None:
    kinds = [name.partition(":")[0] for name in names]
    if twice := [kind for kind in kinds if kinds.count(kind) > 1]:
        raise InputError(f"{twice[0]} is named more than once")


Name = Annotated[str, checked(_check_name)]
Trackers = Annotated[list[str], checked(_check_trackers)]
FamilyName = Annotated[str, checked(_check_family)]
Task = Annotated[str, checked(lambda name: plugins.check(name, tasks.DECIDING, "task"))]
Network = Annotated[str, checked(lambda name: plugins.check(name, networks.KNOWN, "network", networks.SHOWN))]
Source = Annotated[str, checked(sources.check_name)]
OnePoint = Annotated[Point, written(grids.parse_point)]
Judged = Annotated[Objective, written(parse_objective)]
Space = Annotated[list[Annotated[Dimension, written(spaces.parse_dimension)]], pydantic.AfterValidator(spaces.check)]


class Data(Table):
    """Which images, how they are read, and how they are varied."""

    source: Source = key("digits", "digits, tfds:NAME, folder:DIR, arrays:FILE; docstrings, deb-descriptions, candidates:FILE")
    size: Annotated[int, Field(ge=8, le=4096)] = key(32, "height and width, resized (bicubic)")
    validation: Fractional = key(0.2, "share of the training examples to hold out")
    test: Fractional = key(0.2, "share of all examples to test on, if the source has none of its own")
    split_seed: Seed = key(0, "seed that chooses the images held out")
    examples: NotNegative = key(0, "train on this many examples, of each class its share; 0: all")
    label_noise: Fractional = key(0.0, "probability that a training label is turned into another class (He et al. 2022)")
    hardest: Amount = key(0.0, "train on this many images (below 1: this share), those with the highest scores; 0: all")
    easiest: Amount = key(0.0, "train on those with the lowest scores instead")
    scores: str = aside("", "a table of the scores of training images, which `imp el2n` writes in another run")
    classes: NotNegative = key(0, "keep this many classes, the first ones; 0: all")
    channels: Literal[1, 3] = key(3, "3: grey is repeated; 1: colour becomes grey")
    path: str = aside("", "the folder of the records; empty: where `imp prepare` puts them")
    feed: Literal["auto", "memory", "stream"] = aside("auto", "memory, stream; auto: in memory where the images fit the budget")
    budget: Annotated[float, Field(ge=0, le=1e6)] = aside(0.0, "GiB for images in memory; 0: half of what is free")
    shuffle: Positive = key(65_536, "images mixed at a time; a smaller set is permuted as a whole")
    mean: list[float] = key([0.5], "subtracted from pixels of 0 .. 1: one number, or one per channel")
    deviation: list[Above0] = key([0.5], "then pixels are divided by this: the defaults give -1 .. 1")
    crop: Moderate = key(2, "pixels of zero padding before a random crop to the size; 0: no crop")
    resized_crop: Fractional = key(0.0, "smallest area of a random crop, which is then resized (Szegedy et al. 2015); 0: none")
    flip: bool = key(False, "mirror half of the images")
    cutout: Moderate = key(0, "side of a square that is blanked out (DeVries & Taylor 2017); 0: none")

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> "Data":
        if len(self.mean) != len(self.deviation) or len(self.mean) not in (1, self.channels):
            raise InputError(f"mean and deviation need one number each, or {self.channels}, one for each channel")
        if self.crop and self.resized_crop:
            raise InputError("crop and resized_crop exclude each other: set one to 0")
        if [bool(self.hardest), bool(self.easiest)].count(True) != bool(self.scores):
            raise InputError("hardest or easiest, one of them, goes with scores, a file that `imp el2n` writes")
        return self


class Texts(Table):
    """Of a source of texts: their tokens and their candidates."""

    document: Tokens = key(96, "tokens of a document, what is more is cut off")
    candidate: Tokens = key(32, "tokens of its reference and of each candidate")
    candidates: Annotated[int, Field(ge=2, le=256)] = key(8, "candidates of each document")
    vocabulary: Annotated[int, Field(ge=300, le=65_536)] = key(4096, "entries of the tokenizer, which is trained")
    tokenizer: str = aside("", "in place of a trained one: a tokenizer.json, such as RoBERTa's")


class Model(Table):
    """The network, its initialisation and its BatchNorm."""

    name: Network = key("mobilenet_v2", "one of ours, of keras.applications, or package.module:function")
    alpha: Annotated[float, Field(gt=0, le=10)] = key(0.35, "width multiplier of mobilenet_v2")
    width: Moderate = key(0, "channels of the first stage of resnet9, resnet20, resnet56; 0: as published, 64 or 16")
    stem: Literal["standard", "small"] = key("standard", "small: the first convolution keeps the resolution, as for 32x32")
    padding: Literal["same", "symmetric"] = key("same", "where resolution halves; symmetric: as PyTorch, and for sparse LiteRT")
    activation: Literal["relu", "elu", "gelu", "silu"] = key("relu", "of resnet9: relu, elu, gelu, silu")
    whitening: bool = key(False, "resnet9: begin with a fixed layer that whitens the images' 3x3 patches")
    norm: Literal["post", "pre"] = key(
        "post", "of transformers: LayerNorm behind each sum, as RoBERTa has it, or before each part"
    )
    initializer: Initializer = key("glorot_uniform", "glorot_normal, he_uniform, he_normal, lecun_normal")
    weights: str = aside("", "a file of weights, or a folder with model.safetensors, to begin with; empty: they are drawn")
    batchnorm: Literal["local", "synchronised"] = key("local", "statistics of each device's part of a batch, or of all of it")
    batchnorm_momentum: Fractional = key(0.9, "Keras's own 0.999 needs thousands of steps to settle")
    batchnorm_epsilon: Above0 = key(1e-3, "added to the variance")
    batchnorm_gamma: Literal["ones", "uniform"] = key("ones", "uniform: from 0 .. 1, as the literature's PyTorch code draws it")

    @property
    def weights_file(self) -> Path:
        """The file that `weights` names, which in a folder is that which Hugging Face's libraries write."""
        path = Path(self.weights)
        return path / "model.safetensors" if path.is_dir() else path


class Train(Table):
    """How a network is trained: the dense one, and every ticket from its rewind point on."""

    epochs: Positive = key(20, "length of a training")
    steps: NotNegative = key(0, "its length in optimizer steps instead; 0: in epochs")
    batch: Positive = key(64, "examples per step, over all devices")
    optimizer: Literal["sgd", "adam"] = key("sgd", "adam; with decay = decoupled they are SGDW and AdamW")
    learning_rate: Above0 = key(0.05, "the peak of the schedule")
    momentum: Fractional = key(0.9, "of sgd")
    nesterov: bool = key(True, "of sgd")
    schedule: Literal["constant", "step", "cosine", "linear"] = key("cosine", "constant, step, cosine, linear (to 0)")
    milestones: Points = key("10ep,15ep", "of schedule = step: where the learning rate is multiplied by gamma")
    gamma: Annotated[float, Field(gt=0, le=1)] = key(0.1, "of schedule = step: the factor at each milestone")
    warmup: OnePoint = key("3ep", "the learning rate grows from 0 up to this point")
    decay: Literal["l2", "decoupled"] = key(
        "l2", "l2: added to the gradient; decoupled: subtracted from the weights, times the learning rate"
    )
    weight_decay: AtLeast0 = key(5e-4, "strength of the decay")
    decays: Literal["all", "kernels"] = key("all", "kernels: neither biases nor BatchNorm")
    clip_norm: AtLeast0 = key(0.0, "largest norm of the whole gradient; 0: no limit")
    label_smoothing: Fractional = key(0.0, "share of each label that is spread over all classes")
    ema: Fractional = key(0.0, "average weights with this decay, such as 0.99, and evaluate the averages; 0: no average")
    precision: Precision = key("float32", "tf32 (on GPUs), mixed_bfloat16, mixed_float16, float64")
    xla: Literal["auto", "on", "off"] = key("auto", "on, off; auto: on GPUs")
    snapshots: Points = aside("0,10it,1ep,2ep", "points of training at which the dense network is saved, to rewind to")
    evaluate: Interval = key("1ep", "how often validation and test examples are evaluated")
    checkpoint_seconds: AtLeast0 = aside(60.0, "save a running training this often")
    checkpoint_steps: NotNegative = aside(0, "save it also after this many steps; 0: by time only")
    checkpoint_share: Share = aside(0.02, "largest share of the time that saving may take")
    threads: Annotated[int, Field(gt=0, le=1024)] = key(1, "intra-op threads; their number changes the last bits")
    devices: Annotated[int, Field(ge=0, le=64)] = key(0, "how many devices; 0: every GPU, or else one CPU")


class Pruning(Table):
    """Which weights are prunable."""

    scope: Scope = key("kernels", "pointwise: 1x1 convolutions alone; all: every variable, BatchNorm's too", "mask")
    exclude: list[str] = key(["Conv_1/*", "predictions/*"], "shell patterns of variable paths that stay dense", "mask")
    include: list[str] = key([], "shell patterns of trained variables to prune whatever the scope, such as my_layer/w", "mask")
    streams: bool = key(True, "units = channel: those of residual streams may go, each from all branches; false: not", "mask")
    collapse: Share = aside(0.001, "a layer that keeps less than this share is called collapsed")

    def covers(self, path: str, shape: tuple[int, ...]) -> bool:
        """Whether the variable of this path and shape is prunable."""
        return masks.in_scope(path, shape, self.scope, self.exclude, self.include)

    def prunable(self, state: State) -> Arrays:
        """The prunable variables of a network. Raises InputError as `masks.prunable` does."""
        return masks.prunable(state, self.scope, self.exclude, self.include)


class Retrain(Table):
    """How the tickets of all families are trained."""

    optimizer_state: Literal["fresh", "restore"] = key(
        "fresh", "at the rewind point: fresh, or restored as it was there", "ticket"
    )
    order: Literal["fresh", "each", "same"] = key(
        "fresh", "of examples; fresh: one for all tickets; each: one for each mask; same: the dense network's", "ticket"
    )
    compact: Literal["auto", "off"] = key(
        "auto", "units = channel; auto: trained without those that are gone, where it pays; off: as zeros", "ticket"
    )


class Sweep(Table):
    """The search for hyperparameters of `imp sweep`."""

    space: Space = aside(
        [
            "train.learning_rate=0.005..0.5:log",
            "train.weight_decay=1e-05..0.01:log",
            "train.batch=32,64,128",
            "train.label_smoothing=0.0..0.2",
        ],
        "KEY=LOW..HIGH, KEY=LOW..HIGH:log, KEY=A,B,C",
    )
    objective: Judged = aside("dense", "what judges a trial: dense, ticket:q90, ticket:round-03, or ticket:FAMILY/q90")
    trials: Positive = aside(30, "how many trials")
    startup: NotNegative = aside(10, "trials drawn at random, before any is proposed, or stopped by the median")
    pruner: Literal["median", "asha"] = aside("median", "stop a trial below the median of others; asha: below the best quarter")
    grace: OnePoint = aside("2ep", "no trial is stopped before this point")
    classes: NotNegative = aside(0, "train on this many classes only, the first ones; 0: on those of data.classes")


class Track(Table):
    """Where the metrics are also shown while networks train."""

    trackers: Trackers = aside([], "tensorboard, wandb, wandb:offline, or of other packages")
    project: str = aside("lottery", "of Weights & Biases")


class Recipe(Table):
    """An experiment: dense networks, one a replicate, the masks of each family, and every ticket trained from them."""

    name: Name = aside("digits", "of the run, which is in runs/NAME")
    task: Task = key("classification", "what is learnt: classification, ranking, or package.module:Task")
    seed: Seed = key(0, "every random choice derives from it and the replicate's number")
    replicates: Replicates = aside(1, "how often the whole experiment is done, each time with other seeds")
    delta: Share = aside(0.002, "a ticket this much below dense in accuracy (or what else decides) still matches")
    data: Data = Data()
    texts: Texts = Texts()
    model: Model = Model()
    train: Train = Train()
    pruning: Pruning = Pruning()
    retrain: Retrain = Retrain()
    families: dict[FamilyName, Family] = aside({"oneshot": ONESHOT}, "ways to prune, side by side")
    sweep: Sweep = Sweep()
    track: Track = Track()

    def is_compact(self, family: str) -> bool:
        """Whether the networks of `family` may be trained without the channels that are gone."""
        return self.retrain.compact == "auto" and self.families[family].units.is_channel

    @pydantic.model_validator(mode="after")
    def _only_trained_masks_change(self) -> "Recipe":
        if self.pruning.scope == "all" and any(family.changes_masks for family in self.families.values()):
            raise InputError("updates change masks of trained weights alone: set pruning.scope to kernels or pointwise")
        return self

    @pydantic.model_validator(mode="after")
    def _masks_can_be_borrowed(self) -> "Recipe":
        for name, family in self.families.items():
            borrowed = [control for control in family.controls if control in controls.BORROWED]
            if borrowed and self.replicates < 2:
                told = f"families.{name}: control {borrowed[0]} has the mask of another replicate"
                raise InputError(f"{told}: set replicates to 2 or more")
        return self

    @pydantic.model_validator(mode="after")
    def _data_of_one_kind(self) -> "Recipe":
        table, others = ("data", OF_IMAGES) if sources.is_of_texts(self.data.source) else ("texts", tuple(Texts.model_fields))
        if table == "data" and self.sweep.classes:
            raise InputError(f"sweep.classes is of images, and {self.data.source} has texts: leave it out")
        held = getattr(self, table)
        for name in others:
            if getattr(held, name) != type(held).model_fields[name].default:
                kind, own = ("images", "texts") if table == "data" else ("texts", "images")
                raise InputError(f"{table}.{name} is of {kind}, and {self.data.source} has {own}: leave it out")
        return self

    def covers(self, path: str, shape: tuple[int, ...]) -> bool:
        """Whether a mask may cover this trained variable: one of whole channels, or in a file, may cover more."""
        wider = any(one.units.is_channel or one.mask or controls.refill.name in one.controls for one in self.families.values())
        return wider or self.pruning.covers(path, shape)

    def with_one_shot(self) -> "Recipe":
        """The same, with a family of one shot if it has none: what commands about one shot work with."""
        return self._with("oneshot", ONESHOT)

    def with_rounds(self) -> "Recipe":
        """The same, with a family of rounds if it has none: what commands about rounds work with."""
        return self._with("rounds", ROUNDS)

    def _with(self, name: str, family: Family) -> "Recipe":
        """With a family more, if none prunes like it: rewound to its points that are saved, or else to the first that is."""
        if any(one.rounds if family.rounds else one.is_cut_at_once for one in self.families.values()):
            return self
        saved = self.train.snapshots.values
        rewind = [point for point in family.rewind if point in saved] or saved[:1]
        added = family.model_copy(update={"rewind": Grid.of(rewind)})
        return self.model_copy(update={"families": {**self.families, name: added}})

    def records(self) -> "AnySettings":
        """The settings of the prepared set that this recipe trains on."""
        from data_prep.prepare import Settings, TextSettings  # which need Pillow, as recipes do not

        kind = TextSettings if sources.is_of_texts(self.data.source) else Settings
        values = {**self.texts.model_dump(), **self.data.model_dump()}
        return kind(**{field.name: values[field.name] for field in dataclasses.fields(kind)})
