"""Tables and records from which a figure is drawn."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fcorun.base.errors import UserError
from fcorun.base.metrics import is_baseline_row
from fcorun.base.records.record import FINISHED_STATUSES, Record
from fcorun.reports.pictures.layout import CurveStyle, escape_dollars
from fcorun.reports.pictures.problem_view import ProblemView, curve_styles_of
from fcorun.reports.problem_values import fits_problem, format_problems, group_problems
from fcorun.reports.run_table import RunTable
from fcorun.studies.figures.spec import Figure


@dataclass(frozen=True)
class FigureInputs:
    """Inputs of a picture: a function that returns a matplotlib figure, or None if nothing was measured.

    Attributes:
        metric: the metric by which points of the grid are compared.
        grid, grid_records: the table of all points of the grid, and their records in the same order.
        tuned, tuned_records: the table and the records of the best point of each algorithm, with all seeds.
        seed_runs: the runs with further seeds, each with the first row of its best point in the grid.
    """

    figure: Figure
    metric: str
    grid: RunTable
    grid_records: Sequence[Record]
    tuned: RunTable
    tuned_records: Sequence[Record]
    seed_runs: Sequence[tuple[int, Record]] = ()

    @property
    def diverged(self) -> Counter:
        """The number of runs with further seeds that diverged, by algorithm."""
        ended = [row for row, record in self.seed_runs if record.status.get("status") == "diverged"]
        return Counter(self.grid.frame["algo"].iloc[ended])

    @property
    def failed(self) -> Counter:
        """The number of runs with further seeds that failed, by algorithm."""
        ended = [row for row, record in self.seed_runs if record.status.get("status") not in FINISHED_STATUSES]
        return Counter(self.grid.frame["algo"].iloc[ended])

    @property
    def records(self) -> list[Record]:
        """The records of the grid, and of the runs with further seeds that are done; each once."""
        return list(dict.fromkeys([*self.grid_records, *self.tuned_records]))

    @property
    def lost_seeds_notes(self) -> dict[str, str]:
        """A note for each algorithm that lost seeds: with how many of its seeds it diverged or failed."""
        notes = {}
        for algo, n_lost in (self.diverged + self.failed).items():
            counts = {"diverged": self.diverged[algo], "failed": self.failed[algo]}
            ends = " and ".join(f"{end} with {count}" for end, count in counts.items() if count)
            notes[algo] = f"{algo} {ends} of {self._count_done(algo) + n_lost} seeds"
        return notes

    def seeds_of(self, record: Record) -> tuple[Any, ...] | None:
        """Return the value of each seed that varies on the run's data; None if the run does not depend on them.

        The seed of cohorts of a baseline, which changes nothing, is None.
        """
        varied = self.tuned.seeds_on(record.flat_config.get("data.name", ""))
        is_baseline = is_baseline_row(record.rows[-1])
        draws_nothing = is_baseline or record.summary.get("drawn") is False
        if not varied or ([*varied] == ["seed"] and draws_nothing):
            return None
        seeds = tuple(record.flat_config.get(key) for key in varied)
        return (None, *seeds[1:]) if is_baseline and varied[0] == "seed" else seeds

    def check_one_best_point(self) -> None:
        """Raise UserError for an algorithm with several best points, whose runs would be averaged like seeds.

        Several cohorts on the same data are refused, too: they would count as repetitions of the data.
        """
        keys = [*self.tuned.condition_keys, *self.tuned.objective_keys()]
        check_one_best_point(self.figure, self.tuned, keys, self.algorithms)

    def describe_seeds(self, algo: str) -> str:
        """Say how many of its seeds an algorithm has; return an empty text if none was lost."""
        n_lost = self.diverged[algo] + self.failed[algo]
        if not n_lost:
            return ""
        n_done = self._count_done(algo)
        return f"{n_done} of {n_done + n_lost} seeds"

    def _count_done(self, algo: str) -> int:
        """Return the number of runs of an algorithm's best points that are done."""
        return int((self.tuned.frame["algo"] == algo).sum())

    @property
    def unfinished_points(self) -> int:
        """The number of runs of the grid that neither are done nor have diverged."""
        return int((~self.grid.frame["status"].isin(FINISHED_STATUSES)).sum())

    def title(self, algo: str) -> str:
        """Return the title of an algorithm as a text of matplotlib, with the number of its seeds if some were lost."""
        return escape_dollars(self._title_with_seeds(algo))

    def _title_with_seeds(self, algo: str) -> str:
        title = self.grid.algo_title(algo)
        seeds = self.describe_seeds(algo)
        return f"{title} ({seeds})" if seeds else title

    @property
    def line_styles(self) -> dict[str, CurveStyle]:
        """The style of each algorithm, the same in all figures of this table."""
        return curve_styles_of(self.grid)

    @property
    def algorithms(self) -> list[str]:
        """The algorithms to draw: those of ``figure.only`` that have a finished run."""
        finished = [name for name in self.line_styles if (self.tuned.frame["algo"] == name).any()]
        return [name for name in finished if name in (self.figure.only or finished)]

    @property
    def best_view(self) -> ProblemView:
        """The best points of the algorithms to draw, with the edges of the grid at which they lie."""
        algorithms = self.algorithms
        indices = [i for i, algo in enumerate(self.tuned.frame["algo"]) if algo in algorithms]
        titles = {algo: self._title_with_seeds(algo) for algo in self.lost_seeds_notes}
        table = replace(self.tuned.take(indices), titles=self.tuned.titles | titles)
        tuned_keys = {}
        for algo, keys in self.grid.varied_by_algo.items():
            tuned_keys[algo] = [key for key in keys if key.startswith("algo.")]
        return ProblemView(
            table,
            [self.tuned_records[i] for i in indices],
            self.metric,
            self.line_styles,
            x_axes=self.figure.x,
            panels=self.figure.panels,
            edges=self.grid_view.grid_edges(),
            tuned_keys=tuned_keys,
        )

    def split_by_condition(self) -> "list[tuple[str, FigureInputs]]":
        """Return the inputs of each combination of the sweep's conditions, with its name, such as ", data.dense=0.1".

        A run that does not depend on a condition, such as a baseline on the cohort, belongs to each of its values. Data
        of which no algorithm has several are none: claims compare algorithms that are named after their data.
        """
        composed = [run for run, record in enumerate(self.grid_records) if record.flat_config]
        of_algorithms = self.grid.frame.iloc[composed].groupby("algo")
        keys = []
        for key in self.grid.condition_keys:
            if key in self.grid.conditions or (of_algorithms[key].nunique(dropna=False) > 1).any():
                keys.append(key)
        if not keys:
            return [("", self)]
        groups = group_problems(self.grid.read_problems(keys, [[run] for run in composed]))
        tuned_problems = self.tuned.read_problems(keys, [[run] for run in range(len(self.tuned))])
        parts = []
        for (values, positions), texts in zip(groups.items(), format_problems([*groups]), strict=True):
            points = [composed[position] for position in positions]
            tuned = [run for run, problem in enumerate(tuned_problems) if fits_problem(problem, values)]
            position = {run: i for i, run in enumerate(points)}
            part = replace(
                self,
                grid=self.grid.take(points),
                grid_records=[self.grid_records[run] for run in points],
                tuned=self.tuned.take(tuned),
                tuned_records=[self.tuned_records[run] for run in tuned],
                seed_runs=[(position[row], record) for row, record in self.seed_runs if row in position],
            )
            parts.append(("".join(f", {key}={text}" for key, text in zip(keys, texts, strict=True) if text), part))
        return parts

    @property
    def grid_view(self) -> ProblemView:
        """All points of the grid."""
        return ProblemView(self.grid, self.grid_records, self.metric, self.line_styles)


def check_one_best_point(figure: Figure, table: RunTable, keys: Sequence[str], algorithms: Sequence[str]) -> None:
    """Raise UserError for runs that a figure would average like seeds: of several problems, which ``keys`` tell apart,
    or of several cohorts on the same data, which would count as repetitions of the data.
    """
    cure = "give draw: curves" + (", without verdicts" if figure.verdicts else "")
    if table.runs_of_repetitions != {1}:
        raise UserError(f"figure: {figure.draw} takes each run for a repetition, and some have the same data: zip seed "
                        f"and data.seed, or {cure}")  # fmt: skip
    if several := describe_several_best(table, keys, algorithms):
        raise UserError(f"figure: {several}, and runs of different problems have no common average: {cure}, which "
                        "draws each")  # fmt: skip


def describe_several_best(table: RunTable, keys: Sequence[str], algorithms: Sequence[str]) -> str:
    """Return "ALGO has a best point for each KEY" for the first algorithm whose rows differ in some of ``keys``.

    Returns "" if there is none.
    """
    for algo in algorithms:
        runs = table.frame[table.frame["algo"] == algo]
        varied = [key for key in keys if runs[key].nunique(dropna=False) > 1]
        if varied:
            return f"{algo} has a best point for each {' and '.join(varied)}"
    return ""
