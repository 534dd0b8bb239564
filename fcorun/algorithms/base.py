"""What an algorithm is to fcorun: four pure functions that read like its box in the paper, and a few optional ones."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from fcorun.config import AUTO, Count, Positive
from fcorun.problem.problem import Batch, Problem
from fcorun.problem.quadratic import Quadratic
from fcorun.problem.vector import Vector
from fcorun.problem.work import Work

Tree = Any  # a pytree of arrays: an array, or tuples and dicts of them


@dataclass(frozen=True)
class LocalData:
    """The data of one client in one round.

    Attributes:
        x, y: the rows of all clients, (N, d) and (N,).
        rows: the rows of each local step's batch, shape (K, B); -1 where the batch is shorter. With ``repeats``, one
            batch (1, B) that each of the ``repeats`` steps takes.
        repeats: number of local steps that share the one batch, or None.
        uneven: whether this client may have fewer than K steps (a step without rows is none).
        all: the client's whole data where they need not be gathered by their rows, or None.
        frozen: whether the server's model stays as it is; then so does a client's copy of it, and uploads are nothing.
        chances: two numbers drawn uniformly from [0, 1) in each round, the same for all clients.
        work: counts the gradients and proxes of the loops below.
    """

    x: jax.Array
    y: jax.Array
    rows: jax.Array
    dtype: Any
    repeats: int | None = None
    uneven: bool = False
    all: Batch | Quadratic | None = None
    frozen: bool = False
    chances: jax.Array | tuple[float, float] = (0.0, 0.0)
    work: Work = field(default_factory=Work, compare=False, repr=False)

    @property
    def whole(self) -> Batch | Quadratic:
        """The client's whole data as one batch, for algorithms that are ``deterministic``, or with batch_size=null."""
        return self._batch(self.rows[0])._replace(count=0, passes=1) if self.all is None else self.all

    def repeat(self, count: Count | jax.Array, step: Callable[[Tree], Tree], start: Tree) -> Tree:
        """``start`` after ``count`` times ``step(value)``; ``count`` may be traced."""
        if isinstance(count, int):
            return self.work.scan(lambda value, _: step(value), start, None, count)
        counted = self.work.while_loop(lambda v: v[1] < count, lambda v: (step(v[0]), v[1] + 1), (start, 0))
        return counted[0]

    def rounds_apart(self, probability: jax.Array | float, draw: Literal[0, 1] = 0) -> jax.Array:
        """How many steps a client takes until it communicates, if it does so with this probability after each.

        ``draw`` is which of the round's ``chances`` decides.
        """
        chance = jnp.minimum(
            self.chances[draw], 1 - jnp.finfo(self.dtype).epsneg
        )  # a draw just below 1 may be rounded to 1
        return 1 + jnp.floor(jnp.log1p(-chance) / jnp.log1p(-probability)).astype(jnp.int32)

    def _batch(self, rows: jax.Array) -> Batch:
        there = (rows >= 0).astype(self.dtype)
        count = (rows >= 0).sum(dtype=jnp.int32)
        rows = jnp.maximum(rows, 0)
        return Batch(self.x[rows], self.y[rows], there / jnp.maximum(there.sum(), 1), count)

    def steps(self, step: Callable[[Tree, Any], Tree], start: Tree) -> Tree:
        """``start`` after ``step(value, batch)`` for each of the client's own K local steps."""
        if self.repeats is not None:
            whole = self.whole
            return self.repeat(self.repeats, lambda value: step(value, whole), start)

        def body(value, rows):
            new = step(value, self._batch(rows))
            if self.uneven:
                new = jax.tree.map(lambda n, v: jnp.where(rows[0] >= 0, n, v), new, value)
                self.work.only_if(rows[0] >= 0)
            return new

        return self.work.scan(body, start, self.rows)


@dataclass(frozen=True)
class Algorithm(ABC):
    """An algorithm plug-in: a frozen dataclass of its hyper-parameters with four pure functions.

    server, client and upload are pytrees of arrays. The engine keeps them, samples the cohort, cuts the batches, takes
    the weighted mean of the uploads, and counts the bytes of what goes up (upload) and down (broadcast), and the
    gradients and proxes. Fields that are real numbers may be traced: no Python ``if`` on them. A field that may also be
    "auto" is worked out before the run by ``auto``.

    The mean is weighted as the clients are in F. In a paper that weighs all alike, read |S|/n, the share of the cohort,
    as ``problem.share``.

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
    """

    needs: ClassVar[tuple[str, ...]] = ()
    sides: ClassVar[tuple[str, ...]] = ("client", "server")
    mirrored: ClassVar[bool] = True
    partial: ClassVar[bool] = True
    proximal: ClassVar[bool] = False
    bending: ClassVar[bool] = False
    deterministic: ClassVar[bool] = False
    trees: ClassVar[Literal["some", "only", ""]] = ""
    exact: ClassVar[Literal["smooth", "composite", ""]] = ""

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

    def auto(self, least: float, most: float) -> dict[str, float]:
        """A value for each field that may be "auto", from bounds on the curvature of the clients' losses."""
        return {}

    def remark(self, found: dict) -> str:
        """What a user should know of the values ``found`` for fields that are "auto", or nothing."""
        return ""

    @property
    def automatic(self) -> list[str]:
        """The fields that are "auto"."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return [name for name, value in values.items() if isinstance(value, str) and value == AUTO]

    @property
    def needs_curvature(self) -> list[str]:
        """For what it wants ``problem.curvature``: what to give where that is not known. By default for any "auto"."""
        return [f"a value for algo.{name}" for name in self.automatic]

    def resolved(self, least: float, most: float) -> "Algorithm":
        """The same algorithm with numbers for the fields that are "auto".

        Raises UserError where the losses do not bend as it needs.
        """
        found = self.auto(least, most)
        return replace(self, **{k: float(v) for k, v in found.items() if getattr(self, k) == AUTO})


def balanced(least: float, most: float) -> float:
    """The step 1 / sqrt(l L) of a client's prox, theorem 1 of Pathak and Wainwright (2020).

    Where no curvature is known from below, l is taken as a ten thousandth of L: our choice.
    """
    return 1 / math.sqrt(max(least, 1e-4 * most) * most)


@dataclass(frozen=True)
class Baseline(ABC):
    """A solver without communication: fcorun.problem.solver.minimize on rows gathered in one place."""

    tolerance: Positive = 1e-9
    max_iterations: Count = 100_000

    @abstractmethod
    def rows(self, offsets) -> slice:
        """The rows it is given, out of those of all clients (client m owns offsets[m]:offsets[m + 1])."""
