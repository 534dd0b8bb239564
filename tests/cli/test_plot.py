"""fcorun plot, on records that are made up."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from fake_records import fake_config, fake_grid, fake_record, fake_rows

from fcorun.metrics import Metric


def test_plot_draws_again(call):
    there = fake_grid("s", seeds=(0,), client=(0.1, 0.2))
    fake_record("s/failed-1", status="failed")
    code, out, err = call("plot", "s", "s")
    assert (code, err) == (0, "")
    assert all((r.folder / "curves.png").read_bytes().startswith(b"\x89PNG") for r in there)
    assert not Path("s/failed-1/curves.png").exists()
    assert {path.name for path in Path("s").glob("*.png")} == {"rates.png", "best.png", "structure.png"}
    assert out.splitlines()[-1] == "8 curves.png"


def test_plot_of_one_record_is_its_curves(call):
    fake_record("s/a")
    assert call("plot", "s/a")[1] == "1 curves.png\n"
    assert not list(Path("s").glob("*.png"))


def test_plot_says_what_is_left_out(call, monkeypatch):
    for name in ("_draw_record", "draw_sweep"):
        monkeypatch.setattr(f"fcorun.cli.commands.plot.{name}", lambda *_, **__: [])
    for name in ("a", "b", "c"):
        fake_record(f"s/{name}", fake_config(algo__client_lr=0.2 if name == "c" else 0.1))
    for more in ((), ("--out", "together")):
        out = call("plot", "s", *more)[1]
        assert out.count("1 of 3 records are of other code or other data than one of the same configuration") == 1
    shutil.copytree("s/a", "s/d")
    for more in ((), ("--out", "together")):
        out = call("plot", "s", *more)[1]
        assert "1 of 4 records are of a run that another folder holds too: left out; 1 of 3 other records" in out


def test_plot_of_several_folders_together(call):
    fake_grid("s", algos=("feddualavg",), seeds=(0,))
    fake_grid("t", algos=("fedmid",), seeds=(0,))
    code, out, err = call("plot", "s", "t", "--out", "both/together")
    assert (code, err) == (0, "")
    assert sorted(out.split()) == [f"both/together/{name}" for name in FILES_OF_BOTH]
    assert sorted(path.name for path in Path("both/together").iterdir()) == FILES_OF_BOTH
    assert set(pd.read_csv("both/together/results.csv")["algo"]) == {"feddualavg", "fedmid"}
    assert not list(Path("s").rglob("*.png"))
    assert call("plot", "s", "t", "--out", "both/together", "--force")[0] == 0


FILES_OF_BOTH = ["best.png", "rates.png", "results.csv", "structure.png"]


def pictures():
    """The pictures of the folder s and below it."""
    return {str(path): path.read_bytes() for path in Path("s").rglob("*.png")}


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


def test_a_metric_of_a_users_objective(call):
    own = Metric("val_deviance", "validation deviance", higher=False, log=True)
    for rate, level in ((0.1, 3.0), (0.2, 1.0)):
        fake_record(f"s/{rate}", fake_config(algo__client_lr=rate), fake_rows(val_deviance=level), metrics=[own])
    fake_record("s/old", fake_config("fedmid"), fake_rows(2.0))  # of before metrics were noted
    code, out, err = call("results", "s", "--metric", "val_deviance")
    assert (code, err) == (0, "")
    assert [line.split()[1:3] for line in out.splitlines() if line.startswith("* ")][:1] == [["feddualavg", "0.2"]]
    assert "by val_deviance" in out.splitlines()[-2]
    assert call("plot", "s", "--metric", "val_deviance")[0] == 0
    assert {path.name for path in Path("s").glob("*.png")} == {"rates.png", "best.png", "structure.png"}


def test_plot_against_something_else(call):
    for i, x in enumerate((None, "seconds")):
        settings = fake_config(algo__client_lr=0.1 * (1 + i)) | ({} if x is None else {"x": x})
        fake_record(f"s/{i}", settings, fake_rows(rounds=4000, every=1000, grads=7))
    call("plot", "s")
    told = pictures()  # the first against rounds, as older records without the key, the second against seconds
    assert call("plot", "s", "--x", "rounds")[0] == 0
    rounds = pictures()
    changed = [name for name in told if told[name] != rounds[name]]
    assert changed == ["s/1/curves.png"]  # runs that were told different things are drawn against rounds together
    for x in ("bytes", "grad_evals", "seconds"):
        assert call("plot", "s", "--x", x)[0] == 0
        found = pictures()
        changed = {name for name in rounds if found[name] != rounds[name]}
        assert changed == {"s/0/curves.png", "s/1/curves.png", "s/best.png"}
    assert told["s/1/curves.png"] == pictures()["s/1/curves.png"]


def test_plot_draws_a_sweep_as_it_was_told(call):
    for i in range(2):
        fake_record(f"s/{i}", fake_config(algo__client_lr=0.1 * (1 + i)) | {"x": "bytes"})
    call("plot", "s")
    told = pictures()
    call("plot", "s", "--x", "bytes")
    assert pictures() == told
    call("plot", "s", "--x", "rounds")
    assert pictures()["s/best.png"] != told["s/best.png"]


def test_plot_against_what_was_not_counted(call):
    fake_record("s/a")
    code, _, err = call("plot", "s", "--x", "grad_evals")
    assert code == 2
    assert err.startswith("fcorun: x=grad_evals was not counted in algo=feddualavg data=lasso; choose x as one of")
    assert call("plot", "s", "--x", "prox_evals")[0] == 2  # no choice
