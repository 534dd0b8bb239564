"""Checks of the plug-ins that a Python program makes, as ``config.build`` checks those of a configuration."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fcorun.config import AUTO, accepts_auto, check_value, field_marks, type_hints
from fcorun.errors import UserError


def check_plugin(plugin: Any, defaults: Mapping[str, Any], section: str) -> Any:
    """Return a plug-in made in Python with every field checked, as ``build`` checks the values of a configuration.

    Fields that are "auto" get the value of ``defaults``, by name, if there is one. Raises UserError for an object that
    is no dataclass, for a value of the wrong type or out of range, and for a field that is still without a value.
    """
    cls = type(plugin)
    if not dataclasses.is_dataclass(plugin) or isinstance(plugin, type):
        raise UserError(f"the class {cls.__name__} is no dataclass: write @dataclass(frozen=True) above it")
    hints, marks = type_hints(cls), field_marks(cls)
    values = {}
    for field in dataclasses.fields(cls):
        value = getattr(plugin, field.name)
        if not field.init or "in memory" in marks[field.name]:
            continue
        if isinstance(value, str) and value == AUTO and defaults.get(field.name) is not None:
            value = defaults[field.name]
        if isinstance(value, str) and value == AUTO and not accepts_auto(hints[field.name]):
            raise UserError(f"{section}: {field.name} has no value: give {cls.__name__}({field.name}=...)")
        values[field.name] = check_value(to_plain_value(value), hints[field.name], f"{section}.{field.name}")
    return dataclasses.replace(plugin, **values)


def to_plain_value(value: Any) -> Any:
    """Return numbers and arrays of NumPy as Python's, and other values as they are."""
    if isinstance(value, (list, tuple)):
        return [to_plain_value(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value
