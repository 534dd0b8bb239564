"""Runs that chose their strengths by study.strength: objectives at different strengths are never compared."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from fake_records import fake_config, fake_record, fake_rows

from fcorun import UserError, load_records
from fcorun.base.config import Settings
from fcorun.reports.build_table import build_table
from fcorun.reports.pictures.best_curves import collect_curves
from fcorun.reports.pictures.problem_view import ProblemView, curve_styles_of
from fcorun.runs.sweep import choose_search_metric
from fcorun.studies.figures.claims import check_claims, collect_measurements
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.reproduce import check_drawn_functions
from fcorun.studies.figures.spec import Claim, Figure

STRENGTHS = {"feddualavg": (0.08, 0.02), "fedmid": (0.01, 0.03)}
STUDY = {"strength": "cv", "folds": 2, "points": 12}
KINDS = ("final", "best", "tail")


@pytest.fixture
def records():
    """Two methods on two data sets each; fedmid has the lower objective, at the lower strengths."""
    for algo, strengths in STRENGTHS.items():
        for seed, strength in enumerate(strengths):
            settings = fake_config(algo, data__seed=seed, reg__strength=strength) | {"study": STUDY}
            record = fake_record(f"s/{algo}-{seed}", settings, fake_rows(100 * strength, val_loss=1.0))
            file = record.folder / "summary.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | {"selection": {"strength": strength}}))
    return load_records("s")


def view_of(records, **more):
    runs = build_table(records)
    return ProblemView(runs, records, "val_loss", curve_styles_of(runs), **more)


def test_no_picture_draws_objectives_at_chosen_strengths_unless_it_says_so(records):
    content = collect_curves(view_of(records))
    assert content is not None
    assert "train_loss" in content.metrics
    assert "objective" not in content.metrics
    asked = collect_curves(view_of(records, panels=["objective", "val_loss"]))
    assert asked is not None
    assert [note for note in asked.notes if "objective" in note] == [
        "objective: another function for each chosen_strength"
    ]
    alone = collect_curves(view_of(records[:1]))
    assert alone is not None
    assert "objective" in alone.metrics  # one run at one strength


def test_a_figure_that_draws_the_objective_is_refused_before_it_runs():
    studied = [Settings(study=STUDY)]
    for figure in (Figure("t", panels=["objective"]), Figure("t", draw="graph_race")):
        with pytest.raises(UserError, match="another function at each strength, and study"):
            check_drawn_functions(figure, studied)
        check_drawn_functions(figure, [Settings()])
    check_drawn_functions(Figure("t", panels=["val_loss"]), studied)


def test_a_claim_about_objectives_at_chosen_strengths_is_not_decided(records):
    runs = build_table(records)
    claims = [Claim("Good", "fedmid", metric, below=["feddualavg"]) for metric in ("objective", "train_loss")]
    inputs = FigureInputs(Figure("t", claims=claims), "val_loss", runs, records, runs, records)
    of_objective, of_loss = check_claims("t", inputs.figure, collect_measurements(inputs))
    assert of_objective["holds"] == "not comparable"
    assert "another function for each chosen_strength" in of_objective["note"]
    assert of_loss["holds"] != "not comparable"


def test_points_that_tie_are_not_told_apart_by_objectives_at_chosen_strengths():
    for rate, strength in ((0.1, 0.5), (0.2, 0.1)):
        settings = fake_config(algo__client_lr=rate) | {"study": STUDY}
        record = fake_record(f"s/{rate}", settings, fake_rows(strength, val_loss=1.0))
        file = record.folder / "summary.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"selection": {"strength": strength}}))
    runs = build_table(load_records("s"))
    assert runs.best_points("val_loss")["algo.client_lr"].tolist() == [0.1]  # the first of the table


def test_a_search_without_a_metric_compares_no_objectives_at_chosen_strengths(records):
    for record in records:
        (record.folder / "summary.json").write_text(
            json.dumps(record.summary | {kind: {"objective": record.summary[kind]["objective"]} for kind in KINDS})
        )
    points: Any = [SimpleNamespace(folder=record.folder) for record in records]
    with pytest.raises(UserError, match="no metric by which these runs are ranked compares the values of algo"):
        choose_search_metric(points, ["algo.client_lr"])
