"""Lines that ``fcorun compare`` prints."""

from collections.abc import Iterator

from fcorun.studies.selection.comparison.comparison_options import SHARED
from fcorun.studies.selection.comparison.comparison_result import ALL, BETTER, UNCLEAR, WORSE, ModelComparison
from fcorun.studies.selection.study_picture import shorten

_MAX_CLIENTS = 20
_MARKS = {BETTER: "+", WORSE: "-", UNCLEAR: " ", "": " "}
_MAX_LETTERS = 30


def describe_comparison(comparison: ModelComparison) -> Iterator[str]:
    """Yield a table with a row for each client and a column for each candidate, the verdict, warnings, and files."""
    yield (
        f"{comparison.score_label} out of fold; + better and - worse than the shared model, unmarked: cannot be told "
        "apart"
    )
    has_events = comparison.find(SHARED, ALL).events is not None
    clients = list(comparison.clients) if len(comparison.clients) > 1 else []
    names = {client: shorten(client or "all", _MAX_LETTERS) for client in (ALL, *clients[:_MAX_CLIENTS])}
    first_width = max(*map(len, names.values()), len("client"))
    count_width = max(8, len(f"{comparison.find(SHARED, ALL).n:,}") + 2)
    header = f"{'client':<{first_width}}{'rows':>{count_width}}" + (f"{'events':>{count_width}}" if has_events else "")
    digits = ".4f" if 0.01 <= abs(comparison.find(SHARED, ALL).value) < 1000 else ".4g"
    widths = {name: max(10, len(name) + 2) for name in comparison.candidates}
    yield header + "".join(f"{name:>{width}} " for name, width in widths.items()).rstrip()
    for client, shown in names.items():
        row = comparison.find(SHARED, client)
        line = f"{shown:<{first_width}}{row.n:{count_width},}"
        line += f"{row.events:{count_width},}" if row.events is not None else ""
        for name, width in widths.items():
            cell = comparison.find(name, client)
            line += f"{cell.value:{width}{digits}}{_MARKS[cell.verdict]}"
        yield line.rstrip()
    if len(clients) > _MAX_CLIENTS:
        yield f"and {len(clients) - _MAX_CLIENTS} more clients, in comparison.csv"
    yield from comparison.warnings
    yield comparison.describe_verdict()
    yield f"{comparison.folder}/ holds comparison.csv, .json, .png and .pdf, and a folder for each candidate"
