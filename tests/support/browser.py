"""Pages as Chromium renders them, without a window."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

BROWSER_NAMES = ("chromium", "chromium-browser", "google-chrome")


def _run(page: Path, fragment: str, *options: str, address: str = "") -> tuple[str, list[str]]:
    """Return Chromium's output for a page, and the lines of the page's console; skip the test without Chromium.

    The page is a file, or has an ``address`` and the folder of a file for Chromium's own files.
    """
    browser = next((path for name in BROWSER_NAMES if (path := shutil.which(name))), "")
    if not browser:
        pytest.skip("NO BROWSER: Chromium is not installed, so no page was looked at")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.parent / 'profile'}"]
    command += ["--hide-scrollbars", "--virtual-time-budget=20000", "--enable-logging=stderr", *options]
    command.append((address or page.resolve().as_uri()) + fragment)
    environment = os.environ | {"HOME": str(page.parent)}
    process = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True, env=environment)
    return process.stdout, re.findall(r":CONSOLE.*", process.stderr)


class RenderedPage:
    """A page after its scripts have run.

    Attributes:
        text: its HTML.
        console: the lines of its console; none if it had no error.
    """

    def __init__(self, page: Path, fragment: str = "", address: str = ""):
        self.text, self.console = _run(page, fragment, "--dump-dom", address=address)

    @property
    def data(self) -> dict[str, str]:
        """The data attributes of the page: ready, errors, x, curves."""
        return dict(re.findall(r'data-(\w+)="([^"]*)"', re.search(r"<html[^>]*>", self.text)[0]))  # type: ignore

    def rows(self, hidden: bool = True) -> list[list[str]]:
        """Return the cells of the table of runs, with or without hidden rows."""
        rows = re.findall(r"<tr data-run=[^>]*>.*?</tr>", self.text)
        shown = [row for row in rows if hidden or "hidden" not in row.split(">")[0]]
        return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in shown]

    def column(self, key: str, hidden: bool = True) -> list[str]:
        """Return a column of the table of runs."""
        index = self.keys.index(key)
        return [row[index] for row in self.rows(hidden)]

    @property
    def keys(self) -> list[str]:
        head = re.search(r'<table id="runs">.*?</thead>', self.text, re.S)
        return re.findall(r'data-key="([^"]*)"', head[0]) if head else []


def print_pdf(page: Path, to: Path) -> bytes:
    """Print a page to the PDF ``to``; return its content."""
    _run(page, "", f"--print-to-pdf={to}", "--no-pdf-header-footer")
    return to.read_bytes()


def screenshot(page: Path, to: Path, *, dark: bool = False, size: str = "1000,1600", fragment: str = "") -> Path:
    """Write a picture of a page to ``to``; return its path."""
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    _run(page, fragment, f"--screenshot={to}", f"--window-size={size}", scheme)
    return to
