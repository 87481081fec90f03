"""HDF5 files: what goes in comes out, and a file that was altered or cut is refused by name."""

import json
import subprocess
import sys
import textwrap

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lottery.base.errors import InputError
from lottery.rundir import store

DTYPES = st.sampled_from(["<f4", "<f8", "<f2", "<i8", "<i4", "|u1", "|b1"])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)
ARRAYS = st.dictionaries(
    st.sampled_from(["fc/kernel", "fc/bias", "bn/gamma", "sgd/fc/kernel_momentum", "iterations"]), hnp.arrays(DTYPES, SHAPES)
)

MASKS = st.dictionaries(
    st.sampled_from(["a/kernel", "b/kernel", "c/d/kernel"]),
    hnp.arrays(bool, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)),
    min_size=1,
)

# A state with every kind of content, built from nothing but constants so that another process can build it too.
BUILD = """
import numpy as np
from lottery.rundir import store

ramp = np.arange(72, dtype=np.float32).reshape(3, 3, 2, 4)
STATE = store.State(
    step=7,
    weights={"conv/kernel": np.sin(ramp), "fc/bias": np.array([0.0, -0.0, 1.5], np.float32)},
    statistics={"bn/moving_mean": np.linspace(0, 1, 5)},
    optimizer={"iterations": np.array(7, np.int64), "flags": np.array([True, False]), "m/conv/kernel": ramp.astype(np.float16)},
)
"""
_built: dict = {}
exec(BUILD, _built)
STATE = _built["STATE"]


def identical(one, other):
    """Whether two groups of arrays hold the same paths, dtypes, shapes and bytes."""
    return one.keys() == other.keys() and all(
        one[path].dtype == other[path].dtype
        and one[path].shape == other[path].shape
        and np.asarray(one[path]).tobytes() == np.asarray(other[path]).tobytes()
        for path in one
    )


def same_state(one, other):
    return one.step == other.step and all(
        identical(getattr(one, group), getattr(other, group)) for group in ("weights", "statistics", "optimizer")
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(step=st.integers(0, 2**40), weights=ARRAYS, statistics=ARRAYS, optimizer=ARRAYS)
def test_a_state_of_any_shapes_and_dtypes_comes_back_as_it_was_saved(tmp_path, step, weights, statistics, optimizer):
    state = store.State(step, weights, statistics, optimizer)

    store.save_state(tmp_path / "state.h5", state)

    assert same_state(store.load_state(tmp_path / "state.h5"), state)


def test_attributes_come_back_as_plain_python_values(tmp_path):
    attributes = {"quantile": "97.5", "step": 12, "rate": 0.1}

    store.save(tmp_path / "file.h5", {"bits": {"a": np.zeros(1)}}, attributes)

    _, loaded = store.load(tmp_path / "file.h5")
    assert loaded == attributes
    assert [type(loaded[name]) for name in attributes] == [str, int, float]


def test_only_the_groups_that_are_asked_for_are_read(tmp_path):
    store.save_state(tmp_path / "state.h5", STATE)
    whole, attributes = store.load(tmp_path / "state.h5")

    for only in (["weights"], ("optimizer", "statistics"), [], ["nothing"]):
        found, also = store.load(tmp_path / "state.h5", only)
        assert list(found) == [name for name in whole if name in only]
        assert all(identical(found[name], whole[name]) for name in found)
        assert also == attributes
    without = store.load_state(tmp_path / "state.h5", optimizer=False)
    assert without.optimizer == {}
    assert same_state(store.State(without.step, without.weights, without.statistics, STATE.optimizer), STATE)


def test_damage_to_what_is_not_asked_for_is_refused_all_the_same(tmp_path):
    path = tmp_path / "state.h5"
    store.save_state(path, STATE)
    content = bytearray(path.read_bytes())
    content[content.index(STATE.optimizer["m/conv/kernel"].tobytes()) + 5] ^= 1
    path.write_bytes(content)

    with pytest.raises(InputError, match=r"state\.h5 is damaged"):
        store.load_state(path, optimizer=False)


def test_arrays_come_back_by_their_values_in_the_order_of_their_paths_and_stay_as_they_were(tmp_path):
    turned = np.arange(6.0).reshape(2, 3).T  # not contiguous
    turned.flags.writeable = False
    weights = {"b/kernel": turned, "a/kernel": np.array(7, np.int64)}

    store.save(tmp_path / "file.h5", {"weights": weights}, {})

    found = store.load(tmp_path / "file.h5")[0]["weights"]
    assert list(found) == ["a/kernel", "b/kernel"]
    assert list(weights) == ["b/kernel", "a/kernel"]
    np.testing.assert_array_equal(found["b/kernel"], [[0, 3], [1, 4], [2, 5]])
    assert isinstance(found["a/kernel"], np.ndarray)
    assert found["a/kernel"].shape == ()


def test_the_same_content_gives_the_same_bytes_in_this_process_and_another(tmp_path):
    store.save_state(tmp_path / "one.h5", STATE)
    store.save_state(tmp_path / "two.h5", STATE)
    run_python(BUILD + "from pathlib import Path\nstore.save_state(Path('three.h5'), STATE)", tmp_path)

    first = (tmp_path / "one.h5").read_bytes()
    assert (tmp_path / "two.h5").read_bytes() == first
    assert (tmp_path / "three.h5").read_bytes() == first


@pytest.mark.parametrize("share", [0, 0.5, 0.999])
def test_a_file_cut_short_is_named(tmp_path, share):
    path = tmp_path / "state.h5"
    store.save_state(path, STATE)
    content = path.read_bytes()
    path.write_bytes(content[: min(int(share * len(content)), len(content) - 1)])

    with pytest.raises(InputError, match="state\\.h5"):
        store.load_state(path)


def no_hdf5(path):
    path.write_text("weights are elsewhere")


def no_checksum(path):
    with h5py.File(path, "w") as file:
        file["weights/a"] = np.zeros(3)


def no_mask(path):
    store.save(path, {"bits": {"a/kernel": np.zeros(1, np.uint8)}}, {})


@pytest.mark.parametrize(
    ("make", "words"),
    [(lambda path: None, "is missing"), (no_hdf5, ""), (no_checksum, ""), (no_mask, "holds no mask: remove it")],
)
def test_a_file_that_is_missing_or_something_else_is_named(tmp_path, make, words):
    make(tmp_path / "q90.h5")

    with pytest.raises(InputError, match=rf"q90\.h5 {words}"):
        store.load_mask(tmp_path / "q90.h5")


# Runs apart from pytest: HDF5 itself may crash or hang on damaged metadata, and that must fail a test, not end them all.
FLIP = (
    BUILD
    + """
import signal, sys
from pathlib import Path
from lottery.base.errors import InputError

LOAD_SECONDS = 10
path = Path("state.h5")
store.save_state(path, STATE)
intact = path.read_bytes()
expected = store.load(path)


def content(loaded):
    groups, attributes = loaded
    arrays = [(group, name, a.dtype, a.shape, a.tobytes()) for group in groups for name, a in groups[group].items()]
    return arrays, attributes


def bits(where):
    if where == "anywhere":
        return np.random.default_rng(0).integers(0, 8 * len(intact), 200).tolist()
    attribute = intact.rindex(b"step")
    return range(8 * max(attribute - 160, 0), 8 * min(attribute + 240, len(intact)))


for bit in bits(sys.argv[1]):
    print(f"byte {bit // 8} bit {bit % 8}", flush=True)
    altered = bytearray(intact)
    altered[bit // 8] ^= 1 << bit % 8
    path.write_bytes(altered)
    signal.alarm(LOAD_SECONDS)
    try:
        loaded = store.load(path)
    except InputError as error:
        assert "state.h5" in str(error), error
    else:
        assert content(loaded) == content(expected), "other content"
print("ok")
"""
)


@pytest.mark.parametrize("where", ["anywhere", "among the attributes"])
def test_a_flipped_bit_is_refused_by_name_or_changes_nothing(tmp_path, where):
    done = subprocess.run([sys.executable, "-c", FLIP, where], cwd=tmp_path, capture_output=True, text=True)

    *_, last = done.stdout.splitlines()
    assert (last, done.returncode) == ("ok", 0), done.stderr


def test_a_full_disk_is_an_ordinary_error_that_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "state.h5"
    store.save_state(path, STATE)
    before = path.read_bytes()

    run_python(
        BUILD
        + """
import resource
from pathlib import Path

resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
STATE.step = 8
try:
    store.save_state(Path("state.h5"), STATE)
except OSError:
    print("refused")
""",
        tmp_path,
        expected="refused\n",
    )

    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.h5"]


def run_python(source, folder, expected=""):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(source)], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mask=st.one_of(st.just({}), MASKS))
def test_a_mask_of_any_shape_comes_back_as_it_was_packed(tmp_path, mask):
    store.save_mask(tmp_path / "q90.h5", mask, {"quantile": "90", "step": 0})

    loaded = store.load_mask(tmp_path / "q90.h5")

    assert identical(loaded, mask)
    assert all(kept.dtype == bool and kept.shape == mask[path].shape for path, kept in loaded.items())


def test_masks_are_stored_one_bit_a_weight_first_weight_highest(tmp_path):
    mask = {"a/kernel": np.array([[1, 0, 0, 0, 0], [0, 0, 1, 1, 1]], bool), "b/kernel": np.array([0, 1], bool)}

    store.save_mask(tmp_path / "q90.h5", mask, {})

    stored = store.load(tmp_path / "q90.h5")[0]["mask"]
    assert stored["bits"].tolist() == [0b10000001, 0b11000000, 0b01000000]
    assert json.loads(stored["layout"].item()) == {"a/kernel": [2, 5], "b/kernel": [2]}


def test_a_mask_in_the_place_of_a_network_is_refused_by_name(tmp_path):
    store.save_mask(tmp_path / "step-000000.h5", {"a/kernel": np.ones(3, bool)}, {})

    with pytest.raises(InputError, match=r"step-000000.h5 holds no network: remove it"):
        store.load_state(tmp_path / "step-000000.h5", optimizer=False)
