"""HTML pages that open from disk: templates of this package, filled in."""

import json
import re
from typing import Any

import jinja2
import markupsafe


def fill(template: str, **values: Any) -> str:
    """The HTML of `template`, named from the package's folder; its filter `within` turns any content into JSON in a <script>,
    `marked` what stands in backticks into <code> and between two asterisks into <b>, and bounds into <span>."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lottery", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"within": _within, "marked": _marked}
    return environment.get_template(template).render(**values)


def _within(content: Any) -> markupsafe.Markup:
    """JSON that is safe inside a <script>: nothing in it can end the element."""
    return markupsafe.Markup(json.dumps(content, allow_nan=False).replace("<", "\\u003c"))


def _marked(sentence: str) -> markupsafe.Markup:
    html = re.sub(r"`([^`]*)`", r"<code>\1</code>", str(markupsafe.escape(sentence)))
    html = re.sub(r"\([^()]* \.\. [^()]*\)", r'<span class="bounds">\g<0></span>', html)
    return markupsafe.Markup(re.sub(r"\*\*(.*?)\*\*", r"<b>\1</b>", html))
