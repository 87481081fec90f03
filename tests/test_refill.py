"""Refilled tickets: whole channels by the weights that a ticket keeps of them, as many weights in all."""

import numpy as np
import pytest
from test_connectivity import linear, network

from lottery.base.errors import InputError
from lottery.pruning import units as units_
from lottery.pruning.connectivity import Node
from lottery.pruning.refill import refill

NET = network(
    linear("a/kernel", "images", 3, 3, 2, 6),
    Node("flat", "reshape", 24, ("a/kernel",)),
    linear("b/kernel", "flat", 24, 8),
    linear("c/kernel", "b/kernel", 8, 10),
)
VECTORS = {"a/bias": (6,), "b/bias": (8,), "c/bias": (10,)}
LAYERS = {"a/kernel": 6, "b/kernel": 8}


def channels_in(*scope):
    return units_.channels_of("test", "sum", NET.kernels | VECTORS, scope, NET, True)


def weights_of(seed):
    rng = np.random.default_rng(seed)
    return {path: rng.normal(size=shape).astype(np.float32) for path, shape in (NET.kernels | VECTORS).items()}


def ticket_of(weights, density, seed):
    return {path: np.random.default_rng(seed).random(weights[path].shape) < density for path in ("a/kernel", "b/kernel")}


def kept(mask):
    return int(mask["a/kernel"].sum() + mask["b/kernel"].sum())


def stay(mask):
    """Which channels of each layer stay, as their biases say."""
    return {"a/kernel": mask["a/bias"], "b/kernel": mask["b/bias"]}


@pytest.mark.parametrize("seed", range(20))
def test_whole_channels_keep_no_more_weights_than_the_ticket_those_of_which_it_keeps_the_most(seed):
    weights, density = weights_of(seed), np.random.default_rng(seed).uniform(0.2, 0.95)
    ticket = ticket_of(weights, density, seed)

    mask = refill(ticket, weights, channels_in("a/kernel", "b/kernel"))

    one, other = stay(mask).values()
    assert mask.keys() == {"a/bias", "a/kernel", "b/bias", "b/kernel", "c/kernel"}
    assert np.array_equal(mask["a/kernel"], np.broadcast_to(one, (3, 3, 2, 6)))
    assert np.array_equal(mask["b/kernel"], np.outer(np.tile(one, 4), other))
    assert np.array_equal(mask["c/kernel"], np.broadcast_to(other[:, None], (8, 10)))
    assert kept(mask) <= kept(ticket)
    left = {path: np.abs(weights[path]) * bits for path, bits in ticket.items()}
    norms = {
        "a/kernel": left["a/kernel"].sum((0, 1, 2)) + left["b/kernel"].reshape(4, 6, 8).sum((0, 2)),
        "b/kernel": left["b/kernel"].sum(0),
    }
    for path, channels in stay(mask).items():
        assert channels.any()
        assert norms[path][channels].min() >= norms[path][~channels].max(initial=0)
    counts = {path: channels.sum() for path, channels in stay(mask).items()}
    shares = {
        "a/kernel": (ticket["a/kernel"].sum() + ticket["b/kernel"].sum()) / (108 + 192),
        "b/kernel": ticket["b/kernel"].sum() / 192,
    }
    _, path = min((counts[path] / LAYERS[path] / shares[path], path) for path in LAYERS if counts[path] < LAYERS[path])
    counts[path] += 1  # whose turn is next
    assert (18 + 4 * counts["b/kernel"]) * counts["a/kernel"] > kept(ticket)


def test_layers_keep_channels_in_proportion_to_what_the_ticket_keeps_of_them():
    weights = weights_of(0)
    ticket = ticket_of(weights, 1, 0)
    ticket["b/kernel"][:, 4:] = False  # half of each channel of `b`, and a little more of each of `a`

    one, other = (channels.sum() / channels.size for channels in stay(refill(ticket, weights, channels_in(*ticket))).values())

    share = (18 * 6 + 96) / (18 * 6 + 192)
    assert one / other == pytest.approx(share / 0.5, rel=0.3)
    assert one > other


def test_a_ticket_of_everything_keeps_everything_and_one_of_hardly_anything_cannot_be_refilled():
    weights, units = weights_of(0), channels_in("a/kernel", "b/kernel")

    everything = refill(ticket_of(weights, 2, 0), weights, units)

    assert all(bits.all() for bits in everything.values())
    with pytest.raises(InputError, match="control refill: one channel a layer"):
        refill(ticket_of(weights, -1, 0), weights, units)


def test_of_equal_channels_the_first_stay_and_only_the_prunable_count():
    weights = {path: np.ones(array.shape, np.float32) for path, array in weights_of(0).items()}
    ticket = {"b/kernel": np.arange(24 * 8).reshape(24, 8) % 2 == 0} | {"c/bias": np.zeros(10, bool)}

    mask = refill(ticket, weights, channels_in("b/kernel"))

    assert mask["b/bias"].tolist() == [True, False] * 4
    assert "a/bias" not in mask
