"""Clients with quadratic losses, for the oracles in plain NumPy."""

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
        x = np.column_stack([self.data.x, np.ones(len(self.data.y))])
        own = [slice(a, b) for a, b in zip(self.data.offsets, self.data.offsets[1:], strict=False)]
        self.H = np.array([2 / len(x[rows]) * x[rows].T @ x[rows] for rows in own])
        self.c = np.array([2 / len(x[rows]) * x[rows].T @ self.data.y[rows] for rows in own])
        self.p = self.data.sizes / self.data.sizes.sum()
        values = np.linalg.eigvalsh(self.H)
        self.l, self.L = values.min(), values.max()
        self.step = (max(self.l, 1e-4 * self.L) * self.L) ** -0.5
        strength = getattr(self.experiment.reg, "strength", 0.0)
        self.psi = lambda v, t: np.append(boxes.soft(strength)(v, t)[:-1], v[-1])
        self.drawn = build_engine(self.experiment, self.data).federation.schedule.draw_rounds(
            0, self.experiment.settings.rounds
        )

    def box(self, name, **options):
        return np.array(getattr(boxes, name)(self.H, self.c, self.p, np.zeros(7), len(self.drawn.cohort), **options))

    def personal(self, name, *options, **named):
        """The points and the models of a method of personal_boxes after each round."""
        method, rounds = getattr(personal_boxes, name), len(self.drawn.cohort)
        found = method(self.H, self.c, self.p, np.zeros(7), rounds, *options, **named)
        return np.array(found[0]), np.array(found[1])


def outputs_by_round(config):
    """The outputs of a run after each round, an array (rounds, parameters)."""
    return np.array([flat({k: v[0] for k, v in s.solution.items()}) for s in snapshots(config)])[1:]


def client_models_by_round(config):
    """The clients' own models after each round, an array (rounds, clients, parameters)."""
    return np.array([own_models(s) for s in snapshots(config)[1:]])


def own_models(snapshot):
    """The clients' own models of the first run, an array (clients, parameters)."""
    found = {name: np.asarray(values)[0] for name, values in not_none(snapshot.client_models).items()}
    return np.column_stack([found["weights"], found["bias"]])
