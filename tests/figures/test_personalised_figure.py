"""The figure of personalised methods: gains on the same data, what is drawn, and tables of own models."""

import numpy as np
import pandas as pd
import pytest
from helpers import not_none

from fcorun import compose, run
from fcorun.figures.figure_inputs import FigureInputs
from fcorun.figures.papers import personalised
from fcorun.figures.spec import Figure
from fcorun.metrics import structure_metrics
from fcorun.reports.build_table import build_table
from fcorun.reports.pictures import best_curves
from fcorun.reports.pictures import structure as structure_of
from fcorun.reports.pictures.best_curves import choose_sweep_panels
from fcorun.reports.pictures.problem_view import ProblemView, curve_styles_of
from fcorun.reports.pictures.run_curves import choose_run_panels as panels_of_a_run
from fcorun.reports.run_table import RunTable

SMALL = ("data=heterogeneous", "data.clients=6", "data.samples=16", "data.features=8", "data.shared_nonzeros=4",
         "data.validation_samples=8", "clients_per_round=null", "batch_size=null", "rounds=6", "eval_every=2",
         "tail_rounds=4")  # fmt: skip
METRIC = "personal_val_accuracy"


def test_gains_are_on_the_same_data():
    found = {"fedavg": (0.70, 0.80), "local": (0.75, 0.70), "pfedme": (0.78, 0.79)}
    rows = [(algo, seed, value) for algo, values in found.items() for seed, value in enumerate(values)]
    own = [None if algo == "fedavg" else value for algo, _, value in rows]
    values = {f"tail_{METRIC}": np.array(own, float), "tail_val_accuracy": [value for *_, value in rows]}
    frame = pd.DataFrame({"algo": [algo for algo, *_ in rows], "data": "heterogeneous", "status": "done", **values})
    one, two = personalised.check_margins(RunTable(frame), [seed for _, seed, _ in rows])
    assert (one["algo"], one["wanted"], one["holds"]) == ("pfedme", "more than fedavg", "not distinguishable")
    assert one["measured"].startswith("+3.5 points of accuracy, -1.0 to +8.0")  # of +8 and -1
    assert two["measured"].startswith("+6.0 points of accuracy, +3.0 to +9.0")  # of +3 and +9
    assert two["holds"] == "yes"


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("records"), []
    for name, rest in {"fedavg": ["algo.client_lr=0.3"], "local": ["algo.client_lr=0.3", "reg.strength=0.05"],
                       "pfedmac_sh": ["topology=tree", "reg.strength=0.05"]}.items():  # fmt: skip
        for seed in (0, 1):
            config = compose([*SMALL, f"algo={name}", f"data.seed={seed}", *rest])
            found.append(run(config, folder / f"{name}{seed}"))
    return found


def test_own_models_where_there_are_none_are_the_global_one(records):
    runs = build_table(records)
    frame, values = runs.frame, runs.tail_values(METRIC)
    without = frame["algo"] == "fedavg"
    assert frame[f"tail_{METRIC}"].isna().tolist() == without.tolist()
    np.testing.assert_array_equal(values[without], frame.loc[without, "tail_val_accuracy"])
    np.testing.assert_array_equal(values[~without], frame.loc[~without, f"tail_{METRIC}"])
    best = runs.best_points(METRIC)
    assert best["seeds"].tolist() == [2, 2, 2]
    assert structure_metrics(METRIC) == ("personal_density", "personal_rank")
    assert "density" not in best
    assert best["personal_density"].notna().all()


def test_the_picture_has_what_it_says(records):
    runs = build_table(records)
    figure = Figure("own models", "personalised", "personalised", seeded="data")
    of = FigureInputs(figure, METRIC, runs, records, tuned=runs, tuned_records=records)
    left, middle, right = personalised.draw_accuracies(of).axes
    assert [text.get_text() for text in left.get_yticklabels()] == ["FedAvg", "local", "pFedMac-SH"]
    local = [line for line in left.lines if set(line.get_ydata()) == {1}]
    assert len(local) == 2  # a bar and a mark: it has no global model
    expected = np.median(runs.tail_values(METRIC)[runs.frame["algo"] == "local"])
    assert local[1].get_xdata()[0] == pytest.approx(expected)
    assert len(middle.collections) == 3
    assert len({line.get_color() for line in right.lines}) == 3
    tree = max(right.lines[-1].get_xdata()) * 1000
    assert tree == 6 * (2 * 6 + 2 * 2) * 9 * 4  # rounds, clients and edges both ways, parameters, bytes
    assert right.get_xlabel() == "communication, up and down\n(kB)"
    assert {row["algo"] for row in personalised.check_margins(runs, [r.config["data"]["seed"] for r in records])} == {
        "pfedmac_sh"}  # fmt: skip


def test_pictures_of_runs_and_sweeps_show_own_models(records):
    names = list(records[-1].metrics)
    assert choose_sweep_panels(names, METRIC)[1:] == ["val_loss", METRIC, "personal_density"]
    of_a_run = panels_of_a_run(names, 1e-4)
    assert [len(lines) for _, lines in of_a_run] == [1, 4, 2]
    runs = build_table(records)
    view = ProblemView(runs, records, METRIC, curve_styles_of(runs))
    (ax,) = not_none(structure_of.draw(view)).axes
    assert "own models" in ax.get_xlabel()
    assert "own models" in ax.get_ylabel()
    shown = not_none(best_curves.draw(view))
    assert next(iter(view.curve_styles)) == "fedavg"  # has no own models: where these are drawn, its global one is
    lines = {ax.get_ylabel(): [line.get_label() for line in ax.lines] for ax in shown.axes}
    assert [len(each) for each in lines.values()] == [2, 2, 3, 3]  # each client alone has no global model
    regression = [n.replace("accuracy", "loss") for n in names]
    assert choose_sweep_panels(regression, METRIC)[2] == "personal_val_loss"


def test_identities_hold():
    assert [row["holds"] for row in personalised.check_identities()] == ["yes"] * 4
