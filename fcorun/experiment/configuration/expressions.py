"""The objects of Python that stand for the choices of the command: algo=fedyogi is FedOpt(optimizer="yogi")."""

import dataclasses
from typing import Any

from fcorun.base.config import AUTO
from fcorun.base.trust import locate_user_class
from fcorun.experiment.configuration.search_path import user_config_dir


def find_expression(section: str, choice: str) -> str | None:
    """Return the Python expression of a choice's object, with the arguments that tell it from other choices' objects.

    A required value that the file leaves to the user is ``...``. Returns None for an unknown choice, and for one whose
    class follows from another key.

    >>> find_expression("algo", "fedyogi")
    'FedOpt(optimizer="yogi")'
    """
    from fcorun.experiment.configuration.defaults import read_choices  # imports Hydra

    choices = read_choices(section, user_config_dir())
    values = choices.get(choice, {})
    class_path = str(values.get("class", "$"))
    if "$" in class_path:
        return None
    alternatives = [other for other in choices.values() if other.get("class") == class_path]
    arguments = []
    for field in dataclasses.fields(locate_user_class(class_path, f"{section}.class")):
        value = values.get(field.name, field.default)
        is_required = field.default is field.default_factory is dataclasses.MISSING
        if field.init and (is_required or _tells_apart(field, value, alternatives)):
            arguments.append(f"{field.name}={format_literal(value)}")
    return f"{class_path.rpartition('.')[2]}({', '.join(arguments)})"


def _tells_apart(field: dataclasses.Field, value: Any, alternatives: list[dict[str, Any]]) -> bool:
    """Return whether a value of a field tells a choice from others of its class: a text, or not the field's default."""
    is_open = isinstance(field.default, str) and field.default == AUTO  # the value follows from the choice
    differs = any(other.get(field.name, value) != value for other in alternatives)
    return differs and not is_open and (isinstance(value, str) or value != field.default)


def format_literal(value: Any) -> str:
    """Return a value of a configuration as Python writes it, text in double quotes, a value to be given as ``...``."""
    if value == "???":
        return "..."
    return f'"{value}"' if isinstance(value, str) else repr(value)
