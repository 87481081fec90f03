"""What a layer of a Transformer is for, by the path of its variables. Pure NumPy."""

from typing import Literal, get_args

Kind = Literal["embedding", "attention", "feed-forward", "other"]

KINDS: tuple[Kind, ...] = get_args(Kind)


def kind_of(path: str) -> Kind:
    """The kind of the variable or layer at `path`, by the words in it, with or without underscores: `layer_1_attention_query`
    as well as Keras's `multi_head_attention/query`. `other` where it has none of these words, as in networks of images."""
    plain = path.lower().replace("_", "")
    return next((kind for kind in KINDS if kind.replace("-", "") in plain), "other")
