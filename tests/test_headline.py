"""The headline: down to which density tickets match the dense network, what their controls say, and how sure that is."""

from functools import partial

import pytest
from handmade import all_replicates, dense, in_round, in_rounds, one_chain, planned, three, three_replicates, ticket, write

from lottery.experiment import reading
from lottery.results.findings import Findings
from lottery.rundir.run import Run


def told(run):
    return Findings(run).headline.sentences


run, one = pytest.fixture(three_replicates), pytest.fixture(one_chain)


@pytest.fixture
def begin(tmp_path):
    return partial(three, tmp_path / "run")


def spread(run, quantile, *points, variant="ticket", step=45):
    """One-shot networks so many points above the dense ones of 90, 91 and 92 %."""
    for number, above in enumerate(points, 1):
        ticket(run, number, quantile, 0.89 + 0.01 * number + above / 100, step, variant)


def test_the_headline_names_the_sparsest_matching_ticket_of_each_series(run):
    all_replicates(run, "60", 0.001)
    all_replicates(run, "90", -0.05)
    all_replicates(run, "60", -0.05, step=0)

    sentences = told(run)

    assert sentences[:2] == [
        "The dense network reaches 91.00% on validation images and 90.00% on test images (mean of 3 runs).",
        "Rewound to 0: not even the densest ticket, of 40.00%, matches.",
    ]
    assert sentences[2].startswith(
        "Rewound to 1ep: the sparsest matching ticket keeps 40.00% of the prunable weights (+0.10 points from dense). "
        "It reaches 90.10% on test images. "
    )


@pytest.mark.parametrize(
    ("accuracies", "failed"),
    [
        ([0.88, 0.38, 0.89], {2: "38.00%"}),
        ([0.1, 0.38, 0.89, 0.9, 0.91], {1: "10.00%", 2: "38.00%"}),
        ([0.38, 0.88], {1: "38.00%"}),
        ([0.90, 0.91, 0.92], {}),
        ([0.38], {}),
    ],
)
def test_dense_networks_that_failed_to_learn_are_named_first(tmp_path, accuracies, failed):
    run = Run(tmp_path / "run", planned(replicates=len(accuracies)))
    dense(run, *accuracies)

    *first, reached = told(run)[: len(failed) + 1]
    assert first == [
        f"The dense network of replicate {number} failed to learn ({value}): it makes verdicts unsure."
        for number, value in failed.items()
    ]
    assert reached.startswith("The dense network reaches")


def test_a_dense_training_that_diverged_is_named_first_with_its_reason(run):
    write(run.replicate(2).dense, status="diverged", replicate=2, reason="loss is nan")

    assert told(run)[0] == "The dense network of replicate 2 diverged (loss is nan): this replicate has no tickets."


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["label_noise=0.2"], "with label noise: 20% of the training labels are turned into another class."),
        (["hardest=0.5", "scores=a/el2n-1ep.csv"], "on the hardest 50% of the training images alone, by el2n-1ep.csv."),
        (["easiest=6000", "scores=own.csv"], "on the easiest 6,000 of the training images alone, by own.csv."),
    ],
)
def test_what_is_special_about_the_training_images_is_told_beside_what_the_dense_network_reaches(run, overrides, words):
    other = Run(run.folder, reading.resolve(run.recipe.model_dump(), [f"data.{text}" for text in overrides]))

    assert f"(mean of 3 runs). It was trained {words} A ticket matches" in Findings(other).headline.opening[-1]


def test_only_a_ticket_that_does_not_match_ends_the_series_and_undecided_ones_are_named(begin):
    run = begin("50,60,75,80,90,95")
    spread(run, "60", 0.1, 0.2, 0.1)
    spread(run, "75", -1, 1, 0)
    spread(run, "80", 0.1, 0.0, 0.1)
    spread(run, "90", -5, -5.1, -5.2)
    spread(run, "95", 2, 2.1, 2.2)

    sentence = told(run)[1]

    assert sentence.startswith("Rewound to 1ep: the sparsest matching ticket keeps 20.00% of the prunable weights")
    assert " Denser tickets that are undecided: oneshot q50, 25.00%. " in sentence
    assert " Not counted, as 10.00% does not match: the sparser 5.00%. " in sentence


def test_where_the_densest_ticket_does_not_match_none_counts(begin):
    run = begin("60,75")
    all_replicates(run, "60", -0.05)
    all_replicates(run, "75", 0.001)

    assert told(run)[1] == (
        "Rewound to 1ep: not even the densest ticket, of 40.00%, matches. "
        "Not counted, as 40.00% does not match: the sparser 25.00%."
    )


def control_of(run, quantile="60"):
    """What the headline says of the control of its ticket."""
    all_replicates(run, quantile, 0.001)
    (sentence,) = (sentence for sentence in told(run) if sentence.startswith("Rewound to 1ep"))
    return sentence.split("test images. ")[1].split(" The differences")[0]


@pytest.mark.parametrize(
    ("points", "told"),
    [
        ((-3.001, -3, -2.999), "It wins: {} does not match (-3.00 points)."),
        ((0.199, 0.2, 0.201), "It does not win: {} matches too (+0.20 points), so its own weights do not matter."),
        ((1, -1, 0), "Whether it wins is open: {} is undecided (+0.00 points)."),
    ],
)
def test_a_ticket_wins_if_its_mask_does_not_match_with_fresh_weights(begin, points, told):
    run = begin("60")
    spread(run, "60", *points, variant="reinit", step=0)

    assert control_of(run) == told.format("its control `reinit` (its mask, fresh weights)")


@pytest.mark.parametrize(
    ("more", "settings"),
    [
        ({"controls": ["reinit"], "controls_at": "60"}, ""),
        ({"controls": ["reinit"], "controls_at": ""}, ""),
        ({"controls": ["reinit"]}, " --set families.oneshot.controls_at=60,90"),
        (
            {"controls": ["shuffle"]},
            """ --set families.oneshot.controls_at=60,90 --set 'families.oneshot.controls=["shuffle", "reinit"]'""",
        ),
    ],
)
def test_a_control_that_is_not_trained_is_named_with_the_command_that_trains_it(begin, more, settings):
    run = begin("60", **more)
    ticket(run, 1, "60", step=0, variant="reinit", status="failed")
    all_replicates(run, "60", -0.5, step=0, variant="shuffle")

    assert control_of(run) == (
        f"Whether it wins is open: its control `reinit` (its mask, fresh weights) is not trained; `imp retrain --run "
        f"{run.folder}{settings}` trains it."
    )


@pytest.mark.parametrize(("at", "setting"), [("", ""), ("1", ""), ("2,4..5", " --set families.weights.controls_at=1,2,4,5")])
def test_in_rounds_the_control_of_the_headline_is_trained_by_rounds(begin, at, setting):
    run = begin("", rounds={"rounds": 2, "rewind": "0,1ep", "controls": ["reinit"], "controls_at": at})
    in_rounds(run, "weights", 1, 0.001)
    in_rounds(run, "weights", 1, -0.03, "reinit", step=0)  # another chain's

    assert f"is not trained; `imp rounds --run {run.folder}{setting}` trains it." in told(run)[2]
    in_rounds(run, "weights", 1, -0.02, "reinit")
    assert " It wins: its control `reinit` (its mask, fresh weights) does not match (-2.00 points). " in told(run)[2]


def test_the_spread_found_says_how_often_three_replicates_find_a_match_and_how_many_it_takes(begin):
    run = begin("60,75,90")
    spread(run, "60", -0.2, 0, 0.2)
    spread(run, "75", -0.28, 0, 0.28)
    spread(run, "90", -50, -60, -40)  # which does not match

    # sqrt((0.2 ** 2 + 0.28 ** 2) / 2) = 0.2433
    assert told(run)[1].endswith(
        " The differences have a standard deviation of 0.24 points. With this spread, 3 replicates recognise an equally good "
        "ticket 25 % of the time, 11 replicates 80 %."
    )


def test_where_every_ticket_is_less_accurate_it_is_said_and_which_are_within_the_margin(begin):
    run = begin("60,90", replicates=4)
    all_replicates(run, "60", -0.001)
    all_replicates(run, "90", -0.05)

    assert told(run)[1].startswith(
        "Rewound to 1ep: undecided. So far the sparsest ticket within 0.2 points of dense keeps 40.00% of the prunable weights "
        "(-0.10 points from dense). So far every ticket is less accurate than dense on average."
    )


def test_a_small_spread_is_enough_and_one_replicate_has_none(begin):
    run = begin("60", replicates=3)
    all_replicates(run, "60", 0.0)

    assert told(run)[1].endswith("3 replicates recognise an equally good ticket 100 % of the time.")


def test_a_collapsed_ticket_does_not_count_in_the_spread(begin):
    run = begin("60,90")
    spread(run, "60", -0.1, 0, 0.1)
    for number, accuracy in enumerate((0.91, 0.1, 0.92), 1):
        ticket(run, number, "90", accuracy, disconnected=number == 2)

    assert "a standard deviation of 0.10 points" in told(run)[1]


@pytest.mark.parametrize(("images", "said"), [(287, True), (500, False), (5000, False)])
def test_a_delta_of_less_than_one_validation_image_is_told(tmp_path, images, said):
    run = Run(tmp_path, planned("60"))
    for number in (1, 2, 3):
        write(run.replicate(number).dense, 0.9, replicate=number, validation_images=images)

    found = [sentence for sentence in told(run) if "`delta`" in sentence]

    sentence = (
        "One of 287 validation images is 0.35 points, more than the margin of 0.2: verdicts need many replicates here, more "
        "images, or a larger `delta`."
    )
    assert found == [sentence] * said


def test_the_headline_of_rounds_names_their_method_and_what_they_are_held_against(one):
    in_round(one, 1, "lr", 1, 0.93)
    in_round(one, 1, "lr", 1, 0.92, variant="extended")

    sentences = told(one)

    assert sentences[1] == (
        "Family lr, rewound to 1ep: undecided. So far the sparsest ticket within 0.2 points of extended keeps 50.00% of the "
        "prunable weights (+1.00 points from extended)."
    )
    assert sentences[2] == "Not finished: 2 of 5 networks have no result (see `imp status`)."
    assert sentences[3].startswith("Verdicts need 3 replicates, this run has 1: `imp run --run ")


def test_of_several_families_each_series_is_told_by_the_name_of_its_family(begin):
    run = begin("60", wide={"quantiles": "60", "rewind": "1ep"}, rounds={"rounds": 1})
    all_replicates(run, "60", 0.01, family="wide")

    assert [sentence.split(",")[0] for sentence in told(run)[1:4]] == ["Family oneshot", "Family weights", "Family wide"]
    assert told(run)[1] == "Family oneshot, rewound to 1ep: undecided."
