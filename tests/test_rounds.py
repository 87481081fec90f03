"""Rounds of pruning: as typed on the command line, and what each method starts from and at which rates."""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import LENET, contents, flip, imp, kill_when, refused

from data_prep.errors import InputError
from lottery import cuts, masks, recipe, schedules, seeds, store
from lottery.jobs import Chain, Round
from lottery.plan import Plan
from lottery.progress import Reporter
from lottery.results import listing
from lottery.run import Run, open_run
from lottery.stages import rounds

LAST, EPOCH = 51, 17  # steps of LENET's training and of its epochs
THREE = ["--levels", "3", "--set", "rounds.rewind=0,1ep", "--set", "rounds.control_levels=2"]
QUIET = Reporter(quiet=True)


def replicate_of(folder, number=1):
    return Run(folder / "runs/digits", recipe.resolve({})).replicate(number)


def copied(source, target):
    shutil.copytree(source, target, symlinks=True)
    return target


@pytest.fixture(scope="module")
def pruned(trained, tmp_path_factory):
    """A folder in which one process pruned three rounds of `weights` from two points, with `reinit` in the second."""
    folder = copied(trained, tmp_path_factory.mktemp("pruned") / "work")
    imp("rounds", *THREE, cwd=folder)
    return folder


def ticket(method, step, level, variant="ticket", number=1):
    return Round(Chain(number, method, step), level, variant)


def mask_of(folder, job):
    return masks.load(replicate_of(folder).level(job.chain, job.level).mask)


def survivors(mask):
    return sum(int(kept.sum()) for kept in mask.values())


def test_each_round_prunes_exactly_its_share_of_what_is_left_and_masks_only_shrink(pruned):
    for step in (0, EPOCH):
        before, left = None, 64 * 3 * 300 + 300 * 100
        for level in (1, 2, 3):
            found = mask_of(pruned, ticket("weights", step, level))
            left -= round(left / 5)
            assert survivors(found) == left
            assert before is None or not any((kept & ~before[path]).any() for path, kept in found.items())
            before = found


def test_a_round_prunes_the_smallest_final_weights_that_the_one_before_left(pruned):
    replicate = replicate_of(pruned)
    sources = [replicate.snapshot(LAST), *(replicate.network(ticket("weights", EPOCH, level)).final for level in (1, 2))]
    before = None
    for level, source in enumerate(sources, 1):
        weights = store.load_state(source).weights
        kept = mask_of(pruned, ticket("weights", EPOCH, level))
        before = before or {path: np.ones_like(array) for path, array in kept.items()}
        stayed = np.concatenate([np.abs(weights[path][kept[path]]) for path in kept])
        went = np.concatenate([np.abs(weights[path][before[path] & ~kept[path]]) for path in kept])
        assert went.max() <= stayed.min()
        before = kept


def test_pruned_weights_and_slots_are_exactly_zero_in_every_ticket(pruned):
    for step in (0, EPOCH):
        for level in (1, 2, 3):
            job = ticket("weights", step, level)
            state = store.load_state(replicate_of(pruned).network(job).final)
            for path, kept in mask_of(pruned, job).items():
                assert not state.weights[path][~kept].any()
                assert not state.slots[f"momentum/{path}"][~kept].any()
                assert state.weights[path][kept].all()


def test_a_round_says_what_it_pruned_and_its_networks_what_they_are(pruned):
    replicate = replicate_of(pruned)
    table = json.loads(replicate.level(Chain(1, "weights", EPOCH), 2).table.read_text())
    result = replicate.network(ticket("weights", EPOCH, 2)).read_result()
    reinit = replicate.network(ticket("weights", EPOCH, 2, "reinit")).read_result()

    assert table | {"level": 2, "method": "weights", "rewind_step": EPOCH, "pruned": 14016, "remaining": 56064} == table
    assert [(layer["rate"], layer["had"] - layer["has"] > 0) for layer in table["layers"].values()] == [(20.0, True)] * 2
    assert table["density"] == result["density"] == reinit["density"]
    assert result["density"]["prunable"] == pytest.approx(0.64)
    assert 0 < result["density"]["effective"] <= result["density"]["prunable"]
    place = {"method": "weights", "level": 2, "quantile": None, "rewind_step": EPOCH}
    assert result | place | {"variant": "ticket", "first_step": EPOCH, "epochs": 2.0} == result
    assert reinit | place | {"variant": "reinit", "first_step": 0, "epochs": 3.0} == reinit


def test_controls_accompany_the_rounds_that_are_asked_for_alone(pruned):
    found = {str(network.folder.relative_to(replicate_of(pruned).folder)) for network in replicate_of(pruned).networks()}

    chains = ("rounds/weights-step-000000", f"rounds/weights-step-{EPOCH:06d}")
    names = ("01/ticket", "02/reinit", "02/ticket", "03/ticket")
    assert found == {f"{chain}/{name}" for chain in chains for name in names}


def test_finished_rounds_are_not_done_again_and_more_go_on_from_them(pruned, tmp_path):
    work = copied(pruned, tmp_path / "work")
    before = contents(work / "runs")

    assert "8 networks under masks: 8 finished, 0 to train" in imp("rounds", "--levels", "3", cwd=work).stderr
    done = imp("rounds", "--levels", "4", cwd=work)

    assert "10 networks under masks: 8 finished, 2 to train" in done.stderr
    after = contents(work / "runs")
    assert {name: after[name] for name in before} == before
    assert {name.split("/")[-2] for name in after.keys() - before.keys()} == {"04", "ticket"}


def test_rounds_killed_in_the_middle_of_one_go_on_and_end_with_the_same_bytes(pruned, work):
    network = replicate_of(work).network(ticket("weights", 0, 2))

    kill_when(["rounds", *THREE], work, lambda: network.checkpoint.exists())
    imp("rounds", *THREE, cwd=work)

    assert contents(work / "runs") == contents(pruned / "runs")
    assert not list(work.rglob("*.tmp"))


def test_ranks_give_the_bytes_of_one_process(pruned, work):
    done = imp("rounds", "--ranks", "3", *THREE, cwd=work)

    assert "[8/8," in done.stderr
    assert contents(work / "runs") == contents(pruned / "runs")


def test_a_damaged_ticket_stops_its_chain_alone_and_is_named(pruned, tmp_path):
    work = copied(pruned, tmp_path / "work")
    replicate = replicate_of(work)
    for step in (0, EPOCH):
        shutil.rmtree(replicate.level(Chain(1, "weights", step), 3).folder)
    flip(replicate.network(ticket("weights", 0, 2)).final)

    done = imp("rounds", "--levels", "4", "--set", "rounds.controls=[]", cwd=work, check=False)

    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("not finished")]
    assert len(lines) == 2
    assert lines[0].startswith("not finished: replicate-1 weights-step-000000 round 03 ticket failed: ")
    assert "02/ticket/final.h5 is damaged" in lines[0]
    chain = "replicate-1 weights-step-000000 round"
    assert lines[1] == f"not finished: {chain} 04 ticket waiting: needs {chain} 03 ticket"
    assert replicate.network(ticket("weights", EPOCH, 4)).is_finished


METHODS = {
    "levels": 2,
    "methods": ["weights", "init", "lr", "finetune"],
    "rewind": "0,1ep",
    "controls": ["extended", "reinit"],
    "control_levels": "1,2",
}


def with_rounds(folder, slots="fresh", **settings):
    """The run in `folder` with other values in its recipe's table `rounds`, and for `retrain.slots`."""
    found = open_run(folder / "runs/digits")
    table = {**found.recipe.rounds.model_dump(), **settings}
    return Run(found.folder, recipe.resolve({**found.recipe.model_dump(), "rounds": table}, [f"retrain.slots={slots}"]))


@pytest.fixture(scope="module")
def methods(tensorflow, trained, tmp_path_factory):
    """Two rounds of all four methods, as `noted` says."""
    return noted(copied(trained, tmp_path_factory.mktemp("methods") / "work"), **METHODS)


@pytest.fixture(scope="module")
def restoring(tensorflow, trained, tmp_path_factory):
    """Two rounds of the methods that train on, with restored slots, as `noted` says."""
    settings = {**METHODS, "methods": ["lr", "finetune"], "rewind": "1ep", "controls": ["extended"]}
    return noted(copied(trained, tmp_path_factory.mktemp("restoring") / "work"), slots="restore", **settings)


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
    assert survivors(found) == 56064


def test_without_rounds_for_controls_it_is_said_that_there_are_none(work):
    done = imp("rounds", "--levels", "1", cwd=work)

    assert "no controls: rounds.control_levels names none of these rounds" in done.stderr


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["rounds.methods=[]"], ["rounds.methods is empty", "weights, lr, finetune or init"]),
        (["rounds.controls=['extended']"], ["rounds.controls: extended goes with the methods lr and finetune"]),
        (["rounds.rewind=2ep"], ["rewind point 2ep is not among the snapshots", "imp train --set train.snapshots="]),
        (["rounds.rewind=4ep"], ["lies past the end of training"]),
        (["rounds.rate=100"], ["rounds.rate", "100"]),
        (["rounds.rates=['fc1/*']"], ["rounds.rates", "is not a rate of pruning"]),
        (["rounds.methods=['rewind']"], ["rounds.methods", "'rewind'"]),
    ],
    ids=lambda value: value[0],
)
def test_bad_values_are_refused_before_anything_is_written(work, settings, words):
    before = contents(work / "runs")

    refused(imp("rounds", *(part for value in settings for part in ("--set", value)), cwd=work, check=False), *words)

    assert contents(work / "runs") == before
    assert not (replicate_of(work).folder / "rounds").exists()


@pytest.mark.parametrize("levels", ["0", "101", "few"])
def test_a_number_of_rounds_that_makes_no_sense_is_refused(work, levels):
    refused(imp("rounds", "--levels", levels, cwd=work, check=False), "--levels")


def test_rounds_of_an_untrained_network_say_what_comes_first(prepared):
    refused(imp("rounds", *LENET, cwd=prepared, check=False), "holds no finished training: run `imp train` first")
    refused(imp("rounds", *LENET, "--ranks", "3", cwd=prepared, check=False), "run `imp train` first")


def test_a_snapshot_that_is_gone_is_missed_by_name(work):
    replicate_of(work).snapshot(0).unlink()

    refused(imp("rounds", cwd=work, check=False), "step-000000.h5 is missing: run `imp train`, which adds it")


def scheduled(work, **train):
    """The run in `work` with finetune, and another schedule in its recipe than the dense network had."""
    run = with_rounds(work, methods=["finetune"], controls=[], **train.pop("rounds", {}))
    table = run.recipe.model_dump()
    return dataclasses.replace(run, recipe=recipe.resolve({**table, "train": {**table["train"], **train}}))


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_finetune_at_a_last_rate_of_next_to_none_is_refused_with_the_way_out(work, schedule):
    long = {"schedule": schedule, "warmup": "0", "epochs": 100}
    run = scheduled(work, **long)
    planned = Plan(run.recipe, EPOCH)
    shutil.copy(run.replicate(1).snapshot(LAST), run.replicate(1).snapshot(planned.total_steps))

    with pytest.raises(InputError, match=rf"finetune .*train\.schedule = '{schedule}' .*set rounds\.finetune_rate"):
        rounds.checked_rounds(run, planned)
    with_a_rate = scheduled(work, **long, rounds={"finetune_rate": 0.001})
    assert Plan(with_a_rate.recipe, EPOCH).finetune_rate == 0.001
    assert [job.level for job in rounds.checked_rounds(with_a_rate, Plan(with_a_rate.recipe, EPOCH), 3)] == [1, 2, 3]


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
