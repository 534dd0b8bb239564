"""The command in this process, and its subcommands."""

from pathlib import Path

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


@pytest.fixture
def report(capsys):
    """A function that makes a page: its text."""

    def make(*argv, out="page.html"):
        assert main(["report", *argv, "--out", out, "--force"]) == 0
        assert capsys.readouterr().err == ""
        return Path(out).read_text()

    return make
