"""A table of runs, one a row; its points, with a band over seeds; and the best point of each algorithm."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fcorun.base.config import concerns_baselines
from fcorun.base.errors import UserError, suggest_name
from fcorun.base.metrics import (
    CATALOGUE,
    COUNTERS,
    GAP_METRICS,
    PERSONAL_PREFIX,
    TEST_METRIC_REFUSAL,
    TEST_PREFIX,
    MetricCatalogue,
    global_name,
    structure_metrics,
)
from fcorun.reports.problem_values import OPEN, format_problems
from fcorun.reports.repetitions import Replicate, group_repetitions

DATA_SEED_KEYS = ("data.split_seed", "data.seed")  # with another value a run has other rows
SEED_KEYS = ("seed", *DATA_SEED_KEYS)
OBJECTIVE_SECTIONS = ("reg", "objective", "client_weighting")  # sections whose values define the objective
CHOSEN_STRENGTH = "chosen_strength"  # the column of the strengths that runs chose by ``study.strength``
REGULARIZED_METRICS = ("objective", *GAP_METRICS)  # depend on psi: two strengths do not share them
MIN_SEEDS_FOR_QUANTILES = 10  # from so many seeds on, the band leaves out a tenth at each end
# the random part that each key of a seed draws
SEED_KINDS = {"seed": "seeds of cohorts", "data.split_seed": "seeds of splits", "data.seed": "seeds of data"}
ROUNDING_TOLERANCE = 1e-6  # relative; values that differ by less are equal
# A pandas.DataFrame. By the type hints of pandas, a column may be a frame or a single value, too.
DataFrame = Any


def changes_function(key: str, metric: str, metrics: MetricCatalogue = CATALOGUE) -> bool:
    """Return whether a key changes the function which a metric evaluates, so that its values do not compare.

    Every key that defines the objective changes a metric that depends on psi, and those of the section ``objective``
    change a loss, except the ridge, which is in no loss. Metrics of training rows are means over clients, weighted by
    ``client_weighting``.
    """
    section = key.partition(".")[0]
    if metric in REGULARIZED_METRICS:
        return section in OBJECTIVE_SECTIONS
    if section == "client_weighting":
        return global_name(metric).startswith("train_")
    return section == "objective" and key != "objective.ridge" and metrics.depends_on_objective(metric)


@dataclass(frozen=True)
class RunTable:
    """A table of runs with the columns of ``build_table``, and the properties that all runs share.

    Attributes:
        frame: the rows, a run each.
        metrics: the metrics of the runs, with those that users' objectives declare.
        titles: the names of algorithms in pictures.
        tail_rounds: the number of rounds that tail averages are over, None if the records do not agree.
        cutoff: the value above which an entry counts as nonzero, None if the records do not agree.
        renamed_data: the names of data of other rows or other code under one name, each with its digest.
        has_stopped: whether some run has met its target, so that its tail averages are its last values.
        reads_files: whether some data come from files, whose rows a seed of data only divides.
        cap: the bytes of uploads at which methods are compared; None: at the ends of their runs. With a cap, tail
            averages are the values at the last evaluation under it (``fcorun.reports.byte_cap``).
        conditions: the keys that a sweep has called conditions, of the world and not of a method, and the varied keys
            that are by themselves, as of privacy: no point is chosen among their values.
        seeds_of_data: by data set, the keys of seeds that vary among all runs on it, from cohorts to data: the last one
            makes independent repetitions, also where a method has lost all runs but those of one value.
    """

    frame: DataFrame
    metrics: MetricCatalogue = field(default_factory=lambda: CATALOGUE)
    titles: dict[str, str] = field(default_factory=dict)
    tail_rounds: int | None = None
    cutoff: float | None = None
    renamed_data: Sequence[str] = ()
    has_stopped: bool = False
    reads_files: bool = False
    conditions: Sequence[str] = ()
    seeds_of_data: Mapping[str, Sequence[str]] = field(default_factory=dict)
    cap: float | None = None

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def varied_keys(self) -> list[str]:
        """The keys that vary among the runs."""
        names = list(self.frame)
        return names[names.index("data") + 1 : names.index("status")]

    @property
    def varied_by_algo(self) -> dict[str, list[str]]:
        """The keys that vary among the runs of each algorithm, without seeds."""
        keys = [key for key in self.varied_keys if key not in SEED_KEYS]
        by_algo = {}
        for algo, runs in self.frame.groupby("algo"):
            by_algo[algo] = [key for key in keys if len(set(map(str, column_values(runs[key])))) > 1]
        return by_algo

    @property
    def tail_metrics(self) -> list[str]:
        """The metrics that have a tail average."""
        return [name.removeprefix("tail_") for name in self.frame if name.startswith("tail_")]

    @property
    def varied_seeds(self) -> list[str]:
        """The keys of seeds that vary, from cohorts to data."""
        return [key for key in SEED_KEYS if key in self.varied_keys]

    def seeds_on(self, data: str) -> Sequence[str]:
        """Return the keys of seeds that vary on a data set, from cohorts to data."""
        return self.seeds_of_data.get(data, self.varied_seeds)

    @cached_property
    def replicates(self) -> list[Replicate]:
        """The replicate of each run. A baseline that draws nothing by ``seed`` is run once for all its values."""
        keys = self.varied_seeds
        if not keys:
            return [()] * len(self)
        keys_of_runs = [self.seeds_on(data) for data in self.frame["data"]]
        columns = {key: column_values(self.frame[key]) for key in keys}
        replicates = [tuple(columns[key][run] for key in own) for run, own in enumerate(keys_of_runs)]
        if "seed" in keys:
            others = [*self._point_keys, *(key for key in keys if key != "seed")]
            n_seeds = self.frame.groupby(others, dropna=False)["seed"].transform("nunique").to_numpy()
            for run in np.flatnonzero(self.are_baselines() & (n_seeds == 1)):  # others draw folds, or imputed values
                if "seed" in keys_of_runs[run]:
                    replicates[run] = (None, *replicates[run][1:])
        return replicates

    def group_repetitions(self, runs: Sequence[int]) -> list[list[int]]:
        """Return the runs of each independent repetition among those of one point, given by their positions."""
        groups = group_repetitions([self.replicates[run] for run in runs])
        return [[runs[position] for position in group] for group in groups]

    @property
    def runs_of_repetitions(self) -> set[int]:
        """The numbers of runs of one point in one independent repetition; {1} unless seeds are crossed."""
        if len(self.varied_seeds) < 2:
            return {1}
        sizes = set()
        drawn = np.flatnonzero(~self.are_baselines())
        for positions in self.frame.iloc[drawn].groupby(self._point_keys, dropna=False).indices.values():
            sizes |= set(map(len, self.group_repetitions(drawn[positions].tolist())))
        return sizes or {1}

    @property
    def seed_kind(self) -> str:
        """The kind of seeds that a band is over: seeds of data or of splits if these vary, else seeds of cohorts.

        If each stands for the mean of several runs, as of other cohorts on the same data, their number follows.
        """
        kind = self.varied_seeds[-1] if self.varied_seeds else "seed"
        text = SEED_KINDS[kind]
        if kind in DATA_SEED_KEYS and self.reads_files:
            text = "divisions of the same rows"
        sizes = self.runs_of_repetitions
        if sizes == {1}:
            return text
        return f"{text}, each the mean of {'' if len(sizes) == 1 else 'up to '}{max(sizes)} runs"

    @property
    def _point_keys(self) -> list[str]:
        """The keys that tell points apart."""
        return ["algo", "data", *(key for key in self.varied_keys if key not in SEED_KEYS)]

    def objective_keys(self) -> list[str]:
        """Return the varied keys that define the objective: between two of their values objectives do not compare."""
        return [key for key in self.varied_keys if key.split(".")[0] in OBJECTIVE_SECTIONS]

    @property
    def data_keys(self) -> list[str]:
        """The keys that tell data apart: the name of the data set, and varied keys of ``data`` except its seeds."""
        return ["data", *(key for key in self.varied_keys if key.startswith("data.") and key not in SEED_KEYS)]

    @property
    def condition_keys(self) -> list[str]:
        """The keys that say what the world is: ``data_keys``, and the conditions that vary."""
        varied = [key for key in self.conditions if key in self.varied_keys]
        return list(dict.fromkeys((*self.data_keys, *varied)))

    def problem_keys(self, metric: str) -> list[str]:
        """Return the keys that tell problems apart: points on different problems are not compared by ``metric``."""
        return list(dict.fromkeys((*self.condition_keys, *self.function_keys(metric))))

    @property
    def open_conditions(self) -> list[str]:
        """The varied conditions on which no baseline depends, such as cohort and uplink: empty in rows of baselines."""
        return [key for key in self.condition_keys if not concerns_baselines(key)]

    def read_problems(self, keys: Sequence[str], members: Iterable[Sequence[int]]) -> list[tuple[Any, ...]]:
        """Return the values of keys of each member, which the positions of its runs give: of a point, or of one run.

        A value is None where it is null, and OPEN for a condition on which the runs do not depend.
        """
        are_baselines = self.are_baselines()
        columns = {key: column_values(self.frame[key]) for key in keys}
        open_keys = [key for key in self.open_conditions if key in columns]
        problems = []
        for runs in members:
            values = {key: column[runs[0]] for key, column in columns.items()}
            if are_baselines[list(runs)].any():
                values |= dict.fromkeys(open_keys, OPEN)
            problems.append(tuple(values.values()))
        return problems

    def name_null_conditions(self, points: DataFrame) -> DataFrame:
        """Return points whose conditions say null where they are; empty where a baseline does not depend on them."""
        named = {}
        for key in (key for key in self.condition_keys if key in self.conditions and key in points):
            problems = self.read_problems([key], points["runs"])
            if (None,) in problems:
                cells = zip(problems, points[key].tolist(), strict=True)
                named[key] = ["null" if value is None else cell for (value,), cell in cells]
        return points.assign(**named)

    def tell_points_apart(self, points: Sequence[Mapping[str, Any]], metric: str) -> list[str]:
        """Return the problem of each best point, " (clients_per_round=null)"; "" for the only one of its algorithm."""
        keys = [key for key in self.problem_keys(metric) if self.frame[key].nunique(dropna=False) > 1]
        texts = format_problems(self.read_problems(keys, [point["runs"] for point in points]), digits=15)
        points_of = Counter(point["algo"] for point in points)
        problems = []
        for point, values in zip(points, texts, strict=True):
            parts = [f"{key}={text}" for key, text in zip(keys, values, strict=True) if text]
            problems.append(f" ({', '.join(parts)})" if parts and points_of[point["algo"]] > 1 else "")
        return problems

    @property
    def shown_frame(self) -> DataFrame:
        """The rows as tables and files show them, see ``name_null_conditions``."""
        points = self.frame.assign(runs=[[run] for run in range(len(self))])
        return self.name_null_conditions(points).drop(columns="runs")

    def function_keys(self, metric: str) -> list[str]:
        """Return the varied keys that change the function which a metric evaluates.

        Where runs chose their strengths, metrics that depend on psi are another function in each ``chosen_strength``.
        """
        keys = [key for key in self.varied_keys if changes_function(key, metric, self.metrics)]
        if metric in REGULARIZED_METRICS and CHOSEN_STRENGTH in self.frame:
            keys.append(CHOSEN_STRENGTH)
        return keys

    def is_one_function_of(self, keys: Iterable[str], metric: str) -> bool:
        """Return whether a metric evaluates the same function at all values of keys, and at all chosen strengths."""
        if CHOSEN_STRENGTH in self.function_keys(metric):
            return False
        return not any(changes_function(key, metric, self.metrics) for key in keys)

    def is_one_function(self, metric: str) -> bool:
        """Return whether a metric evaluates the same function in all runs."""
        return all(self.frame[key].nunique(dropna=False) < 2 for key in self.function_keys(metric))

    def unequal_rounds(self, metric: str) -> list[int]:
        """Return the different numbers of rounds of runs that are compared by a metric; [] if all are equal.

        Baselines do not count: they have no rounds. Under a cap on bytes rounds are not compared.
        """
        if "rounds" not in self.varied_keys or self.cap is not None:
            return []
        runs = self.frame[self.has_rounds()]
        by_problem = runs.groupby(self.problem_keys(metric), sort=False, dropna=False)["rounds"].unique()
        return sorted({int(count) for counts in by_problem if len(counts) > 1 for count in counts})

    def unlike_rounds(self, metric: str) -> list[str]:
        """Return the algorithms whose rounds are single uploads, as of an asynchronous server, where other runs that
        are compared by a metric have rounds of a cohort; [] if all rounds are alike, and under a cap on bytes.
        """
        if self.cap is not None:
            return []
        is_upload = np.isfinite(self.column("mean_staleness"))
        runs = self.frame.assign(is_upload=is_upload)[self.has_rounds()]
        algos: dict[str, None] = {}
        for _, group in runs.groupby(self.problem_keys(metric), sort=False, dropna=False):
            if group["is_upload"].nunique() > 1:
                algos |= dict.fromkeys(group["algo"][group["is_upload"]])
        return [*algos]

    def has_rounds(self) -> Any:
        """Return for each run whether it is done and had communication rounds, not a baseline's iterations."""
        return (self.frame["status"] == "done").to_numpy() & ~self.are_baselines()

    def are_baselines(self) -> Any:
        """Return for each run whether it is done without communication rounds, as a baseline is."""
        worked = np.nansum([self.column("bytes_up"), self.column("grad_evals")], axis=0) > 0
        return (self.frame["status"] == "done").to_numpy() & ~worked

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return each row of ``shown_frame`` as a dictionary by column, with None for an empty cell."""
        frame = self.shown_frame
        return frame.astype(object).where(frame.notna(), None).to_dict("records")

    def without_baselines(self, points: DataFrame) -> DataFrame:
        """Return best points without those of baselines, against which no method wins, unless there are no others."""
        are_baselines = self.are_baselines()
        of_methods = [not are_baselines[rows].any() for rows in points["rows"]]
        return points[of_methods] if any(of_methods) else points

    def take(self, positions: Sequence[int]) -> "RunTable":
        """Return a table of the rows at these positions, with a new index."""
        return replace(self, frame=self.frame.iloc[list(positions)].reset_index(drop=True))

    def algo_title(self, algo: str) -> str:
        """Return the name of an algorithm in pictures."""
        return self.titles.get(algo, algo)

    def axis_label(self, metric: str, tail: bool = False) -> str:
        """Return the label of a metric's axis, with the rounds of the tail average if ``tail``."""
        return self.metrics[metric].axis_label(self.cutoff, self.tail_rounds if tail else None)

    def column(self, name: str) -> Any:
        """Return a column of numbers as an array, nan where cells are empty or the column is missing."""
        return self.frame[name].to_numpy(float) if name in self.frame else np.full(len(self), np.nan)

    def tail_values(self, metric: str) -> Any:
        """Return tail_METRIC of each run.

        For a personal metric, runs without personal models have the value of the shared model.
        """
        values = self.column(f"tail_{metric}")
        return np.where(np.isnan(values), self.column(f"tail_{global_name(metric)}"), values)

    def resolution(self, metric: str) -> Any:
        """Return for each run the difference of a metric below which it is rounding: 0 but for gaps to the optimum."""
        return np.nan_to_num(self.column("resolution")) if metric in GAP_METRICS else np.zeros(len(self))

    def resolve_metric(self, metric: str | None) -> str:
        """Return the metric to judge by: ``metric``, or the default for the metrics that were measured.

        Raises UserError for a metric that was not measured although others were, that has no better direction, or that
        is of the test. If none was measured, any metric with a better direction is returned.
        """
        if metric is None:
            names = self.tail_metrics
            if self.function_keys("objective"):
                names = [name for name in names if name not in REGULARIZED_METRICS]
            compared = [name for name in names if self.metrics[name].priority is not None]
            compared = [name for name in compared if not self.function_keys(name)]
            return self.metrics.default_metric(compared or names)
        if metric.removeprefix(PERSONAL_PREFIX).startswith(TEST_PREFIX):
            raise UserError(f"`metric={metric}` is refused: {TEST_METRIC_REFUSAL}")
        measured = [name for name in self.tail_metrics if self.metrics[name].higher is not None]
        if CHOSEN_STRENGTH in self.function_keys(metric):
            raise UserError(f"`metric={metric}` is another function at each strength, and `study.strength` chose one "
                            "in each run: give `metric=val_loss` or another that does not depend on psi")  # fmt: skip
        if metric in self.tail_metrics and metric not in measured:
            raise UserError(
                f"`metric={metric}` has no better direction, higher or lower; choose one of {', '.join(measured)}"
            )
        choices = measured or self.metrics.comparable
        if metric not in choices:
            raise UserError(f"`metric={metric}` was not measured: {suggest_name(metric, choices)}")
        return metric

    def fallback_metric(self, metric: str) -> str:
        """Return the metric if any of these runs measured it, else the default for what they measured."""
        measured = [name for name in self.tail_metrics if np.isfinite(self.tail_values(name)).any()]
        if metric in measured or not measured:
            return metric
        return self.metrics.default_metric([name for name in measured if self.is_one_function(name)] or measured)

    def fold_seeds(self, metric: str) -> DataFrame:
        """Return the points: a row for each algorithm, data set and setting of the varied keys except seeds.

        Columns: algo, data, the varied keys except seeds; metric (the median over seeds of tail_METRIC), low and high
        (the ends of its band, ``seed_band``); the medians of the metrics of structure of the same models, if measured;
        seeds (the number of independent repetitions that are done, each the mean of its runs), done (the number of its
        runs that are done and measured), agree (True if these gave equal values), status (diverged if any seed is),
        rows (the positions of its runs; of a point that is done and measured, of these alone), runs (of all its runs).
        """
        if metric not in self._points_by_metric:
            self._points_by_metric[metric] = self._fold_seeds(metric)
        return self._points_by_metric[metric].copy()

    @cached_property
    def _points_by_metric(self) -> dict[str, DataFrame]:
        """The points of ``fold_seeds`` by metric: tables, notes and pictures ask for the same ones."""
        return {}

    def _fold_seeds(self, metric: str) -> DataFrame:
        import pandas as pd

        keys = self._point_keys
        structure = [name for name in structure_metrics(metric) if name in self.tail_metrics and name != metric]
        runs_of_point: dict[tuple, list[int]] = {}
        for run, values in enumerate(zip(*(column_values(self.frame[key]) for key in keys), strict=True)):
            point = tuple((isinstance(value, bool), value) for value in values)  # True equals 1
            runs_of_point.setdefault(point, []).append(run)
        tails = {name: self.tail_values(name) for name in (metric, *structure)}
        resolution = self.resolution(metric)
        statuses = list(self.frame["status"])
        points = []
        for point, runs in runs_of_point.items():
            counts = Counter(statuses[run] for run in runs)
            done = [run for run in runs if statuses[run] == "done" and np.isfinite(tails[metric][run])]
            if "diverged" in counts:
                status = "diverged"
            elif done:
                status = "done"
            else:
                status = counts.most_common(1)[0][0]
            repetitions = self.group_repetitions(done)
            means = {name: average_runs(values, repetitions) for name, values in tails.items()}
            low, median, high = seed_band(means[metric]) if done else (np.nan, np.nan, np.nan)
            medians = [np.median(means[name]) if done else np.nan for name in structure]
            agree = seeds_agree(tails[metric][done], resolution[done].max(initial=0))
            rows = done if done and status == "done" else runs
            values = [value for _, value in point]
            points.append(
                [*values, median, low, high, *medians, len(means[metric]), len(done), agree, status, rows, runs]
            )
        columns = [*keys, "metric", "low", "high", *structure, "seeds", "done", "agree", "status", "rows", "runs"]
        return pd.DataFrame(points, columns=columns)

    def best_points(self, metric: str | None = None) -> DataFrame:
        """Return the best point of each algorithm on each problem by the median over seeds of tail_METRIC.

        The columns are those of ``fold_seeds`` and ``tied``: the rows of each point that is as good to rounding. Among
        tied points the lowest objective wins, if objectives compare, then the order of the table. A point that diverged
        with any seed is never best, nor one that has fewer runs than another point, which a few lucky seeds would make
        best. An algorithm without a point that is done has a row with its status and no numbers. Raises UserError as
        ``resolve_metric``.
        """
        import pandas as pd

        metric = self.resolve_metric(metric)
        points = self.fold_seeds(metric)
        problem_keys = self.problem_keys(metric)
        rows = []
        for _, group in points.groupby(["algo", *problem_keys], sort=False, dropna=False):
            done = group[(group["status"] == "done") & group["metric"].notna()]
            if len(done):
                best, *tied = self._find_best(done[done["done"] == done["done"].max()], metric)
                rows.append(points.loc[best].to_dict() | {"tied": [points["rows"][point] for point in tied]})
                continue
            statuses = set(group["status"])
            first = group.iloc[0]
            by_severity = ("diverged", "failed", "interrupted", "running")
            status = next((status for status in by_severity if status in statuses), "unmeasured")
            row = {name: first[name] for name in ("algo", *problem_keys, "runs")}
            rows.append(row | {"seeds": 0, "status": status, "rows": [], "tied": []})
        return pd.DataFrame(rows, columns=[*points.columns, "tied"])

    def _find_best(self, done: DataFrame, metric: str) -> list[Any]:
        """Return the index of the best of these points, followed by the points that are tied with it."""
        best = done["metric"].max() if self.metrics[metric].higher else done["metric"].min()
        objective = self.column("tail_objective")
        runs = done["rows"].loc[done["metric"].idxmin()]
        tolerance = self.resolution(metric)[runs].max(initial=0)
        tied = done[np.isclose(done["metric"], best, rtol=ROUNDING_TOLERANCE, atol=tolerance)]
        same_objective = self.take([run for rows in tied["rows"] for run in rows]).is_one_function("objective")
        if "objective" not in self.tail_metrics or not same_objective:
            objective = np.zeros(len(self))

        def median_objective(point: Any) -> float:
            return float(np.median(objective[tied["rows"][point]]))

        return sorted(tied.index, key=median_objective)


def align_seeds(runs: Sequence[Sequence[dict[str, float]]]) -> list[list[dict[str, float]]]:
    """Return the rows of several seeds at the same rounds, those that all seeds evaluated while they ran.

    A seed that met its target, or converged, before the others stays where it ended: a curve over seeds that ended with
    the first of them would not show that the others had not arrived. Its counters, such as bytes, are then NaN, since
    those of the seeds that go on say where a later round is.
    """
    row_of_round = [{row["round"]: row for row in rows} for rows in runs]
    rounds = sorted(set().union(*row_of_round))
    aligned: list[list[dict[str, float]]] = [[] for _ in runs]
    for r in rounds:
        rows = [by_round.get(r) or _row_at_end(by_round, r) for by_round in row_of_round]
        known = [row for row in rows if row is not None]
        if len(known) == len(runs):
            for seed_rows, row in zip(aligned, known, strict=True):
                seed_rows.append(row)
    return aligned


def _row_at_end(row_of_round: dict[float, dict[str, float]], later: float) -> dict[str, float] | None:
    """Return the last row of a run as that of a ``later`` round; None if the run went on after it."""
    last = max(row_of_round)
    if later <= last:
        return None
    row = row_of_round[last]
    return row | {name: np.nan for name in COUNTERS if name in row} | {"round": later}


def average_runs(values: Any, repetitions: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the mean of the values of all runs (n,) over the runs of each repetition, given by their positions."""
    return np.array([np.mean([values[run] for run in runs]) for runs in repetitions])


def average_evaluations(runs: Sequence[list[dict[str, float]]]) -> list[dict[str, float]]:
    """Return the mean over runs of the rows that ``align_seeds`` gives; of one run, its rows."""
    if len(runs) == 1:
        return runs[0]
    averaged = []
    for rows in zip(*align_seeds(runs), strict=True):
        averaged.append({name: float(np.mean([row.get(name, np.nan) for row in rows])) for name in rows[0]})
    return averaged


def seed_band(values: Any) -> tuple[Any, Any, Any]:
    """Return the low end, the median and the high end over seeds, the first axis.

    The ends are the least and the largest value of fewer than ten seeds, else the 10 % and 90 % quantiles.
    """
    levels = (0.1, 0.5, 0.9) if len(values) >= MIN_SEEDS_FOR_QUANTILES else (0.0, 0.5, 1.0)
    low, median, high = np.quantile(values, levels, axis=0)
    return low, median, high


def describe_band(seeds: Iterable[int], kind: str = "seeds") -> str:
    """Return the label of the bands of points with these numbers of seeds; ``kind`` as in "seeds of data"."""
    counts = sorted(set(seeds))
    if counts[0] >= MIN_SEEDS_FOR_QUANTILES:
        ends = "10-90 %"
    elif counts[-1] < MIN_SEEDS_FOR_QUANTILES:
        ends = "range"
    else:
        ends = f"range (10-90 % from {MIN_SEEDS_FOR_QUANTILES} on)"
    return f"{ends} over {' or '.join(map(str, counts))} {kind}"


def seeds_agree(values: Any, resolution: float = 0.0) -> bool:
    """Return True if several seeds gave equal values up to rounding, or to the ``resolution`` of their metric."""
    return len(values) > 1 and bool(np.isclose(values, values[0], rtol=ROUNDING_TOLERANCE, atol=resolution).all())


def column_values(column: Any) -> list:
    """Return the values of a column, None for an empty cell."""
    return [None if missing else value for value, missing in zip(column.tolist(), column.isna(), strict=True)]


def is_number(value: Any) -> bool:
    """Return whether a cell is a number: no text, no truth value, and not empty."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def format_number(value: Any, digits: int = 4) -> str:
    """Return a cell of a table as text, "" for an empty one, a float with so many significant digits."""
    if isinstance(value, float):  # without pandas, whose import takes longer than many commands
        return "" if value != value else f"{value:.{digits}g}"
    import pandas as pd

    if pd.api.types.is_scalar(value) and pd.isna(value):
        return ""
    return str(value)


@dataclass(frozen=True)
class GridEdge:
    """A key of an algorithm's best point whose value is the largest (or smallest) tried.

    ``problem`` tells the point from other best points of the algorithm, as ``RunTable.tell_points_apart``.
    """

    algo: str
    problem: str
    key: str
    value: float
    is_largest: bool

    def __str__(self) -> str:
        tried, beyond = ("largest", "larger") if self.is_largest else ("smallest", "smaller")
        return f"{self.algo}{self.problem}: best {self.key}={self.value:g} is the {tried} tried: try {beyond}"


def find_grid_edges(table: RunTable, metric: str) -> list[GridEdge]:
    """Return the edges at which best points lie, for each key with several numbers.

    Values that diverged were tried: a best point next to them is at the edge of convergence, not of the grid. A point
    is at no edge if a point that is tied with it lies inside, nor at 0, nor at 1 of a count. Only the numbers of the
    same choice count where a choice varies, as of ``aggregate``, which has keys and defaults of its own.
    """
    problem_keys = table.problem_keys(metric)
    groups = table.fold_seeds(metric).groupby(["algo", *problem_keys], sort=False, dropna=False)
    edges = []
    best_points = table.best_points(metric).to_dict("records")
    problems = table.tell_points_apart(best_points, metric)
    for row, problem, (_, group) in zip(best_points, problems, groups, strict=True):
        if not row["seeds"]:
            continue
        group = group[group["status"].isin(("done", "diverged"))]
        best_runs = {tuple(runs) for runs in (row["rows"], *row["tied"])}
        best = group[[tuple(runs) in best_runs for runs in group["rows"]]]
        for key in table.varied_keys:
            if key in SEED_KEYS or key in problem_keys:
                continue
            section, is_option, _ = key.partition(".")
            peers = group
            if is_option and section in table.varied_keys:
                peers = group[group[section].isin(set(best[section]))]
            tried = sorted(set(filter(is_number, peers[key])))
            is_count = all(isinstance(number, int) for number in filter(is_number, column_values(table.frame[key])))
            best_values = [value for value in best[key] if is_number(value)]
            if len(tried) < 2 or len(best_values) < len(best):
                continue
            if set(best_values) == {tried[-1]}:
                edges.append(GridEdge(row["algo"], problem, key, tried[-1], True))
            elif set(best_values) == {tried[0]} and tried[0] != 0 and not (is_count and tried[0] <= 1):
                edges.append(GridEdge(row["algo"], problem, key, tried[0], False))
    return edges
