"""What is measured of clients' own models, new clients, and what is refused or said."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers import fails, flat, given, names, plugin_class, ragged, small, small_for
from quadratics import SIZES, Quadratics

from fcorun import compose, grid, run, run_grid
from fcorun.algorithms import Algorithm
from fcorun.datasets.heterogeneous import Heterogeneous
from fcorun.experiment.build import engine_for, load
from fcorun.experiment.prepare import prepare
from fcorun.records.record import Record
from fcorun.reports.collect import table

PERSONAL = [
    name
    for name in names("algo")
    if issubclass(kind := plugin_class("algo", name), Algorithm) and kind.personal is not Algorithm.personal
]
HETEROGENEOUS = ("data=heterogeneous", "data.clients=6", "data.samples=12", "data.features=8", "data.shared_nonzeros=4",
                 "data.validation_samples=5", "clients_per_round=null", "batch_size=null")  # fmt: skip


def test_these_have_own_models():
    assert {"apfl", "pfedme", "mixture", "pfedmac", "pfedmac_s", "pfedmac_sh", "ditto", "local"} <= set(PERSONAL)


# ---------------------------------------------------------------- what is measured


@pytest.mark.parametrize("task", ["regression", "binary", "multiclass"])
def test_measured_on_each_clients_own_rows(task, tmp_path):
    """By hand, on clients of which one has no validation rows."""
    objective = {"regression": "least_squares", "binary": "logistic", "multiclass": "softmax"}[task]
    config = ragged(tmp_path, "algo=local", "reg=l1", "reg.strength=0.3", f"objective={objective}", "rounds=3",
                    "algo.client_lr=0.1", "data.validation=0.3", sizes=(2, 9, 14, 11), task=task)  # fmt: skip
    record, data = run(config, "run"), load(prepare(config))
    assert np.diff(given(data.offsets_val)).min() == 0 < np.diff(given(data.offsets_val)).max()
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
    train = [[each.mean() for each in pair] for pair in losses(data.x, data.y, data.offsets)]
    val = [[e.mean() for e in pair] for pair in losses(data.x_val, data.y_val, data.offsets_val) if len(pair[0])]
    assert len(val) == 3
    rows, shares = np.diff(given(data.offsets_val)), data.sizes / data.sizes.sum()  # weighted as of the global model
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


def test_without_rows_of_their_own_to_validate(tmp_path):
    config = ragged(tmp_path, "algo=pfedme", "reg=none", "data.validation=[2]", "rounds=2")
    names = list(run(config, "run").metrics)
    assert "val_loss" in names
    assert "personal_train_loss" in names
    assert not [name for name in names if name.startswith("personal_val")]


def test_distance_to_each_clients_truth():
    record = run(compose([*HETEROGENEOUS, "algo=local", "reg=l1", "rounds=2", "precision=float64"]), "run")
    truths = given(load(prepare(record.config)).truths)["weights"]
    distance = np.linalg.norm(record.personal["weights"] - truths, axis=1).mean()
    assert record.metrics["personal_recovery_error"].iloc[-1] == pytest.approx(distance, abs=1e-10)


def test_many_clients_are_measured_in_parts(monkeypatch):
    config = compose([*HETEROGENEOUS, "algo=local", "reg=l1", "rounds=2", "precision=float64"])
    whole = run(config, "whole").metrics.drop(columns="seconds")
    monkeypatch.setattr("fcorun.engine.evaluate._TOGETHER", 12 * 8 * 4)  # four clients at a time, then two
    parts = run(config, "parts").metrics.drop(columns="seconds")
    np.testing.assert_allclose(parts, whole, rtol=1e-12)


def test_own_models_are_kept_unless_told_otherwise():
    kept = run(small("algo=local"), "kept")
    assert kept.personal["weights"].shape == (6, 20)
    assert not run(small("algo=local", "save_personal=false"), "none").personal
    assert not run(small("algo=fedavg"), "fedavg").personal
    assert "personal_val_loss" in kept.summary["best"]


# ---------------------------------------------------------------- new clients


@pytest.fixture
def trained(tmp_path):
    return run(ragged(tmp_path / "old", "algo=fedavg", "algo.client_lr=0.03", "rounds=20", sizes=SIZES), "trained")


@pytest.mark.parametrize("name", PERSONAL)
def test_new_clients_start_from_a_record(name, trained, tmp_path):
    """The server's model stays as it is, nothing is sent, and clients that were not there get models of their own."""
    rest = ["clients_per_round=null", "reg.strength=0.05", "rounds=5", f"start={trained.folder}", "frozen=true"]
    if name == "pfedmac_sh":
        with fails("frozen=true", "topology"):
            prepare(ragged(tmp_path, f"algo={name}", "topology=tree", *rest))
        return
    record = run(ragged(tmp_path, f"algo={name}", *rest), "new")
    np.testing.assert_allclose(flat(record.solution), flat(trained.solution), atol=1e-15)
    own = np.column_stack([record.personal["weights"], record.personal["bias"]])
    assert own.shape == (3, 7)
    assert np.abs(own - flat(trained.solution)).max() > 1e-3
    losses = record.metrics["personal_train_loss"]
    assert losses.iloc[-1] < losses.iloc[0]
    assert not record.metrics[["bytes_up", "bytes_down"]].to_numpy().any()
    assert record.metrics["grad_evals"].iloc[-1] or record.metrics["prox_evals"].iloc[-1]


@pytest.mark.parametrize("name", ["apfl", "pfedme", "local"])
def test_new_clients_take_several_steps_from_a_model_that_stays(name, trained, tmp_path):
    """Local optima, or the prox of the trained model, with several local steps as with one."""
    rest = {"apfl": ["algo.alpha=0.7"], "pfedme": ["algo.lam=0.5"], "local": []}[name]
    rate = [] if name == "pfedme" else ["algo.client_lr=0.1"]
    new = ["reg=none", "rounds=3000", "eval_every=3000", f"start={trained.folder}", "frozen=true"]
    config = ragged(tmp_path, f"algo={name}", *rest, *rate, *new, "local_epochs=4", sizes=(12, 20, 16))
    q, record = Quadratics(config), run(config, "new")
    own = np.column_stack([record.personal["weights"], record.personal["bias"]])
    lam, w = (0.5 if name == "pfedme" else 0.0), flat(trained.solution)
    expected = [np.linalg.solve(h + lam * np.eye(7), c + lam * w) for h, c in zip(q.H, q.c, strict=True)]
    np.testing.assert_allclose(own, expected, atol=1e-6)


def test_new_clients_end_at_the_prox_of_the_trained_model(trained, tmp_path):
    config = ragged(tmp_path, "algo=ditto", "algo.personal_lr=0.05", "algo.lam=0.5", "reg=none", "rounds=3000",
                    "eval_every=3000", f"start={trained.folder}", "frozen=true", sizes=(12, 20, 16))  # fmt: skip
    q, record = Quadratics(config), run(config, "new")
    own = np.column_stack([record.personal["weights"], record.personal["bias"]])
    w = flat(trained.solution)
    np.testing.assert_allclose(own, [np.linalg.solve(h + 0.5 * np.eye(7), c + 0.5 * w) for h, c in
                                     zip(q.H, q.c, strict=True)], atol=1e-8)  # fmt: skip


def test_a_start_is_part_of_what_a_run_is(trained, tmp_path):
    cold = ragged(tmp_path, "algo=fedavg", "algo.client_lr=0.03", "rounds=5", sizes=SIZES)
    warm = cold | {"start": str(trained.folder)}
    assert prepare(cold).identity != prepare(warm).identity
    longer = run(cold | {"rounds": 25}, "longer")
    np.testing.assert_allclose(flat(run(warm, "warm").solution), flat(longer.solution), atol=1e-12)
    again = run(cold | {"seed": 3, "algo": cold["algo"] | {"client_lr": 0.01}}, "again")
    assert prepare(cold | {"start": str(again.folder)}).identity != prepare(warm).identity
    with pytest.raises(ValueError, match="differ"):
        run_grid([cold, warm], ["a", "b"])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algo=fedavg", "start={}", "frozen=true"], ["frozen=true", "algo=fedavg"]),
        (["algo=ditto", "frozen=true"], ["frozen=true", "start="]),
        (["algo=ditto", "start=nowhere"], ["start=nowhere", "no finished record"]),
        (["algo=feddualavg", "start={}", "mirror=entropy", "reg=l1_nonneg"], ["start=", "mirror"]),
        (["algo=pfedme", "algo.inner_lr=0.1"], ["algo.inner_lr=0.1", "algo.solver=gradient"]),
        (["algo=mixture", "algo.probability=1e-9"], ["algo.probability=1e-09", "0.0001"]),
        (["algo=centralized", "start={}"], ["algo=centralized", "start"]),
        (["algo=ditto", "start={}", "objective.intercept=false"], ["start=", "bias", "weights [6]"]),
    ],
)
def test_starts_that_are_refused(overrides, words, trained, tmp_path):
    with fails(*words):
        config = ragged(tmp_path, *(text.format(trained.folder) for text in overrides))
        engine_for(prepare(config), load(prepare(config)))


@pytest.mark.parametrize("name", ["solution.npz", "summary.json"])
@pytest.mark.parametrize("damage", [None, b"", b"{}"])
def test_a_damaged_record_is_no_start(name, damage, trained, tmp_path):
    path = trained.folder / name
    path.unlink() if damage is None else path.write_bytes(damage)
    config = ragged(tmp_path, "algo=fedavg", f"start={trained.folder}", sizes=SIZES)
    with fails("start=", "lost its solution.npz or summary.json"):
        _ = prepare(config).identity


def test_labels_of_a_start_must_be_those_of_the_data(tmp_path):
    config = ragged(tmp_path, "algo=fedavg", "objective=logistic", "rounds=2", task="binary")
    record = run(config, "one")
    summary = record.summary
    summary["data"]["classes"] = ["cat", "dog"]
    (record.folder / "summary.json").write_text(json.dumps(summary))
    with fails("start=", "cat, dog", "must be the same"):
        run(config | {"start": str(record.folder)}, "two")


def test_another_population_shares_the_shared_part():
    one, other = (Heterogeneous(clients=4, features=8, population=p).load() for p in (0, 1))
    np.testing.assert_array_equal(given(one.truth)["weights"], given(other.truth)["weights"])
    assert not (given(one.truths)["weights"] == given(other.truths)["weights"]).all()
    assert not (one.x == other.x).any()


# ---------------------------------------------------------------- refused, or said


def test_pfedmac_adds_a_ridge_and_says_so_or_is_refused(tmp_path):
    q = Quadratics(ragged(tmp_path, sizes=SIZES))
    lam = q.l + 0.7
    record = run(ragged(tmp_path, "algo=pfedmac", f"algo.lam={lam}", "reg=none", sizes=SIZES), "ridge")
    assert record.summary["curvature"]["algo.ridge"] == pytest.approx(0.7, abs=1e-8)
    assert "algo.ridge=0.7 was added" in record.status["reason"]
    with fails("algo.ridge=0.6", "no minimum", "algo.ridge=auto"):
        run(ragged(tmp_path, "algo=pfedmac", f"algo.lam={lam}", "algo.ridge=0.6", "reg=none", sizes=SIZES), "little")
    enough = run(ragged(tmp_path, "algo=pfedmac", f"algo.lam={0.9 * q.l}", "reg=none", sizes=SIZES), "enough")
    assert enough.status["reason"] == ""
    assert enough.summary["curvature"]["algo.ridge"] == 0


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("little", [1e-9, 1e-7, 1e-4])
def test_a_small_ridge_does_no_harm(precision, little, tmp_path):
    """What lies outside of a basis of all directions is rounding, and is not divided by the ridge."""
    q = Quadratics(ragged(tmp_path, sizes=SIZES))
    rest = [f"algo.lam={q.l}", "reg=none", f"precision={precision}", "rounds=30", "eval_every=30"]
    none, some = (
        ragged(tmp_path, "algo=pfedmac", f"algo.ridge={ridge}", *rest, sizes=SIZES) for ridge in (1e-12, little)
    )
    one, other = (run(config, f"r{i}").personal["weights"] for i, config in enumerate((none, some)))
    np.testing.assert_allclose(one, other, atol=0.01)


def test_a_point_that_is_refused_does_not_stop_the_others():
    base = compose([*HETEROGENEOUS, "algo=pfedmac", "objective.ridge=0.05", "objective.intercept=false", "algo.ridge=0",
                    "rounds=2", "reg=none"])  # fmt: skip
    with fails("algo.lam=0.1"):
        run_grid(grid(base, {"algo.lam": [0.01, 0.1, 0.03]}), ["a", "b", "c"])
    ends = [json.loads(Path(name, "status.json").read_text()) for name in "abc"]
    assert [end["status"] for end in ends] == ["done", "failed", "done"]
    assert "algo.lam=0.1" in ends[1]["reason"]


@pytest.mark.parametrize("name", ["pfedmac", "pfedmac_s", "pfedmac_sh"])
def test_pfedmac_on_losses_of_unknown_curvature_needs_to_be_told(name):
    tree = ["topology=tree"] if name == "pfedmac_sh" else []
    with fails(f"algo={name}", "algo.ridge"):
        prepare(small(f"algo={name}", *tree, "objective=mlp"))


def test_networks_have_own_models(tmp_path):
    inner = ["algo.solver=gradient", "algo.inner_lr=0.05", "algo.iterations=5"]
    config = ragged(tmp_path, "algo=pfedme", "objective=mlp", "objective.hidden=[4]", "reg=none", *inner, "rounds=8",
                    task="binary")  # fmt: skip
    record = run(config, "run")
    assert record.metrics["personal_train_loss"].iloc[-1] < record.metrics["personal_train_loss"].iloc[0]
    assert {value.shape[0] for value in record.personal.values()} == {3}


def test_smooth_sparsity_is_for_l1():
    with fails("algo=pfedmac_s", "smoothed", "reg=elastic_net"):
        prepare(small("algo=pfedmac_s", "algo.sparsity=huber", "reg=elastic_net"))


def test_what_leaves_psi_out_says_so():
    for name in ("apfl", "pfedme", "mixture", "pfedmac", "ditto"):
        assert "leaves psi out" in prepare(small_for(name)).remark
    assert not prepare(small_for("ditto", "algo.solver=feddualavg")).remark
    assert not prepare(small_for("pfedmac_s")).remark


# ---------------------------------------------------------------- tables of new clients


def visits(path, clients, columns=("age", "bp"), shift=0.0):
    """A CSV table of clients with features far from 0."""
    rng = np.random.default_rng(len(clients))
    lines = [",".join([*columns, "cost", "hospital"])]
    for client in clients:
        for age, bp in rng.normal((50 + shift, 120), (10, 20), (12, 2)):
            lines.append(f"{age},{bp},{0.3 * age - 0.1 * bp + rng.normal()},{client}")
    path.write_text("\n".join(lines) + "\n")
    return ["data=table", f"data.path={path}", "data.target=cost", "data.client=hospital", "rounds=5", "reg=none"]


def test_new_clients_are_scaled_as_the_old_ones(tmp_path):
    old = visits(tmp_path / "old.csv", ["a", "b", "c"])
    trained = run(compose([*old, "algo=fedavg", "algo.client_lr=0.1", "data.standardize=pooled"]), "old").folder
    new = [*visits(tmp_path / "new.csv", ["d", "e"], shift=30), "algo=ditto", f"start={trained}", "frozen=true"]
    for i, wrong in enumerate([[], ["data.standardize=pooled"], ["data.standardize=per_client"]]):
        with fails("start=", f"data.standardize=pooled data.scaling={trained}"):
            run(compose([*new, *wrong]), f"wrong{i}")
    right = compose([*new, "data.standardize=pooled", f"data.scaling={trained}"])
    told = load(prepare(run(right, "right").config))
    raw = load(prepare(compose(new)))
    old_raw = load(prepare(compose(old))).x
    np.testing.assert_allclose(told.x, (raw.x - old_raw.mean(axis=0)) / old_raw.std(axis=0), rtol=1e-5)
    other = run(compose([*old, "algo=fedavg", "data.standardize=pooled", "data.seed=5"]), "other").folder
    assert prepare(right | {"data": right["data"] | {"scaling": str(other)}}).identity != prepare(right).identity
    with fails("data.scaling=nowhere", "no record"):
        load(prepare(compose([*new, "data.standardize=pooled", "data.scaling=nowhere"])))
    with fails("data.scaling=", "data.standardize=pooled"):
        prepare(compose([*new, f"data.scaling={trained}"]))


def test_new_clients_have_the_features_of_the_old_ones(tmp_path):
    trained = run(compose([*visits(tmp_path / "old.csv", ["a", "b"]), "algo=fedavg"]), "old").folder
    new = visits(tmp_path / "new.csv", ["d", "e"], columns=("bp", "age"))
    with fails("start=", "'age' and 'bp'", "same order"):
        run(compose([*new, "algo=ditto", f"start={trained}", "frozen=true"]), "new")


def test_runs_from_different_records_are_no_seeds(trained, tmp_path):
    other = run(ragged(tmp_path / "more", "algo=fedavg", "rounds=3", sizes=SIZES), "other")
    starts = [ragged(tmp_path, "algo=ditto", "reg=none", f"start={r.folder}", "frozen=true") for r in (trained, other)]
    runs = table([run(config, f"r{i}") for i, config in enumerate(starts)])
    assert "start" in runs.keys
    assert runs.best()["seeds"].tolist() == [1]
    assert "start=trained frozen" in Record(Path("r0")).status["label"]


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
