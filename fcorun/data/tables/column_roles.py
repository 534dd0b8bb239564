"""The roles of columns (target, client, weight, offset, group, split, fold, feature), and the rows as read by them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from itertools import combinations
from typing import Any

import numpy as np

from fcorun.base.errors import UserError, suggest_name, word
from fcorun.data.rows.features import why_not_in_memory
from fcorun.data.tables.cells import column_as_text, is_missing, names_as_text, require_finite_numbers, to_plain_array
from fcorun.data.tasks.time_to_event import TIME_ZERO

TABLE_ROW = "table_row"  # the column of predictions.csv with a repeated row's number in the table, from 1
# columns of predictions.csv and of the predictions of new rows (fcorun.results.models.predictions and predict)
_PREDICTION_COLUMNS = (
    *("set", "client", "row", TABLE_ROW, "group", "target", "event", "prediction", "positive", "probability"),
    *("model", "fold", "scaling", "intercept", "baseline_hazard", "warnings"),
)
_PREDICTION_PREFIXES = ("probability_", "survival_at_")
_MAX_LISTED = 30  # an error lists all columns of a file with no more than these
_NUMBERS = ("weight", "offset", "event")  # roles of columns of numbers
SPLITS = ("train", "validation", "test")
_MOST_REPEATED = 100_000_000  # rows that whole weights may stand for


def is_prediction_column(name: str) -> bool:
    """Return whether predictions have a column of this name, so that no column of the data can keep it there."""
    return name in _PREDICTION_COLUMNS or name.startswith(_PREDICTION_PREFIXES)


@dataclass(frozen=True)
class ColumnRoles:
    """The columns that options of a table name. All other columns are features, unless ``only`` is given.

    Attributes:
        target, client: the columns of targets and of clients' names.
        event: the column that tells events from censored rows, where targets are times.
        weight, offset: the columns of row weights, and of terms of the linear predictor.
        group, split, fold: the columns that assign each row to a group, a split and a fold.
        ignore: columns that are no features.
        only: the columns that are features. None: all columns without another role.
        keep: columns that are no features and that predictions.csv repeats, such as the numbers of patients.
    """

    target: str | None = None
    client: str | None = None
    weight: str | None = None
    offset: str | None = None
    group: str | None = None
    split: str | None = None
    fold: str | None = None
    event: str | None = None
    ignore: Sequence[str] | None = None
    only: Sequence[str] | None = None
    keep: Sequence[str] | None = None

    @property
    def metadata(self) -> dict[str, str]:
        """The columns that are neither features nor target nor client, by option."""
        columns = {option: getattr(self, option) for option in ("weight", "offset", "group", "split", "fold", "event")}
        return {option: column for option, column in columns.items() if column is not None}

    @property
    def text_columns(self) -> list[str]:
        """The columns whose text is read as it is written: a client or a patient "007" keeps its name."""
        names = [name for name in (self.client, self.group, self.split, self.fold) if name is not None]
        others = (self.target, *names, *self.metadata.values())
        return [*names, *(name for name in self.keep or () if name not in others)]

    def check(self) -> None:
        """Raise UserError for a column with two roles that exclude each other, and for a kept one with a taken name."""
        numbers = [option for option in _NUMBERS if option in self.metadata]
        exclusive = [*combinations(["target", "client", *numbers], 2)]
        exclusive += [(first, other) for first in ("target", "client") for other in ("group", "split", "fold", "keep")]
        exclusive += [(first, other) for first in ("target", "client", *self.metadata) for other in ("ignore", "only")]
        exclusive += [("ignore", "only"), ("keep", "only")]
        columns = {role.name: getattr(self, role.name) for role in fields(self)}
        for first, other in exclusive:
            named = {option: columns[option] or [] for option in (first, other)}
            first_names, other_names = ([names] if isinstance(names, str) else names for names in named.values())
            for name in first_names:
                if name in other_names:
                    raise UserError(f"`data.{first}` and `data.{other}` both name '{name}': name it in one of them")
        for name in self.keep or ():
            if is_prediction_column(str(name)):
                raise UserError(f"`data.keep={name}` is the name of a column that predictions have anyway: rename "
                                "yours, or leave it out")  # fmt: skip

    def select_features(self, frame: Any, path: str) -> list[str]:
        """Return the columns of a pandas.DataFrame that are features, in order.

        Raises UserError for names in ``ignore``, ``only`` or ``keep`` that are no columns of the file ``path``, and for
        a feature without a name.
        """
        available = [name for name in frame.columns if name not in (self.target, self.client)]
        for option in ("ignore", "only", "keep"):
            for name in getattr(self, option) or ():
                if name not in available:
                    suggestion = suggest_columns(name, frame[available])
                    raise UserError(f"`data.{option}`: {path} has no column '{name}'; {suggestion}")
        excluded = {*(self.ignore or ()), *(self.keep or ()), *self.metadata.values()}
        features = [name for name in available if name not in excluded and (self.only is None or name in self.only)]
        for name in features:
            if name.startswith("Unnamed: "):
                raise UserError(
                    f"`data.path={path}`: column {name.split()[-1]} (from 0) has no name and may be a saved row "
                    "number; name it or drop it (in pandas: to_csv(..., index=False))"
                )
        return features

    def separate_columns(self, frame: Any, path: str, features: Sequence[str]) -> "ParsedRows":
        """Split a pandas.DataFrame into targets, clients, ``features`` and metadata.

        Raises UserError for a column that is missing, and for a target or a client with gaps.
        """
        for option, name in self.metadata.items():
            if name not in frame:
                suggestion = suggest_columns(name, frame.drop(columns=[self.target, self.client], errors="ignore"))
                raise UserError(f"`data.{option}={name}`: there is no such column in {path}; {suggestion}")
        if self.target is None:
            suggestion = suggest_columns("", frame)
            raise UserError(f"`data.target` has no value: name the column of {path} to predict, {suggestion}")
        for option, column in (("target", self.target), ("client", self.client)):
            if column is None:
                continue
            if column not in frame:
                suggestion = suggest_columns(column, frame)
                raise UserError(f"`data.{option}={column}`: there is no such column in {path}; {suggestion}")
            has_gap = is_missing(frame[column])
            if has_gap.any():
                row = int(has_gap.argmax()) + 1
                raise UserError(
                    f"`data.{option}={column}`: row {row} of {path} has no value there; fill it in or drop it"
                )
        metadata_names = list(dict.fromkeys(self.metadata.values()))
        return ParsedRows(
            x=np.empty((len(frame), 0)),
            y=to_plain_array(frame[self.target]),
            client=None if self.client is None else names_as_text(to_plain_array(frame[self.client])),
            frame=frame[list(features)],
            metadata=frame[metadata_names] if metadata_names else None,
            repeated_columns=np.stack([column_as_text(frame[name]) for name in self.keep], axis=1)
            if self.keep
            else None,
        )


@dataclass(frozen=True)
class ParsedRows:
    """The rows of a file in the order of the file.

    Attributes:
        x: features, shape (N, d), a real dtype, finite. Empty if the columns are still in ``frame``.
        y: targets as the file has them, shape (N,): finite real numbers, booleans or text; signed times, t for an event
            at t and -t for a row that is censored at t, where a column of events is given.
        client: the client of each row, text, shape (N,), or None.
        validation, test: masks of the held-out rows that the file marks, shape (N,), or None.
        group: the name of each row's group, text, shape (N,), or None.
        fold: the name of the fold that holds each row out, text, "" for none, shape (N,), or None.
        weight, offset: the weight of each row and the term of its linear predictor, float64, shape (N,), or None.
        row: the number of each row in the file, counted from 0, where the file has other rows too; None: in order.
        frame: a pandas.DataFrame of the feature columns before they are encoded, or None if ``x`` holds the features.
        warnings: sentences about how the file was read.
        metadata: a pandas.DataFrame of the weights, offsets, groups, splits and folds, or None for a file that has
            none.
        encoding: the Encoding of a Parquet file whose rows stay on disk, or None.
        repeated_columns: the columns that ``keep`` names, as text, shape (N, k), or None.
        first_index: the index of the first feature in a LIBSVM file, 0 or 1; None for other files.
    """

    x: Any
    y: np.ndarray
    client: np.ndarray | None = None
    validation: np.ndarray | None = None
    test: np.ndarray | None = None
    group: np.ndarray | None = None
    fold: np.ndarray | None = None
    weight: np.ndarray | None = None
    offset: np.ndarray | None = None
    row: np.ndarray | None = None
    frame: Any = None
    warnings: tuple[str, ...] = ()
    metadata: Any = None
    encoding: Any = None
    repeated_columns: np.ndarray | None = None
    first_index: int | None = None


def read_metadata(rows: ParsedRows, roles: ColumnRoles, path: str) -> ParsedRows:
    """Return the rows with the groups, folds, splits, weights, offsets and signed times that their metadata give.

    Raises UserError for a row without a group or a split, a split that is not one of ``SPLITS``, weights, offsets and
    events that are no such numbers, and times to events that are not positive.
    """
    values: dict[str, np.ndarray] = {}
    for option, name in roles.metadata.items():
        column = rows.metadata[name]
        if option in _NUMBERS:
            meaning = "1 for an event, 0 for a censored row" if option == "event" else ""
            values[option] = require_finite_numbers(column, f"`data.{option}={name}`", meaning).astype(np.float64)
            continue
        values[option] = names_as_text(column_as_text(column))
        if option != "fold" and "" in values[option]:
            row = values[option].tolist().index("") + 1
            raise UserError(f"`data.{option}={name}`: row {row} of {path} has no value there; fill it in or drop it")
    if "weight" in values and values["weight"].min() < 0:
        row = int((values["weight"] < 0).argmax())
        raise UserError(f"`data.weight={roles.weight}`: row {row + 1} of {path} has {values['weight'][row]:g}; give "
                        "weights of 0 or more")  # fmt: skip
    y = rows.y
    warnings = rows.warnings
    if "event" in values:
        y = _sign_times(y, values.pop("event"), roles, path)
        if n_zero := int((np.abs(y) == TIME_ZERO).sum()):
            zero = "1 row has" if n_zero == 1 else f"{n_zero:,} rows have"
            warnings = (*warnings, f"{zero} the time 0, which counts as {TIME_ZERO:g}, before all other times: check "
                        "that 0 is no code for a missing time")  # fmt: skip
    if "split" in values:
        split = values.pop("split")
        where = f"`data.split={roles.split}`"
        if rows.validation is not None or rows.test is not None:
            raise UserError(f"{where}: {path} marks its rows by the arrays validation and test: leave `data.split` out")
        unknown = ~np.isin(split, SPLITS)
        if unknown.any():
            row = int(unknown.argmax())
            raise UserError(f"{where}: row {row + 1} of {path} has '{split[row]}'; write train, validation or test")
        if not (split == "train").any():
            raise UserError(f"{where}: no row of {path} is marked train; leave some to train on")
        values |= {"validation": split == "validation", "test": split == "test"}
    return replace(rows, y=y, warnings=warnings, **values)  # type: ignore[arg-type]


def are_counts(weight: np.ndarray) -> bool:
    """Return whether weights, (N,), look like the numbers of equal rows: whole numbers, some above 1."""
    return bool((weight == np.floor(weight)).all() and weight.max() > 1)


def repeat_rows(rows: ParsedRows, column: str | None, path: str) -> ParsedRows:
    """Return each row as often as its weight says, without weights: equal rows in a sequence, 0 times left out.

    The last of the ``repeated_columns`` is TABLE_ROW. Raises UserError for weights that are no whole numbers, for too
    many rows, and for rows on disk.
    """
    where = f"`data.weight_kind=frequency`: column '{column}' of {path}"
    cure = "or give `data.weight_kind=sampling`"
    weight = np.asarray(rows.weight)
    if reason := why_not_in_memory(rows.x):
        raise UserError(f"`data.weight_kind=frequency` repeats rows in memory, and those of {path} {reason}, or "
                        "`data.weight_kind=sampling`")  # fmt: skip
    is_whole = weight == np.floor(weight)
    if not is_whole.all():
        row = int((~is_whole).argmax())
        raise UserError(f"{where} has {weight[row]:g} in row {row + 1}, which is no number of rows: give whole "
                        f"numbers, {cure}")  # fmt: skip
    total = float(weight.sum())
    if not 0 < total <= _MOST_REPEATED:
        raise UserError(f"{where} adds up to {total:,.0f} rows: give 1 to {_MOST_REPEATED:,} in all, {cure}")
    index = np.repeat(np.arange(len(weight)), weight.astype(np.int64))
    arrays = {role.name: getattr(rows, role.name) for role in fields(ParsedRows)}
    repeated = {name: v[index] for name, v in arrays.items() if isinstance(v, np.ndarray)} | {"x": rows.x[index]}
    if rows.frame is not None:
        repeated["frame"] = rows.frame.iloc[index].reset_index(drop=True)
    numbers = (index if rows.row is None else rows.row[index])[:, None] + 1
    kept = repeated.get("repeated_columns")
    repeated["repeated_columns"] = numbers if kept is None else np.column_stack([kept, numbers.astype(str)])
    warning = (f"the {len(weight):,} rows are {len(index):,} by their frequencies ('{column}'), each row of which has "
               "a number of its own")  # fmt: skip
    return replace(rows, **repeated | {"weight": None, "row": None, "warnings": (*rows.warnings, warning)})


def _sign_times(y: np.ndarray, events: np.ndarray, roles: ColumnRoles, path: str) -> np.ndarray:
    """Return signed times, float64 (N,), of the times ``y`` and the events, 0 or 1. Raises UserError for others.

    Cox's partial likelihood depends on the order of times alone, so that a 0, which has no sign, may be any number
    below all other times.
    """
    where = f"`data.target={roles.target}`"
    if y.dtype.kind not in "fiu":
        raise UserError(f"{where} holds '{y[0]}', and `data.event` asks for times: give numbers")
    times = y.astype(np.float64)
    if times.min() < 0:
        row = int((times < 0).argmax())
        raise UserError(f"{where}: row {row + 1} of {path} has {times[row]:g}, and times must be positive: correct it")
    times = np.where(times == 0, TIME_ZERO, times)
    unknown = ~np.isin(events, (0, 1))
    if unknown.any():
        row = int(unknown.argmax())
        raise UserError(f"`data.event={roles.event}`: row {row + 1} of {path} has {events[row]:g}: write 1 for an "
                        "event at the time of `data.target`, and 0 for a row that is censored then")  # fmt: skip
    return np.where(events == 1, times, -times)


def check_unique_names(names: Sequence[str], where: str) -> None:
    """Raise UserError, which begins with ``where``, if two columns have the same name."""
    for name, count in Counter(names).items():
        if count > 1:
            raise UserError(f"{where}: two columns are called '{name}': rename or drop one")


def suggest_columns(name: str, frame: Any) -> str:
    """Return the end of an error about a missing column: similar names, or all names of a file with few columns."""
    names = list(frame.columns)
    if len(names) > _MAX_LISTED:
        names = get_close_matches(name, names, n=10, cutoff=0)
    return suggest_name(name, names)


def offer_frequency(mark: str, weight: str | None, weight_kind: str | None) -> str:
    """Return an offer to weights that may count equal rows, which begins with ``mark``; "" to all other rows.

    Args:
        weight_kind: what the weights are; None: the user may still say that they are frequencies.
    """
    if not weight or weight_kind is not None:
        return ""
    return f"{mark}if weights count equal rows, run it with `data.weight_kind=frequency`"


def describe_unweighted(weight: str | None, weight_kind: str | None) -> str:
    """Return a sentence on results that count each row once, whatever its ``weight``; "" where rows have none.

    ``weight_kind`` is as for ``offer_frequency``.
    """
    if not weight or weight_kind == "frequency":  # rows of a frequency are repeated
        return ""
    return word(f"each row counts once, whatever its weight ('{weight}'){offer_frequency(': ', weight, weight_kind)}")
