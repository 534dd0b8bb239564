"""Errors and warnings in the words of a Python program, and checks of its arguments.

All of fcorun names options as the command does: algo.client_lr=null, reg=none, force=true. Where a message leaves
fcorun for a Python program, these are algorithm.client_lr=None, regularizer=NoRegularizer(), force=True.
"""

import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from fcorun.base.config import SECTIONS, Settings, type_hints
from fcorun.base.errors import UserError, is_command
from fcorun.experiment.configuration.expressions import find_expression, format_literal

if TYPE_CHECKING:
    from fcorun.runs.job import Watcher


# the argument of Experiment that stands for each section of a configuration
ARGUMENTS = {
    "algo": "algorithm",
    "data": "data",
    "reg": "regularizer",
    "objective": "objective",
    "mirror": "mirror_map",
    "topology": "topology",
    "uplink": "uplink",
    "downlink": "downlink",
    "clock": "clock",
    "tracker": "tracker",
}
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
_STUDY_KEYS = {
    "folds",
    "points",
    "by",
    "rule",
    "fold_weights",
    "range",
    "outer_folds",
    "subsamples",
    "threshold",
    "max_errors",
}
_STUDY_KEYS |= {"method", "level", "cluster", "resample", "samples"}  # of intervals
_ROOT_KEYS = {field.name for field in fields(Settings)} | _STUDY_KEYS

# patterns, which are compiled on their first use: most programs have no error
_START = r"""(?<![\w.'"/])"""  # no option begins within a word, a path or a quoted text
_VALUE = r"(?:\[[^\[\]]*\]|\{[^{}]*\}|[^\s,;:)]+)"
_SECTION = rf"{_START}(?P<section>{'|'.join(SECTIONS)})"
_NO_FILE = r"(?!(?:py|csv|tsv|yaml|yml|txt|json|npz|parquet|xlsx|log)\b)"  # the name of a file, such as reg.py
_OPTION = rf"{_SECTION}\.{_NO_FILE}(?P<name>[a-z]\w*)(?:\.(?P<item>\w+))?(?:=(?P<value>{_VALUE}))?"
_CHOICE = rf"{_SECTION}=(?P<choice>[^\s,;:)]+)(?P<others>(?:(?:, | or | and )[a-z]\w*(?![\w.=]))*)"
_SETTING = rf"{_START}(?P<name>{'|'.join(sorted(_ROOT_KEYS))})(?:\.(?P<item>\w+))?=(?P<value>{_VALUE})"
_TARGET = rf"{_START}stop\.{_NO_FILE}(?P<item>\w+)"
_FOLDER = rf"{_START}out=(.+?)(?= has | holds | cannot |[;:]|$)"
# the values that are Python's already: numbers, constants, placeholders such as DIR, quoted texts, calls
_PYTHON = r"""[-+]?\.?\d[\d.,]*(?:e[-+]?\d+)?|-?inf|nan|None|True|False|[A-Z][A-Z_]*|\.\.\.|.*['"(].*"""
_CONSTANTS = {"null": "None", "true": "True", "false": "False"}
_BEFORE = {
    r"'((?:\w+\.)+\w+=\{[^{}]*\})'": r"\1",  # quotes for a shell
    r"(=[^\s,;:]+) (?=[a-z]\w*(?:\.\w+)*=)": r"\1, ",  # two options, which a shell separates by a space
}
_AFTER = {
    r" or --trust DIR": "",
    r"the same command": "the same call",
    r"(?<!command )fcorun list": "the command fcorun list",
    r"fcorun (select|stability)": r"\1",
    r"\btrue or false\b": "True or False",
    r"""(?<!['"])\bnull\b(?!['"])""": "None",
}
_SECTION_NAMES = {
    r"""(?<!list )(?<!['"])\balgo\b(?![.='"])""": "algorithm",
    r"""(?<!['"])\breg\b(?![.='"])""": "regularizer",
    r"leave mirror out": "leave mirror_map out",
}

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True)
class PythonNames:
    """The names that a Python program has for the options of the command.

    Attributes:
        rows: whether the data are "arrays" or a "frame" of the program, whose options are arguments of from_arrays or
            from_frame. None: a data set, whose options are its fields.
        path: the path of a table, or the name of the program's rows, which may have spaces.
        has_sections: whether the program has a configuration, with sections and choices as the command has them.
    """

    rows: Literal["arrays", "frame"] | None = None
    path: str | None = None
    has_sections: bool = False

    @classmethod
    def of_data(cls, data: Any) -> "PythonNames":
        """Return the names for an experiment with these data."""
        from fcorun.data.datasets.in_memory import InMemoryTable

        path, target = getattr(data, "path", None), getattr(data, "target", None)
        return cls.of_rows(isinstance(data, InMemoryTable), path, target)

    @classmethod
    def of_rows(cls, is_in_memory: bool, path: Any, target: Any) -> "PythonNames":
        """Return the names for a data set with these options."""
        path = path if isinstance(path, str) else None
        if not is_in_memory:
            return cls(path=path)
        return cls("arrays" if target is None else "frame", path)

    def translate(self, message: str) -> str:
        """Return a message with the names of Python. A message that has them already stays as it is."""
        phrases = _AFTER if self.has_sections else _AFTER | _SECTION_NAMES
        for pattern, replacement in _BEFORE.items():
            message = re.sub(pattern, replacement, message)
        if self.path:
            message = message.replace(f"data.path={self.path}", self._translate_data_option("path", self.path))
            if self.rows:
                message = message.replace(f"data={self.path}", f"data {format_literal(self.path)}")
        message = re.sub(_FOLDER, r'folder="\1"', message)
        message = re.sub(_OPTION, self._translate_option, message)
        if not self.has_sections:
            message = re.sub(_CHOICE, self._translate_choice, message)
        message = re.sub(_SETTING, _translate_setting, message)
        message = re.sub(_TARGET, r'stop["\g<item>"]', message)
        for pattern, replacement in phrases.items():
            message = re.sub(pattern, replacement, message)
        return message

    def translate_each(self, messages: Iterable[str]) -> list[str]:
        """Return messages with the names of Python."""
        return [self.translate(message) for message in messages]

    def _translate_option(self, match: re.Match[str]) -> str:
        """Return SECTION.NAME, with or without =VALUE, as an attribute, or as an argument that made the rows."""
        if match["section"] == "data" and match["item"] is None:
            return self._translate_data_option(match["name"], match["value"])
        argument = match["section"] if self.has_sections else ARGUMENTS[match["section"]]
        return _assign(f"{argument}.{match['name']}", match["item"], match["value"])

    def _translate_data_option(self, name: str, value: str | None) -> str:
        from fcorun.data.datasets.table import Table

        if self.rows is None or name not in type_hints(Table):
            return _assign(f"data.{name}", None, value)
        if name == "path":
            return _assign("name", None, value)
        if self.rows == "frame":
            return _assign(name, None, value)
        if name == "clients":
            return _assign("n_clients", None, value)
        return COLUMN_ARGUMENTS.get(name) or _assign(name, None, value)

    def _translate_choice(self, match: re.Match[str]) -> str:
        """Return SECTION=CHOICE, and the further choices after a comma or "or", as objects."""
        section, choice = match["section"], match["choice"]
        expression = find_expression(section, choice)
        if expression is None:
            return f"{ARGUMENTS[section]}={choice}{match['others']}"
        text = f"{ARGUMENTS[section]}={expression}"
        rest = match["others"]
        while further := re.match(r"(, | or | and )(\w+)", rest):
            expression = find_expression(section, further[2])
            if expression is None:
                break
            text += further[1] + expression
            rest = rest[further.end() :]
        return text + rest


def _translate_setting(match: re.Match[str]) -> str:
    return _assign(match["name"], match["item"], match["value"])


def _assign(name: str, item: str | None, value: str | None) -> str:
    """Return ``name["item"]=value`` as Python writes it, without an item or a value that is None."""
    target = f'{name}["{item}"]' if item else name
    return target if value is None else f"{target}={_to_python(value)}"


def _to_python(value: str) -> str:
    """Return a value as Python writes it.

    >>> _to_python("null"), _to_python("[face,house]"), _to_python("{change:1e-5}")
    ('None', '["face", "house"]', '{"change": 1e-5}')
    """
    if re.fullmatch(_PYTHON, value):
        return value
    if value[0] == "[":
        return f"[{', '.join(_to_python(item.strip()) for item in value[1:-1].split(',') if item)}]"
    if value[0] == "{":
        words = re.sub(r"[^\s{}\[\],:]+", lambda match: _to_python(match[0]), value)
        return re.sub(r":(?! )", ": ", words)
    return _CONSTANTS.get(value) or format_literal(value)


def python_errors(
    names: Callable[[Any], PythonNames],
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Return a decorator that gives the errors of a function the names of Python, except within the command.

    Args:
        names: the names by the first argument of the function, None without one.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            try:
                return function(*args, **kwargs)
            except UserError as error:
                if not is_command():
                    error.args = (names(args[0] if args else None).translate(str(error)),)
                raise

        return call

    return decorate


def names_of_experiment(experiment: Any) -> PythonNames:
    """Return the names for an Experiment, and for a function without one."""
    if getattr(experiment, "defaults", None) is not None:  # the program has a configuration
        return PythonNames(has_sections=True)
    return PythonNames.of_data(getattr(experiment, "data", None))


def names_of_record(record: Any) -> PythonNames:
    """Return the names for a record."""
    from fcorun.data.datasets.in_memory import InMemoryTable

    config = record.flat_config
    is_in_memory = str(config.get("data.class")).endswith(f".{InMemoryTable.__name__}")
    return PythonNames.of_rows(is_in_memory, config.get("data.path"), config.get("data.target"))


def names_of_configuration(_: Any) -> PythonNames:
    """Return the names for a configuration of plain values."""
    return PythonNames(has_sections=True)


# Checks of the arguments that every function of the Python interface takes alike.


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


def name_keys(second: Mapping[str, Sequence[float]] | None) -> dict[str, list[float]] | None:
    """Return the values of a number by its key, {"reg.l1_ratio": [0.1]}, given its argument, "regularizer.l1_ratio"."""
    if second is None:
        return None
    check_axes(second)
    named = {}
    for path, values in second.items():
        argument, _, field_name = path.partition(".")
        named[f"{SECTION_OF_ARGUMENT.get(argument, argument)}.{field_name}"] = list(values)
    return named
