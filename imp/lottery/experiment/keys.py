"""The keys of a recipe: what they may be, and which output each decides."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from lottery.experiment import grids
from lottery.experiment.grids import Grid, Point

Output = Literal["dense", "mask", "ticket"]  # each depends on what decides those before it

Seed = Annotated[int, Field(ge=0, lt=2**63)]
Fractional = Annotated[float, Field(ge=0, lt=1)]
AtLeast0 = Annotated[float, Field(ge=0)]


def checked(parse: Callable[[Any], object]) -> pydantic.AfterValidator:
    """A text that `parse` accepts; it stays a text, so that a recipe is written out as it was read."""

    def check(text: Any) -> Any:
        parse(text)
        return text

    return pydantic.AfterValidator(check)


def written(parse: Callable[..., Any]) -> pydantic.GetPydanticSchema:
    """A value that is written as text. `parse` reads it, perhaps by what else is known (pydantic.ValidationInfo)."""
    text = Annotated[str, pydantic.AfterValidator(parse), pydantic.PlainSerializer(str, return_type=str)]
    return pydantic.GetPydanticSchema(lambda source, handler: handler.generate_schema(text))


Points = Annotated[Grid[Point], written(grids.parse_points)]
Interval = Annotated[Point, written(grids.parse_interval)]


def key(default: Any, meaning: str, decides: Output | None = "dense") -> Any:
    """A recipe key that says what `decides` is (and all that is made from that): with another value it is another."""
    return Field(default, description=meaning, json_schema_extra={"decides": decides})


def aside(default: Any, meaning: str) -> Any:
    """A recipe key that says how much to make or how to go about it, not what an output is."""
    return key(default, meaning, None)


class Table(pydantic.BaseModel):
    """A table of a recipe: no unknown keys, no silent conversion."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=True, allow_inf_nan=False)
