"""A network of Keras's own layers, for those without this package."""

import keras

from lottery.engine.layers import BatchNorm, DepthwiseConv2D, GroupedConv2D, PointwiseConv2D


def rebuild(network: keras.Model, stay: tuple[type, ...] = ()) -> keras.Model:
    """`network` with each layer of ours, but those of the classes `stay`, replaced by Keras's own; it holds the same weights.
    All other layers are shared with `network`. What is neither functional nor Sequential is returned as it is."""
    if not isinstance(network, keras.Sequential | keras.src.models.Functional):
        return network

    def replaced(layer: keras.Operation) -> keras.Operation:
        if isinstance(layer, stay):
            return layer
        if isinstance(layer, BatchNorm):
            options = {"momentum": layer.momentum, "epsilon": layer.epsilon}
            return keras.layers.BatchNormalization(**options, name=layer.name, dtype=layer.dtype_policy)
        if isinstance(layer, PointwiseConv2D | GroupedConv2D):
            size, stride, groups = (getattr(layer, name, 1) for name in ("size", "stride", "groups"))
            options = {"groups": groups, "use_bias": False, "name": layer.name, "dtype": layer.dtype_policy}
            padding = getattr(layer, "padding", "valid")
            return keras.layers.Conv2D(layer.filters, size, stride, padding, **options)
        if isinstance(layer, DepthwiseConv2D):
            return keras.layers.DepthwiseConv2D.from_config(layer.get_config())
        return layer

    rebuilt = keras.models.clone_model(network, clone_function=replaced, recursive=True)
    rebuilt.set_weights(network.get_weights())
    return rebuilt


def not_stock(network: keras.Model) -> list[type]:
    """The classes of `network`, its own and its layers', that do not come with Keras, in the order of their names."""
    classes = {type(layer) for layer in network._flatten_layers()}
    return sorted((kind for kind in classes if kind.__module__.split(".")[0] != "keras"), key=lambda kind: kind.__name__)


def sentence(error: Exception) -> str:
    """The first sentence of an error that goes on over many lines; of the one that it was raised for, where Keras tells it."""
    return " ".join(str(error).split()).rpartition("Exception encountered: ")[2].split(". ")[0]
