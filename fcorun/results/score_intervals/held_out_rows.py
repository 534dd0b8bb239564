"""The held-out rows of predictions.csv, which may be somebody else's: plain text and numbers, with a limit on rows; and
the rows that two records have in common.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.records.record import OUT_OF_FOLD, PREDICTIONS_FILE
from fcorun.base.records.tables import PREDICTIONS
from fcorun.data.rows.row_groups import RowGroups
from fcorun.data.tasks import Binary, Multiclass, Regression, Survival, Task, find_task
from fcorun.results.scores.weighted_rows import ScoredRows

_SETS = ("test", "validation")  # the first that a record has is scored


class UnitCounts(NamedTuple):
    """The independent units of some scored rows: the groups of ``data.group``, or else the rows.

    Attributes:
        noun: "groups" or "rows".
        n: the number of units.
        events: the number of units with an event, or with a row of the positive class; None for numbers and for
            several classes.
        others: the number of units with a row without an event; None likewise.
        smallest_class: the number of units with a row of the class that the fewest units have; None without classes.
    """

    noun: str
    n: int
    events: int | None = None
    others: int | None = None
    smallest_class: int | None = None

    @property
    def events_noun(self) -> str:
        """The word for the units with an event."""
        return "events" if self.noun == "rows" else "with events"

    def format_events(self) -> str:
        """Return "12 rows, 3 events", or "5 groups, 2 with events"."""
        return f"{self.n} {self.noun}" + ("" if self.events is None else f", {self.events} {self.events_noun}")

    def to_dict(self) -> dict[str, int | None]:
        """Return the cells of a table that has the numbers of rows and events already."""
        return {} if self.noun == "rows" else {"groups": self.n, "groups_with_events": self.events}


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """The held-out rows of one model.

    Attributes:
        folder: the folder of the file.
        split: the set of the rows: test, validation or out_of_fold.
        model: shared or personal.
        task: the name of the task. Two classes without probabilities are multiclass.
        client: the name of each row's client, "" for none, (n,).
        row: the number of each row, (n,).
        group: the number of each row's group, (n,), or None.
        fold: the number of the fold that held each row out, (n,), or None.
        target: numbers, signed times (negative if censored), or class indices, (n,).
        prediction: numbers, linear predictors, or class indices, (n,).
        probability: the probability of class 1, (n,), of each class, (n, k), or None.
        has_unknown_level: whether each row has a level that no training row has, (n,), or None.
        classes: the labels; of two classes with probabilities the positive one is the last.
    """

    folder: Path
    split: str
    model: str
    task: str
    client: np.ndarray
    row: np.ndarray
    group: np.ndarray | None
    target: np.ndarray
    prediction: np.ndarray
    probability: np.ndarray | None = None
    fold: np.ndarray | None = None
    has_unknown_level: np.ndarray | None = None
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.row)

    def take(self, index: np.ndarray | slice) -> "HeldOutRows":
        """Return the rows of a mask, of indices or of a slice."""
        names = ("client", "row", "group", "fold", "target", "prediction", "probability", "has_unknown_level")
        columns = {name: None if (values := getattr(self, name)) is None else values[index] for name in names}
        return replace(self, **columns)

    @property
    def target_task(self) -> Task:
        """The task of the targets."""
        return find_task(self.task)

    def count_units(self, groups: RowGroups, by_group: bool) -> list[UnitCounts]:
        """Return the counts of each group of these rows: of groups of ``data.group``, or else of rows."""
        noun = "groups" if by_group and self.group is not None else "rows"
        names = self.group if by_group and self.group is not None else np.arange(len(self))
        number = np.unique(names, return_inverse=True)[1]
        unit = groups.row_group * len(self) + number  # equal names in two groups are two units

        def count(mask: np.ndarray) -> list[int]:
            return np.bincount(np.unique(unit[mask]) // len(self), minlength=len(groups)).tolist()

        total = count(np.ones(len(self), bool))
        smallest_class: list[Any] = [None] * len(groups)
        if self.classes:
            of_classes = [count(self.target == k) for k in range(len(self.classes))]
            smallest_class = np.min(of_classes, axis=0).tolist()
        events = self.target_task.find_events(self.target)
        n_events: list[Any] = [None] * len(groups)
        n_others = n_events
        if events is not None:
            n_events = count(events)
            n_others = count(~events)
        counts = zip(total, n_events, n_others, smallest_class, strict=True)
        return [UnitCounts(noun, *of_group) for of_group in counts]

    def to_scored_rows(self, groups: RowGroups) -> ScoredRows:
        """Return the rows, which are sorted by group, as scores take them."""
        log_odds = None
        if self.target_task.has_two_classes:
            log_odds = self.log_odds
        return ScoredRows(
            task=self.target_task,
            target=self.target,
            prediction=self.prediction,
            client=np.unique(self.client, return_inverse=True)[1],
            groups=groups,
            log_odds=log_odds,
            probability=self.probability,
            n_classes=len(self.classes),
        )

    @cached_property
    def log_odds(self) -> np.ndarray:
        """The log odds of class 1, (n,), finite: a probability of 1 has those of the largest number below 1."""
        assert self.probability is not None
        p = np.clip(self.probability, np.finfo(float).smallest_subnormal, np.nextafter(1.0, 0.0))
        return np.log(p) - np.log1p(-p)


def read_held_out_rows(folder: Path, task: str = "") -> list[HeldOutRows]:
    """Return the held-out rows of each model of a record or selection, in the order of the file.

    These are the test rows if the file has any, else the validation rows; of a selection, those out of fold. Without
    probabilities, ``task`` decides whether targets are numbers or labels; if it is "", they are numbers where all are.
    Raises UserError.
    """
    columns = _read_columns(folder)
    sets = set(columns["set"])
    split = OUT_OF_FOLD if OUT_OF_FOLD in sets else next((name for name in _SETS if name in sets), "")
    if not split:
        raise UserError(f"{folder / PREDICTIONS_FILE} has no test, validation or out-of-fold rows: run with "
                        "`data.validation=0.2` or `data.test=0.2`")  # fmt: skip
    of_split = np.array([name == split for name in columns["set"]])
    models = np.array(columns["model"])
    rows = []
    for model in dict.fromkeys(models[of_split].tolist()):
        index = np.flatnonzero(of_split & (models == model))
        of_model = {name: [values[i] for i in index.tolist()] for name, values in columns.items()}
        try:
            rows.append(_parse(folder, split, model, of_model, task))
        except (ValueError, OverflowError) as error:
            raise PREDICTIONS.describe_damage(folder, str(error)) from error
    return rows


def _read_columns(folder: Path) -> dict[str, list[Any]]:
    """Return the columns of the file. Raises UserError for a missing, too large or damaged file."""
    path = folder / PREDICTIONS_FILE
    if not path.is_file():
        raise UserError(f"{folder} has no {PREDICTIONS_FILE}, which intervals of scores need: give a run or selection "
                        "that is done and that holds rows out; of rows at sites, each site has its own")  # fmt: skip
    columns = PREDICTIONS.read(folder)
    if not columns or not columns["set"]:
        raise PREDICTIONS.describe_damage(folder, "no rows")
    return columns


def _parse(folder: Path, split: str, model: str, columns: dict[str, list[Any]], task: str) -> HeldOutRows:
    """Return the rows of one set and model. Raises ValueError for values that predictions.csv cannot have."""
    rows = HeldOutRows(
        folder=folder,
        split=split,
        model=model,
        task=Regression.name,
        client=np.array(columns["client"]),
        row=_whole_numbers(columns["row"]),
        group=_whole_numbers(columns["group"]) if "group" in columns else None,
        fold=_whole_numbers(columns["fold"]) if split == OUT_OF_FOLD and "fold" in columns else None,
        target=np.zeros(0),
        prediction=np.zeros(0),
        has_unknown_level=np.array(columns["warnings"]) != "" if "warnings" in columns else None,
    )
    keys = set(zip(columns["client"], columns["row"], strict=True))
    if len(keys) < len(rows):
        raise ValueError("a row has two predictions of one model")
    if "event" in columns:
        event = _whole_numbers(columns["event"])
        times = _numbers(columns["target"])
        if not (np.isin(event, (0, 1)).all() and (times > 0).all()):
            raise ValueError("an event that is neither 0 nor 1, or a time that is not positive")
        is_event = event == 1
        times = np.where(is_event, times, -times)
        return replace(rows, task=Survival.name, target=times, prediction=_numbers(columns["prediction"]))
    if "probability" in columns:
        positive = set(columns.get("positive", []))
        others = {*columns["target"], *columns["prediction"]} - positive
        if len(positive) != 1 or len(others) > 1:
            raise ValueError("its positive class is not one of two")
        parsed = _with_labels(rows, columns, (next(iter(others), ""), *positive))
        return replace(parsed, task=Binary.name, probability=_probabilities(columns["probability"]))
    names = [name for name in columns if name.startswith("probability_")]
    if names:
        labels = tuple(name.removeprefix("probability_") for name in names)
        probability = np.stack([_probabilities(columns[name]) for name in names], axis=1)
        return _with_labels(replace(rows, probability=probability), columns, labels, task)
    if not task or find_task(task).is_quantity:
        try:
            return replace(rows, target=_numbers(columns["target"]), prediction=_numbers(columns["prediction"]))
        except ValueError:
            if task:
                raise
    return _with_labels(rows, columns, tuple(sorted({*columns["target"], *columns["prediction"]})))


def _with_labels(
    rows: HeldOutRows, columns: dict[str, list[Any]], labels: tuple[str, ...], task: str = ""
) -> HeldOutRows:
    number = {label: k for k, label in enumerate(labels)}
    try:
        target, prediction = (np.array([number[text] for text in columns[name]]) for name in ("target", "prediction"))
    except KeyError as error:
        raise ValueError(f"{error} is no class with a probability") from error
    known_task = find_task(task or Multiclass.name)
    if known_task.has_two_classes or not known_task.has_classes:
        known_task = Multiclass()
    return replace(rows, task=known_task.name, target=target, prediction=prediction, classes=labels)


def _whole_numbers(texts: list[Any]) -> np.ndarray:
    return np.array([int(text) for text in texts], np.int64)


def _numbers(texts: list[Any]) -> np.ndarray:
    values = np.array([float(text) for text in texts])
    if not np.isfinite(values).all():
        raise ValueError("a number is not finite")
    return values


def _probabilities(texts: list[Any]) -> np.ndarray:
    values = _numbers(texts)
    if ((values < 0) | (values > 1)).any():
        raise ValueError("a probability is not between 0 and 1")
    return values


def match_rows(first: HeldOutRows, second: HeldOutRows) -> tuple[HeldOutRows, HeldOutRows, str]:
    """Return the rows that both models predict, in one order, and a warning if only one of them predicts some.

    Rows are the same if they have the same set, client and number. Raises UserError without common rows, if the
    target of a row differs, and if other folds held the rows out, so that the models had other training rows.
    """
    pair = f"{first.folder} and {second.folder}"
    if first.split != second.split:
        raise UserError(f"{first.folder} has {describe_split(first)} rows, and {second.folder} "
                        f"{describe_split(second)} rows: give two records that hold out the same rows")  # fmt: skip
    if (first.task, first.classes) != (second.task, second.classes):
        raise UserError(f"{pair} have no scores in common, of the tasks {first.task} and {second.task} and of the "
                        f"classes {list(first.classes)} and {list(second.classes)}")  # fmt: skip
    keys, others = (list(zip(rows.client.tolist(), rows.row.tolist(), strict=True)) for rows in (first, second))
    position = {key: i for i, key in enumerate(others)}
    matches = [(i, position[key]) for i, key in enumerate(keys) if key in position]
    if not matches:
        raise UserError(f"{pair} have no {describe_split(first)} row of one client and number in common: give "
                        "two records of the same data, `data.validation`, `data.test` and seed")  # fmt: skip
    of_first, of_second = np.array(matches).T
    matched_first = first.take(of_first)
    matched_second = second.take(of_second)
    differs = np.flatnonzero(matched_first.target != matched_second.target)
    if len(differs):
        client = matched_first.client[differs[0]]
        row = matched_first.row[differs[0]]
        of_client = f" of client {client}" if client else ""
        raise UserError(f"{pair} have different targets in {len(differs)} rows, the first of which is row {row}"
                        f"{of_client}: give two records of the same data")  # fmt: skip
    if first.fold is not None and second.fold is not None and (matched_first.fold != matched_second.fold).any():
        raise UserError(f"{pair} hold the same rows out in other folds, so that their models had other training rows: "
                        "give two selections of the same seed, folds, by, `data.group` and `data.fold`")  # fmt: skip
    sentence = ""
    if len(matches) < max(len(first), len(second)):
        sentence = (f"compared on the {len(matches):,} rows that both predict, of {len(first):,} ({first.model} model "
                    f"of {first.folder}) and {len(second):,} ({second.model} model of {second.folder})")  # fmt: skip
    return matched_first, matched_second, sentence


def describe_split(rows: HeldOutRows) -> str:
    """Return the set of the rows in words."""
    return rows.split.replace("_", "-")
