"""Coefficients by name: of records, of old ones, in the features' own units, and of several runs."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import HETEROGENEOUS, fails, ragged, small
from sklearn.linear_model import LinearRegression, LogisticRegression

from fcorun import Record, compose, run
from fcorun.models.coefficients import load_client_coefficients, load_coefficients
from fcorun.reports.coefficient_summary import summarize_coefficients


def patients(folder: Path, task: str = "regression") -> Path:
    """A table whose features have names, means and units of their own; one of them is constant."""
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


def on_patients(task: str, *more: str, standardize: str = "pooled") -> Record:
    patients(Path(), task)
    given = ["data=table", "data.path=patients.csv", "data.target=y", "data.client=site", f"data.task={task}"]
    own = [*given, "data.validation=0", f"data.standardize={standardize}", "reg=none", "algo=centralized", *more]
    return run(compose(own), f"{task}-{standardize}")


def told(record: Record) -> Any:
    return pd.read_csv(record.folder / "coefficients.csv", keep_default_na=False, na_values=[""])


def test_values_are_those_of_the_solution():
    record = run(small(), "run")
    found = told(record)
    assert list(found) == ["parameter", "feature", "class", "value", "value_original"]
    assert found["feature"].tolist()[:20] == [f"x{j}" for j in range(20)]
    np.testing.assert_array_equal(found["value"][:20], record.solution["weights"].astype(float))
    assert found["parameter"].tolist() == ["weights"] * 20 + ["bias"]
    np.testing.assert_array_equal(found["value"], found["value_original"])


def test_original_units_are_those_of_scikit_learn():
    found = told(on_patients("regression"))
    frame = pd.read_csv("patients.csv")
    model = LinearRegression().fit(frame[["age", "dose"]], frame["y"])
    expected = dict(zip(["age", "dose"], model.coef_, strict=True)) | {"one": 0.0}
    by = found.set_index("feature")["value_original"]
    for name, value in expected.items():
        assert by[name] == pytest.approx(value, rel=1e-5)
    assert found["value_original"].iloc[-1] == pytest.approx(model.intercept_, rel=1e-5)
    assert by["dose"] != pytest.approx(found.set_index("feature")["value"]["dose"], rel=0.1)


def test_classes_have_a_row_each():
    two = told(on_patients("binary"))
    assert two["class"].unique().tolist() == ["well"]  # the odds are of the second class
    frame = pd.read_csv("patients.csv")
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(
        (frame[["age", "dose"]] - frame[["age", "dose"]].mean()) / frame[["age", "dose"]].std(ddof=0), frame["y"]
    )
    np.testing.assert_allclose(two["value"][:2], model.coef_[0], rtol=1e-3)
    three = told(on_patients("multiclass"))
    assert three["class"].tolist() == ["x", "y", "z"] * 4
    solution = Record(Path("multiclass-pooled")).solution
    np.testing.assert_array_equal(three["value"][:9], np.ravel(solution["weights"]))
    np.testing.assert_array_equal(three["value"][9:], solution["bias"])


@pytest.mark.parametrize("task", ["regression", "multiclass"])
def test_both_units_predict_alike(task):
    """Standardized features with the trained values, raw ones with the original values: the same predictions."""
    found = load_coefficients(on_patients(task))
    x = pd.read_csv("patients.csv")[["age", "dose", "one"]].to_numpy()
    assert found.scaling is not None
    assert found.original is not None
    standard = (x - found.scaling.mean) * found.scaling.factor @ found.weights + found.bias
    weights, intercept = found.original
    np.testing.assert_allclose(x @ weights + intercept, standard, rtol=1e-9, atol=1e-9)


def test_without_an_intercept_the_units_bring_one():
    found = told(on_patients("regression", "objective.intercept=false"))
    assert found["parameter"].iloc[-1] == "bias"
    assert found["value"].iloc[-1] == 0
    assert found["value_original"].iloc[-1] != 0


def test_units_of_each_client_have_no_way_back():
    found = told(on_patients("regression", standardize="per_client"))
    assert found["value_original"].isna().all()
    assert found["value"].notna().all()


def test_an_old_record_is_told_too():
    record = on_patients("regression")
    before = (record.folder / "coefficients.csv").read_text()
    summary = json.loads((record.folder / "summary.json").read_text())
    new = summary["data"]["standardized"]
    scale = [1 / s if v else 0.0 for s, v in zip(new["scale_"], new["var_"], strict=True)]
    summary["data"]["standardized"] = {"by": "pooled", "mean": new["mean_"], "scale": scale}
    (record.folder / "summary.json").write_text(json.dumps(summary))
    (record.folder / "coefficients.csv").unlink()
    again = load_coefficients(Record(record.folder)).to_csv()
    a, b = (pd.read_csv(io.StringIO(text)) for text in (before, again))
    np.testing.assert_allclose(a["value_original"], b["value_original"], rtol=1e-12)


def test_matrices_are_named_by_row_and_column():
    own = ["data=lowrank", "data.rows=3", "data.columns=4", "data.rank=1", "data.clients=3", "data.samples=20"]
    record = run(compose([*own, "reg=nuclear", "rounds=3", "clients_per_round=null"]), "run")
    found = told(record)
    assert found["feature"][5] == "x1,1"
    assert found["value"][5] == record.solution["weights"][1, 1]


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


def test_clients_of_their_own():
    ditto = run(compose([*HETEROGENEOUS, "algo=ditto", "rounds=3"]), "ditto")
    clients, models = load_client_coefficients(ditto)
    assert clients[1] == "client1"
    np.testing.assert_array_equal(models[1].weights[:, 0], ditto.personal["weights"][1])
    local = run(compose([*HETEROGENEOUS, "algo=local", "rounds=3"]), "local")
    assert not (local.folder / "coefficients.csv").exists()  # its global model is where it started
    with fails("none together", "--clients"):
        load_coefficients(local)
    with fails("no models of its clients' own", "leave --clients out"):
        load_client_coefficients(run(small(), "none"))


def test_several_runs_by_a_plain_loop():
    records = [run(small(f"seed={seed}", f"reg.strength={s}"), f"{seed}-{s}") for seed in range(3) for s in (0.05, 0.9)]
    frame, keys = summarize_coefficients(records)
    assert keys == ["reg.strength"]
    for strength in (0.05, 0.9):
        own = [r for r in records if r.config["reg"]["strength"] == strength]
        values = np.array([r.solution["weights"] for r in own], float)
        part = frame[(frame["reg.strength"] == strength) & (frame["parameter"] == "weights")]
        np.testing.assert_array_equal(part["chosen"], (np.abs(values) > 1e-4).mean(axis=0))
        np.testing.assert_array_equal(part["median"], np.median(values, axis=0))
        np.testing.assert_array_equal(part["min"], values.min(axis=0))
        np.testing.assert_array_equal(part["max_original"], values.max(axis=0))
        assert (part["runs"] == 3).all()
    assert frame[frame["parameter"] == "bias"]["chosen"].isna().all()
    assert 0 < frame["chosen"].min() < 1 or frame["chosen"].nunique() > 1
    over, keys = summarize_coefficients(records, ["reg.strength"])
    assert keys == []
    assert (over["runs"] == 6).all()
    with fails("--over rounds", "the same in all"):
        summarize_coefficients(records, ["rounds"])
