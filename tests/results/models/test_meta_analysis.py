"""The record of a meta-analysis: R's numbers of each coefficient, units, clients without an estimate, infer."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import SHARED, composed, fails, not_none
from inferred_records import patients

from fcorun import run
from fcorun.experiment.prepare import prepare
from fcorun.interface.cli.commands import infer_command
from fcorun.reports.page.models import meta_analysis_table
from fcorun.results.models.coefficients import Coefficients
from fcorun.results.models.inference_problem import InferenceOptions
from fcorun.results.models.meta_analysis import (
    ClientEstimates,
    build_meta_table,
    compute_record_intervals,
    find_meta_warnings,
    read_estimates,
)

BREAST = SHARED / "data" / "medical" / "breast.csv"
# rma of R's metafor, method="FE" and "DL", on glm's fits of the four centres of BREAST, by feature:
# estimate and its error, fixed; estimate and its error, random; tau2; Q; I2 in %
METAFOR = {
    "age": (0.004520523603, 0.005010872444, 0.003909494178, 0.006241259627, 4.91660162e-05, 4.38058104, 31.5159342),
    "meno": (0.073590910483, 0.123590160227, 0.090063699357, 0.156290652656, 3.37587993e-02, 4.59174761, 34.6653986),
    "grade": (0.462270394740, 0.078408317003, 0.472216635624, 0.112255678562, 2.43742172e-02, 5.87054888, 48.8974530),
    "nodes": (0.161780733471, 0.011781835758, 0.182518850129, 0.032826269470, 3.51054922e-03, 20.43857557, 85.3218734),
    "pgr": (-0.000359048950, 0.000149480016, -0.000567570899, 0.000333799299, 2.98112285e-07, 10.45120408, 71.2951735),
    "er": (0.000283319826, 0.000175834689, 0.000441103498, 0.000435365584, 5.13200203e-07, 10.91317925, 72.5103022),
    "hormon": (-0.347843390207, 0.117159490237, -0.347843390207, 0.117159490237, 0, 1.61575564, 0),
    "(intercept)": (
        -1.733086774263,
        0.314709035640,
        -1.701963588155,
        0.426532648084,
        0.309169284,
        5.24346546,
        42.78593,
    ),
}


def meta_record(folder, *overrides, path=None, target="stay", client="site", ignore=""):
    if path is None:
        path = Path("patients.csv")
        frame = patients()
        frame["ward"] = (frame["ward"] == "icu").astype(int)
        frame.to_csv(path, index=False)
        ignore = ",".join(["patient", *({"stay", "died", "visits"} - {target})])
    given = [f"data.path={path}", f"data.target={target}", f"data.client={client}", f"data.ignore=[{ignore}]"]
    return run(composed("algo=meta_analysis", "data=table", *given, "data.validation=0", *overrides), folder)


def table_of(record) -> dict[str, dict[str, float]]:
    rows = csv.DictReader((record.folder / "inference.csv").read_text().splitlines())
    return {row["feature"]: {key: float(value) for key, value in row.items() if value and key not in
            ("feature", "method", "label")} for row in rows}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not BREAST.is_file(), reason=f"{BREAST} is not on this machine")
@pytest.mark.parametrize("effects", ["fixed", "random"])
def test_each_coefficient_is_that_of_metafor(effects, tmp_path):
    record = meta_record(tmp_path / "run", f"algo.effects={effects}", "data.task=binary", "precision=float32",
                         "reg=none", path=BREAST, target="rfs", client="centre", ignore="time")  # fmt: skip
    assert record.config["precision"] == "float64"
    table = table_of(record)
    first = 2 * (effects == "random")
    for feature, expected in METAFOR.items():
        row = table[feature]
        found = [row["estimate"], row["standard_error"], row["tau2"], row["cochran_q"], 100 * row["i2"]]
        np.testing.assert_allclose(found, [*expected[first : first + 2], *expected[4:]], rtol=1e-6, atol=1e-12)
    hormon = table["hormon"]  # of both
    np.testing.assert_allclose([hormon["low"], hormon["high"], hormon["p_value"]],
                               [-0.577471772, -0.118215009, 0.002987966], rtol=1e-6)  # fmt: skip
    reason = str(record.status["reason"])
    assert ("nodes, pgr, er: intervals of fixed effects leave that out" in reason) == (effects == "fixed")
    inferred = compute_record_intervals(record, InferenceOptions(level=0.9))
    assert inferred.table.estimate[6] == hormon["estimate"]
    assert inferred.table.low[6] == pytest.approx(hormon["estimate"] - 1.6448536 * hormon["standard_error"])
    assert "pooled" not in " ".join(inferred.description)


@pytest.mark.slow
def test_standardized_features_have_the_same_estimates_in_their_units():
    plain, standardized = (table_of(meta_record(Path(by), f"data.standardize={by}")) for by in ("none", "pooled"))
    for feature in ("age", "ward", "dose", "noise"):
        assert plain[feature] == pytest.approx(standardized[feature], rel=1e-6, abs=1e-12)
    expected = plain["age"]["estimate_standardized"]
    assert expected == pytest.approx(plain["age"]["estimate"] * patients()["age"].std(ddof=0))
    assert plain["(intercept)"]["estimate"] != pytest.approx(standardized["(intercept)"]["estimate"])


@pytest.mark.slow
def test_infer_describes_the_meta_analysis_with_no_option_of_another_model():
    record = meta_record(Path("run"))
    clients = read_estimates(record)
    assert clients.estimates.shape == (12, 5)
    assert (clients.client_rows == 20).all()
    assert "intervals are too narrow" in str(record.status["reason"])
    found = compute_record_intervals(record, InferenceOptions())
    assert found.table.title.startswith("meta-analysis, fixed effects, 95 % intervals, 12 clients, 240 rows")
    written = [row["estimate"] for row in table_of(record).values()]
    np.testing.assert_allclose(found.table.estimate, written, rtol=1e-12)
    assert (record.folder / "inference.png").exists()
    assert "optimum" not in str(record.status.get("reason"))  # which a mean of estimates does not approach
    assert infer_command.run(["run", "level=0.9"]) == 0  # which opens no file of rows, so that none is named
    assert "90 % intervals" in (record.folder / "inference.txt").read_text()
    for options in (
        InferenceOptions(cluster="client"),
        InferenceOptions(method="wald"),
        InferenceOptions(imputations=5),
    ):
        with fails("is a meta-analysis", "give no option but level"):
            compute_record_intervals(record, options)
    (record.folder / "client_estimates.csv").write_text("feature,client\n1,2\n")
    with fails("client_estimates.csv", "damaged", "force=true"):
        compute_record_intervals(record, InferenceOptions())
    (record.folder / "client_estimates.csv").unlink()
    with fails("mean of the clients' estimates", "run an older record again"):
        compute_record_intervals(record, InferenceOptions())


@pytest.mark.slow
def test_dependent_weighted_and_filled_rows_are_said_in_the_run_and_by_infer():
    """The clients' fits take rows as independent, weights as precisions, and filled gaps, if any, as measured."""
    given = ("data.group=patient", "data.weight=visits", "data.weight_kind=sampling", "data.missing=mean")
    frame = patients().assign(visits=range(240), icu=lambda rows: rows["ward"] == "icu")
    frame = frame.drop(columns=["died", "ward"])
    for name, table in (("whole", frame), ("gappy", frame.assign(dose=frame["dose"].where(frame.index % 9 > 0)))):
        table.to_csv(f"{name}.csv", index=False)
        record = meta_record(Path(name), *given, path=f"{name}.csv")
        texts = [str(record.status["reason"]), " ".join(compute_record_intervals(record, InferenceOptions()).warnings)]
        for text in texts:
            assert "('patient') are taken as independent" in text
            assert "fcorun infer of a record of algo=newton with reg=none has errors by group" in text
            assert "('visits') count as precisions" in text
            assert ("count as measured" in text) == (name == "gappy")


def coefficients(names) -> Coefficients:
    return Coefficients(names, ("yes",), np.zeros((len(names), 1)), np.zeros(1), ratio_name="odds ratio")


def test_clients_without_an_estimate_and_coefficients_of_nobody_are_named():
    nan = np.nan
    clients = ClientEstimates(
        names=("a", "b", "c", "(intercept)"),
        clients=("x", "y"),
        estimates=np.array([[1.0, nan, 2, 0], [3, nan, nan, 0]]),
        standard_errors=np.array([[1.0, nan, 2, 1], [1, nan, nan, 1]]),
        deviation=np.array([2.0, 1, 1, nan]),
        effects="fixed",
        ridge=0.1,
        n_rows=80,
        client_rows=np.array([40.0, 40]),
    )
    table = build_meta_table(clients, coefficients(("a", "b", "c")))
    np.testing.assert_allclose(table.estimate, [2, nan, 2, 0])
    np.testing.assert_allclose(table.standard_error, [0.5**0.5, nan, 2, 0.5**0.5])
    np.testing.assert_allclose(table.cochran_q, [2, nan, 0, 0], atol=1e-12)
    np.testing.assert_allclose(table.q_p_value[[0, 3]], [0.15729920705, 1])
    assert np.isnan(table.q_p_value[[1, 2]]).all()  # of one client there is no variation
    np.testing.assert_allclose(table.weights, [[0.5, 0, 1, 0.5], [0.5, 0, 0, 0.5]])
    assert table.method[1] == "no client has an estimate"
    warnings = find_meta_warnings(table, {})
    assert "b (2 of 2), c (1 of 2)" in warnings[0]
    assert warnings[1].startswith("2 clients hardly tell whether they differ")
    assert "algo.ridge=0.1" in warnings[2]
    config = {"group": "patient", "weight": "w", "missing": "mean"}
    of_sites = find_meta_warnings(table, config, at_sites=True)
    assert "fcorun plan algo=newton reg=none data.group=patient ... --infer has errors by group" in of_sites[0]
    assert "fcorun plan algo=newton reg=none data.weight=w ... --infer has robust errors" in of_sites[1]
    assert "data.missing=mean has filled at sites, if there were any, count as measured" in of_sites[2]
    random = replace(clients, effects="random")
    assert (
        "2 clients hardly determine tau2"
        in find_meta_warnings(build_meta_table(random, coefficients(("a", "b", "c"))), {})[1]
    )
    small = replace(clients, client_rows=np.array([32.0, 32]))  # of 3 and of 2 estimates
    warnings = find_meta_warnings(build_meta_table(small, coefficients(("a", "b", "c"))), {})
    assert warnings[2].startswith("x: a client with fewer than 30 rows more than estimates knows its variances poorly")
    unknown = replace(clients, client_rows=np.full(2, nan))  # of an older record
    assert len(find_meta_warnings(build_meta_table(unknown, coefficients(("a", "b", "c"))), {})) == 3
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.to_rows()]
    assert "cochran_q" in meta_analysis_table([{key: "" if v is None else str(v) for key, v in row.items()}
                                               for row in rows])  # fmt: skip
    assert meta_analysis_table([{"feature": "a", "estimate": "1"}]) == ""


def test_a_plan_of_intervals_is_refused():
    from fcorun.results.models.inference_problem import explain_no_intervals

    experiment = prepare(composed("algo=meta_analysis", "data=lasso", "reg=none"))
    assert "plan without --infer" in not_none(explain_no_intervals(experiment))


# Levels of text columns: contrasts with one reference, the same at all clients.


def graded_record(folder, *overrides, missing=None):
    """Return the record of y = 50 + effect of grade + noise at three hospitals; ``stage`` has no effect.

    Hospital C has no rows of the grade ``missing``. Effects are those of R's ``lm``, grade a as the reference.
    """
    n = 240
    rng = np.random.default_rng(4)
    table = pd.DataFrame({"hospital": np.repeat(["A", "B", "C"], n // 3), "grade": rng.choice([*"abc"], n),
                          "stage": rng.choice(["I", "II", "III"], n)})  # fmt: skip
    if missing is not None:
        is_missing = (table["hospital"] == "C") & (table["grade"] == missing)
        table.loc[is_missing, "grade"] = "b"
    table["y"] = 50 + table["grade"].map({"a": 0.0, "b": 2.0, "c": 6.0}) + rng.normal(0, 1, n)
    folder.mkdir()
    table.to_csv(folder / "graded.csv", index=False)
    given = [f"data.path={folder / 'graded.csv'}", "data.target=y", "data.client=hospital", "data.validation=0"]
    return run(composed("algo=meta_analysis", "data=table", *given, *overrides), folder / "run"), table


def contrasts(table, columns=("grade", "stage")):
    """Return the least squares coefficients and variances of contrasts with the first levels, by name."""
    x = pd.get_dummies(table[list(columns)], prefix_sep="=", drop_first=True).assign(intercept=1).astype(float)
    inverse = np.linalg.inv(x.T @ x)
    fit = inverse @ x.T @ table["y"]
    variance = ((table["y"] - x.to_numpy() @ fit.to_numpy()) ** 2).sum() / (len(x) - x.shape[1]) * np.diag(inverse)
    return dict(zip(x.columns, zip(fit, variance, strict=True), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("standardize", ["none", "pooled"])
def test_levels_are_compared_with_one_reference_at_all_clients(standardize, tmp_path):
    record, data = graded_record(tmp_path / "levels", f"data.standardize={standardize}")
    table = table_of(record)
    by_client = [contrasts(part) for _, part in data.groupby("hospital")]
    for feature in ("grade=b", "grade=c", "stage=II", "stage=III"):
        fits, variances = np.array([each[feature] for each in by_client]).T
        expected = (fits / variances).sum() / (1 / variances).sum()
        assert table[feature]["estimate"] == pytest.approx(expected, rel=1e-6)
        assert table[feature]["standard_error"] == pytest.approx((1 / variances).sum() ** -0.5, rel=1e-6)
    assert min(table["stage=II"]["p_value"], table["stage=III"]["p_value"]) > 0.01  # it has no effect
    assert "estimate" not in table["grade=a"]
    assert table["(intercept)"]["estimate"] > 40
    text = (record.folder / "inference.txt").read_text()
    assert "reference: grade=a, stage=I" in text
    assert "4 tests of no association: 2 with p below 0.05" in text
    assert "stage=I " not in str(record.status.get("reason"))


@pytest.mark.slow
@pytest.mark.parametrize("standardize", ["none", "pooled"])
def test_a_client_without_rows_of_the_reference_has_no_part_in_its_contrasts(standardize, tmp_path):
    record, data = graded_record(tmp_path / "levels", f"data.standardize={standardize}", missing="a")
    table = table_of(record)
    by_client = [contrasts(part) for hospital, part in data.groupby("hospital") if hospital != "C"]
    for feature in ("grade=b", "grade=c"):
        fits, variances = np.array([each[feature] for each in by_client]).T
        expected = (fits / variances).sum() / (1 / variances).sum()
        assert table[feature]["estimate"] == pytest.approx(expected, rel=1e-6)
    assert np.isnan(read_estimates(record).estimates[2][[0, 1, 2, 6]]).all()  # grade and the intercept
    assert np.isfinite(read_estimates(record).estimates[2][[4, 5]]).all()  # stage
    reason = str(record.status["reason"])
    assert "the rows of C do not compare levels with grade=a, the reference" in reason
    assert "stage=I," not in reason


@pytest.mark.slow
def test_a_client_without_rows_of_another_level_has_its_other_contrasts(tmp_path):
    record, _ = graded_record(tmp_path / "levels", missing="c")
    estimates = read_estimates(record).estimates[2]
    assert estimates[1] == pytest.approx(2, abs=0.8)
    assert "too narrow" not in str(record.status["reason"])  # of 80 rows a client
    assert np.isnan(estimates[2])
    assert "grade=c (1 of 3)" in str(record.status["reason"])
