"""A family of a recipe: a way to prune. Each key is one line: its type, its default, and what it means."""

import itertools
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from lottery.base import plugins
from lottery.base.errors import InputError
from lottery.experiment import controls, grids
from lottery.experiment.grids import ByPath, Grid, Point, Quantile, Round, Sample
from lottery.experiment.keys import AtLeast0, Fractional, Interval, Points, Seed, Table, aside, checked, key, written
from lottery.pruning import criteria, units
from lottery.pruning.allocation import Allocation
from lottery.pruning.units import Score
from lottery.pruning.updates import Updates

LONGEST = 1000  # dense trainings
SCORES = ", ".join(criteria.CRITERIA)
START = Grid.of([Point(Fraction(0), "it")])  # of training

Length = Annotated[float, Field(gt=0, le=LONGEST)]
Budget = Annotated[float, Field(ge=0, le=LONGEST)]
Rate = Annotated[float, Field(gt=0, lt=100)]
Copies = Annotated[int, Field(ge=1, le=99)]


def _labelled(text: str, known: pydantic.ValidationInfo) -> Grid[Quantile] | Grid[Round]:
    """Rounds or quantiles, as a family has them; none for an empty text."""
    parse = grids.parse_rounds if known.data.get("rounds") else grids.parse_quantiles
    return parse(text) if text else Grid.of(())


Quantiles = Annotated[Grid[Quantile], written(lambda text: grids.parse_quantiles(text) if text else Grid.of(()))]
Labelled = Annotated[Grid[Quantile] | Grid[Round], written(_labelled)]
END, SETTLED = "end", "settled"
Scored = Point | Literal["end", "settled"]
ScoredAt = Annotated[Scored, written(lambda text: text if text in (END, SETTLED) else grids.parse_point(text))]
PruningRate = Annotated[ByPath, written(grids.parse_rate)]
Density = Annotated[ByPath, written(grids.parse_density)]
Examples = Annotated[Sample, written(grids.parse_sample)]
MaskFile = Annotated[str, pydantic.AfterValidator(lambda text: text and str(Path(text)))]
Norm = Literal["batch", "moving"]
Iterations = Annotated[int, Field(ge=0, le=10_000)]
Criterion = Annotated[str, checked(lambda name: plugins.check(name, criteria.CRITERIA, "criterion"))]
Control = Annotated[str, checked(controls.check_name)]
Units = Annotated[units.Spec, written(units.parse)]
Target = Literal["weights", "macs"]


class Family(Table):
    """A way to prune: what is scored, how much is pruned, what is rewound. Either `quantiles` (one shot) or `rounds`."""

    criterion: Criterion = key("magnitude", f"{SCORES}, or package.module:function", "mask")
    mask: MaskFile = key("", "a mask in a file, in place of a criterion: mask.safetensors, .npz, .pth", "mask")
    scored_at: ScoredAt = key(END, "the point of the dense training whose weights are scored first, or settled", "mask")
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
        if self.is_settled and (self.rounds or self.method != "weights" or not self.is_of_weights):
            which = " or ".join(criteria.OF_WEIGHTS)
            raise InputError(f"scored_at = {SETTLED} is of masks of one shot, by method = weights, that {which} cuts")
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
        scored = (controls.invert.name, controls.refill.name, controls.signs.name, *controls.BORROWED)
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
            raise InputError(f"control invert of a mask in a file is of single weights, not units = {self.units}: leave it out")
        return self

    @property
    def is_of_weights(self) -> bool:
        """Whether its masks follow from the weights of a network alone, so that they can be cut at any point of a training."""
        return self.has_criterion and self.criterion in criteria.OF_WEIGHTS and not (self.rounds and self.rates)

    @property
    def is_settled(self) -> bool:
        """Whether each mask is scored where it is settled, which only the saved networks tell (`settling.settled`)."""
        return self.scored_at == SETTLED

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
    def has_criterion(self) -> bool:
        """Whether a score chooses its weights: not a random draw, a mask in a file, or the training of its tickets."""
        return not (self.mask or self.changes_masks or self.criterion == criteria.random.__name__)

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


ROUNDS = Family(rounds=10)
ONESHOT = Family.model_validate(
    {"quantiles": "50,70,80,90,95", "rewind": "0,2ep", "controls": ["reinit", "shuffle"], "controls_at": "80"}
)
