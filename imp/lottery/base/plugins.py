"""What a recipe names: functions, ours by name and a user's own as `package.module:function`, and entry points of packages."""

import difflib
import importlib
import re
import sys
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from lottery.base.errors import InputError, first_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def is_own(name: str) -> bool:
    """Whether `name` is a user's own function. Raises InputError where it has a colon and still names none."""
    if ":" in name and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", name):
        raise InputError(f"{name!r} does not name a function: write package.module:function")
    return ":" in name


def function(name: str, key: str) -> Callable[..., Any]:
    """The function that the recipe's `key` names; the current folder is searched last. Raises InputError if there is none."""
    module_name, _, function_name = name.partition(":")
    if "" not in sys.path:
        sys.path.append("")
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a user's module raises
        way_out = "name a module that is installed or in the current folder"
        raise InputError(f"{key}: {module_name} cannot be imported: {first_line(error)}; {way_out}") from error
    named = getattr(module, function_name, None)
    if not callable(named):
        raise InputError(f"{key}: {module_name} has no function {function_name}")
    return named


def check(name: str, known: Collection[str], kind: str, shown: str = "") -> None:
    """Raise InputError unless `name` is one of `known` (in words: `shown`), or a user's own."""
    if is_own(name) or name in known:
        return
    raise _unknown(name, known, kind, f"known are {shown or ', '.join(known)}, and your own as package.module:function")


def members(group: str) -> "dict[str, EntryPoint]":
    """What installed packages add to a group of entry points, by name."""
    from importlib import metadata  # which `imp --help` has no use for

    return {one.name: one for one in metadata.entry_points(group=group)}


def member(group: str, name: str, ours: Mapping[str, str], kind: str) -> "EntryPoint":
    """The entry point `name` of a group: one of `ours` (name -> module:attribute), or of a package. Raises InputError."""
    from importlib import metadata

    known = members(group)
    known |= {own: metadata.EntryPoint(own, value, group) for own, value in ours.items()}
    if name not in known:
        raise _unknown(name, known, kind, f"known are {', '.join(known) or 'none'}; other packages add entry points `{group}`")
    return known[name]


def _unknown(name: str, known: Collection[str], kind: str, listed: str) -> InputError:
    plain = {_plain(one): one for one in known}
    near = difflib.get_close_matches(_plain(name), plain, n=1)
    return InputError(f"unknown {kind} {name!r}; " + (f"did you mean {plain[near[0]]!r}?" if near else listed))


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()
