"""Which values of a recipe decide what an output is."""

import pytest

from lottery.experiment import reading
from lottery.experiment.decisive import decides, decisive, differences
from lottery.experiment.recipe import OF_IMAGES

OUTPUTS = ("dense", "mask", "ticket")
FAMILIES = {
    "shot": {"quantiles": "90"},
    "chained": {"rounds": 3},
    "tuned": {"rounds": 3, "method": "finetune"},
    "gmp": {"quantiles": "90", "updates": "gmp"},
    "rigl": {"quantiles": "90", "updates": "rigl", "scored_at": "0"},
    "long": {"quantiles": "90", "length": 2.0},
}
CHANGING = {"method", "updates", "update_every", "update_until"}


def depends(output, family="shot", **tables):
    return decisive(reading.resolve({"families": FAMILIES, **tables}), output, "" if output == "dense" else family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("output", OUTPUTS)
def test_no_output_depends_on_how_many_outputs_there_are_nor_on_how_it_comes_about(output, family):
    aside = {"train.snapshots", "replicates", "name", "delta", "pruning.collapse", "track.trackers", "track.project"}
    aside |= {f"families.{family}.{key}" for key in ("quantiles", "rounds", "rewind", "controls", "controls_at")}
    aside |= {f"train.checkpoint_{key}" for key in ("seconds", "steps", "share")} | {"data.path", "data.feed", "data.budget"}

    keys = depends(output, family).keys()

    assert not aside & keys
    assert {"data.shuffle", "data.crop", "data.resized_crop", "data.flip", "data.cutout", "data.classes"} <= keys
    assert not any(key.startswith(("sweep.", "track.")) for key in keys)


def test_what_is_of_images_decides_nothing_made_from_texts_and_the_other_way_round():
    chosen = {"label_noise": 0.1, "scores": "some.csv"}
    hardest, easiest, texts = (
        depends("dense", data=data).keys()
        for data in (chosen | {"hardest": 9}, chosen | {"easiest": 0.5}, {"source": "docstrings"})
    )
    images = hardest | easiest

    own = {f"data.{key}" for key in OF_IMAGES if key != "scores"}  # which are beside the records
    assert {key for key in images - texts if not key.startswith("model.")} == own
    assert texts - images == {f"texts.{key}" for key in ("document", "candidate", "candidates", "vocabulary")}
    assert {"data.source", "data.validation", "data.test", "data.split_seed", "data.shuffle"} <= images & texts


@pytest.mark.parametrize(
    ("train", "without"),
    [
        ({"schedule": "cosine"}, {"milestones", "gamma"}),
        ({"schedule": "step"}, set()),
        ({"schedule": "step", "optimizer": "adam"}, {"momentum", "nesterov"}),
        ({"schedule": "step", "momentum": 0.0}, {"nesterov"}),
        ({"schedule": "step", "weight_decay": 0.0}, {"decay", "decays"}),
        ({"schedule": "step", "steps": 500}, set()),
    ],
)
def test_no_output_depends_on_what_its_optimizer_and_schedule_do_not_use(train, without):
    used = {key.removeprefix("train.") for key in depends("dense", train=train) if key.startswith("train.")}

    sometimes = {"milestones", "gamma", "momentum", "nesterov", "decay", "decays", "epochs", "steps"}
    assert sometimes - used == without | {"epochs" if "steps" in train else "steps"}


@pytest.mark.parametrize(
    ("family", "of_masks", "of_tickets"),
    [
        ("shot", {"criterion", "scored_at", "allocation"}, {"method"}),
        ("chained", {"criterion", "allocation", "rate", "rates"}, {"method"}),
        ("tuned", {"criterion", "allocation", "rate", "rates"}, {"method", "finetune_rate"}),
        ("gmp", {"criterion", "allocation"}, CHANGING | {"update_from"}),
        ("rigl", {"criterion", "scored_at", "allocation"}, CHANGING | {"drop_fraction"}),
        ("long", {"criterion", "scored_at", "allocation"}, {"method", "length"}),
    ],
)
def test_each_output_depends_on_what_it_is_made_from_and_on_the_keys_of_its_own_family(family, of_masks, of_tickets):
    dense, mask, ticket = (depends(output, family) for output in OUTPUTS)

    assert dense.items() < mask.items() < ticket.items()
    assert {
        "seed",
        "data.source",
        "model.initializer",
        "train.learning_rate",
        "train.threads",
        "train.evaluate",
    } <= dense.keys()
    own = {"pruning.scope", "pruning.exclude", *(f"families.{family}.{key}" for key in of_masks)}
    assert mask.keys() - dense.keys() == own
    own = {"retrain.optimizer_state", "retrain.order", *(f"families.{family}.{key}" for key in of_tickets)}
    assert ticket.keys() - mask.keys() == own


def test_masks_depend_on_what_is_included_where_something_is():
    assert "pruning.include" not in depends("mask")  # as in runs from before there was such a key
    assert depends("mask", pruning={"include": ["own/w"]})["pruning.include"] == ["own/w"]
    assert "pruning.include" not in depends("dense", pruning={"include": ["own/w"]})


def test_snapshots_decide_masks_that_are_cut_where_they_are_settled():
    recipe = reading.resolve({"families": {"a": {"quantiles": "50", "scored_at": "settled"}, "b": {"quantiles": "50"}}})

    found = {(family, output): decisive(recipe, output, family) for family in "ab" for output in ("mask", "ticket")}

    assert [("train.snapshots" in values) for values in found.values()] == [True, True, False, False]
    assert "train.snapshots" not in decisive(recipe)


def test_a_part_of_the_examples_decides_and_all_of_them_are_as_before_where_there_was_no_part():
    assert depends("dense", data={"examples": 500})["data.examples"] == 500
    assert depends("dense", data={"label_noise": 0.1})["data.label_noise"] == 0.1
    assert not {f"data.{key}" for key in ("examples", "label_noise", "hardest", "easiest")} & depends("dense").keys()


def test_streams_count_where_channels_are_pruned_or_refilled_and_as_before_where_they_may_go():
    kept, gone = ({"streams": streams} for streams in (False, True))
    tables = {"a": {"units": "channel", "quantiles": "50"}, "b": {"controls": ["refill"], "quantiles": "50"}}
    others = {"c": {"quantiles": "50"}}

    def counts(family, pruning):
        recipe = reading.resolve({"pruning": pruning, "families": tables | others})
        return "pruning.streams" in decisive(recipe, "ticket", family)

    assert [counts(family, kept) for family in "abc"] == [True, True, False]
    assert [counts(family, gone) for family in "abc"] == [False, False, False]


@pytest.mark.parametrize("before", ["2.0ep", 3, None, ["3ep"], "in another version's words"])
def test_a_value_that_differs_is_told_as_it_was_noted(before):
    assert differences({"train.warmup": before}, {"train.warmup": "3ep"}) == [f"train.warmup was {before!r}, is '3ep'"]


@pytest.mark.parametrize(
    ("key", "decided"),
    [
        ("seed", "dense"),
        ("train.batch", "dense"),
        ("families.shot.criterion", "mask"),
        ("retrain.order", "ticket"),
        *(("replicates", None), ("families.shot.quantiles", None), ("families.shot", None), ("of.another.version", None)),
    ],
)
def test_a_key_says_what_it_decides(key, decided):
    assert decides(key) == decided
