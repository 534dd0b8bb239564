"""fcorun select: what it leaves behind, and what it says."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from figure_checks import check_pdf
from four_clients import NAMES, SCORE, config, table
from helpers import fails, not_none
from run_studies import select

from fcorun import Record, load_records, run
from fcorun.base.records.record import SHARED
from fcorun.base.records.tables import METRICS
from fcorun.data.datasets.table import Table
from fcorun.experiment.build import load_data
from fcorun.experiment.optimality_gap import OptimalityGap
from fcorun.experiment.prepare import prepare
from fcorun.interface.cli.commands import main
from fcorun.reports.pictures.layout import STYLES, style_context
from fcorun.reports.pictures.selection_picture import PICTURE
from fcorun.studies.selection.choice import choose, drop_failed_refits, warn_about_choice
from fcorun.studies.selection.fitting import END_STATES, PathFit, join_folds
from fcorun.studies.selection.path import RegularizationPath
from fcorun.studies.selection.select import plan_selection, warn_unfinished_refit
from fcorun.studies.selection.selection_result import SelectOptions


@pytest.mark.slow
@pytest.mark.drawn
def test_files_of_a_selection(monkeypatch):
    settings = config("algo=fedmid", "rounds=30", "data.standardize=pooled")
    lines = []
    selection = select(settings, SelectOptions(folds=3, points=5), "out", log=lines.append)
    files = {
        "selection.csv",
        "curve.csv",
        "path.csv",
        "predictions.csv",
        "scores.csv",
        "selection.png",
        "selection.json",
        "fits",
        "refit",
    }
    assert {path.name for path in Path("out").iterdir()} == files
    assert len(pd.read_csv("out/selection.csv")) == 4 * 5
    path: Any = pd.read_csv("out/path.csv")
    assert set(path["feature"].dropna()) <= set(NAMES)
    assert list(path["parameter"].tail(1)) == ["bias"]
    curve: Any = pd.read_csv("out/curve.csv")
    assert curve["chosen"].sum() == 1
    assert curve["nonzeros"].iloc[0] == 0
    summary = json.loads(Path("out/selection.json").read_text())
    assert (summary["status"], summary["cost"]["runs"]) == ("done", 20)
    # the seconds of the refit are included
    assert summary["seconds"] > not_none(selection.record).summary["seconds"]["steady"]
    assert summary["cost"]["rounds"] == 20 * 30
    assert summary["rows"] == {"training": 60, "validation": 0, "test": 0}
    # the refit equals an ordinary run
    value = float(selection.path.values[selection.choice.chosen_index])
    assert summary["chosen"] == value
    ordinary = run(settings | {"reg": settings["reg"] | {"strength": value}}, "ordinary")
    assert not_none(selection.record).status["identity"] == ordinary.status["identity"]
    assert summary["cost"]["bytes_up"] == 20 * METRICS.read_rows(Path("ordinary"))[-1]["bytes_up"]

    # the same command with another rule computes nothing, and takes another strength
    monkeypatch.setattr("fcorun.studies.selection.fitting.PathFitter.fit", lambda *_: pytest.fail("computed again"))
    again = select(settings | {"style": "slides", "pdf": True}, SelectOptions(folds=3, points=5, rule="one_se"), "out")
    assert check_pdf("out/selection.pdf") == pytest.approx(STYLES["slides"].page_width, rel=0.02)
    assert again.choice.mean.tolist() == selection.choice.mean.tolist()
    assert again.choice.chosen_index == again.choice.one_se_index
    with fails("out=out", "another study"):
        select(settings, SelectOptions(folds=3, points=6), "out")


@pytest.mark.slow
def test_models_of_the_path_equal_single_runs():
    """The strength of the total variation follows the other one along the path, as it does where that is given."""
    given_reg = ("algo=centralized", "reg=fused_lasso", "data.standardize=pooled")
    selection = select(config(*given_reg), SelectOptions(folds=2, points=2), "out")
    zero, weights = selection.fits["all"].solution["weights"]
    assert not zero.any(), "the path begins where 0 is the solution"
    single = run(config(*given_reg, f"reg.strength={selection.path.values[1]}"), "alone")
    np.testing.assert_allclose(weights, single.solution["weights"], atol=1e-4)
    assert weights.any()


@pytest.mark.slow
def test_an_interrupted_selection_goes_on():
    settings, options = config("algo=fedmid", "rounds=4"), SelectOptions(folds=2, points=2)
    whole = select(settings, options, "whole")

    def interrupt(line):
        if line.startswith("2 of 3"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        select(settings, options, "broken", log=interrupt)
    assert not Path("broken/refit").exists()
    lines = []
    selection = select(settings, options, "broken", log=lines.append)
    assert any("fits exist: reused" in line for line in lines)
    assert Path("broken/selection.csv").read_text() == Path("whole/selection.csv").read_text()
    assert selection.choice.chosen_index == whole.choice.chosen_index


@pytest.mark.slow
def test_radii_grow():
    selection = select(config("algo=centralized", "reg=l1_ball"), SelectOptions(folds=2, points=4), "out")
    assert selection.path.param_name == "radius"
    assert (np.diff(selection.path.values) > 0).all()
    assert "without constraint" in selection.path.range_description
    data = load_data(prepare(config("algo=centralized", "reg=l1_ball")))
    free = np.linalg.lstsq(np.c_[data.train.x, np.ones(60)], data.train.y)[0][:-1]
    assert selection.path.values[-1] == pytest.approx(np.abs(free).sum(), rel=0.01)
    sizes = np.abs(selection.fits["all"].solution["weights"]).sum(axis=1)
    np.testing.assert_allclose(sizes[:-1], selection.path.values[:-1], rtol=1e-4)


def test_values_whose_fits_diverged_are_named():
    diverged = END_STATES.index("diverged")
    fits = {
        "all": PathFit({}, {}, np.array([0, 0, 0, diverged]), {}),
        "fold1": PathFit({}, {}, np.array([0, 0, diverged, diverged]), {}),
    }
    path = RegularizationPath("strength", np.array([1, 0.1, 0.01, 0.001]))
    scores = np.array([[3.0, 1.2, np.nan, np.nan], [3.0, 1.4, 1.0, np.nan]])
    choice = choose(scores, "min", higher_is_better=False)
    text = " ".join(warn_about_choice(choice, path, fits, rounds=8))
    assert "diverged: 3 of 8 fits, at strength=0.01, 0.001: values at which a fold diverged cannot be chosen" in text
    assert "the minimum is at the last strength of the path that is left: the best may be beyond" in text
    inside = choose(np.array([[1.0, 1.2, np.nan, 3.0]] * 2), "min", higher_is_better=False)
    assert "the best may be beyond" not in " ".join(warn_about_choice(inside, path, fits, rounds=8))
    left = drop_failed_refits(np.ones((2, 4)), fits, "all")  # the refit has diverged
    np.testing.assert_array_equal(left, [[1, 1, 1, np.nan]] * 2)
    alone = choose(np.array([[np.nan, 1.2, np.nan, np.nan]] * 2), "min", higher_is_better=False)
    assert "tied" not in " ".join(warn_about_choice(alone, path, fits, rounds=8))


def test_outputs_that_are_not_finite_are_no_predictions():
    experiment = prepare(config())
    data = load_data(experiment)
    rows = {1: np.arange(30), 2: np.arange(30, 60)}
    outputs = [{SHARED: np.zeros(30)}, {SHARED: np.zeros(30)}]
    assert len(join_folds(experiment.objective, data, rows, outputs)) == 1
    outputs[1][SHARED][3] = np.nan
    assert join_folds(experiment.objective, data, rows, outputs) == []


@pytest.mark.slow
def test_warnings_of_a_selection():
    short = config("algo=fedmid", "rounds=20", "eval_every=1", "algo.client_lr=1e-3", "algo.server_lr=1")
    selection = select(short, SelectOptions(folds=2, points=3), "short")
    output = "\n".join(selection.describe())
    assert "the choice is of unfinished runs: " in output
    assert "of the refit, not finished: over the last 2 evaluations" in output
    assert selection.refit_warnings[0] in json.loads(Path("short/selection.json").read_text())["warnings"]
    text = " ".join(selection.warnings)
    assert "falling: " in text
    assert "the minimum is at the end of the path" in text
    wild = config("algo=fedmid", "rounds=300", "algo.client_lr=10", "algo.server_lr=1")
    with fails("diverged"):
        select(wild, SelectOptions(folds=2, points=3), "wild")
    noise = config("algo=centralized")
    selection = select(noise, SelectOptions(folds=3, points=3, range=[50, 100]), "noise")
    assert any("beginning of the path" in line for line in selection.warnings)


def test_a_refit_above_the_optimum_makes_the_choice_one_of_unfinished_runs():
    experiment = prepare(config("algo=fedmid"))
    data, certificate = load_data(experiment), {"kind": "gap", "value": 1.0, "above": 0.12, "left": 0.3, "sure": True}
    certificate |= {"certified": True, "near": False}
    (warning,) = warn_unfinished_refit(experiment, data, {"certificate": certificate})
    assert "the choice is of unfinished runs: " in warning
    gap = OptimalityGap(**certificate).describe(experiment, data)
    assert warning.endswith(f"of the refit, {gap}")
    assert "12 % above the optimum: " in gap
    assert warn_unfinished_refit(experiment, data, {"certificate": certificate | {"near": True}}) == []


def test_choice_equals_one_by_hand():
    choice = choose(np.array([[3.0, 1.2, 1.0, 2.0], [3.0, 1.2, 1.4, 2.0]]), "one_se", higher_is_better=False)
    assert (choice.best_index, choice.one_se_index, choice.chosen_index) == (
        1,
        1,
        1,
    )  # the simplest of those that are tied
    choice = choose(np.array([[3.0, 1.1, 0.8, 2.0], [3.0, 1.3, 1.4, np.nan]]), "min", higher_is_better=False)
    assert (choice.best_index, choice.one_se_index, choice.chosen_index) == (2, 1, 2)
    assert choice.standard_error[2] == pytest.approx(0.3)
    assert choose(np.array([[0.1, 0.9], [0.1, 0.9]]), "min", higher_is_better=True).best_index == 1
    # scores of clients differ in level: the standard error of the mean is large, that of the difference is small
    levels = np.array([[1.4, 1.0, 1.1], [9.5, 9.0, 9.2]])
    assert choose(levels, "one_se", higher_is_better=False).one_se_index == 0
    assert choose(levels, "one_se", higher_is_better=False, paired=True).one_se_index == 1
    weighted = choose(levels, "min", higher_is_better=False, fold_weights=np.array([3.0, 1.0]))
    assert weighted.mean[0] == pytest.approx(3.425)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["local", "ditto"])
def test_personal_models_are_scored_on_rows_of_their_client(algo):
    settings = config(f"algo={algo}", "rounds=10")
    if algo == "ditto":
        with fails("algo=ditto", "ignores the regularizer psi"):
            select(settings, SelectOptions(folds=2, points=3), "out")
        return
    selection = select(settings, SelectOptions(folds=2, points=3), "out")
    assert selection.metric == "personal_val_loss"
    assert Record(Path("out/refit")).status["status"] == "done"


@pytest.mark.slow
def test_metrics_are_given_without_val():
    settings = config("algo=fedmid", task="binary")
    assert plan_selection(settings | {"metric": "accuracy"}, SelectOptions(), "out").metric == "val_accuracy"
    with fails("metric=acuracy is not a choice", "'accuracy'? (valid: accuracy, ap, auc, brier, log_loss, loss)"):
        plan_selection(settings | {"metric": "acuracy"}, SelectOptions(), "out")
    with fails("metric=test_loss is refused"):
        plan_selection(settings | {"metric": "test_loss"}, SelectOptions(), "out")


@pytest.mark.slow
def test_a_path_may_begin_with_unpenalized_features():
    (text,) = plan_selection(config("algo=fedmid", "reg.factors={age:0}"), SelectOptions(), "out").messages
    assert "the smallest strength at which all penalized coefficients are 0" in text


def test_a_strength_per_client_is_refused():
    with fails("reg.per_client.strength"):
        select(config("algo=fedmid", "reg.per_client={strength:[1,1,1,1]}"), SelectOptions(), "out")


@pytest.mark.slow
@pytest.mark.drawn
def test_selection_with_three_classes():
    settings = config("algo=centralized", "data.task=multiclass")
    frame = pd.read_csv("rows.csv")
    frame["y"] = np.array(["low", "middle", "high"])[np.digitize(SCORE, [-0.5, 1.5])]
    frame.to_csv("rows.csv", index=False)
    selection = select(settings | {"metric": "val_accuracy"}, SelectOptions(folds=3, points=3), "out")
    path: Any = pd.read_csv("out/path.csv")
    assert set(path["class"]) == {"low", "middle", "high"}
    assert selection.choice.higher_is_better
    assert "maximum: strength=" in "\n".join(selection.describe())
    with style_context():
        figure = PICTURE.draw_subject(replace(selection.view, coefficients=None))
    (ax,) = figure.axes
    assert {text.get_text() for text in ax.texts} & {"max", "max = 1 SE"}
    error_bars, marks = ax.collections[0], [line for line in ax.lines if line.get_alpha()]
    assert marks
    assert all(line.get_zorder() < error_bars.get_zorder() for line in marks)
    title = figure.get_suptitle().replace("\n", " ")
    assert title == "Centralized on rows, l1 penalty: 3-fold cross-validation by rows"
    column = f"strength={selection.path.values[2]:.6g}"
    age = path[(path["feature"] == "age") & (path["class"] == "high")][column]
    weights = selection.fits["all"].solution["weights"][2]
    assert float(age.iloc[0]) == weights[NAMES.index("age"), ["high", "low", "middle"].index("high")]


def command(capsys, *arguments) -> tuple[int, str, str]:
    """Run the command in this process; return its exit code and its output."""
    code = main(["select", *arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


@pytest.mark.slow
def test_output_and_files_of_the_command(capsys, monkeypatch):
    table()
    monkeypatch.setattr(Table, "dependence_warning", "rows follow each other")
    arguments = ("algo=fedmid", "data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "rounds=5")
    arguments += ("folds=2", "points=3", "metric=loss", "rule=one_se")
    code, out, err = command(capsys, *arguments, "dry_run=true")
    assert (code, err) == (0, "")
    assert "rows follow each other" in out
    assert "0 of 3 fits exist, 3 to run" in out
    assert [path.name for path in Path().iterdir()] == ["rows.csv"]
    code, out, err = command(capsys, *arguments)
    assert (code, err) == (0, "")
    assert "* one standard error: strength=" in out
    assert "the choice cost 9 runs, 45 rounds" in out
    (folder,) = Path("outputs/table").glob("select-fedmid-*")
    assert load_records("outputs")[0].folder == folder / "refit"
    assert "3 of 3 fits exist: reused" in command(capsys, *arguments)[1]
    assert "reused" not in command(capsys, *arguments, "force=true")[1]
    (folder / "refit/inference.csv").touch()
    assert "intervals of the former refit are deleted" in command(capsys, *arguments, "rule=min")[1]
    assert not (folder / "refit/inference.csv").exists()
    assert command(capsys, *arguments, "verbose=false")[1] == ""
    assert "rows follow each other" not in command(capsys, *arguments, "by=clients", "dry_run=true")[1]
    Path("taken").mkdir()
    Path("taken/notes.txt").write_text("mine")
    code, _, err = command(capsys, *arguments, "out=taken")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "notes.txt" in err
    assert [path.name for path in Path("taken").iterdir()] == ["notes.txt"]


@pytest.mark.slow
def test_a_path_of_personal_models_begins_where_all_are_zero(monkeypatch):
    table()
    settings = config("algo=local", "data.validation=0", "rounds=400")
    planned = plan_selection(settings, SelectOptions(points=3, folds=2))
    assert "for each client alone" in planned.study.path.range_description
    with monkeypatch.context() as patch:  # it is stored, like the strength of a global model
        patch.setattr("fcorun.methods.problem.solver.make_strength_max", lambda *_: pytest.fail("computed again"))
        assert (
            plan_selection(settings, SelectOptions(points=3, folds=2)).study.path.values.tolist()
            == planned.study.path.values.tolist()
        )
    for factor, some in ((1.001, False), (0.97, True)):
        strength = float(planned.study.path.values[0] * factor)
        record = run({**settings, "reg": {**settings["reg"], "strength": strength}})
        assert (np.abs(record.personal["weights"]) > 1e-6).any() == some


def test_a_threshold_that_is_a_number_needs_no_rows_out_of_fold(monkeypatch):
    monkeypatch.setattr("fcorun.studies.selection.fitting.MAX_PREDICTED_ROWS", 10)
    settings = config("algo=centralized", task="binary")
    options = SelectOptions(folds=2, points=2)
    with fails("threshold=youden is chosen on rows out of fold", "give fewer points, or a number"):
        plan_selection({**settings, "threshold": "youden"}, options, "out")
    plan = plan_selection({**settings, "threshold": 0.3}, options, "out")
    assert not plan.study.keeps_held_out
    monkeypatch.setattr("fcorun.studies.selection.select.join_folds", lambda *_: [])
    fit = PathFit(
        metrics={plan.metric: np.array([1.0, 2.0])},
        solution={},
        end_state=np.zeros(2, int),
        counts={name: np.zeros(2) for name in ("rounds", "bytes_up", "bytes_down")},
    )
    selection = plan.conclude(dict.fromkeys(plan.study.subsets, fit))
    assert (selection.threshold, plan.apply(selection).settings.threshold) == (0.3, 0.3)
    monkeypatch.setattr("fcorun.studies.selection.selection_result.Selection.coefficients", None)
    Path("out").mkdir()
    for name in ("predictions.csv", "scores.csv", "calibration.csv", "roc.pdf"):  # of an earlier choice
        Path("out", name).touch()
    selection.write_tables()
    assert sorted(path.name for path in Path("out").iterdir()) == ["curve.csv", "selection.csv"]
