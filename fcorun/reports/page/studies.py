"""The studies of the page: figures with their claims, selections of a strength, stability selections."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fcorun.base.records.formats import read_json
from fcorun.base.records.record import SELECTION_FILE, STABILITY_FILE
from fcorun.reports.page.elements import (
    FOREGROUND,
    Page,
    axis_type,
    bullet_list,
    chart_grid,
    claims_list,
    collapsible,
    embed_picture,
    html_table,
    paragraph,
    to_text,
)
from fcorun.reports.page.models import curve_pictures
from fcorun.reports.page.page_files import parse_cell, parse_float, read_csv
from fcorun.reports.pictures.layout import COLOURS

CLAIMS_CSV = "claims.csv"  # in the folder of a figure
STUDY_FILES = (CLAIMS_CSV, SELECTION_FILE, STABILITY_FILE)
FIGURE_JSON = "figure.json"
_MAX_LINES = 40  # coefficients or features in a chart
_CLAIM_COLUMNS = ("holds", "algo", "says", "measured", "wanted", "test", "note")
_THRESHOLDS = "The thresholds of claims are fcorun's own choice, unless the text above says that the paper prints them."


def find_studies(folders: Sequence[Path]) -> list[Path]:
    """Return the folders of studies in and under ``folders``, without a folder that only collects figures."""
    studies = {path.parent for folder in folders for name in STUDY_FILES for path in folder.rglob(name)}
    return sorted(folder for folder in studies if is_figure(folder) or not (folder / CLAIMS_CSV).exists())


def is_figure(folder: Path) -> bool:
    """Return True if a folder holds a figure."""
    return (folder / CLAIMS_CSV).exists() and (folder / "figure.png").exists()


def page_heading(folders: Sequence[Path]) -> tuple[str, str]:
    """Return the line above the title of a page of these folders, and the title of a single figure, else ""."""
    name = ", ".join(folder.resolve().name for folder in folders)
    title = ""
    if len(folders) == 1 and is_figure(folders[0]):
        title = str(read_json(folders[0] / FIGURE_JSON).get("title") or "")
    return (f"Figure {name}" if title else name), title


def add_study_sections(page: Page, folder: Path, *, single_figure: bool) -> list[str]:
    """Add the sections of the studies in a folder, and return sentences about them.

    With ``single_figure`` the page is about one figure, whose title is the title of the page.
    """
    name = folder.resolve().name
    return [
        *_add_figure(page, folder, name, single_figure),
        *_add_selection(page, folder, name),
        *_add_stability(page, folder, name),
    ]


def _add_figure(page: Page, folder: Path, name: str, single_figure: bool) -> list[str]:
    """Add the section of a figure with its claims, if the folder has one, and return sentences about it."""
    if not (folder / CLAIMS_CSV).exists():
        return []
    claims, best = read_csv(folder / CLAIMS_CSV), read_csv(folder / "table.csv")
    about = read_json(folder / FIGURE_JSON)
    holds = [row.get("holds", "") for row in claims]
    count = f"{holds.count('yes')} of {len(claims)} claims hold" if claims else "Nothing is claimed"
    if claims and about.get("edges"):
        count += f"; best at an edge of the grid: {', '.join(map(str, about['edges']))}"
    title = f"{name}: {about['title']}" if about.get("title") else name
    caption = str(about.get("caption") or f"The figure {title}.")
    blocks = [] if single_figure else [paragraph(f"{count}.")]
    blocks += [claims_list(claims), embed_picture(folder / "figure.png", caption)]
    if claims:
        columns = [key for key in _CLAIM_COLUMNS if any(row.get(key) for row in claims)]
        rows = [[row.get(key, "") for key in columns] for row in claims]
        caption = "How each claim was measured. " + (_THRESHOLDS if about.get("ours") else "")
        blocks.append(html_table(columns, rows, caption=caption))
    if best:
        summary = "All averages of the best points, with their bands (table.csv)"
        blocks.append(collapsible(summary, _csv_table(best)))
    page.add_section(f"figure-{len(page.sections)}", count if single_figure else f"Figure {title}", *blocks)
    changed = about.get("changed")
    return [
        str(about.get("about") or ""),
        f"The figure differs from its file: {changed}." if changed else "",
    ]


def _csv_table(rows: Sequence[dict[str, Any]], name: str = "", caption: str = "") -> str:
    """Return the rows of a CSV as a table, with numbers where cells are numbers."""
    return html_table([*rows[0]], [[parse_cell(*cell) for cell in row.items()] for row in rows], name, caption)


def _add_selection(page: Page, folder: Path, name: str) -> list[str]:
    """Add the section of a selection of a strength, if the folder has one, and return sentences about it."""
    about = read_json(folder / SELECTION_FILE)
    if "metric" not in about:
        return _describe_unfinished(about)
    page.add_section(
        f"selection-{len(page.sections)}",
        f"Selection {name}",
        *selection_blocks(page, folder),
        *curve_pictures(folder, "Out of fold. "),
    )
    return [describe_selection(about, name)]


def describe_selection(about: dict[str, Any], name: str) -> str:
    """Return a sentence on the folds of a selection, the chosen number and the rule, given its selection.json."""
    param_name, metric = str(about.get("param_name")), str(about.get("metric"))
    text = f"{about.get('label', name)}: {param_name} by {metric} over {describe_folds(about)}"
    chosen = f"chosen {parse_float(about.get('chosen')):.4g}{describe_second(about)} by the rule {about.get('rule')}"
    return f"{text}, {chosen}{_describe_status(str(about.get('status')))}"


def describe_folds(about: Mapping[str, Any]) -> str:
    """Return "5 folds of rows", or of whole groups, or of clients, given a selection.json."""
    by = str(about.get("by"))
    return f"{about.get('folds')} folds of {'whole groups' if by == 'rows' and about.get('group') else by}"


def describe_second(about: dict[str, Any]) -> str:
    """Return the second number that a selection chose, " with reg.l1_ratio=0.5", given its selection.json; or ""."""
    second = about.get("second")
    if not isinstance(second, dict):
        return ""
    return f" with {second.get('key')}={parse_float(second.get('chosen')):.4g}"


def selection_blocks(page: Page, folder: Path, labels: Mapping[str, str] | None = None) -> list[str]:
    """Return the charts of the scores and the path of a selection, its warnings, and its scores as a table.

    ``labels`` are names of features for readers.
    """
    about = read_json(folder / SELECTION_FILE)
    param_name = str(about.get("param_name"))
    curve = read_csv(folder / "curve.csv")
    paths = read_csv(folder / "path.csv", "feature")
    for row in paths:
        row["feature"] = (labels or {}).get(row["feature"], row["feature"])
    charts = []
    if curve:
        charts.append(_add_cross_validation_chart(page, about, curve))
    charts.append(
        _add_path_chart(
            page,
            paths,
            param_name,
            "coefficient, of all training rows",
            mark=parse_float(about.get("chosen")),
        )
    )
    scores = collapsible("The held-out scores as a table (curve.csv)", _csv_table(curve)) if curve else ""
    return [
        chart_grid(*filter(None, charts)),
        *_nested_blocks(about, folder),
        bullet_list([str(line) for line in about.get("warnings", ())]),
        scores,
    ]


def _nested_blocks(about: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the score of a nested cross-validation as a sentence, and its outer folds as a table."""
    nested = about.get("nested")
    if not isinstance(nested, dict):
        return []
    mean, error = parse_float(nested.get("mean")), parse_float(nested.get("standard_error"))
    sentence = (
        f"Nested cross-validation: {about.get('metric')} {mean:.4g} ± {error:.2g} over {nested.get('folds')} outer "
        "folds. Each outer fold is judged by the value that inner folds of the other rows chose, so that the score is "
        "that of the whole procedure."
    )
    rows = read_csv(folder / "nested.csv")
    caption = "Outer folds: the value chosen without each, and the scores on its rows (nested.csv)"
    return [paragraph(sentence), collapsible(caption, _csv_table(rows)) if rows else ""]


def _add_cross_validation_chart(page: Page, about: dict[str, Any], curve: Sequence[dict[str, Any]]) -> str:
    """Add a chart of the held-out scores of a selection, and return its element."""
    param_name, metric = str(about.get("param_name")), str(about.get("metric"))
    is_paired = about.get("one_standard_error_of") == "the paired differences"
    error_column = f"{metric}_difference_standard_error" if is_paired else f"{metric}_standard_error"
    x = [parse_float(row.get(param_name)) for row in curve]
    mean = [parse_float(row.get(f"{metric}_mean")) for row in curve]
    error = [parse_float(row.get(error_column)) for row in curve]
    hover = []
    for value, score, deviation in zip(x, mean, error, strict=True):
        hover.append(f"{to_text(param_name)}={value:.4g}<br>{to_text(metric)} {score:.4g} ± {deviation:.2g}")
    second = about.get("second")
    name = str(second.get("key")).rpartition(".")[2] if isinstance(second, dict) else ""
    traces = []
    for i, of_second in enumerate(dict.fromkeys(row.get(name, "") for row in curve)):
        on_line = [k for k, row in enumerate(curve) if row.get(name, "") == of_second]
        colour = COLOURS[i % len(COLOURS)]
        scores = {
            "type": "scatter",
            "mode": "lines+markers",
            "x": [x[k] for k in on_line],
            "y": [mean[k] for k in on_line],
            "text": [hover[k] for k in on_line],
            "name": f"{to_text(name)}={to_text(of_second)}",
            "showlegend": bool(name),
            "error_y": {"array": [error[k] for k in on_line], "thickness": 1, "color": colour},
            "line": {"color": colour},
            "hovertemplate": "%{text}<extra></extra>",
        }
        traces.append(scores)
    for i, row in enumerate(curve):
        if not row.get("mark"):
            continue
        is_chosen = row.get("chosen") == "True"
        symbol = "circle" if is_chosen else "circle-open"
        mark = {
            "type": "scatter",
            "mode": "markers",
            "x": [x[i]],
            "y": [mean[i]],
            "name": to_text(row["mark"]) + (" (chosen)" if is_chosen else ""),
            "marker": {"symbol": symbol, "size": 12, "color": FOREGROUND},
            "showlegend": True,
            "hoverinfo": "skip",
        }
        traces.append(mark)
    weighed = " weighed by their rows" if about.get("fold_weights") == "rows" else ""
    spread = "the standard error of the paired differences to the best" if is_paired else "its standard error"
    return page.add_chart(
        f"The mean of {metric} over {about.get('folds')} folds{weighed}, with {spread}. "
        "Folds share training rows, so the error is a rule of thumb.",
        traces,
        xaxis=_path_axis(param_name, x),
        yaxis={"title": {"text": to_text(metric)}},
    )


def _add_stability(page: Page, folder: Path, name: str) -> list[str]:
    """Add the section of a stability selection, if the folder has one, and return sentences about it."""
    about = read_json(folder / STABILITY_FILE)
    if "threshold" not in about:
        return _describe_unfinished(about)
    param_name = str(about.get("param_name"))
    features = read_csv(folder / "stability.csv", "feature")
    threshold = parse_float(about.get("threshold"))
    region = about.get("region") or [float("nan")]
    chart = _add_path_chart(
        page,
        [row | {"class": ""} for row in features],
        param_name,
        "share of the halves that choose it",
        mark=parse_float(region[-1]),
        level=threshold,
    )
    chart += embed_picture(folder / "brain.png", f"{name}: how often each voxel is chosen, and the stable voxels.")
    shown = []
    for row in features[: 5 * _MAX_LINES]:
        shown.append({key: value for key, value in row.items() if not key.startswith(f"{param_name}=")})
    caption = ""
    if len(shown) < len(features):
        caption = f"The first {len(shown)} of {len(features)} features; stability.csv has all."
    page.add_section(
        f"stability-{len(page.sections)}",
        f"Stability {name}",
        bullet_list([*map(str, about.get("bound_statement", ())), *map(str, about.get("warnings", ()))]),
        chart,
        _csv_table(shown, f"features{len(page.sections)}", caption) if shown else "",
    )
    n_stable = len(about.get("stable", ()))
    text = (
        f"{about.get('label', name)}: {n_stable} of {about.get('features')} {about.get('units', 'features')} are stable"
    )
    text += f", chosen on at least {threshold:g} of the halves{about.get('judged', '')}"
    return [text + _describe_status(str(about.get("status")))]


def _describe_unfinished(about: dict[str, Any]) -> list[str]:
    """Return the sentence about a study whose runs have not ended: other files in its folder are of an earlier one."""
    return [f"{about.get('label')}: {about.get('status')}, and has no results yet."] if about else []


def _describe_status(status: str) -> str:
    return "." if status == "done" else f"; it has not ended ({status}), and this page shows its results so far."


def _add_path_chart(
    page: Page, rows: Sequence[dict[str, str]], param_name: str, label: str, *, mark: float, level: float | None = None
) -> str:
    """Add a chart of the largest rows over the columns NAME=VALUE, a line each, and return its element; "" without.

    NAME is ``param_name``, "strength" or "radius". Dashed lines are at its value ``mark``, and across at ``level``, the
    threshold of a stability selection.
    """
    columns = [key for key in (rows[0] if rows else ()) if key.startswith(f"{param_name}=")]
    rows = [row for row in rows if row.get("parameter") != "bias"]
    if not columns or not rows:
        return ""
    x = [parse_float(key.partition("=")[2]) for key in columns]
    has_classes = len({row.get("class") for row in rows}) > 1
    lines = []
    for row in rows:
        name = " ".join(filter(None, (row["feature"], row.get("class") if has_classes else "")))
        lines.append(([parse_float(row[key]) for key in columns], name))
    lines.sort(key=lambda line: -max(map(abs, line[0])))
    traces: list[dict[str, Any]] = []
    for i, (y, name) in enumerate(lines[:_MAX_LINES]):
        trace = {
            "type": "scatter",
            "mode": "lines",
            "x": x,
            "y": y,
            "line": {"width": 1.3, "color": COLOURS[i % 6]},
            "showlegend": False,
            "text": to_text(name),
            "hovertemplate": "%{text}<br>%{x:.4g}: %{y:.4g}<extra></extra>",
        }
        traces.append(trace)
    dashed = {"type": "line", "line": {"color": FOREGROUND, "width": 1, "dash": "dash"}}
    shapes = []
    if mark == mark:  # not nan
        shapes.append(dashed | {"x0": mark, "x1": mark, "yref": "paper", "y0": 0, "y1": 1})
    if level is not None:
        shapes.append(dashed | {"y0": level, "y1": level, "xref": "paper", "x0": 0, "x1": 1})
    caption = f"{label[0].upper()}{label[1:]} against {param_name}, a line for each feature."
    if len(lines) > _MAX_LINES:
        caption += f" The {_MAX_LINES} largest of {len(lines)} are drawn."
    lines_drawn = [] if level is None else ["the threshold"]
    if mark == mark:
        lines_drawn.append(
            f"the chosen {param_name}" if level is None else "the end of the region in which the bound holds"
        )
    if lines_drawn:
        caption += f" Dashed: {', and '.join(lines_drawn)}."
    return page.add_chart(
        caption,
        traces,
        shapes=shapes,
        xaxis=_path_axis(param_name, x),
        yaxis={"title": {"text": to_text(label)}},
        hovermode="closest",
    )


def _path_axis(param_name: str, x: Sequence[float]) -> dict[str, Any]:
    """Return the axis of a path, which starts at the simplest solution, as in the pictures."""
    direction = "reversed" if param_name == "strength" else True
    return {"title": {"text": to_text(param_name)}, "type": axis_type(x), "autorange": direction}
