"""Report of a selection: its tables, pictures and selection.json, and the lines that ``fcorun select`` prints."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fcorun.base.errors import word
from fcorun.base.records.formats import csv_text, frame_csv
from fcorun.base.records.record import PREDICTIONS_FILE
from fcorun.base.system.files import write_atomically
from fcorun.methods.algorithms.algorithm import Baseline
from fcorun.reports.pictures.curve_groups import CurveView
from fcorun.reports.pictures.picture import render_pictures
from fcorun.results.models.coefficients import COLUMNS, Coefficients
from fcorun.results.models.predictions import predictions_csv, tabulate_scores
from fcorun.results.models.score_curves import compute_curves
from fcorun.studies.selection.choice import CrossValidationChoice
from fcorun.studies.selection.folds import list_held_out_clients, list_marked_folds
from fcorun.studies.selection.nested import NestedScore
from fcorun.studies.selection.path_fit import END_STATES
from fcorun.studies.selection.selection_picture import draw_selection
from fcorun.studies.selection.selection_result import ALL_ROWS, Selection
from fcorun.studies.selection.study import OUT_OF_FOLD_FILES, delete_files, format_cost, write_study_file
from fcorun.studies.selection.study_picture import format_title


def write_files(selection: Selection) -> None:
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
    pictures = render_pictures(CurveView(curves, title), formats=("png", "pdf"), style=style)
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


_MAX_NAMED_CLIENTS = 20  # in a line


def describe_selection(selection: Selection) -> Iterator[str]:
    """Yield the two choices, the one that was taken, warnings, the cost, and the files."""
    choice, path, folder = selection.choice, selection.path, selection.folder
    coefficients = selection.coefficients
    for rule, index in choice.rule_indices.items():
        marker = "* " if rule == selection.options.rule else "  "
        size = ""
        if coefficients:
            nonzeros = count_nonzeros(selection, coefficients)[index]
            size = f", {nonzeros} of {coefficients.weights[0].size} coefficients"
        yield (
            f"{marker}{choice.rule_labels[rule]}: {path.describe(index)}  {selection.metric} "
            f"{_format_score(choice, index)}{size}"
        )
    yield _describe_average(selection)
    if selection.nested is not None:
        yield from describe_nested(selection, selection.nested)
    if selection.held_out_clients:
        if len(selection.data.train.sizes) <= _MAX_NAMED_CLIENTS:
            folds = [f"{name} {', '.join(clients)}" for name, clients in selection.held_out_clients.items()]
            yield "held out: " + "; ".join(folds)
        else:
            yield f"{folder}/{selection.study.study_file} names the clients that each fold holds out (held_out)"
    if selection.thresholds is not None and selection.thresholds.chosen_on:
        yield word(f"`threshold={selection.thresholds.rule}`: {selection.threshold:.4g}, chosen out of fold")
    yield from selection.warnings
    yield f"the choice cost {format_cost(selection.cost)}"
    numbers = path.describe(choice.chosen_index, digits=6)
    yield f"{folder}/refit: all training rows with {numbers}: {selection.end_of_refit}"
    yield from selection.refit_warnings
    files = ["selection.csv", "curve.csv", *(["path.csv"] if coefficients else []), NESTED_FILE]
    if selection.study.keeps_held_out:
        files += [PREDICTIONS_FILE, "scores.csv"]
    elif not selection.data.train.stays_at_sites:
        yield f"{PREDICTIONS_FILE} is left out: the folds hold out too many rows, at all values of the path"
    files += ["selection.png", "selection.pdf"]
    yield f"{folder}/ holds {', '.join(name for name in files if (folder / name).exists())}"
    if (folder / "roc.csv").exists():
        yield "of two classes out of fold: roc, calibration and decision.png and .pdf, and their tables"


def _format_score(choice: CrossValidationChoice, index: int) -> str:
    """Return the mean at a position of the path with a standard error: of the mean, or of a paired difference."""
    mean = f"{choice.mean[index]:.4g}"
    if not choice.paired:
        return f"{mean} ± {choice.standard_error[index]:.2g}"
    if index == choice.best_index:
        return mean
    difference, error = choice.difference[index], choice.difference_standard_error[index]
    return f"{mean}, {difference:+.2g} ± {error:.2g} from the {choice.rule_labels['min']}"


def _describe_average(selection: Selection) -> str:
    """Say how folds are averaged, which standard error the rule takes, and how reliable the score is."""
    rounds = ""
    if not isinstance(selection.experiment.algo, Baseline):
        rounds = f" (of the last {selection.experiment.settings.tail_rounds} rounds at most)"
    weighting = "weighed equally"
    if selection.options.fold_weights == "rows":
        share = selection.fold_weights / selection.fold_weights.sum()
        rows = "rows" if selection.study.data.train.weight is None else "rows' weights"
        weighting = f"weighed by its {rows} (from {share.min():.2g} to {share.max():.2g} of the mean)"
    error = "standard error"
    if selection.choice.paired:
        error += f" of the folds' paired differences to the {selection.choice.rule_labels['min']}"
    may_nest = not (selection.nested or selection.data.train.stays_at_sites)
    advice = word(" (`outer_folds=5` adds the score of nested cross-validation)") if may_nest else ""
    source = "" if selection.coefficients is None else "; coefficients are those of the model of all training rows"
    return (
        f"mean over {selection.options.folds} folds{rounds}, each {weighting}, ± {error}, which is rough because "
        f"folds share training rows; the score of the chosen model is slightly optimistic{advice}{source}"
    )
