"""Time the certified optimum of sparse rows against skglm and celer, each to the same duality gap.

``python scripts/peers/sparse_rows.py --python PYTHON`` draws rows of the shape of rcv1.binary by the law of
``make_sparse_rows.py``, and prints the table of docs/measurements.md: logistic LASSO at three strengths. PYTHON has
skglm and celer, and what is not installed is skipped with its name. Each peer stops by its own rule. Its tolerance is
the largest power of ten with which its model has the duality gap that ``algo.tolerance`` asks of fcorun, and its time
is that of this tolerance alone. All times are processor times, the least of some repetitions that alternate, without
imports, reading and compiling; that of fcorun includes the transposition of features. The memory is that of the rows
and the largest of a fit, as ``tracemalloc`` counts it, relative to the bytes of the nonzeros: 8 a value, 4 a column.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from make_sparse_rows import make_rows
from scipy import sparse
from scipy.optimize import brentq
from scipy.special import expit, xlogy

from fcorun.base.system.machine import available_cores
from fcorun.data.rows.sparse_matrix import SparseMatrix
from fcorun.data.rows.sparse_rows import compress_rows
from fcorun.methods.mirror_maps import Euclidean
from fcorun.methods.objectives import Logistic
from fcorun.methods.problem import path_solver
from fcorun.methods.problem.problem import Batch, Problem
from fcorun.methods.regularizers import L1

SHARES = (0.1, 0.05, 0.02)  # strengths, relative to the least one at which all coefficients are 0
GAP = 1e-6  # relative to the objective of the model without features
REPETITIONS = 5
PEERS = {  # by package: the estimator of a strength, a tolerance and a number of rows, and whether it has an intercept
    "skglm": ("SparseLogisticRegression(alpha=strength, tol=tol, fit_intercept=intercept, max_iter=200)", True),
    "celer": ("LogisticRegression(C=1 / (strength * len(y)), tol=tol, fit_intercept=False, max_iter=200)", False),
}
PEER_PROGRAM = """
import sys, time, warnings
import numpy as np
from scipy import sparse
import {package}
from {package} import *
warnings.simplefilter("ignore")
x, y = sparse.csc_matrix(sparse.load_npz("x.npz"), dtype=np.float64), np.load("y.npy")
print({package}.__version__, flush=True)
for line in sys.stdin:
    strength, tol, intercept = float(line.split()[0]), float(line.split()[1]), line.split()[2] == "True"
    model = {estimator}
    begun = time.process_time()
    model.fit(x, y)
    seconds = time.process_time() - begun
    np.save("model.npy", np.append(model.coef_.ravel(), model.intercept_ if intercept else 0.0))
    print(seconds, flush=True)
"""


class Peer:
    """A package in a process of its own, which has the rows."""

    def __init__(self, package: str, python: str, folder: Path):
        estimator, self.has_intercept = PEERS[package]
        self.folder = folder
        program = PEER_PROGRAM.format(package=package, estimator=estimator)
        self.process = subprocess.Popen(
            [python, "-c", program], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )
        self.title = f"{package} {self._read()}"

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise ChildProcessError
        return line

    def fit(self, strength: float, tolerance: float, has_intercept: bool) -> tuple[float, np.ndarray]:
        """Return the seconds of a fit, and its coefficients with the intercept last."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{strength} {tolerance} {has_intercept}\n")
        self.process.stdin.flush()
        seconds = float(self._read())
        return seconds, np.load(self.folder / "model.npy")


def relative_gap(x: Any, y: np.ndarray, theta: np.ndarray, strength: float, has_intercept: bool) -> float:
    """Return the duality gap of a model, divided by the objective of the model without features."""
    target = (y > 0).astype(float)
    linear = x @ theta[:-1]
    bias = brentq(lambda b: (expit(linear + b) - target).sum(), -50, 50, xtol=1e-15) if has_intercept else 0.0
    prediction = linear + bias
    residual = expit(prediction) - target
    scale = min(1.0, strength * len(y) / np.abs(x.T @ residual).max())
    share = np.clip(scale * residual + target, 0, 1)
    dual = -(xlogy(share, share) + xlogy(1 - share, 1 - share)).mean()
    loss = np.logaddexp(0, prediction) - target * prediction
    share_of_ones = target.mean() if has_intercept else 0.5
    null_loss = np.mean(-target * np.log(share_of_ones) - (1 - target) * np.log(1 - share_of_ones))
    return float((loss.mean() + strength * np.abs(theta[:-1]).sum() - dual) / null_loss)


def fit_fcorun(x: Any, y: np.ndarray, strength: float, has_intercept: bool) -> tuple[float, np.ndarray]:
    """Return the seconds of ``algo=centralized``, and its coefficients with the intercept last."""
    objective = Logistic(intercept=has_intercept)
    problem = Problem(objective, L1(strength), Euclidean(), objective.shapes((x.shape[1],), 0))
    with jax.enable_x64(True):
        weight = jnp.full(len(y), 1 / len(y))
        examples: Any = compress_rows(SparseMatrix(x), np.float64)
        batch = Batch(examples, jnp.asarray(y > 0, jnp.float64), weight)
        begun = time.process_time()
        *_, iterate = path_solver.minimize(problem, batch, GAP, 100_000)
        seconds = time.process_time() - begun
        return seconds, np.append(iterate.w["weights"], iterate.w.get("bias", 0.0))


def relative_memory(x: Any, y: np.ndarray, strength: float, has_intercept: bool) -> float:
    """Return the memory of the rows and of a fit by fcorun, relative to that of the rows."""
    tracemalloc.start()
    fit_fcorun(x, y, strength, has_intercept)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return 1 + peak / SparseMatrix(x).nbytes


def find_tolerance(peer: Peer, x: Any, y: np.ndarray, strength: float, has_intercept: bool) -> float | None:
    """Return the largest power of ten with which a peer's model has the gap."""
    for exponent in range(4, 13):
        theta = peer.fit(strength, 10.0**-exponent, has_intercept)[1]
        if relative_gap(x, y, theta, strength, has_intercept) <= GAP:
            return 10.0**-exponent
    return None


def compare_strength(peers: list[Peer], x: Any, y: np.ndarray, strength: float, has_intercept: bool) -> list[str]:
    """Return the cells of a table's row: nonzeros, gap, memory and seconds of fcorun, then those of each peer."""
    tolerances = {}
    for peer in peers:
        if peer.has_intercept or not has_intercept:
            tolerances[peer] = find_tolerance(peer, x, y, strength, has_intercept)
    own, others = [], {peer: [] for peer, tolerance in tolerances.items() if tolerance}
    for _ in range(REPETITIONS):
        seconds, theta = fit_fcorun(x, y, strength, has_intercept)
        own.append(seconds)
        for peer, of_peer in others.items():
            of_peer.append(peer.fit(strength, tolerances[peer], has_intercept)[0])
    gap = relative_gap(x, y, theta, strength, has_intercept)
    memory = relative_memory(x, y, strength, has_intercept)
    cells = [str(np.count_nonzero(theta[:-1])), f"{gap:.1e}", f"{memory:.1f}", f"{min(own):.2f} s"]
    for peer in peers:
        if peer not in tolerances:
            cells.append("no intercept")
        elif peer not in others:
            cells.append("not reached")
        else:
            least = min(others[peer])
            cells.append(f"{least:.2f} s ({min(own) / least:.1f}), tol {tolerances[peer]:g}")
    return cells


def main() -> None:
    """Draw the rows, time each strength without and with an intercept, and print a row of a Markdown table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the Python with skglm and celer (default: this one)")
    arguments = parser.parse_args()
    x, y = make_rows()
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top)
        sparse.save_npz(folder / "x.npz", sparse.csr_matrix(x))
        np.save(folder / "y.npy", y)
        peers = []
        for package in PEERS:
            try:
                peers.append(Peer(package, arguments.python, folder))
            except (OSError, ChildProcessError):
                print(f"{package} is skipped: it is not installed in {arguments.python}", file=sys.stderr)
        print(f"load {os.getloadavg()[0]:.1f} on {available_cores()} cores in the minute before\n")
        titles = " | ".join(f"{peer.title} (fcorun takes times as long)" for peer in peers)
        print(f"| {x.shape[0]:,} x {x.shape[1]:,}, {x.nnz:,} nonzeros | nonzero | gap | memory | fcorun | {titles} |")
        print("| --- | --- | --- | --- | --- |" + " --- |" * len(peers))
        for has_intercept in (False, True):
            largest = np.abs(x.T @ ((y > 0) - (np.mean(y > 0) if has_intercept else 0.5))).max() / len(y)
            for share in SHARES:
                cells = compare_strength(peers, x, y, share * largest, has_intercept)
                label = f"{share:g} of the largest strength, {'an' if has_intercept else 'no'} intercept"
                print(f"| {label} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
