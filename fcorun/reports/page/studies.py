"""Figures with their claims, choices of a strength, and stability selections, read from their folders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fcorun.records.formats import read_json
from fcorun.records.record import SELECTION, STABILITY
from fcorun.reports.page.models import csv_rows, number_of, value_of
from fcorun.reports.page.parts import FOREGROUND, Page, axis_type, embedded_picture, folded, notes, said, table
from fcorun.reports.pictures.page import COLOURS

FIGURE = "claims.csv"  # marks the folder of a figure, as the other two those of theirs
MARKS = (FIGURE, SELECTION, STABILITY)
_LINES = 40  # coefficients, or features, of which a chart has a line
ABOUT = "figure.json"
_TESTS = ("algo", "holds", "says", "measured", "wanted", "test", "note")  # holds is seen on a phone, too
_THRESHOLDS = ("Thresholds of claims, numbers and factors, are fcorun's own choice where what is said of the figure "
               "above does not say that they are printed.")  # fmt: skip


def studies(folders: Sequence[Path]) -> list[Path]:
    """The folders in and under these that hold one of them; not that in which figures lie side by side."""
    found = {path.parent for folder in folders for mark in MARKS for path in folder.rglob(mark)}
    return sorted(folder for folder in found if not (folder / FIGURE).exists() or (folder / "figure.png").exists())


def title(folder: Path) -> str:
    """What a page of this folder alone is called: of a figure its title, else its name."""
    told = read_json(folder / ABOUT).get("title")
    return f"{folder.resolve().name}: {told}" if told else folder.resolve().name


def show(page: Page, folder: Path) -> str:
    """What is in one of these folders, in a sentence; its sections go to the page."""
    name = folder.resolve().name
    told = [_figure(page, folder, name), _selection(page, folder, name), _stability(page, folder, name)]
    return " ".join(filter(None, told))


def _figure(page: Page, folder: Path, name: str) -> str:
    if not (folder / FIGURE).exists():
        return ""
    claims = csv_rows(folder / FIGURE)
    holds = [row.get("holds", "") for row in claims]
    counts = ", ".join(f"{holds.count(word)} {word}" for word in dict.fromkeys(holds))
    rows = [[row.get(key, "") for key in _TESTS] for row in claims]
    best = csv_rows(folder / "table.csv")
    about = read_json(folder / ABOUT)
    page.add(
        f"figure-{len(page.sections)}", f"Figure {title(folder)}",
        embedded_picture(folder / "figure.png", f"figure.png of {name}"),
        notes([_THRESHOLDS] if about.get("ours") and claims else []) +
        table(_TESTS, rows, caption=f"What is claimed of it, and whether it holds: {counts or 'nothing'}"),
        folded("table.csv: its best points", table([*best[0]], [[*map(value_of, row.values())] for row in best]))
        if best else "",
    )  # fmt: skip
    many = f"{len(claims)} claim{'s' * (len(claims) != 1)} ({counts})."
    told = f"Figure {name}: {many}" if claims else f"Figure {name}, of which nothing is claimed."
    changed = f"This is not the figure as its file has it, but: {mark}." if (mark := about.get("changed")) else ""
    return " ".join(str(text) for text in (about.get("about"), changed, told) if text)


def _selection(page: Page, folder: Path, name: str) -> str:
    about = read_json(folder / SELECTION)
    if "metric" not in about:
        return _begun(about)
    number, metric, curve = str(about.get("number")), str(about.get("metric")), csv_rows(folder / "curve.csv")
    x, mean = ([number_of(row.get(key)) for row in curve] for key in (number, f"{metric}_mean"))
    paired = about.get("one_standard_error_of") == "the paired differences"
    column = f"{metric}_difference_standard_error" if paired else f"{metric}_standard_error"
    error = [number_of(row.get(column)) for row in curve]
    axis = _along(number, x)
    hover = [f"{said(number)}={at:.4g}<br>{said(metric)} {middle:.4g} ± {spread:.2g}"
             for at, middle, spread in zip(x, mean, error, strict=True)]  # fmt: skip
    traces = [{"type": "scatter", "mode": "lines+markers", "x": x, "y": mean, "text": hover, "showlegend": False,
               "error_y": {"array": error, "thickness": 1, "color": COLOURS[0]}, "line": {"color": COLOURS[0]},
               "hovertemplate": "%{text}<extra></extra>"}]  # fmt: skip
    for i, row in enumerate(curve):
        if row.get("mark"):
            chosen = row.get("chosen") == "True"
            mark = {"symbol": "circle" if chosen else "circle-open", "size": 12, "color": FOREGROUND}
            text = said(row["mark"]) + (" (chosen)" if chosen else "")
            traces.append({"type": "scatter", "mode": "markers", "x": [x[i]], "y": [mean[i]], "name": text,
                           "marker": mark, "showlegend": True, "hoverinfo": "skip"})  # fmt: skip
    weighed = " weighed by their rows" if about.get("fold_weights") == "rows" else ""
    spread_of = "the standard error of the paired differences to the best" if paired else "its standard error"
    told = f"mean of {metric} over {about.get('folds')} folds{weighed} ± {spread_of}"
    charts = [page.chart(f"{told}, which share training rows: a rule of thumb", traces, xaxis=axis,
                         yaxis={"title": {"text": said(metric)}})] if curve else []  # fmt: skip
    charts.append(_paths(page, csv_rows(folder / "path.csv"), number, "coefficient, of all training rows",
                         mark=number_of(about.get("chosen"))))  # fmt: skip
    rows = [[*map(value_of, row.values())] for row in curve]
    status = str(about.get("status"))
    page.add(
        f"selection-{len(page.sections)}", f"Selection {name}", notes([str(line) for line in about.get("remarks", ())]),
        *charts, folded("curve.csv: the same as a table", table([*curve[0]], rows)) if curve else "",
    )  # fmt: skip
    text = f"{about.get('label', name)}: {number} by {metric} over {about.get('folds')} folds of {about.get('by')}"
    return f"{text}, chosen {number_of(about.get('chosen')):.4g} by the rule {about.get('rule')}{_ended(status)}"


def _stability(page: Page, folder: Path, name: str) -> str:
    about = read_json(folder / STABILITY)
    if "threshold" not in about:
        return _begun(about)
    number, rows = str(about.get("number")), csv_rows(folder / "stability.csv")
    threshold, stable = number_of(about.get("threshold")), [str(each) for each in about.get("stable", ())]
    kept = [{key: row[key] for key in row if not key.startswith(f"{number}=")} for row in rows[: 5 * _LINES]]
    told = f"the first {len(kept)} of {len(rows)}; stability.csv has all" if len(kept) < len(rows) else ""
    paths = [row | {"class": ""} for row in rows]
    region = about.get("region") or [float("nan")]
    page.add(
        f"stability-{len(page.sections)}", f"Stability {name}", notes([str(line) for line in about.get("remarks", ())]),
        _paths(page, paths, number, "share of the halves that choose it",
               mark=number_of(region[-1]), level=threshold),
        table([*kept[0]], [[*map(value_of, row.values())] for row in kept], f"features{len(page.sections)}", told)
        if kept else "",
    )  # fmt: skip
    text = f"{about.get('label', name)}: {len(stable)} of {about.get('features')} features are stable"
    return f"{text}, chosen on at least {threshold:g} of the halves{_ended(str(about.get('status')))}"


def _begun(about: dict[str, Any]) -> str:
    """What is said of one whose runs have not ended; files beside it are of one before it. Nothing where none is."""
    return f"{about.get('label')}: {about.get('status')}, and nothing has come of it yet." if about else ""


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
    x = [number_of(key.partition("=")[2]) for key in columns]
    classes = len({row.get("class") for row in rows}) > 1
    names = [" ".join(filter(None, (row["feature"], row.get("class") if classes else ""))) for row in rows]
    every = [([number_of(row[key]) for key in columns], name) for row, name in zip(rows, names, strict=True)]
    every.sort(key=lambda each: -max(map(abs, each[0])))
    traces: list[dict[str, Any]] = [
        {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": {"width": 1.3, "color": COLOURS[i % 6]},
         "showlegend": False, "text": said(name), "hovertemplate": "%{text}<br>%{x:.4g}: %{y:.4g}<extra></extra>"}
        for i, (y, name) in enumerate(every[:_LINES])
    ]  # fmt: skip
    dashed = {"type": "line", "line": {"color": FOREGROUND, "width": 1, "dash": "dash"}}
    shapes = [dashed | {"x0": mark, "x1": mark, "yref": "paper", "y0": 0, "y1": 1}] if mark == mark else []
    shapes += [] if level is None else [dashed | {"y0": level, "y1": level, "xref": "paper", "x0": 0, "x1": 1}]
    told = f", the {_LINES} largest of {len(every)}" if len(every) > _LINES else ""
    lines = "dashed: the threshold, and the end of the path" if level is not None else f"dashed: the chosen {number}"
    return page.chart(f"{label} against {number}, a line a feature{told}; {lines}", traces, shapes=shapes,
                      xaxis=_along(number, x), yaxis={"title": {"text": said(label)}}, hovermode="closest")  # fmt: skip


def _along(number: str, x: Sequence[float]) -> dict[str, Any]:
    """The axis of a path, from the simplest solution on as the pictures have it."""
    return {"title": {"text": said(number)}, "type": axis_type(x),
            "autorange": "reversed" if number == "strength" else True}  # fmt: skip
