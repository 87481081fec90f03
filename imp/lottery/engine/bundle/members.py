"""The members of a bundle: the training of each ticket runs in a thread of its own, by the code that trains one network, and
waits wherever that calls the compiled step, until all do. Then one step is taken for all of them."""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from lottery.base import preemption
from lottery.engine import models
from lottery.engine.bundle.network import Forward
from lottery.engine.bundle.step import BundledStep
from lottery.engine.loop import Trainer

Outcome = TypeVar("Outcome")


class Slot:
    """What of a variable with a ticket axis is one ticket's."""

    def __init__(self, stacked: tf.Variable, place: int):
        self.stacked, self.place, self.shape = stacked, place, stacked.shape[1:]

    def numpy(self) -> np.ndarray:
        return np.asarray(self.stacked[self.place])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy()

    def assign(self, value: Any) -> None:
        self.stacked[self.place].assign(value)


@dataclasses.dataclass(eq=False)
class _Call:
    """A call of the compiled step that a member waits for: so many steps, of which `figures` are there already."""

    is_training: bool
    given: Any  # arrays [steps, ...]
    count: int
    taken: int = 0
    figures: list[np.ndarray] = dataclasses.field(default_factory=list)
    error: BaseException | None = None

    def next(self, count: int) -> Any:
        """What is given of the next `count` steps."""
        return tf.nest.map_structure(lambda values: values[self.taken : self.taken + count], self.given)


class _Turn:
    """In a member, what `Step` is in a trainer."""

    def __init__(self, bundle: "BundledTrainer", place: int):
        self.bundle, self.place, self.evaluated = bundle, place, bundle.alone.train.batch

    def steps(self, *given: Any) -> tf.Tensor:
        return self.bundle.wait(self.place, _Call(True, given, len(given[-1])))

    def evaluations(self, rows: Any) -> tf.Tensor:
        return self.bundle.wait(self.place, _Call(False, (rows,), len(rows[-1])))


class Member(Trainer):
    """The trainer of one ticket in a bundle. It cannot change its mask, or settle statistics."""

    def __init__(self, bundle: "BundledTrainer", place: int):
        vars(self).update(vars(bundle.alone))
        step = bundle.step
        self.bundle, self.place, self._compiled = step.size, place, step
        self.feed = bundle.alone.feed.beside()
        self._weights = {one.path: Slot(one.value, place) for one in step.weights}
        self._statistics = {one.path: Slot(one.value, place) for one in step.statistics}
        self.masks = {path: Slot(mask, place) for path, mask in step.masks.items()}
        self._optimizer = {name: Slot(variable, place) for name, variable in step.state.items()}
        self._averaged = {path: (self._weights | self._statistics)[path] for path in bundle.alone._averaged}
        self._step: Any = _Turn(bundle, place)
        self._steps_per_call, self.waited = 1, 0.0

    def _outputs(self, inputs: tf.Tensor) -> tf.Tensor:
        values = {path: value[self.place : self.place + 1] for path, value in self._compiled.values().items()}
        return Forward(self.model, values, 1, training=False)(inputs[None])[0]


class BundledTrainer:
    """Trains `size` networks like that of `alone` together."""

    def __init__(self, alone: Trainer, size: int):
        self.alone = alone
        with models.policy(alone.train.precision):
            self.step = BundledStep(alone.recipe, alone.feed, alone.task, alone.model, list(alone.masks), alone.xla, size)
        self._changed = threading.Condition()
        self._calls: dict[int, _Call] = {}  # of the members that wait, by place
        self._living: set[int] = set()
        self._stopped: BaseException | None = None

    def run(self, trainings: Mapping[int, Callable[[Trainer], Outcome]]) -> dict[int, Outcome]:
        """What each of `trainings` returns for the member at its place. Raises what one of them raises, once all have ended."""
        outcomes: dict[int, Outcome] = {}
        errors: list[BaseException] = []

        def train(place: int) -> None:
            try:
                outcomes[place] = trainings[place](Member(self, place))
            except BaseException as error:
                errors.append(error)
            finally:
                with self._changed:
                    self._living.discard(place)
                    self._changed.notify_all()

        self._living, self._stopped = set(trainings), None
        threads = [threading.Thread(target=copy_context().run, args=[train, place], daemon=True) for place in trainings]
        with preemption.deferred():
            for thread in threads:
                thread.start()
            try:
                while self._gathered():
                    self._serve()
            except BaseException as error:
                self._stopped = error  # for those who do not wait yet
                self._end(error)
                raise
            finally:
                for thread in threads:
                    thread.join()
        if errors:
            raise errors[0]
        return outcomes

    def wait(self, place: int, call: _Call) -> tf.Tensor:
        """The figures of all steps of `call` (float32, [steps, ...]), once they are taken."""
        with self._changed:
            self._calls[place] = call
            self._changed.notify_all()
            self._changed.wait_for(lambda: place not in self._calls or self._stopped)
        if error := call.error or self._stopped:
            raise error
        return tf.constant(np.concatenate(call.figures))

    def _gathered(self) -> bool:
        """Wait until every member that has not ended waits; whether there is one."""
        with self._changed:
            self._changed.wait_for(lambda: self._calls.keys() == self._living)
            return bool(self._living)

    def _serve(self) -> None:
        """Take the next steps of the calls: evaluations first, so that all are at their training steps together."""
        evaluations = {place: call for place, call in self._calls.items() if not call.is_training}
        calls = self._seeing_the_same(evaluations) if evaluations else self._calls
        count = min(call.count - call.taken for call in calls.values())
        try:
            if evaluations:
                figures = self.step.evaluations(*next(iter(calls.values())).next(count)).numpy()
            else:
                figures = self.step.steps(*self._stacked(count)).numpy()
        except Exception as error:
            self._end(error)
            return
        with self._changed:
            for place, call in list(calls.items()):
                call.figures.append(figures[:, place])
                call.taken += count
                if call.taken == call.count:
                    del self._calls[place]
            self._changed.notify_all()

    def _seeing_the_same(self, evaluations: dict[int, _Call]) -> dict[int, _Call]:
        """Those of the calls whose next examples are those of the first."""
        first = tf.nest.flatten(next(iter(evaluations.values())).next(1))

        def is_same(call: _Call) -> bool:
            return all(map(np.array_equal, tf.nest.flatten(call.next(1)), first))

        return {place: call for place, call in evaluations.items() if is_same(call)}

    def _stacked(self, count: int) -> Any:
        """What the calls are given of the next steps ([steps, T, ...]). Where a place is empty, any numbers will do."""
        idle = next(iter(self._calls.values()))
        calls = [self._calls.get(place, idle).next(count) for place in range(self.step.size)]
        return tf.nest.map_structure(lambda *values: np.stack(values, axis=1), *calls)

    def _end(self, error: BaseException) -> None:
        """Raise `error` in every member that waits."""
        with self._changed:
            for call in self._calls.values():
                call.error = error
            self._calls.clear()
            self._changed.notify_all()
