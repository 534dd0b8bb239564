"""The forest plot: readable for one feature and for hundreds, for coefficients and for ratios."""

import numpy as np
import pytest
from figure_checks import draw_checked

from fcorun.reports.pictures.forest import MAX_ROWS, draw_forest, format_interval
from fcorun.results.models.inference_table import InferenceTable


def table(n_features, ratio_name="", names=None, scale=1.0) -> InferenceTable:
    rng = np.random.default_rng(0)
    estimate = scale * rng.standard_normal(n_features)
    error = 0.2 * scale * np.ones(n_features)
    p_value = np.exp(-np.abs(estimate) / error)
    return InferenceTable(
        features=names or tuple(f"x{j}" for j in range(n_features)),
        estimate=10 * estimate,
        standard_error=10 * error,
        low=10 * (estimate - error),
        high=10 * (estimate + error),
        p_value=p_value,
        p_holm=np.minimum(n_features * p_value, 1),
        estimate_standardized=estimate,
        low_standardized=estimate - error,
        high_standardized=estimate + error,
        penalized=estimate,
        missing_information=np.full(n_features, np.nan),
        n=np.full(n_features, np.nan),
        events=np.full(n_features, np.nan),
        has_two_values=np.zeros(n_features, bool),
        method=("debiased lasso",) * n_features,
        ratio_name=ratio_name,
        outcome="yes" if ratio_name else "",
        level=0.95,
        title="debiased lasso, 95 % intervals",
    )


def texts(figure) -> list[str]:
    (ax,) = figure.axes
    return [text.get_text() for text in (*figure.texts, *ax.texts, *ax.get_yticklabels(), ax.xaxis.label)]


@pytest.mark.slow
def test_all_features_of_few_and_the_smallest_p_values_of_many_are_drawn():
    few = draw_checked(draw_forest, table(3))
    assert {"x0", "x1", "x2"} <= set(texts(few))
    many = table(200)
    figure = draw_checked(draw_forest, many)
    smallest = [f"x{j}" for j in np.argsort(many.p_value)[:MAX_ROWS]]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == smallest
    assert f"the {MAX_ROWS} smallest p values of 200 features" in figure.get_suptitle()


@pytest.mark.slow
def test_ratios_are_on_a_logarithmic_axis_around_1():
    figure = draw_checked(draw_forest, table(4, "odds ratio"))
    (ax,) = figure.axes
    assert ax.get_xscale() == "log"
    assert "odds ratio of 'yes' per standard deviation of the feature" in texts(figure)
    assert 1.0 in ax.get_xticks()


@pytest.mark.slow
def test_features_with_two_values_are_drawn_per_unit():
    treated = table(3, "odds ratio")
    treated.has_two_values[1] = True
    treated.estimate[1], treated.low[1], treated.high[1] = 0.5, 0.25, 0.75
    figure = draw_checked(draw_forest, treated)
    drawn = [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_marker() == "s"]
    np.testing.assert_allclose(drawn, np.exp([treated.estimate_standardized[0], 0.5, treated.estimate_standardized[2]]))
    assert "odds ratio of 'yes' per SD, or per unit of two values" in texts(figure)
    assert texts(figure).count("1.65 (1.28 to 2.12)") == 1
    treated.has_two_values[:] = True
    assert "odds ratio of 'yes' per unit" in texts(draw_checked(draw_forest, treated))


@pytest.mark.slow
def test_long_names_and_formulas_are_names():
    names = ("$age_i$", "W" * 60, "systolic blood pressure at admission, mmHg")
    numbers = table(3, names=names)
    numbers.estimate[0], numbers.low[0], numbers.high[0] = -1234567, -2234567, 1333333  # a wide column
    for style in ("paper", "slides"):
        figure = draw_checked(draw_forest, numbers, style=style)
        assert "$age_i$" in texts(figure)
        assert "-1.23e+06 (-2.23e+06 to 1.33e+06)".replace("-", "\N{MINUS SIGN}") in texts(figure)
        shown = [text for text in texts(figure) if "…" in text]
        assert [text[:8] for text in shown] == ["W" * 8, "systolic"]
        assert shown[1].endswith(" mmHg")


@pytest.mark.slow
def test_an_interval_beyond_the_axis_ends_in_an_arrow():
    wide = table(6)
    wide.high_standardized[2] = 1e6
    figure = draw_checked(draw_forest, wide)
    (ax,) = figure.axes
    assert ax.get_xlim()[1] < 100
    assert any(line.get_marker() == ">" for line in ax.lines)


def test_numbers_tell_on_which_side_of_no_effect_an_interval_ends():
    close = table(1)
    close.estimate_standardized[0], close.low_standardized[0], close.high_standardized[0] = 0.1, 0.004, 0.196
    assert "0.100 (0.004 to 0.196)" in texts(draw_checked(draw_forest, close))
    assert format_interval(0.3, 12, 500, 1.0) == "12.0 (0.3 to 500.0)"  # a ratio is never 0
    assert format_interval(*np.exp([1.637e-5, 2.048e-5, 2.459e-5]), 1.0) == "1.0000205 (1.0000164 to 1.0000246)"
    assert format_interval(5e-7, 1e-6, 2e-6, 1.0) == "1e\N{MINUS SIGN}06 (5e\N{MINUS SIGN}07 to 2e\N{MINUS SIGN}06)"
    assert format_interval(-0.5, -0.001, 0.6, 0.0) == "0.0 (\N{MINUS SIGN}0.5 to 0.6)"
