"""The docstrings of the Python packages installed here, read from their sources: no package is imported, nothing downloaded."""

import ast
import hashlib
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from data_prep.articles import Article, Articles, distinct, sentences

MOST_FILES = 6_000  # chosen by the hash of their names: a share of each package, and a minute at most
_MOST_BYTES = 200_000
_SUMMARY_WORDS = range(3, 31)
_LEAST = 15  # words of a document


def source(roots: tuple[Path, ...] = (), most_files: int = MOST_FILES) -> Articles:
    """The docstrings of modules, classes and functions in `roots` (of the running Python by default) whose summary is 3 to 30
    words long, and whose text after it is at least 15. A document is that text, its reference the summary. Equal documents give
    one. Which there are depends on what is installed."""
    places = roots or tuple(sorted({Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}))
    paths = sorted((hashlib.sha256(name.encode("utf-8", "replace")).digest(), name, path) for name, path in _files(places))
    return Articles(distinct(article for _, name, path in paths[:most_files] for article in _articles(name, path)))


def _files(roots: tuple[Path, ...]) -> Iterator[tuple[str, Path]]:
    """Each source file of moderate size, and its name below its root."""
    for root in roots:
        for place, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name not in ("__pycache__", "tests", "test")]
            for path in (Path(place, name) for name in names if name.endswith(".py")):
                if path.is_file() and path.stat().st_size <= _MOST_BYTES:
                    yield path.relative_to(root).as_posix(), path


def _articles(name: str, path: Path) -> Iterator[Article]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in other people's strings
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):  # of another Python, nested too deep, or no source
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            written = (ast.get_docstring(node) or "").encode("utf-8", "replace").decode()  # `\ud800` alone is no text
            summary, _, text = written.partition("\n\n")
            document, reference = sentences(text), " ".join(summary.split())
            if len(reference.split()) in _SUMMARY_WORDS and len(document.split()) >= _LEAST:
                yield Article(f"{name}:{getattr(node, 'lineno', 1)}", document, reference)
