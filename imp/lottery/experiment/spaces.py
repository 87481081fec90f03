"""What a sweep searches: recipe keys, and the values that each may take, as a recipe writes them.

train.learning_rate=0.01..1:log    a number, here drawn evenly on a logarithmic scale
train.momentum=0.8..0.99           a number
train.epochs=5..20                 a whole number, where the key's values are
train.batch=64,128,256             one of these
"""

import dataclasses
import itertools
import math
import re
from typing import Any, Literal

from lottery.base.errors import InputError

_NUMBER = r"[+-]?(?:\d{1,30}(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(:log)?")


@dataclasses.dataclass(frozen=True)
class Dimension:
    """A key, and what it may be: of a `choice` one of `values`, each written as after `--set KEY=`; else any number between the
    two of them, whole where both are `int`, drawn evenly on a `linear` scale or a `log` one. `str` writes it as above."""

    key: str
    values: tuple[Any, ...]
    kind: Literal["choice", "linear", "log"]

    def __str__(self) -> str:
        if self.kind == "choice":
            return f"{self.key}={','.join(self.values)}"
        low, high = self.values
        return f"{self.key}={low}..{high}{':log' if self.kind == 'log' else ''}"


def check(dimensions: list[Dimension]) -> list[Dimension]:
    """The dimensions of a space. Raises InputError for a key that is named twice."""
    for earlier, later in itertools.combinations(dimensions, 2):
        if earlier.key == later.key:
            raise InputError(f"sweep.space names {later.key} twice")
    return dimensions


def parse_dimension(line: str) -> Dimension:
    """Raises InputError for a line that is not a dimension."""
    key, equals, text = (part.strip() for part in line.partition("="))
    if not equals or not re.fullmatch(r"[\w.]+", key):
        raise InputError(f"{line!r} is not searchable: write KEY=LOW..HIGH, KEY=LOW..HIGH:log or KEY=A,B,C")
    match = _RANGE.fullmatch(text)
    if not match:
        values = tuple(value.strip() for value in text.split(","))
        if len(set(values)) < 2 or not all(values):
            raise InputError(f"{line!r} leaves nothing to choose: write KEY=LOW..HIGH[:log] or KEY=A,B,C")
        return Dimension(key, values, "choice")
    is_whole = all(re.fullmatch(r"[+-]?\d+", end) for end in match.groups()[:2])
    low, high = (int(end) if is_whole else float(end) for end in match.groups()[:2])
    if not -math.inf < low < high < math.inf:
        raise InputError(f"{line!r} must be finite and ascend")
    if match[3] and low <= 0:
        raise InputError(f"{line!r}: a logarithmic range must start above 0")
    return Dimension(key, (low, high), "log" if match[3] else "linear")
