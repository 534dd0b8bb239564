"""What is measured of a solution w."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Shaped

from fcorun.datasets.base import FederatedData
from fcorun.engine.arrays import on_device, targets
from fcorun.metrics import PERSONAL, QUANTILES
from fcorun.problem.problem import Problem
from fcorun.problem.vector import Vector

_TOGETHER = 2**23  # numbers of the rows of clients whose own models are measured at once


def row_weights(data: FederatedData, client_weighting: str) -> Float[np.ndarray, " N"]:
    """The weight of each training row in F, shape (N,), summing to one: 1/N, or 1/(M n_m) for "uniform".

    Where rows have weights v, it is v / sum v, of all rows or, for "uniform", of the client's divided by M.
    """
    if client_weighting == "examples":
        return np.full(len(data.y), 1 / len(data.y)) if data.weight is None else data.weight / data.weight.sum()
    even = np.repeat(1 / (len(data.sizes) * data.sizes), data.sizes)
    return even if data.within is None else even * data.within


def _held_weights(data: FederatedData) -> Float[np.ndarray, " V"]:
    """The weight of each validation row, shape (V,), summing to one."""
    assert data.y_val is not None
    if data.weight_val is None:
        return np.full(len(data.y_val), 1 / len(data.y_val))
    return data.weight_val / data.weight_val.sum()


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a problem on a data set: ``arrays`` go to the device, ``measure`` is pure, to be jitted."""

    data: FederatedData
    client_weighting: str
    cutoff: float

    def arrays(self, dtype, personal: bool = False) -> dict[str, jax.Array]:
        """Validation rows, row weights and ground truth, beside the training rows, on the device; where models are
        ``personal``, each client's truth too."""
        data, found = self.data, {}
        found["weight"] = jax.device_put(row_weights(data, self.client_weighting).astype(dtype))
        if data.x_val is not None and data.y_val is not None and len(data.y_val):
            found["x_val"], found["y_val"] = on_device(data.x_val, dtype), targets(data, data.y_val, dtype)
            found["weight_val"] = jax.device_put(_held_weights(data).astype(dtype))
        given = {"offset": data.offset, "offset_val": data.offset_val}
        found |= {name: jax.device_put(values.astype(dtype)) for name, values in given.items() if values is not None}
        for name, value in (data.truth or {}).items():
            found["true_" + name] = jax.device_put(np.asarray(value).astype(dtype))
        for name, values in (data.truths or {}).items() if personal else ():
            found["own_" + name] = jax.device_put(np.asarray(values).astype(dtype))
        return found

    def measure(
        self, problem: Problem, w: Vector, x: Shaped[Array, "N d"], y: Shaped[Array, " N"], extra: dict
    ) -> dict[str, Float[Array, ""]]:
        """All metrics of w, each a scalar. x (N, d) and y (N,) are the training rows."""

        def part(name, x, y, weight, offset):
            prediction = problem.predict(w, x, offset)
            scores = {"loss": problem.objective.loss(prediction, y), **problem.objective.scores(prediction, y)}
            return {f"{name}_{key}": weight @ value for key, value in scores.items()}

        found = part("train", x, y, extra["weight"], extra.get("offset"))
        found = {"objective": found["train_loss"] + problem.ridge(w) + problem.psi(w), **found}
        if "x_val" in extra:
            x, y, weight = (extra[name + "_val"] for name in ("x", "y", "weight"))
            found |= part("val", x, y, weight, extra.get("offset_val"))
        structure = problem.structure(w, self.cutoff)
        for name in problem.objective.regularized:
            if f"true_{name}" in extra:
                found |= recovery(w[name], extra[f"true_{name}"], self.cutoff if "density" in structure else None)
        return found | structure

    def measure_personal(
        self,
        problem: Problem,
        models: Vector,
        own: dict,
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
        x, y = rows
        data, parts = self.data, {"train": (x, y, self.data.offsets)}
        beside = {"train": (extra["weight"], extra.get("offset"))}
        if data.offsets_val is not None and "x_val" in extra:
            parts["val"] = (extra["x_val"], extra["y_val"], data.offsets_val)
            beside["val"] = (extra["weight_val"], extra.get("offset_val"))
        truths = {name: extra[f"own_{name}"] for name in problem.objective.regularized if f"own_{name}" in extra}

        def one(inputs):
            w, own, truth, bounds = inputs
            mine, found = problem.with_numbers(own), {}
            for name, (x, y, offsets) in parts.items():
                start, stop = bounds[name]
                rows = start + jnp.arange(np.diff(offsets).max())
                there, rows = rows < stop, jnp.minimum(rows, len(y) - 1)
                weight, offset = beside[name]
                prediction = problem.predict(w, x[rows], None if offset is None else offset[rows])
                scores = {"loss": problem.objective.loss(prediction, y[rows])}
                scores |= problem.objective.scores(prediction, y[rows])
                if data.weight is None:
                    weight = there / jnp.maximum(there.sum(), 1).astype(w.dtype)
                else:
                    own = jnp.where(there, weight[rows], 0)
                    weight = own / jnp.where(own.sum() > 0, own.sum(), 1)
                found |= {f"{name}_{key}": weight @ jnp.where(there, value, 0) for key, value in scores.items()}
            found |= mine.structure(w, self.cutoff)
            return found | {k: v for name in truth for k, v in recovery(w[name], truth[name], None).items()}

        bounds = {
            name: tuple(jnp.asarray(ends, jnp.int32) for ends in (offsets[:-1], offsets[1:]))
            for name, (_, _, offsets) in parts.items()
        }
        longest = max(np.diff(offsets).max() for _, _, offsets in parts.values())
        together = int(min(max(_TOGETHER // (longest * x.shape[1]), 1), len(data.sizes)))
        each = lax.map(one, (models, own, truths, bounds), batch_size=together)
        return self._over_clients(each)

    @property
    def _held(self) -> np.ndarray:
        """What each client's validation rows weigh together, (M,)."""
        ends = self.data.offsets_val
        assert ends is not None
        if self.data.weight_val is None:
            return np.diff(ends)
        return np.diff(np.append(0, np.cumsum(self.data.weight_val))[ends])

    def _over_clients(self, each: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Means, and of validation rows quantiles, of what was measured of each client, (M,)."""
        found, train = {}, np.add.reduceat(row_weights(self.data, self.client_weighting), self.data.offsets[:-1])
        for name, values in each.items():
            if name.startswith("val_"):
                held = self._held
                found[PERSONAL + name] = jnp.asarray(held / held.sum(), values.dtype) @ values
                found |= {PERSONAL + name + end: jnp.quantile(values[held > 0], q) for end, q in QUANTILES.items()}
            else:
                found[PERSONAL + name] = (
                    jnp.asarray(train, values.dtype) @ values if name.startswith("train_") else values.mean()
                )
        return found


def recovery(
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
