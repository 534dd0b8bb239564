"""The folders of configuration files: the user's own, fcorun's, and those of installed packages of plug-ins."""

import hashlib
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any

import yaml
from yaml.reader import ReaderError

from fcorun.base.config import SECTIONS
from fcorun.base.errors import UserError, check_type
from fcorun.base.records.formats import describe_yaml_error, yaml_text
from fcorun.base.system.files import cache_dir, write_atomically
from fcorun.base.system.machine import current_hosts
from fcorun.base.trust import find_plugin_packages

_CONFIG_FILE = "config.yaml"
OWN_VALUES = "own_values"  # the file with the values of a user's own config.yaml

# A context, not an argument: Hydra makes the plug-in that adds the folder to its search path, and passes it nothing.
_USER_CONFIG_DIR: ContextVar[Path | None] = ContextVar("user_config_dir", default=None)


@cache
def packaged_config_dir() -> str:
    """Return the folder of fcorun's configuration files: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[2]
    folder = package / "conf"
    return str(folder if folder.is_dir() else package.parent / "conf")


def user_config_dir() -> Path | None:
    """Return the user's own folder of configuration files; None if none is in use."""
    return _USER_CONFIG_DIR.get()


@contextmanager
def use_config_dir(config_dir: str | Path | None) -> Iterator[None]:
    """Search ``config_dir`` before fcorun's own folder within the context.

    Raises UserError if the folder does not exist.
    """
    check_type(config_dir, (str, Path, NoneType), "config_dir", "give the folder of your configuration files")
    if config_dir is not None and (not config_dir or not Path(config_dir).is_dir()):
        hosts = current_hosts()
        advice = (
            f"{hosts.describe_host(hosts.rank)} must see it, too" if hosts else "give that of your configuration files"
        )
        raise UserError(f"config-dir {config_dir}: there is no such folder; {advice}")
    token = _USER_CONFIG_DIR.set(Path(config_dir).absolute() if config_dir is not None else None)
    try:
        yield
    finally:
        _USER_CONFIG_DIR.reset(token)


def own_defaults_dir() -> Path | None:
    """Return a folder whose config.yaml is fcorun's with the user's own values and choices; None without such a file.

    A config.yaml of the user with a list of defaults is a whole one, and takes the place of fcorun's. The values of
    another one come after those of the data set and before those of an experiment. Raises UserError.
    """
    folder = user_config_dir()
    if folder is None or not (folder / _CONFIG_FILE).is_file():
        return None
    own = read_yaml(folder / _CONFIG_FILE)
    if "defaults" in own:
        return None
    config = read_yaml(Path(packaged_config_dir(), _CONFIG_FILE))
    choices = {group: own.pop(group) for group in (*SECTIONS, "experiment") if isinstance(own.get(group), str)}
    defaults = []
    for entry in config["defaults"]:
        group = next(iter(entry)) if isinstance(entry, dict) else ""
        if group == "experiment":
            defaults.append(OWN_VALUES)
        defaults.append({group: choices[group]} if group in choices else entry)
    # a data set and an algorithm choose other plug-ins by overrides, and the last override counts
    defaults += [{f"override {group}": name} for group, name in choices.items() if group not in ("data", "experiment")]
    content = {
        f"{_CONFIG_FILE}": yaml_text(config | {"defaults": defaults}),
        f"{OWN_VALUES}.yaml": "# @package _global_\n" + yaml_text(own),
    }
    target = cache_dir(f"own_defaults/{hashlib.sha256(repr(content).encode()).hexdigest()[:16]}")
    for name, text in content.items():
        write_atomically(target / name, text)
    return target


def warn_overridden() -> None:
    """Print, on standard error, which files of fcorun the user's files replace, and which files stay unused."""
    folder = user_config_dir()
    taken = _config_files(Path(packaged_config_dir()))
    files = sorted(path.as_posix() for path in taken & _config_files(folder)) if folder else []
    if own_defaults_dir() is not None:
        files.remove(_CONFIG_FILE)
    if folder and files:
        folder = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
        print(f"fcorun: {folder} has its own {', '.join(files)}, used instead of fcorun's", file=sys.stderr)
    for package in find_plugin_packages():
        if package.conf is None:
            print(f"fcorun: the package {package.name} of {package.distribution} offers plug-ins, but it has no folder "
                  "conf", file=sys.stderr)  # fmt: skip
    for name, folder in plugin_config_dirs().items():
        files = _config_files(folder)
        if hidden := sorted(map(str, files & taken)):
            print(f"fcorun: {', '.join(hidden)} of the package {name} stay unused: other files have these names",
                  file=sys.stderr)  # fmt: skip
        taken |= files


def _config_files(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*.yaml")}


def plugin_config_dirs() -> dict[str, Path]:
    """Return the folders of configuration files of installed packages of plug-ins, by the package's name."""
    return {package.name: package.conf for package in find_plugin_packages() if package.conf is not None}


def find_choices(group: str) -> dict[str, Path]:
    """Return the files of the choices of a group, such as algo or experiment, by the choice's name.

    The user's own files take precedence over fcorun's, and fcorun's over those of installed packages.
    """
    folders = [*reversed(plugin_config_dirs().values()), Path(packaged_config_dir())]
    if own_folder := user_config_dir():
        folders.append(own_folder)
    files: dict[str, Path] = {}
    for folder in folders:  # the last one has precedence
        files |= {path.stem: path for path in (folder / group).glob("*.yaml")}
    return dict(sorted(files.items()))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the content of a configuration file, {} of an empty one. Raises UserError that names the file."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        raise UserError(describe_yaml_error(error, str(path))) from error
    except (ReaderError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no text that YAML can read ({error.reason}): remove control characters, and save "
                        "it as UTF-8") from error  # fmt: skip
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{path} holds no mapping of keys to values: write a line KEY: VALUE for each key")
    if not isinstance(values.get("defaults", []), list):
        raise UserError(f"{path}: defaults must be a list: write a line '- override /GROUP: NAME' for each choice")
    return values


def user_class_paths() -> set[str]:
    """Return the dotted paths of classes in the files of the user's own folder (the values of ``class``)."""
    folder = user_config_dir()
    class_paths: set[str] = set()
    for path in sorted(folder.rglob("*.yaml")) if folder else []:
        try:
            events = list(yaml.parse(path.read_text(encoding="utf-8"), yaml.SafeLoader))
        except (OSError, ValueError, yaml.YAMLError):  # reported when the file is used
            continue
        texts = [event.value if isinstance(event, yaml.ScalarEvent) else None for event in events]
        class_paths |= {value for key, value in itertools.pairwise(texts) if key == "class" and value}
    return class_paths


def header_comment(path: Path) -> str:
    """Return the comments before the first key of a configuration file as one line."""
    comments = itertools.takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    return " ".join(line.lstrip("# ") for line in comments if "@package" not in line)
