"""The files of a selection."""

from typing import Any

import numpy as np

from fcorun.models.coefficients import COLUMNS, Coefficients
from fcorun.records.formats import csv_text, frame_csv, json_text
from fcorun.records.record import SELECTION_FILE
from fcorun.selection.fitting import END_STATES
from fcorun.selection.folds import count_rows, list_marked_folds
from fcorun.selection.picture import draw_selection
from fcorun.selection.result import ALL_ROWS, Selection
from fcorun.system.files import write_atomically

STUDY_FILE = SELECTION_FILE


def write(of: Selection) -> None:
    """Write all but the refit: selection.csv, a row for each value and fold, and one for all training rows; curve.csv,
    a row for each value; path.csv, a row for each coefficient; the picture."""
    found = of.coefficients
    write_atomically(of.folder / "selection.csv", csv_text(_rows(of)))
    write_atomically(of.folder / "curve.csv", csv_text(_curve(of, found)))
    if found is not None:
        write_atomically(of.folder / "path.csv", frame_csv(_coefficients(of, found)))
    _note(of, "running")
    for name, picture in draw_selection(of, found).items():
        write_atomically(of.folder / name, picture)


def mark_done(of: Selection, seconds: float) -> None:
    """Note that the selection is done, and what it took, the refit included."""
    _note(of, "done", seconds=seconds)


def _note(of: Selection, status: str, **more: Any) -> None:
    choice, values = of.choice, of.path.values
    each = {"min": choice.best_index, "one_se": choice.one_se_index}
    folds = [name for name in of.fits if name != ALL_ROWS]
    content = {
        "identity": of.study.identity,
        "label": of.study.label,
        "status": status,
        "number": of.path.param_name,
        "range": of.path.range_description,
        "metric": of.metric,
        "rule": of.options.rule,
        "chosen": float(values[choice.chosen_index]),
        **{name: {of.path.param_name: float(values[place]), "mean": float(choice.mean[place]),
                  "standard_error": float(choice.standard_error[place]),
                  "difference": float(choice.difference[place]),
                  "difference_standard_error": float(choice.difference_standard_error[place])}
           for name, place in each.items()},
        "one_standard_error_of": "the paired differences" if choice.paired else "the best mean",
        "folds": of.options.folds,
        "by": of.by,
        **({"fold_values": dict(zip(folds, names, strict=True))} if (names := list_marked_folds(of.data)) else {}),
        **({"group": of.experiment.data.group} if of.data.group is not None else {}),  # type: ignore[attr-defined]
        "fold_weights": of.options.fold_weights,
        "fold_weight": dict(zip(folds, of.weights.tolist(), strict=True)),
        **({"held_out": of.held_out_clients} if of.held_out_clients else {}),
        "rows": count_rows(of.data),
        "cost": of.cost,
        "remarks": [*of.warnings, *of.refit],
        **more,
    }  # fmt: skip
    write_atomically(of.folder / STUDY_FILE, json_text(content))


def _rows(of: Selection) -> list[dict[str, Any]]:
    """A row for each value and fold; of all rows there is nothing measured on rows that are held out."""
    rows = []
    for name, fitted in of.fits.items():
        for p, value in enumerate(of.path.values):
            metrics = {key: float(fitted.metrics[key][p]) if key in fitted.metrics else ""
                       for key in of.experiment.metrics.sort(dict.fromkeys(_metrics(of)))}  # fmt: skip
            counts = {key: int(each[p]) for key, each in fitted.counts.items()}
            rows.append({of.path.param_name: float(value), "fold": name.removeprefix("fold"), **metrics, **counts,
                         "end": END_STATES[fitted.end_state[p]]})  # fmt: skip
    return rows


def _metrics(of: Selection) -> list[str]:
    return list(dict.fromkeys(name for fitted in of.fits.values() for name in fitted.metrics))


def _curve(of: Selection, found: Coefficients | None) -> list[dict[str, Any]]:
    choice, rows = of.choice, []
    for p, value in enumerate(of.path.values):
        marks = [
            words
            for rule, words in choice.rule_labels.items()
            if p == {"min": choice.best_index, "one_se": choice.one_se_index}[rule]
        ]
        row: dict[str, Any] = {
            of.path.param_name: float(value),
            f"{of.metric}_mean": float(choice.mean[p]),
            f"{of.metric}_standard_error": float(choice.standard_error[p]),
            f"{of.metric}_difference": float(choice.difference[p]),
            f"{of.metric}_difference_standard_error": float(choice.difference_standard_error[p]),
        }
        if found is not None:
            row["nonzeros"] = int(count_nonzeros(of, found)[p])
        rows.append(row | {"mark": " and ".join(marks), "chosen": p == choice.chosen_index})
    return rows


def count_nonzeros(of: Selection, found: Coefficients) -> np.ndarray:
    """How many coefficients of features exceed the cutoff at each value, (P,)."""
    return (np.abs(found.weights) > of.experiment.settings.cutoff).sum(axis=(1, 2))


def _coefficients(of: Selection, found: Coefficients) -> Any:
    """A row for each coefficient that exceeds the cutoff somewhere on the path, and each intercept; a column a value
    of the path, as trained, and where features were standardized another, for features as the source has them."""
    import pandas as pd

    places = pd.DataFrame(found.labels, columns=list(COLUMNS[:3]))
    ways, original = {"": found.values}, found.values_original
    if original is not None and (found.scaling is not None or found.scale != 1):
        ways["original "] = original
    shown = (np.abs(found.values) > of.experiment.settings.cutoff).any(axis=0) | (places["parameter"] == "bias")
    told = [f"{of.path.param_name}={value:.6g}" for value in of.path.values]
    parts = [pd.DataFrame(each.T, columns=[way + name for name in told]) for way, each in ways.items()]
    return pd.concat([places, *parts], axis=1)[shown]
