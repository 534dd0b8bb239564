"""The standardization of features.

Of "pooled", summary.json has the mean and the deviation of all training rows; features that are scaled and not
centred have the mean 0 there, and "centred" false. Of "per_client", scaling.npz has the mean and the deviation of each
client.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from fcorun.base.errors import UserError, word
from fcorun.base.records.contents import SUMMARY
from fcorun.data.rows.features import check_centring, standardize
from fcorun.data.rows.rows import deviation_from_sums, moments, sum_in_order

KEEPS_ZEROS = (
    "`data.standardize=scale` divides features by their standard deviations and subtracts no means: zeros stay 0"
)


@dataclass(frozen=True)
class Scaling:
    """The map of features x (N, d) to (x - mean) * factor.

    Attributes:
        mean: shape (d,).
        factor: 1 / the standard deviation, 0 where a feature was constant, shape (d,).
        deviation: the standard deviation, 0 where a feature was constant, shape (d,).
        is_centred: whether ``mean`` is that of the rows; else it is 0.
    """

    mean: np.ndarray
    factor: np.ndarray
    deviation: np.ndarray
    is_centred: bool = True

    @classmethod
    def fit(cls, x: Any, client: Int[np.ndarray, " N"]) -> "Scaling":
        """Compute the scaling of rows x (N, d), sorted by client, from sums by client; rows may stay on disk."""
        mean, squares = moments(x, client)
        return cls.from_squares(mean, squares, len(x))

    @classmethod
    def from_squares(cls, mean: Float[np.ndarray, " d"], squares: Float[np.ndarray, "M d"], n_rows: int) -> "Scaling":
        """Return the scaling of ``n_rows`` rows from their mean and each client's squared deviations from the mean."""
        deviation = deviation_from_sums(sum_in_order(squares), n_rows, mean)
        return cls(mean, reciprocal_or_zero(deviation), deviation)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Scaling":
        """Return the scaling that ``to_dict`` returned. Raises KeyError, TypeError or ValueError for anything else."""
        mean, variance, scale = arrays = [np.array(values[name], float) for name in ("mean_", "var_", "scale_")]
        if any(array.shape != (len(mean),) or not np.isfinite(array).all() for array in arrays) or (scale <= 0).any():
            raise ValueError("these are no means, variances and positive scales of features")
        deviation = np.where(variance > 0, scale, 0.0)
        return cls(mean, reciprocal_or_zero(deviation), deviation, values.get("centred", True))

    @classmethod
    def from_pooled(cls, standardized: Mapping[str, Any] | None) -> "Scaling | None":
        """Return the scaling by all training rows of features that were standardized so; else None."""
        return cls.from_dict(standardized) if standardized and standardized.get("by") == "pooled" else None

    @classmethod
    def from_record(cls, folder: str) -> tuple["Scaling", tuple[str, ...]]:
        """Return the scaling of a record and the names of its features. Raises UserError for a record without one."""
        try:
            data = SUMMARY.read(Path(folder))["data"]
            return cls.from_dict(data["standardized"]), tuple(data.get("feature_names", ()))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"`data.scaling={folder}` is no record of data that were standardized pooled: give the "
                            "folder of one that is done") from error  # fmt: skip

    @property
    def without_centring(self) -> "Scaling":
        """The map to x * factor, which keeps zeros."""
        return replace(self, mean=np.zeros_like(self.mean), is_centred=False)

    def transform(self, x: Any) -> Any:
        """Standardize rows x (N, d), which may stay on disk. Integers become float64; floats keep their dtype.

        Raises UserError for sparse rows and means that are not 0.
        """
        if self.mean.any():
            check_centring(x, "pooled")
        return standardize(x, self.mean, self.factor)

    def to_original_units(self, weights: np.ndarray, bias: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights (..., d, k) and the bias (..., k) for features x of those for (x - mean) * factor."""
        weights = weights * self.factor[:, None]
        return weights, bias - self.mean @ weights

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes of scikit-learn's StandardScaler, by which x becomes (x - mean_) / scale_.

        A constant feature has scale_ 1 and var_ 0. Features that were not centred have "centred" false, too.
        """
        constant = self.deviation == 0
        centred = {} if self.is_centred else {"centred": False}
        return {
            "by": "pooled",
            "mean_": self.mean,
            "var_": self.deviation**2,
            "scale_": np.where(constant, 1.0, self.deviation),
            **centred,
        }


@dataclass(frozen=True)
class ClientScalings:
    """The map of features x of client m to (x - mean[m]) / deviation[m], and to 0 where the deviation is 0.

    Attributes:
        clients: the names of the M clients, wholly held-out clients included.
        n_rows: the number of each client's training rows, shape (M,).
        mean, deviation: statistics of each client's training rows, or of all rows of a client without training rows,
            shape (M, d).
    """

    clients: tuple[str, ...]
    n_rows: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ClientScalings":
        """Return the scalings that ``to_dict`` returned. Raises KeyError for anything else."""
        clients = tuple(np.asarray(values["client"]).astype(str).tolist())
        return cls(clients, values["rows"], values["mean_"], np.sqrt(values["var_"]))

    @property
    def clients_of_own_scale(self) -> tuple[str, ...]:
        """The names of the clients without training rows, whose held-out rows standardize themselves."""
        return tuple(np.array(self.clients, object)[self.n_rows == 0])

    def to_dict(self) -> dict[str, Any]:
        """Return the arrays of scaling.npz."""
        return {
            "by": "per_client",
            "client": np.array(self.clients),
            "rows": self.n_rows,
            "mean_": self.mean,
            "var_": self.deviation**2,
        }

    def for_client(self, client: str | None) -> Scaling:
        """Return the scaling of a client.

        An unknown client gets the mean of all training rows and the deviation within clients, sqrt(sum_m n_m
        deviation_m^2 / sum_m n_m) over the n_m training rows of each client m.
        """
        if client in self.clients:
            index = self.clients.index(client)
            mean = self.mean[index]
            deviation = self.deviation[index]
        else:
            share = self.n_rows / self.n_rows.sum()
            mean = share @ self.mean
            deviation = np.sqrt(share @ self.deviation**2)
        return Scaling(mean, reciprocal_or_zero(deviation), deviation)


def standardize_per_client(
    x: Any,
    client_index: Int[np.ndarray, " N"],
    held_out: Bool[np.ndarray, " N"],
    names: Sequence[str],
) -> tuple[Float[np.ndarray, "N d"], ClientScalings]:
    """Standardize ``x`` (N, d) by the mean and deviation of each client's training rows; constant features become 0.

    Held-out rows are standardized by the training rows of their client, or by all rows of a client without training
    rows (``explain_own_scale``). Integers become float64; floats keep their dtype. ``names`` are those of the clients
    by index. Raises UserError for rows that stay on disk, and for sparse ones.
    """
    check_centring(x, "per_client")
    scaled = np.empty(x.shape, dtype=x.dtype if x.dtype.kind == "f" else np.float64)
    clients = []
    n_rows = []
    means = []
    deviations = []
    order = np.argsort(client_index, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(client_index[order])) + 1):
        training = rows[~held_out[rows]]
        known = x[training if len(training) else rows]
        varies = known.max(axis=0) != known.min(axis=0)  # the computed deviation of equal numbers may not be 0
        deviation = known.std(axis=0, dtype=np.float64)
        deviation = np.where(varies & (deviation > np.finfo(float).tiny), deviation, 0.0)
        mean = known.mean(axis=0, dtype=np.float64)
        scaled[rows] = (x[rows] - mean) * reciprocal_or_zero(deviation)
        clients.append(names[int(client_index[rows[0]])])
        n_rows.append(len(training))
        means.append(mean)
        deviations.append(deviation)
    return scaled, ClientScalings(tuple(clients), np.array(n_rows), np.array(means), np.array(deviations))


def explain_own_scale(clients: str) -> str:
    """Return a sentence on what scores of clients without training rows are of, which ``clients`` names in words."""
    return word(f"`data.standardize=per_client`: without training rows, {clients} are standardized by the mean and "
                "deviation of their own held-out rows: the scores are those of a new client all of whose rows are "
                "known before one is predicted; `data.standardize=pooled` takes nothing from held-out "
                "rows")  # fmt: skip


def reciprocal_or_zero(values: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
    """Return 1 / values, and 0 where a value is 0."""
    return np.divide(1.0, values, out=np.zeros(len(values)), where=values > 0)
