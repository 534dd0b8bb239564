"""scores.csv over three sites in this process, against the scores of the pooled rows."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import fails
from scored_sites import COST, DITTO, ILL, LOCAL, WARD, compare, of_all_clients, plan_of, scores_of, sites_of
from site_tables import frames

from fcorun.data.rows.row_groups import Ranking, RowGroups
from fcorun.experiment.classifiers import warn_constant_scores
from fcorun.results.models.fitted_record import FittedRecord
from fcorun.results.models.predict import predict
from fcorun.results.scores.calibration import CalibrationSearch, LogisticCalibration, sum_calibration
from fcorun.results.scores.ranking import EDGES, N_BINS, bound_auc, count_scores, find_bins, spread_cells
from fcorun.results.site_scores import compute_site_scores
from fcorun.sites.plan.patients import Patients
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.server.server import Server
from fcorun.sites.server.site_study import run_plan
from fcorun.sites.site.score_sums import ScoreSums
from fcorun.sites.site.site import Site
from fcorun.sites.tables.table_description import merge_small_cells
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.messages import Message


@pytest.mark.slow
@pytest.mark.parametrize("task", [COST, WARD, (*WARD, "algo=pfedme"), (*ILL, *DITTO), (*COST, *LOCAL)])
def test_scores_are_those_of_the_pooled_rows(tmp_path, task):
    found, pooled = scores_of(plan_of(*task), tmp_path / "out")
    pooled = of_all_clients(pooled)
    assert set(found["client"].fillna("")) == {""}
    n_models = {"algo=pfedme": 2, DITTO[-1]: 2}.get(task[-1], 1)
    assert len(found) == len(pooled) == 2 * n_models
    assert found[["set", "model"]].values.tolist() == pooled[["set", "model"]].values.tolist()
    compare(found, pooled)


@pytest.mark.slow
def test_masked_scores_have_the_interval_of_those_without_masks(tmp_path):
    pytest.importorskip("cryptography", reason="secure sums need cryptography: pip install 'fcorun[sites]'")
    found, pooled = scores_of(plan_of(*ILL, *DITTO, secure={}), tmp_path / "out")
    assert found["model"].tolist() == ["shared", "personal"] * 2
    compare(found, of_all_clients(pooled), tolerance=1e-5)
    plain, _ = scores_of(plan_of(*ILL, *DITTO), tmp_path / "plain")
    for name in ("auc_low", "auc_high"):
        np.testing.assert_allclose(found[name], plain[name], atol=1e-9)


def test_no_site_counts_a_small_cell_even_for_masks():
    site = sites_of(plan_of(*ILL))["bern"]
    Server(site.plan, InProcessConnections({"bern": site})).load()
    model = {"bias": np.array(0.1), "weights": np.array([0.2, 0.3])}
    sums = ScoreSums(site.plan.experiment.objective, site.own_data, model, 5, masked=True).sum_scores()
    for name in ("train_positive_bins", "train_negative_bins"):
        assert sums[name].shape[0] == 2
        assert not ((sums[name] > 0) & (sums[name] < 5)).any()


@pytest.mark.slow
@pytest.mark.parametrize("task", [ILL, (*COST, *DITTO)])
def test_owners_may_allow_scores_by_site(tmp_path, task):
    plan = plan_of(*task, "data.by_site=true")
    with fails("data.by_site=true", "policy.by_site of this site refuses"):
        sites_of(plan)
    found, pooled = scores_of(plan, tmp_path / "out", Policy(by_site="allow"))
    order = ["set", "model", "client"]
    found = found.fillna({"client": ""}).sort_values(order).reset_index(drop=True)
    compare(found, pooled.sort_values(order).reset_index(drop=True).assign(client=found["client"]))
    assert found["client"].tolist() == ["", "aarau", "bern", "chur"] * (4 if DITTO[0] in task else 2)
    with fails("--secure", "data.by_site=true"):
        plan_of(*task, "data.by_site=true", secure={})


@pytest.mark.slow
def test_the_interval_contains_the_area_under_the_curve():
    rng = np.random.default_rng(0)
    for _ in range(300):
        min_cell, scale = int(rng.integers(1, 6)), 10.0 ** rng.integers(-2, 2)
        counts = {merged: {label: [] for label in (0, 1)} for merged in (False, True)}
        scores, labels = [], []
        for _ in range(3):
            n = int(rng.integers(2 * min_cell, 60))
            y = rng.permutation(np.arange(n) % 2)
            score = scale * (rng.standard_normal(n) + y * rng.uniform(-1, 2))
            score = np.round(score, int(rng.integers(0, 3)))  # with ties
            for label in (0, 1):
                of_class = count_scores(score[y == label])
                counts[False][label].append([of_class, of_class])
                merged = merge_small_cells(find_bins(score[y == label]), N_BINS, min_cell, Patients())
                counts[True][label].append(spread_cells(merged))
            scores.append(score)
            labels.append(y)
        y, score = np.concatenate(labels), np.concatenate(scores)
        area = Ranking(y == 1, score, RowGroups(np.zeros(len(y), int))).score(np.ones((1, len(y))))[0][0, 0]
        widths = []
        for by_class in counts.values():
            low, high = bound_auc(*(tuple(np.sum(by_class[label], axis=0)) for label in (1, 0)))
            assert low - 1e-12 <= area <= high + 1e-12
            widths.append(high - low)
        assert widths[0] <= widths[1] + 1e-12
        low, high = bound_auc(*(tuple(np.sum(counts[False][label], axis=0)) for label in (1, 0)))
        bins = np.searchsorted(EDGES, score, side="right")
        pairs = bins[y == 1][:, None] - bins[y == 0]
        assert [low, high] == pytest.approx([(pairs > 0).mean(), (pairs >= 0).mean()], abs=1e-12)
    assert np.isnan(bound_auc((np.ones(3), np.ones(3)), (np.zeros(3), np.zeros(3)))).all()


def fit_calibration(y, score):
    """Return the slope and the intercept of pooled rows."""
    calibration = LogisticCalibration(y, score, RowGroups(np.zeros(len(y), int)))
    return [values[0] for values in calibration.fit(np.ones((1, len(y))))]


def search_calibration(parts, error=0.0):
    """Return the slope, the intercept and the number of requests of a search over the rows of sites."""
    y, score = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    search, n_requests = CalibrationSearch(len(y), int(y.sum()), score.sum(), (score**2).sum()), 0
    while not search.done:
        n_requests += 1
        of_sites = [sum_calibration(y, score, search.point, 0) for y, score in parts]
        search.advance(np.sum(of_sites, axis=0), error)
    return *search.scores.values(), n_requests


@pytest.mark.slow
def test_a_calibration_from_sums_is_that_of_the_pooled_rows():
    rng = np.random.default_rng(1)
    for _ in range(100):
        scale, shift = 10.0 ** rng.uniform(-2, 1), rng.uniform(-3, 3)
        parts = []
        for n in rng.integers(8, 80, 3):
            score = scale * rng.standard_normal(n) + shift
            chance = 1 / (1 + np.exp(-rng.uniform(-1, 2) * score / scale + shift / scale * rng.uniform(0, 1)))
            parts.append((((rng.uniform(size=n) < chance) | (np.arange(n) == 0)).astype(int), score))
        y, score = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        slope, intercept = fit_calibration(y, score)
        found_slope, found_intercept, n_requests = search_calibration(parts)
        np.testing.assert_allclose([found_slope, found_intercept], [slope[0], intercept[0]], rtol=1e-8, atol=1e-8)
        assert n_requests < 30
    score = np.linspace(-1, 1, 20)
    assert np.isnan(search_calibration([((score > 0).astype(int), score)])[0])
    assert np.isnan(search_calibration([((score < 0).astype(int), score)])[0])
    assert np.isnan(search_calibration([((score < 0).astype(int), 0 * score)])[0])
    assert np.isnan(search_calibration([(np.ones(20, int), score)])[:2]).all()


@pytest.mark.slow
def test_classes_that_touch_at_one_score_have_no_slope():
    """The slope then has no bound, and its sums are not mistaken for converged ones in the rounding of secure sums."""
    score = np.concatenate([np.linspace(-2, 0, 40), np.zeros(2), np.linspace(0.1, 2, 20)])
    y = np.concatenate([np.zeros(40, int), np.ones(22, int)])
    slope, _ = fit_calibration(y, score)
    assert np.isnan(slope[0])
    for error in (1e-8, 1e-7, 1e-6):
        assert np.isnan(search_calibration([(y, score)], error)[0])


@pytest.mark.parametrize("size", [28.0, 80.0])
def test_classes_that_are_far_apart_have_no_intercept(size):
    score = size * np.where(np.arange(100) < 90, 1, -1)
    assert np.isnan(search_calibration([((score > 0).astype(int), score)])[1])


def test_no_sum_of_a_calibration_is_one_over_few_rows():
    score, y = np.arange(50.0), np.arange(50) % 2
    threshold = np.array([0.0, 1.0, -1e3 * 20.4, 1e3, 0.0])  # a steep step between two rows
    assert np.isnan(sum_calibration(y, score, threshold, 3)[0]).all()
    far = np.append(np.zeros(59), 12.0)  # a column that one row has
    assert np.isnan(sum_calibration(np.arange(60) % 2, far, np.array([0.0, 1.0, 0.0, 1.0, 0.0]), 11)[0]).all()
    assert np.isfinite(sum_calibration(y, score - 25, np.array([0.0, 10.0, 0.0, 1.0, 0.0]), 3)).all()


class RecordingConnections(InProcessConnections):
    """Connections that keep all requests."""

    def send(self, request):
        self.requests = [*getattr(self, "requests", []), request.message]
        return super().send(request)


@pytest.mark.slow
def test_a_site_scores_the_evaluated_model_alone_and_a_bounded_number_of_points(tmp_path):
    plan = plan_of(*ILL)
    connections = RecordingConnections(sites_of(plan))
    run_plan(plan, connections, tmp_path / "out")
    names = [request.name for request in connections.requests]
    first = names.index("scores")
    site = sites_of(plan)["aarau"]
    for request in connections.requests[:first]:
        site.answer(request)
    scores, calibration = connections.requests[first], connections.requests[first + 1]
    with fails("a calibration before the scores"):
        site.answer(calibration)
    forged = Message("scores", {}, scores.arrays | {"weights": scores.arrays["weights"] + 1})
    with fails("another model than the one it had evaluated last"):
        site.answer(forged)
    site.counts.counts.clear()
    site.answer(scores)
    point = calibration.arrays["train"]
    for damaged in (
        {"train": np.repeat(point, 2, axis=0)},
        {"train": point * np.nan},
        {"train": point * [[1, -1, 1, 1, 1]]},
        {"train": point[:, :4]},
        {"rows": point},
        {},
    ):
        with fails("'calibration' does not fit the plan"):
            site.answer(Message("calibration", {}, damaged))
    site.counts.counts.clear()
    for _ in range(30):
        site.answer(calibration)
    with fails("more often than the plan says, 30 times"):
        site.answer(calibration)


def wrap_around(counts):
    """Return counts whose sum in 64 bits is that of the rows."""
    huge = np.zeros(len(counts), np.int64)
    huge[:3] = 2**63 - 1, 2**63 - 1, 2 + counts.sum()
    return huge


@pytest.mark.parametrize(
    ("name", "key", "change", "words"),
    [
        ("scores", "train_positive_bins", lambda values: values + 1, ("site 'bern' counted the scores of",)),
        ("scores", "train_positive_bins", lambda values: values[1:], ("site 'bern'", "no sum of scores")),
        ("scores", "train_brier", lambda values: values * np.nan, ("site 'bern'", "no sum of scores")),
        ("scores", "train_brier", lambda values: -values, ("site 'bern'", "no sum of scores")),
        ("scores", "train_loss", lambda values: -values, ("site 'bern'", "no sum of scores")),
        ("scores", "train_loss", lambda values: values > 0, ("site 'bern'", "no sum of scores")),
        ("scores", "train_true_positive", lambda _: np.array(10**6), ("site 'bern'", "no sum of scores")),
        ("scores", "train_true_positive", lambda _: np.array(60), ("site 'bern'", "more correct predictions")),
        ("scores", "train_true_positive", lambda v: v.astype(np.uint64), ("site 'bern'", "no sum of scores")),
        ("scores", "train_positive_bins", wrap_around, ("site 'bern'", "no sum of scores")),
        ("scores", "train_n", lambda values: values * 0, ("site 'bern'", "scored 0 train rows, and has described")),
        ("scores", "train_n", lambda values: values + 1, ("site 'bern' scored", "has described")),
        ("scores", "train_loss", None, ("site 'bern' sent other sums of scores",)),
        ("calibration", "train", lambda values: values * 0 + 1e9, ("site 'bern'", "invalid sums of a calibration")),
        ("calibration", "train", lambda values: values[0], ("site 'bern'", "invalid sums of a calibration")),
        ("calibration", "train", None, ("site 'bern'", "invalid sums of a calibration")),
    ],
)
def test_forged_sums_name_their_site(name, key, change, words):
    plan = plan_of(*ILL)
    sites = sites_of(plan)
    data, _ = Server(plan, InProcessConnections(sites)).load()
    model = {"bias": np.array(0.1), "weights": np.array([0.2, 0.3])}

    def answer(request, arrays):
        answers = {}
        for site, opened in sites.items():
            sums = ScoreSums(plan.experiment.objective, opened.own_data, model, 3)
            sent = sums.sum_scores() if request == "scores" else sums.sum_calibration(arrays, 1)
            if (site, request) == ("bern", name):
                value = sent.pop(key)
                sent |= {} if change is None else {key: change(value)}
            answers[site] = Message(request, {}, sent)
        return answers

    forged = replace(data, train=replace(data.train, ask=answer))
    with fails(*words):
        compute_site_scores(forged, plan.experiment.objective, model)


@pytest.mark.slow
def test_a_record_flags_unknown_clients_and_constant_predictions(tmp_path):
    tables = frames()
    rename = {"a": "a.csv", "b": "b.csv", "c": "c.csv"}
    for (name, file), table in zip(rename.items(), tables.values(), strict=True):
        table.assign(clinic=f"clinic {name}").to_csv(file, index=False)
    plan = plan_of(*ILL, "data.client=clinic", "reg.strength=100")
    sites = {name: Site(plan, SiteOptions(file), Policy()) for name, file in rename.items()}
    sites["a"].result_folder = tmp_path / "result"
    record = run_plan(plan, InProcessConnections(sites), tmp_path / "out")
    assert "of the validation rows is that of predicting 'yes' for every row" in record.status["reason"]
    new, clients = next(iter(tables.values())).head(3), np.array(["clinic a", "clinic x", "clinic c"], object)
    for of_party in (record, FittedRecord(tmp_path / "result")):
        assert of_party.summary["data"]["client_names"] == ["clinic a", "clinic b", "clinic c"]
        predictions, warnings = predict(of_party, new, clients)
        assert [str(text) for text in predictions["warnings"]] == ["", "client 'clinic x' not in training", ""]
        assert any("is that of predicting 'yes' for every row" in text for text in warnings)
    summary = record.folder / "summary.json"
    summary.write_text(summary.read_text().replace('"client_names"', '"older"'))
    _, warnings = predict(FittedRecord(record.folder), new, clients)
    assert "the record does not tell which clients trained, so that rows of other clients are not marked" in warnings


def test_a_constant_prediction_is_seen_in_the_scores_of_two_classes():
    row = {"set": "validation", "client": "", "prevalence": 0.25, "accuracy": 0.75}
    other = row | {"client": "a", "accuracy": 0.9}
    assert (
        "0.75 of the validation rows is that of predicting 'no'" in warn_constant_scores([row, other], ("no", "yes"))[0]
    )
    assert warn_constant_scores([row | {"accuracy": 0.76}, row], ("no", "yes")) == ()
    assert "of the test rows is that of predicting 'yes'" in warn_constant_scores(
        [row | {"set": "test", "prevalence": 0.75}], ("no", "yes")
    )[0]  # fmt: skip
    assert warn_constant_scores([], ("no", "yes")) == ()
