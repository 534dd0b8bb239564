"""What features were standardized by, and how a record notes it: in scikit-learn's words."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.datasets.partition import inverse, moments
from fcorun.errors import UserError


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
    def of(cls, x: np.ndarray) -> "Scaling":
        """That of these rows, shape (N, d)."""
        mean, deviation = moments(x)
        return cls(mean, inverse(deviation), deviation)

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "Scaling":
        """That of a record. Records of before have ``mean`` and ``scale``, which was 1 / deviation. Raises KeyError,
        TypeError or ValueError where it is none."""
        if "scale_" not in told:
            mean, factor = (np.array(told[name], float) for name in ("mean", "scale"))
            return cls(mean, factor, inverse(factor))
        mean, variance, scale = (np.array(told[name], float) for name in ("mean_", "var_", "scale_"))
        deviation = np.where(variance > 0, scale, 0.0)
        return cls(mean, inverse(deviation), deviation)

    @classmethod
    def of_record(cls, folder: str) -> tuple["Scaling", tuple[str, ...]]:
        """That of a record, and the names of its features. Raises UserError where there is none."""
        try:
            told = json.loads((Path(folder) / "summary.json").read_text())["data"]
            return cls.read(told["standardized"]), tuple(told.get("feature_names", ()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"data.scaling={folder} is no record of data that were standardized pooled: give the "
                            "folder of one that is done") from error  # fmt: skip

    def noted(self) -> dict[str, Any]:
        """As scikit-learn's StandardScaler calls it: x is (x - mean_) / scale_, and scale_ 1 where a feature was
        constant, var_ 0."""
        constant = self.deviation == 0
        return {
            "by": "pooled",
            "mean_": self.mean,
            "var_": self.deviation**2,
            "scale_": np.where(constant, 1.0, self.deviation),
        }

    def digested(self) -> dict[str, Any]:
        """What stands for it in the identity of a run: the same whatever it is called."""
        return {"by": "pooled", "mean": self.mean.tolist(), "scale": self.factor.tolist()}
