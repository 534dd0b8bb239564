"""The runs on one problem, which pictures are of: how they are shown, and the files of the pictures of a sweep."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.config import IDENTITY_SECTIONS
from fcorun.base.records.record import FINISHED_STATUSES, Record
from fcorun.base.records.sweep_settings import SETTINGS_FILE, read_own_settings, save_settings
from fcorun.base.system.files import write_atomically
from fcorun.reports.pictures.drawing_processes import draw_later
from fcorun.reports.pictures.layout import CurveStyle, curve_style, escape_dollars
from fcorun.reports.pictures.picture import find_pictures
from fcorun.reports.problem_values import format_problems, group_problems
from fcorun.reports.run_table import GridEdge, RunTable, find_grid_edges

_MAX_STEM = 100  # bytes of the name of a file without its ending
_FILE_NAME_PARTS = r"[\w.=+-]+"  # the parts of a problem's name that go into the name of a file


@dataclass(frozen=True)
class ProblemView:
    """A table of runs on one problem, and how they are shown.

    Attributes:
        table: the runs, a row each.
        records: the records of the runs, in the order of the table.
        metric: the metric that runs are judged by.
        curve_styles: the style of each algorithm, the same in all pictures.
        x_axes: the axes that curves are drawn against, a column of panels for each of several.
        panels: the metrics of the panels; empty: the picture chooses.
        problem: the name of the problem among several, or "".
        edges: the edges of a grid at which the points lie, for a table of best points alone.
        tuned_keys: the keys of each algorithm that such a grid varies, which do not vary among the best points.
    """

    table: RunTable
    records: Sequence[Record]
    metric: str
    curve_styles: dict[str, CurveStyle]
    x_axes: Sequence[str] = ("rounds",)
    panels: Sequence[str] = ()
    problem: str = ""
    edges: Sequence[GridEdge] = ()
    tuned_keys: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def higher_is_better(self) -> bool:
        """True if larger values of the metric are better."""
        return bool(self.table.metrics[self.metric].higher)

    def list_settings(self, algo: str) -> list[str]:
        """Return the keys that vary among the runs of an algorithm, or were tuned on the grid of the best points."""
        return [*self.table.varied_by_algo.get(algo, []), *self.tuned_keys.get(algo, [])]

    def algo_title(self, algo: str) -> str:
        """Return the title of an algorithm as a text of matplotlib."""
        return escape_dollars(self.table.algo_title(algo))

    def best_rows(self) -> list[dict[str, Any]]:
        """Return the best points with a run that is done. Raises UserError as ``RunTable.resolve_metric``."""
        return [row for row in self.table.best_points(self.metric).to_dict("records") if row["seeds"]]

    def grid_edges(self) -> list[GridEdge]:
        """Return the edges of the grid at which best points lie."""
        return [*self.edges, *find_grid_edges(self.table, self.metric)]


def curve_styles_of(table: RunTable, first: Iterable[str] = ()) -> dict[str, CurveStyle]:
    """Return the style of each algorithm of a table: by its position in ``first``, then by that in the table.

    If ``first`` has the algorithms of an earlier table, algorithms that join later change no style.
    """
    algos = dict.fromkeys(name for name in table.frame["algo"] if isinstance(name, str))
    return {name: curve_style(i) for i, name in enumerate(dict.fromkeys([*first, *algos])) if name in algos}


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
    """Draw the pictures of a sweep into ``folder``, and return the files.

    Deletes earlier pictures of the same format first, those that the settings of the sweep name: none stays of a
    problem that is gone, where there is nothing to draw, or where drawing fails.

    rates.png: the metric over client and server learning rate, if at least one varies. best.png: the best point of
    each algorithm against ``x``. structure.png: density or rank against quality. Of several problems
    (``RunTable.problem_keys``), each has its own pictures, rates-DATA.png, by a metric that it has
    (``RunTable.fallback_metric``). Raises UserError as ``RunTable.resolve_metric``, and for a run that did not count
    ``x``.

    Args:
        records: the records of ``table``, in its order.
        format: one of FORMATS.
        style: one of STYLES.
        algos: the algorithms that have the first styles, see ``curve_styles_of``.
    """
    metric = table.resolve_metric(metric)
    curve_styles = curve_styles_of(table, algos)
    problems = group_by_problem(table, metric)
    drawings: dict[Path, Callable[[], dict[str, bytes]]] = {}
    for problem, positions in problems.items():
        part = table.take(positions)
        view = ProblemView(
            part,
            [records[i] for i in positions],
            part.fallback_metric(metric),
            curve_styles,
            x_axes=[x],
            problem=problem,
        )
        for picture in find_pictures(ProblemView):
            stem = "-".join([picture.name, *re.findall(_FILE_NAME_PARTS, problem)])
            path = folder / f"{stem.encode()[:_MAX_STEM].decode(errors='ignore')}.{format}"
            if path in drawings:  # names that differ in other characters alone, or further on
                path = path.with_stem(f"{path.stem}-{len(drawings)}")
            drawings[path] = draw_later(picture.render, view, [format], style)
    settings = read_own_settings(folder)
    earlier = [name for name in settings.pictures if Path(name).name == name and name.endswith(f".{format}")]
    earlier += [f"{picture.name}.{format}" for picture in find_pictures(ProblemView)]
    for path in (*drawings, *(folder / name for name in earlier)):  # before any drawing can fail
        path.unlink(missing_ok=True)
    written = []
    for path, wait in drawings.items():
        for content in wait().values():
            write_atomically(path, content)
            written.append(path)
    if (folder / SETTINGS_FILE).exists():
        others = [name for name in settings.pictures if name not in earlier]
        save_settings(folder, replace(settings, pictures=(*others, *(path.name for path in written))))
    return written


def group_by_problem(
    table: RunTable, metric: str, statuses: Collection[str] = FINISHED_STATUSES
) -> dict[str, list[int]]:
    """Return the positions of the runs of some statuses on each problem, by a name that tells the problems apart.

    The name is "" if there is only one problem. A run that does not depend on a condition belongs to each of the
    condition's values.
    """
    is_shown = table.frame["status"].isin(list(statuses))
    shown = table.frame[is_shown]
    varied = [key for key in table.problem_keys(metric) if shown[key].nunique(dropna=False) > 1]
    runs = np.flatnonzero(is_shown).tolist()
    groups = group_problems(table.read_problems(varied, [[run] for run in runs]))
    last_parts = Counter(key.rpartition(".")[2] for key in varied)
    short_names = {}
    for key in varied:
        last = key.rpartition(".")[2]
        short_names[key] = last if last_parts[last] == 1 else key
    problems = {}
    for texts, positions in zip(format_problems([*groups], digits=15), groups.values(), strict=True):
        named = [(key, text) for key, text in zip(varied, texts, strict=True) if text]
        parts = [text if key in IDENTITY_SECTIONS else f"{short_names[key]}={text}" for key, text in named]
        problems[" ".join(parts)] = [runs[position] for position in positions]
    return problems
