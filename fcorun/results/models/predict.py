"""Predictions of a record's model for new rows, with warnings on doubtful ones."""

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from fcorun.base.errors import UserError, abbreviate, describe_rows, find_spelling, word
from fcorun.base.metrics import PERSONAL_PREFIX
from fcorun.base.records.record import Record
from fcorun.data.tables.cells import require_finite_numbers
from fcorun.data.tables.column_roles import is_prediction_column
from fcorun.data.tables.encoding import ENCODING_FILE, Encoding, read_encoding
from fcorun.data.tables.scaling import ClientScalings
from fcorun.experiment.threshold_rule import DEFAULT_THRESHOLD
from fcorun.results.models.client_intercepts import clients_with_intercepts
from fcorun.results.models.coefficients import personal_only
from fcorun.results.models.estimator import (
    clients_with_personal_models,
    load_model,
    read_threshold,
    spell_as_in_record,
)
from fcorun.results.survival import survival_probabilities

_MAX_NAMES = 10  # names in a sentence


def predict(
    record: Record,
    frame: Any,
    clients: np.ndarray | None = None,
    source: str = "the frame",
    keep: Sequence[str] = (),
    at: float | None = None,
    baseline: str | None = None,
    sparse: Any = None,
) -> tuple[Any, list[str]]:
    """Return predictions for new rows, and warnings about them, a sentence each.

    The predictions have the columns ``row`` (from 1), ``client`` if clients are known, those of ``keep``,
    ``prediction`` (a number, or the label of a class; of times to events the linear predictor), ``probability_LABEL``
    of each class, and with ``at`` ``survival_at_TIME``, the probability of no event up to it, and ``baseline_hazard``,
    the client whose hazard it is by. For a record with personal models, ``model`` is personal or shared. For
    standardize=per_client, ``scaling`` is client (of the row's client) or mean (of all clients; of a site's record,
    "mean of this site"). Where clients have intercepts of their own, so is ``intercept``. The column ``warnings`` flags
    rows whose prediction is doubtful: levels, clients and numbers that training did not have, and gaps that were
    filled. The column is omitted if no row is doubtful.

    Args:
        record: a record that is done.
        frame: the rows, a pandas.DataFrame with the record's features by name, not standardized, and other columns.
        clients: the client of each row, text or None, shape (n,). None: the only client of the site that keeps the
            record, else no client.
        source: the name of the rows in errors.
        keep: columns of the frame to repeat. Without any, the columns of the record's ``data.keep`` that the frame has.
        at: a time, of a record of times to events.
        baseline: the client whose baseline hazard clients without one have; None: that of all training rows together.
        sparse: a csr_array of the features in their order, of rows whose frame has offsets and columns to repeat alone.

    Raises UserError for features that are missing or no numbers, and as ``load_model``.
    """
    import pandas as pd

    shared = load_model(record)  # refuses a record that cannot predict
    repeated_columns, frame = _take_kept(frame, record, keep)
    offset, frame = _read_offset(frame, record, source)
    classes = record.summary["data"]["classes"]
    if len(classes) == 2 and str(shared.classes_[1]) != classes[1]:  # an estimator sorts its classes
        offset = -offset
    row_warnings: list[list[str]] = [[] for _ in range(len(frame))]
    x, column_warnings = select_features(frame if sparse is None else sparse, record, source, row_warnings)
    with_model = clients_with_personal_models(record)
    with_scaling = [str(name) for name in record.scaling.get("client", ())]
    known = {*with_model, *with_scaling, *clients_with_intercepts(record)}
    if clients is None:
        is_of_one_client = "sites" in record.summary["data"] and len(known) == 1
        clients = np.full(len(frame), min(known) if is_of_one_client else None, object)
    clients = spell_as_in_record(clients, [*known, *record.summary["data"].get("client_names", ())])
    known_client = np.array([name if name in known else "" for name in clients])  # no client has the name ""
    parts = []
    positive = classes[-1] if classes else ""
    for client in dict.fromkeys(known_client.tolist()):
        rows = np.flatnonzero(known_client == client)
        model = load_model(record, client) if client else shared
        parts.append(_predict_rows(model, x, rows, offset[rows], read_threshold(record, client), positive=positive))
    predictions = pd.concat(parts).sort_index()
    predictions, survival_warnings = _add_survival(record, predictions, clients, at, baseline)
    leading = {"row": np.arange(1, len(predictions) + 1)}
    if any(name is not None for name in clients):
        leading["client"] = clients
    predictions = pd.concat([pd.DataFrame(leading), repeated_columns.reset_index(drop=True), predictions], axis=1)
    if with_model:
        predictions["model"] = np.where(np.isin(known_client, with_model), "personal", "shared")
    _tell_client_from_mean(predictions, record, known_client)
    if (known_client == "").any():
        _check_shared_model(record, with_model)
    warnings = column_warnings + _warn_out_of_range(record, x, row_warnings) + survival_warnings
    warnings += _warn_unknown_clients(record, clients, known, row_warnings)
    warnings += _warn_own_scales(record, clients, row_warnings)
    has_models = with_model or record.has_personal_models_at_sites
    if not has_models and any(name.startswith(PERSONAL_PREFIX) for name in record.summary["final"]):
        warnings.append(word("personal models were not saved (`save_personal=false`): the shared model predicts all"))
    if reason := record.status.get("reason"):
        warnings.append(f"of the record: {reason}")
    if any(row_warnings):
        predictions["warnings"] = ["; ".join(texts) for texts in row_warnings]
    return predictions, warnings


def _check_shared_model(record: Record, with_model: list[str]) -> None:
    """Raise UserError for a record whose models all belong to clients; those ``with_model`` are here."""
    if record.has_personal_models_at_sites and personal_only(record.rows):
        names = f" ({_quote(with_model)})" if with_model else ""
        raise UserError(f"{record.folder} has no shared model, and each client's personal model is at its site: give "
                        f"the record that the site keeps, and rows of its clients{names}")  # fmt: skip


def _tell_client_from_mean(predictions: Any, record: Record, known_client: np.ndarray) -> None:
    """Add the columns of scalings and intercepts, if clients have them: client for their rows, mean for others."""
    mean = "mean of this site" if "sites" in record.summary["data"] else "mean"
    with_scaling = [str(name) for name in record.scaling.get("client", ())]
    for name, clients in {"scaling": with_scaling, "intercept": clients_with_intercepts(record)}.items():
        if clients:
            predictions[name] = np.where(np.isin(known_client, clients), "client", mean)


def _add_survival(
    record: Record, predictions: Any, clients: np.ndarray, at: float | None, baseline: str | None
) -> tuple[Any, list[str]]:
    """Return predictions with the columns of probabilities of no event up to a time, if one is given, and warnings."""
    if at is None:
        if baseline is not None:
            raise UserError(f"`baseline={baseline}` is for probabilities at a time: give `at=TIME`, too")
        return predictions, []
    survival = survival_probabilities(record, predictions["prediction"].to_numpy(float), clients, at, baseline)
    columns = {f"survival_at_{at:g}": survival.values, "baseline_hazard": survival.baseline}
    return predictions.assign(**columns), survival.warnings


def select_features(
    frame: Any, record: Record, source: str, row_warnings: list[list[str]] | None = None
) -> tuple[Any, list[str]]:
    """Return the features of new rows before standardization, a DataFrame of numbers, and warnings on the columns.

    A csr_array is returned as it is.

    Features are in the order of the record. Text is encoded and gaps are filled as in the record; warnings on single
    rows are added to their lists in ``row_warnings``. If the record or the rows have no names, columns are taken in
    their order. Raises UserError.
    """
    import pandas as pd

    data = record.summary["data"]
    if not isinstance(frame, pd.DataFrame):
        if frame.shape[1] != data["features"]:
            raise UserError(f"{source} has {frame.shape[1]:,} features, and the record has {data['features']:,}: give "
                            "as many, in the same order")  # fmt: skip
        return frame, []
    outcomes = [record.config["data"].get(option) for option in ("target", "event")]
    encoding = _read_record_encoding(record)
    has_names = any(isinstance(column, str) for column in frame.columns)
    names = data["feature_names"]
    if encoding and has_names:
        names = [column.name for column in encoding.columns]
    warnings = []
    for outcome in [name for name in frame.columns if name in outcomes and name not in names]:
        warnings.append(f"column '{outcome}' is the outcome: ignored")
        frame = frame.drop(columns=outcome)
    if names and any(isinstance(column, str) for column in frame.columns):
        missing = [name for name in names if name not in frame]
        if missing:
            similar = {name: find_spelling(name, [str(column) for column in frame.columns]) for name in missing}
            renames = [f"'{spelling}' for '{name}'" for name, spelling in similar.items() if spelling is not None]
            question = f"; did you mean {abbreviate(renames)}?" if renames else ""
            raise UserError(
                f"{source} lacks {_quote(missing)}: give all features of the record, by name, in any order{question}"
            )
        others = [name for name in frame.columns if name not in set(names)]
        if others:
            warnings.append(f"ignored, for the record has no such features: {_quote(others)}")
        frame = frame[names]
        if encoding:
            features = encoding.apply(frame, warnings, source, row_warnings).astype(float)
            return pd.DataFrame(features, columns=encoding.feature_names), warnings
    else:
        if frame.shape[1] != data["features"]:
            cure = "them by name" if names else "as many"
            if record.config["data"].get("triples"):
                cure = "the file of their triples, too, `data.triples=FILE`"
            raise UserError(f"{source} has {frame.shape[1]} columns of features, and the record has "
                            f"{data['features']}: give {cure}")  # fmt: skip
        if names or has_names:
            unnamed = source if names else "the record"
            warnings.append(f"features of {unnamed} have no names: columns are taken in their order")
    numbers = frame.to_numpy()
    if numbers.dtype.kind in "fiu" and np.isfinite(numbers).all():  # a million columns are not looked at one by one
        return pd.DataFrame(numbers.astype(float), columns=names or None), warnings
    columns = []
    for name in frame.columns:
        columns.append(require_finite_numbers(frame[name], f"{source}: column '{name}'").astype(float))
    return pd.DataFrame(np.stack(columns, axis=1), columns=names or None), warnings


def _take_kept(frame: Any, record: Record, keep: Sequence[str]) -> tuple[Any, Any]:
    """Return the columns of new rows that the predictions repeat, and the rows without those that are no features.

    Raises UserError for a column whose name is that of a prediction.
    """
    data = record.config["data"]
    names = list(dict.fromkeys(keep or [name for name in data.get("keep") or () if name in frame]))
    for name in names:
        if is_prediction_column(str(name)):
            raise UserError(f"'{name}' is a column that the predictions have anyway: rename yours, or keep another")
    encoding = _read_record_encoding(record)
    used = {data.get("weight"), data.get("offset"), *record.summary["data"]["feature_names"]}
    used |= {column.name for column in encoding.columns} if encoding else set()
    return frame[names], frame.drop(columns=[name for name in names if name not in used])


def _quote(names: list[str]) -> str:
    return abbreviate([f"'{name}'" for name in names], _MAX_NAMES)


def _read_offset(frame: Any, record: Record, source: str) -> tuple[np.ndarray, Any]:
    """Return the offset of each row, shape (n,), and the rows without the columns of weights and offsets.

    An offset is added to the linear predictor. Raises UserError.
    """
    settings = record.config["data"]
    column = settings.get("offset")
    if column and column not in frame:
        raise UserError(f"{source} lacks '{column}', the offset of the record: give it, 0 for none")
    features = frame.drop(columns=[name for name in (settings.get("weight"), column) if name in frame])
    if not column:
        return np.zeros(len(frame)), features
    return require_finite_numbers(frame[column], f"{source}: column '{column}'").astype(float), features


def _predict_rows(model: Any, x: Any, rows: np.ndarray, offset: np.ndarray, threshold: float, positive: str) -> Any:
    """Return the predictions of a model for these rows of x, a DataFrame or a csr_array, with offsets (n,).

    Of two classes, the class ``positive`` is predicted from the probability ``threshold`` on.
    """
    import pandas as pd

    if offset.any():
        model = copy(model)
        model.intercept_ = model.intercept_ + (offset[:, None] if hasattr(model, "classes_") else offset)
    if isinstance(x, pd.DataFrame):
        x = x.iloc[rows]
        if not hasattr(model, "feature_names_in_"):
            x = x.to_numpy()
    else:
        model = copy(model)
        vars(model).pop("feature_names_in_", None)
        x = x[rows]
    columns = {"prediction": model.predict(x)}
    if hasattr(model, "predict_proba"):
        labels = [str(label) for label in model.classes_]
        probabilities = model.predict_proba(x)
        columns |= {f"probability_{label}": values for label, values in zip(labels, probabilities.T, strict=True)}
        k = labels.index(positive)
        if threshold != DEFAULT_THRESHOLD:
            columns["prediction"] = model.classes_[np.where(probabilities[:, k] >= threshold, k, 1 - k)]
        elif len(labels) == 2 and hasattr(model, "decision_function"):  # a tie is of the other class, as in scores
            log_odds = model.decision_function(x) * (1 if k else -1)
            columns["prediction"] = model.classes_[np.where(log_odds > 0, k, 1 - k)]
    return pd.DataFrame(columns, index=rows)


def _warn_unknown_clients(
    record: Record, clients: np.ndarray, known: set[str], row_warnings: list[list[str]]
) -> list[str]:
    """Return a warning on rows of clients that training did not have, and flag the rows.

    Where the ``known`` clients have models or scalings of their own, rows without a client are named, too.
    """
    summary = record.summary["data"]
    trained = known or set(summary.get("client_names", ()))
    rows = [row for row, name in enumerate(clients) if name not in trained and (known or name is not None)]
    if not rows:
        return []
    if not trained:
        return ["the record does not tell which clients trained, so that rows of other clients are not marked"]
    training = "training at this site" if known and "sites" in summary else "training"
    for row in rows:
        name = clients[row]
        row_warnings[row].append("no client" if name is None else f"client '{name}' not in {training}")
    names = [name for name in dict.fromkeys(clients[rows]) if name is not None]
    begin = f"{describe_rows(rows)} of {len(clients)} {'is' if len(rows) == 1 else 'are'}"
    if not known:
        return [
            f"{begin} of clients that training did not have ({_quote(names)}): how well the model predicts for these "
            "is not known"
        ]
    substitutes = []
    if clients_with_personal_models(record):
        substitutes.append("the shared model")
    if clients_with_intercepts(record):
        of_site = " of this site, which may be far from that of all clients" if "sites" in summary else ""
        substitutes.append(f"the mean of the clients' intercepts{of_site}")
    if record.scaling:
        scaled_clients = "the clients of this site" if "sites" in summary else "all clients"
        substitutes.append(f"the means and deviations of {scaled_clients}, which may be far from their own")
    origin = f"of clients that the record does not know ({_quote(names)})" if names else "without a client"
    get = "gets" if len(rows) == 1 else "get"
    return [f"{begin} {origin} and {get} {' and '.join(substitutes)}"]


def _warn_own_scales(record: Record, clients: np.ndarray, row_warnings: list[list[str]]) -> list[str]:
    """Return a warning on rows of clients that are standardized by their held-out rows, and flag the rows."""
    if not record.scaling:
        return []
    names = ClientScalings.from_dict(record.scaling).clients_of_own_scale
    rows = np.flatnonzero(np.isin(clients.astype(str), names)).tolist()
    for row in rows:
        row_warnings[row].append(f"client '{clients[row]}' scaled by its held-out rows")
    if not rows:
        return []
    verb = "is" if len(rows) == 1 else "are"
    return [f"{describe_rows(rows)} of {len(clients)} {verb} of clients without training rows "
            f"({_quote(list(dict.fromkeys(clients[rows])))}), and standardized by the means and deviations of the "
            "held-out rows of these clients in the record"]  # fmt: skip


def _warn_out_of_range(record: Record, x: Any, row_warnings: list[list[str]]) -> list[str]:
    """Return a warning on numbers that lie outside of the training range by more than a tenth of its length."""
    limits = record.summary["data"].get("limits")
    encoding = _read_record_encoding(record)
    if encoding is None or not hasattr(x, "columns"):
        return []
    if limits is None:
        return ["the record has no ranges of its rows: unusual values are not flagged"]
    numeric = {column.name for column in encoding.columns if column.has_numbers}
    examples = []
    for name, least, largest in zip(encoding.feature_names, *limits, strict=True):
        if name not in numeric:
            continue
        values = x[name].to_numpy()
        slack = (largest - least) / 10
        rows = np.flatnonzero((values < least - slack) | (values > largest + slack)).tolist()
        for row in rows:
            row_warnings[row].append(f"{name} {values[row]:.6g} outside of {least:.6g} to {largest:.6g}")
        if rows:
            others = f", and others in {describe_rows(rows[1:])}" if len(rows) > 1 else ""
            value = f"'{name}' {values[rows[0]]:.6g} in {describe_rows(rows[:1])}"
            examples.append(f"{value}{others} (training: {least:.6g} to {largest:.6g})")
    if not examples:
        return []
    return [
        "far outside of what training had, where a model only extrapolates: "
        f"{abbreviate(examples, _MAX_NAMES)}; are they in the same units?"
    ]


def list_feature_columns(record: Record) -> list[str]:
    """Return the names of the columns that a record's features are made of; [] if they have no names."""
    encoding = _read_record_encoding(record)
    if encoding:
        return [column.name for column in encoding.columns]
    return record.summary.get("data", {}).get("feature_names", [])


def _read_record_encoding(record: Record) -> Encoding | None:
    """Return the encoding of a record's columns; None for a record without named columns.

    Raises UserError for an encoding whose features are others than those of the record's summary.
    """
    if not (record.folder / ENCODING_FILE).is_file():
        return None
    encoding = read_encoding(str(record.folder))
    if list(encoding.feature_names) != record.summary["data"]["feature_names"]:
        raise UserError(f"{record.folder} is damaged: its encoding.json and summary.json have different features: run "
                        "it again with `force=true`")  # fmt: skip
    return encoding
