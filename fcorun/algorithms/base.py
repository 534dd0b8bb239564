"""What an algorithm is to fcorun: four pure functions that read like its box in the paper, and a few optional ones.

Its YAML in conf/algo holds ``name`` and ``class``, a value for each field without a default, and, where pictures should
call it something else, ``title``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from inspect import signature
from typing import ClassVar, Literal, Self

from fcorun.algorithms.local_data import LocalData, PyTree, tree_bytes
from fcorun.config import AUTO, Count, Positive
from fcorun.problem.problem import Problem
from fcorun.problem.vector import Vector

__all__ = ["Algorithm", "Baseline", "LocalData", "Method", "ProblemConstants", "PyTree", "Traits", "balanced_prox_step"]


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What an algorithm needs, and what it can and cannot do; fcorun.experiment.compatibility refuses the rest.

    Attributes:
        needs: the optional methods of the regularizer it calls; a regularizer without them is refused.
        sides: who applies psi in it, of "client" and "server"; nobody: it leaves psi out, which is said.
        mirrored: whether it knows mirror maps; if not, only the Euclidean one is let through.
        partial: whether it works with a cohort that is not all clients; if not, that is refused.
        proximal: whether its clients minimise their own loss with something added, which has a closed form for least
            squares.
        bending: whether it is right only where losses bend enough, which ``resolved`` checks where bounds are known.
        deterministic: whether its clients use all their data at once, ``data.whole``, instead of minibatches.
        trees: whether it works with edges between clients and server ("some"), which the mean of its states makes sense
            for; "only": it needs them; or not at all, "".
        exact: of which problems it reaches the optimum, given full gradients and exact solves: "smooth" (psi = 0),
            "composite" (any), or none, "".
        single: the same where a round is one step of all clients with all their data.
        uneven: whether unequal numbers of local steps leave its end where it is.
        fading: whether its output goes to 0 when it runs for long.
        shared_model: whether it trains a model for all clients. If not, nothing is measured of one, unless ``start``
            gives it.
    """

    needs: tuple[str, ...] = ()
    psi_sides: tuple[str, ...] = ("client", "server")
    mirrored: bool = False
    partial: bool = True
    proximal: bool = False
    needs_strong_convexity: bool = False
    deterministic: bool = False
    hierarchy: Literal["some", "only", ""] = ""
    exact: Literal["smooth", "composite", ""] = ""
    exact_with_one_step: Literal["smooth", "composite", ""] = ""
    robust_to_uneven_steps: bool = False
    decays_to_zero: bool = False
    shared_model: bool = True


@dataclass(frozen=True)
class ProblemConstants:
    """What is known before a run, of which the values of fields that are "auto" are made.

    Attributes:
        least, most: bounds on the curvature of what a local step takes: each client's loss, or any minibatch of it.
        steps: K, the local steps of a client in a round, those for its edge together; the most of any client.
        whole: no client's loss, on all its data, bends more; None: there are no minibatches, and it is ``most``.
        partial: whether a cohort is not all clients, or an edge's alone.
        rows: how many rows a round's mean is surely of, each weighing the same; None: of all of a cohort's.
        averaged: whether clients alone apply psi, so that a server that went beyond their mean would leave its domain.
        pooled: a function that returns how much F bends at most. It is called where that is asked for: it takes a
            while on large data. None: as any client.
    """

    strong_convexity: float
    smoothness: float
    local_steps: int = 1
    full_batch_smoothness: float | None = None
    partial_participation: bool = False
    effective_rows: float | None = None
    psi_on_clients_only: bool = False
    pooled_smoothness: Callable[[], float] | None = None

    @property
    def uses_minibatches(self) -> bool:
        """Whether local steps take less than a client's data."""
        return self.full_batch_smoothness is not None

    @property
    def client_smoothness(self) -> float:
        """No client's loss, on all its data, bends more."""
        return self.smoothness if self.full_batch_smoothness is None else self.full_batch_smoothness

    @property
    def cohort_smoothness(self) -> float:
        """How much the mean loss of a cohort bends at most, which is F if all clients are in it."""
        return (
            self.client_smoothness
            if self.partial_participation or self.pooled_smoothness is None
            else min(self.pooled_smoothness(), self.client_smoothness)
        )

    def expected_smoothness(self, smoothness: float) -> float:
        """The expected smoothness of a round's mean gradient, where that of all rows bends ``bend`` at most.

        Of b rows drawn it is bend (1 - 1 / b) + L_max / b, L_max that of a row: Gower, Loizou, Qian, Sailanbayev,
        Shulgin and Richtarik, SGD: general analysis and improved rates (ICML 2019), for rows drawn independently.
        """
        return (
            smoothness
            if self.effective_rows is None
            else smoothness * (1 - 1 / self.effective_rows) + max(self.smoothness, smoothness) / self.effective_rows
        )


@dataclass(frozen=True)
class Method:
    """What algorithms and baselines have in common: a frozen dataclass of their hyper-parameters.

    Attributes:
        traits: what it can do; a property where that depends on its options. Not inherited: a class that says nothing
            has the defaults, whatever it derives from.
        source: where it comes from, as fcorun.sources.catalogue says; not inherited.
    """

    traits: ClassVar[Traits] = Traits()
    source: ClassVar[str]

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        flags = [f.name for f in fields(Traits) if f.name in vars(cls)]
        if flags:
            raise TypeError(f"{cls.__name__}: give traits = Traits({flags[0]}=...) instead of {flags[0]}")
        if "traits" not in vars(cls):
            cls.traits = Traits()
        if "auto" in vars(cls) and len(signature(vars(cls)["auto"]).parameters) != 2:
            raise TypeError(f"{cls.__name__}: give auto(self, known) instead of auto(self, least, most): "
                            "known.least and known.most are these two")  # fmt: skip

    @property
    def has_personal_models(self) -> bool:
        """Whether each client gets a model of its own."""
        return False

    @property
    def auto_fields(self) -> list[str]:
        """The fields that are "auto"."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return [name for name, value in values.items() if isinstance(value, str) and value == AUTO]

    @property
    def curvature_alternatives(self) -> list[str]:
        """What to give where ``problem.curvature``, wanted for these, is not known; by default for any "auto"."""
        return [f"a value for algo.{name}" for name in self.auto_fields]

    def auto(self, known: ProblemConstants) -> dict[str, float]:
        """A value for each field that may be "auto", from bounds on the curvature and what a round is."""
        return {}

    def resolve_auto(self, known: ProblemConstants) -> Self:
        """The same with numbers for the fields that are "auto".

        Raises UserError where the losses do not bend as it needs.
        """
        found = self.auto(known)
        return replace(self, **{k: float(v) for k, v in found.items() if k in self.auto_fields})

    def describe_auto(self, auto_values: dict) -> str:
        """What a user should know of the values ``found`` for fields that are "auto", or nothing."""
        return ""


@dataclass(frozen=True)
class Algorithm(Method, ABC):
    """An algorithm plug-in: a frozen dataclass of its hyper-parameters with four pure functions.

    server, client and upload are pytrees of arrays. The engine keeps them, samples the cohort, cuts the batches, takes
    the weighted mean of the uploads, and counts the bytes of what goes up (upload) and down (broadcast), and the
    gradients and proxes. Fields that are real numbers may be traced: no Python ``if`` on them. A field that may also be
    "auto" is worked out before the run by ``auto``.

    The mean is weighted as the clients are in F. In a paper that weighs all alike, read |S|/n, the share of the cohort,
    as ``problem.share``.

    ``data.key`` is a random key of the client in this round; an upload that it makes smaller, by rounding or by leaving
    entries out, is counted as ``upload_bytes`` says, and what goes down as ``broadcast_bytes`` does.
    """

    @abstractmethod
    def init(self, problem: Problem, w0: Vector) -> tuple[PyTree, PyTree]:
        """The server's state, and the state that each client keeps from round to round (None: it keeps none)."""

    @abstractmethod
    def local(self, problem: Problem, server: PyTree, client: PyTree, data: LocalData) -> tuple[PyTree, PyTree]:
        """On one client: its upload, and its new state."""

    @abstractmethod
    def server(self, problem: Problem, server: PyTree, mean: PyTree) -> PyTree:
        """On the server: its new state from the weighted mean of the cohort's uploads."""

    @abstractmethod
    def output(self, problem: Problem, server: PyTree) -> Vector:
        """The solution w to be evaluated."""

    def personal(self, problem: Problem, server: PyTree, client: PyTree) -> Vector | None:
        """A client's own model, from the server's state and the one that it keeps; None: it has none."""
        return None

    @property
    def has_personal_models(self) -> bool:
        """Whether each client gets a model of its own."""
        return type(self).personal is not Algorithm.personal

    @property
    def works_in_row_span(self) -> bool:
        """Whether its clients take so many gradients of their whole loss in a row, with nothing between but sums of
        vectors, that coordinates of the span of their rows pay; then all of them go through ``problem.inner``."""
        return False

    def upload_bytes(self, upload: PyTree) -> int:
        """The bytes that an upload takes on its way, from the shapes and types of its arrays; by default theirs."""
        return tree_bytes(upload)

    def broadcast_bytes(self, broadcast: PyTree) -> int:
        """The bytes that what is broadcast takes to each client, from the shapes and types of its arrays; by default
        theirs."""
        return tree_bytes(broadcast)

    def edge(self, problem: Problem, edge: PyTree, mean: PyTree) -> PyTree:
        """On an edge of a tree: its new state from the weighted mean of its clients' uploads; by default ``server``."""
        return self.server(problem, edge, mean)

    def edge_upload(self, edge: PyTree) -> PyTree:
        """What of an edge's state goes up to the cloud, by default all of it."""
        return edge

    def root(self, problem: Problem, server: PyTree, mean: PyTree) -> PyTree:
        """On top of a tree: the server's new state from the weighted mean of the edges' reports, by default that."""
        return mean

    def broadcast(self, server: PyTree) -> PyTree:
        """What of the server's state goes down to the clients, and is given to ``local``; by default all of it."""
        return server


def balanced_prox_step(known: ProblemConstants, ridge: float = 0.0) -> float:
    """The step 1 / sqrt(l L) of a client's prox, theorem 1 of Pathak and Wainwright (2020).

    Where no curvature is known from below, l is taken as a ten thousandth of L: our choice. ``more`` is added to both.
    """
    least, most = known.strong_convexity + ridge, known.smoothness + ridge
    return 1 / math.sqrt(max(least, 1e-4 * most) * most)


@dataclass(frozen=True)
class Baseline(Method, ABC):
    """A solver without communication: fcorun.problem.solver.minimize on rows gathered in one place."""

    tolerance: Positive = 1e-9
    max_iterations: Count = 100_000

    @abstractmethod
    def select_rows(self, offsets) -> slice:
        """The rows it is given, out of those of all clients (client m owns offsets[m]:offsets[m + 1])."""
