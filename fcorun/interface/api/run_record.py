"""Records, intervals and sweeps as a Python program gets them: with tables, curves, predictions and a page."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import numpy as np

from fcorun.base.config import CurveAxis, build, import_classes
from fcorun.base.errors import UserError, check_type, describe_type
from fcorun.base.metrics import from_summaries
from fcorun.base.records import record
from fcorun.base.records.record import Record
from fcorun.base.records.sweep_settings import load_settings
from fcorun.base.records.tables import COEFFICIENTS
from fcorun.base.system.files import write_atomically
from fcorun.data.datasets.dataset import Dataset
from fcorun.data.rows.sparse_matrix import SparseMatrix
from fcorun.data.tables.cells import read_names
from fcorun.data.tables.parsed_table import FileOptions, mask_codes
from fcorun.interface.api.progress import ExperimentWarning
from fcorun.interface.api.python_words import (
    check_folder,
    names_of_configuration,
    names_of_record,
    python_words,
)
from fcorun.reports.build_table import build_table
from fcorun.reports.page.build_page import build_page
from fcorun.reports.page.elements import embed_picture
from fcorun.reports.page.write import REPORT_FILE, key_comments
from fcorun.reports.pictures.forest import draw_forest, make_files
from fcorun.reports.pictures.layout import style_context
from fcorun.reports.pictures.run_curves import RunView, draw
from fcorun.reports.run_table import RunTable
from fcorun.results.models.fitted_record import FittedRecord
from fcorun.results.models.inference_problem import InferenceOptions
from fcorun.results.models.inference_table import InferenceTable
from fcorun.results.models.meta_analysis import compute_record_intervals

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike
    from scipy.sparse import sparray, spmatrix


@dataclass(frozen=True, eq=False, repr=False)
class Intervals:
    """Intervals of a record's coefficients, see ``fcorun infer``.

    Attributes:
        table: the intervals.
        description: what ``fcorun infer`` prints above its table: the method, the rows, the distance of the record
            from the certified solution, sources and tests, one sentence a line.
        warnings: what a reader of the intervals must know.
        style: the style of the picture.
    """

    table: InferenceTable
    description: str
    warnings: list[str]
    style: str = "paper"

    @property
    def frame(self) -> "pd.DataFrame":
        """The intervals by feature, as in inference.csv, all numbers as floats."""
        import pandas as pd

        columns = list(self.table.columns)
        frame = pd.DataFrame(self.table.to_rows(), columns=columns)
        numbers = [name for name in columns if name not in ("feature", "method", "label")]
        return frame.astype(dict.fromkeys(numbers, float)).set_index("feature")

    def plot(self) -> "Figure":
        """Return the forest plot, as in inference.png."""
        with style_context(self.style):
            return draw_forest(self.table)

    def save(self, folder: str | Path) -> None:
        """Write inference.csv, .txt, .png and .pdf into a folder. Raises UserError for a folder that is no path."""
        check_folder(folder)
        if folder is None:
            raise UserError("folder is None: give a path, a text or a pathlib.Path")
        Path(folder).mkdir(parents=True, exist_ok=True)
        sentences = [self.description, *(f"warning: {sentence}" for sentence in self.warnings)]
        for name, content in make_files(self.table, sentences, self.style).items():
            write_atomically(Path(folder) / name, content)

    def __repr__(self) -> str:
        return self.description

    def _repr_html_(self) -> str:
        return self.frame._repr_html_()  # type: ignore[operator]


class RunRecord(FittedRecord):
    """The record of a run: its folder, and all that is in it. Users know the class as ``fcorun.Record``."""

    @property
    @python_words(names_of_record)
    def coefficients(self) -> "pd.DataFrame":
        """The coefficients of a linear model by feature, in the units of the features, as in coefficients.csv.

        Raises UserError for a model without coefficients by name, and for a file that cannot be read.
        """
        file = self.folder / "coefficients.csv"
        if not file.is_file():
            reason = "its model is not linear"
            if self.status.get("status") != "done":
                reason = f"it is {self.status.get('status', 'no record')}"
            raise UserError(f"{self.folder} has no coefficients.csv, for {reason}: see status and solution")
        import pandas as pd

        return pd.DataFrame(COEFFICIENTS.read(self.folder))

    @python_words(names_of_record)
    def estimator(self, client: str | None = None, trust: str | Path | None = None) -> Any:
        return super().estimator(client, trust)

    @python_words(names_of_record)
    def encode(self, frame: Any) -> Any:
        """Return the features of rows as ``estimator`` takes them, with the warnings of ``predict`` on columns.

        Columns of a DataFrame are found by name, text is encoded and gaps are filled as in this record; features are
        not standardized. Columns of an array (n, d), which may be of scipy.sparse, are in the order of the record. The
        column of clients may be in the DataFrame. Raises UserError.
        """
        from fcorun.results.models.predict import select_features

        if hasattr(frame, "tocsr"):
            return select_features(SparseMatrix.from_scipy(frame, "rows").csr, self, "rows")[0]
        rows = _to_frame(frame, self).drop(columns=self.config["data"].get("client") or [], errors="ignore")
        features, sentences = select_features(rows, self, "the frame")
        _warn(sentences)
        return features

    @python_words(names_of_record)
    def predict(
        self,
        rows: "pd.DataFrame | np.ndarray | sparray | spmatrix",
        clients: "ArrayLike | None" = None,
        offset: "ArrayLike | None" = None,
        at: float | None = None,
        baseline: str | None = None,
    ) -> "pd.DataFrame":
        """Return predictions for new rows, as ``fcorun predict`` does; doubtful rows are flagged and warned of.

        Args:
            rows: a DataFrame with the features by name, or an array or a matrix of scipy.sparse (n, d) in their order;
                not standardized. The predictions have the index of the DataFrame.
            clients: the client of each row, (n,), for records with personal models or scalings. None: the column of
                clients of a DataFrame that has one.
            offset: the offset of each row, (n,), for a record of arrays with offsets.
            at: a time, for a record of times to events: adds ``survival_at_TIME``, the probability of no event
                until then.
            baseline: the client whose baseline hazard clients without one have; None: that of all training rows.

        Raises UserError for a record that is not done, for rows that lack features, and for an offset of a record
        without offsets.
        """
        import pandas as pd

        from fcorun.results.models.predict import predict

        sparse = SparseMatrix.from_scipy(rows, "rows").csr if hasattr(rows, "tocsr") else None
        frame = _to_frame(rows, self) if sparse is None else pd.DataFrame(index=range(sparse.shape[0]))
        source = "the frame" if sparse is None else "rows"
        if not len(frame):
            raise UserError("there are no rows to predict for: give at least one")
        column = self.config["data"].get("client")
        if column in frame:
            clients = frame[column] if clients is None else clients
            frame = frame.drop(columns=column)
        if clients is not None:
            clients = _column_of(clients, "clients", len(frame))
        if offset is not None:
            column = self.config["data"].get("offset")
            if column is None:
                raise UserError("this record has no offsets: leave offset out")
            frame = frame.assign(**{column: _column_of(offset, "offset", len(frame))})
        index = frame.index
        frame = frame.reset_index(drop=True)
        predictions, sentences = predict(self, frame, clients, source, at=at, baseline=baseline, sparse=sparse)
        _warn(sentences)
        return predictions.set_index(index)

    @python_words(names_of_record)
    def infer(
        self,
        method: str = "auto",
        level: float = 0.95,
        cluster: str = "auto",
        errors: str = "robust",
        seed: int = 0,
        imputations: int = 0,
        data: Dataset | None = None,
        trust: str | Path | None = None,
    ) -> Intervals:
        """Return intervals for the coefficients at the certified solution, as ``fcorun infer`` does.

        Those of a meta-analysis are of its combined estimates, and have the option ``level`` alone.

        Args:
            method: "debiased", "wald" or "split"; "auto": debiased with a penalty, wald without one.
            level: the confidence level.
            cluster: the rows that may depend on each other: "none", those of a "client" or of a "group"; "auto": those
                of a group if the data have groups and errors are robust.
            errors: "robust" standard errors hold if the model is wrong, those of the "model" if its likelihood is
                right.
            seed: the seed of the halves of "split", and of the imputations.
            imputations: the number of data sets whose gaps are filled by chained equations, of which estimates without
                a penalty are pooled; 0: gaps are filled as in the record.
            data: the rows of a record of arrays or of a frame, as ``from_arrays`` or ``from_frame`` made them.
            trust: the folder from which classes are imported that the record names, as in ``run``.

        Raises UserError for a record without a certified solution, and for data that have changed.
        """
        check_type(data, (Dataset, NoneType), "data", "give what from_arrays or from_frame made of the rows")
        check_folder(trust, "trust")
        if trust is not None:
            import_classes(self.config, trust)
        values = {"method": method, "level": level, "cluster": cluster, "errors": errors, "seed": seed,
                  "imputations": imputations}  # fmt: skip
        found = compute_record_intervals(self, build(InferenceOptions, values), data)
        _warn(found.warnings)
        return Intervals(found.table, "\n".join(found.description), found.warnings, self.picture_style)

    @property
    def warnings(self) -> list[str]:
        """The sentences that a reader of this record should know: on the experiment, its data and its end."""
        reason = self.status.get("reason")
        return [*self.summary.get("warnings", []), *([reason] if reason else [])]

    @python_words(names_of_record)
    def plot(self, x: CurveAxis = "rounds") -> "Figure":
        """Return the curves of the run, as in curves.png.

        Args:
            x: the horizontal axis: "rounds", "bytes", "grad_evals", "seconds" or "simulated_seconds".

        Raises UserError for a run that did not count ``x``.
        """
        with style_context("paper"):
            metrics = from_summaries([self.summary])
            figure = draw(RunView(self.rows, self.picture_title, self.config["cutoff"], x, metrics))
            figure.draw_without_rendering()  # the ticks are made in the style
        return figure

    @python_words(names_of_record)
    def report(self, file: str | Path | None = None) -> Path:
        """Write one page about the run, and return its path: by default report.html in the record's folder."""
        return _write_page(self.folder, [self], file)

    @property
    def label(self) -> str:
        """The plug-ins and numbers of the run in one line."""
        return str(self.status.get("label", self.folder.name))

    def __repr__(self) -> str:
        status = self.status.get("status", "no record")
        return f"Record('{self.folder}', {status})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the status, the last evaluation, and the curves."""
        status = self.status
        sentence = f"{self.label}: {status.get('status', 'there is no record yet')}"
        if reason := status.get("reason"):
            sentence += f" ({reason})"
        html = f"<p>{escape(sentence)}<br>{escape(str(self.folder))}</p>"
        rows = self.rows
        if not rows:
            return html
        names = "".join(f"<th>{escape(name)}</th>" for name in rows[-1])
        values = "".join(f"<td>{value:.6g}</td>" for value in rows[-1].values())
        picture = embed_picture(self.folder / "curves.png", "curves.png")
        return f'{html}<table><tr>{names}</tr><tr>{values}</tr></table><div style="max-width: 700px">{picture}</div>'


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
    def _runs(self) -> RunTable:
        """The runs, averaged over the ``tail_rounds`` of this sweep, whatever finished records were made with."""
        settings = load_settings(self.folder)
        return build_table(self.records, settings.tail_rounds, conditions=settings.conditions)

    @cached_property
    def table(self) -> "pd.DataFrame":
        """The table of the runs.

        The columns are the keys that vary, the status, each metric at the end, at its best and averaged over the last
        rounds, seconds and other counters.
        """
        return self._runs.frame

    @property
    def best(self) -> RunRecord:
        """The record of the best point by ``metric``; of several seeds, that of the best one, which is the luckiest.

        The best point is that of the report: points are compared by their medians over seeds, and none that diverged
        with a seed is the best. Baselines, such as the solver of all rows, are left out unless all runs are of them.
        Raises UserError if no other point is done with a finite value of the metric, or if runs are on different
        problems, which do not compare.
        """
        runs = self._runs
        metric = runs.resolve_metric(self.metric)
        points = runs.without_baselines(runs.best_points(metric))
        points = points[points["seeds"] > 0]
        if not len(points):
            raise UserError(f"{self.folder}: no run of a method is done with a finite {metric}, so that none is the "
                            "best: see table")  # fmt: skip
        differing = [key for key in runs.problem_keys(metric) if points[key].nunique(dropna=False) > 1]
        if differing:
            raise UserError(f"{self.folder}: runs that differ in {' and '.join(differing)} do not compare by {metric}: "
                            "choose from table, or sweep one problem at a time")  # fmt: skip
        sign = runs.metrics.sign(metric)
        best = points.loc[(sign * points["metric"]).idxmin()]
        costs = sign * runs.tail_values(metric)
        return self.records[min(best["rows"], key=lambda run: costs[run])]

    def report(self, file: str | Path | None = None) -> Path:
        """Write one page, and return its path: by default report.html in the sweep's folder.

        The page is about all records below the folder, also those of earlier sweeps. ``table`` and ``best`` are about
        the runs of this sweep alone.
        """
        return _write_page(self.folder, record.load_records(self.folder), file, self.metric)

    def _repr_html_(self) -> str:
        """Return the table, for a notebook."""
        return self.table.to_html()


def _write_page(folder: Path, records: Sequence[Record], file: str | Path | None, metric: str | None = None) -> Path:
    """Write one page about records in a folder, by default into the folder, and return its path."""
    check_folder(file, "file")
    path = Path(file) if file is not None else folder / REPORT_FILE
    write_atomically(path, build_page([folder], records, metric=metric, comments=key_comments(records)))
    return path


def _warn(sentences: Iterable[str]) -> None:
    """Pass sentences to Python's ``warnings``, as those of the line that called a decorated method of a record."""
    for sentence in sentences:
        warnings.warn(sentence, ExperimentWarning, stacklevel=4)


def _to_frame(rows: object, record: Record) -> "pd.DataFrame":
    """Return rows as a DataFrame, with columns as text where these are the names of the record's features.

    Cells of a DataFrame with the record's codes of missing values (``na``) are gaps.

    Raises UserError for anything but a DataFrame or an array (n, d).
    """
    import pandas as pd

    from fcorun.results.models.predict import list_feature_columns

    if isinstance(rows, pd.DataFrame):
        if rows.columns.nlevels > 1 or not rows.columns.is_unique:
            raise UserError("the columns of the rows have several levels, or one name twice: give each one name")
        named = rows.rename(columns=str)  # as from_frame does
        data = record.config["data"]
        names = [data.get("client"), *(data.get("keep") or ())]
        columns = list_feature_columns(record)
        options = FileOptions.for_new_rows(data)
        named = named.rename(columns=options.find_renamed(list(named.columns), columns, "the rows"))
        mask_codes(named, options.codes_by_column(list(named.columns), names))
        return named if columns and named.columns.is_unique and set(columns) <= set(named.columns) else rows
    if not isinstance(rows, (np.ndarray, list)) or np.ndim(rows) != 2:
        raise UserError(f"the rows are {describe_type(rows)}: give a pandas.DataFrame, or an array (n, d)")
    return pd.DataFrame(rows)


def _column_of(values: "ArrayLike", argument: str, n_rows: int) -> np.ndarray:
    """Return the values of an argument as an array (n_rows,). Raises UserError for another shape."""
    import pandas as pd

    column = np.asarray(values)
    if column.shape != (n_rows,):
        raise UserError(f"{argument} has shape {column.shape}, and there are {n_rows} rows: give one value for each")
    if argument != "clients":
        return column
    return read_names(pd.Series(column))


@python_words(names_of_configuration)
def load_records(*roots: str | Path) -> list[RunRecord]:
    """Load the records in and under these folders, in the order of their paths. Raises UserError without a folder."""
    return [RunRecord(loaded.folder) for loaded in record.load_records(*roots)]
