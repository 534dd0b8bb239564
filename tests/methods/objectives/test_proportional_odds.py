"""Proportional odds: R's polr on MASS::housing, and the option data.order."""

import html

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fcorun
from fcorun.base.errors import UserError
from fcorun.base.records.record import load_records
from fcorun.data.tasks import find_task
from fcorun.methods.objectives.proportional_odds import ProportionalOdds
from fcorun.reports.page.clinical import build_short_page

# the counts of Low, Medium and High satisfaction in MASS::housing, by type, influence and contact
HOUSING = {
    "Tower": [(21, 21, 28), (34, 22, 36), (10, 11, 36), (14, 19, 37), (17, 23, 40), (3, 5, 23)],
    "Apartment": [(61, 23, 17), (43, 35, 40), (26, 18, 54), (78, 46, 43), (48, 45, 86), (15, 25, 62)],
    "Atrium": [(13, 9, 10), (8, 8, 12), (6, 7, 9), (20, 23, 20), (10, 22, 24), (7, 10, 21)],
    "Terrace": [(18, 6, 7), (15, 13, 13), (7, 5, 11), (57, 23, 13), (31, 21, 13), (5, 6, 13)],
}
# polr(Sat ~ Infl + Type + Cont) with reltol=1e-16, whose references are High, Apartment and High
POLR = {
    "InflLow": -1.288819104615,
    "InflMedium": -0.722425366456,
    "TypeAtrium": 0.206163628080,
    "TypeTerrace": -0.518664659118,
    "TypeTower": 0.572350009411,
    "ContLow": -0.360284008907,
}
POLR_CUTS = [-1.572888253191, -0.386044850654]
ORDER = ["Low", "Medium", "High"]


def housing() -> tuple[pd.DataFrame, pd.Series]:
    """Return indicators of the factors, and the satisfaction, of the 1,681 rows."""
    rows = []
    for kind, cells in HOUSING.items():
        for number, counts in enumerate(cells):
            influence, contact = ORDER[number % 3], ("Low", "High")[number // 3]
            for satisfaction, count in zip(ORDER, counts, strict=True):
                rows += [(influence, kind, contact, satisfaction)] * count
    frame = pd.DataFrame(rows, columns=["Infl", "Type", "Cont", "satisfaction"])
    features = {name: np.zeros(len(frame)) for name in POLR}
    for name in POLR:
        features[name] = (frame[name[:4]] == name[4:]).to_numpy(float)
    return pd.DataFrame(features), frame["satisfaction"]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [fcorun.Centralized(tolerance=1e-12), fcorun.Newton()])
def test_coefficients_and_cut_points_are_those_of_polr(tmp_path, algorithm):
    features, satisfaction = housing()
    assert len(features) == 1681
    clients = np.arange(len(features)) % 3
    data = fcorun.from_arrays(
        features.to_numpy(),
        satisfaction.to_numpy(str),
        clients.astype(str),
        task="ordinal",
        order=ORDER,
        feature_names=list(POLR),
        validation=0.0,
    )
    experiment = fcorun.Experiment(
        algorithm=algorithm,
        data=data,
        objective=ProportionalOdds(),
        regularizer=fcorun.NoRegularizer(),
        rounds=20,
        precision="float64",
    )
    record = experiment.run(tmp_path)
    table = record.coefficients
    weights = table[table["parameter"] == "weights"].set_index("feature")["value"]
    np.testing.assert_allclose(weights[list(POLR)], list(POLR.values()), atol=1e-6)
    cuts = table[table["parameter"] == "bias"].set_index("class")["value"]
    np.testing.assert_allclose(-cuts[["Medium", "High"]], POLR_CUTS, atol=1e-6)
    predictions = record.predict(features[:5])
    odds = np.exp(cuts["High"] + features[:5].to_numpy() @ weights.to_numpy())
    np.testing.assert_allclose(predictions["probability_High"], odds / (1 + odds), rtol=1e-9)


def test_the_loss_is_the_log_probability_of_the_class_and_infinite_for_cuts_out_of_order():
    prediction, y = jnp.array([[1.5, 0.2, -1.0]] * 4), jnp.arange(4)
    objective = ProportionalOdds()
    probabilities = np.asarray(objective.probabilities(prediction))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(objective.loss(prediction, y), -np.log(np.diag(probabilities)), rtol=1e-5)
    assert np.isinf(objective.loss(prediction[:, jnp.array([1, 0, 2])], y)).tolist() == [False, True, False, False]


def test_the_order_of_text_is_asked_for_and_that_of_numbers_is_their_own():
    x, clients = np.zeros((6, 1)), ["a", "b"] * 3
    labels = np.array(["mild", "none", "severe"] * 2)
    data = fcorun.from_arrays(x, labels, clients, task="ordinal", order=["none", "mild", "severe"]).load()
    assert data.classes == ("none", "mild", "severe")
    assert fcorun.from_arrays(x, [2, 0, 1] * 2, clients, task="ordinal").load().classes == (0, 1, 2)
    with pytest.raises(fcorun.UserError, match=r"their order; give `?data.order=\[mild,none,severe\]"):
        fcorun.from_arrays(x, labels, clients, task="ordinal").load()
    with pytest.raises(fcorun.UserError, match=r"data.order=\[none,mild\] does not name each label"):
        fcorun.from_arrays(x, labels, clients, task="ordinal", order=["none", "mild"]).load()
    with pytest.raises(fcorun.UserError, match=r"is an order of classes, and the task is .*binary"):
        fcorun.Table("rows.csv", target="y", task="binary", order=["no", "yes"])
    with pytest.raises(fcorun.UserError, match="nobody has examined what a site would tell"):
        fcorun.Sites(target="y", task="ordinal", classes=["none", "mild", "severe"])
    with pytest.raises(fcorun.UserError, match=r"two classes \(no, yes\)"):
        find_task("ordinal").encode_targets(np.array(["no", "yes"]), "target y")


@pytest.mark.parametrize(
    ("clients", "algorithm", "message"),
    [
        ([0] * 5 + [1], fcorun.Newton(), "class '1' has no training row that counts"),
        ([0, 0, 0, 1, 1, 1], fcorun.Local(client_lr=0.1), "client '1' has no training row of class '1'"),
        ([0, 0, 0, 1, 1, 1], fcorun.MetaAnalysis(ridge=0.1), "client '1' has no training row of class '1'"),
    ],
)
def test_a_class_without_training_rows_is_refused(tmp_path, clients, algorithm, message):
    frame = pd.DataFrame({"x": [0.0, 1, 2, 3, 4, 5], "y": [0, 1, 2, 0, 2, 2], "client": clients})
    weight = [1.0, 0.0, 1, 1, 1, 1] if len(set(clients[:5])) == 1 else [1.0] * 6
    data = fcorun.from_frame(
        frame.assign(w=weight), target="y", client="client", task="ordinal", weight="w", validation=0.0
    )
    with pytest.raises(UserError, match=message):
        fcorun.Experiment(data=data, algorithm=algorithm, regularizer=fcorun.NoRegularizer()).run(tmp_path / "run")


def test_fits_of_single_clients_need_no_ridge_and_an_offset_has_a_true_refusal(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(200)
    y = np.digitize(x + rng.logistic(size=200), [-1, 1])
    frame = pd.DataFrame({"x": x, "y": y, "client": np.arange(200) % 2})
    data = fcorun.from_frame(frame, target="y", client="client", task="ordinal", validation=0.0)
    experiment = fcorun.Experiment(data=data, algorithm=fcorun.MetaAnalysis(), regularizer=fcorun.NoRegularizer())
    with pytest.warns(fcorun.ExperimentWarning, match="2 clients hardly tell whether they differ"):
        record = experiment.run(tmp_path / "run")
    assert 0.5 < record.coefficients.iloc[0, -1] < 1.5
    with_offset = fcorun.from_frame(frame.assign(t=1.0), target="y", client="client", task="ordinal", offset="t")
    with pytest.raises(UserError, match="none, or predicts one number for each class or cut"):
        fcorun.Experiment(data=with_offset, algorithm=fcorun.Newton()).run(tmp_path / "offset")


@pytest.mark.slow
def test_the_page_of_ordered_classes_has_odds_ratios_and_cuts(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(300)
    y = np.array(["none", "mild", "severe"])[np.digitize(x + rng.logistic(size=300), [-1, 1])]
    frame = pd.DataFrame({"x": x, "y": y, "client": np.arange(300) % 2})
    order = ["none", "mild", "severe"]
    data = fcorun.from_frame(frame, target="y", client="client", task="ordinal", order=order, validation=0.0, test=0.3)
    experiment = fcorun.Experiment(data=data, algorithm=fcorun.Newton(), regularizer=fcorun.NoRegularizer(), rounds=6)
    record = experiment.run(tmp_path / "run")
    page = html.unescape(build_short_page([record.folder], load_records(record.folder)))
    assert "odds ratio per unit" in page
    assert f"{np.exp(record.coefficients.iloc[0, -1]):.3g}<" in page
    assert "a higher class of “y” (none < mild < severe) is more likely where the feature is larger" in page
    assert "intercept (log odds of severe or a higher class)" in page
    assert ">accuracy<" in page
