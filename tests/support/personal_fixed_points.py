"""The limits of the methods of personal_boxes.py in closed form, for the same quadratics."""

import boxes
import numpy as np
from personal_boxes import correlations, edge_quadratic, gradients


def affine(a, b):
    """Return x -> a x + b as one matrix, so that a product of matrices composes maps."""
    return np.block([[a, b[:, None]], [np.zeros((1, len(b))), np.ones((1, 1))]])


def fixed_point(map):
    """Return the solution of x = a x + b."""
    return np.linalg.solve(np.eye(len(map) - 1) - map[:-1, :-1], map[:-1, -1])


def apfl_fixed_point(H, c, p, eta, steps, alpha):
    """Return w, and the personal models for fixed weights alpha > 0: the local optima if there is one local step."""
    w, eye, models = boxes.fedgd_fixed_point(H, c, p, eta, steps), np.eye(H.shape[1]), []
    for h, b, a in zip(H, c, alpha, strict=True):
        y, map = w, affine(eye, np.zeros(len(w)))
        for _ in range(steps):
            map = affine(eye - eta * a**2 * h, eta * a * (b - (1 - a) * h @ y)) @ map
            y = y - eta * (h @ y - b)
        models.append(a * fixed_point(map) + (1 - a) * w)
    return w, np.array(models)


def mixture_optimum(H, c, p, lam):
    """Return the minimizer of sum_i p_i f_i(x_i) + lam/2 sum_i p_i ||x_i - sum_j p_j x_j||^2."""
    d, blocks = H.shape[1], _blocks(H)
    left = blocks + lam * (np.eye(len(blocks)) - np.kron(np.ones((len(p), 1)) * p, np.eye(d)))
    return np.linalg.solve(left, c.ravel()).reshape(-1, d)


def mixture_cycle(H, c, p, coins, step, lam, probability):
    """Return the limit of L2GD after each cycle of ``coins``, repeated for ever: near the optimum, not at it."""
    n, d, blocks = len(p), H.shape[1], _blocks(H)
    eye, pull, descend = np.eye(n * d), step * lam / (n * probability), step / (n * (1 - probability))
    mean = np.kron(np.ones((n, 1)) * p, np.eye(d))
    maps = {
        0: affine(eye - descend * blocks, descend * c.ravel()),
        1: affine((1 - pull) * eye + pull * mean, 0 * c.ravel()),
    }
    cycle = affine(eye, 0 * c.ravel())
    for coin in coins:
        cycle = maps[coin] @ cycle
    return fixed_point(cycle).reshape(-1, d)


def _blocks(H):
    n, d = H.shape[:2]
    return (np.eye(n)[:, None, :, None] * H[:, :, None, :]).reshape(n * d, n * d)


def pfedmac_optimum(H, c, p, lam, phi_prox=boxes.no_prox, steps=100_000):
    """Return the minimizer x and u of sum_i p_i (f_i(u_i) - lam <u_i, x> + lam/2 ||x||^2 + phi(u_i)).

    x is the mean of u; proximal gradient on u, in the norm that p weights, until it hardly moves.
    """
    u, s = np.zeros_like(c), 1 / np.linalg.eigvalsh(H).max()
    for _ in range(steps):
        u, before = phi_prox(u - s * (gradients(H, c, u) - lam * p @ u), s), u
        if np.abs(u - before).max() < 1e-14:
            break
    return p @ u, u


def pfedmac_sh_fixed_point(H, c, p, edges, lam_1, lam_2, eta_1, eta_2, steps, edge_steps, restart=True):
    """Return the fixed point of the slide's box; with one step of both kinds, pFedMac's with lam_1 for any lam_2."""
    h, b = correlations(H, c, lam_1)
    eye, theta, power = np.eye(H.shape[1]), eta_2 * lam_2, np.linalg.matrix_power
    client = [power(affine(eye - eta_1 * h[j], eta_1 * b[j]), steps) for j in range(len(p))]
    whole = 0
    for members in edges:
        q, edge = p[members] / p[members].sum(), affine(eye, np.zeros(len(eye)))
        for r in range(1, edge_steps + 1):
            if restart:
                mean = power(sum(a * client[j] for a, j in zip(q, members, strict=True)), r)
            else:
                mean = sum(a * power(client[j], r) for a, j in zip(q, members, strict=True))
            edge = (1 - theta) * edge + theta * mean
        whole = whole + p[members].sum() * edge
    return fixed_point(whole)


def pfedmac_sh_optimum(H, c, p, edges, lam_1, lam_2):
    """Return the minimizer x of the slide's problem of three levels.

    The problem is convex if mean_j F_ij is lam_2-strongly convex.
    """
    edge = [edge_quadratic(H, c, p, members, lam_1) for members in edges]
    h, b = correlations(np.array([e[0] for e in edge]), np.array([e[1] for e in edge]), lam_2)
    q = np.array([p[members].sum() for members in edges])
    return np.linalg.solve(np.tensordot(q, h, 1), q @ b)
