"""The table of the outer folds of a nested cross-validation, as nested.csv, as a summary, and as printed lines."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fcorun.studies.selection.cross_validation.nested import NestedScore
from fcorun.studies.selection.cross_validation.selection_options import Selection
from fcorun.studies.selection.folds import list_held_out_clients, list_marked_folds
from fcorun.studies.selection.path_fit import END_STATES

NESTED_FILE = "nested.csv"
_MAX_LINES = 20  # outer folds that are printed
_MAX_LETTERS = 40  # of the clients of an outer fold


def tabulate_nested(selection: Selection, nested: NestedScore) -> list[dict[str, Any]]:
    """Return a row for each outer fold: its rows, the choice without them, and the metrics of this choice on them.

    The columns METRIC_inner_mean and METRIC_inner_standard_error are those of the inner folds at the choice.
    """
    held_out = _name_outer_folds(selection, nested)
    sizes = np.bincount(nested.folds.fold)
    measured = dict.fromkeys(name for outer in nested.folds.outer for name in nested.fits[outer.name].metrics)
    names = [name for name in selection.experiment.metrics.sort(measured) if "val_" in name]
    rows = []
    for j, (outer, choice) in enumerate(zip(nested.folds.outer, nested.choices, strict=True)):
        fit, chosen = nested.fits[outer.name], choice.chosen_index
        row: dict[str, Any] = {"outer_fold": j + 1, "held_out": held_out[j], "n": int(sizes[j])}
        row["weight"] = float(nested.folds.weights[j])
        row |= selection.path.numbers_at(chosen)
        row[f"{selection.metric}_inner_mean"] = float(choice.mean[chosen])
        row[f"{selection.metric}_inner_standard_error"] = float(choice.standard_error[chosen])
        for name in names:
            row[name] = float(fit.metrics[name][chosen]) if name in fit.metrics else ""
        row["end"] = END_STATES[fit.end_state[chosen]]
        rows.append(row)
    return rows


def _name_outer_folds(selection: Selection, nested: NestedScore) -> list[str]:
    """Return the clients that each outer fold holds out, or the names of folds that the data mark, else ""."""
    if marked := list_marked_folds(selection.data):
        return marked
    if selection.options.by == "clients":
        return ["; ".join(names) for names in list_held_out_clients(selection.data, nested.folds.fold).values()]
    return [""] * len(nested.folds.outer)


def summarize_nested(selection: Selection, nested: NestedScore) -> dict[str, Any]:
    """Return the section ``nested`` of selection.json."""
    return {
        "folds": len(nested.scores),
        "mean": nested.mean,
        "standard_error": nested.standard_error,
        "scores": nested.scores.tolist(),
        "chosen": [selection.path.numbers_at(index) for index in nested.chosen],
        "weight_of_fold": nested.folds.weights.tolist(),
    }


def describe_nested(selection: Selection, nested: NestedScore) -> Iterator[str]:
    """Yield the nested score, and a line for each outer fold with the choice without it, and the score on it."""
    n_folds, metric, choice = len(nested.scores), selection.metric, selection.choice
    yield (
        f"nested cross-validation: {metric} {nested.mean:.4g} ± {nested.standard_error:.2g} over {n_folds} outer folds "
        f"by {selection.by}, the score of the whole procedure on rows that its choice has not seen "
        f"({choice.mean[choice.chosen_index]:.4g} at the choice on all rows)"
    )
    rows = tabulate_nested(selection, nested)
    numbers = [*selection.path.numbers_at(0)]
    yield "  outer fold     rows" + "".join(f"{name:>12}" for name in (*numbers, "inner", "outer"))
    for row in rows[:_MAX_LINES]:
        values = [row.get(name, "") for name in (*numbers, f"{metric}_inner_mean", metric)]
        cells = "".join(f"{math.nan if value == '' else value:12.4g}" for value in values)
        held_out = row["held_out"]
        if len(held_out) > _MAX_LETTERS:
            held_out = f"{held_out[: _MAX_LETTERS - 2]}.."
        yield f"  {row['outer_fold']:10}{row['n']:9,}{cells}  {held_out}".rstrip()
    if n_folds > _MAX_LINES:
        yield f"  and {n_folds - _MAX_LINES} more, in {NESTED_FILE}"
