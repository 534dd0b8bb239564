"""A release: one version, the same dependencies for conda, and workflows whose actions cannot change."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RECIPE = yaml.safe_load((ROOT / "scripts/packages/recipe.yaml").read_text(encoding="utf-8"))


def test_package_citation_and_recipe_have_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == RECIPE["context"]["version"] == PROJECT["version"]


def test_the_conda_package_needs_what_the_wheel_needs():
    of_wheel = {requirement.partition(";")[0].strip() for requirement in PROJECT["dependencies"]}
    of_wheel = {requirement for requirement in of_wheel if "rc" not in requirement}  # of a Python that conda lacks
    conda_names = {"matplotlib-base": "matplotlib"}
    of_conda = set()
    for requirement in RECIPE["requirements"]["run"]:
        name, _, versions = requirement.partition(" ")
        of_conda.add(conda_names.get(name, name) + versions)
    assert {each for each in of_conda if not each.startswith("python>")} == of_wheel


def test_actions_are_pinned_by_digest():
    files = sorted((ROOT / ".github/workflows").glob("*.yml"))
    used = [line for file in files for line in re.findall(r"uses: (.*)", file.read_text(encoding="utf-8"))]
    assert len(used) > 6
    assert [line for line in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+|\./\S+", line)] == []


def test_images_copy_what_the_wheel_is_made_of():
    made_of = {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "fcorun", "hydra_plugins", "conf"}
    docker = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    apptainer = (ROOT / "scripts/packages/apptainer.def").read_text(encoding="utf-8")
    in_docker = {name for line in re.findall(r"^COPY (?!--)(.+) \S+$", docker, re.M) for name in line.split()}
    in_apptainer = set(re.findall(r"^    (\S+) /source/", apptainer, re.M))
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    assert in_docker == in_apptainer == set(re.findall(r"^!(\S+)$", ignored, re.M)) == made_of
