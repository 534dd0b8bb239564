"""The properties of an objective: losses, gradients, conjugates and bounds on the curvature.

Call the checks within ``jax.enable_x64(True)``: numbers are in float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fcorun.base.config import build_plugin
from fcorun.base.errors import UserError
from fcorun.data.tasks import Task, find_tasks
from fcorun.interface.checks.problems import FEDAVG, Config, check_rounds, compose_cached, ragged
from fcorun.interface.checks.property_check import (
    Checked,
    NotApplicable,
    find_checks,
    require,
    require_at_least,
    require_at_most,
    require_close,
    skip_unless,
)
from fcorun.methods.mirror_maps.mirror_map import Euclidean
from fcorun.methods.objectives.objective import LinearModel, Objective
from fcorun.methods.problem.problem import Batch, Problem, Vector
from fcorun.methods.regularizers.l1 import L1

FEATURES = 5
ROWS = 9
STRENGTH = 0.3  # of the l1 norm in the problem


@dataclass
class ObjectiveCase:
    """An objective with one of its tasks. Fields that are "auto" get numbers for targets around 0."""

    objective: Objective
    task: Task

    def __post_init__(self):
        self.objective = self.objective.resolve_auto(np.linspace(-1, 1, ROWS))

    @cached_property
    def problem(self) -> Problem:
        """The problem with an l1 norm."""
        shapes = self.objective.shapes((FEATURES,), self.task.typical_classes)
        return Problem(self.objective, L1(STRENGTH), Euclidean(), shapes)

    @cached_property
    def n_outputs(self) -> int:
        """The number of outputs of a prediction."""
        w = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in self.problem.shapes.items()}
        x = jax.ShapeDtypeStruct((1, FEATURES), jnp.float32)
        return jax.eval_shape(self.problem.predict, Vector(w), x).size

    def example(self, rows: int = ROWS, seed: int = 0) -> tuple[Vector, Batch]:
        """Return a random point and a random batch with unequal weights."""
        rng = np.random.default_rng(seed)
        x = jnp.asarray(rng.standard_normal((rows, FEATURES)))
        if self.task.has_classes:
            y = rng.integers(self.task.typical_classes, size=rows)
        else:
            y = self.adapt_targets(rng.standard_normal(rows))
        y = jnp.asarray(y, self.task.target_dtype(np.float64))
        weight = rng.random(rows)
        w = Vector({name: jnp.asarray(rng.standard_normal(shape)) for name, shape in self.problem.shapes.items()})
        return w, Batch(x, y, jnp.asarray(weight / weight.sum()))

    def adapt_targets(self, y: np.ndarray) -> np.ndarray:
        """Return numbers turned into targets that the objective accepts."""
        try:
            self.objective.check_targets(np.asarray(y), np.zeros(0))
        except ValueError:
            return abs(y) + 0.2
        return y


# ---------------------------------------------------------------- the properties


def check_gradient(case: ObjectiveCase) -> None:
    """Require that ``gradient`` is the gradient of ``loss``, by finite differences."""
    problem, (w, batch) = case.problem, case.example()
    gradient = jax.jit(problem.gradient)(w, batch)
    loss = jax.jit(problem.loss)
    require(set(gradient) == set(problem.shapes), f"the gradient should have the parameters {sorted(problem.shapes)}")
    # the step is shorter for losses that are not convex: a network of ReLUs has many kinks
    step, accuracy = (1e-5, 1e-7) if case.objective.convex else (1e-8, 1e-5)
    for seed in range(5):
        direction, _ = case.example(seed=seed + 1)
        slope = (loss(w + step * direction, batch) - loss(w - step * direction, batch)) / (2 * step)
        require_close("the slope of the loss by its gradient", gradient.dot(direction), slope, rtol=accuracy, atol=1e-9)


def check_row_shares(case: ObjectiveCase) -> None:
    """Require that the shares of rows are the sizes of the derivatives in predictions, by finite differences.

    The first derivative is that of the weighted sum of the losses in the prediction of a row.
    """
    problem, (w, batch) = case.problem, case.example()
    prediction = problem.predict(w, batch.x)
    step = 1e-5

    def total(prediction):
        return batch.weight @ case.objective.client_losses(prediction, batch.y, batch.weight)

    outputs = prediction.reshape(ROWS, -1)
    slopes = np.zeros(outputs.shape)
    for i, k in np.ndindex(*outputs.shape):
        move = jnp.zeros_like(outputs).at[i, k].set(step).reshape(prediction.shape)
        slopes[i, k] = (total(prediction + move) - total(prediction - move)) / (2 * step)
    shares = case.objective.row_shares(prediction, batch.y, batch.weight)
    require(bool((shares >= 0).all()), "the shares of rows in derivatives should not be negative")
    require_close("the share of each row in the gradient", shares[0], np.abs(slopes).sum(axis=1), rtol=1e-4, atol=1e-8)
    without = case.objective.row_shares(prediction, batch.y, batch.weight.at[0].set(0))
    require_close("the share of a row of weight 0", without[:, 0], np.zeros(2))


def check_weighted_mean(case: ObjectiveCase) -> None:
    """Require that the loss of a batch is the weighted mean of its rows, or of its clients if losses compare rows."""
    problem, (w, batch) = case.problem, case.example()
    loss = jax.jit(problem.loss)
    if case.objective.has_client_losses:
        client = jnp.arange(ROWS) % 3
        total = jnp.zeros(())
        for m in range(3):
            weight = jnp.where(client == m, batch.weight, 0)
            total = total + weight.sum() * loss(w, batch._replace(weight=weight / weight.sum()))
        require_close(
            "the loss of a batch, compared with the mean of its clients' losses,",
            loss(w, batch._replace(client=client)),
            total,
            rtol=1e-6,
        )
        return
    rows = [Batch(batch.x[i : i + 1], batch.y[i : i + 1], jnp.ones(1)) for i in range(ROWS)]
    row_losses = jnp.stack([loss(w, row) for row in rows])
    require_close(
        "the loss of a batch, compared with the mean of its rows' losses,",
        loss(w, batch),
        batch.weight @ row_losses,
        rtol=1e-6,
    )


def check_padding(case: ObjectiveCase) -> None:
    """Require that rows of weight 0 have no effect."""
    problem, (w, batch) = case.problem, case.example()
    gradient = jax.jit(problem.gradient)
    padded = Batch(batch.x, batch.y, batch.weight.at[5:].set(0))
    short = Batch(batch.x[:5], batch.y[:5], batch.weight[:5])
    for leaf, expected in zip(jax.tree.leaves(gradient(w, padded)), jax.tree.leaves(gradient(w, short)), strict=True):
        require_close("the gradient on a batch with rows of weight 0", leaf, expected, atol=1e-14)


def check_convexity(case: ObjectiveCase) -> None:
    """Require a loss that is convex in the prediction, and in the parameters of an objective with convex = True."""
    objective = case.objective
    problem = case.problem
    skip_unless(objective.convex or hasattr(objective, "conjugate"), "it does not say convex = True")
    (u, batch), (v, _) = case.example(), case.example(seed=1)
    p = problem.predict(u, batch.x)
    q = problem.predict(v, batch.x)
    left, middle, right = (objective.loss(prediction, batch.y) for prediction in (p, (p + q) / 2, q))
    require_at_most("the loss in the middle of two predictions", middle, (left + right) / 2, 1e-12)
    require(bool((middle < (left + right) / 2).any()), "the loss should be curved somewhere, and is a straight line "
                                                       f"between two predictions of each of {ROWS} rows")  # fmt: skip
    if objective.convex:
        ends = (problem.loss(u, batch) + problem.loss(v, batch)) / 2
        require_at_most("the loss in the middle of two points", problem.loss(0.5 * (u + v), batch), ends)


def check_nonnegative(case: ObjectiveCase) -> None:
    """Require losses of at least 0 of an objective with nonnegative = True."""
    skip_unless(vars(type(case.objective)).get("nonnegative"), "it does not say nonnegative = True")
    for seed in range(3):
        w, batch = case.example(seed=seed)
        losses = case.objective.loss(case.problem.predict(w, batch.x), batch.y)
        require(bool((losses >= 0).all()), "the objective says nonnegative = True, and has negative losses")


def check_scores(case: ObjectiveCase) -> None:
    """Require one number a row from loss() and scores(), and the accuracy of the class with the highest prediction."""
    w, batch = case.example()
    prediction = case.problem.predict(w, batch.x)
    scores = case.objective.scores(prediction, batch.y)
    results = {"loss()": case.objective.loss(prediction, batch.y)}
    results |= {f"scores()['{name}']": value for name, value in scores.items()}
    for name, value in results.items():
        require(value.shape == (ROWS,), f"{name} of {ROWS} rows should have the shape ({ROWS},) and has {value.shape}")
    if "accuracy" not in scores:
        return
    if case.task.has_two_classes:
        require_close("scores()['accuracy']", scores["accuracy"], (prediction > 0) == batch.y)
    elif case.n_outputs == case.task.typical_classes:
        require_close("scores()['accuracy']", scores["accuracy"], prediction.argmax(axis=1) == batch.y)


def check_regularized(case: ObjectiveCase) -> None:
    """Require that psi acts on the parameters that the objective names, and on no other."""
    problem, (w, _) = case.problem, case.example()
    named = case.objective.regularized
    unknown = sorted(set(named) - set(problem.shapes))
    require(
        not unknown, f"regularized should name parameters of shapes(), {sorted(problem.shapes)}, and names {unknown}"
    )
    require_close("psi(w)", problem.psi(w), STRENGTH * sum(jnp.abs(w[name]).sum() for name in named), rtol=1e-6)
    for name in problem.shapes:
        is_regularized = name in named
        require_close(
            f"'{name}' after a prox with a large step",
            problem.prox(w, 100.0)[name],
            (0 if is_regularized else 1) * w[name],
        )
        expected = STRENGTH * jnp.sign(w[name]) if is_regularized else jnp.zeros_like(w[name])
        require_close(f"the subgradient of psi in '{name}'", problem.subgradient(w)[name], expected)
        if not is_regularized:
            require_close(f"'{name}' after retrieve with a large step", problem.retrieve(w, 100.0)[name], w[name])


def check_conjugate(case: ObjectiveCase) -> None:
    """Require loss(p) + conjugate(u) >= u p, with equality if u is the gradient at p."""
    objective, (w, batch) = case.objective, case.example()
    skip_unless(hasattr(objective, "conjugate"), "it has no conjugate()")
    skip_unless(case.n_outputs == 1, "it has several outputs")
    prediction = case.problem.predict(w, batch.x)
    u = jax.grad(lambda p: objective.loss(p, batch.y).sum())(prediction)
    conjugate = objective.conjugate(u, batch.y)  # type: ignore[attr-defined]
    gap = objective.loss(prediction, batch.y) + conjugate - u * prediction
    require_close("loss(p) + conjugate(u) - u p, with u the gradient at p,", gap, jnp.zeros(ROWS), atol=1e-12)
    for other in np.linspace(-4, 4, 17):
        p = jnp.full(ROWS, other)
        require_at_least("loss(p) + conjugate(u) - u p", objective.loss(p, batch.y) + conjugate - u * p, 0, 1e-12)


def check_numpy_derivatives(case: ObjectiveCase) -> None:
    """Require that the derivatives in NumPy are those of the losses, by automatic differentiation."""
    objective = case.objective
    if not isinstance(objective, LinearModel) or not objective.has_numpy_derivatives:
        raise NotApplicable("it has no derivatives in NumPy")
    skip_unless(case.n_outputs == 1, "it has several outputs")
    w, batch = case.example()
    x, y, weight = (np.asarray(values) for values in (batch.x, batch.y, batch.weight))
    client = np.arange(ROWS) // 4

    def total(prediction):
        return weight @ objective.client_losses(prediction, batch.y, batch.weight, jnp.asarray(client))

    prediction = case.problem.predict(w, batch.x)
    derivatives = objective.derivatives(np.asarray(prediction), y, weight, client)
    hessian = (x.T * derivatives.curvature) @ x
    if derivatives.eliminate is not None:
        eliminated = derivatives.eliminate(x.T)
        hessian -= eliminated @ eliminated.T
    require_close("the loss of derivatives()", derivatives.loss, total(prediction), rtol=1e-9)
    require_close("the slope of derivatives()", derivatives.slope, jax.grad(total)(prediction), rtol=1e-9, atol=1e-12)
    expected = x.T @ jax.hessian(total)(prediction) @ x
    require_close("the Hessian of derivatives()", hessian, expected, rtol=1e-9, atol=1e-10)
    products = np.stack([derivatives.multiply(feature) for feature in x.T]) @ x
    require_close("the Hessian of multiply() of derivatives()", products, expected, rtol=1e-9, atol=1e-10)


def check_float32(case: ObjectiveCase) -> None:
    """Require float32 losses and gradients for float32 data."""
    problem = case.problem
    example = jax.tree.map(jnp.asarray, case.example())
    w, batch = jax.tree.map(lambda v: v.astype(jnp.float32) if v.dtype == jnp.float64 else v, example)
    dtypes = {"the loss": jax.eval_shape(problem.loss, w, batch).dtype}
    for name, leaf in jax.eval_shape(problem.gradient, w, batch).items():
        dtypes[f"the gradient in '{name}'"] = leaf.dtype
    for name, dtype in dtypes.items():
        require(dtype == jnp.float32, f"{name} in float32 should stay in it and is in {dtype}")


def check_second_derivative(case: ObjectiveCase) -> None:
    """Require a second derivative of the loss in the prediction within bounds that are not far too wide."""
    objective = case.objective
    skip_unless(not objective.has_client_losses, "its loss is that of a client's rows together")
    if not isinstance(objective, LinearModel):
        raise NotApplicable("it is no LinearModel")
    outputs = case.n_outputs
    low, high = objective.second_derivative_bounds(outputs)
    rng = np.random.default_rng(4)
    points = 30  # of each scale
    scale = np.repeat([0.01, 1.0, 5.0], points).reshape(-1, *[1] * (2 if outputs > 1 else 1))
    p = jnp.asarray(scale * rng.standard_normal((3 * points, 1, outputs) if outputs > 1 else (3 * points, 1)))
    y = jnp.asarray(case.adapt_targets(rng.integers(max(case.task.typical_classes, 2), size=3 * points)))[:, None]
    second = jax.jit(jax.vmap(jax.hessian(lambda p, y: objective.loss(p, y)[0])))(p, y)
    values = np.linalg.eigvalsh(second.reshape(-1, outputs, outputs))
    require_at_least("the second derivative of the loss", values, low, 1e-12)
    require_at_most("the second derivative of the loss", values, high, 1e-12)
    require_close("has_curvature_bound", objective.has_curvature_bound, np.isfinite(high))
    least = 0.6 * high if objective.has_curvature_bound else 100
    require_at_least("the largest second derivative, for an upper bound that is not too large,", values.max(), least)


def check_client_curvature(case: ObjectiveCase) -> None:
    """Require eigenvalues of the Hessian of a client's loss within ``curvature``."""
    skip_unless(case.objective.has_client_losses, "its loss is that of a row alone")
    skip_unless(case.objective.has_curvature_bound, "it has no bound on the curvature")
    problem, (_, batch) = case.problem, case.example()
    weight = np.asarray(batch.weight) * ROWS
    targets = {"y": np.asarray(batch.y)} if case.objective.overrides_client_losses else {}
    low, high = case.objective.curvature(np.asarray(batch.x), 1, weight=weight, **targets)  # type: ignore[attr-defined]
    for scale in (0.0, 1.0, 5.0, 25.0):
        w, _ = case.example(seed=1)
        flat, unravel = ravel_pytree(scale * w)
        values = jnp.linalg.eigvalsh(jax.hessian(lambda flat: problem.loss(unravel(flat), batch))(flat))  # noqa: B023
        require_at_least("the curvature of a client's loss", values, low, 1e-12)
        require_at_most("the curvature of a client's loss", values, high, 1e-12)


CHECKS = find_checks(__name__)


def list_checks(name: str, overrides: Sequence[str]) -> Checked:
    """Yield the checks of ``objective=NAME`` with each of its tasks, alone and in a run.

    Raises UserError for an objective whose tasks are all unknown.
    """
    is_checked = False
    for task in find_tasks().values():
        table = ("data=table", "data.path=rows.npz", f"data.task={task.name}")  # the file is never read
        objective = build_plugin("objective", compose_cached(f"objective={name}", *table, *overrides)["objective"])
        if task.name not in objective.tasks:
            continue
        is_checked = True
        case = ObjectiveCase(objective, task)

        def configure(folder: Path, case: ObjectiveCase = case) -> Config:
            targets = None
            if not case.task.has_classes:
                targets = case.adapt_targets(np.random.default_rng(3).standard_normal(20))
            return ragged(folder, f"objective={name}", *overrides, *FEDAVG, task=case.task.name, y=targets)

        yield f"objective={name} data.task={task.name}", CHECKS, case
        yield f"objective={name} data.task={task.name} in a run", [check_rounds], configure
    if not is_checked:
        raise UserError(f"objective={name} has none of the tasks that are checked: let its class have tasks among "
                        f"{', '.join(find_tasks())}")  # fmt: skip
