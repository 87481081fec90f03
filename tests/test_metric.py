"""Runs of a task in which another metric than accuracy decides: every page, table and sentence is about that."""

import csv
import json

import pandas
import pytest
from handmade import MAKER, ORIGINS, amend, figures, planned, ranking, three_replicates, ticket
from helpers import imp_here

from lottery.base import files
from lottery.base.errors import InputError
from lottery.results import card, grouping, report
from lottery.results.findings import Findings
from lottery.results.reader import open_results
from lottery.results.sections import metrics
from lottery.rundir import journal, tickets, wording
from lottery.rundir.records import Figures, Result

run, images = pytest.fixture(ranking), pytest.fixture(three_replicates)


@pytest.fixture
def followed(run):
    """The same run with the course of its dense trainings, and a recipe of its own."""
    for replicate in run.replicates():
        seal = ""
        for epoch in (1, 2):
            row = {"step": 45 * epoch, "epoch": float(epoch), "train_loss": 0.1, "train_rouge1": 0.3}
            row |= {"validation_rouge1": 0.4 + epoch / 100, "test_rouge1": 0.4}
            row |= {"timing": {"seconds": 30.0, "images_per_second": 1234.5}}
            seal = journal.append(replicate.dense.metrics, row, seal)
    run.adopt()
    return run


def metrics_of(run):
    """The part of the report with all metrics; None where there is none."""
    return metrics.section(Findings(run))


def header(run, name):
    with open(run.report / f"{name}.csv") as file:
        return next(csv.reader(file))


@pytest.mark.parametrize(
    ("metric", "title", "value", "example"),
    [
        ("accuracy", "accuracy", "41.50%", "image"),
        ("rouge1", "ROUGE-1", "41.50% ROUGE-1", "example"),
        ("first_rougeL", "first ROUGE-L", "41.50% first ROUGE-L", "example"),
        ("within_2", "within 2", "41.50% within 2", "example"),
    ],
)
def test_how_a_metric_is_called(metric, title, value, example):
    assert (wording.title(metric), wording.value(metric, 0.415), wording.example(metric)) == (title, value, example)


def test_a_text_has_the_words_of_the_metric():
    text = "{Metric}: the {metric} of {example}s; {Values} and {values}"

    assert wording.worded(text, "accuracy") == "Accuracy: the accuracy of images; Accuracies and accuracies"
    assert wording.worded(text, "rouge1") == "ROUGE-1: the ROUGE-1 of examples; Values of ROUGE-1 and values of ROUGE-1"


def test_a_result_has_the_metrics_of_its_task_and_says_which_decides(run, images):
    classifier, ranker = (files.read_json(one.replicate(1).dense.result) for one in (images, run))

    losses = ["step", "train_loss", "validation_loss", "test_loss"]
    assert (classifier["metric"], ranker["metric"]) == ("accuracy", "rouge1")
    assert list(classifier["final"]) == [*losses, "validation_accuracy", "test_accuracy"]
    names = ("rouge1", "rouge2", "rougeL", "first_rouge1", "random_rouge1", "oracle_rouge1")
    assert list(ranker["final"]) == losses + [f"{split}_{name}" for split in ("validation", "test") for name in names]
    assert run.replicate(1).dense.read_result().final == figures(0.46, metric="rouge1")
    assert (images.metric, run.metric) == ("accuracy", "rouge1")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"rouge1": 0.5}, "String should match pattern"),
        ({"test_rouge1": 1.5}, "less than or equal to 1"),
        ({"train_rouge1": 0.5}, "String should match pattern"),
    ],
)
def test_figures_are_shares_of_validation_and_test_examples(more, said):
    with pytest.raises(ValueError, match=said):
        Figures(step=1, train_loss=0.1, validation_loss=0.1, test_loss=0.1, **more)


def test_a_result_without_the_metric_that_decides_it_is_refused(run):
    place = {"status": "done", "replicate": 1, "steps_per_epoch": 45, "epochs": 20.0, "made_by": [MAKER], "made_from": ORIGINS}

    with pytest.raises(ValueError, match="its figures have no accuracy, which decides"):
        Result(**place, final=figures(0.4, metric="rouge1"))
    with pytest.raises(InputError, match="there is no test_accuracy among step, train_loss"):
        figures(0.4, metric="rouge1").metric("test", "accuracy")


def test_networks_of_one_run_are_decided_by_one_metric(run):
    ticket(run, 1, "60", 0.9)

    with pytest.raises(InputError, match=r"q60-.*result\.json is decided by accuracy, but this run by rouge1: start a new run"):
        grouping.rows(run)


def test_verdicts_and_the_headline_are_about_the_metric(run):
    found = Findings(run)
    said, groups = found.headline.sentences, found.groups

    assert said[0].startswith(
        "The dense network reaches 47.00% ROUGE-1 on validation examples and 46.00% ROUGE-1 on test examples"
    )
    assert "the sparsest matching ticket keeps 40.00% of the prunable weights (+0.22 points from dense)" in said[1]
    assert "It reaches 46.22% ROUGE-1 on test examples" in said[1]
    assert "One of 200 validation examples is 0.5 points, more than the margin of 0.2" in said[-1]
    assert groups["verdict"].dropna().tolist() == ["matching", "not matching", "not matching"]


def test_the_report_names_the_metric_everywhere_and_has_no_table_of_answers(followed):
    made = report.report(followed)

    page, summary = ((followed.report / name).read_text() for name in ("index.html", "summary.md"))
    text = page[: page.index("Recipe</summary>")] + summary
    assert "ccurac" not in text.replace("worst_class_accuracy", "")
    assert "image" not in summary.replace("image_", "")
    assert '<h2 id="rouge1">ROUGE-1 against density</h2>' in page
    assert not any(block.name == "answers" for block in made.blocks)
    assert "validation ROUGE-1 is above that of the network" in summary
    assert {"validation_rouge1", "test_rouge1", "test_rouge1_there"} < set(header(followed, "groups"))
    assert {"validation_rouge1", "test_rouge1", "test_rouge1_there"} < set(header(followed, "summary"))
    assert set(pandas.read_csv(followed.report / "contrasts.csv")["figure"]) == {
        *("validation_rouge1", "test_rouge1", "test_rouge1_there", "least_validation_loss_step"),
    }
    assert header(followed, "training")[-1] == "rouge1"
    assert (followed.report / "rouge1.png").exists()


def test_all_metrics_stand_side_by_side_as_means_over_replicates(run):
    block = metrics_of(run)

    dense, matching, _ = block.table
    assert dense | {"network": "dense", "runs": "3", "ROUGE-1": "47.00 / 46.00", "ROUGE-2": "23.50 / 22.50"} == dense
    assert (
        dense | {"first ROUGE-1": "42.00 / 41.00", "oracle ROUGE-1": "60.00 / 59.00", "way to oracle": "35.00 / 35.00"} == dense
    )
    assert matching | {"mask": "oneshot q60", "ROUGE-L": "42.22 / 41.22", "way to oracle": "36.10 / 36.10"} == matching
    assert list(dense)[5:] == [*map(wording.title, ("rouge1", *figures(0.4, metric="rouge1").metrics[1:])), "way to oracle"]
    found = block.frames["metrics"].set_index(["variant", "mask", "metric", "split"])["mean"]
    assert found["ticket", "q60", "rouge2", "test"] == pytest.approx(0.4722 / 2 - 0.01)


def test_the_way_to_the_oracle_is_told_of_validation_then_of_test(run):
    for replicate in run.replicates():
        further = {"test_random_rouge1": 0.39, "test_oracle_rouge1": 0.89}
        amend(replicate.dense.result, final=Figures(**dict(figures(0.5, metric="rouge1")) | further))

    dense = metrics_of(run).table[0]

    assert (dense["ROUGE-1"], dense["way to oracle"]) == ("50.00 / 49.00", "50.00 / 20.00")


def test_accuracy_is_told_where_another_metric_decides():
    reached = figures(0.4, metric="rouge1")

    both = Figures(**dict(reached) | {"validation_accuracy": 0.7, "test_accuracy": 0.6})

    assert set(both.metrics) == {*reached.metrics, "accuracy"}


def test_without_an_oracle_there_is_no_way_to_it_and_of_accuracy_alone_no_part_of_the_report(images):
    assert metrics_of(images) is None
    for replicate in images.replicates():
        amend(replicate.dense.result, final=Figures(**dict(figures(0.9)) | {"validation_f1": 0.5, "test_f1": 0.4}))

    block = metrics_of(images)

    assert [line["f1"] for line in block.table] == ["50.00 / 40.00"]
    assert "way to oracle" not in block.explained


def test_commands_and_the_reader_speak_of_the_metric(followed, tmp_path):
    told = imp_here("report", "--run", str(followed.folder), cwd=tmp_path).stdout
    printed = json.loads(imp_here("report", "--run", str(followed.folder), "--json", cwd=tmp_path).stdout)

    assert "47.00% ROUGE-1" in told
    assert printed["groups"][0]["validation_rouge1"] == pytest.approx(0.47)
    assert "oneshot" in imp_here("status", "--run", str(followed.folder), cwd=tmp_path, check=False).stdout
    results = open_results(followed.folder)
    assert results.frame()["validation_rouge1"].notna().sum() == 12
    dense = results.network("dense")
    assert (dense.result.reached("test"), dense.predictions()) == (pytest.approx(0.45), {})
    assert results.metrics()["validation_rouge1"].max() == pytest.approx(0.42)
    with pytest.raises(InputError, match="there is no test_accuracy"):
        _ = dense.test_accuracy


def test_a_ticket_is_listed_and_described_by_the_metric(run, tmp_path):
    result, recipe = run.replicate(1).dense.read_result(), planned().model_copy(update={"task": "ranking"})
    data = tickets.DataSet(
        source="own", digest="0", shape=(4096,), classes=[], images={"train": 9000, "validation": 5, "test": 5}
    )
    known = {"run": "r", "network": "dense", "made_by": "imp", "license": "mit", "data": data, "standing": tickets.Standing()}
    record = tickets.TicketRecord(**known, result=result, files={})

    listed = tickets.listed(tickets.TicketFolder(tmp_path, record, recipe))
    text = card.card(record, recipe, run.rule)

    assert listed["test_rouge1"] == pytest.approx(0.45)
    assert "ROUGE-1: 46.00% (validation), 45.00% (test)." in text
    assert "own: 9,000 training examples.\n" in text
    assert "- type: rouge1" in text
    assert "ccuracy" not in text
