"""The quick start and the quick end of a command leave nothing out."""

import os
import subprocess
import sys

IMPORT = """
from importlib import metadata
before = metadata.distributions
from fcorun.system.machine import import_jax
listed = []
at = metadata.Distribution.at
metadata.Distribution.at = lambda path: listed.append(path.name) or at(path)
import_jax()
import sys
assert metadata.distributions is before
assert listed and all(name.startswith("jax") for name in listed)
print("jax_rocm7_plugin.rocm_plugin_extension" in sys.modules)
"""
END = """
import atexit, sys
atexit.register(print, "at the end")
sys.argv[1:] = ["--version"]
from fcorun.__main__ import main
main()
print("never")
"""


def run_python(program, folder, path=""):
    environment = os.environ | {"PYTHONPATH": str(path)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def test_jax_finds_the_plugins_among_its_own_packages(tmp_path):
    (tmp_path / "jax_rocm7_plugin").mkdir()
    (tmp_path / "jax_rocm7_plugin" / "rocm_plugin_extension.py").touch()
    metadata = tmp_path / "jax_rocm7_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: jax-rocm7-plugin\nVersion: 1.0\n")
    assert run_python(IMPORT, tmp_path, tmp_path) == "True\n"


def test_a_command_ends_with_all_its_output_and_what_was_registered_for_the_end(tmp_path):
    version, end = run_python(END, tmp_path).splitlines()
    assert version.startswith("fcorun ")
    assert end == "at the end"
