"""The boxes of federated methods in plain NumPy, for quadratics: oracles that share no code with fcorun.

The problem is min over x of sum_i p_i f_i(x) [+ psi(x)] with f_i(x) = x'H_i x / 2 - c_i'x and weights p that sum to
one; ``psi_prox(v, t)`` = argmin t psi + ||. - v||^2 / 2. Every method takes H (M, d, d), c (M, d), p (M,), the start
(d,) and the number of rounds, and returns the server's point after each round. ``cohorts`` holds the clients of each
round, by default all. A mean over a cohort is weighted by p and divided by the weight of the cohort; where a paper has
|S| / n, the weight of the cohort stands for it. All states of a client start at the server's start, all duals at 0.
"""

import numpy as np


def no_prox(v, t):
    """That of psi = 0."""
    return v


def soft(strength):
    """The prox of strength * ||x||_1."""
    return lambda v, t: np.sign(v) * np.maximum(np.abs(v) - t * strength, 0)


def prox(h, c, s, v):
    """argmin s f + ||. - v||^2 / 2 of one client; with v = x + s g that of f - <g, .> + ||. - x||^2 / (2 s)."""
    return np.linalg.solve(np.eye(len(v)) + s * h, v + s * c)


def copies(start, clients):
    """A state of each client, all of them at the start."""
    return np.tile(start, (clients, 1))


def everyone(cohorts, rounds, clients):
    """The cohorts, or all clients in every round."""
    return [list(range(clients))] * rounds if cohorts is None else cohorts[:rounds]


def mean(p, values, cohort):
    """The weighted mean over a cohort."""
    return p[cohort] @ values[cohort] / p[cohort].sum()


# ---------------------------------------------------------------- where they should arrive, and where they do


def optimum(H, c, p, psi_prox=no_prox, steps=100_000):
    """The minimiser, by proximal gradient until it stands still."""
    h, b = np.tensordot(p, H, 1), p @ c
    s, x = 1 / np.linalg.eigvalsh(h)[-1], np.zeros(len(b))
    for _ in range(steps):
        x, before = psi_prox(x - s * (h @ x - b), s), x
        if np.abs(x - before).max() < 1e-16:
            break
    return x


def fedgd_fixed_point(H, c, p, s, e):
    """Equation 10 of the FedSplit paper: sum_i p_i Q_i (H_i x - c_i) = 0, Q_i = sum over k < e of (I - s H_i)^k."""
    eye = np.eye(H.shape[1])
    q = [sum(np.linalg.matrix_power(eye - s * h, k) for k in range(e)) for h in H]
    left = sum(p[i] * H[i] @ q[i] for i in range(len(p)))
    return np.linalg.solve(left, sum(p[i] * q[i] @ c[i] for i in range(len(p))))


def fedprox_fixed_point(H, c, p, s):
    """Section 2.3 of the FedSplit paper: the gradients of the Moreau envelopes sum to 0."""
    eye = np.eye(H.shape[1])
    left = sum(p[i] * (eye - np.linalg.inv(eye + s * H[i])) for i in range(len(p)))
    return np.linalg.solve(left, sum(p[i] * np.linalg.solve(H[i] + eye / s, c[i]) for i in range(len(p))))


# ---------------------------------------------------------------- averages


def fedgd(H, c, p, start, rounds, s, e, cohorts=None):
    """FedGD(s, e): e gradient steps of length s, then the mean."""
    x, out = start, []
    for cohort in everyone(cohorts, rounds, len(p)):
        y = copies(x, len(p))
        for i in cohort:
            for _ in range(e):
                y[i] -= s * (H[i] @ y[i] - c[i])
        x = mean(p, y, cohort)
        out.append(x)
    return out


def fedprox(H, c, p, start, rounds, mu, cohorts=None):
    """FedProx, exact: x_i = argmin f_i + mu/2 ||. - x||^2, then the mean."""
    x, out = start, []
    for cohort in everyone(cohorts, rounds, len(p)):
        y = copies(x, len(p))
        for i in cohort:
            y[i] = prox(H[i], c[i], 1 / mu, x)
        x = mean(p, y, cohort)
        out.append(x)
    return out


def scaffold(H, c, p, start, rounds, client_lr, server_lr, steps, option=2, cohorts=None):
    """SCAFFOLD with full gradients; option 1 takes the gradient at the server's point for the control variate."""
    x, out = start, []
    own, common = np.zeros_like(c), np.zeros_like(start)
    for cohort in everyone(cohorts, rounds, len(p)):
        y, new = copies(x, len(p)), own.copy()
        for i in cohort:
            for _ in range(steps):
                y[i] -= client_lr * (H[i] @ y[i] - c[i] - own[i] + common)
            new[i] = H[i] @ x - c[i] if option == 1 else own[i] - common + (x - y[i]) / (steps * client_lr)
        x = x + server_lr * mean(p, y - x, cohort)
        common = common + p @ (new - own)
        own = new
        out.append(x)
    return out


# ---------------------------------------------------------------- splittings and duals


def fedsplit(H, c, p, start, rounds, s, psi_prox=no_prox, relaxation=2.0, ridge=0.0):
    """FedSplit: Peaceman-Rachford with relaxation 2, Douglas-Rachford with 1.

    ``ridge`` adds ridge/2 ||. - start||^2 to every f_i, as theorem 2 does. The paper prints lambda / (2 m) for ridge/2,
    but its curvatures (lambda and L + lambda), its step and its lambda < eps / (m ||x1 - x*||^2) are those of lambda/2.
    """
    H, c = H + ridge * np.eye(len(start)), c + ridge * start
    x, z, out = start, copies(start, len(p)), []
    for _ in range(rounds):
        for i in range(len(p)):
            z[i] += relaxation * (prox(H[i], c[i], s, 2 * x - z[i]) - x)
        x = psi_prox(p @ z, s)
        out.append(x)
    return out


def feddyn(H, c, p, start, rounds, alpha, cohorts=None):
    """FedDyn: x_i = argmin f_i - <g_i, .> + alpha/2 ||. - x||^2."""
    x, g, h, out = start, np.zeros_like(c), np.zeros_like(start), []
    for cohort in everyone(cohorts, rounds, len(p)):
        y = copies(x, len(p))
        for i in cohort:
            y[i] = prox(H[i], c[i], 1 / alpha, x + g[i] / alpha)
            g[i] -= alpha * (y[i] - x)
        h = h - alpha * p @ (y - x)
        x = mean(p, y, cohort) - h / alpha
        out.append(x)
    return out


def fedpd(H, c, p, start, rounds, s):
    """FedPD that communicates every round: x_i = argmin f_i + <l_i, . - x> + ||. - x||^2 / (2 s)."""
    x, y, dual, out = start, copies(start, len(p)), np.zeros_like(c), []
    for _ in range(rounds):
        for i in range(len(p)):
            y[i] = prox(H[i], c[i], s, x - s * dual[i])
            dual[i] += (y[i] - x) / s
        x = p @ (y + s * dual)
        out.append(x)
    return out


def feddr(H, c, p, start, rounds, eta, alpha=1.0, psi_prox=no_prox, cohorts=None):
    """FedDR; the server has the mean over all clients of their latest 2 x_i - y_i, the start for those not yet seen."""
    x, out = start, []
    y, own, reflected = (copies(start, len(p)) for _ in range(3))
    for cohort in everyone(cohorts, rounds, len(p)):
        for i in cohort:
            y[i] += alpha * (x - own[i])
            own[i] = prox(H[i], c[i], eta, y[i])
            reflected[i] = 2 * own[i] - y[i]
        x = psi_prox(p @ reflected, eta)
        out.append(x)
    return out


def fedadmm(H, c, p, start, rounds, rho, psi_prox=no_prox, cohorts=None):
    """FedADMM: x_i = argmin f_i + <z_i, . - x> + rho/2 ||. - x||^2; the mean is over all clients, not the cohort."""
    x, y, z, out = start, copies(start, len(p)), np.zeros_like(c), []
    for cohort in everyone(cohorts, rounds, len(p)):
        for i in cohort:
            y[i] = prox(H[i], c[i], 1 / rho, x - z[i] / rho)
            z[i] += rho * (y[i] - x)
        x = psi_prox(p @ (y + z / rho), 1 / rho)
        out.append(x)
    return out


def proxskip(H, c, p, start, rounds, gamma, probability, steps, psi_prox=no_prox):
    """ProxSkip (Scaffnew with psi): ``steps[r]`` local steps in round r, communication after the last one."""
    y, h, out = copies(start, len(p)), np.zeros_like(c), []
    for count in steps[:rounds]:
        for i in range(len(p)):
            for _ in range(count):
                y[i] -= gamma * (H[i] @ y[i] - c[i] - h[i])
        x = psi_prox(p @ (y - gamma / probability * h), gamma / probability)
        h += probability / gamma * (x - y)
        y = copies(x, len(p))
        out.append(x)
    return out


# ---------------------------------------------------------------- composite successors of FedDualAvg


def fast_fedda(H, c, p, start, rounds, gamma, mu, steps, psi_prox=no_prox):
    """Fast-FedDA with full gradients; every local point enters the sum of points once.

    With one local step it is exact, with more the distance from the optimum falls like 1 / rounds.
    """

    def point(gradients, points, t):
        b = mu / 2 + gamma / t
        a = (gradients - mu / 2 * points - gamma * start) / t
        return psi_prox(-a / b, 1 / b)

    x, out = start, []
    gradients, points, t = np.zeros_like(start), np.zeros_like(start), 0
    for _ in range(rounds):
        own, seen = copies(gradients, len(p)), copies(points, len(p))
        for i in range(len(p)):
            y = x
            for k in range(steps):
                own[i] += H[i] @ y - c[i]
                seen[i] += y
                y = point(own[i], seen[i], t + k + 1)
        gradients, points, t = p @ own, p @ seen, t + steps
        x = point(gradients, points, t)
        out.append(x)
    return out


def zhang(H, c, p, start, rounds, eta, eta_g, steps, psi_prox=no_prox):
    """Zhang, Hu and Johansson, composite federated learning with heterogeneous data, with full gradients."""
    total = eta * eta_g * steps
    xbar, x, correction, out = start, psi_prox(start, total), np.zeros_like(c), []
    for _ in range(rounds):
        dual, gradients = copies(x, len(p)), np.zeros_like(c)
        for i in range(len(p)):
            z = x
            for k in range(steps):
                g = H[i] @ z - c[i]
                gradients[i] += g / steps
                dual[i] -= eta * (g + correction[i])
                z = psi_prox(dual[i], (k + 1) * eta)
        xbar = x + eta_g * (p @ dual - x)
        correction = (x - xbar) / total - gradients
        x = psi_prox(xbar, total)
        out.append(x)
    return out
