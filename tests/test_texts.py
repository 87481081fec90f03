"""Records of texts: their sources, the candidates that are made, tokens, ROUGE, splits, and the same bytes every time."""

import dataclasses
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from helpers import file_bytes, imp_here, refused
from written_texts import WORDS, article, lines, stanza

from data_prep import articles, candidates, prepare, records, shards, texts
from data_prep.articles import Article
from data_prep.neighbours import Neighbours
from data_prep.prepare import Means, settings_of
from data_prep.texts import TextSettings
from data_prep.words import tokens
from lottery.base import files
from lottery.base.errors import InputError
from lottery.rundir.run import open_run

MISSING = [module for module in ("tokenizers", "rouge_score") if importlib.util.find_spec(module) is None]
needs_extra = pytest.mark.skipif(bool(MISSING), reason="the extra `texts` is not installed")


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A file of 150 packages."""
    path = tmp_path_factory.mktemp("archive") / "Translation-en"
    path.write_text("\n".join(map(stanza, range(150))))
    return path


def settings(path, **options):
    given = {"document": 24, "candidate": 12, "candidates": 8, "vocabulary": 300, **options}
    return TextSettings(f"deb-descriptions:{path}", **given)


@pytest.fixture(scope="module")
def made(packages, tmp_path_factory):
    """The packages prepared in shards of 20: folder and manifest."""
    folder = tmp_path_factory.mktemp("set")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(texts, "PER_SHARD", 20)
        return folder, prepare.prepare(settings(packages), folder, Means(workers=1))


def read(folder, manifest, split="train"):
    examples, labels = records.read_split(folder, manifest, split)
    return records.unpack(examples, manifest.fields), labels


def decoded(folder, rows):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tokenizer.decode(row.tolist()) for row in rows]


@needs_extra
def test_a_record_holds_tokens_and_scores_in_the_layout_of_its_manifest(made):
    folder, manifest = made

    arrays, labels = read(folder, records.read_manifest(folder))

    assert manifest.shape == (2 * 24 + 2 * 9 * 12 + 4 * 9 * 3,)
    assert manifest.classes == []
    assert {name: (field.dtype, field.shape) for name, field in manifest.fields.items()} == {
        "document": ("<u2", (24,)),
        "texts": ("<u2", (9, 12)),
        "rouge": ("<f4", (9, 3)),
    }
    assert (arrays["document"][:, 0] == 0).all()
    assert (arrays["texts"][..., 0] == 0).all()
    assert ((arrays["texts"] == 2).sum(axis=2) == 1).all()
    after_end = np.cumsum(arrays["texts"] == 2, axis=2) - (arrays["texts"] == 2)
    assert ((arrays["texts"] == 1) == (after_end > 0)).all()
    assert (arrays["rouge"][:, 0] == 1).all()
    np.testing.assert_array_equal(labels, arrays["rouge"][:, 1:].mean(axis=2, dtype=np.float64).argmax(axis=1))
    assert not sum(manifest.count(split) for split in records.SPLITS) - 150


@needs_extra
def test_the_manifest_says_how_texts_were_made(made, packages):
    folder, manifest = made

    assert settings_of(manifest) == settings(packages)
    assert manifest.made_by["candidates"] == candidates.DESCRIBED
    assert manifest.made_by["ids"] == "300"
    assert {"tokenizers", "rouge-score", "scikit-learn", "numpy"} <= manifest.made_by.keys()
    assert manifest.beside == {"tokenizer.json": files.sha256((folder / "tokenizer.json").read_bytes())}


@needs_extra
def test_candidates_come_in_their_order(packages):
    opened = {one.document: one for one in articles.open_articles(f"deb-descriptions:{packages}", 8).articles}
    wide = TextSettings(f"deb-descriptions:{packages}", document=200, candidate=64, vocabulary=300)
    planned = texts.plan(wide, Path("set"))
    known = {one.reference for one in opened.values()}

    for job in planned.jobs:
        batch = job.part()
        for one, near in zip(batch.articles, batch.neighbours, strict=True):
            proposed = candidates.make(one.document, one.reference, near, 8, 0)
            sentences, own = one.document.split("\n"), one.reference.split()
            assert proposed[0] == sentences[0]
            assert [proposed[1], proposed[5]] == near
            assert set(near) <= known - {one.reference}
            assert set(proposed[2].split()) < set(own)
            assert proposed[3] == sentences[1]
            assert sorted(proposed[4].split()) == sorted(own)
            assert len(proposed[6].split()) == len(own)
            assert any(proposed[7] in sentence for sentence in sentences)
            assert len({*proposed, one.reference}) == 9


@needs_extra
def test_neighbours_are_of_the_training_split_and_of_another_group(packages):
    planned = texts.plan(settings(packages), Path("set"))
    batches = {job.split: job.part() for job in planned.jobs}
    training = {one.reference for one in batches["train"].articles}

    opened = articles.open_articles(f"deb-descriptions:{packages}", 8).articles
    group = dict(zip((one.reference for one in opened), articles.groups(opened).tolist(), strict=True))
    for batch in batches.values():
        for one, near in zip(batch.articles, batch.neighbours, strict=True):
            assert set(near) <= training
            assert all(group[other] != group[one.reference] for other in near)


@needs_extra
def test_a_part_of_the_training_texts_leaves_everything_else_as_it_is(packages):
    every, part = (texts.plan(dataclasses.replace(settings(packages), examples=count), Path("set")) for count in (0, 3))

    assert part.beside == every.beside  # the tokenizer
    (training, *others), (some, *same) = every.jobs, part.jobs
    assert some.part().articles == training.part().articles[:3]
    assert some.part().neighbours == training.part().neighbours[:3]
    assert [job.part() for job in others if job.split != "train"] == [job.part() for job in same]
    with pytest.raises(InputError, match=r"data\.examples is 99999"):
        texts.plan(dataclasses.replace(settings(packages), examples=99999), Path("set"))


@needs_extra
def test_no_two_splits_share_a_document_or_a_telling_sentence(packages):
    planned = texts.plan(settings(packages), Path("set"))

    held = {}
    for job in planned.jobs:
        for one in job.part().articles:
            for sentence in one.document.split("\n"):
                if sentence.count(" ") >= 7:
                    held.setdefault(sentence, set()).add(job.split)
    assert all(len(splits) == 1 for splits in held.values())
    assert len(held) < 300
    counts = {job.split: job.count for job in planned.jobs}
    assert counts["test"] == pytest.approx(30, abs=2)
    assert counts["validation"] == pytest.approx(24, abs=2)


def test_articles_that_share_a_telling_sentence_are_one_group_and_phrases_of_the_trade_bind_nobody():
    telling, phrase = "one two three four five six seven eight", "this package has the files that all others have"
    documents = [f"{telling}\nfirst", f"{telling}\nsecond", f"second\nthird is {telling}", "fourth"]
    documents += [f"{phrase}\nnumber {word}" for word in WORDS[:110]]

    found = articles.groups([Article("", document, "") for document in documents]).tolist()

    assert found[0] == found[1]
    assert len(set(found)) == len(documents) - 1


def test_a_telling_sentence_may_have_no_spaces():
    shared = "这个软件包提供常用的工具。"
    documents = [f"{shared}\n一", f"二\n{shared}", "软件包\n三", "软件包\n四"]

    found = articles.groups([Article("", document, "") for document in documents]).tolist()

    assert found[0] == found[1]
    assert len(set(found)) == 3
    near = Neighbours(["软件包提供工具", "猫坐在垫子上", "提供的软件包"], ["a", "b", "c"], np.arange(3), np.arange(3))
    assert near.of(np.array([0]), 1) == [["c"]]


def test_candidates_are_made_of_texts_without_spaces():
    document, reference = "这个软件包提供常用的工具。\n它可以和 Python 3 一起使用。", "写的常用工具软件"

    proposed = candidates.make(document, reference, ["猫"], 7, 0)

    assert len({reference, *proposed}) == 8
    dropped, swapped = proposed[2], proposed[4]
    assert set(dropped) < set(reference)
    assert sorted(swapped) == sorted(reference)
    for text in ("用 Python 3 写", "你好，世界。iPhone手机3号", "Été à la  plage", "plain text", "词"):
        assert "".join(tokens(text)).strip() == " ".join(text.split())


@needs_extra
@pytest.mark.parametrize("options", [{"split_seed": 1}, {"candidates": 3}])
def test_other_settings_make_other_records_and_are_refused_in_their_place(made, packages, tmp_path, options):
    other = settings(packages, **options)

    assert prepare.prepare(other, tmp_path, Means(workers=1)).digest != made[1].digest
    key = f"{'data' if 'split_seed' in options else 'texts'}.{next(iter(options))}"
    with pytest.raises(InputError, match=f"made with other settings .{key} "):
        prepare.existing(other, made[0])


@needs_extra
def test_a_stopped_preparation_is_gone_on_with_by_two_workers_and_ends_with_the_bytes_of_one(
    made, packages, tmp_path, monkeypatch
):
    def stop(jobs, workers):
        yield from map(shards.make, jobs[:2])
        raise KeyboardInterrupt

    monkeypatch.setattr(texts, "PER_SHARD", 20)
    with monkeypatch.context() as patched:
        patched.setattr(shards, "run", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare.prepare(settings(packages), tmp_path, Means(workers=1))
    prepare.prepare(settings(packages), tmp_path, Means(workers=2))

    assert file_bytes(tmp_path) == file_bytes(made[0])


@needs_extra
@pytest.mark.parametrize("lost", ["tokenizer.json", "train-00001.tfrecord"])
def test_a_set_that_lacks_a_file_gets_just_that_one_back(made, packages, tmp_path, monkeypatch, lost):
    monkeypatch.setattr(texts, "PER_SHARD", 20)
    for name, content in file_bytes(made[0]).items():
        if name != lost:
            (tmp_path / name).write_bytes(content)

    assert prepare.prepare(settings(packages), tmp_path, Means(workers=1)) == made[1]

    assert file_bytes(tmp_path) == file_bytes(made[0])


def shares(both, of_reference, of_candidate):
    """The F-measure of so many shared words of so many."""
    return 2 * both / (of_reference + of_candidate)


@needs_extra
@pytest.mark.parametrize(
    ("reference", "candidate", "expected"),
    [
        ("Кошка сидела тихо", "кошка, сидела!", [shares(2, 3, 2), shares(1, 2, 1), shares(2, 3, 2)]),
        ("猫坐在垫子上。", "猫在垫子", [shares(4, 6, 4), shares(2, 5, 3), shares(4, 6, 4)]),
        ("แมวนั่ง", "แมว", [shares(3, 7, 3), shares(2, 6, 2), shares(3, 7, 3)]),
        ("हिन्दी की किताब", "किताब हिन्दू", [shares(1, 3, 2), 0, shares(1, 3, 2)]),
        ("用 Python 写的 2 个工具", "Python 工具", [shares(3, 8, 3), shares(1, 7, 2), shares(3, 8, 3)]),
        ("cafe\u0301 été là", "caf\u00e9", [shares(1, 3, 1), 0, shares(1, 3, 1)]),
        ("новые модели models", "model модели", [shares(2, 3, 2), 0, shares(1, 3, 2)]),
    ],
    ids=["Cyrillic", "Chinese", "Thai", "Hindi", "Chinese and English", "composed or not", "English words keep their stems"],
)
def test_rouge_is_of_the_words_of_any_script(reference, candidate, expected):
    from data_prep.rouge import rouge

    np.testing.assert_allclose(rouge(reference, [candidate])[0], expected, atol=1e-6)
    assert rouge(reference, [reference]).tolist() == [[1, 1, 1]]


@needs_extra
def test_rouge_of_english_is_rouge_score_s_to_the_last_digit():
    from rouge_score.rouge_scorer import RougeScorer

    from data_prep.rouge import METRICS, rouge

    reference = "Müller’s naïve café — “well-known” in 2 cities\nhas λ-calculus, 10 µm wide, x_y and 猫 games."
    candidates = ["The cafés are known: naïve λ games 猫", "Müller has an m wide x_y", "λ 猫 é", "", reference]
    scorer = RougeScorer(list(METRICS), use_stemmer=True)

    expected = [[scorer.score(reference, one)[metric].fmeasure for metric in METRICS] for one in candidates]

    np.testing.assert_array_equal(rouge(reference, candidates), np.array(expected, np.float32))


def test_references_without_a_word_are_bad(tmp_path):
    path = lines(tmp_path / "a.jsonl", article(0), article(1, abstract="— !! …"), article(2, abstract="猫"))

    opened = articles.open_articles(f"candidates:{path}", 3)

    assert [one.reference for one in opened.articles] == ["about 0", "猫"]
    assert opened.bad == [records.Bad("", "line 2", "its reference has no word")]


@needs_extra
def test_the_first_of_the_best_candidates_is_the_label(tmp_path):
    given = ["unlike", "about it", "about it", "about"]
    path = lines(tmp_path / "a.jsonl", *(article(index, abstract="about it", candidates=given) for index in range(20)))
    wanted = TextSettings(f"candidates:{path}", 16, 8, 4, 300)

    manifest = prepare.prepare(wanted, tmp_path / "set", Means(workers=1))

    arrays, labels = read(tmp_path / "set", manifest)
    assert decoded(tmp_path / "set", arrays["texts"][0, 1:]) == given
    assert (arrays["rouge"][:, [2, 3]] == 1).all()
    assert set(labels.tolist()) == {1}
    assert manifest.made_by["candidates"] == "the source"


@needs_extra
def test_broken_lines_are_listed_and_too_many_are_one_line(tmp_path):
    path = lines(tmp_path / "a.jsonl", *map(article, range(30)), "{")
    wanted = TextSettings(f"candidates:{path}", 16, 8, 3, 300)

    with pytest.raises(InputError, match=r"^1 of 31 texts cannot be read so far, more than --max-bad 0.001 allows .line 31: "):
        prepare.prepare(wanted, tmp_path / "set", Means(workers=1))
    manifest = prepare.prepare(wanted, tmp_path / "set", Means(workers=1, max_bad=0.1))

    assert [bad.name for bad in manifest.bad] == ["line 31"]
    assert records.read_manifest(tmp_path / "set") == manifest


@needs_extra
def test_lines_without_candidates_get_some(tmp_path):
    bare = [{"article": f"Here is {word}. It is of {word}.", "abstract": f"about {word}"} for word in WORDS[:30]]
    path = lines(tmp_path / "a.jsonl", *bare)

    manifest = prepare.prepare(TextSettings(f"candidates:{path}", 16, 8, 4, 300), tmp_path / "set", Means(workers=1))

    assert sum(manifest.count(split) for split in records.SPLITS) == 30
    assert manifest.made_by["candidates"] == candidates.DESCRIBED


def test_documents_without_a_telling_word_have_no_neighbours():
    for document in ("...", "the same words"):
        known = Neighbours([document] * 50, WORDS[:50], np.arange(50), np.arange(50))
        assert known.of(np.arange(2), 2) == [[], []]


@pytest.mark.parametrize(
    ("document", "reference", "near"),
    [("one", "one", []), ("a b", "c", []), ("word " * 5, "word", ["word"]), ("x\ny", "x y", ["x y", "x y"])],
)
def test_poor_texts_have_as_many_candidates_as_any(document, reference, near):
    proposed = candidates.make(document, reference, near, 8, 0)

    assert len(proposed) == 8
    assert all(proposed)
    assert proposed == candidates.make(document, reference, near, 8, 0)


def tokenizer_json(folder, **numbers):
    from data_prep import tokens

    content = json.loads(tokens.train(["some words to train on"], 300))
    content["model"]["vocab"] |= numbers
    content["added_tokens"] = [one | {"id": numbers.get(one["content"], one["id"])} for one in content["added_tokens"]]
    path = folder / "own.json"
    path.write_text(json.dumps(content))
    return path


@needs_extra
def test_a_tokenizer_of_the_user_s_own_is_kept_and_another_is_refused(packages, tmp_path):
    own = tokenizer_json(tmp_path)
    wanted = settings(packages, tokenizer=str(own))

    manifest = prepare.prepare(wanted, tmp_path / "set", Means(workers=1))

    assert (tmp_path / "set/tokenizer.json").read_bytes() == own.read_bytes()
    assert prepare.existing(wanted, tmp_path / "set") == manifest
    moved = own.rename(tmp_path / "moved.json")
    elsewhere = dataclasses.replace(wanted, tokenizer=str(moved))
    assert prepare.existing(elsewhere, tmp_path / "set") == manifest
    moved.write_text(moved.read_text() + " ")
    with pytest.raises(InputError, match="made with another tokenizer"):
        prepare.existing(elsewhere, tmp_path / "set")
    with pytest.raises(InputError, match=r"texts\.tokenizer .* there, '' wanted"):
        prepare.existing(settings(packages), tmp_path / "set")


@needs_extra
@pytest.mark.parametrize(
    ("numbers", "words"), [({"<pad>": 299}, "<pad> is 299, not 1"), ({"many": 70_000}, "70001 entries: more than 65536")]
)
def test_a_tokenizer_of_other_numbers_is_refused(packages, tmp_path, numbers, words):
    with pytest.raises(InputError, match=words):
        texts.plan(settings(packages, tokenizer=str(tokenizer_json(tmp_path, **numbers))), tmp_path)


@needs_extra
@pytest.mark.parametrize("content", [None, b"\xff", b'{"model": 5}'])
def test_what_is_no_tokenizer_is_one_line(packages, tmp_path, content):
    if content is not None:
        (tmp_path / "own.json").write_bytes(content)

    with pytest.raises(InputError, match=r"own\.json") as refusal:
        texts.plan(settings(packages, tokenizer=str(tmp_path / "own.json")), tmp_path)
    assert "\n" not in str(refusal.value)


def test_without_the_libraries_the_way_out_is_told(packages, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(InputError, match=r"a set of texts needs tokenizers: pip install 'imp-lottery\[texts\]'"):
        texts.plan(settings(packages), Path("set"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["docstrings", "--size", "8"], "data.size is of images, and docstrings has texts"),
        (["docstrings", "--set", "data.crop=4"], "data.crop is of images"),
        (["--set", "texts.document=64"], "texts.document is of texts, and digits has images"),
        (["docstrings", "--engine", "spark"], "--engine spark makes records of images"),
        (["docstrings", "--set", "texts.candidates=1"], "texts.candidates"),
        (["some.jsonl"], "did you mean candidates:some.jsonl?"),
    ],
)
def test_what_does_not_suit_a_source_is_one_line(tmp_path, arguments, words):
    refused(imp_here("prepare", *arguments, cwd=tmp_path, check=False), words)

    assert not list(tmp_path.iterdir())


@needs_extra
def test_a_run_takes_its_texts_from_prepared_records(made, packages, tmp_path):
    run = open_run(tmp_path / "run", records=made[0])

    assert run.recipe.records() == settings(packages)
    assert run.manifest() == made[1]
    assert run.recipe.texts.document == 24


@needs_extra
def test_where_all_documents_are_alike_an_empty_split_says_so(tmp_path):
    alike = lines(tmp_path / "alike.jsonl", *(article(0) for _ in range(5)))

    with pytest.raises(InputError, match=r"split of .* would be empty \(documents: 5, groups of like ones: 1\): change --val"):
        prepare.prepare(TextSettings(f"candidates:{alike}", 24, 12, 3, 300), tmp_path / "set", Means(workers=1))
