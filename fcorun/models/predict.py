"""What the model of a record predicts for new rows."""

from copy import copy
from typing import Any

import numpy as np

from fcorun.errors import UserError
from fcorun.metrics import PERSONAL_PREFIX
from fcorun.models.estimator import clients_with_own_models, load_estimator
from fcorun.records.record import Record
from fcorun.tables.data_warnings import abbreviate, describe_rows, normalize_name
from fcorun.tables.dataframe import require_finite_numbers
from fcorun.tables.encoding import ENCODING_FILE as ENCODING
from fcorun.tables.encoding import Encoding, read_encoding

_NAMED = 10  # columns, in a sentence


def predict(
    record: Record, frame: Any, clients: np.ndarray | None = None, source: str = "the rows"
) -> tuple[Any, list[str]]:
    """Predictions for new rows, and what a reader of them should know, a sentence each.

    The columns of the predictions, a row each, are ``row`` (from 1), ``client`` where that is known, ``prediction`` (a
    number, or the label of a class) and ``probability_LABEL`` of each class; of a record with own models ``model``, own
    or shared; of one standardized per_client ``scaling``, own or mean: of the client, or of all clients. Where anything
    is doubtful of some row, a last column ``remarks`` says what, and is empty for the others: levels, clients and
    numbers that training did not have, gaps that were filled.

    Args:
        record: one that is done.
        frame: the rows, a pandas.DataFrame with the record's features by name in any order, as raw as the record's data
            were: standardization is part of the model. What else it has is ignored.
        owner: the client of each row, text or None, shape (n,).
        where: what errors call the rows.

    Raises UserError for features that are missing or no numbers, and as ``estimator`` does.
    """
    import pandas as pd

    shared = load_estimator(record)  # refuses a record that cannot predict
    offset, frame = _offset(frame, record, source)
    offset = offset if _same_order(shared, record) else -offset
    of_rows: list[list[str]] = [[] for _ in range(len(frame))]
    x, remarks = select_features(frame, record, source, of_rows)
    clients = np.full(len(frame), None, object) if clients is None else clients
    own, scaled = clients_with_own_models(record), [str(name) for name in record.scaling.get("client", ())]
    known = {*own, *scaled}
    of = np.array([name if name in known else "" for name in clients])  # no client is called that
    parts = []
    for client in dict.fromkeys(of.tolist()):
        rows = np.flatnonzero(of == client)
        parts.append(
            _by(load_estimator(record, client) if client else shared, x.iloc[rows], offset[rows]).set_index(rows)
        )
    out = pd.concat(parts).sort_index()
    if any(name is not None for name in clients):
        out.insert(0, "client", clients)
    out.insert(0, "row", np.arange(1, len(out) + 1))
    for name, there, other in (("model", own, "shared"), ("scaling", scaled, "mean")):
        if there:
            out[name] = np.where(np.isin(of, there), "own", other)
    said = [
        *remarks,
        *_of_unknown(clients, of == "", bool(own), bool(scaled), of_rows),
        *_far(record, x, of_rows),
        *([] if own or scaled else _new_clients(record, clients, of_rows)),
        *_doubts(record, shared if "" in of else None, bool(own)),
    ]
    if any(of_rows):
        out["remarks"] = ["; ".join(told) for told in of_rows]
    return out, said


def select_features(
    frame: Any, record: Record, where: str, of_rows: list[list[str]] | None = None
) -> tuple[Any, list[str]]:
    """The features of new rows as the record's data had them before standardization, a DataFrame of numbers in their
    order, and what is said of the columns; of single rows, to their lists in ``of_rows``.

    Text is coded and gaps are filled as in the record. Where the record or the rows have no names, columns are taken in
    their order. Raises UserError.
    """
    import pandas as pd

    told, target = record.summary["data"], record.config["data"].get("target")
    encoding = _encoding(record)
    names, count = told["feature_names"], told["features"]
    if encoding and any(isinstance(column, str) for column in frame.columns):
        names = [column.name for column in encoding.columns]
    outcome = [name for name in frame.columns if name == target and name not in names]
    remarks = [f"column '{target}' is the outcome: ignored"] if outcome else []
    frame = frame.drop(columns=outcome)
    if names and any(isinstance(column, str) for column in frame.columns):
        missing = [name for name in names if name not in frame]
        if missing:
            raise UserError(f"{where} lacks {_list(missing)}: give all features of the record, by name, in any order"
                            f"{_instead(missing, list(map(str, frame.columns)), encoding)}")  # fmt: skip
        others = [name for name in frame.columns if name not in set(names)]
        if others:
            remarks.append(f"ignored, for the record has no such features: {_list(others)}")
        frame = frame[names]
        if encoding:
            found = encoding.apply(frame, remarks, where, of_rows).astype(float)
            return pd.DataFrame(found, columns=encoding.feature_names), remarks
    else:
        if frame.shape[1] != count:
            raise UserError(f"{where} has {frame.shape[1]} columns of features, and the record has {count}: "
                            f"give {'them by name' if names else 'as many'}")  # fmt: skip
        remarks.append(
            f"features of {where if names else 'the record'} have no names: columns are taken in their order"
        )
    x = [require_finite_numbers(frame[column], f"{where}: column '{column}'").astype(float) for column in frame.columns]
    return pd.DataFrame(np.stack(x, axis=1), columns=names or None), remarks


def _instead(missing: list[str], there: list[str], encoding: Encoding | None) -> str:
    """What else the columns that are ``missing`` may be among those that are ``there``, or how they are filled."""
    like = {normalize_name(name): name for name in there}
    meant = [f"'{like[normalize_name(name)]}' for '{name}'" for name in missing if normalize_name(name) in like]
    filled = {c.name for c in encoding.columns if c.fill is not None or c.indicator} if encoding else set()
    fills = [name for name in missing if name in filled and normalize_name(name) not in like]
    told = [f"did you mean {abbreviate(meant)}?"] if meant else []
    told += [f"where nothing is known, give an empty column, filled as in the record: {_list(fills)}"] if fills else []
    return "".join(f"; {each}" for each in told)


def _list(names: list[str]) -> str:
    return abbreviate([f"'{name}'" for name in names], _NAMED)


def _offset(frame: Any, record: Record, where: str) -> tuple[np.ndarray, Any]:
    """What is added to the linear predictor of each row, shape (n,), and the rows without the columns that are no
    features."""
    told = record.config["data"]
    column, aside = told.get("offset"), [name for name in (told.get("weight"), told.get("offset")) if name in frame]
    if column and column not in frame:
        raise UserError(f"{where} lacks '{column}', the offset of the record: give it, 0 for none")
    rest = frame.drop(columns=aside)
    if not column:
        return np.zeros(len(frame)), rest
    return require_finite_numbers(frame[column], f"{where}: column '{column}'").astype(float), rest


def _same_order(model: Any, record: Record) -> bool:
    """Whether the second of an estimator's classes, which are in order, is the positive one of its record too."""
    told = record.summary["data"]["classes"]
    return len(told) != 2 or str(model.classes_[1]) == told[1]


def _by(model: Any, x: Any, offset: np.ndarray) -> Any:
    """What a model predicts for rows x, a DataFrame, with offsets ``offset`` (n,)."""
    import pandas as pd

    if offset.any():
        model = copy(model)
        model.intercept_ = model.intercept_ + (offset[:, None] if hasattr(model, "classes_") else offset)
    x = x if hasattr(model, "feature_names_in_") else x.to_numpy()
    found = {"prediction": model.predict(x)}
    if hasattr(model, "predict_proba"):
        found |= zip((f"probability_{label}" for label in model.classes_), model.predict_proba(x).T, strict=True)
    return pd.DataFrame(found)


def _of_unknown(owner: np.ndarray, unknown: np.ndarray, own: bool, scaled: bool, of_rows: list[list[str]]) -> list[str]:
    """What is said of rows whose client the record does not know, where that makes a difference."""
    if not unknown.any() or not (own or scaled):
        return []
    named = [str(name) for name in dict.fromkeys(owner[unknown]) if name is not None]
    whose = f"of clients that the record does not know ({_list(named)})" if named else "without a client"
    taken = ["the shared model"] if own else []
    taken += ["the means and deviations of all clients, which may be far from their own"] if scaled else []
    rows = np.flatnonzero(unknown).tolist()
    for row in rows:
        of_rows[row].append("no client" if owner[row] is None else f"client '{owner[row]}' not in training")
    get = "gets" if len(rows) == 1 else "get"
    return [f"{_of_all(rows, owner)} {whose} and {get} {' and '.join(taken)}"]


def _new_clients(record: Record, owner: np.ndarray, of_rows: list[list[str]]) -> list[str]:
    """What is said of rows of clients on whose rows the one model was not trained."""
    known = record.summary["data"].get("client_names", ())
    rows = [row for row, name in enumerate(owner) if name is not None and name not in known] if known else []
    if not rows:
        return []
    for row in rows:
        of_rows[row].append(f"client '{owner[row]}' not in training")
    return [f"{_of_all(rows, owner)} of clients that training did not have "
            f"({_list(list(dict.fromkeys(owner[rows])))}): how well the model does there is not known"]  # fmt: skip


def _of_all(rows: list[int], owner: np.ndarray) -> str:
    return f"{describe_rows(rows)} of {len(owner)} {'is' if len(rows) == 1 else 'are'}"


def _far(record: Record, x: Any, of_rows: list[list[str]]) -> list[str]:
    """What is said of numbers that lie further outside of those of training than a tenth of their range; records of
    before do not know these."""
    limits, encoding = record.summary["data"].get("limits"), _encoding(record)
    if limits is None or encoding is None:
        return []
    told = []
    for name, least, most in zip(encoding.feature_names, *limits, strict=True):
        if any(name == column.name and column.kind == "number" for column in encoding.columns):
            values, slack = x[name].to_numpy(), (most - least) / 10
            rows = np.flatnonzero((values < least - slack) | (values > most + slack)).tolist()
            for row in rows:
                of_rows[row].append(f"{name} {values[row]:.6g} outside of {least:.6g} to {most:.6g}")
            if rows:
                others = f", and others in {describe_rows(rows[1:])}" if len(rows) > 1 else ""
                told.append(f"'{name}' {values[rows[0]]:.6g} in {describe_rows(rows[:1])}{others} "
                            f"(training: {least:.6g} to {most:.6g})")  # fmt: skip
    if not told:
        return []
    return [
        f"far outside of what training had, where a model only extrapolates: {abbreviate(told, _NAMED)}; are they "
        f"in the "
        "same units?"
    ]


def _encoding(record: Record) -> Encoding | None:
    """How columns became features; None of a record without named columns."""
    return read_encoding(str(record.folder)) if (record.folder / ENCODING).is_file() else None


def _doubts(record: Record, shared: Any, own: bool) -> list[str]:
    """What is said of the model itself; ``shared`` is None where no row has it."""
    said = []
    if not own and any(name.startswith(PERSONAL_PREFIX) for name in record.summary["final"]):
        said.append("the clients' own models were not kept (save_personal=false): the shared one predicts for all")
    if hasattr(shared, "coef_") and not np.any(shared.coef_):
        said.append("the shared model is 0 but for its intercept: it predicts the same for every row")
    reason = record.status.get("reason")
    return [*said, *([f"of the record: {reason}"] if reason else [])]
