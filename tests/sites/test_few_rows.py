"""The rule that few rows of a site must not outweigh all others: a server that cheats, and studies that do not."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from helpers import composed, fails

from fcorun.base.errors import UserError
from fcorun.engine.remote.programs import effective_numbers, sum_shares
from fcorun.experiment.prepare import prepare
from fcorun.methods.objectives.cox import Cox
from fcorun.methods.objectives.logistic import Logistic
from fcorun.results.inference.sums import ModelRows, row_shares
from fcorun.sites.plan.messages.run_messages import RoundMessage
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.server.site_study import run_plan
from fcorun.sites.server.trial import mask_sites
from fcorun.sites.site.request_checks import FewRowsRule
from fcorun.sites.site.site import Site
from fcorun.sites.tables.fold_rules import draw_row_folds
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.studies.selection.selection_result import SelectOptions

NAMES = ("a", "b", "c")
N = 60
OUTLIER = 17  # the row of a whose numbers in the columns x and z differ most


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    """Write the tables of three sites, and make their folder the current one."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in NAMES:
        frame = pd.DataFrame(rng.normal(size=(N, 3)), columns=["x", "z", "u"])
        frame["z"] = frame["x"] + 1e-3 * frame["z"]
        frame["cost"] = (frame["x"] + 0.1 * rng.normal(size=N)).round(4)
        frame["ill"] = (np.arange(N) % 12 == 0).astype(int)  # five rows
        if name == "a":
            frame.loc[OUTLIER, "z"] = frame["x"][OUTLIER] + 2.0
        frame.to_csv(f"{name}.csv", index=False)


def plan_of(*overrides, target="cost", select=None, bounds=None) -> Plan:
    task = (
        ("data.task=binary", "data.positive='1'", "data.ignore=[cost]") if target == "ill" else ("data.ignore=[ill]",)
    )
    options = ("data=sites", f"data.target={target}", *task, "data.validation=0", "rounds=2", "precision=float64")
    return Plan.from_experiment(prepare(composed("algo=fedavg", *options, *overrides)), bounds, select)


def sites_of(plan) -> dict[str, Site]:
    return {name: Site(plan, SiteOptions(f"{name}.csv"), Policy()) for name in NAMES}


@dataclass
class Cheating(InProcessConnections):
    """Connections of a server that sends another model in one kind of message, whose arrays have an axis of runs.

    Attributes:
        message: the name of the message.
        weights, bias: the model, which replaces all arrays of its shapes, gradients as well.
    """

    message: str = "round"
    weights: tuple[float, ...] = (0.0, 0.0, 0.0)
    bias: float = 0.0

    def send(self, request):
        arrays = dict(request.message.arrays)
        if request.name == self.message:
            for name, values in arrays.items():
                if name != "scale":
                    arrays[name] = np.zeros_like(values) + (self.bias if values.ndim == 1 else np.array(self.weights))
        return super().send(replace(request, message=replace(request.message, arrays=arrays)))


APART = {"weights": (-1e6, 1e6, 0.0)}  # of the columns x, z and u


def run(plan, message, model, sites=None):
    run_plan(plan, Cheating(sites or sites_of(plan), message=message, **model), f"out-{uuid4()}")


@pytest.mark.slow
@pytest.mark.parametrize("message", ["round", "evaluate", "residuals", "conjugates"])
def test_no_sum_leaves_at_a_model_where_one_row_outweighs_all_others(message):
    plan = plan_of("gap=true", "reg.strength=0.1")
    with fails("site 'a'", "outweigh all others", "policy.min_cell", "plan a larger strength"):
        run(plan, message, APART)


@pytest.mark.parametrize(
    "message", ["round", *(pytest.param(name, marks=pytest.mark.slow) for name in ("evaluate", "residuals"))]
)
def test_visits_of_one_patient_that_outweigh_all_others_count_as_one_row(message):
    plan = plan_of("gap=true", "reg.strength=0.1", "data.group=patient")
    for name in NAMES:
        frame = pd.read_csv(f"{name}.csv").assign(patient=np.arange(N))
        frame.loc[:5, "z"] = frame["x"][:6] + 2.0
        frame.to_csv(f"{name}.csv", index=False)
    # of six patients the sites answer; only at the end is another model than that of the result refused
    with fails("another model than the one it had evaluated last") if message == "evaluate" else nullcontext():
        run(plan, message, APART)
    frame = pd.read_csv("a.csv")
    frame.assign(patient=np.where(np.isin(np.arange(N), [*range(6), OUTLIER]), 0, np.arange(N))).to_csv(
        "a.csv", index=False
    )
    with fails("site 'a'", "outweigh all others"):
        run(plan, message, APART)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["feddualavg", "newton", "fedprox", "scaffold", "fedmid", "fedsplit"])
def test_algorithms_whose_clients_receive_a_model_or_a_dual_point_refuse_alike(algo):
    with fails("site 'a'", "outweigh all others in 'round'"):
        run(plan_of(f"algo={algo}"), "round", APART)


@pytest.mark.slow
def test_a_small_batch_of_one_event_is_refused_and_all_rows_are_not():
    far = {"bias": -30.0}  # every event counts 1, and every other row 0
    run(plan_of(target="ill"), "round", far)
    with fails("outweigh all others in 'round'", "batch_size=null"):
        run(plan_of("batch_size=10", "local_steps=1", target="ill"), "round", far)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("message", "option"),
    [
        *((message, "client_weighting=uniform") for message in ("round", "evaluate", "residuals", "conjugates")),
        ("round", "objective.client_intercepts=true"),
    ],
)
def test_a_client_of_one_value_does_not_hide_few_rows_of_another(message, option):
    """Far away two of ward A's 40 rows have its curvature, and ward B's 200 rows the same one at all models."""
    rng = np.random.default_rng(5)
    for name in NAMES:
        rows = pd.DataFrame(rng.normal(size=(240, 3)), columns=["x", "z", "u"])
        rows.loc[40:] = 0.0
        rows = rows.assign(ward=np.repeat([f"{name}A", f"{name}B"], [40, 200]), ill=np.arange(240) % 2, cost=0)
        rows.to_csv(f"{name}.csv", index=False)
    steps = ("algo=newton", "batch_size=null", "gap=true", "reg.strength=0.1", "data.client=ward")
    far = {"weights": (1000.0, 0.0, 0.0)}
    if message == "round":  # a sum over both wards, of which no message tells the parts
        run(plan_of(*steps, "data.standardize=none", target="ill"), message, far)
    plan = plan_of(*steps, "data.standardize=none", option, target="ill")
    with fails("site 'a'", f"few training rows of this site outweigh all others in '{message}'"):
        run(plan, message, far)


@pytest.mark.slow
def test_the_rows_that_a_fold_leaves_out_are_looked_at_too():
    plan = plan_of("algo=newton", select=SelectOptions(points=3, folds=3, range=[0.01, 0.1]))
    rows = pd.read_csv("a.csv")
    rows["z"] = rows["x"]
    fold = draw_row_folds(plan, sites_of(plan)["a"].table)
    for k in range(3):  # two rows of each fold, and so four of the other folds, differ in x and z
        rows.loc[np.flatnonzero(fold == k)[:2], "z"] += [1.0, -1.0]
    rows.to_csv("a.csv", index=False)
    with fails("site 'a'", "few training rows of this site outweigh all others"):
        run(plan, "round", APART)


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [None, {"round": 1e9}])
def test_a_step_of_newton_that_goes_too_far_is_withheld_and_the_server_goes_back(bounds, monkeypatch):
    for name in NAMES:
        rows = pd.read_csv(f"{name}.csv")
        rows["cost"] = np.random.default_rng(4).poisson(np.exp(2 + rows["x"]))
        rows.assign(z=0.01 * rows["z"]).to_csv(f"{name}.csv", index=False)
    plan = plan_of("algo=newton", "objective=poisson", "reg.strength=1e-3", "rounds=40", bounds=bounds)
    sites, withheld = sites_of(plan), []
    compute_answer = RoundMessage.answer

    def note_withheld(kind, site, request):
        answer = compute_answer(kind, site, request)
        withheld.append("withheld" in answer.about)
        return answer

    monkeypatch.setattr(RoundMessage, "answer", note_withheld)
    record = run_plan(plan, InProcessConnections(mask_sites(sites) if bounds is not None else sites), "out")
    assert any(withheld)
    assert record.status["status"] == "done"
    rows = pd.concat([pd.read_csv(f"{name}.csv") for name in NAMES])
    bias, weights = float(record.solution["bias"]), np.asarray(record.solution["weights"])
    residual = np.exp(rows[["x", "z", "u"]].to_numpy() @ weights + bias) - rows["cost"]
    assert abs(residual.mean()) < (1e-5 if bounds is None else 1e-2)  # the intercept is at its optimum, up to masks
    with fails("outweigh all others in 'round'"):  # before any step, where there is no point to go back to
        run(plan_of("algo=newton", "objective=poisson"), "round", {"weights": (30.0, 0.0, 0.0)})


@pytest.mark.slow
def test_the_server_reads_one_sentence_whatever_a_masked_site_refuses():
    sentences = []
    for model in (APART, {"bias": 1e9}):  # few rows, and numbers beyond the bound
        plan = plan_of(bounds={})
        sites = mask_sites(sites_of(plan))
        with pytest.raises(UserError):
            run(plan, "round", model, sites)
        sentences.append(sites["a"]._refusal)
    assert sentences[0] == sentences[1]
    assert "few rows outweigh all others" in sentences[0]


def test_the_effective_number_is_that_of_equal_shares():
    shares = jnp.stack([jnp.ones(8), jnp.array([1.0, 0, 0, 0, 0, 0, 0, 0])])
    np.testing.assert_allclose(effective_numbers(sum_shares(shares)[None]), [8, 1])
    halves = np.stack([sum_shares(shares[:, :4]), sum_shares(shares[:, 4:])])
    np.testing.assert_allclose(effective_numbers(halves), [8, 1])
    np.testing.assert_allclose(effective_numbers(halves, np.array([1.0, 3.0]))[0], 16**2 / (4 + 4 * 9))
    huge = jnp.array([[1e30, 1e30], [1e-30, 1e-30]], jnp.float32)
    np.testing.assert_allclose(effective_numbers(sum_shares(huge)[None]), [2, 2], rtol=1e-6)


@pytest.mark.parametrize(
    ("split", "words"),
    [
        (
            "train",
            ("few training rows", "like fewer than 3 equal rows, policy.min_cell of", "batch_size=null"),
        ),
        (
            "val",
            ("few validation rows", "fewer than 2 equal rows, half of policy.min_cell", "(data.validation=0)"),
        ),
        ("test", ("few test rows", "like fewer than 2 equal rows", "hold out more rows or none (data.test=0)")),
    ],
)
def test_a_refusal_names_the_rows_of_its_split_the_limit_and_a_cure_for_them(split, words):
    rule = FewRowsRule(3) if split == "train" else FewRowsRule(3).of_losses
    with fails(*words):
        rule.check("evaluate", sum_shares(jnp.array([[1.0, 0.0], [1.0, 0.0]]))[None], split=split)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_one_row_of_a_tiny_or_of_a_huge_share_is_one_row(size):
    shares = np.full((2, 8), 1e-6 * size)
    shares[:, 3] = size
    with jax.enable_x64(True):
        sums = np.stack([sum_shares(jnp.asarray(part)) for part in np.split(shares, 2, axis=1)])
    np.testing.assert_allclose(effective_numbers(sums), [1, 1], rtol=1e-4)
    np.testing.assert_allclose(effective_numbers(sums, np.array([0.5, 3.0])), [1, 1], rtol=1e-3)


@pytest.mark.slow
def test_no_hessian_leaves_where_all_classes_are_certain_but_for_a_row():
    certain = {"weights": (40.0, 0.0, 0.0), "bias": -500.0}  # second derivatives of 1e-200 and less
    with fails("site 'a'", "outweigh all others in 'round'"):
        run(plan_of("algo=newton", target="ill"), "round", certain)


def test_sums_in_which_no_row_counts_pass_and_infinite_shares_do_not():
    nan, inf = float("nan"), float("inf")
    sums = sum_shares(jnp.array([[0.0, 0.0], [0.0, 0.0]]))
    assert np.isposinf(effective_numbers(sums[None])).all()
    sums = sum_shares(jnp.array([[nan, 1.0], [inf, 1.0]]))
    assert effective_numbers(sums[None]).tolist() == [inf, 0.0]


def test_shares_of_several_classes_are_the_distances_of_probabilities_from_classes():
    rng = np.random.default_rng(1)
    prediction, y, weight = rng.normal(size=(6, 3)), np.array([0, 1, 2, 0, 1, 2]), rng.random(6)
    probability = np.exp(prediction) / np.exp(prediction).sum(axis=1, keepdims=True)
    with jax.enable_x64(True):
        slope, curvature = Logistic().row_shares(jnp.asarray(prediction), jnp.asarray(y), jnp.asarray(weight))
    np.testing.assert_allclose(slope, weight * np.abs(probability - np.eye(3)[y]).sum(axis=1))
    np.testing.assert_allclose(curvature, weight * (probability * (1 - probability)).sum(axis=1))


def test_shares_of_times_to_events_are_expected_events():
    rng = np.random.default_rng(2)
    x, theta, client = rng.normal(size=(12, 2)), np.array([0.5, -1.0]), np.arange(12) // 6
    y = rng.permutation(np.arange(1.0, 13)) * rng.choice([-1, 1], 12)
    rows = ModelRows(x, y, np.full(12, 1 / 12), np.zeros(12), client)
    risk, hazard = np.exp(x @ theta), np.zeros(12)
    for event in np.flatnonzero(y > 0):
        at_risk = (client == client[event]) & (np.abs(y) >= y[event])
        hazard += at_risk * risk / risk[at_risk].sum() / 12
    with jax.enable_x64(True):
        slope, curvature = row_shares(Cox(), theta, rows)
    np.testing.assert_allclose(curvature, hazard, atol=1e-12)
    np.testing.assert_allclose(slope, np.abs(hazard - np.where(y > 0, 1 / 12, 0)), atol=1e-12)


def refusals(task: str, n_rows: int, n_studies: int, draw_events=None) -> int:
    """Return in how many simulated studies few of n rows outweigh the others at the best model of these rows."""
    rng, count = np.random.default_rng(3), 0
    for _ in range(n_studies):
        x = np.column_stack([rng.normal(size=(n_rows, 3)), np.ones(n_rows)])
        y = x[:, 0] + rng.normal(size=n_rows)
        w = np.linalg.lstsq(x, y, rcond=None)[0]
        shares = np.abs(x @ w - y)
        if task == "binary":
            y = (x[:, 0] + rng.logistic(size=n_rows) > 0).astype(float) if draw_events is None else draw_events(rng)
            w = np.zeros(4)
            for _ in range(300):  # a ridge of 0.05 a row
                p = 1 / (1 + np.exp(-x @ w))
                w -= (x.T @ (p - y) / n_rows + 0.05 * w * [1, 1, 1, 0]) / 1.0
            shares = np.abs(1 / (1 + np.exp(-x @ w)) - y)
        count += shares.sum() ** 2 < Policy().min_cell * (shares**2).sum()
    return count


def events(n_rows, n_events, rng):
    return rng.permutation((np.arange(n_rows) < n_events).astype(float))


@pytest.mark.slow
def test_no_ordinary_study_of_a_dozen_rows_is_refused():
    assert refusals("regression", 12, 1000) == 0
    for n_events in (3, 4, 6):  # a class of fewer rows is refused by another rule
        assert refusals("binary", 12, 300, partial(events, 12, n_events)) == 0
    assert refusals("binary", 100, 100, partial(events, 100, 3)) == 0


def test_no_rows_have_no_shares():
    """A site may have test rows alone."""
    with jax.enable_x64(True):
        for shape in ((0,), (0, 3)):
            shares = Logistic().row_shares(jnp.zeros(shape), jnp.zeros(0, int), jnp.zeros(0))
            assert shares.shape == (2, 0)
