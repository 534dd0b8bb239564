"""Synthetic least squares with Gaussian features, or with features of a given condition number."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fcorun.base.config import Count, NonNegative, Positive
from fcorun.base.errors import UserError
from fcorun.base.system.random_streams import random_stream
from fcorun.data.datasets.synthetic import DrawSplit, EqualSizeClients
from fcorun.data.rows.rows import StoreRows


@dataclass(frozen=True)
class RandomLeastSquares(EqualSizeClients):
    """Synthetic data of a linear model, well or badly conditioned.

    Client j has y = A_j x_j + v with A_j of N(0, 1) entries, v ~ N(0, noise^2) and x_j = x0, uniform on the unit
    sphere. With ``condition`` the n rows of A_j are such that A_j'A_j / n has eigenvalues from exactly 1 to exactly
    ``condition``, so that the Hessian 2/n A_j'A_j of a client's mean loss has that condition number. The eigenvalues
    between are ours, drawn uniformly in logarithm by each client, and so are the eigenvectors: with a common basis the
    mean of the clients' losses has that condition number too, as figure 3 needs; with a basis for each client the mean
    is well conditioned, whatever the clients are. Validation and test rows have the same covariance. The option
    ``heterogeneity`` is ours: x_j = x0 + heterogeneity * u_j with u_j ~ N(0, I). The paper's supplement is not at hand;
    the laws of A_j, v and x0 are a reconstruction.
    """

    dtype = np.float64
    source = "figures 1 and 3 of @pathak2020, the laws reconstructed"

    clients: Count = 25
    samples: Count = 5000
    features: Count = 100
    noise: NonNegative = 0.5
    condition: Positive | None = None
    basis: Literal["common", "own"] = "common"
    heterogeneity: NonNegative = 0.0

    def __post_init__(self):
        if self.condition is None:
            return
        if self.condition < 1:
            raise UserError(f"`data.condition={self.condition}` is less than 1: give the ratio of the largest "
                            "eigenvalue to the smallest, from 1")  # fmt: skip
        if self.samples < self.features:
            raise UserError(f"`data.samples={self.samples}` is less than `data.features={self.features}`, "
                            f"so that `data.condition` cannot be had: give at least {self.features}")  # fmt: skip
        if self.features < 2 and self.condition > 1:
            raise UserError(f"`data.features=1` has condition number 1, not `data.condition={self.condition}`: "
                            "give at least 2")  # fmt: skip

    def make_law(self) -> tuple[DrawSplit, dict[str, Any]]:
        """Return the law of d float64 features, with the true ``weights`` x0 (d,) and ``bias`` 0 ()."""
        truth_rng = random_stream(self.seed, "least_squares", "truth")
        center = truth_rng.standard_normal(self.features)
        center /= np.linalg.norm(center)
        coefficients = center + self.heterogeneity * truth_rng.standard_normal((self.clients, self.features))
        roots = None  # a matrix R_j for each client, with R_j'R_j = A_j'A_j / n, (clients, d, d)
        if self.condition is not None:
            spectrum_rng = random_stream(self.seed, "least_squares", "spectrum")
            powers = spectrum_rng.random((self.clients, self.features))
            powers[:, 0] = 0
            powers[:, -1] = 1
            n_bases = self.clients if self.basis == "own" else 1
            basis = spectrum_rng.standard_normal((n_bases, self.features, self.features))
            roots = self.condition ** (np.sort(powers)[..., None] / 2) * np.linalg.qr(basis)[0]

        def draw(split: str, rows: int, store: StoreRows) -> np.ndarray:
            rng, y = random_stream(self.seed, "least_squares", split), np.empty((self.clients, rows))
            for m, weights in enumerate(coefficients):
                x = rng.standard_normal((rows, self.features))
                if roots is not None:
                    orthogonal = np.linalg.qr(x)[0] * rows**0.5 if split == "training" else x
                    x = orthogonal @ roots[m]
                store(m, x)
                y[m] = np.einsum("nd,d->n", x, weights)
            return (y + self.noise * rng.standard_normal(y.shape)).ravel()

        truth = {"weights": center, "bias": np.zeros(())}
        return draw, {"truth": truth}
