"""The layers of a Transformer over rows of tokens, each row a document and the texts that belong to it.

A row is cut into segments, [document | text | text | ...]. Only attention, positions and first tokens depend on them; all other
layers treat each token on its own. `segments` are (tokens of the document, number of texts, tokens of a text). All compute in
the dtype policy in force; variables, softmax and the moments of LayerNorm have the dtype of variables."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from lottery.engine.scopes import part

PADDING = 1  # the token that fills a text up
EPSILON = 1e-5  # of LayerNorm, as RoBERTa has it
FIRST_PLACE = 2  # the row of the table of positions for the first token of a text: RoBERTa has left two for padding
SPREAD = 0.02  # standard deviation of fresh embeddings (Devlin et al. 2019)

_HIDDEN = -1e9  # the score of padding: exp gives exactly 0 beside any real token, and no NaN where there is none
_DENSITY = 0.3989422804014327  # of a normal variable at 0

Segments = tuple[int, int, int]
Shape = tuple[Any, ...]  # of int, and None for the batch


class TokenEmbedding(keras.layers.Layer):
    """The vector of each token: int [batch, tokens] to float [batch, tokens, width]. The table is a kernel, and so prunable."""

    def __init__(self, vocabulary: int, width: int, **options: Any):
        super().__init__(**options)
        self.vocabulary, self.width = vocabulary, width

    def build(self, shape: Shape) -> None:
        drawn = keras.initializers.RandomNormal(stddev=SPREAD)
        # Vectors are looked up first and then cast: a cast of the table would read all of it in every step.
        self.kernel = self.add_weight((self.vocabulary, self.width), drawn, autocast=False, name="kernel")

    def call(self, tokens: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.gather(self.kernel.value, tokens), self.compute_dtype)

    def compute_output_spec(self, tokens: keras.KerasTensor) -> keras.KerasTensor:
        return keras.KerasTensor((*tokens.shape, self.width), self.compute_dtype)


class PositionEmbedding(keras.layers.Layer):
    """Adds to each token the learned vector of its place in its segment, float [batch, tokens, width]. The table has RoBERTa's
    rows. Its first two are for padding and never read: padding gets its place's vector too, since attention leaves it out."""

    def __init__(self, segments: Segments, **options: Any):
        super().__init__(**options)
        self.segments = segments

    def build(self, shape: Shape) -> None:
        document, _, text = self.segments
        rows = FIRST_PLACE + max(document, text)
        drawn = keras.initializers.RandomNormal(stddev=SPREAD)
        self.table = self.add_weight((rows, shape[-1]), drawn, autocast=False, name="table")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        document, texts, text = self.segments
        places = self.table.value[FIRST_PLACE:]
        row = tf.concat([places[:document], tf.tile(places[:text], [texts, 1])], axis=0)
        return inputs + tf.cast(row, inputs.dtype)


class LayerNorm(keras.layers.Layer):
    """Layer normalisation (Ba et al. 2016) over the last axis, float [batch, tokens, width]."""

    def build(self, shape: Shape) -> None:
        width = (shape[-1],)
        self.gamma = self.add_weight(width, "ones", autocast=False, name="gamma")
        self.beta = self.add_weight(width, "zeros", autocast=False, name="beta")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        values = tf.cast(inputs, self.variable_dtype)
        centred = values - tf.reduce_mean(values, axis=-1, keepdims=True)
        variance = tf.reduce_mean(centred * centred, axis=-1, keepdims=True)
        outputs = centred * tf.math.rsqrt(variance + EPSILON) * self.gamma.value + self.beta.value
        return tf.cast(outputs, inputs.dtype)


class Gelu(keras.layers.Layer):
    """The exact GELU (Hendrycks & Gimpel 2016), with a gradient in one pass: TensorFlow's takes eleven."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def with_own_gradient(inputs: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            return inputs * _share(inputs), lambda upstream: _gelu_gradient(inputs, upstream)

        return with_own_gradient(inputs)


@tf.function(jit_compile=True, autograph=False)
@part("backward")
def _gelu_gradient(inputs: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    return upstream * (_share(inputs) + inputs * tf.exp(-0.5 * inputs * inputs) * _DENSITY)


def _share(inputs: tf.Tensor) -> tf.Tensor:
    """How much of a normal distribution lies below each number. `tf.nn.gelu` has the root of 2 in float32 alone."""
    return 0.5 + 0.5 * tf.math.erf(inputs * 0.5**0.5)


class FirstTokens(keras.layers.Layer):
    """The vector of the first token of each segment: float [batch, tokens, width] to [batch, 1 + texts, width]."""

    def __init__(self, segments: Segments, **options: Any):
        super().__init__(**options)
        self.segments = segments

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        documents, texts = _parted(inputs, self.segments)
        return tf.concat([documents[:, :1], tf.reshape(texts[:, 0], [-1, self.segments[1], inputs.shape[-1]])], axis=1)


class Attention(keras.layers.Layer):
    """Scaled dot-product attention of several heads (Vaswani et al. 2017) within each segment, to all its tokens but padding,
    from all tokens or from first tokens alone. Takes queries, float [batch, tokens or 1 + texts, width], keys and values
    [batch, tokens, width], and the tokens, int [batch, tokens]; returns float of the shape of the queries."""

    def __init__(self, segments: Segments, heads: int, **options: Any):
        super().__init__(**options)
        self.segments, self.heads = segments, heads

    def call(self, queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
        document, texts, text = self.segments
        is_whole = queries.shape[1] == document + texts * text
        of_queries = self.segments if is_whole else (1, texts, 1)
        parts = (_parted(queries, of_queries), *(_parted(tensor, self.segments) for tensor in (keys, values, tokens)))
        documents, others = (self._attended(*of_one) for of_one in zip(*parts, strict=True))
        return tf.concat([documents, tf.reshape(others, [-1, texts * of_queries[2], queries.shape[-1]])], axis=1)

    def _attended(self, queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
        """Attention within each of `keys`, [segments, tokens, width]."""
        queries, keys, values = (self._by_head(tensor) for tensor in (queries, keys, values))
        scores = tf.cast(tf.matmul(queries * queries.shape[-1] ** -0.5, keys, transpose_b=True), self.variable_dtype)
        hidden = tf.where(tokens == PADDING, tf.constant(_HIDDEN, scores.dtype), 0)
        shares = tf.cast(tf.nn.softmax(scores + hidden[:, None, None]), values.dtype)
        attended = tf.transpose(tf.matmul(shares, values), [0, 2, 1, 3])
        return tf.reshape(attended, [-1, attended.shape[1], attended.shape[2] * attended.shape[3]])

    def _by_head(self, tensor: tf.Tensor) -> tf.Tensor:
        """[segments, tokens, width] as [segments, heads, tokens, width / heads]."""
        parts = tf.reshape(tensor, [-1, tensor.shape[1], self.heads, tensor.shape[2] // self.heads])
        return tf.transpose(parts, [0, 2, 1, 3])

    def compute_output_spec(self, queries: keras.KerasTensor, *_: keras.KerasTensor) -> keras.KerasTensor:
        return keras.KerasTensor(queries.shape, queries.dtype)


class Cosines(keras.layers.Layer):
    """The cosine of the document's vector with that of each text: float [batch, 1 + texts, width] to [batch, texts]."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        units = tf.math.l2_normalize(inputs, axis=-1)
        return tf.reduce_sum(units[:, :1] * units[:, 1:], axis=-1)


def _parted(rows: tf.Tensor, segments: Segments) -> tuple[tf.Tensor, tf.Tensor]:
    """The documents [batch, document, ...] and the texts [batch x texts, text, ...] of `rows`. The gradient of a split is one
    copy, that of two slices is two sums with zeros."""
    document, texts, text = segments
    documents, others = tf.split(rows, [document, texts * text], axis=1)
    return documents, tf.reshape(others, [-1, text, *rows.shape[2:]])
