"""The algorithms of the FedDualAvg paper (its boxes) in plain NumPy, for least squares on the rows that a run draws."""

import numpy as np

from fcorun.experiment.build import build_engine


def soft(w, t):
    """Return S(w, t) on all entries but the last, the intercept."""
    return np.append(np.sign(w[:-1]) * np.maximum(np.abs(w[:-1]) - t, 0), w[-1])


def boxes(name, x, y, eta_c, eta_s, lam, rounds):
    """Return the outputs of an algorithm.

    ``rounds`` holds cohorts, and a cohort holds (weight in the mean, batches) of its clients.
    """
    x = np.column_stack([x, np.ones(len(x))])

    def gradient(w, rows):
        return 2 * x[rows].T @ (x[rows] @ w - y[rows]) / len(rows)

    state, elapsed, outputs = np.zeros(x.shape[1]), 0.0, [np.zeros(x.shape[1])]
    for cohort in rounds:
        update, steps = 0.0, 0.0
        for weight, batches in cohort:
            local = state
            for k, rows in enumerate(batches):
                if name in ("fedavg", "fedmid_osp", "feddualavg_osp"):
                    local = local - eta_c * gradient(local, rows)
                elif name == "fedavg_subgradient":
                    local = local - eta_c * gradient(local, rows)
                    local = local - eta_c * lam * np.append(np.sign(local[:-1]), 0)
                elif name == "fedmid":
                    local = soft(local - eta_c * gradient(local, rows), eta_c * lam)
                elif name == "feddualavg":
                    primal = soft(local, (elapsed + eta_c * k) * lam)
                    local = local - eta_c * gradient(primal, rows)
            update += weight * (local - state)
            steps += weight * len(batches)
        state = state + eta_s * update
        elapsed += eta_s * eta_c * steps
        if name in ("fedmid", "fedmid_osp"):
            state = soft(state, eta_s * eta_c * steps * lam)
        outputs.append(soft(state, elapsed * lam) if name.startswith("feddualavg") else state)
    return np.array(outputs)


def drawn(experiment, data):
    """Yield the rounds of an experiment in the form that ``boxes`` takes."""
    settings = experiment.settings
    rounds = build_engine(experiment, data).federation.schedule.draw_rounds(0, settings.rounds)
    for cohort, rows in zip(rounds.cohort, rounds.rows, strict=True):
        sizes = data.train.sizes[cohort] if settings.client_weighting == "examples" else np.ones(len(cohort))
        if settings.batch_size is None:
            batches = [[np.arange(*data.train.offsets[[m, m + 1]])] * settings.local_steps for m in cohort]
        else:
            batches = [[r[r >= 0] for r in client if (r >= 0).any()] for client in rows]
        yield list(zip(sizes / sizes.sum(), batches, strict=True))
