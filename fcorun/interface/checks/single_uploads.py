"""Checks of what takes single uploads of a round: aggregation rules, and servers by ``Algorithm.server_all``."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.system.machine import use_precision
from fcorun.engine.federation import Federation
from fcorun.interface.checks.property_check import require, require_close, skip_unless
from fcorun.methods.algorithms.algorithm import Algorithm
from fcorun.methods.communication.aggregation import AggregationRule, combine_uploads

_UPLOADS = 9  # or as many as a rule needs
_FARTHEST = 20  # spreads of the honest uploads: an honest mean and a bounded combination are nearer to each other


def _draw_uploads(rule: AggregationRule) -> dict[str, np.ndarray]:
    """Return uploads for a rule, an array and a number each, stacked along a leading axis."""
    rng = np.random.default_rng(0)
    count = max(_UPLOADS, rule.least_uploads)
    return {"elapsed": 1 + 0.1 * rng.standard_normal(count), "update": rng.standard_normal((count, 5))}


def _draw_weights(count: int) -> np.ndarray:
    """Return unequal weights that sum to one, (count,)."""
    return np.arange(count, 2 * count) / np.arange(count, 2 * count).sum()


def _combine(rule: AggregationRule, uploads: Any, weights: np.ndarray) -> Any:
    """Return the combination of uploads, in float64."""
    with use_precision("float64"):
        return jax.tree.map(np.asarray, combine_uploads(rule, jax.tree.map(jnp.asarray, uploads), jnp.asarray(weights)))


def _require_equal(label: str, combined: Any, expected: Any) -> None:
    for name, value in expected.items():
        require_close(f"the combination of {label}, in '{name}',", combined[name], value, rtol=1e-6, atol=1e-6)


def check_equal_uploads(rule: AggregationRule) -> None:
    """Require that equal uploads are their own combination."""
    first = jax.tree.map(lambda values: values[0], _draw_uploads(rule))
    count = max(_UPLOADS, rule.least_uploads)
    uploads = jax.tree.map(lambda value: np.repeat(np.asarray(value)[None], count, axis=0), first)
    _require_equal("equal uploads", _combine(rule, uploads, _draw_weights(count)), first)


def check_order_of_uploads(rule: AggregationRule) -> None:
    """Require that the order of the clients has no meaning."""
    uploads = _draw_uploads(rule)
    weights = _draw_weights(len(uploads["elapsed"]))
    order = np.random.default_rng(1).permutation(len(weights))
    permuted = jax.tree.map(lambda values: values[order], uploads)
    _require_equal("permuted uploads", _combine(rule, permuted, weights[order]), _combine(rule, uploads, weights))


def check_divided_weights(rule: AggregationRule) -> None:
    """Require that two copies of an upload with half of its weight each count as the upload, if declared so."""
    skip_unless(rule.divides_weights, "divides_weights is False")
    uploads = _draw_uploads(rule)
    weights = _draw_weights(len(uploads["elapsed"]))
    copies = jax.tree.map(lambda values: np.concatenate([values, values]), uploads)
    halves = np.concatenate([weights, weights]) / 2
    _require_equal("copies with half of the weights", _combine(rule, copies, halves), _combine(rule, uploads, weights))


def check_absent_uploads(rule: AggregationRule) -> None:
    """Require that uploads of weight 0 do not count."""
    uploads = _draw_uploads(rule)
    weights = _draw_weights(len(uploads["elapsed"]))
    more = jax.tree.map(lambda values: np.concatenate([100 + values[:3], values]), uploads)
    combined = _combine(rule, more, np.concatenate([np.zeros(3), weights]))
    _require_equal("uploads of which some have weight 0", combined, _combine(rule, uploads, weights))


def check_wrong_uploads(rule: AggregationRule) -> None:
    """Require that as many wrong uploads as the rule claims to bear do not move the combination far, whatever they are.

    Wrong ones are far away in one direction, and far away in all.
    """
    uploads = _draw_uploads(rule)["update"]
    n_wrong = rule.count_tolerated(len(uploads))
    skip_unless(n_wrong > 0, "count_tolerated() is 0: it claims to bear no wrong upload")
    require(2 * n_wrong < len(uploads), f"count_tolerated({len(uploads)}) should be less than half, and is {n_wrong}")
    honest = uploads[n_wrong:]
    spread = np.linalg.norm(honest - honest.mean(axis=0), axis=1).max()
    directions = (np.ones((n_wrong, 5)), np.random.default_rng(1).standard_normal((n_wrong, 5)))
    for size in (1e2, 1e6, 1e12):
        for direction in directions:
            sent = {"update": np.concatenate([size * direction, honest])}
            combined = _combine(rule, sent, np.full(len(uploads), 1 / len(uploads)))["update"]
            distance = np.linalg.norm(combined - honest.mean(axis=0))
            require(distance <= _FARTHEST * spread,
                    f"with {n_wrong} of {len(uploads)} uploads of size {size:g}, which count_tolerated() allows, the "
                    f"combination should stay near the others, and is {distance:.3g} away from their mean; they are "
                    f"at most {spread:.3g} away from it")  # fmt: skip


def check_type_of_combination(rule: AggregationRule) -> None:
    """Require that the combination has the shapes and the types of an upload, in float32."""
    uploads = jax.tree.map(lambda values: values.astype(np.float32), _draw_uploads(rule))
    weights = _draw_weights(len(uploads["elapsed"])).astype(np.float32)
    combined = jax.eval_shape(lambda: rule.combine(jax.tree.map(jnp.asarray, uploads), jnp.asarray(weights)))
    for name, values in uploads.items():
        found = combined[name]
        require(found.shape == values.shape[1:] and found.dtype == values.dtype,
                f"'{name}' of the combination should be float32 {values.shape[1:]}, and is {found.dtype} "
                f"{found.shape}")  # fmt: skip


RULE_CHECKS = (
    check_equal_uploads,
    check_order_of_uploads,
    check_divided_weights,
    check_absent_uploads,
    check_wrong_uploads,
    check_type_of_combination,
)


class RunningAlgorithm(Protocol):
    """An algorithm and its federations, as ``AlgorithmCase``."""

    @property
    def algorithm(self) -> Algorithm: ...

    def federation(self, *overrides: str) -> Federation: ...


def check_server_of_single_uploads(case: RunningAlgorithm) -> None:
    """Require that neither the order of clients nor an upload of weight 0 matters to ``server_all``."""
    skip_unless(case.algorithm.has_server_all, "its server takes the mean of uploads")
    federation = case.federation("precision=float64")
    algorithm = federation.algorithm
    problem = federation.problem.for_side("server")
    rng = np.random.default_rng(0)
    order = rng.permutation(5)
    with use_precision("float64"):
        server, _ = algorithm.init(federation.problem, problem.initial_point(problem.zeros("float64")))
        shapes = federation.shapes.uploads[-1]
        uploads = jax.tree.map(lambda leaf: jnp.asarray(rng.uniform(0.5, 1.5, (5, *leaf.shape)), leaf.dtype), shapes)
        weights = jnp.asarray(_draw_weights(5))
        more = jax.tree.map(lambda values: jnp.concatenate([100 * values[:2], values]), uploads)

        def update(uploads: Any, weights: Any) -> list[np.ndarray]:
            state = algorithm.server_all(problem, server, uploads, weights)
            return [np.asarray(leaf, float) for leaf in jax.tree.leaves(state)]

        expected = update(uploads, weights)
        permuted = update(jax.tree.map(lambda values: values[order], uploads), weights[order])
        with_absent = update(more, jnp.concatenate([jnp.zeros(2), weights]))
    for label, leaves in (("permuted", permuted), ("joined by others of weight 0", with_absent)):
        for actual, leaf in zip(leaves, expected, strict=True):
            require_close(f"the server's state after server_all() from uploads {label}", actual, leaf, 1e-8, 1e-10)
