"""The scripts say what they can do, and what they cannot."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def script(*arguments):
    command = [sys.executable, str(SCRIPTS / arguments[0]), *arguments[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("name", "words"), [("benchmark.py", ["round", "sweep"]), ("reproduce.py", ["--fast", "NAME"])]
)
def test_help(name, words):
    found = script(name, "--help")
    assert (found.returncode, found.stderr) == (0, "")
    assert all(word in found.stdout for word in words)


def test_an_unknown_benchmark_is_one_sentence():
    found = script("benchmark.py", "rond")
    assert (found.returncode, found.stdout) == (2, "")
    valid = "(valid: fedgd, grid, round, select, shell, stability, sweep)"
    assert found.stderr == f"there is no benchmark 'rond': did you mean 'round'? {valid}\n"
