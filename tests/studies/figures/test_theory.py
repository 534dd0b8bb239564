"""Bounds of the theorems beside measured gaps: constants, conditions, picture, checks."""

from types import SimpleNamespace

import numpy as np
import pytest
from fake_records import fake_config, fake_record, fake_rows
from helpers import fails, small

from fcorun import run
from fcorun.experiment import build
from fcorun.experiment.configuration.compose import compose
from fcorun.experiment.prepare import prepare
from fcorun.reports.build_table import build_table
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.papers import fco
from fcorun.studies.figures.reproduce import PICTURES
from fcorun.studies.figures.spec import load_figure


@pytest.mark.slow
def test_constants_of_the_theorems():
    """Compare constants with their definitions on full batches, which have no variance."""
    config = small("clients_per_round=null", "batch_size=null", "local_epochs=null", "local_steps=3", "reg=none",
                   "data.features=3", "data.nonzeros=2", "data.samples=200", "data.clients=4")  # fmt: skip
    experiment = prepare(config)
    data = build.load_data(experiment)
    constants = fco.compute_constants(experiment, data)
    assert (constants.M, constants.K) == (4, 3)
    assert constants.variance == pytest.approx(0, abs=1e-12)
    x = np.column_stack([data.train.x, np.ones(len(data.train.y))]).astype(float)
    best = np.linalg.lstsq(x, data.train.y.astype(float), rcond=None)[0]
    assert pytest.approx(best @ best / 2, rel=1e-6) == constants.B
    hessians = [2 * x[i : i + 200].T @ x[i : i + 200] / 200 for i in range(0, 800, 200)]
    assert pytest.approx(max(np.linalg.eigvalsh(h)[-1] for h in hessians)) == constants.L
    mean = np.mean(hessians, axis=0)
    for h in hessians:  # H <= L_norm Q / ||Q||
        assert np.linalg.eigvalsh(constants.L_norm * mean / np.linalg.eigvalsh(mean)[-1] - h)[0] >= -1e-9
    assert constants.L_norm >= constants.L * 0.999


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["objective.intercept=false"],
            "need least squares with an intercept (objective.intercept=true), and no ridge",
        ),
        (["algo=fedmid"], "are those of algo=feddualavg with mirror=euclidean, topology=star and messages"),
        (["mirror=hypentropy"], "are those of algo=feddualavg with mirror=euclidean"),
        (["uplink=topk"], "and messages that are not compressed"),
        (["objective.ridge=0.1"], "need least squares with an intercept (objective.intercept=true), and no ridge"),
        (["data.features=30", "data.samples=5", "data.nonzeros=2"], "need a Hessian that is invertible"),
    ],
)
def test_other_problems_than_plain_least_squares_are_refused(overrides, sentence):
    config = small("clients_per_round=null", "batch_size=null", "reg=none", "data.clients=3", *overrides)
    experiment = prepare(config)
    with fails(sentence):
        fco.compute_constants(experiment, build.load_data(experiment))


def test_runs_of_other_problems_have_no_bounds_in_common():
    runs = [fake_record(str(k), fake_config(reg__strength=k, algo__client_lr=k)) for k in (1, 2)]
    with fails("differ in client_lr and server_lr alone, and these differ in reg.strength"):
        fco.select_fastest_runs(runs)


def test_the_fastest_run_stays_at_the_target(monkeypatch):
    gaps = {30.0: [1, 1, 0.09, 0.3, 0.2], 10.0: [1, 1, 0.5, 0.09, 0.05]}
    runs = []
    for rate, of_rate in gaps.items():
        rows = [{**row, "suboptimality": gap} for row, gap in zip(fake_rows(), of_rate, strict=True)]
        runs.append(fake_record(str(rate), fake_config(algo__server_lr=rate), rows))
    monkeypatch.setattr(fco, "prepare", lambda _: SimpleNamespace(fingerprint=""))
    monkeypatch.setattr(fco, "_compute_constants_once", lambda *_: None)
    monkeypatch.setattr(fco, "compute_bounds", lambda *_: {})
    ((fastest, *_),) = fco.select_fastest_runs(runs)
    assert fastest.config["algo"]["server_lr"] == 10


def test_bounds_apply_where_the_theorems_say():
    c = fco.BoundConstants(1.0, 4, 5, 2.0, 3.0, 1.0, 1.0, 1.0, 1.0)
    rounds = np.array([1.0, 10.0])
    assert set(fco.compute_bounds(c, 0.01, 1.0, rounds)) == {"theorem 4.1", "theorem 4.2", "theorem 4.3"}
    assert set(fco.compute_bounds(c, 0.01, 5.0, rounds)) == {"theorem 4.1"}
    assert set(fco.compute_bounds(c, 0.1, 1.0, rounds)) == {"theorem 4.1", "theorem 4.2"}
    np.testing.assert_allclose(fco.compute_bounds(c, 0.1, 1.0, rounds)["theorem 4.1"], 1 / (0.5 * rounds) + 0.5 / 20)


@pytest.mark.slow
def test_the_gap_beside_its_bounds(tmp_path):
    """Each client_lr has a panel, at the server_lr that reaches a small gap first; checks are about the same runs."""
    small = ("data.clients=3", "data.samples=40", "data.features=4", "data.nonzeros=2", "rounds=20")
    records = [
        run(
            compose(["+experiment=fco_rates", *small, f"algo.client_lr={c}", f"algo.server_lr={s}"]),
            tmp_path / f"{c}_{s}",
        )
        for c, s in ((1e-4, 1), (1e-4, 10), (1e-3, 1), (1e-3, 0.3))
    ]
    runs = build_table(records)
    inputs = FigureInputs(
        load_figure("fco_rates")[0], "suboptimality", runs, records, tuned=runs, tuned_records=records
    )
    chosen = fco.select_fastest_runs(records)
    assert [record.config["algo"]["server_lr"] for record, *_ in chosen] == [10, 1]
    for ax, (record, rounds, gaps, bounds) in zip(PICTURES["rates"](inputs).axes, chosen, strict=True):
        assert f"{record.config['algo']['client_lr']:g}" in ax.get_title()
        np.testing.assert_array_equal(ax.lines[0].get_data(), (rounds, gaps))
        np.testing.assert_array_equal(gaps, [row["suboptimality"] for row in record.rows[1:]])
        assert [line.get_label() for line in ax.lines[1:]] == [f"bound of {name}" for name in bounds]
        assert len(bounds) > 0
    *bounded, first = fco.check_bounds(records)
    assert {row["holds"] for row in bounded} == {"yes"}
    assert "with client_lr=0.0001, server_lr=10: " in first["measured"]


def test_the_first_of_one_client_rate_is_not_measured(monkeypatch):
    record = SimpleNamespace(config={"algo": {"client_lr": 0.1, "server_lr": 1.0}})
    gaps = np.array([1.0, 0.05])
    monkeypatch.setattr(fco, "select_fastest_runs", lambda records: [(record, np.array([1.0, 2.0]), gaps, {})])
    (row,) = fco.check_bounds([])
    assert row["holds"] == "not measured"


def test_the_largest_client_rate_is_that_of_all_runs(monkeypatch):
    """A diverged run never comes to the gap, and a failed run decides nothing."""
    gaps = {1e-3: [1.0, 1.0], 1e-2: [1.0, 0.05]}
    records = [fake_record(str(rate), fake_config(algo__client_lr=rate)) for rate in gaps]
    fastest = [(record, np.array([1.0, 2.0]), np.array(gaps[record.config["algo"]["client_lr"]]), {})
               for record in records]  # fmt: skip
    monkeypatch.setattr(fco, "select_fastest_runs", lambda _: fastest)
    (row,) = fco.check_bounds(records)
    assert row["holds"] == "yes"
    (row,) = fco.check_bounds([*records, fake_record("0.1", fake_config(algo__client_lr=0.1), status="diverged")])
    assert (row["holds"], row["measured"][-29:]) == ("no", "; diverged with client_lr=0.1")
    (row,) = fco.check_bounds([*records, fake_record("0.2", fake_config(algo__client_lr=0.2), status="failed")])
    assert (row["holds"], row["note"]) == ("not decided", "1 of 3 runs failed")
