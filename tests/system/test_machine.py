"""The import of JAX."""

import sys
from importlib import metadata

import pytest

from fcorun.system import machine


@pytest.mark.parametrize("plugin", [None, "jax_rocm7_plugin"])
def test_jax_searches_all_packages_only_for_an_installed_plugin(plugin, tmp_path, monkeypatch):
    """JAX finds a plug-in for AMD's GPUs where there is one."""
    found, find_packages = [], metadata.distributions
    monkeypatch.delitem(sys.modules, "jax")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(machine, "import_module", lambda _: found.extend(metadata.distributions()))
    if plugin:
        (tmp_path / plugin).mkdir()
    machine.import_jax()
    assert bool(found) == bool(plugin)
    assert metadata.distributions is find_packages
