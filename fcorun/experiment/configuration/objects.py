"""The choices of the command and the objects of Python that stand for each other.

``fcorun algo=feddualavg data=lasso`` takes rates, strengths and rounds that suit the data from the files in conf/. An
experiment made of objects takes the same values for what it leaves out.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import MISSING, Field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fcorun.base.config import AUTO
from fcorun.base.override_text import format_literal
from fcorun.base.trust import class_path, locate_user_class, public_path
from fcorun.experiment.configuration.compose import compose
from fcorun.experiment.configuration.search_path import find_choices, user_config_dir

TABLE_CHOICE = "table"  # its file has the defaults of data sets that have no file of their own


def compose_for_objects(plugins: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the choices that match some plug-ins, by section.

    A section without a plug-in has the choice that the data set makes, or else fcorun's default.
    """
    choices = {section: find_choice(section, plugin) for section, plugin in plugins.items()}
    overrides = [f"{section}={choice}" for section, choice in choices.items() if choice]
    if not choices["data"]:
        overrides.append(f"data={TABLE_CHOICE}")
    task = getattr(plugins["data"], "task", None)
    if isinstance(task, str) and "objective" not in plugins:
        overrides.append(f"data.task={task}")
    return deepcopy(_compose_once(tuple(overrides), user_config_dir()))


@lru_cache(maxsize=64)
def _compose_once(overrides: tuple[str, ...], config_dir: Path | None) -> dict[str, Any]:
    return compose(overrides)


def find_choice(section: str, plugin: Any) -> str | None:
    """Return the choice of a section whose file names the class of a plug-in; None if there is none.

    Of several choices of one class, return the one whose values differ least from the plug-in's.
    """
    path = class_path(type(plugin))
    best, fewest_differences = None, None
    for name, values in read_choices(section, user_config_dir()).items():
        if public_path(str(values.get("class"))) != path:
            continue
        differences = sum(_differs(value, getattr(plugin, key, value)) for key, value in values.items())
        if fewest_differences is None or differences < fewest_differences:
            best, fewest_differences = name, differences
    return best


def _differs(value: Any, actual: Any) -> bool:
    """Return whether a value of a file differs from that of a plug-in, where both name one."""
    is_open = isinstance(value, str) and (value in (AUTO, "???") or value.startswith("${"))
    return not is_open and not (isinstance(actual, str) and actual == AUTO) and value != actual


@lru_cache(maxsize=16)
def read_choices(section: str, config_dir: Path | None) -> dict[str, dict[str, Any]]:
    """Return the values in the files of a section's choices, by the name of the choice, without interpolation.

    A file that begins with the name of another one in its ``defaults`` changes some of that file's values.
    """
    contents: dict[str, dict[str, Any]] = {}
    parents: dict[str, str] = {}
    for name, path in find_choices(section).items():
        content: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        contents[name] = content.get(section, {}) if section == "data" else content
        for entry in content.get("defaults", ()):
            if isinstance(entry, str) and entry != "_self_":
                parents[name] = entry
    originals = {name: values for name, values in contents.items() if name not in parents}
    variants = {name: contents.get(parent, {}) | contents[name] for name, parent in parents.items()}
    return originals | variants


# The objects of Python that stand for the choices of the command: algo=fedyogi is FedOpt(optimizer="yogi").


def find_expression(section: str, choice: str) -> str | None:
    """Return the Python expression of a choice's object, with the arguments that tell it from other choices' objects.

    A required value that the file leaves to the user is ``...``. Returns None for an unknown choice, and for one whose
    class follows from another key.

    >>> find_expression("algo", "fedyogi")
    'FedOpt(optimizer="yogi")'
    """
    choices = read_choices(section, user_config_dir())
    values = choices.get(choice, {})
    class_path = str(values.get("class", "$"))
    if "$" in class_path:
        return None
    alternatives = [other for other in choices.values() if other.get("class") == class_path]
    arguments = []
    for field in fields(locate_user_class(class_path, f"{section}.class")):
        value = values.get(field.name, field.default)
        is_required = field.default is field.default_factory is MISSING
        if field.init and (is_required or _tells_apart(field, value, alternatives)):
            arguments.append(f"{field.name}={format_literal(value)}")
    return f"{class_path.rpartition('.')[2]}({', '.join(arguments)})"


def _tells_apart(field: Field, value: Any, alternatives: list[dict[str, Any]]) -> bool:
    """Return whether a value of a field tells a choice from others of its class: a text, or not the field's default."""
    is_open = isinstance(field.default, str) and field.default == AUTO  # the value follows from the choice
    differs = any(other.get(field.name, value) != value for other in alternatives)
    return differs and not is_open and (isinstance(value, str) or value != field.default)
