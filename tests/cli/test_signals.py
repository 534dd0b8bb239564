"""Signals that end a command."""

import os
import signal
import sys
import time

import pytest

from fcorun.cli.signals import interruptible


class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)  # the interruption is raised here, where Python can only say that it ignores it


@pytest.fixture
def told(monkeypatch):
    """What is said of errors that cannot be raised."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    return found


@pytest.mark.parametrize("seconds", [20, 0])
def test_an_interruption_within_a_finalizer_is_not_lost(told, seconds):
    hook, handlers = sys.unraisablehook, [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)]

    def interrupted() -> None:
        with interruptible():
            Finalized()
            time.sleep(seconds)

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    time.sleep(0.2)  # nothing reminds of it any more
    assert time.monotonic() < begun + 10
    assert sys.unraisablehook == hook
    assert [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert told == []


def test_one_that_comes_after_it_is_the_last(told):
    kept = []

    def interrupted() -> None:
        with interruptible():
            Finalized()
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(20)
            except KeyboardInterrupt:
                time.sleep(0.3)  # as it takes to keep what there is
                kept.append(1)
                raise

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert kept == [1]


def test_other_errors_that_cannot_be_raised_are_told_as_ever(told):
    class Wrong:
        def __del__(self):
            raise ValueError

    with interruptible():
        Wrong()
    assert [lost.exc_type for lost in told] == [ValueError]
