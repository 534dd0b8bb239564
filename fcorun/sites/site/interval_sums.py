"""The sums over a site's rows from which intervals of coefficients follow, and which of them a site withholds.

A server that cheats can ask at a model where one row outweighs all others, so that a sum over the rows is that row.
Therefore a site withholds sums of derivatives and of squared scores that the weights of fewer patients than
``min_cell`` make up, and, unless sums are masked, names no count below ``min_cell`` but that of all rows. This hides
little: all rows less those where a column is 0 are those where it is 1, as the sum of the column says, and the gradient
at 0 tells their events.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.tables.cells import is_missing
from fcorun.experiment.build import build_problem
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.objectives.cox import Cox
from fcorun.methods.objectives.log_link import Poisson
from fcorun.methods.objectives.logistic import Logistic
from fcorun.methods.objectives.objective import LinearModel
from fcorun.methods.problem.solver import gather_site_rows
from fcorun.results.inference.sums import (
    ClusterCounts,
    ModelRows,
    row_shares,
    score_rows_or_clusters,
    sum_derivatives,
    sum_moments,
)
from fcorun.results.models.inference_problem import make_model_rows
from fcorun.sites.plan.messages.interval_messages import name_group_counts
from fcorun.sites.plan.patients import Patients, add_by_patient, are_few, effective_numbers
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.tables.table_rows import SiteTable

_SLACK = 1e-5  # between a value and 0 or 1
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class IntervalSums:
    """The sums of a site. Call under enable_x64.

    Attributes:
        objective: the losses, without a ridge.
        rows: the site's training rows, whose weights sum to the site's share in F.
        n_all: the number of training rows of all sites.
        cluster: the number of each row's cluster (n,); None: rows are independent.
        patient: the number of each row's patient, (n,); None: each row is one.
        zero, one: the values of each feature (d,) that stand for 0 and 1 in the table; NaN: there are none.
        gaps: the number of training rows with a gap in each column; 0 for few, unless masked.
        min_cell: the least count, and the least number of patients that make up a sum.
        least_clusters: the least number of clusters in a sum of squared scores.
        by_client: whether the rules on few rows hold for the rows of each client, too (``FewRowsRule``).
        masked: whether the sums are masked. Then counts below min_cell are sent as they are, and sums that are not
            finite become random numbers (``masking``).
    """

    objective: LinearModel
    rows: ModelRows
    n_all: int
    zero: np.ndarray
    one: np.ndarray
    min_cell: int
    least_clusters: int
    cluster: np.ndarray | None = None
    patient: np.ndarray | None = None
    gaps: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    masked: bool = False
    by_client: bool = False

    @classmethod
    def of_site(
        cls,
        plan: Plan,
        policy: Policy,
        experiment: PreparedExperiment,
        data: FederatedData,
        table: SiteTable,
    ) -> "IntervalSums":
        """Return the sums over a site's rows, with their weights in F. ``table`` has the gaps of each column."""
        assert plan.infer is not None
        by_group = plan.infer.cluster == "group"
        batch = gather_site_rows(data, experiment.settings.client_weighting)
        rows = make_model_rows(build_problem(experiment, data), batch)
        patient = None if data.train.group is None else np.unique(data.train.group, return_inverse=True)[1]
        encoding = data.features.encoding
        columns = () if encoding is None else encoding.columns
        gaps = np.array([table.gap_counts[column.name][:, 0].sum() for column in columns], int)
        for j, column in enumerate(columns):
            has_gap = table.masks[0] & is_missing(table.columns[column.name])
            if not plan.is_masked and table.patients.unweighted.count(has_gap) < policy.min_cell:
                gaps[j] = 0
        scaling = data.features.scaling
        zero = np.zeros(data.train.x.shape[1])
        one = np.ones(data.train.x.shape[1])
        if scaling is not None:
            zero, one = ((value - scaling.mean) * scaling.factor for value in (zero, one))
        elif data.features.standardized:
            zero = one = np.full(len(zero), np.nan)
        return cls(
            objective=replace(experiment.objective, ridge=0.0),  # type: ignore[arg-type]
            rows=rows,
            n_all=data.train.n_rows,
            zero=zero,
            one=one,
            min_cell=policy.min_cell,
            least_clusters=policy.min_rows,
            cluster=patient if by_group else None,
            patient=patient,
            gaps=gaps,
            masked=plan.is_masked,
            by_client=plan.tells_uploads,
        )

    def read_point(self, received: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the parameters (p,) of a request. Raises ValueError for arrays that are no such parameters."""
        (point,) = received.values()
        is_vector = point.shape == (self.rows.x.shape[1],) and point.dtype == np.float64
        if set(received) != {"theta"} or not is_vector or not np.isfinite(point).all():
            raise ValueError("no parameters")
        return point

    def moments(self, center: np.ndarray) -> Arrays:
        """Return the moments of the features around ``center``, with weights whose mean over all rows is 1."""
        sums = sum_moments(self.rows._replace(weight=self.rows.weight * self.n_all), center)
        return {name: np.asarray(value) for name, value in sums._asdict().items()}

    def derivatives(self, theta: np.ndarray) -> Arrays:
        """Return the loss, the gradient and the upper triangle of the Hessian; an infinite loss for withheld sums."""
        sums = sum_derivatives(self.objective, theta, self.rows)
        loss = float(sums.loss)
        gradient = sums.gradient
        hessian = sums.hessian[np.triu_indices(len(theta))]
        is_finite = np.isfinite(loss) and np.isfinite(gradient).all() and np.isfinite(hessian).all()
        if not is_finite or self._has_few_rows(theta):
            loss = np.inf
            gradient = np.full_like(gradient, np.nan)
            hessian = np.full_like(hessian, np.nan)
        return {"loss": np.asarray(loss), "gradient": gradient, "hessian": hessian}

    def squared_scores(self, theta: np.ndarray) -> Arrays:
        """Return the sum of squared scores, times the number of all rows, as an upper triangle; NaN if withheld.

        ``count``, the number of the scores, is never withheld.
        """
        scores = score_rows_or_clusters(self.objective, theta, self.rows, self.cluster)
        meat = self.n_all * (scores.T @ scores)[np.triu_indices(len(theta))]
        patient = None if self.cluster is not None else self._patient_of_row
        has_few = self._has_few_scores(scores, patient) or self._has_few_rows(theta)
        if self.by_client:
            of_clients = self._scores_of_clients(theta)
            has_few = has_few or any(self._has_few_scores(*of_client) for of_client in of_clients)
        if not np.isfinite(meat).all() or has_few:
            meat = np.full_like(meat, np.nan)
        return {"meat": meat, "count": np.asarray(len(scores))}

    @property
    def _patient_of_row(self) -> np.ndarray | None:
        """The number of the patient of each row with a weight; None: each row is one."""
        return None if self.patient is None else self.patient[self.rows.weight > 0]

    def _has_few_rows(self, theta: np.ndarray) -> bool:
        """Return whether few patients make up a sum of derivatives, of all rows or of a client."""
        client = self.rows.client if self.by_client else None
        of_all = np.zeros(len(self.rows.y), int)
        parts = [of_all] if client is None else [of_all, client.astype(int)]
        shares = row_shares(self.objective, theta, self.rows)
        return any(self._is_few(sizes, self.patient, part) for sizes in shares for part in parts)

    def _has_few_scores(self, scores: np.ndarray, patient: np.ndarray | None) -> bool:
        """Return whether few of these scores (k, p) make up the sum of their squares, or are its few clusters.

        ``patient`` is the number of the patient of each score, (k,); None: each score is one.
        """
        if self.cluster is not None and 0 < len(scores) < self.least_clusters:
            return True
        squares = scores**2
        diagonal = squares.sum(axis=0)
        sizes = (squares / np.where(diagonal > 0, diagonal, np.inf)).sum(axis=1)
        return self._is_few(sizes, patient, np.zeros(len(sizes), int))

    def _is_few(self, sizes: np.ndarray, patient: np.ndarray | None, part: np.ndarray) -> bool:
        """Return whether fewer patients than ``min_cell`` make up the sum of a part, of terms of these sizes, (k,)."""
        numbers = effective_numbers(*add_by_patient(sizes, part, patient), int(part.max(initial=0)) + 1)
        return bool(are_few(numbers, self.min_cell).any())

    def _scores_of_clients(self, theta: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Yield the scores of the rows of each client, or of its part of each cluster, (k, p), and their patients."""
        n_rows = len(self.rows.y)
        cluster = np.arange(n_rows) if self.cluster is None else self.cluster
        client = np.zeros(n_rows, int) if self.rows.client is None else self.rows.client
        part = client.astype(int) * n_rows + cluster
        scores = score_rows_or_clusters(self.objective, theta, self.rows, part)
        parts = np.unique(part[self.rows.weight > 0])
        patient = None
        if self.cluster is None and self.patient is not None:
            patient = self.patient[parts % n_rows]
        for m in np.unique(parts // n_rows):
            of_client = parts // n_rows == m
            yield scores[of_client], None if patient is None else patient[of_client]

    def count_values(self) -> Arrays:
        """Return the counts of all rows, of those at 0 and at 1 of each feature, of their events, and of gaps.

        Of a feature with other values, all rows that are not at 0 are counted in place of those at 1. Where groups are
        clusters, groups with such rows are counted, too. ``others`` and ``many`` say whether a feature has other
        values, and more than two.
        """
        has_weight = self.rows.weight > 0
        rows = self.rows.take(has_weight)
        x = rows.x[:, : len(self.zero)]
        slack = _SLACK * (self.one - self.zero)
        at_zero = np.abs(x - self.zero) <= slack
        at_one = np.abs(x - self.one) <= slack
        has_others = ~(at_zero | at_one).all(axis=0)
        masks = {"at_low": at_zero, "at_high": np.where(has_others, ~at_zero, at_one)}
        distinct = np.array([len(np.unique(column)) for column in x.T], int)
        events = np.zeros(len(x))  # of targets that are no events
        if isinstance(self.objective, Cox):
            events = (rows.y > 0).astype(float)
        elif isinstance(self.objective, Logistic | Poisson):
            events = rows.y
        arrays = {
            "rows": np.asarray(len(x)),
            "target": self._without_few(events.sum(keepdims=True), (events > 0)[:, None])[0],
            "others": has_others.astype(int),
            "many": (distinct > 2).astype(int),
            "gaps": self._without_few(self.gaps),
        }
        for name, mask in masks.items():
            n_rows = mask.sum(axis=0)
            has_event = (events > 0)[:, None]
            n_events = self._without_few(events @ mask, mask & has_event)
            if isinstance(self.objective, Logistic | Cox):
                rest = self._without_few(n_rows - events @ mask, mask & ~has_event)
                n_rows = (n_events + rest).astype(int)
            else:
                n_rows = self._without_few(n_rows, mask)
                n_events = np.where(n_rows > 0, n_events, 0.0)
            arrays |= {name: n_rows, f"target_{name}": n_events}
            if self.cluster is not None:
                groups = self._hide_few_groups(ClusterCounts.of_rows(mask, events > 0, self.cluster[has_weight]))
                sent_names = name_group_counts(name.removeprefix("at_"))
                arrays |= dict(zip(sent_names, groups, strict=True))
        return arrays

    def _hide_few_groups(self, groups: ClusterCounts) -> ClusterCounts:
        """Return the sums of disjoint counts, each without few: no difference of the counts tells of fewer groups."""
        events_alone = self._without_few(groups.rows - groups.rest)
        rest_alone = self._without_few(groups.rows - groups.events)
        both = self._without_few(groups.events + groups.rest - groups.rows)
        return ClusterCounts(events_alone + rest_alone + both, events_alone + both, rest_alone + both)

    def _without_few(self, counts: np.ndarray, selected: np.ndarray | None = None) -> np.ndarray:
        """Return counts (p,), where those below ``min_cell`` are 0 unless they are masked.

        So are those of fewer patients among the rows with a weight that are ``selected``, (n, p).
        """
        if self.masked:
            return counts
        is_few = counts < self.min_cell
        if selected is not None and self._patient_of_row is not None:
            patients = Patients(number=self._patient_of_row)
            is_few = is_few | np.array([patients.count(column) < self.min_cell for column in selected.T], bool)
        return np.where(is_few, 0, counts)
