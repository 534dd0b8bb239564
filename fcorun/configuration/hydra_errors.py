"""One sentence for what Hydra or OmegaConf did not like."""

import re
from dataclasses import fields
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from fcorun.config import locate_user_class
from fcorun.configuration.overrides import quote_for_shell
from fcorun.errors import UserError, suggest_name
from fcorun.sections import SECTIONS

_BAD_INPUT = (UserError, HydraException, OmegaConfBaseException, YAMLError)


def describe_hydra_error(error: BaseException) -> str:
    """One sentence for what Hydra or OmegaConf did not like, with the nearest valid name."""
    user = _cause(error, UserError)
    if user is not None:
        return str(user)
    if isinstance(error, MissingConfigException):
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        options = error.options or []
        return f"there is no {group}={name}: {suggest_name(name, options)}" if group else str(error).splitlines()[0]
    text = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Ambiguous value" in str(error):
        return f"{text[0]}; several values are a sweep, fcorun -m"
    if isinstance(error, OverrideParseException):
        if "LexerNoViableAlt" in str(error):
            return (
                f"{error.override}: letters such as these need quotes within quotes: {quote_for_shell(error.override)}"
            )
        key, _, value = str(error.override).partition("=")
        if value.startswith("{") and "=" in value.replace("\\=", ""):  # of a name, such as a level of a column
            meant = re.sub(r"(?<!\\)=", r"\\=", value)
            return f"{error.override}: within braces a = of a name is written \\=: '{key}={meant}'"
        return f"{error.override}: {text[0]}"
    if isinstance(error, MarkedYAMLError) and (mark := error.problem_mark or error.context_mark):
        return f"{mark.name}, line {mark.line + 1}: {error.problem or error.context}"
    name = find_unknown_key(error)
    cause = _cause(error, OmegaConfBaseException)
    parent = getattr(cause, "parent_node", None)
    if name and parent is not None and hasattr(parent, "keys"):
        prefix, _, last = name.rpartition(".")
        valid = {str(name) for name in parent if name != "hydra"} | set(_fields(parent))
        if name in ("topology.edges", "topology.rounds", "topology.map"):
            return f"{name} is of topology=tree: give that too"
        return f"unknown option '{name}': {suggest_name(last, valid)}" + (f" in {prefix}" if prefix else "")
    if name:
        return f"unknown option '{name}'; fcorun --cfg job shows every key"
    return text[0] + (f" ({text[1]})" if len(text) > 1 else "")


def find_unknown_key(error: BaseException) -> str | None:
    """The key that a configuration does not have, if that is what Hydra did not like."""
    found = re.search(r"Could not override '([^']+)'", str(error))
    return found[1] if found else None


def find_key_of_class(error: BaseException) -> str | None:
    """The key that a file does not hold, if that is what Hydra did not like, but the class that it names has."""
    name, parent = find_unknown_key(error), getattr(_cause(error, OmegaConfBaseException), "parent_node", None)
    section, _, last = (name or "").rpartition(".")
    return name if section in SECTIONS and last in _fields(parent) else None


def _fields(section: Any) -> list[str]:
    """The fields of the class that a composed section names; none where that cannot be found."""
    try:
        return [field.name for field in fields(locate_user_class(section["class"], "class")) if field.init]
    except (UserError, OmegaConfBaseException, KeyError, TypeError):
        return []


def is_user_error(error: BaseException) -> bool:
    """Whether an error is one that the user can mend."""
    return _cause(error, _BAD_INPUT) is not None


def _cause(error: BaseException | None, kind: type | tuple[type, ...]) -> Any:
    while error is not None:
        if isinstance(error, kind):
            return error
        error = error.__cause__ or error.__context__
    return None
