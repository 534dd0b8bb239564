"""data.truth: the known coefficients of a simulated table."""

from pathlib import Path

import numpy as np
import pytest
from table_files import frame, price_table, save

from fcorun import UserError, compose, run
from fcorun.data.datasets.table import Table

TRUTH = {"u": 2.0, "v": 0.0, "w": -1.5}


def write(lines: dict[str, object], name: str = "truth.csv") -> str:
    Path(name).write_text("name,coefficient\n" + "".join(f"{key},{value}\n" for key, value in lines.items()))
    return name


@pytest.fixture
def table() -> str:
    return save(Path.cwd(), "t.csv", frame(price=range(6)))


def test_known_coefficients_are_in_the_order_and_the_scale_of_the_features(table):
    write({"w": -1.5, "(intercept)": 3, "u": 2.0, "v": 0})
    loaded = price_table(table, truth="truth.csv").load()
    np.testing.assert_array_equal(loaded.truth["weights"], [2.0, 0.0, -1.5])
    scaled = price_table(table, truth="truth.csv", standardize="pooled").load()
    deviations = frame()[["u", "v", "w"]].to_numpy().std(axis=0)
    np.testing.assert_allclose(scaled.truth["weights"], [2.0, 0.0, -1.5] * deviations, rtol=1e-12)
    # a prediction by the truth is the same in both scales, but for the intercept
    difference = loaded.train.x @ loaded.truth["weights"] - scaled.train.x @ scaled.truth["weights"]
    np.testing.assert_allclose(difference, difference[0], rtol=1e-6)


def test_features_without_names_are_those_of_coefficients_csv():
    np.savez("t.npz", X=np.eye(3), y=np.arange(3.0), client=np.array(["a", "b", "b"]))
    write({"x2": 1, "x0": 0, "x1": 5})
    np.testing.assert_array_equal(Table("t.npz", truth="truth.csv", validation=0.0).load().truth["weights"], [0, 5, 1])


def test_another_truth_is_another_run_and_none_the_run_of_before(table):
    plain = price_table(table).fingerprint()
    write(TRUTH)
    with_truth = price_table(table, truth="truth.csv").fingerprint()
    Path("moved.csv").write_text(Path("truth.csv").read_text())
    assert price_table(table, truth="moved.csv").fingerprint() == with_truth != plain
    write(TRUTH | {"u": 3.0})
    assert price_table(table, truth="truth.csv").fingerprint() != with_truth
    assert price_table(table, truth=None).fingerprint() == plain


@pytest.mark.parametrize(
    ("lines", "options", "sentence"),
    [
        (TRUTH | {"ww": 1}, {}, "data.truth=truth.csv names 'ww', which is no feature of data.path="),
        ({"u": 1, "w": 1}, {}, "lacks 'v' of data.path="),
        (TRUTH | {"u": "large"}, {}, "the coefficient of 'u' is large: give a number"),
        (TRUTH | {"u": "inf"}, {}, "the coefficient of 'u' is inf: give a number"),
        (TRUTH, {"standardize": "per_client"}, "data.standardize=per_client gives each client its own"),
        (TRUTH, {"task": "multiclass"}, "a model of 6 classes has one for each class"),
    ],
)
def test_a_truth_of_other_features_is_refused_by_name(table, lines, options, sentence):
    write(lines)
    with pytest.raises(UserError) as refused:
        price_table(table, truth="truth.csv", **options).load()
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("name,value\nu,1\n", "has the columns name, value: give"), ("name,coefficient\nu,1\nu,2\n", "lists 'u' twice")],
)
def test_a_file_of_another_form_is_refused(table, text, sentence):
    Path("truth.csv").write_text(text)
    with pytest.raises(UserError, match=sentence):
        price_table(table, truth="truth.csv").load()


@pytest.mark.slow
def test_a_run_measures_the_support_and_the_distance_from_the_truth(table):
    write(TRUTH)
    options = ["data=table", f"data.path={table}", "data.target=price", "data.client=site", "data.validation=0"]
    record = run(compose([*options, "data.truth=truth.csv", "algo=centralized", "reg.strength=0.2"]))
    weights = np.load(record.folder / "solution.npz")["weights"]
    final = record.summary["final"]
    assert final["recovery_error"] == pytest.approx(np.linalg.norm(weights - [2.0, 0.0, -1.5]), rel=1e-5)
    selected = np.abs(weights) > 1e-4
    relevant = np.array([True, False, True])
    f1 = 2 * (selected & relevant).sum() / (selected.sum() + relevant.sum())
    assert final["support_f1"] == pytest.approx(f1, rel=1e-5)
