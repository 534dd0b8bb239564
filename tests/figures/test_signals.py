"""Whatever interrupts a figure interrupts the sweep that it runs."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from fcorun.cli.commands import main

SWEEP = """#!/bin/sh
trap 'touch told; exit 130' INT
touch begun
for i in $(seq 400); do sleep 0.05; done
"""


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_sweep_is_told_and_the_figure_ends_as_by_the_keyboard(kind, monkeypatch):
    Path("sweep").write_text(SWEEP)
    Path("sweep").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(Path("sweep").absolute()))

    def interrupt():
        end = time.monotonic() + 20
        while not Path("begun").exists() and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(os.getpid(), kind)

    outer, before = signal.signal(kind, signal.default_int_handler), signal.default_int_handler  # nohup ignores some
    thread = threading.Thread(target=interrupt)
    thread.start()
    assert main(["figure", "fco_fig2", "report=false"]) == 130
    thread.join()
    assert Path("told").exists()
    assert signal.getsignal(kind) == before
    signal.signal(kind, outer)
    assert not list(Path("outputs").rglob("claims.csv"))
