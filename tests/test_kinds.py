"""Embeddings, attention and feed-forward parts told apart, and what masks keep of each."""

import pandas
import pytest

from lottery.pruning.kinds import kind_of
from lottery.results.sections import kinds


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("embedding_tokens/kernel", "embedding"),
        ("embedding_positions/table", "embedding"),
        ("layer_1_attention_query/kernel", "attention"),
        ("layer_12_attention_output", "attention"),
        ("layer_1_feed_forward_in/kernel", "feed-forward"),
        ("layer_2_feed_forward_out/kernel", "feed-forward"),
        ("multi_head_attention/query/kernel", "attention"),  # Keras's own
        ("transformer_layer_0/feedforward_output_dense/kernel", "feed-forward"),  # of KerasHub
        ("norm/gamma", "other"),
        ("block_1_expand/kernel", "other"),
    ],
)
def test_a_path_tells_what_its_layer_is_for(path, kind):
    assert kind_of(path) == kind


def rows(*layers):
    return pandas.DataFrame(
        {
            "replicate": replicate,
            "masks": "oneshot",
            "mask": mask,
            "density": density,
            "layer": layer,
            "weights": 8,
            "kept": kept,
        }
        for replicate in (1, 2)
        for mask, density, share in (("q50", 0.5, 4), ("q75", 0.25, 2))
        for layer, kept in ((layer, share + (layer == layers[0]) * replicate) for layer in layers)
    )


def test_shares_are_of_each_kind_and_of_all_replicates_together():
    found = kinds.by_kind(rows("layer_1_attention_query", "layer_1_attention_key", "embedding_tokens"))

    assert found.to_dict("list") == {
        "masks": ["oneshot"] * 2,
        "mask": ["q50", "q75"],
        "embedding": [8 / 16, 4 / 16],
        "attention": [19 / 32, 11 / 32],  # the first of two layers keeps 1 more in one replicate, 2 more in the other
        "density": [0.5, 0.25],
    }
    first, _ = kinds.lines(found)
    assert first == {"masks": "oneshot, q50", "density": "50.00%", "embedding": "50.00%", "attention": "59.38%"}


def test_a_network_of_images_has_no_such_table():
    assert kinds.by_kind(rows("conv1", "predictions")).empty
