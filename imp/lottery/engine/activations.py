"""What the kernels of networks read: the activations by which `pruning.alignment` matches the units of two networks."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lottery.base.errors import InputError
from lottery.networks.shrinking import all_axes
from lottery.networks.topology import run, topology
from lottery.pruning.channels import channels
from lottery.pruning.state import Arrays, State

BATCH = 128  # examples whose activations are held at a time


class Activations:
    """Of `network`, with whatever weights, on `inputs` (what a task gives it, [n, ...]): its `channels`, and along which `axes`
    of its variables they lie. Raises InputError where its graph cannot be read."""

    def __init__(self, network: keras.Model, inputs: np.ndarray):
        self._network, self._inputs, graph = network, inputs, topology(network)
        if graph is None:
            raise InputError(f"{network.name} does not tell how its layers are connected: its hidden units cannot be aligned")
        self.channels = channels(graph, {variable.path: tuple(variable.shape) for variable in network.variables})
        self.axes = all_axes(network, self.channels)

    def of(self, *states: State) -> Iterator[list[Arrays]]:
        """Batch by batch of the same examples, what each kernel reads in each of the `states`: by path, [n, ..., inputs]."""
        for inputs in np.array_split(self._inputs, -(-len(self._inputs) // BATCH)):
            yield [self._read(state, tf.constant(inputs)) for state in states]

    def _read(self, state: State, inputs: tf.Tensor) -> Arrays:
        found: Arrays = {}

        def call(operation: Any, *arguments: Any, **options: Any) -> Any:
            own = (variable.path for variable in getattr(operation, "variables", ()))
            if path := next((path for path in own if path in self.channels.nodes), None):
                found[path] = np.asarray(arguments[0])
            return operation(*arguments, **options)

        values = state.weights | state.statistics
        variables = [(variable, tf.constant(values[variable.path], variable.dtype)) for variable in self._network.variables]
        with keras.StatelessScope(variables):
            run(call, self._network, inputs)
        return found
