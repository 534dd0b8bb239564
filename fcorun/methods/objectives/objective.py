"""The contract of an objective f: a model and the mean loss of its predictions."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from fcorun.base.config import NonNegative, PluginBase
from fcorun.base.errors import UserError, word
from fcorun.base.metrics import Metric
from fcorun.data.rows.features import append_ones, mean_gram_range, operation
from fcorun.methods.objectives.intercepts import (
    ClientIntercepts,
    RowDerivatives,
    find_intercepts,
    fit_client_intercepts,
)

# The matrix product of examples and parameters, fast for many runs at once.

_FAR = 1e3  # a prediction of targets of size 1 beyond which the slope of a loss keeps its sign
_WIDE_OFFSETS = 20  # with a log link, means that differ by a factor of 5e8
_COLUMNS = 8  # the number of floats in a vector register, or a divisor of it


@operation
def matmul(x: Any, w: Float[Array, " d *outputs"]) -> Float[Array, " n *outputs"]:
    """Compute x @ w for examples x (n, d), dense or sparse, and w (d,) or (d, k), differentiable in w only."""
    return _multiply_dense(x, w)


@jax.custom_jvp
def _multiply_dense(x: Float[Array, " n d"], w: Float[Array, " d *outputs"]) -> Float[Array, " n *outputs"]:
    """Compute x @ w.

    If w has G runs as a ``vmap`` axis, the function multiplies x by a (d, G) matrix with G padded to a multiple of 8.
    XLA would transpose the product to (G, d) times (d, n), which takes a CPU 1.4 times as long or more. Under
    differentiation the product is a plain x @ w, because gradients are mostly those of small minibatches.
    """
    return _matmul(x, w)


@_multiply_dense.defjvp
def _matmul_jvp(primals, tangents):
    x, w = primals
    _, tangent = tangents
    return x @ w, x @ tangent


@jax.custom_batching.custom_vmap
def _matmul(x, w):
    return x @ w


@_matmul.def_vmap
def _matmul_vmap(size, batched, x, w):
    if size == 1 or batched[0]:
        return jax.vmap(jnp.matmul, [0 if is_batched else None for is_batched in batched])(x, w), True
    runs_last = jnp.moveaxis(w, 0, -1)
    columns = runs_last.reshape(len(runs_last), -1)
    padded = jnp.pad(columns, ((0, 0), (0, -columns.shape[1] % _COLUMNS)))
    product = lax.optimization_barrier(x @ padded)  # without the barrier, XLA transposes the product
    product = product[:, : columns.shape[1]].reshape(len(x), *runs_last.shape[1:])
    return jnp.moveaxis(product, -1, 0), True


Params = dict[str, jax.Array]
Prediction = Float[Array, " n *outputs"]
Target = Shaped[Array, " n"]
PerExample = Float[Array, " n"]
Client = Int[Array, " n"]
Values = TypeVar("Values", jax.Array, np.ndarray)


@dataclass(frozen=True, kw_only=True)
class Objective(PluginBase, ABC):
    """An objective plug-in: a frozen dataclass that turns examples into predictions and predictions into losses.

    Attributes:
        ridge: adds ridge / 2 times the squared norm of the regularized parameters to every client's loss. The ridge is
            part of the losses f, not of psi: client proxes and curvature bounds include it.
        tasks: the supported kinds of targets: "regression", "binary", "multiclass", "survival".
        convex: whether the mean loss is convex in the parameters. Not inherited: for a class that does not declare
            ``convex`` the answer is unknown (None), and fcorun certifies no optimum.
        nonnegative: whether no loss of an example is negative. Not inherited: for a class that does not declare
            ``nonnegative`` the answer is unknown (None), and the server of a study accepts negative losses of sites.
        regularized: the parameters that psi acts on. Other parameters (the intercept) are trained, never regularized.
        client_intercepts: whether each client has an intercept of its own, without a penalty, which takes the place of
            a shared one. A client's loss is then that at the best intercept for its rows: the client eliminates its
            intercept, and every message is about the other parameters.
        takes_client_intercepts: whether ``client_intercepts`` is supported: each row has one prediction, and its loss a
            positive second derivative.
        metrics: declarations of the metrics that ``scores`` returns in addition to the accuracy. Metric("auc",
            higher=True) declares train_auc, val_auc and the metrics of personal models.
        source: the source of the plug-in, see fcorun.base.sources.catalogue. Not inherited.
    """

    tasks: ClassVar[tuple[str, ...]]
    convex: ClassVar[bool | None] = None
    nonnegative: ClassVar[bool | None] = None
    regularized: ClassVar[tuple[str, ...]] = ("weights",)
    takes_client_intercepts: ClassVar[bool] = False
    metrics: ClassVar[tuple[Metric, ...]] = ()
    source: ClassVar[str]

    ridge: NonNegative = 0.0
    client_intercepts: Annotated[bool, "default outside identity"] = False

    @abstractmethod
    def shapes(self, features: tuple[int, ...], classes: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter, given the shape of an example, (d,) or that of a matrix.

        ``classes`` is 0 for a regression; more than two classes have one column each.
        """

    def initial_parameters(self, shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the start, zeros, to which the regularizer and the mirror map are applied afterwards."""
        return {name: np.zeros(shape) for name, shape in shapes.items()}

    @abstractmethod
    def predict(self, params: Params, x: Any) -> Float[Array, " n *outputs"]:
        """Return predictions (n,) or (n, classes) for examples x (n, d); matrices are raveled.

        Examples of a linear model may be sparse, ``fcorun.data.rows.sparse_rows``.
        """

    @abstractmethod
    def loss(self, prediction: Prediction, y: Target) -> PerExample:
        """Return the loss of each example, (n,). The engine takes (weighted) means."""

    def client_losses(
        self, prediction: Prediction, y: Target, weight: PerExample, client: Client | None = None
    ) -> PerExample:
        """Return the loss of each example among the examples of its client, (n,); by default ``loss``.

        With ``client_intercepts``, the losses are those at the best intercept of each client. Override this method, and
        ``loss`` for one client, if the loss of an example depends on other examples of its client, as a risk set does.
        Steps then take all rows of a client. Rows of weight 0 are padding, or belong to another split.

        Args:
            weight: the weight of each example in the mean.
            client: the client of each example. None: all are of one client.
        """
        return self.loss(self.add_client_intercepts(prediction, y, weight, client), y)

    def add_client_intercepts(
        self, prediction: Prediction, y: Target, weight: PerExample, client: Client | None = None
    ) -> Prediction:
        """Return the predictions plus the best intercept of each example's client.

        Without ``client_intercepts`` predictions stay as they are. The arguments are those of ``client_losses``.
        """
        if not self.client_intercepts:
            return prediction
        if client is None:
            number = jnp.zeros(len(y), jnp.int32)
            n_clients = 1
        else:
            number = jnp.unique(client, return_inverse=True, size=len(y))[1]
            n_clients = len(y)
        return prediction + self.fit_client_intercepts(prediction, y, weight, number, n_clients).values[number]

    def fit_client_intercepts(
        self, prediction: Prediction, y: Target, weight: PerExample, client: Client, n_clients: int
    ) -> ClientIntercepts:
        """Return the intercepts of M clients that minimize the losses of their rows at these predictions.

        ``client`` are numbers from 0 to M - 1; the other arguments are those of ``client_losses``.
        """
        return fit_client_intercepts(
            lambda p: self.loss(p, y),
            prediction,
            weight,
            client,
            n_clients=n_clients,
            far=_FAR * (1 + jnp.abs(y)),
            has_flat_losses=self.has_flat_losses,
        )

    @property
    def with_known_intercepts(self) -> Self:
        """Return the objective for predictions to which the intercepts of clients have been added."""
        return replace(self, client_intercepts=False) if self.client_intercepts else self

    def row_shares(
        self, prediction: Prediction, y: Target, weight: PerExample, client: Client | None = None
    ) -> Float[Array, "2 n"]:
        """Return how much each example counts in the gradient, and in the Hessian, of the weighted sum of the losses.

        These are the sizes of the first and of the second derivative of the sum in the example's prediction; of several
        outputs, the sums of these sizes. Without its features no example tells more of itself. The arguments are those
        of ``client_losses``.
        """
        prediction = self.add_client_intercepts(prediction, y, weight, client)
        known = self.with_known_intercepts

        def slopes(p):
            return jax.grad(lambda q: weight @ known.client_losses(q, y, weight, client))(p)

        if prediction.ndim == 1:
            second = jax.grad(lambda p: slopes(p).sum())(prediction)
        else:  # the diagonal of each example's Hessian in its outputs
            outputs = range(prediction.shape[1])
            second = jnp.stack([jax.grad(lambda p, k=k: slopes(p)[:, k].sum())(prediction)[:, k] for k in outputs], 1)
        sizes = jnp.abs(jnp.stack([slopes(prediction), second]))
        if prediction.ndim > 1:
            sizes = sizes.sum(axis=2)
        return jnp.where(weight > 0, sizes, 0)

    @property
    def has_client_losses(self) -> bool:
        """Return whether the loss of an example depends on other examples of its client."""
        return self.client_intercepts or self.overrides_client_losses

    @property
    def overrides_client_losses(self) -> bool:
        """Return whether the class defines ``client_losses`` itself, so that ``loss`` is of one client."""
        return type(self).client_losses is not Objective.client_losses

    def scores(self, prediction: Prediction, y: Target) -> dict[str, PerExample]:
        """Return further metrics of each example, each (n,), to be averaged: {"accuracy": ...}."""
        return {}

    def classify(self, prediction: Float[np.ndarray, " n *outputs"]) -> Int[np.ndarray, " n"]:
        """Return the index of the class that a prediction stands for, (n,)."""
        if prediction.ndim > 1:
            return prediction.argmax(axis=1)
        return (prediction > 0).astype(int)

    def resolve_auto(self, targets: np.ndarray) -> Self:
        """Return a copy in which numbers replace "auto", given the training targets minus offsets, (N,)."""
        return self

    @property
    def has_curvature_bound(self) -> bool:
        """Return whether bounds on the curvature of the losses hold for all parameters."""
        return hasattr(self, "curvature")

    @property
    def has_flat_losses(self) -> bool:
        """Return whether losses may have hardly any curvature, so that Newton's step may be far too long."""
        return True

    def check_targets(self, y: np.ndarray, y_val: np.ndarray) -> None:
        """Raise ValueError, with the fix, if the training targets y (N,) or held-out targets y_val do not fit.

        A site gives all its targets as y_val and no y: a rule on the training targets together is not for one site.
        """
        return

    def remark_on_targets(self, y: np.ndarray) -> list[str]:
        """Return remarks on training targets y (N,) that fit, and that the objective is perhaps not meant for."""
        return []

    def remark_on_offset(self, offset: np.ndarray | None, y: np.ndarray) -> list[str]:
        """Return remarks on offsets (N,), None without any, of training targets y (N,) that are perhaps exposures."""
        width = 0.0 if offset is None or not len(offset) else np.ptp(offset)
        if width <= _WIDE_OFFSETS:
            return []
        return [word(f"`data.offset` spans {width:g}, and is added to the linear predictor, with a log link to the "
                     "logarithm of the mean: if it is an exposure such as days, give its logarithm")]  # fmt: skip

    def final_warning(self, final: Mapping[str, float]) -> str:
        """Return a warning about a run that ended with these metrics, or an empty text."""
        return ""

    # Optional, for a duality gap: conjugate(u, y), the convex conjugate of loss(., y) at u, shape (n,); if
    # ``client_losses`` is overridden client_conjugates(prediction, y, weight, scale, client=None), see Cox.
    # Optional, for scores and predictions: probabilities(prediction) of the classes, (n, classes), see Logistic; for a
    # regression response(prediction), the expected target, (n,), see LeastSquares.
    # Optional, for "auto" steps: curvature(features, outputs, weight=None), see LinearModel; if ``client_losses`` is
    # overridden also y=None, the targets, see Cox.
    # Optional, for client proxes in closed form: quadratic(features, y, weight=None), see LeastSquares.
    # Optional, for paths of strengths solved in NumPy: row_derivatives(prediction, y), see Logistic; if
    # ``client_losses`` is overridden derivatives(prediction, y, weight, client), see Cox. Not inherited.


class LossDerivatives(NamedTuple):
    """The weighted sum of the losses of n rows, and its derivatives in their predictions, in NumPy.

    The Hessian in the coefficients of features X (n, k) is X' diag(curvature) X - U U', where ``eliminate`` makes U
    of X': the parts of intercepts that the losses eliminate, or of the means of risk sets.

    Attributes:
        loss: the sum.
        slope, curvature: (n,).
        eliminate: maps features (k, n) to U (k, g); None: U = 0.
        eliminate_transposed: the transpose of ``eliminate``, maps (g,) to (n,).
    """

    loss: float
    slope: np.ndarray
    curvature: np.ndarray
    eliminate: Callable[[np.ndarray], np.ndarray] | None = None
    eliminate_transposed: Callable[[np.ndarray], np.ndarray] | None = None

    def multiply(self, direction: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return the product of the Hessian in the predictions with a direction.

        Raises UserError for ``eliminate`` without ``eliminate_transposed``.
        """
        product = self.curvature * direction
        if self.eliminate is None:
            return product
        if self.eliminate_transposed is None:
            raise UserError("`derivatives` of the objective gives LossDerivatives with `eliminate` alone: give "
                            "`eliminate_transposed`, too, which sparse rows and many features need")  # fmt: skip
        return product - self.eliminate_transposed(self.eliminate(direction[None])[0])


class Margins(NamedTuple):
    """Sums of parameters that tell whether the loss of a row can rise.

    Along a direction of the parameters (p,) no loss rises exactly if ``falling`` times the direction is nowhere
    negative and ``fixed`` times the direction is 0. The coefficients are the first of the parameters. With one output,
    a row has at most one other parameter that is not 0 in it, and there it is 1 or -1.
    """

    falling: Float[np.ndarray, "falling p"]
    fixed: Float[np.ndarray, "fixed p"]


@dataclass(frozen=True, kw_only=True)
class LinearModel(Objective):
    """A linear model with predictions ``<x, weights> + bias``; more than two classes have one column of weights each.

    Attributes:
        intercept: whether the model has a bias.
        has_hessian: whether the loss has a positive second derivative in the prediction, which Newton's method needs.
        unbounded_reason: a clause on what makes coefficients of features infinite, see ``margins``.
        is_log_likelihood: whether the loss is a negative log-likelihood as it stands. Otherwise variances of estimates
            have a factor, the dispersion, which residuals estimate.
    """

    has_hessian: ClassVar[bool] = True
    is_log_likelihood: ClassVar[bool] = False
    unbounded_reason: ClassVar[str] = ""

    intercept: bool = True

    def margins(
        self, x: Float[np.ndarray, " n d"], y: Shaped[np.ndarray, " n"], client: Int[np.ndarray, " n"]
    ) -> Margins:
        """Return the sums of parameters that tell along which directions no row's loss rises.

        ``y`` are targets, or numbers of classes without a gap. By default the loss of a row rises wherever its
        prediction goes, as that of numbers does. Override ``unbounded_reason``, too.
        """
        design = self.add_intercept_columns(x, client)
        return Margins(falling=design[:0], fixed=design)

    def add_intercept_columns(
        self, x: Float[np.ndarray, " n d"], client: Int[np.ndarray, " n"]
    ) -> Float[np.ndarray, " n p"]:
        """Return the examples with a column of ones, or with an indicator of each client that has an intercept."""
        if not self.intercept:
            return x
        indicators = np.ones((len(x), 1))
        if self.client_intercepts:
            indicators = client[:, None] == np.unique(client)
        return np.column_stack([x, indicators])

    @abstractmethod
    def second_derivative_bounds(self, outputs: int) -> tuple[float, float]:
        """Return bounds on the second derivative of an example's loss in its prediction; inf for no upper bound.

        For several outputs, the bounds are on the eigenvalues of the Hessian in the outputs.
        """

    @property
    def has_curvature_bound(self):
        return math.isfinite(self.second_derivative_bounds(1)[1])

    @property
    def has_flat_losses(self):
        return not self.second_derivative_bounds(1)[0] > 0

    @property
    def has_numpy_derivatives(self) -> bool:
        """Return whether the class itself defines the derivatives of its losses in NumPy."""
        return not vars(type(self)).keys().isdisjoint(("row_derivatives", "derivatives"))

    def derivatives(
        self,
        prediction: Float[np.ndarray, " n"],
        y: Shaped[np.ndarray, " n"],
        weight: Float[np.ndarray, " n"],
        client: Int[np.ndarray, " n"],
    ) -> LossDerivatives:
        """Return the weighted sum of the losses of rows sorted by client, and its derivatives, without the ridge."""
        row_derivatives: Callable[..., RowDerivatives] = self.row_derivatives  # type: ignore[attr-defined]
        if not self.client_intercepts:
            loss, slope, curvature = row_derivatives(prediction, y)
            return LossDerivatives(float(weight @ loss), weight * slope, weight * curvature)
        total = np.maximum(np.bincount(client, weight), np.finfo(float).tiny)  # 0 of a client without rows
        intercepts = find_intercepts(
            lambda p: row_derivatives(p, y),
            prediction,
            weight,
            client,
            start=-np.bincount(client, weight * prediction) / total,
            has_flat_losses=self.has_flat_losses,
        )
        loss, slope, curvature = row_derivatives(prediction + intercepts, y)
        curvature = weight * curvature
        first = np.flatnonzero(np.diff(client, prepend=-1))  # row of each client
        of_client = np.add.reduceat(curvature, first)
        root = np.sqrt(np.where(of_client > 0, of_client, np.inf))

        def eliminate(features: np.ndarray) -> np.ndarray:
            return np.add.reduceat(features * curvature, first, axis=1) / root

        def eliminate_transposed(of_clients: np.ndarray) -> np.ndarray:
            return curvature * np.repeat(of_clients / root, np.diff(first, append=len(client)))

        return LossDerivatives(float(weight @ loss), weight * slope, curvature, eliminate, eliminate_transposed)

    def shapes(self, features, classes):
        outputs = (classes,) if classes > 2 else ()
        return {"weights": (*features, *outputs), **({"bias": outputs} if self.has_shared_intercept else {})}

    def predict(self, params, x):
        weights = params["weights"]
        outputs = weights.size // x.shape[1]
        prediction = matmul(x, weights.reshape(x.shape[1], *((outputs,) if outputs > 1 else ())))
        if "bias" not in params:
            return prediction
        return add_intercept(prediction, params["bias"][None])

    @property
    def has_shared_intercept(self) -> bool:
        """Return whether the intercept of all clients is one of the parameters."""
        return self.intercept and not self.client_intercepts

    def design(self, features: Any, weight: np.ndarray | None = None) -> Any:
        """Return the design matrix: the examples (n, d), with a column of ones for a shared intercept.

        Examples of a client with an intercept of its own are centered at their mean, with weights (n,) or equal ones.
        """
        if self.client_intercepts:
            return features - np.average(features, axis=0, weights=weight)
        return append_ones(features) if self.intercept else features

    def curvature(self, features: Any, outputs: int, weight: np.ndarray | None = None) -> tuple[float, float]:
        """Return bounds (l, L) on the eigenvalues of the Hessian of the mean loss over examples (n, d), float64.

        ``weight`` (n,) multiplies each loss in the mean; None: 1. With
        intercepts of clients, the examples are those of one client: the Schur complement that eliminates its intercept
        grows with the second derivatives of the losses.
        """
        x = scale_by_root_weight(self.design(features, weight), weight)
        n, d = x.shape
        least, largest = mean_gram_range(x)
        low, high = self.second_derivative_bounds(outputs)
        smallest = max(least, 0.0) if d <= n else 0.0
        smallest_ridge = 0 if self.has_shared_intercept else self.ridge  # the ridge does not act on the intercept
        return low * smallest + smallest_ridge, high * largest + self.ridge


def add_intercept(prediction: Values, intercept: Values) -> Values:
    """Return <x, weights> of examples, (n,) or (n, outputs), plus the intercept of each output.

    Intercepts are (1,) or (1, outputs). Outputs with intercepts of their own may share their weights: predictions (n,)
    and intercepts (1, cuts) then give (n, cuts).
    """
    if prediction.ndim < intercept.ndim:
        prediction = prediction[:, None]
    return prediction + intercept


def score_names(objective: Objective, outputs: int) -> tuple[str, ...]:
    """Return the names of the loss and of the further scores of an example with so many outputs."""
    prediction = jax.ShapeDtypeStruct((1,) if outputs == 1 else (1, outputs), jnp.float32)
    y = jax.ShapeDtypeStruct((1,), jnp.float32 if outputs == 1 else jnp.int32)
    return "loss", *jax.eval_shape(objective.scores, prediction, y)


def score_range(objective: Objective, name: str) -> tuple[float, float]:
    """Return the least and the largest loss or score of an example, infinite where the objective declares no bound."""
    if name == "loss":
        return 0.0 if vars(type(objective)).get("nonnegative") else -math.inf, math.inf
    bounded = {"accuracy", *(metric.name for metric in objective.metrics if metric.bounded)}
    return (0.0, 1.0) if name in bounded else (-math.inf, math.inf)


def is_linear_model(kind: type) -> bool:
    """Return whether predictions of an objective of this class are ``<x, weights> + bias``."""
    return issubclass(kind, LinearModel) and kind.predict is LinearModel.predict


def scale_by_root_weight(x: Any, weight: np.ndarray | None) -> Any:
    """Multiply rows of x (n, ...) by the roots of their weights (n,), so that x'x is the weighted sum; None: 1."""
    return x if weight is None else x * np.sqrt(weight).reshape(-1, *[1] * (x.ndim - 1))


def logistic_conjugate(u: jax.Array, y: jax.Array) -> jax.Array:
    """Return the conjugate of p -> log(1 + exp(p)) - y p at u: the negative entropy of u + y, which lies in [0, 1]."""
    v = jnp.clip(u + y, 0, 1)
    return jax.scipy.special.xlogy(v, v) + jax.scipy.special.xlogy(1 - v, 1 - v)
