"""The quick start and the quick end of a command leave nothing out."""

import os
import subprocess
import sys

import pytest

IMPORT = """
from importlib import metadata
before = metadata.distributions
from fcorun.interface.cli.hydra_app import import_jax
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
sys.argv[1:] = ARGUMENTS
from fcorun.__main__ import main
main()
"""


def run_python(program, folder, path="", code=0):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(path), *filter(None, sys.path)])}
    command = [sys.executable, "-c", program]
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == code, process.stderr
    return process.stdout


def test_jax_finds_the_plugins_among_its_own_packages(tmp_path):
    (tmp_path / "jax_rocm7_plugin").mkdir()
    (tmp_path / "jax_rocm7_plugin" / "rocm_plugin_extension.py").touch()
    metadata = tmp_path / "jax_rocm7_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: jax-rocm7-plugin\nVersion: 1.0\n")
    assert run_python(IMPORT, tmp_path, tmp_path) == "True\n"


@pytest.mark.parametrize(
    ("before", "arguments", "code", "is_quick"),
    [
        ("", ["--version"], 0, True),
        ("", ["list", "tracker"], 0, True),  # raises SystemExit
        ("", ["nothing"], 2, False),
        ("import threading; threading.Thread(target=threading.main_thread().join).start()", ["--version"], 0, False),
        ("import sys; sys.setprofile(lambda *_: None)", ["--version"], 0, False),
    ],
)
def test_a_command_ends_with_all_its_output_and_what_was_registered_for_the_end(
    tmp_path, before, arguments, code, is_quick
):
    last = "import os; os._exit = lambda code: print('quick')"
    program = f"{before}\n{last}\n{END.replace('ARGUMENTS', str(arguments))}"
    lines = run_python(program, tmp_path, code=code).splitlines()
    assert lines.count("at the end") == 1
    assert ("quick" in lines) is is_quick
    assert not is_quick or lines.index("at the end") < lines.index("quick")
