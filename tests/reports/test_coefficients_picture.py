"""The picture of coefficients: readable from none to five thousand, of one output, of classes, of a matrix."""

import numpy as np
import pytest
from figure_checks import draw_checked_picture

from fcorun.data.tables.scaling import Scaling
from fcorun.reports.pictures.coefficient_picture import PICTURE, ModelView
from fcorun.results.models.coefficients import Coefficients


def model(features, away, classes=("",), shape=(), names=None, scaled=False) -> Coefficients:
    """Return coefficients of which ``away`` of each class are not 0."""
    rng, weights = np.random.default_rng(0), np.zeros((features, len(classes)))
    for k in range(len(classes)):
        weights[rng.choice(features, away, replace=False), k] = rng.standard_normal(away) + 0.1
    scaling = Scaling(np.zeros(features), np.ones(features), np.ones(features)) if scaled else None
    feature_names = names or tuple(f"x{j}" for j in range(features))
    return Coefficients(feature_names, classes, weights, np.ones(len(classes)), scaling, True, shape)


def texts(figure) -> str:
    """Return all text of a figure."""
    marks = [ax.get_title(loc="left") + ax.get_xlabel() for ax in figure.axes]
    return " ".join([*(text.get_text() for text in figure.texts), *marks])


def labels(ax) -> list[str]:
    return [text.get_text() for text in ax.get_yticklabels()]


@pytest.mark.slow
@pytest.mark.parametrize(("features", "away"), [(5, 4), (60, 30), (1024, 31), (5000, 3000)])
def test_few_are_named_and_many_are_drawn(features, away):
    coefficients = model(features, away)
    figure = draw_checked_picture(PICTURE, ModelView(coefficients, "algo=x data=y", 1e-4))
    lines, sizes = texts(figure), np.abs(coefficients.weights[:, 0])
    assert f"in {away:,} of {features:,} coefficients" in lines
    assert "per unit of the feature" in lines
    bars = away if away <= 30 else 20
    assert len(figure.axes) == (1 if away <= 30 else 2)
    largest = [f"x{j}" for j in np.argsort(-sizes)[:bars]]
    assert labels(figure.axes[0])[:bars] == largest


@pytest.mark.slow
def test_nothing_and_long_names():
    assert "0 of 4" in texts(draw_checked_picture(PICTURE, ModelView(model(4, 0), "run", 1e-4)))
    names = ("systolic blood pressure at admission, mmHg", "$age_i$", "a", "b")
    figure = draw_checked_picture(
        PICTURE, ModelView(model(4, 4, names=names, scaled=True), "a label that goes on " * 6, 1e-4)
    )
    assert "per standard deviation" in texts(figure)
    assert "$age_i$" in labels(figure.axes[0])  # a name, no formula
    assert any("…" in label and label.endswith("mmHg") for label in labels(figure.axes[0]))


@pytest.mark.slow
def test_a_panel_a_class():
    figure = draw_checked_picture(PICTURE, ModelView(model(40, 12, ("a", "b", "c")), "run", 1e-4))
    assert len(figure.axes) == 3
    assert "a: 8 of 12" in texts(figure)
    many = draw_checked_picture(PICTURE, ModelView(model(40, 12, tuple(map(str, range(62)))), "run", 1e-4))
    assert len(many.axes) == 9
    assert "the first 9 of 62 classes" in texts(many).replace("\n", " ")


def test_the_second_class_is_spoken_for():
    assert "w > 0 speaks for the class 'ill'" in texts(
        draw_checked_picture(PICTURE, ModelView(model(4, 3, ("ill",)), "run", 1e-4))
    ).replace("\n", " ")


@pytest.mark.slow
def test_a_matrix_is_a_map():
    figure = draw_checked_picture(PICTURE, ModelView(model(32 * 16, 200, shape=(32, 16)), "run", 1e-4))
    sizes = figure.axes[1].lines[0].get_ydata()
    assert len(sizes) == 16
    matrix = model(32 * 16, 200, shape=(32, 16)).weights[:, 0].reshape(32, 16)
    assert sizes[0] == pytest.approx(np.linalg.norm(matrix, 2))


def test_the_name_of_a_class_is_no_formula():
    figure = draw_checked_picture(PICTURE, ModelView(model(4, 3, ("$a_$",), (2, 2)), "run", 1e-4))
    assert figure.axes[0].get_title() == "$a_$"
