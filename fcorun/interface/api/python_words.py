"""The words of a Python program for options, and checks of its arguments.

Sentences of fcorun name options as the command does, between backticks: `algo.client_lr=null`, `reg=none`,
`force=true`. For a Python program these are algorithm.client_lr=None, regularizer=NoRegularizer(), force=True.
"""

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from fcorun.base.config import SECTIONS, Settings, type_hints
from fcorun.base.errors import UserError, check_type, describe_type, is_command, words_of
from fcorun.base.override_text import format_literal

if TYPE_CHECKING:
    from fcorun.base.records.record import Record
    from fcorun.runs.job import Watcher


# the argument of Experiment that stands for each section of a configuration
ARGUMENTS = {name: name for name in SECTIONS} | {"algo": "algorithm", "reg": "regularizer", "mirror": "mirror_map"}
SECTION_OF_ARGUMENT = {argument: section for section, argument in ARGUMENTS.items()}
# the argument of from_arrays that gives the column of each role
COLUMN_ARGUMENTS = {
    "target": "y",
    "client": "clients",
    "weight": "sample_weight",
    "offset": "offset",
    "event": "events",
    "group": "groups",
    "fold": "folds",
}
# the values that are Python's already: numbers, constants, placeholders such as DIR, quoted texts, calls
_PYTHON_VALUE = r"""[-+]?\.?\d[\d.,]*(?:e[-+]?\d+)?|-?inf|nan|None|True|False|[A-Z][A-Z_]*|\.\.\.|.*['"(].*"""
_CONSTANTS = {"null": "None", "true": "True", "false": "False"}
_PHRASES = _CONSTANTS | {
    "trust=DIR or --trust DIR": "trust=DIR",
    "fcorun -m": "the command fcorun -m",
    "the same command": "the same call",
    "hydra.sweeper.conditions": "conditions",
    "fcorun select": "select",
    "fcorun stability": "stability",
    "fcorun list algo": "the command fcorun list algo",
}

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True)
class PythonNames:
    """The names that a Python program has for the options of the command.

    Attributes:
        rows: whether the data are "arrays" or a "frame" of the program, whose options are arguments of from_arrays or
            from_frame. None: a data set, whose options are its fields.
        has_sections: whether the program has a configuration, with sections and choices as the command has them.
    """

    rows: Literal["arrays", "frame"] | None = None
    has_sections: bool = False

    @classmethod
    def of_rows(cls, is_in_memory: bool, target: object) -> "PythonNames":
        """Return the names for a data set with this target; arrays have none."""
        if not is_in_memory:
            return cls()
        return cls("arrays" if target is None else "frame")

    def word(self, option: str) -> str:
        """Return an option, which is written as the command has it, in Python's names.

        >>> PythonNames().word("reg=l1 data.standardize=pooled")
        'regularizer=L1(), data.standardize="pooled"'
        """
        if option in _PHRASES:
            return _PHRASES[option]
        if option.startswith("out="):  # a folder, which may have spaces
            return f"folder={format_literal(option.removeprefix('out='))}"
        if option.startswith("'"):  # in quotes for a shell
            option = option.strip("'")
        options = re.split(r" (?=[a-z][\w.]*=)", option)  # a shell separates them by spaces
        return ", ".join(map(self._word_one, options))

    def _word_one(self, option: str) -> str:
        """Return KEY or KEY=VALUE in Python's names."""
        key, sign, text = option.partition("=")
        value = to_python(text) if sign else None
        section, *names = key.split(".")
        if section in ARGUMENTS and not names:
            return self._word_choices(section, text)
        if section == "data" and len(names) == 1:
            return self._word_data_option(names[0], value)
        if section in ARGUMENTS:
            argument = section if self.has_sections else ARGUMENTS[section]
            return _assign(f"{argument}.{names[0]}", names[1:], value)
        if section in type_hints(Settings):
            return _assign(section, names, value)
        return _assign(key, [], value)

    def _word_data_option(self, name: str, value: str | None) -> str:
        """Return data.NAME, or data.NAME=VALUE, as a field, or as an argument of what took the rows."""
        from fcorun.data.datasets.table import Table

        if self.rows is None or name not in type_hints(Table):
            return _assign(f"data.{name}", [], value)
        if name == "path":
            return _assign("name", [], value)
        if self.rows == "arrays" and name in COLUMN_ARGUMENTS:  # whose columns have no names
            return COLUMN_ARGUMENTS[name]
        if self.rows == "arrays" and name == "clients":
            return _assign("n_clients", [], value)
        return _assign(name, [], value)

    def _word_choices(self, section: str, choices: str) -> str:
        """Return a section, or SECTION=CHOICE and further choices after a comma, "or" or "and", as objects."""
        argument = section if self.has_sections else ARGUMENTS[section]
        if not choices:
            return argument
        if self.has_sections:
            return f"{section}={choices}"
        from fcorun.experiment.configuration.objects import find_expression  # imports Hydra

        expressions = []
        for word in re.split("(, | or | and )", choices):
            expressions.append(find_expression(section, word) or word)
        if section == "data" and self.rows and expressions == [choices]:
            return f"data {format_literal(choices)}"
        return f"{argument}={''.join(expressions)}"


def _assign(name: str, items: Sequence[str], value: str | None) -> str:
    """Return ``name["item"]=value`` as Python writes it; without a value, if it is None."""
    target = name + "".join(f'["{item}"]' for item in items)
    return target if value is None else f"{target}={value}"


def to_python(value: str) -> str:
    """Return a value, which is written as the command has it, as Python writes it.

    >>> to_python("null"), to_python("[face,house]"), to_python("{change:1e-5}")
    ('None', '["face", "house"]', '{"change": 1e-5}')
    """
    if re.fullmatch(_PYTHON_VALUE, value):
        return value
    if value.startswith("["):
        items = [to_python(item.strip()) for item in value[1:-1].split(",") if item]
        return f"[{', '.join(items)}]"
    if value.startswith("{"):
        words = re.sub(r"[^\s{}\[\],:]+", lambda match: to_python(match[0]), value)
        return re.sub(r":(?! )", ": ", words)
    return _CONSTANTS.get(value) or format_literal(value)


def python_words(
    names: Callable[[Any], PythonNames],
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Return a decorator that gives the sentences of a function the names of Python, except within the command.

    Args:
        names: the names by the first argument of the function, None without one.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            if is_command():
                return function(*args, **kwargs)
            with words_of(names(args[0] if args else None).word):
                return function(*args, **kwargs)

        return call

    return decorate


def names_of_experiment(experiment: object) -> PythonNames:
    """Return the names for an Experiment, and for a function without one; of several data sets, those of the first."""
    from fcorun.data.datasets.in_memory import InMemoryTable

    if getattr(experiment, "defaults", None) is not None:  # the program has a configuration
        return PythonNames(has_sections=True)
    data = getattr(experiment, "data", None)
    if isinstance(data, (list, tuple)) and data:
        data = data[0]
    return PythonNames.of_rows(isinstance(data, InMemoryTable), getattr(data, "target", None))


def names_of_record(record: "Record") -> PythonNames:
    """Return the names for a record."""
    from fcorun.data.datasets.in_memory import InMemoryTable

    config = record.flat_config
    is_in_memory = str(config.get("data.class")).endswith(f".{InMemoryTable.__name__}")
    return PythonNames.of_rows(is_in_memory, config.get("data.target"))


def names_of_configuration(_: object) -> PythonNames:
    """Return the names for a configuration of plain values."""
    return PythonNames(has_sections=True)


# Checks of the arguments that every function of the Python interface takes alike.


def check_folder(folder: object, argument: str = "folder") -> None:
    """Raise UserError for a folder that is neither a path nor None."""
    check_type(folder, (str, os.PathLike, NoneType), argument, "give a path, a text or a pathlib.Path")


def check_watcher(watch: object, base_class: "type[Watcher]") -> None:
    """Raise UserError for callbacks that are neither of the base class nor None."""
    advice = f"give an object of a class that is derived from fcorun.{base_class.__name__}"
    check_type(watch, (base_class, NoneType), "watch", advice)


def check_configuration(config: object, argument: str = "config") -> None:
    """Raise UserError for a configuration that is no mapping."""
    check_type(config, Mapping, argument, "give a mapping, as fcorun.compose returns")


def check_list(values: object, argument: str, advice: str) -> None:
    """Raise UserError, which ends with ``advice``, for values that are no list, tuple or array."""
    is_list = isinstance(values, Sequence) or getattr(values, "ndim", 0) == 1
    if not is_list or isinstance(values, (str, bytes)):
        raise UserError(f"{argument} is {describe_type(values)}: {advice}")


def check_axes(axes: object) -> None:
    """Raise UserError for axes that are no mapping of names to lists of values."""
    if not isinstance(axes, Mapping):
        raise UserError(f"axes is {describe_type(axes)}: give a mapping of names to lists of values")
    for name, values in axes.items():
        if not isinstance(name, str):
            raise UserError(f"axes has the name {name!r}: give a text")
        check_list(values, f"axes[{name!r}]", "give a list of values")
        if not len(values):
            raise UserError(f"axes[{name!r}] has no values: give at least one")


def name_key(path: str) -> str:
    """Return the key of an argument or of its field: "reg.l1_ratio" of "regularizer.l1_ratio"."""
    argument, dot, field_name = path.partition(".")
    return SECTION_OF_ARGUMENT.get(argument, argument) + dot + field_name


def name_keys(second: Mapping[str, Sequence[float]] | None) -> dict[str, list[float]] | None:
    """Return the values of a number by its key, given its argument, "regularizer.l1_ratio"."""
    if second is None:
        return None
    check_axes(second)
    return {name_key(path): list(values) for path, values in second.items()}
