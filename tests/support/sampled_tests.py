"""A sample of the slow tests, of which a session of the whole suite runs another part with each commit."""

import os
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

PARTS = 16  # of the slow tests
HELP = (
    "which slow tests a session of the whole suite runs: all, a sample (one of sixteen parts, which depends on the "
    "commit), or the number of a part. By default all on a machine that sets CI, and a sample elsewhere, unless files, "
    "folders, -k or -m select tests, of which all run"
)


def choose_slow_tests(config: pytest.Config) -> str:
    """Return the value of ``--slow-tests`` for this session: "all", or the number of a part."""
    chosen = config.getoption("--slow-tests")
    if chosen is None:
        is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        selects = config.option.keyword or config.option.markexpr or os.environ.get("CI")
        chosen = "sample" if is_whole and not selects else "all"
    return str(_digest(_read_commit()) % PARTS + 1) if chosen == "sample" else chosen


def is_in_part(name: str, part: int) -> bool:
    """Return whether the test of this name belongs to a part of the slow tests, 1 to PARTS."""
    return _digest(name) % PARTS + 1 == part


def _digest(text: str) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")


def _read_commit() -> str:
    """Return the commit of this checkout; an empty text where git knows none."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
