"""From plain configuration values to checked objects.

A plug-in (algorithm, data set, regularizer, mirror map, objective) is a frozen dataclass; the types of its fields are
its schema. ``build`` is the one place where names, types and ranges are checked, for plug-ins and root keys alike.
"""

import dataclasses
import functools
import importlib
import inspect
import math
import os
import pathlib
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union

from fcorun.errors import UserError, describe_error, find_user_line, suggest_name
from fcorun.trust import import_trusted_module, import_user_module, is_free_to_import

Positive = Annotated[float, "positive"]
NonNegative = Annotated[float, "non-negative"]
Fraction = Annotated[float, "between 0 and 1"]
Decay = Annotated[float, "between 0 and 1", "less than 1"]
Relaxation = Annotated[float, "positive", "at most 2"]
Level = Annotated[float, "positive", "less than 1"]
AutoPositive = Annotated[float, "or auto", "positive"]
AutoNonNegative = Annotated[float, "or auto", "non-negative"]
AutoCount = Annotated[int, "or auto", "positive"]
AutoFraction = Annotated[float, "or auto", "between 0 and 1"]
Count = Annotated[int, "positive"]
Index = Annotated[int, "non-negative"]
PathOption = Annotated[str, "how"]  # where something lies; no part of what a run is
LaterIndex = Annotated[int, "non-negative", "later"]  # later: with its default, a run is the one it was before

CurveAxis = Literal["rounds", "bytes", "grad_evals", "seconds"]  # what curves are drawn against
FigureStyle = Literal["paper", "slides"]  # what pictures are drawn for: their size, and that of their texts

_CONDITIONS = {
    "positive": lambda v: v > 0,
    "non-negative": lambda v: v >= 0,
    "between 0 and 1": lambda v: 0 <= v <= 1,
    "at most 2": lambda v: v <= 2,
    "less than 1": lambda v: v < 1,
    "how": lambda v: True,
    "later": lambda v: True,
}
AUTO: Any = "auto"  # a number that is worked out before the run
_NAMES = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}
_NAMES |= {list: "a list", dict: "a mapping"}

# Where plug-ins were that older configurations and records name.
MOVED = {
    "fcorun.topology.Star": "fcorun.communication.star.Star",
    "fcorun.topology.Tree": "fcorun.communication.tree.Tree",
}

# Keys of a section that are no fields of its plug-in: its name, its class, what others look up, its name in pictures.
LABEL_KEYS = ("name", "class", "natural", "title")
# Names become names of folders, which may be copied to systems that refuse these.
_NO_FOLDER = re.compile(r'[<>:"/\\|?*\x00-\x1f]|[ .]$|^(con|prn|aux|nul|com\d|lpt\d)$', re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The root keys of a configuration, those that are no config group."""

    rounds: Index = 500
    clients_per_round: Count | None = None
    batch_size: Count | None = None
    local_epochs: Count | None = 1
    local_steps: Count | None = None
    eval_every: Count = 10
    seed: Index = 0
    precision: Literal["float32", "float64"] = "float32"
    client_weighting: Literal["examples", "uniform"] = "examples"
    cutoff: NonNegative = 1e-4
    reference: bool = False
    start: str | None = None
    frozen: bool = False
    stop: dict[str, float] | None = None
    # how, not what: none of these changes a row of metrics.csv
    tail_rounds: Annotated[Count, "how"] = 100
    metric: Annotated[str | None, "how"] = None
    x: Annotated[CurveAxis, "how"] = "rounds"
    style: Annotated[FigureStyle, "how"] = "paper"
    checkpoint_every: Annotated[NonNegative, "how"] = 5.0
    memory: Annotated[Positive | None, "how"] = None
    devices: Annotated[Literal["all"] | AutoCount, "how"] = AUTO
    clients_at_once: Annotated[AutoCount, "how"] = AUTO
    hosts: Annotated[dict[str, Any] | None, "how"] = None
    save_personal: Annotated[bool, "how"] = True
    force: Annotated[bool, "how"] = False
    verbose: Annotated[bool, "how"] = True
    debug: Annotated[bool, "how"] = False
    dry_run: Annotated[bool, "how"] = False
    fail_fast: Annotated[bool, "how"] = False
    report: Annotated[bool, "how"] = True


def locate(target: str, key: str, trust: str | os.PathLike[str] | None = None) -> type:
    """Return the class at a dotted path ``package.module.Class`` that anybody may have named, as a record does.

    Imports nothing but modules that need no trust, see ``fcorun.trust``, and those of the folder ``trust``. Raises
    UserError, naming ``key``, for a class of another module, and where there is no such module or class.
    """
    target = MOVED.get(str(target), str(target))
    module = target.rpartition(".")[0]
    if is_free_to_import(module):
        return _class_in(lambda: importlib.import_module(module), target, key)
    if trust is not None:
        return _class_in(lambda: import_trusted_module(module, trust), target, key)
    raise UserError(
        f"{key}={target} is not imported: it is no class of fcorun, of an installed plug-in package or of your own "
        f"configuration; if you know its code, give the folder that holds '{module}', as trust=DIR or --trust DIR"
    )


def locate_user_class(target: str, key: str) -> type:
    """Return the class at a dotted path that the user's own configuration files or command line name.

    Its module may be any that is installed, or one of the current folder. Raises UserError, naming ``key``, where there
    is no such module or class.
    """
    target = MOVED.get(str(target), str(target))
    return _class_in(lambda: import_user_module(target.rpartition(".")[0]), target, key)


def import_classes(config: Mapping[str, Any], trust: str | os.PathLike[str] | None = None) -> None:
    """Import the classes that the sections of a configuration name.

    They are the user's own where ``trust`` is None, and else those that somebody else named, of that folder.
    """
    for section, values in config.items():
        target = str(values.get("class") or "") if isinstance(values, Mapping) else ""
        if target and not target.startswith("fcorun."):  # which needs no more than to be asked for
            key = f"{section}.class"
            _ = locate_user_class(target, key) if trust is None else locate(target, key, trust)


def _class_in(imported: Callable[[], types.ModuleType], target: str, key: str) -> type:
    """Return the dataclass at a dotted path, of its module. Raises UserError, naming ``key``."""
    module_name, _, class_name = target.rpartition(".")
    try:
        module = imported()
    except UserError:
        raise
    except Exception as error:
        if "non-frozen dataclass" in str(error):
            raise UserError(
                f"{key}={target}: a plug-in is a frozen dataclass: write @dataclass(frozen=True) above its class, "
                f"{find_user_line(error)}"
            ) from error
        raise UserError(
            f"{key}={target}: cannot import '{module_name}' ({describe_error(error)}); give the dotted path of a "
            f"class, "
            "package.module.Class, that Python can import from this folder"
        ) from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type) or not dataclasses.is_dataclass(found):
        own = {n: v for n, v in vars(module).items() if getattr(v, "__module__", "") == module_name}
        classes = [n for n, v in own.items() if isinstance(v, type) and dataclasses.is_dataclass(v)]
        raise UserError(
            f"{key}={target}: '{module_name}' has no dataclass '{class_name}'; {suggest_name(class_name, classes)}"
        )
    options = [name for name, hint in inspect.get_annotations(found).items() if "ClassVar" not in str(hint)]
    if options and "__dataclass_fields__" not in vars(found):
        place = f"{pathlib.Path(inspect.getfile(found)).name} line {inspect.getsourcelines(found)[1]}"
        raise UserError(f"{key}={target}: its option {options[0]} is no field: write @dataclass(frozen=True) above "
                        f"class {class_name}, {place}")  # fmt: skip
    return found


def build(cls: type, values: Mapping[str, Any], prefix: str = "") -> Any:
    """An instance of the dataclass ``cls`` from ``values``, with every name, type and range checked.

    ``prefix`` is the section's name in error messages, "algo" for ``algo.client_lr``. Raises UserError.
    """
    hints = type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    dotted = prefix + "." if prefix else ""
    for name in values:
        if name not in fields and not (prefix and name in LABEL_KEYS):
            raise UserError(f"unknown option '{dotted}{name}': {suggest_name(name, fields)}")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if values.get(name, "???" if required else None) == "???":
            raise UserError(f"{dotted}{name} has no value: give {dotted}{name}=...")
    return cls(**{n: check_value(values[n], hints[n], dotted + n) for n in fields if n in values})


def build_plugin(section: str, values: Mapping[str, Any]) -> Any:
    """The plug-in that a section of the configuration (``algo``, ``data``, ...) names by its ``class``."""
    if _NO_FOLDER.search(str(values.get("name", ""))):
        raise UserError(
            f"{section}.name={values['name']} cannot be in a folder's name on every system: leave out <>:\"/\\|?*, "
            "dots and spaces at the end, and names of devices such as con"
        )
    if "class" not in values:
        raise UserError(f"{section}.class is missing: give the dotted path of the {section}'s class")
    return build(locate(values["class"], f"{section}.class"), values, section)


def check_value(value: Any, hint: Any, key: str) -> Any:
    """``value`` as the type ``hint``, or a UserError that names ``key``."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        if "or auto" in args:
            if isinstance(value, str) and value == AUTO:
                return value
            try:
                return check_value(value, Annotated[args[0], *(mark for mark in args[1:] if mark != "or auto")], key)
            except UserError as error:
                raise UserError(f"{error}, or auto") from error
        value = check_value(value, args[0], key)
        for condition in args[1:]:
            if value is not None and not _CONDITIONS[condition](value):
                raise UserError(f"{key}={value} must be {condition}")
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        options = [a for a in args if a is not type(None)]
        if isinstance(value, (list, tuple)):  # what is wrong in a list is what to say
            options.sort(key=lambda option: typing.get_origin(option) is list)
        for option in options[:-1]:
            try:
                return check_value(value, option, key)
            except UserError:
                continue
        return check_value(value, options[-1], key)
    if origin is Literal:
        if value in args and not (isinstance(value, bool) and value not in (a for a in args if isinstance(a, bool))):
            return value
        raise UserError(f"{key}={value} is not a choice: {suggest_name(value, map(str, args))}")
    if origin is list:
        if not isinstance(value, (list, tuple)):
            raise UserError(f"{key}={value} must be a list: give {key}=[{value}]")
        return [check_value(v, args[0], key) for v in value]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise UserError(f"{key}={value} must be a mapping: give {key}={{NAME: VALUE}}")
        return {check_value(k, args[0], key): check_value(v, args[1], f"{key}.{k}") for k, v in value.items()}
    return _scalar(value, hint, key)


def _scalar(value: Any, hint: Any, key: str) -> Any:
    if hint is Any:
        return value
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and hint is float:
        if not math.isfinite(value):
            raise UserError(f"{key}={value} must be a finite number")
        return float(value)
    if number and hint is int and float(value).is_integer():
        return int(value)
    if hint is str and number:
        return str(value)
    if type(value) is hint:
        return value
    raise UserError(f"{key}={'null' if value is None else value} must be {_NAMES.get(hint, hint)}")


@functools.cache
def type_hints(cls: type) -> dict[str, Any]:
    """The types of a class's fields, with their annotations."""
    return typing.get_type_hints(cls, include_extras=True)


@functools.cache
def field_marks(cls: type) -> dict[str, tuple]:
    """The annotations of each field of a dataclass, e.g. {"client_lr": ("positive",)}."""
    found = {}
    for name, hint in type_hints(cls).items():
        parts = [hint, *typing.get_args(hint)]
        found[name] = tuple(m for p in parts for m in getattr(p, "__metadata__", ()))
    return found


def numeric_fields(plugin: Any) -> dict[str, float]:
    """The fields of a plug-in that are real numbers: what a grid may vary inside one compiled program."""
    return {f.name: v for f in dataclasses.fields(plugin) if isinstance(v := getattr(plugin, f.name), float)}


def keys_outside_identity() -> set[str]:
    """The root keys that change nothing in a run's rows."""
    return {name for name, marks in field_marks(Settings).items() if "how" in marks}


def identity_fields(plugin: Any) -> dict[str, Any]:
    """The fields of a plug-in or of the settings that say what a run is: without those that say where or how, and
    those that came "later" and have their default."""
    marks, fields = field_marks(type(plugin)), dataclasses.fields(plugin)
    said = {f.name: getattr(plugin, f.name) for f in fields if f.init and "how" not in marks[f.name]}
    defaults = {f.name: f.default for f in fields if "later" in marks[f.name]}
    return {name: value for name, value in said.items() if name not in defaults or value != defaults[name]}
