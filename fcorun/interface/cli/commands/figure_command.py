"""fcorun figure: figures of papers, and of one's own."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from fcorun.base.errors import UserError, words_of
from fcorun.base.records.formats import frame_csv
from fcorun.base.records.tables import CLAIMS
from fcorun.base.system.files import write_atomically
from fcorun.base.system.machine import require_single_host, set_up_jax
from fcorun.experiment.configuration.compose import check_overrides, compose
from fcorun.experiment.configuration.search_path import use_config_dir, user_config_dir, warn_overridden
from fcorun.interface.api.python_words import check_folder
from fcorun.interface.cli.commands.common_command import CommandParser, read_folder
from fcorun.interface.cli.hydra_app import run_sweep_command
from fcorun.interface.cli.terminal import Terminal
from fcorun.reports.page import write as html_report
from fcorun.studies.figures.claims import COLUMNS
from fcorun.studies.figures.reproduce import DryRun, FigureResult, reproduce
from fcorun.studies.figures.seed_comparison import UNCLEAR, UNDECIDED
from fcorun.studies.figures.spec import find_figure, list_figures, load_figure

_CLAIM_COLUMNS = ("algo", "says", "measured", "wanted", "holds")


def run(argv: Sequence[str]) -> int:
    """Run what a figure lacks, draw it, and check what is claimed of it; without NAME, list the figures. Each is a file
    of the folder experiment, and goes to DIR/NAME: figure.png, figure.pdf, table.csv, claims.csv, figure.json,
    report.html."""
    parser = CommandParser("figure", run.__doc__, folders=False)
    parser.add_argument(
        "figures", nargs="*", metavar="NAME", help="figures, or all; KEY=VALUE goes to every run, but for out=DIR"
    )
    parser.add_argument("--fast", action="store_true", help="smaller versions, marked so")
    parser.add_argument("--out", type=Path, default=Path("outputs/figures"), metavar="DIR", help="default: %(default)s")
    arguments = parser.parse_intermixed_args(argv)
    names = [text for text in arguments.figures if "=" not in text]
    overrides = [text for text in arguments.figures if "=" in text and not text.startswith("out=")]
    for text in arguments.figures:
        if text.startswith("out="):  # as of the other commands
            arguments.out = Path(read_folder(text))
    if overrides and not names:
        parser.error("which figure? without arguments they are listed")
    if not names:
        for name, path in list_figures().items():
            origin = f" ({path.parent})" if user_config_dir() in path.parents else ""
            try:
                line = f"{name}: {load_figure(name)[0].title}{origin}"
            except UserError as error:
                line = f"{name}: {error}"
            Terminal().print(line)
        return 0
    names = list(list_figures() if names == ["all"] else dict.fromkeys(names))
    for name in names:
        find_figure(name)
    host_overrides = [text for text in overrides if text.startswith("hosts.")]
    require_single_host("fcorun figure", compose(host_overrides)["hosts"] if host_overrides else None)
    CLAIMS.read(arguments.out)  # raises the error of another file before anything is run
    warn_overridden()
    set_up_jax()
    return _make_figures(names, arguments.out, arguments.fast, overrides)


# overrides are texts of the command, and so are the sentences on them
@words_of(lambda option: option.replace("--config-dir ", "config_dir="))
def make_figure(
    name: str,
    folder: str | Path = "outputs/figures",
    *,
    fast: bool = False,
    overrides: Sequence[str] = (),
    config_dir: str | Path | None = None,
) -> FigureResult:
    """Run what a figure lacks, draw it into FOLDER/NAME, and check what is claimed of it, as ``fcorun figure`` does:
    its folder gets the same files, and FOLDER the same table of the claims of all figures.

    Args:
        name: a file of the folder experiment, as ``fcorun figure`` lists them.
        fast: whether to make the smaller version, which is marked so.
        overrides: KEY=VALUE texts for every run.
        config_dir: the folder of your own configuration files, such as that of the figure.

    Returns the folder, the claims as rows, warnings, and the records. Raises UserError for an unknown figure, and for
    runs that cannot be made.
    """
    check_overrides(overrides)
    check_folder(folder)
    with use_config_dir(config_dir) if config_dir is not None else nullcontext():
        find_figure(name)
        CLAIMS.read(Path(folder))  # raises the error of another file before anything is run
        set_up_jax()
        figure, _ = _make_figure(name, Path(folder), fast, overrides)
        return figure


def _make_figures(names: Sequence[str], folder: Path, fast: bool, overrides: Sequence[str]) -> int:
    """Make figures; return the exit code: 1 if a figure could not be made or lacks runs that failed, else 0.

    A claim that does not hold is a result, no failure.
    """
    out = Terminal()
    code = 0
    for name in names:
        start = time.perf_counter()
        try:
            figure, sentences = _make_figure(name, folder, fast, overrides)
        except UserError as error:
            out.print(f"{name}: not made: {error}")
            if not isinstance(error, DryRun):
                code = 1
            continue
        if not figure.complete:
            code = 1
        _print_claims(figure.rows, out)
        out.print_lines([*figure.warnings, *sentences])
        picture = figure.folder / "figure.png"
        made = picture if picture.exists() else figure.folder
        out.print(f"{made} in {time.perf_counter() - start:.0f} s\n")
    return code


def _make_figure(name: str, folder: Path, fast: bool, overrides: Sequence[str]) -> tuple[FigureResult, list[str]]:
    """Make a figure, its rows in the table of the claims of all figures, and its page; return sentences on the page."""
    import pandas as pd

    figure = reproduce(name, folder, run_sweep_command, fast, overrides)
    earlier = pd.DataFrame(CLAIMS.read(folder)).to_dict("records")
    others = [row for row in earlier if row["figure"] != figure.folder.name]
    claims = sorted([*others, *figure.rows], key=lambda row: row["figure"])
    if claims or (folder / CLAIMS.name).exists():
        write_atomically(folder / CLAIMS.name, frame_csv(pd.DataFrame(claims, columns=list(COLUMNS))))
    return figure, html_report.update_report(figure.folder, figure.records, is_wanted=figure.wants_page)


def _print_claims(claims: list[dict], out: Terminal) -> None:
    rows = ([claim[column] for column in _CLAIM_COLUMNS] for claim in claims)
    out.print_table(_CLAIM_COLUMNS, rows, texts=_CLAIM_COLUMNS, folded=True)
    unclear_tests = [claim["test"] for claim in claims if claim["holds"] == UNCLEAR and claim["test"]]
    for test in dict.fromkeys(unclear_tests):
        out.print(f"{UNCLEAR} by: {test}")
    notes = []
    for claim in claims:
        if claim["note"] and claim["holds"] != "yes":
            label = UNDECIDED if claim["holds"] == UNDECIDED else "of what does not hold"
            notes.append(f"{label}: {claim['note']}")
    out.print_lines(dict.fromkeys(notes))
