"""Intervals over sites: as on one table, and sums that a site withholds where few rows make them."""

from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd
import pytest
from helpers import composed, fails, not_none
from inferred_records import table_of
from three_sites import NAMES, sites_of

from fcorun.base.records.formats import json_text, yaml_text
from fcorun.base.records.record import Record
from fcorun.experiment.prepare import prepare
from fcorun.methods.objectives import Cox, LeastSquares, Logistic, Poisson
from fcorun.results.inference.sums import ModelRows, PooledSums
from fcorun.results.models.inference import count_indicators
from fcorun.results.models.inference_problem import InferenceOptions
from fcorun.sites.plan.messages.interval_messages import name_group_counts
from fcorun.sites.plan.messages.message_kind import Stage, list_kinds
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.planned_study import MAX_DERIVATIVES
from fcorun.sites.plan.policy import Policy
from fcorun.sites.server.site_intervals import SiteSums
from fcorun.sites.server.site_study import run_plan
from fcorun.sites.server.trial import mask_sites, try_plan
from fcorun.sites.site.interval_sums import IntervalSums
from fcorun.sites.site.request_checks import RequestCounts
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.messages import Message
from fcorun.studies.selection.selection_result import SelectOptions

SHARED = ("data.standardize=pooled", "precision=float64", "rounds=1", "eval_every=1", "data.validation=0")
TASKS = {
    "died": ("data.target=died", "data.task=binary", "data.positive=1", "data.ignore=[time,patient]"),
    "time": ("data.target=time", "data.event=died", "objective=cox", "data.ignore=[patient]"),
}


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    """Write the tables of three sites, a patient of two rows each, and the table of all rows."""
    monkeypatch.chdir(tmp_path)
    rng, frames = np.random.default_rng(0), []
    for name, n in zip(NAMES, (60, 80, 70), strict=True):
        frame = pd.DataFrame({"age": rng.normal(50, 10, n).round(1), "smoker": rng.integers(0, 2, n)})
        frame["ward"] = rng.choice(["x", "y", "z"], n, p=[0.5, 0.3, 0.2])
        score = 0.06 * (frame["age"] - 50) + (frame["ward"] == "x") - 0.5
        frame["died"] = (score + rng.logistic(size=n) > 0).astype(int)
        frame["time"] = (rng.exponential(size=n) / np.exp(score)).round(2) + 0.01
        frame["patient"] = [f"{name}{k // 2}" for k in range(n)]
        frame.loc[:5, "age"] = np.nan if name == "b" else frame["age"]
        frame.to_csv(f"{name}.csv", index=False)
        frames.append(frame.assign(site=name))
    pd.concat(frames).to_csv("all.csv", index=False)


def plan_of(*overrides, target="died", secure=None, select=None, **options):
    algo = () if any("algo=" in text for text in overrides) else ("algo=newton",)
    config = composed(*algo, "data=sites", "data.missing=mean", *TASKS[target], *SHARED, *overrides)
    return Plan.from_experiment(prepare(config), secure, select, infer=InferenceOptions(**options))


def pooled_table(*overrides, target="died", **options) -> pd.DataFrame:
    """Return the table of fcorun infer for the rows of all sites, of a record at zero."""
    table = ("data=table", "data.path=all.csv", "data.client=site", "data.missing=mean")
    experiment = prepare(composed("algo=newton", *table, *TASKS[target], *SHARED, *overrides))
    folder, n_features = Record(Path("pooled")), 5
    folder.folder.mkdir()
    files = {"status.json": {"status": "done"}, "summary.json": {"data": {"fingerprint": experiment.fingerprint}}}
    for name, content in files.items():
        (folder.folder / name).write_text(json_text(content))
    (folder.folder / "config.yaml").write_text(yaml_text(experiment.config))
    np.savez(folder.folder / "solution.npz", weights=np.zeros(n_features), bias=np.zeros(()))
    return table_of(Record(Path("pooled")), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        pytest.param(("reg.strength=0.02",), {}, id="debiased"),
        pytest.param(("reg=none", "data.group=patient", "data.ignore=[time]"), {"level": 0.9}, id="by group"),
        pytest.param(("reg.strength=0.02",), {"target": "time", "errors": "model"}, id="cox"),
    ],
)
def test_intervals_are_those_of_one_table(overrides, options):
    plan = plan_of(*overrides, **options)
    plan = Plan.from_text(plan.to_text(), "the plan")
    record, comparison = try_plan(plan, sites_of(plan), "out")
    assert comparison.intervals is not None
    assert comparison.intervals < 1e-10
    over_sites = pd.read_csv("out/inference.csv", index_col="feature", keep_default_na=True)
    pooled = pooled_table(*overrides, **options).loc[over_sites.index]
    for name in over_sites.columns:
        if name in ("method", "label"):
            assert over_sites[name].tolist() == pooled[name].tolist()
        else:
            np.testing.assert_allclose(over_sites[name], pooled[name].astype(float), rtol=1e-9, atol=1e-12)
    assert {"inference.txt", "inference.png", "inference.pdf"} <= {path.name for path in record.folder.iterdir()}


def test_all_of_three_groups_are_enough_over_sites_as_in_one_table():
    """Each site has one group, which has rows of all values, with and without events."""
    for name in NAMES:
        pd.read_csv(f"{name}.csv").assign(patient=name).to_csv(f"{name}.csv", index=False)
    rows = pd.read_csv("all.csv")
    rows.assign(patient=rows["site"]).to_csv("all.csv", index=False)
    by_group = ("reg=none", "data.group=patient", "data.ignore=[time]")
    plan = plan_of(*by_group)
    record, _ = try_plan(plan, sites_of(plan, Policy(min_cell=1, min_rows=1, alone="allow")), "out")
    over_sites = pd.read_csv(record.folder / "inference.csv", index_col="feature")
    pooled = pooled_table(*by_group).loc[over_sites.index]
    assert over_sites["method"].tolist() == pooled["method"].tolist()
    assert over_sites.loc["smoker", "method"] == "Wald"


@pytest.mark.slow
@pytest.mark.parametrize("secure", [None, {}])
def test_a_level_that_is_all_that_a_site_has_leaves_the_others_their_reference(secure):
    """Cox: site c has only ward z, so that x and y are compared at the other sites, whose rows have no z."""
    for name in NAMES:
        rows = pd.read_csv(f"{name}.csv")
        ward = "z" if name == "c" else rows["ward"].replace("z", "y")
        rows.assign(ward=ward).to_csv(f"{name}.csv", index=False)
    plan = plan_of("reg.strength=0.02", target="time", secure=secure)
    record, comparison = try_plan(plan, sites_of(plan), "out")
    assert comparison.intervals is not None
    assert comparison.intervals < 1e-5
    methods = pd.read_csv(record.folder / "inference.csv", index_col="feature")["method"]
    assert methods[["ward=x", "ward=y", "ward=z"]].tolist() in (
        ["debiased lasso", "reference", "constant within risk sets"],
        ["reference", "debiased lasso", "constant within risk sets"],
    )


@pytest.mark.slow
def test_a_masked_selection_ends_with_intervals_of_its_refit_which_sites_keep(tmp_path):
    plan = plan_of("rounds=2", secure={}, select=SelectOptions(points=2, folds=2, range=[0.005, 0.05]))
    sites = sites_of(plan, Policy(alone="allow"))  # 6 rows of a level outside of a fold, and 5 features
    for name, site in sites.items():
        site.result_folder = tmp_path / name
    record = run_plan(plan, InProcessConnections(mask_sites(sites)), "out")
    pooled = pooled_table(f"reg.strength={record.summary['strength']}")
    over_sites = pd.read_csv("out/refit/inference.csv", index_col="feature")
    np.testing.assert_allclose(over_sites["standard_error"], pooled["standard_error"].astype(float), rtol=1e-6)
    assert (tmp_path / "a" / "inference.csv").read_bytes() == (record.folder / "inference.csv").read_bytes()


def test_a_selection_sums_for_intervals_of_all_rows_alone():
    plan = plan_of(select=SelectOptions(points=2, folds=2, range=[0.005, 0.05]))
    counts = RequestCounts(plan)
    of_intervals = [name for name, kind in plan.kinds.items() if kind.stage is Stage.INTERVALS]
    assert len(of_intervals) == 4
    for answered in range(len(not_none(plan.select).subsets)):
        assert {plan.kinds[name].limits(plan, counts.subset)[name] for name in of_intervals} == {0}
        counts.counts["subset"] = answered + 1
    assert plan.kinds["derivatives"].limits(plan, counts.subset)["derivatives"] == MAX_DERIVATIVES


@pytest.mark.slow
def test_a_study_without_intervals_ends_and_says_why():
    for name in NAMES:
        frame = pd.read_csv(f"{name}.csv")
        frame.assign(twice=2 * frame["smoker"]).to_csv(f"{name}.csv", index=False)
    plan, lines = plan_of("reg=none"), []
    record = run_plan(plan, InProcessConnections(sites_of(plan)), "out", log=lines.append)
    assert "do not determine the coefficients of smoker, twice" in lines[0]
    assert (record.folder / "inference.txt").read_text() == f"{lines[0]}\n"
    assert not (record.folder / "inference.csv").exists()


@pytest.mark.slow
def test_a_masked_study_whose_site_withholds_a_sum_ends_and_says_why(monkeypatch, tmp_path):
    squared_scores = IntervalSums.squared_scores

    def withhold_of_few(self, theta):
        answer = squared_scores(self, theta)
        return answer if len(self.rows.y) > 60 else answer | {"meat": np.full_like(answer["meat"], np.nan)}

    monkeypatch.setattr(IntervalSums, "squared_scores", withhold_of_few)
    plan, lines = plan_of("reg=none", secure={}), []
    sites = sites_of(plan)
    sites["c"].result_folder = tmp_path / "result"
    record = run_plan(plan, InProcessConnections(mask_sites(sites)), "out", log=lines.append)
    assert lines == [f"no intervals: {(record.folder / 'inference.txt').read_text()[14:-1]}"]
    assert "a site withholds its sum of squared scores" in lines[0]
    assert (tmp_path / "result" / "inference.txt").read_text() == f"{lines[0]}\n"
    assert (record.folder / "sites_ended").exists()


def test_a_site_of_few_groups_says_so_before_it_answers():
    frame = pd.read_csv("a.csv")
    frame.assign(patient=np.arange(60) // 7).to_csv("a.csv", index=False)
    plan = plan_of("reg=none", "data.group=patient", "data.ignore=[time]")
    with fails("training rows that data.group=patient counts like fewer than 10 patients", "policy.min_rows"):
        sites_of(plan)["a"].read_table()
    sites_of(plan, Policy(min_rows=8))["a"].read_table()


@pytest.mark.parametrize(
    ("overrides", "options", "sentence"),
    [
        ((), {"method": "split"}, "halves of the rows"),
        ((), {"cluster": "client"}, "would leave its site"),
        ((), {"cluster": "group"}, "data.group=COLUMN"),
        ((), {"imputations": 5}, "rows in one place"),
        (
            (
                "data.group=patient",
                "data.ignore=[time]",
            ),
            {"errors": "model", "cluster": "group"},
            "independent",
        ),
        (("client_weighting=uniform",), {"errors": "model"}, "equal weight"),
        (("reg=l2",), {}, "reg=l2 has no intervals"),
        (("reg=none", "objective.ridge=0.1"), {}, "objective.ridge shrinks"),
        (("reg=elastic_net", "reg.l1_ratio=0"), {}, "reg.l1_ratio=0 leaves a ridge"),
        (("algo=ditto", "algo.client_lr=0.1", "algo.lam=1"), {}, "own models"),
        (("algo=fedavg", "algo.client_lr=0.1", "data.away=skip", "data.away_seconds=5"), {}, "data.away"),
    ],
)
def test_a_plan_refuses_intervals_that_sums_do_not_give(overrides, options, sentence):
    with fails("--infer", sentence):
        plan_of(*overrides, **options)


def test_the_policy_counts_the_hessians_of_intervals():
    plan = plan_of("algo=fedavg", "algo.client_lr=0.1")
    with fails(f"the plan has {1 + MAX_DERIVATIVES} rounds, {MAX_DERIVATIVES} of them for --infer"):
        sites_of(plan, Policy(max_rounds=40))
    with fails("--infer sends a Hessian of 5 features", "12 training rows"):
        Policy().check_rows(plan, 12, [6, 6], 5)
    Policy().check_rows(plan, 0, [], 5)  # of a site whose rows are all held out, and which sends none


@pytest.mark.slow
def test_a_site_whose_rows_are_all_held_out_takes_part_in_newton_and_intervals():
    plan = plan_of("reg=none", "data.test=[c]")
    record = run_plan(plan, InProcessConnections(sites_of(plan)), "out")
    assert (record.folder / "inference.csv").exists()
    assert set(record.scores["set"]) == {"train", "test"}


def test_a_site_answers_requests_for_intervals_that_the_plan_lists():
    point = Message("derivatives", {}, {"theta": np.zeros(6)})
    without = Plan.from_experiment(prepare(composed("algo=newton", "data=sites", *TASKS["died"], *SHARED)))
    with fails("'derivatives', which the plan does not list"):
        sites_of(without)["a"].answer(point)
    site = sites_of(plan_of())["a"]
    with fails("before all sites agreed"):
        site.answer(point)
    for _ in range(MAX_DERIVATIVES - 1):
        site.counts.count(point)
    with fails(f"more often than the plan says, {MAX_DERIVATIVES} times"):
        site.answer(point)


# -- what a site withholds


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def sums_of(objective=None, y=None, **options):
    """Return the sums of 40 rows, the last of which is far from the others in the second feature."""
    rng = np.random.default_rng(1)
    x = np.column_stack([np.arange(40) % 2, rng.normal(size=40), np.ones(40)])
    x[-1, 1] = 8.0
    rows = ModelRows(x, rng.integers(0, 2, 40).astype(float) if y is None else y, np.full(40, 1 / 40), np.zeros(40))
    values = {"n_all": 40, "zero": np.zeros(2), "one": np.ones(2), "min_cell": 3, "least_clusters": 10} | options
    return IntervalSums(objective or Logistic(), rows, **values)


def answer(sums, name, arrays):
    """Return the sums of a request of this name."""
    with np.errstate(over="ignore", invalid="ignore"):
        return list_kinds()[name].sum_rows(sums, arrays)


@pytest.mark.parametrize(
    ("objective", "theta"),
    [
        (Poisson(), [0.0, 4.0, 0.0]),  # exp of the last row exceeds all others
        (Logistic(), [0.0, 200.0, -1600.0]),  # all rows but the last one are certain
        (Cox(), [0.0, 20.0]),
    ],
)
def test_no_sum_is_a_row(float64, objective, theta):
    y = np.arange(1.0, 41.0) if isinstance(objective, Cox) else np.zeros(40)
    sums = sums_of(objective, y)
    if isinstance(objective, Cox):
        sums = IntervalSums(objective, sums.rows._replace(x=sums.rows.x[:, :2]), 40, np.zeros(2), np.ones(2), 3, 10)
    far = answer(sums, "derivatives", {"theta": np.array(theta)})
    assert far["loss"] == np.inf
    assert np.isnan(far["gradient"]).all()
    assert np.isnan(far["hessian"]).all()
    assert np.isnan(answer(sums, "squared_scores", {"theta": np.array(theta)})["meat"]).all()
    honest = answer(sums, "derivatives", {"theta": np.zeros(len(theta))})
    assert np.isfinite([honest["loss"], *honest["gradient"], *honest["hessian"]]).all()


def test_forged_points_are_refused(float64):
    for arrays in ({"theta": np.zeros(2)}, {"theta": np.full(3, np.nan)}, {"theta": np.zeros(3, np.float32)}, {}):
        with pytest.raises(ValueError):  # noqa: PT011 - a request that does not fit the plan
            answer(sums_of(), "derivatives", arrays)


def test_groups_below_min_rows_withhold_their_squared_scores(float64):
    theta = {"theta": np.zeros(3)}
    assert np.isfinite(answer(sums_of(cluster=np.arange(40) // 4), "squared_scores", theta)["meat"]).all()
    assert np.isnan(answer(sums_of(cluster=np.arange(40) // 10), "squared_scores", theta)["meat"]).all()


def test_an_indicator_with_few_rows_at_each_site_has_no_interval(float64):
    """Two rows of 1 at each of three sites count as none, and are not taken as a feature of numbers."""
    x = np.column_stack([np.arange(40) < 2, np.arange(40.0), np.ones(40)])
    rows = ModelRows(x, np.arange(40) % 2.0, np.full(40, 1 / 120), np.zeros(40))
    explained = {}
    for masked in (False, True):
        site = IntervalSums(Logistic(), rows, 120, np.zeros(2), np.ones(2), 3, 10, masked=masked)
        answers = dict.fromkeys(NAMES, Message("value_counts", {}, answer(site, "value_counts", {})))
        described = SimpleNamespace(request=lambda name, arrays, answers=answers: answers, sum_errors={})
        described.sum_name = "all sites" if masked else None
        counts = count_indicators(SiteSums(described, 2, 3, 0, kept=np.arange(3)), Logistic(), 2)  # type: ignore[arg-type]
        assert counts.is_indicator.tolist() == [True, False]
        explained[masked] = counts.explain_few(0, None, ("rare", "age")), counts.rows[0]
    assert explained[False][0] == "no rows, where sites report counts below min_cell as 0"
    assert np.isnan(explained[False][1])
    assert explained[True] == ("3 events in 6 rows", 6)


@pytest.mark.parametrize(("masked", "reason"), [(True, "rows of 3 groups"), (False, "rows of no groups, where sites")])
def test_a_level_of_one_group_of_each_site_has_no_interval(float64, masked, reason):
    """Ten rows with the level at each of three sites are of one patient."""
    x = np.column_stack([np.arange(40) < 10, np.arange(40.0), np.ones(40)])
    rows = ModelRows(x, np.arange(40) % 2.0, np.full(40, 1 / 120), np.zeros(40))
    cluster = np.repeat([2, 0, 1, 3, 4, 5, 6, 7], [10, 5, 5, 4, 4, 4, 4, 4])
    site = IntervalSums(Logistic(), rows, 120, np.zeros(2), np.ones(2), 3, 10, masked=masked, cluster=cluster)
    answers = dict.fromkeys(NAMES, Message("value_counts", {}, answer(site, "value_counts", {})))
    described = SimpleNamespace(request=lambda name, arrays: answers, sum_errors={})
    described.sum_name = "all sites" if masked else None
    sums = SiteSums(described, 2, 3, 0, kept=np.arange(3), by_group=True)  # type: ignore[arg-type]
    counts = count_indicators(sums, Logistic(), 2)
    assert counts.clusters["low"].rows[0] == 21
    assert counts.explain_few(0, None, ("ward=eye", "age")).startswith(reason)
    assert counts.rows[0] == 30
    pooled = PooledSums(Logistic(), rows, cluster)
    assert count_indicators(pooled, Logistic(), 2).explain_few(0, None, ("ward=eye", "age")) == "rows of 1 group"


@pytest.mark.parametrize(
    ("masked", "reason"),
    [
        (True, "rows of 3 groups with another value than 0"),
        (False, "rows of no groups with another value than 0, where"),
    ],
)
def test_a_dose_of_one_group_of_each_site_has_no_interval(float64, masked, reason):
    """Doses of 0, 1 and 2 in ten rows at each of three sites are of one patient, and ages are of all."""
    x = np.column_stack([np.where(np.arange(40) < 10, np.arange(40) % 3, 0), np.arange(40.0), np.ones(40)])
    rows = ModelRows(x, np.zeros(40), np.full(40, 1 / 120), np.zeros(40))
    cluster = np.maximum(np.arange(40) - 9, 0) // 3
    site = IntervalSums(LeastSquares(), rows, 120, np.zeros(2), np.ones(2), 3, 10, masked=masked, cluster=cluster)
    answers = dict.fromkeys(NAMES, Message("value_counts", {}, answer(site, "value_counts", {})))
    described = SimpleNamespace(request=lambda name, arrays: answers, sum_errors={})
    described.sum_name = "all sites" if masked else None
    sums = SiteSums(described, 2, 3, 0, kept=np.arange(3), by_group=True)  # type: ignore[arg-type]
    counts = count_indicators(sums, LeastSquares(), 2)
    assert counts.counts.at_high.tolist() == [18, 117]  # one age is 0
    assert counts.explain_few(0, None, ("dose", "age")).startswith(reason)
    assert counts.explain_few(1, None, ("dose", "age")) == ""


@pytest.mark.parametrize(("masked", "expected"), [(False, [11, 11, 11]), (True, [12, 11, 12])])
def test_differences_of_counts_of_groups_tell_of_no_group(float64, masked, expected):
    """One of twelve patients with the level has no event: 12 - 11 would tell of this patient."""
    cluster = np.repeat(np.arange(20), 2)
    x = np.column_stack([cluster < 12, np.ones(40)]).astype(float)
    y = np.arange(40) % 2.0
    y[0:2] = 0
    rows = ModelRows(x, y, np.full(40, 1 / 40), np.zeros(40))
    site = IntervalSums(Logistic(), rows, 40, np.zeros(1), np.ones(1), 3, 10, masked=masked, cluster=cluster)
    sent = answer(site, "value_counts", {})
    n_rows, n_events, n_rest = (int(sent[name][0]) for name in name_group_counts("high"))
    assert [n_rows, n_events, n_rest] == expected
    if not masked:
        cells = n_rows - n_events, n_rows - n_rest, n_events + n_rest - n_rows
        assert all(cell == 0 or cell >= 3 for cell in cells)


def test_a_plan_tells_of_counts_of_groups_where_groups_are_clusters():
    by_group = ("data.group=patient", "data.ignore=[time]")
    counts = {}
    for cluster in ("group", "none"):
        quantities = plan_of("reg=none", *by_group, cluster=cluster).quantities
        (counts[cluster],) = [listed for listed in quantities if listed.message == "value_counts"]
    assert "counts of groups" in counts["group"].content
    assert counts["group"].numbers.startswith("12 for each feature")
    assert "groups" not in counts["none"].content


def test_counts_below_min_cell_are_none(float64):
    y = np.zeros(40)
    y[[0, 2, 4, 1]] = 1  # three events where the first feature is 0, one where it is 1
    counts = answer(sums_of(y=y), "value_counts", {})
    assert (counts["at_low"][0], counts["target_at_low"][0]) == (20, 3)
    assert (counts["at_high"][0], counts["target_at_high"][0]) == (19, 0)
    assert counts["others"].tolist() == [0, 1]
    masked = answer(sums_of(y=y, masked=True), "value_counts", {})
    assert (masked["at_high"][0], masked["target_at_high"][0]) == (20, 1)
    coded = answer(sums_of(LeastSquares(), one=np.full(2, 2.0)), "value_counts", {})
    assert (coded["others"].tolist(), coded["many"].tolist()) == ([1, 1], [0, 1])
