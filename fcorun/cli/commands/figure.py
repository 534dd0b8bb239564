"""fcorun figure: figures of papers, and of one's own."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fcorun.cli import html_report
from fcorun.cli.commands.common import CommandParser, make_console
from fcorun.cli.hydra_app import run_sweep_command
from fcorun.configuration.compose import compose
from fcorun.configuration.search_path import use_config_dir, user_config_dir, warn_overridden
from fcorun.errors import UserError
from fcorun.figures.comparison import UNCLEAR
from fcorun.figures.reproduce import reproduce
from fcorun.figures.spec import find_figure, list_figures, load_figure
from fcorun.records.formats import frame_csv
from fcorun.system.cluster import require_single_host
from fcorun.system.files import write_atomically
from fcorun.system.machine import set_up_jax


def run(argv: Sequence[str]) -> int:
    """Run what a figure lacks, draw it, and check what is claimed of it; without NAME, list the figures. Each is a file
    of the folder experiment, and goes to DIR/NAME: figure.png, figure.pdf, table.csv, claims.csv, figure.json,
    report.html."""
    parser = CommandParser("figure", run.__doc__, folders=False)
    parser.add_argument("figures", nargs="*", metavar="NAME", help="figures, or all; KEY=VALUE goes to every run")
    parser.add_argument("--fast", action="store_true", help="smaller versions, marked so")
    parser.add_argument("--out", type=Path, default=Path("outputs/figures"), metavar="DIR", help="default: %(default)s")
    parser.add_config_dir_option()
    asked = parser.parse_intermixed_args(argv)
    wanted = [name for name in asked.figures if "=" not in name]
    if not wanted and asked.figures:
        parser.error("which figure? without arguments they are listed")
    with use_config_dir(asked.config_dir):
        if not wanted:
            _list(make_console())
            return 0
        wanted = list(list_figures()) if wanted == ["all"] else wanted
        for name in wanted:
            find_figure(name)
        overrides = [text for text in asked.figures if "=" in text]
        of_hosts = [text for text in overrides if text.startswith("hosts.")]
        require_single_host("fcorun figure", compose(of_hosts)["hosts"] if of_hosts else None)
        warn_overridden()
        set_up_jax()
        return _make(wanted, asked.out, asked.fast, overrides)


def _list(out: Console) -> None:
    for name, path in list_figures().items():
        mine = f" ({path.parent})" if user_config_dir() in path.parents else ""
        try:
            out.print(escape(f"{name}: {load_figure(name)[0].title}{mine}"))
        except UserError as error:
            out.print(escape(f"{name}: {error}"))


def _make(wanted: Sequence[str], folder: Path, fast: bool, overrides: Sequence[str]) -> int:
    """The exit code: 0, or 1 if a figure could not be made or lacks runs that failed; a claim that does not hold is a
    result."""
    code, made, out = 0, [], make_console()
    for name in wanted:
        begun = time.perf_counter()
        try:
            done = reproduce(name, folder, run_sweep_command, fast, overrides)
        except UserError as error:
            out.print(escape(f"{name}: not made: {error}"))
            code = 1
            continue
        made += done.rows
        code = code if done.complete else 1
        _show(done.rows, out)
        for remark in done.warnings:
            out.print(escape(remark))
        if done.wants_page:
            for line in html_report.write_report(done.folder, [record.folder for record in done.records]):
                out.print(escape(line))
        out.print(escape(f"{done.folder}/figure.png in {time.perf_counter() - begun:.0f} s\n"))
    if made:
        _merge(folder / "claims.csv", made)
    return code


def _show(rows: list[dict], console: Console) -> None:
    out = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("algo", "says", "measured", "wanted", "holds"):
        out.add_column(column, overflow="fold")
    for row in rows:
        out.add_row(*(escape(row[column]) for column in ("algo", "says", "measured", "wanted", "holds")))
    console.print(out)
    for test in dict.fromkeys(row["test"] for row in rows if row["holds"] == UNCLEAR and row["test"]):
        console.print(escape(f"{UNCLEAR} by: {test}"))
    for note in dict.fromkeys(row["note"] for row in rows if row["note"] and row["holds"] != "yes"):
        console.print(escape(f"of what does not hold: {note}"))


def _merge(path: Path, rows: list[dict]) -> None:
    """Put the claims of these figures among those of earlier ones."""
    import pandas as pd

    new: Any = pd.DataFrame(rows)
    if path.exists():
        old: Any = pd.read_csv(path, dtype=str, keep_default_na=False)
        new = pd.concat([old[~old["figure"].isin(new["figure"])], new]).sort_values(["figure"], kind="stable")
    write_atomically(path, frame_csv(new))
