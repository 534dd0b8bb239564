"""The options of intervals of scores, what a record says about its scored rows, and tables of scores with intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fcorun.base.errors import UserError
from fcorun.base.records.contents import CONFIG, SELECTION
from fcorun.base.records.formats import csv_text
from fcorun.base.records.record import OUT_OF_FOLD, REFIT_FOLDER, SITE_SELECTION_FOLDER, Record
from fcorun.base.records.tables import SCORES
from fcorun.base.sources.catalogue import parse_source
from fcorun.data.tables.column_roles import describe_unweighted
from fcorun.results.score_intervals.held_out_rows import UnitCounts

_MIN_SAMPLES = 100
_MAX_SAMPLES = 100_000
_MIN_TAIL = 5  # samples beyond each end of an interval


@dataclass(frozen=True)
class ScoreOptions:
    """Options of ``fcorun scores``.

    Attributes:
        resample: what a sample draws with replacement: rows, groups of rows (data.group), or clients with their rows.
            "auto": groups if predictions.csv has groups, else rows.
        samples: the number of samples.
        level: the confidence level.
    """

    resample: Literal["auto", "rows", "groups", "clients"] = "auto"
    samples: int = 1000
    level: float = 0.95

    def __post_init__(self):
        if not 0 < self.level < 1:
            raise UserError(f"`level={self.level:g}` must be between 0 and 1, such as 0.95")
        if not _MIN_SAMPLES <= self.samples <= _MAX_SAMPLES:
            raise UserError(f"`samples={self.samples}` must be between {_MIN_SAMPLES} and {_MAX_SAMPLES:,}")
        if self.samples * self.tail < _MIN_TAIL - 1e-9:
            least = math.ceil(_MIN_TAIL / self.tail * (1 - 1e-9) - 1e-6)
            if least > _MAX_SAMPLES:
                largest = 1 - 2 * _MIN_TAIL / _MAX_SAMPLES
                raise UserError(f"`level={self.level:g}` needs {least:,} samples, more than {_MAX_SAMPLES:,}: give a "
                                f"level of at most {largest:g}")  # fmt: skip
            raise UserError(f"`samples={self.samples}` are too few for `level={self.level:g}`: give `samples={least}`")

    @property
    def tail(self) -> float:
        """The share of samples below an interval, and above it."""
        return (1 - self.level) / 2


@dataclass(frozen=True)
class ScoredRecord:
    """The facts that the files next to predictions.csv state; a folder without these files has the defaults.

    Attributes:
        folder: the folder of a run or of a selection.
        seed: the seed of the run.
        task: the task of its data, or "".
        threshold_rows: the set of rows that chose the threshold between two classes, or "".
        threshold: the threshold of the shared model, or None.
        nested: whether rows out of fold are those of outer folds, which no strength was chosen on.
        score_names: the columns of scores.csv, or None without the file.
        weight: the column of weights, which scores leave out, or "".
        weight_kind: what the weights are, as ``describe_unweighted`` takes it.
    """

    folder: Path
    seed: int = 0
    task: str = ""
    threshold_rows: str = ""
    threshold: float | None = None
    nested: bool = False
    score_names: frozenset[str] | None = None
    weight: str = ""
    weight_kind: str | None = "sampling"

    def describe_weights(self) -> str:
        """Return a sentence if the rows have weights, or ""."""
        return describe_unweighted(self.weight, self.weight_kind)

    def find_warning(self, split: str, of_record: str = "") -> str:
        """Return a sentence if something was chosen on the rows of this set, or "".

        ``of_record`` names the record where there are two: " of FOLDER".
        """
        chosen = ["the strength"] if split == OUT_OF_FOLD and not self.nested else []
        if self.threshold_rows == split:
            chosen.append("the threshold")
        if not chosen:
            return ""
        verb = "was" if len(chosen) == 1 else "were"
        # nested cross-validation chooses strengths without the rows that it scores, but thresholds with them
        honest = "test rows, or of nested cross-validation" if chosen == ["the strength"] else "test rows"
        return (f"{' and '.join(chosen)}{of_record} {verb} chosen on these rows, so that scores are slightly "
                f"optimistic: report those of {honest}")  # fmt: skip


def read_scored_record(folder: Path) -> ScoredRecord:
    """Return what a record says about its scores. Raises UserError for a folder that does not exist.

    A site's own predictions out of fold are in a folder of its result, whose files tell about them.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give that of a run or selection that is done")
    own_files = [folder / name for name in (SELECTION.name, CONFIG.name)]
    if folder.resolve().name == SITE_SELECTION_FOLDER and not any(path.exists() for path in own_files):
        return replace(read_scored_record(folder.resolve().parent), folder=folder)
    selection = SELECTION.read(folder)
    run = Record(folder / REFIT_FOLDER if selection else folder)
    summary = run.summary_or_empty
    threshold = (selection or summary).get("threshold") or {}
    names = None
    if (folder / SCORES.name).is_file():
        names = frozenset(SCORES.read_names(folder))
    weight = run.flat_config.get("data.weight") or ""
    weight_kind = run.flat_config.get("data.weight_kind", "sampling")  # data over sites have no such option
    if weight_kind == "frequency":
        weight = ""
    return ScoredRecord(
        folder=folder,
        seed=run.flat_config.get("seed", 0),
        task=summary.get("data", {}).get("task", ""),
        threshold_rows=threshold.get("chosen_on", ""),
        threshold=threshold.get("shared"),
        nested=bool(selection.get("nested")),
        score_names=names,
        weight=weight,
        weight_kind=weight_kind,
    )


BOOTSTRAP = "bootstrap"
DELONG = "delong"
OBUCHOWSKI = "obuchowski"
SOURCES = {
    BOOTSTRAP: "bootstrap of @efron1979",
    DELONG: "AUC also by @delong1988, as @sun2014 compute it",
    OBUCHOWSKI: "AUC also by @obuchowski1997, for rows that belong together",
}


class IntervalRow(NamedTuple):
    """A score of one model, or the difference of a score of two models, with an interval.

    Attributes:
        split: the set of the rows.
        models: the names of one or two models: shared, personal.
        client: the client of the rows, "" for all rows.
        n: the number of rows.
        events: the number of events, or of rows of the positive class; None for numbers and for several classes.
        score: the name of the score.
        method: bootstrap, or of the AUC also delong, and obuchowski for rows in groups or clients.
        values: the score of each model, nan if the rows do not define the score.
        low, high: the ends of the interval of the score or of the difference, nan if there is none.
        p_value: of the hypothesis that both areas are equal; None for the bootstrap, and for one model.
        samples: the number of samples that define the score; None without samples.
        units: the independent units of the rows: groups where a sample draws groups, else the rows.
    """

    split: str
    models: tuple[str, ...]
    client: str
    n: int
    events: int | None
    score: str
    method: str
    values: tuple[float, ...]
    low: float
    high: float
    units: UnitCounts
    p_value: float | None = None
    samples: int | None = None

    @property
    def estimate(self) -> float:
        """The score, or the difference of the first and the second model."""
        first, *others = self.values
        return first - others[0] if others else first

    def to_dict(self) -> dict[str, Any]:
        """Return the row of the CSV; "" for what there is none of."""
        is_difference = len(self.values) > 1
        suffixes = ("_a", "_b") if is_difference else ("",)
        cells: dict[str, Any] = {"set": self.split}
        cells |= {f"model{suffix}": model for suffix, model in zip(suffixes, self.models, strict=True)}
        cells |= {"client": self.client, "n": self.n, "events": self.events, "score": self.score, "method": self.method}
        cells |= {f"value{suffix}": value for suffix, value in zip(suffixes, self.values, strict=True)}
        if is_difference:
            cells["difference"] = self.estimate
        cells |= {"low": self.low, "high": self.high}
        if is_difference:
            cells["p_value"] = self.p_value
        cells["samples"] = self.samples
        cells |= self.units.to_dict()
        return {name: "" if cell is None or cell != cell else cell for name, cell in cells.items()}


@dataclass(frozen=True)
class ScoreIntervals:
    """Scores with intervals, or differences of scores.

    Attributes:
        rows: the intervals: all rows of the set first, then each client.
        level: the confidence level.
        title: what was computed, in one line.
        warnings: what a reader must know, a sentence each.
        names: of a comparison, the two records.
    """

    rows: Sequence[IntervalRow]
    level: float
    title: str
    warnings: Sequence[str] = ()
    names: tuple[str, ...] = field(default=())

    def to_csv(self) -> str:
        """Return a row for each score and method."""
        return csv_text(row.to_dict() for row in self.rows)

    def describe_sources(self) -> str:
        """Return the papers of the methods in one line."""
        methods = dict.fromkeys(row.method for row in self.rows)
        return "; ".join(parse_source(SOURCES[method]).text for method in methods)
