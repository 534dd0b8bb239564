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

from fcorun.algorithms.local_data import LocalData, Tree, size_of
from fcorun.config import AUTO, Count, Positive
from fcorun.problem.problem import Problem
from fcorun.problem.vector import Vector

__all__ = ["Algorithm", "Baseline", "Known", "LocalData", "Method", "Traits", "Tree", "balanced"]


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What an algorithm needs, and what it can and cannot do; fcorun.experiment.fit refuses the rest.

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
    sides: tuple[str, ...] = ("client", "server")
    mirrored: bool = False
    partial: bool = True
    proximal: bool = False
    bending: bool = False
    deterministic: bool = False
    trees: Literal["some", "only", ""] = ""
    exact: Literal["smooth", "composite", ""] = ""
    single: Literal["smooth", "composite", ""] = ""
    uneven: bool = False
    fading: bool = False
    shared_model: bool = True


@dataclass(frozen=True)
class Known:
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

    least: float
    most: float
    steps: int = 1
    whole: float | None = None
    partial: bool = False
    rows: float | None = None
    averaged: bool = False
    pooled: Callable[[], float] | None = None

    @property
    def minibatches(self) -> bool:
        """Whether local steps take less than a client's data."""
        return self.whole is not None

    @property
    def client(self) -> float:
        """No client's loss, on all its data, bends more."""
        return self.most if self.whole is None else self.whole

    @property
    def cohort(self) -> float:
        """How much the mean loss of a cohort bends at most, which is F if all clients are in it."""
        return self.client if self.partial or self.pooled is None else min(self.pooled(), self.client)

    def expected(self, bend: float) -> float:
        """The expected smoothness of a round's mean gradient, where that of all rows bends ``bend`` at most.

        Of b rows drawn it is bend (1 - 1 / b) + L_max / b, L_max that of a row: Gower, Loizou, Qian, Sailanbayev,
        Shulgin and Richtarik, SGD: general analysis and improved rates (ICML 2019), for rows drawn independently.
        """
        return bend if self.rows is None else bend * (1 - 1 / self.rows) + max(self.most, bend) / self.rows


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
    def personalises(self) -> bool:
        """Whether each client gets a model of its own."""
        return False

    @property
    def automatic(self) -> list[str]:
        """The fields that are "auto"."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return [name for name, value in values.items() if isinstance(value, str) and value == AUTO]

    @property
    def needs_curvature(self) -> list[str]:
        """What to give where ``problem.curvature``, wanted for these, is not known; by default for any "auto"."""
        return [f"a value for algo.{name}" for name in self.automatic]

    def auto(self, known: Known) -> dict[str, float]:
        """A value for each field that may be "auto", from bounds on the curvature and what a round is."""
        return {}

    def resolved(self, known: Known) -> Self:
        """The same with numbers for the fields that are "auto".

        Raises UserError where the losses do not bend as it needs.
        """
        found = self.auto(known)
        return replace(self, **{k: float(v) for k, v in found.items() if k in self.automatic})

    def remark(self, found: dict) -> str:
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
    def init(self, problem: Problem, w0: Vector) -> tuple[Tree, Tree]:
        """The server's state, and the state that each client keeps from round to round (None: it keeps none)."""

    @abstractmethod
    def local(self, problem: Problem, server: Tree, client: Tree, data: LocalData) -> tuple[Tree, Tree]:
        """On one client: its upload, and its new state."""

    @abstractmethod
    def server(self, problem: Problem, server: Tree, mean: Tree) -> Tree:
        """On the server: its new state from the weighted mean of the cohort's uploads."""

    @abstractmethod
    def output(self, problem: Problem, server: Tree) -> Vector:
        """The solution w to be evaluated."""

    def personal(self, problem: Problem, server: Tree, client: Tree) -> Vector | None:
        """A client's own model, from the server's state and the one that it keeps; None: it has none."""
        return None

    @property
    def personalises(self) -> bool:
        """Whether each client gets a model of its own."""
        return type(self).personal is not Algorithm.personal

    @property
    def spans(self) -> bool:
        """Whether its clients take so many gradients of their whole loss in a row, with nothing between but sums of
        vectors, that coordinates of the span of their rows pay; then all of them go through ``problem.inner``."""
        return False

    def upload_bytes(self, upload: Tree) -> int:
        """The bytes that an upload takes on its way, from the shapes and types of its arrays; by default theirs."""
        return size_of(upload)

    def broadcast_bytes(self, broadcast: Tree) -> int:
        """The bytes that what is broadcast takes to each client, from the shapes and types of its arrays; by default
        theirs."""
        return size_of(broadcast)

    def edge(self, problem: Problem, edge: Tree, mean: Tree) -> Tree:
        """On an edge of a tree: its new state from the weighted mean of its clients' uploads; by default ``server``."""
        return self.server(problem, edge, mean)

    def report(self, edge: Tree) -> Tree:
        """What of an edge's state goes up to the cloud, by default all of it."""
        return edge

    def cloud(self, problem: Problem, server: Tree, mean: Tree) -> Tree:
        """On top of a tree: the server's new state from the weighted mean of the edges' reports, by default that."""
        return mean

    def broadcast(self, server: Tree) -> Tree:
        """What of the server's state goes down to the clients, and is given to ``local``; by default all of it."""
        return server


def balanced(known: Known, more: float = 0.0) -> float:
    """The step 1 / sqrt(l L) of a client's prox, theorem 1 of Pathak and Wainwright (2020).

    Where no curvature is known from below, l is taken as a ten thousandth of L: our choice. ``more`` is added to both.
    """
    least, most = known.least + more, known.most + more
    return 1 / math.sqrt(max(least, 1e-4 * most) * most)


@dataclass(frozen=True)
class Baseline(Method, ABC):
    """A solver without communication: fcorun.problem.solver.minimize on rows gathered in one place."""

    tolerance: Positive = 1e-9
    max_iterations: Count = 100_000

    @abstractmethod
    def rows(self, offsets) -> slice:
        """The rows it is given, out of those of all clients (client m owns offsets[m]:offsets[m + 1])."""
