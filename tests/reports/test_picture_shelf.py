"""Properties of every picture of the shelf: where it applies, what it draws, and that no text sticks out."""

import importlib
import pickle
import pkgutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_records import fake_config, fake_grid, fake_record, fake_rows
from figure_checks import draw_checked_picture
from helpers import not_none

import fcorun.reports.pictures
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.images import VoxelGrid
from fcorun.data.rows.rows import Rows
from fcorun.data.tables.columns.spline import SplineColumn
from fcorun.methods.objectives import Logistic
from fcorun.reports.build_table import build_table
from fcorun.reports.pictures.client_spread import ClientView
from fcorun.reports.pictures.coefficient_picture import ModelView
from fcorun.reports.pictures.curve_groups import CurveView
from fcorun.reports.pictures.picture import Picture, find_pictures, render_pictures
from fcorun.reports.pictures.problem_view import ProblemView, curve_styles_of
from fcorun.reports.pictures.run_curves import RunView
from fcorun.reports.pictures.selection_picture import NestedView, SelectionView
from fcorun.reports.pictures.survival_calibration_picture import SurvivalView
from fcorun.results.models.coefficients import Coefficients
from fcorun.results.models.meta_analysis import ClientEstimates, MetaAnalysisTable, build_meta_table
from fcorun.results.models.predictions import Predictions, tabulate_scores
from fcorun.results.models.score_curves import compute_curves
from fcorun.results.score_intervals.held_out_rows import HeldOutRows
from fcorun.results.survival import calibrate


def view_of(records) -> ProblemView:
    table = build_table(records)
    return ProblemView(table, records, "support_f1", curve_styles_of(table))


def model_of(voxels: bool) -> ModelView:
    grid = VoxelGrid(np.ones((4, 4, 3), bool), np.diag([3.0, 3, 3, 1])) if voxels else None
    weights = np.random.default_rng(0).standard_normal((48, 1))
    names = tuple(f"x{j}" for j in range(48))
    columns = (SplineColumn("x0", n_knots=4, knots=(0.0, 1.0, 2.0, 4.0)),) if voxels else ()
    return ModelView(Coefficients(names, ("",), weights, np.ones(1), grid=grid, columns=columns), "a run", 1e-4)


def held_out_curves(n: int) -> CurveView:
    rng = np.random.default_rng(1)
    output = rng.standard_normal(n)
    y = (rng.random(n) < 1 / (1 + np.exp(-output))).astype(int)
    y[:2] = 0, 1
    data = FederatedData(train=Rows(np.zeros((2, 1)), y[:2], np.zeros(2, int)), task="binary", classes=("fit", "ill"))
    predictions = Predictions(
        objective=Logistic(), data=data, split="test", model="shared", clients=np.resize(["a", "b"], n), y=y,
        output=output, threshold=0.3,
    )  # fmt: skip
    return CurveView(not_none(compute_curves([predictions], tabulate_scores([predictions]))), "a run")


def calibrated_risks() -> SurvivalView:
    times = np.random.default_rng(2).exponential(2, 80)
    rows = HeldOutRows(
        folder=Path(), split="test", model="shared", task="survival", client=np.repeat(["a", "b"], 40),
        row=np.arange(80), group=None, target=times, prediction=np.zeros(80),
    )  # fmt: skip
    return SurvivalView(calibrate(rows, np.linspace(0, 1, 80), 1), "a run")


def combined_estimates(is_known: bool = True) -> MetaAnalysisTable:
    rng = np.random.default_rng(3)
    errors = rng.uniform(0.1, 0.4, (4, 4))
    if not is_known:
        errors = np.full((4, 4), np.nan)
    clients = ClientEstimates(
        names=("age", "dose", "ward=icu", "(intercept)"), clients=("a", "b", "c", "d"),
        estimates=rng.normal(0.3, 0.2, (4, 4)), standard_errors=errors, deviation=np.ones(4), effects="random",
        ridge=0.0, n_rows=400, client_rows=np.full(4, 100.0),
    )  # fmt: skip
    names = ("age", "dose", "ward=icu")
    return build_meta_table(
        clients, Coefficients(names, ("ill",), np.zeros((3, 1)), np.zeros(1), ratio_name="odds ratio")
    )


def clients_of(*names: str) -> dict[str, np.ndarray]:
    """Return values of twelve clients at five evaluations, one of which has no rows."""
    values = np.random.default_rng(4).uniform(0.2, 0.9, (5, 12))
    values[:, 3] = np.nan
    return dict.fromkeys(names, values)


def chosen_strength() -> SelectionView:
    weights = np.linspace(0, 1, 6)[:, None, None] * np.array([[1.0], [0.4], [0.0], [-0.7]])
    path = Coefficients(("age", "dose", "ward", "site"), ("",), weights, np.ones((6, 1)))
    return SelectionView(
        title="a choice", param_name="strength", values=np.geomspace(1, 0.01, 6), length=6, second_name="",
        second_values=None, metric="held-out loss", n_folds=5, mean=np.array([0.7, 0.6, 0.5, 0.45, 0.44, 0.46]),
        error=np.full(6, 0.02), paired=False, higher_is_better=False, best_index=4, one_se_index=3, chosen_index=4,
        nested=NestedView(0.47, 0.02, np.array([3, 4, 4])), coefficients=path, cutoff=1e-4,
    )  # fmt: skip


SUBJECTS = {
    ProblemView: lambda: view_of(fake_grid("s", seeds=(0,))),
    RunView: lambda: RunView(fake_rows(), "a run", 1e-4),
    ModelView: lambda: model_of(voxels=True),
    CurveView: lambda: held_out_curves(300),
    SelectionView: chosen_strength,
    SurvivalView: calibrated_risks,
    MetaAnalysisTable: combined_estimates,
    ClientView: lambda: ClientView(range(5), clients_of("train_loss", "val_loss", "val_accuracy"), "a run"),
}
# subjects to which some pictures do not apply, with the names of those that do
LACKING = {
    "one run": (lambda: view_of([fake_record("one", fake_config())]), {"best", "structure"}),
    "failed": (lambda: view_of([fake_record("f", status="failed")]), set()),
    "no voxels": (lambda: model_of(voxels=False), {"coefficients"}),
    "no estimates": (lambda: combined_estimates(is_known=False), set()),
    "few rows": (lambda: held_out_curves(20), {"roc", "decision"}),
}
SHELF = [picture for subject in SUBJECTS for picture in find_pictures(subject)]


def test_every_file_of_the_shelf_is_found():
    declared = set()
    for module in pkgutil.iter_modules(fcorun.reports.pictures.__path__):
        picture = getattr(importlib.import_module(f"fcorun.reports.pictures.{module.name}"), "PICTURE", None)
        if picture is not None:
            declared.add((picture.subject, picture.name))
    assert declared == {(picture.subject, picture.name) for picture in SHELF}
    assert len(declared) == len(SHELF)


@pytest.mark.parametrize("picture", SHELF, ids=lambda picture: f"{picture.subject.__name__}-{picture.name}")
def test_a_picture_draws_what_it_applies_to(picture: Picture):
    """Texts are inside the figure and do not overlap, and axes that are drawn have names."""
    subject = SUBJECTS[picture.subject]()
    figure = draw_checked_picture(picture, subject)
    assert any(ax.has_data() for ax in figure.axes)
    for ax in figure.axes:
        is_panel = ax.get_subplotspec() is not None and ax.axison and ax.has_data()
        if is_panel and not (ax.images or ax.get_title()):
            assert ax.get_xlabel() or ax.get_ylabel()
    svg = picture.render(subject, ["svg"])["svg"]
    assert svg == picture.render(subject, ["png", "svg"])["svg"]  # the same each time
    assert b"<text" in svg


@pytest.mark.parametrize("kind", LACKING)
def test_nothing_is_drawn_of_what_a_picture_does_not_apply_to(kind):
    make_subject, names = LACKING[kind]
    assert {name.removesuffix(".png") for name in render_pictures(make_subject())} == names


def test_a_picture_is_found_by_other_processes():
    for module in pkgutil.iter_modules(fcorun.reports.pictures.__path__, "fcorun.reports.pictures."):
        picture = getattr(importlib.import_module(module.name), "PICTURE", None)
        assert picture is None or pickle.loads(pickle.dumps(picture)) is picture


def test_drawing_processes_import_no_jax():
    """To import JAX takes as long as to draw."""
    program = """
import importlib, sys
from fcorun.reports.pictures import drawing_processes
for module in drawing_processes._PRELOADED:
    importlib.import_module(module)
print("jax" in sys.modules, "fcorun.reports.pictures.roc" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.slow
def test_drawing_processes_draw_the_same_and_raise_the_same(tmp_path):
    """A process of its own draws, as a command is one."""
    program = """
from fcorun.reports.pictures import drawing_processes
from fcorun.reports.pictures.picture import render_pictures
from fcorun.reports.pictures.run_curves import RunView
from fcorun.reports.pictures.selection_picture import NestedView, SelectionView

rows = [{"round": r, "seconds": 0.0, "objective": 1.0 / (r + 1)} for r in range(5)]
view = RunView(rows, "a run", 1e-4)
if __name__ == "__main__":
    here = render_pictures(view)
    drawing_processes.start_drawing_processes()
    assert render_pictures(view) == here != {}
    try:
        drawing_processes.draw_later(int, "text")()
    except ValueError:
        print("equal")
"""
    path = tmp_path / "program.py"
    path.write_text(program)
    ended = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=600, check=False)
    assert (ended.returncode, ended.stdout) == (0, "equal\n"), ended.stderr
