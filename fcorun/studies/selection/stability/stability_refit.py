"""The refit: one run on all training rows with the stable columns alone, and no penalty."""

from dataclasses import replace

import numpy as np

from fcorun.base.config import SECTIONS
from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.table import Table
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.prepare import prepare_plugins
from fcorun.methods.regularizers.none import NoRegularizer
from fcorun.studies.selection.stability.stability_options import StabilityResult


def check_refit(experiment: PreparedExperiment, data: FederatedData) -> None:
    """Raise UserError if the data have no columns to leave out, or the experiment needs a penalty."""
    if not isinstance(experiment.data, Table) or data.features.encoding is None:
        raise UserError(
            f"refit=true leaves out columns by their names, and data={experiment.names['data']} has no named columns: "
            "leave refit out, or give a table with named columns"
        )
    for option in ("encoding", "scaling"):
        if getattr(experiment.data, option) is not None:
            raise UserError(
                f"refit=true drops columns, and the record of data.{option} fixes them: leave one of the two out"
            )
    build_refit(experiment, [column.name for column in data.features.encoding.columns])


def build_refit(experiment: PreparedExperiment, columns: list[str]) -> PreparedExperiment:
    """Return the experiment with these columns as the only features, and without a penalty. Raises UserError."""
    assert isinstance(experiment.data, Table)
    plugins = {section: getattr(experiment, section) for section in SECTIONS}
    plugins["data"] = replace(experiment.data, only=columns)
    plugins["reg"] = NoRegularizer()
    labels = {section: {"name": experiment.names[section]} for section in SECTIONS}
    labels["reg"] = {"name": "none"}
    for section in SECTIONS:
        title = experiment.config.get(section, {}).get("title")
        if title and section != "reg":
            labels[section]["title"] = title
    return prepare_plugins(plugins, labels, experiment.settings)


def list_refit_columns(result: StabilityResult) -> list[str]:
    """Return the columns with a stable feature, or a feature without penalty, in the order of the table."""
    encoding = result.data.features.encoding
    assert encoding is not None
    is_refit_feature = (result.scores.stable | result.scores.unpenalized)[result.units.unit_of]
    refit_names = {encoding.column_of_feature[result.features[j]] for j in np.flatnonzero(is_refit_feature)}
    return [column.name for column in encoding.columns if column.name in refit_names]


def explain_no_refit(result: StabilityResult) -> str:
    """Return why no model is fitted to the stable columns; "" if one is."""
    encoding = result.data.features.encoding
    assert encoding is not None
    if not result.scores.stable.any():
        return "refit=true: no model is fitted, since nothing is stable"
    columns = list_refit_columns(result)
    n_features = sum(len(column.features) for column in encoding.columns if column.name in columns)
    n_rows = len(result.data.train)
    if n_features >= n_rows:
        return (
            f"refit=true: no model is fitted, since {n_rows} rows do not determine {n_features} coefficients without a "
            "penalty: a larger threshold leaves fewer columns"
        )
    return ""
