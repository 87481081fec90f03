"""The descriptions of Debian's packages: each says in a paragraph or two what its synopsis says in a line."""

import gzip
import lzma
import os
import re
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from data_prep.articles import Article, Articles, distinct, sentences
from lottery.base.errors import InputError, first_line

_CAT = "/usr/lib/apt/apt-helper"
_LIST = ["apt-get", "-o", "Acquire::Languages=en", "indextargets"]  # the configuration of a container often leaves out all
_NO_LISTS = "`apt-get update -o Acquire::Languages=en` fetches them; or name a file: deb-descriptions:FILE"
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
_LEAST = 10  # words of a document


def source(file: Path | None = None) -> Articles:
    """What `apt` knows here, or a file as Debian's archive has it: `Translation-en`, or a `Packages` with long descriptions,
    perhaps compressed (.gz, .xz). A document is a long description, its reference the synopsis. Packages whose long
    descriptions are equal give one. Raises InputError where there are none, or the file cannot be read."""
    content = _of_apt() if file is None else _of_file(file)
    articles = distinct(_articles(content))
    if not articles:
        raise InputError(f"{file or 'apt'} has no long descriptions: {_NO_LISTS}")
    return Articles(articles)


def _of_apt() -> str:
    if not shutil.which("apt-get") or not os.path.exists(_CAT):
        raise InputError("there is no apt here to ask for descriptions: name a file, deb-descriptions:FILE")
    listed = _said([*_LIST, "--format", "$(FILENAME)", "Created-By: Translations", "Language: en"])
    found = [name for name in sorted(listed.split("\n")) if name and os.path.exists(name)]
    if not found:
        raise InputError(f"apt has no long descriptions here: {_NO_LISTS}")
    return _said([_CAT, "cat-file", *found])


def _said(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise InputError(f"{command[0]} failed ({done.stderr.decode(errors='replace').strip()[:200]}): {_NO_LISTS}")
    return done.stdout.decode(errors="replace")


def _of_file(file: Path) -> str:
    if not file.is_file():
        raise InputError(f"there is no file {file}: name a Translation-en or a Packages file of Debian's archive")
    opener: Callable[..., IO[bytes]] = _OPENERS.get(file.suffix, open)
    try:
        with opener(file, "rb") as opened:
            return opened.read().decode()
    except UnicodeDecodeError:
        raise InputError(f"{file} cannot be read (it is not text): decompress it, unless it ends in .gz or .xz") from None
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{file} cannot be read ({first_line(error)}): fetch it anew") from None


def _articles(content: str) -> Iterator[Article]:
    """Of each stanza that has a long description, in the order of their packages' names."""
    stanzas = [dict(_fields(stanza)) for stanza in re.split(r"\n\s*\n", content)]
    for stanza in sorted(stanzas, key=lambda stanza: stanza.get("Package", "")):
        synopsis, _, long = stanza.get("Description-en", stanza.get("Description", "")).partition("\n")
        document = sentences(re.sub(r"^ \.$", "", long, flags=re.MULTILINE))
        if synopsis.strip() and len(document.split()) >= _LEAST:
            yield Article(stanza.get("Package", "?"), document, " ".join(synopsis.split()))


def _fields(stanza: str) -> Iterator[tuple[str, str]]:
    for field in re.split(r"\n(?=\S)", stanza.strip("\n")):
        name, _, value = field.partition(":")
        yield name, value.strip(" ")
