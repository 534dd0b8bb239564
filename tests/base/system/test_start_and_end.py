"""The end of a command leaves nothing out."""

import subprocess
import sys

import pytest

END = """
import atexit, sys
atexit.register(print, "at the end")
sys.argv[1:] = ARGUMENTS
from fcorun.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("before", "arguments", "code"),
    [
        ("", ["--version"], 0),
        ("", ["list", "tracker"], 0),  # raises SystemExit
        ("", ["nothing"], 2),
        ("import threading; threading.Thread(target=threading.main_thread().join).start()", ["--version"], 0),
    ],
)
def test_a_command_ends_with_all_its_output_and_what_was_registered_for_the_end(tmp_path, before, arguments, code):
    program = f"{before}\n{END.replace('ARGUMENTS', str(arguments))}"
    process = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == code, process.stderr
    assert process.stdout.splitlines().count("at the end") == 1
