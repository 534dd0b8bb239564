"""The commands are found on the command line."""

import subprocess
import sys

import pytest
from fake_records import fake_record

from fcorun.interface.cli.commands import COMMANDS, main


def fcorun(*argv, **options):
    """Run the command in a separate process."""
    command = [sys.executable, "-W", "error", "-m", "fcorun", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.mark.slow
def test_a_command_runs_in_a_separate_process():
    fake_record("s/a")
    result = fcorun("results", "s")
    assert (result.returncode, result.stderr) == (0, "")
    assert "feddualavg" in result.stdout
    assert fcorun("results", "nowhere").returncode == 2


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_has_a_help(capsys, name):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert f"usage: fcorun {name}" in capsys.readouterr().out


@pytest.mark.slow
def test_reading_records_needs_no_jax():
    source = (
        "import sys; from fcorun.interface.cli.commands import plot_command, results_command, rm_command; "
        "assert not {'jax', 'pandas', 'matplotlib', 'hydra'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", source], check=True)


@pytest.mark.slow
def test_a_run_imports_no_scipy():
    source = (
        "import sys; import fcorun.interface.api.experiment_object, fcorun.interface.cli.console, fcorun.runs.sweep; "
        "import fcorun.reports.page.build_page; "
        "assert not {'scipy', 'pandas', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", source], check=True)
