"""The optimizer that keeps pruned weights at exactly zero, around the user's own."""

import dataclasses
import math
import weakref
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import keras
import numpy as np

from lottery.base.errors import InputError
from lottery.keras.backends import backend
from lottery.keras.plan import Cubic, Plan, Replacing, RigL
from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays

# Optimizers of Keras that leave a zero alone whose gradient is zero. After a step of any other, zeros are put back.
ELEMENTWISE = {*("SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Nadam", "Ftrl", "Lion", "Lamb")}


@dataclasses.dataclass
class Clock:
    """`wait`: after so many steps the masks may change. `is_read`: somebody will look then, or they never change. `is_running`:
    the optimizer has taken steps. `is_at_work`: it is taking one, and keeps the zeros itself. (To set an attribute of an
    optimizer itself takes Keras as long as a small kernel.)"""

    is_read: bool
    wait: float = 0
    is_running: bool = False
    is_at_work: bool = False


class Held(keras.constraints.Constraint):
    """Zeros where the `mask` (a variable) of `optimizer` prunes `variable`, after the user's `own` constraint. Every optimizer
    of Keras applies constraints after each step, so the zeros stay whichever trains the variable."""

    def __init__(self, optimizer: "Pruned", mask: keras.Variable, variable: keras.Variable):
        self.optimizer, self.mask, self.own = optimizer, mask, own_constraint(variable)

    def __call__(self, variable: Any) -> Any:
        if self.optimizer.clock.is_at_work and not self.own:
            return variable
        self.optimizer.check_clock()
        return backend.select(self.mask, self.own(variable) if self.own else variable)


def as_new(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """A new one of the same settings."""
    return type(optimizer).from_config(optimizer.get_config())


def is_complete(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether it can still be built, or has variables to train. (Keras builds that of a whole .h5 file without any.)"""
    return not optimizer.built or bool(optimizer._trainable_variables)


def own_constraint(variable: keras.Variable) -> Any:
    """The user's own."""
    return variable.constraint.own if isinstance(variable.constraint, Held) else variable.constraint


@keras.saving.register_keras_serializable("lottery")
class Pruned(keras.optimizers.Optimizer):
    """`inner_optimizer` under masks of variables of `shapes` (by path), which change as `plan` says (None: never). A saved one
    also tells the `places` of its variables among those that are trained, and their `positions` among all: Keras may give them
    other paths when it loads them. Weights of the paths in `scope` count (None: all); masks of channels cover others too.

    Every step it selects the gradients that the masks keep, and passes them on. Masks, the number of steps and the values of
    pruned weights that may return are variables, saved and restored with the optimizer's own.
    """

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer,
        shapes: dict[str, Sequence[int]],
        plan: Plan | None = None,
        places: dict[str, int] | None = None,
        positions: dict[str, int] | None = None,
        scope: Collection[str] | None = None,
        name: str = "pruned",
    ):
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner_optimizer
        self.plan = plan
        self.paths = list(shapes)
        self._places, self._positions = ([given.get(path) for path in shapes] for given in (places or {}, positions or {}))
        self._scope = [index for index, path in enumerate(shapes) if scope is None or path in scope]
        self.clock = Clock(is_read=plan is None)
        self._model: weakref.ref[keras.Model] | None = None
        self._changed = self.add_variable((), "zeros", "int", "only_first_replica", name="changed_before")
        named = {path: path.replace("/", "_") for path in shapes}
        self._masks = [self.add_variable(shapes[path], "ones", "bool", name=f"{named[path]}_mask") for path in shapes]
        schedule = plan.schedule if plan else None
        returns, grows = isinstance(schedule, Cubic), isinstance(schedule, Replacing)
        self._aside = [self.add_variable(shapes[path], name=f"{named[path]}_aside") for path in shapes if returns]
        bounded = [path for path in shapes if grows or (returns and plan and not plan.spec.is_weight)]
        self._within = [self.add_variable(shapes[path], "ones", "bool", name=f"{named[path]}_within") for path in bounded]
        self._gradients = [
            self._add_summed(shapes[path], f"{named[path]}_gradient") for path in shapes if isinstance(schedule, RigL)
        ]

    @property
    def variables(self) -> list[keras.Variable]:
        return self._variables + self.inner_optimizer.variables

    def __getattr__(self, name: str) -> Any:
        """What callbacks ask of an optimizer (SwapEMAWeights: its averages) the inner one answers."""
        if "inner_optimizer" not in vars(self):
            raise AttributeError(name)
        return getattr(self.inner_optimizer, name)

    @property
    def learning_rate(self) -> Any:
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: Any) -> None:
        self.inner_optimizer.learning_rate = rate

    @property
    def iterations(self) -> Any:
        return self.inner_optimizer.iterations

    @property
    def step(self) -> int:
        """How many steps were taken since `prune`; of skipped ones (overflows of float16) none counts."""
        return int(self._iterations.numpy())

    @property
    def masks(self) -> Bits:
        """A copy of the masks."""
        return _arrays(self.paths, self._masks)

    @property
    def aside(self) -> Arrays:
        """A copy of the values of pruned weights that may return, zero elsewhere; empty where none may."""
        return _arrays(self.paths, self._aside)

    @property
    def within(self) -> Bits:
        """A copy of the masks before the first change, within which units may return or grow; of those whose values are put
        aside, empty for single weights."""
        return _arrays(self.paths, self._within)

    @property
    def gradients(self) -> Arrays:
        """A copy of the gradients, of pruned weights too, by which RigL changes the masks next; empty without it."""
        return _arrays(self.paths, self._gradients)

    @property
    def scope(self) -> list[str]:
        return [self.paths[index] for index in self._scope]

    @property
    def size(self) -> int:
        """How many weights are in scope."""
        return sum(math.prod(self._masks[index].shape) for index in self._scope)

    @property
    def pruned(self) -> int:
        """How many of them are pruned now."""
        return sum(int(np.count_nonzero(~self._masks[index].numpy())) for index in self._scope)

    @property
    def next_change(self) -> int | None:
        """The step before which the mask changes next."""
        return self.plan.next_date(int(self._changed.numpy()) - 1) if self.plan else None

    def build(self, variables: list[keras.Variable]) -> None:
        if not self.built:
            self.inner_optimizer.build(variables)
            super().build(variables)
            self._find(variables, self._places)

    def find(self, model: keras.Model) -> None:
        """Take the paths of variables that `model` was loaded with."""
        if self._model is None:
            self._find(model.weights, self._positions)

    def attach(self, model: keras.Model) -> None:
        """Hold the variables of `model`, whatever optimizer trains them."""
        self.find(model)
        self._model = weakref.ref(model)
        self._constrain(model.weights)

    def check_clock(self) -> None:
        """Raises InputError if the masks still change and nobody will look when it is time."""
        if not self.clock.is_read:
            raise InputError(
                "the masks of this model still change, and nothing changes them: after load_model, call "
                "lottery.keras.resume(model); in a training loop of your own, lottery.keras.update(model) before each step; "
                "after clone_model, strip(model) and prune it"
            )

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[keras.Variable] | None = None) -> None:
        if not self.built:
            self.build(list(trainable_variables or ()))
        self._check_complete()
        self.check_clock()
        self.clock.is_running = True
        variables = list(trainable_variables or self._trainable_variables)
        self._record(grads, variables)
        gradients = [self._kept(*pair) for pair in zip(grads, variables, strict=True)]
        self.clock.is_at_work = True
        try:
            self.inner_optimizer.apply(gradients, variables)
        finally:
            self.clock.is_at_work = False
        if not all(type(one).__name__ in ELEMENTWISE and type(one).__module__.startswith("keras.") for one in self._parts):
            self._put_zeros_back()
        self._iterations.assign_add(1)

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        self._check_complete()
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)

    def _check_complete(self) -> None:
        if not is_complete(self):
            raise InputError("Keras reads no optimizer from an .h5 file: call lottery.keras.resume(model) after load_model")

    def scale_loss(self, loss: Any) -> Any:
        return self.inner_optimizer.scale_loss(loss)

    def finalize_variable_values(self, var_list: list[keras.Variable]) -> None:
        self.inner_optimizer.finalize_variable_values(var_list)

    def change(self, weights: dict[str, keras.Variable], mask: Bits, values: Arrays, date: int) -> None:
        """Put `mask` in place at the step `date` (-1: before all), and `values`, those of pruned ones too, in `weights`."""
        for variable, path in zip(self._masks, self.paths, strict=True):
            variable.assign(mask[path])
            weights[path].assign(values[path])
        for variable, path in zip(self._aside, self.paths, strict=False):
            variable.assign(np.where(mask[path], np.zeros((), variable.dtype), values[path]))
        for variable, path in zip(self._within if date < 0 else [], self.paths, strict=False):
            variable.assign(mask[path])
        self._changed.assign(date + 1)
        self.hold(weights)

    def hold(self, weights: dict[str, keras.Variable]) -> None:
        """Put exact zeros where the masks prune `weights`, and in their slots what a new optimizer has there."""
        slots = self._slots()
        for path, mask in self._masks_of(weights).items():
            for variable, fill in [(weights[path], 0.0), *slots.get(path, [])]:
                array = variable.numpy()
                variable.assign(np.where(mask, array, np.asarray(fill, array.dtype)))

    def revived(self, weights: dict[str, keras.Variable]) -> int:
        """How many pruned ones of `weights` are not zero."""
        masks = self._masks_of(weights).items()
        return sum(int(np.count_nonzero((weights[path].numpy() != 0) > mask)) for path, mask in masks)

    def _masks_of(self, weights: dict[str, keras.Variable]) -> Bits:
        """Those of `weights`. (After `quantize`, some may have another shape.)"""
        return {path: mask for path, mask in self.masks.items() if path in weights and weights[path].shape == mask.shape}

    def renew(self) -> None:
        """Give the inner optimizer the state of a new one; its learning rate stays."""
        new = as_new(self.inner_optimizer)
        new.build(self._trainable_variables)
        for own, variable in zip(self.inner_optimizer.variables, new.variables, strict=True):
            own.assign(variable.numpy())

    def save_own_variables(self, store: Any) -> None:
        for index, variable in enumerate(self._variables):  # Keras saves the inner optimizer's beside them
            store[str(index)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        kinds = [(np.shape(store[key]), np.asarray(store[key]).dtype == bool) for key in sorted(store.keys(), key=int)]
        if kinds != [(tuple(variable.shape), variable.dtype == "bool") for variable in self._variables]:
            raise InputError("these weights have no masks, or another schedule's: start from them by rewind(model, file)")
        self.set_weights([store[str(index)] for index in range(len(self._variables))])

    def set_weights(self, weights: list[np.ndarray]) -> None:
        """Set masks, step and values put aside, and hold the variables that are trained: `load_model` calls nothing else."""
        super().set_weights(weights)
        self.clock.wait, self.clock.is_read = 0, self.clock.is_read or self.next_change is None
        self._constrain(self._trainable_variables)
        self.hold({variable.path: variable for variable in self._trainable_variables})

    def get_config(self) -> dict[str, Any]:
        if self._model and (model := self._model()):
            self._places = _places(self.paths, model.trainable_weights)
            self._positions = _places(self.paths, model.weights)
        return {
            "inner_optimizer": _portable(keras.saving.serialize_keras_object(self.inner_optimizer)),
            "shapes": {path: list(mask.shape) for path, mask in zip(self.paths, self._masks, strict=True)},
            "plan": self.plan and self.plan.config(),
            "places": dict(zip(self.paths, self._places, strict=True)),
            "positions": dict(zip(self.paths, self._positions, strict=True)),
            "scope": self.scope,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "Pruned":
        inner = keras.saving.deserialize_keras_object(config["inner_optimizer"], custom_objects=custom_objects)
        optimizer = cls(**config | {"inner_optimizer": inner, "plan": config["plan"] and Plan.of(config["plan"])})
        optimizer.clock.is_read = False  # before its masks are loaded
        return optimizer

    def _find(self, variables: Sequence[keras.Variable], places: Sequence[int | None]) -> None:
        """Take the paths that `variables` have now, of those that were saved at `places` among them."""
        for index, place in enumerate(places):
            if place is not None and place < len(variables) and variables[place].shape == self._masks[index].shape:
                self.paths[index] = variables[place].path

    def _constrain(self, variables: Iterable[keras.Variable]) -> None:
        masks = dict(zip(self.paths, self._masks, strict=True))
        for variable in variables:
            if variable.path in masks:
                variable.constraint = Held(self, masks[variable.path], variable)

    @property
    def _parts(self) -> list[keras.optimizers.Optimizer]:
        return getattr(self.inner_optimizer, "optimizers", [self.inner_optimizer])  # of a MultiOptimizer several

    def _kept(self, gradient: Any, variable: Any) -> Any:
        """A select, not a product, so that not even a NaN reaches a pruned weight."""
        place = self._place(variable)
        return gradient if gradient is None or place is None else backend.select(self._masks[place], gradient)

    def _record(self, grads: Sequence[Any], variables: Sequence[keras.Variable]) -> None:
        """Where masks change by gradients after this step, put those of pruned weights by, too."""
        if not (self.plan and isinstance(self.plan.schedule, RigL)):
            return
        is_due = self.plan.schedule.is_before_change(*map(keras.ops.convert_to_tensor, (self._iterations, self._changed)))
        places = [self._place(variable) for variable in variables]
        given = [(place, gradient) for place, gradient in zip(places, grads, strict=True) if place is not None]
        backend.record(is_due, [(self._gradients[place], one) for place, one in given if one is not None])

    def _place(self, variable: Any) -> int | None:
        """Which of the masks is that of a trained variable."""
        path = self._trainable_variables[self._get_variable_index(variable)].path
        return self.paths.index(path) if path in self.paths else None

    def _add_summed(self, shape: Sequence[int], name: str) -> keras.Variable:
        """A variable of which each replica has its own value: the whole one is their sum."""
        how = {"trainable": False, "aggregation": "sum", "synchronization": "on_read"}
        variable = keras.Variable("zeros", shape, name=name, **how)
        self._track_variable(variable)
        return variable

    def _slots(self) -> dict[str, list[tuple[keras.Variable, float]]]:
        """Of each trained variable by its path: the inner optimizer's variables of it, and what new ones hold."""
        owners = {variable.path.replace("/", "_"): variable for variable in self._trainable_variables}
        slots: dict[str, list[tuple[keras.Variable, float]]] = {}
        for optimizer in self._parts:
            start = getattr(optimizer, "initial_accumulator_value", 0.0)  # zero would make Ftrl divide by zero
            for slot in optimizer.variables:
                name = max((name for name in owners if slot.name.startswith(f"{name}_")), key=len, default=None)
                if name and slot.shape == owners[name].shape:
                    fill = start if slot.name == f"{name}_accumulator" else 0.0
                    slots.setdefault(owners[name].path, []).append((slot, fill))
        return slots

    def _put_zeros_back(self) -> None:
        weights, slots = {variable.path: variable for variable in self._trainable_variables}, self._slots()
        given = [
            (variable, mask, fill)
            for path, mask in zip(self.paths, self._masks, strict=True)
            if path in weights
            for variable, fill in [(weights[path], 0.0), *slots.get(path, [])]
        ]
        backend.fill(self, given)


def _portable(config: dict[str, Any]) -> dict[str, Any]:
    """The same `config` of an optimizer for every backend. (Those of PyTorch have some of their own behind Keras's.)"""
    behind = config["module"].startswith("keras.src.backend.")
    return config | ({"module": "keras.optimizers", "registered_name": None} if behind else {})


def _places(paths: list[str], variables: list[keras.Variable]) -> list[int | None]:
    places = {variable.path: index for index, variable in enumerate(variables)}
    return [places.get(path) for path in paths]


def _arrays(paths: list[str], variables: list[keras.Variable]) -> dict[str, np.ndarray]:
    return {path: variable.numpy() for path, variable in zip(paths, variables, strict=False)}
