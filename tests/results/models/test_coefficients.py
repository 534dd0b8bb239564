"""Coefficients by feature: of records, in the features' own units, and of several runs."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fake_records import fake_record
from helpers import HETEROGENEOUS, fails, ragged, small
from sklearn.linear_model import LinearRegression, LogisticRegression

from fcorun import Record, compose, run
from fcorun.data.datasets.dataset import Features, FederatedData
from fcorun.data.rows.rows import Rows
from fcorun.data.tables.encoding import Encoding
from fcorun.methods.objectives import LeastSquares, Poisson
from fcorun.reports.coefficient_summary import summarize_coefficients
from fcorun.results.models.coefficients import (
    Coefficients,
    find_cutoff_factors,
    load_client_coefficients,
    load_coefficients,
)


def write_patients(folder: Path, task: str = "regression") -> Path:
    """Write a table whose features have names, means and units of their own; one feature is constant."""
    rng = np.random.default_rng(0)
    age, dose = rng.normal(60, 12, 90), rng.normal(0.02, 0.004, 90)
    score = 0.1 * age + 500 * dose + rng.normal(0, 1, 90)
    if task == "binary":
        score = np.where(score > 16, "ill", "well")
    if task == "multiclass":
        score = np.array(["x", "y", "z"])[np.digitize(score, [14, 18])]
    frame = pd.DataFrame({"age": age, "dose": dose, "one": 3.0, "y": score, "site": rng.choice(["p", "q"], 90)})
    frame.to_csv(folder / "patients.csv", index=False)
    return folder / "patients.csv"


def run_on_patients(task: str, *more: str, standardize: str = "pooled") -> Record:
    write_patients(Path(), task)
    table_overrides = ["data=table", "data.path=patients.csv", "data.target=y", "data.client=site", f"data.task={task}"]
    overrides = [
        *table_overrides,
        "data.validation=0",
        f"data.standardize={standardize}",
        "reg=none",
        "algo=centralized",
        *more,
    ]
    return run(compose(overrides), f"{task}-{standardize}")


def read_coefficients(record: Record) -> Any:
    return pd.read_csv(record.folder / "coefficients.csv", keep_default_na=False, na_values=[""])


@pytest.mark.slow
def test_values_are_those_of_the_solution():
    record = run(small(), "run")
    frame = read_coefficients(record)
    assert list(frame) == ["parameter", "feature", "class", "value", "value_original"]
    assert frame["feature"].tolist()[:20] == [f"x{j}" for j in range(20)]
    np.testing.assert_array_equal(frame["value"][:20], record.solution["weights"].astype(float))
    assert frame["parameter"].tolist() == ["weights"] * 20 + ["bias"]
    np.testing.assert_array_equal(frame["value"], frame["value_original"])


@pytest.mark.slow
def test_original_units_are_those_of_scikit_learn():
    table = read_coefficients(run_on_patients("regression"))
    frame = pd.read_csv("patients.csv")
    model = LinearRegression().fit(frame[["age", "dose"]], frame["y"])
    expected = dict(zip(["age", "dose"], model.coef_, strict=True)) | {"one": 0.0}
    by = table.set_index("feature")["value_original"]
    for name, value in expected.items():
        assert by[name] == pytest.approx(value, rel=1e-5)
    assert table["value_original"].iloc[-1] == pytest.approx(model.intercept_, rel=1e-5)
    assert by["dose"] != pytest.approx(table.set_index("feature")["value"]["dose"], rel=0.1)


@pytest.mark.slow
def test_classes_have_a_row_each():
    two = read_coefficients(run_on_patients("binary"))
    assert two["class"].unique().tolist() == ["well"]  # the odds are of the second class
    frame = pd.read_csv("patients.csv")
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(
        (frame[["age", "dose"]] - frame[["age", "dose"]].mean()) / frame[["age", "dose"]].std(ddof=0), frame["y"]
    )
    np.testing.assert_allclose(two["value"][:2], model.coef_[0], rtol=1e-3)
    three = read_coefficients(run_on_patients("multiclass"))
    assert three["class"].tolist() == ["x", "y", "z"] * 4
    solution = Record(Path("multiclass-pooled")).solution
    np.testing.assert_array_equal(three["value"][:9], np.ravel(solution["weights"]))
    np.testing.assert_array_equal(three["value"][9:], solution["bias"])


@pytest.mark.slow
@pytest.mark.parametrize("task", ["regression", "multiclass"])
def test_both_units_predict_alike(task):
    """Standardized features with trained values and raw features with original values give the same predictions."""
    coefficients = load_coefficients(run_on_patients(task))
    x = pd.read_csv("patients.csv")[["age", "dose", "one"]].to_numpy()
    assert coefficients.scaling is not None
    assert coefficients.original is not None
    standard = (x - coefficients.scaling.mean) * coefficients.scaling.factor @ coefficients.weights + coefficients.bias
    weights, intercept = coefficients.original
    np.testing.assert_allclose(x @ weights + intercept, standard, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_standardization_gives_an_intercept_to_models_without_one():
    frame = read_coefficients(run_on_patients("regression", "objective.intercept=false"))
    assert frame["parameter"].iloc[-1] == "bias"
    assert frame["value"].iloc[-1] == 0
    assert frame["value_original"].iloc[-1] != 0


def test_clients_that_standardize_their_own_rows_have_no_common_units():
    frame = read_coefficients(run_on_patients("regression", standardize="per_client"))
    assert frame["value_original"].isna().all()
    assert frame["value"].notna().all()


@pytest.mark.parametrize(("objective", "standardized", "factors"), [
    (LeastSquares(), None, [0.02, 1, 1]),
    (LeastSquares(), {"by": "pooled"}, [0.1, 0.1, 0.1]),
    (Poisson(), None, [0.2, 1, 1]),
    (Poisson(), {"by": "pooled"}, None),
])  # fmt: skip
def test_the_cutoff_follows_the_units(objective, standardized, factors):
    """The features have the standard deviations 5, 0.01 and 0, the target 0.1."""
    x = np.array([[0, 0, 1], [10, 0.02, 1], [0, 0, 1], [10, 0.02, 1]])
    features = Features(("a", "b", "c"), standardized=standardized, encoding=Encoding(()))
    data = FederatedData(Rows(x, np.array([1, 1.2, 1.2, 1]), np.array([0, 0, 1, 1])), features=features)
    found = find_cutoff_factors(objective, data)
    assert (found is None) if factors is None else (found == pytest.approx(factors))


def test_weights_exceed_the_cutoff_of_their_feature():
    weights = np.array([[[2e-5], [2e-5]], [[0], [2e-4]]])
    path = Coefficients(("a", "b"), ("",), weights, np.array([[1e-6], [1]]), cutoff_factors=np.array([0.1, 1]))
    assert path.exceed(1e-4).tolist() == [[[True], [False]], [[False], [True]]]
    assert path.values_exceed(1e-4).tolist() == [[True, False, False], [False, True, True]]


def test_coefficients_of_a_record_are_those_of_its_file():
    record = run_on_patients("regression")
    before = (record.folder / "coefficients.csv").read_text()
    (record.folder / "coefficients.csv").unlink()
    again = load_coefficients(Record(record.folder)).to_csv()
    a, b = (pd.read_csv(io.StringIO(text)) for text in (before, again))
    np.testing.assert_allclose(a["value_original"], b["value_original"], rtol=1e-12)


@pytest.mark.slow
def test_matrices_are_named_by_row_and_column():
    overrides = ["data=lowrank", "data.rows=3", "data.columns=4", "data.rank=1", "data.clients=3", "data.samples=20"]
    record = run(compose([*overrides, "reg=nuclear", "rounds=3", "clients_per_round=null"]), "run")
    frame = read_coefficients(record)
    assert frame["feature"][5] == "x1,1"
    assert frame["value"][5] == record.solution["weights"][1, 1]


@pytest.mark.slow
def test_other_models_are_refused(tmp_path):
    config = ragged(tmp_path, "objective=mlp", "algo.client_lr=0.1", task="binary")
    config["objective"]["hidden"] = [3]
    record = run(config, "mlp")
    assert not (record.folder / "coefficients.csv").exists()
    with fails("objective=mlp", "no linear model", "solution.npz"):
        load_coefficients(record)
    diverged = run(small("algo=fedavg", "algo.client_lr=1e9", "rounds=30"), "away")
    assert not (diverged.folder / "coefficients.csv").exists()
    with fails("is diverged"):
        load_coefficients(diverged)


@pytest.mark.slow
def test_clients_of_their_own():
    ditto = run(compose([*HETEROGENEOUS, "algo=ditto", "rounds=3"]), "ditto")
    clients, models = load_client_coefficients(ditto)
    assert clients[1] == "client1"
    np.testing.assert_array_equal(models[1].weights[:, 0], ditto.personal["weights"][1])
    local = run(compose([*HETEROGENEOUS, "algo=local", "rounds=3"]), "local")
    assert not (local.folder / "coefficients.csv").exists()  # its global model is where it started
    with fails("no shared one", "--clients"):
        load_coefficients(local)
    with fails("has no personal models", "leave --clients out"):
        load_client_coefficients(run(small(), "none"))


def test_a_record_of_personal_models_alone_names_the_command_that_shows_them():
    row = {"round": 1, "personal_val_loss": 1.0, "bytes_up": 0, "seconds": 1.0}
    record = fake_record("local", table=[row])
    with fails("fcorun weights --clients local writes their coefficients"):
        load_coefficients(record)


@pytest.mark.slow
def test_several_runs_by_a_plain_loop():
    records = [run(small(f"seed={seed}", f"reg.strength={s}"), f"{seed}-{s}") for seed in range(3) for s in (0.05, 0.9)]
    frame, keys = summarize_coefficients(records)
    assert keys == ["reg.strength"]
    for strength in (0.05, 0.9):
        matching = [r for r in records if r.config["reg"]["strength"] == strength]
        values = np.array([r.solution["weights"] for r in matching], float)
        rows = frame[(frame["reg.strength"] == strength) & (frame["parameter"] == "weights")]
        np.testing.assert_array_equal(rows["chosen"], (np.abs(values) > 1e-4).mean(axis=0))
        np.testing.assert_array_equal(rows["median"], np.median(values, axis=0))
        np.testing.assert_array_equal(rows["min"], values.min(axis=0))
        np.testing.assert_array_equal(rows["max_original"], values.max(axis=0))
        assert (rows["runs"] == 3).all()
    assert frame[frame["parameter"] == "bias"]["chosen"].isna().all()
    assert 0 < frame["chosen"].min() < 1 or frame["chosen"].nunique() > 1
