"""Stability selection: comparison with a plain loop of runs, the bound by hand, files and messages."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from figure_checks import check_pdf
from helpers import composed, fails
from matplotlib.text import Text
from run_studies import select_stable_features
from sklearn.linear_model import Lasso

from fcorun import run
from fcorun.base.records.formats import frame_csv
from fcorun.base.system.random_streams import random_stream
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.rows import Rows
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.reports.pictures import layout
from fcorun.reports.pictures.layout import STYLES
from fcorun.studies.selection import stability as picture
from fcorun.studies.selection.fitting import PathFit
from fcorun.studies.selection.folds import draw_halves
from fcorun.studies.selection.select_stable import find_support, plan_stability
from fcorun.studies.selection.stability import StabilityOptions, StabilityResult, compute_jaccard, score_features

RNG = np.random.default_rng(5)
OWNER = np.repeat(["a", "b", "c"], [20, 31, 25])
X = RNG.standard_normal((len(OWNER), 10))
Y = X @ [1.5, -1.0, 0.7, *[0] * 7] + 0.7 + RNG.standard_normal(len(OWNER))
NAMES = ["age", "dose", *(f"x{j}" for j in range(8))]


def config(*overrides):
    pd.DataFrame(X, columns=NAMES).assign(site=OWNER, y=Y).to_csv("rows.csv", index=False)
    table_overrides = ("data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "data.validation=0")
    return composed(*table_overrides, "precision=float64", *overrides)


@pytest.mark.slow
def test_frequencies_equal_a_plain_loop():
    """Run each half as a table of its own, one run for each strength."""
    settings = config("algo=fedmid", "rounds=15", "batch_size=8", "algo.client_lr=0.05", "algo.server_lr=1")
    result = select_stable_features(settings, StabilityOptions(subsamples=2, points=3), "out")
    data, chosen = load_data(prepare(settings)), []
    for s, half in enumerate(draw_halves(data, 1, "rows", random_stream(0, "stability", "halves"))):
        client = np.repeat(data.clients, data.train.sizes)[half]
        pd.DataFrame(data.train.x[half], columns=NAMES).assign(site=client, y=data.train.y[half]).to_csv(
            f"{s}.csv", index=False
        )
        for strength in result.path.values:
            point = settings | {
                "data": settings["data"] | {"path": f"{s}.csv"},
                "reg": settings["reg"] | {"strength": float(strength)},
            }
            chosen.append(np.abs(run(point, f"{s}/{strength}").solution["weights"]) > settings["cutoff"])
    frequency = np.reshape(chosen, (2, 3, 10)).mean(axis=0)
    np.testing.assert_array_equal(result.scores.frequency, frequency)
    assert 0 < frequency.mean() < 1


def test_bound_equals_one_by_hand():
    chosen = np.zeros((4, 3, 8), bool)
    chosen[:, :, 0] = True
    chosen[:3, 1:, 1] = True
    chosen[0, 2, 2:] = True
    chosen[1, 1, 3] = True  # not at the next strength: q counts the union
    scores = score_features(chosen, threshold=0.75, max_errors=1.0)
    assert scores.q.tolist() == [1, (2 + 3 + 2 + 1) / 4, (8 + 3 + 2 + 1) / 4]
    np.testing.assert_allclose(scores.bound, scores.q**2 / (0.5 * 8))
    assert scores.region_length == 2
    assert scores.stable.tolist() == [True, True, *[False] * 6]
    assert scores.max_frequency[3] == 0.25
    assert score_features(chosen, threshold=1.0, max_errors=1.0).stable.tolist() == [True, *[False] * 7]
    assert score_features(chosen, threshold=0.75, max_errors=1e-9).region_length == 1


@pytest.mark.parametrize(("region_length", "bound", "is_named"), [(1, 0.5, True), (2, 0.5, False), (1, 3.0, False)])
def test_the_headline_names_the_settings_that_leave_one_value(region_length, bound, is_named):
    scores = SimpleNamespace(region_length=region_length, bound=[bound])
    result: Any = SimpleNamespace(
        options=StabilityOptions(points=10), scores=scores, path=SimpleNamespace(param_name="strength")
    )
    clause = StabilityResult.state_judged_part(result)
    assert ("at the first of 10 values of the strength" in clause) == is_named
    assert ("points=10, threshold=0.75 and max_errors=1 leave to judge" in clause) == is_named


def test_a_feature_in_large_units_is_chosen():
    weights = np.array([[2e-5, 2e-5], [0.0, -2e-4]])
    fit = PathFit(metrics={}, solution={"weights": weights}, end_state=np.zeros(2, int), counts={})
    chosen = find_support(fit, np.array([1e-9, 1e-4])).solution["chosen"]
    assert chosen.tolist() == [[True, False], [False, True]]


def test_jaccard_indices():
    similarity = compute_jaccard(np.array([[1, 1, 0], [0, 1, 1], [0, 0, 0]], bool))
    np.testing.assert_allclose(similarity[:2, :2], [[1, 1 / 3], [1 / 3, 1]])
    assert np.isnan(similarity[2, 2])
    assert similarity[0, 2] == 0


def test_a_client_may_be_named_client():
    result: Any = SimpleNamespace(data=SimpleNamespace(client_names=["client", "b"]), client_similarity=np.eye(2))
    assert (
        frame_csv(StabilityResult.tabulate_clients(result)).decode() == "client,client,b\nclient,1.0,0.0\nb,0.0,1.0\n"
    )


@pytest.mark.slow
@pytest.mark.drawn
def test_files_of_a_stability_selection(monkeypatch):
    options = StabilityOptions(subsamples=10, points=6, max_errors=2)
    result = select_stable_features(config("algo=centralized"), options, "out")
    assert {"stability.csv", "clients.csv", "stability.png", "stability.json"} < {p.name for p in Path("out").iterdir()}
    frame = pd.read_csv("out/stability.csv")
    assert set(frame["feature"]) == set(NAMES)
    assert set(frame["feature"][frame["stable"]]) >= {"age", "dose"}
    assert (np.diff(frame["frequency"]) <= 0).all()
    summary = json.loads(Path("out/stability.json").read_text())
    assert summary["bound"] <= 2
    output = "\n".join(result.describe())
    assert all(
        word in output for word in ("age", "Shah and Samworth", "Meinshausen", "independently within each client")
    )

    # the clients' own supports equal those of scikit-learn
    data = load_data(prepare(config("algo=centralized")))
    alpha = result.path.values[result.scores.region_length - 1] / 2
    supports = [Lasso(alpha=alpha, tol=1e-10).fit(data.train.x[a:b], data.train.y[a:b]).coef_ != 0
           for a, b in zip(data.train.offsets[:-1], data.train.offsets[1:], strict=True)]  # fmt: skip
    np.testing.assert_allclose(pd.read_csv("out/clients.csv").iloc[:, 1:], compute_jaccard(np.array(supports)))

    # another threshold computes nothing
    monkeypatch.setattr("fcorun.studies.selection.fitting.PathFitter.fit", lambda *_: pytest.fail("computed again"))
    slides = config("algo=centralized", "style=slides", "pdf=true")
    more = select_stable_features(slides, StabilityOptions(subsamples=10, points=6, max_errors=9, threshold=0.9), "out")
    assert check_pdf("out/stability.pdf") == pytest.approx(STYLES["slides"].page_width, rel=0.02)
    assert more.scores.region_length >= result.scores.region_length


@pytest.mark.slow
def test_the_assumption_of_the_bound_is_said():
    said = {}
    for assumption in ("none", "unimodal", "r_concave"):
        options = StabilityOptions(subsamples=10, points=3, assumption=assumption)
        result = select_stable_features(config("algo=centralized"), options, "out")
        said[assumption] = json.loads(Path("out/stability.json").read_text())
        assert said[assumption]["assumption"] == assumption
        assert said[assumption]["halves_of"] == "rows"
        sentences = result.state_bound()
        assert len(sentences) == (2 if assumption == "none" else 3)
        if assumption != "none":
            assert sentences[0].startswith(f"bound with assumption={assumption}: ")
            assert f"assumption={assumption} is assumed, not tested" in sentences[2]
            assert "without an assumption the bound is" in sentences[2]
    assert len({summary["identity"] for summary in said.values()}) == 1  # no fit depends on the assumption
    few = StabilityOptions(subsamples=4, points=3, assumption="unimodal")  # theorem 2 needs a threshold of 1/2 + 1/B
    result = select_stable_features(config("algo=centralized"), few, "few")
    assert "gives no smaller bound for this q and threshold" in result.state_bound()[2]


@pytest.mark.slow
def test_halves_of_groups_are_said():
    rows = pd.DataFrame(X, columns=NAMES).assign(site=OWNER, y=Y, patient=np.arange(len(Y)) // 2)
    settings = config("algo=centralized", "data.group=patient", "data.group_across=keep")
    rows.to_csv("rows.csv", index=False)
    result = select_stable_features(settings, StabilityOptions(subsamples=2, points=2), "out")
    assert "groups of rows (data.group) are drawn independently (Shah" in "\n".join(result.describe())
    assert json.loads(Path("out/stability.json").read_text())["halves_of"] == "groups"
    halves = [subset.train for subset in result.study.subsets.values()]
    assert (halves[0] != halves[1]).all()
    patient = result.data.train.group
    assert patient is not None
    assert not set(patient[halves[0]]) & set(patient[halves[1]])


@pytest.mark.slow
def test_halves_of_the_clients():
    result = select_stable_features(
        config("algo=centralized"), StabilityOptions(subsamples=4, points=4, by="clients"), "out"
    )
    assert result.scores.frequency.shape == (4, 10)
    assert "among the clients" in "\n".join(result.describe())
    messages = plan_stability(config("algo=centralized"), StabilityOptions(subsamples=6, by="clients"), "out").messages
    assert "3 of these halves are distinct: each pair leaves one of 3 clients out" in messages


@pytest.mark.parametrize(("clients", "pairs"), [(2, 1), (3, 3), (4, 3), (5, 15), (6, 10)])
def test_no_pair_of_halves_of_the_clients_is_drawn_twice(clients, pairs):
    data = FederatedData(Rows(np.zeros((clients, 1)), np.zeros(clients), np.arange(clients)))
    drawn = np.array(list(draw_halves(data, pairs, "clients", np.random.default_rng(0)))).reshape(pairs, 2, clients)
    assert (drawn.sum(axis=2) == clients // 2).all()
    assert not drawn.all(axis=1).any()
    assert len({frozenset(half.tobytes() for half in pair) for pair in drawn}) == pairs
    too_many = f"subsamples={2 * pairs + 2} takes {pairs + 1} pairs of halves, and {clients} clients have {pairs}:"
    with fails(too_many, f"give subsamples={2 * pairs} or less"):
        list(draw_halves(data, pairs + 1, "clients", np.random.default_rng(0)))


def test_a_model_without_coefficients_is_refused():
    with fails("objective=mlp", "no coefficient"):
        select_stable_features(
            composed("algo=feddualavg", "data=logistic_synthetic", "objective=mlp", "reg=l1", "algo.client_lr=0.1"),
            StabilityOptions(),
            "out",
        )
    assert not Path("out").exists()


def texts(monkeypatch, draws):
    """Return the texts of a picture, and its axes."""
    figures = []
    monkeypatch.setattr(layout, "render_formats", lambda figure, formats: figures.append(figure) or {})
    draws()
    (figure,) = figures
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()], figure.axes


@pytest.mark.slow
@pytest.mark.drawn
def test_the_picture_names_the_most_frequent(monkeypatch):
    result = select_stable_features(
        config("algo=centralized"), StabilityOptions(subsamples=4, points=8, max_errors=0.3), "out"
    )
    assert result.scores.stable.sum() < 3
    labels, (left, *_) = texts(monkeypatch, lambda: picture.draw_stability(result))
    named = [name for name in NAMES if name in labels]
    assert len(named) == 8
    assert {"age", "dose"} < set(named)
    assert sum(line.get_linewidth() > 1 for line in left.lines) == result.scores.stable.sum()
    assert "Centralized on rows, l1 penalty: stability selection on 4 halves by rows" in labels
    assert result.client_similarity is not None
    assert {f"{index:.2f}" for index in result.client_similarity.ravel() if np.isfinite(index)} <= set(labels)


def test_bad_options_are_refused():
    bad: Any
    for bad, words in (
        ({"subsamples": 3}, "subsamples=3"),
        ({"threshold": 0.5}, "threshold=0.5"),
        ({"points": 1}, "points=1"),
    ):
        with fails(words):
            StabilityOptions(**bad)


@pytest.mark.slow
def test_a_path_that_begins_too_late():
    result = select_stable_features(
        config("algo=centralized"), StabilityOptions(subsamples=4, points=3, range=[1e-3, 1e-2]), "out"
    )
    assert result.scores.region_length == 1
    assert any("too many for max_errors=1" in line for line in result.warnings)
    assert "more than max_errors=1" in "\n".join(result.describe())


@pytest.mark.slow
def test_features_without_penalty_are_not_chosen():
    result = select_stable_features(
        config("algo=centralized", "reg.factors={x7:0}"), StabilityOptions(subsamples=4, points=3), "out"
    )
    summary, frame = json.loads(Path("out/stability.json").read_text()), pd.read_csv("out/stability.csv")
    assert (summary["features"], summary["unpenalised"]) == (9, ["x7"])
    assert "x7" not in summary["stable"]
    assert frame["frequency"].isna().tolist() == [False] * 9 + [True]
    assert result.scores.q[0] < 1  # where the path begins only x7 has a coefficient
    assert "not penalized (reg.factors), so neither chosen nor counted: x7" in "\n".join(result.describe())
    chosen = np.ones((2, 1, 4), bool)
    by_hand = score_features(chosen, 0.75, 9.0, np.array([True, False, False, False]))
    assert (by_hand.q[0], by_hand.bound[0], by_hand.stable.tolist()) == (3, 6, [False, True, True, True])
