"""Functions that a recipe names: ours by name, a user's own as `package.module:function`."""

import difflib
import importlib
import re
import sys
from collections.abc import Callable, Collection
from typing import Any

from lottery.base.errors import InputError, first_line


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
    plain = {_plain(one): one for one in known}
    near = difflib.get_close_matches(_plain(name), plain, n=1)
    listed = f"known are {shown or ', '.join(known)}, and your own as package.module:function"
    raise InputError(f"unknown {kind} {name!r}; " + (f"did you mean {plain[near[0]]!r}?" if near else listed))


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()
