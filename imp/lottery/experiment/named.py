"""Functions that a recipe names: ours by name, a user's own as `package.module:function`."""

import difflib
import importlib
import re
import sys
from collections.abc import Callable, Collection
from typing import Any

from data_prep.errors import InputError, first_line

_OWN = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*"


def is_own(name: str) -> bool:
    """Whether `name` is a user's own function. Raises InputError where it has a colon and still names none."""
    if ":" in name and not re.fullmatch(_OWN, name):
        raise InputError(f"{name!r} does not name a function: write package.module:function")
    return ":" in name


def function(name: str, key: str) -> Callable[..., Any]:
    """The function `package.module:function`, which the recipe's `key` names; the current folder is searched last. Raises
    InputError where there is none."""
    module_name, _, function_name = name.partition(":")
    if "" not in sys.path:
        sys.path.append("")
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as error:
        raise InputError(
            f"{key}: {module_name} cannot be imported: {first_line(error)}; name a module that is installed or in the current "
            "folder"
        ) from error
    named = getattr(module, function_name, None)
    if not callable(named):
        raise InputError(f"{key}: {module_name} has no function {function_name}")
    return named


def check(name: str, known: Collection[str], kind: str) -> None:
    """Raise InputError unless `name` is one of `known`, or a user's own."""
    if is_own(name) or name in known:
        return
    near = difflib.get_close_matches(name, known, n=1)
    raise InputError(
        f"unknown {kind} {name!r}; "
        + (f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}, and your own as package.module:function")
    )
