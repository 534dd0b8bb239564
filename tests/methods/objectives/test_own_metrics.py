"""Metrics that a user's objective declares."""

import pytest
from helpers import fails, grid, run_grid, small

from fcorun import run
from fcorun.base.metrics import CATALOGUE, from_summaries
from fcorun.interface.cli.commands import main
from fcorun.reports.build_table import build_table
from fcorun.reports.pictures.run_curves import choose_run_panels

NAME = "val_absolute_error"

SOURCE = """
from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.metrics import Metric
from fcorun.objectives import LeastSquares


@dataclass(frozen=True, kw_only=True)
class Absolute(LeastSquares):
    metrics = (Metric("absolute_error", "absolute error", higher=False, log=True),)

    def scores(self, prediction, y):
        return {"absolute_error": jnp.abs(prediction - y)}
"""


@pytest.fixture
def config(user_module):
    user_module("absolute", SOURCE)
    settings = small("metric=val_absolute_error")
    settings["objective"]["class"] = "absolute.Absolute"
    return settings


@pytest.mark.slow
def test_a_declared_metric_is_measured_summarized_and_ranks_points(config, capsys):
    points = grid(config, {"algo.client_lr": [1e-4, 1e-3, 3e-3]})
    records = run_grid(points, [f"s/{i}" for i in range(3)])
    final_values = [record.metrics["val_absolute_error"].iloc[-1] for record in records]
    table = build_table(records)
    assert table.metrics["val_absolute_error"].higher is False
    (best,) = table.best_points("val_absolute_error").to_dict("records")
    assert best["rows"] == [final_values.index(min(final_values))]
    assert records[0].summary["best"]["val_absolute_error"]["value"] <= final_values[0]
    assert main(["results", "s", "--metric", "val_absolute_error"]) == 0
    assert "by val_absolute_error" in capsys.readouterr().out
    assert main(["plot", "s", "--metric", "val_absolute_error"]) == 0


@pytest.mark.slow
def test_a_declared_metric_is_in_the_picture_of_a_run(config):
    record = run(config, "here")
    (picture,) = [
        panel
        for panel in choose_run_panels(list(record.rows[-1]), 1e-4, from_summaries([record.summary]))
        if NAME in panel[1]
    ]
    assert picture[0] == "validation absolute error"


def test_other_objectives_refuse_the_metric():
    assert "val_absolute_error" not in CATALOGUE
    with fails('metric="val_absolute_error"', "val_accuracy"):
        run(small() | {"metric": "val_absolute_error"})
