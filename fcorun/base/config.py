"""From plain configuration values, or the arguments of a Python program, to checked objects."""

import contextlib
import dataclasses
import functools
import importlib
import math
import os
import re
import shlex
import sys
import types
import typing
from collections.abc import Callable, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from fcorun.base.cohorts import COHORT_FORM, Cohort, is_cohort
from fcorun.base.errors import UserError, suggest_name
from fcorun.base.gone_options import explain_gone
from fcorun.base.override_text import format_override_value, quote_text
from fcorun.base.picture_style import PICTURE_WIDTHS, WIDTH_FORM, FigureStyle, PictureWidth
from fcorun.base.trust import class_path, locate, locate_user_class

if TYPE_CHECKING:
    from fcorun.base.plugin_code import PluginCode

# Names that become names of folders, which may be copied to systems that refuse these:
_PLAIN_VALUE = re.compile(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?|true|false", re.IGNORECASE)
_INVALID_FOLDER_NAME = re.compile(r'[<>:"/\\|?*\x00-\x1f]|[ .]$|^(con|prn|aux|nul|com\d|lpt\d)$', re.IGNORECASE)


def check_folder_name(name: object, key: str) -> None:
    """Raise UserError, naming ``key``, for a name that cannot be part of a folder's name on every system."""
    if not isinstance(name, str) or not name or _INVALID_FOLDER_NAME.search(name):
        raise UserError(
            f"{key}={name} cannot be in a folder's name on every system: leave out <>:\"/\\|?*, dots and spaces at the "
            "end, and names of devices such as con"
        )


# Plug-ins from plain configuration values.
#
# A plug-in (algorithm, data set, regularizer and so on, see ``SECTIONS``) is a frozen dataclass; the types of its
# fields are its schema. ``build`` is the one place where names, types and ranges are checked, for plug-ins and root
# keys alike.

# Marks in an annotation are conditions on the value, or one of these:
# "or auto": the text auto is allowed, for a number that is computed before the run;
# "outside identity": the option is not part of a run's identity;
# "a path": the option names a file or a folder that a run reads;
# "in memory": the option holds rows of this process, and is part of no configuration file;
# "default outside identity": the option is part of a run's identity unless it has its default, as in older runs;
# "fixed in a program": runs that differ in this number are no grid of one program.
Positive = Annotated[float, "positive"]
NonNegative = Annotated[float, "non-negative"]
Fraction = Annotated[float, "between 0 and 1"]
PositiveFraction = Annotated[float, "positive", "between 0 and 1"]
BelowOne = Annotated[float, "between 0 and 1", "less than 1"]
Relaxation = Annotated[float, "positive", "at most 2"]
Level = Annotated[float, "positive", "less than 1"]
AutoPositive = Annotated[float, "or auto", "positive"]
AutoNonNegative = Annotated[float, "or auto", "non-negative"]
AutoCount = Annotated[int, "or auto", "positive"]
AutoFraction = Annotated[float, "or auto", "between 0 and 1"]
Count = Annotated[int, "positive"]
Index = Annotated[int, "non-negative"]
PathOption = Annotated[str, "outside identity", "a path"]  # data are identified by their content, not by their location
LaterIndex = Annotated[int, "non-negative", "default outside identity"]
SplitSeed = Annotated[int | None, "non-negative", "default outside identity"]  # of a data set: see Dataset
CurveAxis = Literal["rounds", "bytes", "grad_evals", "seconds", "simulated_seconds"]  # the horizontal axis of curves
_THRESHOLD_RULE = r"youden|((sensitivity|specificity):)?(0?\.\d*[1-9]\d*|[1-9](\.\d+)?e-0*[1-9]\d*)"
# 0.9 stands for any number between 0 and 1
_THRESHOLD = "a number between 0 and 1, youden, sensitivity:0.9 or specificity:0.9"
_CONDITIONS = {
    "positive": lambda v: v > 0,
    "non-negative": lambda v: v >= 0,
    "between 0 and 1": lambda v: 0 <= v <= 1,
    "at most 2": lambda v: v <= 2,
    WIDTH_FORM: lambda v: v in PICTURE_WIDTHS,
    COHORT_FORM: is_cohort,
    "less than 1": lambda v: v < 1,
    **dict.fromkeys(
        ("outside identity", "default outside identity", "in memory", "a path", "fixed in a program"), lambda v: True
    ),
    _THRESHOLD: lambda v: re.fullmatch(_THRESHOLD_RULE, str(v)) is not None,
}
AUTO: Any = "auto"  # a value that is computed before the run
UNSET: Any = AUTO  # the default of a field that takes no "auto": the choice's file in conf/ sets it, else the user must
TYPE_NAMES = {float: "a number", int: "a whole number", str: "text", bool: "`true` or `false`"}
TYPE_NAMES |= {list: "a list", dict: "a mapping"}

NOTE_KEYS = ("note", "notes", "comment", "description", "tag", "tags")  # root keys that people try
NOTE_ADVICE = "title=TEXT is a text of yours, which stays in the record and heads its pictures"

# Keys of a section that are no fields of its plug-in: its name, its class, defaults of other keys, its name in figures.
LABEL_KEYS = ("name", "class", "natural", "title")


@dataclasses.dataclass(frozen=True)
class StrengthStudy:
    """The section ``study``: how each run of a sweep chooses its strength, as ``fcorun select`` does.

    Attributes:
        strength: "cv" chooses the best mean over folds, "one_se" the simplest solution within a standard error of it.
        folds, points: the numbers of folds and of strengths, as of ``fcorun select``.
    """

    strength: Literal["cv", "one_se"] | None = None
    folds: Count | None = None
    points: Count = 50


@dataclasses.dataclass(frozen=True)
class Settings:
    """The root keys of a configuration, outside of its sections; conf/config.yaml explains each."""

    rounds: Index = 500
    clients_per_round: Annotated[Cohort, COHORT_FORM] | None = None
    batch_size: Count | None = None
    local_epochs: Count | None = 1
    local_steps: Count | None = None
    eval_every: Count = 10
    seed: Index = 0
    precision: Literal["float32", "float64"] = "float32"
    client_weighting: Literal["examples", "uniform"] = "examples"
    cutoff: NonNegative = 1e-4
    reference: bool = False
    gap: Annotated[bool, "default outside identity"] = False
    client_metrics: Annotated[bool, "default outside identity"] = False
    imputations: LaterIndex = 0
    relax: Annotated[float | None, "between 0 and 1", "default outside identity"] = None
    start: Annotated[str | None, "a path"] = None
    frozen: bool = False
    stop: dict[str, float] | None = None
    study: dict[str, Any] | None = None
    # outside of a run's identity: no key below changes a row of metrics.csv
    tail_rounds: Annotated[Count, "outside identity"] = 100
    metric: Annotated[str | None, "outside identity"] = None
    threshold: Annotated[float | str, "outside identity", _THRESHOLD] = 0.5
    x: Annotated[CurveAxis | str, "outside identity"] = "rounds"  # or the name of a monotone metric
    style: Annotated[FigureStyle, "outside identity"] = "paper"
    width: Annotated[PictureWidth | None, "outside identity"] = None
    pdf: Annotated[bool, "outside identity"] = False
    title: Annotated[str | None, "outside identity"] = None
    checkpoint_every: Annotated[NonNegative, "outside identity"] = 5.0
    memory: Annotated[Positive | None, "outside identity"] = None
    devices: Annotated[Literal["all"] | AutoCount, "outside identity"] = AUTO
    clients_at_once: Annotated[AutoCount, "outside identity"] = AUTO
    hosts: Annotated[dict[str, Any] | None, "outside identity"] = None
    save_personal: Annotated[bool, "outside identity"] = True
    force: Annotated[bool, "outside identity"] = False
    verbose: Annotated[bool, "outside identity"] = True
    debug: Annotated[bool, "outside identity"] = False
    dry_run: Annotated[bool, "outside identity"] = False
    fail_fast: Annotated[bool, "outside identity"] = False
    report: Annotated[bool, "outside identity"] = True

    @property
    def is_relaxed(self) -> bool:
        """Return whether the coefficients of a run are other ones than those of the lasso, which has ``relax`` 1."""
        return self.relax is not None and self.relax < 1

    @property
    def strength_study(self) -> StrengthStudy | None:
        """The choice of the run's strength; None: the strength is given. Raises UserError for another ``study``."""
        study = build(StrengthStudy, self.study or {}, "study")
        return study if study.strength is not None else None


@dataclasses.dataclass(frozen=True)
class ConfigSection:
    """A section of a configuration, whose ``class`` names its plug-in.

    Attributes:
        base_class_paths: dotted paths of classes; the plug-in must be an instance of one of them.
        default: the values of a section that is left out; None for a section that must be given.
        grid: whether its real numbers may differ between the runs of one program.
        in_identity: whether it is part of a run's identity.
        default_in_identity: whether the default's class is part of the identity, too.
    """

    base_class_paths: tuple[str, ...]
    default: dict[str, Any] | None = None
    grid: bool = False
    in_identity: bool = True
    default_in_identity: bool = True

    @property
    def base_classes(self) -> tuple[type, ...]:
        """The classes at ``base_class_paths``."""
        paths = [path.rpartition(".") for path in self.base_class_paths]
        return tuple(getattr(importlib.import_module(module), name) for module, _, name in paths)


SECTIONS = {
    "algo": ConfigSection(("fcorun.Algorithm", "fcorun.Baseline"), grid=True),
    "data": ConfigSection(("fcorun.Dataset",)),
    "reg": ConfigSection(("fcorun.Regularizer",), grid=True),
    "objective": ConfigSection(("fcorun.Objective",)),
    "mirror": ConfigSection(("fcorun.MirrorMap",), grid=True),
    "topology": ConfigSection(("fcorun.Topology",), default={"name": "star", "class": "fcorun.Star"}),
    **dict.fromkeys(("uplink", "downlink"), ConfigSection(("fcorun.Channel",), grid=True,
        default_in_identity=False, default={"name": "identity", "class": "fcorun.Identity"})),
    "aggregate": ConfigSection(("fcorun.AggregationRule",), grid=True, default_in_identity=False,
                               default={"name": "mean", "class": "fcorun.WeightedMean"}),
    "clock": ConfigSection(("fcorun.Clock",), default_in_identity=False,
                           default={"name": "none", "class": "fcorun.NoClock"}),
    "faults": ConfigSection(("fcorun.Faults",), grid=True, default_in_identity=False,
                            default={"name": "none", "class": "fcorun.NoFaults"}),
    "privacy": ConfigSection(("fcorun.Privacy",), grid=True, default_in_identity=False,
                             default={"name": "none", "class": "fcorun.NoPrivacy"}),
    "tracker": ConfigSection(("fcorun.Tracker",), grid=False, in_identity=False,
                             default={"name": "none", "class": "fcorun.NoTracker"}),
}  # fmt: skip
IDENTITY_SECTIONS = tuple(name for name, section in SECTIONS.items() if section.in_identity)
GRID_SECTIONS = tuple(name for name, section in SECTIONS.items() if section.grid)


def code_identifier(plugin: Any) -> str:
    """Return a name for the code of a plug-in: the name of its class in fcorun, and outside its path and a digest."""
    cls = type(plugin)
    if is_of_fcorun(plugin):  # wherever its file lies; RESULTS_VERSION stands for its code
        return f"fcorun.{cls.__qualname__}"
    code = find_user_code(cls)
    return class_path(cls) + (f":{code.digest}" if code else "")


def is_of_fcorun(plugin: Any) -> bool:
    """Return whether the class of a plug-in is fcorun's own, and not a user's."""
    return type(plugin).__module__.startswith("fcorun.")


def find_user_code(cls: type) -> "PluginCode | None":
    """Return the code of a user's class, as ``fcorun.base.plugin_code.find_code`` does; None for a class of fcorun."""
    packages = {parent.__module__.partition(".")[0] for parent in cls.__mro__}
    if packages <= {"fcorun", "abc", "builtins", "typing"}:
        return None
    from fcorun.base.plugin_code import find_code

    return find_code(cls)


def import_classes(config: Mapping[str, Any], trust: str | os.PathLike[str] | None = None) -> None:
    """Import the classes that the sections of a configuration name.

    Without ``trust`` the configuration is the user's own; with it, somebody else's, whose classes are imported from
    the folder ``trust``.
    """
    for section, values in config.items():
        target = str(values.get("class") or "") if isinstance(values, Mapping) else ""
        if not target or target.startswith("fcorun."):  # fcorun's own classes are imported when they are used
            continue
        key = f"{section}.class"
        if trust is None:
            locate_user_class(target, key)
        else:
            locate(target, key, trust)


def build(cls: type, values: Mapping[str, Any], prefix: str = "") -> Any:
    """Return an instance of the dataclass ``cls`` from ``values``, with every name, type and range checked.

    ``prefix`` is the section's name in error messages, "algo" for ``algo.client_lr``. Raises UserError.
    """
    hints = type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    dotted = prefix + "." if prefix else ""
    for name in values:
        if name not in fields and not (prefix and name in LABEL_KEYS):
            advice = NOTE_ADVICE if cls is Settings and name in NOTE_KEYS else suggest_name(name, fields)
            advice = explain_gone(dotted + name) or advice
            raise UserError(f"unknown option '{dotted}{name}': {advice}")
    for name in fields:  # "???" is OmegaConf's mark of a missing value
        if values.get(name, "???" if name in required_fields(cls) else None) == "???":
            raise UserError(f"`{dotted}{name}` has no value: give `{dotted}{name}=...`")
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise UserError(
            f"`{dotted}class`: {cls.__name__} lacks {', '.join(missing)}: write each as its base class has it"
        )
    return cls(**{name: check_value(values[name], hints[name], dotted + name) for name in fields if name in values})


@functools.cache
def required_fields(cls: type) -> frozenset[str]:
    """Return the fields of a dataclass that need a value: without a default, or with one that cannot stay "auto"."""
    hints = type_hints(cls)
    names = set()
    for field in dataclasses.fields(cls):
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        is_auto = isinstance(field.default, str) and field.default == AUTO
        if not has_default or (is_auto and not accepts_auto(hints[field.name])):
            names.add(field.name)
    return frozenset(names)


def accepts_auto(hint: Any) -> bool:
    """Return whether a field of this type may be "auto", to be computed before the run."""
    try:
        check_value(AUTO, hint, "")
    except UserError:
        return False
    return True


def build_plugin(section: str, values: Mapping[str, Any]) -> Any:
    """Return the plug-in that a section of the configuration (``algo``, ``data``, ...) names by its ``class``.

    Raises UserError.
    """
    check_folder_name(str(values.get("name", "-")), f"{section}.name")
    if "class" not in values:
        raise UserError(f"`{section}.class` is missing: give the dotted path of the {section}'s class")
    return build(locate(values["class"], f"{section}.class"), values, section)


def check_value(value: Any, hint: Any, key: str) -> Any:
    """Return ``value`` converted to the type ``hint``. Raises UserError, naming ``key``, if that is not possible.

    A tuple becomes a list, all of whose items have the tuple's first type.
    """
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if isinstance(value, str) and origin in (list, dict) and re.fullmatch(r"\[.*\]|\{.*\}", value, re.DOTALL):
        raise _explain_quotes(value, key)
    if origin is Annotated:
        return _check_annotated(value, args[0], args[1:], key)
    if origin in (Union, types.UnionType):
        return _check_union(value, args, key)
    if origin is Literal:
        is_bool_for_number = isinstance(value, bool) and not any(arg is value for arg in args)
        if value in args and not is_bool_for_number:
            return value
        raise UserError(f"`{key}={value}` is not a choice: {suggest_name(value, map(str, args))}")
    if origin in (list, tuple):
        if not isinstance(value, (list, tuple)):
            item = _spell(value, args[0])
            form = f"{key}=[{value}]" if origin is list else f"{key}=({value!r},)"
            if item is not value:
                form = shlex.quote(f'{key}=["{item}"]')
            raise UserError(f"`{key}={item}` must be a {origin.__name__}: give `{form}`")
        return [check_value(item, args[0], key) for item in value]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise UserError(f"`{key}={value}` must be a mapping: give `{key}={{NAME: VALUE}}`")
        if typing.get_origin(args[1]) is list:
            _check_lists(value, typing.get_args(args[1])[0], key)
        return {check_value(k, args[0], key): check_value(v, args[1], f"{key}.{k}") for k, v in value.items()}
    return _check_scalar(value, hint, key)


def _check_lists(mapping: Mapping[str, Any], item_hint: Any, key: str) -> None:
    """Raise UserError, with the whole mapping as it is typed, for values that are single ones, or lists in quotes."""
    lists = {}
    single = []
    quoted = []
    for name, value in mapping.items():
        lists[name] = value
        if isinstance(value, str) and value.startswith("["):
            quoted.append(value)
            single.append(f"{name}: '{value}' in quotes")
        elif not isinstance(value, (list, tuple, Mapping)):
            item = _spell(value, item_hint)
            lists[name] = [item]
            single.append(f"{name}: {item}")
    if single:
        text = format_override_value(lists)
        for value in quoted:
            text = text.replace(quote_text(value, '"'), value)
        raise UserError(f"`{key}` has {', '.join(single)}, which must be a list: give `{shlex.quote(f'{key}={text}')}`")


def _spell(value: Any, hint: Any) -> Any:
    """Return a value of this type as it is typed: true, false and null of a text are words."""
    if hint is str and (value is None or isinstance(value, bool)):
        return "null" if value is None else str(value).lower()
    return value


def _check_annotated(value: Any, hint: Any, marks: tuple, key: str) -> Any:
    if "or auto" in marks:
        if isinstance(value, str) and value == AUTO:
            return value
        try:
            return _check_annotated(value, hint, tuple(mark for mark in marks if mark != "or auto"), key)
        except UserError as error:
            raise UserError(f"{error}, or auto") from error
    value = check_value(value, hint, key)
    for mark in marks:
        if not isinstance(mark, str):  # a mark of another library
            continue
        if mark not in _CONDITIONS:
            raise UserError(f"{key}: leave the text '{mark}' out of its Annotated type, since it is no mark of "
                            f"fcorun's; {suggest_name(mark, ('or auto', *_CONDITIONS))}")  # fmt: skip
        if value is not None and not _CONDITIONS[mark](value):
            raise UserError(f"`{key}={value}` must be {mark}")
    return value


def _check_union(value: Any, args: tuple, key: str) -> Any:
    if value is None and type(None) in args:
        return None
    options = [arg for arg in args if arg is not type(None)]
    if isinstance(value, (list, tuple, Mapping)):  # the last option's error is raised: that of the value's own form
        form = dict if isinstance(value, Mapping) else list
        options.sort(key=lambda option: typing.get_origin(option) is form)
    for option in options[:-1]:
        with contextlib.suppress(UserError):
            return check_value(value, option, key)
    return check_value(value, options[-1], key)


def _check_scalar(value: Any, hint: Any, key: str) -> Any:
    if hint is Any:
        return value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise UserError(f"`{key}={str(value)[:20]}...` is larger than any floating-point number: give a smaller one")
    if is_number and hint is float:
        if not math.isfinite(value):
            raise UserError(f"`{key}={value}` must be a finite number")
        return float(value)
    if is_number and hint is int and float(value).is_integer():
        return int(value)
    if hint is str and is_number:
        return str(value)
    if type(value) is hint:
        return value
    if isinstance(value, str) and hint in (int, float, bool) and _PLAIN_VALUE.fullmatch(value):
        raise _explain_quotes(value, key)
    spelled = _spell(value, hint)
    quotes = "" if spelled is value else f', "{spelled}" in quotes'
    raise UserError(f"`{key}={'null' if value is None else spelled}` must be {TYPE_NAMES.get(hint, hint)}{quotes}")


def _explain_quotes(value: str, key: str) -> UserError:
    """Return the error of a list, a mapping or a number in quotes that the shell left to fcorun."""
    return UserError(f"{key}='{value}' is one text: give `{key}={value}`, without the quotes around its value")


@functools.cache
def type_hints(cls: type) -> dict[str, Any]:
    """Return the types of a class's fields, with their annotations."""
    return typing.get_type_hints(cls, include_extras=True)


@functools.cache
def field_marks(cls: type) -> dict[str, tuple]:
    """Return the marks in the annotation of each field of a dataclass, e.g. {"client_lr": ("positive",)}."""
    marks = {}
    for name, hint in type_hints(cls).items():
        parts = [hint, *typing.get_args(hint)]
        marks[name] = tuple(mark for part in parts for mark in getattr(part, "__metadata__", ()))
    return marks


def numeric_fields(plugin: Any) -> dict[str, float]:
    """Return the fields of a plug-in that are real numbers, or arrays of these, which runs of one program may vary."""
    marks = field_marks(type(plugin))
    names = [field.name for field in dataclasses.fields(plugin) if "fixed in a program" not in marks[field.name]]
    values = {name: getattr(plugin, name) for name in names}
    kinds = {name: getattr(getattr(value, "dtype", None), "kind", "") for name, value in values.items()}
    return {name: value for name, value in values.items() if isinstance(value, float) or kinds[name] == "f"}


# the root keys and the sections that the numbers of a baseline, a solver of all rows, depend on: others are of clients
BASELINE_SETTINGS = ("client_weighting", "cutoff", "reference", "gap", "relax", "imputations", "study")
BASELINE_SECTIONS = ("algo", "data", "reg", "objective")


def concerns_baselines(key: str) -> bool:
    """Return whether a baseline may depend on a key that is part of the identity of runs."""
    return key.partition(".")[0] in (*BASELINE_SETTINGS, *BASELINE_SECTIONS)


# what no baseline depends on, such as the uplink: in a sweep with other algorithms it is left out of their runs
FEDERATED_SECTIONS = tuple(section for section in IDENTITY_SECTIONS if not concerns_baselines(section))


def keys_outside_identity() -> set[str]:
    """Return the root keys that are not part of a run's identity: they change no row of metrics.csv."""
    return {name for name, marks in field_marks(Settings).items() if "outside identity" in marks}


def changes_runs(key: str) -> bool:
    """Return whether a key of a command may say which runs there are, or change a row of their metrics.csv.

    Keys that say where runs are computed, or how they are shown, do not: such as those of hydra.launcher, or a tracker.
    """
    section = re.split("[./]", key)[0]
    if section == "hydra":
        return key.replace("/", ".").startswith("hydra.sweeper")
    return section not in {"tracker", *keys_outside_identity()}


def identity_fields(plugin: Any) -> dict[str, Any]:
    """Return the fields of a plug-in, or of the settings, that are part of a run's identity."""
    marks = field_marks(type(plugin))
    fields = {}
    for field in dataclasses.fields(plugin):
        if not field.init or "outside identity" in marks[field.name]:
            continue
        value = getattr(plugin, field.name)
        if "default outside identity" in marks[field.name] and value == field.default:
            continue
        fields[field.name] = value
    return fields


# Checks of the plug-ins that a Python program makes, as ``build`` checks those of a configuration.


class PluginBase:
    """The common base of plug-ins.

    Where a ``__post_init__`` fails on a field of a wrong type, the error names the field. A ``__post_init__`` may
    therefore compare fields without checking their types. A field with several values, for a sweep, is left to the
    objects that the sweep makes, each with one of the values.
    """

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        if "__post_init__" in vars(cls):
            cls.__post_init__ = _explain_wrong_types(vars(cls)["__post_init__"])  # type: ignore[attr-defined]

    def sources(self) -> Any:
        """Return a value that changes when the files that the plug-in reads do, such as a digest of their bytes.

        Returns None without files. Must be quick, and download nothing: raises UserError for missing files.
        """
        return None


def _explain_wrong_types(check: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a ``__post_init__`` that raises UserError where ``check`` fails on a field of the wrong type."""

    @functools.wraps(check)
    def call(plugin: Any) -> None:
        try:
            check(plugin)
        except (TypeError, ValueError, AttributeError):
            hints = type_hints(type(plugin))
            given = {name: value for name, value in _given_values(plugin).items() if not _is_auto(value)}
            if any(has_several_values(value, hints[name]) for name, value in given.items()):
                return
            for name, value in given.items():
                check_value(to_plain_value(value), hints[name], f"{type(plugin).__name__}.{name}")
            raise

    return call


def _given_values(plugin: Any) -> dict[str, Any]:
    """Return the values of the fields that a program may give, without those that hold rows of this process."""
    marks = field_marks(type(plugin))
    fields = [field.name for field in dataclasses.fields(plugin) if field.init and "in memory" not in marks[field.name]]
    return {name: getattr(plugin, name) for name in fields}


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == AUTO


def has_several_values(value: Any, hint: Any) -> bool:
    """Return whether a field of this type was given a list or an array of values."""
    is_several = isinstance(value, (list, tuple, range)) or getattr(value, "ndim", 0) == 1
    return is_several and not takes_lists(hint)


def takes_lists(hint: Any) -> bool:
    """Return whether a list may be one value of a type."""
    if get_origin(hint) is Annotated:
        return takes_lists(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return any(map(takes_lists, get_args(hint)))
    return hint is Any or get_origin(hint) is list


def check_plugin(plugin: Any, defaults: Mapping[str, Any], section: str) -> Any:
    """Return a plug-in made in Python with every field checked, as ``build`` checks the values of a configuration.

    Fields that are "auto" get the value of ``defaults``, by name, if there is one. Raises UserError for an object that
    is no dataclass, for a value of the wrong type or out of range, and for a field that is still without a value.
    """
    cls = type(plugin)
    if not dataclasses.is_dataclass(cls):
        raise UserError(f"the class {cls.__name__} is no dataclass: write @dataclass(frozen=True) above it")
    hints = type_hints(cls)
    values = {}
    for name, value in _given_values(plugin).items():
        if _is_auto(value) and defaults.get(name) is not None:
            value = defaults[name]
        if _is_auto(value) and not accepts_auto(hints[name]):
            raise UserError(f"{section}: {name} has no value: give {cls.__name__}({name}=...)")
        values[name] = check_value(to_plain_value(value), hints[name], f"{section}.{name}")
    return dataclasses.replace(plugin, **values)


def to_plain_value(value: Any) -> Any:
    """Return numbers and arrays of NumPy as Python's, lists and tuples as lists of such values, others as they are."""
    if isinstance(value, (list, tuple)):
        return [to_plain_value(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value
