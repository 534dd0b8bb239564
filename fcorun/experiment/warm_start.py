"""Warm starts: runs that start from the solution of a record."""

import hashlib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.records.record import Record
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.tables.scaling import Scaling
from fcorun.methods.problem.problem import Problem, Vector


@dataclass(frozen=True)
class WarmStart:
    """The record whose solution a run starts from.

    Attributes:
        record: the record.
        digest: the first 16 hex digits of the SHA-256 of the parameters' names and numbers.
    """

    record: Record
    digest: str

    def solution_for(self, problem: Problem, data: FederatedData) -> dict[str, np.ndarray]:
        """Return the record's parameters.

        Raises UserError if they are not finite, do not fit the problem or the domain of the mirror map, or if the
        record's data had other features, labels or standardization than these data.
        """
        solution, folder = self.record.solution, self.record.folder
        if not all(np.isfinite(value).all() for value in solution.values()):
            raise UserError(f"`start={folder}` has parameters that are not finite: give another record")
        shapes = {name: value.shape for name, value in solution.items()}
        if shapes != problem.shapes:
            raise UserError(f"`start={folder}` has parameters {_format_shapes(shapes)}, and this problem "
                            f"{_format_shapes(problem.shapes)}: they must be the same")  # fmt: skip
        dual = problem.to_dual(Vector({name: jnp.asarray(value) for name, value in solution.items()}))
        if not all(bool(jnp.isfinite(value).all()) for value in dual.values()):
            raise UserError(f"`start={folder}` lies outside of the domain of the mirror map: leave `mirror` out")
        self._check_features(data)
        labels = self.record.summary["data"]["classes"]
        data_labels = [str(label) for label in data.classes]
        if labels != data_labels:
            swapped = len(labels) == 2 and labels == data_labels[::-1]
            advice = f"; give `data.positive={labels[1]}`" if swapped else ""
            raise UserError(f"`start={folder}` knows the classes {', '.join(labels) or 'none'}, and these data have "
                            f"{', '.join(data_labels) or 'none'}: they must be the same{advice}")  # fmt: skip
        return solution

    def _check_features(self, data: FederatedData) -> None:
        """Refuse data whose features, or their standardization, differ from the record's. Raises UserError."""
        summary, folder = self.record.summary["data"], self.record.folder
        names, data_names = summary["feature_names"], list(data.features.names)
        if names and data_names and names != data_names:
            pairs = zip(names, data_names, strict=True)
            difference = next((f"'{name}' and '{other}'" for name, other in pairs if name != other), "")
            raise UserError(f"`start={folder}` has other features than these data, {difference} at one position: give "
                            "the same columns in the same order")  # fmt: skip
        standardized = summary.get("standardized")
        mode = standardized["by"] if standardized else "none"
        data_mode = data.features.standardized["by"] if data.features.standardized else "none"
        same = mode == data_mode
        if same and data.features.standardized:
            same = _same_standardization(standardized, data.features.standardized)
        if not same:
            scaling = f" data.scaling={folder}" if mode == "pooled" else ""
            raise UserError(f"`start={folder}` is of features that were standardized otherwise: give "
                            f"`data.standardize={mode}{scaling}`")  # fmt: skip


def _format_shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return the names and shapes of parameters as text, sorted by name."""
    return ", ".join(f"{name} {list(shapes[name])}" for name in sorted(shapes))


def _same_standardization(first: dict, second: dict) -> bool:
    """Return whether features were standardized alike: by each client, or by the same means and deviations."""
    if second["by"] != "pooled":
        return True
    scaling, other = Scaling.from_dict(first), Scaling.from_dict(second)
    shift = (scaling.mean - other.mean) * scaling.factor  # in deviations
    return bool((np.abs(shift) <= 1e-9).all()) and np.allclose(scaling.factor, other.factor, rtol=1e-9, atol=0)


def load_warm_start(folder: str) -> WarmStart:
    """Load the warm start from a record. Raises UserError if the folder holds no record of a run that is done."""
    record = Record(Path(folder))
    status = record.status.get("status", "no status.json")
    if status != "done":
        raise UserError(f"`start={folder}` holds no run that is done ({status}): "
                        "give the folder of a run that is done, with its status.json")  # fmt: skip
    try:
        digest = hashlib.sha256()
        for name, value in sorted(record.solution.items()):
            digest.update(name.encode() + value.tobytes())
        about = record.summary["data"]  # what is compared with the data of a run
        _ = about["classes"], about["feature_names"]
        standardized = about.get("standardized")
        if standardized and standardized["by"] == "pooled":
            Scaling.from_dict(standardized)
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise UserError(f"`start={folder}` has lost its solution.npz or summary.json, or they are damaged: give "
                        "another record") from error  # fmt: skip
    return WarmStart(record, digest.hexdigest()[:16])
