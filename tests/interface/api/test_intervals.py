"""record.infer: intervals as a Python program gets them."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fcorun import L1, Experiment, ExperimentWarning, Newton, UserError, from_arrays
from fcorun.interface.api.run_record import Intervals

CLIENTS = np.repeat(["a", "b", "c"], 30)


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).standard_normal((90, 3))


@pytest.fixture(scope="module")
def rows(x):
    return from_arrays(x, x @ [1.0, -1.0, 0.0] + np.random.default_rng(1).standard_normal(90), CLIENTS, validation=0.0)


@pytest.fixture(scope="module")
def record(rows, tmp_path_factory):
    experiment = Experiment(algorithm=Newton(), data=rows, regularizer=L1(0.1), rounds=4)
    return experiment.run(tmp_path_factory.mktemp("api") / "run")


@pytest.mark.slow
def test_intervals_of_arrays(record, rows, tmp_path):
    intervals = record.infer(data=rows)
    assert "debiased lasso" in repr(intervals)
    assert intervals.warnings == []
    assert list(intervals.frame.index) == ["x0", "x1", "x2", "(intercept)"]
    assert intervals.frame.loc["x0", "low"] < 1 < intervals.frame.loc["x0", "high"]
    assert len(intervals.plot().axes) == 1
    intervals.save(tmp_path / "new")
    written = pd.read_csv(tmp_path / "new" / "inference.csv", index_col="feature")
    pd.testing.assert_frame_equal(written, intervals.frame)


@pytest.mark.slow
def test_warnings_and_refusals_have_the_names_of_python(record, rows, x):
    with pytest.warns(ExperimentWarning, match="3 clusters are few"):
        record.infer(cluster="client", data=rows)
    with pytest.raises(UserError, match=r'method="wald".*regularizer=NoRegularizer\(\)'):
        record.infer(method="wald", data=rows)
    with pytest.raises(UserError, match="infer"):
        record.infer()
    with pytest.raises(UserError, match="data have changed"):
        record.infer(data=from_arrays(2 * x, x[:, 0], CLIENTS))
    with pytest.raises(UserError, match="data is of type ndarray"):
        record.infer(data=x)


@pytest.mark.parametrize("folder", [None, 3])
def test_intervals_are_saved_into_a_path(folder):
    table: Any = None
    with pytest.raises(UserError, match=r"folder is .*: give a path"):
        Intervals(table, "", []).save(folder)
