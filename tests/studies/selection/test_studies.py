"""Studies in common: reuse of fits, weighted rows, and refusals of subsets."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from helpers import composed, fails, not_none
from run_studies import select

from fcorun import Record, run
from fcorun.data.datasets.subset import take_subset
from fcorun.experiment.build import build_problem, load_data
from fcorun.experiment.prepare import prepare
from fcorun.interface.cli.commands import main
from fcorun.methods.problem import solver
from fcorun.methods.problem.duality_gap import has_duality_gap, pooled_gap
from fcorun.methods.problem.problem import Vector
from fcorun.methods.problem.solver import gather_rows
from fcorun.methods.regularizers import L1
from fcorun.studies.selection.fitting import PathFitter
from fcorun.studies.selection.path import RegularizationPath
from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.select_stable import fit_client_supports, plan_stability
from fcorun.studies.selection.selection_result import SelectOptions
from fcorun.studies.selection.stability import StabilityOptions

RNG = np.random.default_rng(7)
OWNER = np.repeat(["a", "b", "c"], 12)
X = RNG.standard_normal((36, 4))
Y = X @ [1.5, -1.0, 0, 0] + 0.5 * RNG.standard_normal(36)
NAMES = ["age", "dose", "x0", "x1"]


def config(*overrides, **columns):
    frame = pd.DataFrame(X, columns=NAMES).assign(site=OWNER, y=Y).assign(**columns)
    frame.to_csv("rows.csv", index=False)
    table_overrides = ("data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "data.validation=0")
    return composed(*table_overrides, "rounds=4", "eval_every=2", *overrides)


@pytest.mark.slow
def test_another_seed_is_another_study():
    """Even of a baseline: its runs do not depend on the seed, but folds and halves do."""
    settings = config("algo=centralized")
    seeds = [settings | {"seed": seed} for seed in (0, 0, 1)]
    for one, same, other in (
        [plan_selection(seed_settings, SelectOptions(folds=3, points=2)).study for seed_settings in seeds],
        [plan_stability(seed_settings, StabilityOptions(subsamples=2, points=2)).study for seed_settings in seeds],
    ):
        assert one.identity == same.identity != other.identity
        assert one.folder != other.folder


@pytest.mark.parametrize("command", ["select", "stability"])
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGHUP])
def test_signals_interrupt_like_ctrl_c(command, kind, monkeypatch, capsys):
    def fit(*_):
        os.kill(os.getpid(), kind)
        time.sleep(10)

    config()
    monkeypatch.setattr(PathFitter, "fit", fit)
    table_overrides = ["data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "data.validation=0"]
    outer = signal.signal(kind, before := lambda *_: None)  # nohup ignores one
    assert main([command, *table_overrides, "algo=centralized", "points=2", "out=here"]) == 130
    assert signal.getsignal(kind) == before
    signal.signal(kind, outer)
    assert "interrupted: here has 0 of" in capsys.readouterr().out
    (mark,) = Path("here").glob("*.json")
    assert json.loads(mark.read_text())["status"] == "running"


@pytest.mark.parametrize("force", [False, True])
def test_force_leaves_no_file_of_another_study(force):
    study = plan_selection(config("algo=centralized") | {"force": force}, SelectOptions(folds=2, points=2), "out").study
    identity = "other" if force else study.identity
    results = ("fits/fold1.npz", "predictions.csv", "roc.csv", "roc.png", "decision.pdf", "clients.csv")
    files = {"selection.json": json.dumps({"identity": identity}), "notes.txt": "", "report_short.html": ""}
    files |= {
        "report.html": "",
        "refit/summary.json": "",
        "refit/status.json": json.dumps({"identity": "a", "status": "done"}),
    }
    for name, text in (files | dict.fromkeys(results, "")).items():
        path = Path("out", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with study.claim():
        pass
    left = {path.relative_to("out").as_posix() for path in Path("out").rglob("*") if path.is_file()}
    of_study = {"refit/summary.json", "refit/status.json", *results}
    assert left == {"selection.json", "notes.txt"} | (set() if force else of_study)
    assert json.loads(Path("out/selection.json").read_text())["identity"] == study.identity


def test_too_many_devices_are_refused_before_anything_runs():
    """Folds and halves run in threads, but the refit would fail in the end."""
    settings = config("devices=1000")
    for planned in (
        lambda: plan_selection(settings, SelectOptions(folds=3)),
        lambda: plan_stability(settings, StabilityOptions(subsamples=2)),
    ):
        with fails("devices=1000 exceeds the number of devices", "give at most that, or devices=all"):
            planned()


@pytest.mark.slow
def test_client_supports_use_weights_and_offsets():
    """A weight repeats its row, and an offset is subtracted from the target."""
    weight, offset = np.tile([0, 1, 2, 3], 9), np.where(np.arange(36) % 3 == 0, 4.0, -1.0) * X[:, 2]
    weighted = config("algo=centralized", "data.weight=k", "data.offset=o", k=weight, o=offset)
    experiment = prepare(weighted)
    supports, is_valid = fit_client_supports(experiment, load_data(experiment), "strength", 0.5)
    assert is_valid.all()
    plain = config("algo=centralized", "data.ignore=[k,o]", k=weight, o=offset)
    frame = pd.read_csv("rows.csv")
    rows = frame.iloc[np.repeat(np.arange(36), weight)]
    rows.assign(y=rows["y"] - rows["o"]).to_csv("rows.csv", index=False)
    again = prepare(plain)
    expected = fit_client_supports(again, load_data(again), "strength", 0.5)[0]
    np.testing.assert_array_equal(supports, expected)
    unweighted = prepare(config("algo=centralized"))
    assert (fit_client_supports(unweighted, load_data(unweighted), "strength", 0.5)[0] != supports).any()


REFUSED = {
    "a client whose rows left weigh nothing": (
        {"k": np.where(np.arange(36) < 11, 0, 1)}, ("data.weight=k",), {}, ("client a", "weight 0", "by=clients")),
    "a fold that weighs nothing": (
        {"k": np.where(np.arange(36) % 12 < 2, 1, 0)}, ("data.weight=k",), {"folds": 12}, ("weight 0", "fewer folds")),
    "numbers of each client": (
        {}, ("reg=l1_box", "reg.per_client={upper:[1,1,1]}"), {"by": "clients"}, ("reg.per_client.upper", "by=rows")),
    "a client by its number": (
        {}, ("algo=one_client",), {"by": "clients"}, ("algo=one_client", "by=rows")),
    "a map of clients": (
        {}, ("topology=tree", "topology.map=[0,1,1]"), {"by": "clients"}, ("topology.map", "by=clients")),
    "more edges than clients": (
        {}, ("topology=tree", "topology.edges=3"), {"by": "clients"}, ("topology.edges=3", "by=clients")),
    "a target of rows held out": ({}, ("stop={val_loss:0.1}",), {}, ("stop.val_loss", "change")),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_subsets_are_refused_before_anything_runs(case):
    columns, overrides, options, words = REFUSED[case]
    with fails(*words):
        select(config(*overrides, **columns), SelectOptions(**{"folds": 3, "points": 2, **options}), "out")
    assert not Path("out").exists()
    if case != "a fold that weighs nothing":
        with fails(*words):
            plan_stability(
                config(*overrides, **columns), StabilityOptions(subsamples=2, points=2, by=options.get("by", "rows"))
            )


def test_a_class_of_one_row_has_cures_that_the_command_takes():
    """Folds by rows need no by=rows, and halves are no folds."""
    settings = config("algo=centralized", "data.task=multiclass", y=np.where(np.arange(36) == 5, 2, np.arange(36) % 2))
    for by, cure in (("rows", ": give fewer folds, or leave out"), ("clients", ": give fewer folds, or by=rows, or")):
        with fails("class '2' has 1 of 36 training rows", cure):
            plan_selection(settings, SelectOptions(**{"folds": 3, "points": 2, "by": by}))
    for by, cure in (("rows", ": add such rows, or leave out"), ("clients", ": give by=rows, or leave out")):
        with fails("class '2' has 1 of 36 training rows", cure):
            plan_stability(settings, StabilityOptions(**{"subsamples": 2, "points": 2, "by": by}))


@pytest.mark.slow
def test_folds_in_which_other_clients_have_weight_held_out():
    """Quantiles over clients are over the clients with held-out rows of weight: they differ between folds."""
    index = np.arange(36) % 12
    settings = config(
        "algo=local", "data.weight=k", "algo.client_lr=0.05", k=np.where((index == 0) & (OWNER == "a"), 0, 1)
    )
    experiment = prepare(settings)
    data = load_data(experiment)
    makers = [lambda at=at: take_subset(data, index != at, index == at) for at in (1, 0)]
    together, one_by_one = [], []
    for groups, fits in (([makers], together), ([[maker] for maker in makers], one_by_one)):
        for group in groups:
            fitter = PathFitter(
                experiment, data, RegularizationPath("strength", np.array([0.1, 0.01])), data.train.sizes
            )
            fits.extend(fitter.fit(group))
    for one, other in zip(together, one_by_one, strict=True):
        for name, values in other.metrics.items():
            np.testing.assert_allclose(one.metrics[name], values, rtol=1e-6, err_msg=name)


@pytest.mark.slow
def test_the_gap_of_a_fold_is_that_of_its_rows():
    experiment = prepare(config("algo=fedavg", "algo.client_lr=0.05", "gap=true", "precision=float64", "tail_rounds=1",
                                "data.weight=k", k=np.arange(36) % 3 + 1))  # fmt: skip
    data, fits, strengths = load_data(experiment), [], np.array([0.3, 0.1])
    subset = take_subset(data, np.arange(36) % 3 > 0, np.arange(36) % 3 == 0)
    fitter = PathFitter(experiment, data, RegularizationPath("strength", strengths), data.train.sizes)
    fits.extend(fitter.fit([lambda: subset]))
    for i, strength in enumerate(strengths):
        problem = build_problem(experiment.with_resolved(reg=L1(float(strength))), subset.data)
        with jax.enable_x64(True):
            batch = gather_rows(subset.data, "examples")
            w = Vector({name: jnp.asarray(values[i]) for name, values in fits[0].solution.items()})
            gap = float(pooled_gap(problem, w, fits[0].metrics["objective"][i], batch))
        assert fits[0].metrics["gap"][i] == pytest.approx(gap, rel=1e-10)


@pytest.mark.slow
def test_a_baseline_with_a_relative_strength_keeps_its_certificate(monkeypatch):
    """Like a baseline with reg.strength: the certificate is a duality gap, which needs a strength."""
    compile_programs, gaps = solver.compile_programs, []
    monkeypatch.setattr("fcorun.studies.selection.fitting.has_path_solver", lambda *_: False)
    monkeypatch.setattr(
        solver,
        "compile_programs",
        lambda problem, count: gaps.append(has_duality_gap(problem, count)) or compile_programs(problem, count),
    )
    means = []
    for name in ("reg.strength", "reg.relative"):
        settings = config("algo=centralized", f"{name}=0.1")
        experiment = prepare(settings)
        data, fits = load_data(experiment), []
        fitter = PathFitter(experiment, data, RegularizationPath("strength", np.array([0.5, 0.05])), data.train.sizes)
        held_out = np.arange(36) % 3 == 0
        fits.extend(fitter.fit([lambda data=data, held_out=held_out: take_subset(data, ~held_out, held_out)]))
        means.append(fits[0].metrics["val_loss"])
    assert gaps == [True, True]
    np.testing.assert_array_equal(*means)


@pytest.mark.slow
def test_another_choice_replaces_the_refit(monkeypatch, capsys):
    """The old refit is replaced; until the new one is complete, no model predicts."""
    new = config("algo=centralized")
    selection = select(new, SelectOptions(folds=3, points=4), "out")
    before = not_none(selection.record).status["identity"]
    index = (selection.choice.chosen_index + 1) % 4
    other_choice = replace(selection.choice, chosen_index=index)
    monkeypatch.setattr("fcorun.studies.selection.select.choose", lambda *_, **__: other_choice)

    def broken(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fcorun.studies.selection.study.run_experiments", broken)
        with pytest.raises(KeyboardInterrupt):
            select(new, SelectOptions(folds=3, points=4, rule="one_se"), "out")
    assert main(["predict", "out", "rows.csv"]) == 2
    assert "not done" in capsys.readouterr().err

    again = select(new, SelectOptions(folds=3, points=4, rule="one_se"), "out")
    assert Record(Path("out/refit")).status["identity"] == not_none(again.record).status["identity"] != before
    assert (
        not_none(again.record).config["reg"]["strength"] == json.loads(Path("out/selection.json").read_text())["chosen"]
    )
    assert [path.name for path in Path("out").glob("refit*")] == ["refit"]
    assert main(["predict", "out", "rows.csv"]) == 0
    ordinary = run(not_none(again.record).config, "own")
    np.testing.assert_array_equal(not_none(again.record).solution["weights"], ordinary.solution["weights"])


@pytest.mark.slow
def test_algorithms_without_a_global_model():
    settings = config("algo=local", "algo.client_lr=0.05")
    with fails("algo=local", "trains personal models and no shared one", "by=rows"):
        plan_selection(settings, SelectOptions(folds=3, points=2, by="clients"), "out")
    with fails("algo=local", "trains personal models and no shared one", "choose another algo"):
        plan_stability(settings, StabilityOptions(subsamples=2, points=2))
    planned = plan_selection(settings, SelectOptions(folds=2, points=2), "out")
    assert any("there is no path.csv" in line for line in planned.messages)
    planned.run()
    assert not Path("out/path.csv").exists()
    assert "nonzeros" not in pd.read_csv("out/curve.csv")
    plan_selection(config("algo=pfedmac_s"), SelectOptions(folds=3, points=2, by="clients"), "mixed")


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["deviance", "val_deviance"])
def test_a_metric_that_the_objective_declares(metric):
    settings = config("algo=centralized", "objective=poisson", f"metric={metric}", y=np.arange(36) % 5)
    assert plan_selection(settings, SelectOptions(folds=3, points=2)).metric == "val_deviance"


@pytest.mark.slow
@pytest.mark.drawn
@pytest.mark.parametrize(("command", "option"), [("select", "folds=3"), ("stability", "subsamples=2")])
def test_a_study_leaves_its_page(command, option, capsys):
    config()
    arguments = [
        "algo=centralized",
        "data=table",
        "data.path=rows.csv",
        "data.target=y",
        "data.client=site",
        "points=3",
        option,
    ]
    assert main([command, *arguments, "out=out", "report=false"]) == 0
    assert not Path("out/report.html").exists()
    assert main([command, *arguments, "out=out", "dry_run=true"]) == 0
    assert not Path("out/report.html").exists()
    assert main([command, *arguments, "out=out"]) == 0
    text = Path("out/report.html").read_text()
    assert f"{command} algo=centralized data=table" in text
    assert "report.html in out/" in capsys.readouterr().out
