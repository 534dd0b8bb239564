"""Clients with quadratic losses, as the oracles in plain NumPy take them."""

import boxes
import numpy as np
import personal_boxes
from helpers import flat, not_none, snapshots

from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.prepare import prepare

SIZES = (12, 20, 16, 30)


class Quadratics:
    """The clients' losses of a ragged table as x'Hx / 2 - c'x, the bias last, and psi on all but that."""

    def __init__(self, config):
        self.experiment = prepare(config)
        self.data = load_data(self.experiment)
        x = np.column_stack([self.data.train.x, np.ones(len(self.data.train.y))])
        slices = [slice(a, b) for a, b in zip(self.data.train.offsets, self.data.train.offsets[1:], strict=False)]
        self.H = np.array([2 / len(x[rows]) * x[rows].T @ x[rows] for rows in slices])
        self.c = np.array([2 / len(x[rows]) * x[rows].T @ self.data.train.y[rows] for rows in slices])
        self.p = self.data.train.sizes / self.data.train.sizes.sum()
        values = np.linalg.eigvalsh(self.H)
        self.l, self.L = values.min(), values.max()
        self.pooled_L = np.linalg.eigvalsh(np.tensordot(self.p, self.H, 1)).max()
        self.step = (max(self.l, 1e-4 * self.L) * self.L) ** -0.5
        strength = getattr(self.experiment.reg, "strength", 0.0)
        self.psi = lambda v, t: np.append(boxes.soft(strength)(v, t)[:-1], v[-1])
        self.drawn = build_engine(self.experiment, self.data).federation.schedule.draw_rounds(
            0, self.experiment.settings.rounds
        )

    def box(self, name, **options):
        return np.array(getattr(boxes, name)(self.H, self.c, self.p, np.zeros(7), len(self.drawn.cohort), **options))

    def personal(self, name, *arguments, **options):
        """Return the points and the models of a method of personal_boxes after each round."""
        method, rounds = getattr(personal_boxes, name), len(self.drawn.cohort)
        points, models, *_ = method(self.H, self.c, self.p, np.zeros(7), rounds, *arguments, **options)
        return np.array(points), np.array(models)


def outputs_by_round(config):
    """Return the outputs of a run after each round, shape (rounds, parameters)."""
    return np.array([flat({k: v[0] for k, v in s.solution.items()}) for s in snapshots(config)])[1:]


def client_models_by_round(config):
    """Return the personal models after each round, shape (rounds, clients, parameters)."""
    return np.array([own_models(s) for s in snapshots(config)[1:]])


def own_models(snapshot):
    """Return the personal models of the first run, shape (clients, parameters)."""
    parameters = {name: np.asarray(values)[0] for name, values in not_none(snapshot.client_models).items()}
    return np.column_stack([parameters["weights"], parameters["bias"]])
