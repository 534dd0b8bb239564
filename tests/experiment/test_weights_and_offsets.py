"""Weights and offsets of rows: a row of weight k is k rows, an offset is what the target has already."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from helpers import engine_of, fails, flat, not_none
from scipy.stats import poisson
from sklearn.linear_model import PoissonRegressor

from fcorun import compose, run
from fcorun.base.config import identity_fields
from fcorun.data.datasets.table import Table
from fcorun.experiment.build import build_problem, load_data
from fcorun.experiment.prepare import prepare
from fcorun.methods.algorithms.algorithm import LocalData
from fcorun.methods.objectives.log_link import are_exposures, compare_exposures
from fcorun.methods.problem.curvature import curvature_bounds
from fcorun.methods.problem.problem import Batch
from fcorun.methods.problem.solver import gather_rows, minimize

GIVEN = ("data=table", "data.target=y", "data.client=site", "data.validation=[held]", "precision=float64", "rounds=6",
         "eval_every=3")  # fmt: skip


def frame(task="regression", seed=0):
    """Rows of four sites, one of which is held out, with weights 1 to 3 and an offset."""
    rng = np.random.default_rng(seed)
    sizes = {"a": 9, "b": 14, "c": 6, "held": 8}
    table = pd.DataFrame(rng.standard_normal((37, 3)), columns=["u", "v", "w"])
    table["site"], table["k"] = np.repeat([*sizes], [*sizes.values()]), rng.integers(1, 4, 37)
    table["o"] = rng.standard_normal(37)
    p = table["u"] - 0.5 * table["v"] + 0.3
    table["y"] = {"regression": p + rng.standard_normal(37), "binary": (p + rng.standard_normal(37) > 0).astype(int),
                  "counts": rng.poisson(np.exp(0.5 * p + table["o"]))}[task]  # fmt: skip
    return table


def repeated(table):
    return table.loc[table.index.repeat(table["k"])]


def done(table, name, *more, overrides=GIVEN):
    table.to_csv(f"{name}.csv", index=False)
    return run(compose([*overrides, f"data.path={name}.csv", *more]), name)


def same(ours, theirs, but=(), rtol=1e-9):
    """Every metric of two records is the same."""
    columns = [c for c in ours.metrics.columns if c not in ("seconds", "grad_evals", *but)]
    assert columns == [c for c in theirs.metrics.columns if c not in ("seconds", "grad_evals", *but)]
    np.testing.assert_allclose(ours.metrics[columns], theirs.metrics[columns], rtol=rtol, atol=1e-10)
    for name, value in ours.solution.items():
        np.testing.assert_allclose(value, theirs.solution[name], rtol=1e-7, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["algo=feddualavg", "local_epochs=3", "gap=true"],
        ["algo=feddualavg", "client_weighting=uniform", "clients_per_round=2"],
        ["algo=fedsplit", "objective.ridge=0.1"],
        ["algo=ditto", "algo.client_lr=0.05", "algo.personal_lr=0.05"],
        ["algo=centralized", "objective.ridge=0.1"],
        ["algo=local"],
    ],
    ids=lambda overrides: " ".join(overrides[:2]),
)
def test_a_row_of_weight_k_is_k_rows(overrides):
    table = frame()
    ours = done(table.drop(columns="o"), "weighted", "data.weight=k", *overrides)
    theirs = done(repeated(table).drop(columns=["k", "o"]), "repeated", *overrides)
    same(ours, theirs)
    assert ours.metrics.filter(like="train_loss").nunique().max() > 1


@pytest.mark.slow
def test_a_row_of_weight_k_is_k_rows_where_auto_steps_come_from_bounds():
    table = frame("binary")
    more = ("data.task=binary", "algo=fedavg", "reg=none", "local_epochs=2")
    ours = done(table.drop(columns="o"), "weighted", "data.weight=k", *more)
    theirs = done(repeated(table).drop(columns=["k", "o"]), "repeated", *more)
    same(ours, theirs)
    assert ours.summary["curvature"]["most"] == pytest.approx(theirs.summary["curvature"]["most"])


@pytest.mark.slow
def test_clients_own_validation_rows_weigh():
    table = frame().assign(site=lambda t: t["site"].replace("held", "c"))
    overrides = (*(g for g in GIVEN if "validation" not in g), "algo=ditto", "algo.client_lr=0.05")
    record = done(table.drop(columns="o"), "own", "data.weight=k", "algo.personal_lr=0.1", "data.validation=0.3",
                  overrides=overrides)  # fmt: skip
    data: Any = load_data(prepare(record.config))
    models, total = not_none(record.personal), []
    for m, (start, stop) in enumerate(zip(data.validation_offsets, data.validation_offsets[1:], strict=False)):
        p = data.validation.x[start:stop] @ models["weights"][m] + models["bias"][m]
        total.append(np.average((p - data.validation.y[start:stop]) ** 2, weights=data.validation.weight[start:stop]))
    client_weights = np.add.reduceat(data.validation.weight, data.validation_offsets[:-1])
    last = record.metrics.iloc[-1]
    assert last["personal_val_loss"] == pytest.approx(np.average(total, weights=client_weights), rel=1e-9)
    p = data.validation.x @ record.solution["weights"] + record.solution["bias"]
    assert last["val_loss"] == pytest.approx(
        np.average((p - data.validation.y) ** 2, weights=data.validation.weight), rel=1e-9
    )


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_minibatches_are_without_bias(tmp_path):
    """The mean gradient over an epoch of even batches is that of the client, whatever its rows weigh."""
    frame().to_csv("rows.csv", index=False)
    config = compose([*GIVEN, "data.path=rows.csv", "data.weight=k", "data.offset=o", "batch_size=3"])
    engine = engine_of(config)
    federation, data = engine.federation, engine.federation.data
    x, y, extras, *_ = not_none(federation.arrays[0])
    w = federation.problem.zeros("float64")
    drawn = federation.schedule.draw_rounds(0, 1)
    client = 0  # of 9 rows: three batches of three
    local = LocalData(x=x, y=y, rows=jnp.asarray(drawn.rows[0, client][:3]), dtype="float64", weight=extras["weight"],
                      offset=extras["offset"])  # fmt: skip
    gradients = [federation.problem.gradient(w, local.batch(rows)) for rows in local.rows]
    mean = (1 / 3) * (gradients[0] + gradients[1] + gradients[2])
    rows = slice(0, 9)
    weight, offset = not_none(data.train.weight)[rows], not_none(data.train.offset)[rows]
    whole = Batch(x[rows], y[rows], jnp.asarray(weight / weight.sum()), offset=jnp.asarray(offset))
    assert (mean - federation.problem.gradient(w, whole)).norm() < 1e-12


def test_no_minibatch_bends_more_than_its_bound():
    frame().to_csv("rows.csv", index=False)
    experiment = prepare(compose([*GIVEN, "data.path=rows.csv", "data.weight=k", "objective.ridge=0.2"]))
    data = load_data(experiment)
    least, most = curvature_bounds(experiment.objective, data, full_batch=False)
    rows = np.column_stack([data.train.x, np.ones(len(data.train.y))])
    ridge = np.diag([0.2] * data.train.x.shape[1] + [0.0])
    weighed = zip(rows, not_none(data.train.relative_weight), strict=True)
    values = [np.linalg.eigvalsh(2 * v * np.outer(row, row) + ridge) for row, v in weighed]
    assert least <= np.min(values) + 1e-12
    assert np.max(values) - 0.2 <= most <= np.max(values) + 0.2


@pytest.mark.slow
@pytest.mark.parametrize(
    "algo", [["algo=feddualavg", "gap=true"], ["algo=fedsplit", "objective.ridge=0.1"], ["algo=centralized"]]
)
def test_an_offset_is_subtracted_from_the_target(algo):
    table = frame()
    ours = done(table.drop(columns="k"), "offset", "data.offset=o", *algo)
    theirs = done(table.assign(y=table["y"] - table["o"]).drop(columns=["k", "o"]), "less", *algo)
    same(ours, theirs)


@pytest.mark.slow
def test_weights_and_exposures_as_scikit_learn_has_them():
    """Counts over exposures e with weights v are rates y / e with weights v e."""
    table = frame("counts")
    record = done(table, "counts", "data.weight=k", "data.offset=o", "objective=poisson", "objective.ridge=0.1",
                  "reg=none", "algo=centralized")  # fmt: skip
    x, y, o, weight = np.split(table.loc[table["site"] != "held", [*"uvwyok"]].to_numpy(float), [3, 4, 5], axis=1)
    rate, exposure, weight = (y / np.exp(o))[:, 0], np.exp(o)[:, 0], weight[:, 0]
    theirs = PoissonRegressor(alpha=0.1 * weight.sum() / (weight @ exposure), tol=1e-10, max_iter=1000)
    theirs.fit(x, rate, sample_weight=weight * exposure)
    np.testing.assert_allclose(flat(record.solution), [*theirs.coef_, theirs.intercept_], atol=1e-5)
    certificate = record.summary["certificate"]
    assert certificate["kind"] == "duality gap"
    assert certificate["certified"]


@pytest.mark.slow
def test_the_gap_with_an_offset_bounds_what_is_left(x64):
    frame("counts").to_csv("rows.csv", index=False)
    experiment = prepare(compose([*GIVEN, "data.path=rows.csv", "data.weight=k", "data.offset=o", "objective=poisson",
                                  "algo=centralized"]))  # fmt: skip
    data = load_data(experiment)
    points = list(minimize(build_problem(experiment, data), gather_rows(data, "examples"), 1e-12))
    best = points[-1].objective
    for point in points[:-1]:
        assert point.certificate >= point.objective - best - 1e-12
    assert points[-1].certified


def test_tables_without_weights_and_offsets_keep_their_identity(tmp_path):
    plain = identity_fields(Table("rows.csv", target="y"))
    assert not {"weight", "offset"} & set(plain)
    assert identity_fields(Table("rows.csv", target="y", weight="k")) == plain | {"weight": "k"}


def test_a_client_without_any_weight_is_refused():
    frame().assign(k=lambda t: t["k"].where(t["site"] != "b", 0)).to_csv("rows.csv", index=False)
    with fails("client b", "weight 0"):
        load_data(prepare(compose([*GIVEN, "data.path=rows.csv", "data.weight=k"])))


def test_only_linear_predictors_take_an_offset():
    frame("binary").to_csv("rows.csv", index=False)
    mlp = ["data.task=binary", "data.offset=o", "objective=mlp", "algo.client_lr=0.1"]
    with fails("data.offset", "linear predictor", "objective=mlp"):
        load_data(prepare(compose([*GIVEN, "data.path=rows.csv", *mlp])))


def test_limits_of_weights_and_a_wide_offset_give_warnings(tmp_path):
    table = frame().assign(days=lambda t: np.linspace(1, 365, len(t)))
    table.to_csv(tmp_path / "t.csv", index=False)

    def warnings_of(**options):
        table = Table(str(tmp_path / "t.csv"), "y", "site", only=["u"], validation=0.0, **options)
        return load_data(replace(prepare(compose(["data=table", "data.target=y", "data.path=t"])), data=table)).warnings

    (weight,) = warnings_of(weight="k", offset="o", weight_kind="sampling")
    assert "data.weight=k weighs" in weight
    assert "scores, thresholds and curves of held-out rows count each row once, and features" in weight
    (wide,) = warnings_of(offset="days")
    assert wide.startswith("data.offset spans 364")
    assert wide.endswith("if it is an exposure such as days, give its logarithm")
    assert warnings_of() == ()


def exposed(seed=0, n=300):
    """Rows of three sites whose counts are proportional to their years, with the logarithm of these."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {"site": np.resize([*"abc"], n), "age": rng.normal(60, 10, n), "years": rng.uniform(0.1, 8, n)}
    )
    table["log_years"] = np.log(table["years"])
    table["log_days"] = np.log(365 * table["years"])  # all are above 0
    table["y"] = rng.poisson(table["years"] * np.exp(-2.2 + 0.02 * table["age"]))
    return table


@pytest.mark.parametrize("objective", ["poisson", "gamma"])
def test_an_exposure_in_place_of_its_logarithm_is_remarked(objective, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exposed().assign(y=lambda table: table["y"] + (objective == "gamma")).to_csv("rows.csv", index=False)

    def remarks_of(offset):
        table = ["data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "data.only=[age]",
                 "algo=newton", "reg=none"]  # fmt: skip
        warnings = load_data(prepare(compose([*table, f"objective={objective}", f"data.offset={offset}"]))).warnings
        return [text for text in warnings if "data.offset" in text]

    (remark,) = remarks_of("years")
    assert remark.startswith("data.offset multiplies the mean by its exp, 1.1")
    assert remark.endswith("if it is an exposure such as years, give its logarithm")
    assert remarks_of("log_years") == remarks_of("log_days") == []


def test_the_gain_of_an_exposure_is_that_of_the_likelihood():
    table = exposed()
    years, y = table["years"].to_numpy(), table["y"].to_numpy(float)
    means = [exposure * y.sum() / exposure.sum() for exposure in (years, np.exp(years))]
    gain = 2 * np.diff([poisson.logpmf(y, mean).sum() for mean in means])[0]
    dispersion = ((y - means[0]) ** 2 / means[0]).mean()
    log_sum = np.log(np.exp(years).sum())
    np.testing.assert_allclose(compare_exposures(years, y, log_sum), -gain / dispersion)


@pytest.mark.parametrize("power", [0, 0.5, 1])
def test_logarithms_of_days_are_no_exposures_in_small_tables(power):
    """The counts may follow a power of the days: offsets above 0 are rarely taken for exposures, and these are."""
    flagged = {"years": 0, "log_days": 0}
    for seed in range(50):
        rows = exposed(seed, 80)
        y = np.random.default_rng(seed).poisson(0.5 * rows["years"] ** power).astype(float)
        for name in flagged:
            flagged[name] += are_exposures(rows[name].to_numpy(), y)
    assert flagged["log_days"] <= 5
    if power == 1:
        assert flagged["years"] >= 48
        assert flagged["log_days"] == 0
        assert not are_exposures(np.append(rows["years"], 0.0), np.append(y, 1.0))
