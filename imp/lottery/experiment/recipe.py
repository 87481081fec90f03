"""The recipe: every value an experiment depends on. Each key is one line: its type, its default, and what it means. The
defaults are an experiment, too: a MobileNetV2 on the digits. A command without a recipe uses them."""

import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from data_prep import sources
from data_prep.prepare import AnySettings, Settings, TextSettings
from lottery.base import plugins
from lottery.base.errors import InputError
from lottery.experiment import controls, grids, networks, spaces, tasks
from lottery.experiment.grids import ByPath, Grid, Point, Quantile, Round, Sample
from lottery.experiment.spaces import Dimension
from lottery.pruning import criteria, masks, units
from lottery.pruning.allocation import Allocation
from lottery.pruning.masks import Scope
from lottery.pruning.state import Arrays, State
from lottery.pruning.units import Score
from lottery.pruning.updates import Updates

MOST = 1_000_000_000  # of whatever a whole number counts
LONGEST = 1000  # dense trainings
SCORES = ", ".join(criteria.CRITERIA)
START = Grid.of([Point(Fraction(0), "it")])  # of training
FAMILY_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]*"  # of a folder, and of a table without quotes

OF_IMAGES = ("size", "classes", "channels", "mean", "deviation", "crop", "resized_crop", "flip", "cutout")  # keys of data

Output = Literal["dense", "mask", "ticket"]  # each depends on what decides those before it

Positive = Annotated[int, Field(gt=0, le=MOST)]
NotNegative = Annotated[int, Field(ge=0, le=MOST)]
Moderate = Annotated[int, Field(ge=0, le=4096)]  # pixels, channels
Tokens = Annotated[int, Field(ge=3, le=8192)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Fractional = Annotated[float, Field(ge=0, lt=1)]
Above0 = Annotated[float, Field(gt=0)]
AtLeast0 = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Length = Annotated[float, Field(gt=0, le=LONGEST)]
Budget = Annotated[float, Field(ge=0, le=LONGEST)]
Rate = Annotated[float, Field(gt=0, lt=100)]
Copies = Annotated[int, Field(ge=1, le=99)]
Replicates = Annotated[int, Field(gt=0, le=grids.MOST)]
Initializer = Literal["glorot_uniform", "glorot_normal", "he_uniform", "he_normal", "lecun_normal"]
Precision = Literal["float32", "tf32", "mixed_bfloat16", "mixed_float16", "float64"]


def _checked(parse: Callable[[Any], object]) -> pydantic.AfterValidator:
    """A text that `parse` accepts; it stays a text, so that a recipe is written out as it was read."""

    def check(text: Any) -> Any:
        parse(text)
        return text

    return pydantic.AfterValidator(check)


def _written(parse: Callable[..., Any]) -> pydantic.GetPydanticSchema:
    """A value that is written as text. `parse` reads it, perhaps by what else is known (pydantic.ValidationInfo)."""
    text = Annotated[str, pydantic.AfterValidator(parse), pydantic.PlainSerializer(str, return_type=str)]
    return pydantic.GetPydanticSchema(lambda source, handler: handler.generate_schema(text))


def _labelled(text: str, known: pydantic.ValidationInfo) -> Grid[Quantile] | Grid[Round]:
    """Rounds or quantiles, as a family has them; none for an empty text."""
    parse = grids.parse_rounds if known.data.get("rounds") else grids.parse_quantiles
    return parse(text) if text else Grid.of(())


def _check_name(text: str) -> None:
    if text == "latest" or not re.fullmatch(r"[A-Za-z0-9][\w.-]*", text):
        raise InputError(f"{text!r} cannot name a run: write letters, digits, '.', '_' and '-' (and not `latest`)")


def _check_family(text: str) -> None:
    if text == "train" or text.startswith("replicate-") or not re.fullmatch(FAMILY_NAME, text):
        raise InputError(f"{text!r} cannot name a family: write letters, digits, '_' and '-' (not `train` or `replicate-`)")


def _check_trackers(names: list[str]) -> None:
    kinds = [name.partition(":")[0] for name in names]
    if twice := [kind for kind in kinds if kinds.count(kind) > 1]:
        raise InputError(f"{twice[0]} is named more than once")


Name = Annotated[str, _checked(_check_name)]
Trackers = Annotated[list[str], _checked(_check_trackers)]
FamilyName = Annotated[str, _checked(_check_family)]
Task = Annotated[str, _checked(lambda name: plugins.check(name, tasks.DECIDING, "task"))]
Network = Annotated[str, _checked(lambda name: plugins.check(name, networks.KNOWN, "network", networks.SHOWN))]
Source = Annotated[str, _checked(sources.check_name)]
Quantiles = Annotated[Grid[Quantile], _written(lambda text: grids.parse_quantiles(text) if text else Grid.of(()))]
Labelled = Annotated[Grid[Quantile] | Grid[Round], _written(_labelled)]
Points = Annotated[Grid[Point], _written(grids.parse_points)]
OnePoint = Annotated[Point, _written(grids.parse_point)]
Interval = Annotated[Point, _written(grids.parse_interval)]
PointOrEnd = Annotated[Point | Literal["end"], _written(lambda text: text if text == "end" else grids.parse_point(text))]
PruningRate = Annotated[ByPath, _written(grids.parse_rate)]
Density = Annotated[ByPath, _written(grids.parse_density)]
Examples = Annotated[Sample, _written(grids.parse_sample)]
MaskFile = Annotated[str, pydantic.AfterValidator(lambda text: text and str(Path(text)))]
Norm = Literal["batch", "moving"]
Iterations = Annotated[int, Field(ge=0, le=10_000)]
Space = Annotated[list[Annotated[Dimension, _written(spaces.parse_dimension)]], pydantic.AfterValidator(spaces.check)]
Criterion = Annotated[str, _checked(lambda name: plugins.check(name, criteria.CRITERIA, "criterion"))]
Control = Annotated[str, _checked(controls.check_name)]
Units = Annotated[units.Spec, _written(units.parse)]
Target = Literal["weights", "macs"]


def key(default: Any, meaning: str, decides: Output | None = "dense") -> Any:
    """A recipe key that says what `decides` is (and all that is made from that): with another value it is another."""
    return Field(default, description=meaning, json_schema_extra={"decides": decides})


def aside(default: Any, meaning: str) -> Any:
    """A recipe key that says how much to make or how to go about it, not what an output is."""
    return key(default, meaning, None)


class Table(pydantic.BaseModel):
    """A table of a recipe: no unknown keys, no silent conversion."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=True, allow_inf_nan=False)


class Data(Table):
    """Which images, how they are read, and how they are varied."""

    source: Source = key("digits", "digits, tfds:NAME, folder:DIR, arrays:FILE; docstrings, deb-descriptions, candidates:FILE")
    size: Annotated[int, Field(ge=8, le=4096)] = key(32, "height and width, resized (bicubic)")
    validation: Fractional = key(0.2, "share of the training examples to hold out")
    test: Fractional = key(0.2, "share of all examples to test on, if the source has none of its own")
    split_seed: Seed = key(0, "seed that chooses the images held out")
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

    @pydantic.model_validator(mode="before")
    @classmethod
    def _as_before(cls, table: Any) -> Any:
        """Older runs and recipes say that activations are not computed twice, as they could be then."""
        is_older = isinstance(table, dict) and table.get("remat") is False
        return {key: value for key, value in table.items() if key != "remat"} if is_older else table


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


class Family(Table):
    """A way to prune: what is scored, how much is pruned, what is rewound. Either `quantiles` (one shot) or `rounds`."""

    criterion: Criterion = key("magnitude", f"{SCORES}, or package.module:function", "mask")
    mask: MaskFile = key("", "a mask in a file, in place of a criterion: mask.safetensors, .npz, .pth", "mask")
    scored_at: PointOrEnd = key("end", "the point of the dense training whose weights are scored first", "mask")
    scored_on: Examples = key("10 a class", "snip, grasp: how many training examples; 100, or 10 a class", "mask")
    scored_seed: Seed = key(0, "snip, grasp: another seed draws other examples", "mask")
    scored_norm: Norm = key("batch", "snip, grasp: BatchNorm by the statistics of each batch, or the moving ones", "mask")
    iterations: Iterations = key(0, "score and prune in so many steps; 0: synflow 100, the others 1", "mask")
    units: Units = key("weight", "what goes as a whole: weight, channel, 4x1 (block: inputs x outputs), 2:4 (n of m)", "mask")
    unit_score: Score = key("mean", "of a channel or block: the mean, norm or sum of the scores of its weights", "mask")
    target: Target = key("weights", "of what quantiles and rates are per cent: weights, or macs (of the network's)", "mask")
    per_mac: bool = key(False, "divide the score of a unit by its multiply-accumulates", "mask")
    allocation: Allocation = key("global", "of weights to layers: global, uniform, uniform+, erk", "mask")
    densities: list[Density] = key([], "per cent that layers keep, whatever the allocation, such as Conv1/*=100", "mask")
    quantiles: Quantiles = aside("", "one shot: per cent to prune, one mask for each, such as 90 or 60..80:5,85..99")
    rounds: Annotated[int, Field(ge=0, le=100)] = aside(0, "iterative pruning: how many rounds")
    rate: Rate = key(20.0, "rounds: per cent of the surviving weights to prune in each", "mask")
    rates: list[PruningRate] = key([], "rounds: other rates by path, such as predictions/*=10", "mask")
    particles: Copies = key(1, "rounds: the next one prunes the average of so many trainings (SWAMP)", "mask")
    method: Literal["weights", "lr", "finetune", "llr", "allr"] = key(
        "weights", "weights: rewind weights and rate; lr: rate; finetune: neither; llr, allr: rate linear to 0", "ticket"
    )
    rewind: Points = aside("0", "points of training that tickets are rewound to; each must be among train.snapshots")
    length: Length = key(1.0, "rewound to 0: how many times as long as the dense network tickets train", "ticket")
    budget: Budget = key(0.0, "in place of length: what a ticket costs, with its finding, in dense trainings", "ticket")
    updates: Updates = key("none", "how the mask changes while a ticket trains: gmp, rigl, set; none: not at all", "ticket")
    update_every: Interval = key("100it", "gmp, rigl, set: the time between two changes", "ticket")
    update_from: Fractional = key(0.0, "gmp: the share of the training after which pruning begins", "ticket")
    update_until: Fractional = key(0.75, "gmp, rigl, set: the share of the training after which the mask stays", "ticket")
    drop_fraction: Fractional = key(0.3, "rigl, set: the share of a layer's kept weights that is replaced at first", "ticket")
    finetune_rate: AtLeast0 = key(0.0, "learning rate of finetune; 0: the last one of the schedule", "ticket")
    copies: Copies = aside(1, "trainings of each ticket, with examples in other orders, for `imp stability`")
    controls: list[Control] = aside(["reinit"], f"trained beside tickets: {controls.sentences()}")
    controls_at: Labelled = aside("", "quantiles or rounds that have controls; empty: those of each headline, once it is known")

    @pydantic.model_validator(mode="after")
    def _one_schedule(self) -> "Family":
        if bool(self.quantiles) == bool(self.rounds):
            raise InputError("give either quantiles (one shot) or rounds")
        if self.particles > 1 and not self.rounds:
            raise InputError("particles are of rounds: leave them out")
        if self.rounds and self.method == "weights" and self.scored_at != "end":
            raise InputError("rounds by method = weights begin with the trained network: leave scored_at out")
        for name, other in itertools.combinations(dict.fromkeys(self.controls), 2):
            if controls.variant(name) == controls.variant(other):
                raise InputError(f"{name} and {other} are called alike: give one of the functions another name")
        return self

    @pydantic.model_validator(mode="after")
    def _length_fits(self) -> "Family":
        if self.is_linear and self.rewind != START:
            raise InputError(f"method = {self.method} rewinds nothing: leave rewind out; length says how long tickets train")
        if self.budget and not self.is_stretchable:
            raise InputError('budget is of tickets of one shot, by method = weights, with rewind = "0": leave it out')
        if self.length != 1 and not (self.is_stretchable or self.is_linear):
            raise InputError('length is of tickets of one shot with rewind = "0", or of method = llr or allr: leave it out')
        if self.length != 1 and self.budget:
            raise InputError("length and budget exclude each other: leave one out")
        return self

    @pydantic.model_validator(mode="after")
    def _updates_fit(self) -> "Family":
        if self.changes_masks and (self.rounds or self.method != "weights"):
            raise InputError(f"updates = {self.updates} is of tickets of one shot: give quantiles, and method = weights")
        if self.is_gradual and (self.criterion, self.iterations) != ("magnitude", 0):
            raise InputError("updates = gmp prunes by magnitude, at each update: leave criterion and iterations out")
        if self.is_gradual and self.update_from >= self.update_until:
            raise InputError("update_from must be less than update_until")
        if self.changes_masks and not self.is_gradual:
            if self.scored_at == "end":
                raise InputError(f'updates = {self.updates} trains from scratch: set scored_at = "0", and criterion = "random"')
            if 0 in self.quantiles.values:
                raise InputError(f"updates = {self.updates} has nothing to grow at quantile 0: leave that out")
        if self.changes_masks and self.copies > 1:
            raise InputError("copies is of masks that stay as they are in training: leave it out")
        needs = {controls.rewound.name: self.changes_masks}
        scored = (controls.invert.name, controls.refill.name, controls.signs.name)
        needs |= dict.fromkeys(scored, not self.changes_masks)
        for name in self.controls:
            if not needs.get(name, not (controls.averaged(name) and self.changes_masks)):
                kind = "stay as they are" if self.changes_masks else "change"
                raise InputError(f"control {name} is of masks that {kind} in training: leave it out")
        return self

    @pydantic.model_validator(mode="after")
    def _units_fit(self) -> "Family":
        shaped = f"units = {self.units}"
        if controls.refill.name in self.controls and not self.units.is_weight:
            raise InputError(f"{shaped}: control refill turns masks of single weights into channels: leave it out")
        if self.rates and not self.counts_weights:
            raise InputError("rates are of single weights by their path: leave rates out, or units and target")
        if self.target == "macs" and self.changes_masks:
            raise InputError(f"target = macs is of masks that stay as they are in training: leave updates = {self.updates} out")
        if self.per_mac and self.changes_masks:
            raise InputError(f"per_mac is of masks that stay as they are in training: leave updates = {self.updates} out")
        if self.units.is_channel and self.updates in ("rigl", "set"):
            raise InputError(f"{shaped}: a channel that is gone gets no gradient, by which it could grow: use updates = gmp")
        if self.units.is_n_of_m:
            others = self.target, self.allocation, self.densities, self.iterations
            if self.rounds or self.changes_masks or others != ("weights", "global", [], 0):
                names = "rounds, updates, target, allocation, densities and iterations"
                raise InputError(f"{shaped} is of masks of one shot: leave {names} out")
            exact = float(100 * (1 - self.units.share))
            if not self.mask and any(abs(quantile - exact) > 0.01 for quantile in self.quantiles):
                raise InputError(f'{shaped} prunes {exact:.4g} per cent, neither more nor less: set quantiles = "{exact:.4g}"')
        return self

    @pydantic.model_validator(mode="after")
    def _mask_fits(self) -> "Family":
        ranked = self.criterion, self.iterations, self.allocation, self.densities, self.target, self.per_mac
        if self.mask and (self.rounds or self.changes_masks or ranked != ("magnitude", 0, "global", [], "weights", False)):
            others = "criterion, iterations, allocation, densities, target, per_mac, rounds and updates"
            raise InputError(f"mask is a file: leave {others} out")
        if self.mask and controls.invert.name in self.controls and not self.units.is_weight:
            raise InputError(
                f"control invert of a mask in a file is of single weights, not of units = {self.units}: leave it out"
            )
        return self

    @property
    def counts_weights(self) -> bool:
        """Whether as many weights go as quantiles and rates say, to the last."""
        return self.units.is_weight and self.target == "weights"

    @property
    def chosen_by(self) -> str:
        """What the kept weights were chosen by, in the words of reports."""
        return "a mask that was given" if self.mask else self.criterion

    @property
    def is_linear(self) -> bool:
        """Whether the learning rate falls to 0 in each ticket's training."""
        return self.method in ("llr", "allr")

    @property
    def is_stretchable(self) -> bool:
        """Whether its tickets may train for another time than the dense network."""
        return not self.rounds and self.method == "weights" and self.rewind == START

    @property
    def is_scored(self) -> bool:
        """Whether its masks depend on the weights of a network."""
        return bool(self.rounds) or not (self.mask or self.criterion == criteria.random.__name__)

    @property
    def changes_masks(self) -> bool:
        """Whether the masks of its tickets change while these train."""
        return self.updates != "none"

    @property
    def is_gradual(self) -> bool:
        """Whether tickets start dense and are pruned while they train."""
        return self.updates == "gmp"

    @property
    def is_cut_at_once(self) -> bool:
        """Whether all its masks are cut before any of its tickets is trained."""
        return bool(self.quantiles) and not self.is_gradual

    @property
    def passes(self) -> int:
        """In how many iterations its masks are cut."""
        return self.iterations or criteria.ITERATIONS.get(self.criterion, 1)

    @property
    def controls_follow(self) -> bool:
        """Whether controls accompany headlines, which are known once the tickets are trained."""
        return bool(self.controls) and not self.controls_at

    @property
    def grid(self) -> Sequence[Quantile | Round]:
        """Its quantiles or rounds, from dense to sparse."""
        return self.quantiles.values or tuple(map(Round, range(1, self.rounds + 1)))

    @property
    def shares_kept(self) -> list[tuple[str, Fraction]]:
        """Its `densities` as shares (0 .. 1), by shell pattern of paths."""
        return [(pattern, percent / 100) for pattern, percent in self.densities]

    @property
    def shared_controls(self) -> set[str]:
        """The variants of controls of which one serves all rewind points of a mask."""
        return self.fresh_controls if self.quantiles and not self.changes_masks else set()

    @property
    def fresh_controls(self) -> set[str]:
        """The variants of controls that start with fresh weights."""
        return {one.name for one in (*controls.CONTROLS.values(), *map(controls.of, self.controls)) if one.start == "fresh"}


class Sweep(Table):
    """The search for hyperparameters of `imp sweep`."""

    space: Space = aside(
        [
            "train.learning_rate=0.005..0.5:log",
            "train.weight_decay=1e-5..1e-2:log",
            "train.batch=32,64,128",
            "train.label_smoothing=0..0.2",
        ],
        "KEY=LOW..HIGH, KEY=LOW..HIGH:log, KEY=A,B,C",
    )
    trials: Positive = aside(30, "how many trials")
    startup: NotNegative = aside(10, "trials drawn at random, before any is proposed or stopped early")
    grace: OnePoint = aside("2ep", "no trial is stopped before this point")
    classes: NotNegative = aside(0, "train on this many classes only, the first ones; 0: on those of data.classes")


class Track(Table):
    """Where the metrics are also shown while networks train."""

    trackers: Trackers = aside([], "tensorboard, wandb, wandb:offline, or of other packages")
    project: str = aside("lottery", "of Weights & Biases")

    @pydantic.model_validator(mode="before")
    @classmethod
    def _as_before_trackers(cls, table: Any) -> Any:
        """Older runs and recipes say off, online or offline of Weights & Biases, then the only tracker."""
        mode = table.get("wandb") if isinstance(table, dict) else None
        if mode not in ("off", "online", "offline"):
            return table
        others = {key: value for key, value in table.items() if key != "wandb"}
        return {"trackers": [] if mode == "off" else [f"wandb:{mode}"], **others}


ROUNDS = Family(rounds=10)
ONESHOT = Family.model_validate(
    {"quantiles": "50,70,80,90,95", "rewind": "0,2ep", "controls": ["reinit", "shuffle"], "controls_at": "80"}
)


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

    def records(self) -> AnySettings:
        """The settings of the prepared set that this recipe trains on."""
        kind = TextSettings if sources.is_of_texts(self.data.source) else Settings
        values = {**self.texts.model_dump(), **self.data.model_dump()}
        return kind(**{field.name: values[field.name] for field in dataclasses.fields(kind)})
