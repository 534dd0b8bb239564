"""The coefficients of linear models by feature, as trained and in the features' own units."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from fcorun.base.errors import UserError, word
from fcorun.base.metrics import PERSONAL_PREFIX
from fcorun.base.records.contents import ENCODING
from fcorun.base.records.formats import READ_ERRORS, columns_csv, nifti_bytes, read_mask
from fcorun.base.records.record import CLIENT_INTERCEPTS, Record
from fcorun.base.trust import public_path
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.images import VoxelGrid
from fcorun.data.tables.columns import Column
from fcorun.data.tables.encoding import ENCODING_FILE, Encoding
from fcorun.data.tables.label_file import label_features
from fcorun.data.tables.scaling import Scaling

if TYPE_CHECKING:  # the process that draws pictures does not import JAX
    from fcorun.experiment.experiment import PreparedExperiment
    from fcorun.methods.objectives.objective import Objective

_AT_SITES = "each client's personal model is at its site, in the record and coefficients_by_client.csv there"
_RATIOS = {
    "fcorun.Logistic": "odds ratio",
    "fcorun.ProportionalOdds": "odds ratio",
    "fcorun.Poisson": "rate ratio",
    "fcorun.Gamma": "ratio of means",
    "fcorun.Cox": "hazard ratio",
}
INTERCEPT = "(intercept)"
COLUMNS = ("parameter", "feature", "class", "value", "value_original")


@dataclass(frozen=True, eq=False)
class Coefficients:
    """The coefficients of a linear model of d features and k outputs, or of P models along a path.

    Attributes:
        features: the names of the d features.
        classes: the class of each of the k outputs: the second of two classes, every class of more, "" of a regression
            and of classes that share their weights.
        weights: the weights as trained, shape (d, k), or (P, d, k) along a path.
        bias: the intercept as trained, shape (k,) or (P, k). None: the model has no intercept.
        scaling: the standardization of the features before training, or None.
        has_source_units: one change of units leads back to the features of the source. False if rows were
            standardized within each client or each fMRI run.
        shape: the shape of an example that is a matrix, else ().
        grid: the voxels of features that are voxels, or None.
        scale: the factor from x to the features.
        cutoff_factors: the factor of the cutoff of each feature, see ``find_cutoff_factors``. None: all are 1.
        feature_labels: the names of the features in pictures; empty: ``features``.
        columns: the columns of a table that the features are made of, or empty.
        ratio_name: the name of exp(weight), "" of a model whose weights are differences.
        cuts: the lowest class above each intercept, where outputs have intercepts of their own and share their weights:
            ``bias`` is then (cuts,) or (P, cuts) with k = 1. Empty: each output has weights of its own.
        intercept_clients: the names of the M clients whose intercepts follow their mean in ``bias``, which is then
            (1 + M,) or (P, 1 + M) with k = 1. Empty: the intercept is that of all clients.
        has_unknown_intercepts: whether clients have intercepts that are not here, such as those that stay at sites.
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
    cutoff_factors: np.ndarray | None = None
    feature_labels: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    ratio_name: str = ""
    cuts: tuple[str, ...] = ()
    intercept_clients: tuple[str, ...] = ()
    has_unknown_intercepts: bool = False

    @property
    def display_names(self) -> tuple[str, ...]:
        """The names of the features in pictures."""
        return self.feature_labels or self.features

    @cached_property
    def original(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Weights and intercept for the features of the source. None if ``has_source_units`` is false.

        For features (x - mean) / deviation, <w, x> + b is <w / deviation, x> + b - <w / deviation, mean>: a model
        without an intercept gets one, unless intercepts are unknown.
        """
        if not self.has_source_units:
            return None
        weights = np.asarray(self.weights, float)
        bias = None if self.bias is None else np.asarray(self.bias, float)
        if self.scaling is not None:
            weights, bias = self.scaling.to_original_units(weights, 0.0 if bias is None else bias)
        return weights * self.scale, None if self.has_unknown_intercepts else bias

    @cached_property
    def labels(self) -> list[tuple[str, str, str]]:
        """Parameter, feature and class of each of the Q coefficients, feature by feature, the intercept last."""
        labels = []
        for feature in self.features:
            labels += [("weights", feature, label) for label in self.classes]
        if self.bias is not None or (self.original is not None and self.original[1] is not None):
            labels += [("bias", "", label) for label in self.cuts or self.classes]
            labels += [("bias", client, self.classes[0]) for client in self.intercept_clients]
        return labels

    def exceed(self, cutoff: float) -> np.ndarray:
        """Return the mask of the weights that count as nonzero, with the shape of ``weights``."""
        factors = 1.0 if self.cutoff_factors is None else self.cutoff_factors[:, None]
        return np.abs(self.weights) > cutoff * factors

    def values_exceed(self, cutoff: float) -> np.ndarray:
        """Return the mask of the coefficients that count as nonzero in the order of ``labels``, (Q,) or (P, Q)."""
        bias = None if self.bias is None else np.abs(self.bias) > cutoff
        return self._flatten(self.exceed(cutoff), bias) > 0

    def take(self, models: slice | int) -> "Coefficients":
        """Return the coefficients of some models of a path, or of one."""
        return replace(self, weights=self.weights[models], bias=None if self.bias is None else self.bias[models])

    @property
    def values(self) -> np.ndarray:
        """The coefficients as trained in the order of ``labels``, shape (Q,) or (P, Q)."""
        return self._flatten(self.weights, self.bias)

    @property
    def values_original(self) -> np.ndarray | None:
        """The coefficients for the features of the source in the order of ``labels``, or None as ``original``."""
        return None if self.original is None else self._flatten(*self.original)

    def _flatten(self, weights: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
        path = weights.shape[:-2]
        n_weights = weights.shape[-2] * weights.shape[-1]
        values = np.zeros((*path, len(self.labels)))
        values[..., :n_weights] = weights.reshape(*path, -1)
        if bias is not None:
            values[..., n_weights:] = bias
        return values + 0.0  # turns -0.0 into 0.0

    def to_rows(self) -> list[tuple]:
        """Return a row for each coefficient of one model, with the columns ``COLUMNS``."""
        values: list = self.values.tolist()
        original = [None] * len(values) if self.values_original is None else self.values_original.tolist()
        return [(*label, *pair) for label, *pair in zip(self.labels, values, original, strict=True)]

    def to_csv(self) -> str:
        """Return the content of coefficients.csv: ``to_rows``, numbers with all their digits."""
        columns = zip(*self.to_rows(), strict=True)
        return columns_csv(dict(zip(COLUMNS, columns, strict=True)))


def feature_names(names: Sequence[str], shape: Sequence[int], grid: VoxelGrid | None = None) -> tuple[str, ...]:
    """Return the names of d features: voxels by their indices, else ``names``, else x0, x1, ...

    Entries of a matrix of this ``shape`` without names are x0,0, x0,1, ...
    """
    if grid is not None and grid.n_voxels == np.prod(shape):
        return grid.names
    return tuple(names) or tuple("x" + ",".join(map(str, index)) for index in itertools.product(*map(range, shape)))


def name_intercepts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the intercepts in rows of coefficients.csv: that of all clients, or the mean and each one."""
    clients = [row["feature"] for row in rows if row["parameter"] == "bias"]
    first = "(intercept, mean of the clients)" if any(clients) else INTERCEPT
    return [name_client_intercept(client) if client else first for client in clients]


def is_intercept(name: str) -> bool:
    """Return whether a name among those of features is of an intercept."""
    return name.startswith("(intercept")


def name_client_intercept(client: str) -> str:
    """Return the name of a client's intercept among those of features."""
    return f"(intercept of {client})"


def count_outputs(weights: tuple[int, ...], bias: tuple[int, ...], data_summary: Mapping[str, Any]) -> int:
    """Return the number of outputs of a linear model: 1, or the number of classes.

    Raises ValueError for shapes of ``weights`` and ``bias`` that no model of these data has, as in a damaged record.

    Args:
        data_summary: the section ``data`` of a summary.
    """
    classes = data_summary.get("classes") or []
    size = int(np.prod(weights))
    outputs, rest = divmod(size, int(data_summary["features"]))
    cuts = len(classes) - 1
    if cuts == 0:
        raise ValueError(f"there is one class, {classes[0]!r}")
    if rest or outputs not in (1, len(classes) or 1) or len(bias) > 1 or int(np.prod(bias)) not in (1, outputs, cuts):
        raise ValueError(f"weights of the shape {weights} and a bias of the shape {bias} are of other data")
    return outputs


def build_coefficients(
    solution: Mapping[str, np.ndarray],
    data_summary: Mapping[str, Any],
    has_source_units: bool = True,
    grid: VoxelGrid | None = None,
    has_path_axis: bool = False,
) -> Coefficients:
    """Return the coefficients of a linear model with these parameters.

    Raises ValueError as ``count_outputs``.

    Args:
        data_summary: the section ``data`` of a summary.
        has_path_axis: parameters have a leading axis, the models of a path.
    """
    weights = np.asarray(solution["weights"], float)
    path = weights.shape[:has_path_axis]
    parameter_shape = weights.shape[has_path_axis:]
    n_features = int(data_summary["features"])
    outputs = count_outputs(parameter_shape, np.shape(solution.get("bias", 0.0))[has_path_axis:], data_summary)
    shape = parameter_shape[:-1] if outputs > 1 else parameter_shape
    classes = [str(label) for label in data_summary.get("classes") or []]
    bias = None
    cuts = ()
    if "bias" in solution:
        bias = np.asarray(solution["bias"], float).reshape(*path, -1)
        if bias.shape[-1] > outputs:
            cuts = tuple(classes[1:])
    intercept_clients = ()
    if bias is not None and CLIENT_INTERCEPTS in solution:
        bias = np.concatenate([bias, np.asarray(solution[CLIENT_INTERCEPTS], float)], axis=-1)
        intercept_clients = tuple(data_summary["client_names"])
    names_of_outputs = [""]
    if outputs > 1:
        names_of_outputs = classes
    elif len(classes) == 2:
        names_of_outputs = classes[1:]
    standardized = data_summary.get("standardized") or {}
    factors = data_summary.get("cutoff_factors")
    return Coefficients(
        features=feature_names(data_summary.get("feature_names") or (), shape, grid),
        classes=tuple(names_of_outputs),
        weights=weights.reshape(*path, n_features, outputs),
        bias=bias,
        cuts=cuts,
        intercept_clients=intercept_clients,
        scaling=Scaling.from_pooled(standardized),
        scale=float(data_summary.get("scale", 1.0)),
        cutoff_factors=None if factors is None or not len(factors) else np.asarray(factors, float),
        has_source_units=has_source_units and standardized.get("by") in (None, "pooled"),
        shape=shape if len(shape) > 1 else (),
        grid=grid,
    )


def coefficients_from(
    solution: Mapping[str, np.ndarray],
    data: FederatedData,
    experiment: "PreparedExperiment",
    has_path_axis: bool = False,
) -> Coefficients:
    """Return the coefficients of a linear model trained on ``data``; see ``build_coefficients``."""
    data_summary = {
        "features": data.train.x.shape[1],
        "feature_names": data.features.names,
        "classes": data.classes,
        "standardized": data.features.standardized,
        "scale": data.features.scale,
        "cutoff_factors": find_cutoff_factors(experiment.objective, data),
        "client_names": data.client_names,
    }
    grid = data.features.voxel_grid
    has_source_units = experiment.data.units
    coefficients = build_coefficients(solution, data_summary, has_source_units, grid, has_path_axis)
    return replace(
        coefficients,
        feature_labels=data.features.display_names if data.features.labels else (),
        columns=data.features.encoding.columns if data.features.encoding else (),
        ratio_name=find_ratio_name(type(experiment.objective)),
        has_unknown_intercepts=experiment.objective.client_intercepts and coefficients.bias is None,
    )


def find_ratio_name(objective: type | str) -> str:
    """Return the name of exp(coefficient) for an objective, its class or the path of it; "" of differences."""
    if isinstance(objective, type):
        objective = f"{objective.__module__}.{objective.__qualname__}"
    return _RATIOS.get(public_path(objective), "")


# The magnitude above which a coefficient counts as nonzero: the cutoff, less where units are large.


def find_cutoff_factors(objective: "Objective", data: FederatedData) -> Float[np.ndarray, " d"] | None:
    """Return the factor of the cutoff of each feature of a table, at most 1; None where all are 1.

    A coefficient times the standard deviation of its feature, in standard deviations of the target, does not depend on
    units. The factor is the ratio of the target's deviation to that of the feature. Log-odds and logarithms have no
    unit, so that they have the deviation 1.
    """
    from fcorun.methods.objectives.log_link import LogLink

    deviations = data.feature_deviations
    if deviations is None:
        return None
    has_units = data.target_task.is_quantity and not isinstance(objective, LogLink)
    target = float(np.asarray(data.train.y, float).std()) if has_units else 1.0
    factors = np.minimum(1.0, np.divide(target, deviations, out=np.ones(len(deviations)), where=deviations > 0))
    return factors if (factors < 1).any() else None


def nonzero_limits(experiment: "PreparedExperiment", data: FederatedData) -> Float[np.ndarray, " d"]:
    """Return the magnitude above which the coefficient of each feature counts as nonzero."""
    factors = find_cutoff_factors(experiment.objective, data)
    return np.full(data.train.x.shape[1], experiment.settings.cutoff) * (1.0 if factors is None else factors)


def nonzero_rows(rows: list[dict[str, Any]], cutoff: float, data_summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of coefficients.csv that are of features and count as nonzero, the largest first.

    ``data_summary`` is the section on the data in summary.json.
    """
    factors = dict(zip(data_summary.get("feature_names") or (), data_summary.get("cutoff_factors") or (), strict=False))
    rows = [row for row in rows if row["parameter"] != "bias"]
    rows = [row for row in rows if abs(float(row["value"])) > cutoff * factors.get(row["feature"], 1)]
    return sorted(rows, key=lambda row: -abs(float(row["value"])))


def describe_cutoff(cutoff: float, is_scaled: bool) -> str:
    """Return the cutoff as text; ``is_scaled``: it has factors.

    >>> describe_cutoff(1e-4, is_scaled=True)
    '0.0001 (standardized)'
    """
    return f"{cutoff:g}" + (" (standardized)" if is_scaled else "")


# The coefficients of records, and their files.


def personal_only(rows: Sequence[Mapping[str, float]]) -> bool:
    """Return True if the clients of a run with these evaluations trained personal models and no shared one."""
    return bool(rows) and not rows[-1].get("bytes_up") and any(name.startswith(PERSONAL_PREFIX) for name in rows[-1])


def no_coefficients_reason(record: Record) -> str:
    """Return why a record has no coefficients of a linear model, in a sentence; "" if the record has them."""
    status = record.status.get("status", "no record")
    folder = record.folder
    if status != "done":
        return f"{folder} is {status}: it has no solution to show; give a run that is done"
    is_linear = record.summary_or_empty.get("linear")
    if is_linear is None:
        return f"{folder}: its summary.json is lost, damaged or does not say whether the model is linear; run it again"
    if not is_linear:
        name = record.flat_config.get("objective.name")
        return word(
            f"{folder}: `objective={name}` is no linear model and has no coefficient a feature; its parameters are in "
            "solution.npz"
        )
    return ""


def load_coefficients(record: Record) -> Coefficients:
    """Return the coefficients of a record's solution. Raises UserError if the record has none."""
    if personal_only(record.rows):
        if not record.personal and record.has_personal_models_at_sites:
            raise UserError(f"{record.folder} has no shared model: {_AT_SITES}")
        raise UserError(f"{record.folder}: the record has personal models and no shared one; fcorun weights --clients "
                        f"{record.folder} writes their coefficients")  # fmt: skip
    return _load(record)


def load_client_coefficients(record: Record) -> tuple[list[str], list[Coefficients]]:
    """Return the names of a record's clients and the coefficients of their personal models.

    Raises UserError if the record has no such models.
    """
    models = record.personal
    if not models and record.has_personal_models_at_sites:
        raise UserError(f"{record.folder}: {_AT_SITES}; leave --clients out here")
    if not models:
        raise UserError(f"{record.folder} has no personal models (personal.npz); leave --clients out")
    clients = [str(name) for name in models["client"]]
    path = _load(record, {name: values for name, values in models.items() if name != "client"}, has_path_axis=True)
    return clients, [path.take(number) for number in range(len(clients))]


def format_by_client(names: Sequence[str], models: Sequence[Coefficients]) -> str:
    """Return the content of coefficients_by_client.csv: a column for each client.

    Values are in the features' own units if the models have these, else as trained.
    """
    value = COLUMNS.index("value_original" if models[0].has_source_units else "value")
    tables = [model.to_rows() for model in models]
    rows = [(*clients[0][:3], *(row[value] for row in clients)) for clients in zip(*tables, strict=True)]
    return columns_csv(dict(zip([*COLUMNS[:3], *names], zip(*rows, strict=True), strict=True)))


def _load(
    record: Record, parameters: Mapping[str, np.ndarray] | None = None, has_path_axis: bool = False
) -> Coefficients:
    """Return the coefficients of a record with these parameters, by default those of its solution."""
    if reason := no_coefficients_reason(record):
        raise UserError(reason)
    try:
        mask = read_mask(record.folder / "mask.nii.gz")
        data_summary = record.summary["data"]
        parameters = record.solution if parameters is None else parameters
        grid = mask and VoxelGrid(*mask)
        has_units = bool(data_summary.get("units", True))
        coefficients = build_coefficients(parameters, data_summary, has_units, grid, has_path_axis)
        has_own = record.flat_config.get("objective.client_intercepts") is True
        coefficients = replace(coefficients, has_unknown_intercepts=has_own and coefficients.bias is None)
        ratio_name = find_ratio_name(str(record.flat_config.get("objective.class")))
        labels = data_summary.get("labels")
        if not labels and not (record.folder / ENCODING_FILE).is_file():
            return replace(coefficients, ratio_name=ratio_name)
        encoding = Encoding.from_dict(ENCODING.read(record.folder))
        feature_labels = ()
        if labels:
            label_of_feature = label_features(encoding, labels)
            feature_labels = tuple(label_of_feature.get(name, name) for name in coefficients.features)
        return replace(coefficients, feature_labels=feature_labels, columns=encoding.columns, ratio_name=ratio_name)
    except (*READ_ERRORS, TypeError) as error:
        raise UserError(
            f"{record.folder} has lost its solution.npz, summary.json, encoding.json or mask.nii.gz, or they are "
            "damaged: give another record"
        ) from error


def mask_image(grid: VoxelGrid) -> bytes:
    """Return the content of mask.nii.gz: 1 at the voxels that are features, else 0."""
    return nifti_bytes(grid.mask.astype(np.uint8), grid.affine)


def weights_image(grid: VoxelGrid, weights: np.ndarray) -> bytes:
    """Return the content of weights.nii.gz: weights (d, k) as trained, float32, 0 outside of the mask.

    The image has a volume for each output if k > 1.
    """
    return nifti_bytes(grid.to_image(weights[:, 0] if weights.shape[1] == 1 else weights), grid.affine)


def coefficient_files(coefficients: Coefficients) -> dict[str, bytes | str]:
    """Return the files of a model by name: coefficients.csv, and of voxels the mask and the weights as images."""
    files: dict[str, bytes | str] = {"coefficients.csv": coefficients.to_csv()}
    if coefficients.grid is not None:
        files["mask.nii.gz"] = mask_image(coefficients.grid)
        files["weights.nii.gz"] = weights_image(coefficients.grid, coefficients.weights)
    return files
