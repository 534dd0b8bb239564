"""Runs with ``imputations``: the average of single fits to each completed table, and refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from four_clients import config
from helpers import composed, fails, not_none
from scipy.special import logit

from fcorun import run
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.interface.api.progress import ExperimentWarning
from fcorun.interface.api.run_record import RunRecord
from fcorun.runs import pooled_fits
from fcorun.runs.pooled_fits import complete_tables, prepare_tables
from fcorun.studies.selection.comparison import CompareOptions, plan_candidates
from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.select_stable import plan_stability
from fcorun.studies.selection.selection_result import SelectOptions
from fcorun.studies.selection.stability import StabilityOptions

NEWTON = ("algo=newton", "rounds=6", "eval_every=6", "precision=float64", "clients_per_round=null")
SOLVER = ("algo=centralized", "algo.tolerance=1e-14")
ENDS = {"done": 0, "falling": 0, "not certified": 0, "diverged": 0}


def settings_with_gaps(*overrides):
    """Return the configuration of a table of two classes with gaps in two columns of numbers and one of levels."""
    config(task="binary")
    rng = np.random.default_rng(1)
    frame = pd.read_csv("rows.csv")
    frame["y"] = (rng.random(60) < 1 / (1 + np.exp(-frame["age"]))).astype(int)
    frame["kind"] = rng.choice(["u", "v", "w"], 60)
    for column in ("age", "x0", "kind"):
        frame.loc[rng.random(60) < 0.2, column] = None
    frame["split"] = np.where(np.arange(60) % 5 == 0, "validation", "train")
    frame.to_csv("gaps.csv", index=False)
    data = ("data=table", "data.path=gaps.csv", "data.target=y", "data.client=site", "data.task=binary")
    return composed(*data, "data.split=split", "data.missing=mean", "reg.strength=0.03", "imputations=2", *overrides)


def loop_over_tables(settings, *algorithm):
    """Return the records of ordinary runs on tables of numbers without gaps, one for each completed table."""
    experiment = prepare(settings)
    data = load_data(experiment)
    records = []
    for k, table in enumerate(complete_tables(prepare_tables(experiment, data))):
        frames = []
        for split, rows in (("train", table.train), ("validation", not_none(table.validation))):
            frame = pd.DataFrame(rows.x, columns=[f"c{j}" for j in range(rows.x.shape[1])])
            frames.append(frame.assign(y=rows.y, site=np.array(table.clients)[rows.client], split=split))
        path = f"completed{k}.csv"
        pd.concat(frames).to_csv(path, index=False)
        source = ("data=table", f"data.path={path}", "data.target=y", "data.client=site", "data.task=binary")
        plain = composed(*source, "data.split=split", "reg.strength=0.03", *algorithm)
        records.append(run(plain, f"single{k}"))
    return records


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [NEWTON, pytest.param(SOLVER, marks=pytest.mark.slow)])
def test_the_model_is_the_average_of_single_runs(algorithm):
    settings = settings_with_gaps(*algorithm)
    record = RunRecord(run(settings, "averaged").folder)
    singles = loop_over_tables(settings, *algorithm)
    assert not np.allclose(singles[0].solution["weights"], singles[1].solution["weights"], atol=1e-3)
    for name, values in record.solution.items():
        np.testing.assert_allclose(values, np.mean([single.solution[name] for single in singles], axis=0), atol=1e-10)
    table = pd.read_csv("averaged/imputations.csv")
    weights = table.query("parameter == 'weights'")
    np.testing.assert_allclose(weights["fit2"], singles[1].solution["weights"], atol=1e-10)
    share = np.mean([np.abs(single.solution["weights"]) > 1e-4 for single in singles], axis=0)
    np.testing.assert_array_equal(weights["share_nonzero"], share)

    # predictions are averaged on the scale of the link, the log odds
    def log_odds(folder):
        frame = pd.read_csv(f"{folder}/predictions.csv").query("set == 'validation'")
        return logit(frame.sort_values(["client", "row"])["probability"].to_numpy())

    expected = np.mean([log_odds("single0"), log_odds("single1")], axis=0)
    np.testing.assert_allclose(log_odds("averaged"), expected, atol=1e-8)

    # the record says what it is
    assert record.summary["imputations"] == {"tables": 2, "ends": ENDS | {"done": 2}}
    assert "the model is the average of 2 fits to completed tables" in record.status["reason"]
    assert record.summary["certificate"] is None
    assert "objective" not in record.summary["final"]
    assert record.rows[-1]["bytes_up"] == sum(single.rows[-1]["bytes_up"] for single in singles)
    with fails("imputations=2 averages fits", "infer a record without it"):
        record.infer()
    frame = pd.read_csv("gaps.csv").head(3).drop(columns=["y", "split"])
    of_the_record = pytest.warns(ExperimentWarning, match="the model is the average of 2 fits")
    with of_the_record, pytest.warns(ExperimentWarning, match="gaps are filled"):
        assert len(record.predict(frame)) == 3


@pytest.mark.slow
def test_counters_add_up_over_the_fits_also_those_of_a_tree_and_a_clock():
    fedavg = ("algo=fedavg", "algo.client_lr=0.1", "rounds=3")
    for extra, names in (
        (("topology=tree", "topology.edges=2", "topology.rounds=1"), ["edge_bytes_up", "edge_bytes_down"]),
        (("clock=lognormal",), ["simulated_seconds"]),
    ):
        record = run(settings_with_gaps(*fedavg, *extra), extra[0])
        alone = run(settings_with_gaps(*fedavg, *extra, "imputations=0"), f"{extra[0]} alone")
        for name in ("bytes_up", "grad_evals", *names):
            assert record.rows[-1][name] == pytest.approx(2 * alone.rows[-1][name], rel=0.5)
        for name in {"bytes_up", *names} - {"simulated_seconds"}:
            assert record.rows[-1][name] == 2 * alone.rows[-1][name]


@pytest.mark.slow
def test_fits_that_diverge_before_they_begin_have_diverged():
    settings = settings_with_gaps("algo=fedavg", "algo.client_lr=0.1", "rounds=3", "data.task=regression")
    frame = pd.read_csv("gaps.csv")
    frame.assign(y=1e25 * (1 + frame["y"])).to_csv("gaps.csv", index=False)
    record = run(settings, "here")
    assert record.status["status"] == "diverged"
    assert "2 of 2 fits to completed tables diverged (tables 1, 2)" in record.status["reason"]


@pytest.mark.parametrize("diverged", [True, False])
def test_the_rounds_of_the_fits_are_summarized(monkeypatch, diverged):
    settings = settings_with_gaps(*SOLVER)
    data = load_data(prepare(settings))
    solution = {"weights": np.zeros(data.train.x.shape[1]), "bias": np.zeros(())}
    fits = []
    for count in (5 if diverged else 9, 4):
        rows = [{"round": count, "bytes_up": 0}]
        fits.append(pooled_fits.ImputedFit(prepare(settings), rows=rows, solution=solution))
    if diverged:
        fits[0].state = "diverged"
        fits[0].divergence_round = 6
    remaining = iter(fits)
    monkeypatch.setattr(pooled_fits, "complete_tables", lambda *_: iter([data, data]))
    monkeypatch.setattr(pooled_fits, "fit_table", lambda *_: next(remaining))
    monkeypatch.setattr(pooled_fits, "evaluate", lambda *_: {"train_loss": 1.0})
    record = run(settings, "here")
    if diverged:
        assert record.status["round"] == 6
        assert "1 of 2 fits to completed tables diverged (table 1)" in record.status["reason"]
        assert record.summary["imputations"]["ends"] == ENDS | {"done": 1, "diverged": 1}
    else:
        assert record.rows[-1]["round"] == 9


def test_the_seed_is_part_of_the_identity_of_a_solver():
    first, second = (prepare(settings_with_gaps(*SOLVER, f"seed={seed}")) for seed in (0, 1))
    assert first.identity != second.identity
    plain = (prepare(settings_with_gaps(*SOLVER, f"seed={seed}", "imputations=0")) for seed in (0, 1))
    assert len({experiment.identity for experiment in plain}) == 1


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("imputations=1",), "give 5 or more"),
        (("relax=0.5",), "leave relax out"),
        (("stop={change:1e-5}",), "leave stop out"),
        (("data.standardize=per_client",), "the scale depend on imputed values"),
        (("data.missing=indicator",), "a feature of each gap"),
        (("algo=ditto",), "is for one model of all clients"),
        (("data.ignore=[age,x0,kind]",), "no column has gaps"),
    ],
)
def test_refusals(overrides, words):
    with fails("imputations=", words):
        load_data(prepare(settings_with_gaps(*NEWTON, *overrides)))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [NEWTON, SOLVER])
def test_a_selection_judges_in_each_fold_the_run_on_its_training_rows(algorithm):
    settings: dict[str, Any] = {**settings_with_gaps(*algorithm), "metric": "val_loss"}
    selection = plan_selection(settings, SelectOptions(folds=4, points=2, range=[0.01, 0.1]), "chosen").run()
    assert selection.cost["runs"] == 5 * 2 * 2
    chosen = selection.choice.chosen_index
    for name, values in RunRecord(selection.folder / "refit").solution.items():
        np.testing.assert_allclose(selection.fits["all"].solution[name][chosen], values, atol=1e-10)

    frame = pd.read_csv("gaps.csv").query("split == 'train'")  # sorted by client, as the training rows
    held_out = selection.study.subsets["fold2"].validation
    frame.assign(split=np.where(held_out, "validation", "train")).to_csv("gaps.csv", index=False)
    for p, strength in enumerate(selection.path.values.tolist()):
        by_hand = {**settings, "metric": None, "reg": {**settings["reg"], "strength": strength}}
        record = RunRecord(run(by_hand, f"by_hand{p}").folder)
        assert selection.fits["fold2"].metrics["val_loss"][p] == pytest.approx(record.rows[-1]["val_loss"], abs=1e-10)
    predicted = pd.read_csv("chosen/predictions.csv").query("fold == 2").sort_values("row")["probability"]
    own = pd.read_csv(f"by_hand{chosen}/predictions.csv").query("set == 'validation'").sort_values("row")["probability"]
    np.testing.assert_allclose(predicted, own, atol=1e-10)


def test_refusals_of_studies():
    settings = settings_with_gaps(*NEWTON)
    with fails("imputations=2: stability imputes nothing"):
        plan_stability(settings, StabilityOptions(), "out")
    with fails("imputations=2", "compare also trains own ones"):
        plan_candidates({"shared": settings}, CompareOptions())
    with fails("relax", "imputations=2"):
        plan_selection(settings, SelectOptions(folds=2, relax=True), "out")
    with fails("imputations=2: column 'kind' has 16 values, too few", "(of the rows without fold 1)"):
        plan_selection(settings, SelectOptions(folds=2, points=2, range=[0.01, 0.1]), "out")
    assert not Path("out").exists()
