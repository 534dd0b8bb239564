"""The command line in this process and in separate processes."""

import subprocess
import sys
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from helpers import SMALL, choice_names, rows_of, small

from fcorun import Record, load_records, run
from fcorun.base.config import Settings
from fcorun.data.datasets import table
from fcorun.experiment import prepare
from fcorun.experiment.configuration.search_path import packaged_config_dir
from fcorun.interface.cli import main
from fcorun.interface.cli.main import help_text, read_headings

GROUPS = ("algo", "data", "mirror", "objective", "reg")
pytestmark = pytest.mark.undrawn


def process(*arguments, **options):
    """Run the command in a separate process."""
    command = [sys.executable, "-m", "fcorun", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **options)


# ---------------------------------------------------------------- output


def test_help_lists_every_group_and_choice(fcorun):
    code, out, err = fcorun("--help")
    assert code == 0
    assert err == ""
    for group in GROUPS:
        (line,) = [line for line in out.splitlines() if line.startswith(f"{group}: ")]
        assert line.split(": ")[1].split(", ") == choice_names(group)


def test_help_lists_every_root_key_below_a_heading():
    headings = read_headings()
    keys = [key for group in headings.values() for key in group]
    assert sorted(keys) == sorted({*(field.name for field in fields(Settings)), "figure"})
    text = help_text()
    assert max(map(len, text.partition("Most used keys")[2].splitlines())) <= 120
    for heading, meanings in headings.items():
        shown = text.partition(f"\n{heading}:\n\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in shown] == list(meanings)


def test_version(fcorun):
    assert fcorun("--version") == (0, f"fcorun {version('fcorun')}\n", "")


def test_cfg_job_shows_every_key(fcorun):
    code, out, _ = fcorun("--cfg", "job")
    assert code == 0
    for key in ("client_lr:", "strength:", "rounds: 500", "precision: float32", "nonzeros:"):
        assert key in out
    assert "hydra:" not in out


def test_cfg_job_is_yaml_and_names_the_help_of_keys(fcorun):
    for flag in (["--cfg", "job"], ["-c", "job"], ["--cfg=job"]):
        out = fcorun(*flag, "rounds=7")[1]
        assert yaml.safe_load(out)["rounds"] == 7
        assert out.splitlines()[-1] == "# fcorun help KEY explains a key"


def test_without_arguments_it_prints_examples_and_runs_nothing(fcorun, tmp_path):
    code, out, err = fcorun()
    assert (code, err) == (0, "")
    assert len(out.splitlines()) <= 16
    assert "fcorun algo=feddualavg data=lasso" in out
    assert "fcorun --help" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("key", ["experiment", "+experiment"])
def test_an_experiment_is_a_sweep_and_one_of_its_points_a_run(fcorun, key):
    point = ["algo=fedmid", "algo.client_lr=0.001", "algo.server_lr=1", "dry_run=true"]
    code, out, err = fcorun(f"{key}=fco_fig3a", *point)
    assert (code, err) == (0, "")
    assert out.startswith("algo=fedmid data=lasso reg=l1 client_lr=0.001 server_lr=1 strength=0.1: to run")
    code, out, err = fcorun(f"{key}=fco_fig3a", "-m", *point)
    assert (code, err) == (0, "")
    assert out.startswith("0 done, 2 to run; records in outputs/figures/fco_fig3a/runs/")


def test_an_experiment_without_axes_is_a_run(fcorun):
    Path("mine/experiment").mkdir(parents=True)
    Path("mine/experiment/quick.yaml").write_text("# @package _global_\nrounds: 3\n")
    code, out, err = fcorun("--config-dir", "mine", "experiment=quick", "dry_run=true", *SMALL[:-2])
    assert (code, err) == (0, "")
    assert "to run" in out


@pytest.mark.slow
def test_a_users_files_replace_those_of_fcorun_with_a_note(fcorun):
    packaged = yaml.safe_load(Path(packaged_config_dir(), "algo", "fedavg.yaml").read_text())
    Path("mine/algo").mkdir(parents=True)
    Path("mine/algo/fedavg.yaml").write_text(yaml.safe_dump(packaged | {"client_lr": 0.25}))
    for folder in (["--config-dir", "mine"], ["--config-dir=mine"], ["-cd", "mine"]):
        code, out, err = fcorun(*folder, "algo=fedavg", "--cfg", "job")
        assert (code, err) == (0, "fcorun: mine has its own algo/fedavg.yaml, used instead of fcorun's\n")
        assert yaml.safe_load(out)["algo"]["client_lr"] == 0.25
    for command in ([], ["select"]):
        assert "there is no such folder" in fcorun(*command, "--config-dir", "", "algo=fedavg")[2]
    assert yaml.safe_load(fcorun("algo=fedavg", "--cfg", "job")[1])["algo"]["client_lr"] != 0.25


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_every_choice_composes(fcorun, group):
    for name in choice_names(group):
        code, out, err = fcorun(f"{group}={name}", "--cfg", "job")
        assert code == 0, err
        assert f"  name: {name}" in out or group == "objective"


@pytest.mark.slow
def test_a_run_prints_plain_lines(fcorun):
    code, out, err = fcorun(*SMALL, "rounds=40", "out=here")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert "\r" not in out
    lines = out.splitlines()
    assert lines[0].startswith("algo=feddualavg data=lasso reg=l1 client_lr=0.001 server_lr=1 strength=0.1: 40 rounds")
    assert lines[-1].startswith("done: here/")
    assert 10 <= sum(line.startswith("round ") for line in lines) <= 12
    assert "cutoff=0.0001" in out
    record = Record(Path("here"))
    assert record.finished
    final = record.summary["final"]["objective"]
    assert any(line.startswith("objective") and f"{final:.6g}" in line for line in lines)
    # the same command again
    code, out, err = fcorun(*SMALL, "rounds=40", "hydra.run.dir=here", "title=Mine")
    assert (code, err) == (0, "")
    assert "force=true" in out
    assert out.startswith("here holds the record of this run (done")
    assert "): reused (force=true" in out
    Path("here/metrics.csv").unlink()
    code, out, err = fcorun(*SMALL, "rounds=40", "hydra.run.dir=here")
    assert (code, err) == (0, "")
    assert out.splitlines()[1:] == ["its metrics.csv or summary.json is lost: force=true computes the run again"]


def test_a_run_that_stopped_is_shown_in_the_same_way_when_it_is_reused(fcorun):
    arguments = (*SMALL, "rounds=40", "eval_every=1", "+stop.train_loss=5")
    _, first, _ = fcorun(*arguments)
    _, again, _ = fcorun(*arguments)
    table = [line for line in first.splitlines() if line.startswith(("metric", "objective"))]
    assert "at the end" in table[0]
    assert set(table) <= set(again.splitlines())


@pytest.mark.slow
def test_the_command_and_the_function_make_the_same_record(fcorun):
    assert fcorun(*SMALL)[0] == 0
    (record,) = load_records("outputs")
    assert not [path for path in Path().rglob("*") if path.is_file() and path.parent != record.folder]
    expected = run(small(), "expected")
    assert record.config == expected.config
    assert rows_of(record).equals(rows_of(expected))
    assert record.folder == Path("outputs/lasso") / f"feddualavg-{expected.status['identity'][:8]}"


@pytest.mark.slow
def test_a_run_is_prepared_once_and_reads_its_file_once(fcorun, monkeypatch):
    """Its folder is named after its identity before it runs, and its numbers for "auto" are resolved in it."""
    Path("t.csv").write_text("client,a,y\n" + "".join(f"{i % 3},{i},{i * i}\n" for i in range(30)), encoding="utf-8")
    calls = []
    for module, name in ((prepare, "check_compatibility"), (table, "file_digest")):
        function = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *args, name=name, function=function: calls.append(name) or function(*args)
        )
    code, _, _ = fcorun("data=table", "data.path=t.csv", "data.target=y", "data.client=client", "rounds=2")
    assert (code, sorted(calls)) == (0, ["check_compatibility", "file_digest"])


@pytest.mark.slow
def test_verbose_false_prints_nothing(fcorun):
    assert fcorun(*SMALL, "verbose=false") == (0, "", "")
    assert load_records("outputs")[0].finished


@pytest.mark.slow
def test_a_diverged_run_is_reported(fcorun):
    code, out, _ = fcorun(*SMALL, "algo.client_lr=1e30", "rounds=20")
    assert code == 0
    assert "diverged" in out
    assert "algo.client_lr" in out
    assert load_records("outputs")[0].status["status"] == "diverged"


# ---------------------------------------------------------------- separate processes


@pytest.mark.slow
def test_a_run_in_a_separate_process(compiled_well, tmp_path):
    result = process(*SMALL, "hydra.run.dir=here")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1].startswith("done: here/")
    assert Record(tmp_path / "here").finished


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (ZeroDivisionError("a fault"), 1), (SystemExit(2), 2), (SystemExit(), 0)],
)
def test_other_hosts_are_shut_down_with_the_exit_code_of_the_command(error, code, monkeypatch, capsys):
    def failing(arguments):
        raise error

    codes = []
    monkeypatch.setattr(main, "_run_command", failing)
    monkeypatch.setattr(main, "current_hosts", lambda: True)
    monkeypatch.setattr(main, "close_hosts", codes.append)
    with pytest.raises(type(error)):
        main.main()
    assert codes == [code]
    assert ("ZeroDivisionError: a fault" in capsys.readouterr().err) == (code == 1)


@pytest.mark.slow
def test_help_needs_no_jax():
    code = "import sys; from fcorun.interface.cli.main import main; main(); assert 'jax' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_a_reader_that_goes_away_does_not_stop_the_run():
    with subprocess.Popen(
        [sys.executable, "-m", "fcorun", *SMALL, "rounds=200", "hydra.run.dir=here"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stdout is not None
        command.stdout.close()
        assert command.stderr is not None
        errors = command.stderr.read()
    assert "Traceback" not in errors
    assert Record(Path("here")).finished
