"""fcorun scores: its tables, its file, its refusals, and the same on the page."""

import csv
import re

import numpy as np
import pandas as pd
import pytest

from fcorun import compose, run
from fcorun.interface.cli.main import completions


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Two records of one table, whose rows belong to patients, and their folder."""
    folder = tmp_path_factory.mktemp("scores")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((240, 3))
    died = np.where(x[:, 0] + rng.logistic(size=240) > 0, "yes", "no")
    frame = pd.DataFrame(x, columns=["age", "dose", "noise"])
    frame = frame.assign(site=np.repeat(["[a]", "b"], 120), died=died, patient=[f"P{i // 2}" for i in range(240)])
    frame.to_csv(folder / "rows.csv", index=False)
    table = ["data=table", f"data.path={folder / 'rows.csv'}", "data.target=died", "data.client=site"]
    table += ["data.task=binary", "data.group=patient", "data.test=0.4", "precision=float64", "verbose=false"]
    for name, strength in (("a", 0.02), ("b", 0.08)):
        run(compose(["algo=newton", *table, "reg=l1", f"reg.strength={strength}", "rounds=3"]), folder / name)
    return folder


@pytest.mark.slow
def test_intervals_of_a_record(records, call, tmp_path):
    code, out, err = call("scores", records / "a", "--samples", "200", "--level", "0.9", "--out", tmp_path / "all.csv")
    assert (code, err) == (0, "")
    assert "90 % intervals: percentiles of 200 bootstrap samples of groups within clients of 10 or more, seed 0" in out
    assert "auc (Obuchowski)" in out
    assert "[a]" in out
    with (tmp_path / "all.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with (records / "a" / "scores.csv").open(encoding="utf-8") as file:
        scores = {(row["client"], row["set"]): row for row in csv.DictReader(file)}
    for row in rows:
        of_rows = scores[row["client"], "test"]
        assert (row["n"], row["events"]) == (of_rows["n"], of_rows["events"])
        expected = of_rows["loss" if row["score"] == "log_loss" else row["score"]]
        assert float(row["value"]) == pytest.approx(float(expected), rel=1e-9)
    assert {row["client"] for row in rows} == {"", "[a]", "b"}
    code, _, err = call("scores", records / "a", "--out", tmp_path / "all.csv")
    assert code == 2
    assert "give --force" in err


@pytest.mark.slow
def test_clients_with_few_events_are_named(records, call, tmp_path):
    predictions = pd.read_csv(records / "a" / "predictions.csv")
    predictions = predictions[predictions["set"] == "test"]
    of_first = (predictions["client"] == "[a]") & (predictions["target"] == "yes")
    (tmp_path / "few").mkdir()
    predictions.loc[~of_first | (of_first.cumsum() <= 3)].to_csv(tmp_path / "few" / "predictions.csv", index=False)
    code, out, _ = call("scores", tmp_path / "few", "--samples", "200")
    assert code == 0
    assert re.search(r"client +groups +with events +auc", out)
    assert "scores from fewer than 5 groups with events say little: [a] (3)\n" in out


@pytest.mark.slow
def test_groups_of_predictions_are_numbers(records):
    table = pd.read_csv(records / "rows.csv")
    predictions = pd.read_csv(records / "a" / "predictions.csv")
    patient = table["patient"].to_numpy()[predictions["row"] - 1]
    pairs = set(zip(patient, predictions["group"], strict=True))
    assert len(pairs) == len(set(patient)) == predictions["group"].nunique()
    assert predictions["group"].dtype == int


@pytest.mark.slow
def test_differences_of_two_records(records, call):
    code, out, _ = call(
        "scores", records / "a", records / "b", "--samples", "100", "--level", "0.9", "--resample", "rows"
    )
    assert code == 0
    assert f"{records / 'a'} minus {records / 'b'}" in out
    assert "difference" in out
    assert "auc (DeLong)" in out
    assert "warning: rows of a group are taken as independent: --resample groups does not assume that" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--resample", "patients"], ["--resample", "groups"]),
        (["--resample", "clients"], ["--resample clients", "2 clients are too few", "--resample rows"]),
        (["--samples", "3"], ["--samples 3", "100"]),
        (["--level", "95"], ["--level 95", "0.95"]),
        (["--out", "all.txt"], ["all.txt", ".csv"]),
    ],
)
@pytest.mark.slow
def test_wrong_options_are_one_sentence(records, call, options, words):
    code, _, err = call("scores", records / "a", *options)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert all(word in err for word in words)


def test_folders_without_predictions(call, tmp_path):
    assert "has no predictions.csv" in call("scores", tmp_path)[2]
    assert "there is no folder" in call("scores", tmp_path / "none")[2]


@pytest.mark.slow
def test_the_page_has_the_intervals(records, report, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = report(str(records / "a"))
    assert "percentiles of 1,000 bootstrap samples of groups" in page
    (area,) = re.findall(r"the AUC is (0\.\d+) \((0\.\d+) to (0\.\d+)\)", page)[:1]
    assert area[1] < area[0] < area[2]


def test_the_tab_key():
    assert completions("fcorun scores run --resample ")[0] == ["rows", "groups", "clients"]
    assert completions("fcorun results run --resample ")[0] == []  # no option of this command
    assert "--samples" in completions("fcorun scores run --")[0]
