"""Families of whole units through the command line: masks, controls, comparisons, ticket folders, bad input."""

import csv
import shutil

import numpy as np
import pytest
from helpers import LENET, contents, imp_here, refused, settings

from lottery.base import files
from lottery.pruning import costs, masks, ranking
from lottery.pruning.connectivity import Node, Topology
from lottery.pruning.units import Blocks, NofM, channels_of
from lottery.results import instability
from lottery.results.reader import open_results
from lottery.rundir import records, store
from lottery.rundir.names import NetworkFiles
from lottery.rundir.records import PairRecord
from lottery.rundir.run import open_run
from lottery.rundir.tickets import open_ticket

KERNELS = {"conv1/kernel": (3, 3, 3, 4), "conv2/kernel": (3, 3, 4, 4), "conv3/kernel": (3, 3, 4, 4)}  # of tiny:local
COUNT = 108 + 144 + 144
# The stream of conv1 and conv2 goes together, and the 16 places of conv3's channels that the last layer reads.
STREAM = ("conv1/kernel", "bn1/gamma", "bn1/beta", "conv2/kernel", "bn2/gamma", "bn2/beta")
BEHIND = ("bn3/gamma", "bn3/beta", "predictions/kernel")


def family(name, *values, quantiles="50", controls=()):
    named = ",".join(f'"{control}"' for control in controls)
    table = [f"quantiles={quantiles}", "rewind=0", f"controls=[{named}]", f"controls_at={quantiles}", *values]
    return settings(*(f"families.{name}.{value}" for value in table if not value.endswith("=")))


SHORT = ("train.epochs=1", "train.warmup=0")
FAMILIES = [
    *family("channels", "units=channel", controls=("shuffle", "invert", "random")),
    *family("macs", "units=channel", "target=macs", "per_mac=true"),
    *family("blocks", "units=2x2"),
    *family("pairs", "units=2:4"),
    *family("weights", controls=("shuffle", "refill", "signs", "supermask")),
    *family("chain", "units=channel", "unit_score=norm", "rounds=2", "rate=30", quantiles=""),
]


@pytest.fixture(scope="module")
def finished(tensorflow, tmp_path_factory):
    """A run with a convolutional network, whose families are all trained."""
    folder = tmp_path_factory.mktemp("structured")
    alike = [*LENET, *settings("model.name=tiny:local", "families.oneshot.rewind=0", "train.snapshots=0", *SHORT)]
    imp_here("prepare", *alike, cwd=folder)
    imp_here("train", cwd=folder)
    one_shot = [part for name in ("channels", "macs", "blocks", "pairs", "weights") for part in ("--family", name)]
    imp_here("thresholds", *FAMILIES, *one_shot, cwd=folder)
    imp_here("retrain", *one_shot, cwd=folder)
    imp_here("rounds", "--family", "chain", cwd=folder)
    return folder


def replicate(folder):
    return open_run(folder / "runs/digits", must_exist=True).replicate(1)


def cut_of(folder, name, label="q50"):
    [mask] = [one for one in replicate(folder).masks(name) if one.mask.stem.startswith(label)]
    return store.load_mask(mask.mask), mask.read()


def network(folder, name, variant="ticket", label="q50"):
    return replicate(folder).folder / name / f"{label}-step-000000" / variant


def own_mask(folder, name, variant):
    return store.load_mask(network(folder, name, variant) / "mask.h5")


def magnitudes(folder):
    """The channels of the network, and how large its trained prunable weights are."""
    place = replicate(folder)
    dense = store.load_state(place.snapshot(place.snapshot_steps()[-1]), optimizer=False).weights
    shapes = {path: array.shape for path, array in dense.items()}
    whole = channels_of("test", "mean", shapes, KERNELS, place.read_topology(), True)
    return whole, {path: np.abs(dense[path]) for path in KERNELS}


def prunable(mask):
    return sum(int(mask[path].sum()) for path in KERNELS)


def is_of_whole_channels(mask):
    """Whether all of the stream keep the same channels, and what is behind `conv3` the same as it."""
    stream, behind = mask["bn1/beta"], mask["bn3/beta"]
    expected = {
        "conv1/kernel": np.broadcast_to(stream, (3, 3, 3, 4)),
        "conv2/kernel": np.broadcast_to(np.outer(stream, stream), (3, 3, 4, 4)),
        "conv3/kernel": np.broadcast_to(np.outer(stream, behind), (3, 3, 4, 4)),
        "predictions/kernel": np.tile(behind, 16)[:, None].repeat(10, 1),
        **dict.fromkeys((path for path in STREAM if path.startswith("bn")), stream),
        **dict.fromkeys(("bn3/gamma", "bn3/beta"), behind),
    }
    return mask.keys() == expected.keys() and all(np.array_equal(mask[path], bits) for path, bits in expected.items())


def test_channels_go_with_all_that_belongs_to_them_and_what_is_prunable_is_counted(finished):
    for name, label in (("channels", "q50"), ("macs", "q50"), ("chain", "round-01"), ("chain", "round-02")):
        mask, record = cut_of(finished, name, label)

        assert is_of_whole_channels(mask)
        assert not all(bits.all() for bits in mask.values())
        assert record.layers.keys() == record.kept.layers.keys() == KERNELS.keys()
        before = COUNT if label != "round-02" else cut_of(finished, name, "round-01")[1].remaining
        assert (record.pruned, record.remaining) == (before - prunable(mask), prunable(mask))
        assert record.kept.density.prunable == pytest.approx(prunable(mask) / COUNT)
        assert record.layers["conv2/kernel"].rate is None, "its channels are those of conv1, with which they are ranked"


def test_of_macs_no_more_than_the_share_is_left_in_channels_of_the_highest_scores_for_what_they_cost(finished):
    (whole, sizes), topology = magnitudes(finished), replicate(finished).read_topology()
    means, _ = whole.pool(sizes, masks.whole(sizes))
    each = whole.total({path: np.full(shape, topology.positions[path]) for path, shape in topology.kernels.items()})
    scores = np.concatenate([means[path] / each[path] for path in means])
    mask, _ = cut_of(finished, "macs")
    kept, most = np.concatenate([mask["bn1/beta"], mask["bn3/beta"]]), costs.macs(masks.whole(mask), topology)

    assert costs.macs(mask, topology) <= most - ranking.pruned_count(50, most)
    assert scores[~kept].max() < scores[kept].min()


def test_rounds_of_channels_only_shrink_by_the_rate_of_the_weights_that_are_left(finished):
    (first, one), (second, other) = (cut_of(finished, "chain", f"round-0{number}") for number in (1, 2))

    assert not any((second[path] & ~first[path]).any() for path in first)
    assert one.remaining <= COUNT - round(0.3 * COUNT)
    assert other.remaining <= one.remaining - round(0.3 * one.remaining)
    assert other.remaining < one.remaining


def test_blocks_are_whole_and_of_four_inputs_two_stay(finished):
    for name, units, counts in (("blocks", Blocks(2, 2), range(195, 199)), ("pairs", NofM(2, 4), [200])):
        mask, _ = cut_of(finished, name)
        kept = units.pool({path: bits.astype(np.float32) for path, bits in mask.items()}, mask)[1]
        of_units = units.spread(kept, masks.whole(mask))
        assert all(np.array_equal(of_units[path], bits) for path, bits in mask.items())
        assert prunable(mask) in counts  # of 396, of which a block has four, and 27 inputs keep 14


def test_invert_keeps_the_channels_of_the_lowest_scores(finished):
    mask, (whole, sizes) = own_mask(finished, "channels", "invert"), magnitudes(finished)
    scores = np.concatenate(list(whole.pool(sizes, masks.whole(sizes))[0].values()))
    kept = np.concatenate([mask["bn1/beta"], mask["bn3/beta"]])

    assert is_of_whole_channels(mask)
    assert prunable(mask) <= COUNT - ranking.pruned_count(50, COUNT)
    assert scores[kept].max() < scores[~kept].min()


def test_a_supermask_is_the_start_under_the_mask_and_not_trained(finished):
    mask, folder = cut_of(finished, "weights")[0], network(finished, "weights", "supermask")
    start, final = store.load_state(replicate(finished).snapshot(0)), store.load_state(folder / "final.h5")
    result = files.read_json(folder / "result.json")

    assert all(np.array_equal(final.weights[path], start.weights[path] * kept) for path, kept in mask.items())
    assert result["status"] == "done"
    assert result["first_step"] == result["step"]
    assert result["training_macs"] < files.read_json(network(finished, "weights") / "result.json")["training_macs"]
    assert files.read_json(network(finished, "weights", "signs") / "result.json")["status"] == "done"


def test_what_is_pruned_is_zero_in_biases_and_normalisation_too(finished):
    for name, variant in (*(("channels", one) for one in ("ticket", "shuffle", "random")), ("weights", "refill")):
        mask = cut_of(finished, name)[0] if variant == "ticket" else own_mask(finished, name, variant)
        final, result = (network(finished, name, variant) / one for one in ("final.h5", "result.json"))
        weights = store.load_state(final).weights
        assert is_of_whole_channels(mask)
        assert not any(weights[path][~bits].any() for path, bits in mask.items())
        assert {path: one["kept"] for path, one in files.read_json(result)["kept"]["layers"].items()} == {
            path: mask[path].sum() for path in KERNELS
        }


def test_the_line_between_rounds_goes_from_network_to_network(finished):
    told = imp_here("stability", "--between", "rounds", "--family", "chain", cwd=finished)
    again = imp_here("stability", "--between", "rounds", "--family", "chain", cwd=finished)

    first, second = (
        records.read(network(finished, "chain", "pair-before.json", f"round-0{number}"), PairRecord) for number in (1, 2)
    )
    ends = [replicate(finished).dense.read_result()]
    ends += [NetworkFiles(network(finished, "chain", label=f"round-0{number}")).read_result() for number in (1, 2)]
    for found, before, after in ((first, *ends[:2]), (second, *ends[1:])):
        for end, result in ((0, before), (-1, after)):
            assert found.errors["test"][end] == pytest.approx(1 - result.reached("test"))
        assert found.recomputed["test"][-1] == found.projected["test"][-1]  # it has its own mask already
        assert found.copies is None
    assert first.recomputed["train"] != first.errors["train"]  # in the second, both ends are at chance
    assert told.stdout.count("chain from 0") == 2
    assert "2 pairs of trainings, 0 to interpolate" in again.stderr
    run = open_run(finished / "runs/digits")
    assert instability.groups(run).empty  # of copies
    assert imp_here("verify", "runs/digits", cwd=finished).returncode == 0


def test_tables_have_the_layers_that_are_not_ranked(finished):
    shown = imp_here("thresholds", "--family", "channels", cwd=finished).stdout
    rows = list(csv.DictReader((replicate(finished).folder / "channels/thresholds.csv").open()))

    assert "scores of 8 channels of 396 weights (kernels)" in shown
    assert [row["layer"] for row in rows] == ["", *sorted(KERNELS)]
    assert [bool(row["threshold"]) for row in rows] == [True, True, False, True]


def test_masks_are_compared_by_the_units_that_both_are_made_of(finished):
    shown = imp_here("compare", cwd=finished).stdout
    rows = list(csv.DictReader((finished / "runs/digits/report/compare.csv").open()))

    whole = {(row["first"], row["second"]): row for row in rows if not row["layer"]}
    assert whole["channels/q50", "macs/q50"]["units"] == "channel"
    assert (whole["channels/q50", "macs/q50"]["size"], whole["channels/q50", "weights/q50"]["size"]) == ("8", "396")
    assert whole["blocks/q50", "pairs/q50"]["units"] == "weight"
    assert "by channels" in shown


def test_a_ticket_of_channels_is_imported_with_biases_and_normalisation_and_trained_anew(finished, tmp_path):
    shutil.copytree(finished / "data", tmp_path / "data")
    imp_here("export", "--ticket", "channels/q50-step-000000", "--to", "folder", "--out", str(tmp_path / "own"), cwd=finished)
    ticket = open_ticket(tmp_path / "own")
    mask, record = cut_of(finished, "channels")

    controls = 'families.imported.controls=["shuffle"]'
    imp_here("import", "own", "--run", "runs/digits", "--set", controls, cwd=tmp_path)
    for command in ("train", "thresholds", "retrain"):
        imp_here(command, cwd=tmp_path)

    run = open_run(tmp_path / "runs/digits", must_exist=True)
    [quantile] = run.recipe.families["imported"].quantiles
    assert ranking.pruned_count(quantile, COUNT) == record.pruned
    label = f"q{quantile}"
    imported, its = cut_of(tmp_path, "imported", label)
    assert imported.keys() == mask.keys() == ticket.mask.keys()
    assert all(np.array_equal(imported[path], bits) for path, bits in mask.items())
    assert (its.pruned, its.remaining, its.kept.density) == (record.pruned, record.remaining, record.kept.density)
    assert (network(tmp_path, "imported", "shuffle", label) / "final.h5").exists()
    shuffled = store.load_mask(network(tmp_path, "imported", "shuffle", label) / "mask.h5")
    assert is_of_whole_channels(shuffled)
    before, after = (
        store.load_state(network(*place) / "final.h5").weights
        for place in ((finished, "channels"), (tmp_path, "imported", "ticket", label))
    )
    assert all(np.array_equal(before[path], after[path]) for path in before)


def test_a_ticket_of_two_of_four_is_imported_though_short_groups_keep_more(finished, tmp_path):
    imp_here("export", "--ticket", "pairs/q50-step-000000", "--to", "folder", "--out", str(tmp_path / "own"), cwd=finished)

    imp_here("import", "own", "--run", "runs/digits", cwd=tmp_path)

    [quantile] = open_run(tmp_path / "runs/digits", must_exist=True).recipe.families["imported"].quantiles
    assert ranking.pruned_count(quantile, COUNT) == cut_of(finished, "pairs")[1].pruned


def test_readers_give_the_masks_as_they_were_cut(finished):
    results = open_results(finished / "runs/digits")
    [ticket] = results.networks(family="channels", mask="q50", variant="ticket")
    mask, _ = cut_of(finished, "channels")

    assert all(np.array_equal(ticket.mask()[path], mask[path]) for path in mask)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["units=64x1"], "a block is larger than conv"),
        (["units=channel", "target=macs", "quantiles=99.9"], "can be pruned, as the rest is not made of such units"),
        (["units=channel", "densities=['conv2/kernel=50']"], "'conv2/kernel' has no channels: conv1/kernel, conv3/kernel have"),
    ],
)
def test_what_no_units_can_do_is_one_line_and_changes_nothing(finished, values, words):
    before = contents(finished / "runs")

    refused(imp_here("thresholds", "--family", "other", *family("other", *values), cwd=finished, check=False), words)

    assert contents(finished / "runs") == before


def test_a_mask_in_a_file_must_be_made_of_the_units_that_the_family_has(finished, tmp_path):
    imp_here("export", "--ticket", "weights/q50-step-000000", "--to", "folder", "--out", str(tmp_path / "own"), cwd=finished)
    own = family("other", "units=2x2", f"mask={tmp_path / 'own' / 'mask.safetensors'}")

    refused(imp_here("thresholds", "--family", "other", *own, cwd=finished, check=False), "is not of whole units = 2x2")


UNKNOWN = Topology((Node("images", "input", 3), Node("all", "mix", 10, ("images",), kernels=KERNELS)), ("all",))


@pytest.mark.parametrize(
    ("topology", "values", "words"),
    [
        (None, ["target=macs"], "the multiply-accumulates of this network are not known"),
        (UNKNOWN, ["per_mac=true"], "the multiply-accumulates of this network are not known"),
    ],
)
def test_networks_that_are_not_known_well_enough_are_refused_in_one_line(finished, topology, values, words, monkeypatch):
    monkeypatch.setattr("lottery.rundir.names.Replicate.read_topology", lambda replicate: topology)

    refused(imp_here("thresholds", "--family", "other", *family("other", *values), cwd=finished, check=False), words)
