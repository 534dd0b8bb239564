"""The duality gap and relative strengths over three sites in this process, against those of the pooled rows."""

from dataclasses import dataclass, field, replace

import jax
import numpy as np
import pytest
from helpers import composed, fails, ragged
from site_tables import frames, save
from sites_in_process import remote_engine

from fcorun.engine.remote.certificate import SCALE
from fcorun.experiment import build
from fcorun.experiment.optimum import MAX_CERTIFICATES, MAX_GRADIENTS, MAX_LOSSES, compute_optimum, compute_strength_max
from fcorun.experiment.prepare import prepare
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.server.server import Server
from fcorun.sites.server.trial import Comparison, pool_rows, try_plan
from fcorun.sites.site.site import Site
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.messages import Message

pytestmark = pytest.mark.usefixtures("own_cache")
ILL = ("objective=logistic", "data.target=ill", "data.task=binary", "data.positive=yes")
CLASSES = ("objective=logistic", "data.target=ward", "data.task=multiclass", "algo=feddualavg")
COST = ("data.target=cost",)
RELATIVE = ("reg=l1", "reg.relative=0.1")


def plan_of(*overrides):
    """Return a plan on the tables of three sites."""
    shared = ("data=sites", "data.only=[age,dose,sex]", "data.standardize=pooled", "clients_per_round=null")
    return Plan.from_experiment(prepare(composed(*shared, "algo=newton", "precision=float64", "rounds=8", *overrides)))


@dataclass
class RecordingConnections(InProcessConnections):
    """Connections that keep the names and the sizes of all arrays of answers."""

    sizes: list = field(default_factory=list)

    def send(self, request):
        answers = super().send(request)
        for answer in answers.values():
            self.sizes.append((request.name, sum(array.size for array in answer.arrays.values())))
        return answers


def load(plan, wrap=lambda site: site):
    """Return the connections of three sites, what the server knows of their rows, and all rows in one place."""
    sites = {name: Site(plan, options) for name, options in save(frames()).items()}
    connections = RecordingConnections({name: wrap(site) for name, site in sites.items()})
    data, _ = Server(plan, connections).load()
    pooled = pool_rows([site.own_data for site in sites.values()], data.clients)
    return connections, data, pooled


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        COST,
        (*COST, "objective.intercept=false"),
        (*COST, "data.weight=days", "data.offset=log_days", "client_weighting=uniform"),
        ILL,
        (*ILL, "objective.intercept=false", "data.weight=days"),
        (*ILL, "data.offset=log_days", "precision=float32"),
    ],
)
def test_a_relative_strength_is_that_of_the_pooled_rows(overrides):
    plan = plan_of(*RELATIVE, *overrides)
    _, data, pooled = load(plan)
    expected = compute_strength_max(plan.experiment, pooled)
    assert compute_strength_max(plan.experiment, data) == pytest.approx(expected, rel=1e-12)


PROBLEMS = {
    "lasso": ("regression", False, ("objective.intercept=false",)),
    "lasso with an intercept, weights and offsets": ("regression", True, ()),
    "logistic": ("binary", False, ("objective=logistic", "objective.intercept=false")),
    "logistic with an intercept, weights and offsets": ("binary", True, ("objective=logistic",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_gap_of_each_run_is_that_of_the_pooled_rows(tmp_path, name):
    task, uneven, overrides = PROBLEMS[name]
    rates = ("algo.client_lr=0.05", "algo.server_lr=1")
    sizes = (23, 17, 20)
    config = ragged(tmp_path, "algo=feddualavg", "reg=l1", "gap=true", "eval_every=2", *rates, *overrides,
                    task=task, sizes=sizes)  # fmt: skip
    experiment = prepare(config)
    data = build.load_data(experiment)
    if uneven:
        rng = np.random.default_rng(0)
        columns = {"weight": rng.uniform(0.5, 2, sum(sizes)), "offset": rng.standard_normal(sum(sizes))}
        data = replace(data, train=replace(data.train, **columns))
    points = [experiment.numbers() | {"reg": {"strength": strength}} for strength in (0.001, 0.1)]
    with jax.enable_x64(True):
        pooled = list(build.build_engine(experiment, data).run(points))
        engine, _ = remote_engine(experiment, data, [[0], [1], [2]], points)
        remote = list(engine.run(points))
    assert len(pooled) == len(remote) == 3
    for expected, snapshot in zip(pooled, remote, strict=True):
        error = np.abs(snapshot.metrics["gap"] - expected.metrics["gap"])
        assert (error <= 1e-10 * expected.metrics["objective"]).all()
        assert (snapshot.metrics["gap"] > 0).all()


@pytest.mark.slow
def test_newton_ends_at_its_target_and_the_record_says_how_near_the_optimum_it_is(tmp_path):
    plan = plan_of(*ILL, *RELATIVE, "stop={gap: 1e-9}", "eval_every=1")
    sites = {name: Site(plan, options) for name, options in save(frames()).items()}
    record, comparison = try_plan(plan, sites, tmp_path / "record")
    assert record.rows[-1]["gap"] <= 1e-9
    assert record.rows[-1]["round"] < 8
    assert record.summary["certificate"]["near"] is True
    assert comparison.difference < 1e-12
    assert f"at most {record.rows[-1]['gap']:.3g} above the optimum" in comparison.describe()[0]


@pytest.mark.parametrize(("gap", "where"), [(-2e-7, "at the optimum, up to rounding"), (0.5, "at most 0.5 above")])
def test_a_gap_below_0_is_rounding(gap, where):
    assert f"the objective is {where}" in Comparison(True, 0.0, {}, gap).describe()[0]


@pytest.mark.slow
def test_secure_sums_measure_the_gap_up_to_their_rounding(tmp_path):
    pytest.importorskip("cryptography", reason="secure sums need cryptography: pip install 'fcorun[sites]'")
    plan = Plan.from_experiment(plan_of(*ILL, *RELATIVE, "stop={gap: 1e-8}", "eval_every=1").experiment, {})
    assert plan.secure is not None
    sites = {name: Site(plan, options) for name, options in save(frames()).items()}
    record, _ = try_plan(plan, sites, tmp_path / "record")
    assert abs(record.rows[-1]["gap"]) <= 1e-8
    assert record.rows[-1]["round"] < 8


@pytest.mark.slow
def test_no_intercept_is_searched_within_the_rounding_of_secure_sums():
    connections, data, _ = load(plan_of(*COST, *RELATIVE))
    rough = replace(data, train=replace(data.train, sum_errors={"residuals": 1e6}))
    compute_strength_max(plan_of(*COST, *RELATIVE).experiment, rough)
    assert len([name for name, _ in connections.sizes if name == "residuals"]) == len(connections.sites)


@pytest.mark.slow
def test_the_record_advises_to_measure_the_gap(tmp_path):
    plan = plan_of(*COST, "rounds=1")
    sites = {name: Site(plan, options) for name, options in save(frames()).items()}
    record, comparison = try_plan(plan, sites, tmp_path / "record")
    assert "how near the optimum it ended is not known: gap=true measures it" in record.status["reason"]
    assert comparison.gap is None


@pytest.mark.slow
def test_a_large_gap_is_told_with_advice(tmp_path):
    plan = plan_of(*COST, "algo=feddualavg", "reg=l1", "rounds=1", "gap=true", "data.standardize=none")
    sites = {name: Site(plan, options) for name, options in save(frames()).items()}
    record, _ = try_plan(plan, sites, tmp_path / "record")
    told = f"the objective ended at most {record.rows[-1]['gap']:.3g} above the optimum, by its duality gap: "
    assert told in record.status["reason"]
    assert "more rounds may help" in record.status["reason"]


@pytest.mark.slow
def test_answers_have_the_sizes_that_the_plan_lists():
    plan = plan_of(*ILL, *RELATIVE, "gap=true")
    listed = {quantity.message: quantity.numbers for quantity in plan.quantities}
    assert (listed["residuals"], listed["conjugates"]) == ("d + 4, or 4", "1")
    connections, data, _ = load(plan)
    compute_strength_max(plan.experiment, data)
    sizes = {size for name, size in connections.sizes if name == "residuals"}
    assert sizes == {4, data.train.x.shape[1] + 4}


@pytest.mark.slow
def test_a_site_that_sends_other_shapes_is_named():
    class Careless:
        def __init__(self, site):
            self.site = site

        def answer(self, request):
            answer = self.site.answer(request)
            if request.name != "residuals" or self.site.options.path != "bern.csv":
                return answer
            return Message(answer.name, {}, answer.arrays | {"gradient": np.zeros(3)})

    plan = plan_of(*COST, *RELATIVE)
    _, data, _ = load(plan, Careless)
    with fails("site 'bern'", "invalid sums for a certificate", "same version"):
        compute_strength_max(plan.experiment, data)


def test_a_site_sums_residuals_only_of_models_that_the_plan_lists():
    plan = plan_of(*COST, *RELATIVE)
    connections, data, _ = load(plan)
    weights = {"0": np.zeros((1, 1)), "1": np.zeros((1, data.train.x.shape[1]))}
    about = {"models": "run", "gradient": True}
    with fails("a model that the plan does not list"):
        connections.ask("residuals", weights, about)
    with fails("does not fit the plan"):
        connections.ask("residuals", weights, about | {"models": "null"})
    with fails("'conjugates', which the plan does not list"):
        connections.ask("conjugates", weights)
    connections, _, _ = load(plan_of(*COST, *RELATIVE, "gap=true"))
    with fails("conjugates at the model without features"):
        connections.ask("conjugates", weights | {SCALE: np.ones(1)}, {"models": "null"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        (*COST, "reg=l1", "reg.strength=0.3", "data.weight=days", "data.offset=log_days"),
        (*ILL, "reg=l1", "reg.strength=0.02"),
        (*ILL, "reg=none", "objective.ridge=0.05", "objective.intercept=false", "client_weighting=uniform"),
    ],
)
def test_the_reference_optimum_is_that_of_the_pooled_rows(overrides):
    plan = plan_of(*overrides, "reference=true")
    connections, data, pooled = load(plan)
    found, expected = (compute_optimum(plan.experiment, rows) for rows in (data, pooled))
    assert found["certified"]
    assert expected["certified"]
    assert found["kind"] == expected["kind"] == "duality gap"
    assert abs(found["objective"] - expected["objective"]) <= 1e-9 * abs(expected["objective"])
    sizes = [size for name, size in connections.sizes if name in ("residuals", "conjugates")]
    assert set(sizes) <= {1, 4, data.train.x.shape[1] + 4}
    assert len(sizes) / 3 < 250


@pytest.mark.slow
def test_suboptimality_over_sites_is_that_of_the_pooled_rows(tmp_path):
    plan = plan_of(*ILL, *RELATIVE, "reference=true", "eval_every=1", "rounds=2")
    listed = {quantity.purpose: quantity.times for quantity in plan.quantities}
    assert listed["reference=true"].startswith(f"at most {MAX_CERTIFICATES}")
    sites = {name: Site(plan, options) for name, options in save(frames()).items()}
    record, comparison = try_plan(plan, sites, tmp_path / "record")
    first = next(iter(sites.values()))
    pooled = pool_rows([site.own_data for site in sites.values()], first.data.clients)
    strength = compute_strength_max(plan.experiment, pooled) * 0.1
    resolved = replace(plan.experiment.reg, relative=None, strength=strength)
    optimum = compute_optimum(plan.experiment.with_resolved(reg=resolved), pooled)["objective"]
    expected = record.metrics["objective"] - optimum
    np.testing.assert_allclose(record.metrics["suboptimality"], expected, rtol=0, atol=1e-9)
    assert "is not known" not in record.status["reason"]
    assert comparison.difference < 1e-12


@pytest.mark.slow
def test_a_site_bounds_the_points_on_the_way_to_the_optimum():
    plan = plan_of(*COST, "reg=l1", "reg.strength=0.3", "reference=true")
    connections, data, _ = load(plan)
    site = connections.site_by_name["bern"]
    assert isinstance(site, Site)
    leaves = {"0": np.zeros(1), "1": np.zeros((1, data.train.x.shape[1]))}
    request = Message("residuals", {"models": "reference", "gradient": True}, leaves)
    for damaged in ({"1": leaves["1"][0]}, {"0": np.zeros(1, np.float32)}, {"2": np.zeros(1)}):
        with fails("'residuals' does not fit the plan"):
            site.answer(Message("residuals", request.about, leaves | damaged))
    for scale in (np.ones(2), np.ones((1, 1)), np.ones(1, np.float32)):
        with fails("'conjugates' does not fit the plan"):
            site.answer(Message("conjugates", {"models": "reference"}, leaves | {"scale": scale}))
    for models in ("run", "null", None, ["reference"]):
        site.counts.counts.clear()
        with fails("the plan"):
            site.answer(Message("conjugates", {"models": models}, leaves))
        with fails("the plan"):
            site.answer(Message("residuals", {"models": models, "gradient": True}, leaves))
    site.counts.counts.clear()
    site.answer(request)
    losses = {"models": "reference", "gradient": False}
    site.answer(Message("residuals", losses, leaves | {"0": np.ones(1)}))
    for about, changed in ((losses, {"1": leaves["1"] + 1}), (losses | {"models": "run"}, {})):
        with fails("the plan" if changed == {} else "only the intercept may differ"):
            site.answer(Message("residuals", about, leaves | changed))
    kept = Site(plan, site.options)
    kept.load_state(site.save_state())
    kept.answer(Message("residuals", losses, leaves))
    with fails("only the intercept may differ"):
        kept.requests.pop("residuals")
        kept.answer(Message("residuals", losses, leaves))
    listed = [quantity.times for quantity in plan.quantities if quantity.message == "residuals"]
    assert listed == [f"at most {MAX_GRADIENTS} times with the products, and {MAX_LOSSES} times without"]
    site.counts.counts["residuals with gradients of the optimum"] = MAX_GRADIENTS - 1
    site.answer(request)
    with fails("more often than the plan says"):
        site.answer(request)
    with fails("1090 rounds, 1082 of them for reference=true", "allows 500"):
        Site(plan, site.options, Policy(max_rounds=500))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((*COST, *RELATIVE, "reg.factors={age: 0.0}"), ("reg.factors leave free", "give reg.strength")),
        ((*CLASSES, *RELATIVE), ("reg.relative", "one output", "give reg.strength")),
        ((*CLASSES, "reg=l1", "gap=true"), ("gap=true", "one output", "leave gap out")),
        ((*COST, "gap=true", "reg=none"), ("gap=true", "conjugate")),
        ((*CLASSES, "reg=l1", "reference=true"), ("reference=true", "one output", "leave it out")),
        ((*COST, "reg=none", "reference=true"), ("reference=true", "leave it out")),
    ],
)
def test_a_plan_refuses_what_has_no_sums(overrides, words):
    with fails(*words):
        plan_of(*overrides)
