"""Published claims as questions to runs, and their verdicts."""

import csv
import importlib
import math
import re
import shutil
import tomllib

import numpy as np
import pandas
import pytest
from helpers import ROOT, imp_here
from scipy.special import stdtrit

from lottery.results import markdown

RECIPE = """
name = "tiny"
replicates = 3
[data]
size = 8
crop = 0
[model]
name = "lenet_300_100"
[train]
epochs = 2
batch = 64
warmup = "0"
snapshots = "0"
[families.rounds]
rounds = 3
rewind = "0"
controls = ["reinit"]
controls_at = "2"
[families.channels]
units = "channel"
quantiles = "50"
rewind = "0"
controls = []
[families.gmp]
updates = "gmp"
update_every = "4it"
quantiles = "50"
rewind = "0"
controls = []
"""
ASKED = "rounds/round-02 ticket beats dense"
CLAIMS = """
[studies.tiny]
title = "Tiny"
runs.main = { recipe = "tiny.toml", epoch_seconds = 36 }
runs.other = { recipe = "tiny.toml", set = ["seed=1"], epoch_seconds = 36 }
[studies.large]
title = "Large"
runs.main = { recipe = "tiny.toml", set = ["replicates=4"], epoch_seconds = 36 }
[[claims]]
name = "fresh-weights"
says = "Tickets win."
source = "A paper"
tiny = ["rounds/round-02 ticket beats rounds/round-02 reinit"]
large = ["rounds/round-02 ticket beats dense"]
[[claims]]
name = "barriers"
says = "There is none."
source = "Another"
given.tiny = ["channels/q50 ticket is above 0"]
tiny = ["rounds/round-02 barrier is below 2", "channels/q50 ticket does not beat dense",
  "gmp/q50 ticket does not beat dense", "other:dense is above 0"]
"""


@pytest.fixture
def asked(benchmarks):
    return importlib.import_module("claims_asked")


@pytest.fixture
def here_with_claims(here):
    (here / "tiny.toml").write_text(RECIPE)
    (here / "claims.toml").write_text(CLAIMS)
    return here


@pytest.mark.parametrize(
    ("how", "differences", "answer"),
    [
        ("beats", [0.011, 0.010, 0.009], "confirmed"),
        ("beats", [0.0011, 0.001, 0.0009], "confirmed"),  # however small
        ("beats", [-0.0011, -0.001, -0.0009], "contradicted"),
        ("beats", [0.0005, 0.0, -0.0005], "not confirmed"),
        ("keeps up with", [0.0005, 0.0, -0.0005], "confirmed"),
        ("keeps up with", [-0.011, -0.010, -0.009], "contradicted"),
        ("keeps up with", [0.03, 0.0, -0.03], "not confirmed"),
        ("does not beat", [0.0005, 0.0, -0.0005], "confirmed"),
        ("does not beat", [0.0011, 0.001, 0.0009], "confirmed"),
        ("does not beat", [0.011, 0.010, 0.009], "contradicted"),
        ("is above", [0.011, 0.010, 0.009], "confirmed"),
        ("is below", [0.011, 0.010, 0.009], "contradicted"),
        ("beats", [0.5, 0.6, math.nan], "not confirmed"),  # one that failed leaves it open
        ("beats", [0.5, 0.6], "not run"),
        ("beats", [], "not run"),
    ],
)
def test_a_question_is_answered_by_the_bounds_of_the_mean_difference_of_all_replicates(asked, how, differences, answer):
    assert asked.Question.parse(f"dense {how} dense").answer(differences, 3) == answer


def test_two_replicates_decide_nothing(asked):
    question = asked.Question.parse("dense beats dense")

    assert question.answer([0.5, 0.6], 2) == "not confirmed"
    assert question.decided_by([0.5, 0.6]) == "3 replicates at least"


@pytest.mark.parametrize(
    ("answers", "premises", "verdict"),
    [
        (["confirmed", "confirmed"], [], "confirmed"),
        (["confirmed", "not confirmed"], [], "not confirmed"),
        (["not confirmed", "contradicted"], [], "contradicted"),
        (["contradicted", "not run"], [], "not run"),
        ([], [], "not run"),
        (["contradicted"], ["confirmed"], "contradicted"),
        (["contradicted"], ["confirmed", "not confirmed"], "premise not met"),
        (["confirmed"], ["not run"], "not run"),
        (["not run"], ["not confirmed", "not run"], "premise not met"),  # whatever comes out
        (["not run"], ["confirmed"], "not run"),
    ],
)
def test_a_claim_holds_if_all_its_questions_are_answered_so_and_its_premises_hold(asked, answers, premises, verdict):
    assert asked.verdict(answers, premises) == verdict


@pytest.mark.parametrize("differences", [[0.006, 0.0, 0.003], [0.006, -0.005, 0.002], [0.02, -0.01, 0.03, -0.02, 0.01]])
def test_as_many_replicates_are_named_as_would_decide(asked, differences):
    count = int(asked.Question.parse("dense beats dense").decided_by(differences).split()[1].replace(",", ""))

    def lower(count):
        return np.mean(differences) - stdtrit(count - 1, 0.95) * np.std(differences, ddof=1) / np.sqrt(count)

    assert count > len(differences)
    assert lower(count) > 0
    assert lower(count - 1) <= 0


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ([0.0008, 0.0, -0.0002], "any difference is below 0.2 points"),
        ([0.5, 0.6, math.nan], "these have failed"),
        ([0.5, -0.5, 1e-5], "more than a million replicates"),
    ],
)
def test_where_no_number_of_replicates_would_decide_it_says_why(asked, differences, words):
    assert words in asked.Question.parse("dense beats dense").decided_by(differences)


@pytest.mark.usefixtures("here")
def test_the_claims_are_about_networks_that_the_recipes_train(asked):
    studies, claims = asked.read(ROOT / "benchmarks/claims.toml")

    assert len(claims) == 17
    assert [sum(bool(claim.sides(study)) for claim in claims) for study in studies] == [16, 17]


@pytest.mark.usefixtures("here")
def test_the_published_verdicts_follow_from_the_published_accuracies(asked):
    folder = ROOT / "docs/results/claims"
    answers, differences, networks = (pandas.read_csv(folder / f"{name}.csv") for name in ("claims", "differences", "networks"))
    told, reached = ((folder / f"{name}.md").read_text() for name in ("table", "accuracies"))
    assert all(text in (folder / "README.md").read_text() for text in (told, reached))
    noise = pandas.read_csv(folder / "noise.csv").groupby("network").train.mean()
    assert f"[{100 * noise['dense']:.0f} % of the training" in (folder / "README.md").read_text()
    script = importlib.import_module("claims")
    assert reached == markdown.table(script.accuracies(networks)) + "\n"
    studies, claims = asked.read(ROOT / "benchmarks/claims.toml", script.Known(folder))

    for study in studies:
        ran = networks[networks.study == study.name]
        table = told.split(f"### {study.title}\n")[1].split("### ")[0]
        vars(study)["frames"] = {name: ran[ran.run == name] for name in study.runs}
        for claim in claims:
            found = []
            for question, is_premise in claim.asked(study):
                ours = (differences.study == study.name) & (differences.claim == claim.name)
                by_replicate = differences[ours & (differences.question == question.text)].set_index("replicate").difference
                assert list(by_replicate) == pytest.approx(list(question.differences(study)), abs=1e-9)
                found.append((question.answer(by_replicate, study.replicates(question)), is_premise))
                if found[-1][0] != asked.NOT_RUN:
                    bounds = dict(zip(("low", "high"), asked.RULE.bounds(list(by_replicate)), strict=True))
                    row = {"premise": is_premise, "question": question.text, "mean": by_replicate.mean(), **bounds}
                    assert script.told(row) in table
            ours = (answers.study == study.name) & (answers.claim == claim.name)
            assert list(answers[ours].answer) == [answer for answer, _ in found]
            if found:
                verdict = asked.verdict(*([answer for answer, premise in found if premise == kind] for kind in (False, True)))
                assert re.search(f"^\\| `{claim.name}`: .* \\| \\*\\*{verdict}\\*\\* ", table, re.M)


@pytest.mark.usefixtures("here")
def test_what_is_published_is_written_again_from_itself(asked, tmp_path):
    script = importlib.import_module("claims")
    published = ROOT / "docs/results/claims"

    script.write(*asked.read(ROOT / "benchmarks/claims.toml", script.Known(published)), tmp_path)

    for name in ("claims.csv", "differences.csv", "lines.csv", "networks.csv", "accuracies.md"):
        assert (tmp_path / name).read_text() == (published / name).read_text()
    assert "after/q95 extended" in (tmp_path / "accuracies.md").read_text()  # beside its ticket


def test_claims_are_planned_trained_and_judged_by_one_command(here_with_claims, monkeypatch, capsys):
    def imp(*words):
        imp_here(*words, cwd=here_with_claims)

    claims = importlib.import_module("claims")
    monkeypatch.setattr(claims, "imp", imp)
    studies, known = claims.read(here_with_claims / "claims.toml")
    before = claims.planned_rows(studies, known)
    assert [row["networks"] for row in before] == ["12", "21", "21", "16", "16"]
    assert before[0]["core hours"] == before[0]["left"] == "0.2"

    for claim in known:
        claims.train(studies[0], claim, 1)
    claims.write(*claims.read(here_with_claims / "claims.toml"), here_with_claims / "out")

    assert not list(here_with_claims.glob("runs/*/*/rounds/round-03*"))  # which no claim asks about
    rows = list(csv.DictReader((here_with_claims / "out/claims.csv").open()))
    assert [row["replicates"] for row in rows] == ["3", "3", "3", "3", "3", "3", "0"]
    assert 0 <= float(rows[2]["mean"]) < 1  # a barrier is a share of errors
    differences = list(csv.DictReader((here_with_claims / "out/differences.csv").open()))
    assert [float(row["mean"]) for row in rows[:6]] == pytest.approx(
        [np.mean([float(one["difference"]) for one in differences if one["question"] == row["question"]]) for row in rows[:6]]
    )
    assert len(differences) == 3 * 6
    assert rows[1]["premise"] == "True"
    assert rows[6]["answer"] == "not run"
    text = (here_with_claims / "out/table.md").read_text()
    of_tiny, of_large = text.split("### Large\n")
    assert of_tiny.startswith("### Tiny\n\n| claim | verdict |")
    assert "Tickets win. (A paper) | **" in of_tiny
    assert "Tickets win. (A paper) | **not run** |" in of_large
    assert tomllib.loads((here_with_claims / "out/tiny-main.toml").read_text())["name"] == "tiny"
    networks = [tuple(row.values()) for row in csv.DictReader((here_with_claims / "out/networks.csv").open())]
    assert len(networks) == len(set(networks)) == 3 * 6
    lines = pandas.read_csv(here_with_claims / "out/lines.csv")
    assert list(lines.groupby("replicate").share.agg(list)) == [pytest.approx(np.linspace(0, 1, 11))] * 3
    assert (here_with_claims / "out/claims.png").read_bytes().startswith(b"\x89PNG")
    after = claims.planned_rows(*claims.read(here_with_claims / "claims.toml"))
    assert after[2]["finished"] == after[2]["networks"]
    found = {path.name: path.read_bytes() for path in (here_with_claims / "out").glob("*.csv")}

    main = here_with_claims / "runs/claims-tiny-main"  # what goes on from tables finds the same, whatever became of the runs
    for gone in (main / "replicate-2/channels", main):
        shutil.rmtree(gone)
        known = claims.Known(here_with_claims / "out")
        studies, asked = claims.read(here_with_claims / "claims.toml", known)
        assert not asked[0].lacking(studies[0])
        assert claims.planned_rows(studies, asked)[2]["left"] == "0.0"
        monkeypatch.setattr(claims, "imp", None)
        capsys.readouterr()
        claims.train(studies[0], asked[0], 1)
        assert capsys.readouterr().out == "fresh-weights on Tiny: nothing is left to train\n"
        claims.write(studies, asked, here_with_claims / "out")
        assert {path.name: path.read_bytes() for path in (here_with_claims / "out").glob("*.csv")} == found


def test_a_claim_whose_premise_has_failed_trains_nothing(asked, here_with_claims):
    (here_with_claims / "claims.toml").write_text(CLAIMS.replace("channels/q50 ticket is above 0", "dense is above 1"))
    for stage in ("prepare", "train"):
        imp_here(stage, "--run", "runs/claims-tiny-main", "--recipe", str(here_with_claims / "tiny.toml"), cwd=here_with_claims)

    (tiny, _), (fresh_weights, barriers) = asked.read(here_with_claims / "claims.toml")

    assert [side.family for side in fresh_weights.lacking(tiny)] == ["rounds", "rounds"]
    assert barriers.lacking(tiny) == []


@pytest.mark.parametrize(
    ("path", "old", "new", "words"),
    [
        ("known/networks.csv", "1,dense,,,0,1.0,done,0.", "1,dense,,,0,1.0,done,1.", "dense of replicate 1 reaches 0."),
        ("tiny.toml", "epochs = 2", "epochs = 3", "tiny-main.toml is not the recipe of runs/claims-tiny-main"),
        ("known/networks.csv", "", None, "there is no known/networks.csv: --known takes a folder that --table wrote"),
        ("known/tiny-main.toml", "", None, "there is no known/tiny-main.toml: it says what the networks of known are"),
        ("known/networks.csv", "3,dense", "2,dense", "it has a network twice"),
        ("known/networks.csv", "3,dense", "three,dense", "networks.csv is not as --table wrote it: "),
        ("known/differences.csv", "difference", "gap", "differences.csv is not as --table wrote it: "),
    ],
)
def test_what_is_known_of_other_networks_is_no_part_of_a_run(typed, here_with_claims, path, old, new, words):
    recipe = here_with_claims / "tiny.toml"
    for stage in ("prepare", "train"):
        imp_here(stage, "--run", "runs/claims-tiny-main", "--recipe", str(recipe), cwd=here_with_claims)
    line = ("claims.py", "--claims", "claims.toml", "--study", "tiny")
    assert typed(*line, "--table", "known")[0] == 0
    changed = here_with_claims / path
    if new is None:
        changed.unlink()
    else:
        assert old in changed.read_text()
        changed.write_text(changed.read_text().replace(old, new))
    if changed == recipe:
        shutil.rmtree(here_with_claims / "runs")

    code, _, said = typed(*line, "--known", "known", "--table", "out")

    assert code == 2
    assert words in said
    assert said.count("\n") == 1


def test_tables_that_would_lose_networks_or_barriers_are_not_written(typed, here_with_claims):
    line = ("claims.py", "--claims", "claims.toml", "--study", "tiny", "--table", "out")
    for stage in ("prepare", "train"):
        imp_here(stage, "--run", "runs/claims-tiny-main", "--recipe", str(here_with_claims / "tiny.toml"), cwd=here_with_claims)
    assert typed(*line)[0] == 0
    with (here_with_claims / "out/lines.csv").open("a") as lines:
        lines.write("tiny,main,rounds,round-02,1,0.0,0.1\ntiny,main,rounds,round-02,1,1.0,0.1\n")
    code, _, said = typed(*line)
    assert (code, said.count("\n")) == (2, 1)
    assert "out has 1 barrier not in the new tables" in said

    found = (here_with_claims / "out/networks.csv").read_bytes()
    shutil.rmtree(here_with_claims / "runs")

    code, _, said = typed(*line)

    assert (code, said.count("\n")) == (2, 1)
    assert "out has 3 networks not in the new tables" in said
    assert typed(*line, "--known", "out")[0] == 0
    assert (here_with_claims / "out/networks.csv").read_bytes() == found


def test_before_anything_is_trained_the_table_says_so(typed, here_with_claims):
    code, _, said = typed("claims.py", "--claims", "claims.toml", "barriers", "--table", "out")

    assert (code, said) == (0, "")
    text = (here_with_claims / "out/table.md").read_text()
    assert "There is none. (Another) | **not run** |" in text
    assert "Large" not in text  # of which this claim is not asked


@pytest.mark.parametrize(
    ("line", "question", "words"),
    [
        (["others"], ASKED, "no claim others; there are fresh-weights, barriers"),
        (["--study", "huge"], ASKED, "none of these networks is in claims.toml: huge"),
        (["--claims", "nothing.toml"], ASKED, "'nothing.toml' does not exist"),
        (["barriers", "--study", "large", "--plan"], ASKED, "none of these claims is asked of Large"),
        (["--plan"], "rounds/round-02 ticket is better than dense", "is no question"),
        (["--plan"], "other:dense beats dense", "large has no run other; it has main"),
        (["--plan"], "rund/round-02 ticket beats dense", "tiny.toml trains no rund/round-02 ticket"),
        (["--plan"], "rounds/round-04 ticket beats dense", "trains no rounds/round-04 ticket"),
        (["--plan"], "rounds/round-01 reinit beats dense", "trains no rounds/round-01 reinit"),
        *((["--plan"], f"{side} beats dense", "is no network") for side in ("1.2.3", "rounds ticket", "a/q50", "a:b:dense")),
        (["--plan"], "0.02 is below dense", "begins with a number"),
        (["--plan"], "gmp/q50 barrier is below 0.02", "gmp/q50 has no barrier: no round comes before it"),
    ],
)
def test_what_cannot_be_asked_or_answered_is_one_line(typed, here_with_claims, line, question, words):
    (here_with_claims / "claims.toml").write_text(CLAIMS.replace(ASKED, question))

    code, _, said = typed("claims.py", "--claims", "claims.toml", *line)

    assert code == 2
    assert words in said
    assert said.count("\n") == 1
