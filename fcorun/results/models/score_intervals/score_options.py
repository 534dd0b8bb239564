"""The options of intervals of scores, and what a record says about the rows that are scored."""

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fcorun.base.errors import UserError
from fcorun.base.records.formats import read_json, read_summary, read_text
from fcorun.base.records.record import OUT_OF_FOLD, REFIT_FOLDER, SELECTION_FILE, Record

_MIN_SAMPLES, _MAX_SAMPLES = 100, 100_000
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
        group: the column ``data.group``, or "".
        threshold_rows: the set of rows that chose the threshold between two classes, or "".
        threshold: the threshold of the shared model, or None.
        nested: whether rows out of fold are those of outer folds, which no strength was chosen on.
        score_names: the columns of scores.csv, or None without the file.
    """

    folder: Path
    seed: int = 0
    task: str = ""
    group: str = ""
    threshold_rows: str = ""
    threshold: float | None = None
    nested: bool = False
    score_names: frozenset[str] | None = None

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
    """Return what a record says about its scores. Raises UserError for a folder that does not exist."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give that of a run or selection that is done")
    selection = read_json(folder / SELECTION_FILE)
    run = Record(folder / REFIT_FOLDER if selection else folder)
    summary, config = read_summary(run.folder), run.flat_config
    threshold = _mapping((selection or summary).get("threshold"))
    shared = threshold.get("shared")
    seed = config.get("seed")
    try:
        names = frozenset(next(csv.reader(io.StringIO(read_text(folder / "scores.csv"), newline="")), []))
    except (OSError, ValueError, csv.Error):
        names = None
    return ScoredRecord(
        folder=folder,
        seed=seed if isinstance(seed, int) and seed >= 0 else 0,
        task=_text(_mapping(summary.get("data")).get("task")),
        group=_text(config.get("data.group")),
        threshold_rows=_text(threshold.get("chosen_on")),
        threshold=float(shared) if isinstance(shared, int | float) else None,
        nested=bool(_mapping(selection.get("nested"))),
        score_names=names,
    )


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
