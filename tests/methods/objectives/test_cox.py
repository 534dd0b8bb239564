"""Cox's partial likelihood, stratified by client: its formula, published coefficients, runs, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from helpers import engine_of, fails, ragged
from scipy.sparse import csr_array

import fcorun
from fcorun import compose, run
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.methods.mirror_maps import Euclidean
from fcorun.methods.objectives import Cox
from fcorun.methods.problem.problem import Batch, Problem
from fcorun.methods.problem.solver import minimize
from fcorun.methods.regularizers import NoRegularizer
from fcorun.studies.selection.folds import SubsetMasks, assign_folds, check_subsets

# PHReg(..., ties="breslow", strata=client) of statsmodels 0.15 on ``draw_patients``
STRATIFIED = [0.486822147201, -0.424083939834, 0.095879340375, 0.236504833339]
STRATIFIED_LOG_LIKELIHOOD = -309.5619960537728


def loss_by_definition(p, y, weight, client):
    """Sum over events the weighted logarithms of the sums over risk sets, minus p."""
    total = 0.0
    for i in np.flatnonzero((y > 0) & (weight > 0)):
        of_client = (client == client[i]) & (weight > 0)
        at_risk = of_client & (abs(y) >= y[i])
        relative_weight = weight / weight[of_client].mean()
        total += weight[i] * (np.log(np.sum(relative_weight[at_risk] * np.exp(p[at_risk]))) - p[i])
    return total


def draw_rows(n=40, scale=3.0):
    """Draw predictions, signed times with many ties, whole weights of which some are 0, and clients."""
    rng = np.random.default_rng(0)
    y = rng.integers(1, 8, n) * np.where(rng.random(n) < 0.6, 1.0, -1.0)
    return scale * rng.standard_normal(n), y, rng.integers(0, 4, n) * 1.0, rng.integers(3, size=n)


def weighted_loss(p, y, weight, client):
    return weight @ Cox().client_losses(p, y, weight, client)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_losses_and_gradients_are_those_of_the_definition():
    p, *rows = draw_rows()
    value, gradient = jax.jit(jax.value_and_grad(weighted_loss))(p, *rows)
    assert float(value) == pytest.approx(loss_by_definition(p, *rows), rel=1e-12)
    steps = 1e-6 * np.eye(len(p))
    slopes = [(loss_by_definition(p + e, *rows) - loss_by_definition(p - e, *rows)) / 2e-6 for e in steps]
    np.testing.assert_allclose(gradient, slopes, atol=1e-7)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("scale", [0.0, 1.0])  # at 0, all terms of the sums are equal
def test_hessians_are_those_of_the_definition(scale):
    p, y, weight, client = draw_rows(15, scale)
    rows = y, np.ones_like(weight), client
    gradient = jax.jit(jax.grad(weighted_loss))
    hessian = jax.jit(jax.jacfwd(jax.grad(weighted_loss)))(p, *rows)
    steps = 1e-5 * np.eye(len(p))
    differences = [(gradient(p + e, *rows) - gradient(p - e, *rows)) / 2e-5 for e in steps]
    np.testing.assert_allclose(hessian, differences, atol=1e-8)
    np.testing.assert_allclose(hessian.sum(axis=0), 0, atol=1e-12)  # a shift of all predictions changes nothing


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_whole_weights_are_repeated_rows():
    p, y, weight, client = draw_rows()
    repeated = np.repeat(np.arange(len(p)), weight.astype(int))

    def repeated_loss(p):
        rows = (jnp.asarray(values[repeated]) for values in (y, np.ones(len(y)), client))
        return weighted_loss(p[repeated], *rows)

    weighted = jax.jit(jax.grad(weighted_loss))(p, y, weight, client)
    np.testing.assert_allclose(weighted, jax.jit(jax.grad(repeated_loss))(jnp.asarray(p)), atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_derivatives_of_large_predictions_are_finite():
    p, *rows = draw_rows(scale=1000.0)
    value, gradient = jax.jit(jax.value_and_grad(weighted_loss))(p, *rows)
    hessian = jax.jit(jax.hessian(weighted_loss))(p, *rows)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    assert np.isfinite(hessian).all()


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_conjugates_bound_the_loss_from_below():
    """Fenchel's inequality, with equality at the gradient itself."""
    p, *rows = (jnp.asarray(values) for values in draw_rows())
    y, weight, client = rows
    slopes = jax.jit(jax.grad(weighted_loss))(p, *rows)
    conjugates = jax.jit(Cox().client_conjugates)

    def gap(scale, other):
        conjugate = weight @ conjugates(p, y, weight, scale, client)
        return float(weighted_loss(other, *rows) + conjugate - scale * slopes @ other)

    assert gap(1.0, p) == pytest.approx(0, abs=1e-10)
    others = [jnp.asarray(draw_rows(scale=s)[0][::-1].copy()) for s in (0.0, 1.0, 4.0)]
    assert min(gap(scale, other) for scale in (0.0, 0.3, 0.9, 1.0) for other in [*others, 0.5 * p]) > -1e-10
    assert gap(0.9, p) > gap(0.99, p) > 0


def solve(x, y, client):
    problem = Problem(Cox(), NoRegularizer(), Euclidean(), {"weights": (x.shape[1],)})
    batch = Batch(jnp.asarray(x), jnp.asarray(y), jnp.full(len(y), 1 / len(y)), client=jnp.asarray(client))
    *_, last = minimize(problem, batch, 1e-10)
    assert last.certified
    return np.asarray(last.w["weights"]), -len(y) * last.objective


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_the_remission_times_of_leukaemia_patients():
    """R's coxph(..., method="breslow") on the data of Gehan (1965) prints 1.509 and a log likelihood of -86.38."""
    placebo = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]
    treated = [6, 6, 6, -6, 7, -9, 10, -10, -11, 13, 16, -17, -19, -20, 22, 23, -25, -32, -32, -34, -35]
    x = np.repeat([1.0, 0.0], 21)[:, None]
    weights, log_likelihood = solve(x, np.array([*placebo, *treated], float), np.zeros(42, int))
    assert weights[0] == pytest.approx(1.509191412586, abs=1e-7)
    assert log_likelihood == pytest.approx(-86.37962207114555, abs=1e-8)


def draw_patients():
    """Draw features, signed times with ties, and clients with different baseline hazards."""
    rng = np.random.default_rng(5)
    client = np.repeat(np.arange(3), [30, 50, 70])
    x = rng.standard_normal((150, 4))
    hazard = np.exp(x @ [0.8, -0.5, 0.0, 0.3]) * np.array([0.5, 1.0, 3.0])[client]
    time = np.ceil(5 * rng.exponential(size=150) / hazard)
    return x, np.where(rng.random(150) < 0.7, time, -time), client


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_clients_are_strata():
    weights, log_likelihood = solve(*draw_patients())
    np.testing.assert_allclose(weights, STRATIFIED, atol=1e-7)
    assert log_likelihood == pytest.approx(STRATIFIED_LOG_LIKELIHOOD, abs=1e-7)


def patients(folder, *overrides, **rows):
    """Return the configuration of a run on ``draw_patients``."""
    x, y, _ = draw_patients()
    config = ragged(folder, *overrides, task="survival", sizes=(30, 50, 70), x=rows.get("x", x), y=rows.get("y", y))
    return config


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["feddualavg", "newton"])
def test_algorithms_reach_the_optimum_of_pooled_rows(algo, tmp_path):
    rounds = {"feddualavg": ("rounds=1500", "local_epochs=2"), "newton": ("rounds=20",)}[algo]
    record = run(patients(tmp_path, f"algo={algo}", *rounds, "eval_every=20", "reg.strength=0.02", "reference=true",
                          "gap=true", "stop={suboptimality: 1e-6}"), "run")  # fmt: skip
    assert record.summary["stopped"]
    assert record.summary["reference"]["certified"]
    assert record.summary["reference"]["kind"] == "duality gap"
    gaps, distances = record.metrics["gap"].to_numpy(), record.metrics["suboptimality"].to_numpy()
    assert np.all(gaps >= distances - 1e-9)
    assert gaps[-1] < 0.01 * gaps[0]


@pytest.mark.slow
def test_auto_steps_never_raise_the_objective(tmp_path):
    record = run(patients(tmp_path, "algo=fedgd", "reg=none", "rounds=30", "eval_every=1"), "run")
    assert np.diff(record.metrics["objective"]).max() < 0


@pytest.mark.slow
def test_all_weights_are_0_from_the_largest_useful_strength_on(tmp_path):
    reg = ("reg=elastic_net", "algo=centralized")
    at_least, below = (run(patients(tmp_path, *reg, f"reg.relative={r}"), f"r{r}") for r in (1.0001, 0.98))
    assert not at_least.solution["weights"].any()
    assert below.solution["weights"].any()


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_metrics_are_means_of_the_losses_within_clients(tmp_path):
    """A held-out row is compared with the held-out rows of its client."""
    config = patients(tmp_path, "algo=fedgd", "reg=none", "data.validation=0.3", "rounds=4", "eval_every=4")
    data = load_data(prepare(config))
    record = run(config, "run")
    for split, rows in (("train", data.train), ("val", data.validation)):
        assert rows is not None
        p = rows.x @ record.solution["weights"]
        expected = loss_by_definition(p, rows.y, np.ones(len(rows)), rows.client) / len(rows)
        assert record.metrics[f"{split}_loss"].iloc[-1] == pytest.approx(expected, rel=1e-9)
    scores = record.scores
    assert scores["loss"].iloc[0] == pytest.approx(record.metrics["train_loss"].iloc[-1], rel=1e-9)


@pytest.mark.slow
def test_personal_models_are_measured_on_the_rows_of_their_clients(tmp_path):
    record = run(patients(tmp_path, "algo=local", "reg=none", "objective.ridge=0.1", "rounds=5", "eval_every=5"), "run")
    x, y, client = draw_patients()
    weights = record.personal["weights"]
    p = np.einsum("nd,nd->n", x, weights[client])
    expected = loss_by_definition(p, y, np.ones(len(y)), client) / len(y)
    assert record.metrics["personal_train_loss"].iloc[-1] == pytest.approx(expected, rel=1e-9)


def test_minibatches_are_refused(tmp_path):
    with fails("objective=cox compares all rows of a client", "batch_size=null instead of 10"):
        engine_of(patients(tmp_path, "algo=fedavg", "algo.client_lr=0.1", "batch_size=10"))


@pytest.mark.slow
def test_a_site_without_training_rows_has_no_losses():
    none = jnp.zeros(0)
    Cox().check_targets(np.zeros(0), np.array([2.0, -1.0]))
    assert Cox().client_losses(none, none, none).shape == (0,)


def test_targets_without_a_partial_likelihood_are_refused(tmp_path):
    _, y, _ = draw_patients()
    for name, bad, words in (("censored", -abs(y), "all training rows are censored"), ("zero", 0 * y, "a time is 0")):
        with fails("objective=cox", words):
            load_data(prepare(patients(tmp_path / name, "algo=fedavg", "algo.client_lr=0.1", y=bad)))
    with fails("no intercept", "objective.intercept"):
        prepare(patients(tmp_path, "objective.intercept=true"))


@pytest.mark.slow
def test_a_client_without_events_is_warned_of_and_has_no_part(tmp_path):
    _, y, client = draw_patients()
    y = np.where(client == 0, -abs(y), y)
    data = load_data(prepare(patients(tmp_path, "algo=centralized", y=y)))
    assert any("no training row of client 0 has an event" in warning for warning in data.warnings)
    p = jnp.asarray(np.linspace(-1, 1, 150))
    gradient = jax.grad(weighted_loss)(p, jnp.asarray(y), jnp.ones(150), jnp.asarray(client))
    assert not gradient[:30].any()
    assert gradient[30:].any()


def test_events_are_spread_evenly_over_folds_and_every_fold_needs_one(tmp_path):
    _, y, client = draw_patients()
    data = load_data(prepare(patients(tmp_path / "all", "algo=centralized")))
    fold = assign_folds(data, 5, "rows", seed=0)
    for m in range(3):
        events = np.bincount(fold[(client == m) & (data.train.y > 0)], minlength=5)
        assert np.ptp(events) <= 1
    y = np.where(np.arange(150) == 140, abs(y), -abs(y))
    one_event = load_data(experiment := prepare(patients(tmp_path / "one", "algo=centralized", y=y)))
    masks = fold == 0
    with fails("fold 1 holds out no event", "give fewer folds"):
        check_subsets(experiment, one_event, {"fold1": SubsetMasks(~masks & (one_event.train.y > 0), masks)}, "rows")
    with fails("no event is among the rows that are left"):
        check_subsets(experiment, one_event, {"fold1": SubsetMasks(one_event.train.y < 0, masks)}, "rows")


@pytest.mark.slow
def test_levels_that_nothing_determines_are_warned_of(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"ward": rng.choice(["er", "eye", "icu"], 60), "unit": rng.choice(["p", "q", "r"], 60)})
    frame = frame.assign(time=rng.exponential(size=60), died=1, site=np.repeat(["A", "B"], 30))
    frame.to_csv(tmp_path / "rows.csv", index=False)

    def warns(*overrides):
        options = ["data=table", f"data.path={tmp_path}/rows.csv", "data.target=time", "data.client=site"]
        warnings = load_data(prepare(compose([*options, "algo=newton", *overrides]))).warnings
        return any("add up to one in every row" in warning for warning in warnings)

    cox = ("objective=cox", "data.event=died")
    one_column = ("data.ignore=[unit,died]", "objective=least_squares")
    assert warns(*cox, "reg=none")
    assert not warns(*cox, "reg=l1")
    assert not warns(*cox, "reg=none", "algo=meta_analysis")  # which compares levels with a reference
    assert not warns(*cox, "reg=none", "objective.ridge=0.1")
    assert not warns(*one_column, "reg=none")
    assert not warns(*one_column, "reg=none", "objective.intercept=false")  # the levels take the intercept's place
    assert warns(*one_column, "reg=none", "objective.intercept=false", "data.standardize=pooled")
    assert warns("objective=least_squares", "data.ignore=[died]", "reg=none", "objective.intercept=false")


def test_times_that_are_true_or_false_are_explained(tmp_path):
    pd.DataFrame({"age": [1.0, 2], "time": [True, False], "died": [1, 0]}).to_csv(tmp_path / "rows.csv", index=False)
    options = ["data=table", f"data.path={tmp_path}/rows.csv", "data.target=time", "data.event=died", "data.clients=1"]
    with fails("data.target=time holds 'True', and data.event asks for times: give numbers"):
        load_data(prepare(compose([*options, "objective=cox", "algo=newton", "reg=none"])))


def test_events_that_are_text_are_explained(tmp_path):
    frame = pd.DataFrame({"age": [1.0, 2, 3, 4], "time": [1.0, 2, 3, 4], "died": ["no", "1", "0", "1"]})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    options = ["data=table", f"data.path={tmp_path}/rows.csv", "data.target=time", "data.event=died", "data.clients=1"]
    with fails("data.event=died holds 'no' in row 1", "make it a number, 1 for an event, 0 for a censored row"):
        load_data(prepare(compose([*options, "objective=cox", "algo=newton", "reg=none"])))


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [
        (fcorun.Newton(), np.asarray),
        (fcorun.Centralized(), np.asarray),
        (fcorun.Centralized(), csr_array),
        (fcorun.FedDualAvg(), np.asarray),
    ],
)
@pytest.mark.filterwarnings("ignore::fcorun.ExperimentWarning")
def test_a_feature_that_is_constant_within_each_client_has_the_coefficient_0(algorithm, kind, tmp_path):
    """The baseline hazards absorb the feature, so that the other coefficients are those without it."""
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=(80, 2)), np.arange(80) % 4
    time = rng.exponential(np.exp(-x[:, 0])) * np.where(rng.random(80) < 0.7, 1, -1)
    shared = {"algorithm": algorithm, "objective": fcorun.Cox(), "regularizer": fcorun.NoRegularizer(), "rounds": 40}
    solutions = []
    for features in (x, np.c_[x, 2000.1 + client % 3]):
        data = fcorun.from_arrays(kind(features), time, client, task="survival", standardize="none", validation=0.0)
        record = fcorun.Experiment(data=data, **shared).run(tmp_path / str(len(solutions)))
        solutions.append(record.solution["weights"])
    assert solutions[1][2] == 0
    assert solutions[1][:2].tolist() == pytest.approx(solutions[0].tolist(), rel=1e-4)
    assert any("is constant within each client" in warning for warning in record.summary["warnings"])
