"""A table of runs: a row a run, its seeds folded to points, and the best point of each algorithm."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fcorun.errors import UserError, suggest_name
from fcorun.metrics import (
    CATALOGUE,
    PERSONAL_PREFIX,
    TEST_METRIC_REFUSAL,
    TEST_PREFIX,
    MetricCatalogue,
    global_name,
    structure_metrics,
)
from fcorun.reports.seed_bands import ROUNDING_TOLERANCE, SEED_KINDS, seed_band, seeds_agree

SEED_KEYS = ("seed", "data.seed")
OBJECTIVE_SECTIONS = ("reg", "objective", "client_weighting")  # the sections that say what the objective is
REGULARIZED_METRICS = ("objective", "suboptimality")  # depend on psi itself: of two strengths they do not compare
# A pandas.DataFrame. Its own type hints call each look at a column a Series or a truth value or a frame.
DataFrame = Any


@dataclass(frozen=True)
class RunTable:
    """A row a run, and what is known of all of them.

    Attributes:
        frame: the columns of ``fcorun.reports.build_table.table``.
        metrics: what is known of the metrics, those of users' own objectives too.
        titles: what pictures call the algorithms.
        varied: the keys that vary among the records of each algorithm, without seeds.
        tail_rounds: how many rounds tail averages are over, None where the records do not agree.
        cutoff: above which an entry counts as nonzero, None where they do not agree.
    """

    frame: DataFrame
    metrics: MetricCatalogue = field(default_factory=lambda: CATALOGUE)
    titles: dict[str, str] = field(default_factory=dict)
    varied_by_algo: dict[str, list[str]] = field(default_factory=dict)
    tail_rounds: int | None = None
    cutoff: float | None = None

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def varied_keys(self) -> list[str]:
        """The keys that vary."""
        names = list(self.frame)
        return names[names.index("data") + 1 : names.index("status")]

    @property
    def tail_metrics(self) -> list[str]:
        """The metrics that have a tail average."""
        return [name.removeprefix("tail_") for name in self.frame if name.startswith("tail_")]

    @property
    def seed_kind(self) -> str:
        """The word for the seeds of a band: seeds of data where the data vary, else of cohorts."""
        return SEED_KINDS["data.seed" if "data.seed" in self.varied_keys else "seed"]

    def regularizer_keys(self) -> list[str]:
        """The keys that vary and say what the objective is: of two of their values objectives do not compare."""
        return [key for key in self.varied_keys if key.split(".")[0] in OBJECTIVE_SECTIONS]

    @property
    def data_keys(self) -> list[str]:
        """The keys that say which data a run is on: the data set's name, and what varies of it but for its seed."""
        return ["data", *(key for key in self.varied_keys if key.startswith("data.") and key not in SEED_KEYS)]

    def problem_keys(self, metric: str) -> list[str]:
        """The keys of points that are not compared by a metric: those of the data, and those of ``functions``."""
        return [*self.data_keys, *self.loss_keys(metric)]

    def loss_keys(self, metric: str) -> list[str]:
        """The keys that vary and say which function a metric is: those of psi where it depends on that, of the
        objective where it is a loss. A ridge is in no loss."""
        if metric in REGULARIZED_METRICS:
            return self.regularizer_keys()
        loss = self.metrics.depends_on_objective(metric)
        return [
            key
            for key in self.regularizer_keys()
            if loss and key.split(".")[0] == "objective" and key != "objective.ridge"
        ]

    def unequal_rounds(self, metric: str) -> list[int]:
        """Of how many rounds runs are that are compared by a metric, where these differ; baselines have none."""
        if "rounds" not in self.varied_keys:
            return []
        groups = (
            self.frame[self.has_rounds()]
            .groupby(self.problem_keys(metric), sort=False, dropna=False)["rounds"]
            .unique()
        )
        return sorted({int(n) for found in groups if len(found) > 1 for n in found})

    def has_rounds(self) -> Any:
        """Which runs are done and had rounds: those of a baseline are iterations."""
        import numpy as np

        moved = np.nansum([self.column("bytes_up"), self.column("grad_evals")], axis=0) > 0
        return moved & (self.frame["status"] == "done").to_numpy()

    def to_dicts(self) -> list[dict[str, Any]]:
        """Each row by column, None where it has no value."""
        columns = [column_values(self.frame[name]) for name in self.frame]
        return [dict(zip(self.frame, values, strict=True)) for values in zip(*columns, strict=True)]

    def take(self, positions: Sequence[int]) -> "RunTable":
        """These rows only, numbered anew."""
        return replace(self, frame=self.frame.iloc[list(positions)].reset_index(drop=True))

    def algo_title(self, algo: str) -> str:
        """What pictures call an algorithm."""
        return self.titles.get(algo, algo)

    def axis_label(self, metric: str, tail: bool = False) -> str:
        """What an axis calls a metric; with the rounds of its tail if asked, and if they are known."""
        return self.metrics[metric].axis_label(self.cutoff, self.tail_rounds if tail else None)

    def column(self, name: str) -> Any:
        """A column of numbers as an array, nan where there are none."""
        import numpy as np

        return self.frame[name].to_numpy(float) if name in self.frame else np.full(len(self), np.nan)

    def tail_values(self, metric: str) -> Any:
        """tail_METRIC of each run; where clients have no own models, what is personal is that of the global one."""
        import numpy as np

        values = self.column(f"tail_{metric}")
        return np.where(np.isnan(values), self.column(f"tail_{global_name(metric)}"), values)

    def resolve_metric(self, metric: str | None) -> str:
        """The metric to judge by: ``metric``, or the headline of what was measured. Raises UserError as ``best``."""
        if metric is None:
            names = [
                name for name in self.tail_metrics if not (self.regularizer_keys() and name in REGULARIZED_METRICS)
            ]
            compared = [name for name in names if self.metrics[name].priority is not None and not self.loss_keys(name)]
            return self.metrics.default_metric(compared or names)
        if metric.removeprefix(PERSONAL_PREFIX).startswith(TEST_PREFIX):
            raise UserError(f"metric={metric} is refused: {TEST_METRIC_REFUSAL}")
        judged = [name for name in self.tail_metrics if self.metrics[name].higher is not None]
        if metric in self.tail_metrics and metric not in judged:
            raise UserError(f"metric={metric} is better in no direction; choose one of {', '.join(judged)}")
        if metric not in (judged or self.metrics.comparable):
            raise UserError(
                f"metric={metric} was not measured: {suggest_name(metric, judged or self.metrics.comparable)}"
            )
        return metric

    def fallback_metric(self, metric: str) -> str:
        """The metric if any of these runs has it, else the headline of what they have."""
        import numpy as np

        there = [name for name in self.tail_metrics if np.isfinite(self.tail_values(name)).any()]
        return metric if metric in there or not there else self.metrics.default_metric(there)

    def fold_seeds(self, metric: str) -> DataFrame:
        """The runs with their seeds folded: a row for each algorithm, data set and setting of the other keys.

        Columns: algo, data, the keys that vary but for the seeds, metric (the median over seeds of tail_METRIC), low
        and high (the ends of its band, ``fcorun.reports.seed_bands``), the medians of the figures of structure that
        go with it where there are any, seeds (how many are done), agree (whether these gave the same), status
        (diverged if any seed is), rows (the places of the runs in the table).
        """
        import numpy as np
        import pandas as pd

        chief = [key for key in self.varied_keys if key not in SEED_KEYS]
        shown = [name for name in structure_metrics(metric) if name in self.tail_metrics and name != metric]
        named = ["algo", "data", *chief]
        groups: dict[tuple, list[int]] = {}
        for place, values in enumerate(zip(*(column_values(self.frame[name]) for name in named), strict=True)):
            groups.setdefault(values, []).append(place)
        tails = {name: self.tail_values(name) for name in (metric, *shown)}
        statuses, found = list(self.frame["status"]), []
        for values, places in groups.items():
            has = [statuses[place] for place in places]
            done = [place for place in places if statuses[place] == "done" and np.isfinite(tails[metric][place])]
            status = "diverged" if "diverged" in has else "done" if done else Counter(has).most_common(1)[0][0]
            low, middle, high = seed_band(tails[metric][done]) if done else (np.nan,) * 3
            medians = [np.median(tails[name][done]) if done else np.nan for name in shown]
            seeds = [len(done), seeds_agree(tails[metric][done])]
            found.append([*values, middle, low, high, *medians, *seeds, status, places])
        columns = [*named, "metric", "low", "high", *shown, "seeds", "agree", "status", "rows"]
        return pd.DataFrame(found, columns=columns)

    def best_points(self, metric: str | None = None) -> DataFrame:
        """The best point of each algorithm on each problem by the median over seeds of tail_METRIC, as ``points``.

        A problem is a data set, and where the metric depends on psi or the loss, one of these (``apart``). A point that
        diverged with any seed is never best. ``tied`` holds the rows of each point that is as good to rounding; of
        these the lowest objective is taken, where it compares, then the first in the order of the table. An algorithm
        without a point that is done has a row that says so, and no numbers. ``metric`` is by default the headline of
        what was measured. Raises UserError for a metric that is not there or is better in no direction.
        """
        import pandas as pd

        metric = self.resolve_metric(metric)
        folded, apart = self.fold_seeds(metric), self.problem_keys(metric)
        rows = []
        for _, group in folded.groupby(["algo", *apart], sort=False, dropna=False):
            done = group[(group["status"] == "done") & group["metric"].notna()]
            if len(done):
                first, *others = self._top(done, metric)
                rows.append(folded.loc[first].to_dict() | {"tied": [folded["rows"][other] for other in others]})
            else:
                has, first = set(group["status"]), group.iloc[0]
                status = next((s for s in ("diverged", "failed", "interrupted", "running") if s in has), "unmeasured")
                told = {name: first[name] for name in ("algo", *apart)}
                rows.append(told | {"seeds": 0, "status": status, "rows": [], "tied": []})
        return pd.DataFrame(rows, columns=[*folded.columns, "tied"])

    def _top(self, done: DataFrame, metric: str) -> list[Any]:
        """Where the best of these points stand, those that are tied with the first after it."""
        import numpy as np

        best = done["metric"].max() if self.metrics[metric].higher else done["metric"].min()
        objective = self.column("tail_objective")
        size = np.nanmax(np.abs(objective[done["rows"].loc[done["metric"].idxmin()]]), initial=0)
        top = done[
            np.isclose(
                done["metric"],
                best,
                rtol=ROUNDING_TOLERANCE,
                atol=ROUNDING_TOLERANCE * size if metric == "suboptimality" else 0,
            )
        ]
        compare = "objective" in self.tail_metrics and all(
            top[key].nunique(dropna=False) == 1 for key in self.regularizer_keys()
        )
        objective = objective if compare else np.zeros(len(self))
        return sorted(top.index, key=lambda at: float(np.median(objective[top["rows"][at]])))


def column_values(column: Any) -> list:
    """The values of a column, None where it has none."""
    return [None if missing else value for value, missing in zip(column.tolist(), column.isna(), strict=True)]
