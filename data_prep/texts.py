"""The set of a source of texts: its settings, which document goes into which shard, and each made an example: the tokens of a
document, its reference and its candidates, and the ROUGE of these (SimCLS, Liu & Liu 2021)."""

import dataclasses
import hashlib
import importlib.metadata
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data_prep import candidates, records, tokens
from data_prep.articles import Article, groups, open_articles
from data_prep.neighbours import Neighbours
from data_prep.records import Field
from data_prep.rouge import METRICS, rouge
from data_prep.shards import Job, Planned
from data_prep.sources import resolved
from lottery.base import extras, files
from lottery.base.errors import InputError

PER_SHARD = 8 * records.BLOCK  # a text takes long to make: shards are small, so that many workers have some

_SHARED = ("source", "validation", "test", "split_seed", "examples")  # with images


@dataclasses.dataclass(frozen=True)
class TextSettings:
    """What a prepared set of texts depends on. `document` and `candidate` are lengths in tokens, `candidates` their number;
    `vocabulary` the entries of the tokenizer that is trained, unless `tokenizer` names a file of one. `validation` is the
    fraction held out of the documents that are not tested on, `test` that of all documents to test on; `examples` are taken of
    those that are left (0: all). These are drawn with `split_seed`. With fewer examples, the tokenizer and all other examples
    stay as they are."""

    source: str
    document: int = 96
    candidate: int = 32
    candidates: int = 8
    vocabulary: int = 4096
    tokenizer: str = ""
    validation: float = 0.2
    test: float = 0.2
    split_seed: int = 0
    examples: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", resolved(self.source))
        object.__setattr__(self, "tokenizer", self.tokenizer and str(Path(self.tokenizer).expanduser().resolve()))

    @property
    def fields(self) -> dict[str, Field]:
        """What an example is made of; a row of `texts` and of `rouge` is the reference's, the others are candidates'."""
        rows = 1 + self.candidates
        return {
            "document": Field("<u2", (self.document,)),
            "texts": Field("<u2", (rows, self.candidate)),
            "rouge": Field("<f4", (rows, len(METRICS))),
        }

    @property
    def shape(self) -> records.Shape:
        return (sum(field.bytes for field in self.fields.values()),)

    @property
    def values(self) -> dict[str, Any]:
        """The recipe's keys and what they are set to."""
        return {f"{'data' if key in _SHARED else 'texts'}.{key}": value for key, value in dataclasses.asdict(self).items()}

    def folder(self, root: Path) -> Path:
        """Where the set lies under `root`: `docstrings-96-8x32`, `candidates-cnndm-512-16x120`."""
        kind, colon, name = self.source.partition(":")
        lengths = f"{self.document}-{self.candidates}x{self.candidate}"
        kept = f"-{self.examples}-examples" if self.examples else ""
        return root / f"{kind}{colon and '-'}{Path(name).stem}-{lengths}{kept}"


@dataclasses.dataclass(frozen=True)
class Batch:
    """Some articles, and the references of the neighbours of each. It returns itself, as `shards.Job.part` must."""

    articles: Sequence[Article]
    neighbours: Sequence[list[str]]

    def __call__(self) -> "Batch":
        return self


@dataclasses.dataclass(frozen=True)
class Texts(Job):
    """A shard of texts, made with `settings`; `tokenizer` is the content of its tokenizer.json."""

    settings: TextSettings
    tokenizer: str

    def examples(self) -> Iterator[records.Example | records.Bad]:
        batch = self.part()
        for article, neighbours in zip(batch.articles, batch.neighbours, strict=True):
            proposed = article.candidates[: self.settings.candidates] or candidates.make(
                article.document, article.reference, neighbours, self.settings.candidates, _seed(self.settings, article)
            )
            yield example(self.settings, self.tokenizer, article, proposed)


def example(settings: TextSettings, tokenizer: str, article: Article, proposed: Sequence[str]) -> records.Example:
    """The bytes of an example, uint8 [bytes], and its label: the candidate of the highest mean ROUGE, the first of equals."""
    scores = rouge(article.reference, proposed)
    arrays = {
        "document": tokens.encode(tokenizer, [article.document], settings.document),
        "texts": tokens.encode(tokenizer, [article.reference, *proposed], settings.candidate),
        "rouge": np.concatenate([np.ones((1, len(METRICS)), np.float32), scores]),
    }
    return records.pack(arrays, settings.fields)[0], int(scores.mean(axis=1, dtype=np.float64).argmax())


def plan(settings: TextSettings, folder: Path) -> Planned:
    """The set without its shards, and which article goes into which: a function of `settings` and the source alone. Raises
    InputError for a split without texts."""
    extras.check("a set of texts", "tokenizers", "rouge_score")
    opened = open_articles(settings.source, settings.candidates)
    articles, grouped = opened.articles, groups(opened.articles)
    splits = _splits(settings, articles, grouped)
    for name, indices in splits.items():
        if not len(indices):
            raise InputError(
                f"the {name} split of {settings.source} would be empty (documents: {len(articles):,}, groups of like ones: "
                f"{len(np.unique(grouped)):,}): change --val or --test (data.validation, data.test)"
            )
    tokenizer = _tokenizer(settings, [articles[index] for index in splits["train"]])
    known = Neighbours([one.document for one in articles], [one.reference for one in articles], grouped, splits["train"])
    if settings.examples:
        records.check_examples(settings.examples, len(splits["train"]))
        splits["train"] = splits["train"][: settings.examples]  # which are mixed
    jobs: list[Job] = []
    for name, indices in splits.items():
        for number, start in enumerate(range(0, len(indices), PER_SHARD)):
            part = indices[start : start + PER_SHARD]
            batch = partial(_batch, settings, articles, known, part)
            jobs.append(Texts(folder, records.shard_name(name, number), name, len(part), batch, settings, tokenizer))
    manifest = records.Manifest(
        settings.shape,
        classes=[],
        shards=[],
        made_with=dataclasses.asdict(settings),
        made_by=_made_by(articles, tokenizer),
        bad=opened.bad,
        source=[opened.fingerprint],
        fields=settings.fields,
        beside={tokens.FILE: files.sha256(tokenizer.encode())},
    )
    return Planned(manifest, jobs, {tokens.FILE: tokenizer.encode()})


def check_tokenizer(settings: TextSettings, folder: Path, manifest: records.Manifest) -> None:
    """Raise InputError when the set in `folder` was made with another tokenizer than that in the file of `settings`, if any."""
    own = Path(settings.tokenizer)
    if own.is_file() and files.sha256(own.read_bytes()) != manifest.beside.get(tokens.FILE):
        raise InputError(f"records in {folder} were made with another tokenizer than {settings.tokenizer}: prepare them anew")


def _tokenizer(settings: TextSettings, trained_on: Sequence[Article]) -> str:
    if settings.tokenizer:
        return tokens.read(Path(settings.tokenizer))
    return tokens.train((text for one in trained_on for text in (one.document, one.reference)), settings.vocabulary)


def _batch(settings: TextSettings, articles: Sequence[Article], known: Neighbours, indices: np.ndarray) -> Batch:
    chosen = [articles[index] for index in indices]
    without = indices[[not article.candidates for article in chosen]]
    neighbours = dict(zip(without, known.of(without, candidates.neighbours_needed(settings.candidates)), strict=True))
    return Batch(chosen, [neighbours.get(index, []) for index in indices])


def _splits(settings: TextSettings, articles: Sequence[Article], grouped: np.ndarray) -> dict[str, np.ndarray]:
    """The indices of each split's articles, mixed. A group is whole in one split, whose fraction is met to within a group."""
    keys = np.array([_seed(settings, article) for article in articles], np.uint64)
    first = np.full(grouped.max(initial=-1) + 1, np.iinfo(np.uint64).max)
    np.minimum.at(first, grouped, keys)
    order = np.lexsort((keys, first[grouped]))
    ends = np.flatnonzero(np.diff(grouped[order], append=-1)) + 1  # of groups

    def whole_groups(count: int) -> int:
        """As few articles as are `count` or more and divide no group."""
        return int(ends[np.searchsorted(ends, count)])

    tested = whole_groups(round(settings.test * len(order))) if settings.test else 0
    held_out = whole_groups(tested + round(settings.validation * (len(order) - tested))) if settings.validation else tested
    parts = {"train": order[held_out:], "validation": order[tested:held_out], "test": order[:tested]}
    return {name: part[np.argsort(keys[part], kind="stable")] for name, part in parts.items()}


def _seed(settings: TextSettings, article: Article) -> int:
    """What all draws for an article depend on."""
    return int.from_bytes(hashlib.sha256(f"{settings.split_seed} {article.identity}".encode()).digest()[:8])


def _made_by(articles: Sequence[Article], tokenizer: str) -> dict[str, str]:
    """What decides how texts are made: versions, how many ids there are, and where candidates come from."""
    versions = {name: importlib.metadata.version(name) for name in ("tokenizers", "rouge-score", "scikit-learn", "numpy")}
    own = sum(bool(article.candidates) for article in articles)
    origin = "the source" if own == len(articles) else candidates.DESCRIBED
    return {**versions, "ids": str(tokens.size(tokenizer)), "candidates": origin}
