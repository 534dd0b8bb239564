"""Print constraints.txt: the version of each package that fcorun and its extras need, as this environment has them.

    python scripts/constraints.py > constraints.txt

Run it where the tests pass. It follows the requirements of pyproject.toml through the installed packages. What is not
installed, such as the packages of the extra cuda, is left out.
"""

import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def follow(requirement: Requirement, of_extra: str, found: dict[str, str], seen: set[str]) -> None:
    """Put into ``found`` the version of a required package, and of all packages that it requires in turn."""
    if str(requirement) in seen or (requirement.marker and not requirement.marker.evaluate({"extra": of_extra})):
        return
    seen.add(str(requirement))
    try:
        package = distribution(requirement.name)
    except PackageNotFoundError:
        return
    found[canonicalize_name(requirement.name)] = package.version
    for text in package.requires or ():
        for extra in ("", *requirement.extras):
            follow(Requirement(text), extra, found, seen)


def main() -> None:
    """Print a line for each package, in the order of their names."""
    file = Path(__file__).resolve().parents[1] / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    found: dict[str, str] = {}
    for requirement in map(Requirement, texts):
        if requirement.name != project["name"]:  # an extra that names others
            follow(requirement, "", found, set())
    print("\n".join(f"{name}=={version}" for name, version in sorted(found.items())))


if __name__ == "__main__":
    main()
