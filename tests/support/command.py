"""A fixture that runs the command in this process."""

import sys

import pytest
from hydra.core.global_hydra import GlobalHydra

from fcorun.interface.cli.main import main


@pytest.fixture
def fcorun(monkeypatch, capsys):
    """A function that runs the command in this process, and returns (exit code, output, errors)."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fcorun", *arguments])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
        GlobalHydra.instance().clear()
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        finally:
            GlobalHydra.instance().clear()
        return code, *capsys.readouterr()

    return call
