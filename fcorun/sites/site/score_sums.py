"""The sums over the rows of a site from which the server computes scores.csv, once for the last model of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import jax.numpy as jnp
import numpy as np

from fcorun.base.records.record import PERSONAL, SHARED
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.tables.column_roles import SPLITS
from fcorun.engine.remote.programs import number_patients, sum_shares_by_client
from fcorun.experiment.threshold_rule import DEFAULT_THRESHOLD, ThresholdRule
from fcorun.methods.objectives.objective import Objective
from fcorun.results.model_outputs import Arrays
from fcorun.results.models.client_intercepts import add_client_intercepts
from fcorun.results.models.predictions import Predictions, predict_rows
from fcorun.results.scores.calibration import sum_calibration
from fcorun.results.scores.concordance import pair_rows_of_clients
from fcorun.results.scores.ranking import BINS, EDGES, N_BINS, find_bins, spread_cells
from fcorun.results.scores.weighted_rows import find_terms
from fcorun.results.site_scores import probability_at, set_prefix
from fcorun.sites.plan.messages.score_messages import Scores
from fcorun.sites.plan.patients import Patients
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.site.request_checks import FewRowsRule
from fcorun.sites.site.site_results import sort_personal
from fcorun.sites.tables.table_description import merge_small_cells
from fcorun.sites.transport.messages import Message


def threshold_of(scored: Message | None, plan: Plan) -> float:
    """Return the probability from which on rows are flagged: a number, or what the rule of the plan has chosen.

    ``scored`` is the request for scores, whose "edge" is the score that the rule of the plan has chosen; None if none
    has come. Raises ValueError for anything but an edge of a bin, and for an edge that the plan does not need.
    """
    rule = ThresholdRule.parse(plan.experiment.settings.threshold)
    if not rule.needs_rows:
        if scored is not None and scored.about:
            raise ValueError("an edge that the plan does not need")
        return rule.value
    if scored is None:
        return DEFAULT_THRESHOLD
    edge = scored.about["edge"]
    if type(edge) is not float or edge not in EDGES.tolist():
        raise ValueError("no edge of a bin of scores")
    return probability_at(plan.experiment.objective, edge)


@dataclass(frozen=True)
class ScoreSums:
    """The sums of scores of models at a site, each row of data once.

    Attributes:
        data: the site's rows by themselves.
        model: the parameters of the shared model by name; None: the algorithm trains none.
        min_cell: the least patients of a cell of a histogram, and of rows that make up a sum of a calibration.
        masked: whether the sums are masked. Cells are then counted at the lowest and at the highest bins of their rows,
            since such counts of all sites can be added; and no sum of a calibration is left out, which masks cannot do.
        threshold: the probability from which on a row is assigned to the positive class.
        personal: the parameters of the personal models of the data's clients by name, with a leading axis of clients;
            None: the algorithm trains none.
    """

    objective: Objective
    data: FederatedData
    model: Arrays | None
    min_cell: int
    masked: bool = False
    threshold: float = DEFAULT_THRESHOLD
    personal: Arrays | None = None

    @classmethod
    def of_request(
        cls,
        request: Message,
        plan: Plan,
        policy: Policy,
        own_data: FederatedData,
        personal: Mapping[str, np.ndarray] | None,
    ) -> "ScoreSums":
        """Return the sums of a site's rows for a request with a model. Raises ValueError like ``threshold_of``.

        ``personal`` has the personal models of the site's clients as a record has them; None: the plan trains none.
        """
        model = None
        if plan.experiment.has_shared_model:
            model = add_client_intercepts(plan.experiment, own_data, dict(request.arrays))
        threshold = threshold_of(request, plan) if request.name == Scores.name else DEFAULT_THRESHOLD
        return cls(
            plan.experiment.objective,
            own_data,
            model,
            policy.min_cell,
            masked=plan.is_masked,
            threshold=threshold,
            personal=None if personal is None else sort_personal(personal, own_data.clients),
        )

    def check_few_rows(self, message: str, rule: FewRowsRule) -> None:
        """Raise FewRowsError where few rows of a set outweigh all others in losses at its model, or in errors."""
        for predictions in self._sets.values():
            client = jnp.asarray(predictions.client_numbers)
            output = jnp.asarray(predictions.output)
            weight = jnp.ones(len(client), output.dtype)
            shares = [predictions.objective.row_shares(output, jnp.asarray(predictions.y), weight, client)]
            rows = predictions.to_scored_rows()
            if rows.task.is_quantity and rows.is_judged:
                errors = jnp.abs(jnp.asarray(rows.target - rows.prediction))
                shares.append(jnp.stack([errors, errors]))  # of squares, whatever the objective
            n_clients = len(predictions.client_groups[0])
            patient = number_patients(predictions.group)
            for of_rows in shares:
                sums = sum_shares_by_client(of_rows, client, n_clients, patient)[None]
                rule.check(message, sums, split=predictions.split)

    @cached_property
    def _sets(self) -> dict[str, Predictions]:
        """The predictions of each model for each set of rows that the site has."""
        predictions = predict_rows(self.objective, self.data, self.model, self.personal)
        return {set_prefix(p.split, p.model): replace(p, threshold=self.threshold) for p in predictions if len(p)}

    def sum_scores(self) -> dict[str, np.ndarray]:
        """Return the sums of losses and scores over the rows of each set, as SET_NAME.

        Few pairs of rows of one client, which are not masked, count as none.
        """
        arrays = {}
        for key, predictions in self._sets.items():
            rows = predictions.to_scored_rows()
            sums = {"n": np.asarray(len(predictions))}
            sums |= {name: np.asarray(values.sum()) for name, values in predictions.losses.items()}
            sums |= {name: np.asarray(values.sum(axis=-1)) for name, values in find_terms(rows).items()}
            if "positive" in sums:
                sums |= self._count_classes(predictions)
            if "events" in sums:
                of_event, pairs_of_event = pair_rows_of_clients(rows).count_pairs()
                concordant = round(2 * of_event.sum())  # so that a pair with equal predictions counts once
                pairs = int(pairs_of_event.sum())
                if pairs < self.min_cell and not self.masked:
                    concordant = 0
                    pairs = 0
                sums |= {"pairs": np.asarray(pairs), "concordant_twice": np.asarray(concordant)}
            arrays |= {f"{key}_{name}": values for name, values in sums.items()}
        return arrays

    def count_scores(self) -> dict[str, np.ndarray]:
        """Return the counts of the shared model's scores of the validation rows in bins, by class."""
        predictions = self._sets.get(set_prefix("validation", SHARED))
        return {} if predictions is None else self._count_classes(predictions)

    def _count_classes(self, predictions: Predictions) -> dict[str, np.ndarray]:
        """Return the counts of scores in bins, by class; a cell below ``min_cell`` is added to that of a later bin."""
        cells = {}
        for name, k in zip(BINS, (1, 0), strict=True):
            of_class = predictions.y == k
            patients = Patients(number=number_patients(predictions.group)).take(of_class)
            merged = merge_small_cells(find_bins(predictions.output[of_class]), N_BINS, max(self.min_cell, 1), patients)
            if merged.sum() < of_class.sum():  # all together are below
                merged[-1] = of_class.sum()
            cells[name] = np.asarray(spread_cells(merged) if self.masked else merged, np.int32)
        return cells

    def sum_calibration(self, points: Mapping[str, np.ndarray], n_points: int) -> dict[str, np.ndarray]:
        """Return the sums of a calibration over the rows of sets, at up to ``n_points`` points each.

        For regressions, a point is a unit, a center of the targets and one of the predictions; the sums are those of
        squares and products around the centers, in the unit. Raises ValueError for what is no such point.
        """
        task = self.data.target_task
        length = 5
        scale = 1
        if task.is_quantity:
            length = 3
            scale = 0
        models = {SHARED: self.model, PERSONAL: self.personal}
        kinds = [kind for kind, model in models.items() if model is not None]
        sets = {set_prefix(split, kind) for split in SPLITS for kind in kinds}  # of all sites; this one may lack some
        is_calibrated = task.is_quantity or task.has_two_classes
        if not is_calibrated or not points or not set(points) <= sets:
            raise ValueError("no sets of a calibration")
        for values in points.values():
            is_shaped = values.ndim == 2 and 1 <= len(values) <= n_points and values.shape[1] == length
            if not is_shaped or values.dtype != np.float64 or not np.isfinite(values).all():
                raise ValueError("no points of a calibration")
            if not (values[:, scale] > 0).all():
                raise ValueError("no scale")
        arrays = {}
        for key, predictions in self._sets.items():
            sums = []
            for point in points.get(key, ()):
                if task.has_two_classes:
                    score = predictions.output.astype(float)
                    least = 0 if self.masked else self.min_cell
                    sums.append(sum_calibration(predictions.y, score, point, least, number_patients(predictions.group)))
                    continue
                rows = predictions.to_scored_rows()
                if not rows.is_judged:
                    raise ValueError("an objective without expected targets")
                target = (rows.target - point[1]) / point[0]
                mean = (rows.prediction - point[2]) / point[0]
                sums.append(np.array([(target**2).sum(), (target * mean).sum(), (mean**2).sum()]))
            if sums:
                arrays[key] = np.stack(sums)
        return arrays
