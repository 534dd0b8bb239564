"""To start where another run has ended."""

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.errors import UserError
from fcorun.problem.problem import Problem
from fcorun.problem.vector import Vector
from fcorun.records.record import Record
from fcorun.tables.scaling import Scaling


@dataclass(frozen=True)
class WarmStart:
    """The solution of a record.

    Attributes:
        digest: of its numbers.
    """

    record: Record
    digest: str

    def solution_for(self, problem: Problem, data: FederatedData) -> dict[str, np.ndarray]:
        """Its parameters. Raises UserError where they do not fit the problem, or have other labels than the data."""
        found, folder = self.record.solution, self.record.folder
        if not all(np.isfinite(value).all() for value in found.values()):
            raise UserError(f"start={folder} has parameters that are not finite: give another record")
        shapes = {name: value.shape for name, value in found.items()}
        if shapes != problem.shapes:
            told = [
                ", ".join(f"{name} {list(each[name])}" for name in sorted(each)) for each in (shapes, problem.shapes)
            ]
            theirs, ours = told
            raise UserError(f"start={folder} has parameters {theirs}, and this problem {ours}: they must be the same")
        dual = problem.to_dual(Vector({name: jnp.asarray(value) for name, value in found.items()}))
        if not all(bool(jnp.isfinite(value).all()) for value in dual.values()):
            raise UserError(f"start={folder} lies outside of the domain of the mirror map: leave mirror out")
        told = self.record.summary["data"]
        names, ours = told["feature_names"], list(data.features)
        if names and ours and names != ours:
            other = next((f"'{a}' and '{b}'" for a, b in zip(names, ours, strict=True) if a != b), "")
            raise UserError(f"start={folder} has other features than these data, {other} in the same place: give the "
                            "same columns in the same order")  # fmt: skip
        ways = [each["by"] if each else "none" for each in (told.get("standardized"), data.standardized)]
        if ways[0] != ways[1] or (data.standardized and not _same(told["standardized"], data.standardized)):
            by = f" data.scaling={folder}" if ways[0] == "pooled" else ""
            raise UserError(f"start={folder} is of features that were standardized otherwise: give "
                            f"data.standardize={ways[0]}{by}")  # fmt: skip
        labels = self.record.summary["data"]["classes"]
        ours = [str(label) for label in data.classes]
        if labels != ours:
            cure = f"; give data.positive={labels[1]}" if len(labels) == 2 and labels == ours[::-1] else ""
            raise UserError(f"start={folder} knows the classes {', '.join(labels) or 'none'}, and these data have "
                            f"{', '.join(ours) or 'none'}: they must be the same{cure}")  # fmt: skip
        return found


def _same(theirs: dict, mine: dict) -> bool:
    """Whether features were standardized alike: by each client, or by the same means and deviations."""
    if mine["by"] != "pooled":
        return True
    a, b = Scaling.from_dict(theirs), Scaling.from_dict(mine)
    return np.allclose(a.mean, b.mean, rtol=1e-9) and np.allclose(a.factor, b.factor, rtol=1e-9)


def load_warm_start(folder: str) -> WarmStart:
    """The start that a record is. Raises UserError where there is none, or one that diverged."""
    record = Record(Path(folder))
    if record.status.get("status") != "done":
        raise UserError(f"start={folder} is no finished record ({record.status.get('status', 'nothing is there')}): "
                        "give the folder of a run that is done, with its status.json")  # fmt: skip
    try:
        numbers = b"".join(name.encode() + value.tobytes() for name, value in sorted(record.solution.items()))
        _ = record.summary["data"]["classes"]
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise UserError(f"start={folder} has lost its solution.npz or summary.json, or they are damaged: give another "
                        "record") from error  # fmt: skip
    return WarmStart(record, hashlib.sha256(numbers).hexdigest()[:16])
