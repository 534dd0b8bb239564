"""The packaged simulation study, with fewer replications."""

import math
import sys

import pandas as pd
import pytest

from fcorun.interface.cli.commands import main
from fcorun.interface.cli.main import main as fcorun

FEWER = ("seed=range(0,3)", "data.seed=range(0,3)", "rounds=20", "data.features=32", "data.nonzeros=4")


@pytest.mark.slow
def test_three_designs_and_five_methods_are_one_command_and_one_table(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fcorun", "-m", "experiment=simulation", *FEWER, "out=s"])
    fcorun()
    frame = pd.read_csv("s/results.csv")
    assert len(frame) == 3 * 5 * 3
    assert (frame["seed"] == frame["data.seed"]).all()
    capsys.readouterr()
    assert main(["results", "s", "--errors"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for (design, algo), runs in frame.groupby(["data.mean_scale", "algo"]):
        (line,) = [line for line in lines if line[:2] == [f"{design:g}", algo] and line[-2] == "3"]
        mean, error = runs["tail_support_f1"].mean(), runs["tail_support_f1"].sem()
        if error < 1e-12:  # all replicates are equal
            assert line[line.index("(0)") - 1] == f"{mean:.4g}"
            continue
        decimals = 1 - math.floor(math.log10(error))  # to the second digit of the error
        assert line[line.index(f"({error:.{decimals}f})") - 1] == f"{mean:.{decimals}f}"
    pairs = [line for line in lines if len(line) > 3 and line[2] == "-"]
    assert len(pairs) == 3 * 10
