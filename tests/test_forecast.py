"""What a run still takes: which networks, how long, and on how much disk."""

import json
import shutil

import pytest
from handmade import planned
from helpers import LENET, changed, imp_here, settings

from lottery.experiment import graph
from lottery.experiment.plan import Plan
from lottery.rundir import journal
from lottery.rundir.names import NetworkFiles
from lottery.rundir.run import Run
from lottery.stages import forecast

SHOT = settings("families.oneshot.quantiles=60,90", "families.oneshot.rewind=0", "families.oneshot.controls=[]")


@pytest.fixture
def left(tensorflow, monkeypatch):
    """A function that says what a run in a folder still takes; an epoch is measured as 2 seconds."""
    from lottery.engine import trial

    monkeypatch.setattr(trial, "seconds_of_epoch", lambda *_: 2.0)

    def left(folder, *arguments):
        return json.loads(imp_here("run", "--dry-run", "--json", *arguments, cwd=folder).stdout)

    return left


def test_time_is_that_of_networks_side_by_side_as_measured(left, prepared):
    told = left(prepared, *LENET, *SHOT, "--ranks", "2")

    assert [one["epochs"] for one in told["networks"]] == [3, 3, 3]
    assert (told["processes"], told["epoch_seconds"], told["timed"], told["device"]) == (2, 2, 0, "CPU")
    assert told["seconds"] == 2 * (3 + 6 / 2)
    assert left(prepared, *LENET, *SHOT, "--ranks", "1")["seconds"] == 2 * 9


def test_time_is_that_of_the_trainings_of_the_run_where_they_were_on_such_a_machine(left, work):
    result = work / "runs/digits/replicate-1/train/result.json"
    changed(result, timing={"seconds": 15.0})

    told = left(work, "--ranks", "1")
    assert (told["timed"], told["epoch_seconds"], told["finished"]) == (1, 5, 1)
    assert told["seconds"] == pytest.approx(5 * sum(one["epochs"] for one in told["networks"]))

    assert (left(work, "--epoch-seconds", "7")["timed"], left(work, "--epoch-seconds", "7")["epoch_seconds"]) == (0, 7)

    changed(work / "runs/digits/environment.json", processor="another")
    assert (left(work)["timed"], left(work)["epoch_seconds"]) == (0, 2)


def test_an_epoch_may_be_given_and_so_may_nodes_and_how_many_networks_each_trains(left, prepared):
    asked = [*LENET, *SHOT, "--epoch-seconds", "3600"]

    told = left(prepared, *asked, "--nodes", "2")
    assert (told["nodes"], told["processes"], told["epoch_seconds"], told["given"]) == (2, 2, 3600, True)
    assert (told["seconds"], told["node_seconds"]) == (3600 * (3 + 3), 3600 * 9)
    shared = left(prepared, *asked, "--nodes", "1", "--ranks", "2")
    assert (shared["seconds"], shared["node_seconds"]) == (3600 * (3 + 3), 3600 * 4.5)


def test_rounds_go_one_after_another_on_however_many_nodes(tmp_path):
    table = {"rounds": 2, "rewind": "1ep", "controls": ["reinit"], "controls_at": ""}
    run = Run(tmp_path / "run", planned("", rounds=table))  # three replicates
    networks, _ = forecast._networks(run, Plan(run.recipe, 45))
    dense, ticket, control = 20, 19, 20

    assert forecast._epochs_until_done(networks, 1) == 3 * (dense + 2 * ticket + control)
    assert forecast._epochs_until_done(networks, 2) == 2 * dense + 3 * ticket + 2 * control
    assert forecast._epochs_until_done(networks, 1000) == dense + 2 * ticket + control
    assert forecast._epochs_until_done([], 5) == 0


def test_disk_is_that_of_what_is_missing(left, trained, prepared, tmp_path):
    told, networks = (left(prepared, *LENET)[name] for name in ("disk", "networks"))
    snapshots = [path.stat().st_size for path in trained.glob("runs/digits/replicate-1/train/snapshots/*.h5")]
    assert told["records"] == 0
    assert told["snapshots"] == pytest.approx(sum(snapshots), rel=0.05)
    assert told["results"] == pytest.approx((len(networks) - 1) * snapshots[0], rel=0.05)
    assert left(trained)["disk"]["snapshots"] == 0

    empty = tmp_path / "empty"
    empty.mkdir()
    records = sum(path.stat().st_size for path in prepared.glob("data/digits-8/*.tfrecord"))
    assert left(empty, *LENET)["disk"]["records"] == pytest.approx(records, rel=0.05)
    assert not list(empty.iterdir())


def test_tickets_of_all_masks_that_are_cut_are_to_be_trained(left, work):
    shutil.rmtree(work / "runs/digits/replicate-1/oneshot")
    imp_here("thresholds", "--quantiles", "33", cwd=work)

    quantiles = {one["title"].split()[2] for one in left(work)["networks"] if one["kind"] == "oneshot ticket"}

    assert quantiles == {"q33", "q50", "q90"}


def test_which_controls_follow_is_known_once_all_tickets_are_trained(monkeypatch, tmp_path):
    run = Run(tmp_path / "run", planned("60,90", "1ep", 3, ["shuffle"], ""))
    network = graph.tickets(1, "oneshot", run.recipe.families["oneshot"], 90, [45])[0]
    monkeypatch.setattr(forecast.grouping, "controls", lambda *_: [network])

    missing, finished = forecast._networks(run, Plan(run.recipe, 45))
    assert (len(missing), finished, sum(not one.certain for one in missing)) == (3 + 6 + 3, 0, 3)

    monkeypatch.setattr(NetworkFiles, "is_finished", property(lambda files: True))
    assert forecast._networks(run, Plan(run.recipe, 45)) == ([], 3 + 6 + 1)


def test_of_a_training_that_was_interrupted_only_the_rest_counts(tmp_path):
    run = Run(tmp_path / "run", planned("60", "1ep", 1))
    whole = forecast._networks(run, Plan(run.recipe, 45))[0]
    for network in (run.replicate(1).dense, run.network(whole[1].network)):
        network.folder.mkdir(parents=True)
        journal.append(network.metrics, {"step": 90}, "")
        network.checkpoint.touch()

    rest = forecast._networks(run, Plan(run.recipe, 45))[0]

    assert [one.epochs - other.epochs for one, other in zip(whole, rest, strict=True)] == [2, 1]


def test_an_epoch_is_as_long_as_its_steps_and_evaluations(tensorflow, monkeypatch):
    from data_prep.prepare import expected
    from lottery.engine import devices, trial
    from lottery.engine.bundle import sizes
    from lottery.experiment import reading

    monkeypatch.setattr(devices, "set_up_tensorflow", lambda train, cores: ["CPU:0"])
    monkeypatch.setattr(sizes, "CALL_SECONDS", 0.01)
    recipe = reading.resolve({"model": {"name": "lenet_300_100"}, "data": {"size": 8, "crop": 0}})
    manifest = expected(recipe.records())
    trainer = trial.make_trainer(recipe, manifest, cores=1)

    assert trainer.feed.counts == {"train": 1151, "validation": 287, "test": 1}
    short, long = (trial.seconds_of_epoch(trainer, manifest, evaluations) for evaluations in (0, 1000))
    assert 0 < short < 10
    assert long > 2 * short
