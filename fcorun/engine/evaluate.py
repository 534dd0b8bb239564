"""What is measured of a solution w."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Shaped

from fcorun.algorithms.base import Algorithm, PyTree
from fcorun.datasets.base import FederatedData
from fcorun.engine.arrays import SubsetView, client_row_table, scatter, targets_to_device, to_device
from fcorun.engine.ranking import ranking_metrics
from fcorun.metrics import PERSONAL_PREFIX, QUANTILE_SUFFIXES, RANKING_METRICS
from fcorun.problem.problem import Problem
from fcorun.problem.vector import Vector
from fcorun.rows.host_rows import align, local_rows

_TOGETHER = 2**23  # numbers of the rows of clients whose own models are measured at once
MAX_RANKED_ROWS = 100_000  # rows: of more, sorting them at each evaluation would take longer than the evaluation
_PREDICTIONS = "predictions of validation rows"  # among metrics, until they are ranked


def objective_weights(data: FederatedData, client_weighting: str) -> Float[np.ndarray, " N"]:
    """The weight of each training row in F, shape (N,), summing to one: 1/N, or 1/(M n_m) for "uniform".

    Where rows have weights v, it is v / sum v, of all rows or, for "uniform", of the client's divided by M.
    """
    if client_weighting == "examples":
        return np.full(len(data.y), 1 / len(data.y)) if data.weight is None else data.weight / data.weight.sum()
    even = np.repeat(1 / (len(data.sizes) * data.sizes), data.sizes)
    return even if data.row_weights is None else even * data.row_weights


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a problem on a data set: ``arrays`` go to the device, ``measure`` is pure, to be jitted.

    Attributes:
        among: where the rows stand, if the data are a part of others whose rows are on the device. The validation rows
            are then among them too.
    """

    data: FederatedData
    client_weighting: str
    cutoff: float
    subset: SubsetView | None = None

    def arrays(self, dtype, personal: bool = False) -> dict[str, jax.Array]:
        """Validation rows, row weights and ground truth, beside the training rows, on the device; where models are
        ``personal``, each client's truth, and the weights of clients and which rows they have, too."""
        data, found = self.data, {}
        weight, among = objective_weights(data, self.client_weighting), self.subset
        given = {"offset": data.offset, "offset_val": data.offset_val}
        if among is not None:
            count = len(among.y)
            found["weight"] = scatter(weight, among.train_rows, count)
            if len(among.validation_rows):
                found["held"] = scatter(self.validation_weights(), among.validation_rows, count)
            places = {"offset": among.train_rows, "offset_val": among.validation_rows}
            parts = [scatter(values, places[name], count) for name, values in given.items() if values is not None]
            found |= {"offset": sum(parts)} if parts else {}
        elif not data.on_disk:
            found["weight"] = align(data.x, weight)
            if data.x_val is not None and data.y_val is not None and len(data.y_val):
                found["x_val"] = to_device(local_rows(data.x_val), dtype)
                found["y_val"] = targets_to_device(data, align(data.x_val, data.y_val), dtype)
                found["weight_val"] = align(data.x_val, self.validation_weights())
            rows = {"offset": data.x, "offset_val": data.x_val}
            found |= {name: align(rows[name], values) for name, values in given.items() if values is not None}
        found |= {"true_" + name: np.asarray(value) for name, value in (data.truth or {}).items()}
        if personal:
            found |= {"own_" + name: np.asarray(values) for name, values in (data.client_truths or {}).items()}
            found |= self._dealt(weight)
        kept = {name for name, value in found.items() if isinstance(value, jax.Array) or value.dtype.kind == "i"}
        return {n: jax.device_put(v if n in kept else v.astype(dtype)) for n, v in found.items()}

    def validation_weights(self) -> Float[np.ndarray, " V"]:
        """The weight of each validation row, shape (V,), summing to one."""
        data = self.data
        assert data.y_val is not None
        if data.weight_val is None:
            return np.full(len(data.y_val), 1 / len(data.y_val))
        return data.weight_val / data.weight_val.sum()

    def _dealt(self, weight: np.ndarray) -> dict[str, np.ndarray]:
        """Which rows are whose, and the weight of each client, among training and validation rows."""
        data, among, width = self.data, self.subset, 0 if self.subset is None else self.subset.max_client_rows
        found = {
            "dealt_train": client_row_table(data.offsets, among and among.train_rows, width),
            "share_train": np.add.reduceat(weight, data.offsets[:-1]),
        }
        if data.offsets_val is not None:
            found["dealt_val"] = client_row_table(data.offsets_val, among and among.validation_rows, width)
            found["share_val"] = self.validation_client_weights / max(
                self.validation_client_weights.sum(), np.finfo(float).tiny
            )
        return found

    def measure(
        self, problem: Problem, w: Vector, x: Shaped[Array, "N d"], y: Shaped[Array, " N"], extra: dict
    ) -> dict[str, Float[Array, ""]]:
        """All metrics of w, each a scalar, for ``ranked``. x (N, d) and y (N,) are the training rows, or all that they
        stand among."""
        found = self.metrics_from_sums(problem, w, self.split_sums(problem, w, x, y, extra), extra)
        return found | self.predictions(problem, w, x, extra)

    def predictions(self, problem: Problem, w: Vector, x: Any, extra: dict) -> dict[str, Array]:
        """Return the predictions that ``ranked`` turns into metrics; nothing where it has none to give.

        Which depends on nothing that differs between parts of the data, as a program may serve several.
        """
        rows, offset = (x, "offset") if "held" in extra else (extra.get("x_val"), "offset_val")
        if (
            self.data.task != "binary"
            or self.data.host_bounds is not None
            or rows is None
            or len(rows) > MAX_RANKED_ROWS
        ):
            return {}
        found = problem.predict(w, rows, extra.get(offset))
        return {_PREDICTIONS: found} if found.ndim == 1 else {}

    @property
    def why_unranked(self) -> str:
        """Why validation rows are not ranked by the predictions for them; empty where they are."""
        return why_unranked(self.data, 0 if self.subset is None else len(self.subset.y))

    def add_ranking(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Return the metrics of one run or of several, computed by ``measure``, with AUC and average precision in place
        of predictions. An objective's own figures of these names stay."""
        found = dict(metrics)
        predictions = found.pop(_PREDICTIONS, None)
        if predictions is None or self.why_unranked:
            return found
        scores = np.asarray(predictions)
        if self.subset is not None:
            scores = scores[..., self.subset.validation_rows]
        assert self.data.y_val is not None
        return {
            RANKING_METRICS[name]: each
            for name, each in ranking_metrics(self.data.y_val, scores, self.validation_weights()).items()
        } | found

    def split_sums(
        self, problem: Problem, w: Vector, x: Shaped[Array, "N d"], y: Shaped[Array, " N"], extra: dict
    ) -> dict[str, dict[str, Float[Array, ""]]]:
        """What ``scored`` says of "train" and, where rows are held out, of "val"."""
        found = {"train": self.weighted_scores(problem, w, x, y, extra)}
        if "held" in extra:
            found["val"] = self.weighted_scores(problem, w, x, y, extra | {"weight": extra["held"]})
        if "x_val" in extra:
            beside = {name: extra[f"{name}_val"] for name in ("weight", "offset") if f"{name}_val" in extra}
            found["val"] = self.weighted_scores(problem, w, extra["x_val"], extra["y_val"], beside)
        return found

    def weighted_scores(
        self, problem: Problem, w: Vector, x: Shaped[Array, "N d"], y: Shaped[Array, " N"], beside: dict
    ) -> dict[str, Float[Array, ""]]:
        """The sums of what is measured of rows, weighted by "weight"; "offset" is added to predictions."""
        prediction, weight = problem.predict(w, x, beside.get("offset")), beside["weight"]
        each = {"loss": problem.objective.loss(prediction, y), **problem.objective.scores(prediction, y)}
        if (
            self.subset is not None or self.data.on_disk or self.data.host_bounds is not None
        ):  # a loss that is infinite is not
            # to be lost on rows of others, or on none
            each = {key: jnp.where(weight > 0, value, 0) for key, value in each.items()}
        return {key: weight @ value for key, value in each.items()}

    def metrics_from_sums(
        self, problem: Problem, w: Vector, sums: dict[str, dict], extra: dict
    ) -> dict[str, Float[Array, ""]]:
        """All metrics of w, from the sums over the rows of each part."""
        found = {f"{part}_{key}": value for part, each in sums.items() for key, value in each.items()}
        found = {"objective": found["train_loss"] + problem.ridge(w) + problem.psi(w), **found}
        structure = problem.structure(w, self.cutoff)
        for name in problem.objective.regularized:
            if f"true_{name}" in extra:
                found |= recovery_metrics(
                    w[name], extra[f"true_{name}"], self.cutoff if "density" in structure else None
                )
        return found | structure

    def measure_personal(
        self,
        problem: Problem,
        models: Vector,
        regularizer_numbers: dict,
        *,
        rows: tuple[Shaped[Array, "N d"], Shaped[Array, " N"]],
        extra: dict,
    ) -> dict[str, Float[Array, ""]]:
        """Metrics of the clients' own models, stacked along a leading axis M, each on its client's own rows.

        Means over clients, weighted as the global model's are, by validation rows and as in F, so that the two compare;
        on validation rows quantiles too, over the clients that have such rows. Other figures weigh all clients alike.
        ``own`` holds the numbers of the regularizer that differ from client to client, each (M,); ``rows`` are x and y
        of the training rows.
        """
        parts, beside = {"train": rows}, {"train": (extra["weight"], extra.get("offset"))}
        if "dealt_val" in extra and "held" in extra:
            parts["val"], beside["val"] = rows, (extra["held"], extra.get("offset"))
        elif "dealt_val" in extra and "x_val" in extra:
            parts["val"] = (extra["x_val"], extra["y_val"])
            beside["val"] = (extra["weight_val"], extra.get("offset_val"))
        truths = {name: extra[f"own_{name}"] for name in problem.objective.regularized if f"own_{name}" in extra}

        def one(inputs):
            w, own, truth, places = inputs
            mine, found = problem.with_numbers(own), {}
            for name, (x, y) in parts.items():
                there, each = places[name] >= 0, jnp.maximum(places[name], 0)
                weight, offset = beside[name]
                prediction = problem.predict(w, x[each], None if offset is None else offset[each])
                scores = {"loss": problem.objective.loss(prediction, y[each])}
                scores |= problem.objective.scores(prediction, y[each])
                if self.data.weight is None:
                    weight = there / jnp.maximum(there.sum(), 1).astype(w.dtype)
                else:
                    own = jnp.where(there, weight[each], 0)
                    weight = own / jnp.where(own.sum() > 0, own.sum(), 1)
                found |= {f"{name}_{key}": weight @ jnp.where(there, value, 0) for key, value in scores.items()}
            found |= mine.structure(w, self.cutoff)
            return found | {k: v for name in truth for k, v in recovery_metrics(w[name], truth[name], None).items()}

        places = {name: jnp.asarray(extra[f"dealt_{name}"]) for name in parts}
        longest = max(each.shape[1] for each in places.values())
        clients = len(self.data.sizes)
        together = int(min(max(_TOGETHER // (longest * rows[0].shape[1]), 1), clients))
        each = lax.map(one, (models, regularizer_numbers, truths, places), batch_size=together)
        return self._over_clients(each, extra)

    @property
    def validation_client_weights(self) -> np.ndarray:
        """What each client's validation rows weigh together, (M,)."""
        ends = self.data.offsets_val
        assert ends is not None
        if self.data.weight_val is None:
            return np.diff(ends)
        return np.diff(np.append(0, np.cumsum(self.data.weight_val))[ends])

    def _over_clients(self, each: dict[str, jax.Array], extra: dict) -> dict[str, jax.Array]:
        """Means, and of validation rows quantiles, of what was measured of each client, (M,)."""
        found = {}
        for name, values in each.items():
            if name.startswith("val_"):
                found[PERSONAL_PREFIX + name] = extra["share_val"] @ values
                found |= {
                    PERSONAL_PREFIX + name + end: jnp.quantile(values[self.validation_client_weights > 0], q)
                    for end, q in QUANTILE_SUFFIXES.items()
                }
            else:
                found[PERSONAL_PREFIX + name] = (
                    extra["share_train"] @ values if name.startswith("train_") else values.mean()
                )
        return found


def why_unranked(data: FederatedData, n_view_rows: int = 0) -> str:
    """Return why nothing is known of how well validation rows are ranked by the predictions for them; empty where that
    is measured. ``among`` is how many rows they stand among, 0 where they stand by themselves."""
    if data.task != "binary":
        return "it is of two classes"
    if data.y_val is None or not len(data.y_val):
        return "there are no validation rows"
    if not n_view_rows and len(np.unique(data.y_val)) < 2:
        return "the validation rows are of one class"
    if data.on_disk or data.host_bounds is not None:
        return "it takes all validation rows in one memory"
    rows = max(len(data.y_val), n_view_rows)
    return (
        f"{rows:,} rows are more than {MAX_RANKED_ROWS:,}, which are sorted at each evaluation"
        if rows > MAX_RANKED_ROWS
        else ""
    )


def personal_models(
    algorithm: Algorithm, problem: Problem, server: PyTree, clients: PyTree, regularizer_numbers: dict
) -> Vector:
    """The clients' own models, stacked along a leading axis M, which ``clients``, their states, and ``own``, their
    numbers of the regularizer, have too."""

    def personal(own, client) -> Any:
        return algorithm.personal(problem.with_numbers(own).for_side("client"), server, client)

    return jax.vmap(personal)(regularizer_numbers, clients)


def recovery_metrics(
    w: Float[Array, "*shape"], truth: Float[Array, "*shape"], cutoff: float | None
) -> dict[str, Float[Array, ""]]:
    """The distance ||w - truth||_2, and with a cutoff F1, precision and recall of the support {|w| > cutoff}."""
    error = {"recovery_error": jnp.sqrt(jnp.sum((w - truth) ** 2))}
    if cutoff is None:
        return error
    found, there = jnp.abs(w) > cutoff, truth != 0
    hits = jnp.sum(found & there).astype(w.dtype)
    precision, recall = hits / jnp.maximum(found.sum(), 1), hits / jnp.maximum(there.sum(), 1)
    f1 = 2 * hits / jnp.maximum(found.sum() + there.sum(), 1)
    return {"support_f1": f1, "support_precision": precision, "support_recall": recall, **error}
