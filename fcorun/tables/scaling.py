"""What features were standardized by, and how a record notes it: in scikit-learn's words.

Noted of "pooled" are the mean and the deviation of all training rows, in summary.json; of "per_client" those of each
client, in scaling.npz.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.errors import UserError
from fcorun.records.formats import read_json
from fcorun.rows.on_disk import DiskRows
from fcorun.tables.partition import mean_and_deviation, reciprocal_or_zero


@dataclass(frozen=True)
class Scaling:
    """Features x (N, d) become (x - mean) * factor.

    Attributes:
        mean: shape (d,).
        factor: 1 / the standard deviation, 0 where a feature was constant, shape (d,).
        deviation: the standard deviation, 0 where a feature was constant, shape (d,).
    """

    mean: np.ndarray
    factor: np.ndarray
    deviation: np.ndarray

    @classmethod
    def fit(cls, x: Any) -> "Scaling":
        """That of these rows, shape (N, d), which may stay on disk."""
        mean, deviation = mean_and_deviation(x)
        return cls(mean, reciprocal_or_zero(deviation), deviation)

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> "Scaling":
        """That of a record. Records of before have ``mean`` and ``scale``, which was 1 / deviation. Raises KeyError,
        TypeError or ValueError where it is none."""
        if "scale_" not in told:
            mean, factor = (np.array(told[name], float) for name in ("mean", "scale"))
            return cls(mean, factor, reciprocal_or_zero(factor))
        mean, variance, scale = (np.array(told[name], float) for name in ("mean_", "var_", "scale_"))
        deviation = np.where(variance > 0, scale, 0.0)
        return cls(mean, reciprocal_or_zero(deviation), deviation)

    @classmethod
    def from_record(cls, folder: str) -> tuple["Scaling", tuple[str, ...]]:
        """That of a record, and the names of its features. Raises UserError where there is none."""
        try:
            told = read_json(Path(folder) / "summary.json")["data"]
            return cls.from_dict(told["standardized"]), tuple(told.get("feature_names", ()))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"data.scaling={folder} is no record of data that were standardized pooled: give the "
                            "folder of one that is done") from error  # fmt: skip

    def transform(self, x: Any) -> Any:
        """Rows x (N, d), which may stay on disk, by it. Integers become float64; floats keep their dtype."""
        if isinstance(x, DiskRows):
            return x.standardize(self.mean, self.factor)
        return ((x - self.mean) * self.factor).astype(x.dtype if x.dtype.kind == "f" else np.float64)

    def to_dict(self) -> dict[str, Any]:
        """As scikit-learn's StandardScaler calls it: x is (x - mean_) / scale_, and scale_ 1 where a feature was
        constant, var_ 0."""
        constant = self.deviation == 0
        return {
            "by": "pooled",
            "mean_": self.mean,
            "var_": self.deviation**2,
            "scale_": np.where(constant, 1.0, self.deviation),
        }

    def to_identity(self) -> dict[str, Any]:
        """What stands for it in the identity of a run: the same whatever it is called."""
        return {"by": "pooled", "mean": self.mean.tolist(), "scale": self.factor.tolist()}


def to_original_units(
    weights: np.ndarray, bias: np.ndarray | float, scaling: Scaling | None, scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Weights (..., d, k) and bias (..., k) that act on features x as the source has them, for those that act on them
    as trained: scale x, or standardized (scale x - mean) factor. Both in float64."""
    weights, bias = np.asarray(weights, float), np.asarray(bias, float)
    if scaling is not None:
        weights = weights * scaling.factor[:, None]
        bias = bias - scaling.mean @ weights
    return weights * scale, np.broadcast_to(bias, weights.shape[:-2] + weights.shape[-1:]).copy()


@dataclass(frozen=True)
class ClientScalings:
    """Features of client m become (x - mean[m]) / deviation[m], and 0 where that is 0.

    Attributes:
        clients: their names, M of them, those that are held out wholly included.
        rows: how many rows each trains on, shape (M,).
        mean, deviation: shape (M, d); of a client that trains on none they are of all its rows.
    """

    clients: tuple[str, ...]
    n_rows: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> "ClientScalings":
        """That of a record. Raises KeyError where it is none."""
        clients = tuple(np.asarray(told["client"]).astype(str).tolist())
        return cls(clients, told["rows"], told["mean_"], np.sqrt(told["var_"]))

    def to_dict(self) -> dict[str, Any]:
        """What a record keeps."""
        return {
            "by": "per_client",
            "client": np.array(self.clients),
            "rows": self.n_rows,
            "mean_": self.mean,
            "var_": self.deviation**2,
        }

    def for_client(self, client: str | None) -> Scaling:
        """That of a client; of one that is not known, the means of all training rows and the deviation within clients,
        sqrt(sum_m n_m deviation_m^2 / sum_m n_m) over the n_m rows that client m trains on."""
        if client in self.clients:
            place = self.clients.index(client)
            mean, deviation = self.mean[place], self.deviation[place]
        else:
            share = self.n_rows / self.n_rows.sum()
            mean, deviation = share @ self.mean, np.sqrt(share @ self.deviation**2)
        return Scaling(mean, reciprocal_or_zero(deviation), deviation)
