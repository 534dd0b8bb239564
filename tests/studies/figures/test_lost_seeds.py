"""Figures with methods whose runs with further seeds were lost, or had not converged."""

import json
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from fake_records import fake_config, fake_record, fake_rows

from fcorun.base.records.contents import SUMMARY
from fcorun.base.records.record import load_records
from fcorun.interface.cli.commands import main
from fcorun.reports.build_table import build_table
from fcorun.studies.figures import claims, reproduce
from fcorun.studies.figures.spec import Figure

FIGURE = """# @package _global_
# Of nobody.
metric: support_f1
hydra: {sweeper: {params: {algo: "fedavg,fedmid"}}}
figure:
  title: Mine
  seeds: [1, 2]
  panels: [support_f1]
  claims: [{says: better, algo: fedmid, metric: support_f1, above: [fedavg], note: known}]
"""
SUFFICES = {"fedmid": {0: 0.1, 1: 0.2, 2: 0.3}, "fedavg": {0: 0.4, 1: 0.5, 2: 0.6}}


def load_swept(sweep, folder):
    """Return the table of the records of a sweep that was not run, whose points the figure sees."""
    records = load_records(folder)
    points = []
    for i, record in enumerate(records):
        point = {"folder": record.folder, "overrides": "algo=fedavg", "experiment": None, "combinations": [i]}
        points.append(SimpleNamespace(**point))
    sweep.keywords["check"](points, ())
    return build_table(records, root=folder)


@pytest.fixture
def made(monkeypatch, capsys):
    """Return a function that makes a figure of fake records.

    The function returns the exit code, the output, the first row of claims.csv, and table.csv. Runs of fedmid with
    further seeds have the status ``end``. Set ``broke`` for runs whose configuration could not be composed.
    """

    def make(end="done", broke=False, given=(), **more):
        def swept(sweep, folder, overrides):
            seeds = [1, 2] if folder.name == "seeds" else [0]
            for algo, levels in SUFFICES.items():
                for seed in seeds:
                    status = end if seed and algo == "fedmid" else "done"
                    record_folder = folder / f"{algo}-{seed}"
                    fake_record(record_folder, fake_config(algo, seed=seed), fake_rows(levels[seed], **more), status)
                    if broke and status == "failed":
                        (record_folder / "config.yaml").unlink()
            return load_swept(sweep, folder)

        monkeypatch.setattr("fcorun.studies.figures.reproduce._run_sweep", swept)
        Path("myconf/experiment").mkdir(parents=True)
        Path("myconf/experiment/mine.yaml").write_text(FIGURE)
        code = main(["figure", "mine", "--config-dir", "myconf", "--out", "here", *given])
        (folder,) = Path("here").glob("mine*")
        tables = [pd.read_csv(folder / f"{name}.csv", keep_default_na=False) for name in ("claims", "table")]
        return code, capsys.readouterr().out, tables[0].iloc[0], tables[1].set_index("algo")

    return make


@pytest.mark.slow
def test_a_figure_without_lost_seeds(made):
    code, out, claim, summary = made()
    assert code == 0
    assert "seeds:" not in out
    assert (claim["holds"], claim["test"]) == ("yes", "the same sign in each of 3 seeds of cohorts")
    assert claim["best_by"] == "support_f1"
    assert list(summary["seeds_lost"]) == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("broke", [False, True], ids=["while running", "before it began"])
def test_failed_seeds_are_reported_and_one_seed_proves_no_claim(made, broke):
    code, out, claim, summary = made("failed", broke)
    assert code == 1
    assert "fedmid has 1 of 3 seeds: 2 of its runs failed" in out
    assert claim["holds"] == "not distinguishable"
    assert claim["note"] == "fedmid failed with 2 of 3 seeds; known"
    assert claim["test"] == "the same sign in each of the 1 common seed of cohorts: too few"
    assert (summary.loc["fedmid", "seeds_lost"], summary.loc["fedavg", "seeds_lost"]) == (2, 0)


@pytest.mark.slow
def test_unconverged_runs_are_reported(made, monkeypatch):
    """The output of the command and the notes of claims name them, whether the claims hold or not."""

    def summary(record):
        falling = {"fell": 0.1} if record.folder.name.startswith("fedavg") else None
        near = {"near": False, "above": 0.2} if record.folder.name == "fedmid-1" else None
        return SUMMARY.read(record.folder) | {"unfinished": falling, "certificate": near}

    monkeypatch.setattr("fcorun.base.records.record.Record.summary_or_empty", property(summary))
    monkeypatch.setattr("fcorun.reports.build_table._read_optimum", lambda *_: float("nan"))
    code, out, claim, _ = made()
    assert code == 0
    assert "above the optimum's objective: fedmid 20 %\n" in out
    assert "still falling at the end, so more rounds or larger rates may help: fedavg\n" in out
    assert claim["holds"] == "yes"
    assert claim["note"] == "ended above the optimum: fedmid; still falling at the end: fedavg"
    assert "of what does not hold" not in out


@pytest.mark.slow
def test_diverged_seeds_are_a_result(made):
    code, out, _, summary = made("diverged")
    assert code == 0
    assert "fedmid has 1 of 3 seeds: 2 of its runs diverged" in out
    assert summary.loc["fedmid", "seeds_lost"] == 2


def test_points_are_judged_by_the_runs_that_are_done(tmp_path, monkeypatch):
    """Failed runs of the grid and lost seeds count for their own point and problem alone."""
    given = {}

    def swept(sweep, folder, overrides):
        given[folder.name] = overrides
        seeds = [2] if folder.name == "seeds" else [0, 1]
        for clients, rate in ((4, 0.1), (8, 0.2)):
            for seed in seeds:
                status = "failed" if (clients, seed) in ((4, 1), (8, 2)) else "done"
                settings = fake_config("fedavg", seed=seed, data__clients=clients, algo__client_lr=rate)
                fake_record(folder / f"{clients}-{seed}", settings, fake_rows(0.1 * seed), status)
        return load_swept(sweep, folder)

    monkeypatch.setattr(reproduce, "_run_sweep", swept)
    figure = Figure("t", seeds=[0, 2])
    inputs = reproduce._run_figure(lambda _: None, figure, "support_f1", tmp_path, ["algo.mu=1", "rounds=40"])
    assert given["seeds"][0] == "rounds=40"  # the jobs choose the algorithm
    assert inputs.unfinished_points == 1
    assert set(inputs.tuned.frame["status"]) == {"done"}
    names = [record.folder.name for record in inputs.records]
    assert sorted(names) == ["4-0", "4-1", "4-2", "8-0", "8-1"]  # 8-2 has failed
    runs = claims.collect_measurements(inputs).runs["fedavg"]
    assert [seed for seed, rows in runs if rows] == [(0,), (0,), (1,), (2,)]
    table = reproduce._tabulate_best(inputs).set_index("data.clients")
    assert table["client_lr"].to_dict() == {4: 0.1, 8: 0.2}
    assert table["seeds_lost"].to_dict() == {4: 0, 8: 1}


def test_the_figure_names_its_metric_the_edges_of_its_grid_and_lost_seeds(tmp_path, monkeypatch):
    """Best points lie at the edge of the grid alone, which the table of best points does not have."""

    def swept(sweep, folder, overrides):
        for rate, seed, status in [(0.2, 1, "diverged")] if folder.name == "seeds" else [(0.1, 0, ""), (0.2, 0, "")]:
            settings = fake_config("fedmid", seed=seed, algo__client_lr=rate)
            fake_record(folder / f"{rate}-{seed}", settings, fake_rows(1 - rate), status or "done")
        return load_swept(sweep, folder)

    monkeypatch.setattr(reproduce, "_run_sweep", swept)
    inputs = reproduce._run_figure(lambda _: None, Figure("t", seeds=[0, 1]), "support_f1", tmp_path, [])
    (edge,) = inputs.best_view.grid_edges()
    assert (edge.algo, edge.key, edge.is_largest) == ("fedmid", "algo.client_lr", True)
    assert inputs.best_view.list_settings("fedmid") == ["algo.client_lr"]  # tuned, for the legend
    caption = "Best by support_f1. At an edge of the grid: fedmid (algo.client_lr=0.2)."
    assert reproduce._describe_best_points(inputs) == caption
    assert inputs.lost_seeds_notes == {"fedmid": "fedmid diverged with 1 of 2 seeds"}


def test_the_table_has_the_rates_of_each_algorithm(tmp_path, monkeypatch):
    grid = [fake_config("mine", algo__step=1), fake_config("mine", algo__step=2), fake_config("fedmid")]
    for settings in grid[:2]:
        del settings["algo"]["server_lr"]

    def swept(sweep, folder, overrides):
        for i, settings in enumerate(grid if folder.name == "runs" else [grid[0] | {"seed": 2}]):
            fake_record(folder / str(i), settings, fake_rows(0.1 + i))
        return load_swept(sweep, folder)

    monkeypatch.setattr(reproduce, "_run_sweep", swept)
    inputs = reproduce._run_figure(lambda _: None, Figure("t", seeds=[0, 2]), "support_f1", tmp_path, [])
    table = reproduce._tabulate_best(inputs)
    assert [*table][:5] == ["algo", "client_lr", "server_lr", "algo.step", "seeds"]
    assert table.set_index("algo").loc["mine", ["client_lr", "algo.step"]].to_list() == [0.1, 1]


NOTHING = [
    (),
    ("x=bytes", "style=slides", "verbose=false"),
    ("hydra.launcher.executor=dask", "hydra.launcher.dask={jobs: 2}", "tracker=none"),
]
OTHERS = [
    ("metric=objective",),
    ("tail_rounds=5",),
    ("seed=3", "metric=objective"),
    ("hydra.sweeper.params.seed=3",),
    ("--fast",),
]


@pytest.mark.slow
@pytest.mark.parametrize("given", [*NOTHING, *OTHERS], ids=lambda given: " ".join(given) or "nothing")
def test_another_metric_or_seed_makes_another_figure(made, given):
    """The other figure has a folder of its own and no notes; options of drawing and of workers make no other."""
    _, out, claim, _ = made(given=given, support_f1=0.1)  # equal values: not distinguishable, as the note explains
    (folder,) = Path("here").glob("mine*")
    about = json.loads((folder / "figure.json").read_text())
    assert claim["holds"] == "not distinguishable"
    assert (about["name"], about["title"], about["about"], about["ours"]) == ("mine", "Mine", "Of nobody.", False)
    if given in NOTHING:
        assert (folder.name, claim["note"], claim["changed"], about["changed"]) == ("mine", "known", "", "")
        assert "of what does not hold: known" in out
    else:
        changed = " ".join(sorted(text.replace("--", "") for text in given))
        assert (claim["note"], claim["changed"]) == ("", changed)
        assert folder.name.startswith("mine-")
        assert about["changed"] == ("fast version:" if given == ("--fast",) else f"with {changed}")
