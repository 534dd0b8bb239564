"""Stability of groups of features, and the refit of stable columns."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import composed, fails
from run_studies import select_stable_features

from fcorun.base.errors import word
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.interface.api.run_record import RunRecord
from fcorun.interface.cli.commands.predict_command import find_record
from fcorun.methods.regularizers.group_lasso import GroupLasso
from fcorun.reports.bibliography import build_bibliography
from fcorun.results.inference.methods import AFTER_SELECTION
from fcorun.studies.selection.select_stable import check_refit, plan_stability
from fcorun.studies.selection.stability import SelectionUnits, StabilityOptions

RNG = np.random.default_rng(3)
N_ROWS = 90
WARD = RNG.choice(["er", "icu", "or"], N_ROWS)
X = RNG.standard_normal((N_ROWS, 4))
Y = X @ [1.5, -1.0, 0, 0] + 3.0 * (WARD == "icu") + 0.3 * RNG.standard_normal(N_ROWS)


def config(*overrides):
    frame = pd.DataFrame(X, columns=["age", "dose", "noise", "more"])
    frame.assign(ward=WARD, site=np.repeat(["a", "b"], N_ROWS // 2), y=Y).to_csv("rows.csv", index=False)
    table = ("data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "data.validation=0")
    return composed("algo=centralized", *table, *overrides)


def test_a_group_is_chosen_if_any_of_its_features_is():
    reg = GroupLasso(strength=1.0, factors={"0": 0.0}).on_groups(np.array([0, 1, 2, 1]), ["age", "ward", "dose"])
    units = SelectionUnits.of_regularizer(reg, ["age", "ward=er", "dose", "ward=or"])
    chosen = np.array([[[False, True, False, False]], [[True, False, False, True]], [[False, False, False, False]]])
    assert units.merge(chosen)[:, 0].tolist() == [[False, True, False], [True, True, False], [False, False, False]]
    assert (list(units.names), units.unpenalized.tolist()) == (["age", "ward", "dose"], [True, False, False])


@pytest.mark.slow
def test_stability_of_columns_with_their_levels():
    settings = config("reg=group_lasso", "reg.factors={noise:0}")
    result = select_stable_features(settings, StabilityOptions(subsamples=4, points=3, max_errors=3), "out")
    summary = json.loads(Path("out/stability.json").read_text())
    assert (summary["units"], summary["features"], summary["unpenalised"]) == ("groups of features", 4, ["noise"])
    assert set(pd.read_csv("out/stability.csv")["feature"]) == {"age", "dose", "noise", "more", "ward"}
    assert result.scores.bound == pytest.approx(result.scores.q**2 / (0.5 * 4))
    said = "\n".join(result.describe())
    assert "of 4 groups of features are stable" in said
    assert "such as a column with its levels, is chosen if any of its features is, and counts once" in said


@pytest.mark.slow
def test_the_refit_is_least_squares_on_the_stable_columns():
    options = StabilityOptions(subsamples=10, points=5, max_errors=4, refit=True)
    result = select_stable_features(config("reg=l1"), options, "out")
    assert result.refit_columns == ["age", "dose", "ward"]  # with all levels of ward
    record = RunRecord(find_record(Path("out")).folder)
    assert record.folder == Path("out/refit")
    levels = [level == WARD for level in ("er", "icu", "or")]
    design = np.column_stack([X[:, :2], *levels])
    fitted = design @ np.linalg.lstsq(design, Y)[0]
    np.testing.assert_allclose(
        record.predict(pd.read_csv("rows.csv", usecols=result.refit_columns))["prediction"], fitted, atol=1e-5
    )
    assert word(AFTER_SELECTION) in "\n".join(result.describe())
    with pytest.warns(UserWarning, match="the same rows chose the features"):
        record.infer()
    assert "@article{shah2013," in build_bibliography([record])

    # without refit, the record is no longer that of the folder
    select_stable_features(config("reg=l1"), StabilityOptions(subsamples=10, points=5, max_errors=4), "out")
    with fails("out holds a stability selection without a refit", "refit=true"):
        find_record(Path("out"))


@pytest.mark.slow
def test_nothing_stable_has_no_refit():
    options = StabilityOptions(subsamples=4, points=2, max_errors=0.01, refit=True)
    result = select_stable_features(config("reg=l1"), options, "out")
    assert result.record is None
    assert any("no model is fitted, since nothing is stable" in line for line in result.warnings)
    assert not Path("out/refit").exists()


@pytest.mark.slow
def test_a_refit_needs_columns():
    with fails("refit=true leaves out columns by their names", "data=lasso has no named columns"):
        plan_stability(composed("algo=centralized", "data=lasso", "reg=l1"), StabilityOptions(refit=True))
    scaled = prepare(config("data.standardize=pooled", "data.scaling=earlier"))
    with fails("refit=true drops columns, and the record of data.scaling fixes them"):
        check_refit(scaled, load_data(prepare(config())))
    assert not Path("outputs").exists()
