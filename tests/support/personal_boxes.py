"""The boxes of personalised federated methods in plain NumPy, for quadratics: oracles that share no code with fcorun.

Clients have f_i(x) = x'H_i x / 2 - c_i'x and weights p that sum to one, as in boxes.py; every client's model starts at
the server's start. A method returns two lists with an entry for each round: the server's points (d,), and the personal
models (M, d), where a client outside of the cohort keeps its former model. ``cohorts`` holds the clients of each round,
by default all; a mean over a cohort is weighted by p. A docstring states each choice that a rule leaves open.

F_i of pFedMe and of pFedMac are quadratics again, so that with exact inner solves both are FedGD on other H and c:
``envelopes`` and ``correlations`` give these. personal_fixed_points.py has the limits of the methods.
"""

from itertools import pairwise

import boxes
import numpy as np


def solve(h, b, u=None):
    """Return argmin u'h u / 2 - b'u, for any start."""
    return np.linalg.solve(h, b)


def gradients(H, c, x):
    """Return the gradients of all clients' f_i, each at its own x_i."""
    return np.einsum("mij,mj->mi", H, x) - c


# ---------------------------------------------------------------- inner problems of pFedMac-S: + gamma phi(u)


def l1(gamma):
    """Return the solver for phi = ||u||_1: proximal gradient until the signs are final, which give the minimizer."""

    def minimize(h, b, u):
        s = 1 / np.linalg.norm(h, 2)
        while True:
            for _ in range(10):
                u = boxes.soft(gamma)(u - s * (h @ u - b), s)
            on, exact = u != 0, np.zeros(len(u))
            exact[on] = np.linalg.solve(h[on][:, on], (b - gamma * np.sign(u))[on])
            if (np.sign(exact) == np.sign(u)).all() and (abs(b - h @ exact)[~on] <= gamma).all():
                return exact

    return minimize


def huber(gamma, rho):
    """Return the solver for phi = sum of u^2 / (2 rho) up to rho and |u| - rho / 2 beyond, the envelope of ||u||_1."""

    def pattern(u):
        return np.sign(u) * (abs(u) > rho)

    def minimize(h, b, u):
        s = 1 / np.linalg.norm(h, 2)
        while True:
            for _ in range(10):
                v = u - s * (h @ u - b)
                u = np.where(abs(v) <= rho + s * gamma, v / (1 + s * gamma / rho), v - s * gamma * np.sign(v))
            beyond = pattern(u)
            exact = np.linalg.solve(h + np.diag((beyond == 0) * gamma / rho), b - gamma * beyond)
            if (pattern(exact) == beyond).all():
                return exact

    return minimize


def logcosh(gamma, rho):
    """Return the solver for phi = rho sum log cosh(u / rho): Newton's method with halved steps."""

    def minimize(h, b, u):
        def gradient(u):
            return h @ u - b + gamma * np.tanh(u / rho)

        while np.linalg.norm(g := gradient(u)) > 1e-14 * (1 + np.linalg.norm(b)):
            curvature, t = (1 - np.tanh(u / rho) ** 2) / rho, 1.0
            step = np.linalg.solve(h + gamma * np.diag(curvature), g)
            while np.linalg.norm(gradient(u - t * step)) >= np.linalg.norm(g):
                t /= 2
                if t < 1e-12:  # rounding has the last word
                    return u
            u = u - t * step
        return u

    return minimize


# ---------------------------------------------------------------- methods


def apfl(H, c, p, start, rounds, eta, steps, alpha, adaptive=False, cohorts=None):
    """Run APFL with full gradients; also return the mixing weights (M,) after each round.

    A step computes all gradients first, and then moves w_i, v_i and, if ``adaptive``, alpha_i together. The personal
    model is alpha_i v_i + (1 - alpha_i) w with the server's new w.
    """
    w, v, alpha = start, boxes.copies(start, len(p)), np.array(alpha, float)
    points, models, weights = [], [], []
    for cohort in boxes.everyone(cohorts, rounds, len(p)):
        y = boxes.copies(w, len(p))
        for i in cohort:
            for _ in range(steps):
                own = H[i] @ y[i] - c[i]
                mixed = H[i] @ (alpha[i] * v[i] + (1 - alpha[i]) * y[i]) - c[i]
                slope = (v[i] - y[i]) @ mixed
                y[i] -= eta * own
                v[i] -= eta * alpha[i] * mixed
                if adaptive:
                    alpha[i] = np.clip(alpha[i] - eta * slope, 0, 1)
        w = boxes.mean(p, y, cohort)
        points.append(w)
        models.append(alpha[:, None] * v + (1 - alpha[:, None]) * w)
        weights.append(alpha.copy())
    return points, models, weights


def pfedme(H, c, p, start, rounds, lam, eta, steps, beta=1.0, cohorts=None):
    """Run pFedMe: theta = argmin f_i + lam/2 ||. - y||^2; the personal model is the last theta."""
    x, theta, points, models = start, boxes.copies(start, len(p)), [], []
    for cohort in boxes.everyone(cohorts, rounds, len(p)):
        y = boxes.copies(x, len(p))
        for i in cohort:
            for _ in range(steps):
                theta[i] = boxes.prox(H[i], c[i], 1 / lam, y[i])
                y[i] -= eta * lam * (y[i] - theta[i])
        x = (1 - beta) * x + beta * boxes.mean(p, y, cohort)
        points.append(x)
        models.append(theta.copy())
    return points, models


def mixture(H, c, p, start, coins, step, lam, probability):
    """Run L2GD with a coin for each step, 1 for a pull to the mean. The lists have an entry for each step.

    The server's point is the mean of the models. The paper has equal weights 1/n. Other weights p are in the mean
    alone, and the steps keep their 1/n: they are then gradient steps in the norm that p weights, and a pull does not
    change the mean.
    """
    x, n, points, models = boxes.copies(start, len(p)), len(p), [], []
    for coin in coins:
        if coin:
            x = x - step * lam / (n * probability) * (x - p @ x)
        else:
            x = x - step / (n * (1 - probability)) * gradients(H, c, x)
        points.append(p @ x)
        models.append(x)
    return points, models


def communications(coins):
    """Count the communications of L2GD, coins 1 after a 0. A 1 at the start pulls equal models, and sends nothing."""
    return sum(a == 0 and b == 1 for a, b in pairwise(coins))


def pfedmac(H, c, p, start, rounds, lam, eta, steps, beta=1.0, inner=solve, cohorts=None):
    """Run pFedMac: u = argmin f_i - lam <., y>; pFedMac-S with another ``inner``. The personal model is the last u.

    pFedMac converges if F_i is convex, which means that f_i is lam-strongly convex. A finite F_i is not enough.
    """
    x, u, points, models = start, boxes.copies(start, len(p)), [], []
    for cohort in boxes.everyone(cohorts, rounds, len(p)):
        y = boxes.copies(x, len(p))
        for i in cohort:
            for _ in range(steps):
                u[i] = inner(H[i], c[i] + lam * y[i], u[i])
                y[i] -= eta * lam * (y[i] - u[i])
        x = (1 - beta) * x + beta * boxes.mean(p, y, cohort)
        points.append(x)
        models.append(u.copy())
    return points, models


def pfedmac_sh(
    H, c, p, start, rounds, edges, lam_1, lam_2, eta_1, eta_2, steps, edge_steps, beta=1.0, inner=solve, restart=True
):
    """Run pFedMac-SH by the slide's box, but with lam_1 in the client's line. Also return the edges' models.

    ``edges`` lists the clients of each edge, whose weights sum to that of the edge. Clients start from their edge's
    mean y_i, or without ``restart``, as the box prints it, from their own y_ij, which begins at the cloud's point.
    """
    x, u, points, models, middles = start, boxes.copies(start, len(p)), [], [], []
    for _ in range(rounds):
        edge = boxes.copies(x, len(edges))
        for e, members in enumerate(edges):
            y = boxes.copies(x, len(p))
            for _ in range(edge_steps):
                for j in members:
                    for _ in range(steps):
                        u[j] = inner(H[j], c[j] + lam_1 * y[j], u[j])
                        y[j] -= eta_1 * lam_1 * (y[j] - u[j])
                mean = boxes.mean(p, y, members)
                edge[e] -= eta_2 * lam_2 * (edge[e] - mean)
                if restart:
                    y[members] = mean
        x = (1 - beta) * x + beta * sum(p[members].sum() * edge[e] for e, members in enumerate(edges))
        points.append(x)
        models.append(u.copy())
        middles.append(edge)
    return points, models, middles


def pfedmac_sh_nested(H, c, p, start, rounds, edges, lam_1, lam_2, eta_2, edge_steps, beta=1.0):
    """Run gradient steps on the slide's problem of three levels, solving both inner problems, unlike the slide's box.

    A step is x_i -= eta_2 lam_2 (x_i - y_i) with y_i = argmin over y of mean_j F_ij(y) - lam_2 <y, x_i>. In place of
    y_i the box has the mean of y_ij -= eta_1 lam_1 (y_ij - u_ij), without the lam_2 x_i of the gradient of y's problem.
    """
    x, points, models = start, [], []
    for _ in range(rounds):
        edge, u = boxes.copies(x, len(edges)), boxes.copies(x, len(p))
        for e, members in enumerate(edges):
            h, b = edge_quadratic(H, c, p, members, lam_1)
            for _ in range(edge_steps):
                y = np.linalg.solve(h, b + lam_2 * edge[e])
                edge[e] -= eta_2 * lam_2 * (edge[e] - y)
            for j in members:
                u[j] = np.linalg.solve(H[j], c[j] + lam_1 * y)
        x = (1 - beta) * x + beta * sum(p[members].sum() * edge[e] for e, members in enumerate(edges))
        points.append(x)
        models.append(u)
    return points, models


def ditto(H, c, p, start, rounds, s, e, lam, eta, steps, cohorts=None):
    """Run Ditto with FedGD(s, e): v_i -= eta (grad f_i(v_i) + lam (v_i - w)) with the w from the start of the round."""
    points = boxes.fedgd(H, c, p, start, rounds, s, e, cohorts)
    v, models = boxes.copies(start, len(p)), []
    for w, cohort in zip([start, *points], boxes.everyone(cohorts, rounds, len(p)), strict=False):
        for i in cohort:
            for _ in range(steps):
                v[i] -= eta * (H[i] @ v[i] - c[i] + lam * (v[i] - w))
        models.append(v.copy())
    return points, models


# ---------------------------------------------------------------- the functions that they minimize


def envelopes(H, c, lam):
    """Return pFedMe's F_i = min f_i(u) + lam/2 ||u - .||^2 as quadratics, up to a constant: their H and c."""
    inverse = np.linalg.inv(H + lam * np.eye(H.shape[1]))
    return lam * H @ inverse, lam * np.einsum("mij,mj->mi", inverse, c)


def correlations(H, c, lam):
    """Return pFedMac's F_i = lam/2 ||.||^2 - f_i*(lam .) as quadratics, up to a constant; convex where H_i >= lam I."""
    inverse = np.linalg.inv(H)
    return lam * np.eye(H.shape[1]) - lam**2 * inverse, lam * np.einsum("mij,mj->mi", inverse, c)


def conjugate(h, c, y):
    """Return f*(y) of f = x'h x / 2 - c'x."""
    return (y + c) @ np.linalg.solve(h, y + c) / 2


def edge_quadratic(H, c, p, members, lam):
    """Return mean_j F_ij of pFedMac over the clients of an edge, as H and c."""
    h, b = correlations(H[members], c[members], lam)
    q = p[members] / p[members].sum()
    return np.tensordot(q, h, 1), q @ b
