"""The common rows of two records, for differences of their scores."""

import numpy as np

from fcorun.base.errors import UserError, abbreviate
from fcorun.results.models.score_intervals.scored_rows import HeldOutRows


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
        raise UserError(f"{pair} have no scores in common: one predicts {_outcome(first)}, the other "
                        f"{_outcome(second)}")  # fmt: skip
    position = {key: i for i, key in enumerate(_keys(second))}
    matches = [(i, position[key]) for i, key in enumerate(_keys(first)) if key in position]
    if not matches:
        raise UserError(f"{pair} have no {describe_split(first)} row of one client and number in common: give "
                        "two records of the same data, `data.validation`, `data.test` and seed")  # fmt: skip
    of_first, of_second = np.array(matches).T
    matched_first, matched_second = first.take(of_first), second.take(of_second)
    differs = np.flatnonzero(matched_first.target != matched_second.target)
    if len(differs):
        client, row = matched_first.client[differs[0]], matched_first.row[differs[0]]
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


def _keys(rows: HeldOutRows) -> list[tuple[str, int]]:
    return list(zip(rows.client.tolist(), rows.row.tolist(), strict=True))


def _outcome(rows: HeldOutRows) -> str:
    """Return what the rows predict, in words."""
    if rows.target_task.is_quantity:
        return "numbers"
    if rows.target_task.has_events:
        return "times to events"
    labels = list(rows.classes)
    sentence = f"the classes {abbreviate(labels)}"
    if rows.target_task.has_two_classes:
        sentence += f", with {labels[-1]} as the positive one"
    return sentence
