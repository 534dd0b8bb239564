"""The metadata of the package: dependencies, extras, the content of its archive."""

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fcorun

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
UNTESTED = {"cuda", "trackio", "wandb"}  # extras that the extra test does not install
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
TEXTS += [path for folder in ("docs/guide", "docs/tutorial", "conf", "fcorun", "hydra_plugins")
          for path in (ROOT / folder).rglob("*.*") if path.suffix in (".md", ".yaml", ".py")]  # fmt: skip


def package_names(requirements: list[str]) -> set[str]:
    """Return the packages of some requirements."""
    return {re.match(r"[\w.-]+", text)[0].lower() for text in requirements}  # type: ignore[index]


def test_a_plain_installation_can_make_the_page():
    assert "plotly" in package_names(PROJECT["dependencies"])


def test_no_text_names_an_unknown_extra():
    named = {extra for path in TEXTS for group in re.findall(r"pip install '(?:fcorun|\.)\[([\w,]+)\]'",
             path.read_text(encoding="utf-8")) for extra in group.split(",")}  # fmt: skip
    assert named <= set(EXTRAS)
    assert {"optuna", "docs", "xlsx"} <= named


def test_the_constraints_name_every_dependency_within_its_range():
    """Packages that are not installed where the constraints are written are not named."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[\w.]+", line)] == []  # names and versions alone
    tested = dict(line.split("==") for line in lines)
    texts = [
        *PROJECT["dependencies"],
        *(text for name, extra in EXTRAS.items() for text in extra if name not in UNTESTED),
    ]
    for requirement in map(Requirement, texts):
        is_tested = requirement.marker is None or requirement.marker.evaluate({"python_version": "3.11"})
        if requirement.name != "fcorun" and is_tested:
            assert requirement.specifier.contains(tested[canonicalize_name(requirement.name)]), requirement
    assert {"jaxlib", "latexcodec", "antlr4-python3-runtime"} <= set(tested)  # indirect dependencies


@pytest.mark.slow
def test_constraints_are_written_from_the_installed_packages(capsys):
    runpy.run_path(str(ROOT / "scripts" / "constraints.py"), run_name="__main__")
    written = {line.split("==")[0] for line in capsys.readouterr().out.splitlines()}
    assert {canonicalize_name(name) for name in package_names(PROJECT["dependencies"])} <= written
    assert not {"fcorun", "pip"} & written


def test_the_workflow_tests_what_the_package_promises():
    workflow: Any = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    matrix = workflow["jobs"]["tests"]["strategy"]["matrix"]
    promised = [text.rpartition(":: ")[2] for text in PROJECT["classifiers"] if re.search(r"Python :: 3\.", text)]
    assert matrix["python"] == promised
    assert {system.split("-")[0] for system in matrix["os"]} == {"ubuntu", "macos", "windows"}
    assert {job.get("dependencies") for job in matrix["include"]} >= {"oldest", "tested"}
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert path.name == "config.yml" or {"name", "description", "body"} <= set(form)


def test_the_source_archive_holds_the_files_that_tests_read():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    listed = set(build["targets"]["sdist"]["include"])
    assert {"constraints.txt", ".github", "scripts", "tests", "README.md", "SECURITY.md"} <= listed
    assert [name for name in listed if not (ROOT / name).exists()] == []


def test_names_that_type_checkers_see_exist_at_run_time():
    assert {"LocalFitAlgorithm", "soft_threshold", "Record", "figure", "Vector"} <= set(fcorun.__all__)
    assert all(hasattr(fcorun, name) for name in fcorun.__all__)
