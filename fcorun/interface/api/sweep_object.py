"""A sweep as a Python program gets it: its records, its table, and its best run."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.records.record import load_records
from fcorun.base.system.files import write_atomically
from fcorun.interface.api.python_words import check_folder
from fcorun.interface.api.run_record import RunRecord
from fcorun.reports.build_table import build_table
from fcorun.reports.page.build_page import build_page
from fcorun.reports.page.write import REPORT_FILE, key_comments

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
        """The table of the runs.

        The columns are the keys that vary, the status, each metric at the end, at its best and averaged over the last
        rounds, seconds and other counters.
        """
        return build_table(self.records).frame

    @property
    def best(self) -> RunRecord:
        """The record of the best single run by ``metric``, over all runs that are done.

        Of several seeds the best run is the luckiest: ``report`` compares averages over seeds. Raises UserError if no
        run is done with a finite value of the metric, or if runs are on different problems, which do not compare.
        """
        runs = build_table(self.records)
        metric = runs.resolve_metric(self.metric)
        is_done = runs.frame["status"].to_numpy() == "done"
        values = runs.metrics.sign(metric) * runs.tail_values(metric)
        values[~(is_done & np.isfinite(values))] = np.nan
        if np.isnan(values).all():
            raise UserError(f"{self.folder}: no run is done with a finite {metric}, so that none is the best: see "
                            "table")  # fmt: skip
        done_runs = runs.frame[is_done]
        differing = [key for key in runs.problem_keys(metric) if done_runs[key].nunique(dropna=False) > 1]
        if differing:
            raise UserError(f"{self.folder}: runs that differ in {' and '.join(differing)} do not compare by {metric}: "
                            "choose from table, or sweep one problem at a time")  # fmt: skip
        return self.records[int(np.nanargmin(values))]

    def report(self, file: str | Path | None = None) -> Path:
        """Write one page, and return its path: by default report.html in the sweep's folder.

        The page is about all records below the folder, also those of earlier sweeps. ``table`` and ``best`` are about
        the runs of this sweep alone.
        """
        check_folder(file, "file")
        path = Path(file) if file is not None else self.folder / REPORT_FILE
        records = load_records(self.folder)
        write_atomically(path, build_page([self.folder], records, metric=self.metric, comments=key_comments(records)))
        return path

    def _repr_html_(self) -> str:
        """Return the table, for a notebook."""
        return self.table.to_html()
