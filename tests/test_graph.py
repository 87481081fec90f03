"""The graph of masks and tickets: what each family asks for, what each network is made from, and what waits for what."""

from fractions import Fraction

import pytest

from lottery.experiment import graph
from lottery.experiment.family import Family
from lottery.experiment.graph import Snapshot, Ticket

END = 900
CONTROLS = ["reinit", "shuffle", "random"]
GOING_ON = ["lr", "finetune"]
SHOT = {"quantiles": "80,97.5", "controls": []}
ROUNDS = {"rounds": 3, "controls": []}


def tickets(rewind=(0, 45), replicate=1, name="own", scored=END, **family):
    return graph.tickets(replicate, name, Family(**family), scored, rewind)


def places(found):
    return [(one.mask.label, one.variant, one.rewind) for one in found]


def the(found, label, variant, rewind=45):
    [ticket] = [one for one in found if places([one]) == [(label, variant, rewind)]]
    return ticket


def test_networks_and_masks_are_named_readably():
    shot, chained = tickets(**SHOT)[-1], tickets(**ROUNDS)[-1]

    assert (str(shot), shot.mask.name) == ("replicate-1 own q97.5-step-000045 ticket", "q97.5")
    assert (str(chained), chained.mask.name) == ("replicate-1 own round-03-step-000045 ticket", "round-03-step-000045")
    assert str(shot.mask) == "replicate-1 own q97.5"
    assert str(Ticket(chained.mask, 1_000_000, "reinit", 0, None)) == "replicate-1 own round-03-step-1000000 reinit"


def test_one_shot_has_a_ticket_for_every_quantile_and_step_the_longest_training_first():
    found = tickets((90, 0, 45), **SHOT)

    assert places(found) == [(label, "ticket", step) for step in (0, 45, 90) for label in ("q80", "q97.5")]
    assert [one.first_step for one in found] == [one.rewind for one in found]
    assert [one.start for one in found] == [Snapshot(1, one.rewind) for one in found]
    assert len(tickets(**{**SHOT, "controls": ["reinit", "reinit"], "controls_at": "80"})) == 4 + 1


def test_masks_of_one_shot_are_scored_on_one_snapshot_and_shared_by_all_rewind_points():
    masks = graph.masks_of(tickets(scored=10, **SHOT))

    assert [(mask.label, mask.rate, mask.round, mask.rewind) for mask in masks] == [
        ("q80", 80, 1, None),
        ("q97.5", Fraction("97.5"), 1, None),
    ]
    assert all((mask.scored_on, mask.within) == (Snapshot(1, 10), None) for mask in masks)


def test_the_mask_of_a_round_is_scored_on_the_ticket_before_within_its_mask():
    found = tickets((45,), **ROUNDS)
    first, second, third = graph.masks_of(found)

    assert (first.scored_on, first.within) == (Snapshot(1, END), None)
    assert (second.scored_on, second.within) == (the(found, "round-01", "ticket"), first)
    assert (third.scored_on, third.within) == (the(found, "round-02", "ticket"), second)
    assert [(mask.round, mask.rate, mask.rewind) for mask in (first, second, third)] == [(n, 20, 45) for n in (1, 2, 3)]
    chains = tickets((0, 45, 1_000_000), **ROUNDS)
    assert len({mask.name for mask in graph.masks_of(chains)}) == 9
    assert {one.start for one in chains} == {Snapshot(1, 0), Snapshot(1, 45), Snapshot(1, 1_000_000)}


@pytest.mark.parametrize("method", GOING_ON)
def test_a_ticket_that_is_not_rewound_starts_where_the_round_before_ended(method):
    found = tickets((45,), method=method, **ROUNDS)
    first, second = the(found, "round-01", "ticket"), the(found, "round-02", "ticket")

    assert (first.start, first.first_step) == (Snapshot(1, END), 45)
    assert (second.start, second.first_step) == (first, 45)
    first, second = the(found, "round-01", "extended"), the(found, "round-02", "extended")
    assert (first.start, first.needs) == (Snapshot(1, END), [])
    assert (second.start, second.needs) == (first, [first])
    assert the(tickets((45,), method=method, **SHOT), "q80", "ticket").start == Snapshot(1, END)


@pytest.mark.parametrize(("method", "scored"), [("llr", 0), ("allr", 45), ("llr", END)])
def test_a_linear_retraining_starts_where_the_round_before_ended_and_the_first_where_the_mask_is_scored(method, scored):
    own = {"method": method, "scored_at": f"{scored}it", "controls": ["reinit", "shuffle"]}
    found = tickets((0,), scored=scored, **{**ROUNDS, **own, "controls_at": "1,3"})
    first, second, third = (the(found, f"round-{number:02d}", "ticket", 0) for number in (1, 2, 3))

    assert first.start == first.mask.scored_on == Snapshot(1, scored)
    assert (second.start, third.start) == (second.mask.scored_on, third.mask.scored_on) == (first, second)
    assert {one.first_step for one in found} == {0}
    assert {one.variant for one in found} == {"ticket", "reinit", "shuffle"}  # nothing is extended
    assert len(found) == 3 + 2 * 2
    assert [the(found, label, "reinit", 0).start for label in ("round-01", "round-03")] == [None, None]
    assert the(found, "round-03", "reinit", 0).needs == [second]  # whose mask it is within
    shuffled = the(found, "round-01", "shuffle", 0)
    assert (shuffled.start, shuffled.needs) == (Snapshot(1, scored), [])
    assert {one.dense_steps(is_scored=True, end=END) for one in found} == {scored}
    shot = tickets((0,), scored=scored, **{**SHOT, **own, "controls_at": "80"})
    assert the(shot, "q80", "ticket", 0).start == the(shot, "q80", "shuffle", 0).start == Snapshot(1, scored)
    assert the(shot, "q80", "reinit", 0).start is None


@pytest.mark.parametrize(("method", "start"), [("weights", 45), ("lr", END), ("finetune", END)])
@pytest.mark.parametrize("grid", [{**SHOT, "controls_at": "80"}, {**ROUNDS, "controls_at": "2"}], ids=["one shot", "rounds"])
def test_controls_start_as_each_says(grid, method, start):
    found = tickets(method=method, **{**grid, "controls": CONTROLS})
    label = "q80" if "quantiles" in grid else "round-02"

    shuffle = the(found, label, "shuffle")
    assert (shuffle.start, shuffle.first_step) == (Snapshot(1, start), 45)
    for variant in ("reinit", "random"):
        fresh = [one for one in found if one.variant == variant]
        assert {(one.mask.label, one.start, one.first_step) for one in fresh} == {(label, None, 0)}
        # In one shot one serves all rewind points of a mask; chains have each a mask of their own.
        assert [one.rewind for one in fresh] == ([0] if "quantiles" in grid else [0, 45])


@pytest.mark.parametrize(
    ("grid", "asked", "method"), [(ROUNDS, [], "weights"), (ROUNDS, ["reinit"], "lr"), (SHOT, [], "finetune")], ids=str
)
def test_extended_training_accompanies_each_ticket_that_goes_on_unasked(grid, method, asked):
    found = tickets(method=method, **{**grid, "controls": asked, "controls_at": ""})
    extended = [one for one in found if one.variant == "extended"]

    labels = [value.label for value in Family(**grid).grid] if method in GOING_ON else []
    assert sorted(places(extended)) == sorted((label, "extended", step) for step in (0, 45) for label in labels)
    assert not any(one.is_masked for one in extended)


def test_a_network_waits_for_its_start_and_for_what_its_mask_is_scored_on_and_for_nothing_else():
    rounds = tickets((45,), method="lr", **{**ROUNDS, "controls": CONTROLS, "controls_at": "1,3"})
    before = the(rounds, "round-02", "ticket")

    assert the(rounds, "round-03", "ticket").needs == [before, before]
    assert [the(rounds, "round-03", variant).needs for variant in CONTROLS] == [[before]] * 3
    assert [one.needs for one in rounds if one.mask.round == 1] == [[]] * 5
    assert not any(one.needs for one in tickets(**{**SHOT, "controls": CONTROLS, "controls_at": "80"}))


@pytest.mark.parametrize("more", [{"updates": "gmp"}, {"updates": "rigl", "criterion": "random", "scored_at": "0"}], ids=repr)
def test_controls_of_a_mask_that_changes_wait_for_their_ticket_at_each_rewind_point_and_stay_with_it(more):
    found = tickets(scored=0, **{**SHOT, "controls": ["rewound", "reinit"], "controls_at": "80", **more})

    for step in (0, 45):
        (ticket,) = (one for one in found if (one.mask.label, one.variant, one.rewind) == ("q80", "ticket", step))
        beside = [one for one in found if (one.mask.label, one.rewind) == ("q80", step) and one.variant != "ticket"]
        assert {one.variant for one in beside} == {"rewound", "reinit"}
        assert all(one.needs == one.lineage == [ticket] and one.chain == ticket.chain == ticket for one in beside)
        assert ticket.masks == ([] if more["updates"] == "gmp" else [ticket.mask])
        assert ticket.dense_steps(is_scored=True, end=END) == step


def test_what_had_to_be_trained_before_a_network_is_listed_once():
    rounds = tickets((45,), method="lr", **{**ROUNDS, "rounds": 30, "controls": CONTROLS, "controls_at": "3"})
    last = the(rounds, "round-30", "ticket")

    assert [one.mask.round for one in last.lineage] == list(range(1, 30))
    assert [mask.round for mask in last.masks] == list(range(1, 31))
    assert (
        last.dense_steps(is_scored=True, end=END)
        == the(rounds, "round-03", "shuffle").dense_steps(is_scored=True, end=END)
        == END
    )
    assert the(rounds, "round-03", "reinit").lineage == last.lineage[:2]


def test_rounds_come_in_their_order_each_ticket_before_what_accompanies_it_and_no_network_twice():
    found = tickets(method="lr", **{**ROUNDS, "controls": CONTROLS, "controls_at": "1,2,3"})

    assert len(set(found)) == len(found) == 2 * 3 * 5
    assert [one.mask.round for one in found] == sorted(one.mask.round for one in found)
    for round in (1, 2, 3):
        variants = [one.variant for one in found if one.mask.round == round]
        assert variants[:2] == ["ticket"] * 2
        assert "ticket" not in variants[2:]
    for place, one in enumerate(found):
        assert all(found.index(needed) < place for needed in one.needs)


def test_side_by_side_are_all_of_one_shot_and_of_each_chain_one_of_each_variant():
    assert graph.side_by_side([]) == 0
    assert graph.side_by_side(tickets(**SHOT)) == 4
    assert graph.side_by_side(tickets(**{**ROUNDS, "rounds": 18})) == 2
    assert graph.side_by_side(tickets(method="lr", **{**ROUNDS, "controls": ["reinit"], "controls_at": "1,3"})) == 2 * 3


@pytest.mark.parametrize(("size", "sizes"), [(1, [1] * 5), (2, [2, 2, 1]), (4, [3, 2]), (5, [5]), (1000, [5])])
def test_bundles_are_of_about_one_size_and_no_larger_than_what_there_is(size, sizes):
    found = graph.tickets(1, "own", Family(quantiles="10,20,30,40,50", controls=[]), 900, [0])

    bundles = graph.bundled(found, size)

    assert [len(bundle.tickets) for bundle in bundles] == sizes
    assert {bundle.size for bundle in bundles} == {sizes[0]}
    assert [one for bundle in bundles for one in bundle.tickets] == found


def test_what_is_left_of_a_bundle_keeps_its_places():
    found = graph.tickets(1, "own", Family(quantiles="10,20,30", controls=[]), 900, [0])
    (bundle,) = graph.bundled(found, 3)

    left = bundle.of([found[0], found[2]])

    assert (left.tickets, left.size, left.places) == ((found[0], found[2]), 3, (0, 2))
