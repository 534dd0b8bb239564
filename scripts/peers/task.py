"""The input and output of every competitor. The module needs NumPy alone: each competitor has its own packages.

A task is one file: the rows of all clients, and the cohort and the minibatches of each round. Therefore every
competitor takes the same steps, and objectives that differ by more than rounding show a mistake.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

METHODS = {"fedavg_subgradient": "FedAvg(∂)", "feddualavg": "FedDualAvg"}
EVAL_EVERY = 10  # rounds between evaluations of the objective, by fcorun and by the programs written by hand
State = list[np.ndarray]  # weights (d,), bias (), elapsed (): float32, exchanged by server and clients


@dataclass
class Task:
    """A method on the rows of M clients, T rounds of S clients, and K minibatches of at most B rows for each client.

    Attributes:
        x, y: rows (N, d) and targets (N,), float32; client m has the rows ``offsets[m]:offsets[m + 1]``.
        cohort: the clients of each round, (T, S).
        rows: the rows of each minibatch, (T, S, K, B), -1 for none.
        method: one of METHODS, with server rate 1.
        strength: the strength of the l1 norm, which does not act on the bias.
        client_lr: eta_c.
        path: the file of the task.
        marks: the times in seconds that ``record_time`` recorded; ``marked`` has the number of rounds at each time.
    """

    x: np.ndarray
    y: np.ndarray
    offsets: np.ndarray
    cohort: np.ndarray
    rows: np.ndarray
    method: str
    strength: float
    client_lr: float
    path: str = ""
    marks: list[float] = field(default_factory=list)
    marked: list[int] = field(default_factory=list)

    @classmethod
    def read(cls, path: str | Path) -> "Task":
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        scalars = {name: arrays.pop(name).item() for name in ("method", "strength", "client_lr")}
        return cls(**arrays, **scalars, path=str(Path(path).resolve()))

    @classmethod
    @lru_cache
    def load_cached(cls, path: str) -> "Task":
        """Return the task of a file, which is read once in each process."""
        return cls.read(path)

    def write(self, path: str | Path) -> None:
        arrays = {name: getattr(self, name) for name in ("x", "y", "offsets", "cohort", "rows")}
        np.savez(path, **arrays, method=self.method, strength=self.strength, client_lr=self.client_lr)

    @property
    def dual(self) -> bool:
        """Return whether the method is dual averaging."""
        return self.method == "feddualavg"

    @property
    def rounds(self) -> int:
        return len(self.cohort)

    def start(self) -> State:
        """Return w = 0, which is also its dual."""
        return [np.zeros(self.x.shape[1], np.float32), np.zeros((), np.float32), np.zeros((), np.float32)]

    def batches(self, number: int, client: int) -> Iterator[np.ndarray]:
        """Return the row numbers of each minibatch of a client in a round, counted from 0."""
        position = int(np.flatnonzero(self.cohort[number] == client)[0])
        for rows in self.rows[number, position]:
            yield rows[rows >= 0]

    def soft(self, weights: np.ndarray, elapsed: np.ndarray | float) -> np.ndarray:
        """Compute the prox of elapsed * psi."""
        limit = np.float32(elapsed * self.strength)
        return np.sign(weights) * np.maximum(np.abs(weights) - limit, 0)

    def local(self, state: State, number: int, client: int) -> State:
        """Take a client's steps in a round, in NumPy."""
        weights, bias, elapsed = (np.array(part) for part in state)
        rate = np.float32(self.client_lr)
        for rows in self.batches(number, client):
            x = self.x[rows]
            point = self.soft(weights, elapsed) if self.dual else weights
            slope = 2 * (x @ point + bias - self.y[rows]) / np.float32(len(rows))
            weights, bias, elapsed = weights - rate * (slope @ x), bias - rate * slope.sum(), elapsed + rate
            if not self.dual:
                weights = weights - rate * np.float32(self.strength) * np.sign(weights)
        return [np.asarray(weights), np.asarray(bias), np.asarray(elapsed)]

    def solution(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return w (d,) and the bias () of a state."""
        weights, bias, elapsed = state
        return (self.soft(weights, elapsed) if self.dual else weights), bias

    def evaluate(self, state: State) -> float:
        """Compute F(w) + psi(w) of a state in float32, as a program does while it runs."""
        weights, bias = self.solution(state)
        return float(np.mean((self.x @ weights + bias - self.y) ** 2) + self.strength * np.abs(weights).sum())

    def record_time(self, number: int | None = None) -> None:
        """Record the time at the end of the next round, or after ``number`` rounds in total."""
        self.marks.append(time.perf_counter())
        self.marked.append(len(self.marks) if number is None else number)

    def save_result(self, weights: np.ndarray, bias: np.ndarray | float, path: str | Path) -> None:
        """Write the solution and the end time of each round."""
        np.savez(path, weights=weights, bias=bias, marks=self.marks, marked=self.marked)


def load_task() -> tuple[Task, Path]:
    """Return the task and the output file that the command line names."""
    if len(sys.argv) != 3:
        sys.exit(f"usage: {Path(sys.argv[0]).name} TASK.npz OUT.npz; compare.py makes the task and calls this script")
    return Task.read(sys.argv[1]), Path(sys.argv[2])


def objective(task: Task, weights: np.ndarray, bias: np.ndarray | float) -> float:
    """Compute F(w) + psi(w) in float64: the mean over all rows of (x'w + b - y)^2, and strength * ||w||_1."""
    w = np.asarray(weights, float).ravel()
    errors = task.x.astype(float) @ w + float(np.asarray(bias).item()) - task.y
    return float(np.mean(errors**2) + task.strength * np.abs(w).sum())


def steady(marks: np.ndarray, marked: np.ndarray, warm: int) -> float:
    """Return the seconds for a round after the first ``warm`` rounds, by the marks."""
    first = int(np.searchsorted(marked, warm))
    return float((marks[-1] - marks[first]) / (marked[-1] - marked[first]))
