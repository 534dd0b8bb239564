"""The file ``data.labels``: names as people say them, units and roles of the columns of a table and of features."""

from collections.abc import Mapping
from typing import Any

from fcorun.base.errors import UserError, suggest_name
from fcorun.data.tables.column_roles import ColumnRoles
from fcorun.data.tables.encoding import Encoding
from fcorun.data.tables.readers import find_file, read_named_columns

COLUMNS = ("column", "label", "unit", "role")
_LISTS = ("ignore", "keep")  # roles that several columns may have
_SINGLE = ("target", "client", "event", "group", "weight", "offset", "split", "fold")
ROLES = (*_SINGLE, *_LISTS, "feature")


def read_label_file(path: str) -> dict[str, dict[str, str]]:
    """Return the ``label``, ``unit`` and ``role`` of each column that the CSV at ``path`` lists; "" for none.

    Raises UserError for a file that is missing, for other columns than ``COLUMNS``, and for a column listed twice.
    """
    where = f"`data.labels={path}`"
    file = find_file(path, "data.labels=", (".csv",))
    try:
        frame = read_named_columns(file, ".csv", None, COLUMNS, where=where).frame
    except UserError as error:
        raise UserError(f"{error}; a label with commas stands between quotation marks") from error
    if "column" not in frame or not {*frame} <= {*COLUMNS}:
        raise UserError(f"{where} has the columns {', '.join(frame)}: give column, label, unit and role, each once, of "
                        "which only column is needed")  # fmt: skip
    labels: dict[str, dict[str, str]] = {}
    for row in frame.dropna(how="all").fillna("").to_dict("records"):
        words = {str(key): str(value).strip() for key, value in row.items()}
        column = words.pop("column")
        if column in labels:
            raise UserError(f"{where} lists the column '{column}' twice: leave one line out")
        if words.get("role") and words["role"] not in ROLES:
            raise UserError(f"{where}: '{column}' has the role '{words['role']}'; {suggest_name(words['role'], ROLES)}")
        labels[column] = {key: words.get(key, "") for key in COLUMNS[1:]}
    return labels


def assign_roles(labels: Mapping[str, Mapping[str, str]], given: ColumnRoles, path: str) -> dict[str, Any]:
    """Return the options of a table that follow from the roles of a label file, given the roles of its own options.

    Given options win: a column that they name has no other role, and a column whose role they give to another column
    is ignored, so that it is no feature. Raises UserError for two columns with a role that one column can have.
    """
    named = {*given.metadata.values(), given.target, given.client}
    for option in (*_LISTS, "only"):
        named |= {*(getattr(given, option) or ())}
    options: dict[str, Any] = {}
    for column, words in labels.items():
        role = words["role"]
        if column in named or role in ("", "feature"):
            continue
        if role in _SINGLE and getattr(given, role) is not None:
            role = "ignore"
        if role in _LISTS:
            options[role] = [*options.get(role, getattr(given, role) or ()), column]
        elif role in options:
            raise UserError(f"`data.labels={path}`: '{options[role]}' and '{column}' both have the role {role}: give "
                            f"the role to one of them, or `data.{role}=COLUMN`")  # fmt: skip
        else:
            options[role] = column
    return options


Labels = Mapping[str, Mapping[str, str]]  # "label" and "unit" by the name of a column


def label_column(name: str, labels: Labels, with_unit: bool = True) -> str:
    """Return the label of a column with its unit, "age (years)"; its name where there is no label."""
    words = labels.get(name, {})
    label = words.get("label") or name
    unit = words.get("unit") if with_unit else ""
    if unit:
        return f"{label} ({unit})"
    return label


def label_features(encoding: Encoding, labels: Labels) -> dict[str, str]:
    """Return the label of each feature by its name: of a column of numbers its label, of a level "label: level"."""
    texts = {}
    for column in encoding.columns:
        plain = label_column(column.name, labels, with_unit=False)
        values = column.label_values(plain, label_column(column.name, labels))
        texts |= dict(zip(column.value_features, values, strict=True))
        if column.indicator:
            texts[f"{column.name}=missing"] = f"{plain}: not recorded"
    return texts
