"""Training one network in its folder: whichever write it dies at, the next attempt ends with the same files."""

import itertools
import math
import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers import contents, events, lenet, tiny_set
from tiny import KERNELS, half_masks, initial

from lottery.base import files, locks, preemption
from lottery.base.errors import InputError
from lottery.base.preemption import Preempted
from lottery.base.progress import Reporter
from lottery.engine import checkpoints, loop, training
from lottery.engine.answers import Answers
from lottery.engine.feed import MemoryFeed
from lottery.engine.loop import Trainer
from lottery.engine.stream import StreamFeed
from lottery.engine.updates import MaskUpdates
from lottery.experiment import schedules
from lottery.experiment.grids import parse_point
from lottery.experiment.recipe import Data, Recipe, Track, Train
from lottery.pruning import masks
from lottery.pruning.criteria import magnitude
from lottery.pruning.cut import Method
from lottery.pruning.updates import Schedule
from lottery.rundir import journal, lineage, running, store
from lottery.rundir.names import NetworkFiles
from lottery.rundir.records import Result
from lottery.trackers import mirror
from lottery.trackers.mirror import Mirror

pytestmark = pytest.mark.usefixtures("tensorflow")

LAST = 18
SNAPSHOTS = (0, 2, 6, 9, LAST)
TRAIN = Train(batch=8, epochs=3, warmup="0")


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@pytest.fixture(scope="module")
def trainer(make_trainer):
    return make_trainer(epochs=3)


@pytest.fixture(autouse=True)
def save_every_fourth_step(monkeypatch):
    """And let a call take two steps, however fast the machine is."""
    monkeypatch.setattr(checkpoints.Clock, "is_due", lambda clock, step: step % 4 == 0)
    monkeypatch.setattr(Trainer, "_adapt", lambda trainer, count, seconds: None)


FACTS = {"replicate": 1, "epochs": 3, "steps_per_epoch": 6}  # which the engine passes on


def attempt(trainer, folder: Path, dense: bool, last: int = LAST, rates=None, track=lambda *known: Mirror()) -> dict:
    trainer._steps_per_call = 2
    snapshots = {step: folder / "snapshots" / f"step-{step:06d}.h5" for step in (*SNAPSHOTS, last)} if dense else {}
    start = partial(initial, classes=trainer.task.outputs)
    wanted = training.Training("tiny", start, last, 5, FACTS, folder, snapshots=snapshots, rates=rates)
    return training.train(trainer, wanted, NetworkFiles(folder), Reporter(quiet=True), track)


def left_in(folder: Path) -> dict:
    """What a finished training has left, but for the name of its folder."""
    found = contents(folder)
    found["result.json"].pop("folder")
    return found


@pytest.mark.parametrize("other", [{"replicas": 4}, {"xla": True}, {"step": LAST - 2}], ids=str)
def test_snapshots_are_not_added_on_other_devices_or_past_the_end(trainer, tmp_path, other):
    result = Result(status="done", replicas=trainer.replicas, xla=trainer.xla, step=LAST, **FACTS)
    start = partial(initial, classes=trainer.task.outputs)
    wanted = training.Training("tiny", start, LAST, 5, FACTS, tmp_path, snapshots={2: tmp_path / "step-000002.h5"})
    network = NetworkFiles(tmp_path)

    with pytest.raises(InputError, match=r"^tiny was trained for .*: add them where it was trained$"):
        training.fill_in(trainer, wanted, network, result.model_copy(update=other), Reporter(quiet=True))

    assert not list(tmp_path.iterdir())
    training.fill_in(trainer, wanted, network, result, Reporter(quiet=True))
    assert files.read_json(network.result)["outputs"] == lineage.seals(tmp_path, [tmp_path / "step-000002.h5"])


@pytest.mark.parametrize(("path", "constant"), [("fc1/kernel", False), ("fc2/kernel", True)])
def test_a_network_that_ends_with_the_same_answer_to_every_image_is_told(trainer, tmp_path, path, constant):
    mask = half_masks(initial())
    mask[path] &= path != "fc2/kernel"
    wanted = training.Training("tiny", partial(initial, classes=trainer.task.outputs), LAST, 5, FACTS, tmp_path, mask)

    result = training.train(trainer, wanted, NetworkFiles(tmp_path), Reporter(quiet=True), lambda *known: Mirror())

    assert result.constant is constant
    assert NetworkFiles(tmp_path).read_result().constant is constant


@pytest.fixture
def die_at(monkeypatch):
    """A function that lets the process die at the n-th of the moments before and after each write (0: at none); it returns
    a counter of the moments passed."""
    replace, append, unlink = os.replace, training.journal.append, Path.unlink
    moments = {"passed": 0, "last": 0}

    def moment():
        moments["passed"] += 1
        if moments["passed"] == moments["last"]:
            raise Killed

    def around(call):
        def wrapped(*arguments, **options):
            moment()
            result = call(*arguments, **options)
            moment()
            return result

        return wrapped

    def unlink_checkpoints(path, missing_ok=False):
        return (around(unlink) if path.name == "checkpoint.h5" else unlink)(path, missing_ok=missing_ok)

    monkeypatch.setattr(os, "replace", around(replace))
    monkeypatch.setattr(training.journal, "append", around(append))
    monkeypatch.setattr(Path, "unlink", unlink_checkpoints)

    def start(last):
        moments.update(passed=0, last=last)
        return moments

    return start


@pytest.fixture
def evaluated(trainer, monkeypatch):
    """A function that lets the trainer look at validation and test images as often as is said."""

    def change(every):
        monkeypatch.setattr(trainer, "train", trainer.train.model_copy(update={"evaluate": parse_point(every)}))

    return change


def assert_the_same_wherever_it_dies(begin, folder, die_at, expected, moments):
    """Let `begin` die at each of the moments, begin again, and compare what is left."""
    for moment in moments:
        killed = folder / f"killed-{moment}"
        die_at(moment)
        with pytest.raises(Killed):
            begin(killed)
        die_at(0)
        if not (killed / "result.json").exists():
            begin(killed)
        NetworkFiles(killed).clear()  # as those do who find it done
        assert left_in(killed) == expected, f"killed at moment {moment}"
        assert not list(killed.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("dense", "every", "by"),  # by 2: before each write, which is after the one before; by odd numbers: both by turns
    [(True, "1ep", 2), (False, "7it", 3), (False, "4it", 5)],
)
def test_whichever_write_it_dies_at_the_next_attempt_ends_with_the_same_files(
    trainer, tmp_path, die_at, evaluated, dense, every, by
):
    evaluated(every)
    counter = die_at(0)
    attempt(trainer, tmp_path / "whole", dense)
    count = counter["passed"]
    assert count > 14

    begin = partial(attempt, trainer, dense=dense)
    assert_the_same_wherever_it_dies(begin, tmp_path, die_at, left_in(tmp_path / "whole"), range(1, count + 1, by))


def test_tensorboard_shows_of_a_killed_training_what_it_shows_of_another_and_no_bit_changes(trainer, tmp_path, die_at):
    recipe, counter = Recipe(track=Track(trackers=["tensorboard"])), die_at(0)

    def begin(name):
        track = partial(mirror.track, recipe, tmp_path, tmp_path / name)
        attempt(trainer, tmp_path / name, dense=False, track=track)

    attempt(trainer, tmp_path / "untracked", dense=False)
    die_at(0)
    begin("whole")
    die_at(counter["passed"] * 2 // 3)
    with pytest.raises(Killed):
        begin("killed")
    die_at(0)
    begin("killed")
    mirror.wait()

    whole, killed = (events(tmp_path / "tensorboard" / name)[0] for name in ("whole", "killed"))
    rows = [(row["step"], pytest.approx(row["validation_loss"], abs=1e-5)) for row in rows_of(tmp_path / "untracked")]
    assert whole == killed
    assert whole["curves/validation_loss"] == rows
    assert left_in(tmp_path / "whole") == left_in(tmp_path / "killed") == left_in(tmp_path / "untracked")


def kept_in(mask):
    return sum(int(kept.sum()) for kept in mask.values())


def begun_under(method) -> masks.Bits:
    """The mask that a training whose mask changes begins with: everything for GMP, or else half of each layer."""
    state = initial()
    return masks.whole({path: state.weights[path] for path in KERNELS}) if method == "gmp" else half_masks(state)


def attempt_changing(method, trainer, folder: Path) -> Result:
    """A training whose mask changes before steps 3, 6, 9 and 12."""
    trainer._steps_per_call = 2
    schedule = Schedule(method, every=3, begin=0, until=14, drop_fraction=0.3)
    mask = begun_under(method)
    changing = MaskUpdates(schedule, 0, pruned=200, method=Method(magnitude), seed=7, macs=kept_in)
    start = partial(initial, classes=trainer.task.outputs)
    wanted = training.Training("tiny", start, LAST, 5, FACTS, folder, mask, beside=[folder / "mask.h5"], updates=changing)
    return training.train(trainer, wanted, NetworkFiles(folder), Reporter(quiet=True), lambda *known: Mirror())


@pytest.mark.parametrize("method", ["gmp", "rigl", "set"])
def test_a_training_whose_mask_changes_ends_with_the_same_files_wherever_it_dies(trainer, tmp_path, die_at, method):
    mask, counter, begin = begun_under(method), die_at(0), partial(attempt_changing, method, trainer)

    begin(tmp_path / "whole")
    expected, count = left_in(tmp_path / "whole"), counter["passed"]
    final, kept = store.load_state(tmp_path / "whole/final.h5"), store.load_mask(tmp_path / "whole/mask.h5")
    assert any((kept[path] != mask[path]).any() for path in mask)
    assert not any(final.weights[path][~kept[path]].any() for path in mask)
    assert expected["result.json"]["outputs"].keys() == {"final.h5", "mask.h5", "predictions.h5"}

    assert_the_same_wherever_it_dies(begin, tmp_path, die_at, expected, range(1, count + 1, 5))


@pytest.mark.parametrize("lost", [0, -1], ids=["first", "last"])
def test_a_training_does_not_go_on_with_a_journal_that_lost_rows_before_its_checkpoint(trainer, tmp_path, die_at, lost):
    die_at(13)  # before the last of four checkpoints, two rows of three written
    with pytest.raises(Killed):
        attempt(trainer, tmp_path, dense=False)
    die_at(0)
    rows = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    rows.pop(lost)
    (tmp_path / "metrics.jsonl").write_text("".join(rows))

    with pytest.raises(InputError, match=rf"^{tmp_path}/metrics\.jsonl .*: remove {tmp_path} and run its stage again$"):
        attempt(trainer, tmp_path, dense=False)

    assert (tmp_path / "checkpoint.h5").exists()
    assert not (tmp_path / "result.json").exists()


def answering(task, loss):
    """The answers to two images, one of them right, with this loss."""
    measures = {"accuracy": [1.0, 0.0], "top5_accuracy": [1.0, 1.0], "answer": [0.0, 0.0], "confidence": [0.5, 0.5]}
    figures = {name: np.array(values, np.float32) for name, values in measures.items()}
    return Answers(task, np.full(2, loss, np.float32), np.array([0, 1]), figures)


@pytest.mark.parametrize(("method", "step"), [("gmp", 18), ("rigl", 6)])
def test_the_least_loss_is_looked_for_while_the_mask_has_its_final_size(
    trainer, tmp_path, monkeypatch, evaluated, method, step
):
    evaluated("6it")
    losses = iter(range(1, 100))  # it rises, as where more and more is pruned
    monkeypatch.setattr(trainer, "answers", lambda split: answering(trainer.task, next(losses)))

    result = attempt_changing(method, trainer, tmp_path)

    rows = {row["step"]: row for row in rows_of(tmp_path)}
    assert [*rows] == [6, 12, 18]  # that of step 12 is from before the last change of GMP
    assert result.least_validation_loss.step == step
    assert result.least_validation_loss.validation_loss == rows[step]["validation_loss"]


def test_a_validation_loss_that_is_not_finite_is_divergence(trainer, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "answers", lambda split: answering(trainer.task, math.nan))

    result = attempt(trainer, tmp_path, dense=False)

    assert (result.status, result.step) == ("diverged", 6)
    assert files.read_json(tmp_path / "result.json")["status"] == "diverged"
    assert not (tmp_path / "final.h5").exists()


def rows_of(folder: Path) -> list[dict]:
    return journal.read(folder / "metrics.jsonl")


@pytest.fixture
def bad_rate(monkeypatch):
    """A function that makes the learning rate of one step another one."""
    rates = loop.schedules.rates

    def change(step, rate):
        def changed(train, steps_per_epoch, first, count):
            found = rates(train, steps_per_epoch, first, count)
            return np.where(np.arange(first, first + count) == step, np.float32(rate), found)

        monkeypatch.setattr(loop.schedules, "rates", changed)

    return change


def checkpoint_of(folder: Path) -> checkpoints.Checkpoint:
    found = checkpoints.load(folder / "checkpoint.h5")
    assert all(np.isfinite(array).all() for array in found.state.arrays())
    return found


def test_divergence_names_its_step_and_a_way_out_and_leaves_the_last_checkpoint(trainer, tmp_path, bad_rate):
    bad_rate(step=9, rate=1e30)

    result = attempt(trainer, tmp_path, dense=False)

    assert (result.status, result.step) == ("diverged", 10)
    for way in ("at step 10", "train.learning_rate", "train.warmup", "train.clip_norm"):
        assert way in result.reason
    assert "\n" not in result.reason
    assert NetworkFiles(tmp_path).read_result() == result
    assert checkpoint_of(tmp_path).state.step == 8
    assert [row["step"] for row in rows_of(tmp_path)] == [6]


def test_weights_that_are_not_finite_are_divergence_and_never_a_checkpoint(trainer, tmp_path, bad_rate):
    bad_rate(step=7, rate=math.inf)  # so that the loss is finite up to the checkpoint after it

    result = attempt(trainer, tmp_path, dense=False)

    assert (result.status, result.step) == ("diverged", 8)
    assert checkpoint_of(tmp_path).state.step == 4


def test_weights_that_are_not_finite_are_never_the_end_of_a_ticket(trainer, tmp_path, bad_rate, monkeypatch):
    monkeypatch.setattr(trainer, "answers", lambda split: answering(trainer.task, 0.5))  # a ReLU may hide them
    bad_rate(step=LAST - 1, rate=math.inf)

    result = attempt(trainer, tmp_path, dense=False)

    assert (result.status, result.step) == ("diverged", LAST)
    assert not (tmp_path / "final.h5").exists()


@pytest.mark.parametrize(("step", "snapshot"), [(8, 9), (17, LAST)])
def test_weights_that_are_not_finite_are_never_a_snapshot(trainer, tmp_path, bad_rate, step, snapshot):
    bad_rate(step=step, rate=math.inf)

    result = attempt(trainer, tmp_path, dense=True)

    assert (result.status, result.step) == ("diverged", snapshot)
    steps = [int(path.stem.removeprefix("step-")) for path in (tmp_path / "snapshots").iterdir()]
    assert sorted(steps) == [saved for saved in SNAPSHOTS if saved < snapshot]


@pytest.mark.parametrize(("others", "words"), [({"replicas": 2}, "on 2 devices without XLA"), ({"xla": True}, "with XLA")])
def test_a_checkpoint_of_other_devices_is_not_gone_on_with(trainer, tmp_path, bad_rate, others, words):
    bad_rate(step=9, rate=1e30)
    attempt(trainer, tmp_path, dense=False)
    found = checkpoint_of(tmp_path)
    checkpoints.save(tmp_path / "checkpoint.h5", found._replace(**others))

    with pytest.raises(InputError, match=rf"{words}, this process has 1 device without XLA: go on where it was begun"):
        attempt(trainer, tmp_path, dense=False)


def test_a_request_to_stop_saves_the_step_it_is_at_and_the_next_attempt_ends_with_the_same_files(
    trainer, tmp_path, monkeypatch
):
    attempt(trainer, tmp_path / "whole", dense=True)
    monkeypatch.setattr(checkpoints.Clock, "is_due", lambda clock, step: False)
    stopped, original, taken = tmp_path / "stopped", Trainer.steps, []

    for wanted in (2, 6, 8):  # a snapshot's, an epoch's end, the middle of an epoch

        def steps(trainer, first, last, order_seed, rates=None, wanted=wanted):
            for found in original(trainer, first, last, order_seed, rates):
                first += len(found)
                if first == wanted:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield found

        monkeypatch.setattr(Trainer, "steps", steps)
        with pytest.raises(Preempted, match="SIGTERM"), preemption.heeded():
            attempt(trainer, stopped, dense=True)
        taken.append(checkpoint_of(stopped).state.step)
        assert not (stopped / "result.json").exists()
    monkeypatch.setattr(Trainer, "steps", original)
    attempt(trainer, stopped, dense=True)

    assert taken == [2, 6, 8]
    assert left_in(stopped) == left_in(tmp_path / "whole")


@pytest.mark.parametrize(("every", "steps"), [("7it", [7, 14, 18]), ("0.5ep", [3, 6, 9, 12, 15, 18]), ("100it", [18])])
def test_rows_are_where_they_are_asked_for_and_at_the_end_and_say_what_the_steps_between_found(
    trainer, tmp_path, evaluated, every, steps
):
    attempt(trainer, tmp_path / "by epoch", dense=True)
    evaluated(every)
    result = attempt(trainer, tmp_path / "other", dense=True)

    rows = rows_of(tmp_path / "other")
    assert [row["step"] for row in rows] == steps
    assert [row["epoch"] for row in rows] == [step / 6 for step in steps]
    trainer.load(initial())
    found = np.concatenate([trainer.advance(first, first + 6, order_seed=5) for first in (0, 6, 12)])
    for row, part in zip(rows, np.split(found, steps[:-1]), strict=True):
        assert row["train_loss"] == pytest.approx(part[:, 0].mean(), rel=1e-12)
        assert row["train_accuracy"] == pytest.approx(part[:, 1].sum() / (8 * len(part)), rel=1e-12)
    assert result.least_validation_loss.step in steps
    known = {row["step"]: row["validation_loss"] for row in rows_of(tmp_path / "by epoch")}
    assert all(row["validation_loss"] == known.get(row["step"], row["validation_loss"]) for row in rows)
    weights = [sorted((tmp_path / name / "snapshots").iterdir()) for name in ("by epoch", "other")]
    assert [path.read_bytes() for path in weights[0]] == [path.read_bytes() for path in weights[1]]


def test_a_constant_rate_takes_the_place_of_the_schedule_and_survives_a_death(make_trainer, tmp_path, die_at):
    falling = make_trainer(epochs=3, schedule="cosine", learning_rate=0.05)
    constant = make_trainer(epochs=3, schedule="constant", learning_rate=0.01)
    attempt(constant, tmp_path / "constant", dense=False)
    counter = die_at(0)
    attempt(falling, tmp_path / "held", dense=False, rates=schedules.constant(0.01))
    count = counter["passed"]
    attempt(falling, tmp_path / "falling", dense=False)
    die_at(count // 2)
    with pytest.raises(Killed):
        attempt(falling, tmp_path / "killed", dense=False, rates=schedules.constant(0.01))
    die_at(0)
    attempt(falling, tmp_path / "killed", dense=False, rates=schedules.constant(0.01))

    assert left_in(tmp_path / "held") == left_in(tmp_path / "constant")
    assert left_in(tmp_path / "killed") == left_in(tmp_path / "held")
    assert left_in(tmp_path / "falling") != left_in(tmp_path / "held")


def test_rows_say_how_fast_they_were_and_the_result_where_validation_loss_was_least(trainer, tmp_path):
    result = attempt(trainer, tmp_path, dense=False)

    rows = rows_of(tmp_path)
    for timing in (row["timing"] for row in rows):
        assert set(timing) == {"seconds", "images_per_second", "input_share"}
        assert 0 < timing["input_share"] < 1
        assert 48 / timing["images_per_second"] < timing["seconds"]
    assert result.timing.seconds == sum(row["timing"]["seconds"] for row in rows)
    least = min(rows, key=lambda row: row["validation_loss"])
    assert [row["step"] for row in rows] == [6, 12, 18]
    assert result.least_validation_loss.step == least["step"]
    assert result.least_validation_loss.test_accuracy == least["test_accuracy"]
    assert result.final.validation_accuracy == rows[-1]["validation_accuracy"]


def test_a_resumed_row_times_the_whole_epoch(trainer, tmp_path, die_at):
    counter = die_at(0)
    attempt(trainer, tmp_path / "whole", dense=False)
    die_at(counter["passed"] - 7)  # before the last row is written; final.h5, the checkpoint's end and the result come after
    with pytest.raises(Killed):
        attempt(trainer, tmp_path / "killed", dense=False)
    before = checkpoints.load(tmp_path / "killed/checkpoint.h5")
    assert before.state.step == 16
    die_at(0)

    attempt(trainer, tmp_path / "killed", dense=False)

    timing = rows_of(tmp_path / "killed")[-1]["timing"]
    assert timing["seconds"] > before.seconds
    assert 0 <= timing["input_share"] <= 1


@pytest.mark.parametrize(("classes", "named"), [(5, False), (6, True)])
def test_accuracies_among_the_first_five_are_told_of_more_than_five_classes(make_trainer, tmp_path, classes, named):
    result = attempt(make_trainer(epochs=3, classes=classes), tmp_path, dense=False, last=6)

    wanted = {"validation_top5_accuracy", "test_top5_accuracy"}
    (row,) = rows_of(tmp_path)
    for figures in (row, result.final.model_dump(), result.least_validation_loss.model_dump()):
        assert figures.keys() & wanted == (wanted if named else set())
        assert all(figures[name] >= figures[name.replace("top5_", "")] for name in wanted if named)


def test_overflows_are_counted_by_epoch_in_float16_alone(make_trainer, trainer, tmp_path):
    half = make_trainer(epochs=3, precision="mixed_float16")
    state = initial()
    half.load(state)
    optimizer = half.state(0).optimizer | {"loss_scale": np.float32(2.0**24)}  # halved five times or so
    start = partial(store.State, 0, state.weights, state.statistics, optimizer)
    wanted = training.Training("tiny", start, 12, 5, FACTS, tmp_path)

    training.train(half, wanted, NetworkFiles(tmp_path / "half"), Reporter(quiet=True), lambda *known: Mirror())
    attempt(trainer, tmp_path / "whole", dense=False)

    first, second = (row["overflows"] for row in rows_of(tmp_path / "half"))
    assert 4 <= first <= 6
    assert second < first
    assert "overflows" not in rows_of(tmp_path / "whole")[0]


def test_a_streamed_training_has_the_files_of_one_in_memory_also_when_it_dies_and_goes_on_there(tmp_path, die_at):
    folder = tmp_path / "records"
    folder.mkdir()
    manifest = tiny_set(folder, train=1100, others=300, per_shard=600)
    data = Data(size=8, shuffle=300, crop=1, flip=True, cutout=3)
    recipe = Recipe(data=data, model=lenet(), train=TRAIN.model_copy(update={"batch": 160}))
    held = Trainer(recipe, ["CPU:0"], lambda strategy: MemoryFeed(folder, manifest, data, strategy))
    streamed = Trainer(recipe, ["CPU:0"], lambda strategy: StreamFeed(folder, manifest, data, ["CPU:0"]))
    last = 3 * held.steps_per_epoch

    counter = die_at(0)
    attempt(held, tmp_path / "held", True, last)
    expected, count = left_in(tmp_path / "held"), counter["passed"]
    attempt(streamed, tmp_path / "streamed", True, last)
    assert left_in(tmp_path / "streamed") == expected

    turns = itertools.cycle([streamed, streamed, streamed, held])

    def begin(folder):
        attempt(next(turns), folder, True, last)

    assert_the_same_wherever_it_dies(begin, tmp_path, die_at, expected, range(2, count, 5))


def test_it_is_told_when_a_process_in_this_ones_place_would_go_on_from_here(trainer, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(Reporter, "saved", lambda reporter: told.append(checkpoint_of(tmp_path).state.step))

    attempt(trainer, tmp_path, dense=False)

    assert told == list(range(4, LAST, 4))


def test_while_it_trains_its_lock_says_how_it_is_doing(trainer, tmp_path, monkeypatch):
    """The means of the three notes of the first epoch, of two steps each, are those of its row."""
    monkeypatch.setattr(training, "NOTE_SECONDS", 0.0)
    notes = []
    monkeypatch.setattr(locks, "note", lambda folder, text: notes.append(running.read(text)))

    attempt(trainer, tmp_path, dense=True)

    assert [note.step for note in notes] == [2, 4, 6, 8, 9, 11, 12, 14, 16, LAST]
    assert {note.last for note in notes} == {LAST}
    assert notes[0].steps_per_second is None
    assert all(note.steps_per_second > 0 for note in notes[1:])
    row = rows_of(tmp_path)[0]
    for name, figure in (("train_loss", "train_loss"), ("train_accuracy", "train_metric")):
        assert np.mean([getattr(note, figure) for note in notes[:3]]) == pytest.approx(row[name])
