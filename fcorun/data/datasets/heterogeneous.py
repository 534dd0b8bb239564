"""Synthetic classification with a true model of each client, the sum of known components."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.base.config import Count, Index, NonNegative
from fcorun.base.errors import UserError
from fcorun.base.system.random_streams import random_stream
from fcorun.data.datasets.synthetic import DrawSplit, EqualSizeClients, check_nonzeros
from fcorun.data.rows.rows import StoreRows


@dataclass(frozen=True)
class Heterogeneous(EqualSizeClients):
    """Clients whose models are w_m = shared * s + dense * u_m + sparse * v_m.

    All clients share s, with ``shared_nonzeros`` random coefficients that are 1 or -1 and others 0, or with all drawn
    from N(0, 1/d). Client m draws u_m ~ N(0, I/d) and v_m, with ``nonzeros`` random coefficients that are 1 or -1. With
    more than two classes the same law holds for each class's column. Client m draws a mean mu_m ~ N(0, mean_scale^2 I)
    once, then x ~ N(mu_m, I) and the label from the sigmoid of x'w_m, or from the softmax. There is no bias. The
    validation rows of a client have its mean and its model.
    """

    source = "ours"

    clients: Count = 32
    samples: Count = 64
    features: Count = 64
    classes: Count = 2
    shared: NonNegative = 1.0
    dense: NonNegative = 0.5
    sparse: NonNegative = 1.0
    shared_nonzeros: Count | None = 8
    nonzeros: Count = 2
    mean_scale: NonNegative = 0.3
    validation_samples: Index = 64
    population: Index = 0

    def __post_init__(self):
        check_nonzeros(self, "nonzeros", "shared_nonzeros")
        if self.classes < 2:
            raise UserError(f"`data.classes={self.classes}` leaves nothing to tell apart: give at least 2")

    def _stream(self, name: str) -> np.random.Generator:
        if self.population and name != "shared":
            return random_stream(self.seed, "heterogeneous", name, self.population)
        return random_stream(self.seed, "heterogeneous", name)

    def make_law(self) -> tuple[DrawSplit, dict[str, Any]]:
        """Return the law of d float32 features, with the true shared * s and 0, and each client's w_m and 0.

        With k > 2 classes the weights are (d, k) and (M, d, k).
        """
        d = self.features
        columns = (self.classes,) if self.classes > 2 else ()

        def draw_component(name: str, count: int, nonzeros: int | None) -> np.ndarray:
            rng, shape = self._stream(name), (count, *columns, d)
            if nonzeros is None:
                return np.moveaxis(rng.standard_normal(shape) / d**0.5, -1, 1)
            support = rng.permuted(np.broadcast_to(np.arange(d) < nonzeros, shape), axis=-1)
            return np.moveaxis(support * rng.choice([-1.0, 1.0], shape), -1, 1)

        shared = self.shared * draw_component("shared", 1, self.shared_nonzeros)
        models = shared + self.dense * draw_component("dense", self.clients, None)
        models = models + self.sparse * draw_component("sparse", self.clients, self.nonzeros)
        means = self._stream("means").standard_normal((self.clients, d)) * self.mean_scale

        def draw(split: str, rows: int, store: StoreRows) -> np.ndarray:
            rng, scores = self._stream(split), np.zeros((self.clients, rows, self.classes))
            for m, weights in enumerate(models):
                x = rng.standard_normal((rows, d)) + means[m]
                scores[m, :, 0 if columns else 1 :] = x @ weights.reshape(d, -1)
                store(m, x)
            # the argmax of scores with Gumbel noise follows their softmax, which for scores (0, s) is the sigmoid of s
            return (scores + rng.gumbel(size=scores.shape)).argmax(axis=-1).ravel().astype(np.int32)

        return draw, {
            "task": "multiclass" if columns else "binary",
            "classes": tuple(range(self.classes)),
            "truth": {"weights": shared[0], "bias": np.zeros(columns)},
            "client_truths": {"weights": models, "bias": np.zeros((self.clients, *columns))},
        }
