"""The command line finds its commands."""

import subprocess
import sys

import pytest
from fake_records import fake_record

from fcorun.cli.commands import COMMANDS, main


def fcorun(*argv, **more):
    """The command in a process of its own."""
    command = [sys.executable, "-W", "error", "-m", "fcorun", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def test_the_command_line_finds_them():
    fake_record("s/a")
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
