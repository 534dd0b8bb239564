"""The best run of a sweep, and what is refused where none is the best."""

import numpy as np
import pytest
from fake_records import fake_config, fake_record, fake_rows
from helpers import fails

from fcorun.base.records.sweep_settings import SweepSettings, save_settings
from fcorun.interface.api.run_record import Sweep
from fcorun.reports.page.index_page import _describe_runs


@pytest.fixture
def sweep(tmp_path):
    """Return a function that writes a sweep with a run for each set of changed keys and metrics."""

    def write(*runs, metric=None):
        folders = []
        for number, (changes, metrics, status) in enumerate(runs):
            folder = tmp_path / str(number)
            fake_record(folder, fake_config(**changes), fake_rows(**metrics), status)
            folders.append(folder)
        return Sweep(tmp_path, folders, metric)

    return write


def test_the_best_run_has_the_least_objective(sweep):
    runs = [({"algo__client_lr": rate}, {"level": level}, "done") for rate, level in ((0.1, 2.0), (0.2, 1.0))]
    result = sweep(*runs, ({"algo__client_lr": 0.3}, {"level": 0.1}, "diverged"), metric="objective")
    assert result.best.folder == result.record_folders[1]


def test_a_run_without_a_finite_metric_is_not_the_best(sweep):
    runs = [({"algo__client_lr": rate}, {"level": np.nan}, "done") for rate in (0.1, 0.2)]
    with fails("no run of a method is done with a finite objective"):
        sweep(*runs, metric="objective").best  # noqa: B018


def test_a_baseline_is_the_best_only_among_baselines(sweep):
    """By the objective no method could win against the solver of all rows; LaTeX and first pages choose alike."""
    solver = ({"algo": "centralized"}, {"level": 0.5, "silent": True}, "done")
    result = sweep(({}, {}, "done"), solver, ({"algo": "fedmid"}, {}, "diverged"), metric="objective")
    folders = result.record_folders
    assert result.best.folder == folders[0]
    save_settings(result.folder, SweepSettings(metric="objective"))
    assert _describe_runs(result.folder, list(result.records)) == "2 done, 1 diverged; objective 1.25 by feddualavg"
    assert Sweep(result.folder, folders[1:2], "objective").best.folder == folders[1]
    with fails("no run of a method is done with a finite objective"):
        Sweep(result.folder, folders[1:], "objective").best  # noqa: B018


@pytest.mark.parametrize(
    ("changes", "metric", "is_refused"),
    [
        ({"data": "logistic_synthetic"}, "val_loss", True),
        ({"reg__strength": 0.2}, "objective", True),
        ({"reg__strength": 0.2}, "val_loss", False),
        ({"seed": 1}, "objective", False),
    ],
)
def test_runs_on_different_problems_have_no_best(sweep, changes, metric, is_refused):
    result = sweep(({}, {"level": 2.0}, "done"), (changes, {"level": 1.0}, "done"), metric=metric)
    if is_refused:
        with fails(f"runs that differ in {next(iter(changes)).replace('__', '.')} do not compare by {metric}"):
            result.best  # noqa: B018
    else:
        assert result.best.folder == result.record_folders[1]


def test_a_diverged_run_on_another_problem_does_not_matter(sweep):
    result = sweep(({}, {}, "done"), ({"data": "logistic_synthetic"}, {}, "diverged"), metric="objective")
    assert result.best.folder == result.record_folders[0]
