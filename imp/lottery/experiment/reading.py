"""Recipes as TOML: reading, overriding and checking them, and writing them with the meaning of each key."""

import contextlib
import copy
import difflib
import json
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic
import tomli_w

import lottery
from lottery.base import files
from lottery.base.errors import InputError
from lottery.experiment.family import Family
from lottery.experiment.recipe import FAMILY_NAME, Recipe

FORMAT = 2  # of run directories
_INSTALLED, _CHECKOUT = Path(lottery.__file__).with_name("pipelines"), Path(__file__).parents[3] / "pipelines"
_OURS = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT  # the recipes that come with this package
_SEAL = f"# written by imp, format {FORMAT}; change it with --set. sha256 "
_FAMILY = re.compile(rf"^\s*families\.({FAMILY_NAME})\.", re.MULTILINE)
_WIDTH = 128
_QUOTED = 200  # letters of a value in a message


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested table as one of dotted keys: `{"train": {"batch": 64}}` -> `{"train.batch": 64}`."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return values


def load(path: Path) -> dict[str, Any]:
    """The table of a TOML file; or of our recipe of this name, such as `digits`, where there is no such file. Raises InputError
    when both are missing, or it is not TOML."""
    ours = {recipe.stem: recipe for recipe in _OURS.glob("*.toml")}
    path = path if path.is_file() else ours.get(str(path), path)
    files.check_regular(path)
    try:
        return _parse(path.read_text())
    except FileNotFoundError:
        near = difflib.get_close_matches(path.stem, ours, n=1)
        meant = f"did you mean {near[0]}?" if near else f"name a file, or one of {', '.join(sorted(ours))}"
        raise InputError(f"there is no recipe {path}: {meant}") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, not a recipe: name a .toml file") from None
    except ValueError as error:
        raise InputError(f"{path} is not TOML: {error}") from None


def _parse(text: str) -> dict[str, Any]:
    """The table of a TOML text. Raises ValueError where it is none."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def resolve(table: dict[str, Any], overrides: Iterable[str] = (), origin: str = "recipe", setter: str = "--set") -> Recipe:
    """A checked recipe from `table`, the defaults, and `overrides` such as `train.epochs=5`. Raises InputError with the first
    key that is unknown or of the wrong type; it begins with `setter` where the overrides are to blame, else with `origin`."""
    if any(isinstance(table.get(name), kind) for name, kind in _FIRST_FORMAT.items()):
        raise InputError(f"{origin} is a recipe of imp 0.1.0: write [families.NAME] for each way to prune (CHANGELOG.md)")
    defaults, overrides = Recipe().model_dump(), list(overrides)
    try:
        merged = copy.deepcopy(table)
    except RecursionError:
        raise InputError(f"{origin} is nested too deep") from None
    in_table = table.get("families", {})
    families = {*(in_table if isinstance(in_table, dict) else ()), *re.findall(_FAMILY, "\n".join(overrides))}
    fields = {f"families.{name}.{key}": field.default for name in families for key, field in Family.model_fields.items()}
    known = flat(defaults) | fields
    for override in overrides:
        key, value = _parse_override(override, known, setter)
        if key.startswith("families."):
            merged.setdefault("families", defaults["families"])
        _put(merged, key, value)
    try:
        return Recipe.model_validate(merged)
    except pydantic.ValidationError as error:
        blamed = origin
        with contextlib.suppress(pydantic.ValidationError):
            Recipe.model_validate(table)
            blamed = setter
        raise InputError(_explain(error, known, blamed)) from None


def to_toml(recipe: Recipe) -> str:
    return tomli_w.dumps(recipe.model_dump())


def sealed(recipe: Recipe) -> str:
    """The TOML of a run's own recipe, with its sha256 in the first line."""
    return f"{_SEAL}{files.sha256(to_toml(recipe).encode())}\n{to_toml(recipe)}"


def check_format(path: Path) -> None:
    """Raise InputError where the run's own recipe in `path` is of a run directory that this version does not read."""
    first = path.read_bytes().partition(b"\n")[0].decode(errors="replace")
    if not first.startswith(_SEAL):
        way_out = "use that version, or begin another run with --run. Where only its first line is damaged, remove it and name"
        problem = f"was written by another version of imp (this one reads format {FORMAT})"
        raise InputError(f"{path} {problem}: {way_out} the run's recipe with --recipe")


def load_sealed(path: Path) -> dict[str, Any]:
    """The table of a run's own recipe. Raises InputError when it is not as it was written."""
    seal, _, content = path.read_bytes().partition(b"\n")
    if seal.decode(errors="replace") != _SEAL + files.sha256(content):
        way_out = "change a run's values with --set KEY=VALUE, or name its recipe with --recipe, which replaces this one"
        raise InputError(f"{path} is damaged or was changed by hand: {way_out}")
    return load(path)


def explained(recipe: Recipe) -> str:
    """The TOML of `recipe`, each key with what it means behind it."""
    return "\n".join(_explained(recipe, "")) + "\n"


def _explained(table: pydantic.BaseModel, path: str) -> Iterator[str]:
    inner: list[tuple[str, pydantic.BaseModel]] = []
    written = table.model_dump()
    for name, field in type(table).model_fields.items():
        value = getattr(table, name)
        if isinstance(value, pydantic.BaseModel):
            inner.append((f"{path}{name}", value))
        elif isinstance(value, dict):
            inner += [(f"{path}{name}.{key}", one) for key, one in value.items()]
        else:
            yield from _explained_key(name, written[name], field.description or "")
    for place, one in inner:
        sentence = " ".join((type(one).__doc__ or "").split()).partition(". ")[0].rstrip(".")
        yield f"\n[{place}]  # {sentence}"
        yield from _explained(one, f"{place}.")


def _explained_key(name: str, value: Any, meaning: str) -> list[str]:
    """The line of a key, its meaning behind it, or above where there is no room."""
    text = f"{name} = {json.dumps(value, ensure_ascii=False)}"  # a list on one line, which is TOML too
    if not isinstance(value, list) or len(text) > _WIDTH:
        text = tomli_w.dumps({name: value}).rstrip("\n")
    line = f"{text:<33} # {meaning}"
    if "\n" not in text and len(line) <= _WIDTH:
        return [line]
    return [*textwrap.wrap(meaning, _WIDTH, initial_indent="# ", subsequent_indent="# "), text]


_FIRST_FORMAT = {"pruning": list, "thresholds": dict, "rounds": dict}  # top-level keys of recipes before there were families
_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: """a list: write it as in --set 'KEY=["one", "two"]'""",
}


def _parse_override(override: str, known: dict[str, Any], setter: str) -> tuple[str, Any]:
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals:
        raise InputError(f"{setter} {_cut(override)}: write KEY=VALUE, such as train.epochs=5")
    if key not in known:
        raise InputError(f"{setter} {_cut(override)}: unknown key {_cut(key)}{_nearest(key, known)}")
    if isinstance(known[key], str):
        return key, text.strip().strip("\"'")
    try:
        return key, _parse(f"value = {text}")["value"]
    except ValueError:
        raise InputError(f"{setter} {_cut(override)}: {_cut(text)} is not {_KINDS[type(known[key])]}") from None


def _cut(value: Any) -> str:
    """What messages quote of `value`."""
    text = repr(value)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."


def _put(table: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            return  # validation names the table that is none
    table[last] = value


def _nearest(key: str, known: Iterable[str]) -> str:
    """What `key` may stand for: a key of its table that it abbreviates, one of its name in another table, or one that resembles
    it; all of its table where there is none."""
    known, (table, _, name) = list(known), key.rpartition(".")
    beside = {leaf: other for other in known for place, _, leaf in [other.rpartition(".")] if place == table}
    found = [other for leaf, other in beside.items() if "".join(word[0] for word in leaf.split("_")) == name]
    found += [other for other in known if other.rpartition(".")[2] == name]
    found += [beside[leaf] for leaf in difflib.get_close_matches(name, beside, n=1, cutoff=0.5)]
    found += difflib.get_close_matches(key, known, n=1, cutoff=0.7)
    return f"; did you mean {found[0]!r}?" if found else f"; known are {', '.join(beside.values() or known)}"


def _explain(error: pydantic.ValidationError, known: dict[str, Any], origin: str) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"] if part != "[key]")
    if first["type"] == "extra_forbidden":
        tables = {other.split(".")[0] for other in known if "." in other}
        return f"{origin}: unknown key {_cut(key)}{_nearest(key, [*known, *tables])}"
    cause = first.get("ctx", {}).get("error")
    message = str(cause) if isinstance(cause, InputError) else f"{first['msg']}, not {_cut(first['input'])}"
    return ": ".join(filter(None, [origin, key, message.removeprefix(f"{key}: ")]))
