"""What an algorithm is to fcorun: four pure functions that read like its box in the paper."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from fcorun.config import Count, Positive
from fcorun.problem import Batch, Problem
from fcorun.vector import Vector

Tree = Any  # a pytree of arrays: an array, or tuples and dicts of them


@dataclass(frozen=True)
class LocalData:
    """The minibatches of one client in one round.

    Attributes:
        x, y: the rows of all clients, (N, d) and (N,).
        rows: the rows of each local step's batch, shape (K, B); -1 where the batch is shorter. With ``repeats``, one
            batch (1, B) that each of the ``repeats`` steps takes.
        repeats: number of local steps that share the one batch, or None.
        uneven: whether this client may have fewer than K steps (a step without rows is none).
    """

    x: jax.Array
    y: jax.Array
    rows: jax.Array
    dtype: Any
    repeats: int | None = None
    uneven: bool = False

    def steps(self, step: Callable[[Tree, Batch], Tree], start: Tree) -> Tree:
        """``start`` after ``step(value, batch)`` for each of the client's own K local steps."""

        def batch(rows):
            there = (rows >= 0).astype(self.dtype)
            rows = jnp.maximum(rows, 0)
            return Batch(self.x[rows], self.y[rows], there / jnp.maximum(there.sum(), 1))

        if self.repeats is not None:
            whole = batch(self.rows[0])
            return lax.scan(lambda value, _: (step(value, whole), None), start, length=self.repeats)[0]

        def body(value, rows):
            new = step(value, batch(rows))
            if self.uneven:
                new = jax.tree.map(lambda n, v: jnp.where(rows[0] >= 0, n, v), new, value)
            return new, None

        return lax.scan(body, start, self.rows)[0]


@dataclass(frozen=True)
class Algorithm(ABC):
    """An algorithm plug-in: a frozen dataclass of its hyper-parameters with four pure functions.

    server, client and upload are pytrees of arrays. The engine keeps them, samples the cohort, cuts the batches, takes
    the weighted mean of the uploads, and counts the bytes of what goes up (upload) and down (server). Fields that are
    real numbers may be traced: no Python ``if`` on them.

    Attributes:
        needs: the optional methods of the regularizer it calls; a regularizer without them is refused.
        sides: who applies psi in it, of "client" and "server".
    """

    needs: ClassVar[tuple[str, ...]] = ()
    sides: ClassVar[tuple[str, ...]] = ("client", "server")

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


@dataclass(frozen=True)
class Baseline(ABC):
    """A solver without communication: fcorun.solver.minimize on rows gathered in one place."""

    tolerance: Positive = 1e-9
    max_iterations: Count = 100_000

    @abstractmethod
    def rows(self, offsets) -> slice:
        """The rows it is given, out of those of all clients (client m owns offsets[m]:offsets[m + 1])."""
