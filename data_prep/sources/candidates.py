"""Documents, references and candidates in a file of JSON lines, with the keys of the data that SimCLS was released with (Liu &
Liu 2021): there each example is a file of one object; `jq -c .` makes lines of many."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_prep.articles import Article, Articles
from data_prep.records import Bad
from lottery.base.errors import InputError, first_line

LONGEST = 1 << 22  # bytes of a line


def source(file: Path, least: int) -> Articles:
    """An article for each line of `file`: an object of `article` and `abstract`, each a list of sentences or a string, and
    perhaps `candidates`, a list of at least `least` texts alike, or of pairs of such a text and its score, which is not read.
    Where there are `article_untok` and the like, of text as it was before it was tokenized, these are read. (The paper's code
    takes its tokens from these too, but its ROUGE from the others.) A line that is none of this is bad. Raises InputError where
    the file cannot be read."""
    if not file.is_file():
        raise InputError(f"there is no file {file}: name one with a JSON object a line")
    articles: list[Article] = []
    bad: list[Bad] = []
    with open(file, "rb") as lines:
        for number, line in enumerate(_lines(lines), 1):
            if not line.strip():
                continue
            try:
                articles.append(_article(f"line {number}", line, least))
            except (ValueError, RecursionError) as error:
                bad.append(Bad("", f"line {number}", first_line(error)[:200]))
    return Articles(articles, bad)


def _lines(file: Any) -> Iterator[bytes]:
    """All lines; `LONGEST` + 1 bytes at most of each."""
    while line := file.readline(LONGEST + 1):
        rest = line
        while len(rest) > LONGEST and not rest.endswith(b"\n"):
            rest = file.readline(LONGEST + 1)
        yield line


def _article(name: str, line: bytes, least: int) -> Article:
    """Raises ValueError with what is wrong with a line."""
    if len(line) > LONGEST:
        raise ValueError(f"longer than {LONGEST} bytes")
    content = json.loads(line)  # bytes that are no UTF-8 raise ValueError too
    if not isinstance(content, dict):
        raise ValueError("not an object")
    end = "_untok" if {"article_untok", "abstract_untok"} <= content.keys() else ""
    document, reference = (_text(content, f"{key}{end}") for key in ("article", "abstract"))
    listed = content.get(f"candidates{end}", content.get("candidates", []))
    if not isinstance(listed, list):
        raise ValueError(f"candidates{end} is not a list")
    candidates = tuple(_sentences(_without_score(one), f"candidates{end}") for one in listed)
    if listed and len(candidates) < least:
        raise ValueError(f"{len(candidates)} candidates, and texts.candidates is {least}")
    return Article(name, document, reference, candidates)


def _without_score(candidate: Any) -> Any:
    is_pair = isinstance(candidate, list) and len(candidate) == 2 and isinstance(candidate[1], int | float)
    return candidate[0] if is_pair else candidate


def _text(content: dict[str, Any], key: str) -> str:
    if key not in content:
        raise ValueError(f"{key} is missing")
    return _sentences(content[key], key)


def _sentences(value: Any, key: str) -> str:
    """A string, or a list of them, as one sentence a line."""
    lines = value if isinstance(value, list) else [value]
    if not all(isinstance(line, str) for line in lines):
        raise ValueError(f"{key} has no text but {type(value).__name__}")
    text = "\n".join(" ".join(line.split()) for line in lines if line.strip())
    if not text:
        raise ValueError(f"{key} has an empty text")
    text.encode()  # raises ValueError for half a surrogate pair, which JSON can spell
    return text
