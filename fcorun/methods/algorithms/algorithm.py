"""The contract of an algorithm: four pure functions that read like the box in the paper, and a few optional ones.

An algorithm gets a client's rows and minibatches as ``LocalData``, says in ``Traits`` with which problems, channels and
topologies it may run, and derives from ``Algorithm``, or from ``TwoRateAlgorithm``, with a client and a server rate.

The YAML of an algorithm in conf/algo holds ``name``, ``class`` and a value for each field without a default. Pictures
call the algorithm by its ``title``, or by its name without one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fcorun.base.config import AUTO, AutoPositive, Count, PluginBase, Positive
from fcorun.base.metrics import Metric
from fcorun.methods.algorithms.local_data import LocalData
from fcorun.methods.algorithms.traits import Traits
from fcorun.methods.problem.operation_counts import PyTree, tree_bytes
from fcorun.methods.problem.problem import Problem, Vector

__all__ = ["Algorithm", "Baseline", "LocalData", "Method", "ProblemConstants", "PyTree", "Traits"]


@dataclass(frozen=True)
class ProblemConstants:
    """Constants of the problem that are known before a run, from which "auto" values are computed.

    Attributes:
        strong_convexity, smoothness: bounds l and L on the curvature of the loss in a local step: the loss of any
            client, or of any minibatch of a client.
        local_steps: K, the largest number of local steps of a client in a round, those for an edge summed.
        full_batch_smoothness: a bound on the curvature of any client's loss on all data of the client. None means that
            there are no minibatches, so that the bound is ``smoothness``.
        partial_participation: True if a cohort lacks clients, or is that of one edge.
        effective_rows: a lower bound on the number of equally weighted rows in the mean of a round. None means all rows
            of the cohort.
        psi_on_clients_only: True for reg.applied_by=client: a server that extrapolated beyond the clients' mean would
            leave the domain.
        pooled_smoothness: a function that returns an upper bound on the curvature of F. It is called only when needed,
            since it takes a while on large data. None means the bound of any client.
        largest_share: the largest weight of a client in F, of weights that sum to one.
        upload_variance: omega of an unbiased compressor of uploads; 0 for other channels.
        upload_contraction_error: 1 - alpha of a compressor of uploads that is used as a contraction; 0 without one.
        smallest_mixing_eigenvalue: of the matrix by which the nodes of a graph mix their messages; else 0.
    """

    strong_convexity: float
    smoothness: float
    local_steps: int = 1
    full_batch_smoothness: float | None = None
    partial_participation: bool = False
    effective_rows: float | None = None
    psi_on_clients_only: bool = False
    pooled_smoothness: Callable[[], float] | None = None
    largest_share: float = 1.0
    upload_variance: float = 0.0
    upload_contraction_error: float = 0.0
    smallest_mixing_eigenvalue: float = 0.0

    @property
    def uses_minibatches(self) -> bool:
        """True if a local step uses a part of a client's data."""
        return self.full_batch_smoothness is not None

    @property
    def client_smoothness(self) -> float:
        """An upper bound on the curvature of any client's loss on all its data."""
        return self.smoothness if self.full_batch_smoothness is None else self.full_batch_smoothness

    @property
    def cohort_smoothness(self) -> float:
        """An upper bound on the curvature of the mean loss of a cohort, which is F for a cohort of all clients."""
        if self.partial_participation or self.pooled_smoothness is None:
            return self.client_smoothness
        return min(self.pooled_smoothness(), self.client_smoothness)

    def expected_smoothness(self, smoothness: float) -> float:
        """Return the expected smoothness of the mean gradient of a round, for a full loss of at most ``smoothness``.

        With b rows drawn it is smoothness (1 - 1 / b) + L_max / b, where L_max is the smoothness of a single row:
        Gower, Loizou, Qian, Sailanbayev, Shulgin and Richtarik, SGD: general analysis and improved rates (ICML 2019),
        for rows drawn independently.
        """
        rows = self.effective_rows
        if rows is None:
            return smoothness
        return smoothness * (1 - 1 / rows) + max(self.smoothness, smoothness) / rows


@dataclass(frozen=True)
class Method(PluginBase):
    """The common base of algorithms and baselines: a frozen dataclass of hyper-parameters.

    Attributes:
        traits: the requirements and abilities; a property if they depend on options. Traits are not inherited: a class
            that declares none has the defaults, whatever its base classes declare.
        picks_client: True if an option names a client by its number, so that it names another client in a subset of the
            clients.
        trains_shared_model: True if one model for all clients is trained. Without one no metric of such a model is
            measured, unless ``start`` gives the model.
        needs_bounded_domain: True if psi must bound every parameter. A free intercept is refused.
        needs_one_output: True if the method is for linear models that predict one number a row.
        reads_columns: True if clients read single columns of their rows, which sparse rows do not have.
        is_sublinear: True if the optimum is approached, but too slowly to be ``exact``.
        tends_to_minimum_of_psi: True if the output of a long run goes to a minimizer of psi alone, 0 for a norm.
        multiplies_means: True if the server takes products of means, so that the weights of uploads must sum to one.
        needs_float64: True if runs are in float64, whatever the setting ``precision`` says.
        needs_equal_weights: True if all clients must weigh the same in F. Others are refused.
        divides_cohort: True if clients share the work of a round by their places in it, ``data.place``. Then all the
            ``problem.cohort_size`` clients of a round take part, with one server, and with rows in one place.
        is_reconstructed: True if we know the publication's abstract alone, and put the method together from it.
        source: the publication, in the notation of fcorun.base.sources.catalogue; not inherited.
    """

    traits: ClassVar[Traits] = Traits()
    picks_client: ClassVar[bool] = False
    trains_shared_model: ClassVar[bool] = True
    needs_bounded_domain: ClassVar[bool] = False
    needs_one_output: ClassVar[bool] = False
    reads_columns: ClassVar[bool] = False
    is_sublinear: ClassVar[bool] = False
    tends_to_minimum_of_psi: ClassVar[bool] = False
    multiplies_means: ClassVar[bool] = False
    needs_float64: ClassVar[bool] = False
    needs_equal_weights: ClassVar[bool] = False
    divides_cohort: ClassVar[bool] = False
    is_reconstructed: ClassVar[bool] = False
    source: ClassVar[str]

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        misplaced = [f.name for f in fields(Traits) if f.name in vars(cls)]
        if misplaced:
            raise TypeError(f"{cls.__name__}: give traits = Traits({misplaced[0]}=...) instead of {misplaced[0]}")
        if "traits" not in vars(cls):
            cls.traits = Traits()

    @property
    def has_personal_models(self) -> bool:
        """True if each client gets a personal model."""
        return False

    @property
    def least_clients(self) -> int:
        """The number of clients that each round needs."""
        return 1

    @property
    def has_server_all(self) -> bool:
        """True if a server takes single uploads, by ``Algorithm.server_all``."""
        return False

    @property
    def needs_quadratic_losses(self) -> bool:
        """True if the method is right only for least squares, as with a constant Hessian. Other losses are refused."""
        return self.traits.hessian == "constant"

    @property
    def has_common_uploads(self) -> bool:
        """True if uploads follow from the rows alone and not from the numbers of a run, such as strengths.

        Clients have no states then, and sites send one upload for all runs of a path.
        """
        return False

    @property
    def auto_fields(self) -> list[str]:
        """The names of the fields that are "auto"."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return [name for name, value in values.items() if isinstance(value, str) and value == AUTO]

    @property
    def curvature_alternatives(self) -> list[str]:
        """The settings that make the unknown ``problem.curvature`` unnecessary: by default a value for each "auto"."""
        return [f"a value for `algo.{name}`" for name in self.auto_fields]

    def auto(self, constants: ProblemConstants) -> dict[str, float]:
        """Return a value for each field that may be "auto", from the constants of the problem."""
        return {}

    def resolve_auto(self, constants: ProblemConstants) -> Self:
        """Return a copy with numbers for the fields that are "auto".

        Raises UserError where the losses lack the curvature that the algorithm needs.
        """
        values = self.auto(constants)
        return replace(self, **{name: float(value) for name, value in values.items() if name in self.auto_fields})

    def describe_auto(self, auto_values: dict) -> str:
        """Return a sentence on the values of "auto" fields that a user should know, or nothing."""
        return ""


@dataclass(frozen=True)
class Algorithm(Method, ABC):
    """An algorithm plug-in: a frozen dataclass of hyper-parameters with four pure functions. Its YAML explains them.

    server, client and upload are pytrees of arrays. The engine stores these states, samples the cohort, draws the
    batches, takes the weighted mean of the uploads, and counts gradients, proxes and the bytes of uploads and
    broadcasts. Fields that are real numbers may be traced: no Python ``if`` on them. The method ``auto`` computes the
    fields that are "auto" before the run.

    The mean has the weights of the clients in F. In a paper with equal weights, |S|/n is ``problem.share``. A method
    that needs the uploads themselves defines ``server_all`` in the place of ``server``.

    ``data.key`` is a random key of the client in this round, and ``problem.key`` one of the server in ``init``,
    ``server``, ``edge`` and ``root``. An algorithm that compresses its upload or its broadcast states the bytes in
    ``upload_bytes`` (or ``upload_bytes_for``, if psi determines them), ``edge_upload_bytes`` and ``broadcast_bytes``.

    Attributes:
        declared_metrics: declarations of the metrics that ``metrics`` returns, each a column of metrics.csv:
            Metric("consensus", "distance from consensus", higher=False, log=True).
        metrics_of_server: True if ``metrics`` reads the server's state alone, so that runs over sites have them, too.
        computed_rounds: the number of rounds after which the algorithm is done and sends nothing; None: all rounds.
            ``natural: {rounds: 1}`` in the algorithm's YAML makes such a number the default of ``rounds``.
        certificate: the declared metric that measures, as a difference of objectives, how far the model is from the
            optimum; "" for none. A run without targets of ``stop`` ends where the certificate is rounding.
        backtracks: True if the server goes back towards its last point where a mean is NaN, as withheld uploads are.
    """

    declared_metrics: ClassVar[tuple[Metric, ...]] = ()
    metrics_of_server: ClassVar[bool] = False
    computed_rounds: ClassVar[int | None] = None
    certificate: ClassVar[str] = ""
    backtracks: ClassVar[bool] = False

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if cls.server_all is not Algorithm.server_all and cls.server is Algorithm.server:
            cls.server = Algorithm._update_by_one_upload  # no longer abstract

    def _update_by_one_upload(self, problem: Problem, server: PyTree, mean: PyTree) -> PyTree:
        """Return the server's new state by ``server_all`` as from a single client that sends ``mean``."""
        uploads = jax.tree.map(lambda values: jnp.asarray(values)[None], mean)
        return self.server_all(problem, server, uploads, jnp.ones(1))

    def init(self, problem: Problem, w0: Vector) -> tuple[PyTree, PyTree]:
        """Return the server's state and the state of each client (None: no state), stored between rounds.

        By default the server's state is the model, and clients have none.
        """
        return w0, None

    @abstractmethod
    def local(self, problem: Problem, server: PyTree, client: PyTree, data: LocalData) -> tuple[PyTree, PyTree]:
        """Return the upload and the new state of one client."""

    @abstractmethod
    def server(self, problem: Problem, server: PyTree, mean: PyTree) -> PyTree:
        """Return the server's new state from the weighted mean of the cohort's uploads."""

    def server_all(self, problem: Problem, server: PyTree, uploads: PyTree, weights: Float[Array, " S"]) -> PyTree:
        """Return the server's new state from the single uploads of the cohort, as a median of them needs.

        An algorithm may define this method in the place of ``server``, and then runs where one server has all uploads
        of a round. ``uploads`` are stacked along a leading axis S. ``weights`` (S,) are those of the clients in F,
        and sum to one. An upload of weight 0 did not arrive: leave it out. The order of the clients has no meaning.
        """
        raise NotImplementedError

    @property
    def has_server_all(self) -> bool:
        """True if the server takes single uploads: ``server_all`` is defined."""
        return type(self).server_all is not Algorithm.server_all

    def output(self, problem: Problem, server: PyTree) -> Vector:
        """Return the solution w to be evaluated, by default the server's state."""
        return server

    def personal(self, problem: Problem, server: PyTree, client: PyTree) -> Vector | None:
        """Return a client's personal model from the states of the server and the client; None without such a model."""
        return None

    @property
    def has_personal_models(self) -> bool:
        """True if each client gets a personal model."""
        return type(self).personal is not Algorithm.personal

    def received_model(self, problem: Problem, server: PyTree, client: PyTree, data: LocalData) -> Vector:
        """Return the model at which ``local`` begins, by default what a client receives; a dual point is no model."""
        return server

    def first_received_model(self, problem: Problem, server: PyTree, client: PyTree, data: LocalData) -> Vector:
        """Return the model at which ``first_local`` begins to compute, as ``received_model`` of ``local`` does."""
        return server

    def after_sending(self, client: PyTree, message: PyTree) -> PyTree:
        """Return a client's state after ``local`` and the uplink; ``message`` is the upload as the server gets it.

        By default the state does not depend on the message.
        """
        return client

    def client_estimates(self, server: PyTree) -> tuple[Vector, Vector]:
        """Return each client's estimates of the parameters and their inverse variances, (M, *shape) each.

        Only an algorithm whose model is a mean of such estimates defines this, and its records get their intervals.
        """
        raise NotImplementedError

    @property
    def has_client_estimates(self) -> bool:
        """True if ``client_estimates`` is defined, so that the model is a mean of the clients' own estimates."""
        return type(self).client_estimates is not Algorithm.client_estimates

    def metrics(self, problem: Problem, server: PyTree, clients: PyTree) -> dict[str, Float[Array, ""]]:
        """Return the values of ``declared_metrics``, each a scalar, at an evaluation.

        ``clients`` are the states of all clients, stacked along a leading axis M; None if clients have no states. Of
        clients whose rows are generated, these are the states of the evaluated clients.
        """
        return {}

    @property
    def works_in_row_span(self) -> bool:
        """True if working in coordinates of the span of a client's rows saves time.

        Clients then take many gradients of their whole loss in a row, with nothing between them but sums of vectors,
        and all these gradients go through ``fcorun.methods.problem.inner_solvers``.
        """
        return False

    def computes_round(self, number: int) -> bool:
        """Return whether a round, counted from 0, is computed."""
        return self.computed_rounds is None or number < self.computed_rounds

    @property
    def has_two_exchanges(self) -> bool:
        """True if a round has two exchanges of messages: ``first_local`` and ``first_server`` are defined."""
        return type(self).first_local is not Algorithm.first_local

    def first_local(self, problem: Problem, server: PyTree, client: PyTree, data: LocalData) -> tuple[PyTree, PyTree]:
        """Return the upload of a client in the first of two exchanges, and its new state.

        The same cohort then runs ``local``, with the broadcast of the state that ``first_server`` returns. An algorithm
        with one exchange in a round defines neither.
        """
        raise NotImplementedError

    def first_server(self, problem: Problem, server: PyTree, mean: PyTree) -> PyTree:
        """Return the new state of the server, or of an edge, from the mean of the first of two uploads."""
        raise NotImplementedError

    def first_broadcast(self, server: PyTree) -> PyTree:
        """Return the part of the server's state that clients receive in ``first_local``, by default ``broadcast``."""
        return self.broadcast(server)

    def count_local_clients(self, cohort_size: int) -> int:
        """Return how many clients of a cohort communicate in the second of two exchanges, by default all."""
        return cohort_size

    def upload_bytes(self, upload: PyTree) -> int:
        """Return the bytes of a client's upload to its server or edge in transit, of either exchange, by default those
        of its arrays. What an edge, or a node of a graph, sends has the bytes of ``edge_upload_bytes``.
        """
        return tree_bytes(upload)

    def upload_bytes_for(self, problem: Problem, upload: PyTree) -> int:
        """Return the bytes of an upload where they depend on the problem: the structure of psi, the size of the cohort.

        The engine calls this method, which by default returns ``upload_bytes``. Do not read
        real numbers of ``problem``: one result serves all runs of a program, which differ in these.
        """
        return self.upload_bytes(upload)

    def counted_upload_bytes(self, clients: PyTree) -> int:
        """Return the bytes of all uploads so far that clients have counted in their states, since they depend on data.

        They are added to those of ``upload_bytes``. ``clients`` are the states of all clients in NumPy, stacked along a
        leading axis M.
        """
        return 0

    def broadcast_bytes(self, broadcast: PyTree) -> int:
        """Return the bytes of a broadcast to one client in transit, of either exchange, by default its arrays'."""
        return tree_bytes(broadcast)

    def round_bytes(self, number: int, uploads: tuple[int, ...], broadcasts: tuple[int, ...]) -> tuple:
        """Return the bytes of a client's upload, and of its broadcast, in each exchange of round ``number``, from 0.

        By default these are the arguments, which ``upload_bytes`` and ``broadcast_bytes`` return, in every round.
        """
        return uploads, broadcasts

    def edge_upload_bytes(self, upload: PyTree) -> int:
        """Return the bytes in transit of ``edge_upload``, from an edge to the root or along an edge of a graph, by
        default those of its arrays.
        """
        return tree_bytes(upload)

    def edge(self, problem: Problem, edge: PyTree, mean: PyTree) -> PyTree:
        """Return an edge's new state from the weighted mean of the uploads of its clients; by default ``server``."""
        return self.server(problem, edge, mean)

    def edge_upload(self, edge: PyTree) -> PyTree:
        """Return the part of an edge's state that the edge sends to the root, by default all of it."""
        return edge

    def root(self, problem: Problem, server: PyTree, mean: PyTree) -> PyTree:
        """Return the root's new state from the weighted mean of the uploads of the edges, by default that mean."""
        return mean

    def broadcast(self, server: PyTree) -> PyTree:
        """Return the part of the server's state that clients receive in ``local``, by default all of it."""
        return server


@dataclass(frozen=True)
class Baseline(Method, ABC):
    """A solver without communication: fcorun.methods.problem.path_solver.minimize on pooled rows."""

    tolerance: Positive = 1e-9
    max_iterations: Count = 100_000  # rounded up to a multiple of 50

    @abstractmethod
    def select_rows(self, offsets) -> slice:
        """Return the rows to solve for, among the rows of all clients: client m has offsets[m]:offsets[m + 1]."""


MAX_DRIFT = 0.1  # the sum of a client's K steps as a fraction of 1 / L_m, the step of gradient descent; our choice


@dataclass(frozen=True, kw_only=True)
class TwoRateAlgorithm(Algorithm):
    """An algorithm of K local steps of ``client_lr`` whose server moves by ``server_lr`` times the mean of the steps.

    A round moves F by a step of K eta_c eta_s. "auto" makes this step 1 / L, with L the curvature of F, or of any
    client for cohorts of some clients. For K = 1 the rates are eta_c = 1 / L and eta_s = 1: (dual) gradient descent.
    For K > 1, eta_c is a tenth of 1 / (K L_m), with L_m the largest curvature of a client, and eta_s compensates.
    Theorem 1 of Karimireddy et al. (SCAFFOLD, ICML 2020) bounds the drift of FedAvg by the square of K eta_c alone, so
    that a small eta_c leads near the optimum if all clients take equally many steps. Otherwise clients with more steps
    weigh more, whatever the rates (Wang et al., FedNova, NeurIPS 2020).

    With minibatches, L is the expected smoothness of the rows that a round draws. Theorem 3.1 of Gower et al. (SGD:
    general analysis and improved rates, ICML 2019) allows a step of half of 1 / L. With reg.applied_by=client,
    the server takes the mean of the clients, eta_s = 1.

    Attributes:
        client_lr: eta_c; "auto" as above, and at most one over the curvature of any minibatch.
        server_lr: eta_s; "auto" as above, and 1 where eta_c is a number.
    """

    client_lr: AutoPositive = AUTO
    server_lr: AutoPositive = AUTO

    @property
    def curvature_alternatives(self):
        return [f"a value for `algo.{name}`" for name in self.auto_fields if name != "server_lr"]

    def auto(self, constants):
        return auto_rates(self.client_lr, self.server_lr, constants)


def auto_rates(
    client_lr: float | str, server_lr: float | str, constants: ProblemConstants, server_gain: float = 1.0
) -> dict[str, float]:
    """Return values for the rates that are "auto".

    ``server_gain`` is the factor by which the server moves farther in the long run, by momentum for example.
    """
    if not isinstance(client_lr, str):
        return {"server_lr": 1 / server_gain}
    if not isinstance(server_lr, str):
        return {"client_lr": auto_client_lr(constants, server_lr * server_gain)}
    if constants.local_steps == 1 or constants.psi_on_clients_only:
        return {"client_lr": auto_client_lr(constants), "server_lr": 1 / server_gain}
    steps = constants.local_steps
    client = min(MAX_DRIFT / (steps * constants.client_smoothness), 1 / constants.smoothness)
    smoothness = constants.expected_smoothness(constants.cohort_smoothness)
    return {"client_lr": client, "server_lr": 1 / (steps * client * smoothness * server_gain)}


def auto_client_lr(constants: ProblemConstants, server_lr: float = 1.0) -> float:
    """Return the rate of the clients that makes a round, with ``server_lr`` on the server, a step of 1 / L."""
    steps = constants.local_steps
    if steps == 1:  # all clients start from one point, so that none drifts
        return 1 / (server_lr * constants.expected_smoothness(constants.cohort_smoothness))
    smoothness = constants.expected_smoothness(constants.client_smoothness)
    return min(1 / (steps * server_lr * smoothness), 1 / constants.smoothness)
