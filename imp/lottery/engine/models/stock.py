"""Our networks made of Keras's stock layers alone, for those who have Keras but not this package."""

import keras

from lottery.engine.layers import BatchNorm, GroupedConv2D, PointwiseConv2D


def rebuild(network: keras.Model) -> keras.Model:
    """`network` with each layer of ours replaced by its stock counterpart, which holds the same weights.

    All other layers, a user's own among them, are shared with `network`. What is neither functional nor Sequential has layers
    that nobody else can tell, and is returned as it is.
    """
    if not isinstance(network, keras.Sequential | keras.src.models.Functional):
        return network
    replaced: list[tuple[keras.layers.Layer, keras.layers.Layer]] = []

    def replace(layer: keras.Operation) -> keras.Operation:
        stock = _counterpart(layer)
        if stock is None:
            return layer
        replaced.append((layer, stock))
        return stock

    rebuilt = keras.models.clone_model(network, clone_function=replace, recursive=True)
    for ours, stock in replaced:
        stock.set_weights(ours.get_weights())
    return rebuilt


def not_stock(network: keras.Model) -> list[type]:
    """The classes of `network`, its own and its layers', that do not come with Keras, in the order of their names."""
    classes = {type(layer) for layer in network._flatten_layers()}
    return sorted((kind for kind in classes if kind.__module__.split(".")[0] != "keras"), key=lambda kind: kind.__name__)


def _counterpart(layer: keras.Operation) -> keras.layers.Layer | None:
    """The layer of Keras's that computes what `layer` of ours does, in the same dtype; None where it is not ours."""
    if not isinstance(layer, BatchNorm | PointwiseConv2D | GroupedConv2D):
        return None
    same = {"name": layer.name, "dtype": layer.dtype_policy}
    if isinstance(layer, BatchNorm):
        return keras.layers.BatchNormalization(momentum=layer.momentum, epsilon=layer.epsilon, **same)
    if isinstance(layer, PointwiseConv2D):
        return keras.layers.Conv2D(layer.filters, 1, use_bias=False, **same)
    return keras.layers.Conv2D(layer.filters, layer.size, layer.stride, "same", groups=layer.groups, use_bias=False, **same)
