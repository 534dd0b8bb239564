"""The boxes of federated methods in plain NumPy, for quadratics: oracles that share no code with fcorun.

The problem is min over x of sum_i p_i f_i(x) [+ psi(x)] with f_i(x) = x'H_i x / 2 - c_i'x and weights p that sum to
one; ``psi_prox(v, t)`` = argmin t psi + ||. - v||^2 / 2. Every method takes H (M, d, d), c (M, d), p (M,), the start
(d,) and the number of rounds, and returns the server's point after each round. ``cohorts`` holds the clients of each
round, by default all. A mean over a cohort is weighted by p and divided by the weight of the cohort; where a paper has
|S| / n, the weight of the cohort stands for it. All states of a client start at the server's start, all duals at 0.
"""

import numpy as np


def no_prox(v, t):
    """Return v, the prox of psi = 0."""
    return v


def soft(strength):
    """Return the prox of strength * ||x||_1."""
    return lambda v, t: np.sign(v) * np.maximum(np.abs(v) - t * strength, 0)


def prox(h, c, s, v):
    """Return argmin s f + ||. - v||^2 / 2 for one client; v = x + s g gives argmin f - <g, .> + ||. - x||^2 / (2 s)."""
    return np.linalg.solve(np.eye(len(v)) + s * h, v + s * c)


def copies(start, clients):
    """Return the states of all clients, each at the start."""
    return np.tile(start, (clients, 1))


def everyone(cohorts, rounds, clients):
    """Return the cohorts, by default all clients in every round."""
    return [list(range(clients))] * rounds if cohorts is None else cohorts[:rounds]


def mean(p, values, cohort):
    """Return the weighted mean over a cohort."""
    return p[cohort] @ values[cohort] / p[cohort].sum()


# ---------------------------------------------------------------- optima and fixed points


def optimum(H, c, p, psi_prox=no_prox, strength=1.0, steps=5_000):
    """Return the minimizer with strength * psi: by a linear solve without psi, else by proximal gradient."""
    h, b = np.tensordot(p, H, 1), p @ c
    if psi_prox is no_prox:
        return np.linalg.solve(h, b)
    s, x = 1 / np.linalg.eigvalsh(h)[-1], np.zeros(len(b))
    for _ in range(steps):
        x, before = psi_prox(x - s * (h @ x - b), strength * s), x
        if np.abs(x - before).max() < 1e-16:
            break
    return x


def fedgd_fixed_point(H, c, p, s, e):
    """Return the solution of sum_i p_i Q_i (H_i x - c_i) = 0, Q_i = sum over k < e of (I - s H_i)^k.

    This is equation 10 of the FedSplit paper.
    """
    eye = np.eye(H.shape[1])
    q = [sum(np.linalg.matrix_power(eye - s * h, k) for k in range(e)) for h in H]
    left = sum(p[i] * H[i] @ q[i] for i in range(len(p)))
    return np.linalg.solve(left, sum(p[i] * q[i] @ c[i] for i in range(len(p))))


def fedprox_fixed_point(H, c, p, s):
    """Return the point where the gradients of the Moreau envelopes sum to 0 (FedSplit paper, section 2.3)."""
    eye = np.eye(H.shape[1])
    left = sum(p[i] * (eye - np.linalg.inv(eye + s * H[i])) for i in range(len(p)))
    return np.linalg.solve(left, sum(p[i] * np.linalg.solve(H[i] + eye / s, c[i]) for i in range(len(p))))


# ---------------------------------------------------------------- averages


def fedgd(H, c, p, start, rounds, s, e, cohorts=None):
    """Run FedGD(s, e): e gradient steps of length s, then the mean."""
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
    """Run FedProx, exact: x_i = argmin f_i + mu/2 ||. - x||^2, then the mean."""
    x, out = start, []
    for cohort in everyone(cohorts, rounds, len(p)):
        y = copies(x, len(p))
        for i in cohort:
            y[i] = prox(H[i], c[i], 1 / mu, x)
        x = mean(p, y, cohort)
        out.append(x)
    return out


def scaffold(H, c, p, start, rounds, client_lr, server_lr, steps, option=2, cohorts=None):
    """Run SCAFFOLD with full gradients; option 1 takes the gradient at the server's point for the control variate."""
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
    """Run FedSplit: Peaceman-Rachford with relaxation 2, Douglas-Rachford with 1.

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


def fedsplit_accelerated(H, c, p, start, rounds, s, mu=0.0, psi_prox=no_prox):
    """Run the splitting of Douglas and Rachford from y_i = prox(u_i), with Nesterov's momentum on the sequence u."""
    u, x, out = copies(start, len(p)), copies(start, len(p)), []
    ratio = np.sqrt(mu * s / (1 + mu * s))
    for k in range(1, rounds + 1):
        y = np.array([prox(h, b, s, v) for h, b, v in zip(H, c, u, strict=True)])
        z = psi_prox(p @ (2 * y - u), s)
        out.append(z)
        x, before = u + z - y, x
        u = x + min((k - 1) / (k + 2), (1 - ratio) / (1 + ratio)) * (x - before)
    return out


def feddyn(H, c, p, start, rounds, alpha, cohorts=None):
    """Run FedDyn: x_i = argmin f_i - <g_i, .> + alpha/2 ||. - x||^2."""
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
    """Run FedPD that communicates every round: x_i = argmin f_i + <l_i, . - x> + ||. - x||^2 / (2 s)."""
    x, y, dual, out = start, copies(start, len(p)), np.zeros_like(c), []
    for _ in range(rounds):
        for i in range(len(p)):
            y[i] = prox(H[i], c[i], s, x - s * dual[i])
            dual[i] += (y[i] - x) / s
        x = p @ (y + s * dual)
        out.append(x)
    return out


def feddr(H, c, p, start, rounds, eta, alpha=1.0, psi_prox=no_prox, cohorts=None):
    """Run FedDR; the server averages the latest 2 x_i - y_i of all clients, the start for clients not yet drawn."""
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
    """Run FedADMM: x_i = argmin f_i + <z_i, . - x> + rho/2 ||. - x||^2; the mean is over all clients."""
    x, y, z, out = start, copies(start, len(p)), np.zeros_like(c), []
    for cohort in everyone(cohorts, rounds, len(p)):
        for i in cohort:
            y[i] = prox(H[i], c[i], 1 / rho, x - z[i] / rho)
            z[i] += rho * (y[i] - x)
        x = psi_prox(p @ (y + z / rho), 1 / rho)
        out.append(x)
    return out


def proxskip(H, c, p, start, rounds, gamma, probability, steps, psi_prox=no_prox):
    """Run ProxSkip (Scaffnew with psi): ``steps[r]`` local steps in round r, communication after the last one."""
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
    """Run Fast-FedDA with full gradients; every local point enters the sum of points once.

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


def zhang(H, c, p, start, rounds, eta, eta_g, steps, psi_prox=no_prox, combine=None):
    """Run composite federated learning with heterogeneous data (Zhang, Hu and Johansson), with full gradients.

    ``combine`` makes one point of the clients' points, by default their mean.
    """
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
        xbar = x + eta_g * ((combine(dual) if combine else p @ dual) - x)
        correction = (x - xbar) / total - gradients
        x = psi_prox(xbar, total)
        out.append(x)
    return out


# ---------------------------------------------------------------- compressed messages


def top(count):
    """Return a compressor that keeps the numbers of largest absolute value, and the last number, the intercept."""

    def compress(v):
        kept = np.zeros_like(v)
        largest = np.argsort(-np.abs(v[:-1]), kind="stable")[:count]
        kept[largest], kept[-1] = v[largest], v[-1]
        return kept

    return compress


def ef21(H, c, p, start, rounds, gamma, compress, psi_prox=no_prox):
    """Run EF21 with prox: estimates of the clients' gradients move by compressed differences."""
    x, estimates, out = start, np.zeros_like(c), []
    for _ in range(rounds):
        for i in range(len(p)):
            estimates[i] += compress(H[i] @ x - c[i] - estimates[i])
        x = psi_prox(x - gamma * (p @ estimates), gamma)
        out.append(x)
    return out


def fedcef(H, c, p, start, rounds, eta, eta_g, steps, compress, psi_prox=no_prox):
    """Run FedCEF: the method of Zhang, Hu and Johansson on control variates that move by compressed differences."""
    total = eta * eta_g * steps
    x, controls, out = start, np.zeros_like(c), []
    mean_control = p @ controls
    for _ in range(rounds):
        corrections = mean_control - controls
        for i in range(len(p)):
            z, dual, gradients = x, x, np.zeros_like(x)
            for k in range(steps):
                g = H[i] @ z - c[i]
                gradients += g / steps
                dual = dual - eta * (g + corrections[i])
                z = psi_prox(dual, (k + 1) * eta)
            controls[i] += compress(gradients - controls[i])
        mean_control = p @ controls
        x = psi_prox(x - total * mean_control, total)
        out.append(x)
    return out


# ---------------------------------------------------------------- two exchanges in a round


def shifted(h, c, x, shift, mu, eta, psi_prox):
    """Return argmin f(u) - <shift, u> + mu / 2 ||u - x||^2 + eta psi(u) for one client."""
    identity = np.eye(len(x))
    return optimum((h + mu * identity)[None], (c + shift + mu * x)[None], np.ones(1), psi_prox, eta)


def dane(H, c, p, start, rounds, mu, eta=1.0, psi_prox=no_prox):
    """Return the points of DANE, figure 1 of Shamir, Srebro and Zhang (2014), with psi in the clients' problems."""
    x, points = start, []
    for _ in range(rounds):
        gradients = np.einsum("mij,j->mi", H, x) - c
        shifts = gradients - eta * p @ gradients
        x = p @ np.array([shifted(H[m], c[m], x, shifts[m], mu, eta, psi_prox) for m in range(len(p))])
        points.append(x)
    return points


def edsl(H, c, p, start, rounds, mu=0.0, client=0, psi_prox=no_prox):
    """Return the points of EDSL, algorithm 1 of Wang, Kolar, Srebro and Zhang (2017), with a constant strength."""
    x, points = start, []
    for _ in range(rounds):
        gradients = np.einsum("mij,j->mi", H, x) - c
        x = shifted(H[client], c[client], x, gradients[client] - p @ gradients, mu, 1.0, psi_prox)
        points.append(x)
    return points
