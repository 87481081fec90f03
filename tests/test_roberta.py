"""RoBERTa's weights: its equations written again in NumPy give the same scores, and files that do not fit are refused."""

import re

import numpy as np
import pytest
from safetensors.numpy import load, save_file
from scipy.special import erf, softmax
from texts import drawn, rows, scorer

from lottery.base.errors import InputError
from lottery.engine import foreign, models
from lottery.experiment.recipe import Model

pytestmark = pytest.mark.usefixtures("tensorflow")

WIDTH, LAYERS, HEADS, TOKENS, PLACES = 128, 2, 2, 50, 40
MODEL = Model(name="transformer_tiny")


def roberta(seed=0, width=WIDTH, layers=LAYERS, tokens=TOKENS, places=PLACES, types=1):
    """Random weights in the names and shapes of Hugging Face's RobertaModel."""
    rng = np.random.default_rng(seed)
    dense = {"attention.self.query": (width, width), "attention.self.key": (width, width)}
    dense |= {"attention.self.value": (width, width), "attention.output.dense": (width, width)}
    dense |= {"intermediate.dense": (4 * width, width), "output.dense": (width, 4 * width)}
    tables = {"word": tokens, "position": places, "token_type": types}
    found = {f"embeddings.{name}_embeddings.weight": rng.normal(0, 0.5, (count, width)) for name, count in tables.items()}
    norms = ["embeddings.LayerNorm"]
    for layer in range(layers):
        prefix = f"encoder.layer.{layer}."
        norms += [f"{prefix}attention.output.LayerNorm", f"{prefix}output.LayerNorm"]
        for name, shape in dense.items():
            found |= {f"{prefix}{name}.weight": rng.normal(0, 0.1, shape), f"{prefix}{name}.bias": rng.normal(0, 0.1, shape[0])}
    for name in norms:
        found |= {f"{name}.weight": rng.normal(1, 0.2, width), f"{name}.bias": rng.normal(0, 0.2, width)}
    return {name: array.astype(np.float32) for name, array in found.items()}


def first_output(weights, tokens):
    """The first token's output of RoBERTa on int [tokens], padding left out as Hugging Face's mask leaves it out; float64."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}

    def dense(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def heads(x):
        return x.reshape(len(x), HEADS, -1).swapaxes(0, 1)

    mask = tokens != 1
    positions = np.cumsum(mask) * mask + 1
    tables = ((tokens, "word"), (positions, "position"), (np.zeros_like(tokens), "token_type"))
    x = norm(sum(w[f"embeddings.{name}_embeddings.weight"][ids] for ids, name in tables), "embeddings.LayerNorm")
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}."
        query, key, value = (heads(dense(x, f"{at}attention.self.{name}")) for name in ("query", "key", "value"))
        scores = query @ key.swapaxes(1, 2) / np.sqrt(WIDTH // HEADS) + np.where(mask, 0, -np.inf)
        context = (softmax(scores, -1) @ value).swapaxes(0, 1).reshape(len(x), -1)
        x = norm(x + dense(context, f"{at}attention.output.dense"), f"{at}attention.output.LayerNorm")
        hidden = dense(x, f"{at}intermediate.dense")
        hidden = hidden * (1 + erf(hidden / np.sqrt(2))) / 2
        x = norm(x + dense(hidden, f"{at}output.dense"), f"{at}output.LayerNorm")
    return x[0]


def cosine(one, other):
    return one @ other / np.sqrt((one @ one) * (other @ other))


@pytest.mark.parametrize("prefix", ["", "roberta."])
def test_scores_are_those_of_its_equations(tmp_path, prefix):
    weights, network = roberta(), scorer(MODEL, vocabulary=TOKENS)
    others = {"lm_head.bias": np.ones(3, np.float32), f"{prefix}pooler.dense.bias": np.ones(3, np.float32)}
    others |= {f"{prefix}embeddings.position_ids": np.arange(PLACES)[None]}
    save_file({f"{prefix}{name}": array for name, array in weights.items()} | others, tmp_path / "model.safetensors")
    file = Model(name=MODEL.name, weights=str(tmp_path)).weights_file  # of the folder
    loaded = foreign.load(file, MODEL, (), drawn(network))
    models.assign({variable.path: variable for variable in network.variables}, loaded.weights)

    documents, texts = rows(vocabulary=TOKENS)
    found = np.array(network(np.concatenate([documents, texts.reshape(len(texts), -1)], axis=1)))

    for document, candidates, scores in zip(documents, texts, found, strict=True):
        expected = [cosine(first_output(weights, document), first_output(weights, text)) for text in candidates]
        np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_an_export_has_all_that_the_model_of_hugging_face_has_and_comes_back(tmp_path):
    state = drawn(scorer(MODEL, vocabulary=TOKENS))

    content, _ = foreign.to_torch(MODEL, (), state)

    exported = load(content)
    (tmp_path / "exported.safetensors").write_bytes(content)
    assert {name: array.shape[1:] for name, array in exported.items()} == {
        name: array.shape[1:] for name, array in roberta().items()
    }
    back = foreign.load(tmp_path / "exported.safetensors", MODEL, (), state).weights
    for path, array in state.weights.items():
        np.testing.assert_array_equal(back[path], array)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (
            {"layers": 4, "width": 256},
            "has 4 layers of width 256, and transformer_tiny has not: set model.name=transformer_mini",
        ),
        ({"layers": 3}, "has 3 layers of width 128, and transformer_tiny has not: no network here is of that size"),
        ({"tokens": 60}, "has 60 tokens, the texts 50: prepare them with its texts.tokenizer"),
        ({"places": 9}, "has 9 places, and the longest text needs 14: prepare the texts shorter"),
        ({"types": 2}, "has 2 types of tokens, as BERT has, and this network one: name a RoBERTa"),
    ],
)
def test_a_file_of_other_sizes_is_refused_with_what_to_set(tmp_path, sizes, said):
    path = tmp_path / "model.safetensors"
    save_file(roberta(**sizes), path)

    with pytest.raises(InputError, match=f"^{re.escape(f'{path} {said}')}$"):
        foreign.load(path, MODEL, (), drawn(scorer(MODEL, vocabulary=TOKENS)))


def test_a_network_that_normalises_before_has_no_twin(tmp_path):
    model = Model(name=MODEL.name, norm="pre")
    state = drawn(scorer(model, vocabulary=TOKENS))
    save_file(roberta(), tmp_path / "model.safetensors")

    with pytest.raises(InputError, match=r"RoBERTa has LayerNorm behind each sum: set model\.norm=post$"):
        foreign.load(tmp_path / "model.safetensors", model, (), state)
    with pytest.raises(InputError, match="has no twin in PyTorch"):
        foreign.to_torch(model, (), state)


def test_a_file_that_lacks_a_layer_says_which(tmp_path):
    weights = roberta()
    del weights["encoder.layer.1.output.dense.bias"]
    save_file(weights, tmp_path / "model.safetensors")

    with pytest.raises(InputError, match=r"lacks encoder\.layer\.1\.output\.dense\.bias \(layer_2_feed_forward_out/bias\)$"):
        foreign.load(tmp_path / "model.safetensors", MODEL, (), drawn(scorer(MODEL, vocabulary=TOKENS)))
