"""The coefficients of linear models by name, as trained and in the units that the features had."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.datasets.voxel_grid import VoxelGrid
from fcorun.errors import UserError
from fcorun.metrics import PERSONAL_PREFIX
from fcorun.records.formats import READ_ERRORS, read_mask, read_summary
from fcorun.records.record import Record
from fcorun.tables.scaling import Scaling, to_original_units

COLUMNS = ("parameter", "feature", "class", "value", "value_original")


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Those of a linear model of d features and k outputs, or of models along a path, whose axis P comes first.

    Attributes:
        features: their names, d.
        classes: what each output is for, k names: the second of two classes, each of more, "" of a regression.
        weights: as trained, shape (d, k) or (P, d, k).
        bias: the intercept as trained, shape (k,) or (P, k), or None where the model has none.
        scaling: what features were standardized by before, or None.
        units: whether one change of units leads back to the features as the source has them: not where they were
            standardized by each client or run.
        shape: that of an example where it is a matrix; else empty.
        grid: of features that are voxels.
        scale: what x was multiplied by to be the features.
    """

    features: tuple[str, ...]
    classes: tuple[str, ...]
    weights: np.ndarray
    bias: np.ndarray | None = None
    scaling: Scaling | None = None
    has_source_units: bool = True
    shape: tuple[int, ...] = ()
    grid: VoxelGrid | None = None
    scale: float = 1.0

    @cached_property
    def original(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Weights and intercept for features as the source has them; None where ``units`` is false.

        Of features (x - mean) / deviation, <w, x> + b is <w / deviation, x> + b - <w / deviation, mean>: a model
        without an intercept has one then.
        """
        if not self.has_source_units:
            return None
        weights, bias = to_original_units(
            self.weights, 0.0 if self.bias is None else self.bias, self.scaling, self.scale
        )
        return weights, None if self.bias is None and self.scaling is None else bias

    @property
    def labels(self) -> list[tuple[str, str, str]]:
        """Parameter, feature and class of each coefficient, those of a feature together, the intercept last, Q."""
        intercept = self.bias is not None or (self.original is not None and self.original[1] is not None)
        every = [("weights", feature) for feature in self.features] + [("bias", "")] * intercept
        return [(*place, of) for place in every for of in self.classes]

    @property
    def values(self) -> np.ndarray:
        """As trained, in the order of ``places``, shape (Q,) or (P, Q)."""
        return self._joined(self.weights, self.bias)

    @property
    def values_original(self) -> np.ndarray | None:
        """For features as the source has them, likewise; None where there are no units."""
        return None if self.original is None else self._joined(*self.original)

    def _joined(self, weights: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
        path, count = weights.shape[:-2], len(self.labels)
        out = np.zeros((*path, count))
        of_features = weights.shape[-2] * weights.shape[-1]
        out[..., :of_features] = weights.reshape(*path, -1)
        if bias is not None:
            out[..., of_features:] = bias
        return out + 0.0  # no -0.0

    def to_rows(self) -> list[tuple]:
        """A row a coefficient of one model: ``COLUMNS``."""
        original = self.values_original
        told = [None] * len(self.labels) if original is None else original.tolist()
        return [(*place, *both) for place, *both in zip(self.labels, self.values.tolist(), told, strict=True)]

    def to_csv(self) -> str:
        """coefficients.csv: ``table``, numbers with all their digits; no value where there are no units."""
        return format_csv(COLUMNS, self.to_rows())


def format_csv(names: Sequence[str], rows: list[tuple]) -> str:
    """Rows of plain values as CSV."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return buffer.getvalue()


def feature_names(names: Sequence[str], shape: Sequence[int], grid: VoxelGrid | None = None) -> tuple[str, ...]:
    """What features are called, d: by their names; voxels by their place; others by their number from 0, x0, or in a
    matrix of this ``shape`` x0,0."""
    if grid is not None and grid.n_voxels == np.prod(shape):
        return grid.names
    return tuple(names) or tuple("x" + ",".join(map(str, place)) for place in np.ndindex(*shape))


def build_coefficients(
    solution: Mapping[str, np.ndarray],
    told: Mapping[str, Any],
    units: bool = True,
    grid: VoxelGrid | None = None,
    along: bool = False,
) -> Coefficients:
    """Those of a linear model's parameters on data of which a summary tells ``told``; ``along``: those of a path, whose
    axis comes first."""
    weights, classes = np.asarray(solution["weights"], float), [str(label) for label in told.get("classes") or []]
    path, count = weights.shape[:along], int(told["features"])
    own = weights.shape[along:]
    outputs = int(np.prod(own)) // count
    shape = own[: len(own) - (outputs > 1)]
    by = told.get("standardized") or {}
    return Coefficients(
        features=feature_names(told.get("feature_names") or (), shape, grid),
        classes=tuple(classes if outputs > 1 else classes[1:2] or [""]),
        weights=weights.reshape(*path, count, outputs),
        bias=np.asarray(solution["bias"], float).reshape(*path, outputs) if "bias" in solution else None,
        scaling=Scaling.from_dict(by) if by.get("by") == "pooled" else None,
        scale=float(told.get("scale", 1.0)),
        has_source_units=units and by.get("by") in (None, "pooled"),
        shape=shape if len(shape) > 1 else (),
        grid=grid,
    )


def coefficients_from(
    solution: Mapping[str, np.ndarray], data: FederatedData, has_source_units: bool, has_path_axis: bool = False
) -> Coefficients:
    """Those of a linear model's parameters on these data; see ``coefficients``."""
    names, by = ("classes", "standardized", "scale"), {"features": data.x.shape[1], "feature_names": data.features}
    return build_coefficients(
        solution, {name: getattr(data, name) for name in names} | by, has_source_units, data.voxel_grid, has_path_axis
    )


def personal_only(rows: Sequence[Mapping[str, float]]) -> bool:
    """Whether the clients of a run with these evaluations made models of their own and none together."""
    return bool(rows) and not rows[-1].get("bytes_up") and any(name.startswith(PERSONAL_PREFIX) for name in rows[-1])


def no_coefficients_reason(record: Record) -> str:
    """Why a record has no coefficients of a linear model, in a sentence; empty where it has."""
    status, folder = record.status.get("status", "no record"), record.folder
    if status != "done":
        return f"{folder} is {status}: it has no solution to show; give a run that is done"
    is_linear = read_summary(folder).get("linear")
    if is_linear is None:
        return f"{folder}: its summary.json is lost, damaged or does not say whether the model is linear; run it again"
    if not is_linear:
        name = record.flat_config.get("objective.name")
        return (f"{folder}: objective={name} is no linear model and has no coefficient a feature; its "
                "parameters are in solution.npz")  # fmt: skip
    return ""


def load_coefficients(record: Record) -> Coefficients:
    """Those of a record's solution. Raises UserError where it has none."""
    if personal_only(record.rows):
        raise UserError(f"{record.folder}: its clients have models of their own and none together; give --clients")
    return _of(record, lambda: record.solution)


def load_client_coefficients(record: Record) -> tuple[list[str], list[Coefficients]]:
    """The names of a record's clients, and the coefficients of their own models. Raises UserError where it has none."""
    own = record.personal
    if not own:
        raise UserError(f"{record.folder} has no models of its clients' own (personal.npz); leave --clients out")
    names = [str(name) for name in own["client"]]
    parts = [{name: values[m] for name, values in own.items() if name != "client"} for m in range(len(names))]
    first = _of(record, lambda: parts[0])
    outputs = len(first.classes)

    def other(part: Mapping[str, np.ndarray]) -> Coefficients:
        bias = np.asarray(part["bias"], float).reshape(-1) if "bias" in part else None
        return replace(first, weights=np.asarray(part["weights"], float).reshape(-1, outputs), bias=bias)

    return names, [other(part) for part in parts]


def format_by_client(names: Sequence[str], models: Sequence[Coefficients]) -> str:
    """coefficients_by_client.csv: a column a client, of values in the features' own units where they have them."""
    place = 4 if models[0].has_source_units else 3
    tables = [model.to_rows() for model in models]
    rows = [(*told[0][:3], *(row[place] for row in told)) for told in zip(*tables, strict=True)]
    return format_csv([*COLUMNS[:3], *names], rows)


def _of(record: Record, parameters: Callable[[], Mapping[str, np.ndarray]]) -> Coefficients:
    """The coefficients that parameters of a record's model are."""
    if why := no_coefficients_reason(record):
        raise UserError(why)
    try:
        grid = read_mask(record.folder / "mask.nii.gz")
        told = record.summary["data"]
        return build_coefficients(parameters(), told, bool(told.get("units", True)), grid and VoxelGrid(*grid))
    except (*READ_ERRORS, TypeError) as error:
        raise UserError(f"{record.folder} has lost its solution.npz, summary.json or mask.nii.gz, or they are damaged: "
                        "give another record") from error  # fmt: skip
