"""Figure of personalised methods: gains on the same data, its picture, and tables of personal models."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from fake_records import fake_config, fake_record, fake_rows
from helpers import fails, not_none

from fcorun import compose, run
from fcorun.base.metrics import structure_metrics
from fcorun.reports.build_table import build_table
from fcorun.reports.pictures import best_curves
from fcorun.reports.pictures import structure as structure_of
from fcorun.reports.pictures.best_curves import choose_sweep_panels
from fcorun.reports.pictures.problem_view import ProblemView, curve_styles_of
from fcorun.reports.pictures.run_curves import choose_run_panels as panels_of_a_run
from fcorun.reports.run_table import RunTable
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.papers import personalised
from fcorun.studies.figures.seed_comparison import collect_by_seed
from fcorun.studies.figures.spec import Figure

SMALL = ("data=heterogeneous", "data.clients=6", "data.samples=16", "data.features=8", "data.shared_nonzeros=4",
         "data.validation_samples=8", "clients_per_round=null", "batch_size=null", "rounds=6", "eval_every=2",
         "tail_rounds=4")  # fmt: skip
METRIC = "personal_val_accuracy"


def test_gains_are_on_the_same_data():
    accuracies = {"fedavg": (0.70, 0.80), "local": (0.75, 0.70), "pfedme": (0.78, 0.79)}
    rows = [(algo, seed, value) for algo, values in accuracies.items() for seed, value in enumerate(values)]
    personal = [None if algo == "fedavg" else value for algo, _, value in rows]
    values = {f"tail_{METRIC}": np.array(personal, float), "tail_val_accuracy": [value for *_, value in rows]}
    frame = pd.DataFrame({"algo": [algo for algo, *_ in rows], "data": "heterogeneous", "status": "done", **values})
    runs, seeds = RunTable(frame), [seed for _, seed, _ in rows]
    one, two = personalised.check_margins(runs, seeds, {})
    assert (one["algo"], one["wanted"], one["holds"]) == ("pfedme", "more than fedavg", "not distinguishable")
    assert one["measured"].startswith("+3.5 points of accuracy, -1.0 to +8.0")  # of +8 and -1
    assert two["measured"].startswith("+6.0 points of accuracy, +3.0 to +9.0")  # of +3 and +9
    assert two["holds"] == "yes"
    *_, two = personalised.check_margins(runs, seeds, {"local": "local has 2 of 3 seeds"})
    assert (two["holds"], two["test"], two["note"]) == ("not decided", "", "local has 2 of 3 seeds")


def test_gains_are_in_every_seed_of_cohorts(tmp_path):
    """On the same data seeds of cohorts tell the runs apart; the last run of each counted alone."""
    accuracies = {"fedavg": [0.70, 0.80, 0.60], "local": [0.75, 0.70, 0.65], "pfedme": [0.78, 0.79]}
    records = []
    for algo, values in accuracies.items():
        for seed, value in enumerate(values):
            rows = [row | {METRIC: value, "val_accuracy": value} for row in fake_rows()]
            records.append(fake_record(tmp_path / f"{algo}{seed}", fake_config(algo, seed=seed), rows))
    runs = build_table(records)
    inputs = FigureInputs(Figure("t"), METRIC, runs, records, tuned=runs, tuned_records=records)
    one, two = personalised.check_personalised(inputs)
    assert one["measured"] == "+3.5 points of accuracy, -1.0 to +8.0, range over 2 seeds of cohorts"
    assert one["holds"] == "not distinguishable"
    assert two["measured"] == "+6.0 points of accuracy, +3.0 to +9.0, range over 2 seeds of cohorts"
    assert two["holds"] == "yes"
    with fails("figure: a has several runs with the seeds (1,)"):
        collect_by_seed(["a", "a"], [(1,), (1,)], [0.1, 0.2])


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder, finished = tmp_path_factory.mktemp("records"), []
    for name, rest in {"fedavg": ["algo.client_lr=0.3"], "local": ["algo.client_lr=0.3", "reg.strength=0.05"],
                       "pfedmac_sh": ["topology=tree", "reg.strength=0.05"]}.items():  # fmt: skip
        for seed in (0, 1):
            config = compose([*SMALL, f"algo={name}", f"data.seed={seed}", *rest])
            finished.append(run(config, folder / f"{name}{seed}"))
    return finished


@pytest.mark.slow
def test_algorithms_without_personal_models_count_by_their_global_model(records):
    runs = build_table(records)
    frame, values = runs.frame, runs.tail_values(METRIC)
    is_global = frame["algo"] == "fedavg"
    assert frame[f"tail_{METRIC}"].isna().tolist() == is_global.tolist()
    np.testing.assert_array_equal(values[is_global], frame.loc[is_global, "tail_val_accuracy"])
    np.testing.assert_array_equal(values[~is_global], frame.loc[~is_global, f"tail_{METRIC}"])
    best = runs.best_points(METRIC)
    assert best["seeds"].tolist() == [2, 2, 2]
    assert structure_metrics(METRIC) == ("personal_density", "personal_rank")
    assert "density" not in best
    assert best["personal_density"].notna().all()


@pytest.mark.slow
def test_panels_of_the_picture(records):
    runs = build_table(records)
    figure = Figure("personal models", "personalised", "personalised", seeded="data")
    inputs = FigureInputs(figure, METRIC, runs, records, tuned=runs, tuned_records=records)
    left, middle, right = personalised.draw_accuracies(inputs).axes
    assert [text.get_text() for text in left.get_yticklabels()] == ["FedAvg", "local", "pFedMac-SH"]
    local = [line for line in left.lines if set(line.get_ydata()) == {1}]
    assert len(local) == 2  # a bar and a mark: local training has no global model
    expected = np.median(runs.tail_values(METRIC)[runs.frame["algo"] == "local"])
    assert local[1].get_xdata()[0] == pytest.approx(expected)
    assert len(middle.collections) == 3
    assert len({line.get_color() for line in right.lines}) == 3
    tree = max(right.lines[-1].get_xdata())
    assert tree == 6 * (2 * 6 + 2 * 2) * 9 * 4  # rounds, clients and edges both ways, parameters, bytes
    assert right.get_xlabel() == "communication, up and down"
    seeds = [record.config["data"]["seed"] for record in records]
    assert {row["algo"] for row in personalised.check_margins(runs, seeds, {})} == {"pfedmac_sh"}


def test_accuracy_against_bytes_of_seeds_that_stop_at_different_rounds(tmp_path):
    rows = [row | {"val_accuracy": row["round"] / 40} for row in fake_rows()]
    records = [fake_record(tmp_path / str(n), fake_config(seed=n), rows[:n]) for n in (5, 3)]
    runs = build_table(records)
    inputs = FigureInputs(Figure("t"), METRIC, runs, records, tuned=runs, tuned_records=records)
    _, axes = plt.subplots()
    personalised._draw_accuracy_against_bytes(inputs, axes, 2)
    # the one that stopped stays at 0.5
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [0.25, 0.5, 0.625, 0.75])


@pytest.mark.slow
def test_pictures_of_runs_and_sweeps_show_personal_models(records):
    names = list(records[-1].metrics)
    assert choose_sweep_panels(names, METRIC)[1:] == ["val_loss", METRIC, "personal_density"]
    of_a_run = panels_of_a_run(names, 1e-4)
    assert [len(lines) for _, lines in of_a_run] == [1, 4, 2]
    runs = build_table(records)
    view = ProblemView(runs, records, METRIC, curve_styles_of(runs))
    (ax,) = structure_of.draw(not_none(structure_of.collect_points(view))).axes
    assert "personal models" in ax.get_xlabel()
    assert "personal models" in ax.get_ylabel().replace("\n", " ")
    figure = best_curves.draw(not_none(best_curves.collect_curves(view)))
    assert next(iter(view.curve_styles)) == "fedavg"  # drawn by its global model, as it has no personal ones
    lines = {ax.get_ylabel(): [line.get_label() for line in ax.lines] for ax in figure.axes}
    assert [len(labels) for labels in lines.values()] == [2, 2, 3, 3]  # local training has no global model
    regression = [n.replace("accuracy", "loss") for n in names]
    assert choose_sweep_panels(regression, METRIC)[2] == "personal_val_loss"
