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


def test_an_interruption_within_a_finalizer_is_not_lost(capsys):
    before = sys.unraisablehook

    def interrupted() -> None:
        with interruptible():
            Finalized()
            time.sleep(20)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sys.unraisablehook is before
    assert "ignored" not in capsys.readouterr().err


def test_other_errors_that_cannot_be_raised_are_told_as_ever(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    class Wrong:
        def __del__(self):
            raise ValueError

    with interruptible():
        Wrong()
    assert [lost.exc_type for lost in told] == [ValueError]
