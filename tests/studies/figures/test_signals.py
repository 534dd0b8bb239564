"""Signals that interrupt a figure and the sweep that it runs."""

import os
import signal
import time
from pathlib import Path

import pytest

from fcorun.base.system.files import check_interrupted
from fcorun.interface.cli.commands import main


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_interrupts_the_sweep_and_the_figure_like_ctrl_c(kind, monkeypatch, capsys):
    signals = iter([kind])  # one, of whichever group of runs is first: a second one would end the process

    def interrupted(*_):
        for each in signals:
            os.kill(os.getpid(), each)
        for _ in range(2000):  # as runs do, at most for 20 seconds
            check_interrupted()
            time.sleep(0.01)

    monkeypatch.setattr("fcorun.runs.sweep_point.run_jobs", interrupted)
    before = signal.default_int_handler if kind == signal.SIGINT else lambda *_: None  # nohup ignores some
    outer = signal.signal(kind, before)
    try:
        assert main(["figure", "fco_fig2", "report=false"]) == 130
        assert signal.getsignal(kind) == before
    finally:
        signal.signal(kind, outer)
    assert "interrupted; the same command resumes" in capsys.readouterr().err
    assert not list(Path("outputs").rglob("claims.csv"))
