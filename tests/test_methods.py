"""The methods of families: what each starts from and at which rates, and what it is held against."""

import dataclasses
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from lottery.base.errors import InputError
from lottery.base.progress import Reporter
from lottery.experiment import reading, schedules, seeds
from lottery.experiment.plan import Plan
from lottery.rundir import store
from lottery.rundir.names import MaskFiles, NetworkFiles
from lottery.rundir.run import EVERYTHING, Run, open_run
from lottery.stages.retrain import checked_tickets, retrain

LAST, EPOCH = 51, 17  # steps of LENET's training and of its epochs
TWO = {"rounds": 2, "rewind": "0,1ep", "controls": ["reinit"], "controls_at": "1,2"}
METHODS = {
    "weights": {**TWO, "method": "weights"},
    "lr": {**TWO, "method": "lr", "rewind": "1ep"},
    "finetune": {**TWO, "method": "finetune", "rewind": "0"},
}
LINEAR = {
    "llr": {"rounds": 2, "method": "llr", "length": 0.5, "controls": ["reinit"], "controls_at": "2"},
    "allr": {"rounds": 2, "method": "allr", "length": 0.25, "rate": 50.0, "controls": []},
    "early": {"rounds": 2, "method": "allr", "length": 0.9, "rate": 50.0, "controls": [], "scored_at": "1ep"},
}
LINEAR_STEPS = {"llr": 26, "allr": 13, "early": 46}  # of 51: 25.5, 12.75, 45.9
QUIET = Reporter(quiet=True)


def with_families(folder, families, **values):
    """The run in `folder` with other families in its recipe, and other values of its table `retrain`."""
    run = open_run(folder / "runs/digits")
    table = run.recipe.model_dump()
    return Run(run.folder, reading.resolve({**table, "families": families, "retrain": {**table["retrain"], **values}}))


@pytest.fixture(scope="module")
def methods(tensorflow, trained, tmp_path_factory):
    """Two rounds of all three methods, as `noted` says."""
    return noted(copied(trained, tmp_path_factory), METHODS)


@pytest.fixture(scope="module")
def restoring(tensorflow, trained, tmp_path_factory):
    """Two rounds of `lr`, with its optimizer state restored, and of `weights` with `reinit`; each round with an order of images
    of its own, as `noted` says."""
    families = {"lr": {**TWO, "method": "lr", "rewind": "1ep", "controls": []}, "weights": {**TWO, "rewind": "0"}}
    return noted(copied(trained, tmp_path_factory), families, optimizer_state="restore", order="each")


@pytest.fixture(scope="module")
def linear(tensorflow, trained, tmp_path_factory):
    """Two rounds of linear retraining, from the end of the dense training (`llr`, `allr`) and from its first epoch (`early`),
    as `noted` says."""
    return noted(copied(trained, tmp_path_factory), LINEAR)


def copied(trained, tmp_path_factory):
    return shutil.copytree(trained, tmp_path_factory.mktemp("methods") / "work", symlinks=True)


def noted(folder, families, **settings):
    """Families in this process: the run, and by title what each network was begun with (`state`, `mask`, `order_seed`) and the
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
        run = with_families(folder, families, **settings)
        assert retrain(run, QUIET, EVERYTHING) == {}
    return SimpleNamespace(run=run, begun=begun, replicate=run.replicate(1), folder=folder)


STARTS = [("weights", 0), ("weights", EPOCH), ("lr", EPOCH), ("finetune", 0)]


def label(number, step):
    return f"round-{number:02d}-step-{step:06d}"


def began(methods, method, step, number, variant="ticket"):
    return methods.begun[f"replicate-1 {method} {label(number, step)} {variant}"]


def network(methods, method, step, number, variant="ticket"):
    return NetworkFiles(methods.replicate.folder / method / label(number, step) / variant)


def mask(methods, method, step, number):
    return MaskFiles(methods.replicate.mask_folder(method), label(number, step)).mask


def is_from(state, path):
    """Whether the weights and statistics of `state` are those in the file."""
    saved = store.load_state(path)
    return all(
        mine.keys() == theirs.keys() and all(np.array_equal(mine[name], theirs[name]) for name in theirs)
        for mine, theirs in ((state.weights, saved.weights), (state.statistics, saved.statistics))
    )


@pytest.mark.parametrize(("method", "step", "number"), [("weights", 0, 2), ("weights", EPOCH, 1), ("weights", EPOCH, 2)])
def test_weights_start_every_round_from_the_snapshot(methods, method, step, number):
    state = began(methods, method, step, number).state

    assert is_from(state, methods.replicate.snapshot(step))
    assert (state.step, state.optimizer) == (step, {})


@pytest.mark.parametrize(("method", "step"), STARTS[2:])
@pytest.mark.parametrize("variant", ["ticket", "extended"])
def test_lr_and_finetune_start_from_where_the_round_before_ended(methods, method, step, variant):
    first, second = (began(methods, method, step, number, variant).state for number in (1, 2))

    assert is_from(first, methods.replicate.snapshot(LAST))
    assert is_from(second, network(methods, method, step, 1, variant).final)
    assert (first.step, first.optimizer) == (second.step, second.optimizer) == (step, {})


@pytest.mark.parametrize("variant", ["ticket", "extended"])
def test_restored_optimizer_state_comes_from_the_same_place_as_the_weights(restoring, variant):
    first, second = (began(restoring, "lr", EPOCH, number, variant).state for number in (1, 2))

    for state, path in (
        (first, restoring.replicate.snapshot(LAST)),
        (second, network(restoring, "lr", EPOCH, 1, variant).final),
    ):
        assert is_from(state, path)
        saved = store.load_state(path).optimizer
        assert state.step == EPOCH
        assert state.optimizer.keys() == saved.keys() != set()
        assert all(np.array_equal(state.optimizer[name], saved[name]) for name in saved)


def test_all_networks_of_a_replicate_see_the_images_in_one_order_which_is_not_the_dense_one_s(methods):
    (seed,) = {noted.order_seed for noted in methods.begun.values()}

    assert seed != seeds.derive(methods.run.recipe.seed, 1, "order")


def test_each_round_has_an_order_of_images_of_its_own_where_the_recipe_says_so(restoring):
    orders = [
        {began(restoring, "weights", 0, number, variant).order_seed for variant in ("ticket", "reinit")} for number in (1, 2)
    ]

    assert [len(order) for order in orders] == [1, 1]  # a ticket and its control are paired in it
    assert len({*orders[0], *orders[1], seeds.derive(restoring.run.recipe.seed, 1, "order")}) == 3


@pytest.mark.parametrize(("method", "step"), STARTS)
def test_rates_are_the_schedule_s_from_the_rewind_point_and_finetune_s_is_the_last_one(methods, method, step):
    schedule = schedules.rates(methods.run.recipe.train, EPOCH, 0, LAST)
    expected = np.full(LAST - step, schedule[-1]) if method == "finetune" else schedule[step:]

    for variant in ["ticket", "extended"] if method in ("lr", "finetune") else ["ticket"]:
        for number in (1, 2):
            found = began(methods, method, step, number, variant).rates
            np.testing.assert_array_equal(np.float32(found), expected)
    assert schedule[-1] != schedule[step]


@pytest.mark.parametrize(("method", "step"), STARTS)
def test_reinit_has_the_mask_of_its_ticket_fresh_weights_and_the_whole_schedule(methods, method, step):
    noted, own = (began(methods, method, step, 2, variant) for variant in ("reinit", "ticket"))

    assert (noted.state.step, noted.state.optimizer) == (0, {})
    dense = store.load_state(methods.replicate.snapshot(0))
    assert not np.array_equal(noted.state.weights["fc1/kernel"], dense.weights["fc1/kernel"])
    np.testing.assert_array_equal(np.float32(noted.rates), schedules.rates(methods.run.recipe.train, EPOCH, 0, LAST))
    assert all(np.array_equal(noted.mask[path], own.mask[path]) for path in own.mask)
    assert not network(methods, method, step, 2, "reinit").mask.exists()  # the shared one


def test_fresh_weights_are_the_same_for_a_round_of_any_family_and_others_in_another_round(methods):
    first, second = (
        {began(methods, *start, number, "reinit").state.weights["fc1/kernel"].tobytes() for start in STARTS}
        for number in (1, 2)
    )

    assert len(first) == len(second) == 1
    assert first != second


@pytest.mark.parametrize(("method", "step"), STARTS[2:])
def test_extended_is_dense_and_costs_what_its_ticket_does(methods, method, step):
    for number in (1, 2):
        extended, own = (network(methods, method, step, number, which) for which in ("extended", "ticket"))
        result = extended.read_result()
        assert result.epochs == own.read_result().epochs == (LAST - step) / EPOCH
        assert {*dataclasses.astuple(result.kept.density)} == {1.0}
        assert result.warning(methods.run.recipe.pruning.collapse) is None
        assert store.load_state(extended.final).weights["fc1/kernel"].all()
        assert began(methods, method, step, number, "extended").mask == {}


def source(linear, name, number):
    """What a round of linear retraining goes on from."""
    if number > 1:
        return network(linear, name, 0, number - 1).final
    return linear.replicate.snapshot(EPOCH if name == "early" else LAST)


def discounted(linear, name, number):
    """The part of the learning rate that is left as a round prunes half of the weights that it goes on with."""
    weights, kept = store.load_state(source(linear, name, number)).weights, store.load_mask(mask(linear, name, 0, number))
    whole = np.concatenate([weights[path].ravel() for path in kept]).astype(float)
    gone = np.concatenate([weights[path][~bits] for path, bits in kept.items()]).astype(float)
    return max(np.linalg.norm(gone) / np.linalg.norm(whole) / 0.5**0.5, LINEAR[name]["length"])


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("number", [1, 2])
def test_linear_retraining_goes_on_from_where_the_round_before_ended(linear, name, number):
    noted = began(linear, name, 0, number)

    assert is_from(noted.state, source(linear, name, number))
    assert (noted.state.step, noted.state.optimizer) == (0, {})
    kept = store.load_mask(mask(linear, name, 0, number))
    assert all(np.array_equal(noted.mask[path], bits) for path, bits in kept.items())
    share = sum(bits.sum() for bits in kept.values()) / sum(bits.size for bits in kept.values())
    assert share == pytest.approx((0.8 if name == "llr" else 0.5) ** number, abs=1e-4)


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("number", [1, 2])
def test_rates_of_linear_retraining_fall_to_0_from_the_peak_or_from_what_is_left_of_it(linear, name, number):
    steps, peak = LINEAR_STEPS[name], linear.run.recipe.train.learning_rate
    left = 1 if name == "llr" else discounted(linear, name, number)

    found = np.float32(began(linear, name, 0, number).rates)

    np.testing.assert_allclose(found, schedules.linear(peak * left, steps)(0, steps), rtol=1e-6)
    assert found.max() == pytest.approx(peak * left)
    if name == "allr":
        assert 0.25 < left < 1  # the norm that is lost
    if name == "early":
        assert left == 0.9  # the length, which is more


@pytest.mark.parametrize("name", LINEAR)
def test_linear_retraining_is_as_long_as_its_share_of_the_dense_training_and_costs_that(linear, name):
    dense, steps, total = 87_600 + 1000, LINEAR_STEPS[name], 0

    for number in (1, 2):
        result = network(linear, name, 0, number).read_result()
        assert (result.status, result.method) == ("done", "allr" if name == "early" else name)
        assert (result.step, result.epochs) == (steps, pytest.approx(steps / EPOCH))
        before = EPOCH if name == "early" else LAST
        assert result.finding_macs == 3 * dense * before * 64 + total
        total += result.training_macs
        assert not network(linear, name, 0, number, "extended").folder.exists()


def scheduled(work, family=None, **train):
    """The run in `work` with finetune, and another schedule in its recipe than the dense network had."""
    families = {"tuned": {**TWO, "method": "finetune", "controls": [], **(family or {})}}
    run = with_families(work, families)
    table = run.recipe.model_dump()
    return dataclasses.replace(run, recipe=reading.resolve({**table, "train": {**table["train"], **train}}))


def test_finetune_at_a_last_rate_of_next_to_none_is_refused_with_the_way_out(work, monkeypatch):
    monkeypatch.setenv("IMP_DATA", str(work / "data"))
    long = {"schedule": "cosine", "warmup": "0", "epochs": 100}
    run = scheduled(work, **long)
    shutil.copy(run.replicate(1).snapshot(LAST), run.replicate(1).snapshot(Plan(run.recipe, EPOCH).total_steps))

    with pytest.raises(InputError, match=r"finetune .*train\.schedule = 'cosine' .*set families\.tuned\.finetune_rate"):
        checked_tickets(run, EVERYTHING)
    with_a_rate = scheduled(work, {"finetune_rate": 0.001, "rewind": "0"}, **long)
    assert [(one.mask.round, one.variant) for one in checked_tickets(with_a_rate, EVERYTHING)] == [
        (number, one) for number in (1, 2) for one in ("ticket", "extended")
    ]
