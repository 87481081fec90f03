"""Several runs on one page: where their recipes differ, and how far their networks are from those of the first."""

import json
import re

import pytest
from handmade import dense, kept, planned, ranking, ticket
from helpers import imp_here, refused

from lottery.base import files
from lottery.base.errors import InputError
from lottery.experiment import reading
from lottery.results import frame
from lottery.results.reader import open_results
from lottery.results.report import report_several
from lottery.results.sections import runs
from lottery.results.several import open_several
from lottery.rundir.run import Run

SPREAD = (-0.001, 0.0, 0.001)  # of three replicates around a mean


@pytest.fixture
def begin(tmp_path):
    """A function that makes a run in a folder: three replicates, whose dense networks reach 90, 91 and 92 %, and whose tickets
    of q60 are `above` these, not all alike."""

    def make(name, *overrides, above=0.0, metric="accuracy", numbers=(1, 2, 3), **families):
        recipe = reading.resolve(planned("60", **families).model_dump(), overrides)
        run = Run(tmp_path / name, recipe)
        dense(run, 0.90, 0.91, 0.92, metric=metric)
        for number, off in zip(numbers, SPREAD, strict=True):
            for family in recipe.families:
                ticket(run, number, "60", 0.89 + number / 100 + above + off, family=family, metric=metric)
        return written(run)

    return make


def written(run):
    """Its folder, with what a command finds it by."""
    files.write_text(run.folder / "recipe.toml", reading.sealed(run.recipe))
    files.write_json(run.folder / "environment.json", {})
    return run.folder


def of(several, name="two", variant="ticket", figure="validation_accuracy"):
    rows = frame.each(several.contrasts)
    return [row for row in rows if (row.run, row.variant, row.figure) == (name, variant, figure)]


def test_replicates_with_the_same_seeds_are_pairs_and_their_differences_have_the_interval_of_the_rule(begin):
    several = open_several([begin("one"), begin("two", "train.learning_rate=0.1", above=0.004)])

    (row,) = of(several)
    assert (row.against, row.family, row.mask, row.rewind, row.paired) == ("one", "oneshot", "q60", "1ep", True)
    assert (row.count, row.count_against, row.density) == (3, 3, pytest.approx(0.4))
    # each pair differs by as much, so that there is no spread to judge by
    assert (row.mean, row.low, row.high, row.clear) == (pytest.approx(0.004), None, None, False)

    ticket(several.runs["two"], 3, "60", 0.927)
    (row,) = of(open_several([run.folder for run in several.runs.values()]))
    # 0.4, 0.4 and 0.6 points: 0.466667 ± 4.302653 x 0.115470 / sqrt(3)
    assert [row.mean, row.low, row.high] == pytest.approx([0.00466667, 0.00179826, 0.00753508], abs=1e-7)
    assert row.clear


def test_with_other_seeds_there_are_no_pairs_and_means_are_compared(begin):
    several = open_several([begin("one"), begin("two", "seed=1", above=0.004)])

    (row,) = of(several)
    assert (row.paired, row.count, row.count_against) == (False, 3, 3)
    # two samples of a standard deviation of 1.1 points: 0.4 ± 2.776445 x 1.1 x sqrt(2 / 3)
    assert [row.mean, row.low, row.high] == pytest.approx([0.004, -0.0209366, 0.0289366], abs=1e-6)
    told = " ".join(runs.sentences(several))
    assert "one and two have no pairs, as their seeds differ (0, 1): their means are compared." in told
    assert "Of 1 ticket that both have, 0 are clearly better in two, 0 worse." in told


def test_without_a_replicate_in_common_there_are_no_pairs(begin):
    one, two = begin("one"), begin("two")
    for number in (1, 2, 3):
        (two / f"replicate-{number}").rename(two / f"replicate-{number + 3}")
        for path in (two / f"replicate-{number + 3}").rglob("result.json"):
            content = files.read_json(path)
            content |= {"folder": content["folder"].replace(f"-{number}", f"-{number + 3}", 1), "replicate": number + 3}
            files.write_json(path, {key: value for key, value in content.items() if key != "sha256"})

    several = open_several([one, two])

    assert [row.paired for row in of(several)] == [False]
    assert "one and two have no pairs, as they have no replicate in common" in runs.sentences(several)[1]


def test_dense_networks_that_are_the_same_are_called_so(begin):
    several = open_several([begin("one"), begin("two", above=-0.02)])

    told = runs.sentences(several)

    assert told[0] == "2 runs on the same data: one, two. Their recipes do not differ."
    assert told[1] == "one and two have 3 pairs: replicates with the same seeds are compared."
    assert told[2] == "The dense network of two: +0.00 points compared with that of one, the same."


def test_tickets_are_compared_with_those_of_their_family_or_of_the_only_one_at_the_same_density_and_point(begin):
    one = begin("one")
    alone = begin("alone", tuned={"quantiles": "60", "rewind": "1ep", "controls": []})
    table = {"quantiles": "60", "rewind": "1ep", "criterion": "snip", "scored_at": "0", "controls": []}
    recipe = planned("", snip=table)
    renamed = Run(one.parent / "renamed", recipe)
    dense(renamed, 0.90, 0.91, 0.92)
    for number in (1, 2, 3):
        ticket(renamed, number, "60", 0.9, family="snip")
        ticket(renamed, number, "60", 0.9, family="snip", step=90)

    several = open_several([one, alone, written(renamed)])

    assert [row.family for row in of(several, "alone")] == ["oneshot"]
    assert [(row.family, row.rewind) for row in of(several, "renamed")] == [("oneshot", "1ep")]
    keys = several.keys.set_index("key")
    assert keys.loc["families.tuned", ["one", "alone", "renamed"]].tolist() == ["none", "magnitude, global", "none"]
    assert keys.loc["families.snip", "renamed"] == "snip, global"


def test_masks_of_one_name_that_keep_other_shares_are_not_compared(begin):
    one, other = begin("one"), Run(begin("other"), planned("60"))
    for number in (1, 2, 3):
        ticket(other, number, "60", 0.9, kept=kept(0.11))

    assert not of(open_several([one, other.folder]), "other")


def test_runs_on_parts_of_the_same_data_can_be_compared(begin):
    digests = {"records": "8" * 64, "network": "f" * 64}
    less = ["data.examples=200", "data.label_noise=0.1"]
    part = Run(begin("part", *less), reading.resolve(planned("60").model_dump(), less))
    dense(part, 0.8, 0.8, 0.8, origins=digests)

    assert len(open_several([begin("one"), part.folder]).runs) == 2


def test_of_three_runs_a_key_of_a_family_that_one_lacks_is_still_told(begin):
    slow, fast = (begin(name, tuned={"rounds": 2, "rate": rate, "controls": []}) for name, rate in (("slow", 20), ("fast", 60)))
    keys = open_several([slow, begin("without"), fast]).keys.set_index("key")

    assert keys.loc["families.tuned.rate", ["slow", "without", "fast"]].tolist() == ["20.0", "none", "60.0"]
    assert "families.tuned.rounds" not in keys.index  # it differs from none alone


def test_keys_that_differ_are_told_with_what_they_decide_and_those_without_effect_are_not(begin):
    several = open_several(
        [
            begin("one"),
            begin("two", "name=other", "replicates=4", "train.optimizer=adam", "train.momentum=0.5", "train.gamma=0.2"),
        ]
    )

    rows = {row["key"]: (row["decides"], row["one"], row["two"]) for row in several.keys.to_dict("records")}

    assert rows == {
        "replicates": ("", "3", "4"),
        "train.optimizer": ("dense", "sgd", "adam"),
        "train.momentum": ("dense", "0.9", "0.5"),  # it has an effect in one of them
    }
    assert "`replicates` (3 / 4); `train.optimizer` (sgd / adam)" in runs.sentences(several)[0]


def test_the_page_has_all_runs_and_files_of_its_tables_and_of_one_chart(begin, tmp_path):
    several = open_several([begin("one"), begin("two", "train.learning_rate=0.1", above=0.004)])
    page = tmp_path / "page"

    report_several(several, page)

    names = {path.name for path in page.iterdir()}
    tables = {"summary.csv", "keys.csv", "contrasts.csv", "accuracy.csv"}
    assert names == {"index.html", "summary.md", "accuracy.svg", "accuracy.png", *tables}
    html = (page / "index.html").read_text()
    assert [html.count(f"<summary>Recipe of {name}</summary>") for name in ("one", "two")] == [1, 1]
    assert re.findall(r'<h2 id="(\w+)">', html) == ["found", "runs", "keys", "accuracy", "contrasts"]
    assert "| two | ticket | oneshot q60 | 40.00% | 1ep | 3 pairs | +0.40 | +0.40 |" in (page / "summary.md").read_text()
    assert not list((tmp_path / "one").glob("report"))


def test_runs_without_tickets_are_compared_by_their_dense_networks(begin, tmp_path):
    for name in ("only", "other"):
        dense(Run(tmp_path / name, planned("60")), 0.91, 0.92, 0.925)
        written(Run(tmp_path / name, planned("60")))

    blocks = report_several(open_several([begin("one"), tmp_path / "only"]), tmp_path / "page")
    without = report_several(open_several([tmp_path / "only", tmp_path / "other"]), tmp_path / "page")

    assert [block.name for block in blocks] == ["found", "runs", "accuracy", "contrasts"]
    assert [block.name for block in without] == ["found", "runs", "contrasts"]
    assert not (tmp_path / "page/accuracy.png").exists()
    assert "one and only have no tickets that are alike in family, density and rewind point." in blocks[0].sentences


def test_the_command_prints_the_tables_and_where_the_page_is(begin, tmp_path):
    begin("one"), begin("two", "train.learning_rate=0.1")

    shown = imp_here("report", "one", "two", "--out", "page", cwd=tmp_path).stdout
    told = json.loads(imp_here("report", "one", "two", "--out", "page", "--json", cwd=tmp_path).stdout)

    assert shown.endswith("Open page/index.html\n")
    assert "train.learning_rate" in shown
    assert {"headline", "keys", "networks", "contrasts"} == set(told)
    assert imp_here("report", "one", cwd=tmp_path).stdout.endswith("Open one/report/index.html\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("one nowhere --out page", "there is no run in nowhere"),
        ("one link --out page", "one and link are the same run: name it once"),
        ("one seven --out page", "are of different data (size is 32 and 64): only runs of the same can be compared"),
        (
            "one ranking --out page",
            "one is judged by accuracy, ranking by ROUGE-1: only runs that are judged alike can be compared",
        ),
        ("one untrained --out page", "untrained has nothing to report yet: run `imp train` first"),
        ("one two", "name the folder for the page of several runs with --out"),
        ("one --out page", "--out is for the page of several runs: that of one is in its folder"),
        ("one two --out two", "--out two is a run: name a folder for the page"),
        ("one two --out file", "--out file is a file: name a folder for the page"),
    ],
)
def test_runs_that_cannot_be_compared_and_pages_without_a_place_are_refused_in_one_line(begin, tmp_path, words, line):
    begin("two")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(begin("one"))
    written(ranking(tmp_path))
    written(Run(tmp_path / "untrained", planned("60")))
    other = reading.resolve(planned("60").model_dump(), ["data.size=64"])
    dense(Run(tmp_path / "seven", other), 0.9, 0.9, 0.9, origins={"records": "7" * 64, "network": "f" * 64})
    written(Run(tmp_path / "seven", other))

    refused(imp_here("report", *words.split(), cwd=tmp_path, check=False), line)

    assert not (tmp_path / "page").exists()


def test_python_reads_several_runs(begin):
    results = open_results([str(begin("one")), str(begin("two", above=0.004))])

    rows = results.frame()
    assert rows.columns[:2].tolist() == ["run", "replicate"]
    assert rows["run"].value_counts().to_dict() == {"one": 6, "two": 6}
    assert {"criterion", "allocation", "units", "updates"} <= set(rows.columns)
    assert "validation_accuracy" in set(results.contrasts["figure"])
    assert results.keys.empty
    assert len(repr(results).splitlines()) == 5 + 1 + 5
    with pytest.raises(InputError, match="no run is named"):
        open_results([])


def test_runs_whose_folders_are_called_alike_are_told_apart_by_their_paths(begin, tmp_path):
    one, two = begin("a/run"), begin("b/run")

    assert list(open_several([one, two]).runs) == [str(one), str(two)]


def test_results_are_shown_in_five_lines(begin, tmp_path):
    (tmp_path / "new").mkdir()

    assert repr(open_results(begin("one", above=0.004))).splitlines() == [
        f"digits in {tmp_path / 'one'}",
        "replicates: 3 of 3 trained",
        "dense: 91.00% on validation images, 90.00% on test images",
        "tickets: 3 of 3 trained (oneshot)",
        "sparsest matching: 40.00% (oneshot q60, rewound to 1ep)",
    ]
    assert repr(open_results(written(Run(tmp_path / "new", planned("60"))))).splitlines()[1:] == [
        "replicates: 0 of 3 trained",
        "dense: not trained yet",
        "tickets: none yet (oneshot)",
        "sparsest matching: none so far",
    ]
