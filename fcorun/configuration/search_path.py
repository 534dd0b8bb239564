"""Where configuration files lie: in a folder of the user's own, in fcorun, and in installed packages of plug-ins."""

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

import yaml

from fcorun.errors import UserError
from fcorun.plugin_packages import find_plugin_packages

_OWN: ContextVar[Path | None] = ContextVar("own", default=None)


@cache
def packaged_config_dir() -> str:
    """The folder of fcorun's configuration files: inside the installed package, or beside it in a checkout."""
    inside = Path(__file__).parent.parent / "conf"
    return str(inside if inside.is_dir() else inside.parent.parent / "conf")


def user_config_dir() -> Path | None:
    """The user's own folder of configuration files, if there is one."""
    return _OWN.get()


@contextmanager
def use_config_dir(config_dir: str | Path | None) -> Iterator[None]:
    """Within it, files are looked for in ``config_dir`` first.

    Raises UserError if there is no such folder.
    """
    if config_dir is not None and (not config_dir or not Path(config_dir).is_dir()):
        raise UserError(f"config-dir {config_dir}: there is no such folder; give that of your own files")
    before = _OWN.set(Path(config_dir).absolute() if config_dir is not None else None)
    try:
        yield
    finally:
        _OWN.reset(before)


def warn_overridden() -> None:
    """Say which of fcorun's files the user's own stand for."""
    if (folder := user_config_dir()) and (files := overridden_files()):
        folder = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
        print(f"fcorun: {folder} has its own {', '.join(files)}, used instead of fcorun's", file=sys.stderr)
    for line in _unused():
        print(f"fcorun: {line}", file=sys.stderr)


def _unused() -> list[str]:
    """Return a line on each package of plug-ins that has no configuration files, or some that others stand before."""
    lines = [f"the package {package.name} of {package.distribution} offers plug-ins, but it has no folder conf"
             for package in find_plugin_packages() if package.conf is None]  # fmt: skip
    taken = _files(Path(packaged_config_dir()))
    for name, folder in plugin_config_dirs().items():
        if hidden := sorted(map(str, _files(folder) & taken)):
            lines.append(f"{', '.join(hidden)} of the package {name} stay unused: other files have these names")
        taken |= _files(folder)
    return lines


def _files(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*.yaml")}


def plugin_config_dirs() -> dict[str, Path]:
    """Return the folders of configuration files that installed packages of plug-ins have, by the package."""
    return {package.name: package.conf for package in find_plugin_packages() if package.conf is not None}


def find_choices(group: str) -> dict[str, Path]:
    """The choices of a group, such as algo or experiment, by name. The user's own go before fcorun's, and fcorun's
    before those of installed packages."""
    folders = [Path(packaged_config_dir()), *filter(None, [user_config_dir()])]
    found = {path.stem: path for folder in folders for path in sorted((folder / group).glob("*.yaml"))}
    for folder in plugin_config_dirs().values():
        found = {path.stem: path for path in sorted((folder / group).glob("*.yaml"))} | found
    return dict(sorted(found.items()))


def user_class_paths() -> set[str]:
    """Return the dotted paths of the classes that files of the user's own folder name."""
    files = sorted(user_config_dir().rglob("*.yaml")) if user_config_dir() else []  # type: ignore[union-attr]
    found = set()
    for path in files:
        try:
            events = list(yaml.parse(path.read_text(encoding="utf-8"), yaml.SafeLoader))
        except (OSError, ValueError, yaml.YAMLError):  # which is said where the file is used
            continue
        texts = [event.value if isinstance(event, yaml.ScalarEvent) else None for event in events]
        found |= {value for key, value in itertools.pairwise(texts) if key == "class" and value}
    return found


def header_comment(path: Path) -> str:
    """What a configuration file says at its head: the comments before its first key, as one line."""
    comments = itertools.takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    return " ".join(line.lstrip("# ") for line in comments if "@package" not in line)


def overridden_files() -> list[str]:
    """The files of fcorun in whose place the user has one, as GROUP/NAME.yaml."""
    if (folder := user_config_dir()) is None:
        return []
    return sorted(str(path) for path in _files(Path(packaged_config_dir())) if (folder / path).exists())
