"""The types of what the files of a record hold, a declaration for each file, and the reader that checks them.

A record may come from somebody else, or from a disk that failed: a value of another type is told by its name when its
file is read, so that nobody who uses the value needs to look at its type. A key that no declaration names is free.
"""

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    Required,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from fcorun.base.config import TYPE_NAMES
from fcorun.base.errors import UserError
from fcorun.base.metrics import Metric
from fcorun.base.picture_style import PictureWidth
from fcorun.base.records import formats

# A mark of Annotated: a number that is not negative, or lists as long as another value of their mapping says
NOT_NEGATIVE = "not negative"
PER_FEATURE = "per feature"
Count = Annotated[int, NOT_NEGATIVE]
_PerFeature = Annotated[list[float], PER_FEATURE]
Measured = dict[str, float | None]  # metrics by name; None where a run has diverged

_BROKEN = "cannot be read"
RUN_AGAIN = "run it again with `force=true`, or leave the record out"  # the cure of a damaged file
STUDY_AGAIN = "give the same command again with `force=true`, or leave the study out"
_SHOWN = 40  # characters of a value in a sentence


class StatusContent(TypedDict, total=False):
    """The content of status.json."""

    status: Required[Literal["running", "done", "diverged", "failed", "interrupted"]]
    reason: str | None
    label: str
    identity: str
    pid: int
    host: str
    round: Count


class BestValue(TypedDict):
    """The best value of a metric, and its round."""

    value: float | None
    round: Count


class Certificate(TypedDict, total=False):
    """A certificate: how near a run ended to the optimum."""

    kind: str | None
    value: float | None
    above: float | None
    left: float | None
    sure: bool | None
    near: bool | None
    certified: bool | None


class OutcomeRow(TypedDict, total=False):
    """The target of a set of rows of a client, or of all."""

    set: Required[Literal["train", "validation", "test"]]
    client: Required[str]
    rows: Required[Count]
    events: Count
    mean: float
    deviation: float | None


class ChosenThreshold(TypedDict, total=False):
    """The thresholds between two classes, and the rule that chose them."""

    rule: float | str
    chosen_on: str
    shared: float
    personal: float
    warnings: list[str]


class SourceEntry(TypedDict, total=False):
    """The source of a plug-in."""

    text: str
    entries: list[str]
    trouble: str


class Relaxation(TypedDict, total=False):
    """The coefficients of a relaxed lasso."""

    share_of_lasso: float
    strength: float | None
    selected: Count
    certificate_of_lasso: Certificate | None


class Standardization(TypedDict, total=False):
    """The standardization of the features."""

    by: Required[str]
    centred: bool
    mean_: list[float]
    var_: list[float]
    scale_: list[float]


class DataSummary(TypedDict, total=False):
    """The section of summary.json on the data."""

    clients: Count
    examples: Count
    validation_examples: Count
    test_examples: Count
    evaluated_examples: Count
    sites: list[str]
    client_names: list[str]
    fingerprint: str
    features: Count
    feature_names: Annotated[list[str], PER_FEATURE]
    task: str
    classes: list[str]
    class_type: str
    scale: float
    first_index: int | None
    units: bool
    standardized: Annotated[Standardization | None, PER_FEATURE]
    limits: tuple[_PerFeature, _PerFeature] | None
    cutoff_factors: _PerFeature
    outcome: list[OutcomeRow]
    gaps: dict[str, Count]
    labels: dict[str, dict[str, str]]
    few_levels: dict[str, str]
    few_rows: dict[str, list[str]]  # clients by the set of which they have few, "" for all


class SummaryContent(TypedDict, total=False):
    """The content of summary.json."""

    status: str
    label: str
    round: Count
    final: Measured
    best: dict[str, BestValue]
    tail: Measured
    tail_rounds: Count
    stopped: bool
    metrics: list[Metric]
    cutoff: float
    linear: bool
    sources: dict[str, SourceEntry]
    strength: float | None
    spectral_gap: float | None
    ignores_regularizer: bool
    warnings: list[str]
    reference: dict[str, Any] | None
    certificate: Certificate | None
    unfinished: dict[str, Any] | None
    moved: float | None
    drawn: bool | None
    curvature: dict[str, float | None] | None
    bytes_up: Count | None
    bytes_down: Count | None
    grad_evals: Count | None
    prox_evals: Count | None
    seconds: dict[str, float]
    data: DataSummary
    versions: dict[str, str | None]
    git: str | None
    device: str
    platform: str
    away: list[str] | None
    faults: dict[str, float]
    personal_models: str
    threshold: ChosenThreshold
    relaxed: Relaxation


# The keys of a configuration that are read without the classes of its plug-ins, which check the others.
_Section = TypedDict(
    "_Section",
    {"name": Required[str], "class": str, "title": str | None, "natural": dict[str, Any] | None},
    total=False,
)
SECTION_KEYS = frozenset(_Section.__annotations__)


class _DataSection(_Section, total=False):
    """The options of a data set of fcorun that are read without its class."""

    path: str | None
    target: str | None
    event: str | None
    weight: str | None
    offset: str | None
    client: str | None
    keep: list[str] | None
    rename: dict[str, str] | None
    encoding: str | None
    file_encoding: str | None
    sheet: str | None
    missing: str


class _RecordConfig(TypedDict, total=False):
    """The keys of a record's configuration that are read without the classes of its plug-ins."""

    algo: _Section
    data: Required[_DataSection]
    reg: _Section
    objective: _Section
    mirror: _Section
    topology: _Section
    uplink: _Section
    downlink: _Section
    aggregate: _Section
    clock: _Section
    faults: _Section
    seed: Count
    rounds: Count
    cutoff: Annotated[float, NOT_NEGATIVE]
    tail_rounds: Count
    metric: str | None
    threshold: float | str
    x: str
    style: str
    width: PictureWidth | None
    title: str | None


class _ColumnEntry(TypedDict, total=False):
    """A column of a table in encoding.json."""

    name: Required[str]
    kind: Required[str]
    levels: Required[list[str]]
    fill: Required[float | str | None]
    indicator: Required[bool]
    knots: list[float]
    n_knots: Count


class EncodingFile(TypedDict):
    """The content of encoding.json."""

    columns: list[_ColumnEntry]


class _Second(TypedDict, total=False):
    key: Required[str]
    chosen: Required[float]


class Nested(TypedDict, total=False):
    """The result of a nested cross-validation."""

    mean: float | None
    standard_error: float | None
    folds: Count


class SelectionContent(TypedDict, total=False):
    """The content of selection.json."""

    identity: str
    label: str
    status: str
    data: DataSummary
    param_name: str
    metric: str
    rule: str
    chosen: float | None
    second: _Second | None
    threshold: ChosenThreshold | None
    folds: Count
    by: str
    fold_weights: str | None
    fold_measure: str
    nested: Nested | None
    warnings: list[str]


class StabilityContent(TypedDict, total=False):
    """The content of stability.json."""

    identity: str
    label: str
    status: str
    data: DataSummary
    param_name: str
    threshold: float
    features: Count
    units: str
    judged: str
    stable: list[Any]
    refit: list[str] | None
    bound_statement: list[str]
    warnings: list[str]


class PermutationContent(TypedDict, total=False):
    """The content of permutation.json."""

    identity: str
    label: str
    status: str
    data: DataSummary
    n: Count
    statement: list[str]
    warnings: list[str]


class FigureAbout(TypedDict, total=False):
    """The content of figure.json."""

    title: str | None
    caption: str | None
    edges: list[str]
    changed: str


# The check of a value by its type. A checker returns what is wrong with a value, or "".

_Checker = Callable[[Any, str], str]


@functools.cache
def _make_checker(hint: Any) -> _Checker:
    """Return the checker of a type: a scalar, a list, a mapping, a TypedDict, a dataclass, or a union of these."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin in (Annotated, Required):
        return _check_mark(_make_checker(arguments[0]), hint.__metadata__ if origin is Annotated else ())
    if origin in (Union, UnionType):
        return _check_union(arguments)
    if origin is Literal:
        return lambda value, key: "" if value in arguments else f"{key} must be {' or '.join(arguments)}"
    if origin is list:
        return _check_list(_make_checker(arguments[0]))
    if origin is tuple:
        return _check_list(_make_checker(arguments[0]), len(arguments))
    if origin is dict:
        return _check_values(_make_checker(arguments[1]))
    if is_typeddict(hint) or is_dataclass(hint):
        return _check_keys(hint)
    return _check_scalar(hint)


def _check_scalar(hint: Any) -> _Checker:
    types = (int, float) if hint is float else (hint,)

    def check(value: Any, key: str) -> str:
        if hint is Any or type(value) in types:
            is_too_large = type(value) is int and abs(value) > sys.float_info.max
            return f"{key} is larger than any floating-point number" if is_too_large else ""
        return f"{key} must be {_describe_type(hint)}"

    return check


def _check_mark(check_type: _Checker, marks: tuple[str, ...]) -> _Checker:
    def check(value: Any, key: str) -> str:
        fault = check_type(value, key)
        if not fault and NOT_NEGATIVE in marks and not value >= 0:
            return f"{key} must not be negative"
        return fault

    return check


def _check_union(hints: tuple[Any, ...]) -> _Checker:
    checkers = [_make_checker(hint) for hint in hints]

    def check(value: Any, key: str) -> str:
        faults = []
        for check_hint in checkers:
            fault = check_hint(value, key)
            if not fault:
                return ""
            faults.append(fault)
        deeper = [fault for fault in faults if not fault.startswith(f"{key} must be ")]
        return deeper[0] if deeper else f"{key} must be {' or '.join(map(_describe_type, hints))}"

    return check


def _check_list(check_item: _Checker, length: int | None = None) -> _Checker:
    def check(value: Any, key: str) -> str:
        if not isinstance(value, list) or length not in (None, len(value)):
            return f"{key} must be a list" + (f" of {length}" if length else "")
        return next(filter(None, (check_item(item, f"{key}[{i}]") for i, item in enumerate(value))), "")

    return check


def _check_values(check_item: _Checker) -> _Checker:
    def check(value: Any, key: str) -> str:
        if not isinstance(value, dict):
            return f"{key} must be a mapping"
        return next(filter(None, (check_item(item, f"{key}.{name}") for name, item in value.items())), "")

    return check


def _check_keys(hint: Any) -> _Checker:
    """Return the checker of a mapping with these keys, of which those of a dataclass alone may be there."""
    hints = get_type_hints(hint, include_extras=True)
    checkers = {name: _make_checker(item) for name, item in hints.items()}
    required = set() if is_dataclass(hint) else set(hint.__required_keys__)
    per_feature = [name for name, item in hints.items() if PER_FEATURE in str(item)]

    def check(value: Any, key: str) -> str:
        if not isinstance(value, dict):
            return f"{key or 'its content'} must be a mapping"
        prefix = f"{key}." if key else ""
        for name, item in value.items():
            if check_item := checkers.get(name):
                if fault := check_item(item, prefix + name):
                    return fault
            elif is_dataclass(hint):
                return f"{prefix}{str(name)[:_SHOWN]} is no key of its mapping"
        if missing := required - value.keys():
            return f"{prefix}{min(missing)} is missing"
        return _find_unequal_length(value, prefix, per_feature)

    return check


def _find_unequal_length(values: Mapping[str, Any], prefix: str, names: list[str]) -> str:
    """Return which list has not one item for each of the ``features`` of its mapping, where that says how many."""
    n_features = values.get("features")
    for name in names if isinstance(n_features, int) else ():
        for key, items in _name_lists(values.get(name), name):
            if len(items) != n_features:
                return f"{prefix}{key} has {len(items)} items for {n_features} features"
    return ""


def _name_lists(value: Any, name: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield the lists of a mapping with their keys, those of a list, or a list itself; an empty one says nothing."""
    if isinstance(value, dict):
        for key, items in value.items():
            if isinstance(items, list):
                yield f"{name}.{key}", items
    elif value and isinstance(value[0], list):
        for items in value:
            yield name, items
    elif value:
        yield name, value


def _describe_type(hint: Any) -> str:
    if hint in (NoneType, None):
        return "null"
    if get_origin(hint) is Annotated:
        return _describe_type(get_args(hint)[0])
    return TYPE_NAMES.get(get_origin(hint) or hint, "a mapping")


# The files.


@dataclass(frozen=True)
class RecordFile:
    """A file of a record, or of a study, with the type of its content.

    Attributes:
        name: the name of the file.
        content: a TypedDict.
        cure: the end of a sentence about a damaged file.
    """

    name: str
    content: Any
    cure: str = RUN_AGAIN

    def read(self, folder: Path) -> dict[str, Any]:
        """Return the content; {} if the file is missing or no JSON. Raises UserError for a value of another type."""
        content = formats.read_json(folder / self.name)
        if content:
            self.check(content, folder)
        return content

    def check(self, content: Mapping[str, Any], folder: Path) -> None:
        """Raise UserError, which names the file and the key, for a value that is not of its type."""
        if fault := _make_checker(self.content)(content, ""):
            raise UserError(f"{folder / self.name} is damaged ({fault}): {self.cure}")

    def check_file(self, folder: Path) -> None:
        """Raise UserError for a file that is there and cannot be read, and as ``check``."""
        if not self.read(folder) and (folder / self.name).exists():
            raise UserError(f"{folder / self.name} is damaged (it {_BROKEN}): {self.cure}")


STATUS = RecordFile("status.json", StatusContent, "delete its folder and run it again, or leave the record out")
SUMMARY = RecordFile("summary.json", SummaryContent)
CONFIG = RecordFile("config.yaml", _RecordConfig)
ENCODING = RecordFile("encoding.json", EncodingFile)
SELECTION = RecordFile("selection.json", SelectionContent, STUDY_AGAIN)
STABILITY = RecordFile("stability.json", StabilityContent, STUDY_AGAIN)
PERMUTATION = RecordFile("permutation.json", PermutationContent, STUDY_AGAIN)
FIGURE = RecordFile("figure.json", FigureAbout, STUDY_AGAIN)
