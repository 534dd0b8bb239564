"""Print constraints.txt: the installed version of each package that fcorun and its extras require.

    python scripts/constraints.py > constraints.txt

Run the script in an environment in which the tests pass. The script follows the requirements of pyproject.toml through
the installed packages, and omits packages that are not installed, such as those of the extra cuda.
"""

import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def collect_versions(requirement: Requirement, of_extra: str, versions: dict[str, str], seen: set[str]) -> None:
    """Add the versions of a required package, and of all packages that it requires, to ``versions``."""
    if str(requirement) in seen or (requirement.marker and not requirement.marker.evaluate({"extra": of_extra})):
        return
    seen.add(str(requirement))
    try:
        package = distribution(requirement.name)
    except PackageNotFoundError:
        return
    versions[canonicalize_name(requirement.name)] = package.version
    for text in package.requires or ():
        for extra in ("", *requirement.extras):
            collect_versions(Requirement(text), extra, versions, seen)


def main() -> None:
    """Print a line for each package, sorted by name."""
    file = Path(__file__).resolve().parents[1] / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    versions: dict[str, str] = {}
    for requirement in map(Requirement, texts):
        if requirement.name != project["name"]:  # unless an extra names other extras
            collect_versions(requirement, "", versions, set())
    print("\n".join(f"{name}=={version}" for name, version in sorted(versions.items())))


if __name__ == "__main__":
    main()
