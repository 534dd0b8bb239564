"""fcorun plot, on records written without a run."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from fake_records import fake_config, fake_grid, fake_record, fake_rows

from fcorun.base.metrics import Metric
from fcorun.base.records.sweep_settings import SweepSettings, save_settings


@pytest.mark.slow
def test_plot_draws_the_pictures_of_records_and_sweeps(call):
    records = fake_grid("s", seeds=(0,), client=(0.1, 0.2), server=(1.0,))
    fake_record("s/failed-1", status="failed")
    code, out, err = call("plot", "s", "s")
    assert (code, err) == (0, "")
    assert all((r.folder / "curves.png").read_bytes().startswith(b"\x89PNG") for r in records)
    assert not Path("s/failed-1/curves.png").exists()
    assert {path.name for path in Path("s").glob("*.png")} == {"rates.png", "best.png", "structure.png"}
    assert out.splitlines()[-1] == "4 curves.png"


@pytest.mark.slow
def test_plot_of_one_record_draws_its_curves(call):
    fake_record("s/a")
    assert call("plot", "s/a")[1] == "1 curves.png\n"
    assert not list(Path("s").glob("*.png"))


def test_plot_names_superseded_records(call, monkeypatch):
    for name in ("_draw_record", "draw_sweep"):
        monkeypatch.setattr(f"fcorun.interface.cli.commands.plot_command.{name}", lambda *_, **__: [])
    for name in ("a", "b", "c"):
        fake_record(f"s/{name}", fake_config(algo__client_lr=0.2 if name == "c" else 0.1))
    for more in ((), ("--out", "together")):
        out = call("plot", "s", *more)[1]
        assert out.count("1 of 3 records have the configuration of a run that was finished or asked for later") == 1
    shutil.copytree("s/a", "s/d")
    for more in ((), ("--out", "together")):
        out = call("plot", "s", *more)[1]
        assert "1 of 4 records are of a run that another folder holds too: left out; 1 of 3 other records" in out


@pytest.mark.slow
def test_plot_draws_several_folders_together(call):
    fake_grid("s", algos=("feddualavg",), seeds=(0,))
    fake_grid("t", algos=("fedmid",), seeds=(0,))
    code, out, err = call("plot", "s", "t", "--out", "both/together")
    assert (code, err) == (0, "")
    assert sorted(out.split()) == [f"both/together/{name}" for name in JOINT_FILES]
    assert sorted(path.name for path in Path("both/together").iterdir()) == JOINT_FILES
    assert set(pd.read_csv("both/together/results.csv")["algo"]) == {"feddualavg", "fedmid"}
    assert not list(Path("s").rglob("*.png"))
    assert call("plot", "s", "t", "--out", "both/together", "--force")[0] == 0


JOINT_FILES = ["best.png", "rates.png", "results.csv", "structure.png"]


def pictures():
    """Return the pictures in and below the folder s."""
    return {str(path): path.read_bytes() for path in Path("s").rglob("*.png")}


@pytest.mark.slow
@pytest.mark.parametrize("format", ["pdf", "svg"])
def test_plot_in_another_format(call, format):
    fake_grid("s", algos=("feddualavg",), seeds=(0,), client=(0.2, 0.5))
    _, out, err = call("plot", "s", "--format", format)
    assert err == ""
    assert {path.name for path in Path("s").rglob(f"*.{format}")} == {
        f"{kind}.{format}" for kind in ("curves", "rates", "best", "structure")
    }
    assert out.splitlines()[-1] == f"4 curves.{format}"
    assert not list(Path("s").rglob("*.png"))
    assert call("rm", "s", "--status", "done", "--status", "diverged", "--yes")[0] == 0
    assert not [path for path in Path("s").iterdir() if path.is_dir()]


@pytest.mark.slow
def test_a_metric_of_a_users_objective(call):
    metric = Metric("val_deviance", "validation deviance", higher=False, log=True)
    for rate, level in ((0.1, 3.0), (0.2, 1.0)):
        fake_record(f"s/{rate}", fake_config(algo__client_lr=rate), fake_rows(val_deviance=level), metrics=[metric])
    fake_record("s/old", fake_config("fedmid"), fake_rows(2.0))  # declares no metric
    code, out, err = call("results", "s", "--metric", "val_deviance")
    assert (code, err) == (0, "")
    assert [line.split()[1:3] for line in out.splitlines() if line.startswith("* ")][:1] == [["feddualavg", "0.2"]]
    assert "by val_deviance" in out.splitlines()[-2]
    assert call("plot", "s", "--metric", "val_deviance")[0] == 0
    assert {path.name for path in Path("s").glob("*.png")} == {"rates.png", "best.png", "structure.png"}


@pytest.mark.slow
def test_plot_against_another_axis(call):
    for i, x in enumerate((None, "seconds")):
        settings = fake_config(algo__client_lr=0.1 * (1 + i)) | ({} if x is None else {"x": x})
        fake_record(f"s/{i}", settings, fake_rows(rounds=4000, every=1000, grads=7))
    call("plot", "s")
    before = pictures()  # the first run has the default x=rounds, the second x=seconds
    assert call("plot", "s", "--x", "rounds")[0] == 0
    rounds = pictures()
    changed = [name for name in before if before[name] != rounds[name]]
    assert changed == ["s/1/curves.png"]  # a sweep whose runs differ in x is drawn against rounds
    for x in ("grad_evals", "seconds"):  # the next test has the bytes
        assert call("plot", "s", "--x", x)[0] == 0
        after = pictures()
        changed = {name for name in rounds if after[name] != rounds[name]}
        assert changed == {"s/0/curves.png", "s/1/curves.png", "s/best.png"}
    assert before["s/1/curves.png"] == pictures()["s/1/curves.png"]


@pytest.mark.slow
def test_plot_draws_a_sweep_against_the_axis_of_its_runs(call):
    for i in range(2):
        fake_record(f"s/{i}", fake_config(algo__client_lr=0.1 * (1 + i)) | {"x": "bytes"})
    call("plot", "s")
    before = pictures()
    call("plot", "s", "--x", "bytes")
    assert pictures() == before
    call("plot", "s", "--x", "rounds")
    assert pictures()["s/best.png"] != before["s/best.png"]


def test_pictures_of_an_unknown_style_have_that_of_paper(call):
    record = fake_record("s/a", fake_config() | {"style": "paper_5.5"})
    assert record.picture_style == "paper"
    save_settings(Path("s"), SweepSettings(style="paper_5.5"))
    assert call("plot", "s")[0] == 0


def test_an_axis_that_was_not_counted_is_refused(call):
    fake_record("s/a")
    code, _, err = call("plot", "s", "--x", "grad_evals")
    assert code == 2
    assert err.startswith("fcorun: x=grad_evals was not counted in algo=feddualavg data=lasso; choose x as one of")
    assert call("plot", "s", "--x", "prox_evals")[0] == 2  # no choice
