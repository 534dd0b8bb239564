"""Metrics of the clients' personal models, and the files that keep the models."""

import csv
from itertools import pairwise

import numpy as np
import pytest
from helpers import HETEROGENEOUS, PERSONAL, fails, not_none, ragged, small

from fcorun import compose, run
from fcorun.base.metrics import COUNTERS
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare


def test_these_have_own_models():
    assert {"apfl", "pfedme", "mixture", "pfedmac", "pfedmac_s", "pfedmac_sh", "ditto", "local"} <= set(PERSONAL)


# ---------------------------------------------------------------- what is measured


@pytest.mark.slow
@pytest.mark.parametrize("task", ["regression", "binary", "multiclass"])
def test_measured_on_each_clients_own_rows(task, tmp_path):
    """By hand, on clients of which one has no validation rows."""
    objective = {"regression": "least_squares", "binary": "logistic", "multiclass": "softmax"}[task]
    sizes = (9, 14, 11, 2) if task == "regression" else (2, 9, 14, 11)
    config = ragged(tmp_path, "algo=local", "reg=l1", "reg.strength=0.3", f"objective={objective}", "rounds=3",
                    "algo.client_lr=0.1", "data.validation=0.3", sizes=sizes, task=task)  # fmt: skip
    record, data = run(config, "run"), load_data(prepare(config))
    assert np.diff(not_none(data.validation_offsets)).min() == 0 < np.diff(not_none(data.validation_offsets)).max()
    assert record.personal["client"].tolist() == list(data.clients)

    def losses(x, y, offsets):
        for m, (start, stop) in enumerate(pairwise(offsets)):
            score = x[start:stop] @ record.personal["weights"][m] + record.personal["bias"][m]
            own = y[start:stop]
            if task == "regression":
                yield (score - own) ** 2, np.zeros(len(own))
            elif task == "binary":
                yield np.log1p(np.exp(score)) - own * score, (score > 0) == own
            else:
                yield np.log(np.exp(score).sum(axis=1)) - score[np.arange(len(own)), own], score.argmax(axis=1) == own

    last = record.metrics.iloc[-1]
    train = [[each.mean() for each in pair] for pair in losses(data.train.x, data.train.y, data.train.offsets)]
    val = [
        [e.mean() for e in pair]
        for pair in losses(not_none(data.validation).x, not_none(data.validation).y, data.validation_offsets)
        if len(pair[0])
    ]
    assert len(val) == 3
    rows, shares = (
        np.diff(not_none(data.validation_offsets)),
        data.train.sizes / data.train.sizes.sum(),
    )  # weighted as of the global model
    for i, kind in enumerate(["loss"] + (["accuracy"] if task != "regression" else [])):
        own = [pair[i] for pair in val]
        expected = {
            f"train_{kind}": shares @ [pair[i] for pair in train],
            f"val_{kind}": np.average(own, weights=rows[rows > 0]),
            f"val_{kind}_q10": np.quantile(own, 0.1),
            f"val_{kind}_q90": np.quantile(own, 0.9),
        }
        for name, value in expected.items():
            assert last[f"personal_{name}"] == pytest.approx(value, abs=1e-10)
    assert last["personal_density"] == pytest.approx(np.mean(np.abs(record.personal["weights"]) > 1e-4))
    assert 0 < last["personal_density"] < 1


@pytest.mark.slow
def test_without_rows_of_their_own_to_validate(tmp_path):
    config = ragged(tmp_path, "algo=pfedme", "reg=none", "data.validation=[2]", "rounds=2")
    names = list(run(config, "run").metrics)
    assert "val_loss" in names
    assert "personal_train_loss" in names
    assert not [name for name in names if name.startswith("personal_val")]


@pytest.mark.slow
def test_distance_to_each_clients_truth():
    record = run(compose([*HETEROGENEOUS, "algo=local", "reg=l1", "rounds=2", "precision=float64"]), "run")
    truths = not_none(load_data(prepare(record.config)).client_truths)["weights"]
    distance = np.linalg.norm(record.personal["weights"] - truths, axis=1).mean()
    assert record.metrics["personal_recovery_error"].iloc[-1] == pytest.approx(distance, abs=1e-10)


@pytest.mark.slow
def test_many_clients_are_measured_in_parts(monkeypatch):
    config = compose([*HETEROGENEOUS, "algo=local", "reg=l1", "rounds=2", "precision=float64"])
    whole = run(config, "whole").metrics.drop(columns="seconds")
    monkeypatch.setattr("fcorun.engine.evaluate._BATCH_NUMBERS", 12 * 8 * 4)  # four clients at a time, then two
    parts = run(config, "parts").metrics.drop(columns="seconds")
    np.testing.assert_allclose(parts, whole, rtol=1e-12)


@pytest.mark.slow
def test_nothing_is_measured_of_a_model_that_nobody_has():
    """Unless it is given: a model that clients start from is one for all."""
    alone = run(compose([*HETEROGENEOUS, "algo=local", "rounds=1"]), "alone")
    counters = set(COUNTERS) & {*alone.metrics}
    assert all(name.startswith("personal_") for name in {*alone.metrics} - counters)
    scores = csv.DictReader((alone.folder / "scores.csv").read_text().splitlines())
    assert {row["model"] for row in scores} == {"personal"}
    with fails("objective", "makes no model for all clients"):
        prepare(compose([*HETEROGENEOUS, "algo=local", "stop={objective:1}"]))
    run(compose([*HETEROGENEOUS, "algo=fedavg", "rounds=1"]), "shared")
    tuned = run(compose([*HETEROGENEOUS, "algo=local", "rounds=1", "start=shared", "frozen=true"]), "tuned")
    assert "objective" in tuned.metrics


@pytest.mark.slow
def test_own_models_are_kept_unless_told_otherwise():
    kept = run(small("algo=local"), "kept")
    assert kept.personal["weights"].shape == (6, 20)
    assert not run(small("algo=local", "save_personal=false"), "none").personal
    assert not run(small("algo=fedavg"), "fedavg").personal
    assert "personal_val_loss" in kept.summary["best"]


# ---------------------------------------------------------------- refused, or said


@pytest.mark.slow
def test_networks_have_own_models(tmp_path):
    inner = ["algo.solver=gradient", "algo.inner_lr=0.05", "algo.iterations=5"]
    config = ragged(tmp_path, "algo=pfedme", "objective=mlp", "objective.hidden=[4]", "reg=none", *inner, "rounds=8",
                    task="binary")  # fmt: skip
    record = run(config, "run")
    assert record.metrics["personal_train_loss"].iloc[-1] < record.metrics["personal_train_loss"].iloc[0]
    assert {value.shape[0] for value in record.personal.values()} == {3}


# ---------------------------------------------------------------- tables of new clients


def test_a_wrong_kind_of_own_model_is_one_sentence(user_module):
    user_module("mine", WRONG)
    with fails("personal() of Mine", "parameters like w0"):
        config = small("algo=local")
        config["algo"] = {"name": "mine", "class": "mine.Mine", "client_lr": 0.1}
        run(config, "mine")


WRONG = """
from dataclasses import dataclass

from fcorun.algorithms import Local


@dataclass(frozen=True)
class Mine(Local):
    def personal(self, problem, server, client):
        return client["weights"]
"""
