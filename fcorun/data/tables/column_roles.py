"""The roles of columns (target, client, weight, offset, group, split, fold, feature), and the rows as read by them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from fcorun.base.errors import UserError, suggest_name, word
from fcorun.data.tables.cells import column_as_text, is_missing, names_as_text, require_numbers, to_plain_array

# columns of predictions.csv and of the predictions of new rows (fcorun.results.models.predictions and predict)
_PREDICTION_COLUMNS = (
    *("set", "client", "row", "group", "target", "event", "prediction", "positive", "probability"),
    *("model", "fold", "scaling", "warnings"),
)
_PREDICTION_PREFIXES = ("probability_", "survival_at_")
_MAX_LISTED = 30  # an error lists all columns of a file with no more than these
_WIDE_OFFSETS = 20  # with a log link, means that differ by a factor of 5e8


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

    @classmethod
    def from_options(cls, dataset: Any) -> "ColumnRoles":
        """Return the roles that the options of a data set name."""
        return cls(**{role.name: getattr(dataset, role.name) for role in fields(cls)})

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
        """Raise UserError for a column with two roles."""
        for option, column in self.metadata.items():
            for other, name in (("target", self.target), ("client", self.client)):
                if column == name:
                    raise UserError(f"`data.{option}={column}` is `data.{other}` too: name another column")
        if self.event is not None and self.event in (self.weight, self.offset):
            raise UserError(
                f"`data.event={self.event}` is `data.weight` or `data.offset` too: name two different columns"
            )
        if self.weight is not None and self.weight == self.offset:
            raise UserError(f"`data.offset={self.offset}` is `data.weight` too: name two different columns")
        for option in ("ignore", "keep"):
            for name in getattr(self, option) or ():
                if name in (self.only or ()):
                    raise UserError(f"`data.{option}` and `data.only` both name '{name}': name it in one of them")
        for name in self.keep or ():
            if is_prediction_column(str(name)):
                raise UserError(f"`data.keep={name}` is the name of a column that predictions have anyway: rename "
                                "yours, or leave it out")  # fmt: skip
        for name in self.only or ():
            for option, column in self.metadata.items():
                if name == column:
                    raise UserError(f"`data.{option}={name}` is in `data.only` too, and is no feature: leave it out of "
                                    "`data.only`, or give the table a second column with these values")  # fmt: skip
        for name in self.ignore or ():
            for option, column in self.metadata.items():
                if name == column:
                    raise UserError(f"`data.{option}={name}` is in `data.ignore` too, and is no feature anyway: "
                                    "leave it out of `data.ignore`")  # fmt: skip

    def select_features(self, frame: Any, path: str) -> list[str]:
        """Return the columns of a pandas.DataFrame that are features, in order.

        Raises UserError for names in ``ignore``, ``only`` or ``keep`` that are no columns of the file ``path``, and for
        a feature without a name.
        """
        available = [name for name in frame.columns if name not in (self.target, self.client)]
        for option in ("ignore", "only", "keep"):
            for name in getattr(self, option) or ():
                if name in (self.target, self.client):
                    raise UserError(
                        f"`data.{option}`: '{name}' is the target or the client, and no feature; leave it out"
                    )
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
            if name not in frame or name in (self.target, self.client):
                suggestion = suggest_columns(name, frame.drop(columns=[self.target, self.client], errors="ignore"))
                raise UserError(f"`data.{option}={name}`: there is no such column in {path}; {suggestion}")
        if self.target is None:
            suggestion = suggest_columns("", frame)
            raise UserError(f"`data.target` has no value: name the column of {path} to predict, {suggestion}")
        if self.target == self.client:
            raise UserError(f"`data.client={self.client}` is `data.target` too: name two different columns")
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
        y: targets as the file has them, shape (N,): finite real numbers, booleans or text.
        client: the client of each row, text, shape (N,), or None.
        validation, test: masks of the held-out rows that the file marks, shape (N,), or None.
        group: the name of each row's group, text, shape (N,), or None.
        fold: the name of the fold that holds each row out, text, "" for none, shape (N,), or None.
        row: the number of each row in the file, counted from 0, where the file has other rows too; None: in order.
        frame: a pandas.DataFrame of the feature columns before they are encoded, or None if ``x`` holds the features.
        warnings: sentences about how the file was read.
        metadata: a pandas.DataFrame of the weights, offsets, groups, splits and folds, or None for a file that has
            none.
        encoding: the Encoding of a Parquet file whose rows stay on disk, or None.
        repeated_columns: the columns that ``keep`` names, as text, shape (N, k), or None.
        first_index: the index of the first feature in a LIBSVM file, 0 or 1; None for other files.
    """

    x: np.ndarray
    y: np.ndarray
    client: np.ndarray | None = None
    validation: np.ndarray | None = None
    test: np.ndarray | None = None
    group: np.ndarray | None = None
    fold: np.ndarray | None = None
    row: np.ndarray | None = None
    frame: Any = None
    warnings: tuple[str, ...] = ()
    metadata: Any = None
    encoding: Any = None
    repeated_columns: np.ndarray | None = None
    first_index: int | None = None


def take_weight_and_offset(rows: ParsedRows, roles: ColumnRoles, path: str) -> tuple[ParsedRows, dict[str, Any]]:
    """Return the rows with warnings about weights and offsets, and the values of these columns.

    The values are float64 arrays (N,) under the keys "weight" and "offset". ``path`` is the file, for errors.

    Raises UserError for a missing column, missing or infinite values, and negative weights.
    """
    weight = roles.weight
    offset = roles.offset
    values = {}
    for option, column in roles.metadata.items():
        if option not in ("weight", "offset"):
            continue
        if rows.metadata is None:
            raise UserError(f"`data.{option}={column}`: there is no such column in {path}; the file names no columns: "
                            "leave it out")  # fmt: skip
        if column not in rows.metadata:
            suggestion = suggest_name(column, list(rows.metadata))
            raise UserError(f"`data.{option}={column}`: there is no such column in {path}; {suggestion}")
        series = rows.metadata[column]
        values[option] = require_numbers(series, f"`data.path={path}`: column '{column}'").astype(np.float64)
        finite = np.isfinite(values[option])
        if not finite.all():
            row = int((~finite).argmax()) + 1
            raise UserError(f"`data.{option}={column}` is missing or infinite in row {row}: fill it in or drop the row")
    if weight is not None and values["weight"].min() < 0:
        row = int((values["weight"] < 0).argmax())
        raise UserError(
            f"`data.weight={weight}`: row {row + 1} of {path} has {values['weight'][row]:g}; give weights of 0 or more"
        )

    warnings = list(rows.warnings)
    if weight is not None:
        warnings.append(
            word(
                f"`data.weight={weight}` weighs the rows in training and its metrics; scores.csv counts each row "
                "once, and features are standardized by the rows as they are"
            )
        )
    if offset is not None:
        width = float(np.ptp(values["offset"]))
        if width > _WIDE_OFFSETS:
            warnings.append(
                word(
                    f"`data.offset={offset}` spans {width:g}, and is added to the linear predictor, with a log link to "
                    "the logarithm of the mean: if it is an exposure such as days, give its logarithm"
                )
            )
    return replace(rows, warnings=tuple(warnings)), values


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
