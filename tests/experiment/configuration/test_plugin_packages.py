"""Installed packages of plug-ins: the example of the guide, built as a wheel and installed into a folder."""

import importlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from command import fcorun
from helpers import SMALL, fails
from markdown_blocks import blocks

from fcorun import compose, load_records
from fcorun.base.trust import find_plugin_packages

__all__ = ["fcorun"]

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "plugins.md"
BUILD = "from hatchling.build import build_wheel; build_wheel('..')"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the guide's package."""
    folder = tmp_path_factory.mktemp("package")
    for block in blocks(GUIDE.read_text(encoding="utf-8")):
        if path := block.marks.get("file"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(block.text, encoding="utf-8")
    subprocess.run([sys.executable, "-c", BUILD], cwd=folder / "proxaverage", check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed packages on Python's path."""
    (tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "site")
    find_plugin_packages.cache_clear()
    yield tmp_path / "site"
    find_plugin_packages.cache_clear()
    for name in [name for name in sys.modules if name.startswith("fcorun_proxaverage")]:
        del sys.modules[name]


def install(wheel: Path, site: Path) -> None:
    """Install a wheel of Python files alone."""
    zipfile.ZipFile(wheel).extractall(site)
    importlib.invalidate_caches()
    find_plugin_packages.cache_clear()


@pytest.mark.slow
def test_a_package_is_available_once_it_is_installed(wheel, site, fcorun):
    with fails("proxaverage"):
        compose(["algo=proxaverage"])
    install(wheel, site)
    (package,) = find_plugin_packages()
    assert (package.name, package.distribution) == ("fcorun_proxaverage", "fcorun-proxaverage")
    assert "proxaverage" in fcorun("list", "algo")[1]
    assert "server_prox=13: local steps" in fcorun("help", "algo=proxaverage")[1]
    code, _, err = fcorun(*SMALL, "algo=proxaverage", "rounds=1")
    assert (code, err) == (0, "")
    (record,) = load_records("outputs")
    assert record.plugins["algo"]["distributions"] == {"fcorun_proxaverage": "0.1.0"}
    assert record.plugins["algo"]["files"] == {}
    assert "A prox for the mean" in fcorun("cite", "outputs")[1]


@pytest.mark.slow
def test_files_that_stay_unused_are_named(wheel, site, fcorun):
    install(wheel, site)
    (site / "fcorun_proxaverage/conf/algo/fedavg.yaml").write_text("name: other\nclass: nowhere.Other\n")
    find_plugin_packages.cache_clear()
    code, out, err = fcorun("algo=fedavg", "--cfg", "job")
    assert code == 0
    assert "algo/fedavg.yaml of the package fcorun_proxaverage stay unused" in err
    assert "class: fcorun.FedAvg" in out


def test_a_package_without_configuration_files_is_named(site, fcorun):
    (site / "gone-1.0.dist-info").mkdir(parents=True)
    (site / "gone-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: gone\nVersion: 1.0\n")
    (site / "gone-1.0.dist-info/entry_points.txt").write_text("[fcorun.conf]\ngone = gone.inside\n")
    find_plugin_packages.cache_clear()
    code, _, err = fcorun("algo=fedavg", "--cfg", "job")
    assert code == 0
    assert err == "fcorun: the package gone.inside of gone offers plug-ins, but it has no folder conf\n"
