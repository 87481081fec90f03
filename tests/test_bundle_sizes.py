"""How large bundles are: what trains alone, what fits into memory, and the size that `--bundle auto` finds."""

import contextlib
import dataclasses
import json

import pytest
from helpers import imp_here
from tiny import CPUS

from lottery.base.capacity import Allocation
from lottery.base.errors import Failed
from lottery.base.progress import Reporter
from lottery.engine.bundle import sizes
from lottery.engine.stream import StreamFeed
from lottery.executors import allocation
from lottery.rundir.run import open_run
from lottery.stages import bundles

ALONE = Allocation((), 1)


def test_what_trains_alone_says_why(make_trainer):
    assert sizes.obstacle(make_trainer()) is None
    assert "2 devices" in sizes.obstacle(make_trainer(devices=CPUS[:2]))
    streamed = make_trainer(feed=lambda *given: StreamFeed(*given[:3], CPUS[:1], 1))
    assert "not in memory" in sizes.obstacle(streamed)


def test_memory_counts_activations_by_the_batch_and_variables_once(make_trainer):
    small, large = (make_trainer(batch=batch) for batch in (4, 8))

    layers = 8 * 8 * 3 + 8 * 8 * 3 + 300 + 100 + 3  # the input, flattened, and each layer
    more = sizes.bytes_of_each(large) - sizes.bytes_of_each(small)
    assert more == pytest.approx(4 * 4 * layers * sizes.ACTIVATIONS, rel=0.01)


def test_ranks_share_what_memory_is_free(make_trainer, monkeypatch):
    monkeypatch.setattr(sizes.capacity, "free_memory", lambda: 1000)

    assert sizes.free_bytes(make_trainer(), dataclasses.replace(ALONE, on_host=4)) == 250


def test_a_bundle_that_does_not_fit_is_refused_with_the_size_that_does(work, monkeypatch):
    monkeypatch.setattr(sizes, "bytes_of_each", lambda trainer: 10**9)
    monkeypatch.setattr(sizes, "free_bytes", lambda trainer, allocation: 25 * 10**8)

    refused = imp_here("retrain", "--bundle", "3", cwd=work, check=False)

    assert refused.returncode == 2
    assert "a bundle of 3 takes about 3 GB of memory, 2.5 GB are free: --bundle 2 fits" in refused.stderr
    done = imp_here("retrain", "--bundle", "2", cwd=work)
    assert "a bundle of 2 takes about 2 GB" in done.stderr


def test_measured_sizes_end_where_one_does_not_fit_or_gains_too_little(make_trainer, monkeypatch):
    monkeypatch.setattr(sizes, "CALL_SECONDS", 0.0)
    trainer, each = make_trainer(), sizes.bytes_of_each(make_trainer())
    monkeypatch.setattr(sizes, "GAIN", 0.0)
    monkeypatch.setattr(sizes, "free_bytes", lambda trainer, allocation: 5 * each)
    assert list(sizes.measure(trainer, ALONE)) == [1, 2, 4]

    monkeypatch.setattr(sizes, "GAIN", 1e9)
    assert list(sizes.measure(trainer, ALONE)) == [1, 2]
    assert list(sizes.measure(make_trainer(devices=CPUS[:2]), ALONE)) == [1]


@pytest.fixture
def gpu(monkeypatch):
    """A machine with what it takes for a GPU; TensorFlow finds none, and computes on the cores."""
    own = dataclasses.replace(allocation.resources_here(), gpus=("GPU-none",))
    monkeypatch.setattr(bundles, "resources_here", lambda: own)


@pytest.mark.parametrize("where", ["cores", "gpu"])
def test_auto_measures_once_beside_a_gpu_and_not_at_all_without(work, request, monkeypatch, where):
    run = open_run(work / "runs/digits")
    if where == "cores":
        assert bundles.fastest(run, None, Reporter(quiet=True)) == 1
        assert not run.bundle.exists()
        return
    request.getfixturevalue("gpu")
    size = bundles.fastest(run, None, Reporter(quiet=True))

    kept = json.loads(run.bundle.read_text())
    assert (kept["gpu"], kept["per_gpu"], kept["size"]) == ("GPU-none", 1, size)
    assert kept["seconds_of_step"][str(size)] == min(kept["seconds_of_step"].values())
    monkeypatch.setattr(bundles, "ProcessPoolExecutor", None)
    assert bundles.fastest(run, None, Reporter(quiet=True)) == size
    with pytest.raises(TypeError):
        bundles.fastest(run, 2, Reporter(quiet=True))


def test_a_measurement_that_dies_is_said_in_a_line(work, gpu, monkeypatch):
    class Dying:
        def submit(self, *given):
            raise bundles.BrokenProcessPool

    monkeypatch.setattr(bundles, "ProcessPoolExecutor", lambda *given: contextlib.nullcontext(Dying()))

    with pytest.raises(Failed, match="name a size"):
        bundles.fastest(open_run(work / "runs/digits"), None, Reporter(quiet=True))


@pytest.mark.parametrize("given", ["0", "x", "1001"])
def test_what_is_no_size_is_refused_in_a_line(work, given):
    refused = imp_here("retrain", "--bundle", given, cwd=work, check=False)

    assert refused.returncode == 2
    assert "is not a number of networks" in refused.stderr
