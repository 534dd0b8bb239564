"""Numbers of few rows, which tell of single patients, and stay where a record is sent.

If a client or a fold has few rows, no number by client or by fold is sent: what all rows have less what the others have
is what those few have.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcorun.base.errors import UserError, abbreviate
from fcorun.base.metrics import CLIENT_SUFFIXES, QUANTILE_SUFFIXES
from fcorun.base.picture_style import name_picture_files
from fcorun.base.records import tables
from fcorun.base.records.contents import CONFIG, SUMMARY
from fcorun.base.records.formats import csv_text, read_text, read_yaml

LEAST_ROWS = 5  # or groups, of which numbers are sent
CLIENTS_TABLE = "clients.parquet"  # rows and scores of each client at each evaluation
_SHOWN = 10  # names in a sentence
_ALL = {"scores.csv": (tables.SCORES, ""), "comparison.csv": (tables.COMPARISON, "all")}  # the client of totals
_BY_CLIENT = (  # files about clients and folds alone
    *(CLIENTS_TABLE, "client_estimates.csv", "nested.csv", "calibration.csv", "missing.csv"),
    *name_picture_files("clients", "comparison"),
)
_COUNTED = (tables.CALIBRATION, tables.GAPS)  # whose lines may be about few rows although no client is
_TABLES = ("metrics.csv", "results.csv", "table.csv", "selection.csv")  # with metrics over clients, or lines of folds
_FEW_OF_LEVEL = re.compile(  # as ``describe_few`` and ``describe_few_clusters`` in fcorun.results.models.inference say
    r"((rows of|events in|rows without an event in) )?(no|\d[\d,]*) (rows?|events?|groups?|clients?)"
    r"( without an event)?( in (no|\d[\d,]*) rows?)?"
)


@dataclass(frozen=True)
class FewRows:
    """The numbers of a result that are not sent with it.

    Attributes:
        simulated: all data are fcorun's own simulations, of which everything is sent.
        small: the clients and folds with few rows.
    """

    simulated: bool
    small: tuple[str, ...]

    @classmethod
    def find(cls, folders: Sequence[Path]) -> "FewRows":
        """Return what stays of the files in some folders. Raises UserError for a damaged table."""
        if is_simulated(folders):
            return cls(True, ())
        return cls(False, tuple(dict.fromkeys(name for folder in folders for name in _find_small(folder))))

    def list_files(self, folder: Path) -> set[str]:
        """Return the names of the files in a folder that stay as a whole."""
        if self.simulated:
            return set()
        names = {table.name for table in _COUNTED if any(_find_few_lines(table, folder))}
        if self.small:
            names |= set(_BY_CLIENT)
            if (folder / "client_estimates.csv").is_file():
                names |= set(name_picture_files("inference"))  # with the clients' estimates
        return names

    def read_rest(self, path: Path) -> str | None:
        """Return what is sent of a file, None if that is all of it. Raises UserError for a damaged table."""
        if self.simulated:
            return None
        if path.name in _OF_LEVELS and any(_find_few_lines(tables.INTERVALS, path.parent)):
            return _OF_LEVELS[path.name](path)
        if self.small and path.name in _ALL:
            return _keep_totals(*_ALL[path.name], path.parent)
        if self.small and path.name in _TABLES:
            lines = tables.TableFile(path.name, {}).read_texts(path.parent)
            return csv_text([_drop_metrics_over_clients(line) for line in lines if line.get("fold", "all") == "all"])
        return None

    def hide_numbers(self, content: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Return the content of a JSON file in a folder without such numbers, and with a warning that says so."""
        if self.simulated:
            return content
        shown = dict(content)
        left_out = []
        if self.small:
            left_out.append("numbers by client and by fold")
            for name in ("final", "best", "tail"):
                if isinstance(shown.get(name), dict):
                    shown[name] = _drop_metrics_over_clients(shown[name])
            shown.pop("weight_of_fold", None)
            if isinstance(shown.get("nested"), dict):
                of_folds = ("scores", "weight_of_fold")
                shown["nested"] = {key: value for key, value in shown["nested"].items() if key not in of_folds}
        if isinstance(shown.get("data"), dict):
            shown["data"] = data = dict(shown["data"])
            if "outcome" in data and self.small:
                data["outcome"] = [line for line in data["outcome"] if _is_total(line)]
            if "few_levels" in data:
                data["few_levels"] = dict.fromkeys(data["few_levels"], "few rows")
        for table in _COUNTED:
            if not self.small and any(_find_few_lines(table, folder)):
                left_out.append(table.name)
        if left_out and isinstance(shown.get("warnings"), list):
            sentence = (
                f"left out of what was sent: {' and '.join(left_out)}, as some are of fewer than {LEAST_ROWS} rows "
                "or groups, and would tell of single patients"
            )
            shown["warnings"] = [*shown["warnings"], sentence]
        return shown


def summarizes_clients(name: str) -> bool:
    """Return whether a metric is of the best or worst clients, or a quantile or spread over clients; no setting is."""
    return name.endswith((*CLIENT_SUFFIXES, *QUANTILE_SUFFIXES)) and "." not in name


def is_simulated(folders: Iterable[Path]) -> bool:
    """Return whether configurations are in some folders, and all are of data that fcorun itself simulates."""
    sections = [read_yaml(folder / CONFIG.name).get("data") for folder in folders if (folder / CONFIG.name).is_file()]
    return bool(sections) and all(isinstance(data, dict) and _simulates(data) for data in sections)


def _simulates(data: dict[str, Any]) -> bool:
    return str(data.get("class", "")).startswith("fcorun.") and not data.keys() & {"path", "root", "target"}


def name_few(folders: Iterable[Path]) -> str:
    """Return the clients, folds, columns and levels in some folders that have few rows; "" without any."""
    few = []
    for folder in folders:
        try:
            few += _find_small(folder)
            for table in (*_COUNTED, tables.INTERVALS):
                few += _find_few_lines(table, folder)
        except UserError:  # a damaged table, which is told where it is shown
            continue
    return abbreviate([*dict.fromkeys(few)], _SHOWN)


def _find_small(folder: Path) -> list[str]:
    """Return the clients and folds of a folder that have few rows, or few groups."""
    return [name or "all clients" for name, n in _count_rows(folder) if 0 < n < LEAST_ROWS]


def _count_rows(folder: Path) -> Iterator[tuple[str, float]]:
    """Yield numbers of rows, or groups, of clients and folds, as each file of a folder has them."""
    for line in SUMMARY.read(folder).get("data", {}).get("outcome") or []:
        yield line["client"], line["rows"]
    for table, column in ((tables.SCORES, "n"), (tables.COMPARISON, "n"), (tables.CLIENT_ESTIMATES, "rows")):
        for line in table.read_texts(folder):
            yield line.get("client", ""), _parse_count(line.get(column))
    for line in tables.NESTED.read_texts(folder):
        yield f"fold {line.get('outer_fold')}", _parse_count(line.get("n"))
    if (folder / CLIENTS_TABLE).is_file():
        import pandas as pd

        frame = pd.read_parquet(folder / CLIENTS_TABLE, columns=["client", "rows"]).drop_duplicates()
        yield from zip(frame["client"], frame["rows"], strict=True)
    if (folder / tables.PREDICTIONS.name).is_file():
        yield from _count_predicted(folder / tables.PREDICTIONS.name)


def _count_predicted(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the numbers of held-out rows, or of their groups, of each client and of each fold, by set."""
    import pandas as pd

    names = ("set", "client", "row", "group", "fold")
    try:
        frame = pd.read_csv(path, usecols=lambda name: name in names, dtype=str, keep_default_na=False)
        unit = "group" if "group" in frame else "row"
        for column, word in (("client", ""), ("fold", "fold ")):
            if column in frame:
                counts = frame.groupby(["set", column], as_index=False)[unit].nunique()
                for name, n in zip(counts[column], counts[unit], strict=True):
                    yield f"{word}{name}", int(n)
    except (KeyError, ValueError) as error:
        raise tables.PREDICTIONS.describe_damage(path.parent, str(error)) from error


def _find_few_lines(table: tables.TableFile, folder: Path) -> Iterator[str]:
    """Yield what the lines about few rows of a table are of: a column with gaps, a level, or a client."""
    for line in table.read_texts(folder):
        if "missing" in line:
            missing = int(line["missing"])
            n = min(missing, int(line["rows"]) - missing or math.inf)
        else:
            n = _parse_count(line.get("n"))
        if 0 < n < LEAST_ROWS or _FEW_OF_LEVEL.fullmatch(line.get("method", "")):
            yield line.get("column") or line.get("client") or line.get("feature") or "all clients"


def _parse_count(text: str | None) -> float:
    """Return a number of rows; inf for an empty cell, and for one that is no number."""
    try:
        return float(text or math.inf)
    except ValueError:
        return math.inf


def _is_total(line: dict[str, Any]) -> bool:
    return not line["client"] and line["rows"] >= LEAST_ROWS


def _keep_totals(table: tables.TableFile, all_clients: str, folder: Path) -> str:
    """Return the lines of a table about all rows of a set; personal models may be those of some clients alone."""
    totals = [line for line in table.read_texts(folder) if line.get("client") == all_clients]
    most: dict[str | None, float] = {}
    for line in totals:
        most[line.get("set")] = max(most.get(line.get("set"), LEAST_ROWS), _parse_count(line.get("n")))
    return csv_text([line for line in totals if _parse_count(line.get("n")) == most[line.get("set")]])


def _drop_metrics_over_clients(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not summarizes_clients(name)}


def _hide_counts_of_levels(path: Path) -> str:
    """Return inference.csv without rows and events of levels: all rows less those of one level are another's."""
    lines = tables.INTERVALS.read_texts(path.parent)
    for line in lines:
        line.update(dict.fromkeys(line.keys() & {"n", "events"}, ""))
        if _FEW_OF_LEVEL.fullmatch(line["method"]):
            line["method"] = "few rows"
    return csv_text(lines)


def _hide_few_levels(path: Path) -> str:
    """Return inference.txt with "few rows" in sentences on levels without intervals."""
    few = re.compile(rf"\({_FEW_OF_LEVEL.pattern}\)")
    lines = read_text(path).splitlines(keepends=True)
    return "".join(few.sub("(few rows)", line) if "no interval of " in line else line for line in lines)


_OF_LEVELS = {"inference.csv": _hide_counts_of_levels, "inference.txt": _hide_few_levels}
