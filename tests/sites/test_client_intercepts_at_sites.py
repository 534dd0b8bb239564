"""Intercepts of clients over sites: runs and scores are those of the pooled rows, and intercepts stay there."""

import numpy as np
import pandas as pd
import pytest
from helpers import composed, fails

from fcorun.base.records.record import Record
from fcorun.experiment.prepare import prepare
from fcorun.results.models.estimator import load_model
from fcorun.results.models.predict import predict
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.server.trial import try_plan
from fcorun.sites.site.site import Site
from fcorun.studies.selection.selection_result import SelectOptions

LEVELS = {"a": -1.0, "b": 0.5, "c": 1.5}
TABLE = (
    "data=sites",
    "data.target=ill",
    "data.client=clinic",
    "data.task=binary",
    "data.positive=1",
    "data.standardize=pooled",
)
STEPS = (
    *("data.standardize=pooled", "precision=float64", "rounds=4", "eval_every=2", "batch_size=null"),
    "objective.client_intercepts=true",
)


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    """Write the tables of three sites with other rates of the outcome, of which the last one has two clients."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, level in LEVELS.items():
        frame = pd.DataFrame({"age": rng.normal(50 + 5 * level, 10, 90), "dose": rng.normal(2, 1, 90)}).round(2)
        log_odds = level + 0.05 * (frame["age"] - 50) - 0.6 * frame["dose"]
        frame["ill"] = (rng.random(90) < 1 / (1 + np.exp(-log_odds))).astype(int)
        frame["clinic"] = [f"{name}{k % (1 + (name == 'c'))}" for k in range(90)]
        frame.to_csv(f"{name}.csv", index=False)


def plan_of(*overrides, **options):
    strength = () if any("reg.relative" in text for text in overrides) else ("reg.strength=0.01",)
    regularizer = ("reg=l1", *strength, "data.validation=0.3")
    return Plan.from_experiment(prepare(composed(*TABLE, *STEPS, *regularizer, "algo=newton", *overrides)), **options)


def sites_of(plan, folder=None):
    sites = {}
    for name in LEVELS:
        result_folder = None if folder is None else folder / name
        sites[name] = Site(plan, SiteOptions(f"{name}.csv"), Policy(alone="allow"), result_folder)
    return sites


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [("gap=true", "reference=true"), ("algo=feddualavg", "reg.relative=0.1"), ("algo=scaffold",)],
)
def test_runs_are_those_of_the_pooled_rows(tmp_path, overrides):
    plan = plan_of(*overrides)
    record, comparison = try_plan(plan, sites_of(plan), tmp_path / "out")
    assert record.status["status"] == "done"
    assert comparison.difference < 1e-12
    assert np.isfinite(record.metrics["val_loss"]).all()


@pytest.mark.slow
def test_a_selection_is_that_of_the_pooled_rows(tmp_path):
    plan = plan_of("data.validation=0", options=SelectOptions(folds=2, points=2))
    _, comparison = try_plan(plan, sites_of(plan), tmp_path / "out")
    assert comparison.same_choice
    assert max(comparison.curve, comparison.difference) < 1e-10


def test_intercepts_are_in_the_records_of_the_sites_alone(tmp_path):
    plan = plan_of()
    record, _ = try_plan(plan, sites_of(plan, tmp_path / "kept"), tmp_path / "out")
    assert set(record.solution) == {"weights"}
    assert "each client's intercept is at its site alone" in record.status["reason"]
    with fails("each client's intercept is at its site: give the record that the site keeps"):
        load_model(record)
    kept = {name: Record(next((tmp_path / "kept" / name).rglob("status.json")).parent) for name in LEVELS}
    np.testing.assert_array_equal(kept["a"].solution["weights"], record.solution["weights"])
    assert kept["c"].summary["data"]["client_names"] == ["c0", "c1"]
    models = [load_model(kept["c"], client) for client in ("c0", "c1")]
    assert models[0].intercept_ != models[1].intercept_
    rows = pd.read_csv(kept["c"].folder / "predictions.csv")
    table = pd.read_csv("c.csv")[["age", "dose"]]
    for row in rows.itertuples():
        probability = models[int(row.client[1])].predict_proba(table.iloc[[row.row - 1]])[0, 1]
        assert row.probability == pytest.approx(probability, rel=1e-9)

    frame = pd.read_csv("c.csv").head(2)
    predictions, warnings = predict(kept["c"], frame, np.array(["c0", "new"], object))
    assert predictions["intercept"].tolist() == ["client", "mean of this site"]
    assert any("the mean of the clients' intercepts of this site" in text for text in warnings)


@pytest.mark.parametrize("clinic", ["a", "c"])  # of one client, or of two, whose mean the rows would take
def test_a_client_of_one_class_whose_rows_no_site_can_predict_is_refused(clinic):
    """Held-out rows of such a client would take the mean intercept of all clients, which no site knows."""
    frame = pd.read_csv(f"{clinic}.csv")
    frame.assign(ill=frame["ill"].where(frame["clinic"] != f"{clinic}0", 0)).to_csv(f"{clinic}.csv", index=False)
    with fails(f"client '{clinic}0' with training rows of one class alone has no finite intercept"):
        sites_of(plan_of())[clinic].read_table()


def test_counts_that_are_all_0_have_no_finite_intercept_and_numbers_have_one():
    frame = pd.read_csv("c.csv")
    frame.assign(ill=frame["ill"].where(frame["clinic"] != "c0", 0)).to_csv("c.csv", index=False)
    numbers = ("data.task=regression", "data.positive=null")
    with fails("client 'c0' with training rows of targets of 0 alone"):
        sites_of(plan_of(*numbers, "objective=poisson"))["c"].read_table()
    sites_of(plan_of(*numbers, "objective=least_squares"))["c"].read_table()


def test_a_client_of_one_class_outside_of_a_fold_is_refused():
    frame = pd.read_csv("a.csv")
    frame["part"] = np.arange(90) % 2 + 1
    frame["ill"] = (frame["part"] == 1) & (np.arange(90) % 3 == 0)
    for name in LEVELS:
        frame.assign(ill=frame["ill"].astype(int), clinic=f"{name}0").to_csv(f"{name}.csv", index=False)
    marked = ("data.fold=part", "data.fold_names=['1','2']", "data.validation=0")
    plan = plan_of(*marked, options=SelectOptions(folds=2, points=2))
    with fails("client 'a0' with training rows of one class alone outside of fold 1 has no finite intercept"):
        sites_of(plan)["a"].read_table()


def test_a_minibatch_is_refused_for_the_intercepts_and_not_for_the_objective():
    with fails("a plan for sites: objective.client_intercepts=true takes all rows of a client, which a minibatch does "
               "not have: give batch_size=null"):  # fmt: skip
        plan_of("algo=fedavg", "algo.client_lr=0.1", "reg=l2", "batch_size=5")


@pytest.mark.parametrize(
    ("overrides", "options", "sentence"),
    [
        (["data.validation=[c0]"], {}, "data.validation and data.test as shares of the rows"),
        ([], {"options": SelectOptions(folds=2, by="clients", range=[0.01, 0.1])}, "give by=rows"),
    ],
)
def test_what_takes_the_mean_of_all_intercepts_is_refused(overrides, options, sentence):
    with fails(sentence):
        plan_of(*overrides, **options)
