"""The files of a selection."""

from typing import Any

import numpy as np

from fcorun.models.coefficients import COLUMNS, Coefficients
from fcorun.records.formats import csv_text, frame_csv, json_text
from fcorun.records.record import SELECTION
from fcorun.selection.fitting import ENDS
from fcorun.selection.folds import counts, fold_names
from fcorun.selection.picture import draw
from fcorun.selection.selected import ALL, Selection
from fcorun.system.files import write_whole

MARK = SELECTION


def write(of: Selection) -> None:
    """Write all but the refit: selection.csv, a row for each value and fold, and one for all training rows; curve.csv,
    a row for each value; path.csv, a row for each coefficient; the picture."""
    found = of.coefficients
    write_whole(of.folder / "selection.csv", csv_text(_rows(of)))
    write_whole(of.folder / "curve.csv", csv_text(_curve(of, found)))
    if found is not None:
        write_whole(of.folder / "path.csv", frame_csv(_coefficients(of, found)))
    _note(of, "running")
    for name, picture in draw(of, found).items():
        write_whole(of.folder / name, picture)


def finish(of: Selection, seconds: float) -> None:
    """Note that the selection is done, and what it took, the refit included."""
    _note(of, "done", seconds=seconds)


def _note(of: Selection, status: str, **more: Any) -> None:
    choice, values = of.choice, of.path.values
    each = {"min": choice.best, "one_se": choice.simplest}
    folds = [name for name in of.fitted if name != ALL]
    content = {
        "identity": of.study.identity,
        "label": of.study.label,
        "status": status,
        "number": of.path.number,
        "range": of.path.said,
        "metric": of.metric,
        "rule": of.options.rule,
        "chosen": float(values[choice.chosen]),
        **{name: {of.path.number: float(values[place]), "mean": float(choice.mean[place]),
                  "standard_error": float(choice.error[place]),
                  "difference": float(choice.difference[place]),
                  "difference_standard_error": float(choice.difference_error[place])}
           for name, place in each.items()},
        "one_standard_error_of": "the paired differences" if choice.paired else "the best mean",
        "folds": of.options.folds,
        "by": of.by,
        **({"fold_values": dict(zip(folds, names, strict=True))} if (names := fold_names(of.data)) else {}),
        **({"group": of.experiment.data.group} if of.data.group is not None else {}),  # type: ignore[attr-defined]
        "fold_weights": of.options.fold_weights,
        "fold_weight": dict(zip(folds, of.weights.tolist(), strict=True)),
        **({"held_out": of.held} if of.held else {}),
        "rows": counts(of.data),
        "cost": of.cost,
        "remarks": [*of.remarks, *of.refit],
        **more,
    }  # fmt: skip
    write_whole(of.folder / MARK, json_text(content))


def _rows(of: Selection) -> list[dict[str, Any]]:
    """A row for each value and fold; of all rows there is nothing measured on rows that are held out."""
    rows = []
    for name, fitted in of.fitted.items():
        for p, value in enumerate(of.path.values):
            metrics = {key: float(fitted.metrics[key][p]) if key in fitted.metrics else ""
                       for key in of.experiment.metrics.in_order(dict.fromkeys(_metrics(of)))}  # fmt: skip
            counts = {key: int(each[p]) for key, each in fitted.counts.items()}
            rows.append({of.path.number: float(value), "fold": name.removeprefix("fold"), **metrics, **counts,
                         "end": ENDS[fitted.end[p]]})  # fmt: skip
    return rows


def _metrics(of: Selection) -> list[str]:
    return list(dict.fromkeys(name for fitted in of.fitted.values() for name in fitted.metrics))


def _curve(of: Selection, found: Coefficients | None) -> list[dict[str, Any]]:
    choice, rows = of.choice, []
    for p, value in enumerate(of.path.values):
        marks = [
            words for rule, words in choice.names.items() if p == {"min": choice.best, "one_se": choice.simplest}[rule]
        ]
        row: dict[str, Any] = {of.path.number: float(value), f"{of.metric}_mean": float(choice.mean[p]),
                               f"{of.metric}_standard_error": float(choice.error[p]),
                               f"{of.metric}_difference": float(choice.difference[p]),
                               f"{of.metric}_difference_standard_error": float(choice.difference_error[p])}  # fmt: skip
        if found is not None:
            row["nonzeros"] = int(nonzeros(of, found)[p])
        rows.append(row | {"mark": " and ".join(marks), "chosen": p == choice.chosen})
    return rows


def nonzeros(of: Selection, found: Coefficients) -> np.ndarray:
    """How many coefficients of features exceed the cutoff at each value, (P,)."""
    return (np.abs(found.weights) > of.experiment.settings.cutoff).sum(axis=(1, 2))


def _coefficients(of: Selection, found: Coefficients) -> Any:
    """A row for each coefficient that exceeds the cutoff somewhere on the path, and each intercept; a column a value
    of the path, as trained, and where features were standardized another, for features as the source has them."""
    import pandas as pd

    places = pd.DataFrame(found.places, columns=list(COLUMNS[:3]))
    ways, original = {"": found.values}, found.values_original
    if original is not None and (found.scaling is not None or found.scale != 1):
        ways["original "] = original
    shown = (np.abs(found.values) > of.experiment.settings.cutoff).any(axis=0) | (places["parameter"] == "bias")
    told = [f"{of.path.number}={value:.6g}" for value in of.path.values]
    parts = [pd.DataFrame(each.T, columns=[way + name for name in told]) for way, each in ways.items()]
    return pd.concat([places, *parts], axis=1)[shown]
