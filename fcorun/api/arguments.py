"""Checks of the arguments that every function of the Python interface takes alike."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fcorun.errors import UserError

if TYPE_CHECKING:
    from fcorun.runs.job import Watcher


def check_folder(folder: Any, argument: str = "folder") -> None:
    """Raise UserError for a folder that is neither a path nor None."""
    if not isinstance(folder, (str, os.PathLike, type(None))):
        raise UserError(f"{argument} is {describe_type(folder)}: give a path, a text or a pathlib.Path")


def check_watcher(watch: Any, base_class: "type[Watcher]") -> None:
    """Raise UserError for callbacks that are neither of the base class nor None."""
    if watch is not None and not isinstance(watch, base_class):
        name = base_class.__name__
        raise UserError(
            f"watch is {describe_type(watch)}: give an object of a class that is derived from fcorun.{name}"
        )


def check_configuration(config: Any, argument: str = "config") -> None:
    """Raise UserError for a configuration that is no mapping."""
    if not isinstance(config, Mapping):
        raise UserError(f"{argument} is {describe_type(config)}: give a mapping, as fcorun.compose returns")


def check_list(values: Any, argument: str, advice: str) -> None:
    """Raise UserError, which ends with ``advice``, for values that are no list, tuple or array."""
    is_list = isinstance(values, Sequence) or getattr(values, "ndim", 0) == 1
    if not is_list or isinstance(values, (str, bytes)):
        raise UserError(f"{argument} is {describe_type(values)}: {advice}")


def check_axes(axes: Any) -> None:
    """Raise UserError for axes that are no mapping of names to lists of values."""
    if not isinstance(axes, Mapping):
        raise UserError(f"axes is {describe_type(axes)}: give a mapping of names to lists of values")
    for name, values in axes.items():
        if not isinstance(name, str):
            raise UserError(f"axes has the name {name!r}: give a text")
        check_list(values, f"axes[{name!r}]", "give a list of values")
        if not len(values):
            raise UserError(f"axes[{name!r}] has no values: give at least one")


def describe_type(value: Any) -> str:
    """Return the type of a value in words.

    >>> describe_type(3), describe_type(None), describe_type(int)
    ('of type int', 'None', 'the class int')
    """
    if value is None:
        return "None"
    return f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"
