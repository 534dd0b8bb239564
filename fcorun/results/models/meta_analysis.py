"""The table of a meta-analysis: each coefficient with its interval, and how much the clients' own estimates differ."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.errors import UserError, abbreviate, word
from fcorun.base.records.formats import READ_ERRORS, csv_text
from fcorun.base.records.record import Record
from fcorun.base.records.tables import CLIENT_ESTIMATES, GAPS
from fcorun.base.sources.catalogue import parse_source
from fcorun.data.datasets.dataset import Dataset, FederatedData
from fcorun.data.tables.encoding import Encoding
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.algorithms.local_fit import combine_estimates
from fcorun.results.inference.estimates import Estimates, adjust_by_holm, intervals
from fcorun.results.inference.methods import (
    CLIENT_ESTIMATES_FILE,
    INTERVALS_FILE,
    INTERVALS_TEXT,
    META_ANALYSIS,
    SOURCES,
)
from fcorun.results.models.coefficients import INTERCEPT, Coefficients, coefficients_from, load_coefficients
from fcorun.results.models.inference import infer
from fcorun.results.models.inference_problem import InferenceOptions
from fcorun.results.models.inference_table import (
    InferenceTable,
    build_table,
    count_tests,
    describe,
    find_warnings,
    format_p,
)

HETEROGENEOUS = 0.1  # of p values of Cochran's Q, a test of little power: below, clients count as different
NO_ESTIMATE = "no client has an estimate"
REFERENCE = "reference"
# Intervals of 95 % of ten clients with 10, 5 and 2 residual degrees of freedom each cover in 89, 78 and 50 %, of least
# squares with 4 parameters.
_FEW_DEGREES = 30
# Normal intervals of 95 % with random effects cover in 82, 86 and 89 % for 2, 3 and 5 clients, and 93.5 % for 20, if
# tau2 is three times the variance of an estimate.
_FEW_CLIENTS = 5


@dataclass(frozen=True, eq=False)
class ClientEstimates:
    """The estimates that each client makes of each coefficient by itself, in the units of the features.

    Attributes:
        names: the coefficients (q,): features, "feature: class" of several classes, and the intercept last.
        clients: the names of the clients (M,).
        estimates, standard_errors: (M, q), NaN where a client has no estimate.
        deviation: the standard deviation of each feature (q,), NaN where unknown, and of the intercept.
        effects: "fixed" or "random".
        ridge: the ridge of the clients' fits, which shrinks them.
        n_rows: the number of training rows.
        client_rows: those of each client (M,), of positive weight where weights are here; NaN where unknown.
    """

    names: tuple[str, ...]
    clients: tuple[str, ...]
    estimates: np.ndarray
    standard_errors: np.ndarray
    deviation: np.ndarray
    effects: str
    ridge: float
    n_rows: int
    client_rows: np.ndarray

    def to_csv(self) -> str:
        """Return the content of client_estimates.csv, a row for each coefficient and client."""
        rows = []
        for q, name in enumerate(self.names):
            for m, client in enumerate(self.clients):
                cells = (self.estimates[m, q], self.standard_errors[m, q], self.deviation[q], self.client_rows[m])
                numbers = [None if np.isnan(cell) else float(cell) for cell in cells]
                columns = ("feature", "client", "estimate", "standard_error", "deviation", "rows")
                rows.append(dict(zip(columns, (name, client, *numbers), strict=True)))
        return csv_text(rows)


@dataclass(frozen=True, eq=False, kw_only=True)
class MetaAnalysisTable(InferenceTable):
    """The intervals of a meta-analysis, with the estimates that it combines.

    Attributes:
        clients: the estimates of the clients.
        references: the level that each level of a text column is compared with, by the names of both.
        weights: the weight of each client in each coefficient (M, q); they add up to 1, or are 0.
        tau2: the variance between clients by DerSimonian and Laird (q,), in the units of the features.
        cochran_q, q_p_value: Cochran's Q and the p value of the hypothesis that the clients do not differ (q,).
        i2: I^2, the share of the variation that is not chance (q,), between 0 and 1.
    """

    clients: ClientEstimates
    references: Mapping[str, str]
    weights: np.ndarray
    tau2: np.ndarray
    cochran_q: np.ndarray
    q_p_value: np.ndarray
    i2: np.ndarray

    numbers: ClassVar[tuple[str, ...]] = (*InferenceTable.numbers, "tau2", "cochran_q", "q_p_value", "i2")


def collect_estimates(
    experiment: PreparedExperiment,
    data: FederatedData,
    fits: Mapping[str, np.ndarray],
    precisions: Mapping[str, np.ndarray],
) -> ClientEstimates:
    """Return the estimates of the clients of a run, from parameters as trained and their inverse variances, (M, ...).

    The intercept of standardized features is that of features at their means.
    """
    models = coefficients_from(fits, data, experiment, has_path_axis=True)
    n_weights = len(models.features) * len(models.classes)
    n_trained = n_weights if models.bias is None else len(models.labels)
    units = np.ones(n_trained)
    if models.original is not None:
        ones = coefficients_from({name: np.ones(values.shape[1:]) for name, values in fits.items()}, data, experiment)
        assert ones.original is not None
        units[:n_weights] = ones.original[0].ravel()
    precision = coefficients_from(precisions, data, experiment, has_path_axis=True).values[:, :n_trained]
    with np.errstate(divide="ignore"):
        errors = np.where(precision > 0, units / np.sqrt(precision), np.nan)
    deviation = np.full(n_trained, np.nan)
    if data.feature_deviations is not None:
        deviation[:n_weights] = np.repeat(data.feature_deviations, len(models.classes)) / units[:n_weights]
    train = data.train
    client_rows = train.sizes
    if train.weight is not None and not train.stays_at_sites:
        client_rows = train.sum_by_client((train.weight > 0).astype(int))
    suffixes = [f": {label}" if len(models.cuts or models.classes) > 1 else "" for _, _, label in models.labels]
    return ClientEstimates(
        names=tuple(
            (feature or INTERCEPT) + suffix
            for (_, feature, _), suffix in zip(models.labels[:n_trained], suffixes, strict=False)
        ),
        clients=tuple(data.client_names),
        estimates=np.where(precision > 0, models.values[:, :n_trained] * units, np.nan),
        standard_errors=errors,
        deviation=deviation,
        effects=str(getattr(experiment.algo, "effects", "fixed")),
        ridge=float(getattr(experiment.algo, "ridge", 0.0)),
        n_rows=train.n_rows,
        client_rows=np.asarray(client_rows, float),
    )


def read_estimates(record: Record) -> ClientEstimates:
    """Return the estimates of the clients that a record has. Raises UserError for a damaged file."""
    try:
        columns = CLIENT_ESTIMATES.read(record.folder)
        names = tuple(dict.fromkeys(columns["feature"]))
        clients = tuple(dict.fromkeys(columns["client"]))
        numbers = [columns[name] for name in ("estimate", "standard_error", "deviation")]
        numbers.append(columns.get("rows", [np.nan] * len(columns["feature"])))  # which older records lack
        shape = (len(names), len(clients))
        estimates, errors, deviation, client_rows = (np.array(column).reshape(shape).T for column in numbers)
        return ClientEstimates(
            names=names,
            clients=clients,
            estimates=estimates,
            standard_errors=errors,
            deviation=deviation[0],
            effects=str(record.flat_config["algo.effects"]),
            ridge=float(record.flat_config["algo.ridge"]),
            n_rows=int(record.summary["data"]["examples"]),
            client_rows=client_rows[:, 0],
        )
    except (*READ_ERRORS, TypeError, IndexError) as error:
        raise UserError(f"{record.folder}: {CLIENT_ESTIMATES_FILE} or config.yaml is lost or damaged: run it again "
                        "with `force=true`") from error  # fmt: skip


def build_meta_table(clients: ClientEstimates, coefficients: Coefficients, level: float = 0.95) -> MetaAnalysisTable:
    """Return the table of a meta-analysis, with normal intervals. ``coefficients`` are those of the run's solution."""
    from scipy.special import chdtrc

    has_estimate = ~np.isnan(clients.standard_errors)
    precisions = np.where(has_estimate, clients.standard_errors, np.inf) ** -2.0
    is_random = clients.effects == "random"
    with jax.enable_x64(True):
        estimates = jnp.asarray(np.where(has_estimate, clients.estimates, 0))
        combined = combine_estimates(estimates, jnp.asarray(precisions), is_random)
    estimate, precision, tau2, q, i2 = (np.array(values) for values in combined)
    is_known = precision > 0
    estimate = np.where(is_known, estimate, np.nan)
    error = np.where(is_known, precision, np.nan) ** -0.5
    low, high, p_value = intervals(Estimates(estimate, np.diag(error**2), np.inf, np.diag(error**2)), level)
    encoding = Encoding(coefficients.columns)
    curves = encoding.curve_of_feature
    references = _find_references(clients, encoding)
    is_reference = np.isin(clients.names, [*references.values()])
    is_feature = np.array([not name.startswith(INTERCEPT) for name in clients.names])
    is_tested = is_feature & is_known & ~np.isin(clients.names, [*curves])
    p_holm = np.full(len(estimate), np.nan)
    p_holm[is_tested] = adjust_by_holm(p_value[is_tested])
    count = has_estimate.sum(axis=0)
    method = f"{META_ANALYSIS}, {clients.effects} effects"
    title = (f"{method}, {100 * level:g} % intervals, {len(clients.clients)} clients, {clients.n_rows:,} rows, "
             "standard errors of each client's model")  # fmt: skip
    nothing = np.full(len(estimate), np.nan)
    displayed = dict(zip(coefficients.features, coefficients.display_names, strict=True))
    return MetaAnalysisTable(
        features=clients.names,
        estimate=estimate,
        standard_error=error,
        low=low,
        high=high,
        p_value=np.where(is_feature & ~is_tested, np.nan, p_value),  # no term of a curve varies alone
        p_holm=p_holm,
        estimate_standardized=estimate * clients.deviation,
        low_standardized=low * clients.deviation,
        high_standardized=high * clients.deviation,
        penalized=nothing,
        missing_information=nothing,
        n=nothing,
        events=nothing,
        has_two_values=np.zeros(len(estimate), bool),  # its forest plot is per unit of each feature
        method=tuple(np.where(is_reference, REFERENCE, np.where(is_known, method, NO_ESTIMATE)).tolist()),
        ratio_name=coefficients.ratio_name,
        outcome=coefficients.classes[0] if len(coefficients.classes) == 1 else "",
        level=level,
        title=title,
        labels=tuple(displayed.get(name, name) for name in clients.names) if coefficients.feature_labels else (),
        curve_of_feature=curves,
        clients=clients,
        references=references,
        weights=precisions / (1 + precisions * tau2 * is_random) / np.where(is_known, precision, 1),
        tau2=np.where(is_known, tau2, np.nan),
        cochran_q=np.where(is_known, q, np.nan),
        q_p_value=np.where(count > 1, chdtrc(np.maximum(count - 1, 1), q), np.nan),
        i2=np.where(is_known, i2, np.nan),
    )


def _find_references(clients: ClientEstimates, encoding: Encoding) -> dict[str, str]:
    """Return the reference of each other level by their names in ``clients``; a reference has no estimate.

    Without an intercept no level is one, since each has a coefficient of its own.
    """
    is_empty = np.isnan(clients.standard_errors).all(axis=0)
    without_estimate = {clients.names[q] for q in np.flatnonzero(is_empty)}
    references = {}
    for name in clients.names:
        feature, separator, class_name = name.partition(": ")
        reference = encoding.reference_of_feature.get(name)
        if reference is None and feature in encoding.reference_of_feature:  # of one of several classes
            reference = encoding.reference_of_feature[feature] + separator + class_name
        if reference is not None and reference != name and reference in without_estimate:
            references[name] = reference
    return references


def describe_meta(table: MetaAnalysisTable) -> list[str]:
    """Return the sentences about a meta-analysis: what the numbers are, how the clients differ, and tests."""
    lines = [table.title]
    is_feature = ~np.isnan(table.p_holm) & ~np.isnan(table.q_p_value)
    if is_feature.any():
        most = int(np.where(is_feature, table.i2, -1).argmax())
        lines.append(f"the estimates of clients differ most in {table.features[most]}: I2 {table.i2[most]:.0%}, tau2 "
                     f"{table.tau2[most]:.3g}, Q {table.cochran_q[most]:.4g} with p "
                     f"{format_p(table.q_p_value[most])}")  # fmt: skip
    if table.references:
        lines.append(f"reference: {', '.join(dict.fromkeys(table.references.values()))}")
    return [
        *lines,
        f"source: {parse_source(SOURCES[META_ANALYSIS]).text}",
        count_tests(table.p_value, table.p_holm, 1 - table.level),
    ]


def find_meta_warnings(
    table: MetaAnalysisTable, data_config: Mapping[str, Any], *, at_sites: bool = False, has_gaps: bool = False
) -> list[str]:
    """Return the sentences that a reader of a meta-analysis of rows with this configuration of ``data`` must know.

    Args:
        at_sites: whether the rows stay at their sites, where nothing says whether they have gaps.
        has_gaps: whether training rows that are here have gaps.
    """
    clients = table.clients
    sentences = _warn_of_rows(data_config, at_sites, has_gaps)
    differing = [name for name, p in zip(table.features, table.q_p_value, strict=True) if p < HETEROGENEOUS]
    if clients.effects == "fixed" and differing:
        sentences.append(word(
            f"the clients differ by more than chance (p of Q below {HETEROGENEOUS:g}) in {abbreviate(differing)}: "
            "intervals of fixed effects leave that out; `algo.effects=random` includes it"
        ))  # fmt: skip
    missing = np.isnan(clients.standard_errors)
    has_fit = ~missing.all(axis=1)
    missing[:, np.isin(clients.names, [*table.references.values()])] = False  # a reference has none by definition
    for reference in dict.fromkeys(table.references.values()):
        is_compared = [table.references.get(name) == reference for name in clients.names]
        has_none = missing[:, is_compared].all(axis=1) & has_fit
        if has_none.any():
            named = abbreviate([clients.clients[m] for m in np.flatnonzero(has_none)])
            sentences.append(f"the rows of {named} do not compare levels with {reference}, the reference, for want of "
                             "its rows or of those of another level: their contrasts with it are left out")  # fmt: skip
    if missing.any():
        lacking = [f"{name} ({n} of {len(clients.clients)})"
                   for name, n in zip(table.features, missing.sum(axis=0), strict=True) if n]  # fmt: skip
        sentences.append(f"some clients have no estimate, since their rows do not determine one: {abbreviate(lacking)}")
    n_clients = int(has_fit.sum())
    if 1 < n_clients <= _FEW_CLIENTS and clients.effects == "random":
        sentences.append(f"{n_clients} clients hardly determine tau2, which the normal intervals take as known: "
                         "intervals are too narrow, and p values too small")  # fmt: skip
    elif 1 < n_clients <= _FEW_CLIENTS:
        sentences.append(f"{n_clients} clients hardly tell whether they differ, since Q has little power, and "
                         "intervals of fixed effects hold only if they do not")  # fmt: skip
    n_estimates = (~np.isnan(clients.standard_errors)).sum(axis=1)
    is_small = (n_estimates > 0) & (clients.client_rows - n_estimates < _FEW_DEGREES)
    if is_small.any():
        named = abbreviate([clients.clients[m] for m in np.flatnonzero(is_small)])
        sentences.append(f"{named}: a client with fewer than {_FEW_DEGREES} rows more than estimates knows its "
                         "variances poorly, and the weights and the normal intervals take them as known: intervals "
                         "are too narrow, and p values too small")  # fmt: skip
    if clients.ridge:
        sentences.append(word(f"`algo.ridge={clients.ridge:g}` shrinks the clients' estimates, and no interval here "
                              "corrects that"))  # fmt: skip
    return sentences


def _warn_of_rows(data_config: Mapping[str, Any], at_sites: bool, has_gaps: bool) -> list[str]:
    """Return warnings of rows that the clients' standard errors take for independent, equally likely and complete."""
    sentences = []
    if group := data_config.get("group"):
        sentences.append(word(f"rows of a group ('{group}') are taken as independent in the clients' fits: intervals "
                              "are too narrow, and p values too small, where they are alike; "
                              f"{_name_other_intervals('group', group, at_sites)} has errors by group"))  # fmt: skip
    weight = data_config.get("weight")
    if weight and data_config.get("weight_kind") != "frequency":
        sentences.append(word(f"the weights ('{weight}') count as precisions of rows: with sampling weights intervals "
                              f"are too narrow; {_name_other_intervals('weight', weight, at_sites)} has robust "
                              "errors"))  # fmt: skip
    missing = data_config.get("missing") or "refuse"
    if missing != "refuse" and (at_sites or has_gaps):
        filled = "has filled at sites, if there were any," if at_sites else "has filled"
        sentences.append(word(f"gaps that `data.missing={missing}` {filled} count as measured: coefficients of "
                              "columns with many gaps may be biased, and their intervals too narrow"))  # fmt: skip
    return sentences


def _name_other_intervals(option: str, column: str, at_sites: bool) -> str:
    """Return what computes intervals that know an option of ``data``."""
    if at_sites:
        return f"`fcorun plan algo=newton reg=none data.{option}={column} ... --infer`"
    return "fcorun infer of a record of `algo=newton` with `reg=none`"


@dataclass(frozen=True)
class RecordIntervals:
    """The intervals of a record's coefficients, what is said above their table, and what a reader must know.

    Attributes:
        files: the contents of files of the record by name, without those that ``fcorun infer`` writes.
    """

    table: InferenceTable
    description: list[str]
    warnings: list[str]
    files: Mapping[str, str] = field(default_factory=dict)


def tabulate_estimates(
    experiment: PreparedExperiment,
    data: FederatedData,
    solution: Mapping[str, np.ndarray],
    estimates: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]],
) -> RecordIntervals:
    """Return the intervals and the files of a run, from what ``Algorithm.client_estimates`` returns at its end."""
    clients = collect_estimates(experiment, data, *estimates)
    table = build_meta_table(clients, coefficients_from(solution, data, experiment))
    description = describe_meta(table)
    at_sites, has_gaps = data.train.stays_at_sites, bool(data.features.missing)
    warnings = find_meta_warnings(table, experiment.config["data"], at_sites=at_sites, has_gaps=has_gaps)
    files = {CLIENT_ESTIMATES_FILE: clients.to_csv(), INTERVALS_FILE: table.to_csv()}
    files[INTERVALS_TEXT] = "".join(f"{line}\n" for line in (*description, *(f"warning: {text}" for text in warnings)))
    return RecordIntervals(table, description, warnings, files)


def compute_record_intervals(record: Record, options: InferenceOptions, data: Dataset | None = None) -> RecordIntervals:
    """Return the intervals of a record: of a meta-analysis those of its combined estimates, else those of ``infer``.

    Raises UserError like ``infer``, and for options that a meta-analysis has not.
    """
    if not (record.folder / CLIENT_ESTIMATES_FILE).exists():
        inference = infer(record, options, data)
        table = build_table(inference)
        return RecordIntervals(table, describe(inference, table), find_warnings(inference))
    if replace(options, level=0.95, errors="robust") != InferenceOptions():
        raise UserError(f"{record.folder} is a meta-analysis, whose intervals follow from the estimates and standard "
                        "errors that clients sent: give no option but `level`")  # fmt: skip
    table = build_meta_table(read_estimates(record), load_coefficients(record), options.level)
    at_sites, has_gaps = "sites" in record.summary["data"], bool(GAPS.read(record.folder))
    warnings = find_meta_warnings(table, record.config["data"], at_sites=at_sites, has_gaps=has_gaps)
    return RecordIntervals(table, describe_meta(table), warnings)
