"""Clients without training rows, whose held-out rows standardize themselves, are named wherever they are scored."""

import numpy as np
import pandas as pd
import pytest
from run_studies import select

from fcorun import compose, run
from fcorun.results.models.predict import predict
from fcorun.studies.selection.selection_result import SelectOptions

WORDS = "are standardized by the mean and deviation of their own held-out rows"


@pytest.fixture
def overrides(tmp_path, monkeypatch):
    """Write the rows of four hospitals, and return a run's options."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat([*"ABCD"], 30), "age": rng.normal(60, 10, 120)})
    frame.loc[90:, "age"] += 20
    frame["y"] = 0.1 * frame["age"] + rng.normal(size=120)
    frame.to_csv("rows.csv", index=False)
    table = ["data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "data.validation=0"]
    return ["algo=newton", "reg=none", "rounds=3", "report=false", *table]


@pytest.mark.parametrize("by", ["per_client", "pooled"])
def test_a_hospital_of_test_rows_alone_is_named_by_the_run_and_its_predictions(overrides, by, tmp_path):
    record = run(compose([*overrides, "data.test=[D]", f"data.standardize={by}"]), tmp_path / "out")
    is_own = by == "per_client"
    assert any(f"the rows of D {WORDS}" in text for text in record.summary.get("warnings", ())) == is_own
    frame = pd.DataFrame({"age": [80.0, 60.0]})
    predictions, warnings = predict(record, frame, np.array(["D", "A"], object))
    assert any("row 1 of 2 is of clients without training rows ('D')" in text for text in warnings) == is_own
    if is_own:
        assert predictions["warnings"].tolist() == ["client 'D' scaled by its held-out rows", ""]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["clients", "rows"])
def test_a_selection_whose_folds_hold_whole_clients_out_says_so(overrides, by):
    config = compose([*(text for text in overrides if text != "reg=none"), "reg=l1", "data.standardize=per_client"])
    result = select(config, SelectOptions(by=by, folds=4, points=3))
    assert any(f"the clients that a fold holds out {WORDS}" in text for text in result.warnings) == (by == "clients")
