"""Which feed a set gets: in memory, on devices or on the host, or streamed, by what memory there is; whether
networks are drawn anew."""

import re

import pytest
import tensorflow as tf

from lottery.base import capacity
from lottery.base.errors import InputError
from lottery.engine import assembly
from lottery.engine.assembly import make_feed
from lottery.engine.feed import MemoryFeed
from lottery.engine.stream import StreamFeed
from lottery.executors.allocation import Allocation
from lottery.experiment.family import Family
from lottery.experiment.recipe import Data, Model, Pruning, Recipe
from lottery.rundir.run import Run

pytestmark = pytest.mark.usefixtures("tensorflow")

ONE = ["CPU:0"]


def chosen(prepared, devices=ONE, seat=None, **data):
    return make_feed(*prepared, Data(size=8, **data), tf.distribute.get_strategy(), devices, seat)


@pytest.fixture
def free(monkeypatch):
    """A function that sets how much memory is free."""
    return lambda count: monkeypatch.setattr(capacity, "free_memory", lambda: int(count))


def test_what_fits_half_of_the_free_memory_is_held_and_what_does_not_is_streamed(uneven, free):
    size = uneven[1].bytes
    assert size == (1311 + 2 * 411) * 192

    free(2 * size)
    assert isinstance(chosen(uneven), MemoryFeed)
    free(2 * size - 2)
    assert isinstance(chosen(uneven, shuffle=250), StreamFeed)


def test_ranks_that_train_on_one_host_have_their_part_of_its_memory_and_of_a_gpu_that_they_share(uneven, free, monkeypatch):
    size = uneven[1].bytes
    free(6 * size - 6)
    assert isinstance(chosen(uneven, seat=Allocation((), 1, on_host=2), shuffle=250), MemoryFeed)
    assert isinstance(chosen(uneven, seat=Allocation((), 1, on_host=3), shuffle=250), StreamFeed)

    asked = []
    monkeypatch.setattr(capacity, "device_budget", lambda gib, memory, ranks: asked.append(ranks) or 0)
    monkeypatch.setattr(assembly, "memory_of", lambda devices: 0)
    chosen(uneven, ["GPU:0"], Allocation(("0",), 1, on_host=2, on_gpu=2))

    assert asked == [2]


def test_a_budget_comes_before_the_free_memory(uneven, free):
    free(1e12)
    assert isinstance(chosen(uneven, shuffle=250, budget=300_000 / (1 << 30)), StreamFeed)
    free(0)
    assert isinstance(chosen(uneven, budget=1.0), MemoryFeed)


def test_the_kind_of_feed_can_be_asked_for(uneven, free):
    free(1e12)
    assert isinstance(chosen(uneven, feed="stream"), StreamFeed)
    free(0)
    assert isinstance(chosen(uneven, feed="memory"), MemoryFeed)


def test_images_that_fit_no_gpu_are_held_by_the_host_or_streamed(uneven, free, monkeypatch):
    monkeypatch.setattr(capacity, "device_budget", lambda gib, memory, ranks: 1000)
    monkeypatch.setattr(assembly, "memory_of", lambda devices: 0)

    free(1e9)
    assert isinstance(chosen(uneven, devices=["GPU:0"]), MemoryFeed)
    free(uneven[1].bytes)
    assert isinstance(chosen(uneven, devices=["GPU:0"], shuffle=250), StreamFeed)


def test_a_window_that_does_not_fit_is_refused_with_one_that_does(uneven, free):
    free(200_000)

    with pytest.raises(InputError, match=r"streaming with data\.shuffle 65536 .*data\.budget") as refusal:
        chosen(uneven)

    lower = int(str(refusal.value).split("lower data.shuffle to ")[1].split(",")[0])
    assert 0 < lower < 1311
    assert isinstance(chosen(uneven, shuffle=lower), StreamFeed)


def checked(make_trainer, tmp_path, name, controls=(), replicates=1, known=(1,), exclude=(), **model):
    """Whether tickets and replicates of such a run would differ in what they begin with."""
    model, family = Model(name=name, **model), Family(quantiles="50", controls=list(controls))
    recipe = Recipe(model=model, replicates=replicates, families={"own": family}, pruning=Pruning(exclude=list(exclude)))
    for number in known:
        (tmp_path / f"replicate-{number}").mkdir()
    assembly.check_draws(Run(tmp_path, recipe), make_trainer(model=model, maskable=()))


@pytest.mark.parametrize(
    "given",
    [
        {"name": "tiny:seeded"},
        {"name": "tiny:seeded", "controls": ["shuffle", "invert", "soup2"]},
        {"name": "tiny:seeded_but_its_head", "replicates": 2},
        {"name": "tiny:seeded_but_its_head", "controls": ["reinit"], "exclude": ["body/*"]},
        {"name": "tiny:local", "controls": ["reinit", "random"], "replicates": 2},
        {"name": "lenet_300_100", "controls": ["reinit"], "replicates": 2},
    ],
)
def test_a_network_may_be_drawn_alike_where_nothing_is_to_differ(make_trainer, tmp_path, given):
    checked(make_trainer, tmp_path, **given)


@pytest.mark.parametrize("control", ["reinit", "random"])
@pytest.mark.parametrize("name", ["seeded", "seeded_but_its_head"])
def test_a_control_that_would_begin_like_its_ticket_is_refused(make_trainer, tmp_path, name, control):
    told = (
        f"families.own.controls: {control} needs fresh weights, but tiny:{name} draws body/kernel alike whatever the seed: "
        "draw it without a seed (a file of weights goes into model.weights), or leave the control out"
    )
    with pytest.raises(InputError, match=f"^{re.escape(told)}$"):
        checked(make_trainer, tmp_path, f"tiny:{name}", [control])


@pytest.mark.parametrize("given", [{"replicates": 2}, {"known": (1, 2)}])
def test_replicates_that_would_all_begin_alike_are_refused(make_trainer, tmp_path, given):
    told = (
        "replicates: tiny:seeded draws all weights alike whatever the seed: draw them without a seed (a file of weights goes "
        "into model.weights), or train one replicate"
    )
    with pytest.raises(InputError, match=f"^{re.escape(told)}$"):
        checked(make_trainer, tmp_path, "tiny:seeded", **given)
