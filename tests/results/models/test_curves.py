"""The tables of curves on held-out rows, against scikit-learn and by hand, and their pictures."""

import io
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from figure_checks import draw_checked
from matplotlib.image import imread
from sklearn import metrics

from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.rows import Rows
from fcorun.methods.objectives import Logistic
from fcorun.reports.page.build_page import build_page
from fcorun.reports.pictures import calibration_picture as calibration
from fcorun.reports.pictures import roc
from fcorun.reports.pictures.curve_groups import CurveView
from fcorun.reports.pictures.picture import render_pictures
from fcorun.results.models.predictions import Predictions, tabulate_scores
from fcorun.results.models.score_curves import (
    Curves,
    compute_curves,
    smooth_line,
    trace_calibration,
    trace_decision,
    trace_roc,
    wilson_interval,
)

RNG = np.random.default_rng(1)
SCORE = np.round(RNG.standard_normal(250), 1)  # with ties
P = 1 / (1 + np.exp(-SCORE))
Y = (RNG.random(250) < P).astype(int)


def predictions(split="test", threshold=0.3, clients=("a", "b", "")):
    data = FederatedData(train=Rows(np.zeros((2, 1)), Y[:2], np.zeros(2, int)), task="binary", classes=("fit", "ill"))
    names = np.resize(np.array(clients), len(Y))
    return Predictions(
        objective=Logistic(), data=data, split=split, model="shared", clients=names, y=Y, output=SCORE,
        threshold=threshold,
    )  # fmt: skip


def curves(*given):
    return compute_curves(given, tabulate_scores(given))


def test_roc_and_precision_are_those_of_scikit_learn():
    points = pd.DataFrame(trace_roc(Y, P))
    fpr, tpr, thresholds = metrics.roc_curve(Y, P, drop_intermediate=False)
    np.testing.assert_allclose(points[["false_positive_rate", "sensitivity"]].T, [fpr, tpr])
    np.testing.assert_array_equal(points["threshold"], thresholds)
    precision, _, _ = metrics.precision_recall_curve(Y, P)
    np.testing.assert_allclose(points["precision"][1:], precision[:-1][::-1])
    steps = np.diff(points["sensitivity"]) * points["precision"][1:]
    assert steps.sum() == pytest.approx(metrics.average_precision_score(Y, P))
    assert len(trace_roc(np.resize([0, 1], 5000), RNG.random(5000))) == 1001
    assert trace_roc(np.ones(9, int), P[:9]) == []


def test_net_benefit_by_hand():
    y, p = np.array([1, 0, 1, 0, 0]), np.array([0.9, 0.6, 0.25, 0.2, 0.1])
    rows = {row["threshold"]: row for row in trace_decision(y, p, 0.25)}
    assert [t for t, row in rows.items() if row["chosen"]] == [0.25]
    assert rows[0.25]["n_flagged"] == 3  # a row at the threshold is flagged
    assert rows[0.25]["net_benefit"] == pytest.approx((2 - 1 * 0.25 / 0.75) / 5)
    assert rows[0.25]["net_benefit_all"] == pytest.approx((2 - 3 * 0.25 / 0.75) / 5)
    assert [rows[0.25][name] for name in ("sensitivity", "specificity", "ppv", "npv")] == [1, 2 / 3, 2 / 3, 1]
    assert rows[0.95]["net_benefit"] == 0
    half = {row["threshold"]: row for row in trace_decision(y, np.full(len(y), 0.5), 0.5)}
    assert half[0.5]["n_flagged"] == 0  # as the accuracy of a run has it
    assert np.isnan(trace_decision(y, p, 1.0)[-1]["net_benefit"])
    assert np.isnan(rows[0.95]["ppv"])


def test_calibration_bins_hold_all_rows_and_the_line_is_locally_linear():
    rows = trace_calibration(Y, P)
    bins = [row for row in rows if row["kind"] == "bin"]
    assert sum(row["n"] for row in bins) == 250
    assert min(row["n"] for row in bins) >= 20
    assert [row["n"] for row in trace_calibration(Y, RNG.random(250)) if row["kind"] == "bin"] == [25] * 10
    assert sum(row["observed"] * row["n"] for row in bins) == pytest.approx(Y.sum())
    for row in bins:
        z = (row["observed"] - row["low"]) / np.sqrt(row["low"] * (1 - row["low"]) / row["n"])  # Wilson's score test
        assert row["low"] == pytest.approx(0, abs=1e-12) or z == pytest.approx(1.96, abs=1e-4)
    x = np.sort(RNG.random(300))
    grid = np.linspace(0, 1, 7)
    np.testing.assert_allclose(smooth_line(x, 0.2 + 0.5 * x, grid), 0.2 + 0.5 * grid, atol=1e-12)
    point = smooth_line(x, (x > 0.5).astype(float), np.array([0.4]))
    distance = np.sort(np.abs(x - 0.4))[224]  # of 225 nearest rows
    weight = np.sqrt((1 - np.minimum(np.abs(x - 0.4) / distance, 1) ** 3) ** 3)
    line = np.polyfit(x, (x > 0.5).astype(float), 1, w=weight)
    assert point[0] == pytest.approx(np.polyval(line, 0.4))


def test_groups_of_rows_have_no_wilson_interval():
    """250 rows of 50 patients; rows of which each is a patient have intervals."""
    of_patients = curves(replace(predictions(), group=np.arange(250) // 5))
    bins = [row for row in of_patients.calibration if row["kind"] == "bin"]
    assert np.isnan([[row["low"], row["high"]] for row in bins]).all()
    assert ",," in of_patients.files["calibration.csv"]
    figure = calibration.draw(CurveView(of_patients, "a model"))
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert any("no interval: rows of a group depend on each other" in text for text in legend)
    of_rows = curves(replace(predictions(), group=np.arange(250)))
    assert np.isfinite([row["low"] for row in of_rows.calibration if row["kind"] == "bin"]).all()


def test_equal_probabilities_are_in_one_bin_whatever_the_order_of_the_rows():
    p = np.repeat([0.1, 0.3, 0.31, 0.8], [70, 45, 5, 80])
    y = (RNG.random(200) < p).astype(int)
    expected = None
    for order in (np.arange(200), RNG.permutation(200)):
        bins = [row for row in trace_calibration(y[order], p[order]) if row["kind"] == "bin"]
        assert [row["n"] for row in bins] == [70, 45, 85]
        assert bins[2]["observed"] == pytest.approx(y[115:].mean())
        np.testing.assert_allclose([row["observed"] for row in bins], expected or [row["observed"] for row in bins])
        expected = [row["observed"] for row in bins]
    (everything,) = [row for row in trace_calibration(y, np.full(200, 0.4)) if row["kind"] == "bin"]
    assert everything["n"] == 200


def test_the_test_rows_come_first_and_rows_of_no_client_count_in_all_rows_only():
    found = curves(predictions("train"), predictions("validation"), predictions("test"))
    assert found is not None
    assert found.split == "test"
    assert {row["client"] for row in found.roc} == {"", "a", "b"}
    tables = {name: pd.read_csv(io.StringIO(text)) for name, text in found.files.items()}
    assert set(tables) == {"roc.csv", "calibration.csv", "thresholds.csv"}
    assert tables["thresholds.csv"].query("chosen")["threshold"].tolist() == [0.3] * 3
    many = curves(predictions(clients=[f"c{i}" for i in range(60)]))
    assert many is not None
    assert {row["client"] for row in many.decision} == {""}


@pytest.mark.parametrize("n_rows", [99, 10_005])
def test_the_legend_of_calibration_names_both_sizes_of_bins(n_rows):
    rng = np.random.default_rng(0)
    output = rng.standard_normal(n_rows) - 2
    y = (rng.random(n_rows) < 1 / (1 + np.exp(-output))).astype(int)
    found = curves(replace(predictions(clients=[""]), y=y, output=output, clients=np.full(n_rows, "")))
    assert found is not None
    figure = draw_checked(calibration.draw, CurveView(found, "a run"))
    texts = [text.get_text() for ax in figure.axes for text in ax.get_legend().get_texts()]
    expected = "4 groups of 24 or 25 rows" if n_rows == 99 else "10 groups of 1,000 or 1,001 rows"
    assert f"{expected}, 95 % interval" in texts
    ends, edges, base = figure.axes[0].patches[0].get_data()  # type: ignore[attr-defined]
    heights = ends - base
    n_of_bar = np.histogram(1 / (1 + np.exp(-output)), edges)[0]
    n_of_bar[n_of_bar < 5] = 0  # which tell of single patients
    assert np.diff(edges) == pytest.approx(0.05)
    np.testing.assert_allclose(heights / heights.max(), n_of_bar / n_of_bar.max(), atol=1e-12)


def test_names_of_clients_are_shown_as_they_are():
    found = curves(predictions(clients=("_a", "$b$_$c$")))
    assert found is not None
    texts = draw_checked(roc.draw, CurveView(found, "a run")).legends[0].get_texts()
    names = [text.get_text().partition(":")[0] for text in texts]
    assert {"\u200b_a", "$b$_$c$"} < set(names)


def test_the_axes_of_calibration_hold_the_smooth_line_of_all_rows():
    def point(kind, probability, observed, high):
        return {"model": "shared", "client": "", "kind": kind, "probability": probability, "observed": observed,
                "high": high}  # fmt: skip

    rows = [point("bin", 0.1, 0.2, 0.35), point("smooth", 0.3, 0.55, np.nan)]
    found = Curves("test", "ill", {"shared": 0.5}, roc=[], calibration=rows, decision=[], scores=[])
    assert calibration._axis_limit(CurveView(found, "a run")) == 0.6


@pytest.mark.slow
@pytest.mark.drawn
@pytest.mark.parametrize("clients", [[""], ["a", "b"], [f"clinic {i}" for i in range(20)]])
def test_pictures_are_as_wide_as_a_page_or_a_column(clients):
    found = curves(predictions(clients=clients))
    assert found is not None
    pictures = render_pictures(CurveView(found, "a run"))
    widths = {name: imread(io.BytesIO(content)).shape[1] for name, content in pictures.items()}
    assert widths["roc.png"] == pytest.approx(2100, abs=30)
    assert widths["decision.png"] == pytest.approx(1050, abs=30)
    assert set(widths) == {"roc.png", "calibration.png", "decision.png"}


@pytest.mark.slow
@pytest.mark.drawn
def test_a_record_and_its_page_have_the_pictures(trained):
    record = trained("binary", "data.test=0.5")
    names = {path.name for path in record.folder.iterdir()}
    drawn = {"roc.png", "calibration.png", "decision.png", "coefficients.png"}
    assert {"roc.csv", "calibration.csv", "thresholds.csv", *drawn} <= names
    page = build_page([record.folder], [record])
    assert page.count("data:image/png") == len(drawn)
    assert "Decision curve" in page


@pytest.mark.parametrize("share", [0.0, 1.0, 0.5])
def test_a_share_is_in_its_interval_whatever_the_rounding(share):
    for n in range(2, 400):
        low, high = wilson_interval(share, n)
        assert 0 <= low <= share <= high <= 1
