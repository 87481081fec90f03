"""Which values of a recipe an output depends on: what is compared before one is made, continued or used."""

from collections.abc import Mapping
from typing import Any, get_args

from data_prep import sources
from lottery.experiment import controls, networks
from lottery.experiment.family import Family
from lottery.experiment.keys import Output
from lottery.experiment.recipe import OF_IMAGES, Model, Recipe, Texts
from lottery.pruning import criteria

_UPDATES_WITHOUT = {
    "none": ["updates", "update_every", "update_from", "update_until", "drop_fraction"],
    "gmp": ["drop_fraction", "scored_at"],
    "rigl": ["update_from"],
    "set": ["update_from"],
}


def decisive(recipe: Recipe, output: Output = "dense", family: str = "") -> dict[str, Any]:
    """The values, by dotted key, that an output depends on: of the dense network, or of a mask or a ticket of `family`."""
    left_out, outputs = without_effect(recipe), get_args(Output)
    parts = outputs[: outputs.index(output) + 1]
    tables = {"": recipe, **{name: getattr(recipe, name) for name in ("data", "texts", "model", "train", "pruning", "retrain")}}
    if family:
        tables[f"families.{family}"] = recipe.families[family]
    own = recipe.families.get(family)
    if recipe.pruning.streams or not (own and (own.units.is_channel or controls.refill.name in own.controls)):
        left_out |= {"pruning.streams"}
    if not (own and own.units.is_channel):
        left_out |= {"retrain.compact"}
    others = {"averages": "weights and statistics"} if recipe.train.ema else {}
    others |= {"model.weights": "those of a file"} if recipe.model.weights else {}  # whose digest is among the origins
    if own and own.is_settled and output != "dense":  # where a mask is settled depends on where it is looked at
        others |= {"train.snapshots": recipe.train.model_dump()["snapshots"]}
    return others | {
        dotted: written[name]
        for place, table in tables.items()
        for written in [table.model_dump()]
        for name, field in type(table).model_fields.items()
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra["decides"] in parts
        if (dotted := f"{place}.{name}".lstrip(".")) not in left_out
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How some of these values differ from earlier ones, key by key. Where the files are that records were made from is a note:
    the digest of the records is compared beside these values."""
    one, other = ({**values, **_without_places(values)} for values in (before, now))
    differing = [key for key in sorted(one | other) if one.get(key) != other.get(key)]
    return [f"{key} was {before.get(key)!r}, is {now.get(key)!r}" for key in differing]


def _without_places(values: Mapping[str, Any]) -> dict[str, Any]:
    source, tokenizer = str(values.get("data.source")), values.get("texts.tokenizer")
    kind = source.partition(":")[0]
    return {"data.source": kind if kind in sources.PATHS else source, "texts.tokenizer": bool(tokenizer)}


def without_effect(recipe: Recipe) -> set[str]:
    """Keys that the choice of another leaves without a meaning, and some that mean nothing as they are by default."""
    keys = {"train.epochs" if recipe.train.steps else "train.steps"}
    is_of_texts = sources.is_of_texts(recipe.data.source)
    keys |= {f"data.{key}" for key in OF_IMAGES} if is_of_texts else {f"texts.{key}" for key in Texts.model_fields}
    keys |= {f"data.{key}" for key in ("examples", "label_noise", "hardest", "easiest") if not getattr(recipe.data, key)}
    if recipe.train.schedule != "step":
        keys |= {"train.milestones", "train.gamma"}
    if recipe.train.optimizer != "sgd":
        keys |= {"train.momentum", "train.nesterov"}
    if recipe.task == "classification":  # as in runs from before there was another
        keys |= {"task"}
    if recipe.model.padding == "same":  # as in runs from before there was another
        keys |= {"model.padding"}
    if not recipe.pruning.include:
        keys |= {"pruning.include"}
    if not recipe.train.momentum:
        keys |= {"train.nesterov"}
    if not recipe.train.weight_decay:
        keys |= {"train.decay", "train.decays"}
    for name, family in recipe.families.items():
        unused = ["scored_at"] if family.rounds and family.scored_at == "end" else []
        unused += [] if family.rounds else ["rate", "rates"]
        unused += [] if family.method == "finetune" else ["finetune_rate"]
        unused += [] if family.passes > 1 else ["iterations"]
        unused += [] if family.densities else ["densities"]
        unused += [] if family.particles > 1 else ["particles"]
        unused += ["length"] if family.length == 1 else []
        unused += [] if family.budget else ["budget"]
        unused += [] if family.mask else ["mask"]
        unused += _UPDATES_WITHOUT[family.updates]
        unused += ["units"] if family.units.is_weight else []
        unused += ["unit_score"] if family.units.is_weight or family.units.is_n_of_m else []
        unused += ["target"] if family.target == "weights" else []
        unused += [] if family.per_mac else ["per_mac"]
        if family.criterion in criteria.CRITERIA and family.criterion not in criteria.WITH_IMAGES:
            unused += ["scored_on", "scored_seed", "scored_norm"]
        keys |= {f"families.{name}.{key}" for key in unused}
    used = ("name", *networks.settings(recipe.model.name))
    return keys | {f"model.{key}" for key in Model.model_fields if key not in used}


def decides(key: str) -> Output | None:
    """What is another with another value of this dotted key: the dense network, masks or tickets, and all that is made from it;
    None for a key that says how much to make, or how to go about it."""
    place, _, name = key.rpartition(".")
    known = Recipe.model_fields.get(place)
    table = Family if place.startswith("families.") else known.annotation if known else Recipe
    field = getattr(table, "model_fields", {}).get(name)
    extra = field.json_schema_extra if field else None
    return extra["decides"] if isinstance(extra, dict) else None
