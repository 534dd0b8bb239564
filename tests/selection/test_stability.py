"""Stability selection: against a plain loop of runs, the bound by hand, and what is said of it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from figure_checks import check_pdf
from helpers import composed, fails
from matplotlib.text import Text
from sklearn.linear_model import Lasso

from fcorun import run
from fcorun.datasets.base import FederatedData
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.reports.pictures.style import STYLES
from fcorun.selection.folds import draw_halves
from fcorun.selection.stability import picture
from fcorun.selection.stability.files import describe_stability
from fcorun.selection.stability.options import StabilityOptions
from fcorun.selection.stability.scores import compute_jaccard, score_features
from fcorun.selection.stability.select import plan_stability, select_stable_features, warn_about_region
from fcorun.system.random_streams import random_stream

RNG = np.random.default_rng(5)
OWNER = np.repeat(["a", "b", "c"], [20, 31, 25])
X = RNG.standard_normal((len(OWNER), 10))
Y = X @ [1.5, -1.0, 0.7, *[0] * 7] + 0.7 + RNG.standard_normal(len(OWNER))
NAMES = ["age", "dose", *(f"x{j}" for j in range(8))]


def config(*overrides):
    pd.DataFrame(X, columns=NAMES).assign(site=OWNER, y=Y).to_csv("rows.csv", index=False)
    own = ("data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "data.validation=0")
    return composed(*own, "precision=float64", *overrides)


def test_as_a_plain_loop():
    """Each half as a table of its own, run by itself at each strength."""
    given = config("algo=fedmid", "rounds=15", "batch_size=8", "algo.client_lr=0.05", "algo.server_lr=1")
    found = select_stable_features(given, StabilityOptions(subsamples=2, points=3), "out")
    data, chosen = load_data(prepare(given)), []
    for s, half in enumerate(draw_halves(data, 1, "rows", random_stream(0, "stability", "halves"))):
        own = np.repeat(data.clients, data.sizes)[half]
        pd.DataFrame(data.x[half], columns=NAMES).assign(site=own, y=data.y[half]).to_csv(f"{s}.csv", index=False)
        for strength in found.path.values:
            each = given | {
                "data": given["data"] | {"path": f"{s}.csv"},
                "reg": given["reg"] | {"strength": float(strength)},
            }
            chosen.append(np.abs(run(each, f"{s}/{strength}").solution["weights"]) > given["cutoff"])
    frequency = np.reshape(chosen, (2, 3, 10)).mean(axis=0)
    np.testing.assert_array_equal(found.scores.frequency, frequency)
    assert 0 < frequency.mean() < 1


def test_the_bound_by_hand():
    chosen = np.zeros((4, 3, 8), bool)
    chosen[:, :, 0] = True
    chosen[:3, 1:, 1] = True
    chosen[0, 2, 2:] = True
    chosen[1, 1, 3] = True  # and no longer at the next strength: the union counts it
    found = score_features(chosen, threshold=0.75, errors=1.0)
    assert found.q.tolist() == [1, (2 + 3 + 2 + 1) / 4, (8 + 3 + 2 + 1) / 4]
    np.testing.assert_allclose(found.bound, found.q**2 / (0.5 * 8))
    assert found.region_length == 2
    assert found.stable.tolist() == [True, True, *[False] * 6]
    assert found.max_frequency[3] == 0.25
    assert score_features(chosen, threshold=1.0, errors=1.0).stable.tolist() == [True, *[False] * 7]
    assert score_features(chosen, threshold=0.75, errors=1e-9).region_length == 1


def test_likeness_of_supports():
    found = compute_jaccard(np.array([[1, 1, 0], [0, 1, 1], [0, 0, 0]], bool))
    np.testing.assert_allclose(found[:2, :2], [[1, 1 / 3], [1 / 3, 1]])
    assert np.isnan(found[2, 2])
    assert found[0, 2] == 0


@pytest.mark.drawn
def test_what_it_leaves(monkeypatch):
    options = StabilityOptions(subsamples=10, points=6, errors=2)
    found = select_stable_features(config("algo=centralized"), options, "out")
    assert {"stability.csv", "clients.csv", "stability.png", "stability.json"} < {p.name for p in Path("out").iterdir()}
    assert check_pdf("out/stability.pdf") == pytest.approx(STYLES["paper"].page_width, rel=0.02)
    frame = pd.read_csv("out/stability.csv")
    assert set(frame["feature"]) == set(NAMES)
    assert set(frame["feature"][frame["stable"]]) >= {"age", "dose"}
    assert (np.diff(frame["frequency"]) <= 0).all()
    kept = json.loads(Path("out/stability.json").read_text())
    assert kept["bound"] <= 2
    said = "\n".join(describe_stability(found))
    assert all(word in said for word in ("age", "Shah and Samworth", "Meinshausen", "independently within each client"))

    # the clients' own supports are those of scikit-learn
    data = load_data(prepare(config("algo=centralized")))
    alpha = found.path.values[found.scores.region_length - 1] / 2
    own = [Lasso(alpha=alpha, tol=1e-10).fit(data.x[a:b], data.y[a:b]).coef_ != 0
           for a, b in zip(data.offsets[:-1], data.offsets[1:], strict=True)]  # fmt: skip
    np.testing.assert_allclose(pd.read_csv("out/clients.csv").iloc[:, 1:], compute_jaccard(np.array(own)))

    # with another threshold nothing is computed
    monkeypatch.setattr("fcorun.selection.fitting.PathFitter.fit", lambda *_: pytest.fail("computed again"))
    slides = config("algo=centralized", "style=slides")
    more = select_stable_features(slides, StabilityOptions(subsamples=10, points=6, errors=9, threshold=0.9), "out")
    assert check_pdf("out/stability.pdf") == pytest.approx(STYLES["slides"].page_width, rel=0.02)
    assert more.scores.region_length >= found.scores.region_length


def test_halves_of_the_clients():
    found = select_stable_features(
        config("algo=centralized"), StabilityOptions(subsamples=4, points=4, by="clients"), "out"
    )
    assert found.scores.frequency.shape == (4, 10)
    assert "among the clients" in "\n".join(describe_stability(found))
    said = plan_stability(config("algo=centralized"), StabilityOptions(subsamples=6, by="clients"), "out").messages
    assert "3 of these halves are distinct: each pair leaves one of 3 clients out" in said


@pytest.mark.parametrize(("clients", "pairs"), [(2, 1), (3, 3), (4, 3), (5, 15), (6, 10)])
def test_no_pair_of_halves_of_the_clients_is_drawn_twice(clients, pairs):
    data = FederatedData(x=np.zeros((clients, 1)), y=np.zeros(clients), offsets=np.arange(clients + 1))
    found = np.array(list(draw_halves(data, pairs, "clients", np.random.default_rng(0)))).reshape(pairs, 2, clients)
    assert (found.sum(axis=2) == clients // 2).all()
    assert not found.all(axis=1).any()
    assert len({frozenset(half.tobytes() for half in pair) for pair in found}) == pairs
    with fails(f"subsamples={2 * pairs + 2} is more than the {pairs} pairs", f"give subsamples={2 * pairs} or less"):
        list(draw_halves(data, pairs + 1, "clients", np.random.default_rng(0)))


def test_no_coefficients():
    with fails("objective=mlp", "no coefficient"):
        select_stable_features(
            composed("algo=feddualavg", "data=logistic_synthetic", "objective=mlp", "reg=l1", "algo.client_lr=0.1"),
            StabilityOptions(),
            "out",
        )
    assert not Path("out").exists()


def texts(monkeypatch, module, draws):
    """What a picture says, and its axes."""
    figures = []
    monkeypatch.setattr(module, "render_figure", lambda figure, format: figures.append(figure) or b"")
    draws()
    figure, same = figures  # png and pdf
    assert same is figure
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()], figure.axes


def test_the_picture_names_the_most_frequent(monkeypatch):
    found = select_stable_features(
        config("algo=centralized"), StabilityOptions(subsamples=4, points=8, errors=0.3), "out"
    )
    assert found.scores.stable.sum() < 3
    said, (left, *_) = texts(monkeypatch, picture, lambda: picture.draw_stability(found))
    named = [name for name in NAMES if name in said]
    assert len(named) == 8
    assert {"age", "dose"} < set(named)
    assert sum(line.get_linewidth() > 1 for line in left.lines) == found.scores.stable.sum()
    assert "Centralized on rows, l1 penalty: stability selection on 4 halves by rows" in said
    assert found.client_similarity is not None
    assert {f"{index:.2f}" for index in found.client_similarity.ravel() if np.isfinite(index)} <= set(said)
    (said,) = warn_about_region(found.path, replace(found.scores, region_length=3), 1.0)
    assert "errors=1 allows 3 of 8 values of the path: a larger errors= loosens the bound" in said


def test_options():
    bad: Any
    for bad, words in (
        ({"subsamples": 3}, "subsamples=3"),
        ({"threshold": 0.5}, "threshold=0.5"),
        ({"points": 1}, "points=1"),
    ):
        with fails(words):
            StabilityOptions(**bad)


def test_a_path_that_begins_too_late():
    found = select_stable_features(
        config("algo=centralized"), StabilityOptions(subsamples=4, points=3, range=[1e-3, 1e-2]), "out"
    )
    assert found.scores.region_length == 1
    assert any("too many for errors=1" in line for line in found.warnings)
    assert "more than errors=1" in "\n".join(describe_stability(found))


def test_features_without_penalty_are_not_chosen():
    found = select_stable_features(
        config("algo=centralized", "reg.factors={x7:0}"), StabilityOptions(subsamples=4, points=3), "out"
    )
    kept, frame = json.loads(Path("out/stability.json").read_text()), pd.read_csv("out/stability.csv")
    assert (kept["features"], kept["unpenalised"]) == (9, ["x7"])
    assert "x7" not in kept["stable"]
    assert frame["frequency"].isna().tolist() == [False] * 9 + [True]
    assert found.scores.q[0] < 1  # where the path begins only x7 has a coefficient
    assert "not penalised (reg.factors), so neither chosen nor counted: x7" in "\n".join(describe_stability(found))
    chosen = np.ones((2, 1, 4), bool)
    by_hand = score_features(chosen, 0.75, 9.0, np.array([True, False, False, False]))
    assert (by_hand.q[0], by_hand.bound[0], by_hand.stable.tolist()) == (3, 6, [False, True, True, True])
