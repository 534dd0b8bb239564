"""The command in this process, and its subcommands."""

import pytest
from command import fcorun

from fcorun.cli.commands import main

__all__ = ["fcorun"]


@pytest.fixture
def call(capsys):
    """A function that runs a command: its exit code, and what it printed on stdout and stderr."""

    def run(*argv):
        code = main([str(a) for a in argv])
        return (code, *capsys.readouterr())

    return run
