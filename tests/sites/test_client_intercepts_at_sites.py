"""Intercepts of clients over sites: runs and scores are those of the pooled rows, and intercepts stay there."""

from dataclasses import replace

import jax
import numpy as np
import pandas as pd
import pytest
from helpers import SHARED, composed, fails

from fcorun import run
from fcorun.base.records.record import Record
from fcorun.data.datasets.dataset import Features
from fcorun.data.rows.rows import Rows
from fcorun.experiment.prepare import prepare
from fcorun.methods.objectives import Logistic
from fcorun.results.inference.sums import ModelRows
from fcorun.results.models.coefficients import load_coefficients
from fcorun.results.models.estimator import load_model
from fcorun.results.models.inference_problem import InferenceOptions
from fcorun.results.models.predict import predict
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.server.trial import try_plan
from fcorun.sites.site.interval_sums import IntervalSums
from fcorun.sites.site.site import Site
from fcorun.studies.selection.selection_result import SelectOptions

BREAST = SHARED / "data" / "medical" / "breast.csv"
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
    strength = () if any(text == "reg=none" or "reg.relative" in text for text in overrides) else ("reg.strength=0.01",)
    held_out = () if any("data.split" in text for text in overrides) else ("data.validation=0.3",)
    regularizer = ("reg=l1", *strength, *held_out)
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
def test_rows_that_a_column_holds_out_are_scored_with_the_intercepts_of_their_clients(tmp_path):
    """The same rows are held out by number in a run on one table, which the numbers of ``val_loss`` are those of."""
    for name in LEVELS:
        frame = pd.read_csv(f"{name}.csv")
        frame.assign(part=np.where(np.arange(90) % 3 == 0, "validation", "train")).to_csv(f"{name}.csv", index=False)
    pd.concat([pd.read_csv(f"{name}.csv") for name in LEVELS]).to_csv("all.csv", index=False)
    plan = plan_of("data.split=part")
    record, _ = try_plan(plan, sites_of(plan), tmp_path / "out")
    table = ("data=table", "data.path=all.csv", *TABLE[1:], "data.split=part")
    pooled = run(composed(*table, *STEPS, "reg=l1", "reg.strength=0.01", "algo=newton"), tmp_path / "pooled")
    assert record.rows[-1]["val_loss"] == pytest.approx(pooled.rows[-1]["val_loss"], rel=1e-9)


def test_a_client_whose_rows_a_column_holds_out_is_refused():
    for name in LEVELS:
        frame = pd.read_csv(f"{name}.csv")
        frame.assign(part=np.where(frame["clinic"] == "c0", "test", "train")).to_csv(f"{name}.csv", index=False)
    plan = plan_of("data.split=part")
    sites_of(plan)["a"].read_table()
    with fails("client 'c0' without training rows has no intercept"):
        sites_of(plan)["c"].read_table()


# -- intervals


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        pytest.param(("reg=none",), {}, id="robust"),
        pytest.param(("reg=none",), {"errors": "model"}, id="of the model"),
        pytest.param(("reg=none", "data.group=visit"), {}, id="by group"),
        pytest.param(("client_weighting=uniform",), {}, id="debiased"),
        pytest.param(("data.task=regression", "data.positive=null", "objective=poisson"), {}, id="counts"),
    ],
)
def test_intervals_are_those_of_the_pooled_rows(tmp_path, overrides, options):
    """The trial compares estimates and errors with those of the same model, whose intercepts are parameters."""
    for name in LEVELS:
        frame = pd.read_csv(f"{name}.csv")
        frame.assign(visit=frame["clinic"] + (np.arange(90) // 6).astype(str)).to_csv(f"{name}.csv", index=False)
    ignored = () if any("data.group" in text for text in overrides) else ("data.ignore=[visit]",)
    plan = plan_of("data.validation=0", *ignored, *overrides, infer=InferenceOptions(**options))
    record, comparison = try_plan(plan, sites_of(plan), tmp_path / "out")
    assert comparison.intervals is not None, (record.folder / "inference.txt").read_text()
    assert comparison.intervals < 1e-8
    assert pd.read_csv(record.folder / "inference.csv")["feature"].tolist() == ["age", "dose"]
    assert "an intercept of its own, which is at its site alone" in (record.folder / "inference.txt").read_text()


@pytest.mark.slow
@pytest.mark.skipif(not BREAST.exists(), reason=f"{BREAST} is not here")
def test_a_treatment_at_four_centres_has_the_estimate_and_the_error_of_r(tmp_path):
    """The numbers are those of ``glm(rfs ~ ... + centre, binomial)``, and of ``vcovHC(type="HC1")`` on pooled rows."""
    rows = pd.read_csv(BREAST)
    for centre, of_centre in rows.groupby("centre"):
        of_centre.to_csv(f"{centre}.csv", index=False)
    table = ("data=sites", "data.target=rfs", "data.client=centre", "data.task=binary", "data.positive=1")
    options = ("algo=newton", "reg=none", "data.validation=0", "data.ignore=[time]", *STEPS[:2], "rounds=10", STEPS[-1])
    experiment = prepare(composed(*table, *options))
    plan = Plan.from_experiment(experiment, infer=InferenceOptions(errors="model"))
    sites = {name: Site(plan, SiteOptions(f"{name}.csv"), Policy()) for name in sorted(set(rows["centre"]))}
    record, comparison = try_plan(plan, sites, tmp_path / "out")
    assert comparison.intervals is not None
    assert comparison.intervals < 1e-8
    hormon = pd.read_csv(record.folder / "inference.csv", index_col="feature").loc["hormon"]
    assert hormon["estimate"] == pytest.approx(-0.322002636835, rel=1e-8)
    assert hormon["standard_error"] == pytest.approx(0.111783685312, rel=1e-6)  # R stops before rounding


@pytest.mark.slow
def test_a_feature_with_one_value_at_each_client_has_no_coefficient(tmp_path):
    for k, name in enumerate(LEVELS):
        pd.read_csv(f"{name}.csv").assign(beds=100.1 + 7.3 * k).to_csv(f"{name}.csv", index=False)
    plan = plan_of("data.validation=0", "data.standardize=none", infer=InferenceOptions())
    record, comparison = try_plan(plan, sites_of(plan), tmp_path / "out")
    text = (record.folder / "inference.txt").read_text()
    assert "no coefficient of beds: one value in all rows of a client determines none" in text
    assert comparison.intervals is not None, text
    assert comparison.intervals < 1e-8
    table = pd.read_csv(record.folder / "inference.csv", index_col="feature")
    assert table.loc["beds", "method"] == "constant within clients"
    assert np.isnan(table.loc["beds", "estimate"])


@pytest.mark.slow
@pytest.mark.parametrize("select", [None, SelectOptions(folds=2, points=2, range=[0.01, 0.1])])
def test_masked_sums_give_the_model_and_the_intervals_of_the_pooled_rows(tmp_path, select):
    plan = plan_of("data.validation=0", bounds={}, options=select, infer=InferenceOptions())
    record, comparison = try_plan(plan, sites_of(plan), tmp_path / "out")
    assert comparison.difference < 1e-6
    assert set(record.solution) == {"weights"}
    intervals = pd.read_csv(record.folder / "inference.csv")
    assert intervals["feature"].tolist() == ["age", "dose"]
    if select is None:
        assert comparison.intervals is not None
        assert comparison.intervals < 1e-5
    else:
        assert comparison.same_choice


def sums_at_site(n_ward: int, of_level, *, weight) -> IntervalSums:
    """Return the sums of a site of two wards, of 40 and of ``n_ward`` rows, and one feature of 0 and 1."""
    ward = np.repeat([0, 1], [40, n_ward])
    x = np.concatenate([np.arange(40) < of_level[0], np.arange(n_ward) < of_level[1]]).astype(float)[:, None]
    y = np.arange(len(ward)) % 2.0
    rows = ModelRows(x, y, weight(ward), np.zeros(len(ward)), ward)
    objective = Logistic(client_intercepts=weight is by_row)
    return IntervalSums(objective, rows, len(ward), np.zeros(1), np.ones(1), 3, 10)


def by_row(ward):
    return np.full(len(ward), 1 / len(ward))


def by_ward(ward):
    return 0.5 / np.bincount(ward)[ward]


def test_sums_of_a_site_would_tell_the_rows_of_a_level_of_each_of_its_clients():
    """Two attacks on a site of two wards with 4 and 11 rows of a level, which knows its numbers of rows: arithmetic."""
    with jax.enable_x64(True):
        sums = sums_at_site(20, (4, 11), weight=by_ward)
        weighted = sums.moments(np.zeros(1))["first"][0] / 60
        total = sums.count_values()["at_high"][0]
        solved = np.linalg.solve([[1, 1], [0.5 / 40, 0.5 / 20]], [total, weighted])
        np.testing.assert_allclose(solved, [4, 11])
        sums = sums_at_site(20, (4, 11), weight=by_row)
        total = sums.moments(np.zeros(1))["first"][0]
        hessian = sums.derivatives(np.zeros(1))["hessian"][0]  # with half of each ward's rows ill, curvature 1/4
    candidates = [(a, total - a) for a in range(int(total) + 1) if total - a <= 20]
    matching = [(a, b) for a, b in candidates if np.isclose(4 * 60 * hessian, a - a**2 / 40 + b - b**2 / 20)]
    assert matching == [(4, 11)]


def sums_of_two_wards(**options) -> IntervalSums:
    """Return the sums of ward A, 40 rows of two features, and ward B, 200 rows in which each feature has one value."""
    rng = np.random.default_rng(0)
    ward = np.repeat([0, 1], [40, 200])
    x = np.where(ward[:, None] == 0, rng.normal(size=(240, 2)), [0.0, 3.0])
    rows = ModelRows(x, np.arange(240) % 2.0, by_row(ward), np.zeros(240), ward)
    objective = Logistic(client_intercepts=True)
    return IntervalSums(objective, rows, 240, np.zeros(2), np.ones(2), 3, 10, **options)


def test_a_ward_of_one_value_would_hide_that_two_rows_of_another_make_up_a_hessian():
    """The attack: far away two rows of ward A have all its curvature, and its part of the Hessian is c d d'."""
    point = np.array([1000.0, 0.0])
    with jax.enable_x64(True):
        leaking = sums_of_two_wards()
        alone = replace(leaking, rows=leaking.rows.take(leaking.rows.client == 0))
        first, both, second = leaking.derivatives(point)["hessian"]
        assert alone.derivatives(point)["loss"] == np.inf
        sums = sums_of_two_wards(by_client=True)
        withheld = sums.derivatives(point)
        scores = sums.squared_scores(point)
        honest = sums.derivatives(np.zeros(2))
        honest_scores = sums.squared_scores(np.zeros(2))
    assert first * second == pytest.approx(both**2, rel=1e-3)  # of rank one
    rows = leaking.rows.x[:40]
    differences = np.diff(rows[np.argsort(rows[:, 0])], axis=0)  # of neighbours along the first feature
    assert np.isclose(both / first, differences[:, 1] / differences[:, 0], rtol=1e-3).sum() == 1
    assert withheld["loss"] == np.inf
    assert np.isnan(withheld["hessian"]).all()
    assert np.isnan(scores["meat"]).all()
    assert scores["count"] == 240
    assert np.isfinite([honest["loss"], *honest["hessian"], *honest_scores["meat"]]).all()


@pytest.mark.parametrize("by_client", [False, True])
def test_the_squared_scores_of_few_groups_of_a_ward_are_withheld(by_client):
    """Ward A has 8 groups, and ward B 20 whose rows have one value, and so no score."""
    group = np.concatenate([np.arange(40) // 5, 8 + np.arange(200) // 10])
    with jax.enable_x64(True):
        sums = sums_of_two_wards(by_client=by_client, cluster=group)
        assert np.isnan(sums.squared_scores(np.zeros(2))["meat"]).all() == by_client


def test_sums_at_a_model_where_one_row_has_the_curvature_are_withheld():
    """Far away the best intercept lies between two rows, next to one, whose second derivative is that of all rows."""
    rng = np.random.default_rng(0)
    rows = ModelRows(
        rng.normal(size=(40, 1)), np.arange(40) % 2.0, np.full(40, 1 / 40), np.zeros(40), np.zeros(40, int)
    )
    sums = IntervalSums(Logistic(client_intercepts=True), rows, 40, np.zeros(1), np.ones(1), 3, 10)
    with jax.enable_x64(True):
        honest = sums.derivatives(np.zeros(1))
        far = sums.derivatives(np.full(1, 300.0))
        assert np.isfinite(honest["hessian"]).all()
        assert far["loss"] == np.inf
        assert np.isnan([*far["gradient"], *far["hessian"], *sums.squared_scores(np.full(1, 300.0))["meat"]]).all()


@pytest.mark.parametrize("option", ["objective.client_intercepts=true", "client_weighting=uniform"])
def test_rules_on_few_rows_hold_for_each_client_of_a_site(option):
    """A value that two rows of one of a site's clients have is not told, and neither is a class."""
    frame = pd.read_csv("c.csv")
    in_first = frame["clinic"] == "c0"
    rare = np.where(in_first, np.cumsum(in_first) <= 2, np.arange(90) % 4 == 1).astype(int)
    frame.assign(oxygen=rare).to_csv("c.csv", index=False)
    others = ("data.standardize=none", "data.validation=0", "reg=none")
    without = ("objective.client_intercepts=false",)
    for overrides, hidden in ((without, set()), ((*without, option), {"oxygen"})):
        assert sites_of(plan_of(*others, *overrides))["c"].table.constant == hidden
    frame.assign(ill=np.where(in_first, np.cumsum(in_first) <= 2, frame["ill"])).to_csv("c.csv", index=False)
    with fails("has fewer than 3 training rows of a client"):
        sites_of(plan_of(*others, *without, option))["c"].read_table()


def test_a_property_that_varies_at_one_client_alone_is_rare_where_clients_have_intercepts():
    """All rows of the first client have it: these add nothing to a Hessian, and 5 of the second are a line's rows."""
    x = np.concatenate([np.ones(60), np.arange(60) < 5])[:, None]
    ages = np.random.default_rng(0).normal(size=(120, 6))
    rows = Rows(np.column_stack([x, ages]), np.zeros(120), np.repeat([0, 1], 60))
    features = Features(names=("oxygen", *"abcdef"))
    for option, has_intercepts in (("objective.client_intercepts=false", False), (STEPS[-1], True)):
        plan = plan_of("data.validation=0", option, infer=InferenceOptions())
        if has_intercepts:
            with fails("the feature 'oxygen' has other values than its most frequent one in fewer than 9"):
                Policy().check_rare_features(plan, rows, features)
        else:
            Policy().check_rare_features(plan, rows, features)


# -- selections and records


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
    coefficients = pd.read_csv(record.folder / "coefficients.csv")
    assert coefficients["parameter"].tolist() == ["weights"] * 2
    assert load_coefficients(record).labels == [("weights", "age", "1"), ("weights", "dose", "1")]
    own = pd.read_csv(kept["c"].folder / "coefficients.csv", keep_default_na=False)
    pd.testing.assert_frame_equal(own.iloc[:2], coefficients.astype({"class": own["class"].dtype}))
    assert own["feature"].tolist() == ["age", "dose", "", "c0", "c1"]
    assert own["value_original"].tolist()[3:] == pytest.approx(
        [float(model.intercept_[0]) for model in models], rel=1e-12
    )
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
