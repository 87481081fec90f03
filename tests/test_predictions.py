"""What a network answers, image by image: its file, its figures, and verdicts that hold on other images too."""

import math

import h5py
import numpy as np
import pytest
from handmade import dense, planned, relist, ticket
from tiny import CPUS, initial

from data_prep import records
from lottery.base.errors import InputError
from lottery.base.progress import Reporter
from lottery.experiment.rule import Rule
from lottery.results import criteria, frame, grouping
from lottery.results.findings import Findings
from lottery.results.sections import allocation, forgotten, networks
from lottery.rundir import predictions, store
from lottery.rundir.run import EVERYTHING, Run
from lottery.stages import decide

TICKET = "oneshot/q60-step-000045/ticket"
LABELS = np.array([0, 0, 0, 0, 1, 1, 2, 2])
ANSWERS = np.array([0, 0, 0, 1, 1, 0, 2, 2])
CONFIDENCE = np.array([1.0, 0.9, 0.9, 0.5, 0.5, 0.3, 1 / 15, 0.0], np.float32)


def predicted(labels=LABELS, answers=ANSWERS, confidence=CONFIDENCE, classes=4):
    return predictions.of(labels, answers, confidence, classes)


def test_the_figures_of_answers_are_those_of_a_calculation_by_hand():
    found = predicted()

    assert found.right.tolist() == [True, True, True, False, True, False, True, True]
    assert found.by_class.tolist() == [[4, 3], [2, 1], [2, 2], [0, 0]]
    assert found.worst_class_accuracy == 1 / 2  # of the classes that have images
    filled = {place: row.tolist() for place, row in enumerate(found.by_confidence) if row.any()}
    assert {place: row[:2] for place, row in filled.items()} == {0: [2, 2], 4: [1, 0], 7: [2, 1], 13: [2, 2], 14: [1, 1]}
    gaps = [2 - 1 / 15, 0.3, 0.0, 2 - 1.8, 0.0]
    assert found.calibration_error == pytest.approx(sum(gaps) / 8, abs=1e-7)
    assert found.agreement(found) == 1
    assert found.agreement(predicted(answers=np.array([0, 0, 0, 2, 1, 0, 0, 0]))) == 5 / 8  # two wrong answers alike, one not


@pytest.mark.parametrize(("classes", "kind"), [(2, np.uint8), (256, np.uint8), (257, np.uint16), (1000, np.uint16)])
def test_a_file_gives_back_what_was_saved_bit_by_bit(tmp_path, classes, kind):
    rng = np.random.default_rng(0)
    labels, answers = rng.integers(0, classes, (2, 1001), np.int32)
    saved = {"validation": predicted(labels, answers, rng.random(1001, np.float32), classes), "test": predicted()}

    predictions.save(tmp_path / "predictions.h5", saved, 7)
    found = predictions.load(tmp_path / "predictions.h5")

    for split, one in saved.items():
        assert all(np.array_equal(values, vars(found[split])[name]) for name, values in vars(one).items())
    assert found["validation"].answers.dtype == kind
    assert found["validation"].right.dtype == bool
    with h5py.File(tmp_path / "predictions.h5") as file:
        assert file["validation/right"].shape == (126,)  # bytes
        assert file.attrs["step"] == 7


def test_a_damaged_or_foreign_file_is_named(tmp_path):
    path = tmp_path / "predictions.h5"
    predictions.save(path, {"test": predicted()}, 1)
    with pytest.raises(InputError, match=r"predictions\.h5 holds no predictions"):  # of validation images
        predictions.load(path)

    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"predictions\.h5 is damaged"):
        predictions.load(path)

    store.save(path, {"mask": {"bits": np.zeros(3)}}, {"step": 1})
    with pytest.raises(InputError, match=r"predictions\.h5 holds no predictions"):
        predictions.load(path)


@pytest.mark.parametrize("devices", [CPUS[:1], CPUS[:2]])
def test_the_trainer_gives_each_images_answer_in_the_order_of_the_records_and_figures_of_all_of_them_and_no_padding(
    make_trainer, devices
):
    trainer = make_trainer(devices=devices, classes=9)
    trainer.load(initial(classes=9))

    for split in ("test", "validation", "train"):
        found, evaluated = trainer.answers(split), trainer.evaluate(split)
        images, labels = records.read_split(trainer.feed.folder, trainer.feed.manifest, split)
        logits = np.asarray(trainer.model(images / np.float32(127.5) - 1), np.float64)
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        np.testing.assert_array_equal(found.label, labels)
        np.testing.assert_array_equal(found.measures["answer"], logits.argmax(axis=1))
        np.testing.assert_allclose(found.measures["confidence"], shares.max(axis=1), rtol=1e-5)
        losses = -np.log(shares[np.arange(len(labels)), labels])
        np.testing.assert_allclose(found.loss, losses, rtol=1e-4)
        places = (-logits).argsort(axis=1, kind="stable").argsort(axis=1)[np.arange(len(labels)), labels]
        expected = (losses.mean(), (places == 0).mean(), (places < 5).mean())
        assert (evaluated.loss, *evaluated.metrics.values()) == pytest.approx(expected, rel=1e-5)
    assert evaluated.metrics["accuracy"] < evaluated.metrics["top5_accuracy"] < 1


def test_images_that_differ_only_by_chance_leave_the_bounds_almost_as_they_are():
    rng = np.random.default_rng(1)
    shift = rng.normal(0, 0.02, (6, 1))  # of a seed
    differences = (rng.random((6, 4000)) < 0.5 + shift).astype(np.int8) - (rng.random((6, 4000)) < 0.5)

    low, high = Rule(0.002).bounds_over_images(differences)

    seeds = Rule(0.002).bounds(differences.mean(1))
    assert low == pytest.approx(seeds[0], abs=0.1 * (seeds[1] - seeds[0]))
    assert low <= seeds[0] < seeds[1] <= high  # never narrower


def test_bounds_over_images_are_as_wide_as_a_bootstrap_of_both():
    """The pigeonhole bootstrap of Owen 2007 (doi 10.1214/07-AOAS122), in which both seeds and images are drawn."""
    rng = np.random.default_rng(2)
    of_images = rng.uniform(-0.5, 0.5, 1000)
    differences = (rng.random((20, 1000)) < of_images).astype(np.int8) - (rng.random((20, 1000)) < -of_images)
    shift = rng.normal(0, 0.03, (20, 1)) > rng.uniform(-1, 1, (20, 1000))
    differences = (differences * shift).astype(np.int8)

    low, high = Rule(0.002).bounds_over_images(differences)

    drawn = [differences[rng.integers(0, 20, 20)][:, rng.integers(0, 1000, 1000)].mean() for _ in range(2000)]
    assert (high - low) / 2 / 1.645 == pytest.approx(np.std(drawn), rel=0.15)
    assert (high + low) / 2 == pytest.approx(differences.mean())
    seeds = np.ptp(Rule(0.002).bounds(differences.mean(1)))
    assert high - low > 1.5 * seeds


def test_seeds_that_agree_by_chance_leave_the_bounds_as_wide_as_those_over_images_alone():
    differences = np.zeros((3, 287), np.int8)
    differences[:, :3], differences[:, 3:5] = -1, 1  # three images lost and two won, by every seed
    differences[0, 5:7] = differences[1, 7] = differences[2, 8] = -1

    low, high = Rule(0.002).bounds_over_images(differences)

    of_images = differences.mean(0)
    margin = 1.650199 * of_images.std(ddof=1) / math.sqrt(287)  # t(0.95) with 286 degrees of freedom
    assert low == pytest.approx(differences.mean() - margin, rel=1e-5)
    assert high == pytest.approx(differences.mean() + margin, rel=1e-5)


@pytest.mark.parametrize("differences", [np.ones((3, 5), np.int8), np.ones((1, 5), np.int8), np.eye(3, dtype=np.int8)])
def test_without_a_spread_over_seeds_the_bounds_over_images_are_infinite(differences):
    assert Rule(0.002).bounds_over_images(differences) == (-math.inf, math.inf)


def add(run, number, folder, right, confidence=0.8):
    """Give a hand-made network predictions that are right about the first images of ten classes in turn, and answer 0 to all
    others, but 1 where that would be right."""
    labels = np.arange(100) % 10
    answers = np.where(np.arange(100) < right, labels, np.where(labels == 0, 1, 0))
    made = predicted(labels, answers, np.full(100, confidence), 10)
    path = run.network_in(f"replicate-{number}/{folder}").predictions
    predictions.save(path, {"validation": made, "test": made}, 900)
    relist(run.replicate(number), path)


@pytest.fixture
def run(tmp_path):
    """Three replicates whose tickets are right about one image more, none more, and two more."""
    made = Run(tmp_path / "run", planned())
    dense(made, 0.90, 0.90, 0.90)
    for number, more in ((1, 1), (2, 0), (3, 2)):
        ticket(made, number, "60", 0.90 + more / 100)
        add(made, number, "train", 90)
        add(made, number, TICKET, 90 + more)
    return made


def test_rows_have_agreement_worst_class_and_calibration(run):
    rows = {(row["variant"], row["replicate"]): row for row in frame.dicts(frame.rows(run))}

    one = rows["ticket", 3]
    assert one["agreement"] == 0.98
    assert one["worst_class_accuracy"] == 0.9
    assert one["calibration_error"] == pytest.approx(0.92 - 0.8)
    assert one["against_folder"] == "replicate-3/train"
    assert rows["dense", 3]["agreement"] == 1


def test_groups_have_bounds_and_a_verdict_over_images(run):
    (one,) = [row for row in frame.dicts(grouping.groups(run, frame.rows(run))) if row["variant"] == "ticket"]

    assert one["difference"] == pytest.approx(0.01)
    assert one["image_low"] - 1e-12 <= one["low"] < one["high"] <= one["image_high"] + 1e-12
    assert one["image_verdict"] == "undecided"
    assert one["agreement"] == pytest.approx(0.99)
    shown = networks.table(Findings(run))[-1]["incl. other images"]
    assert shown == f"({one['image_low'] * 100:+.2f} .. {one['image_high'] * 100:+.2f}) undecided"
    figures = {row["figure"]: row for row in frame.dicts(grouping.contrasts(run, frame.rows(run)))}
    assert figures["calibration_error"]["mean"] == pytest.approx(0.01)


def test_what_most_tickets_answer_otherwise_is_forgotten(run):
    """Of 100 images the dense networks are right about 90; the tickets about 91, 90 and 92, so that most know image 90."""
    block = forgotten.section(Findings(run))

    [line] = block.table
    assert line["forgotten"] == "1 of 100"
    assert (line["dense there"], line["ticket there"], line["dense"]) == ("0.00", "66.67", "90.00")
    assert line["hurt most"] == ""  # no class falls
    [image] = frame.dicts(block.frames["pies"])
    assert [image[name] for name in ("image", "label", "dense_answer", "ticket_answer")] == [90, 0, 1, 0]
    classes = block.frames["classes"].set_index("class")
    assert classes.loc["0", "mean"] == pytest.approx(2 / 3 / 10)
    low, high = Rule(0.002, error=0.05 / 10).interval([0.1, 0, 0.1])
    assert classes.loc["0", ["low", "high"]].tolist() == pytest.approx([low, high])
    assert not classes["clear"].any()


@pytest.fixture
def alone(tmp_path):
    """A function that makes a run whose dense networks are right about 90 of 100 images, and its tickets about so many; None:
    not trained."""

    def made(*right):
        run = Run(tmp_path / "run", planned(replicates=len(right)))
        dense(run, *[0.90] * len(right))
        for number, count in enumerate(right, 1):
            add(run, number, "train", 90)
            if count is not None:
                ticket(run, number, "60", count / 100)
                add(run, number, TICKET, count)
        return run

    return made


def told(run):
    """The verdict on the ticket, and the headline."""
    found = Findings(run)
    return frame.each(found.groups)[-1].verdict, " ".join(found.headline.sentences)


@pytest.mark.parametrize("right", [[80, 80], [80, 80, None]])
def test_under_three_replicates_nothing_is_said_to_be_forgotten(alone, right):
    assert forgotten.section(Findings(alone(*right))) is None


WORSE_HERE = [
    ([2], "nothing is known"),  # 88 points below
    ([85], "nothing is known"),  # five lost, none won: 1 in 32
    ([2, 3], "it is not shown"),
    ([2, 2, 2], "nothing is known"),  # without a spread
    ([2, 2, None], "nothing is known"),
    ([50, 84, 85], "it is not shown"),  # -17 points +- 33
]


@pytest.mark.parametrize(("right", "seeds"), WORSE_HERE)
def test_a_ticket_worse_on_these_images_is_never_undecided(alone, right, seeds):
    verdict, sentences = told(alone(*right))

    assert verdict == "worse here"
    assert f" At 40.00% density, worse than dense on these images; for other seeds {seeds}." in sentences


# Four lost and none won: 1 in 16. Seeds that disagree. Seeds that agree.
@pytest.mark.parametrize(
    ("right", "found"), [([86], "undecided"), ([95], "undecided"), ([2, 89], "undecided"), ([2, 3, 4], "not matching")]
)
def test_one_that_is_not_shown_to_be_worse_on_them_and_one_that_seeds_decide_are_not_called_so(alone, right, found):
    verdict, sentences = told(alone(*right))

    assert verdict == found
    assert "these images" not in sentences


def test_a_ticket_worse_on_these_images_is_given_more_replicates(alone):
    added, chosen = next(decide.until_decided(alone(2), 5, Reporter(quiet=True), EVERYTHING))

    assert ([*added.numbers()], str(chosen.quantiles)) == ([2], "60")


def test_a_ticket_hardly_worse_on_very_many_images_is_not_worse_by_more_than_delta():
    lost = np.zeros((1, 100_000), np.int8)
    lost[0, :150] = -1

    assert Rule(0.001).is_worse_here(lost)
    assert not Rule(0.002).is_worse_here(lost)
    won = lost.copy()
    won[0, 150:300] = 1
    assert not Rule(0.0).is_worse_here(won)


def test_a_control_worse_than_its_ticket_on_these_images_has_a_sign_of_its_own(tmp_path):
    run = Run(tmp_path / "run", planned("60", replicates=1, controls=["shuffle"], controls_at="60"))
    dense(run, 0.90)
    for variant, right in (("ticket", 90), ("shuffle", 2)):
        ticket(run, 1, "60", right / 100, variant=variant)
        add(run, 1, TICKET.replace("ticket", variant), right)

    checks = criteria.checks(run, frame.rows(run))

    assert [row.verdict for row in frame.each(checks)] == ["worse here"]
    assert allocation.lines(checks)[0]["shuffle"] == "-88.00 ↓"
    assert told(run)[1].count("On these images alone, the control `shuffle` is worse than the ticket at 40.00%.") == 1


def test_the_headline_says_whether_its_ticket_matches_on_other_images(run):
    wide = Run(run.folder, planned().model_copy(update={"delta": 0.02}))

    assert "Counting other images too, it matches (" in told(wide)[1]


def test_a_network_without_predictions_leaves_the_columns_empty(run):
    network = run.network_in(f"replicate-2/{TICKET}")
    network.predictions.unlink()
    with pytest.raises(InputError, match=r"predictions\.h5 is missing: remove .*result\.json and run its stage again"):
        frame.rows(run)

    ticket(run, 2, "60", 0.90)
    groups = frame.dicts(grouping.groups(run, frame.rows(run)))

    assert [row["agreement"] for row in frame.dicts(frame.rows(run)) if row["variant"] == "ticket"][1] is None
    assert (groups[-1]["verdict"], groups[-1]["image_verdict"]) == ("undecided", None)


def test_predictions_of_another_network_are_named(run):
    other = run.network_in(f"replicate-3/{TICKET}").predictions.read_bytes()
    run.network_in(f"replicate-2/{TICKET}").predictions.write_bytes(other)

    with pytest.raises(InputError, match=r"was written for another predictions\.h5 than the one that is there"):
        frame.rows(run)


def test_predictions_of_other_images_are_named_though_their_seals_are_right(run):
    path = run.network_in(f"replicate-2/{TICKET}").predictions
    predictions.save(path, {"validation": predicted(), "test": predicted()}, 900)
    relist(run.replicate(2), path)

    with pytest.raises(
        InputError, match=r"predictions\.h5 is about other images than the dense network's: remove .*result\.json"
    ):
        frame.rows(run)
