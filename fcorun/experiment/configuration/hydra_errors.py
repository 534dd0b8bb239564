"""Errors of Hydra and OmegaConf in one sentence."""

import re
from dataclasses import fields
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from fcorun.base.config import SECTIONS
from fcorun.base.errors import UserError, suggest_name
from fcorun.base.records.formats import describe_yaml_error
from fcorun.base.trust import locate_user_class
from fcorun.experiment.configuration.key_docs import read_choice
from fcorun.experiment.configuration.override_text import quote_for_shell
from fcorun.experiment.configuration.search_path import find_choices

# the error about an experiment whose keys Hydra has put below "experiment"
NO_PACKAGE = "the file of an experiment must begin with the line # @package _global_"
_COMMUNICATION = ("topology", "uplink", "downlink", "clock")
_UNNAMED = re.compile(r"Interpolation key '(\w+)\.name' not found")
_INPUT_ERRORS = (UserError, HydraException, OmegaConfBaseException, YAMLError)


def describe_hydra_error(error: BaseException) -> str:
    """Return one sentence for an error of Hydra or OmegaConf, with the nearest valid name."""
    user_error = _find_cause(error, UserError)
    if user_error is not None:
        return str(user_error)
    if isinstance(error, MissingConfigException):
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        if group:
            return f"there is no {group}={name}: {suggest_name(name, error.options or [])}"
        return str(error).splitlines()[0]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Ambiguous value" in str(error):
        return f"{lines[0]}; several values are a sweep, fcorun -m"
    if isinstance(error, OverrideParseException):
        if "LexerNoViableAlt" in str(error):
            quoted = quote_for_shell(error.override)
            return f"{error.override}: letters such as these need quotes within quotes: {quoted}"
        key, _, value = str(error.override).partition("=")
        if value.startswith("{") and "=" in value.replace("\\=", ""):  # a name with "=": a column with its level
            escaped = re.sub(r"(?<!\\)=", r"\\=", value)
            return f"{error.override}: within braces a = of a name is written \\=: '{key}={escaped}'"
        return f"{error.override}: {lines[0]}"
    if isinstance(error, MarkedYAMLError):
        return describe_yaml_error(error)
    if match := _UNNAMED.search(str(error)):
        return f"the file of {match[1]} has no name: give it the line name: NAME"
    if key := find_unknown_key(error):
        return _describe_unknown_key(error, key)
    return lines[0] + (f" ({lines[1]})" if len(lines) > 1 else "")


def _describe_unknown_key(error: BaseException, key: str) -> str:
    if "@experiment." in key:  # Hydra's place for the defaults of a file without the line @package _global_
        return NO_PACKAGE
    parent = getattr(_find_cause(error, OmegaConfBaseException), "parent_node", None)
    if parent is None or not hasattr(parent, "keys"):
        return f"unknown option '{key}'; fcorun --cfg job shows every key"
    if key == "out":
        return "out=DIR is of the commands: in Python, give the folder to run() or sweep(); fcorun plan has --out FILE"
    section, current = key.partition(".")[0], parent.get("name")
    if section in _COMMUNICATION:
        owners = [name for name in find_choices(section) if key in read_choice(section, name).keys]
        sentence = f"{key} is of {section}={' or '.join(owners)}"
        if owners and current in ("star", "identity", "none"):
            return f"{sentence}: give that too"
        if owners:
            return f"{sentence}, not of {section}={current}: leave it out"
    if key == "data.labels" and parent.get("name") == "sites":
        return "data.labels is of data=table: a plan has no labels; give roles by data.target, data.group and the like"
    prefix, _, last_part = key.rpartition(".")
    valid = {str(name) for name in parent if name != "hydra"} | set(_class_fields(parent))
    section = f" in {prefix}" if prefix else ""
    return f"unknown option '{key}': {suggest_name(last_part, valid)}{section}"


def find_unknown_key(error: BaseException) -> str | None:
    """Return the key that the configuration does not have, if that is the error; else None."""
    match = re.search(r"Could not override '([^']+)'", str(error))
    return match[1] if match else None


def find_key_of_class(error: BaseException) -> str | None:
    """Return the unknown key of an error if a section's class has it as a field, while the section's file does not."""
    key = find_unknown_key(error)
    parent = getattr(_find_cause(error, OmegaConfBaseException), "parent_node", None)
    section, _, field = (key or "").rpartition(".")
    return key if section in SECTIONS and field in _class_fields(parent) else None


def _class_fields(section: Any) -> list[str]:
    """Return the fields of the class that a composed section names; none if the class cannot be loaded."""
    try:
        return [field.name for field in fields(locate_user_class(section["class"], "class")) if field.init]
    except (UserError, OmegaConfBaseException, KeyError, TypeError):
        return []


def is_user_error(error: BaseException) -> bool:
    """Return whether an error is caused by bad input."""
    return _find_cause(error, _INPUT_ERRORS) is not None


def _find_cause(error: BaseException | None, kind: type | tuple[type, ...]) -> Any:
    """Return the first error of a kind in a chain of causes; None if the chain has none."""
    while error is not None:
        if isinstance(error, kind):
            return error
        cause = error.__cause__
        if cause is None and type(error).__module__.partition(".")[0] in ("hydra", "omegaconf"):
            cause = error.__context__  # Hydra and OmegaConf may hide the error that they handled
        error = cause
    return None
