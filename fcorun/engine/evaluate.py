"""Metrics of a solution w, and of the clients' personal models."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Shaped

from fcorun.base.errors import UserError
from fcorun.base.metrics import PERSONAL_PREFIX, QUANTILE_SUFFIXES, RANKING_METRICS
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.features import to_device
from fcorun.data.rows.row_groups import Ranking, RowGroups
from fcorun.engine.device_rows import SubsetView, client_row_table, row_extras, scatter, targets_to_device
from fcorun.methods.algorithms.algorithm import Algorithm, PyTree
from fcorun.methods.problem.duality_gap import pooled_gap
from fcorun.methods.problem.problem import Batch, Problem, Vector

_BATCH_NUMBERS = 2**23  # entries of x of the clients whose personal models are evaluated together
_MAX_PREDICTIONS = 2**23  # of the nodes whose models are evaluated together
Examples = Any  # (N, d), an array or sparse rows
Targets = Shaped[Array, " N"]
Metrics = dict[str, Float[Array, ""]]
MAX_RANKED_ROWS = 100_000  # sorting more rows would take longer than the rest of an evaluation
_PREDICTIONS = "predictions of validation rows"  # keys of what is measured until ``Evaluation.complete``
_BY_CLIENT = "of each client: "  # a prefix


class Measured(NamedTuple):
    """The results of an evaluation of one run, or of several along leading axes.

    Attributes:
        metrics: the metrics by name, each (...,).
        by_client: losses and scores by name on the rows of each client, (..., M), NaN of a client without such rows.
            The shared model is measured on the rows of clients without training rows, too, which follow. Empty without
            ``client_metrics``.
    """

    metrics: dict[str, Any]
    by_client: dict[str, Float[np.ndarray, "*runs M"]]


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a problem on a data set: ``arrays`` go to the device, ``measure`` is pure, to be jitted.

    Attributes:
        subset: the indices of training and validation rows among the rows on the device, if the data are a subset.
        gap: whether the duality gap is one of the metrics.
        by_client: whether the loss of a row depends on other rows of its client.
        client_metrics: whether losses and scores of each client are measured.
        ranked_from: the round from which runs have AUC and average precision; these are NaN before.
    """

    data: FederatedData
    client_weighting: str
    cutoff: float
    subset: SubsetView | None = None
    gap: bool = False
    by_client: bool = False
    client_metrics: bool = False
    ranked_from: int = 0

    def arrays(self, dtype, personal: bool = False) -> dict[str, jax.Array]:
        """Put validation rows, row weights and the truth on the device, to be passed with the training rows.

        For ``personal`` models add each client's truth, the weights of clients, and the indices of their rows; sites
        have arrays of their own, ``fcorun.engine.remote.personal_models``.
        """
        data, subset = self.data, self.subset
        weight = data.train.objective_weights(self.client_weighting)
        arrays: dict[str, Any] = {}
        if subset is not None:
            count = len(subset.y)
            arrays["weight"] = scatter(weight, subset.train_rows, count)
            if data.validation is not None and len(subset.validation_rows):
                arrays["held_out_weight"] = scatter(data.validation.mean_weights(), subset.validation_rows, count)
            if data.train.offset is not None:
                arrays["offset"] = scatter(data.train.offset, subset.train_rows, count)
                if data.validation is not None and data.validation.offset is not None:
                    arrays["offset"] += scatter(data.validation.offset, subset.validation_rows, count)
            if self.by_client and data.train.client is not None:
                arrays["client"] = np.zeros(count, np.int32)  # also of rows outside of the subset
                arrays["client"][subset.train_rows] = data.train.client
                if data.validation is not None and data.validation.client is not None:
                    arrays["client"][subset.validation_rows] = data.validation.client
        elif (resident := replace(data.train, weight=weight).resident) is not None:
            arrays |= row_extras(resident)
            if self.by_client and resident.client is not None:
                arrays["client"] = resident.client
            if data.validation is not None:
                validation = replace(data.validation, weight=data.validation.mean_weights()).local
                arrays["x_val"] = to_device(validation.x, dtype)
                arrays["y_val"] = targets_to_device(data, validation.y, dtype)
                arrays |= {f"{name}_val": values for name, values in row_extras(validation).items()}
                if self.by_client and validation.client is not None:
                    arrays["client_val"] = validation.client
        if self.client_metrics:
            arrays["client_number_train"] = data.train.known_client
            if data.validation is not None:
                arrays["client_number_val"] = data.validation.known_client
        for name, value in (data.truth or {}).items():
            arrays["true_" + name] = np.asarray(value)
        if personal and not data.train.stays_at_sites:
            for name, values in (data.client_truths or {}).items():
                arrays["client_true_" + name] = np.asarray(values)
            arrays |= self._client_arrays(weight)
        for name, value in arrays.items():
            converted = isinstance(value, jax.Array) or value.dtype.kind == "i"
            arrays[name] = jax.device_put(value if converted else value.astype(dtype))
        return arrays

    def _client_arrays(self, weight: np.ndarray) -> dict[str, np.ndarray]:
        """Return the indices of each client's training and validation rows, and the clients' weights in each split."""
        data, train_rows, validation_rows, width = self.data, None, None, 0
        if self.subset is not None:
            train_rows, validation_rows = self.subset.train_rows, self.subset.validation_rows
            width = int(self.subset.max_client_rows.max())
        arrays = {
            "client_rows_train": client_row_table(data.train.offsets, train_rows, width),
            "client_weight_train": data.train.sum_by_client(weight),
        }
        if data.validation_offsets is not None:
            client_weights = self.validation_client_weights
            arrays["client_rows_val"] = client_row_table(data.validation_offsets, validation_rows, width)
            arrays["client_weight_val"] = client_weights / max(client_weights.sum(), np.finfo(float).tiny)
        return arrays

    def measure(
        self, problem: Problem, w: Vector, x: Any, y: Any, extra: dict, sums: dict[str, dict] | None = None
    ) -> Metrics:
        """Compute all metrics of w, each a scalar, and what ``complete`` makes more metrics of.

        x (N, d) and y (N,) are the training rows, or all rows of which the training rows are a subset. They are None
        where the ``sums`` over the rows of each split are known. Sites measure the duality gap of their rows in
        exchanges of their own, ``fcorun.engine.remote.certificate``.
        """
        sums = self.split_sums(problem, w, x, y, extra) if sums is None else sums
        metrics = self.metrics_from_sums(problem, w, sums, extra)
        if self.gap and not self.data.train.stays_at_sites:
            rows = Batch(x, y, extra["weight"], offset=extra.get("offset"), client=extra.get("client"))
            metrics["gap"] = pooled_gap(problem, w, metrics["objective"], rows)
        if self.client_metrics:
            means = self.average_by_client(problem, w, x, y, extra)
            metrics |= {_BY_CLIENT + name: values for name, values in means.items()}
        return metrics | self.predictions(problem, w, x, y, extra)

    def predictions(self, problem: Problem, w: Vector, x: Any, y: Any, extra: dict) -> dict[str, Array]:
        """Return the predictions that ``complete`` turns into metrics; empty where they cannot be ranked.

        The decision depends on no property in which subsets of the data differ, since they may share a program.
        """
        rows, offset = extra.get("x_val"), "offset_val"
        if "held_out_weight" in extra:
            rows, offset = x, "offset"
        if not self.data.target_task.has_two_classes or self.sums_over_parts:
            return {}
        if rows is None or len(rows) > MAX_RANKED_ROWS:
            return {}
        extra = self.add_client_intercepts(problem, w, x, y, extra)
        predictions = problem.predict(w, rows, extra.get(offset))
        if predictions.ndim > 1:
            return {}
        return {_PREDICTIONS: predictions}

    @property
    def sums_over_parts(self) -> bool:
        """Return whether metrics are sums over blocks of rows or over hosts, since no device has all rows."""
        return not self.data.train.all_on_device

    def complete(self, measured: dict[str, Any], rounds_done: int | None = None) -> Measured:
        """Return the results of ``measure`` for one run or for several, with AUC and average precision.

        An objective's own metrics of these names take precedence. ``rounds_done`` is None for a model of no run.
        """
        metrics = dict(measured)
        by_client = {}
        for key in [key for key in metrics if key.startswith(_BY_CLIENT)]:
            by_client[key.removeprefix(_BY_CLIENT)] = np.asarray(metrics.pop(key))
        predictions = metrics.pop(_PREDICTIONS, None)
        validation = self.data.validation
        n_view_rows = 0 if self.subset is None else len(self.subset.y)
        if predictions is None or validation is None or why_unranked(self.data, n_view_rows):
            return Measured(metrics, by_client)
        if rounds_done is not None and rounds_done < self.ranked_from:
            unknown = np.full(predictions.shape[:-1], np.nan)
            return Measured(dict.fromkeys(RANKING_METRICS, unknown) | metrics, by_client)
        scores = np.asarray(predictions)
        if self.subset is not None:
            scores = scores[..., self.subset.validation_rows]
        return Measured(rank_runs(validation.y, scores, validation.mean_weights()) | metrics, by_client)

    def split_sums(self, problem: Problem, w: Vector, x: Examples, y: Targets, extra: dict) -> dict[str, Metrics]:
        """Return the weighted sums of losses and scores over "train" and, where rows are held out, over "val"."""
        extra = self.add_client_intercepts(problem, w, x, y, extra)
        problem = replace(problem, objective=problem.objective.with_known_intercepts)
        splits = _divide_rows(x, y, extra)
        return {split: self.weighted_scores(problem, w, *rows) for split, rows in splits.items()}

    def split_row_shares(
        self, problem: Problem, w: Vector, x: Examples, y: Targets, extra: dict
    ) -> dict[str, Float[Array, "2 n"]]:
        """Return how much each row counts in the sums of ``split_sums``, by split, as ``Problem.row_shares``."""
        training = Batch(x, y, extra["weight"], offset=extra.get("offset"), client=extra.get("client"))
        shares = {"train": problem.row_shares(w, training)}
        if "x_val" not in extra:
            return shares
        extra = self.add_client_intercepts(problem, w, x, y, extra)
        problem = replace(problem, objective=problem.objective.with_known_intercepts)
        offset = extra.get("offset_val")
        held_out = Batch(
            extra["x_val"], extra["y_val"], extra["weight_val"], offset=offset, client=extra.get("client_val")
        )
        return shares | {"val": problem.row_shares(w, held_out)}

    def average_by_client(
        self, problem: Problem, w: Vector, x: Examples, y: Targets, extra: dict
    ) -> dict[str, Float[Array, " M"]]:
        """Return the weighted means of losses and scores over each client's rows of each split, NaN without rows."""
        extra = self.add_client_intercepts(problem, w, x, y, extra)
        problem = replace(problem, objective=problem.objective.with_known_intercepts)
        n_clients = self.data.n_clients + len(self.data.held_out_clients)
        means = {}
        for split, rows in _divide_rows(x, y, extra).items():
            weight = rows[-1]["weight"]
            client = extra[f"client_number_{split}"]
            client_weight = jax.ops.segment_sum(weight, client, n_clients)
            for name, values in self.row_scores(problem, w, *rows).items():
                sums = jax.ops.segment_sum(weight * values, client, n_clients)
                means[f"{split}_{name}"] = sums / client_weight
        return means

    def add_client_intercepts(self, problem: Problem, w: Vector, x: Examples, y: Targets, extra: dict) -> dict:
        """Return what belongs to rows, with the intercepts of clients, if the objective has them, in the offsets.

        The training rows of a client determine its intercept. Other rows of the client have the same one, and rows of
        other clients have the mean.
        """
        objective = problem.objective
        if not objective.client_intercepts:
            return extra
        prediction = problem.predict(w, x, extra.get("offset"))
        n_clients = self.data.n_clients
        intercepts = objective.fit_client_intercepts(prediction, y, extra["weight"], extra["client"], n_clients)
        extra = extra | {"offset": intercepts.for_rows(extra["client"]) + extra.get("offset", 0)}
        if "x_val" in extra:
            client = extra.get("client_val", jnp.full(len(extra["y_val"]), -1))
            extra = extra | {"offset_val": intercepts.for_rows(client) + extra.get("offset_val", 0)}
        return extra

    def weighted_scores(self, problem: Problem, w: Vector, x: Examples, y: Targets, row_extras: dict) -> Metrics:
        """Return the sums of ``row_scores`` with the "weight" of the rows."""
        scores = self.row_scores(problem, w, x, y, row_extras)
        return {name: row_extras["weight"] @ values for name, values in scores.items()}

    def row_scores(
        self, problem: Problem, w: Vector, x: Examples, y: Targets, row_extras: dict
    ) -> dict[str, Float[Array, " N"]]:
        """Return the losses and scores of rows; their "offset" is added to predictions.

        Losses that compare the rows of a "client" compare rows of this split, those with weight.
        """
        prediction, weight = problem.predict(w, x, row_extras.get("offset")), row_extras["weight"]
        losses = problem.objective.client_losses(prediction, y, weight, row_extras.get("client"))
        scores = {"loss": losses, **problem.objective.scores(prediction, y)}
        # an infinite loss of a row with weight 0, one of another subset or a padded one, must not make the sum NaN
        if self.subset is not None or self.sums_over_parts:
            scores = {name: jnp.where(weight > 0, values, 0) for name, values in scores.items()}
        return scores

    def metrics_from_sums(self, problem: Problem, w: Vector, sums: dict[str, dict], extra: dict) -> Metrics:
        """Compute all metrics of w from the sums over the rows of each split."""
        scores = {f"{split}_{name}": value for split, of_split in sums.items() for name, value in of_split.items()}
        metrics = {"objective": scores["train_loss"] + problem.ridge(w) + problem.psi(w), **scores}
        cutoff = self.cutoff if "density" in problem.structure(w, self.cutoff) else None
        for name in problem.objective.regularized:
            if f"true_{name}" in extra:
                metrics |= recovery_metrics(w[name], extra[f"true_{name}"], cutoff)
        return join_structure(metrics, problem, w, self.cutoff)

    def measure_nodes(
        self, problem: Problem, models: Vector, mean_model: Vector, *, weights: np.ndarray, rows: tuple
    ) -> Metrics:
        """Return the objective of the node with the largest one, and the distance of the nodes from ``mean_model``.

        The distance is the root of the mean of the nodes' squared distances, with their weights in F. ``models`` are
        stacked along a leading axis M, as are ``weights``; ``rows`` are x and y of all training rows, and what else
        belongs to rows.
        """
        x, y, extra = rows

        def objective(w: Vector) -> jax.Array:
            sums = {"train": self.weighted_scores(problem, w, x, y, extra)}
            return self.metrics_from_sums(problem, w, sums, extra)["objective"]

        objectives = lax.map(objective, models, batch_size=max(_MAX_PREDICTIONS // len(y), 1))
        distances = jax.vmap(lambda w: (w - mean_model).norm())(models)
        squares = jnp.asarray(weights, distances.dtype) @ distances**2
        return {"worst_node_objective": objectives.max(), "consensus_distance": jnp.sqrt(squares)}

    def measure_personal(
        self, problem: Problem, models: Vector, regularizer_numbers: dict, *, rows: tuple, extra: dict
    ) -> Metrics:
        """Compute metrics of the clients' personal models, stacked along an axis M, each on the rows of its client.

        Metrics are means over clients. Clients have the weights that they have in the metrics of the global model, so
        that the two compare: of their validation rows, and in F. Metrics of validation rows have quantiles too, over
        the clients that have such rows. Metrics that do not depend on rows weigh all clients equally.
        ``regularizer_numbers`` are the regularizer's numbers of each client, (M,); ``rows`` are x (N, d) and y (N,) of
        the training rows.
        """
        client_metrics = self.measure_clients(problem, models, regularizer_numbers, rows=rows, extra=extra)
        metrics: dict[str, Any] = {}
        is_validated = self.validation_client_weights > 0
        by_client = {}
        for name, values in client_metrics.items():
            personal_name = PERSONAL_PREFIX + name
            if name.startswith("val_"):
                metrics[personal_name] = extra["client_weight_val"] @ values
                validated = values[is_validated]
                by_client[personal_name] = jnp.where(is_validated, values, jnp.nan)
                for suffix, q in QUANTILE_SUFFIXES.items():
                    metrics[personal_name + suffix] = jnp.quantile(validated, q)
            elif name.startswith("train_"):
                metrics[personal_name] = extra["client_weight_train"] @ values
                by_client[personal_name] = values
            else:
                metrics[personal_name] = values.mean()
        if self.client_metrics:
            metrics |= {_BY_CLIENT + name: values for name, values in by_client.items()}
        return metrics

    def measure_clients(
        self, problem: Problem, models: Vector, regularizer_numbers: dict, *, rows: tuple, extra: dict
    ) -> dict[str, Float[Array, " M"]]:
        """Compute the metrics of each client's personal model, (M,), with the arguments of ``measure_personal``.

        The clients are those of the tables ``client_rows_train`` and ``client_rows_val`` in ``extra``.
        """
        splits, row_extras = {"train": rows}, {"train": (extra["weight"], extra.get("offset"))}
        if "client_rows_val" in extra and "held_out_weight" in extra:
            splits["val"] = rows
            row_extras["val"] = (extra["held_out_weight"], extra.get("offset"))
        elif "client_rows_val" in extra and "x_val" in extra:
            splits["val"] = (extra["x_val"], extra["y_val"])
            row_extras["val"] = (extra["weight_val"], extra.get("offset_val"))
        regularized = problem.objective.regularized
        truths = {name: extra[f"client_true_{name}"] for name in regularized if f"client_true_{name}" in extra}

        def measure_client(inputs):
            w, numbers, truth, client_rows = inputs
            client_problem = problem.with_numbers(numbers)
            metrics = {}
            for split, (x, y) in splits.items():
                present, indices = client_rows[split] >= 0, jnp.maximum(client_rows[split], 0)
                weight, offset = row_extras[split]
                prediction = problem.predict(w, x[indices], None if offset is None else offset[indices])
                if self.data.train.weight is None:
                    weight = present / jnp.maximum(present.sum(), 1).astype(w.dtype)
                else:
                    weight = jnp.where(present, weight[indices], 0)
                    weight = weight / jnp.where(weight.sum() > 0, weight.sum(), 1)
                scores = {"loss": problem.objective.client_losses(prediction, y[indices], weight)}
                scores |= problem.objective.scores(prediction, y[indices])
                for name, values in scores.items():
                    metrics[f"{split}_{name}"] = weight @ jnp.where(present, values, 0)
            metrics = join_structure(metrics, client_problem, w, self.cutoff)
            for name in truth:
                metrics |= recovery_metrics(w[name], truth[name], None)
            return metrics

        client_rows = {split: jnp.asarray(extra[f"client_rows_{split}"]) for split in splits}
        longest = max(table.shape[1] for table in client_rows.values())
        batch_size = max(_BATCH_NUMBERS // (longest * rows[0].shape[1]), 1)
        batch_size = int(min(batch_size, len(client_rows["train"])))
        inputs = (models, regularizer_numbers, truths, client_rows)
        return lax.map(measure_client, inputs, batch_size=batch_size)

    @property
    def validation_client_weights(self) -> np.ndarray:
        """Return the weight of each client's validation rows, (M,)."""
        rows, bounds = self.data.validation, self.data.validation_offsets
        if rows is None or bounds is None:
            return np.zeros(self.data.n_clients)
        if rows.stays_at_sites:
            return rows.client_weights
        if rows.weight is None:
            return np.diff(bounds)
        return np.diff(np.append(0, np.cumsum(rows.weight))[bounds])


def _divide_rows(x: Examples, y: Targets, extra: dict) -> dict[str, tuple[Examples, Targets, dict]]:
    """Return features, targets, and what else belongs to rows, of "train" and, where rows are held out, of "val"."""
    splits = {"train": (x, y, extra)}
    if "held_out_weight" in extra:
        splits["val"] = (x, y, extra | {"weight": extra["held_out_weight"]})
    if "x_val" in extra:
        names = ("weight", "offset", "client")
        row_extras = {name: extra[f"{name}_val"] for name in names if f"{name}_val" in extra}
        splits["val"] = (extra["x_val"], extra["y_val"], row_extras)
    return splits


def join_metrics(metrics: Metrics, others: Metrics, giver: str) -> Metrics:
    """Return all metrics. Raises UserError for a name that both have: one value would replace the other unseen."""
    twice = sorted(metrics.keys() & others.keys())
    if twice:
        raise UserError(
            f"{giver} returns the metric '{twice[0]}', a name that fcorun uses itself: give it another name"
        )
    return metrics | others


def join_structure(metrics: Metrics, problem: Problem, w: Vector, cutoff: float) -> Metrics:
    """Return the metrics with those of the structure that psi gives w. Raises UserError as ``join_metrics``."""
    structure = problem.structure(w, cutoff)
    return join_metrics(metrics, structure, f"structure() of {type(problem.regularizer).__name__}")


def personal_models(
    algorithm: Algorithm, problem: Problem, server: PyTree, clients: PyTree, regularizer_numbers: dict
) -> Vector:
    """Return the clients' personal models, stacked along a leading axis M.

    ``clients``, the clients' states, and ``regularizer_numbers``, their numbers of the regularizer, have that axis too.
    """

    def personal_model(numbers, client) -> Any:
        return algorithm.personal(problem.with_numbers(numbers).for_side("client"), server, client)

    return jax.vmap(personal_model)(regularizer_numbers, clients)


def recovery_metrics(w: Float[Array, "*shape"], truth: Float[Array, "*shape"], cutoff: float | None) -> Metrics:
    """Return the distance ||w - truth||_2, and with a cutoff F1, precision and recall of the support {|w| > cutoff}."""
    error = {"recovery_error": jnp.sqrt(jnp.sum((w - truth) ** 2))}
    if cutoff is None:
        return error
    selected, relevant = jnp.abs(w) > cutoff, truth != 0
    hits = jnp.sum(selected & relevant).astype(w.dtype)
    precision, recall = hits / jnp.maximum(selected.sum(), 1), hits / jnp.maximum(relevant.sum(), 1)
    f1 = 2 * hits / jnp.maximum(selected.sum() + relevant.sum(), 1)
    return {"support_f1": f1, "support_precision": precision, "support_recall": recall, **error}


# How predictions rank the rows of two classes: area under the ROC curve, average precision.


def rank_runs(
    y: Shaped[np.ndarray, " n"], scores: Float[np.ndarray, "*runs n"], weight: Float[np.ndarray, " n"]
) -> dict[str, Float[np.ndarray, "*runs"]]:
    """Return the ``RANKING_METRICS`` of each run's scores of rows whose classes y are 0 and 1, with these weights.

    Both are NaN where a score is not finite, and without rows of both classes. NumPy computes them, since the sort of
    compiled programs takes twenty times as long on a CPU.
    """
    metrics = np.full((2, *scores.shape[:-1]), np.nan)
    one_group = RowGroups(np.zeros(len(y), int))
    has_both = weight[y == 1].any() and weight[y != 1].any()
    for run in np.ndindex(scores.shape[:-1]):
        if has_both and np.isfinite(scores[run]).all():
            areas = Ranking(y == 1, scores[run], one_group).score(weight[None])
            metrics[:, *run] = np.ravel(areas)
    return {name: metrics[k, ...] for k, name in enumerate(RANKING_METRICS)}


def why_unranked(data: FederatedData, n_view_rows: int = 0) -> str:
    """Return why AUC and average precision of the validation rows cannot be measured; empty where they can.

    ``n_view_rows`` is the number of rows on the device of which the validation rows are a subset, or 0.
    """
    if not data.target_task.has_two_classes:
        return "it is of two classes"
    if data.validation is None:
        return "there are no validation rows"
    if not data.train.all_on_device:
        return "it takes all validation rows in one memory"
    if not n_view_rows and len(np.unique(data.validation.y)) < 2:
        return "the validation rows are of one class"
    rows = max(len(data.validation), n_view_rows)
    if rows > MAX_RANKED_ROWS:
        return f"{rows:,} rows are more than {MAX_RANKED_ROWS:,}, which are sorted at each evaluation"
    return ""
