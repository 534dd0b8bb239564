"""Base classes of algorithms: four pure functions that read like the box in the paper, and a few optional ones.

The YAML of an algorithm in conf/algo holds ``name``, ``class`` and a value for each field without a default. Pictures
call the algorithm by its ``title``, or by its name without one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal, Self

from jaxtyping import Array, Float

from fcorun.algorithms.local_data import LocalData, PyTree, tree_bytes
from fcorun.algorithms.traits import Traits
from fcorun.config import AUTO, Count, Positive
from fcorun.metrics import Metric
from fcorun.object_checks import CheckedObject
from fcorun.problem.problem import Problem
from fcorun.problem.vector import Vector

__all__ = ["Algorithm", "Baseline", "LocalData", "Method", "ProblemConstants", "PyTree", "RunConditions", "Traits"]


@dataclass(frozen=True, kw_only=True)
class RunConditions:
    """The conditions of a run that determine which algorithms converge to its optimum.

    Attributes:
        smooth: True if psi = 0.
        full_batch: True if local steps take all data of a client.
        full_participation: True if all clients take part in every round.
        psi_applied_by: the steps that apply psi, the option ``applied_by`` of the regularizer.
    """

    smooth: bool
    full_batch: bool
    full_participation: bool
    psi_applied_by: Literal["both", "client", "server"]


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
class Method(CheckedObject):
    """The common base of algorithms and baselines: a frozen dataclass of hyper-parameters.

    Attributes:
        traits: the requirements and abilities; a property if they depend on options. Traits are not inherited: a class
            that declares none has the defaults, whatever its base classes declare.
        picks_client: True if an option names a client by its number, so that it names another client in a subset of the
            clients.
        source: the publication, in the notation of fcorun.sources.catalogue; not inherited.
    """

    traits: ClassVar[Traits] = Traits()
    picks_client: ClassVar[bool] = False
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
    def auto_fields(self) -> list[str]:
        """The names of the fields that are "auto"."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return [name for name, value in values.items() if isinstance(value, str) and value == AUTO]

    @property
    def curvature_alternatives(self) -> list[str]:
        """The settings that make the unknown ``problem.curvature`` unnecessary: by default a value for each "auto"."""
        return [f"a value for algo.{name}" for name in self.auto_fields]

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
    """An algorithm plug-in: a frozen dataclass of hyper-parameters with four pure functions.

    server, client and upload are pytrees of arrays. The engine stores these states, samples the cohort, draws the
    batches, takes the weighted mean of the uploads, and counts gradients, proxes and the bytes of uploads and
    broadcasts. Fields that are real numbers may be traced: no Python ``if`` on them. The method ``auto`` computes the
    fields that are "auto" before the run.

    The mean has the weights of the clients in F. In a paper with equal weights, |S|/n is ``problem.share``.

    ``data.key`` is a random key of the client in this round, and ``problem.key`` one of the server in ``init``,
    ``server``, ``edge`` and ``root``. An algorithm that compresses its upload or its broadcast states the bytes in
    ``upload_bytes`` (or ``upload_bytes_for``, if psi determines them) and ``broadcast_bytes``.

    Attributes:
        declared_metrics: declarations of the metrics that ``metrics`` returns, each a column of metrics.csv:
            Metric("consensus", "distance from consensus", higher=False, log=True).
        metrics_of_server: True if ``metrics`` reads the server's state alone, so that runs over sites have them, too.
        sending_rounds: the number of rounds, the first ones of a run, in which messages are sent; None: all rounds.
    """

    declared_metrics: ClassVar[tuple[Metric, ...]] = ()
    metrics_of_server: ClassVar[bool] = False
    sending_rounds: ClassVar[int | None] = None

    @abstractmethod
    def init(self, problem: Problem, w0: Vector) -> tuple[PyTree, PyTree]:
        """Return the server's state and the state of each client (None: no state), stored between rounds."""

    @abstractmethod
    def local(self, problem: Problem, server: PyTree, client: PyTree, data: LocalData) -> tuple[PyTree, PyTree]:
        """Return the upload and the new state of one client."""

    @abstractmethod
    def server(self, problem: Problem, server: PyTree, mean: PyTree) -> PyTree:
        """Return the server's new state from the weighted mean of the cohort's uploads."""

    @abstractmethod
    def output(self, problem: Problem, server: PyTree) -> Vector:
        """Return the solution w to be evaluated."""

    def personal(self, problem: Problem, server: PyTree, client: PyTree) -> Vector | None:
        """Return a client's personal model from the states of the server and the client; None without such a model."""
        return None

    @property
    def has_personal_models(self) -> bool:
        """True if each client gets a personal model."""
        return type(self).personal is not Algorithm.personal

    def after_sending(self, client: PyTree, message: PyTree) -> PyTree:
        """Return a client's state after ``local`` and the uplink; ``message`` is the upload as the server gets it.

        By default the state does not depend on the message.
        """
        return client

    def metrics(self, problem: Problem, server: PyTree, clients: PyTree) -> dict[str, Float[Array, ""]]:
        """Return the values of ``declared_metrics``, each a scalar, at an evaluation.

        ``clients`` are the states of all clients, stacked along a leading axis M; None if clients have no states. Of
        clients whose rows are generated, these are the states of the evaluated clients.
        """
        return {}

    @classmethod
    def suggest_for(cls, conditions: RunConditions) -> str:
        """Return the name in conf/algo if the algorithm converges to the optimum under these conditions, or "".

        Runs of other algorithms that ended above the optimum are advised to try it. By default an algorithm is not
        suggested, even if it is exact.
        """
        return ""

    @property
    def works_in_row_span(self) -> bool:
        """True if working in coordinates of the span of a client's rows saves time.

        Clients then take many gradients of their whole loss in a row, with nothing between them but sums of vectors,
        and all these gradients go through ``fcorun.problem.inner_solvers``.
        """
        return False

    def sends_in_round(self, number: int) -> bool:
        """Return whether messages are sent in a round, counted from 0."""
        return self.sending_rounds is None or number < self.sending_rounds

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
        """Return the bytes of an upload in transit, of either exchange, by default those of its arrays."""
        return tree_bytes(upload)

    def upload_bytes_for(self, problem: Problem, upload: PyTree) -> int:
        """Return the bytes of an upload where they depend on the problem, such as on the structure of psi.

        The engine calls this method, which by default returns ``upload_bytes``. Read no numbers of ``problem``.
        """
        return self.upload_bytes(upload)

    def broadcast_bytes(self, broadcast: PyTree) -> int:
        """Return the bytes of a broadcast to one client in transit, of either exchange, by default its arrays'."""
        return tree_bytes(broadcast)

    def round_bytes(self, number: int, uploads: tuple[int, ...], broadcasts: tuple[int, ...]) -> tuple:
        """Return the bytes of a client's uploads and broadcasts in a round, counted from 0, one for each exchange.

        By default these are the arguments, which ``upload_bytes`` and ``broadcast_bytes`` return, in every round.
        """
        return uploads, broadcasts

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
    """A solver without communication: fcorun.problem.solver.minimize on pooled rows."""

    tolerance: Positive = 1e-9
    max_iterations: Count = 100_000

    @abstractmethod
    def select_rows(self, offsets) -> slice:
        """Return the rows to solve for, among the rows of all clients: client m has offsets[m]:offsets[m + 1]."""
