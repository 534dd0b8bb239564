"""The fitted model of a table that the clinical page describes: its run, and the selection of its strength."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fcorun.base.records.contents import ENCODING, SELECTION
from fcorun.base.records.formats import READ_ERRORS
from fcorun.base.records.record import REFIT_FOLDER, STABILITY_FILE, Record
from fcorun.base.records.tables import COEFFICIENTS, INTERVALS, SCORES
from fcorun.data.tables.encoding import Encoding
from fcorun.data.tables.label_file import label_column, label_features
from fcorun.data.tasks import Task, find_task, find_tasks
from fcorun.reports.page.elements import parse_float, read_table
from fcorun.reports.page.models import begin_intervals, interval_columns
from fcorun.results.models.coefficients import find_ratio_name
from fcorun.results.score_intervals.score_table import ScoreIntervals

HELD_OUT_SETS = {"test": "test rows", "validation": "validation rows", "out_of_fold": "out of fold"}


@dataclass(frozen=True)
class FittedTableModel:
    """A finished run on a table with named columns, and the folder of the selection that chose its strength, if any."""

    record: Record
    selection_folder: Path | None = None

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json."""
        return self.record.summary_or_empty

    @property
    def data(self) -> dict[str, Any]:
        """The section on the data in summary.json."""
        return self.summary["data"]

    @property
    def is_over_sites(self) -> bool:
        """The flag of a run whose rows stay at their sites."""
        return "sites" in self.data

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration with dotted keys, lists as lists."""
        flat = {}
        for section, values in self.record.config.items():
            if isinstance(values, Mapping):
                flat |= {f"{section}.{key}": value for key, value in values.items()}
            else:
                flat[section] = values
        return flat

    @cached_property
    def selection(self) -> dict[str, Any]:
        """The content of selection.json; empty without a selection."""
        return SELECTION.read(self.selection_folder) if self.selection_folder else {}

    @cached_property
    def choice(self) -> dict[str, Any]:
        """The choice of the strength as the record tells it, by the keys of selection.json; empty if it was given.

        A refit that is shown alone has its selection beside it. The summary tells of a choice by ``study.strength``,
        and of that of a study over sites.
        """
        if self.selection:
            return self.selection
        folder = self.record.folder.resolve()
        if folder.name == REFIT_FOLDER and "metric" in (about := SELECTION.read(folder.parent)):
            return about
        about = self.summary.get("selection")
        if not isinstance(about, dict):
            return {}
        by = "data.fold" if self.config.get("data.fold") else "rows"
        of_run = {"param_name": "strength", "chosen": about.get("strength"), "by": by}
        return of_run | {"group": self.config.get("data.group")} | about

    @cached_property
    def encoding(self) -> Encoding:
        """The columns of the table that are features; without columns if the record does not describe them."""
        try:
            return Encoding.from_dict(ENCODING.read(self.record.folder))
        except (KeyError, TypeError, ValueError):
            return Encoding(())

    @cached_property
    def labels(self) -> dict[str, str]:
        """The label of each feature."""
        return label_features(self.encoding, self.data.get("labels") or {})

    def label(self, column: str, with_unit: bool = True) -> str:
        """Return the label of a column."""
        return label_column(column, self.data.get("labels") or {}, with_unit)

    @property
    def task(self) -> Task:
        """The task of the targets."""
        return find_task(self.data["task"])

    @property
    def has_coefficients_by_class(self) -> bool:
        """The flag of a model with coefficients for each class, so that no feature has one number."""
        return self.task.has_classes and not (self.task.has_two_classes or self.task.has_order)

    @property
    def outcome(self) -> str:
        """The outcome in words. Binary: "target: positive class". Survival: the event. Else the target."""
        target = self.label(str(self.config["data.target"]), with_unit=self.task.is_quantity)
        if self.task.has_two_classes and len(self.data.get("classes") or ()) == 2:
            return f"{target}: {self.data['classes'][1]}"
        event = self.config.get("data.event")
        return self.label(str(event)) if self.task.has_events and event else target

    @property
    def client_word(self) -> str:
        """The label of the column of clients, else "client"."""
        column = self.config.get("data.client")
        return self.label(str(column)) if column else "client"

    @property
    def ratio_name(self) -> str:
        """The name of exp(coefficient), or "" of a model whose coefficients are differences."""
        return find_ratio_name(str(self.config.get("objective.class")))

    @cached_property
    def coefficients(self) -> list[dict[str, Any]]:
        """The rows of coefficients.csv."""
        return read_table(COEFFICIENTS, self.record.folder)

    @cached_property
    def intervals(self) -> list[dict[str, Any]]:
        """The rows of inference.csv."""
        return read_table(INTERVALS, self.record.folder)

    @cached_property
    def held_out_scores(self) -> list[dict[str, Any]]:
        """The rows of scores.csv on held-out rows: of the record, then those out of fold of the selection.

        Scores with an interval have columns NAME_low and NAME_high.
        """
        rows = [row for folder in self._folders for row in read_table(SCORES, folder)]
        columns = {}
        for intervals in self.score_intervals:
            columns |= interval_columns(intervals)
        rows = [row | columns.get((row.get("set"), row.get("model"), row.get("client")), {}) for row in rows]
        return [row for name in HELD_OUT_SETS for row in rows if row.get("set") == name]

    @cached_property
    def score_intervals(self) -> list[ScoreIntervals]:
        """The intervals of the scores of the record, and of the selection."""
        waits = [begin_intervals(folder) for folder in self._folders]
        return [intervals for wait in waits if (intervals := wait())]

    @property
    def _folders(self) -> list[Path]:
        """The folder of the record, then that of the selection."""
        return [self.record.folder, *([self.selection_folder] if self.selection_folder else [])]

    @cached_property
    def outcome_rows(self) -> list[dict[str, Any]]:
        """The rows and events, or the mean and deviation of the target, by "set" and "client".

        Older records and those over sites have counts of rows and events alone, by their scores.
        """
        if self.data.get("outcome"):
            return list(self.data["outcome"])
        rows = []
        for score in read_table(SCORES, self.record.folder):
            counts: dict[str, Any] = {"set": score["set"], "client": score["client"], "rows": int(score.get("n") or 0)}
            events = parse_float(score.get("events") or counts["rows"] * parse_float(score.get("prevalence")))
            rows.append(counts if events != events else counts | {"events": round(events)})
        return list({(row["set"], row["client"]): row for row in rows}.values())


def find_table_model(records: Sequence[Record], study_folders: Sequence[Path]) -> FittedTableModel | None:
    """Return the fitted model of a table that a page is about; None for a page about something else.

    The page is about one finished run, and at most one study, the selection of which the run is the refit.
    """
    if len(records) != 1 or len(study_folders) > 1:
        return None
    (record,) = records
    selection_folder = study_folders[0] if study_folders else None
    if selection_folder is not None:
        is_selection = "metric" in SELECTION.read(selection_folder)
        is_refit = record.folder.resolve() == (selection_folder / REFIT_FOLDER).resolve()
        if not is_selection or not is_refit or (selection_folder / STABILITY_FILE).exists():
            return None
    model = FittedTableModel(record, selection_folder)
    try:
        task = find_tasks().get(model.data.get("task", ""))
        is_table = model.data.get("feature_names") and model.config["data.target"]
    except (*READ_ERRORS, KeyError, AttributeError):
        return None
    if not is_table or task is None or record.status.get("status") != "done":
        return None
    return model


def format_share(part: float, whole: float) -> str:
    """Return a share in percent; "" if ``whole`` is 0."""
    if not whole:
        return ""
    percent = 100 * part / whole
    if part in (0, whole):
        return f"{percent:.0f} %"
    if percent < 0.1 or percent > 99.9:
        return "< 0.1 %" if percent < 0.1 else "> 99.9 %"
    return f"{percent:.0f} %" if 9.95 <= percent < 99.5 else f"{percent:.1f} %"
