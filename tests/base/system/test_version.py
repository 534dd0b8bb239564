"""The version of fcorun, installed or not."""

import importlib.metadata

from fcorun.base.system import machine


def test_sources_without_installation_have_a_version(monkeypatch):
    assert machine.fcorun_version() == importlib.metadata.version("fcorun")

    def not_installed(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(machine, "version", not_installed)
    assert machine.fcorun_version() == "0.0.0+source"
