"""fcorun infer with imputations: what is pooled, what is refused, and what is warned of."""

import numpy as np
import pandas as pd
import pytest
from helpers import fails
from inferred_records import patients, record_of

from fcorun.results.models.inference import infer
from fcorun.results.models.inference_problem import InferenceOptions
from fcorun.results.models.inference_table import build_table, describe, find_warnings
from fcorun.results.models.multiple_imputation import prepare_imputations

FILLED = ("reg=none", "data.missing=mean")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def with_gaps() -> pd.DataFrame:
    """Return patients some of whose doses, wards and smoking habits are missing, more often after a long stay."""
    frame, rng = patients(), np.random.default_rng(8)
    frame["smokes"] = rng.integers(0, 2, len(frame)).astype(float)
    for name in ("dose", "ward", "smokes"):
        frame.loc[rng.random(len(frame)) < np.where(frame["stay"] > 0.5, 0.4, 0.1), name] = np.nan
    return frame


def pooled(*overrides, imputations=4, target="stay"):
    record = record_of(*FILLED, *overrides, frame=with_gaps(), target=target, weights=np.zeros(7))
    return infer(record, InferenceOptions(imputations=imputations))


@pytest.mark.slow
def test_estimates_are_those_of_the_imputed_tables_pooled():
    """Oracle: each imputed table is a table without gaps, with a record of its own."""
    inference = pooled()
    table = build_table(inference)
    names = list(inference.problem.feature_names)
    frame = with_gaps()
    frame = frame.sort_values("site", kind="stable").reset_index(drop=True)
    estimates, variances = [], []
    for rows in prepare_imputations(inference.problem, 4).draw(4, 0):
        complete = frame.copy()
        for name in ("dose", "smokes"):
            complete[name] = rows.x[:, names.index(name)]
        wards = ["ward=eye", "ward=heart", "ward=icu"]
        codes = rows.x[:, [names.index(ward) for ward in wards]]
        assert (codes.sum(axis=1) == 1).all()
        assert set(np.unique(complete["smokes"])) == {0.0, 1.0}
        complete["ward"] = np.array(["eye", "heart", "icu"])[codes.argmax(axis=1)]
        for name in ("dose", "ward", "smokes"):
            known = frame[name].notna().to_numpy()
            np.testing.assert_array_equal(complete[name].to_numpy()[known], frame[name].to_numpy()[known])
        reference = next(name for name, method in zip(table.features, table.method, strict=True)
                         if method == "reference")  # fmt: skip
        design = [complete[name] if "=" not in name else complete["ward"] == name[5:]
                  for name in names if name != reference]  # fmt: skip
        x = np.column_stack([*design, np.ones(len(complete))]).astype(float)
        inverse = np.linalg.inv(x.T @ x)
        theta = inverse @ x.T @ complete["stay"]
        score = x * (complete["stay"].to_numpy() - x @ theta)[:, None]
        n, p = x.shape
        estimates.append(theta)
        variances.append(np.diagonal(inverse @ (score.T @ score) @ inverse) * n / (n - p))
    kept = [name != reference for name in table.features]
    np.testing.assert_allclose(table.estimate[kept], np.mean(estimates, axis=0), rtol=1e-7)
    total = np.mean(variances, axis=0) + 1.25 * np.var(estimates, axis=0, ddof=1)
    np.testing.assert_allclose(table.standard_error[kept], np.sqrt(total), rtol=1e-6)


@pytest.mark.slow
def test_the_unit_of_training_does_not_change_estimates_or_information():
    raw, standardized = (build_table(pooled(f"data.standardize={by}")) for by in ("none", "pooled"))
    for name in ("estimate", "standard_error", "low", "high", "missing_information"):
        np.testing.assert_allclose(getattr(raw, name), getattr(standardized, name), rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_columns_with_gaps_lose_information_and_the_seed_fixes_the_draws():
    first, again = pooled(imputations=12), pooled(imputations=12)
    np.testing.assert_array_equal(first.estimates.theta, again.estimates.theta)
    rows = dict(zip(build_table(first).features, build_table(first).missing_information, strict=True))
    assert 1 > rows["dose"] > 2 * rows["age"] > 0
    record = record_of(*FILLED, frame=with_gaps(), weights=np.zeros(7))
    assert np.isnan(build_table(infer(record, InferenceOptions())).missing_information).all()
    other = infer(record, InferenceOptions(imputations=12, seed=1))
    difference = np.abs(other.estimates.theta - first.estimates.theta)
    assert np.min(difference) > 0
    assert np.max(difference / first.estimates.standard_errors) < 1


@pytest.mark.slow
def test_classes_and_counts_have_imputations():
    for target, objective in (("died", "logistic"), ("visits", "poisson")):
        inference = pooled(f"objective={objective}", "data.standardize=pooled", imputations=3, target=target)
        table = build_table(inference)
        assert np.isfinite(table.estimate[[method == "Wald" for method in table.method]]).all()


def test_a_column_that_is_constant_within_groups_is_drawn_once_a_group():
    frame = patients()
    rng = np.random.default_rng(3)
    frame["sex"] = np.where(frame["patient"] % 2 == 0, "F", "M")
    frame.loc[rng.random(len(frame)) < 0.3, "sex"] = None
    is_known = frame["sex"].notna().groupby(frame["patient"]).transform("any").to_numpy()
    assert 0 < (~is_known).sum() < frame["sex"].isna().sum()
    frame.loc[rng.random(len(frame)) < 0.2, "dose"] = np.nan
    ignore = "data.ignore=[died,visits]"
    record = record_of(*FILLED, "data.group=patient", ignore, frame=frame, weights=np.zeros(7))
    inference = infer(record, InferenceOptions(imputations=3))
    position = inference.problem.feature_names.index("sex=M")
    for rows in prepare_imputations(inference.problem, 3).draw(3, 0):
        is_male = rows.x[:, position].reshape(-1, 2)
        np.testing.assert_array_equal(is_male[:, 0], is_male[:, 1])
        np.testing.assert_array_equal(rows.x[is_known, position], frame["patient"][is_known] % 2)
    (sentence,) = [text for text in find_warnings(inference) if "once a group" in text]
    assert sentence == (
        "gaps in 'sex', constant within each group of data.group, are drawn once a group; gaps in 'dose' are drawn in "
        "each row, as if the rows of a group of data.group were independent"
    )


def test_the_text_names_gaps_and_few_imputations_are_warned_of():
    inference = pooled(imputations=2)
    (line,) = [line for line in describe(inference, build_table(inference)) if "Rubin" in line and "data sets" in line]
    assert line.startswith("2 data sets: gaps in 'ward' (")
    assert "'dose' (" in line
    assert build_table(inference).title.endswith("robust standard errors, 2 imputations")
    (warning,) = [text for text in find_warnings(inference) if "gaps" in text or "imputations" in text]
    assert warning.startswith("2 imputations are few")


@pytest.mark.parametrize(("reg", "advice"), [("none", "imputations=30 imputes"), ("l1", "of a record with reg=none")])
def test_filled_gaps_are_warned_of(reg, advice):
    strength = [] if reg == "none" else ["reg.strength=0.1"]
    record = record_of(f"reg={reg}", *strength, "data.missing=mean", frame=with_gaps(), weights=np.zeros(7))
    (warning,) = [text for text in find_warnings(infer(record, InferenceOptions())) if "gaps in" in text]
    assert "'dose' (2" in warning
    assert advice in warning


@pytest.mark.parametrize(
    ("overrides", "imputations", "words"),
    [
        (("reg=l1", "reg.strength=0.1", "data.missing=mean"), 5, ("a penalty shrinks", "reg=none")),
        (("reg=none", "data.missing=indicator"), 5, ("data.missing=indicator", "mean or median")),
        ((*FILLED, "data.standardize=per_client"), 5, ("per_client", "pooled or none")),
        ((*FILLED, "data.only=[age]"), 5, ("no column of the record has gaps",)),
    ],
)
def test_what_cannot_be_pooled_is_refused(overrides, imputations, words):
    n_features = 10 if "data.missing=indicator" in overrides else 1 if "data.only=[age]" in overrides else 7
    record = record_of(*overrides, frame=with_gaps(), weights=np.zeros(n_features))
    with fails(f"imputations={imputations}", *words):
        infer(record, InferenceOptions(imputations=imputations))


def test_one_imputation_and_too_few_values_are_refused():
    with fails("imputations=1", "2 or more"):
        InferenceOptions(imputations=1)
    frame = with_gaps()
    frame.loc[10:, "dose"] = np.nan
    with fails("column 'dose' has", "values, too few for an imputation model", "data.ignore"):
        infer(record_of(*FILLED, frame=frame, weights=np.zeros(7)), InferenceOptions(imputations=3))
