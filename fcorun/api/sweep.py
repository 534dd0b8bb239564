"""A sweep as a Python program gets it: its records, its table, and its best run."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fcorun.api.messages import check_folder
from fcorun.api.record import RunRecord
from fcorun.errors import UserError
from fcorun.records.record import load_records
from fcorun.reports.build_table import build_table
from fcorun.reports.page.build import build_page
from fcorun.reports.page.write import REPORT_FILE, key_comments
from fcorun.system.files import write_atomically

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Sweep:
    """The runs of a sweep.

    Attributes:
        folder: the folder of the sweep, with results.csv and the pictures.
        record_folders: the folders of the records, in the order of the combinations.
        metric: the metric that ranks the runs; None: the most important one that was measured.
    """

    folder: Path
    record_folders: Sequence[Path]
    metric: str | None = None

    def __repr__(self) -> str:
        return f"Sweep('{self.folder}', {len(self.record_folders)} runs)"

    @cached_property
    def records(self) -> list[RunRecord]:
        """The records of the runs, in the order of the combinations."""
        return [RunRecord(folder) for folder in self.record_folders]

    @cached_property
    def table(self) -> "pd.DataFrame":
        """The table of the runs: numbers that differ, statuses, and metrics averaged over the last rounds."""
        return build_table(self.records).frame

    @property
    def best(self) -> RunRecord:
        """The record of the best run by ``metric``. Raises UserError if no run is done."""
        runs = build_table(self.records)
        metric = runs.resolve_metric(self.metric)
        values = runs.metrics.sign(metric) * runs.tail_values(metric)
        values[runs.frame["status"].to_numpy() != "done"] = np.nan
        if np.isnan(values).all():
            raise UserError(f"{self.folder}: no run is done, so that none is the best: see table")
        return self.records[int(np.nanargmin(values))]

    def report(self, file: str | Path | None = None) -> Path:
        """Write one page about the sweep, and return its path: by default report.html in the sweep's folder."""
        check_folder(file, "file")
        path = Path(file) if file is not None else self.folder / REPORT_FILE
        records = load_records(self.folder)
        write_atomically(path, build_page([self.folder], records, metric=self.metric, comments=key_comments(records)))
        return path

    def _repr_html_(self) -> str:
        """Return the table, for a notebook."""
        return self.table.to_html()
