"""Seeds: functions of the recipe's seed, the replicate and the purpose, for ever the same."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from lottery.experiment import seeds


def test_a_seed_is_the_top_31_bits_of_a_sha256():
    expected = int(hashlib.sha256(b"0/1/order").hexdigest()[:8], 16) // 2

    assert seeds.derive(0, 1, "order") == expected == 1_832_289_658


def test_every_purpose_replicate_and_recipe_has_its_own_seed():
    found = {
        seeds.derive(seed, replicate, purpose)
        for seed in range(5)
        for replicate in range(1, 6)
        for purpose in ("initialisation", "order", "ticket order", "shuffle q90", "shuffle q9")
    }

    assert len(found) == 125


def test_seed_and_replicate_do_not_run_together():
    assert seeds.derive(1, 11, "order") != seeds.derive(11, 1, "order")


@given(seed=st.integers(0, 2**70), replicate=st.integers(1, 1000), purpose=st.text())
def test_a_seed_fits_every_generator(seed, replicate, purpose):
    assert 0 <= seeds.derive(seed, replicate, purpose) < 2**31
