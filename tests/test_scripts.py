"""The scripts say what they can do, and what they cannot."""

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from fcorun.data.datasets.table import Table

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture
def script(monkeypatch, capsys):
    """A function that runs a script in this process, and returns its exit code, output and errors."""

    def call(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
        try:
            runpy.run_path(str(SCRIPTS / name), run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("benchmark.py", ["round", "sweep"]),
        ("reproduce.py", ["--fast", "NAME"]),
        ("make_hospitals.py", ["--rows"]),
        ("make_sparse_rows.py", ["--columns"]),
        ("coverage.py", ["homoscedastic", "--repetitions"]),
    ],
)
def test_help(name, words, script):
    code, out, err = script(name, "--help")
    assert (code, err) == (0, "")
    assert all(word in out for word in words)


def test_an_unknown_benchmark_is_one_sentence(script):
    code, out, err = script("benchmark.py", "rond")
    assert (code, out) == (2, "")
    assert err.startswith("there is no benchmark 'rond': did you mean 'round'? (valid: asynchronous, channels, ")
    assert err.count("\n") == 1


def test_code_without_bytecode_is_not_measured(script, monkeypatch, tmp_path):
    """Commands would be measured with the compilation of fcorun itself."""
    monkeypatch.setattr("fcorun.__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "module.py").touch()
    code, out, err = script("benchmark.py", "start")
    assert (code, out) == (2, "")
    assert err == ("1 modules of fcorun have no compiled bytecode, so that a command would be measured with their "
                   f"compilation: python -m compileall -q {tmp_path}\n")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("coverage.py", ["logit"], "there is no design 'logit'\n"),
        ("coverage.py", ["logistic", "--repetitions", "1"], "--repetitions 1: give at least 2, "),
        ("score_coverage.py", ["10rows"], "there is no design '10rows'\n"),
        ("score_coverage.py", ["10 rows", "--repetitions", "0"], "--repetitions 0: give at least 1\n"),
    ],
)
def test_coverage_that_cannot_be_measured_is_refused(script, name, arguments, message):
    code, out, err = script(name, *arguments)
    assert (code, out) == (2, "")
    assert f"error: {message}" in err


@pytest.mark.slow
def test_hospitals_are_readable_and_made_by_the_model_that_is_documented(tmp_path):
    """A logistic regression on many complete rows finds the true coefficients, 0 for features outside the model."""
    script_globals = runpy.run_path(str(SCRIPTS / "make_hospitals.py"))
    table, new = script_globals["make_tables"](rows=3000, seed=3)
    truth = script_globals["TRUTH"]
    table = table.drop(columns="bmi").dropna()
    table.to_csv(tmp_path / "h.csv", index=False)
    data = Table(str(tmp_path / "h.csv"), "readmitted", client="hospital", task="binary", validation=0.0,
                 standardize="pooled", ignore=["patient", "admitted"]).load()  # fmt: skip
    # the reference levels, with coefficient 0 in the true model
    without_references = [name not in ("smoker=never", "ward=medicine") for name in data.features.names]
    fit = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000).fit(data.train.x[:, without_references], data.train.y)
    scale = np.array((data.features.standardized or {})["scale_"])[without_references]
    for name, coefficient, spread in zip(
        np.array(data.features.names)[without_references], fit.coef_[0] / scale, scale, strict=True
    ):
        assert abs(coefficient - truth.get(name, 0.0)) < 0.12 / spread, name
    assert all(name in data.features.names for name in truth)
    assert new.shape == (3, 16)
    assert "readmitted" not in new
    assert new.isna().any(axis=1).sum() == 1


def test_hospitals_are_the_same_for_a_seed(tmp_path, script):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        code, _, err = script("make_hospitals.py", "--rows", "20", "--out", str(tmp_path / name / "h.csv"))
        assert (code, err) == (0, "")
    for file in ("h.csv", "new_patients.csv"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    table = pd.read_csv(tmp_path / "a" / "h.csv")
    assert table.groupby("hospital")["bmi"].count().eq(0).tolist() == [False] * 4 + [True, False]
    data = Table(str(tmp_path / "a" / "h.csv"), "readmitted", client="hospital", task="binary", missing="median",
                 ignore=["patient", "admitted"]).load()  # fmt: skip
    assert np.isfinite(data.train.x).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "2"], "--rows 2: give a number from 10 to 60000"),
        (["--rows", "70000"], "--rows 70000: give a number from 10 to 60000"),
        (["--seed=-1"], "--seed -1: give 0 or a larger number"),
        (["--out", "new_patients.csv"], "--out new_patients.csv is the file of the new patients: choose another name"),
    ],
)
def test_hospitals_that_cannot_be_made_are_refused(script, arguments, message):
    code, _, err = script("make_hospitals.py", *arguments)
    assert code == 2
    assert message in err
    assert not Path("new_patients.csv").exists()


@pytest.mark.slow
def test_intervals_of_a_few_simulated_designs(script):
    names = ["homoscedastic, wald", "logistic", "3 clusters, wald"]
    code, out, _ = script("coverage.py", *names, "--repetitions", "2")
    rows = [line.split(" | ") for line in out.splitlines()[2:]]
    assert code == 0
    assert [row[0] for row in rows] == [f"| {name}" for name in names]
    assert all(float(row[3].split()[0]) > 70 for row in rows)


def test_the_house_is_counted(script, tmp_path):
    package = tmp_path / "fcorun"
    package.mkdir()
    (package / "a.py").write_text(
        'def _once(a):\n    """Return 1."""\n    b, c = 1, 2\n'
        '    return b if a.task == "binary" else [c for c in a]\n\n\n'
        "def call(a):\n    assert a is not None\n    return _once(a)\n",
        encoding="utf-8",
    )
    code, out, _ = script("house.py", str(tmp_path))
    counts = dict(re.split(r"\s{2,}", line) for line in out.splitlines())
    assert code == 0
    assert counts["lines"] == "9"
    assert counts["conditional expressions in 1,000 lines"] == counts["packed assignments in 1,000 lines"] == "111.1"
    assert counts["private functions with one caller"] == counts["assert ... is not None"] == "1"
    assert counts["files that compare a task with a text"] == "1"
