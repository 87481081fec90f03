"""Pages that open from disk: the package's templates, filled in, with their pictures inside."""

import base64
from typing import Any

import jinja2


def fill(template: str, **values: Any) -> str:
    """The HTML of `template`, named from the package's folder; its filter `inline` turns the bytes of a PNG into a `src`."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lottery", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["inline"] = _inline
    return environment.get_template(template).render(**values)


def _inline(picture: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"
