"""The boxes of neighbours of FedAvg and FedDualAvg in plain NumPy, for quadratics, as those of boxes.py."""

from itertools import pairwise

import numpy as np
from boxes import copies, no_prox


def local_sgd(H, c, x, lr, steps):
    """Return the clients' points after gradient steps from x."""
    y = copies(x, len(c))
    for _ in range(steps):
        y = y - lr * (np.einsum("mij,mj->mi", H, y) - c)
    return y


def fedexp(H, c, p, start, rounds, lr, steps, epsilon):
    """Run FedExP, algorithm 1 of Jhunjhunwala et al.; return the means of the last two points."""
    points = [start]
    for _ in range(rounds):
        updates = local_sgd(H, c, points[-1], lr, steps) - points[-1]
        mean = p @ updates
        eta = max(1, p @ (updates**2).sum(axis=1) / (2 * (mean @ mean + epsilon)))
        points.append(points[-1] + eta * mean)
    return [(a + b) / 2 for a, b in pairwise(points)]


def mime_lite(H, c, p, start, rounds, lr, steps, beta):
    """Run MimeLite with momentum."""
    x, m, out = start, np.zeros_like(start), []
    for _ in range(rounds):
        y = copies(x, len(p))
        for _ in range(steps):
            y = y - lr * ((1 - beta) * (np.einsum("mij,mj->mi", H, y) - c) + beta * m)
        m = (1 - beta) * p @ (H @ x - c) + beta * m
        x = p @ y
        out.append(x)
    return out


def fedlin(H, c, p, start, rounds, lr, steps):
    """Run FedLin, algorithm 1 of Mitra et al., without sparsification; ``steps`` is that of each client."""
    x, out = start, []
    for _ in range(rounds):
        g = H @ x - c
        y = copies(x, len(p))
        for i, count in enumerate(steps):
            for _ in range(count):
                y[i] -= lr / count * (H[i] @ y[i] - c[i] - g[i] + p @ g)
        x = p @ y
        out.append(x)
    return out


def qfedavg(H, c, p, start, rounds, lr, steps, q, constants):
    """Run q-FedAvg, algorithm 2 of Li et al.; ``constants`` complete the losses of the clients."""
    w, out = start, []
    for _ in range(rounds):
        delta = (w - local_sgd(H, c, w, lr, steps)) / lr
        loss = np.einsum("i,mij,j->m", w, H, w) / 2 - c @ w + constants
        h = q * loss ** (q - 1) * (delta**2).sum(axis=1) + loss**q / lr
        w = w - p @ (loss[:, None] ** q * delta) / (p @ h)
        out.append(w)
    return out


def project_on_simplex(v):
    """Return the nearest point of the simplex, by sorting."""
    ordered = np.sort(v)[::-1]
    sums = np.cumsum(ordered) - 1
    k = np.flatnonzero(ordered > sums / np.arange(1, len(v) + 1))[-1]
    return np.maximum(v - sums[k] / (k + 1), 0)


def afl(H, c, p, start, rounds, lr, weight_lr, constants):
    """Run stochastic AFL, algorithm 1 of Mohri et al., with full gradients; return the means of the points."""
    w, mixture, points = start, np.full(len(p), 1 / len(p)), []
    for _ in range(rounds):
        points.append(w)
        loss = np.einsum("i,mij,j->m", w, H, w) / 2 - c @ w + constants
        w, mixture = w - lr * mixture @ (H @ w - c), project_on_simplex(mixture + weight_lr * loss)
    return np.cumsum(points, axis=0) / np.arange(1, rounds + 1)[:, None]


def fedavg_cd(H, c, p, start, rounds, sweeps, step, server_lr, strength):
    """Run FedAvg of coordinate descent on each client's quadratic plus the l1 norm of all but the last entry."""
    w, out = start, []
    for _ in range(rounds):
        y = copies(w, len(p))
        for i in range(len(p)):
            for j in [*range(len(w))] * sweeps:
                length = step / H[i, j, j]
                v = y[i, j] - length * (H[i, j] @ y[i] - c[i, j])
                l1 = strength if j < len(w) - 1 else 0.0
                y[i, j] = np.sign(v) * max(abs(v) - length * l1, 0)
        w = w + server_lr * (p @ y - w)
        out.append(w)
    return out


def constrained_fedda(H, c, p, start, rounds, lr, server_lr, steps, strength, radius, stage_rounds=10**6, shrink=0.5):
    """Run (M)C-FedDA with psi and the ball on all but the last coordinate; the prox by SciPy, one entry at a time."""
    from scipy.optimize import brentq

    def entry(v, center, l1, multiplier):
        kinks = [0.0, center]
        slopes = [s1 * l1 + s2 * multiplier for s1 in (-1, 1) for s2 in (-1, 1)]
        candidates = kinks + [v - slope for slope in slopes]
        return min(candidates, key=lambda w: (w - v) ** 2 / 2 + l1 * abs(w) + multiplier * abs(w - center))

    def point(center, dual, elapsed, radius):
        v = center + dual

        def at(multiplier):
            return np.array([entry(a, b, elapsed * strength, multiplier) for a, b in zip(v[:-1], center, strict=False)])

        def excess(multiplier):
            return np.abs(at(multiplier) - center[:-1]).sum() - radius

        multiplier = 0.0 if excess(0.0) <= 0 else brentq(excess, 0, 100, xtol=1e-14)
        return np.append(at(multiplier), v[-1])

    center, dual, elapsed, out = start, np.zeros_like(start), 0.0, []
    for number in range(1, rounds + 1):
        duals = copies(dual, len(p))
        for i in range(len(p)):
            for k in range(steps):
                w = point(center, duals[i], elapsed + k * lr, radius)
                duals[i] -= lr * (H[i] @ w - c[i])
        dual = dual + server_lr * (p @ duals - dual)
        elapsed += server_lr * steps * lr
        out.append(point(center, dual, elapsed, radius))
        if number % stage_rounds == 0:
            center, dual, elapsed, radius = out[-1], np.zeros_like(start), 0.0, shrink * radius
    return out


def fedavg_threshold(H, c, p, start, rounds, lr, steps, threshold, psi_prox=no_prox):
    """Run FedAvg; return the prox of psi at each point."""
    x, out = start, []
    for _ in range(rounds):
        x = p @ local_sgd(H, c, x, lr, steps)
        out.append(psi_prox(x, threshold))
    return out


def tamuna(H, c, p, start, rounds, lr, probability, senders, cohorts, steps):
    """Run TAMUNA, algorithm 1 of Condat et al., with full gradients.

    ``cohorts`` has the clients of each round in the order of the columns of its mask, and ``steps`` its local steps.
    """
    n, s, d = len(p), senders, len(start)
    x, h, out = start, np.zeros((n, d)), []
    eta = probability * n * (s - 1) / (s * (n - 1))
    for cohort, count in zip(cohorts[:rounds], steps, strict=False):
        mask = np.zeros((d, len(cohort)), bool)
        for k in range(d):
            mask[k, [(k * s + j) % len(cohort) for j in range(s)]] = True
        y = {}
        for i in cohort:
            y[i] = x
            for _ in range(count):
                y[i] = y[i] - lr * (H[i] @ y[i] - c[i] - h[i])
        x = sum(np.where(mask[:, column], y[i], 0) for column, i in enumerate(cohort)) / s
        for column, i in enumerate(cohort):
            h[i] += eta / lr * np.where(mask[:, column], x - y[i], 0)
        out.append(x)
    return out


def fedprox_steps(H, c, p, start, rounds, lr, mu, steps):
    """Run FedProx with gradient steps on the proximal loss; ``steps`` (rounds, M) is that of each client."""
    x, out = start, []
    for counts in steps[:rounds]:
        y = copies(x, len(p))
        for i, count in enumerate(counts):
            for _ in range(count):
                y[i] -= lr * (H[i] @ y[i] - c[i] + mu * (y[i] - x))
        x = p @ y
        out.append(x)
    return out
