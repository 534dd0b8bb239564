"""Files of a selection: tables, pictures, and selection.json."""

from typing import Any

import numpy as np

from fcorun.base.records.formats import csv_text, frame_csv
from fcorun.base.records.record import PREDICTIONS_FILE
from fcorun.base.system.files import write_atomically
from fcorun.reports.pictures.held_out_pictures import draw_held_out_rows
from fcorun.results.models.coefficients import COLUMNS, Coefficients
from fcorun.results.models.predictions import predictions_csv, tabulate_scores
from fcorun.results.models.score_curves import compute_curves
from fcorun.studies.selection.cross_validation.nested_table import NESTED_FILE, summarize_nested, tabulate_nested
from fcorun.studies.selection.cross_validation.selection_options import ALL_ROWS, Selection
from fcorun.studies.selection.cross_validation.selection_picture import draw_selection
from fcorun.studies.selection.folds import list_marked_folds
from fcorun.studies.selection.path_fit import END_STATES
from fcorun.studies.selection.study import OUT_OF_FOLD_FILES, delete_files
from fcorun.studies.selection.study_picture import format_title
from fcorun.studies.selection.study_result import write_study_file


def write(selection: Selection) -> None:
    """Write all files but those of the refit: tables and pictures. selection.json says "running"."""
    write_tables(selection)
    if selection.predictions:
        _write_curves(selection, tabulate_scores(selection.predictions))
    write_summary(selection)
    for name, picture in draw_selection(selection, selection.coefficients).items():
        write_atomically(selection.folder / name, picture)


def write_tables(selection: Selection) -> None:
    """Write the tables.

    selection.csv has, for each value, a row for each fold and one for the fit of all training rows; curve.csv a row for
    each value; path.csv a row for each intercept, and for each coefficient above the cutoff somewhere on the path (that
    of the chosen second number, such as l1_ratio); predictions.csv a row for each training row, predicted out of fold,
    and scores.csv the scores of these predictions, unless the rows are too many; nested.csv a row for each outer fold.
    """
    folder = selection.folder
    coefficients = selection.coefficients
    write_atomically(folder / "selection.csv", csv_text(_tabulate_fits(selection)))
    write_atomically(folder / "curve.csv", csv_text(_tabulate_curve(selection, coefficients)))
    if coefficients is not None:
        write_atomically(folder / "path.csv", frame_csv(_tabulate_coefficients(selection, coefficients)))
    delete_files(folder, OUT_OF_FOLD_FILES)  # those of an earlier choice
    if selection.nested is not None:
        write_atomically(folder / NESTED_FILE, csv_text(tabulate_nested(selection, selection.nested)))
    if selection.predictions:
        write_atomically(folder / PREDICTIONS_FILE, predictions_csv(selection.predictions))
        write_atomically(folder / "scores.csv", csv_text(tabulate_scores(selection.predictions)))


def _write_curves(selection: Selection, scores: list[dict[str, Any]]) -> None:
    """Write tables and pictures of the ROC, calibration and decision curves of rows out of fold, if there are any."""
    curves = compute_curves(selection.predictions, scores)
    if curves is None:
        return
    style = selection.experiment.settings.style
    folds = (
        f"{selection.options.folds} folds"
        if selection.nested is None
        else f"{len(selection.nested.scores)} outer folds"
    )
    title = f"{format_title(selection.experiment)}: out of {folds} by {selection.by}"
    pictures = draw_held_out_rows(curves, title, formats=("png", "pdf"), style=style)
    for name, content in {**curves.files, **pictures}.items():
        write_atomically(selection.folder / name, content)


def write_summary(selection: Selection, seconds: float | None = None) -> None:
    """Write selection.json: "running", or "done" with the ``seconds`` that the selection and its refit took."""
    choice, path, data = selection.choice, selection.path, selection.data
    folds = [name for name in selection.fits if name != ALL_ROWS]
    content: dict[str, Any] = {
        "metric": selection.metric,
        "rule": selection.options.rule,
        "chosen": float(path.values[choice.chosen_index]),
    }
    if path.second is not None:
        content["second"] = {
            "key": path.second.key,
            "values": np.unique(path.second.values).tolist(),
            "chosen": float(path.second.values[choice.chosen_index]),
        }
    if path.adaptive is not None:
        content["adaptive"] = {"pilot": path.adaptive.pilot, "power": path.adaptive.power}
    for rule, index in choice.rule_indices.items():
        content[rule] = {
            **path.numbers_at(index),
            "mean": float(choice.mean[index]),
            "standard_error": float(choice.standard_error[index]),
            "difference": float(choice.difference[index]),
            "difference_standard_error": float(choice.difference_standard_error[index]),
        }
    content["one_standard_error_of"] = "the paired differences" if choice.paired else "the best mean"
    if selection.thresholds is not None:
        content["threshold"] = selection.thresholds.to_json()
    content["folds"] = selection.options.folds
    content["by"] = selection.by
    if marked := list_marked_folds(data):
        content["fold_values"] = dict(zip(folds, marked, strict=True))
    if data.train.group is not None:
        content["group"] = selection.experiment.data.group  # type: ignore[attr-defined]
    content["fold_weights"] = selection.options.fold_weights
    content["weight_of_fold"] = dict(zip(folds, selection.fold_weights.tolist(), strict=True))
    if selection.held_out_clients:
        content["held_out"] = selection.held_out_clients
    if selection.nested is not None:
        content["nested"] = summarize_nested(selection, selection.nested)
    write_study_file(selection, content, [*selection.warnings, *selection.refit_warnings], seconds)


def _tabulate_fits(selection: Selection) -> list[dict[str, Any]]:
    """Return a row for each value and fold. The fit of all rows has no metrics of held-out rows."""
    measured = dict.fromkeys(name for fit in selection.fits.values() for name in fit.metrics)
    metrics = list(selection.experiment.metrics.sort(measured))
    rows = []
    for name, fit in selection.fits.items():
        for p in range(len(selection.path.values)):
            row: dict[str, Any] = {**selection.path.numbers_at(p), "fold": name.removeprefix("fold")}
            for metric in metrics:
                row[metric] = float(fit.metrics[metric][p]) if metric in fit.metrics else ""
            for key, counts in fit.counts.items():
                row[key] = int(counts[p])
            row["end"] = END_STATES[fit.end_state[p]]
            rows.append(row)
    return rows


def _tabulate_curve(selection: Selection, coefficients: Coefficients | None) -> list[dict[str, Any]]:
    """Return a row for each value of the path.

    A row has the metric averaged over the folds, its difference from the metric at the best value, the standard errors
    of both, the number of nonzero coefficients, the rules that choose the value, and whether it is the chosen one.
    """
    choice, metric = selection.choice, selection.metric
    nonzeros = None if coefficients is None else count_nonzeros(selection, coefficients)
    rows = []
    for p in range(len(selection.path.values)):
        row: dict[str, Any] = {
            **selection.path.numbers_at(p),
            f"{metric}_mean": float(choice.mean[p]),
            f"{metric}_standard_error": float(choice.standard_error[p]),
            f"{metric}_difference": float(choice.difference[p]),
            f"{metric}_difference_standard_error": float(choice.difference_standard_error[p]),
        }
        if nonzeros is not None and coefficients is not None:
            row["nonzeros"] = int(nonzeros[p]) if np.isfinite(coefficients.weights[p]).all() else ""
        rules = [rule for rule, index in choice.rule_indices.items() if index == p]
        row["mark"] = " and ".join(choice.rule_labels[rule] for rule in rules)
        row["chosen"] = p == choice.chosen_index
        rows.append(row)
    return rows


def count_nonzeros(selection: Selection, coefficients: Coefficients) -> np.ndarray:
    """Return the number of coefficients of features that exceed the cutoff at each value, (P,)."""
    return coefficients.exceed(selection.experiment.settings.cutoff).sum(axis=(1, 2))


def _tabulate_coefficients(selection: Selection, coefficients: Coefficients) -> Any:
    """Return a frame with a row for each intercept, and for each coefficient above the cutoff somewhere on the path.

    Each value of the path has a column NAME=VALUE. If features were standardized or scaled, each value has a second
    column, ``original NAME=VALUE``, for features in their own units.
    """
    import pandas as pd

    path = selection.path
    of_choice = path.slice_of(selection.choice.chosen_index)
    coefficients = coefficients.take(of_choice)
    labels = pd.DataFrame(coefficients.labels, columns=list(COLUMNS[:3]))
    values_by_prefix = {"": coefficients.values}
    original = coefficients.values_original
    if original is not None and (coefficients.scaling is not None or coefficients.scale != 1):
        values_by_prefix["original "] = original
    exceeds_cutoff = coefficients.values_exceed(selection.experiment.settings.cutoff).any(axis=0)
    shown = exceeds_cutoff | (labels["parameter"] == "bias")
    names = [f"{path.param_name}={value:.6g}" for value in path.values[of_choice]]
    frames = [
        pd.DataFrame(values.T, columns=[prefix + name for name in names]) for prefix, values in values_by_prefix.items()
    ]
    return pd.concat([labels, *frames], axis=1)[shown]
