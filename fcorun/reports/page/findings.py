"""The second section of the page of a table: the features of the model, with ratios or differences and intervals."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fcorun.base.records.single_patients import hide_row_numbers
from fcorun.reports.page import elements
from fcorun.reports.page.elements import parse_float, read_lines
from fcorun.reports.page.models import (
    MAX_COEFFICIENTS,
    describe_few_levels,
    draw_model_pictures,
    meta_analysis_table,
)
from fcorun.reports.page.table_model import FittedTableModel
from fcorun.reports.pictures.forest import format_interval
from fcorun.results.inference.methods import INTERVALS_TEXT
from fcorun.results.models.coefficients import is_intercept, name_intercepts, nonzero_rows
from fcorun.results.models.inference_problem import explain_imputed, explain_private, explain_relaxed
from fcorun.results.models.inference_table import count_tests, format_p

_WITH_INTERVALS = {"LeastSquares", "Logistic", "Poisson", "Gamma", "Cox"}  # objectives of fcorun infer
_PENALTIES_WITH_INTERVALS = {"none", "l1", "elastic_net"}
_MAX_ROWS = 40
_WARNING = "warning: "
_REFERENCE = "reference"  # the method of a reference level in inference.csv


def warnings_of(model: FittedTableModel) -> list[str]:
    """Return the warnings without which the result would mislead: on convergence, and on a selection's end."""
    warnings = [str(model.record.status.get("reason") or "")]
    if model.selection and model.selection.get("status") != "done":
        warnings.append(f"the selection has not ended ({model.selection.get('status')})")
    if model.summary.get("ignores_regularizer"):
        warnings.append("the algorithm does not apply the penalty")
    return [hide_row_numbers(text[:1].upper() + text[1:]) for text in warnings if text]


def interval_warnings(model: FittedTableModel) -> list[str]:
    """Return the warnings about the intervals of coefficients, with the labels of columns."""
    warnings = []
    for line in read_lines(model.record.folder / INTERVALS_TEXT) if model.intervals else []:
        if line.startswith(_WARNING):
            text = hide_row_numbers(line).removeprefix(_WARNING)
            is_of_run = text in str(model.record.status.get("reason"))  # as those of a meta-analysis
            if is_of_run:
                continue
            for column in model.encoding.columns:
                text = text.replace(f"'{column.name}'", f"'{model.label(column.name, with_unit=False)}'")
            warnings.append(text[:1].upper() + text[1:])
    return warnings


def selected_features(model: FittedTableModel) -> list[dict[str, Any]]:
    """Return the rows of coefficients.csv whose coefficient exceeds the cutoff, the largest first."""
    cutoff = parse_float(model.config.get("cutoff") or 0)
    return nonzero_rows(model.coefficients, cutoff, model.data)


def finding_sentence(model: FittedTableModel) -> str:
    """Return one sentence on how many features the model uses, and the largest of them; "" without coefficients."""
    curves = model.encoding.curve_of_feature
    features = [row["feature"] for row in model.coefficients if row["parameter"] != "bias"]
    n_features = len({curves.get(name, name) for name in features})
    names = list(dict.fromkeys(str(curves.get(row["feature"], row["feature"])) for row in selected_features(model)))
    if not n_features:
        return ""
    largest = ", ".join(model.labels.get(name, name) for name in names[:3])
    text = f"The model uses {len(names)} of {n_features} features"
    if len(set(features)) > n_features:
        text += " (a curve counts as one)"
    units = ", each per unit," if model.config.get("data.standardize") == "none" else ""
    return f"{text}; those with the largest coefficients{units} are {largest}." if largest else f"{text}."


def finding_blocks(model: FittedTableModel) -> list[str]:
    """Return the warnings and a sentence on the features, and unless there are several classes, the table of features.

    The table has a forest plot if there are intervals.
    """
    blocks: list[str] = [elements.warning_list(warnings_of(model)), elements.paragraph(finding_sentence(model))]
    if model.has_coefficients_by_class:
        return blocks  # the section of coefficients has a chart by class
    pictures = draw_model_pictures(model.record)
    if not model.intervals:
        reading = elements.bullet_list(reading_sentences(model))
        no_intervals = elements.paragraph(missing_intervals_sentence(model))
        return [*blocks, finding_table(model, _MAX_ROWS), *pictures, no_intervals, reading]
    coefficients = elements.collapsible("The coefficients of the model, with its intercept", finding_table(model))
    return [*blocks, *_interval_blocks(model), coefficients, *pictures]


def reading_sentences(model: FittedTableModel) -> list[str]:
    """Return sentences that say what a ratio, a difference and a unit mean here."""
    outcome = f"\N{LEFT DOUBLE QUOTATION MARK}{model.outcome}\N{RIGHT DOUBLE QUOTATION MARK}"
    if model.task.has_order:
        outcome = f"a higher class of {outcome} ({' < '.join(map(str, model.data['classes']))})"
    meanings = {
        "odds ratio": f"above 1: {outcome} is more likely where the feature is larger; below 1: less likely",
        "hazard ratio": f"above 1: {outcome} comes earlier where the feature is larger; below 1: later",
    }
    name = model.ratio_name
    if name:
        meaning = meanings.get(name, f"above 1: {outcome} is larger where the feature is larger; below 1: smaller")
        first = f"{name.capitalize()} {meaning}, the other features being equal."
    else:
        first = f"Difference of {outcome} between rows that differ in the feature, the other features being equal."
    sentences = [
        f"{first} Per unit: for one unit more of the feature, or for a level; per SD: for one "
        "standard deviation more, so that features can be compared."
    ]
    if model.task.has_events:
        sentences.append(f"Each {model.client_word} has a baseline hazard of its own, and events at equal times share "
                         "a risk set (Breslow's ties; the default of R's coxph is Efron's).")  # fmt: skip
    if model.config.get("objective.client_intercepts"):
        mean_or_place = "a new one gets the mean of the intercepts"
        if "sites" in model.data:
            mean_or_place = "the intercept stays at its site"
        sentences.append(f"Each {model.client_word} has an intercept of its own, so that rows of one "
                         f"{model.client_word} are compared; {mean_or_place}.")  # fmt: skip
    two = []
    several = []
    references = [row["feature"] for row in model.intervals if row.get("method") == _REFERENCE]
    for column in model.encoding.columns:
        if column.reference is not None:
            two.append(f"{model.label(column.name)}: {column.reference}")
        elif column.has_levels and not any(name in references for name in column.features):
            several.append(model.label(column.name))
    two += [model.labels.get(name, name) for name in references]
    if two:
        sentences.append(f"Levels are compared with the reference level of their column, {', '.join(two)}.")
    if several:
        sentences.append(f"Each level of {', '.join(several)} has a coefficient of its own, without a reference level: "
                         "compare two levels by the ratio or difference of their numbers.")  # fmt: skip
    if curves := dict.fromkeys(model.encoding.curve_of_feature.values()):
        labels = ", ".join(model.label(name) for name in curves)
        sentences.append(f"Curves: {labels}. No term of a curve varies alone, so that only the picture of the curve "
                         "says how the outcome depends on it; a p value is of all its terms together.")  # fmt: skip
    sentences.append("These are associations in these rows; they do not show what a treatment would change.")
    return sentences


def _interval_blocks(model: FittedTableModel) -> list[str]:
    """Return the table of intervals by feature, the forest plot, and sentences about them."""
    curves = model.encoding.curve_of_feature
    rows = _rows_of_columns([row for row in model.intervals if not is_intercept(row["feature"])], curves)
    shown = rows
    if len(rows) > _MAX_ROWS:
        smallest = sorted(rows, key=lambda row: (math.isnan(parse_float(row["p_value"])), parse_float(row["p_value"])))
        shown_features = {row["feature"] for row in smallest[:_MAX_ROWS]}
        shown = [row for row in rows if row["feature"] in shown_features]
    sentences = [hide_row_numbers(line) for line in read_lines(model.record.folder / INTERVALS_TEXT)]
    level = next((line.partition(" intervals")[0].rpartition(", ")[2] for line in sentences), "")
    name = model.ratio_name or "difference"
    selected = {curves.get(row["feature"], row["feature"]) for row in selected_features(model)}
    is_imputed = any(row.get("missing_information") for row in rows)
    lines = []
    for row in shown:
        cells = [model.labels.get(row["feature"], row["feature"])]
        if row["feature"] in curves:
            cells += [row["method"].partition("; ")[2] or "a curve", "a curve", format_p(parse_float(row["p_value"]))]
        elif not row["p_value"]:  # a reference level, or the reason for no interval
            cells += [row["method"], row["method"], ""]
        else:
            cells += [_interval(model, row, ""), _interval(model, row, "_standardized")]
            cells.append(format_p(parse_float(row["p_value"])))
        is_reference = row["method"] == _REFERENCE
        cells.append("" if is_reference else "yes" if curves.get(row["feature"], row["feature"]) in selected else "no")
        share = row.get("missing_information")
        lines.append([*cells, *([f"{parse_float(share):.0%}" if share else ""] if is_imputed else [])])
    headers = ["feature", f"{name} per unit ({level} CI)", f"{name} per SD ({level} CI)", "p", "used by the model"]
    headers += ["missing information"] if is_imputed else []
    caption = "p values are not corrected for the number of features."
    if len(shown) < len(rows):
        caption += f" The {len(shown)} features with the smallest p values of {len(rows)}; inference.csv has all."
    caption += " The intervals are of each feature, whether or not the model uses it."
    if any(row["method"] == _REFERENCE for row in shown):
        caption += (" They compare levels with a reference level, which the model does not: it may have a coefficient "
                    "for each level (below).")  # fmt: skip
    if is_imputed:
        caption += " They are of tables with imputed gaps; the model itself was fit to filled gaps."
    limit = 1 - parse_float(level.removesuffix(" %")) / 100
    p_values, p_holm = (np.array([parse_float(row[key]) for row in rows]) for key in ("p_value", "p_holm"))
    counted = f"{count_tests(p_values, p_holm, limit)}."
    technical = [line for line in sentences if not line.startswith(_WARNING)]
    return [
        elements.warning_list(interval_warnings(model)),
        elements.html_table(headers, lines, caption=caption, numbers=(1, 2, 3)),
        meta_analysis_table(model.intervals),
        elements.bullet_list([counted, *reading_sentences(model)]),
        elements.embed_picture(
            model.record.folder / "inference.png", "Forest plot: the estimates and intervals of the table."
        ),
        elements.collapsible("How the intervals were computed", elements.bullet_list(technical)),
    ]


def _rows_of_columns(rows: list[dict[str, Any]], curves: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the rows of inference.csv without the terms of a curve that another term stands for."""
    shown: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = curves.get(row["feature"], row["feature"])
        if name not in shown or (row["p_holm"] and not shown[name]["p_holm"]):
            shown[name] = row
    return list(shown.values())


def _interval(model: FittedTableModel, row: dict[str, Any], kind: str) -> str:
    """Return an estimate of a row with its interval: a ratio where the model has one."""
    numbers = [parse_float(row[f"{name}{kind}"]) for name in ("low", "estimate", "high")]
    if not model.ratio_name:
        return format_interval(*numbers, null=0.0)
    return format_interval(*(_exp(value) for value in numbers), null=1.0)


def finding_table(model: FittedTableModel, max_rows: int = MAX_COEFFICIENTS) -> str:
    """Return the coefficients of the model with its intercept: those that predict, without intervals."""
    name = model.ratio_name or "difference"
    standardized = model.data.get("standardized") or {}
    curves = model.encoding.curve_of_feature
    selected = selected_features(model)
    has_units = any(row["value_original"] for row in model.coefficients)
    has_deviations = bool(standardized) or not has_units
    lines = []
    for column in dict.fromkeys(curves[row["feature"]] for row in selected if row["feature"] in curves):
        lines.append([model.label(column), *["a curve"] * (has_units + has_deviations)])
    selected = [row for row in selected if row["feature"] not in curves]
    for row in selected[:max_rows]:
        per_unit, per_deviation = parse_float(row["value_original"]), parse_float(row["value"])
        cells = [per_unit] * has_units + [per_deviation] * has_deviations
        numbers = [_plain_ratio(_exp(value)) if model.ratio_name else _plain(value) for value in cells]
        lines.append([model.labels.get(row["feature"], row["feature"]), *numbers])
    unit = "its logarithm" if model.ratio_name else "in the units of the outcome"
    intercepts = [row for row in model.coefficients if row["parameter"] == "bias"]
    for name_of_row, row in zip(name_intercepts(model.coefficients), intercepts, strict=True):
        value = row["value_original"] or row["value"]
        if model.task.has_order:
            unit = f"log odds of {row['class']} or a higher class"
        lines.append([f"{name_of_row.strip('()')} ({unit})", *[_plain(parse_float(value))] * has_units,
                      *[""] * has_deviations])  # fmt: skip
    headers = ["feature", *[f"{name} per unit"] * has_units, *[f"{name} per SD"] * has_deviations]
    caption = "The coefficients that predict."
    if str(model.config.get("reg.name")) != "none":
        caption += f" The penalty pulls {'ratios toward 1' if model.ratio_name else 'differences toward 0'}."
        if model.record.summary.get("relaxed"):
            caption += f" relax={model.config.get('relax')} undoes a part of that."
    if len(selected) > max_rows:
        caption += f" The {max_rows} largest of {len(selected)}; coefficients.csv has all."
    caption += describe_few_levels(model.data, [row["feature"] for row in selected[:max_rows]], model.labels)
    return elements.html_table(headers, lines, caption=caption, numbers=range(1, len(headers)))


def missing_intervals_sentence(model: FittedTableModel) -> str:
    """Return the sentence on the intervals that the record does not have."""
    if imputations := model.config.get("imputations"):
        return f"These numbers have no intervals: {explain_imputed(int(imputations))}."
    if model.summary.get("relaxed"):
        return f"These numbers have no intervals: {explain_relaxed(float(model.config['relax']))}."
    if model.summary.get("privacy"):
        return f"These numbers have no intervals: {explain_private(str(model.config['privacy.name']))}."
    objective = str(model.config.get("objective.class")).rpartition(".")[2]
    if objective in _WITH_INTERVALS and str(model.config.get("reg.name")) in _PENALTIES_WITH_INTERVALS:
        if model.is_over_sites:
            return "These numbers have no intervals: a plan with --infer (fcorun plan) has the sites compute them."
        return "These numbers have no intervals yet: fcorun infer RECORD adds them."
    return "These numbers have no intervals: fcorun has none for this model."


def _exp(value: float) -> float:
    return math.inf if value >= 700 else math.exp(value)


def _plain(value: float) -> str:
    """Return a number with three significant digits, "" for nan."""
    return "" if math.isnan(value) else f"{value:.3g}".replace("-", "\N{MINUS SIGN}")


def _plain_ratio(value: float) -> str:
    """Return a ratio with three significant digits, or with two of its distance from 1 where it is near; "" for nan."""
    distance = abs(value - 1)
    return f"{value:.{1 - math.floor(math.log10(distance))}f}" if 1e-6 < distance < 0.01 else _plain(value)
