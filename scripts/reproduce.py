"""Regenerate the figures of papers: run what is missing, draw, and check what the paper claims.

    python scripts/reproduce.py                         # what there is
    python scripts/reproduce.py fco_fig3a fco_fig3b     # these
    python scripts/reproduce.py all --fast              # smaller versions, a minute each at most
    python scripts/reproduce.py fco_fig5 data.root=/scans data.subjects=[1,2]   # overrides for every run

Each goes to outputs/figures/NAME: figure.png, figure.pdf, table.csv, claims.csv; claims.csv beside them has them all.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fcorun import UserError
from fcorun.figures.reproduce import reproduce
from fcorun.figures.spec import load, names
from fcorun.records.formats import frame_csv
from fcorun.system.files import write_whole


def main() -> int:
    """The exit code: 0, or 1 if a figure could not be made; a claim that does not hold is a result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", metavar="NAME", help="figures, or all; KEY=VALUE goes to every run")
    parser.add_argument("--fast", action="store_true", help="smaller versions, marked so")
    parser.add_argument("--out", type=Path, default=Path("outputs/figures"), metavar="DIR", help="default: %(default)s")
    asked = parser.parse_intermixed_args()
    console = Console(highlight=False, soft_wrap=True)
    wanted = [name for name in asked.figures if "=" not in name]
    if not wanted and asked.figures:
        parser.error("which figure? without arguments they are listed")
    if not wanted:
        for name in names():
            console.print(f"{name}: {load(name)[0].title}")
        return 0
    code, made = 0, []
    for name in names() if wanted == ["all"] else wanted:
        begun = time.perf_counter()
        try:
            folder, rows = reproduce(name, asked.out, asked.fast, [text for text in asked.figures if "=" in text])
        except UserError as error:
            console.print(escape(f"{name}: not made: {error}"))
            code = 1
            continue
        made += rows
        _show(rows, console)
        console.print(f"{folder}/figure.png in {time.perf_counter() - begun:.0f} s\n")
    if made:
        _merge(asked.out / "claims.csv", made)
    return code


def _show(rows: list[dict], console: Console) -> None:
    out = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("algo", "says", "measured", "wanted", "holds"):
        out.add_column(column, overflow="fold")
    for row in rows:
        out.add_row(*(escape(row[column]) for column in ("algo", "says", "measured", "wanted", "holds")))
    console.print(out)
    for note in dict.fromkeys(row["note"] for row in rows if row["note"] and row["holds"] != "yes"):
        console.print(escape(f"of what does not hold: {note}"))


def _merge(path: Path, rows: list[dict]) -> None:
    """Put the claims of these figures among those of earlier ones."""
    new: Any = pd.DataFrame(rows)
    if path.exists():
        old: Any = pd.read_csv(path, dtype=str, keep_default_na=False)
        new = pd.concat([old[~old["figure"].isin(new["figure"])], new]).sort_values(["figure"], kind="stable")
    write_whole(path, frame_csv(new))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
