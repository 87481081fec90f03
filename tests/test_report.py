"""The report of hand-made runs: what its tables, warnings and pages say."""

import csv
import re
import shutil
import sys
from types import SimpleNamespace

import altair as alt
import numpy as np
import pandas
import pytest
from handmade import (
    all_replicates,
    dense,
    in_round,
    one_chain,
    planned,
    three_replicates,
    ticket,
    write_mask,
)
from helpers import install_package

from lottery.base import locks
from lottery.base.errors import InputError
from lottery.commands.reading import show_report
from lottery.results import report, sections
from lottery.results.block import Block
from lottery.results.drawing import Chart
from lottery.rundir import journal
from lottery.rundir.run import Run, open_run

PNG = b"\x89PNG\r\n\x1a\n"


run, one = pytest.fixture(three_replicates), pytest.fixture(one_chain)


def block(made, name):
    """A part of the report, None where it is left out."""
    return next((block for block in made.blocks if block.name == name), None)


def text(run, name):
    return (run.report / name).read_text()


def cells(run, first, mask):
    """The cells of a line of summary.md's tables, as they stand there."""
    lines = [line[2:-2].split(" | ") for line in text(run, "summary.md").splitlines() if line.startswith("|")]
    return next(line for line in lines if line[:2] == [first, mask])


def rows_of(run, name):
    with open(run.report / f"{name}.csv") as file:
        return list(csv.DictReader(file))


def outside(page):
    """The addresses that a page names, but for those of its parts and of the files beside it."""
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    return [
        found
        for found in re.findall(r'(?:src|href)="?([^" >]*)', markup)
        if not re.fullmatch(r"#\w+|\w+\.(svg|png|csv)", found)
    ]


def test_before_the_dense_training_there_is_nothing_to_report(tmp_path):
    with pytest.raises(InputError, match="nothing to report yet: run `imp train` first"):
        report.report(Run(tmp_path, planned()))

    assert list(tmp_path.iterdir()) == []


def test_while_the_first_dense_network_trains_the_report_has_its_course(run, tmp_path, capsys):
    begun = Run(tmp_path / "begun", run.recipe)
    figures = dict.fromkeys(("train_loss", "validation_loss", "test_loss"), 0.3)
    figures |= dict.fromkeys(("train_accuracy", "validation_accuracy", "test_accuracy"), 0.9)
    row = {"step": 45, "epoch": 1.0, **figures, "timing": {"seconds": 1.0, "images_per_second": 100.0}}
    with locks.writing(begun.replicate(1).dense.folder):
        journal.append(begun.replicate(1).dense.metrics, row, "")
        made = report.report(begun)
    show_report(begun, made, as_json=False)

    assert made.headline[0] == "No dense network is trained yet: see `imp status`."
    assert [block.name for block in made.blocks] == ["training"]
    assert rows_of(begun, "training")[0]["accuracy"] == "0.9"
    assert made.headline[0] in capsys.readouterr().out


def test_while_tickets_train_the_report_has_those_that_are_done_and_leaves_out_a_mask_that_is_being_written(run):
    ticket(run, 1, "60", 0.9, step=45)
    write_mask(run.replicate(1), "oneshot", "q90", {"fc/kernel": np.ones(4, bool)}).table.unlink()
    (run.replicate(2).folder / "oneshot/q60-step-000045/ticket").mkdir(parents=True)

    made = report.report(run)

    assert made.left_out == []
    assert any("have no result" in sentence for sentence in made.headline)
    assert cells(run, "ticket", "oneshot q60")[5] == "90.00"


def test_a_report_is_pages_that_stand_alone_tables_and_pictures_and_warns_of_nothing_where_nothing_collapsed(run):
    all_replicates(run, "60", 0.0)

    made = report.report(run)

    names = {path.name for path in run.report.iterdir()}
    charts = ("accuracy", "early_stop")
    drawn = {f"{chart}.{kind}" for chart in charts for kind in ("csv", "png", "svg")}
    tables = {f"{name}.csv" for name in ("summary", "groups", "contrasts", "costs", "verdicts")}
    assert names == {"index.html", "summary.md", *tables, *drawn}
    page = text(run, "index.html")
    for chart in charts:
        assert (run.report / f"{chart}.png").read_bytes().startswith(PNG)
        assert text(run, f"{chart}.svg").startswith("<svg")
        assert f'<h2 id="{chart}">' in page
    assert page.count('<script type="application/json">') == 2
    assert outside(page) == []
    assert 'class="matching"' in page
    assert 'class="dense"' in page
    assert block(made, "collapse") is None
    assert "collapse" not in text(run, "summary.md")
    assert "Layer collapse" not in page


def test_every_network_has_a_line_in_summary_csv_and_every_table_of_the_page_is_there_as_csv(run):
    for number, above in enumerate((0.002, 0.001, 0.003)):
        ticket(run, number + 1, "60", 0.90 + 0.01 * number + above)

    made = report.report(run)

    rows = rows_of(run, "summary")
    assert len(rows) == len(made.findings.rows) == 3 + 2 * 3
    assert [row["status"] for row in rows if row["mask"] == "q90"] == ["missing"] * 3
    first = next(row for row in rows if row["mask"] == "q60")
    assert first | {"family": "oneshot", "against": "dense", "collapse": "", "rewind": "1ep", "round": "1"} == first
    assert float(first["difference"]) == pytest.approx(0.002)
    assert len(rows_of(run, "groups")) == len(made.findings.groups)
    (group,) = (row for row in rows_of(run, "groups") if row["mask"] == "q60")
    # 0.2 ± 2.919986 x 0.1 / sqrt(3) points, one-sided
    assert [float(group[key]) for key in ("low", "high")] == pytest.approx([0.002 - 0.0016859, 0.002 + 0.0016859], abs=1e-6)
    assert (float(group["deviation"]), group["needed"]) == (pytest.approx(0.001), "4")
    assert group["verdict"] == "matching"
    held = {(row["against"], row["figure"]): row for row in rows_of(run, "contrasts")}
    accuracy = held["dense", "validation_accuracy"]
    # 0.2 ± 4.302653 x 0.1 / sqrt(3) points, two-sided
    assert [float(accuracy[key]) for key in ("mean", "low", "high")] == pytest.approx([0.002, -0.000484, 0.004484], abs=1e-6)
    assert (accuracy["count"], accuracy["clear"], accuracy["density"][:3]) == ("3", "False", "0.4")
    assert [row["networks"] for row in rows_of(run, "costs")] == ["3", "3"]


def test_tickets_without_a_result_are_left_out_where_they_are_many(tmp_path):
    few, many = (Run(tmp_path / quantiles, planned(quantiles)) for quantiles in ("60..71", "60..72"))
    for made in (few, many):
        dense(made, 0.90, 0.91, 0.92)

    assert len(block(report.report(few), "networks").table) == 13
    assert len(block(report.report(many), "networks").table) == 1
    assert report.report(many).headline[-1] == "Not finished: 39 of 42 networks have no result (see `imp status`)."


def test_the_line_of_a_group_of_tickets(run):
    for number, (accuracy, step) in enumerate(((0.902, 300), (0.911, 310), (0.923, 320)), 1):
        ticket(run, number, "60", accuracy, early=(step, 0.85))

    report.report(run)

    # differences 0.2, 0.1, 0.3 points: 0.2 ± 2.919986 x 0.1 / sqrt(3) = 0.2 ± 0.17
    assert cells(run, "ticket", "oneshot q60") == [
        *("ticket", "oneshot q60", "40.00%", "1ep", "3", "91.20 ± 1.05", "90.20 ± 1.05"),
        *("+0.20 (+0.03 .. +0.37)", "matching", "0.10", "4", "dense", "310", "85.00"),
    ]
    assert cells(run, "ticket", "oneshot q90") == [
        "ticket",
        "oneshot q90",
        "",
        "1ep",
        "0 of 3",
        *[""] * 3,
        "undecided",
        *[""] * 5,
    ]
    assert cells(run, "dense", "")[2:] == ["100.00%", "", "3", "91.00 ± 1.00", "90.00 ± 1.00", *[""] * 5, "450", "90.00"]


def test_one_ticket_has_neither_spread_nor_bounds(one):
    in_round(one, 1, "lr", 1, 0.91)
    in_round(one, 1, "lr", 1, 0.92, variant="extended")

    report.report(one)

    assert cells(one, "ticket", "lr round-01")[5:] == [*("91.00", "90.00", "-1.00", "undecided", "extended", "450", "90.00")]
    assert cells(one, "extended", "lr round-01")[2:] == [
        *("100.00%", "1ep", "1", "92.00", "91.00"),
        *("+2.00", "undecided", "dense", "450", "91.00"),
    ]


def test_a_collapsed_layer_is_marked_and_told_in_every_page(run):
    for number in (1, 2, 3):
        ticket(run, number, "90", 0.9, collapsed=["fc1/kernel"])
    all_replicates(run, "60", 0.0)
    ticket(run, 1, "60", 0.9, variant="shuffle", collapsed=["fc2/kernel"])
    ticket(run, 1, "60", 0.9, step=0, variant="reinit")

    made = report.report(run)

    told = "ticket, oneshot q90, rewound to 1ep: hardly anything is left of fc1/kernel (layer collapse)"
    control = "shuffle, oneshot q60, rewound to 1ep: hardly anything is left of fc2/kernel (layer collapse)"
    assert block(made, "collapse").sentences == [control, told]
    assert cells(run, "ticket", "oneshot q90")[2] == "10.00% !"
    assert cells(run, "ticket", "oneshot q60")[2] == "40.00%"
    assert [(line["ticket"], line["density"], line["compared with"]) for line in block(made, "contrasts").table] == [
        *(("oneshot q60", "40.00%", against) for against in ("dense", "reinit", "shuffle !")),
        ("oneshot q90", "10.00% !", "dense"),
    ]
    assert "| shuffle ! |" in text(run, "summary.md")
    assert "<td>shuffle !</td>" in text(run, "index.html")
    marked = {(row["mask"], row["against"]) for row in rows_of(run, "contrasts") if row["collapse_against"]}
    assert marked == {("q60", "shuffle")}
    assert told in text(run, "summary.md")
    page = text(run, "index.html")
    assert '<h2 id="collapse">Layer collapse</h2>' in page
    assert f"<li>{told}</li>" in page
    assert ", 0.001)" in " ".join(page.split())


def test_differences_have_two_sided_intervals_and_a_star_where_they_are_clear_of_zero(run):
    for number, accuracy in enumerate((0.912, 0.921, 0.933), 1):  # above dense by 1.2, 1.1 and 1.3 points
        ticket(run, number, "60", accuracy, early=(440 + 10 * number, 0.9))
    all_replicates(run, "60", 0.012, variant="shuffle")

    made = report.report(run)

    # 4.302653 x 0.1 / sqrt(3) = 0.25 points, 4.302653 x 10 / sqrt(3) = 25 steps
    clear = "+1.20 (+0.95 .. +1.45) *"
    first, second = block(made, "contrasts").table
    assert [*first.values()][:7] == ["oneshot q60", "40.00%", "1ep", "dense", "3", clear, clear]
    assert first["step of lowest loss"] == "+10 (-15 .. +35)"
    assert [*second.values()][3:6] == ["shuffle", "3", "+0.00 (-0.25 .. +0.25)"]
    assert "## Differences, paired by replicate" in text(run, "summary.md")
    assert f"| {' | '.join(first.values())} |" in text(run, "summary.md")
    page = text(run, "index.html")
    assert f"<td>{clear}</td>" in re.sub("</?span.*?>", "", page)
    assert "two-sided 95 % Student t intervals" in page
    assert "Early stopping</h2>" in page


def test_what_failed_is_listed_with_its_place_and_its_reason(run):
    made = Run(run.folder, planned("60,90", rounds={"rounds": 4}))
    ticket(made, 2, "60", status="failed", reason="Traceback:\n  <somewhere>\nOSError: no <room> left\n")
    ticket(made, 2, "90", status="diverged", reason="not finite")
    in_round(made, 1, "weights", 4, status="failed", variant="reinit", reason="no disk")

    report.report(made)

    assert re.findall(r"<li>(replicate .*)</li>", text(made, "index.html")) == [
        "replicate 1, reinit, weights round-04, rewound to 1ep: failed, no disk",
        "replicate 2, ticket, oneshot q60, rewound to 1ep: failed, OSError: no &lt;room&gt; left",
        "replicate 2, ticket, oneshot q90, rewound to 1ep: diverged, not finite",
    ]
    reasons = [row["reason"] for row in rows_of(made, "summary") if row["status"] == "failed"]
    assert sorted(reasons) == ["OSError: no <room> left", "no disk"]


def test_families_of_one_mask_and_rewind_point_are_lines_of_their_own(tmp_path):
    grid = {"quantiles": "60", "rewind": "1ep", "controls": []}
    made = Run(tmp_path / "run", planned("60", wide=grid, dense=grid))
    dense(made, 0.90, 0.91, 0.92)
    for family in made.recipe.families:
        all_replicates(made, "60", 0.01, family=family)

    found = report.report(made)

    assert [line["mask"] for line in block(found, "networks").table] == ["", "oneshot q60", "wide q60", "dense q60"]
    assert [(line["ticket"], line["compared with"]) for line in block(found, "contrasts").table] == [
        ("oneshot q60", "dense"),
        ("oneshot q60", "wide q60"),
        ("oneshot q60", "dense q60"),
        ("wide q60", "dense"),
        ("wide q60", "dense q60"),
        ("dense q60", "dense"),
    ]
    assert [(line["networks"], line["trained"]) for line in block(found, "costs").table] == [
        ("dense", "3"),
        *((f"ticket, {family}", "3") for family in made.recipe.families),
        ("in all", "12"),
    ]


def test_without_tickets_there_are_no_sections_of_them(run):
    made = report.report(run)

    assert made.left_out == []
    assert "Early stopping</h2>" not in text(run, "index.html")
    assert "## Differences" not in text(run, "summary.md")


def test_a_mask_that_is_gone_is_told_and_the_rest_reported(retrained, tmp_path):
    folder = shutil.copytree(retrained / "runs/digits", tmp_path / "digits")
    mask = folder / "replicate-1/oneshot/masks/q50.h5"
    mask.unlink()

    made = report.report(open_run(folder))

    assert [line.partition(" is missing")[0] for line in made.left_out] == [f"left out of the report: {mask}"]
    assert block(made, "layers") is None
    assert f"<li>{made.left_out[0]}</li>" in (folder / "report/index.html").read_text().replace("&#39;", "'")
    assert (folder / "report/index.html").exists()


@pytest.fixture
def added(tmp_path, monkeypatch):
    """The section of CONTRIBUTING.md, in a package that is installed, and one that fails."""
    points = "failed = mypackage:nothing\nspread = mypackage:section"
    install_package(tmp_path, monkeypatch, "Add a section", sections.GROUP, points)


def test_a_section_of_another_package_is_one_file_and_is_in_page_markdown_and_csv_one_that_fails_is_told(run, added):
    made = report.report(run)

    page = text(run, "index.html")
    assert page.index('<h2 id="costs">') < page.index('<h2 id="spread">Spread of the dense networks</h2>')
    assert "<td>90.00 .. 92.00</td>" in page
    assert '<a href="spread.csv">spread.csv</a>' in page
    assert "| validation |\n| --- |\n| 90.00 .. 92.00 |\n\nThe lowest" in text(run, "summary.md")
    assert [float(row["validation"]) for row in rows_of(run, "spread")] == [0.90, 0.91, 0.92]
    assert made.left_out == ["left out of the report: section failed (module 'mypackage' has no attribute 'nothing')"]
    assert "section failed" in page


@pytest.mark.parametrize(
    ("faulty", "words"),
    [
        (Block("own", "Own", table=[{"validation": 0.9}]), "the cells of its table are not all text"),
        (Block("networks", "Own"), "the report has another networks"),
        (Block("own", "Own", frames={"summary": pandas.DataFrame({"a": [1]})}), "the report has another summary.csv"),
        (Block("own", "Own", charts=[Chart("own", alt.Chart().mark_point().encode(x="a:X"))]), "section own ("),
        (Block("own", "Own", frames={"../own": pandas.DataFrame({"a": [1]})}), "'../own' cannot be a part of a file's name"),
        ("text", "section own ("),
    ],
)
def test_a_section_of_another_package_that_cannot_be_shown_is_told_and_the_rest_is_reported(run, monkeypatch, faulty, words):
    monkeypatch.setattr(sections.plugins, "members", lambda group: {"own": SimpleNamespace(load=lambda: lambda found: faulty)})

    (line,) = report.report(run).left_out

    assert words in line
    assert "60" in text(run, "summary.csv")


def test_files_of_a_section_that_is_no_longer_there_are_gone_and_others_stay(run, added):
    report.report(run)
    sys.modules.pop("mypackage")
    (run.report / "compare.csv").touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections.plugins, "members", lambda group: {})
        report.report(run)

    assert not (run.report / "spread.csv").exists()
    assert (run.report / "compare.csv").exists()
    assert rows_of(run, "costs")
