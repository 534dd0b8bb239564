"""The part of a record that others and trackers get: not what tells of single patients, nor numbers of few rows.

If a client or a fold has few rows or events, no number by client or by fold is sent: what all rows have less what the
others have is what those few have. If all rows of a set that is held out are few, no number on them is sent. A picture
is not sent if a table that it is drawn from is not, or not as a whole. Neither is a sentence on few rows.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fcorun.base.errors import UserError, abbreviate
from fcorun.base.metrics import CLIENT_SUFFIXES, QUANTILE_SUFFIXES
from fcorun.base.picture_style import FORMATS, name_picture_files
from fcorun.base.records import tables
from fcorun.base.records.contents import CONFIG, ENCODING, PERMUTATION, SELECTION, STABILITY, SUMMARY
from fcorun.base.records.formats import csv_text, json_text, read_json, read_text, read_yaml, yaml_text
from fcorun.base.records.record import PAGE_FILES, PERSONAL, SHARED
from fcorun.base.records.single_patients import PATIENT_FILES, change_texts, hide_patients, hide_row_numbers

LEAST_ROWS = 5  # or groups, or events, of which numbers are sent
CLIENTS_TABLE = "clients.parquet"  # rows and scores of each client at each evaluation
_SHOWN = 10  # names in a sentence
_ALL = {"scores.csv": (tables.SCORES, ""), "comparison.csv": (tables.COMPARISON, "all")}  # the client of totals
_BY_CLIENT = (  # files about clients and folds alone, or with numbers of all kinds
    *(CLIENTS_TABLE, "client_estimates.csv", "nested.csv", "calibration.csv", "missing.csv", "clients.csv"),
    *("run.log", *PAGE_FILES),
    *name_picture_files("roc", "calibration", "decision"),  # with the curves of each client
)
_COUNTED = (tables.CALIBRATION, tables.GAPS)  # whose lines may be about few rows although no client is
_DRAWN_FROM = {  # the tables that pictures show, where they are others than metrics
    "clients": (CLIENTS_TABLE,),
    "comparison": ("comparison.csv",),
    "figure": ("table.csv", "claims.csv"),
    "selection": ("curve.csv",),
    "inference": ("client_estimates.csv",),  # of a meta-analysis
    "calibration": ("calibration.csv",),
    "stability": ("clients.csv",),
} | dict.fromkeys(["roc", "decision", "coefficients", "splines", "brain", "brain_by_client", "permutation"], ())
_OUT_OF_FOLD = ("selection.csv", "curve.csv", "nested.csv")  # whose val_ metrics are of rows out of fold
_METRICS = ("metrics.csv", "lasso_metrics.csv", "results.csv")  # the tables of all other pictures
_BY_COLUMN = (
    "coefficients_by_client.csv",
    "clients.csv",
    "predictions.csv",
    "path.csv",
)  # whose columns have names of the data
_OVER_CLIENTS = re.compile(rf"(^|_)(train|val)_.*({'|'.join([*CLIENT_SUFFIXES, *QUANTILE_SUFFIXES])})(_|$)")
_HELD_OUT = re.compile(r"(^|_)val_")
_WORDS = ("no", "one", "two", "three", "four")
_NUMBER = rf"\d[\d,]*|{'|'.join(_WORDS)}"
_COUNT = re.compile(
    rf"(?<![\w.,])(?:({_NUMBER}) of )?({_NUMBER}) "
    r"((?!clients? )[\w-]+ ){,2}(row|event|patient|person|observation)s?\b",
    re.IGNORECASE,
)
_BRACKETED = re.compile(rf"\([0-{LEAST_ROWS - 1}]\)")  # a count after a name
_BEFORE_NAME = r"(\b[Cc]lients?\b([^;]*?([,(:]|\band\b))? ?'?|\b(?=fold ))"  # of a client, also in a list, or a fold
_SUMMARIES = (SUMMARY, SELECTION, STABILITY, PERMUTATION)  # with warnings, and clients with few rows
_INSTEAD = 0.5  # of a threshold that was chosen on few rows
_LARGEST_ROUNDED = 0.999
_UNSENT_SENTENCE = f"left out of what was sent: a sentence on fewer than {LEAST_ROWS} rows"
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
        small_sets: the sets of held-out rows that are few in all.
        thresholds: what is sent in place of each threshold between two classes that was chosen on rows.
    """

    simulated: bool
    small: tuple[str, ...]
    small_sets: frozenset[str] = frozenset()
    thresholds: Mapping[float, float] = field(default_factory=dict)

    @classmethod
    def find(cls, folders: Sequence[Path], few_rows: Mapping[str, Sequence[str]] = MappingProxyType({})) -> "FewRows":
        """Return what stays of the files in some folders. Raises UserError for a damaged table.

        ``few_rows`` are those of the data, as ``FederatedData.few_rows`` has them, of a run without a summary yet.
        """
        if is_simulated(folders):
            return cls(True, ())
        few = _find_small_in_summary({"data": {"few_rows": few_rows}})
        for folder in folders:
            few += _find_small(folder)
        names = dict.fromkeys(name or "all clients" for _, name in few)
        small_sets = frozenset(rows for rows, name in few if not name and rows != "train")
        return cls(False, tuple(names), small_sets, _round_thresholds(folders, small_sets))

    def hides(self, metric: str, held_out: str = "validation") -> bool:
        """Return whether a metric, or a statistic of one such as ``tail_val_loss``, tells of few rows; no setting does.

        Metrics over clients are of the best or worst clients, or a quantile or spread over clients. Those that begin
        by ``val_`` are of the set ``held_out``.
        """
        if "." in metric:
            return False
        if held_out in self.small_sets and _HELD_OUT.search(metric):
            return True
        return bool(self.small) and summarizes_clients(metric)

    def list_files(self, folder: Path) -> set[str]:
        """Return the names of the files in a folder that stay as a whole."""
        names: set[str] = {*PATIENT_FILES}
        if self.simulated:
            return names
        names |= {table.name for table in _COUNTED if any(_find_few_lines(table, folder))}
        if self.small:
            names |= set(_BY_CLIENT)
        return names | {path.name for path in folder.iterdir() if self._shows_few(path, names)}

    def _shows_few(self, path: Path, left_out: set[str]) -> bool:
        """Return whether a file is a picture of a table that stays, or does not leave as a whole."""
        if path.suffix[1:] not in FORMATS:
            return False
        for name in _DRAWN_FROM.get(path.stem, _METRICS):
            table = path.parent / name
            if table.is_file() and (name in left_out or self.read_rest(table) is not None):
                return True
        return False

    def read_rest(self, path: Path) -> str | None:
        """Return what is sent of a file, None if that is all of it. Raises UserError for a damaged table."""
        if path.suffix == ".json" and path.name != ENCODING.name:
            return json_text(self.hide_numbers(hide_patients(read_json(path)), path))
        if path.name == CONFIG.name:
            config = read_yaml(path)
            threshold = self._change_threshold(config.get("threshold"))
            return None if threshold == config.get("threshold") else yaml_text(config | {"threshold": threshold})
        is_text = path.suffix in (".txt", ".log")
        if self.simulated:
            return hide_row_numbers(read_text(path)) if is_text else None
        has_few_levels = path.stem == "inference" and any(_find_few_lines(tables.INTERVALS, path.parent))
        if is_text:
            text = _hide_few_levels(path) if has_few_levels else read_text(path)
            return "".join(f"{self._hide_sentence(line)}\n" for line in hide_row_numbers(text).splitlines())
        if path.suffix != ".csv" or path.name in _BY_COLUMN:
            return None
        if has_few_levels:
            return _hide_counts_of_levels(path)
        table, all_clients = _ALL.get(path.name, (tables.TableFile(path.name, {}), ""))
        lines = table.read_texts(path.parent)
        rest = lines
        if self.small:
            rest = [line for line in lines if self._is_sent(line)]
            if path.name in _ALL:
                rest = _keep_totals(rest, all_clients)
        held_out = "out_of_fold" if path.name in _OUT_OF_FOLD else "validation"
        rest = [self.drop_metrics(change_texts(line, self._change_text), held_out) for line in rest]
        return None if rest == lines else csv_text(rest)

    def _is_sent(self, line: dict[str, str]) -> bool:
        """Return whether a line is of no single fold or few rows, and no claim on a metric that tells of few rows."""
        if line.get("fold", "all") != "all" or line.get("set") in self.small_sets:
            return False
        return not any(map(self.hides, line.get("measured", "").split()))

    def _change_text(self, text: str, is_sentence: bool) -> str:
        return self._hide_sentence(text) if is_sentence else text

    def _hide_sentence(self, text: str) -> str:
        """Return a sentence, or that it is left out: it counts few rows, or names what has few, or such a metric."""
        names = "|".join(map(re.escape, self.small))
        is_of_small = names and re.search(rf"{_BEFORE_NAME}({names})(?!\w)", text)
        is_of_set = any(re.search(rf"\b{rows.replace('_', ' ')}\b", text) for rows in self.small_sets)
        has_metric = any(map(self.hides, re.findall(r"\w+(?:\.\w+)*", text)))
        return _UNSENT_SENTENCE if is_of_small or is_of_set or has_metric or _counts_few(text) else text

    def drop_metrics(self, content: Any, held_out: str = "validation") -> Any:
        """Return the content of a line, or of JSON, without metrics that tell of few rows."""
        if isinstance(content, list):
            return [self.drop_metrics(item, held_out) for item in content]
        if not isinstance(content, dict):
            return content
        return {k: self.drop_metrics(v, held_out) for k, v in content.items() if not self.hides(k, held_out)}

    def _change_threshold(self, threshold: Any) -> Any:
        return self.thresholds.get(threshold, threshold) if isinstance(threshold, float) else threshold

    def hide_numbers(self, content: dict[str, Any], path: Path) -> dict[str, Any]:
        """Return the content of a JSON file without such numbers, and with a warning that says so."""
        if self.simulated:
            return content
        shown = self.drop_metrics(change_texts(content, self._change_text))
        left_out = []
        if self.small_sets:
            left_out.append(f"numbers on held-out rows ({', '.join(sorted(self.small_sets))})")
        if self.small:
            left_out.append("numbers by client and by fold")
            shown.pop("weight_of_fold", None)
            if isinstance(shown.get("nested"), dict):
                of_folds = ("scores", "weight_of_fold")
                shown["nested"] = {key: value for key, value in shown["nested"].items() if key not in of_folds}
        if isinstance(shown.get("rows"), dict):  # of a selection
            shown["rows"] = {rows: n for rows, n in shown["rows"].items() if rows not in self.small_sets}
        if isinstance(shown.get("data"), dict):
            data = shown["data"]
            if "outcome" in data and self.small:
                totals = [line for line in data["outcome"] if not line["client"] and line["rows"] >= LEAST_ROWS]
                data["outcome"] = [line for line in totals if line["set"] not in self.small_sets]
            data.pop("few_rows", None)
            has_few_gaps = any(map(_is_few, data.get("gaps", {}).values()))
            if self.small or has_few_gaps or any(_find_few_lines(tables.GAPS, path.parent)):
                data.pop("gaps", None)
            for rows in self.small_sets:
                data.pop(f"{rows}_examples", None)
            if "few_levels" in data:
                data["few_levels"] = dict.fromkeys(data["few_levels"], "few rows")
        if isinstance(shown.get("threshold"), dict):
            sent = {key: self._change_threshold(value) for key, value in shown["threshold"].items()}
            sent["chosen_on"] = content["threshold"].get("chosen_on", "")  # a set, and no sentence on it
            shown["threshold"] = sent
            if sent.get(SHARED) == _INSTEAD != content["threshold"].get(SHARED):
                left_out.append(f"the chosen threshold (in its place is {_INSTEAD:g})")
        for table in _COUNTED:
            if not self.small and any(_find_few_lines(table, path.parent)):
                left_out.append(table.name)
        if left_out and path.name in [file.name for file in _SUMMARIES]:
            sentence = (
                f"left out of what was sent: {' and '.join(left_out)}, as some are of fewer than {LEAST_ROWS} rows, "
                "groups or events, and would tell of single patients"
            )
            shown["warnings"] = [*dict.fromkeys([*shown.get("warnings", []), sentence])]
        return shown


def _counts_few(text: str) -> bool:
    """Return whether a sentence counts few rows, all but few, or no events.

    >>> _counts_few("except for 90 of 93 rows at one value"), _counts_few("in 90 rows")
    (True, False)
    """
    for part, total, _, noun in _COUNT.findall(text):
        n = _parse_number(total)
        n_of_part = _parse_number(part or total)
        is_few = _is_few_events if noun.lower() == "event" else _is_few
        if any(map(is_few, [n, n_of_part])) or _is_few(n - n_of_part):
            return True
    return _BRACKETED.search(text) is not None


def _is_few(n: float) -> bool:
    """Return whether a number of rows is few; none tell of nobody."""
    return 0 < n < LEAST_ROWS


def _is_few_events(n: float) -> bool:
    """Return whether a number of events is few; none tell that no row has one."""
    return n < LEAST_ROWS


def _parse_number(text: str) -> int:
    return _WORDS.index(text.lower()) if text.isalpha() else int(text.replace(",", ""))


def summarizes_clients(metric: str) -> bool:
    """Return whether a metric is of the best or worst clients, or a quantile or spread over clients."""
    return _OVER_CLIENTS.search(metric) is not None


def is_simulated(folders: Iterable[Path]) -> bool:
    """Return whether configurations are in some folders, and all are of data that fcorun itself simulates."""
    sections = [read_yaml(folder / CONFIG.name).get("data") for folder in folders if (folder / CONFIG.name).is_file()]
    return bool(sections) and all(isinstance(data, dict) and simulates(data) for data in sections)


def simulates(data: Mapping[str, Any]) -> bool:
    """Return whether fcorun itself simulates the data of a configuration's section ``data``."""
    return str(data.get("class", "")).startswith("fcorun.") and not data.keys() & {"path", "root", "target"}


def name_few(folders: Iterable[Path], in_table: Iterable[Path] = ()) -> str:
    """Return the clients, folds, columns and levels in some folders that have few rows; "" without any.

    Of runs ``in_table``, totals are shown, and metrics over clients: their summaries alone are read.
    """
    few = []
    for folder in in_table:
        try:
            summary = SUMMARY.read(folder)
            by_client = any(map(summarizes_clients, summary.get("final", {})))
            if not is_simulated([folder]):
                few += [name or "all clients" for _, name in _find_small_in_summary(summary) if by_client or not name]
        except UserError:
            continue
    for folder in folders:
        try:
            few += [name or "all clients" for _, name in _find_small(folder)]
            for table in (*_COUNTED, tables.INTERVALS):
                few += _find_few_lines(table, folder)
        except UserError:  # a damaged table, which is told where it is shown
            continue
    return abbreviate([*dict.fromkeys(few)], _SHOWN)


def _round_thresholds(folders: Sequence[Path], small_sets: frozenset[str]) -> dict[float, float]:
    """Return what is sent in place of chosen thresholds: each lies between the probabilities of two patients."""
    sent = {}
    for folder in folders:
        for content in (SUMMARY.read(folder), SELECTION.read(folder), SELECTION.read(folder.parent)):  # of a refit
            section = content.get("threshold") or {}
            if section.get("chosen_on"):
                for model in section.keys() & {SHARED, PERSONAL}:
                    rounded = min(float(f"{section[model]:.3g}"), _LARGEST_ROUNDED)
                    sent[section[model]] = _INSTEAD if section["chosen_on"] in small_sets else rounded
    return sent


def _find_small(folder: Path) -> list[tuple[str, str]]:
    """Return the clients and folds in a folder's files that have few rows, or groups, each after its set of rows."""
    in_summaries = [few for file in _SUMMARIES for few in _find_small_in_summary(file.read(folder))]
    in_tables = [
        (line.get("set", "train"), line.get("client", ""))
        for table, column in ((tables.SCORES, "n"), (tables.COMPARISON, "n"), (tables.CLIENT_ESTIMATES, "rows"))
        for line in table.read_texts(folder)
        if _counts_few_in(line, column)
    ]
    return in_summaries + in_tables + _select_small(_count_rows(folder))


def _find_small_in_summary(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return sets and their clients ("" for all) that have few rows, groups or events, as a summary has them."""
    data = summary.get("data", {})
    few = [(rows, name) for rows, names in data.get("few_rows", {}).items() for name in names]
    few += [(line["set"], line["client"]) for line in data.get("outcome") or [] if _counts_few_in(line, "rows")]
    return few + _select_small((rows, "", data.get(f"{rows}_examples") or 0) for rows in ("validation", "test"))


def _counts_few_in(line: Mapping[str, Any], column: str) -> bool:
    """Return whether a line of a table counts few rows in a column, or few events, or rows censored or at risk."""
    n, events, censored, at_risk = (_parse_count(line.get(name)) for name in (column, "events", "censored", "at_risk"))
    return any(map(_is_few, [n, n - events, censored, at_risk])) or (n > 0 and _is_few_events(events))


def _select_small(counts: Iterable[tuple[str, str, float]]) -> list[tuple[str, str]]:
    return [(rows, name) for rows, name, n in counts if _is_few(n)]


def _count_rows(folder: Path) -> Iterator[tuple[str, str, float]]:
    """Yield sets, their clients and folds ("" for all), and numbers of rows or groups, as files of a folder have."""
    for line in tables.NESTED.read_texts(folder):
        yield "out_of_fold", f"fold {line.get('outer_fold')}", _parse_count(line.get("n"))
    if (folder / CLIENTS_TABLE).is_file():
        import pandas as pd

        frame = pd.read_parquet(folder / CLIENTS_TABLE, columns=["client", "rows"]).drop_duplicates()
        for name, n in zip(frame["client"], frame["rows"], strict=True):
            yield "train", name, n
    if (folder / tables.PREDICTIONS.name).is_file():
        yield from _count_predicted(folder / tables.PREDICTIONS.name)


def _count_predicted(path: Path) -> Iterator[tuple[str, str, int]]:
    """Yield the sets of held-out rows, each also by client and by fold, and numbers of their rows, or groups."""
    import pandas as pd

    names = ("set", "client", "row", "group", "fold")
    try:
        frame = pd.read_csv(path, usecols=lambda name: name in names, dtype=str, keep_default_na=False)
        unit = "group" if "group" in frame else "row"
        frame["all"] = ""
        for column, word in (("all", ""), ("client", ""), ("fold", "fold ")):
            if column in frame:
                counts = frame.groupby(["set", column], as_index=False)[unit].nunique()
                for rows, name, n in zip(counts["set"], counts[column], counts[unit], strict=True):
                    yield rows, f"{word}{name}", int(n)
    except (KeyError, ValueError) as error:
        raise tables.PREDICTIONS.describe_damage(path.parent, str(error)) from error


def _find_few_lines(table: tables.TableFile, folder: Path) -> Iterator[str]:
    """Yield what the lines about few rows of a table are of: a column with gaps, a level, or a client."""
    for line in table.read_texts(folder):
        if "missing" in line:
            missing = int(line["missing"])
            has_few = any(map(_is_few, [missing, int(line["rows"]) - missing, _parse_count(line.get("groups"))]))
        else:
            has_few = _counts_few_in(line, "n")
        if has_few or _FEW_OF_LEVEL.fullmatch(line.get("method", "")):
            yield line.get("column") or line.get("client") or line.get("feature") or "all clients"


def _parse_count(text: float | str | None) -> float:
    """Return a number of rows; inf for an empty cell, and for one that is no number."""
    try:
        return float(math.inf if text in (None, "") else text)
    except ValueError:
        return math.inf


def _keep_totals(lines: list[dict[str, str]], all_clients: str) -> list[dict[str, str]]:
    """Return the lines of a table about all rows of a set; personal models may be those of some clients alone."""
    totals = [line for line in lines if line.get("client") == all_clients]
    most: dict[str | None, float] = {}
    for line in totals:
        most[line.get("set")] = max(most.get(line.get("set"), LEAST_ROWS), _parse_count(line.get("n")))
    return [line for line in totals if _parse_count(line.get("n")) == most[line.get("set")]]


def _hide_counts_of_levels(path: Path) -> str:
    """Return inference.csv without rows and events of levels: all rows less those of one level are another's."""
    lines = tables.INTERVALS.read_texts(path.parent)
    for line in lines:
        line.update(dict.fromkeys(line.keys() & {"n", "events"}, ""))
        if _FEW_OF_LEVEL.fullmatch(line["method"]):
            line["method"] = "few rows"
    return csv_text(lines)


def _hide_few_levels(path: Path) -> str:
    """Return inference.txt with "few rows" in sentences on levels without intervals, and no counts of references."""
    few = re.compile(rf"\({_FEW_OF_LEVEL.pattern}\)")
    lines = []
    for line in read_text(path).splitlines(keepends=True):
        if "no interval of " in line:
            line = few.sub("(few rows)", line)
        elif line.startswith("reference: "):  # of two levels, the other has all rows but these
            line = re.sub(r" \([\d,]+ rows\)", "", line)
        lines.append(line)
    return "".join(lines)
