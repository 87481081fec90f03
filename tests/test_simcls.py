"""The loss of SimCLS against the paper's equations, and the metrics of ranking by hand."""

import dataclasses

import numpy as np
import pytest

from data_prep.records import Field, Manifest
from lottery.base.errors import InputError
from lottery.experiment.recipe import Recipe

tf = pytest.importorskip("tensorflow")
ranking = pytest.importorskip("lottery.engine.tasks.ranking")
pytestmark = pytest.mark.usefixtures("tensorflow")


def task(candidates):
    shapes = {"document": ("<u2", (6,)), "texts": ("<u2", (1 + candidates, 4)), "rouge": ("<f4", (1 + candidates, 3))}
    fields = {name: Field(*field) for name, field in shapes.items()}
    size = sum(field.bytes for field in fields.values())
    return ranking.Ranking(Recipe(), Manifest((size,), [], [], {}, {"ids": "64"}, fields=fields))


@pytest.mark.parametrize("made_by", [{}, {"ids": "many"}, {"ids": "0"}])
def test_records_that_do_not_say_how_many_tokens_there_are_are_refused_in_one_line(made_by):
    manifest = dataclasses.replace(task(2).manifest, made_by=made_by)

    with pytest.raises(InputError, match="how many tokens there are: prepare them anew"):
        ranking.Ranking(Recipe(), manifest)


def batch(rouge):
    """`rouge`: of the candidates, [n, candidates, 3]."""
    reference = np.ones((len(rouge), 1, 3))
    return {"rouge": tf.constant(np.concatenate([reference, rouge], axis=1), tf.float32)}


def simcls_loss(scores, rouge, margin=0.01):
    """The loss of the paper, written as loops: `scores` of the reference and the candidates, [1 + candidates]."""
    reference, candidates = scores[0], scores[1:]
    order = sorted(range(len(candidates)), key=lambda index: -rouge[index].mean())  # stable: of equal ones the first generated
    total = sum(max(0.0, candidate - reference) for candidate in candidates)
    for i, better in enumerate(order):
        for j, worse in enumerate(order):
            if j > i:
                total += max(0.0, candidates[worse] - candidates[better] + margin * (j - i))
    return total


@pytest.mark.parametrize("candidates", [2, 3, 8])
def test_the_loss_is_that_of_the_paper(candidates):
    rng = np.random.default_rng(0)
    rouge, scores = rng.random((32, candidates, 3)), rng.uniform(-1, 1, (32, 1 + candidates))

    found = task(candidates).loss(batch(rouge), tf.constant(scores)).numpy()

    expected = [simcls_loss(*one) for one in zip(scores, rouge.astype(np.float32), strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_equally_good_candidates_are_ordered_as_they_were_generated():
    rouge, scores = np.full((1, 3, 3), 0.5), np.array([[0.9, 0.1, 0.2, 0.3]])

    found = task(3).loss(batch(rouge), tf.constant(scores)).numpy()

    np.testing.assert_allclose(found, [0.1 + 0.1 + 0.2 + 0.01 * (1 + 1 + 2)])


def test_the_metrics_are_of_the_chosen_the_first_a_random_and_the_best_candidate():
    rouge = np.array(
        [
            [[0.2, 0.1, 0.2], [0.6, 0.3, 0.6], [0.4, 0.2, 0.4]],
            [[0.5, 0.0, 0.0], [0.3, 0.3, 0.3], [0.1, 0.0, 0.1]],  # the oracle goes by the mean of the three
        ]
    )
    scores = np.array([[9.0, 0.1, 0.2, 0.3], [-9.0, 0.3, 0.2, 0.1]])  # the reference does not compete

    found = {name: values.numpy().tolist() for name, values in task(3).measures(batch(rouge), tf.constant(scores)).items()}

    expected = {
        "rouge1": [0.4, 0.5],
        "rouge2": [0.2, 0.0],
        "rougeL": [0.4, 0.0],
        "first_rouge1": [0.2, 0.5],
        "random_rouge1": [0.4, 0.3],
        "oracle_rouge1": [0.6, 0.3],
    }
    assert found == {name: pytest.approx(values) for name, values in expected.items()}


def test_the_network_gets_the_document_then_the_reference_then_the_candidates():
    one, texts = task(2), np.arange(12).reshape(1, 3, 4) + 10
    given = {"document": tf.constant([[1, 2, 3, 4, 5, 6]], tf.int32), "texts": tf.constant(texts, tf.int32)}

    assert one.inputs(given).numpy().tolist() == [[1, 2, 3, 4, 5, 6, *range(10, 22)]]
    assert one.signature.segments == (6, 3, 4)
    assert (one.signature.shape, one.signature.outputs, one.signature.vocabulary) == ((18,), 3, 64)
