"""The picture of splined columns: differences of the linear predictor in a column's own units."""

import numpy as np
import pandas as pd
import pytest
from figure_checks import draw_checked_picture

import fcorun
from fcorun.base.records.record import Record
from fcorun.data.tables.encoding import read_encoding
from fcorun.reports.page.models import draw_model_pictures
from fcorun.reports.pictures.coefficient_picture import ModelView
from fcorun.reports.pictures.spline_picture import PICTURE, collect_effects
from fcorun.results.models.coefficients import load_coefficients

pytestmark = pytest.mark.filterwarnings("ignore::fcorun.ExperimentWarning")  # two rounds are few


def run_on_splines(folder, task="binary") -> Record:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(60, 12, 80), "dose": rng.normal(5, 1, 80), "bmi": rng.normal(27, 4, 80)})
    frame["ill"] = (abs(frame.age - 60) > 10).astype(int) + (frame.bmi > 29) * (task == "multiclass")
    splines = {"age": 4, "bmi": 3}
    data = fcorun.from_frame(frame, target="ill", task=task, validation=0.0, splines=splines, standardize="pooled")
    fcorun.Experiment(data=data, algorithm=fcorun.FedDualAvg(), rounds=2).run(folder)
    return Record(folder)


def test_effects_are_differences_of_the_linear_predictor(tmp_path):
    record = run_on_splines(tmp_path / "run")
    view = ModelView(load_coefficients(record), "a run", 1e-4)
    age, bmi = collect_effects(view).effects
    row = pd.DataFrame({"age": [age.reference, age.numbers[7]], "dose": 5.0, "bmi": 27.0})
    low, high = read_encoding(str(record.folder)).apply(row) @ view.coefficients.original[0]
    np.testing.assert_allclose(age.differences[7], high - low)
    assert bmi.reference == bmi.knots[1]
    figure = draw_checked_picture(PICTURE, view)
    assert [ax.get_xlabel() for ax in figure.axes] == ["age", "bmi"]
    assert figure.axes[0].get_ylabel().startswith("log odds ratio of '1'")


def test_the_page_has_the_picture_with_a_line_for_each_class(tmp_path):
    record = run_on_splines(tmp_path / "run", "multiclass")
    (drawing,) = draw_model_pictures(record)
    assert "<svg" in drawing
    assert "Estimated effects of splined columns" in drawing
    assert all(f">{name}</text>" in drawing for name in "012")
