"""Hand-made runs, for tests of what reads results: a recipe, and records (result.json, ...) as the stages write them."""

from fractions import Fraction

import numpy as np

from lottery.experiment import reading
from lottery.experiment.graph import Mask, Snapshot, Ticket
from lottery.experiment.grids import Quantile, Round
from lottery.pruning.connectivity import Node, Topology
from lottery.pruning.costs import Costs
from lottery.pruning.densities import Density, Kept, Layer
from lottery.rundir import records, store
from lottery.rundir.lineage import seals
from lottery.rundir.records import Figures, MaskRecord, Result, Scores, Timing
from lottery.rundir.run import Run

STEPS = 900  # 20 epochs of 45 steps
ORIGINS = {"records": "0" * 64, "network": "f" * 64}
MAKER = {"imp": "0.1.0", "tensorflow": "2.21.0", "keras": "3.15.1", "device": "CPU"}


# Of 54, 27 and 15 weights.
TOPOLOGY = Topology(
    (
        Node("images", "input", 2),
        Node("a", "linear", 3, ("images",), kernels={"a/kernel": (3, 3, 2, 3)}, positions=16),
        Node("dw", "linear", 3, ("a",), kernels={"dw/kernel": (3, 3, 3, 1)}, groups=3, positions=4),
        Node("b", "linear", 5, ("dw",), kernels={"b/kernel": (3, 5)}, positions=1),
    ),
    ("b",),
)


def planned(quantiles="60", rewind="1ep", replicates=3, controls=(), controls_at="90", rounds=None, **more):
    """A recipe of the family `oneshot`, whose grid of tickets is `quantiles` x `rewind` (none where that is empty), of a family
    for each method of `rounds`, called like it, with that table, and of the families `more`."""
    one_shot = {"quantiles": quantiles, "rewind": rewind, "controls": list(controls), "controls_at": controls_at}
    families = {"oneshot": one_shot} if quantiles else {}
    table = {"controls": [], **(rounds or {})}
    for method in table.pop("methods", ["weights"]) if rounds else ():
        families[method] = {"rounds": 1, "rewind": "1ep", "method": method, **table}
    return reading.resolve(
        {
            "replicates": replicates,
            "delta": 0.002,
            "train": {"epochs": 20, "snapshots": "0,10it,1ep,2ep"},
            "families": {**families, **more},
        }
    )


COSTS = Costs(dense_macs=100, macs=50, float32_bytes=400, gzip_bytes=200)


def figures(reached, step=STEPS, metric="accuracy"):
    """Test examples are a point below validation examples. Where ROUGE-1 decides, there are the other metrics of ranking."""
    losses = {"train_loss": 0.1, "validation_loss": 0.5, "test_loss": 0.6}
    metrics = {metric: reached}
    if metric == "rouge1":
        metrics |= {"rouge2": reached / 2, "rougeL": reached - 0.05}
        metrics |= {"first_rouge1": 0.42, "random_rouge1": 0.40, "oracle_rouge1": 0.60}
    named = {f"validation_{name}": value for name, value in metrics.items()}
    named |= {f"test_{name}": value - 0.01 for name, value in metrics.items()}
    return Figures(step=step, **losses, **named)


def kept(share, effective=None, collapsed=(), disconnected=False):
    """What a mask keeps that keeps this share of the weights, and nothing of the variables `collapsed`."""
    layers = {path: Layer(1000, 0 if path in collapsed else 500) for path in ("fc1/kernel", "fc2/kernel")}
    return Kept(Density(share, share + 0.01, share + 0.02, effective), layers, disconnected)


def write(network, reached=None, status="done", first_step=0, early=None, origins=ORIGINS, metric="accuracy", **more):
    """A result.json as the engine writes it; it reached so much of `metric`. `early`: the step of least validation loss and the
    test metric there."""
    more = {"replicate": 1, "epochs": (STEPS - first_step) / 45, "made_by": [MAKER], "timing": Timing(seconds=12.0), **more}
    result = Result(status=status, first_step=first_step, steps_per_epoch=45, made_from=origins, metric=metric, **more)
    if status == "done" and reached is not None:
        final = figures(reached, metric=metric)
        step, there = early or (450, final.metric("test", metric))
        least = Figures(**final.model_dump() | {"step": step, f"test_{metric}": there})
        result = result.model_copy(update={"step": STEPS, "final": final, "least_validation_loss": least})
    records.write(network.result, result)


def write_result(replicate, network, outputs=(), made_from=(), origins=ORIGINS, **more):
    """A result of `replicate` that stands for the files `outputs`, made from the files `made_from`."""
    chained = {"outputs": seals(replicate.folder, outputs), "made_from": origins | seals(replicate.folder, made_from)}
    known = {
        "status": "done",
        "costs": COSTS,
        "replicate": _number(replicate),
        "steps_per_epoch": 45,
        "epochs": 20.0,
        "made_by": [MAKER],
    }
    records.write(network.result, Result(**{**known, **chained, **more}))


def write_mask(replicate, family, label, mask, rewind_step=None, rate=None, made_from=(), origins=(), **more):
    """A mask as a stage cuts it, with its record; `label` is `q90` or `round-03`."""
    number = float(label.removeprefix("q").removeprefix("round-"))
    rounds = label.startswith("round")
    graph_mask = Mask(_number(replicate), family, label, rewind_step, 0, Fraction(0), Snapshot(_number(replicate), 0), None)
    files = replicate.mask(graph_mask)
    store.save_mask(files.mask, mask, {})
    size, left = sum(bits.size for bits in mask.values()), sum(int(np.count_nonzero(bits)) for bits in mask.values())
    layers = {path: Layer(bits.size, int(np.count_nonzero(bits))) for path, bits in mask.items()}
    share = left / max(size, 1)
    found = {
        "outputs": seals(replicate.folder, [files.mask]),
        "made_from": dict(origins) | seals(replicate.folder, made_from),
        "replicate": _number(replicate),
        "family": family,
        "mask": label,
        "round": int(number) if rounds else 1,
        "rewind_step": rewind_step,
        "rate": rate if rate is not None else 20.0 if rounds else number,
        "step": STEPS,
        "scores": Scores(count=size, min=0.0, max=1.0, mean=0.5),
        "threshold": 0.01,
        "pruned": size - left,
        "remaining": left,
        "layers": {},
        "kept": Kept(Density(share, share, share, None), layers, more.pop("disconnected", None)),
        "costs": COSTS,
    }
    records.write(files.table, MaskRecord(**{**found, **more}))
    return files


def _number(replicate):
    return int(replicate.folder.name.removeprefix("replicate-"))


def finished(replicate, step, **more):
    """The result of a dense network that was trained for `step` steps of 45 an epoch; it stands for the snapshots that there
    are, and for the topology."""
    there = [*map(replicate.snapshot, replicate.snapshot_steps()), *replicate.dense.folder.glob("topology.json")]
    write_result(replicate, replicate.dense, there, **{"step": step, "final": figures(0.9, step), **more})


def relist(replicate, path):
    """Let the record that stands for the file at `path` be about the one that is there now."""
    table = replicate.table_of(path)
    kind = MaskRecord if table.parent.name == "masks" else Result
    amend(table, outputs=records.read(table, kind).outputs | seals(replicate.folder, [path]))


def amend(table, **values):
    """Put other values into a record."""
    kind = MaskRecord if table.parent.name == "masks" else Result
    records.write(table, kind.model_validate({**dict(records.read(table, kind)), **values}))


def dense(run, *accuracies, **more):
    for number, accuracy in enumerate(accuracies, 1):
        write(run.replicate(number).dense, accuracy, replicate=number, **more)


def three(folder, *grid, **more):
    """A run of three replicates in `folder`, with `planned` as told, whose dense networks reach 90, 91 and 92 %."""
    run = Run(folder, planned(*grid, **more))
    dense(run, 0.90, 0.91, 0.92)
    return run


def three_replicates(tmp_path):
    """The quantiles 60 and 90 at 1ep."""
    return three(tmp_path / "run", "60,90")


def ranking(tmp_path):
    """A run of three replicates whose dense networks reach 46, 47 and 48 % of ROUGE-1; the ticket of the quantile 60 at 1ep
    matches, that of 90 does not, and its control `reinit` neither."""
    run = Run(tmp_path / "ranking", planned("60,90", controls=["reinit"]))
    dense(run, 0.46, 0.47, 0.48, metric="rouge1", validation_images=200)
    for number in (1, 2, 3):
        for quantile, above, variant, step in (
            ("60", 0.002, "ticket", 45),
            ("90", -0.03, "ticket", 45),
            ("90", -0.05, "reinit", 0),
        ):
            ticket(run, number, quantile, 0.45 + number * (0.01 + 1e-4) + above, step, variant, metric="rouge1", costs=COSTS)
    return run


def one_mask(tmp_path):
    """The quantile 60 at 1ep."""
    return three(tmp_path / "run")


CHAINS = {"rewind": "1ep", "rounds": 2, "methods": ["weights", "lr"]}


def two_chains(tmp_path):
    """Two rounds of `weights` and of `lr` from 1ep, and nothing one-shot."""
    return three(tmp_path / "pruned", "", rounds=CHAINS)


def one_chain(tmp_path):
    """A run of one replicate, two rounds of `lr` from 1ep, and nothing one-shot."""
    run = Run(tmp_path / "one", planned("", replicates=1, rounds={"rounds": 2, "rewind": "1ep", "methods": ["lr"]}))
    dense(run, 0.90)
    return run


def place_of(run, replicate, family, label, rewind, variant, chain=None):
    """The files of a network."""
    mask = Mask(replicate, family, label, chain, 0, Fraction(0), Snapshot(replicate, STEPS), None)
    return run.network(Ticket(mask, rewind, variant, 0, None))


def ticket(run, replicate, quantile, accuracy=None, step=45, variant="ticket", status="done", family="oneshot", **more):
    """A network of one shot in a run."""
    label = Quantile(quantile).label
    share = 1.0 if variant == "extended" else 1 - float(quantile) / 100
    _write(run, replicate, family, label, 1, accuracy, step, variant, status, share, None, **more)


def in_round(run, replicate, family, number, accuracy=None, step=45, variant="ticket", status="done", **more):
    """A network of a round; every round keeps half of what the one before left."""
    share = 1.0 if variant == "extended" else 0.5**number
    _write(run, replicate, family, Round(number).label, number, accuracy, step, variant, status, share, share * 0.9, **more)


def _write(
    run,
    replicate,
    family,
    label,
    round_,
    accuracy,
    step,
    variant,
    status,
    share,
    effective,
    collapsed=(),
    disconnected=False,
    **more,
):
    chain = step if label.startswith("round") else None
    table = run.recipe.families[family]
    if status == "done":
        more = {"kept": kept(share, effective, collapsed, disconnected), **more}
    fresh = variant in table.fresh_controls
    known = {"family": family, "method": table.method, "mask": label, "round": round_, "rewind_step": step}
    network = place_of(run, replicate, family, label, step, variant, chain)
    write(network, accuracy, status, 0 if fresh else step, replicate=replicate, variant=variant, **known, **more)


def all_replicates(run, quantile, difference, step=45, variant="ticket", family="oneshot", **more):
    """One-shot networks of a run whose dense networks reach 90, 91 and 92 %: `difference` above their own, on the average."""
    for number, accuracy in enumerate(accuracies(difference, variant), 1):
        ticket(run, number, quantile, accuracy, step, variant, family=family, **more)


def in_rounds(run, family, number, difference, variant="ticket", step=45):
    """The same in a round."""
    for replicate, accuracy in enumerate(accuracies(difference, variant), 1):
        in_round(run, replicate, family, number, accuracy, step, variant)


def accuracies(difference, variant):
    """Of three replicates: `difference` above 90, 91 and 92 %, but for the hair's breadth without which there is no verdict, to
    one side for a ticket and to the other for what is compared with it."""
    spread = 3e-9 if variant == "ticket" else -3e-9
    return [0.90 + difference - spread, 0.91 + difference, 0.92 + difference + spread]
