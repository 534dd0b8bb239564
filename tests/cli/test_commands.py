"""fcorun results, plot and rm, and that the command line finds them."""

import shutil
import subprocess
import sys
from pathlib import Path

import filelock
import pandas as pd
import pytest
from fabricate import config, grid, record, rows

from fcorun.cli.commands import COMMANDS, main
from fcorun.metrics import Metric
from fcorun.records.record import Record


@pytest.fixture
def call(capsys):
    """A function that runs a command: its exit code, and what it printed on stdout and stderr."""

    def run(*argv):
        code = main([str(a) for a in argv])
        return (code, *capsys.readouterr())

    return run


def fcorun(*argv, **more):
    """The command in a process of its own."""
    command = [sys.executable, "-W", "error", "-m", "fcorun", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


# ---------------------------------------------------------------- results


def test_results_show_every_run(call):
    there = grid("s")
    record("s/failed-1", status="failed", reason="no")
    code, out, err = call("results", "s")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 3 + len(there) + 1 + 1 + 2  # heads, runs, caption, edges
    marked = [line.split() for line in lines if line.startswith("* fed") or line.startswith("*  fed")]
    assert [words[1:5] for words in marked] == [
        [algo, str(seed), "0.2", "1"] for algo in ("feddualavg", "fedmid") for seed in range(3)
    ]
    assert all(r.folder.name in out for r in there)
    assert "by support_f1; mean over the last 20 rounds; an entry counts above cutoff=0.0001" in lines[-3]


def test_results_judge_as_asked(call):
    grid("s", seeds=(0,))
    _, out, _ = call("results", "s", "--metric", "objective", "--tail-rounds", "10")
    assert "by objective; mean over the last 10 rounds" in out


@pytest.mark.parametrize("name", ["all.csv", "all.parquet"])
def test_results_go_to_a_file(call, name):
    grid("s", seeds=(0,))
    record("s/mixed", config(batch_size="all"))
    assert call("results", "s", "--out", name)[0] == 0
    frame = pd.read_csv(name) if name.endswith("csv") else pd.read_parquet(name)
    assert len(frame) == 13
    one = frame[frame["folder"] == "feddualavg-0-0.2-1.0"].iloc[0]
    assert one["tail_support_f1"] == Record(Path("s/feddualavg-0-0.2-1.0")).summary["tail"]["support_f1"]
    before = Path(name).read_bytes()
    code, _, err = call("results", "s", "--out", name, "--metric", "objective")
    assert (code, err) == (2, f"fcorun: --out {name} exists; give --force to replace it, or another name\n")
    assert Path(name).read_bytes() == before
    assert call("results", "s", "--out", name, "--force", "--tail-rounds", "10")[0] == 0
    assert Path(name).read_bytes() != before


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["results"], "required: DIR"),
        (["results", "nowhere"], "there is no folder nowhere"),
        (["results", "empty"], "empty holds no records"),
        (["results", "s", "--metric", "f2"], "metric=f2 was not measured"),
        (["results", "s", "--metric", "density"], "better in no direction"),
        (["results", "s", "--tail-rounds", "0"], "--tail-rounds: 0 must be a whole number"),
        (["results", "s", "--out", "a.txt"], "--out a.txt must end in .csv, .parquet or .tex"),
        (["results", "s", "--out", "no/a.csv"], "there is no folder no"),
        (["plot", "nowhere"], "there is no folder nowhere"),
        (["plot", "s", "--out", "s"], "--out s holds records, whose own pictures are there"),
        (["plot", "s", "--out", "file"], "--out file is a file"),
        (["plot", "s", "--out", "full"], "--out full exists; give --force"),
        (["plot", "s", "--out", "new", "--metric", "density"], "better in no direction"),
        (["cite"], "required: DIR"),
        (["cite", "nowhere"], "there is no folder nowhere"),
        (["cite", "empty"], "empty holds no records"),
        (["list", "alg"], "list has no group 'alg': did you mean 'algo'?"),
        (["list", "algo", "--config-dir", "no"], "config-dir no: there is no such folder"),
        (["rm", "s"], "required: --status"),
        (["rm", "s", "--status", "bad"], "invalid choice"),
    ],
)
def test_bad_input_is_one_sentence(call, argv, said):
    record("s/a")
    Path("empty").mkdir()
    Path("file").touch()
    Path("full").mkdir()
    Path("full/best.png").touch()
    code, out, err = call(*argv)
    assert (code, out) == (2, "")
    assert err.startswith("fcorun: ")
    assert err.count("\n") == 1
    assert said in err
    assert not Path("new").exists()


def test_results_test_seed_by_seed(call):
    for seed in range(6):
        record(f"s/a{seed}", config(seed=seed), rows(1 + 0.1 * seed))
        record(f"s/b{seed}", config("fedmid", seed=seed), rows(2 + 0.3 * seed))
    _, out, _ = call("results", "s", "--metric", "objective", "--paired")
    (line,) = [line for line in out.splitlines() if line.startswith("feddualavg - fedmid")]
    assert line.split()[3:] == ["6", "-1.875", "6", "of", "6", "0.03125", "0.03125"]
    _, out, _ = call("results", "s/a0", "s/b0", "--paired")
    assert "too few seeds" in out
    assert "no two algorithms" in call("results", "s/a0", "s/a1", "--paired")[1]


def test_the_best_points_go_into_a_paper(call):
    grid("s")
    assert call("results", "s", "--out", "table.tex")[0] == 0
    assert Path("table.tex").read_text().count("&") == 15  # heads and two algorithms


def test_a_run_that_lies_in_two_folders_counts_once(call):
    grid("s", seeds=(0,))
    shutil.copytree("s", "t")
    record("t/more", config("fedavg"))
    _, out, _ = call("results", "s", "t", "--out", "all.csv")
    assert "12 of 25 records are of runs that lie here twice: left out" in out
    assert len(pd.read_csv("all.csv")) == 13
    assert "twice" not in call("results", "t")[1]


# ---------------------------------------------------------------- plot


def test_plot_draws_again(call):
    there = grid("s", seeds=(0,))
    record("s/failed-1", status="failed")
    code, out, err = call("plot", "s", "s")
    assert (code, err) == (0, "")
    assert all((r.folder / "curves.png").read_bytes().startswith(b"\x89PNG") for r in there)
    assert not Path("s/failed-1/curves.png").exists()
    assert {path.name for path in Path("s").glob("*.png")} == {"rates.png", "best.png", "structure.png"}
    assert out.splitlines()[-1] == "12 curves.png"


def test_plot_of_one_record_is_its_curves(call):
    record("s/a")
    assert call("plot", "s/a")[1] == "1 curves.png\n"
    assert not list(Path("s").glob("*.png"))


def test_plot_of_several_folders_together(call):
    grid("s", algos=("feddualavg",), seeds=(0,))
    grid("t", algos=("fedmid",), seeds=(0,))
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
    grid("s", seeds=(0,))
    _, out, err = call("plot", "s", "--format", format)
    assert err == ""
    assert {path.name for path in Path("s").rglob(f"*.{format}")} == {
        f"{kind}.{format}" for kind in ("curves", "rates", "best", "structure")
    }
    assert out.splitlines()[-1] == f"12 curves.{format}"
    assert not list(Path("s").rglob("*.png"))
    assert call("rm", "s", "--status", "done", "--status", "diverged", "--yes")[0] == 0
    assert not [path for path in Path("s").iterdir() if path.is_dir()]


def test_a_metric_of_a_users_objective(call):
    own = Metric("val_deviance", "validation deviance", higher=False, log=True)
    for rate, level in ((0.1, 3.0), (0.2, 1.0)):
        record(f"s/{rate}", config(algo__client_lr=rate), rows(val_deviance=level), metrics=[own])
    record("s/old", config("fedmid"), rows(2.0))  # of before metrics were noted
    code, out, err = call("results", "s", "--metric", "val_deviance")
    assert (code, err) == (0, "")
    assert [line.split()[1:3] for line in out.splitlines() if line.startswith("* ")][:1] == [["feddualavg", "0.2"]]
    assert "by val_deviance" in out.splitlines()[-2]
    assert call("plot", "s", "--metric", "val_deviance")[0] == 0
    assert {path.name for path in Path("s").glob("*.png")} == {"rates.png", "best.png", "structure.png"}


def test_plot_against_something_else(call):
    for i, x in enumerate((None, "seconds")):
        settings = config(algo__client_lr=0.1 * (1 + i)) | ({} if x is None else {"x": x})
        record(f"s/{i}", settings, rows(rounds=4000, every=1000, grads=7))
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
        record(f"s/{i}", config(algo__client_lr=0.1 * (1 + i)) | {"x": "bytes"})
    call("plot", "s")
    told = pictures()
    call("plot", "s", "--x", "bytes")
    assert pictures() == told
    call("plot", "s", "--x", "rounds")
    assert pictures()["s/best.png"] != told["s/best.png"]


def test_plot_against_what_was_not_counted(call):
    record("s/a")
    code, _, err = call("plot", "s", "--x", "grad_evals")
    assert code == 2
    assert err.startswith("fcorun: x=grad_evals was not counted in algo=feddualavg data=lasso; choose x as one of")
    assert call("plot", "s", "--x", "prox_evals")[0] == 2  # no choice


# ---------------------------------------------------------------- rm


def test_rm_removes_what_it_says(call):
    record("s/done")
    failed, stopped = record("s/failed", status="failed", reason="no memory"), record("s/stopped", status="interrupted")
    (failed.folder / "notes.txt").write_text("mine")
    (failed.folder / "run.log").write_text("log")
    code, out, err = call("rm", "s", "--status", "failed", "--status", "interrupted", "--yes")
    assert (code, err) == (0, "")
    assert "failed: s/failed" in out
    assert "no memory" in out
    assert [path.name for path in failed.folder.iterdir()] == ["notes.txt"]
    assert not stopped.folder.exists()
    assert Path("s/done/metrics.csv").exists()


def test_rm_finds_nothing(call):
    record("s/done")
    assert call("rm", "s", "--status", "failed") == (0, "no record is failed\n", "")


def test_rm_leaves_what_is_no_record(call):
    record("s/a", status="failed")
    Path("s/other").mkdir()
    Path("s/other/metrics.csv").write_text("round\n")
    call("rm", "s", "--status", "failed", "--yes")
    assert Path("s/other/metrics.csv").exists()


def test_rm_leaves_what_is_being_computed(call):
    folder = record("s/a", status="running").folder
    with filelock.FileLock(folder / ".lock"):
        code, _, err = call("rm", "s", "--status", "running", "--yes")
        assert call("rm", "s", "--status", "interrupted", "--yes")[1] == "no record is interrupted\n"
    assert code == 1
    assert "is being computed by another process" in err
    assert (folder / "status.json").exists()
    assert call("rm", "s", "--status", "interrupted", "--yes")[0] == 0  # nobody holds the lock: it was killed
    assert not folder.exists()


@pytest.mark.parametrize(("answer", "gone"), [("y", True), ("YES", True), ("", False), ("n", False)])
def test_rm_asks(call, monkeypatch, answer, gone):
    folder = record("s/a", status="failed").folder
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: answer)
    assert call("rm", "s", "--status", "failed")[0] == (0 if gone else 1)
    assert folder.exists() != gone


def test_rm_does_not_go_on_without_an_answer(call, monkeypatch):
    folder = record("s/a", status="failed").folder
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    code, out, err = call("rm", "s", "--status", "failed")
    assert code == 2
    assert "give --yes" in err
    assert "failed: s/a" in out
    assert folder.exists()


# ---------------------------------------------------------------- the command line


def test_the_command_line_finds_them():
    record("s/a")
    done = fcorun("results", "s")
    assert (done.returncode, done.stderr) == (0, "")
    assert "feddualavg" in done.stdout
    assert fcorun("results", "nowhere").returncode == 2


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help(capsys, name):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert f"usage: fcorun {name}" in capsys.readouterr().out


def test_reading_records_needs_no_jax():
    source = (
        "import sys; from fcorun.cli.commands import plot, results, rm; "
        "assert not {'jax', 'pandas', 'matplotlib', 'hydra'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", source], check=True)
