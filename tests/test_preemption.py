"""The signals by which a cluster takes its machine back: raised at once, or noted where something is under way."""

import os
import signal
import threading

import pytest

from lottery.base import preemption
from lottery.base.preemption import Preempted

SIGNALS = [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP]


def send(number):
    os.kill(os.getpid(), number)


def handlers():
    return [signal.getsignal(number) for number in SIGNALS]


@pytest.fixture(autouse=True)
def left_as_found():
    before = handlers()
    yield
    assert handlers() == before
    assert not preemption.asked()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_process_at_once_and_is_named(number):
    passed = []

    def work():
        passed.append("before")
        send(number)
        passed.append("after")

    with pytest.raises(Preempted, match=f"^stopped by {number.name}$"), preemption.heeded():
        work()

    assert passed == ["before"]


def test_a_hang_up_that_is_ignored_as_under_nohup_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with preemption.heeded():
            send(signal.SIGHUP)
            assert not preemption.asked()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_is_under_way_is_gone_on_with_until_it_looks():
    passed = []

    def work():
        assert not preemption.asked()
        preemption.check()
        send(signal.SIGUSR1)
        passed.append("under way")
        assert preemption.asked()
        preemption.check()
        passed.append("after")

    with pytest.raises(Preempted, match="SIGUSR1"), preemption.heeded(), preemption.deferred():
        work()

    assert passed == ["under way"]


def test_a_deferral_within_another_ends_with_the_outer_one():
    passed = []
    with preemption.heeded():
        with preemption.deferred():
            with preemption.deferred():
                pass
            send(signal.SIGTERM)
            passed.append("deferred")
        with pytest.raises(Preempted):
            preemption.check()
        with pytest.raises(Preempted):
            send(signal.SIGTERM)

    assert passed == ["deferred"]


def test_a_deferral_that_fails_is_over():
    with preemption.heeded():
        with pytest.raises(ZeroDivisionError), preemption.deferred():
            _ = 1 / 0
        with pytest.raises(Preempted):
            send(signal.SIGTERM)


def test_a_signal_of_an_earlier_command_is_forgotten():
    with preemption.heeded(), preemption.deferred():
        send(signal.SIGTERM)

    with preemption.heeded():
        assert not preemption.asked()
        preemption.check()


def test_in_another_thread_handlers_stay_as_they_are():
    found = []

    def other():
        with preemption.heeded():
            found.append(handlers())

    before = handlers()
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()

    assert found == [before]


def test_within_another_a_block_that_heeds_signals_leaves_what_came_to_the_outer_one():
    with preemption.heeded(), preemption.deferred():
        with preemption.heeded():
            preemption.ask("stopped by SIGTERM")
        assert preemption.asked()
    assert not preemption.asked()
