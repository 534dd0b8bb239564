"""What the package says of itself to who installs it: dependencies, extras, what its archive holds."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
TEXTS += [path for folder in ("docs/guide", "docs/tutorial", "conf", "fcorun", "hydra_plugins")
          for path in (ROOT / folder).rglob("*.*") if path.suffix in (".md", ".yaml", ".py")]  # fmt: skip


def names(requirements: list[str]) -> set[str]:
    """The packages of some requirements."""
    return {re.match(r"[\w.-]+", text)[0].lower() for text in requirements}  # type: ignore[index]


def test_a_plain_installation_makes_the_page():
    assert "plotly" in names(PROJECT["dependencies"])


def test_no_text_names_an_extra_that_is_not_there():
    named = {extra for path in TEXTS for group in re.findall(r"pip install '(?:fcorun|\.)\[([\w,]+)\]'",
             path.read_text(encoding="utf-8")) for extra in group.split(",")}  # fmt: skip
    assert named <= set(EXTRAS)
    assert {"optuna", "docs", "xlsx"} <= named
