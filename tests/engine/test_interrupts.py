"""Signals that wait until bookkeeping is whole again."""

from __future__ import annotations

import signal
import threading

import pytest

from octavo.engine.interrupts import HeldInterrupts

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def received():
    """Numbers of the signals that reached the handlers."""
    seen: list[int] = []
    before = {signum: signal.signal(signum, lambda number, frame: seen.append(number)) for signum in BOTH}
    yield seen
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.parametrize("signum", BOTH)
def test_a_signal_waits_until_the_context_ends(received, signum):
    before = signal.getsignal(signum)
    with HeldInterrupts():
        signal.raise_signal(signum)
        assert received == []
    assert received == [signum]
    assert signal.getsignal(signum) is before


@pytest.mark.parametrize("signum", BOTH)
def test_in_a_window_it_arrives_at_once_and_after_it_waits_again(received, signum):
    with HeldInterrupts() as interrupts:
        signal.raise_signal(signum)
        with interrupts.let_through():
            assert received == [signum]
            signal.raise_signal(signum)
            assert received == [signum] * 2
        signal.raise_signal(signum)
        assert received == [signum] * 2
    assert received == [signum] * 3


def test_ctrl_c_raises_when_the_context_ends_and_not_before():
    reached = []

    def interrupted_inside() -> None:
        with HeldInterrupts():
            signal.raise_signal(signal.SIGINT)
            reached.append("the end of the block")

    with pytest.raises(KeyboardInterrupt):
        interrupted_inside()
    assert reached == ["the end of the block"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_failure_inside_gives_the_handlers_back(received):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="inside"), HeldInterrupts():
        raise ValueError("inside")
    assert signal.getsignal(signal.SIGINT) is before


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with HeldInterrupts() as interrupts, interrupts.let_through():
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_leaves_signals_alone(received):
    handlers = []

    def work() -> None:
        with HeldInterrupts():
            handlers.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [before]
