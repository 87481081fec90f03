"""Where texts come from: files of candidates, Debian's descriptions, docstrings; what is broken in them is one line."""

import bz2
import gzip
import json
import lzma

import pytest
from written_texts import article, lines, stanza

from data_prep import articles
from data_prep.sources import candidates as released
from data_prep.sources import deb_descriptions, docstrings
from lottery.base.errors import InputError


def test_the_released_layout_is_read_untokenized_and_its_scores_are_not(tmp_path):
    pairs = [[["good .", "really ."], 0.4], [["bad ."], 0.1]]
    tokenized = {"article": ["it 's ."], "abstract": ["so ."], "candidates": pairs}
    own = [[["good.", "really."], 0.4], [["bad."], 0]]
    plain = {"article_untok": ["it's."], "abstract_untok": ["so."], "candidates_untok": own}

    both, one = released.source(lines(tmp_path / "a.jsonl", {**tokenized, **plain}, tokenized), 2).articles

    assert (both.document, both.reference, both.candidates) == ("it's.", "so.", ("good.\nreally.", "bad."))
    assert (one.document, one.reference, one.candidates) == ("it 's .", "so .", ("good .\nreally .", "bad ."))


BROKEN = {
    "{": "Expecting",
    '{"article": "a"}': "abstract is missing",
    json.dumps(article(abstract="  ")): "abstract has an empty text",
    json.dumps(article(article=5)): "article has no text but int",
    json.dumps(article(count=2)): "2 candidates, and texts.candidates is 3",
    json.dumps(article(article="\ud800")): "surrogates not allowed",
    "[" * 100_000: "recursion",
    '{"article": "' + "a" * (1 << 22) + '"}': "longer than",
}


@pytest.mark.parametrize(("line", "reason"), BROKEN.items(), ids=range(len(BROKEN)))
def test_a_broken_line_is_left_out_with_the_reason(tmp_path, line, reason):
    found = released.source(lines(tmp_path / "a.jsonl", article(0), "", line, article(1)), 3)

    assert [one.reference for one in found.articles] == ["about 0", "about 1"]
    assert [bad.name for bad in found.bad] == ["line 3"]
    assert reason in found.bad[0].reason
    assert "\n" not in found.bad[0].reason


@pytest.mark.parametrize(("content", "words"), [("", "a summary: choose"), ("{\n", "a summary .line 1: Expecting .*: choose")])
def test_a_file_without_a_text_is_one_line(tmp_path, content, words):
    (tmp_path / "a.jsonl").write_text(content)

    with pytest.raises(InputError, match=f"has no text with {words} another source"):
        articles.open_articles(f"candidates:{tmp_path / 'a.jsonl'}", 3)


def test_bytes_that_are_no_text_are_a_broken_line(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(json.dumps(article()).encode() + b'\n{"article": "\xff"}\n')

    found = released.source(tmp_path / "a.jsonl", 3)

    assert len(found.articles) == len(found.bad) == 1


def test_synopses_are_references_and_long_descriptions_documents_once_each(tmp_path):
    long = "It does one thing, and\n  does it well. See also\n .\n the other things that it does."
    stanzas = [stanza(2, "a tool", long), stanza(1, "a tool (version 2)", long), stanza(3, "short", "Too short.")]
    content = "\n".join(stanzas).replace("Description-en", "Description")

    found = []
    for name, opener in {"Packages": open, "Packages.gz": gzip.open, "Packages.xz": lzma.open}.items():
        with opener(tmp_path / name, "wt") as file:
            file.write(content)
        found.append(deb_descriptions.source(tmp_path / name).articles)

    (only,) = found[0]
    assert found == [found[0]] * 3
    assert (only.name, only.reference) == ("package-0001", "a tool (version 2)")
    assert only.document.split("\n") == ["It does one thing, and does it well.", "See also", "the other things that it does."]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none", None, "there is no file"),
        ("Packages", b"", "has no long descriptions"),
        ("Packages.gz", b"text", "cannot be read"),
        ("Packages.bz2", bz2.compress(b"Package: a\n" * 50), "cannot be read .it is not text.: decompress it"),
        ("Packages", gzip.compress(b"Package: a\n", mtime=0), "cannot be read .it is not text.: decompress it"),
    ],
)
def test_a_file_without_descriptions_is_one_line(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)

    with pytest.raises(InputError, match=words) as refusal:
        deb_descriptions.source(tmp_path / name)
    assert "\n" not in str(refusal.value)


def test_without_apt_the_way_out_is_told(monkeypatch):
    monkeypatch.setattr(deb_descriptions.shutil, "which", lambda _: None)

    with pytest.raises(InputError, match=r"there is no apt here .*deb-descriptions:FILE"):
        deb_descriptions.source()


def test_docstrings_are_read_from_sources_that_are_not_run(tmp_path):
    text = "\n".join(f"    Line {number} of what it does, in some words." for number in range(4))
    (tmp_path / "a.py").write_text(f'raise SystemExit\n\ndef f():\n    """Does a thing.\n\n{text}\n    """\n')
    (tmp_path / "b.py").write_text(f'class C:\n    """Does a\n    thing too.\n\n{text} More.\n    """\n')
    (tmp_path / "c.py").write_text((tmp_path / "a.py").read_text())
    (tmp_path / "half.py").write_text(f'"""Has half of \\ud800 a pair.\n\n{text} Half."""\n')
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "nested.py").write_text("-" * 20_000 + "1")
    (tmp_path / "short.py").write_text('"""Does it.\n\nQuickly."""\n')

    found = docstrings.source((tmp_path,)).articles

    assert sorted(one.reference for one in found) == ["Does a thing too.", "Does a thing.", "Has half of ? a pair."]
    assert found == docstrings.source((tmp_path,)).articles
    assert all(one.document.startswith("Line 0 of what it does, in some words.") for one in found)
