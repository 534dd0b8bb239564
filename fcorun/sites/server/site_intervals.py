"""Intervals of the coefficients of a study: ``fcorun infer`` from sums that the sites send after the last round."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from fcorun.base.errors import UserError, abbreviate
from fcorun.base.records.tables import INTERVALS
from fcorun.base.system.files import write_atomically
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.site_rows import SiteRows
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.regularizers.regularizer import Regularizer
from fcorun.reports.pictures.forest import make_files
from fcorun.results.inference.methods import INTERVALS_FILE, INTERVALS_TEXT
from fcorun.results.inference.solution import NO_OPTIMUM_ADVICE
from fcorun.results.inference.sums import (
    ClusterCounts,
    DerivativeSums,
    MomentSums,
    PooledSums,
    RowSums,
    SquaredScores,
    ValueCounts,
)
from fcorun.results.models.fitted_record import FittedRecord
from fcorun.results.models.inference import infer_from_sums
from fcorun.results.models.inference_problem import make_problem
from fcorun.results.models.inference_table import build_table, describe, find_warnings
from fcorun.sites.plan.messages.interval_messages import Derivatives, name_group_counts
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.planned_study import MAX_DERIVATIVES, PlannedIntervals
from fcorun.sites.transport.messages import OTHER_VERSION, SiteLost, SiteRefusal


@dataclass(eq=False)
class SiteSums(RowSums):
    """The sums over the rows of all sites in some parameters, where all others are 0. Each point is asked for once.

    Attributes:
        rows: the description of the sites' training rows.
        n_features: the number of features, d.
        n_parameters: the number of parameters, p.
        n_columns: the number of columns that features come from, whose gaps are counted; 0 without an encoding.
        kept: the numbers of the parameters that the sums are in (q,).
        by_group: whether groups of rows are clusters, which are counted at the values of features.
    """

    rows: SiteRows
    n_features: int
    n_parameters: int
    n_columns: int
    kept: np.ndarray
    by_group: bool = False
    _answers: dict[tuple[str, bytes], Mapping[str, Any]] = field(default_factory=dict)

    @property
    def is_withheld(self) -> bool:
        """Return whether a site has sent no finite derivatives at a model, or has withheld them."""
        losses = [sums["loss"] for (name, _), sums in self._answers.items() if name == Derivatives.name]
        return not np.isfinite(losses).all()

    @property
    def loss_error(self) -> float:
        """The largest error of a loss, of secure sums."""
        return self.rows.sum_errors.get(Derivatives.name, 0.0)

    @property
    def hides_few(self) -> bool:
        """True where counts leave out sites with few rows, which secure sums need not do."""
        return self.rows.sum_name is None

    @property
    def usual_place(self) -> str:
        return "with another value than 0"

    def derivatives(self, theta: np.ndarray) -> DerivativeSums:
        """Return the loss, its gradient and its Hessian at ``theta``; an infinite loss where a site withholds them."""
        p = self.n_parameters
        shapes = {"loss": ((), "f"), "gradient": ((p,), "f"), "hessian": ((p * (p + 1) // 2,), "f")}
        total = self._ask(Derivatives.name, shapes, theta)
        loss = float(total["loss"])
        if not np.isfinite(loss):
            loss = np.inf
        return DerivativeSums(loss, total["gradient"][self.kept], self._symmetric(total["hessian"]))

    def scores(self, theta: np.ndarray) -> SquaredScores:
        """Return the sum of squared scores at ``theta``. Raises UserError where a site withholds them."""
        p = self.n_parameters
        total = self._ask("squared_scores", {"meat": ((p * (p + 1) // 2,), "f"), "count": ((), "i")}, theta)
        if not np.isfinite(total["meat"]).all():
            raise UserError("a site withholds its sum of squared scores, which fewer rows than policy.min_cell, or "
                            "fewer groups than policy.min_rows, make up")  # fmt: skip
        return SquaredScores(self._symmetric(total["meat"]) / self.rows.n_rows, int(total["count"]))

    def moments(self, center: np.ndarray) -> MomentSums:
        """Return the moments of the features around ``center``."""
        vector = ((self.n_parameters,), "f")
        n_rows = self.rows.n_rows
        shapes = {"rows": ((), "i"), "weight": ((), "f"), "squared_weight": ((), "f"), "first": vector}
        total = self._ask("moments", shapes | {"second": vector}, center)
        return MomentSums(
            rows=int(total["rows"]),
            weight=float(total["weight"]) / n_rows,
            squared_weight=float(total["squared_weight"]) / n_rows**2,
            first=total["first"][self.kept] / n_rows,
            second=total["second"][self.kept] / n_rows,
        )

    def two_values(self) -> tuple[np.ndarray, ValueCounts]:
        """Return whether each feature is 0 or 1 in the table (q,), and the counts of its rows at 0 and at others.

        A count of 0 may stand for a few rows of each site, so that a column of ones cannot be told from an indicator. A
        constant column that was standardized is at both values at once, and no indicator, unless its counts are hidden.
        """
        total = self._count_values()
        columns = {"others": total["others"]} | {name: total[name] for name in ValueCounts._fields[2:]}
        others, *counts = map(self._keep, columns.values())
        is_indicator = (others == 0) & (counts[0] + counts[1] <= int(total["rows"]))
        return is_indicator, ValueCounts(int(total["rows"]), float(total["target"]), *counts)

    def count_clusters(self) -> dict[str, ClusterCounts]:
        """Return the counts of groups with rows at 0 and at others of each feature (q,), where groups are clusters."""
        if not self.by_group:
            return {}
        total = self._count_values()
        return {
            value: ClusterCounts(*(self._keep(total[name]) for name in name_group_counts(value)))
            for value in ("low", "high")
        }

    def two_other_values(self) -> np.ndarray:
        """Return the numbers of the features with at most two values at each site, which are not 0 and 1."""
        total = self._count_values()
        return np.flatnonzero((total["many"] == 0) & (total["others"] > 0))

    def filled_gaps(self, columns: tuple[str, ...]) -> dict[str, float]:
        """Return the share of rows with a gap of each column."""
        total = self._count_values()
        shares = total["gaps"] / max(int(total["rows"]), 1)
        return {name: float(share) for name, share in zip(columns, shares, strict=True) if share > 0}

    def restrict(self, parameter_numbers: np.ndarray) -> "SiteSums":
        """Return the sums in some of these parameters, which have the same answers."""
        return replace(self, kept=self.kept[parameter_numbers])

    def _count_values(self) -> Mapping[str, Any]:
        counts = ((self.n_features,), "i")
        sums = ((self.n_features,), "f")
        shapes = {"rows": ((), "i"), "target": ((), "f"), "gaps": ((self.n_columns,), "i"), "others": counts}
        shapes |= {"many": counts, "at_low": counts, "at_high": counts}
        if self.by_group:
            shapes |= dict.fromkeys([*name_group_counts("low"), *name_group_counts("high")], counts)
        return self._ask("value_counts", shapes | {"target_at_low": sums, "target_at_high": sums})

    def _keep(self, counts: np.ndarray) -> np.ndarray:
        """Return the counts (q,) of the kept parameters, from those of the features (d,): 0 of an intercept."""
        return np.append(counts, np.zeros(self.n_parameters - self.n_features, counts.dtype))[self.kept]

    def _symmetric(self, triangle: np.ndarray) -> np.ndarray:
        """Return the matrix (q, q) of the matrix in all parameters whose upper triangle is given."""
        matrix = np.zeros((self.n_parameters, self.n_parameters))
        matrix[np.triu_indices(self.n_parameters)] = triangle
        return (matrix + np.triu(matrix, 1).T)[np.ix_(self.kept, self.kept)]

    def _ask(
        self, name: str, shapes: Mapping[str, tuple[tuple[int, ...], str]], theta: np.ndarray | None = None
    ) -> Mapping[str, Any]:
        """Return the sums of the answers of all sites, whose arrays have these shapes and kinds of numbers.

        Raises UserError, which names the site, for other answers, and for more requests than the plan has.
        """
        point = np.zeros(self.n_parameters if theta is not None else 0)
        if theta is not None:
            point[self.kept] = theta
        key = name, point.tobytes()
        if key in self._answers:
            return self._answers[key]
        n_asked = sum(asked == Derivatives.name for asked, _ in self._answers)
        if name == Derivatives.name and n_asked >= MAX_DERIVATIVES:
            raise UserError(f"no finite optimum was reached in {MAX_DERIVATIVES} sums of derivatives: "
                            f"{NO_OPTIMUM_ADVICE}")  # fmt: skip
        answers = self.rows.request(name, arrays={} if theta is None else {"theta": point})
        total: dict[str, Any] = {}
        for site in sorted(answers):
            sums = answers[site].arrays
            sent_shapes = {key: (values.shape, values.dtype.kind) for key, values in sums.items()}
            has_negative_counts = any((values < 0).any() for values in sums.values() if values.dtype.kind == "i")
            if sent_shapes != shapes or has_negative_counts:
                raise UserError(f"site '{site}' sent invalid sums for intervals: {OTHER_VERSION}")
            for key_of_sum, values in sums.items():
                total[key_of_sum] = total.get(key_of_sum, 0) + values
        self._answers[key] = total
        return total


def infer_over_sites(
    planned: PlannedIntervals, experiment: PreparedExperiment, data: FederatedData, record: FittedRecord
) -> list[str]:
    """Write inference.csv, its text and its pictures into the record of a run, and return lines of warnings.

    ``data`` describe the rows of the sites. Without intervals, the text says why. Raises SiteRefusal and SiteLost.
    """
    rows = data.train
    encoding = data.features.encoding
    assert isinstance(rows, SiteRows)
    columns = () if encoding is None else tuple(column.name for column in encoding.columns)
    sums = None
    try:
        with jax.enable_x64(True):
            problem = make_problem(record, experiment, data, resolved_regularizer(experiment, record))
            kept = np.arange(len(problem.theta))
            by_group = planned.cluster == "group"
            sums = SiteSums(rows, problem.n_features, len(kept), len(columns), kept=kept, by_group=by_group)
            inference = infer_from_sums(problem, planned.resolve(problem), sums)
            inference = replace(inference, filled_gaps=sums.filled_gaps(columns))
            warnings = find_warnings(inference)
            coded = [problem.feature_names[j] for j in sums.two_other_values()]
    except (SiteRefusal, SiteLost):
        raise
    except UserError as error:
        sentence = f"no intervals: {error}"
        if sums is not None and sums.is_withheld:
            sentence += (". On the way, the sums of a site at a model were not finite, or it withheld them, since "
                         "fewer rows than its policy.min_cell make them up")  # fmt: skip
        write_atomically(record.folder / INTERVALS_TEXT, f"{sentence}\n")
        return [sentence]
    if coded:
        warnings.append(f"it is unknown how many rows have each value of {abbreviate(coded)}, since the values in the "
                        "model are not 0 and 1: the interval is far too small if few rows have one of them; code "
                        "indicators as 0 and 1, without data.standardize=per_client")  # fmt: skip
    table = build_table(inference)
    lines = [f"warning: {sentence}" for sentence in warnings]
    files = make_files(table, [*describe(inference, table), *lines], experiment.picture_style)
    for name, content in files.items():
        write_atomically(record.folder / name, content)
    return lines


def resolved_regularizer(experiment: PreparedExperiment, record: FittedRecord) -> Regularizer:
    """Return the regularizer with the strength that the run had."""
    reg: Any = experiment.reg
    if reg.strength_or_none is None and reg.relative_or_none is None:
        return reg
    values = {"strength": float(record.summary["strength"])}
    return replace(reg, **values, **({"relative": None} if hasattr(reg, "relative") else {}))


def compare_intervals(plan: Plan, record: FittedRecord, data: FederatedData) -> float | None:
    """Return by how much intervals of a trial differ from those of the rows of all sites in one place, ``data``.

    This is the largest difference of an estimate or a standard error, in standard errors; None without intervals.
    """
    path = record.folder / INTERVALS_FILE
    if plan.infer is None or not path.exists():
        return None
    with jax.enable_x64(True):
        reg = resolved_regularizer(plan.experiment, record)
        problem = make_problem(record, plan.experiment, data, reg)
        by_group = plan.infer.cluster == "group"
        cluster = np.unique(data.train.group, return_inverse=True)[1] if by_group else None  # type: ignore[arg-type]
        sums = PooledSums(problem.objective, problem.rows, cluster)
        table = build_table(infer_from_sums(problem, plan.infer.resolve(problem), sums))
    over_sites = INTERVALS.read(record.folder)
    n_named = len(over_sites["estimate"])  # intercepts of clients, the last ones, are at their sites
    differences = [0.0]
    for name in ("estimate", "standard_error"):
        pooled = getattr(table, name)[:n_named]
        differences += (np.abs(pooled - np.array(over_sites[name])) / table.standard_error[:n_named]).tolist()
    return float(np.nanmax(differences))
