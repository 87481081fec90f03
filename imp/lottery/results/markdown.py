"""The report, and parts of it, as Markdown."""

from collections.abc import Iterable, Iterator, Sequence

from lottery.results.block import Block, Cells


def page(title: str, sentences: Iterable[str], blocks: Iterable[Block]) -> str:
    """The text of a page; charts and pictures are in files of their own."""
    return "\n\n".join([f"# {title}", "\n".join(sentences), *(part for block in blocks for part in _parts(block))]) + "\n"


def table(lines: Sequence[Cells]) -> str:
    rows = [list(lines[0]), ["---"] * len(lines[0]), *(line.values() for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def bullets(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _parts(block: Block) -> Iterator[str]:
    if block.sentences or block.table:
        yield f"## {block.title}"
        yield from filter(None, (bullets(block.sentences), table(block.table) if block.table else "", block.explained))
