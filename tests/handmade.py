"""Hand-made runs, for tests of what is read off results: a recipe, and tables (result.json, ...) as the stages write them."""

from fractions import Fraction

from helpers import changed

from data_prep import files
from lottery import recipe
from lottery.grids import parse_quantiles
from lottery.identity import place
from lottery.jobs import Chain, Job, Round
from lottery.lineage import seals
from lottery.run import Run

STEPS = 900  # 20 epochs of 45 steps
ORIGINS = {"records": "0" * 64, "network": "f" * 64}
MAKER = {"imp": "0.1.0", "tensorflow": "2.21.0", "keras": "3.15.1", "device": "CPU"}


def planned(quantiles="60", rewind="1ep", replicates=3, controls=(), control_quantiles="90", rounds=None):
    """A recipe whose grid of tickets is `quantiles` x `rewind`; `rounds` is its table of that
    name, and without it there is no pruning in rounds; with `quantiles` empty there is no other."""
    return recipe.resolve(
        {
            "replicates": replicates,
            "delta": 0.002,
            "pruning": ["oneshot"] * bool(quantiles) + ["rounds"] * bool(rounds),
            "train": {"epochs": 20, "snapshots": "0,10it,1ep,2ep"},
            "thresholds": {"quantiles": quantiles or "60"},
            "retrain": {"rewind": rewind, "controls": list(controls), "control_quantiles": control_quantiles},
            "rounds": {"controls": [], **(rounds or {})},
        }
    )


def write(network, accuracy=None, status="done", first_step=0, early=None, **more):
    """A result.json as the engine writes it; test accuracy is validation accuracy less a point. `early`: the step of least
    validation loss and the test accuracy there."""
    figures = {}
    if accuracy is not None:
        figures = {
            "validation_accuracy": accuracy,
            "validation_loss": 0.5,
            "test_accuracy": accuracy - 0.01,
            "test_loss": 0.6,
            "train_loss": 0.1,
        }
    epochs = (STEPS - first_step) / 45
    origin = {"folder": place(network.folder), "outputs": {}, "made_from": ORIGINS, "made_by": [MAKER]}
    result = {"status": status, "first_step": first_step, "epochs": epochs, "timing": {"seconds": 12.0}, **origin, **more}
    if status == "done":
        step, reached = early or (450, figures["test_accuracy"])
        least = {"step": step, **figures, "test_accuracy": reached}
        result |= {"step": STEPS, "final": figures, "least_validation_loss": least}
    if network.folder.name == "train":
        result = {"steps_per_epoch": 45, **result}
    files.write_json(network.result, result)


def write_table(replicate, path, outputs=(), made_from=(), origins=ORIGINS, **content):
    """A table of `replicate` that stands for the files `outputs`, made from the files `made_from`, as the stages write it."""
    chain = {"outputs": seals(replicate.folder, outputs), "made_from": origins | seals(replicate.folder, made_from)}
    own = {} if path == replicate.thresholds else {"folder": place(path.parent)}
    files.write_json(path, {**own, **content, **chain})


def finished(replicate, step, **more):
    """The result of a dense network that was trained for `step` steps of 45 an epoch; it stands for the snapshots that there
    are, and for the topology."""
    there = [*map(replicate.snapshot, replicate.snapshot_steps()), *replicate.dense.folder.glob("topology.json")]
    found = {"status": "done", "step": step, "steps_per_epoch": 45, "made_by": [MAKER], "timing": {}, **more}
    write_table(replicate, replicate.dense.result, there, **found)


def relist(replicate, path):
    """Let the table that stands for the file at `path` be about the one that is there now."""
    listed = replicate.table_of(path)
    changed(listed, outputs=files.read_json(listed)["outputs"] | seals(replicate.folder, [path]))


def dense(run, *accuracies, **more):
    for number, accuracy in enumerate(accuracies, 1):
        write(run.replicate(number).dense, accuracy, replicate=number, **more)


def three_replicates(tmp_path):
    """A run whose dense networks reach 90, 91 and 92 %; the grid is the quantiles 60 and 90 at 1ep."""
    run = Run(tmp_path / "run", planned("60,90"))
    dense(run, 0.90, 0.91, 0.92)
    return run


def one_chain(tmp_path):
    """A run of one replicate, two rounds of `lr` from 1ep, and nothing one-shot."""
    run = Run(tmp_path / "one", planned("", replicates=1, rounds={"levels": 2, "rewind": "1ep", "methods": ["lr"]}))
    dense(run, 0.90)
    return run


def ticket(run, replicate, quantile, accuracy=None, step=45, variant="ticket", status="done", **more):
    """A one-shot network of `run`, without an effective density, as results were before there was one."""
    job = Job(replicate, parse_quantiles(quantile)[0], step, variant)
    kept = 1 - float(quantile) / 100
    if status == "done":
        more = {"density": {"prunable": kept, "trainable": kept + 0.01, "total": kept + 0.02}, **more}
    write(run.network(job), accuracy, status, step, quantile=float(quantile), variant=variant, replicate=replicate, **more)


def all_replicates(run, quantile, difference, step=45, variant="ticket"):
    """One-shot networks of a run whose dense networks reach 90, 91 and 92 %: `difference` above their own, on the average."""
    for number, accuracy in enumerate(accuracies(difference, variant), 1):
        ticket(run, number, quantile, accuracy, step, variant)


def in_rounds(run, method, level, difference, variant="ticket", step=45):
    """The same in a round."""
    for number, accuracy in enumerate(accuracies(difference, variant), 1):
        in_round(run, number, method, level, accuracy, step, variant)


def accuracies(difference, variant):
    """Of three replicates: `difference` above 90, 91 and 92 %, but for the hair's breadth without which there is no verdict, to
    one side for a ticket and to the other for what is compared with it."""
    spread = 3e-9 if variant == "ticket" else -3e-9
    return [0.90 + difference - spread, 0.91 + difference, 0.92 + difference + spread]


def in_round(run, replicate, method, level, accuracy=None, step=45, variant="ticket", status="done", **more):
    """A network of a round; every round keeps half of what the one before left."""
    job = Round(Chain(replicate, method, step), level, variant)
    kept = 1.0 if variant == "extended" else float(Fraction(1, 2**level))
    if status == "done":
        density = dict.fromkeys(("prunable", "trainable", "total"), kept)
        more = {"density": {**density, "effective": kept * 0.9}, "collapsed": [], "disconnected": False, **more}
    place = {"quantile": None, "method": method, "level": level, "rewind_step": step}
    write(run.network(job), accuracy, status, job.step, variant=variant, replicate=replicate, **place, **more)
