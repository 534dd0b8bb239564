"""The pictures of a sweep, to be printed one or two columns wide, as files."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fcorun.records.record import FINISHED_STATUSES, Record
from fcorun.reports.pictures import best_curves, rates, structure
from fcorun.reports.pictures.layout import render_figure
from fcorun.reports.pictures.problem_view import ProblemView, curve_styles_of
from fcorun.reports.pictures.style import style_context
from fcorun.reports.run_table import RunTable, column_values
from fcorun.system.files import write_atomically

PICTURES: dict[str, Callable[[ProblemView], Any | None]] = {
    "rates": rates.draw,
    "best": best_curves.draw,
    "structure": structure.draw,
}

_PLAIN = r"[\w.=+-]+"  # what the name of a file may hold of that of a problem


def draw_sweep(
    folder: Path,
    records: Sequence[Record],
    table: RunTable,
    metric: str | None = None,
    *,
    format: str = "png",
    style: str = "paper",
    x: str = "rounds",
    algos: Sequence[str] = (),
) -> list[Path]:
    """Draw what a sweep shows into ``folder``, and take away its pictures that no longer hold; the files written.

    rates.png: the metric over client and server learning rate, where at least one varies. best.png: the best point of
    each algorithm against ``x``. structure.png: density or rank against quality. With several problems
    (``Table.apart``), each has its own, rates-DATA.png, judged by what it has (``Table.had``). ``table`` is that of
    ``records``; ``format`` is one of FORMATS, ``style`` one of STYLES; ``algos`` as of ``looks_of``. Raises
    UserError as ``Table.best``, and for a run that did not count ``x``.
    """
    metric, looks = table.resolve_metric(metric), curve_styles_of(table, algos)
    sets = group_by_problem(table, metric)
    written = []
    for name, places in sets.items():
        part = table.take(places)
        view = ProblemView(
            part, [records[i] for i in places], part.fallback_metric(metric), looks, x_axes=[x], problem=name
        )
        for kind, draw in PICTURES.items():
            path = folder / f"{'-'.join([kind, *re.findall(_PLAIN, name)])}.{format}"
            with style_context(style):
                if _written(path, draw, view, format):
                    written.append(path)
    if len(sets) > 1:
        for kind in PICTURES:
            (folder / f"{kind}.{format}").unlink(missing_ok=True)
    return written


def group_by_problem(table: RunTable, metric: str) -> dict[str, list[int]]:
    """The places of the runs on each problem, by a name that says in what it differs from the others: nothing, if there
    is only one."""
    columns = [column_values(table.frame[key]) for key in table.problem_keys(metric)]
    ended = [status in FINISHED_STATUSES for status in table.frame["status"]]
    vary = [len({v for v, there in zip(column, ended, strict=True) if there}) > 1 for column in columns]
    found: dict[str, list[int]] = {}
    for place, (there, *values) in enumerate(zip(ended, *columns, strict=True)):
        if there:
            told = zip(table.problem_keys(metric), values, vary, strict=True)
            name = " ".join(_told(key, value) for key, value, differs in told if differs)
            found.setdefault(name, []).append(place)
    return found


def _told(key: str, value: Any) -> str:
    """A value of a key that problems differ in; of a name of a section only that."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if "." not in key else f"{key.rpartition('.')[2]}={text}"


def _written(path: Path, draw: Callable[[ProblemView], Any | None], view: ProblemView, format: str) -> bool:
    """Draw one picture; whether there is one."""
    figure = draw(view)
    if figure is None:
        path.unlink(missing_ok=True)
    else:
        write_atomically(path, render_figure(figure, format))
    return figure is not None
