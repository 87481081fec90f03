"""The methods of rounds: what each starts from and at which rates, and what it is held against."""

import dataclasses
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import contents, imp, refused

from data_prep.errors import InputError
from lottery import cuts, recipe, schedules, seeds, store
from lottery.jobs import Chain, Round
from lottery.plan import Plan
from lottery.progress import Reporter
from lottery.results import listing
from lottery.run import Run, open_run
from lottery.stages import rounds

LAST, EPOCH = 51, 17  # steps of LENET's training and of its epochs
METHODS = {
    "levels": 2,
    "methods": ["weights", "init", "lr", "finetune"],
    "rewind": "0,1ep",
    "controls": ["reinit"],
    "control_levels": "1,2",
}
QUIET = Reporter(quiet=True)


def ticket(method, step, level, variant="ticket"):
    return Round(Chain(1, method, step), level, variant)


def with_rounds(folder, slots="fresh", order="fresh", **settings):
    """The run in `folder` with other values in its recipe's table `rounds`, and for `retrain.slots` and `retrain.order`."""
    found = open_run(folder / "runs/digits")
    table = {**found.recipe.rounds.model_dump(), **settings}
    return Run(
        found.folder,
        recipe.resolve({**found.recipe.model_dump(), "rounds": table}, [f"retrain.slots={slots}", f"retrain.order={order}"]),
    )


@pytest.fixture(scope="module")
def methods(tensorflow, trained, tmp_path_factory):
    """Two rounds of all four methods, as `noted` says."""
    folder = shutil.copytree(trained, tmp_path_factory.mktemp("methods") / "work", symlinks=True)
    return noted(folder, **METHODS)


@pytest.fixture(scope="module")
def restoring(tensorflow, trained, tmp_path_factory):
    """Two rounds of the methods that train on, with restored slots, as `noted` says."""
    folder = shutil.copytree(trained, tmp_path_factory.mktemp("restoring") / "work", symlinks=True)
    settings = {**METHODS, "methods": ["lr", "finetune"], "rewind": "1ep", "controls": []}
    return noted(folder, slots="restore", **settings)


@pytest.fixture(scope="module")
def controlled(tensorflow, trained, tmp_path_factory):
    """A round of `weights` from the first epoch with `shuffle` and `random`, as `noted` says."""
    folder = shutil.copytree(trained, tmp_path_factory.mktemp("controlled") / "work", symlinks=True)
    controls = {"controls": ["shuffle", "random"], "control_levels": "1"}
    return noted(folder, **{**METHODS, "levels": 1, "methods": ["weights"], "rewind": "1ep", **controls})


@pytest.fixture(scope="module")
def each_in_its_order(tensorflow, trained, tmp_path_factory):
    """Two rounds of `weights` and `reinit`, each round with an order of images of its own, as `noted` says."""
    folder = shutil.copytree(trained, tmp_path_factory.mktemp("each") / "work", symlinks=True)
    settings = {**METHODS, "methods": ["weights"], "rewind": "0", "controls": ["reinit"]}
    return noted(folder, order="each", **settings)


def noted(folder, **settings):
    """Rounds in this process: the run, and by title what each network was begun with (`state`, `mask`, `order_seed`) and the
    learning rates that reached its step (`rates`)."""
    from lottery.engine import assembly, loop, training

    begun = {}
    tasks = []
    train, load = training.train, loop.Trainer.load

    def train_and_note(trainer, task, *others):
        tasks.append(task)
        return train(trainer, task, *others)

    def load_and_note(trainer, state, mask=None):
        task = tasks[-1]
        noted = begun[task.title] = SimpleNamespace(state=state, mask=mask, order_seed=task.order_seed, rates=[])
        if not isinstance(trainer._step, Noting):
            trainer._step = Noting(trainer._step)
        trainer._step.rates = noted.rates
        return load(trainer, state, mask)

    class Noting:
        """A step that notes its rates."""

        def __init__(self, step):
            self.step = step

        def __getattr__(self, name):
            return getattr(self.step, name)

        def steps(self, rows, draws, rates):
            self.rates += np.asarray(rates).tolist()
            return self.step.steps(rows, draws, rates)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IMP_DATA", str(folder / "data"))
        patch.chdir(folder)
        patch.setattr(assembly, "set_up_tensorflow", lambda train, cores=None: ["CPU:0"])  # the fixture has done so
        patch.setattr(training, "train", train_and_note)
        patch.setattr(loop.Trainer, "load", load_and_note)
        run = with_rounds(folder, **settings)
        summary = rounds.rounds(run, QUIET)
        assert summary.unfinished == []
    return SimpleNamespace(run=run, begun=begun, replicate=run.replicate(1), folder=folder)


STARTS = [("weights", 0), ("weights", EPOCH), ("init", 0), ("lr", 0), ("lr", EPOCH), ("finetune", 0), ("finetune", EPOCH)]


def began(methods, job):
    return methods.begun[str(job)]


def is_from(state, path):
    """Whether the weights and statistics of `state` are those in the file."""
    saved = store.load_state(path)
    return all(
        mine.keys() == theirs.keys() and all(np.array_equal(mine[name], theirs[name]) for name in theirs)
        for mine, theirs in ((state.weights, saved.weights), (state.statistics, saved.statistics))
    )


def test_every_network_of_the_four_methods_was_begun_once(methods):
    expected = {str(ticket(method, step, level)) for method, step in STARTS for level in (1, 2)}
    expected |= {str(ticket(method, step, level, "reinit")) for method, step in STARTS for level in (1, 2)}
    expected |= {str(ticket(*start, level, "extended")) for start in STARTS[3:] for level in (1, 2)}

    assert methods.begun.keys() == expected


def test_the_first_mask_is_the_same_for_all_methods_and_rewind_points(methods):
    first = {methods.replicate.level(Chain(1, method, step), 1).mask.read_bytes() for method, step in STARTS}
    second = {methods.replicate.level(Chain(1, method, step), 2).mask.read_bytes() for method, step in STARTS}

    assert len(first) == 1
    assert len(second) == len(STARTS) - 1  # `init` is `weights` from 0


@pytest.mark.parametrize(("method", "step"), STARTS[:3])
@pytest.mark.parametrize("level", [1, 2])
def test_weights_and_init_start_every_round_from_the_snapshot(methods, method, step, level):
    state = began(methods, ticket(method, step, level)).state

    assert is_from(state, methods.replicate.snapshot(step))
    assert (state.step, state.slots) == (step, {})


@pytest.mark.parametrize(("method", "step"), STARTS[3:])
@pytest.mark.parametrize("variant", ["ticket", "extended"])
def test_lr_and_finetune_start_from_where_the_round_before_ended(methods, method, step, variant):
    first = began(methods, ticket(method, step, 1, variant)).state
    second = began(methods, ticket(method, step, 2, variant)).state

    assert is_from(first, methods.replicate.snapshot(LAST))
    assert is_from(second, methods.replicate.network(ticket(method, step, 1, variant)).final)
    assert (first.step, first.slots) == (second.step, second.slots) == (step, {})


@pytest.mark.parametrize("method", ["lr", "finetune"])
@pytest.mark.parametrize("variant", ["ticket", "extended"])
def test_restored_slots_come_from_the_same_place_as_the_weights(restoring, method, variant):
    first = began(restoring, ticket(method, EPOCH, 1, variant)).state
    second = began(restoring, ticket(method, EPOCH, 2, variant)).state

    for state, path in (
        (first, restoring.replicate.snapshot(LAST)),
        (second, restoring.replicate.network(ticket(method, EPOCH, 1, variant)).final),
    ):
        assert is_from(state, path)
        saved = store.load_state(path).slots
        assert state.step == EPOCH
        assert state.slots.keys() == saved.keys() != set()
        assert all(np.array_equal(state.slots[name], saved[name]) for name in saved)


def test_restored_slots_of_pruned_weights_are_zero_to_the_end(restoring):
    for method in ("lr", "finetune"):
        job = ticket(method, EPOCH, 2)
        slots = store.load_state(restoring.replicate.network(job).final).slots
        for path, kept in began(restoring, job).mask.items():
            assert not slots[f"momentum/{path}"][~kept].any()
            assert slots[f"momentum/{path}"][kept].any()


def test_all_networks_of_a_replicate_see_the_images_in_one_order_which_is_not_the_dense_one_s(methods):
    (seed,) = {noted.order_seed for noted in methods.begun.values()}

    assert seed != seeds.derive(methods.run.recipe.seed, 1, "order")


def test_each_round_has_an_order_of_images_of_its_own_where_the_recipe_says_so(each_in_its_order):
    orders = [
        {began(each_in_its_order, ticket("weights", 0, level, variant)).order_seed for variant in ("ticket", "reinit")}
        for level in (1, 2)
    ]

    assert [len(order) for order in orders] == [1, 1]  # a ticket and its control are paired in it
    assert len({*orders[0], *orders[1], seeds.derive(each_in_its_order.run.recipe.seed, 1, "order")}) == 3


@pytest.mark.parametrize(("method", "step"), STARTS)
def test_rates_are_the_schedule_s_from_the_rewind_point_and_finetune_s_is_the_last_one(methods, method, step):
    schedule = schedules.rates(methods.run.recipe.train, EPOCH, 0, LAST)
    expected = np.full(LAST - step, schedule[-1]) if method == "finetune" else schedule[step:]

    variants = ["ticket", "extended"] if method in ("lr", "finetune") else ["ticket"]
    for variant in variants:
        for level in (1, 2):
            found = began(methods, ticket(method, step, level, variant)).rates
            np.testing.assert_array_equal(np.float32(found), expected)
    assert schedule[-1] != schedule[step]


@pytest.mark.parametrize(("method", "step"), STARTS)
def test_reinit_has_the_mask_of_its_ticket_fresh_weights_and_the_whole_schedule(methods, method, step):
    noted = began(methods, ticket(method, step, 2, "reinit"))
    own = began(methods, ticket(method, step, 2))

    assert (noted.state.step, noted.state.slots) == (0, {})
    dense = store.load_state(methods.replicate.snapshot(0))
    assert not np.array_equal(noted.state.weights["fc1/kernel"], dense.weights["fc1/kernel"])
    np.testing.assert_array_equal(np.float32(noted.rates), schedules.rates(methods.run.recipe.train, EPOCH, 0, LAST))
    assert all(np.array_equal(noted.mask[path], own.mask[path]) for path in own.mask)


@pytest.mark.parametrize("variant", ["shuffle", "random"])
def test_shuffle_and_random_keep_as_many_weights_of_each_layer_in_other_places(controlled, variant):
    own, control = (began(controlled, ticket("weights", EPOCH, 1, which)) for which in ("ticket", variant))

    assert control.mask.keys() == own.mask.keys() != set()
    final = store.load_state(controlled.replicate.network(ticket("weights", EPOCH, 1, variant)).final)
    for path, kept in own.mask.items():
        assert control.mask[path].sum() == kept.sum()
        assert 0.5 < (control.mask[path] & kept).sum() / kept.sum() < 0.95  # 0.8 of 0.8 by chance
        assert not final.weights[path][~control.mask[path]].any()
        assert final.weights[path][control.mask[path]].any()


def test_shuffle_is_rewound_and_random_begins_afresh(controlled):
    shuffle, random = (began(controlled, ticket("weights", EPOCH, 1, which)) for which in ("shuffle", "random"))

    assert is_from(shuffle.state, controlled.replicate.snapshot(EPOCH))
    assert (shuffle.state.step, len(shuffle.rates)) == (EPOCH, LAST - EPOCH)
    assert (random.state.step, random.state.slots, len(random.rates)) == (0, {}, LAST)
    for step in (0, EPOCH):
        dense = store.load_state(controlled.replicate.snapshot(step))
        assert not np.array_equal(random.state.weights["fc1/kernel"], dense.weights["fc1/kernel"])
    assert any((shuffle.mask[path] != random.mask[path]).any() for path in random.mask)


def test_fresh_weights_are_the_same_for_a_round_of_any_method_and_others_in_another_round(methods):
    first, second = (
        {began(methods, ticket(*start, level, "reinit")).state.weights["fc1/kernel"].tobytes() for start in STARTS}
        for level in (1, 2)
    )

    assert len(first) == len(second) == 1
    assert first != second


def test_init_is_weights_rewound_to_0(methods):
    chains = [methods.replicate.level(Chain(1, method, 0), 1).folder.parent for method in ("init", "weights")]
    one, other = (contents(chain) for chain in chains)

    assert one.keys() == other.keys()
    for name, content in one.items():
        if name.endswith(".h5"):
            assert content == other[name], name


@pytest.mark.parametrize("method", ["lr", "finetune"])
@pytest.mark.parametrize("step", [0, EPOCH])
def test_extended_is_dense_and_costs_what_its_ticket_does(methods, method, step):
    for level in (1, 2):
        extended, own = (methods.replicate.network(ticket(method, step, level, which)) for which in ("extended", "ticket"))
        result = extended.read_result()
        assert result["epochs"] == own.read_result()["epochs"] == (LAST - step) / EPOCH
        assert set(result["density"].values()) == {1.0}
        assert (result["collapsed"], result["disconnected"]) == ([], False)
        assert store.load_state(extended.final).weights["fc1/kernel"].all()
        assert began(methods, ticket(method, step, level, "extended")).mask == {}


def test_tickets_of_lr_are_held_against_the_network_trained_as_long(methods):
    rows = listing.rows(methods.run)

    held = {(row["method"], row["variant"]): row["against"] for row in rows if row["level"] == 2}
    assert held == {
        ("weights", "ticket"): "dense",
        ("weights", "reinit"): "dense",
        ("init", "ticket"): "dense",
        ("init", "reinit"): "dense",
        **{(method, variant): "extended" for method in ("lr", "finetune") for variant in ("ticket", "reinit")},
        **{(method, "extended"): "dense" for method in ("lr", "finetune")},
    }


def test_a_round_that_is_cut_again_is_only_read(methods):
    there = methods.replicate.level(Chain(1, "lr", 0), 2)
    before = there.mask.stat().st_mtime_ns

    found = cuts.cut(methods.run, Chain(1, "lr", 0), 2, LAST)

    assert there.mask.stat().st_mtime_ns == before
    assert sum(int(kept.sum()) for kept in found.values()) == 56064


def scheduled(work, **train):
    """The run in `work` with finetune, and another schedule in its recipe than the dense network had."""
    run = with_rounds(work, methods=["finetune"], controls=[], **train.pop("rounds", {}))
    table = run.recipe.model_dump()
    return dataclasses.replace(run, recipe=recipe.resolve({**table, "train": {**table["train"], **train}}))


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_finetune_at_a_last_rate_of_next_to_none_is_refused_with_the_way_out(work, monkeypatch, schedule):
    monkeypatch.setenv("IMP_DATA", str(work / "data"))
    long = {"schedule": schedule, "warmup": "0", "epochs": 100}
    run = scheduled(work, **long)
    planned = Plan(run.recipe, EPOCH)
    shutil.copy(run.replicate(1).snapshot(LAST), run.replicate(1).snapshot(planned.total_steps))

    with pytest.raises(InputError, match=rf"finetune .*train\.schedule = '{schedule}' .*set rounds\.finetune_rate"):
        rounds.checked_rounds(run, planned)
    with_a_rate = scheduled(work, **long, rounds={"finetune_rate": 0.001})
    assert Plan(with_a_rate.recipe, EPOCH).finetune_rate == 0.001
    found = rounds.checked_rounds(with_a_rate, Plan(with_a_rate.recipe, EPOCH), 3)
    assert [(job.level, job.variant) for job in found] == [
        (level, one) for level in (1, 2, 3) for one in ("ticket", "extended")
    ]


def test_as_typed_finetune_after_a_cosine_schedule_is_one_line(work):
    for path in work.rglob("made_with.json"):
        path.unlink()  # so that the dense network may as well have been trained so
    cosine = ["train.schedule=cosine", "train.warmup=0", "rounds.methods=['finetune']"]

    refused(
        imp("rounds", *(part for value in cosine for part in ("--set", value)), cwd=work, check=False),
        "finetune trains at the schedule's last rate",
        "train.schedule = 'cosine'",
        "set rounds.finetune_rate",
    )


def test_finetune_s_rate_is_the_last_one_of_the_schedule_unless_the_recipe_says_otherwise(work):
    steps = scheduled(work, schedule="step", milestones="1ep,2ep", warmup="0")

    assert Plan(steps.recipe, EPOCH).finetune_rate == pytest.approx(0.05 * 0.01)
    assert Plan(scheduled(work, rounds={"finetune_rate": 0.02}).recipe, EPOCH).finetune_rate == 0.02
