"""Families whose masks change in training, through the command line: exact masks, controls, the same bytes, bad input."""

import shutil
from fractions import Fraction

import numpy as np
import pytest
from helpers import contents, imp_here, refused, settings

from lottery.base import files
from lottery.pruning import ranking
from lottery.results.reader import open_results
from lottery.rundir import store

SIZES = {"fc1/kernel": 192 * 300, "fc2/kernel": 300 * 100}


def family(name, *values, quantiles="90"):
    table = [f"quantiles={quantiles}", "rewind=0", f"controls_at={quantiles}", "update_every=5it", *values]
    return settings(*(f"families.{name}.{value}" for value in table))


GMP = family("gmp", "updates=gmp", 'controls=["rewound","reinit","shuffle"]')
RIGL = family("rigl", "updates=rigl", "criterion=random", "scored_at=0", "allocation=erk", 'controls=["rewound"]')
CHANNELS = family("channels", "updates=gmp", "units=channel", "controls=[]")
STATIC = family("static", "criterion=random", "scored_at=0", "allocation=erk", "controls=[]")


@pytest.fixture(scope="module")
def finished(trained, tmp_path_factory):
    """A run of lenet with families of GMP, of channels too, of RigL and of static masks, beside that of one shot."""
    folder = tmp_path_factory.mktemp("sparse") / "work"
    shutil.copytree(trained, folder, symlinks=True)
    imp_here("run", *GMP, *RIGL, *STATIC, *CHANNELS, "--ranks", "1", cwd=folder)
    return folder


def network(folder, name, variant="ticket"):
    return folder / f"runs/digits/replicate-1/{name}/q90-step-000000/{variant}"


def kept(mask):
    return {path: int(bits.sum()) for path, bits in mask.items()}


def test_gmp_ends_with_as_many_weights_as_one_shot_and_rigl_with_as_many_of_each_layer_as_it_began_with(finished):
    total = sum(SIZES.values())
    gmp, rigl = (store.load_mask(network(finished, name) / "mask.h5") for name in ("gmp", "rigl"))
    begun = store.load_mask(finished / "runs/digits/replicate-1/rigl/masks/q90.h5")
    one_shot = store.load_mask(finished / "runs/digits/replicate-1/oneshot/masks/q90.h5")

    assert sum(kept(gmp).values()) == sum(kept(one_shot).values()) == total - ranking.pruned_count(Fraction(90), total)
    assert kept(rigl) == kept(begun)
    assert any((rigl[path] != begun[path]).any() for path in rigl)
    assert not (finished / "runs/digits/replicate-1/gmp/masks").exists()
    for name, mask in (("gmp", gmp), ("rigl", rigl)):
        final = store.load_state(network(finished, name) / "final.h5")
        result = files.read_json(network(finished, name) / "result.json")
        for path, bits in mask.items():
            assert not final.weights[path][~bits].any()
            assert result["kept"]["layers"][path]["kept"] == bits.sum()


def test_gmp_of_channels_ends_with_whole_ones_and_says_what_it_keeps_of_prunable_kernels_alone(finished):
    mask, result = (network(finished, "channels") / name for name in ("mask.h5", "result.json"))
    bits, total = store.load_mask(mask), sum(SIZES.values())

    assert bits.keys() == {*SIZES, "fc1/bias", "fc2/bias", "predictions/kernel"}
    assert (bits["fc2/kernel"] == bits["fc1/bias"][:, None] & bits["fc2/bias"]).all()
    left = kept({path: bits[path] for path in SIZES})
    assert 0 <= total - ranking.pruned_count(Fraction(90), total) - sum(left.values()) < 192 + 300
    assert {path: layer["kept"] for path, layer in files.read_json(result)["kept"]["layers"].items()} == left


@pytest.mark.parametrize(("units", "kept_by_fc1"), [("weight", "32.8767"), ("channel", "37.5000")])
def test_densities_that_gmp_cannot_reach_are_told_before_it_trains(work, units, kept_by_fc1):
    given = family("gmp", "updates=gmp", "controls=[]", 'densities=["fc1/*=50"]', f"units={units}")
    done = imp_here("retrain", "--family", "gmp", *given, cwd=work, check=False)

    assert done.returncode == 1
    assert f"cannot be reached: fc1/kernel alone keep {kept_by_fc1}% of the weights" in done.stderr
    assert not (network(work, "gmp") / "metrics.jsonl").exists()


def test_grids_that_are_given_must_fit_the_family(work):
    longer = family("long", "length=2.0", "criterion=random", "scored_at=0", "controls=[]")
    imp_here("thresholds", *longer, cwd=work)
    refused(imp_here("retrain", "--family", "long", "--rewind", "1ep", cwd=work, check=False), 'with rewind = "0"')


def test_results_say_what_they_cost_to_train_and_to_find(finished):
    total, steps, batch = sum(SIZES.values()), 51, 64
    dense = total + 1000  # the output layer is not pruned

    def macs(name, variant="ticket"):
        result = files.read_json(network(finished, name, variant) / "result.json")
        return result["training_macs"], result["finding_macs"]

    masks = {name: store.load_mask(network(finished, name) / "mask.h5") for name in ("gmp", "rigl")}
    left = sum(kept(masks["rigl"]).values()) + 1000
    looks = 7  # before steps 5, 10 ... 35, of 38
    rigl = (3 * left * (steps - looks) + (2 * left + dense) * looks) * batch
    assert macs("static") == (3 * left * steps * batch, 0)
    assert macs("rigl") == (rigl, 0)
    assert macs("rigl", "rewound") == (3 * left * steps * batch, rigl)
    assert 3 * left * steps * batch < macs("gmp")[0] < 3 * dense * steps * batch
    assert macs("gmp", "reinit") == (3 * (sum(kept(masks["gmp"]).values()) + 1000) * steps * batch, macs("gmp")[0])
    assert macs("oneshot") == (3 * left * steps * batch, 3 * dense * steps * batch)
    whole = files.read_json(finished / "runs/digits/replicate-1/train/result.json")
    assert (whole["training_macs"], whole["finding_macs"]) == (3 * dense * steps * batch, 0)

    rows = open_results(finished / "runs/digits").frame().set_index(["family", "mask", "variant", "rewind_step"])
    assert rows.loc[("static", "q90", "ticket", 0), "training_cost"] == pytest.approx(3 * left / dense)
    assert rows.loc[("oneshot", "q90", "ticket", 17), "finding_cost"] == pytest.approx(3)
    page = (finished / "runs/digits/report/summary.md").read_text()
    assert "## Families at equal density" in page
    assert "| 10.00% | static from 0 |" in page


def test_controls_have_the_mask_that_their_ticket_ended_with(finished):
    mask = store.load_mask(network(finished, "gmp") / "mask.h5")

    for variant in ("rewound", "reinit"):
        folder, result = network(finished, "gmp", variant), files.read_json(network(finished, "gmp", variant) / "result.json")
        assert not (folder / "mask.h5").exists()
        assert "gmp/q90-step-000000/ticket/mask.h5" in result["made_from"]
        weights = store.load_state(folder / "final.h5").weights
        assert not any(weights[path][~bits].any() for path, bits in mask.items())
    shuffled = store.load_mask(network(finished, "gmp", "shuffle") / "mask.h5")
    assert kept(shuffled) == kept(mask)
    assert any((shuffled[path] != mask[path]).any() for path in mask)
    made = {one.result.variant: one for one in open_results(finished / "runs/digits").networks(family="gmp")}
    assert all(np.array_equal(made["rewound"].mask()[path], bits) for path, bits in mask.items())


def test_the_same_command_again_does_nothing_and_the_same_run_anew_has_the_same_bytes(finished, trained, tmp_path):
    before = contents(finished / "runs/digits")
    imp_here("retrain", cwd=finished)
    assert contents(finished / "runs/digits") == before

    again = tmp_path / "work"
    shutil.copytree(trained, again, symlinks=True)
    imp_here("retrain", "--family", "gmp", *GMP, *settings("families.gmp.controls=[]"), cwd=again)
    for name in ("final.h5", "mask.h5"):
        assert (network(again, "gmp") / name).read_bytes() == (network(finished, "gmp") / name).read_bytes()


def test_masks_of_statistics_do_not_change(work):
    given = settings("families.own.quantiles=50", "families.own.updates=gmp", "pruning.scope=all")
    refused(imp_here("run", *given, cwd=work, check=False), "set pruning.scope to kernels or pointwise")
