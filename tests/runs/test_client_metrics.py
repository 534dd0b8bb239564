"""client_metrics: each client's losses and scores at each evaluation, the worst and best tenth, and the spread."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import Stop, fails, rows_of, small

from fcorun import Record, compose, run
from fcorun.base.metrics import CATALOGUE
from fcorun.experiment.prepare import prepare
from fcorun.runs.client_history import summarize_clients

EACH = "client_metrics=true"


def read_clients(folder: str) -> pd.DataFrame:
    return pd.read_parquet(Path(folder) / "clients.parquet")


def assert_equals_scores(folder: str) -> None:
    """Compare the last evaluation with scores.csv, which is computed by other code in float64."""
    clients = read_clients(folder)
    last = clients[clients["round"] == clients["round"].max()]
    scores = Record(Path(folder)).scores
    scores = scores[scores["client"].astype(bool)]
    both = last.merge(scores, on=["set", "model", "client"], suffixes=("", "_of_scores"))
    assert len(both) == len(last) == len(scores)
    assert (both["rows"] == both["n"]).all()
    for name in ("loss", "accuracy"):
        if name in last:
            np.testing.assert_allclose(both[name], both[f"{name}_of_scores"], rtol=2e-5)


@pytest.mark.parametrize("overrides", [("algo=feddualavg",), ("algo=pfedme",), ("algo=centralized",)])
def test_the_last_evaluation_equals_the_scores_of_the_record(overrides, two_hospitals):
    run(compose([*two_hospitals, *overrides, "rounds=6", "eval_every=3", EACH]), "here")
    assert_equals_scores("here")
    clients = read_clients("here")
    metrics = Record(Path("here")).metrics
    assert clients["round"].unique().tolist() == metrics["round"].tolist()
    models = {"algo=pfedme": ["shared", "personal"]}.get(overrides[0], ["shared"])
    assert sorted(clients["model"].unique()) == sorted(models)
    for (round_, model), of_round in clients[clients["set"] == "train"].groupby(["round", "model"]):
        row = metrics[metrics["round"] == round_].iloc[0]
        name = "personal_train_loss" if model == "personal" else "train_loss"
        assert np.average(of_round["loss"], weights=of_round["rows"]) == pytest.approx(row[name], rel=1e-5)
        assert of_round["loss"].max() == pytest.approx(row[f"{name}_worst_tenth"], rel=1e-6)
        assert of_round["loss"].min() == pytest.approx(row[f"{name}_best_tenth"], rel=1e-6)


@pytest.fixture
def two_hospitals() -> list[str]:
    """Write a table of three hospitals, the last of which is held out, and return the overrides that read it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3))
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    frame["y"] = (x[:, 0] + rng.normal(size=90) > 0).astype(int)
    frame["h"] = np.repeat(["bern", "basel", "chur"], [30, 40, 20])
    frame.to_csv("t.csv", index=False)
    return ["data=table", "data.path=t.csv", "data.target=y", "data.client=h", "data.validation=[chur]",
            "data.task=binary"]  # fmt: skip


def test_the_tenth_of_21_clients_are_3_and_the_worst_have_the_least_accuracy():
    values = np.append(np.arange(21.0), np.nan)
    summary = summarize_clients({"val_accuracy": values, "val_loss": values}, CATALOGUE)
    assert summary["val_accuracy_worst_tenth"] == summary["val_loss_best_tenth"] == 1
    assert summary["val_accuracy_best_tenth"] == summary["val_loss_worst_tenth"] == 19
    assert summary["val_loss_spread"] == pytest.approx(np.arange(21).std())


def test_a_resumed_run_has_the_evaluations_before_the_interruption():
    run(small(EACH), "unbroken")
    with pytest.raises(KeyboardInterrupt):
        run(small(EACH), "broken", Stop(2))
    run(small(EACH), "broken")
    pd.testing.assert_frame_equal(read_clients("broken"), read_clients("unbroken"))
    pd.testing.assert_frame_equal(rows_of(Record(Path("broken"))), rows_of(Record(Path("unbroken"))))


def test_other_metrics_and_the_identity_of_a_run_without_it_stay():
    run(small(), "without")
    run(small(EACH), "with")
    without = Record(Path("without")).metrics.drop(columns="seconds")
    pd.testing.assert_frame_equal(Record(Path("with")).metrics[without.columns], without)
    assert not Path("without/clients.parquet").exists()
    assert prepare(small()).identity == prepare(small("client_metrics=false")).identity != prepare(small(EACH)).identity


def test_a_metric_of_clients_sets_it():
    assert prepare(small("metric=train_loss_worst_tenth")).settings.client_metrics
    assert not prepare(small("metric=train_loss")).settings.client_metrics


def test_other_models_than_those_of_the_evaluations_are_refused():
    with fails("client_metrics=true", "relax makes another model"):
        prepare(small(EACH, "reg=l1", "relax=0.5"))
