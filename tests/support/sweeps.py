"""Sweeps from the command line in this process, on small data, and their tables."""

import sys
from pathlib import Path

import pandas as pd
import pytest
from helpers import SMALL

from fcorun.interface.cli.main import main as fcorun

RATES = ("algo.client_lr=1e-3,3e-3,1e-2", "algo.server_lr=0.3,1")


def run_sweep_command(*overrides: str) -> int:
    """Run ``fcorun -m`` in this process on small data; return the exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fcorun", "-m", *SMALL, *overrides])
        try:
            fcorun()
        except SystemExit as stop:
            return int(stop.code or 0)
    return 0


def read_results(folder: str | Path) -> pd.DataFrame:
    """Return results.csv sorted by the varied keys, without the times."""
    results = pd.read_csv(Path(folder) / "results.csv")
    varied = list(results)[1 : list(results).index("status")]
    return results.sort_values(varied, ignore_index=True).drop(columns=["seconds", "folder"])


def assert_same_results(ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    assert list(ours) == list(theirs)
    pd.testing.assert_frame_equal(ours, theirs, rtol=2e-4, atol=1e-5)
