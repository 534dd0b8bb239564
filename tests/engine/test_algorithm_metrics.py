"""Metrics that an algorithm declares: columns of metrics.csv, of tables and pictures, targets of ``stop``, and axes."""

from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import timed_fedavg
from figure_checks import draw_best_points
from helpers import engine_of, fails, run_grid, small, snapshots
from timed_fedavg import TimedFedAvg

from fcorun import compose, run
from fcorun.base.metrics import CATALOGUE, Metric
from fcorun.experiment.configuration.key_docs import read_choice
from fcorun.experiment.configuration.search_path import use_config_dir
from fcorun.experiment.prepare import prepare
from fcorun.interface.cli.commands import plot_command as plot
from fcorun.interface.cli.commands.list_command import capabilities
from fcorun.methods.problem.problem import Vector
from fcorun.reports.build_table import build_table
from fcorun.reports.page.build_page import collect_curves
from fcorun.reports.pictures.problem_view import curve_styles_of
from fcorun.reports.pictures.run_curves import RunView, draw
from fcorun.runs.sweep import check_unique_names
from fcorun.runs.sweep_point import SweepPoint
from fcorun.studies.figures.reproduce import check_metrics, read_declared_metrics
from fcorun.studies.figures.spec import Claim, Figure

NAMES = ["consensus", "worked_seconds"]


def timed(*overrides: str, **root) -> dict:
    """Return a configuration of TimedFedAvg."""
    config = small("algo=fedavg", "reg=none", "batch_size=null", *overrides) | root
    config["algo"] = {"class": f"{timed_fedavg.__name__}.TimedFedAvg", "name": "timed", "client_lr": 0.01}
    return config


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """The records of two rates."""
    configs = [timed(), timed()]
    configs[1]["algo"]["client_lr"] = 0.02
    folder = tmp_path_factory.mktemp("grid")
    return run_grid(configs, [folder / "slow", folder / "fast"])


@pytest.mark.slow
def test_metrics_are_columns_of_metrics_csv(records):
    """Against the cohorts of the schedule, whose clients have equal weights, and the clients' states."""
    rows = records[0].rows
    assert list(rows[0])[-2:] == NAMES
    schedule = engine_of(timed()).federation.schedule
    seconds = [1 + schedule.draw_cohort(number).mean() for number in range(4)]
    expected = [0, sum(seconds[:2]), sum(seconds)]
    np.testing.assert_allclose([row["worked_seconds"] for row in rows], expected, rtol=1e-6)
    models, _ = snapshots(timed())[-1].state["clients"]
    stacked = np.concatenate([np.asarray(value[0]).reshape(6, -1) for value in models.values()], axis=1)
    consensus = np.sqrt(((stacked - stacked.mean(axis=0)) ** 2).sum(axis=1).mean())
    assert rows[-1]["consensus"] == pytest.approx(consensus, rel=1e-5)
    assert records[0].summary["final"]["consensus"] == rows[-1]["consensus"]
    assert records[0].summary["best"].keys() & NAMES == {"consensus"}


@pytest.mark.slow
def test_the_client_has_its_number_on_a_tree(records):
    seconds = snapshots(timed("topology=tree", "topology.edges=2"))[-1].metrics["worked_seconds"]
    assert seconds[0] == pytest.approx(records[0].rows[-1]["worked_seconds"], rel=1e-6)


@pytest.mark.slow
def test_clients_with_generated_rows_have_their_numbers_and_states():
    population = ["data=heterogeneous_million", "data.clients=1000", "data.evaluated=5", "data.features=60"]
    config = compose(["algo=fedavg", "reg=none", *population, "clients_per_round=4", "rounds=2", "eval_every=2"])
    config["algo"] = timed()["algo"]
    schedule = engine_of(config).federation.schedule
    end = snapshots(config)[-1]
    expected = sum(1 + schedule.draw_cohort(number).mean() for number in range(2))
    assert end.metrics["worked_seconds"][0] == pytest.approx(expected, rel=1e-6)
    assert end.metrics["consensus"][0] == 0  # none of the five evaluated clients has taken part
    assert not {0, 1, 2, 3, 4} & {*schedule.draw_cohort(0), *schedule.draw_cohort(1)}


@pytest.mark.slow
def test_tables_and_pictures_have_the_metrics(records):
    runs = build_table(records)
    assert {f"tail_{name}" for name in NAMES} <= set(runs.frame)
    best = runs.best_points("consensus").iloc[0]
    tails = [record.summary["tail"]["consensus"] for record in records]
    assert best["metric"] == min(tails)
    best_record = records[int(np.argmin(tails))]
    figure = draw_best_points(records, metric="consensus", x_axes=["worked_seconds"], panels=["consensus"])
    (ax,) = figure.axes
    assert ax.get_xlabel() == "time of work (s)"
    assert ax.get_ylabel() == "distance from consensus"
    (line,) = ax.lines
    assert line.get_xdata().tolist() == [row["worked_seconds"] for row in best_record.rows]
    figure = draw(RunView(best_record.rows, "a run", 1e-4, "worked_seconds", runs.metrics))
    assert {ax.get_xlabel() for ax in figure.axes} == {"time of work (s)"}
    assert {"consensus", "worked_seconds"} <= set(runs.metrics)
    styles = curve_styles_of(runs)
    curves = collect_curves(records, runs, {"": [0, 1]}, styles, metric="consensus", best=[0])
    assert curves is not None
    assert curves["axes"] == {"worked_seconds": "time of work (s)"}


@pytest.mark.slow
def test_runs_stop_at_targets_on_the_metrics(tmp_path):
    record = run(timed(x="worked_seconds", stop={"worked_seconds": 0.5}), tmp_path / "budget")
    assert record.rows[-1]["round"] == 2
    assert "worked_seconds" in record.status["reason"]
    assert ">= 0.5" in record.status["reason"]
    record = run(timed(stop={"consensus": 1e-9}), tmp_path / "consensus")
    assert record.rows[-1]["round"] > 0  # all clients start at one point, which says nothing of the run


@pytest.mark.parametrize(
    ("root", "words"),
    [({"metric": "simulated_second"}, ["metric=simulated_second is not a choice"]),
     ({"x": "consensus"}, ["x=consensus is a metric that may fall again", "seconds, worked_seconds"]),
     ({"x": "simulated_second"}, ["x=simulated_second is not a choice", "worked_seconds"]),
     ({"x": "epsilon"}, ["x=epsilon", "give privacy=gaussian"]),
     ({"stop": {"epsilon": 1}}, ["stop.epsilon", "not private: give privacy=gaussian, or leave stop.epsilon out"])],
)  # fmt: skip
def test_what_is_not_declared_or_not_monotone_is_refused(root, words):
    with fails(*words):
        prepare(timed(**root))


def test_other_algorithms_lack_the_axis():
    with fails("x=worked_seconds is not a choice"):
        prepare(small("algo=fedavg", "x=worked_seconds"))
    prepare(small("algo=centralized", "clients_per_round=null") | {"x": "worked_seconds"})  # drawn as a level line


@pytest.mark.parametrize(
    ("returned", "declared", "words"),
    [("{'consensus': 1.0, 'epsilon': 2.0}", NAMES[:1], ["returns 'epsilon'", "add Metric('epsilon')"]),
     ("{'consensus': 1.0}", NAMES, ["returns no 'worked_seconds'", "declare it no longer"]),
     ("{'consensus': server['w']['weights']}", NAMES[:1], ["must return a number as 'consensus'", "array (20,)"]),
     ("1.0", NAMES[:1], ["must return a dict of numbers by name", "returned a number"])],
)  # fmt: skip
def test_wrong_values_are_refused(returned, declared, words, monkeypatch):
    def metrics(self, problem, server, clients):
        return eval(returned, {"server": server, "jnp": jnp})

    monkeypatch.setattr(TimedFedAvg, "metrics", metrics)
    monkeypatch.setattr(TimedFedAvg, "declared_metrics", tuple(Metric(name) for name in declared))
    with fails("metrics() of TimedFedAvg", *words, "test_algorithm_metrics.py line"):
        _ = engine_of(timed()).federation.shapes


@pytest.mark.parametrize("name", ["bytes", "round", "val_loss", "personal_bits", "test_loss"])
def test_names_that_are_taken_are_refused(name, monkeypatch):
    monkeypatch.setattr(TimedFedAvg, "declared_metrics", (Metric(name),))
    with fails(f"algo=timed declares the metric '{name}', a name that fcorun uses itself"):
        prepare(timed())


@pytest.mark.parametrize(("name", "higher"), [("consensus", None), ("consensus", True), ("consenus", False)])
def test_a_certificate_is_a_declared_metric_that_falls(name, higher, monkeypatch):
    monkeypatch.setattr(TimedFedAvg, "declared_metrics", (Metric("consensus", higher=higher),))
    monkeypatch.setattr(TimedFedAvg, "certificate", name)
    with fails(f"algo=timed has certificate = '{name}'", f"declare Metric('{name}', ..., higher=False)"):
        prepare(timed())
    monkeypatch.setattr(TimedFedAvg, "certificate", "consensus")
    monkeypatch.setattr(TimedFedAvg, "declared_metrics", (Metric("consensus", higher=False),))
    prepare(timed())


def negative(self, problem, server, clients):
    return {"consensus": jnp.full((), -1.0)}


def test_a_negative_certificate_ends_no_run(monkeypatch, tmp_path):
    monkeypatch.setattr(TimedFedAvg, "declared_metrics", (Metric("consensus", higher=False),))
    monkeypatch.setattr(TimedFedAvg, "metrics", negative)
    monkeypatch.setattr(TimedFedAvg, "certificate", "consensus")
    record = run(timed("local_steps=2", "local_epochs=null"), tmp_path / "run")
    assert record.rows[-1]["consensus"] == -1
    assert "convergence" not in record.summary


@pytest.mark.slow
def test_figures_and_plots_take_monotone_metrics_alone(records):
    catalogue = prepare(timed()).metrics
    claim = {"says": "s", "algo": "timed", "metric": "objective", "above": [0]}
    check_metrics(Figure("t", x=["worked_seconds"], claims=[claim | {"at": {"worked_seconds": 3}}]), catalogue)
    with fails("figure.x=consensus is not a choice"):
        check_metrics(Figure("t", x=["consensus"]), catalogue)
    with fails("figure.claims.at=consensus is not a choice"):
        check_metrics(Figure("t", claims=[Claim(**claim, at={"consensus": 3})]), catalogue)
    with fails("--x consensus is not a choice"):
        plot.run([str(records[0].folder), "--x", "consensus"])


@dataclass(frozen=True)
class Opposite(TimedFedAvg):
    """The same metrics, one with the other direction."""

    declared_metrics = (Metric("consensus", higher=True), Metric("worked_seconds", monotone=True))


def test_metrics_of_one_name_and_two_directions_are_refused_and_make_no_run_the_best():
    first = prepare(timed())
    second = replace(first, algo=Opposite(client_lr=0.01))
    points = [SweepPoint("a", Path("a"), first), SweepPoint("b", Path("b"), second)]
    with fails("declare the metric 'consensus' with higher=False and higher=True: give one of the two another name"):
        check_unique_names(points)
    for experiments in ([first, second], [second, first, first]):  # as of old records
        declared = [metric for experiment in experiments for metric in experiment.declared_metrics]
        catalogue = CATALOGUE.with_metrics(declared)
        assert catalogue["consensus"].higher is None
        assert catalogue["worked_seconds"].monotone


def test_figures_know_the_metrics_of_all_their_algorithms(tmp_path):
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "mine.yaml").write_text("name: timed\nclass: timed_fedavg.TimedFedAvg\n")
    with use_config_dir(tmp_path):
        assert [metric.name for metric in read_declared_metrics(["fedavg", "timed"])] == NAMES
        assert read_declared_metrics(["fedavg"]) == []
        assert "metrics consensus, worked_seconds" in capabilities("algo", read_choice("algo", "mine"))


def test_a_vector_maps_its_parameters():
    w = Vector(weights=jnp.array([1.0, -2.0]), bias=jnp.array(3.0))
    np.testing.assert_array_equal(w.map(jnp.abs)["weights"], [1, 2])
    clipped = w.map(jnp.minimum, 0 * w)
    assert isinstance(clipped, Vector)
    np.testing.assert_array_equal(clipped["weights"], [0, -2])
    assert clipped["bias"] == 0


def test_a_metric_of_ones_own_replaces_none_of_fcoruns(user_module):
    """A regularizer's own numbers stood in the column of the objective, and a method's in that of the topology."""
    user_module(
        "named",
        """
from dataclasses import dataclass
import jax.numpy as jnp
from fcorun import FedAvg, L1, Metric
from fcorun.algorithms import Traits

@dataclass(frozen=True, kw_only=True)
class Renaming(L1):
    def structure(self, w, cutoff):
        return super().structure(w, cutoff) | {"objective": jnp.zeros(())}
""",
    )
    config = small("algo=fedavg", "rounds=1")
    config["reg"] = {"name": "renaming", "class": "named.Renaming", "strength": 0.1}
    with fails("structure() of Renaming returns the metric 'objective', a name that fcorun uses itself"):
        run(config, "here")
