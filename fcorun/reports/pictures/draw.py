"""The pictures of a sweep, to be printed one or two columns wide, as files."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fcorun.records.record import Record
from fcorun.reports.pictures import best, rates, structure
from fcorun.reports.pictures.page import STYLE, content
from fcorun.reports.pictures.view import View, looks_of
from fcorun.reports.table import Table
from fcorun.system.files import write_whole

PICTURES: dict[str, Callable[[View], Any | None]] = {
    "rates": rates.draw,
    "best": best.draw,
    "structure": structure.draw,
}


def draw_sweep(
    folder: Path,
    records: Sequence[Record],
    table: Table,
    metric: str | None = None,
    *,
    format: str = "png",
    x: str = "rounds",
) -> list[Path]:
    """Draw what a sweep shows into ``folder``, and take away its pictures that no longer hold; the files written.

    rates.png: the metric over client and server learning rate, where at least one varies. best.png: the best point of
    each algorithm against ``x``. structure.png: density or rank against quality. With several data sets, each has
    its own, rates-DATA.png. ``table`` is that of ``records``; ``format`` is png, pdf or svg. Raises UserError as
    ``Table.best``, and for a run that did not count ``x``.
    """
    metric, looks = table.chosen(metric), looks_of(table)
    sets = [name for name in table.frame["data"].unique() if isinstance(name, str)]
    written = []
    for name in sets:
        places = [i for i, data in enumerate(table.frame["data"]) if data == name]
        view = View(table.take(places), [records[i] for i in places], metric, looks, xs=[x])
        for kind, draw in PICTURES.items():
            path = folder / (f"{kind}-{name}.{format}" if len(sets) > 1 else f"{kind}.{format}")
            if _written(path, draw, view, format):
                written.append(path)
    return written


def _written(path: Path, draw: Callable[[View], Any | None], view: View, format: str) -> bool:
    """Draw one picture; whether there is one."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        figure = draw(view)
        if figure is None:
            path.unlink(missing_ok=True)
        else:
            write_whole(path, content(figure, format))
    return figure is not None
