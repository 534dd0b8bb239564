"""A browser without a window, Chromium, to look at pages with."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def _run(page: Path, fragment: str, *options: str) -> tuple[str, list[str]]:
    """What Chromium prints for a page, and the lines of the page's console. Without it, the test is skipped."""
    browser = next((path for name in NAMES if (path := shutil.which(name))), "")
    if not browser:
        pytest.skip("NO BROWSER: Chromium is not installed, so no page was looked at")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.parent / 'profile'}"]
    command += ["--hide-scrollbars", "--virtual-time-budget=20000", "--enable-logging=stderr", *options]
    told = subprocess.run(
        [*command, page.resolve().as_uri() + fragment], capture_output=True, text=True, timeout=120, check=True,
        env=os.environ | {"HOME": str(page.parent)},
    )  # fmt: skip
    return told.stdout, re.findall(r":CONSOLE.*", told.stderr)


class RenderedPage:
    """A page as it stands once its scripts have run.

    Attributes:
        text: its HTML.
        console: what it said there; nothing where all is well.
    """

    def __init__(self, page: Path, fragment: str = ""):
        self.text, self.console = _run(page, fragment, "--dump-dom")

    @property
    def data(self) -> dict[str, str]:
        """What the page says of itself: ready, errors, x, curves."""
        return dict(re.findall(r'data-(\w+)="([^"]*)"', re.search(r"<html[^>]*>", self.text)[0]))  # type: ignore

    def rows(self, hidden: bool = True) -> list[list[str]]:
        """The cells of the table of runs."""
        rows = re.findall(r"<tr data-run=[^>]*>.*?</tr>", self.text)
        kept = [row for row in rows if hidden or "hidden" not in row.split(">")[0]]
        return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in kept]

    def column(self, key: str, hidden: bool = True) -> list[str]:
        """A column of the table of runs."""
        place = self.keys.index(key)
        return [row[place] for row in self.rows(hidden)]

    @property
    def keys(self) -> list[str]:
        head = re.search(r'<table id="runs">.*?</thead>', self.text, re.S)
        return re.findall(r'data-key="([^"]*)"', head[0]) if head else []


def print_pdf(page: Path, to: Path) -> bytes:
    """The PDF that a page is printed as, which is left at ``to``."""
    _run(page, "", f"--print-to-pdf={to}", "--no-pdf-header-footer")
    return to.read_bytes()


def screenshot(page: Path, to: Path, *, dark: bool = False, size: str = "1000,1600", fragment: str = "") -> Path:
    """A picture of a page."""
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    _run(page, fragment, f"--screenshot={to}", f"--window-size={size}", scheme)
    return to
