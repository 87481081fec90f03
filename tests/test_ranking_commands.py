"""Commands on a run of texts: all that they do for images, or one line that says why not."""

import json
import shutil

import pytest
from helpers import contents, imp_here, refused, settings
from texts import text_set
from tiny import same

from lottery.rundir import store
from lottery.rundir.run import open_run

RECIPE = """
name = "texts"
task = "ranking"
[data]
source = "docstrings"
[texts]
document = 12
candidate = 8
candidates = 3
[model]
name = "transformer_tiny"
[train]
steps = 18
batch = 8
optimizer = "adam"
learning_rate = 1e-3
warmup = "2it"
evaluate = "9it"
snapshots = "0,4it"
checkpoint_steps = 2
checkpoint_share = 1
[pruning]
exclude = []
[retrain]
optimizer_state = "restore"
order = "same"
[families.oneshot]
quantiles = "0,50"
rewind = "4it"
copies = 2
controls = ["reinit", "shuffle"]
controls_at = "50"
"""
OTHERS = """
[families.rounds]
rounds = 2
rewind = "4it"
controls = []
[families.snip]
criterion = "snip"
scored_on = "20"
scored_at = "0"
quantiles = "50"
controls = ["invert"]
controls_at = "50"
[families.rigl]
updates = "rigl"
update_every = "3it"
criterion = "random"
scored_at = "0"
quantiles = "50"
controls = []
"""
NETWORKS = 2 + 2 + 2 + 2 + 2 + 1  # tickets, their copies and controls; of two rounds, of snip and its control, of RigL


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with a recipe and its records."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "data/docstrings-12-3x8").mkdir(parents=True)
    text_set(folder / "data/docstrings-12-3x8")
    (folder / "texts.toml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def done(prepared, tmp_path_factory):
    """The same after `imp run` with families of several kinds."""
    folder = tmp_path_factory.mktemp("done") / "work"
    shutil.copytree(prepared, folder)
    (folder / "texts.toml").write_text(RECIPE + OTHERS)
    assert "The dense network reaches" in imp_here("run", "texts.toml", "--ranks", "1", cwd=folder).stdout
    return folder


@pytest.fixture
def work(done, tmp_path):
    return shutil.copytree(done, tmp_path / "work", symlinks=True)


@pytest.fixture
def replicate(done):
    return open_run(done / "runs/texts").replicate(1)


def results(folder):
    return [path for path in sorted(folder.rglob("result.json")) if path.parent.parent.name != "runs"]


def test_every_network_says_what_it_reached_in_rouge(done):
    found = results(done / "runs/texts")

    assert len(found) == 1 + NETWORKS
    for path in found:
        result = json.loads(path.read_text())
        metrics = {name for name in result["final"] if name.startswith("validation_")}
        assert (result["status"], result["metric"]) == ("done", "rouge1")
        assert {"validation_rouge1", "validation_rouge2", "validation_rougeL", "validation_oracle_rouge1"} < metrics
        assert not [name for name in result["final"] if "accuracy" in name]
    assert not list(done.rglob("predictions.h5"))
    assert "ROUGE-1" in (done / "runs/texts/report/index.html").read_text()


def test_a_ticket_that_keeps_all_is_the_dense_network_bit_for_bit_and_starts_from_its_snapshot(replicate):
    ticket = replicate.folder / "oneshot/q0-step-000004/ticket"

    assert same(store.load_state(ticket / "final.h5"), store.load_state(replicate.snapshot(18)))
    assert "train/snapshots/step-000004.h5" in json.loads((ticket / "result.json").read_text())["made_from"]


@pytest.mark.parametrize(
    ("mask", "network"),
    [
        ("oneshot/masks/q50", "oneshot/q50-step-000004/ticket"),
        ("oneshot/q50-step-000004/shuffle/mask", "oneshot/q50-step-000004/shuffle"),
        ("snip/masks/q50", "snip/q50-step-000000/ticket"),
        ("rounds/masks/round-02-step-000004", "rounds/round-02-step-000004/ticket"),
        ("rigl/q50-step-000000/ticket/mask", "rigl/q50-step-000000/ticket"),
    ],
)
def test_what_is_pruned_is_exactly_zero(replicate, mask, network):
    bits, state = store.load_mask(replicate.folder / f"{mask}.h5"), store.load_state(replicate.folder / network / "final.h5")

    share = sum(kept.sum() for kept in bits.values()) / sum(kept.size for kept in bits.values())
    assert share == pytest.approx(0.64 if "rounds" in mask else 0.5, abs=1e-5)
    assert {"embedding_tokens/kernel", "layer_1_attention_query/kernel", "layer_2_feed_forward_in/kernel"} < bits.keys()
    for path, kept in bits.items():
        slots = [array for name, array in state.optimizer.items() if name.endswith(path)]
        assert len(slots) == 2
        assert not any(array[~kept].any() for array in (state.weights[path], *slots))


READING = [
    ("verify runs/texts", "0 damaged"),
    ("stability", "instability"),
    ("export --ticket q50-step-000004 --to npz", "50.00%"),
    ("run --dry-run", f"0 trainings; {NETWORKS + 1} networks more finished"),
    ("slurm retrain --nodes 2 --time 1:00:00", "sbatch"),
]


@pytest.mark.parametrize(("command", "words"), READING)
def test_a_command_that_reads_a_run(work, command, words):
    ended = imp_here(*command.split(), cwd=work)

    assert words in ended.stdout + ended.stderr
    assert "accuracy" not in ended.stdout


def test_a_ticket_folder_is_written_and_made_a_run_that_trains_the_same_mask(work):
    imp_here("export", "--ticket", "q50-step-000004", "--to", "folder", "--out", "ticket", cwd=work)

    assert "ROUGE-1" in imp_here("tickets", "ticket", cwd=work).stdout
    imp_here("import", "ticket", "--run", "again", cwd=work)
    assert "imported q50 ticket" in imp_here("run", "--run", "again", "--dry-run", cwd=work).stdout


def another(criterion):
    """A family more, on as many examples of each class as are the default."""
    return settings("families.new.quantiles=50", f"families.new.criterion={criterion}")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["export", "--ticket", "dense", "--to", "keras"], "export this one with --to npz"),
        (["bench", "inference", "--quick"], "networks that tell images apart"),
        (["train", *another("snip")], "scored_on = 10 a class is of classes"),
        (["thresholds", *another("synflow")], "synflow sends an image of ones"),
    ],
)
def test_what_is_of_images_is_refused_in_one_line(work, command, words):
    refused(imp_here(*command, cwd=work, check=False), words)


def test_the_same_tickets_are_trained_one_at_a_time_where_bundles_are_asked_for(work, done):
    for network in ("q50-step-000004", "q50-step-000000"):
        shutil.rmtree(work / "runs/texts/replicate-1/oneshot" / network)

    said = imp_here("retrain", "--bundle", "2", cwd=work).stderr

    assert "one at a time, because its layer embedding_tokens has no ticket axis" in said
    assert contents(work / "runs") == contents(done / "runs")
