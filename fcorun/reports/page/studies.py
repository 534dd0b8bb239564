"""Figures with their claims, choices of a strength, and stability selections, read from their folders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fcorun.records.formats import read_json
from fcorun.records.record import SELECTION_FILE, STABILITY_FILE
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
from fcorun.reports.page.models import parse_cell, parse_float, read_csv
from fcorun.reports.pictures.layout import COLOURS

CLAIMS_CSV = "claims.csv"  # marks the folder of a figure, as the other two those of theirs
STUDY_FILES = (CLAIMS_CSV, SELECTION_FILE, STABILITY_FILE)
_LINES = 40  # coefficients, or features, of which a chart has a line
FIGURE_JSON = "figure.json"
_TESTS = ("holds", "algo", "says", "measured", "wanted", "test", "note")
_THRESHOLDS = "The thresholds of claims are fcorun's own choice, unless the text above says that the paper prints them."


def find_studies(folders: Sequence[Path]) -> list[Path]:
    """The folders in and under these that hold one of them; not that in which figures lie side by side."""
    found = {path.parent for folder in folders for mark in STUDY_FILES for path in folder.rglob(mark)}
    return sorted(folder for folder in found if not (folder / CLAIMS_CSV).exists() or (folder / "figure.png").exists())


def is_figure(folder: Path) -> bool:
    """Whether a folder holds a figure."""
    return (folder / CLAIMS_CSV).exists() and (folder / "figure.png").exists()


def page_heading(folders: Sequence[Path]) -> tuple[str, str]:
    """Return what stands above the title of a page of these folders, and the title of a single figure, else nothing."""
    name = ", ".join(folder.resolve().name for folder in folders)
    told = (
        str(read_json(folders[0] / FIGURE_JSON).get("title") or "")
        if len(folders) == 1 and is_figure(folders[0])
        else ""
    )
    return (f"Figure {name}" if told else name), told


def add_study_sections(page: Page, folder: Path, *, single_figure: bool) -> list[str]:
    """Add the sections of what one of these folders holds; return the sentences about it. With ``alone`` the page is of
    one figure, whose title stands above everything."""
    name = folder.resolve().name
    return [
        *_figure(page, folder, name, single_figure),
        *_selection(page, folder, name),
        *_stability(page, folder, name),
    ]


def _figure(page: Page, folder: Path, name: str, alone: bool) -> list[str]:
    if not (folder / CLAIMS_CSV).exists():
        return []
    claims = read_csv(folder / CLAIMS_CSV)
    holds = [row.get("holds", "") for row in claims]
    count = f"{holds.count('yes')} of {len(claims)} claims hold" if claims else "Nothing is claimed"
    told = [key for key in _TESTS if any(row.get(key) for row in claims)]
    tests = [[row.get(key, "") for key in told] for row in claims]
    best = read_csv(folder / "table.csv")
    about = read_json(folder / FIGURE_JSON)
    titled = f"{name}: {about['title']}" if about.get("title") else name
    caption = str(about.get("caption") or f"The figure {titled}.")
    blocks = ["" if alone else paragraph(f"{count}."), claims_list(claims)]
    blocks.append(embed_picture(folder / "figure.png", caption))
    if claims:
        how = "How each claim was measured. " + _THRESHOLDS * bool(about.get("ours"))
        blocks.append(html_table(told, tests, caption=how))
    if best:
        rows = [[*map(parse_cell, row.values())] for row in best]
        blocks.append(
            collapsible("All averages of the best points, with their bands (table.csv)", html_table([*best[0]], rows))
        )
    page.add_section(f"figure-{len(page.sections)}", count if alone else f"Figure {titled}", *blocks)
    changed = f"This is not the figure as its file has it, but: {mark}." if (mark := about.get("changed")) else ""
    return [str(about.get("about") or ""), changed]


def _selection(page: Page, folder: Path, name: str) -> list[str]:
    about = read_json(folder / SELECTION_FILE)
    if "metric" not in about:
        return _begun(about)
    number, metric, curve = str(about.get("number")), str(about.get("metric")), read_csv(folder / "curve.csv")
    x, mean = ([parse_float(row.get(key)) for row in curve] for key in (number, f"{metric}_mean"))
    paired = about.get("one_standard_error_of") == "the paired differences"
    column = f"{metric}_difference_standard_error" if paired else f"{metric}_standard_error"
    error = [parse_float(row.get(column)) for row in curve]
    axis = _along(number, x)
    hover = [f"{to_text(number)}={at:.4g}<br>{to_text(metric)} {middle:.4g} ± {spread:.2g}"
             for at, middle, spread in zip(x, mean, error, strict=True)]  # fmt: skip
    traces = [{"type": "scatter", "mode": "lines+markers", "x": x, "y": mean, "text": hover, "showlegend": False,
               "error_y": {"array": error, "thickness": 1, "color": COLOURS[0]}, "line": {"color": COLOURS[0]},
               "hovertemplate": "%{text}<extra></extra>"}]  # fmt: skip
    for i, row in enumerate(curve):
        if row.get("mark"):
            chosen = row.get("chosen") == "True"
            mark = {"symbol": "circle" if chosen else "circle-open", "size": 12, "color": FOREGROUND}
            text = to_text(row["mark"]) + (" (chosen)" if chosen else "")
            traces.append({"type": "scatter", "mode": "markers", "x": [x[i]], "y": [mean[i]], "name": text,
                           "marker": mark, "showlegend": True, "hoverinfo": "skip"})  # fmt: skip
    weighed = " weighed by their rows" if about.get("fold_weights") == "rows" else ""
    spread_of = "the standard error of the paired differences to the best" if paired else "its standard error"
    told = f"The mean of {metric} over {about.get('folds')} folds{weighed}, with {spread_of}."
    charts = [page.add_chart(f"{told} Folds share training rows, so the error is a rule of thumb.", traces, xaxis=axis,
                         yaxis={"title": {"text": to_text(metric)}})] if curve else []  # fmt: skip
    charts.append(_paths(page, read_csv(folder / "path.csv"), number, "coefficient, of all training rows",
                         mark=parse_float(about.get("chosen"))))  # fmt: skip
    rows = [[*map(parse_cell, row.values())] for row in curve]
    status = str(about.get("status"))
    page.add_section(
        f"selection-{len(page.sections)}", f"Selection {name}", chart_grid(*filter(None, charts)),
        bullet_list([str(line) for line in about.get("remarks", ())]),
        collapsible("The held-out scores as a table (curve.csv)", html_table([*curve[0]], rows)) if curve else "",
    )  # fmt: skip
    text = f"{about.get('label', name)}: {number} by {metric} over {about.get('folds')} folds of {about.get('by')}"
    return [f"{text}, chosen {parse_float(about.get('chosen')):.4g} by the rule {about.get('rule')}{_ended(status)}"]


def _stability(page: Page, folder: Path, name: str) -> list[str]:
    about = read_json(folder / STABILITY_FILE)
    if "threshold" not in about:
        return _begun(about)
    number, rows = str(about.get("number")), read_csv(folder / "stability.csv")
    threshold, stable = parse_float(about.get("threshold")), [str(each) for each in about.get("stable", ())]
    kept = [{key: row[key] for key in row if not key.startswith(f"{number}=")} for row in rows[: 5 * _LINES]]
    told = f"The first {len(kept)} of {len(rows)} features; stability.csv has all." if len(kept) < len(rows) else ""
    paths = [row | {"class": ""} for row in rows]
    region = about.get("region") or [float("nan")]
    page.add_section(
        f"stability-{len(page.sections)}",
        f"Stability {name}",
        bullet_list([str(line) for line in about.get("remarks", ())]),
        _paths(
            page, paths, number, "share of the halves that choose it", mark=parse_float(region[-1]), level=threshold
        ),
        html_table(
            [*kept[0]], [[*map(parse_cell, row.values())] for row in kept], f"features{len(page.sections)}", told
        )
        if kept
        else "",
    )
    text = f"{about.get('label', name)}: {len(stable)} of {about.get('features')} features are stable"
    return [f"{text}, chosen on at least {threshold:g} of the halves{_ended(str(about.get('status')))}"]


def _begun(about: dict[str, Any]) -> list[str]:
    """Return the sentence about a study whose runs have not ended; files beside it are of one before it."""
    return [f"{about.get('label')}: {about.get('status')}, and nothing has come of it yet."] if about else []


def _ended(status: str) -> str:
    return "." if status == "done" else f"; it has not come to its end ({status}), and this shows what there was."


def _paths(
    page: Page, rows: Sequence[dict[str, str]], number: str, label: str, *, mark: float, level: float | None = None
) -> str:
    """A line for each row over the columns NUMBER=VALUE, those that grow largest; a mark at a value."""
    columns = [key for key in (rows[0] if rows else ()) if key.startswith(f"{number}=")]
    rows = [row for row in rows if row.get("parameter") != "bias"]
    if not columns or not rows:
        return ""
    x = [parse_float(key.partition("=")[2]) for key in columns]
    classes = len({row.get("class") for row in rows}) > 1
    names = [" ".join(filter(None, (row["feature"], row.get("class") if classes else ""))) for row in rows]
    every = [([parse_float(row[key]) for key in columns], name) for row, name in zip(rows, names, strict=True)]
    every.sort(key=lambda each: -max(map(abs, each[0])))
    traces: list[dict[str, Any]] = [
        {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": {"width": 1.3, "color": COLOURS[i % 6]},
         "showlegend": False, "text": to_text(name), "hovertemplate": "%{text}<br>%{x:.4g}: %{y:.4g}<extra></extra>"}
        for i, (y, name) in enumerate(every[:_LINES])
    ]  # fmt: skip
    dashed = {"type": "line", "line": {"color": FOREGROUND, "width": 1, "dash": "dash"}}
    shapes = [dashed | {"x0": mark, "x1": mark, "yref": "paper", "y0": 0, "y1": 1}] if mark == mark else []
    shapes += [] if level is None else [dashed | {"y0": level, "y1": level, "xref": "paper", "x0": 0, "x1": 1}]
    told = f" The {_LINES} largest of {len(every)} are drawn." if len(every) > _LINES else ""
    lines = "the threshold, and the end of the path" if level is not None else f"the chosen {number}"
    caption = f"{label[0].upper()}{label[1:]} against {number}, a line for each feature.{told} Dashed: {lines}."
    return page.add_chart(
        caption,
        traces,
        shapes=shapes,
        xaxis=_along(number, x),
        yaxis={"title": {"text": to_text(label)}},
        hovermode="closest",
    )


def _along(number: str, x: Sequence[float]) -> dict[str, Any]:
    """The axis of a path, from the simplest solution on as the pictures have it."""
    return {"title": {"text": to_text(number)}, "type": axis_type(x),
            "autorange": "reversed" if number == "strength" else True}  # fmt: skip
