"""Synthetic classification by softmax models of clients that differ in models, features and sizes."""

from dataclasses import dataclass

import numpy as np

from fcorun.base.config import Count, Fraction, Index, NonNegative
from fcorun.base.errors import UserError
from fcorun.base.system.random_streams import random_stream
from fcorun.data.datasets.dataset import Dataset, FederatedData
from fcorun.data.rows.rows import Rows


@dataclass(frozen=True)
class SyntheticAlphaBeta(Dataset):
    """Synthetic(alpha, beta): client k labels its rows by y = argmax(W_k x + b_k).

    Entries of W_k and b_k follow N(u_k, 1) with u_k ~ N(0, alpha). Rows follow x ~ N(v_k, Sigma) with Sigma_jj =
    j^-1.2, entries of v_k follow N(B_k, 1), and B_k ~ N(0, beta). As u_k is common to all classes of a client, it moves
    no label. The sizes of clients follow 50 + a lognormal law, whose logarithm has mean 4 and deviation 2, as in the
    authors' code. The bound ``most_samples`` is ours.

    Attributes:
        alpha, beta: the variances above; 0 and 0 still leave clients that differ.
        clients: number of clients, M.
        features, classes: numbers of features and classes, d and C.
        most_samples: the largest number of rows of a client; None: no bound.
        validation: the share of each client's rows that are validation rows.
        seed: the seed of the data.
    """

    source = "section 5 of @li2020"

    alpha: NonNegative = 1.0
    beta: NonNegative = 1.0
    clients: Count = 30
    features: Count = 60
    classes: Count = 10
    most_samples: Count | None = None
    validation: Fraction = 0.2
    seed: Index = 0

    def __post_init__(self):
        if self.classes < 2:
            raise UserError(f"`data.classes={self.classes}` leaves nothing to tell apart: give at least 2")
        if self.validation == 1:
            raise UserError(
                f"`data.validation={self.validation}` leaves no training rows: give less than 1, such as 0.2"
            )

    def load(self) -> FederatedData:
        """Return rows (N, d) float32 of all clients, sorted by client, and their labels (N,) from 0 to C - 1."""
        rng = random_stream(self.seed, "synthetic_alpha_beta")
        sizes = 50 + rng.lognormal(4, 2, self.clients).astype(int)
        if self.most_samples is not None:
            sizes = np.minimum(sizes, self.most_samples)
        deviations = np.arange(1, self.features + 1) ** -0.6
        features = []
        labels = []
        is_validation = []
        for size in sizes:
            u = self.alpha**0.5 * rng.standard_normal()
            weights = u + rng.standard_normal((self.features, self.classes))
            intercept = u + rng.standard_normal(self.classes)
            mean = self.beta**0.5 * rng.standard_normal() + rng.standard_normal(self.features)
            x = mean + deviations * rng.standard_normal((size, self.features))
            y = (x @ weights + intercept).argmax(axis=1)
            n_training = max(1, size - int(self.validation * size))
            features.append(x.astype(np.float32))
            labels.append(y.astype(np.int32))
            is_validation.append(np.arange(size) >= n_training)
        rows = Rows.from_offsets(np.concatenate(features), np.concatenate(labels), np.cumsum([0, *sizes]))
        held_out = np.concatenate(is_validation)
        names = tuple(f"client{m}" for m in range(self.clients))
        return FederatedData(
            rows.take(~held_out),
            rows.take(held_out),
            task="multiclass",
            classes=tuple(range(self.classes)),
            clients=names,
        ).validate()
