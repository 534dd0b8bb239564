"""Runs that start from a record, and new clients that train personal models from it."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import PERSONAL, fails, flat, ragged
from quadratics import SIZES, Quadratics
from sklearn.preprocessing import StandardScaler

from fcorun import compose, run
from fcorun.base.records.record import Record
from fcorun.data.tables.scaling import Scaling
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.experiment import _same_standardization, load_warm_start
from fcorun.experiment.prepare import prepare
from fcorun.reports.build_table import build_table


@pytest.fixture
def trained(tmp_path):
    return run(ragged(tmp_path / "old", "algo=fedavg", "algo.client_lr=0.03", "rounds=20", sizes=SIZES), "trained")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["newton", "fedcef"])
def test_a_start_outside_of_a_constraint_is_projected(name, trained, tmp_path):
    options = ("reg=l1_ball", "reg.radius=0.1", "clients_per_round=null", "rounds=8")
    record = run(ragged(tmp_path, f"algo={name}", *options, f"start={trained.folder}"), name)
    assert np.abs(trained.solution["weights"]).sum() > 0.2
    assert np.isfinite(record.metrics["objective"]).all()
    expected = run(ragged(tmp_path / "zero", "algo=newton", *options), f"{name}_from_zero")
    atol = {"newton": 1e-8, "fedcef": 0.05}[name]
    np.testing.assert_allclose(record.solution["weights"], expected.solution["weights"], atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("name", PERSONAL)
def test_new_clients_start_from_a_record(name, trained, tmp_path):
    """The server's model stays as it is, nothing is sent, and new clients train personal models."""
    rest = ["clients_per_round=null", "reg.strength=0.05", "rounds=5", f"start={trained.folder}", "frozen=true"]
    if name == "pfedmac_sh":
        with fails("frozen=true", "topology"):
            prepare(ragged(tmp_path, f"algo={name}", "topology=tree", *rest))
        return
    record = run(ragged(tmp_path, f"algo={name}", *rest), "new")
    np.testing.assert_allclose(flat(record.solution), flat(trained.solution), atol=1e-15)
    models = np.column_stack([record.personal["weights"], record.personal["bias"]])
    assert models.shape == (3, 7)
    assert np.abs(models - flat(trained.solution)).max() > 1e-3
    losses = record.metrics["personal_train_loss"]
    assert losses.iloc[-1] < losses.iloc[0]
    assert not record.metrics[["bytes_up", "bytes_down"]].to_numpy().any()
    assert record.metrics["grad_evals"].iloc[-1] or record.metrics["prox_evals"].iloc[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["apfl", "pfedme", "local"])
def test_new_clients_take_several_steps_from_a_model_that_stays(name, trained, tmp_path):
    """Local optima, or the prox of the trained model, with several local steps as with one."""
    rest = {"apfl": ["algo.alpha=0.7"], "pfedme": ["algo.lam=0.5"], "local": []}[name]
    rate = [] if name == "pfedme" else ["algo.client_lr=0.1"]
    new = ["reg=none", "rounds=3000", "eval_every=3000", f"start={trained.folder}", "frozen=true"]
    config = ragged(tmp_path, f"algo={name}", *rest, *rate, *new, "local_epochs=4", sizes=(12, 20, 16))
    q, record = Quadratics(config), run(config, "new")
    models = np.column_stack([record.personal["weights"], record.personal["bias"]])
    lam, w = (0.5 if name == "pfedme" else 0.0), flat(trained.solution)
    expected = [np.linalg.solve(h + lam * np.eye(7), c + lam * w) for h, c in zip(q.H, q.c, strict=True)]
    np.testing.assert_allclose(models, expected, atol=1e-6)


@pytest.mark.slow
def test_new_clients_end_at_the_prox_of_the_trained_model(trained, tmp_path):
    config = ragged(tmp_path, "algo=ditto", "algo.personal_lr=0.05", "algo.lam=0.5", "reg=none", "rounds=3000",
                    "eval_every=3000", f"start={trained.folder}", "frozen=true", sizes=(12, 20, 16))  # fmt: skip
    q, record = Quadratics(config), run(config, "new")
    models = np.column_stack([record.personal["weights"], record.personal["bias"]])
    w = flat(trained.solution)
    np.testing.assert_allclose(models, [np.linalg.solve(h + 0.5 * np.eye(7), c + 0.5 * w) for h, c in
                                     zip(q.H, q.c, strict=True)], atol=1e-8)  # fmt: skip


@pytest.mark.slow
def test_a_start_is_part_of_what_a_run_is(trained, tmp_path):
    cold = ragged(tmp_path, "algo=fedavg", "algo.client_lr=0.03", "rounds=5", sizes=SIZES)
    warm = cold | {"start": str(trained.folder)}
    assert prepare(cold).identity != prepare(warm).identity
    longer = run(cold | {"rounds": 25}, "longer")
    np.testing.assert_allclose(flat(run(warm, "warm").solution), flat(longer.solution), atol=1e-12)
    again = run(cold | {"seed": 3, "algo": cold["algo"] | {"client_lr": 0.01}}, "again")
    assert prepare(cold | {"start": str(again.folder)}).identity != prepare(warm).identity
    assert prepare(cold).batch_key != prepare(warm).batch_key


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algo=fedavg", "start={}", "frozen=true"], ["frozen=true", "algo=fedavg"]),
        (["algo=ditto", "frozen=true"], ["frozen=true", "start="]),
        (["algo=ditto", "start=nowhere"], ["start=nowhere holds no run that is done"]),
        (
            ["algo=feddualavg", "start={}", "mirror=entropy", "algo.client_lr=0.1", "reg=l1_nonneg"],
            ["start=", "mirror"],
        ),
        (["algo=pfedme", "algo.inner_lr=0.1"], ["algo.inner_lr=0.1", "algo.solver=gradient"]),
        (["algo=mixture", "algo.probability=1e-9"], ["algo.probability=1e-09", "0.0001"]),
        (["algo=centralized", "start={}"], ["algo=centralized", "start"]),
        (["algo=ditto", "start={}", "objective.intercept=false"], ["start=", "bias", "weights [6]"]),
    ],
)
def test_starts_that_are_refused(overrides, words, trained, tmp_path):
    with fails(*words):
        config = ragged(tmp_path, *(text.format(trained.folder) for text in overrides))
        build_engine(prepare(config), load_data(prepare(config)))


@pytest.mark.parametrize("name", ["solution.npz", "summary.json"])
@pytest.mark.parametrize("damage", [None, b"", b"{}"])
def test_a_damaged_record_is_no_start(name, damage, trained, tmp_path):
    path = trained.folder / name
    path.unlink() if damage is None else path.write_bytes(damage)
    config = ragged(tmp_path, "algo=fedavg", f"start={trained.folder}", sizes=SIZES)
    with fails("start=", "lost its solution.npz or summary.json"):
        _ = prepare(config).identity


@pytest.mark.parametrize("lost", [{"feature_names": None}, {"standardized": {"by": "pooled"}}])
def test_a_record_whose_summary_lacks_what_is_compared_is_no_start(lost, trained):
    path = trained.folder / "summary.json"
    summary = json.loads(path.read_text())
    for name, value in lost.items():
        summary["data"].pop(name, None)
        if value is not None:
            summary["data"][name] = value
    path.write_text(json.dumps(summary))
    with fails("start=", "lost its solution.npz or summary.json"):
        load_warm_start(str(trained.folder))


@pytest.mark.slow
def test_labels_of_a_start_must_be_those_of_the_data(tmp_path):
    config = ragged(tmp_path, "algo=fedavg", "objective=logistic", "rounds=2", task="binary")
    record = run(config, "one")
    summary, labels = record.summary, record.summary["data"]["classes"]
    summary["data"]["classes"] = ["cat", "dog"]
    (record.folder / "summary.json").write_text(json.dumps(summary))
    with fails("start=", "cat, dog", "must be the same"):
        run(config | {"start": str(record.folder)}, "two")
    summary["data"]["classes"] = labels[::-1]
    (record.folder / "summary.json").write_text(json.dumps(summary))
    with fails("start=", f"they must be the same; give data.positive={labels[0]}"):
        run(config | {"start": str(record.folder)}, "two")


def visits(path, clients, columns=("age", "bp"), shift=0.0):
    """A CSV table of clients with features far from 0."""
    rng = np.random.default_rng(len(clients))
    lines = [",".join([*columns, "cost", "hospital"])]
    for client in clients:
        for age, bp in rng.normal((50 + shift, 120), (10, 20), (12, 2)):
            lines.append(f"{age},{bp},{0.3 * age - 0.1 * bp + rng.normal()},{client}")
    path.write_text("\n".join(lines) + "\n")
    return ["data=table", f"data.path={path}", "data.target=cost", "data.client=hospital", "rounds=5", "reg=none"]


@pytest.mark.slow
def test_new_clients_are_scaled_as_the_old_ones(tmp_path):
    old = visits(tmp_path / "old.csv", ["a", "b", "c"])
    trained = run(compose([*old, "algo=fedavg", "algo.client_lr=0.1", "data.standardize=pooled"]), "old").folder
    new = [*visits(tmp_path / "new.csv", ["d", "e"], shift=30), "algo=ditto", f"start={trained}", "frozen=true"]
    for i, wrong in enumerate([[], ["data.standardize=pooled"], ["data.standardize=per_client"]]):
        with fails("start=", f'data.standardize="pooled", data.scaling="{trained}"'):
            run(compose([*new, *wrong]), f"wrong{i}")
    right = compose([*new, "data.standardize=pooled", f"data.scaling={trained}"])
    scaled = load_data(prepare(run(right, "right").config))
    raw = load_data(prepare(compose(new)))
    old_raw = load_data(prepare(compose(old))).train.x
    np.testing.assert_allclose(scaled.train.x, (raw.train.x - old_raw.mean(axis=0)) / old_raw.std(axis=0), rtol=1e-5)
    other = run(compose([*old, "algo=fedavg", "data.standardize=pooled", "data.seed=5"]), "other").folder
    assert prepare(right | {"data": right["data"] | {"scaling": str(other)}}).identity != prepare(right).identity
    with fails("data.scaling=nowhere", "no record"):
        load_data(prepare(compose([*new, "data.standardize=pooled", "data.scaling=nowhere"])))
    with fails("data.scaling=", "data.standardize=pooled"):
        prepare(compose([*new, f"data.scaling={trained}"]))


@pytest.mark.slow
def test_a_record_notes_its_scaling_as_scikit_learn_does(tmp_path):
    given = visits(tmp_path / "old.csv", ["a", "b", "c"], columns=("age", "bp"))
    lines = (tmp_path / "old.csv").read_text().splitlines()
    (tmp_path / "old.csv").write_text("\n".join(["same," + lines[0], *(f"7,{line}" for line in lines[1:])]) + "\n")
    trained = run(compose([*given, "algo=fedavg", "data.validation=0", "data.standardize=pooled"]), "old")
    told = trained.summary["data"]["standardized"]
    x = np.sort(load_data(prepare(compose([*given, "data.validation=0"]))).train.x, axis=0)
    scaler = StandardScaler().fit(x)
    assert list(told) == ["by", "mean_", "var_", "scale_"]
    for name in ("mean_", "var_", "scale_"):
        np.testing.assert_allclose(told[name], getattr(scaler, name), rtol=1e-9, atol=1e-12)

    new = [*given, "algo=fedavg", "data.standardize=pooled", f"data.scaling={trained.folder}"]
    ours = load_data(prepare(compose(new))).train.x
    assert (ours[:, 0] == 0).all()
    run(compose([*new, f"start={trained.folder}", "rounds=1"]), "goes on")


@pytest.mark.slow
def test_new_clients_have_the_features_of_the_old_ones(tmp_path):
    trained = run(compose([*visits(tmp_path / "old.csv", ["a", "b"]), "algo=fedavg"]), "old").folder
    new = visits(tmp_path / "new.csv", ["d", "e"], columns=("bp", "age"))
    new = [*new, "algo=ditto", f"start={trained}", "frozen=true"]
    data = load_data(prepare(run(compose(new), "new").config))  # found by name
    assert data.features.names == ("age", "bp")
    assert data.train.x.mean(axis=0) == pytest.approx([120, 50], abs=20)  # the new file has them the other way round
    with fails("data.path=", "no column 'bp'", "(valid: age, ph)"):
        run(compose([*new[:1], *visits(tmp_path / "n.csv", ["d"], columns=("ph", "age")), *new[-3:]]), "lost")
    (trained / "encoding.json").unlink()  # as records of before
    with fails("start=", "'age' and 'bp'", "same order"):
        run(compose(new), "old record")


@pytest.mark.slow
def test_runs_from_different_records_are_no_seeds(trained, tmp_path):
    other = run(ragged(tmp_path / "more", "algo=fedavg", "rounds=3", sizes=SIZES), "other")
    starts = [ragged(tmp_path, "algo=ditto", "reg=none", f"start={r.folder}", "frozen=true") for r in (trained, other)]
    runs = build_table([run(config, f"r{i}") for i, config in enumerate(starts)])
    assert "start" in runs.varied_keys
    assert runs.best_points()["seeds"].tolist() == [1]
    assert "start=trained frozen" in Record(Path("r0")).status["label"]


def test_standardizations_are_compared_in_units_of_the_features():
    def scaling(mean, deviation):
        return Scaling(np.array([mean, 5.0]), np.array([1 / deviation, 0.0]), np.array([deviation, 0.0])).to_dict()

    assert _same_standardization(scaling(3e-9, 2e-9), scaling(3e-9, 2e-9))
    assert not _same_standardization(scaling(3e-9, 2e-9), scaling(4e-9, 2e-9))
    assert not _same_standardization(scaling(3e-9, 2e-9), scaling(3e-9, 2.1e-9))
