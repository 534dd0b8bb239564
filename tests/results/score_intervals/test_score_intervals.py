"""Intervals of scores: weighted scores, bootstrap samples, DeLong's covariance, pairs of records, foreign files."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import fails
from scipy.special import expit

from fcorun.base.errors import abbreviate
from fcorun.base.records.formats import columns_csv
from fcorun.data.rows.row_groups import RowGroups
from fcorun.results.score_intervals.held_out_rows import HeldOutRows, read_held_out_rows
from fcorun.results.score_intervals.intervals import (
    FEW,
    Tabulation,
    Units,
    bootstrap,
    compare_records,
    compute_intervals,
)
from fcorun.results.score_intervals.score_table import ScoredRecord, ScoreOptions, read_scored_record
from fcorun.results.scores.calibration import LogisticCalibration
from fcorun.results.scores.ranking import auc_covariance
from fcorun.results.scores.score import compute_scores
from fcorun.results.scores.weighted_rows import WeightedRows

QUICK = ScoreOptions(samples=200)
TASKS = ("binary", "regression", "multiclass", "survival")


def draw_rows(task, n=60, decimals=1):
    """Draw predictions with ties for rows of four clients, sorted by client."""
    rng = np.random.default_rng(3)
    score = np.round(rng.standard_normal(n), decimals)
    values: dict = {"target": score + rng.standard_normal(n), "prediction": score}
    if task == "binary":
        probability = expit(1.3 * score)
        target = (rng.random(n) < expit(score + 0.5)).astype(int)
        values = {"target": target, "prediction": (probability >= 0.5).astype(int), "probability": probability}
        values["classes"] = ("fit", "ill")
    elif task == "multiclass":
        probability = np.round(rng.dirichlet(np.ones(3), n), decimals)
        target = np.array([rng.choice(3, p=row / row.sum()) for row in probability])
        values = {"target": target, "prediction": probability.argmax(axis=1), "probability": probability}
        values["classes"] = ("a", "b", "c")
    elif task == "survival":
        times = np.round(rng.exponential(np.exp(-score)), 1) + 0.1
        values["target"] = np.where(rng.random(n) < 0.6, times, -times)
    client = np.sort(rng.choice(["a", "b", "c", "d"], n))
    return HeldOutRows(
        folder=Path(), split="test", model="shared", task=task, client=client, row=np.arange(n), group=None, **values
    )


def score_plainly(rows):
    """Return the scores of rows by the functions that scores.csv has them from."""
    scored = rows.to_scored_rows(RowGroups(np.zeros(len(rows), int)))
    return {name: values[0, 0] for name, values in compute_scores(WeightedRows.each_once(scored)).items()}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("by_client", [False, True])
def test_weighted_scores_are_those_of_repeated_rows(task, by_client):
    rows = draw_rows(task)
    row_segment = np.unique(rows.client, return_inverse=True)[1] if by_client else np.zeros(len(rows), int)
    segments = RowGroups(row_segment)
    weights = Units(np.arange(len(rows)), segments, rows.client).draw_weights(np.random.default_rng(0), 6)
    scores = compute_scores(WeightedRows(rows.to_scored_rows(segments), weights))
    for sample in range(len(weights)):
        for segment in range(len(segments)):
            index = np.flatnonzero(row_segment == segment)
            expected = score_plainly(rows.take(np.repeat(index, weights[sample, index].astype(int))))
            if by_client:
                expected.pop("c_index_all_pairs", None)
            assert set(expected) == set(scores)
            for name, value in expected.items():
                assert scores[name][sample, segment] == pytest.approx(value, rel=1e-7, abs=1e-9, nan_ok=True), name


def test_log_loss():
    rows = draw_rows("binary")
    assert rows.probability is not None
    loss = -np.log(np.where(rows.target == 1, rows.probability, 1 - rows.probability)).mean()
    assert score_plainly(rows)["log_loss"] == pytest.approx(loss)


def test_classes_that_are_far_apart_have_no_intercept_of_calibration():
    score = 80.0 * np.where(np.arange(100) < 90, 1, -1)
    _, intercept = LogisticCalibration((score > 0).astype(int), score, RowGroups(np.zeros(100, int))).fit(
        np.ones((1, 100))
    )
    assert np.isnan(intercept)


@pytest.mark.slow
def test_intervals_are_percentiles_of_a_plain_loop():
    rows = draw_rows("binary", n=80)
    everything = RowGroups(np.zeros(len(rows), int))
    options = ScoreOptions(samples=300, level=0.9)
    result = bootstrap([rows], everything, "rows", options, np.random.default_rng(5))
    rng = np.random.default_rng(5)
    areas = []
    first = np.searchsorted(rows.client, rows.client)
    count = np.searchsorted(rows.client, rows.client, side="right") - first
    assert count.min() >= 10
    for _ in range(300):
        sample = first + (rng.random(len(rows)) * count).astype(int)
        areas.append(score_plainly(rows.take(sample))["auc"])
    assert [result.low["auc"][0], result.high["auc"][0]] == pytest.approx(np.quantile(areas, [0.05, 0.95]).tolist())
    assert result.estimates[0]["auc"][0] == pytest.approx(score_plainly(rows)["auc"])


def test_intervals_of_clients_are_quantiles_of_the_samples_that_define_a_score():
    rows = draw_rows("binary", n=80)
    rows = rows.take(np.flatnonzero((rows.client != "d") | (np.arange(len(rows)) >= len(rows) - 5)))
    rows = rows.take(np.flatnonzero((rows.client != "c") | (np.cumsum(rows.client == "c") <= 11)))
    clients = RowGroups(np.unique(rows.client, return_inverse=True)[1])
    options = ScoreOptions(samples=300, level=0.9)
    result = bootstrap([rows], clients, "rows", options, np.random.default_rng(5))
    chunks = Units(np.arange(len(rows)), clients, rows.client).samples(np.random.default_rng(5), 300)
    scored = rows.to_scored_rows(clients)
    samples = compute_scores(WeightedRows(scored, np.concatenate(list(chunks))))
    seen = set()
    for name, values in samples.items():
        for c in range(4):
            defined = values[np.isfinite(values[:, c]), c]
            reason = result.reasons[name][c]
            seen.add((reason, len(defined) < 300))
            expected = [np.nan, np.nan] if reason else np.quantile(defined, [0.05, 0.95]).tolist()
            assert [result.low[name][c], result.high[name][c]] == pytest.approx(expected, rel=1e-12, nan_ok=True), name
            assert (reason == "units") == (c == 3), name
            assert (reason == "undefined") == (c < 3 and len(defined) < 285), name
    assert {("", False), ("", True), ("units", True), ("undefined", True)} <= seen


def test_rows_and_events_of_each_client_are_counted():
    rows = draw_rows("binary", n=80)
    tabulation = Tabulation("rows", ScoreOptions(samples=200), 0)
    table = [row for row in tabulation.tabulate([rows]) if row.client]
    counted = {row.client: (row.n, row.events) for row in table}
    expected = {}
    for client in "abcd":
        is_client = rows.client == client
        expected[client] = (is_client.sum(), rows.target[is_client].sum())
    assert counted == expected
    least = {client: min(events, n - events) for client, (n, events) in expected.items()}
    few = [client for client in "abcd" if least[client] < FEW]
    sentence = next(text for text in tabulation.sentences() if text.startswith("intervals may cover less"))
    assert sentence.endswith(abbreviate(few))


def test_a_sample_draws_whole_groups_of_each_segment():
    row_segment = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    segments = RowGroups(row_segment)
    names = np.array([7, 2, 7, 2, 7, 5, 5, 9])  # group 7 of another segment is another group
    units = Units(names, segments, row_segment)
    weights = units.draw_weights(np.random.default_rng(0), 200)
    assert units.counts.tolist() == [2, 3]
    assert (weights[:, 0] == weights[:, 2]).all()
    assert (weights[:, 5] == weights[:, 6]).all()
    assert (weights[:, 0] != weights[:, 4]).any()
    assert (weights[:, [0, 1]].sum(axis=1) == 2).all()
    assert (weights[:, [4, 5, 7]].sum(axis=1) == 3).all()
    assert weights.mean(axis=0) == pytest.approx(np.ones(8), abs=0.2)


def test_samples_of_all_rows_have_the_units_of_each_client():
    client = np.repeat(["a", "b", "c"], [13, 16, 3])
    names = np.concatenate([np.arange(13), [0], np.arange(20, 38)])  # unit 0 has rows of the clients a and b
    units = Units(names, RowGroups(np.zeros(32, int)), client)
    weights = units.draw_weights(np.random.default_rng(0), 200)
    assert units.counts.tolist() == [31]
    assert (weights[:, 0] == weights[:, 13]).all()
    assert (weights[:, 14:29].sum(axis=1) == 15).all()
    too_few = [0, 29, 30, 31]  # to be drawn alone, and together too few without the smallest other client
    assert (weights[:, [*range(1, 13), *too_few]].sum(axis=1) == 16).all()
    assert (weights.std(axis=0) > 0).all()
    assert weights.mean(axis=0) == pytest.approx(np.ones(32), abs=0.3)


def test_clients_are_drawn_from_one_pool_where_they_are_the_units():
    client = np.repeat(np.arange(20), 30)
    weights = Units(client, RowGroups(np.zeros(600, int)), client).draw_weights(np.random.default_rng(0), 50)
    assert (weights.reshape(50, 20, 30).std(axis=2) == 0).all()
    assert (weights[:, ::30].std(axis=1) > 0).all()


def test_intervals_of_all_rows_are_for_new_rows_of_these_clients():
    n = 400
    client = np.repeat(["high", "low"], n // 2)
    target = np.where(client == "high", 10.0, -10.0) + np.tile([1.0, -1.0], n // 2)
    rows = HeldOutRows(
        folder=Path(), split="test", model="shared", task="regression", client=client, row=np.arange(n), group=None,
        target=target, prediction=np.zeros(n),
    )  # fmt: skip
    everything = RowGroups(np.zeros(n, int))
    result = bootstrap([rows], everything, "rows", ScoreOptions(), np.random.default_rng(0))
    width = result.high["calibration_intercept"][0] - result.low["calibration_intercept"][0]
    assert width == pytest.approx(2 * 1.96 / n**0.5, rel=0.1)  # the standard deviation within each client is 1


def test_a_client_drawn_twice_counts_its_pairs_twice():
    rows = draw_rows("survival")
    everything = RowGroups(np.zeros(len(rows), int))
    weights = np.where(rows.client == "a", 2.0, np.where(rows.client == "b", 0.0, 1.0))
    copies = np.concatenate([np.flatnonzero(rows.client != "b"), np.flatnonzero(rows.client == "a")])
    clients = rows.client[copies].astype(object)
    clients[-np.sum(rows.client == "a") :] = "a again"
    expected = score_plainly(replace(rows.take(copies), client=clients.astype(str)))
    weighted = WeightedRows(rows.to_scored_rows(everything), weights[None], whole_clients=True)
    for name, values in compute_scores(weighted).items():
        assert values[0, 0] == pytest.approx(expected[name])


def test_delong_is_the_quadratic_formula():
    rng = np.random.default_rng(1)
    positive = rng.random(50) < 0.4
    scores = np.round(rng.standard_normal((2, 50)) + positive, 1)
    area, covariance = auc_covariance(positive, scores)
    wins = []
    for score in scores:
        difference = score[positive][:, None] - score[~positive]
        wins.append((difference > 0) + 0.5 * (difference == 0))
    expected = np.zeros((2, 2))
    for axis in (1, 0):
        placements = np.stack([win.mean(axis=axis) for win in wins])
        expected += np.cov(placements) / placements.shape[1]
    assert area == pytest.approx([win.mean() for win in wins])
    assert covariance == pytest.approx(expected, rel=1e-12)


def test_the_covariance_of_clusters():
    rng = np.random.default_rng(1)
    positive = rng.random(50) < 0.4
    scores = rng.standard_normal((1, 50)) + positive
    alone = auc_covariance(positive, scores)[1]
    twice = auc_covariance(np.tile(positive, 2), np.tile(scores, 2), np.tile(np.arange(50), 2))[1]
    assert twice == pytest.approx(alone)  # a second copy of each row says nothing new
    # pairs of a positive and a negative row: the difference of two means of pairs, by hand
    of_pair = np.tile([True, False], 20)
    pairs = np.repeat(np.arange(20), 2)
    values = np.repeat(rng.standard_normal(20), 2) + of_pair
    covariance = auc_covariance(of_pair, values[None], pairs)[1][0, 0]
    above = (values[of_pair][:, None] > values[~of_pair]).astype(float)
    paired = above.mean(axis=1) + above.mean(axis=0)
    assert covariance == pytest.approx(np.var(paired, ddof=1) / 20)


def test_predictions_of_a_site_out_of_fold_are_told_about_by_its_result(tmp_path, monkeypatch):
    result = tmp_path / "result"
    result.mkdir()
    write_record(result / "selection", replace(draw_rows("binary"), split="out_of_fold"))
    (result / "config.yaml").write_text("data: {name: sites, weight: dose}\nseed: 5\n")
    (result / "summary.json").write_text(json.dumps({"data": {"task": "binary"}}))
    (result / "scores.csv").write_text("set,model,client,n,loss\ntrain,shared,,9,1\n")
    record = read_scored_record(result / "selection")
    expected = ScoredRecord(
        result / "selection",
        seed=5,
        task="binary",
        score_names=frozenset({"set", "model", "client", "n", "loss"}),
        weight="dose",
    )
    assert record == expected
    monkeypatch.chdir(result / "selection")
    assert read_scored_record(Path()).weight == "dose"
    warnings = "\n".join(compute_intervals(result / "selection", QUICK).warnings)
    assert "whatever its weight ('dose')" in warnings
    assert "the strength was chosen on these rows" in warnings


def test_two_thresholds_are_warned_of(tmp_path):
    rows = draw_rows("binary")
    folders = [write_record(tmp_path / name, rows) for name in ("first", "second")]
    for folder, threshold in zip(folders, (0.5, 0.05), strict=True):
        (folder / "summary.json").write_text(json.dumps({"threshold": {"shared": threshold}}))
    says = "different thresholds, 0.5 and 0.05"
    assert any(says in sentence for sentence in compare_records(folders, QUICK).warnings)
    assert not any("thresholds" in sentence for sentence in compare_records(folders[:1] * 2, QUICK).warnings)


def test_a_threshold_of_these_rows_sends_to_test_rows_alone():
    record = ScoredRecord(Path(), threshold_rows="out_of_fold", nested=True)
    assert record.find_warning("out_of_fold").endswith("report those of test rows")
    assert "nested cross-validation" in ScoredRecord(Path()).find_warning("out_of_fold")


def write_record(folder, rows, predictions=None, **columns):
    """Write predictions.csv of rows of two classes."""
    folder.mkdir()
    probability = rows.probability if predictions is None else predictions
    labels = np.array(rows.classes)
    values = {
        "set": [rows.split] * len(rows),
        "client": rows.client.tolist(),
        "row": (rows.row + 1).tolist(),
        "target": labels[rows.target].tolist(),
        "prediction": labels[(probability >= 0.5).astype(int)].tolist(),
        "positive": [labels[1]] * len(rows),
        "probability": probability.tolist(),
        "model": ["shared"] * len(rows),
    }
    (folder / "predictions.csv").write_text(columns_csv(values | columns), encoding="utf-8")
    return folder


def of_score(intervals, name, client="", method="bootstrap"):
    (row,) = [r for r in intervals.rows if (r.score, r.client, r.method) == (name, client, method)]
    return row


def test_a_file_alone_is_enough(tmp_path):
    rows = draw_rows("binary", n=200)
    intervals = compute_intervals(write_record(tmp_path / "a", rows), QUICK)
    area, delong = of_score(intervals, "auc"), of_score(intervals, "auc", method="delong")
    assert area.values[0] == pytest.approx(score_plainly(rows)["auc"])
    assert area.low < area.values[0] < area.high
    assert [area.low, area.high] == pytest.approx([delong.low, delong.high], abs=0.03)
    of_client = of_score(intervals, "brier", "a")
    assert of_client.n == np.sum(rows.client == "a")
    assert of_client.low < of_client.values[0] < of_client.high
    assert "200 test rows of 4 clients, 95 % intervals" in intervals.title
    again = compute_intervals(tmp_path / "a", QUICK)
    assert again.to_csv() == intervals.to_csv()


@pytest.mark.slow
def test_rows_of_a_group_stay_together(tmp_path):
    rows = draw_rows("binary", n=200)
    copies = rows.take(np.tile(np.arange(200), 4))
    copies = HeldOutRows(**{**vars(copies), "row": np.arange(800)})
    folder = write_record(tmp_path / "a", copies, group=np.tile(np.arange(200) + 1, 4).tolist())
    grouped = compute_intervals(folder, QUICK)
    by_row = compute_intervals(folder, ScoreOptions("rows", 200))
    single = compute_intervals(write_record(tmp_path / "b", rows), QUICK)
    area = of_score(grouped, "auc")
    assert [area.low, area.high] == [of_score(single, "auc").low, of_score(single, "auc").high]
    assert of_score(by_row, "auc").high - of_score(by_row, "auc").low < 0.7 * (area.high - area.low)
    assert of_score(grouped, "auc", method="obuchowski").low == pytest.approx(
        of_score(single, "auc", method="delong").low
    )
    assert any("resample=groups does not assume that" in sentence for sentence in by_row.warnings)
    with fails("resample=groups: ", "has no column group"):
        compute_intervals(tmp_path / "b", ScoreOptions("groups", 200))


def test_few_groups_with_rows_of_a_class_are_a_warning(tmp_path):
    """The rows of each class are 200, of 4 patients the smaller one."""
    rows = draw_rows("binary", n=400)
    rows = replace(rows, target=(np.arange(400) >= 200).astype(int))
    group = np.where(np.arange(400) < 200, np.arange(400) % 4, np.arange(400) % 100 + 4)
    grouped = compute_intervals(write_record(tmp_path / "a", rows, group=group.tolist()), QUICK)
    assert any(text.startswith("4 groups with rows of the smallest class are few") for text in grouped.warnings)
    by_row = compute_intervals(tmp_path / "a", ScoreOptions("rows", 200))
    assert not any("smallest class" in text for text in by_row.warnings)


def test_where_there_is_no_interval(tmp_path):
    rows = draw_rows("binary", n=40)
    perfect = write_record(tmp_path / "perfect", rows, np.where(rows.target == 1, 0.9, 0.2))
    intervals = compute_intervals(perfect, QUICK)
    for method in ("bootstrap", "delong"):
        area = of_score(intervals, "auc", method=method)
        assert area.values == (1.0,)
        assert np.isnan(area.low)
    assert any("it is the same in all samples" in sentence for sentence in intervals.warnings)
    assert any("rows of the smallest class are few" in sentence for sentence in intervals.warnings)
    assert any("no intervals for clients with fewer than 10 rows: " in sentence for sentence in intervals.warnings)
    one_class = rows.take(np.flatnonzero(rows.target == 1))
    intervals = compute_intervals(write_record(tmp_path / "one", one_class), QUICK)
    assert np.isnan(of_score(intervals, "auc").values[0])
    assert any("do not define it, as a sample of one class" in sentence for sentence in intervals.warnings)
    few = compute_intervals(write_record(tmp_path / "few", rows.take(np.arange(6))), QUICK)
    assert all(np.isnan(row.low) for row in few.rows)
    assert "6 rows are too few for intervals, which need 10" in few.warnings


def test_few_clients_are_refused(tmp_path):
    folder = write_record(tmp_path / "a", draw_rows("binary"))
    with fails("resample=clients: 4 clients are too few for intervals, which need 10"):
        compute_intervals(folder, ScoreOptions("clients", 200))


def test_many_clients(tmp_path):
    rows = draw_rows("binary", n=400)
    rows = HeldOutRows(**{**vars(rows), "client": np.repeat([f"site {i}" for i in range(20)], 20)})
    intervals = compute_intervals(write_record(tmp_path / "a", rows), ScoreOptions("clients", 200))
    assert {row.client for row in intervals.rows} == {""}  # a sample of clients says nothing on one
    assert of_score(intervals, "auc", method="obuchowski").low < of_score(intervals, "auc").values[0]


@pytest.mark.slow
def test_differences_are_paired(tmp_path):
    rows = draw_rows("binary", n=300, decimals=3)
    other = expit(rows.log_odds + 0.3 * np.random.default_rng(0).standard_normal(300))
    folders = [write_record(tmp_path / "a", rows), write_record(tmp_path / "b", rows, other)]
    differences = compare_records(folders, QUICK)
    difference, delong = of_score(differences, "auc"), of_score(differences, "auc", method="delong")
    alone = of_score(compute_intervals(folders[0], QUICK), "auc")
    assert difference.values[0] == alone.values[0]
    assert difference.high - difference.low < 0.5 * (alone.high - alone.low)
    _, covariance = auc_covariance(rows.target == 1, np.stack([rows.log_odds, np.log(other / (1 - other))]))
    error = np.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    assert delong.high - delong.low == pytest.approx(2 * 1.959964 * error, rel=1e-6)
    assert delong.p_value is not None
    assert (delong.p_value < 0.05) == (not delong.low < 0 < delong.high)
    header = differences.to_csv().splitlines()[0]
    assert header.startswith(
        "set,model_a,model_b,client,n,events,score,method,value_a,value_b,difference,low,high,p_value"
    )


def test_records_of_other_rows_are_refused_or_matched(tmp_path):
    rows = draw_rows("binary", n=100)
    first = write_record(tmp_path / "a", rows)
    shuffled = rows.take(np.random.default_rng(0).permutation(100)[:80])
    part = compare_records([first, write_record(tmp_path / "part", shuffled)], QUICK)
    assert of_score(part, "auc").estimate == 0
    assert any("compared on the 80 rows that both predict, of 100" in sentence for sentence in part.warnings)
    flipped = HeldOutRows(**{**vars(rows), "target": np.where(np.arange(100) == 7, 1 - rows.target, rows.target)})
    with fails("different targets in 1 rows, the first of which is row 8 of client"):
        compare_records([first, write_record(tmp_path / "flipped", flipped)], QUICK)
    moved = HeldOutRows(**{**vars(rows), "row": rows.row + 1000})
    with fails("have no test row of one client and number in common"):
        compare_records([first, write_record(tmp_path / "moved", moved)], QUICK)
    validation = HeldOutRows(**{**vars(rows), "split": "validation"})
    with fails("has test rows, and", "validation rows"):
        compare_records([first, write_record(tmp_path / "validation", validation)], QUICK)
    renamed = HeldOutRows(**{**vars(rows), "classes": ("ill", "fit")})
    with fails("have no scores in common"):
        compare_records([first, write_record(tmp_path / "renamed", renamed)], QUICK)


def test_selections_are_compared_on_the_same_folds(tmp_path):
    rows = replace(draw_rows("binary", n=100), split="out_of_fold")
    fold = np.arange(100) % 5 + 1
    first = write_record(tmp_path / "a", rows, fold=fold.tolist())
    backwards = write_record(tmp_path / "b", rows.take(np.arange(100)[::-1]), fold=fold[::-1].tolist())
    assert of_score(compare_records([first, backwards], QUICK), "auc").estimate == 0
    other_folds = write_record(tmp_path / "c", rows, fold=np.roll(fold, 1).tolist())
    with fails("hold the same rows out in other folds", "the same seed, folds, by"):
        compare_records([first, other_folds], QUICK)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace(",positive,", ",positives,", 1), "positive class"),
        (lambda text: text.replace(",row,", ",line,", 1), "no column row"),
        (lambda text: text.replace(",model", ",set", 1), "no column model"),
        (lambda text: text + "test,a\n", "has 2 values"),
        (lambda text: text + "test,a,1,fit,fit,ill,0.5,shared\n", "two predictions"),
        (lambda text: text + "test,a,99,fit,fit,ill,1.5,shared\n", "between 0 and 1"),
        (lambda text: text + "test,a,99,fit,fit,ill,nan,shared\n", "not finite"),
        (lambda text: text + "test,a,99,dead,fit,ill,0.5,shared\n", "positive class"),
        (lambda text: text + "test,a,9e9,fit,fit,ill,0.5,shared\n", "9e9"),
        (lambda text: text.splitlines()[0], "no rows"),
    ],
)
def test_damaged_files_are_one_sentence(tmp_path, change, reason):
    file = write_record(tmp_path / "a", draw_rows("binary")) / "predictions.csv"
    text = change(file.read_text(encoding="utf-8"))
    file.write_text(text, encoding="utf-8")
    with fails("predictions.csv is damaged", reason):
        read_held_out_rows(tmp_path / "a")


@pytest.mark.parametrize(("target", "event"), [("5.0", 2), ("-5.0", 1), ("0.0", 1)])
def test_times_and_events_that_no_prediction_has(target, event, tmp_path):
    (tmp_path / "predictions.csv").write_text(
        f"set,client,row,target,event,prediction,model\ntest,a,1,{target},{event},0.5,shared\n", encoding="utf-8"
    )
    with fails("predictions.csv is damaged", "neither 0 nor 1, or a time that is not positive"):
        read_held_out_rows(tmp_path)


def test_labels_without_probabilities(tmp_path):
    file = write_record(tmp_path / "a", draw_rows("binary")) / "predictions.csv"
    lines = [line.split(",") for line in file.read_text(encoding="utf-8").splitlines()]
    file.write_text("".join(",".join(line[:5] + line[7:]) + "\n" for line in lines), encoding="utf-8")
    intervals = compute_intervals(tmp_path / "a", QUICK)
    assert {row.score for row in intervals.rows} == {"accuracy", "balanced_accuracy"}
    assert any("labels and no probabilities" in sentence for sentence in intervals.warnings)


def test_options_that_are_wrong():
    with fails("level=95 must be between 0 and 1"):
        ScoreOptions(level=95)
    with fails("samples=10 must be between 100 and 100,000"):
        ScoreOptions(samples=10)
    with fails("more than 100,000: give a level of at most 0.9999"):
        ScoreOptions(level=0.99999)
    with fails("samples=333 are too few for level=0.97: give samples=334"):
        ScoreOptions(samples=333, level=0.97)
    with fails("samples=1000 are too few for level=0.999: give samples=10000"):
        ScoreOptions(level=0.999)
