"""Fixtures that run the command and its subcommands in this process."""

from pathlib import Path

import pytest
from command import fcorun

from fcorun.interface.cli.commands import main

__all__ = ["fcorun"]


@pytest.fixture
def call(capsys):
    """A function that runs a command, and returns its exit code, output and errors."""

    def run(*argv):
        code = main([str(a) for a in argv])
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def report(capsys):
    """A function that writes a report page, and returns its text."""

    def make(*argv, out="page.html"):
        assert main(["report", *argv, "--out", out, "--force"]) == 0
        assert capsys.readouterr().err == ""
        return Path(out).read_text()

    return make
